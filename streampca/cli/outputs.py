"""Outputs of commands: checked before anything is read; files and reports of results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import streampca
from streampca.errors import InvalidInputError, StreamPCAError
from streampca.matrix import VIEWS, ChunkedMatrix
from streampca.models.anndata_results import check_target
from streampca.models.genotype_numbers import eigenvalues
from streampca.operations.history import History
from streampca.passes import PassCost, Plan, size
from streampca.passes.door import other_nbytes
from streampca.store import is_bundle
from streampca.store.labelled import SUFFIXES, write_dataset
from streampca.store.places import refuse_inside
from streampca.store.sinks import ZarrSink, refuse_occupied

# --------------------------------------------------------------------------------------------------
# Checks of outputs before anything is read: existing files, and places that cannot be written.

Paths = Iterable[str | None]


class OutputError(StreamPCAError, OSError):
    """An output that cannot be written."""


def check_outputs(
    *, models: Paths = (), arrays: Paths = (), tables: Paths = (), datasets: Paths = (),
    new: Paths = (), sources: Paths = (), overwrite: bool = False,
) -> None:  # fmt: skip
    """Raise InvalidInputError for outputs that exist, OutputError for those that cannot be written.

    models : folders of saved models.  arrays : Zarr arrays.  tables : text files.
    datasets : NetCDF files or Zarr groups.  new : Zarr groups that are never replaced.
    sources : the inputs: an output within one would become a part of it.
    None stands for an output that is not wanted.
    """
    groups = [[one for one in paths if one] for paths in (models, arrays, tables, datasets, new)]
    models, arrays, tables, _, new = groups
    local = [one for paths in groups for one in paths if "://" not in one]
    places = [Path(one).resolve() for one in local]
    for one, place in zip(local, places, strict=True):
        if places.count(place) > 1:
            raise InvalidInputError(f"{one} is named for two outputs; choose another for one")
        if os.path.lexists(one) and not overwrite and one not in new:
            raise InvalidInputError(f"{one} exists already; add --overwrite to replace it")
    folders = [one for one in sources if one and Path(one).is_dir()]
    for one in local:
        refuse_inside(one, folders, "the output")
    for one in models:
        if Path(one).exists() and not is_bundle(one):
            raise InvalidInputError(f"{one} is not a model; choose another output")
    for one in tables:
        if os.path.lexists(one) and not Path(one).is_file():
            raise InvalidInputError(f"{one} is not a file; choose another output")
    for one in arrays:
        refuse_occupied(one, overwrite)
    for one in new:
        refuse_occupied(one, False)
    for one in local:
        check_writable(Path(one))


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
    """Write the scores of a fit's rows as a Zarr array: those it kept, or by another pass."""
    scores = model.result_.scores
    if scores is None or getattr(model, "whiten", False):
        model.transform(matrix, out=path, overwrite=overwrite, remove=remove)
        return
    n, k = scores.shape
    sink = ZarrSink(path, n, k, overwrite=overwrite)
    sink.write(0, scores)
    sink.finish()


# --------------------------------------------------------------------------------------------------
# ``--eofs`` and ``--anndata``: results in the formats of climate science and biology.


def labelled_options(parser: argparse.ArgumentParser) -> None:
    """Options for labelled results."""
    parser.add_argument(
        "--eofs",
        metavar="NC|ZARR",
        help="write EOFs, PCs, eigenvalues, variance fractions and North's errors here, labelled",
    )
    parser.add_argument(
        "--eof-scaling", type=int, nargs=2, default=[0, 0], metavar=("EOFS", "PCS"),
        help="of those: 0 none, 1 divided by the root of the eigenvalue, 2 multiplied by it",
    )  # fmt: skip
    parser.add_argument(
        "--anndata",
        nargs="?",
        const="",
        metavar="H5AD|ZARR",
        help='write obsm["X_pca"], varm["PCs"] and uns["pca"] here (default: into the source)',
    )


def labelled_paths(arguments: argparse.Namespace) -> list[str]:
    """The dataset to be written, if any. Raises InvalidInputError if that is not possible."""
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


# --------------------------------------------------------------------------------------------------
# Reports of a fit and of a model.

LEGEND = (
    "+-: bound on the variance's error.  angle: bound on the angle to the true component, in\n"
    "radians.  not determined: there is no useful bound; of components with equal variances only\n"
    "their common plane is determined."
)

CAUSES = {
    "lists": "by lists, chromosomes or regions",
    "ill_called": "ill-called",
    "rare_or_ill_called": "rare or ill-called",
    "monomorphic": "monomorphic",
    "without_a_call": "without a call",
    "unplaced": "on chromosome 0",
    "linked": "by LD pruning",
}


