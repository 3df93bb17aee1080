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

NAMED = ", ".join(f"{name} ({least:g})" for name, least in DEGREES.items())


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
        help="write PREFIX.kin0, and with --king-cutoff PREFIX.king.cutoff.in.id and .out.id; with "
        "--pc-relate PREFIX.pcrelate.kin0 and so on",
    )
    one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    one.add_argument(
        "--make-king-table",
        action="store_true",
        help="the table of all pairs; without this, the filter and the cutoff: of relatives of the "
        "third degree or closer",
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
    for name in SHARES:
        flags = {"flags": [PLINK_NAMES[name]]} if name in PLINK_NAMES else {}
        add_fields(one, streampca.GenotypePCA, {name: {**flags, **OF_GENOTYPES[name]}})
    filter_options(one)
    one.add_argument("--remove", metavar="FILE", help="samples to leave out")
    running_options(one)
    source_options(one)


def run_relate(arguments: argparse.Namespace) -> int:
    """``streampca relate``."""
    adjusted, cutoff, least = arguments.pc_relate, arguments.cutoff, arguments.least
    prefix = f"{arguments.output}.pcrelate" if adjusted else arguments.output
    _refuse_options(arguments)
    listed = arguments.make_king_table or least is not None or cutoff is None
    least = least if least is None else kinship_threshold(least, "least")
    if not arguments.make_king_table and least is None:
        least = DEGREES["third"]
    table = [f"{prefix}.kin0"] if listed else []
    lists = [] if cutoff is None else [str(path) for path in cutoff_paths(prefix)]
    if cutoff is not None:
        kinship_threshold(cutoff, "cutoff", smallest=0.0)
    selves = [f"{prefix}.inbreeding"] if adjusted else []
    check_outputs(
        tables=[*table, *lists, *selves],
        sources=files_read(arguments),
        overwrite=arguments.overwrite,
    )
    matrix = choose(arguments, open_source(arguments)).matrix
    shares = {name: getattr(arguments, name) for name in SHARES}
    every = VariantFilter(chromosomes="all")
    settings = {"variants": every, **shares, **settings_of_run(arguments)}
    found: Any
    if adjusted:
        del settings["max_sample_missing"]
        components = arguments.n_components
        model = streampca.load(adjusted)
        found = streampca.pc_relate(matrix, model, n_components=components, **settings)
        found.write_inbreeding(selves[0], arguments.overwrite)
    else:
        found = streampca.kinship(matrix, **settings)
    whole, lines = found.to_dict(), [str(found)]
    if listed:
        found.write_table(table[0], least, arguments.overwrite)
    if cutoff is not None:
        found.write_cutoff(prefix, cutoff, arguments.overwrite)
        whole["unrelated"] = int(found.unrelated(cutoff).sum())
        lines.append(f"{whole['unrelated']} samples remain, no two of a kinship above {cutoff}")
    whole["written"] = [*table, *lists, *selves]
    lines += [f"written    {shown(path)}" for path in whole["written"]]
    print_answer(arguments, whole, "\n".join(lines))
    return 0


def _refuse_options(arguments: argparse.Namespace) -> None:
    """Raise InvalidInputError for options that do not go together."""
    if arguments.pc_relate and arguments.max_sample_missing < 1.0:
        raise InvalidInputError(
            "--mind with --pc-relate: the samples are those of the model. Leave out --mind; "
            "--keep names samples"
        )
    if arguments.n_components is not None and not arguments.pc_relate:
        raise InvalidInputError("-k is of --pc-relate MODEL; leave it out")


def _threshold(text: str) -> float | str:
    """A kinship, or the name of a degree."""
    try:
        return text if text in DEGREES else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a kinship such as {DEGREES['second']}, or {NAMED}"
        ) from None
