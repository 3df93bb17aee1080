"""``streampca relate``: relatives among the samples of a source, in PLINK's tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.fields import add_fields
from streampca.cli.genotypes import OF_GENOTYPES, PLINK_NAMES, filter_options
from streampca.cli.king_tables import KingTables, king_options
from streampca.cli.options import (
    files_read,
    open_source,
    print_answer,
    running_options,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import check_outputs
from streampca.cli.selection import SHARES, choose
from streampca.cli.terminal import shown
from streampca.genetics.filters import VariantFilter
from streampca.genetics.kinship_result import write_cutoff
from streampca.genetics.relationship import grm_paths

MODIFIERS = {"cov": ("scale", None), "meanimpute": ("missing", "mean")}  # of --make-grm-bin


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``relate``."""
    one = parsers["relate"]
    one.set_defaults(run=run_relate)
    one.add_argument("source", nargs="*")
    one.add_argument(
        "-o",
        "--output",
        "--out",
        required=True,
        metavar="PREFIX",
        help="write PREFIX.kin0, with --king-cutoff PREFIX.king.cutoff.in.id and .out.id, with "
        "--make-grm-bin PREFIX.grm.bin, .grm.N.bin and .grm.id",
    )
    one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    king_options(one, "without this and other results: of relatives of the third degree or closer")
    one.add_argument(
        "--make-grm-bin",
        nargs="*",
        choices=tuple(MODIFIERS),
        metavar="cov|meanimpute",
        help="the genetic relationship matrix over the calls that both have, as GCTA reads it; "
        "cov: of centred calls that are not scaled; meanimpute: a missing call holds the mean",
    )
    for name in SHARES:
        flags = {"flags": [PLINK_NAMES[name]]} if name in PLINK_NAMES else {}
        add_fields(one, streampca.GenotypePCA, {name: {**flags, **OF_GENOTYPES[name]}})
    filter_options(one)
    one.add_argument("--remove", metavar="FILE", help="samples to leave out")
    one.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="keep related pairs here, to go on after an interruption",
    )
    running_options(one)
    source_options(one)


def run_relate(arguments: argparse.Namespace) -> int:
    """``streampca relate``."""
    prefix, grm = arguments.output, arguments.make_grm_bin
    king = KingTables.wanted(arguments, prefix, default=grm is None)
    matrices = [] if grm is None else [str(path) for path in grm_paths(prefix)]
    written = [*king.paths, *matrices]
    check_outputs(tables=written, sources=files_read(arguments), overwrite=arguments.overwrite)
    matrix = choose(arguments, open_source(arguments)).matrix
    every = VariantFilter(chromosomes="all")
    settings: dict[str, Any] = {"variants": every, **settings_of_run(arguments)}
    settings |= {name: getattr(arguments, name) for name in SHARES}
    whole: dict[str, Any] = {}
    lines: list[str] = []
    if king.paths:
        found = streampca.relatives(
            matrix,
            king.table,
            least=king.smallest,
            listed=king.least,
            overwrite=arguments.overwrite,
            checkpoint=arguments.checkpoint,
            **settings,
        )
        whole, lines = found.to_dict(), [str(found)]
        if king.cutoff is not None:
            kept = found.unrelated(king.cutoff)
            write_cutoff(prefix, found.samples, kept, arguments.overwrite)
            whole["unrelated"] = int(kept.sum())
            lines.append(king.remaining(whole["unrelated"]))
    if grm is not None:
        modifiers: dict[str, Any] = dict(MODIFIERS[one] for one in grm)
        related = streampca.grm(matrix, **modifiers, **settings)
        related.write(prefix, arguments.overwrite)
        whole["relationship"] = related.to_dict()
        lines.append(f"relationship matrix of {related}")
    lines += [f"written    {shown(path)}" for path in written]
    print_answer(arguments, {**whole, "written": written}, "\n".join(lines))
    return 0
