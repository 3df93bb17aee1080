"""Which rows of a Zarr array count: ``shape[0]`` is no mark of that.

``Array.append`` first makes the array longer and then writes the rows, so that a reader sees rows
of the fill value in between, or for ever where the writer died. The rule:

1. Rows that the served version holds count, and so do those that the writer vouches for: by
   ``streampca.append``, by ``streampca.commit_rows``, by the attribute
   ``streampca_rows_committed`` (which then decides alone), or by a commit of Icechunk.
2. A row behind them counts if every chunk that holds it is there, and a chunk that is older than
   the array's length counts once nothing has been written for ``settle`` seconds.
3. A row of nothing but the fill value does not count, nor does one that is so in one of its
   chunks while no other row of that chunk has the fill value at all.
4. The rows that are taken end before the first one that does not count, however many follow.
5. Rows that are there and are not taken are told, with how many, since when, why, and the line
   that repairs it.

That a chunk was written says nothing of its rows, so nothing is concluded from it. Of values in
which the fill value is common (3.) a writer that dies between two chunks of the same rows can go
unseen, and where ``missing_chunks="fill"`` declares it to be data, nothing but (1.) is known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from streampca.sources.ledger import ABSENT, Ledger, Seen
from streampca.sources.ledger_source import LedgerSource
from streampca.sources.row_look import first_blank
from streampca.sources.row_mark import COMMITTED, RowMark, Span

__all__ = ["COMMITTED", "SETTLE", "Rows", "rows_written"]

SETTLE = 60.0  # seconds without a write after which an append is taken to be over


@dataclass(frozen=True)
class Rows:
    """The rows that are taken.

    count : how many.  why : not all; "" where all.  there : what the array's length says.
    unproven : spans (first, end) of rows that count unless a look at them shows otherwise: see
    ``first_in_doubt``.
    """

    count: int
    why: str
    there: int
    unproven: tuple[Span, ...] = ()

    @property
    def behind(self) -> int:
        """How many are there and not taken."""
        return self.there - self.count

    def first_in_doubt(self, source: LedgerSource, again: bool = False) -> int | None:
        """The first row that a look shows to be blank.  again : see ``first_blank``.

        Cost: none for what a pass has read since ``keep_checksums``.
        """
        found = (first_blank(source, first, end, again) for first, end in self.unproven)
        return next((row for row in found if row is not None), None)


def rows_written(
    source: LedgerSource, seen: Seen, old: Ledger | None = None, settle: float = SETTLE,
    limit: int | None = None, look: bool = False,
) -> Rows:  # fmt: skip
    """The rows of the growing dimension that count, by the rule of this module.

    old : the ledger of the served version, if there is one.  settle : seconds.  limit : a row
    that is known to be blank.  look : at all rows, not only where blank ones are likely.

    Cost: a look at the row of chunks behind the served rows, and at the last one that is older
    than the array's length. What lies beyond is looked at when it is read: ``first_in_doubt``.
    """
    size = source.shape[source.dim]
    mark = RowMark.of(source.reader.array.attrs)
    if mark.decides:
        why = f"{COMMITTED} says {mark.end} of {size}" if mark.end != size else ""
        return Rows(max(0, min(mark.end, size)), why, size)
    known = 0 if old is None else min(old.rows, size)
    rows, why = _before_absent(source, seen)
    if seen.snapshot:
        return Rows(max(rows, known), why, size)
    older = _last_older(source, seen, rows)
    proven = mark.proves(known)
    if proven < min((older + 1) * source.step, rows) and _age(seen) < settle:
        rows = min(max(older * source.step, proven), rows)
        why = f"rows from {rows} on may still be being written"
    if limit is not None and limit < rows:
        rows, why = limit, _blank(limit)
    rows = max(rows, known)
    near = {older} if old is None else {known // source.step, older}
    if look:
        near = set(range(known // source.step, -(-rows // source.step)))
    for number in sorted(near):
        unproven = mark.unproven(max(known, number * source.step), rows, (number + 1) * source.step)
        row = Rows(rows, why, size, unproven).first_in_doubt(source)
        if row is not None:
            return Rows(row, _blank(row), size, mark.unproven(known, row))
    return Rows(rows, why, size, mark.unproven(known, rows))


def _before_absent(source: LedgerSource, seen: Seen) -> tuple[int, str]:
    """(rows before the first absent chunk, why not all)."""
    size = source.shape[source.dim]
    if source.reader.guard.missing != "error":
        return size, ""
    absent = np.flatnonzero((seen.nbytes == ABSENT).any(axis=_others(source, seen)))
    if not len(absent):
        return size, ""
    first = int(absent[0]) * source.step
    return first, f"chunks of rows {first} to {size - 1} are absent"


def _last_older(source: LedgerSource, seen: Seen, rows: int) -> int:
    """The last row of chunks that was written before the array's length was, or -1."""
    times = seen.times.min(axis=_others(source, seen))[: -(-rows // source.step)]
    return max(np.flatnonzero(times <= seen.written).tolist(), default=-1)


def _age(seen: Seen) -> float:
    """Seconds since something was written; as the store's times have it."""
    return time.time() - max(float(np.nanmax(seen.times)), seen.written)


def _others(source: LedgerSource, seen: Seen) -> tuple[int, ...]:
    return tuple(d for d in range(seen.nbytes.ndim) if d != source.dim)


def _blank(row: int) -> str:
    return (
        f"nothing shows that rows from {row} on have been written: row {row} holds only the fill "
        "value. Write them; or, if that is what they hold, streampca.commit_rows(place, rows); "
        "source.missing_chunks: fill takes all such rows"
    )
