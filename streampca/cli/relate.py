"""``streampca relate``: relatives among the samples of a source, in PLINK's tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.fields import add_fields
from streampca.cli.genotypes import OF_GENOTYPES, PLINK_NAMES, filter_options
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
from streampca.genetics.kinship_result import DEGREES, cutoff_paths, kinship_threshold
from streampca.genetics.relationship import grm_paths
from streampca.matrix import ChunkedMatrix

NAMED = ", ".join(f"{name} ({least:g})" for name, least in DEGREES.items())

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
    one.add_argument(
        "--make-king-table",
        action="store_true",
        help="the table of all pairs; without this and other results: of relatives of the third "
        "degree or closer",
    )
    one.add_argument(
        "--king-table-filter",
        dest="least",
        type=_threshold,
        metavar="MIN",
        help=f"leave pairs of smaller kinship out of the table: a number, or {NAMED}",
    )
    one.add_argument(
        "--king-cutoff",
        dest="cutoff",
        type=_threshold,
        metavar="MAX",
        help="list samples of which no two have a larger kinship, by PLINK's greedy rule",
    )
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
    prefix, cutoff, grm = arguments.output, arguments.cutoff, arguments.make_grm_bin
    _refuse_options(arguments)
    least, listed = _table_wanted(arguments)
    matrices = [] if grm is None else [str(path) for path in grm_paths(prefix)]
    if arguments.pc_relate:
        prefix = f"{prefix}.pcrelate"
    table = [f"{prefix}.kin0"] if listed else []
    lists = [] if cutoff is None else [str(path) for path in cutoff_paths(prefix)]
    if cutoff is not None:
        kinship_threshold(cutoff, "cutoff", smallest=0.0)
    selves = [f"{prefix}.inbreeding"] if arguments.pc_relate else []
    written = [*table, *lists, *selves, *matrices]
    check_outputs(tables=written, sources=files_read(arguments), overwrite=arguments.overwrite)
    matrix = choose(arguments, open_source(arguments)).matrix
    every = VariantFilter(chromosomes="all")
    settings: dict[str, Any] = {"variants": every, **settings_of_run(arguments)}
    settings |= {name: getattr(arguments, name) for name in SHARES}
    whole: dict[str, Any] = {}
    lines: list[str] = []
    if table or lists or selves:
        found = _kinship(arguments, matrix, settings)
        whole, lines = found.to_dict(), [str(found)]
        for path in selves:
            found.write_inbreeding(path, arguments.overwrite)
        if table:
            found.write_table(table[0], least, arguments.overwrite)
        if cutoff is not None:
            found.write_cutoff(prefix, cutoff, arguments.overwrite)
            whole["unrelated"] = int(found.unrelated(cutoff).sum())
            lines.append(f"{whole['unrelated']} samples remain, no two of a kinship above {cutoff}")
    if grm is not None:
        modifiers: dict[str, Any] = dict(MODIFIERS[one] for one in grm)
        related = streampca.grm(matrix, **modifiers, **settings)
        related.write(arguments.output, arguments.overwrite)
        whole["relationship"] = related.to_dict()
        lines.append(f"relationship matrix of {related}")
    lines += [f"written    {shown(path)}" for path in written]
    print_answer(arguments, {**whole, "written": written}, "\n".join(lines))
    return 0


def _kinship(arguments: argparse.Namespace, matrix: ChunkedMatrix, chosen: Any) -> Any:
    """KING's kinship, or that of PC-Relate.  chosen : settings of both."""
    if not arguments.pc_relate:
        return streampca.kinship(matrix, **chosen)
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


def _table_wanted(arguments: argparse.Namespace) -> tuple[float | None, bool]:
    """(the least kinship in the table, or None for all; whether a table is written at all)."""
    least = arguments.least
    others = arguments.cutoff is not None or arguments.make_grm_bin is not None
    listed = arguments.make_king_table or least is not None or not others
    if least is not None:
        return kinship_threshold(least, "least"), listed
    return (None if arguments.make_king_table else DEGREES["third"]), listed


def _threshold(text: str) -> float | str:
    """A kinship, or the name of a degree."""
    try:
        return text if text in DEGREES else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a kinship such as {DEGREES['second']}, or {NAMED}"
        ) from None
