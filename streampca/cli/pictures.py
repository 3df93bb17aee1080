"""``streampca plot``, ``streampca report`` and ``streampca baselines``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import (
    open_source,
    print_answer,
    running_options,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import check_writable
from streampca.cli.terminal import shown
from streampca.cli.view_options import (
    field_of,
    field_options,
    scores_of_both,
    two_views_of,
    with_options,
)
from streampca.errors import InvalidInputError, SourceError
from streampca.genetics.tables import read_eigenvec
from streampca.matrix import AxisLabels
from streampca.matrix.labels import json_of
from streampca.models.explore.r2_baselines import RECONSTRUCTIONS
from streampca.models.two_views.result import TwoViewResult
from streampca.passes import size
from streampca.report.document import report_of
from streampca.sources.side_data import named_column, read_panel
from streampca.sources.sparse.anndata import stored_scores
from streampca.sources.text_files import read_text
from streampca.store.bundle import whole_file

OF_SAMPLES = ("scores", "projected", "pairs", "biplot", "pcs")
OF_ONE = {"loadings": "component", "manhattan": "component"}  # the option of the picture
OF_SEVERAL = {
    "scores": "components",
    "projected": "components",
    "pairs": "components",
    "biplot": "components",
    "correlation_circle": "components",
    "map": "mode",
    "pcs": "mode",
    "texts": "components",
}
KINDS = ("scree", "spectrum", *OF_SEVERAL, *OF_ONE, "r2", "validation", "sweeps", "images")
LABELS = "one label per sample, each on a line; or cells.h5ad:NAME, a column of obs"
TABLES = (".tsv", ".txt", ".eigenvec", ".sscore")
IN_OBSM = re.compile(r"(.+\.(?:h5ad|zarr)):([^:/]+)")  # a path, and a name in obsm
MOST_POPULATIONS = 40  # of which a legend is readable
PICTURES = (".png", ".pdf", ".svg", ".eps", ".ps", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``plot``, ``report`` and ``baselines``."""
    one = parsers["plot"]
    one.set_defaults(run=run_plot)
    one.add_argument("model")
    one.add_argument("--kind", choices=KINDS, help="default: scores with --scores, else scree")
    one.add_argument("-o", "--output", metavar="PNG|PDF|SVG", help="default: KIND.png")
    one.add_argument("--components", type=int, nargs="+", metavar="N", help="numbers, from 1")
    one.add_argument("--labels", metavar="FILE", help=LABELS)
    _panel_options(one)
    one.add_argument("--ellipses", action="store_true", help="of 95 %% of each group of samples")
    one.add_argument(
        "--scores",
        metavar="ZARR|TSV|H5AD",
        help="scores to draw, of an AnnData obsm['X_pca'] (or H5AD:NAME); new samples (streampca "
        "project) are drawn over those of the fit",
    )
    one.add_argument(
        "--images",
        metavar="FOLDER",
        help="of --kind images: the first three of these, beside what components make of them",
    )
    field_options(one)

    one = parsers["report"]
    one.set_defaults(run=run_report)
    one.add_argument("model")
    one.add_argument("-o", "--output", default="report.html", metavar="HTML")
    one.add_argument("--title", default="")
    one.add_argument("--labels", metavar="FILE", help=LABELS)
    _panel_options(one)
    one.add_argument(
        "--scores", metavar="ZARR|TSV|H5AD", help="scores to draw, if the model has none"
    )

    one = parsers["baselines"]
    one.set_defaults(run=run_baselines)
    one.add_argument("source", nargs="+")
    source_options(one)
    one.add_argument("-k", "--components", type=int, metavar="K", help="at most (default: 50)")
    one.add_argument("--reconstruction", choices=RECONSTRUCTIONS, default="projection")
    one.add_argument("--scale", choices=("std",), help="divide by the standard deviation")
    one.add_argument("--missing", choices=("raise", "mean"), default="raise")
    one.add_argument("--draws", type=int, default=20, metavar="N", help="random ones to average")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("-o", "--output", required=True, metavar="PNG|PDF|SVG")
    running_options(one)


