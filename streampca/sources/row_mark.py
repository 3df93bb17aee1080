"""What a writer says of the rows that it has written: an attribute of the array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

COMMITTED = "streampca_rows_committed"  # of a writer of its own, set last: it decides
MARK = "streampca_rows"  # of streampca.append: [first, end] of rows that it vouches for


@dataclass(frozen=True)
class RowMark:
    """Rows ``first`` to ``end`` - 1 are written.  decides : and no other row is."""

    first: int = 0
    end: int = 0
    decides: bool = False

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Of the attributes of an array; of none, or of others, an empty one."""
        told = attributes.get(COMMITTED)
        if _is_count(told):
            return cls(0, told, True)
        span = attributes.get(MARK)
        if isinstance(span, list) and len(span) == 2 and all(map(_is_count, span)):
            return cls(*span)
        return cls()

    def proves(self, known: int) -> int:
        """The end of the rows that count without a look, where those before ``known`` do."""
        return max(known, self.end) if self.first <= known else known

    def unproven(self, known: int, rows: int, end: int | None = None) -> tuple[tuple[int, int], ...]:
        """The spans of rows ``known`` to ``rows`` - 1 that the mark does not hold.

        end : nothing from this row on is asked for.
        """
        rows = rows if end is None else min(rows, end)
        spans = [(known, min(self.first, rows)), (max(known, self.end), rows)]
        if self.first >= self.end:
            spans = [(known, rows)]
        return tuple((a, b) for a, b in spans if a < b)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
