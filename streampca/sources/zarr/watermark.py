"""The rows of a Zarr array that have been written, which may be fewer than ``shape[0]``."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import AbsentChunkError
from streampca.sources.ledger import ABSENT, Ledger, Place, Seen
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.looks import Look
from streampca.sources.zarr.marks import COMMITTED, RowMark, Span
from streampca.sources.zarr.reader import UNSEEN, doubtful

# Inspection of rows of a Zarr array, to find rows without evidence of having been written.


def first_blank(source: LedgerSource, first: int, rows: int, again: bool = False) -> int | None:
    """The first of the rows ``first`` to ``rows`` - 1 without evidence of a write, or None.

    again : inspect all of them, whatever was seen. Cost: none for chunks that a pass has read
    since ``keep_checksums``, else a read of each.
    """
    if source.reader.rows_dim is None:
        return None
    for number in range(first // source.step, -(-rows // source.step)):
        start = number * source.step
        low, high = max(first, start), min(rows, start + source.step)
        notes = (_note(source, place, high, again) for place in _places(source, number))
        found = doubtful(notes, high - start) & _bits(low - start, high - start)
        if found:
            return start + (found & -found).bit_length() - 1
    return None


def _places(source: LedgerSource, number: int) -> Iterator[tuple[int, ...]]:
    """The places of one row of chunks."""
    counts = source.grid(source.shape[source.dim])
    ranges = [range(n) for n in counts]
    ranges[source.dim] = range(number, number + 1)
    return itertools.product(*ranges)


def _note(source: LedgerSource, place: Place, end: int, again: bool) -> int:
    """``reader.note_of`` the rows of a chunk that lie before row ``end``."""
    key, tally = source.reader.key(place), source.reader.tally
    if again or key not in (tally.checksums or ()) or tally.blank.get(key) == UNSEEN:
        tally.blank.pop(key, None)
        start = place[source.dim] * source.step
        inner = int(source.reader.array.chunks[source.dim])  # of a shard
        for low in range(start, end, inner):
            _look(source, place, low, min(low + inner, end))
    return tally.blank.get(key, 0)


def _look(source: LedgerSource, place: Place, low: int, high: int) -> None:
    """Read rows of a chunk, of which a note is taken then; of a shard, rows of one chunk."""
    reader, dim = source.reader, source.dim
    index = [
        slice(i * step, min((i + 1) * step, n))
        for i, step, n in zip(place, reader.unit, source.shape, strict=True)
    ]
    index[dim] = slice(low, high)
    try:
        reader.limited(dim, high).read(tuple(index))
    except AbsentChunkError:  # within a shard: as if the fill value were there
        start = place[dim] * source.step
        reader.tally.keep_blank({reader.key(place): _bits(low - start, high - start) << 1})


def _bits(low: int, high: int) -> int:
    """Bits ``low`` to ``high`` - 1."""
    return (1 << high) - (1 << low)


# ``Array.append`` first extends the array and then writes the rows. In between, or for good if the
# writer died, a reader sees rows of the fill value. The rule:
#
# 1. Rows of the served version count, and so do those that the writer certifies: by
#    ``streampca.append``, by ``streampca.commit_rows``, or by the attribute
#    ``streampca_rows_committed`` (which then decides alone).
# 2. A later row counts if all its chunks exist. A chunk that is older than the array's length
#    counts once nothing has been written for ``settle`` seconds, in Icechunk at once.
# 3. A row that holds only the fill value does not count. Nor does one that is so in one of its
#    chunks while no other row of that chunk holds the fill value at all.
# 4. A row that lay behind the end of the array when a refresh looked does not count, served or not,
#    before every chunk of it holds something else, or its writer vouches for it anew. Marks of
#    rows behind the end are void likewise (see ``looks``).
# 5. The accepted rows end before the first one that does not count, however many follow.
# 6. Rows that exist but are not accepted are reported: how many, since when, why, and the remedy.
#
# That a chunk was written is no evidence for its rows, and is not used. Where the fill value is
# common among the values (3.), a writer that dies between two chunks of the same rows can go
# undetected. So can one that fills a chunk, or a shard, column by column. Where
# ``missing_chunks="fill"`` declares the fill value to be data, only (1.) and (4.) are known. An
# array that was shortened and extended between two looks shows the rows that its last chunk still
# holds as they were: nothing in the store tells that they were removed, and they count.

UNMARKED = RowMark()
MOST_SPANS = 3  # of absent chunks that a message names
SETTLE = 60.0  # seconds without a write after which an append is considered complete


@dataclass(frozen=True)
class Rows:
    """The accepted rows.

    count : their number.  why : the reason where not all rows are accepted, else "".
    there : the length of the array.  mark : of the writer.
    known : rows before this one are in the served version, and are not inspected again.
    renewed : rows for which a call vouches that is newer than the served version.
    waiting : whether more rows may count within ``settle`` seconds.
    """

    count: int
    why: str
    there: int
    mark: RowMark = UNMARKED
    known: int = 0
    waiting: bool = False
    renewed: RowMark = UNMARKED

    @property
    def behind(self) -> int:
        """The number of rows that exist but are not accepted."""
        return self.there - self.count

    def first_in_doubt(
        self, source: LedgerSource, again: bool = False, within: Span | None = None
    ) -> int | None:
        """The first row that counts unless a look at it shows that it is blank, and does.

        again : see ``first_blank``.  within : of these rows.
        Cost: none for what a pass has read since ``keep_checksums``.
        """
        if self.mark.decides:
            return None
        first, end = within or (self.known, self.count)
        return self._first_blank(source, self.mark, (first, end), again)

    def first_lost(self, source: LedgerSource, served: Span, again: bool = False) -> int | None:
        """The first of some served rows that is blank now: a mark from before shows nothing."""
        if self.mark.decides:
            return None
        return self._first_blank(source, self.renewed, served, again)

    def _first_blank(
        self, source: LedgerSource, mark: RowMark, span: Span, again: bool
    ) -> int | None:
        spans = mark.unproven(span[0], min(span[1], self.count))
        found = (first_blank(source, *one, again) for one in spans)
        return next((row for row in found if row is not None), None)


def rows_written(
    source: LedgerSource,
    seen: Seen,
    old: Ledger | None = None,
    settle: float = SETTLE,
    limit: int | None = None,
    look: Look | None = None,
) -> Rows:
    """The rows of the growing dimension that count, by the rule of this module.

    old : the ledger of the served version, if there is one.  settle : seconds.  limit : a row
    that is known to be blank.  look : what earlier looks have left.

    Cost: inspects the row of chunks after the served rows, and the last one that is older than the
    array's length. Later ones are inspected when they are read: ``first_in_doubt``.
    """
    size = source.shape[source.dim]
    own = RowMark.of(source.reader.array.attrs)
    mark = own if look is None else look.mark(own)
    if mark.decides:
        why = f"{COMMITTED} says {mark.end} of {size}" if mark.end != size else ""
        return Rows(max(0, min(mark.end, size)), why, size, mark)
    left = None if look is None else look.first_left(source)
    most = size if left is None else left
    known = min(old.rows, most) if old is not None and old.rows <= size else 0
    rows, why = _before_absent(source, seen)
    if left is not None and left < rows:
        rows, why = left, _left(source, left)
    older = (rows - 1) // source.step if seen.snapshot else _last_older(source, seen, rows)
    # rows before the last older chunk count anyway
    proven = mark.proves(max(known if old is None else min(old.rows, most), older * source.step))
    waiting = proven < min((older + 1) * source.step, rows) and _age(seen) < settle
    if waiting:
        rows = min(max(older * source.step, proven), rows)
        why = f"rows from {rows} on may still be being written"
    if limit is not None and limit < rows:
        rows, why = limit, _blank(source, limit)
    renewed = RowMark(own.new(() if old is None else old.calls), filled=own.may_be_blank)
    found = Rows(max(rows, known), why, size, mark, known, waiting, renewed)
    near = {known // source.step, older} if known else {older}
    for number in sorted(near):
        span = max(known, number * source.step), (number + 1) * source.step
        if (row := found.first_in_doubt(source, within=span)) is not None:
            return replace(found, count=row, why=_blank(source, row))
    return found


def _before_absent(source: LedgerSource, seen: Seen) -> tuple[int, str]:
    """(rows before the first absent chunk, why not all)."""
    size = source.shape[source.dim]
    if source.reader.guard.missing != "error":
        return size, ""
    absent = np.flatnonzero((seen.nbytes == ABSENT).any(axis=_others(source, seen)))
    if not len(absent):
        return size, ""
    runs = np.split(absent, np.flatnonzero(np.diff(absent) > 1) + 1)
    spans = [
        f"{int(run[0]) * source.step} to {min((int(run[-1]) + 1) * source.step, size) - 1}"
        for run in runs[:MOST_SPANS]
    ]
    more = f" and {len(runs) - MOST_SPANS} further spans" if len(runs) > MOST_SPANS else ""
    return int(absent[0]) * source.step, f"chunks of rows {', '.join(spans)}{more} are absent"


def _last_older(source: LedgerSource, seen: Seen, rows: int) -> int:
    """The last row of chunks that was written before the array was extended, or -1."""
    times = seen.times.min(axis=_others(source, seen))[: -(-rows // source.step)]
    return max(np.flatnonzero(times <= seen.written).tolist(), default=-1)


def _age(seen: Seen) -> float:
    """Seconds since the last write, by the times of the store: a commit of Icechunk is complete."""
    if seen.snapshot:
        return math.inf
    return time.time() - max(float(np.nanmax(seen.times)), seen.written)


def _others(source: LedgerSource, seen: Seen) -> tuple[int, ...]:
    return tuple(d for d in range(seen.nbytes.ndim) if d != source.dim)


def _blank(source: LedgerSource, row: int) -> str:
    return (
        f"rows from {row} on have not been written, as far as can be seen: row {row} holds only "
        f"the fill value. Write them; or, if that is what they hold, {declaring(source)}; "
        "source.missing_chunks: fill takes all such rows"
    )


def _left(source: LedgerSource, row: int) -> str:
    return (
        f"rows from {row} on have not been written again, as far as can be seen: row {row} is, in "
        "one chunk at least, as it lay behind the end of the array when that was shorter. Write "
        f"them; or, if that is what they hold, {declaring(source)}"
    )


def declaring(source: LedgerSource) -> str:
    """The line with which a writer says that rows are written."""
    if source.reader.history is not None:
        return "streampca.commit_rows(array, rows) in a writable session, and session.commit(...)"
    return "streampca.commit_rows(place, rows)"
