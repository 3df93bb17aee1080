"""Outputs of commands: checked before anything is read, and written."""

from __future__ import annotations

import argparse
import glob
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import streampca
from streampca.cli.score_files import ZARR, ending, is_file, scores_in
from streampca.errors import InvalidInputError, OccupiedError, OutputError
from streampca.matrix import VIEWS, ChunkedMatrix
from streampca.models.explore.anndata_results import check_target
from streampca.paths import without_braces
from streampca.sources.genotypes.formats import CALLS, format_of
from streampca.store import is_bundle
from streampca.store.labelled import SUFFIXES, write_dataset
from streampca.store.places import exists_already, refuse_inside, sweep
from streampca.store.sinks import ZarrSink, refuse_occupied, remove_abandoned

# Checks of outputs before anything is read: existing files, and places that cannot be written.

Paths = Iterable[str | None]
NO_TEXT = (".csv", ".parquet", ".npy", ".zarr", ".npz", ".h5", ".h5ad", ".nc")
DATA = (*NO_TEXT, ".tsv", ".txt")  # what models are not


def check_outputs(
    *,
    models: Paths = (),
    arrays: Paths = (),
    scores: Paths = (),
    tables: Paths = (),
    datasets: Paths = (),
    new: Paths = (),
    sources: Paths = (),
    overwrite: bool = False,
) -> None:
    """Raise OccupiedError for outputs that exist, OutputError for those that cannot be written.

    models : folders of saved models.  arrays : Zarr arrays.  scores : those, or files, by the end
    of their names.  tables : text files.
    datasets : NetCDF files or Zarr groups.  new : Zarr groups that are never replaced.
    sources : the inputs: an output within one would become a part of it, or replace it.
    None stands for an output that is not wanted. What a killed run left of an output is removed.
    """
    wanted = [score for score in scores if score]
    files = [one for one in wanted if is_file(one)]
    check_endings(models, [*arrays, *new], tables)
    arrays, tables = [*arrays, *(one for one in wanted if one not in files)], [*tables, *files]
    groups = [[path for path in paths if path] for paths in (models, arrays, tables, datasets, new)]
    models, arrays, tables, _, new = groups
    local = [path for paths in groups for path in paths if "://" not in path]
    for one in local:
        sweep(one)
    for array in arrays:
        remove_abandoned(array)
    read = _files_of(sources)
    for one in local:
        refuse_inside(one, read, "the output")
    places = [Path(one).resolve() for one in local]
    for one, place in zip(local, places, strict=True):
        if places.count(place) > 1:
            raise InvalidInputError(f"{one} is named for two outputs; choose another for one")
        if os.path.lexists(one) and not overwrite and one not in new:
            raise exists_already(one, "add --overwrite to replace it")
    for model in models:
        if Path(model).exists() and not is_bundle(model):
            raise OccupiedError(f"{model} is not a model; choose another output")
    for table in tables:
        if os.path.lexists(table) and not Path(table).is_file():
            raise OccupiedError(f"{table} is not a file; choose another output")
    for array in arrays:
        refuse_occupied(array, overwrite)
    for one in new:
        refuse_occupied(one, False)
    for one in local:
        check_writable(Path(one))


def _files_of(sources: Paths) -> list[str]:
    """The local files and folders of sources: patterns, and filesets by any of their names."""
    found: list[str] = []
    for source in chain.from_iterable(map(without_braces, filter(None, sources))):
        found += [source] if os.path.exists(source) else glob.glob(source, recursive=True)
        found += [source + end for end in CALLS if os.path.exists(source + end)]
    return found + [file for one in found if (kind := format_of(one)) for file in kind.files(one)]


def check_endings(models: Paths = (), arrays: Paths = (), tables: Paths = ()) -> None:
    """Raise InvalidInputError for a name whose end promises another format than is written."""
    for array in filter(None, arrays):
        ending(array, ZARR)
    for model in filter(None, models):
        if model.lower().endswith(DATA):
            raise InvalidInputError(f"{model}: a model is a folder; expected a name such as model")
    for table in filter(None, tables):
        if table.lower().endswith(NO_TEXT):
            raise InvalidInputError(f"{table}: text is written; expected a name such as out.tsv")


def check_writable(path: Path) -> None:
    """Raise OutputError if a file or folder of this name could not be made."""
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        if not folder.is_dir():
            raise NotADirectoryError(0, "is not a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {folder}: {error.strerror or error}"
        ) from None


