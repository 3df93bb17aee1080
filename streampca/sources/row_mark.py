"""What a writer says of the rows that it has written: an attribute of the array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

COMMITTED = "streampca_rows_committed"  # of a writer of its own, set last: it decides
MARK = "streampca_rows"  # of streampca.append: [first, end] of rows that it vouches for
Span = tuple[int, int]


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
        if isinstance(told, int) and not isinstance(told, bool):
            return cls(0, told, True)
        span = attributes.get(MARK)
        if isinstance(span, list) and [type(one) for one in span] == [int, int]:
            return cls(*span)
        return cls()

    def extended(self, first: int, end: int) -> dict[str, Any]:
        """The attribute of an array to which rows ``first`` to ``end`` - 1 were appended."""
        if self.decides:
            return {COMMITTED: end}
        follows = self.first < self.end == first
        return {MARK: [self.first if follows else first, end]}

    def proves(self, known: int) -> int:
        """The end of the rows that count without a look, where those before ``known`` do."""
        return max(known, self.end) if self.first <= known else known

    def unproven(self, first: int, end: int) -> list[Span]:
        """The spans of rows ``first`` to ``end`` - 1 that the mark does not hold."""
        if self.first >= self.end:
            return [(first, end)] if first < end else []
        spans = [(first, min(self.first, end)), (max(first, self.end), end)]
        return [(a, b) for a, b in spans if a < b]
