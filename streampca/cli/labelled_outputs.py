"""``--eofs`` and ``--anndata``: results where climate scientists and biologists look for them."""

from __future__ import annotations

import argparse
import os
from typing import Any

import streampca
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.anndata_results import check_target
from streampca.store.dataset import SUFFIXES, write_dataset


def labelled_options(parser: argparse.ArgumentParser) -> None:
    """Where to."""
    parser.add_argument(
        "--eofs",
        metavar="NC|ZARR",
        help="write EOFs, PCs, eigenvalues, variance fractions and North's errors here, labelled",
    )
    parser.add_argument(
        "--eof-scaling", type=int, nargs=2, default=[0, 0], metavar=("EOFS", "PCS"),
        help="of those: 0 as they are, 1 divided by the root of the eigenvalue, 2 times it",
    )  # fmt: skip
    parser.add_argument(
        "--anndata",
        nargs="?",
        const="",
        metavar="H5AD|ZARR",
        help='write obsm["X_pca"], varm["PCs"] and uns["pca"] here (default: into the source)',
    )


def labelled_paths(arguments: argparse.Namespace) -> list[str]:
    """Files that are made anew. Refuses what cannot be written, before anything is read."""
    if arguments.no_components and (arguments.eofs or arguments.anndata is not None):
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
    """Refuse, before the fit, labels or an AnnData that do not fit."""
    if arguments.eofs and not matrix.labels.dims_named:
        raise InvalidInputError(
            "--eofs needs a source that names its dimensions (NetCDF, or Zarr as xarray writes it)"
        )
    if arguments.anndata is not None:
        check_target(_target(arguments), matrix.labels, matrix.shape, arguments.overwrite)


def write_labelled(
    model: streampca.PCA, matrix: ChunkedMatrix, arguments: argparse.Namespace
) -> list[str]:
    """Write what was asked for. Returns the paths."""
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
