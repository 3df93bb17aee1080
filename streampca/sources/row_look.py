"""A look at rows of a Zarr array: which of them nothing shows to have been written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from streampca.errors import AbsentChunkError
from streampca.sources.blank_rows import UNSEEN, doubtful
from streampca.sources.ledger_source import LedgerSource, Place


def first_blank(source: LedgerSource, first: int, rows: int, again: bool = False) -> int | None:
    """The first of the rows ``first`` to ``rows`` - 1 that nothing shows to be written, or None.

    again : look at all of them, whatever was seen. Cost: none for chunks that a pass has read
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
    """Of one row of chunks."""
    counts = source.grid(source.shape[source.dim])
    ranges = [range(n) for n in counts]
    ranges[source.dim] = range(number, number + 1)
    return itertools.product(*ranges)


def _note(source: LedgerSource, place: Place, end: int, again: bool) -> int:
    """See ``blank_rows.note_of``: of the rows of a chunk that lie before row ``end``."""
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