def _panel_options(one: Parser) -> None:
    one.add_argument(
        "--panel",
        metavar="FILE",
        help="a table of sample ids and their labels, or a .ind of EIGENSOFT (default: the "
        "populations of the .ind with which the model was fitted)",
    )
    one.add_argument(
        "--panel-column",
        metavar="NAME",
        help="its column with the labels (default: population, pop, super_pop or group, else the "
        "first after the ids)",
    )


def picture_path(name: str) -> Path:
    """The path of a picture. Raises InvalidInputError, OutputError where none can be there."""
    output = Path(name)
    if output.suffix.lower() not in PICTURES:
        raise InvalidInputError(f"{output}: expected a name that ends in .png, .pdf or .svg")
    if output.is_dir():
        raise InvalidInputError(f"{output} is a folder; choose another output")
    check_writable(output)
    return output


def run_baselines(arguments: argparse.Namespace) -> int:
    """``streampca baselines``: four curves from one read of the data, and their picture."""
    output = picture_path(arguments.output)
    found = streampca.r2_baselines(
        open_source(arguments),
        arguments.components,
        scale=arguments.scale,
        reconstruction=arguments.reconstruction,
        missing=arguments.missing,
        n_draws=arguments.draws,
        random_state=arguments.seed,
        **settings_of_run(arguments),
    )
    draw("baselines", found, output)
    if arguments.json:
        curves = {name: curve.tolist() for name, curve in found.curves.items()}
        print(json_of({"r2": curves, "features": found.features}, indent=1))
        return 0
    print(f"{found}\nbaselines drawn to {shown(arguments.output)}")
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    """``streampca plot``: draw a picture of a saved model."""
    kind = arguments.kind or ("scores" if arguments.scores else "scree")
    output = picture_path(arguments.output or f"{kind}.png")
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    model = streampca.load(arguments.model)
    result = model.result_
    chosen = arguments.components
    options: dict[str, Any] = {}
    if kind in OF_SAMPLES and isinstance(result, TwoViewResult):
        options = two_views_of(arguments, kind, labels)
    elif kind in OF_SAMPLES:
        kind, options = _samples_of(arguments, result, labels, kind)
    elif kind == "texts":
        options["labels"] = labels
    elif kind == "images" and arguments.images:
        options["X"] = streampca.open(arguments.images)
    if kind in OF_ONE:
        options[OF_ONE[kind]] = (chosen or [1])[0]
    elif kind in OF_SEVERAL and chosen:
        options[OF_SEVERAL[kind]] = chosen[0] if kind == "map" and len(chosen) == 1 else chosen
    options |= field_of(arguments, kind)
    try:
        draw(kind, model if "X" in options else result, output, **options)
    except InvalidInputError as error:
        raise InvalidInputError(with_options(str(error))) from None
    whole = {"kind": kind, "output": str(output)}
    print_answer(arguments, whole, f"{kind} drawn to {shown(output)}")
    return 0


def _samples_of(
    arguments: argparse.Namespace, result: Any, labels: Any, kind: str
) -> tuple[str, dict[str, Any]]:
    """(the picture, its scores and labels): new samples go over those of the fit."""
    scores, samples = None, result.labels.samples
    if arguments.scores:
        samples, scores = read_scores(arguments.scores, samples, result)
        if kind == "scores" and samples is not result.labels.samples and result.scores is not None:
            kind = "projected"
    if kind == "projected":
        if scores is None:
            raise InvalidInputError("--kind projected draws new samples: add --scores FILE")
        fitted = result.labels.samples
        known = (labels, None) if labels is not None else _panel_of_both(arguments, fitted, samples)
        return kind, {"new_scores": scores, "labels": known[0], "new_labels": known[1]}
    labels = _groups(arguments, samples) if labels is None else labels
    if kind == "pcs":
        return kind, {"scores": scores}
    more = {"ellipses": True} if kind == "scores" and arguments.ellipses else {}
    return kind, {"scores": scores, "labels": labels, **more}


def _groups(arguments: argparse.Namespace, samples: Any) -> list[str] | None:
    """Labels of the samples by --panel, or else the populations that came with them."""
    if arguments.panel is not None:
        return read_panel(arguments.panel, samples, arguments.panel_column)
    names = [str(name) for name in samples.extra.get("population", ())]
    return names if 1 < len({*names}) <= MOST_POPULATIONS else None