def score_paths(path: str | None, views: int) -> list[str]:
    """Where scores go: of two views ``s-x.zarr`` and ``s-y.zarr`` for ``s.zarr``."""
    if path is None or views == 1:
        return [] if path is None else [path]
    stem, suffix = os.path.splitext(path)
    return [f"{stem}-{name}{suffix}" for name in VIEWS]


def write_scores(model: Any, matrix: Any, path: str, overwrite: bool, remove: Any = None) -> None:
    """Write the scores of a fit's rows: those it kept, or by another pass."""
    scores, kept = model.result_.scores, model.result_.labels.samples
    with scores_in(path, kept, overwrite) as (place, replaces):
        if scores is None or getattr(model, "whiten", False):
            model.transform(matrix, out=place, overwrite=replaces, remove=remove)
            return
        n, k = scores.shape
        dtype = np.result_type(scores, np.float64)
        sink = ZarrSink(place, n, k, dtype, overwrite=replaces)
        sink.write(0, scores)
        sink.finish()


def write_both(model: Any, matrices: Any, paths: list[str], overwrite: bool) -> tuple[int, ...]:
    """Write the scores of both views of a model. Returns the shape of the first."""
    with ExitStack() as stack:
        places, replaces = zip(
            *(
                stack.enter_context(scores_in(path, matrix.labels.samples, overwrite))
                for path, matrix in zip(paths, matrices, strict=True)
            ),
            strict=True,
        )
        written = model.transform(*matrices, out=[*places], overwrite=any(replaces))
        return tuple(written[0].shape)


# ``--eofs`` and ``--anndata``: results in the formats of climate science and biology.


def labelled_options(parser: argparse.ArgumentParser) -> None:
    """Options for labelled results."""
    parser.add_argument(
        "--eofs",
        metavar="NC|ZARR",
        help="write EOFs, PCs, eigenvalues, variance fractions and North's errors here, labelled; "
        "EOFs are of the field times its weights",
    )
    parser.add_argument(
        "--eof-scaling",
        type=int,
        nargs=2,
        default=[0, 0],
        metavar=("EOFS", "PCS"),
        help="of those: 0 none (the default), 1 divided by the root of the eigenvalue (PCs have "
        "variance 1 then), 2 multiplied by it",
    )
    parser.add_argument(
        "--anndata",
        nargs="?",
        const="",
        metavar="H5AD|ZARR",
        help='write obsm["X_pca"], varm["PCs"] and uns["pca"] here (default: into the source)',
    )


def labelled_paths(arguments: argparse.Namespace) -> list[str]:
    """The dataset to be written, if any. Raises InvalidInputError if that is not possible."""
    if not arguments.components and (arguments.eofs or arguments.anndata is not None):
        raise InvalidInputError("--eofs and --anndata need components: leave out --no-components")
    if not arguments.eofs:
        return []
    if not arguments.eofs.endswith(SUFFIXES):
        known = " or ".join(SUFFIXES)
        raise InvalidInputError(f"--eofs {arguments.eofs}: expected a name that ends in {known}")
    for source in arguments.source:
        if os.path.realpath(source) == os.path.realpath(arguments.eofs):
            raise InvalidInputError(f"--eofs {arguments.eofs} is the source; choose another output")
    return [arguments.eofs]


def check_labelled(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> None:
    """Check before the fit that the labels, or the AnnData, suit the outputs."""
    if arguments.eofs and not matrix.labels.dims_named:
        raise InvalidInputError(
            "--eofs needs a source that names its dimensions (NetCDF, or Zarr as xarray writes it)"
        )
    if arguments.anndata is not None:
        check_target(_target(arguments), matrix.labels, matrix.shape, arguments.overwrite)


def write_labelled(
    model: streampca.PCA, matrix: ChunkedMatrix, arguments: argparse.Namespace
) -> list[str]:
    """Write the labelled results that the arguments ask for. Returns the paths."""
    if not arguments.eofs and arguments.anndata is None:
        return []
    scores: Any = model.result_.scores
    if scores is None:
        scores = model.transform(matrix, remove=model.remove)
    if arguments.eofs:
        made = model.eof_.dataset(*arguments.eof_scaling, scores=scores)
        write_dataset(made, arguments.eofs, arguments.overwrite)
    if arguments.anndata is not None:
        target = _target(arguments)
        streampca.write_anndata(model, target, scores=scores, overwrite=arguments.overwrite)
    return [one for one in (arguments.eofs, arguments.anndata) if one] + (
        [_target(arguments)] if arguments.anndata == "" else []
    )


def _target(arguments: argparse.Namespace) -> str:
    return str(arguments.anndata or arguments.source[0])
