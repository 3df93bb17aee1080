"""PLINK's tables of kinship: the options that ask for them, and their files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from streampca.genetics.kinship_result import (
    DEGREES,
    Kinship,
    cutoff_paths,
    kinship_threshold,
    write_cutoff,
)

NAMED = ", ".join(f"{name} ({least:g})" for name, least in DEGREES.items())


def king_options(group: Any, otherwise: str) -> None:
    """Options for the table and for the lists of samples.  otherwise : what is done without."""
    group.add_argument(
        "--make-king-table",
        action="store_true",
        help=f"the table of all pairs, PREFIX.kin0; {otherwise}",
    )
    group.add_argument(
        "--king-table-filter",
        dest="least",
        type=_threshold,
        metavar="MIN",
        help=f"leave pairs of smaller kinship out of the table: a number, or {NAMED}",
    )
    group.add_argument(
        "--king-cutoff",
        dest="cutoff",
        type=_threshold,
        metavar="MAX",
        help="list samples of which no two have a larger kinship, by PLINK's greedy rule, in "
        "PREFIX.king.cutoff.in.id and .out.id",
    )


def king_wanted(arguments: argparse.Namespace) -> bool:
    """Whether a fit also counts kinship."""
    others = (arguments.least, arguments.cutoff)
    return arguments.make_king_table or any(one is not None for one in others)


@dataclass(frozen=True)
class KingTables:
    """The files to write.  least : kinship in the table, or None for all; cutoff : or None."""

    table: str | None
    lists: tuple[str, ...]
    least: float | None
    cutoff: float | str | None

    @classmethod
    def wanted(cls, arguments: argparse.Namespace, prefix: str, default: bool) -> KingTables:
        """What the arguments ask for.  default : the table of relatives, if they ask for nothing.

        Raises InvalidInputError for thresholds that no kinship reaches.
        """
        least, cutoff = arguments.least, arguments.cutoff
        listed = arguments.make_king_table or least is not None or (default and cutoff is None)
        if least is not None:
            least = kinship_threshold(least, "least")
        elif not arguments.make_king_table:
            least = DEGREES["third"]
        lists: tuple[str, ...] = ()
        if cutoff is not None:
            kinship_threshold(cutoff, "cutoff", smallest=0.0)
            lists = tuple(map(str, cutoff_paths(prefix)))
        return cls(f"{prefix}.kin0" if listed else None, lists, least, cutoff)

    @property
    def paths(self) -> list[str]:
        """Of all files."""
        return [*([] if self.table is None else [self.table]), *self.lists]

    def write(
        self, found: Kinship, prefix: str, overwrite: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Write them. Returns a summary, and its lines."""
        if self.table is not None:
            found.write_table(self.table, self.least, overwrite)
        return self.write_lists(found, prefix, overwrite)

    def write_lists(
        self, found: Any, prefix: str, overwrite: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Write the lists alone.  found : kinship, or the related pairs. Returns as ``write``."""
        whole, lines = found.to_dict(), [str(found)]
        if self.cutoff is not None:
            kept = found.unrelated(self.cutoff)
            write_cutoff(prefix, found.samples, kept, overwrite)
            whole["unrelated"] = count = int(kept.sum())
            lines.append(f"{count} samples remain, no two of a kinship above {self.cutoff}")
        return whole, lines

    @property
    def smallest(self) -> float:
        """Of the kinships that the lists and the summary need."""
        least = DEGREES["third"]
        return (
            least if self.cutoff is None else min(least, kinship_threshold(self.cutoff, "cutoff"))
        )


def _threshold(text: str) -> float | str:
    """A kinship, or the name of a degree."""
    try:
        return text if text in DEGREES else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a kinship such as {DEGREES['second']}, or {NAMED}"
        ) from None
