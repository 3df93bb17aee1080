"""``streampca plot`` and ``streampca demo``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.info import report, summary
from streampca.cli.options import printing_options, progress_of
from streampca.cli.outputs import check_writable
from streampca.errors import InvalidInputError, MissingDependencyError, SourceError
from streampca.passes import size
from streampca.sources.side_data import read_panel
from streampca.store.places import writing

KINDS = ("scree", "scores", "loadings", "validation", "images")
PICTURES = (".png", ".pdf", ".svg", ".eps", ".ps", ".jpg", ".jpeg", ".tif", ".tiff", ".webp")


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``plot`` and ``demo``."""
    one = parsers["plot"]
    one.set_defaults(run=run_plot)
    one.add_argument("model")
    one.add_argument("--kind", choices=KINDS, default="scree")
    one.add_argument("-o", "--output", required=True, metavar="PNG|PDF|SVG")
    one.add_argument("--components", type=int, nargs="+", default=[1, 2], metavar="N")
    one.add_argument("--labels", metavar="FILE", help="one label per sample, each on a line")
    one.add_argument("--panel", metavar="FILE", help="a table of sample ids and their labels")
    one.add_argument("--panel-column", metavar="NAME", help="its column with the labels")
    one.add_argument("--scores", metavar="ZARR", help="scores to draw, if the model has none")

    one = parsers["demo"]
    one.set_defaults(run=run_demo)
    one.add_argument("data", nargs="?", choices=("genotypes", "digits"), default="genotypes")
    one.add_argument("--samples", type=int, default=3192)
    one.add_argument("--variants", type=int, default=50_000, help="up to the full 500568")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--memory-limit", metavar="SIZE")
    one.add_argument("-o", "--output", default="streampca-demo", metavar="FOLDER")
    one.add_argument("--json", action="store_true")
    printing_options(one)


def run_plot(arguments: argparse.Namespace) -> int:
    """``streampca plot``: draw a picture of a saved model."""
    output = Path(arguments.output)
    if output.suffix.lower() not in PICTURES:
        raise InvalidInputError(f"{output}: expected a name that ends in .png, .pdf or .svg")
    if output.is_dir():
        raise InvalidInputError(f"{output} is a folder; choose another output")
    check_writable(output)
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    result = streampca.load(arguments.model).result_
    if labels is None and arguments.panel is not None:
        labels = read_panel(arguments.panel, result.labels.samples, arguments.panel_column)
    options: dict[str, Any] = {}
    if arguments.kind == "scores":
        options = {"labels": labels, "components": tuple(arguments.components)}
        if arguments.scores:
            matrix = streampca.open(arguments.scores)
            options["scores"] = matrix.read(0, 0, matrix.shape[0])
    if arguments.kind == "loadings":
        options = {"component": arguments.components[0]}
    draw(arguments.kind, result, output, **options)
    print(f"{arguments.kind} drawn to {arguments.output}")
    return 0


def read_labels(path: str) -> list[str]:
    """Labels from a file: the lines of a file that are not empty."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not a text file: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def run_demo(arguments: argparse.Namespace) -> int:
    """``streampca demo``: analyse data with known structure, and check the result."""
    from streampca.operations.convert import digits_demo, genotype_demo
    from streampca.sources.simulate import GenotypeRecipe

    folder = Path(arguments.output)
    progress = progress_of(arguments)
    if arguments.data == "digits":
        done = digits_demo(progress=progress)
    else:
        recipe = GenotypeRecipe(arguments.samples, arguments.variants, seed=arguments.seed)
        if not arguments.json:
            cells = recipe.samples * recipe.variants
            print(
                f"Writing {folder / 'genotypes.zarr'}: {recipe.samples} samples x "
                f"{recipe.variants} variants of {recipe.populations} populations, "
                f"{recipe.missing:.1%} missing ({size(cells)} as int8)",
                flush=True,
            )
        done = genotype_demo(
            folder,
            recipe,
            memory_limit=arguments.memory_limit,
            progress=progress,
            writing=_writing if progress else None,
        )
    folder.mkdir(parents=True, exist_ok=True)
    done.model.save(folder / "model")
    if arguments.json:
        print(json.dumps({**summary(done.model), "check": done.check}, indent=1))
        return 0
    plan = f"{done.model.plan_}\n\n" if arguments.verbose else ""
    print(f"\n{plan}{report(done.model, arguments.verbose)}\n\ncheck: {done.check}")
    print(f"model: {folder / 'model'}   (streampca info {folder / 'model'})")
    _demo_pictures(done, folder)
    return 0


def _demo_pictures(done: Any, folder: Path) -> None:
    scores = done.model.result_.scores
    if scores is None:
        scores = done.model.transform(_digits())
    try:
        draw("scree", done.model.result_, folder / "scree.png")
        draw(
            "scores",
            done.model.result_,
            folder / "scores.png",
            scores=scores,
            labels=done.labels,
        )
    except MissingDependencyError as error:
        print(f"pictures: {error}")
        return
    print(f"pictures: {folder / 'scores.png'}, {folder / 'scree.png'}")


def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits().data


def draw(kind: str, result: Any, path: Path, **options: Any) -> None:
    from streampca import plots

    figure = getattr(plots, kind)(result, **options).get_figure()
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path):
        figure.savefig(path, dpi=150, bbox_inches="tight")


def _writing(done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[Kwriting {done}/{total} variants" + ("\n" if done == total else ""))
    sys.stderr.flush()