def _panel_of_both(arguments: argparse.Namespace, fitted: Any, new: Any) -> tuple[Any, Any]:
    """Labels of the samples of the fit and of new ones; None for those that no panel names."""
    if arguments.panel is None:
        return _groups(arguments, fitted), _groups(arguments, new)
    found: list[Any] = [None, None]
    for i, samples in enumerate((fitted, new)):
        try:
            found[i] = read_panel(arguments.panel, samples, arguments.panel_column)
        except InvalidInputError:
            if i and found[0] is None:  # it names neither
                raise
    return found[0], found[1]


def read_scores(path: str, fitted: Any, result: Any) -> tuple[Any, Any]:
    """(labels of the samples, (n, k) scores) of a file of ours: Zarr, or a table of new samples;
    or of ``cells.h5ad``, its obsm["X_pca"], and of ``cells.h5ad:NAME`` another of obsm.

    fitted : the labels of the fit, which rows without names have if they are as many.
    result : of the fit. Raises InvalidInputError for a matrix wider than it has components.
    """
    if path.endswith(TABLES):
        ids, values = read_eigenvec(path)
        names = ids.get("IID") or next(iter(ids.values()), [str(i + 1) for i in range(len(values))])
        if names == fitted.names() or names == [*map(str, fitted.extra.get("individual", ()))]:
            return fitted, values
        return AxisLabels.plain("sample", len(values), names), values
    named = IN_OBSM.fullmatch(path)
    if (found := stored_scores(*(named.groups() if named else (path,)))) is not None:
        names, values = found
        same = fitted.names() == [*map(str, names)] if fitted.named and names is not None else True
        if same and len(values) == len(fitted):
            return fitted, values
        return AxisLabels.plain("obs", len(values), names), values
    matrix = streampca.open(path)
    most = getattr(result, "n_components", matrix.shape[1])
    if matrix.shape[1] > most or matrix.sparse:
        raise InvalidInputError(
            f"--scores {path}: {matrix.shape[0]} x {matrix.shape[1]} values are no scores of a "
            f"model with {most} components; expected what streampca transform or project wrote"
        )
    values = matrix.read(0, 0, matrix.shape[0])
    return (fitted if len(values) == len(fitted) else matrix.labels.samples), values


def run_report(arguments: argparse.Namespace) -> int:
    """``streampca report``: one page about a saved model."""
    output = Path(arguments.output)
    if output.suffix.lower() not in (".html", ".htm"):
        raise InvalidInputError(f"{output}: expected a name that ends in .html")
    if output.is_dir():
        raise InvalidInputError(f"{output} is a folder; choose another output")
    check_writable(output)
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    result = streampca.load(arguments.model).result_
    scores, samples = None, result.labels.samples
    if arguments.scores and isinstance(result, TwoViewResult):
        scores = scores_of_both(arguments.scores)
    elif arguments.scores:
        samples, scores = read_scores(arguments.scores, samples, result)
    labels = _groups(arguments, samples) if labels is None else labels
    title, place = arguments.title, arguments.model
    made = report_of(result, scores=scores, labels=labels, title=title, path=place)
    made.save(output)
    nbytes = output.stat().st_size
    said = f"report written to {shown(output)} ({size(nbytes)})"
    print_answer(arguments, {"output": str(output), "bytes": nbytes}, said)
    return 0


def read_labels(path: str) -> Any:
    """Labels from a file: its lines that are not empty; or ``cells.h5ad:NAME``, a column of obs,
    which goes by the names of the observations."""
    source, _, name = path.rpartition(":")
    if path.endswith((".h5ad", ".h5ad:")):
        whole = f"{path.rstrip(':')}:NAME"
        raise InvalidInputError(f"--labels {path}: name a column of obs, --labels {whole}")
    if source.endswith((".h5ad", ".zarr")):
        if "://" not in source and not Path(source).exists():
            raise SourceError(f"{source}: no such file or directory")
        return named_column(source, name, "--labels")
    lines = read_text(path).splitlines()
    return [line.strip() for line in lines if line.strip()]


def draw(kind: str, result: Any, path: Path, /, **options: Any) -> None:
    from streampca import plots

    write_picture(getattr(plots, kind)(result, **options).get_figure(), path)


def write_picture(figure: Any, path: Path) -> None:
    """A figure as a file, in the format of its name."""
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150, bbox_inches="tight")