def report(model: Any) -> str:
    """The spectrum of a fit, and its cost compared with its plan, as text."""
    plan: Plan = model.plan_
    costs: list[PassCost] = model.cost_
    seconds = sum(c.seconds for c in costs)
    nbytes, peak = sum(c.nbytes for c in costs), model.result_.provenance["peak_bytes"]
    bounds = [LEGEND] if hasattr(model.result_, "certificate") else []
    lines = [model.result_.table(), *bounds, *genotype_lines(model.result_), ""]
    planned = "planned" if all(one.times == 1 for one in plan.passes) else "at most"
    lines.append(f"{'':<14}{planned:>12}{'measured':>12}")
    rows = [
        ("passes", plan.n_passes, len(costs)),
        ("chunk reads", plan.reads, sum(c.reads for c in costs)),
        ("bytes read", size(plan.nbytes), size(nbytes)),
        ("peak memory", size(plan.peak_nbytes), size(peak)),
    ]
    lines += [f"{name:<14}{planned:>12}{measured:>12}" for name, planned, measured in rows]
    held = model.result_.provenance.get("held_bytes")
    if held is not None and peak - other_nbytes(plan, held) > plan.peak_nbytes:
        lines[-1] += "   (more than planned)"
    lines.append(
        f"{'pass seconds':<14}{'':>12}{seconds:>12.1f}   "
        f"({nbytes / max(seconds, 1e-9) / 1e6:.0f} MB/s)"
    )
    return "\n".join(lines)


def genotype_numbers(result: Any) -> dict[str, Any]:
    """Eigenvalues, significance and pruning of a GenotypePCA, JSON-ready; {} for other models."""
    if result.method != "GenotypePCA":
        return {}
    numbers: dict[str, Any] = {"eigenvalues": eigenvalues(result).tolist()}
    try:
        numbers["tracy_widom_p"] = result.tracy_widom().p_value[: result.n_components].tolist()
    except InvalidInputError as error:
        numbers |= {"tracy_widom_p": None, "tracy_widom_not_computed": str(error)}
    return numbers | {"ld": result.settings.get("ld")}


def genotype_lines(result: Any) -> list[str]:
    """Eigenvalues and significance as usual in genetics, and the variants left out, as text."""
    if result.method != "GenotypePCA":
        return []
    values = eigenvalues(result)
    shown = min(len(values), 10)
    lines = ["", "eigenvalues of ZZ'/M  " + " ".join(f"{v:.4f}" for v in values[:shown])]
    try:
        p_values = result.tracy_widom().p_value[:shown]
        lines.append(
            "Tracy-Widom p         " + " ".join(f"{p:.2g}" if p else "<1e-300" for p in p_values)
        )
    except InvalidInputError as error:
        lines.append(f"Tracy-Widom p         not computed: {error}")
    lines.append(
        f"M = {result.n_features_used} of {result.n_features} variants: "
        f"{len(result.constant)} monomorphic, {len(result.dropped)} without a call, "
        f"{len(result.filtered)} rare or ill-called"
    )
    if result.missing is not None:
        cells = max(result.n_samples * result.n_features, 1)
        lines.append(f"{result.missing.sum() / cells:.3%} of the calls were missing")
    return lines


def left_out(counts: dict[str, dict[str, int]]) -> str:
    """How much of the source was not used, by cause, as text."""
    lines = []
    for axis, causes in counts.items():
        gone = [f"{number} {CAUSES[name]}" for name, number in causes.items()
                if name in CAUSES and number]  # fmt: skip
        lines.append(
            f"{axis:<10} {causes['used']} of {causes['source']} used; "
            f"left out: {', '.join(gone) or 'none'}"
        )
    return "\n".join(lines)


def print_damage(history: History) -> None:
    """Name the damaged parts of a model store on stderr."""
    for text in [*history.damage.values(), *filter(None, [history.unsure])]:
        print(f"streampca: {text}", file=sys.stderr)


def describe(result: Any) -> str:
    """A saved result as text: spectrum, settings, source and cost."""
    provenance = result.provenance
    lines = [str(result), ""]
    if result.plan.get("solver"):  # a model updated by appended rows has no plan
        lines.append(f"solver     {result.plan['solver']}: {result.plan.get('reason', '-')}")
    lines.append(
        f"settings   {json.dumps({k: v for k, v in result.settings.items() if v is not None})}"
    )
    if result.preprocessing:
        lines.append(f"before it  {result.preprocessing}; raw new rows get the same")
    lines += genotype_lines(result) or result.notes()
    cost = f"{provenance.get('reads', 0)} chunk reads, {provenance.get('seconds', 0):.1f} s"
    known = str(provenance.get("source", ""))[:16]
    lines.append(f"source     {known}, {cost}" if known else f"cost       {cost}")
    versions = provenance.get("versions", {})
    lines.append("made with  " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    return "\n".join(lines)


def summary(model: Any) -> dict[str, Any]:
    """The result of a fit, its plan and its cost, JSON-ready."""
    result = model.result_
    return {**result.summary(), **genotype_numbers(result)}
