"""What a writer says of the rows that it has written: an attribute of the array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

COMMITTED = "streampca_rows_committed"  # of a writer of its own, set last: it decides
MARK = "streampca_rows"  # of streampca.append: [first, end] of the rows it vouches for, or several
Span = tuple[int, int]


@dataclass(frozen=True)
class RowMark:
    """Rows that are written: ``first`` to ``end`` - 1 of each span.

    spans : in their order, apart from each other.  decides : and no other row is written.
    """

    spans: tuple[Span, ...] = ()
    decides: bool = False

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """Of the attributes of an array; of none, or of others, an empty one."""
        told = attributes.get(COMMITTED)
        if isinstance(told, int) and not isinstance(told, bool):
            return cls(_joined([(0, told)]), True)
        spans = attributes.get(MARK)
        if _is_span(spans):
            spans = [spans]
        if isinstance(spans, list) and all(_is_span(one) for one in spans):
            return cls(_joined((first, end) for first, end in spans))
        return cls()

    @property
    def end(self) -> int:
        """The end of the last span; 0 where there is none."""
        return self.spans[-1][1] if self.spans else 0

    def extended(self, first: int, end: int) -> dict[str, Any]:
        """The attribute of an array to which rows ``first`` to ``end`` - 1 were appended.

        What was said of rows from ``first`` on is forgotten: they were not there.
        """
        if self.decides:
            return {COMMITTED: end}
        kept = [(a, min(b, first)) for a, b in self.spans]
        spans = [list(one) for one in _joined([*kept, (first, end)])]
        return {MARK: spans[0] if len(spans) == 1 else spans}

    def proves(self, known: int) -> int:
        """The end of the rows that count without a look, where those before ``known`` do."""
        for first, end in self.spans:
            if first <= known:
                known = max(known, end)
        return known

    def unproven(self, first: int, end: int) -> list[Span]:
        """The spans of rows ``first`` to ``end`` - 1 that the mark does not hold."""
        gaps = []
        for a, b in self.spans:
            gaps.append((first, min(a, end)))
            first = max(first, b)
        return [(a, b) for a, b in (*gaps, (first, end)) if a < b]


def _is_span(told: Any) -> bool:
    return isinstance(told, list) and [type(one) for one in told] == [int, int]


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """In their order, without empty ones, and one span for those that touch."""
    joined: list[Span] = []
    for first, end in sorted(one for one in spans if one[0] < one[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return tuple(joined)
