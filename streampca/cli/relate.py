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
from streampca.errors import InvalidInputError
from streampca.genetics.filters import VariantFilter
from streampca.genetics.relationship import grm_paths
from streampca.matrix import ChunkedMatrix

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
        "--make-grm-bin PREFIX.grm.bin, .grm.N.bin and .grm.id; with --pc-relate "
        "PREFIX.pcrelate.kin0 and so on",
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
    _adjusted_options(one)
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


def _adjusted_options(one: Parser) -> None:
    """Options of PC-Relate."""
    one.add_argument(
        "--pc-relate",
        metavar="MODEL",
        help="instead of KING's kinship that of PC-Relate, adjusted for the ancestry that a model "
        "saved by 'fit --unrelated auto' finds; also writes PREFIX.pcrelate.inbreeding",
    )
    one.add_argument(
        "-k",
        "--n-components",
        type=int,
        metavar="N",
        help="components of that model that hold ancestry (default: all)",
    )


def run_relate(arguments: argparse.Namespace) -> int:
    """``streampca relate``."""
    prefix, grm = arguments.output, arguments.make_grm_bin
    _refuse_options(arguments)
    matrices = [] if grm is None else [str(path) for path in grm_paths(prefix)]
    if arguments.pc_relate:
        prefix = f"{prefix}.pcrelate"
    king = KingTables.wanted(arguments, prefix, default=grm is None)
    selves = [f"{prefix}.inbreeding"] if arguments.pc_relate else []
    written = [*king.paths, *selves, *matrices]
    check_outputs(tables=written, sources=files_read(arguments), overwrite=arguments.overwrite)
    matrix = choose(arguments, open_source(arguments)).matrix
    every = VariantFilter(chromosomes="all")
    settings: dict[str, Any] = {"variants": every, **settings_of_run(arguments)}
    settings |= {name: getattr(arguments, name) for name in SHARES}
    whole: dict[str, Any] = {}
    lines: list[str] = []
    if arguments.pc_relate:
        adjusted = _adjusted_kinship(arguments, matrix, settings)
        whole, lines = king.write(adjusted, prefix, arguments.overwrite)
        adjusted.write_inbreeding(selves[0], arguments.overwrite)
    elif king.paths:
        found = streampca.relatives(
            matrix,
            king.table,
            least=king.smallest,
            listed=king.least,
            overwrite=arguments.overwrite,
            checkpoint=arguments.checkpoint,
            **settings,
        )
        whole, lines = king.write_lists(found, prefix, arguments.overwrite)
    if grm is not None:
        modifiers: dict[str, Any] = dict(MODIFIERS[one] for one in grm)
        related = streampca.grm(matrix, **modifiers, **settings)
        related.write(arguments.output, arguments.overwrite)
        whole["relationship"] = related.to_dict()
        lines.append(f"relationship matrix of {related}")
    lines += [f"written    {shown(path)}" for path in written]
    print_answer(arguments, {**whole, "written": written}, "\n".join(lines))
    return 0


def _adjusted_kinship(arguments: argparse.Namespace, matrix: ChunkedMatrix, chosen: Any) -> Any:
    """Kinship by PC-Relate.  chosen : settings that it shares with KING."""
    model, components = streampca.load(arguments.pc_relate), arguments.n_components
    chosen = {name: one for name, one in chosen.items() if name != "max_sample_missing"}
    return streampca.pc_relate(matrix, model, n_components=components, **chosen)


def _refuse_options(arguments: argparse.Namespace) -> None:
    """Raise InvalidInputError for options that do not go together."""
    if arguments.pc_relate and arguments.max_sample_missing < 1.0:
        raise InvalidInputError(
            "--mind with --pc-relate: the samples are those of the model. Leave out --mind; "
            "--keep names samples"
        )
    if arguments.n_components is not None and not arguments.pc_relate:
        raise InvalidInputError("-k is of --pc-relate MODEL; leave it out")
