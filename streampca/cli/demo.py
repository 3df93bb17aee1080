"""``streampca demo``: analyse data with known structure, and check the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streampca.cli.commands import Parser
from streampca.cli.info import report, summary
from streampca.cli.options import printing_options, progress_of
from streampca.cli.pictures import draw
from streampca.errors import MissingDependencyError
from streampca.matrix.labels import json_of
from streampca.operations.demo import Demo, digits_demo, genotype_demo
from streampca.passes import size
from streampca.sources.genotypes.simulate import GenotypeRecipe


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
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


def run_demo(arguments: argparse.Namespace) -> int:
    """``streampca demo``: write or load the data, fit, save, draw."""
    folder, progress = Path(arguments.output), progress_of(arguments)
    if arguments.data == "digits":
        done = digits_demo(progress=progress)
    else:
        recipe = GenotypeRecipe(arguments.samples, arguments.variants, seed=arguments.seed)
        if not arguments.json:
            print(
                f"Writing {folder / 'genotypes.zarr'}: {recipe.samples} samples x "
                f"{recipe.variants} variants of {recipe.populations} populations, "
                f"{recipe.missing:.1%} missing ({size(recipe.samples * recipe.variants)} as int8)",
                flush=True,
            )
        writing = _writing if progress else None
        limit = arguments.memory_limit
        done = genotype_demo(folder, recipe, memory_limit=limit, progress=progress, writing=writing)
    folder.mkdir(parents=True, exist_ok=True)
    done.model.save(folder / "model")
    if arguments.json:
        print(json_of({**summary(done.model), "check": done.check}, indent=1))
        return 0
    plan = f"{done.model.plan_}\n\n" if arguments.verbose else ""
    print(f"\n{plan}{report(done.model, arguments.verbose)}\n\ncheck: {done.check}")
    print(f"model: {folder / 'model'}   (streampca info {folder / 'model'})")
    _draw(done, folder)
    return 0


def _draw(done: Demo, folder: Path) -> None:
    scree, scores = folder / "scree.png", folder / "scores.png"
    try:
        draw("scree", done.model.result_, scree)
        draw("scores", done.model.result_, scores, scores=done.scores, labels=done.labels)
    except MissingDependencyError as error:
        print(f"pictures: {error}")
        return
    print(f"pictures: {scores}, {scree}")


def _writing(done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[Kwriting {done}/{total} variants" + ("\n" if done == total else ""))
    sys.stderr.flush()
