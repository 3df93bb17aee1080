"""Marks: attributes of a Zarr array in which its writers say which rows they have written."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

COMMITTED = "streampca_rows_committed"  # of a writer of its own, set last: it decides
MARK = "streampca_rows"  # of streampca.append: [[first, end], ...] of the rows that it certifies
CALLS = "streampca_rows_calls"  # [first, end, id] of the last calls that vouched for rows
FILLED = "streampca_rows_filled"  # spans of those of them that were written with fill values
MOST_CALLS = MOST_SPANS = 64
Span = tuple[int, int]


@dataclass(frozen=True)
class RowMark:
    """Rows that a writer certifies: ``first`` to ``end`` - 1 of each span.

    spans : ordered and disjoint.  decides : no other row is written.
    filled : of these, rows that may hold only the fill value, because it was written there.
    calls : (first, end, id) of the last calls of ``append`` and ``commit_rows``. A mark stays where
    it is when an array is shortened, so only a call that is new since then says anything of rows
    that are exposed again.
    """

    spans: tuple[Span, ...] = ()
    decides: bool = False
    filled: tuple[Span, ...] = field(default=(), compare=False)
    calls: tuple[tuple[int, int, str], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """The mark in the attributes of an array; an empty one if there is none."""
        spans, filled = (joined(_spans(attributes.get(name))) for name in (MARK, FILLED))
        listed = attributes.get(CALLS)
        known = listed if isinstance(listed, list) else []
        calls = tuple(tuple(one) for one in known if _is_call(one))
        committed = attributes.get(COMMITTED)
        if isinstance(committed, int) and not isinstance(committed, bool):
            return cls(joined([(0, committed)]), True, filled, calls)
        return cls(spans, False, filled, calls)

    @property
    def end(self) -> int:
        """The end of the last span; 0 where there is none."""
        return self.spans[-1][1] if self.spans else 0

    @property
    def ids(self) -> list[str]:
        """The ids of the last calls."""
        return [name for _, _, name in self.calls]

    def extended(self, first: int, end: int, filled: Span | None = None) -> dict[str, Any]:
        """The attributes of an array to which rows ``first`` to ``end`` - 1 were appended.

        filled : the first and the last of them in which the fill value was written, None if it was
        nowhere. Earlier marks of rows from ``first`` on are dropped: these rows did not exist.
        """
        calls = self._called(first, first, end)
        if self.decides:
            return {COMMITTED: end, **calls}
        before = ((0, first),)
        spans = joined([*common(self.spans, before), (first, end)])
        left = list(joined([*common(self.may_be_blank, before), *([filled] if filled else [])]))
        while len(left) > MOST_SPANS:
            left[:2] = [(left[0][0], left[1][1])]
        return {MARK: _listed(spans), FILLED: _listed(left), **calls}

    def committed(self, rows: int) -> dict[str, Any]:
        """The attributes of an array of which the first ``rows`` rows are written."""
        mark = {COMMITTED: rows} if self.decides else {MARK: [[0, rows]], FILLED: [[0, rows]]}
        return {**mark, **self._called(rows, 0, rows)}

    def _called(self, before: int, first: int, end: int) -> dict[str, Any]:
        """One more call; the ids of all stay, so that a refresh sees them once: a writer with an
        old handle may put an old mark back."""
        kept = [[min(a, before), min(b, before), name] for a, b, name in self.calls]
        return {CALLS: [*kept[1 - MOST_CALLS :], [first, end, uuid.uuid4().hex[:12]]]}

    @property
    def may_be_blank(self) -> tuple[Span, ...]:
        """Rows for which the mark vouches even if they hold only the fill value."""
        return self.spans if self.decides else common(self.spans, self.filled)

    def new(self, known: Iterable[str]) -> tuple[Span, ...]:
        """The rows for which a call vouches that is not among the known ones."""
        there = set(known)
        return joined((a, b) for a, b, name in self.calls if name not in there)

    def proves(self, known: int) -> int:
        """The end of the rows that count without inspection, if those before ``known`` do."""
        for first, end in self.spans:
            if first <= known:
                known = max(known, end)
        return known

    def unproven(self, first: int, end: int) -> list[Span]:
        """The spans of rows ``first`` to ``end`` - 1 that do not count if they are blank."""
        gaps = []
        for a, b in self.may_be_blank:
            gaps.append((first, min(a, end)))
            first = max(first, b)
        return [(a, b) for a, b in (*gaps, (first, end)) if a < b]


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The spans in order, without empty ones, adjacent ones merged."""
    found: list[Span] = []
    for first, end in sorted(span for span in spans if span[0] < span[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def common(some: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """The rows that are in both."""
    theirs = list(others)
    return joined((max(a, c), min(b, d)) for a, b in some for c, d in theirs)


def _spans(value: Any) -> list[Span]:
    """The spans of an attribute; none if it is malformed."""
    right = isinstance(value, list) and all(map(_is_span, value))
    return [(first, end) for first, end in value] if right else []


def _listed(spans: Iterable[Span]) -> list[list[int]]:
    return [list(span) for span in spans]


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [int, int]


def _is_call(value: Any) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [int, int, str]
