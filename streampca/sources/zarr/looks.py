"""What a look at a Zarr array leaves for the next one: rows that lay behind its end, and marks.

Zarr deletes the chunks that lie outside of a shortened array, and leaves the rows that the last
chunk, or shard, still holds. Extended again, the array shows them, and a writer that fills only
its last rows writes that chunk anew, with them. The same holds for the rows of an append that died
before it made the array longer, and of a writer with an old handle. Such rows are known by their
bytes: they do not count before every chunk holds something else of them, or a new mark vouches for
them.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Self

import google_crc32c
import numpy as np

from streampca.errors import DamagedSourceError
from streampca.sources.ledger import ABSENT, Place, Seen, version_number
from streampca.sources.zarr.ledger import LedgerSource
from streampca.sources.zarr.marks import RowMark, Span, common, joined
from streampca.sources.zarr.reader import blank_rows

Array = np.ndarray[Any, Any]
AT_ONCE = 64 << 20  # decoded bytes of a shard that are read at a time
BEHIND_NBYTES = 64 << 20  # of whole chunks behind the end, decoded, that are compared row by row
ANY = (1 << 32) - 1  # instead of a checksum: the row does not count while the chunk is the same
MOST_IDS = 256


@dataclass(frozen=True)
class Part:
    """Rows of a chunk that do not count.

    version : of the chunk.  sums : (rows, columns of chunks in a shard) uint32, the checksum of
    what does not count, 0 elsewhere.
    """

    version: int
    sums: Array


@dataclass(frozen=True)
class Look:
    """An array at a look.

    grid : of what the array's rows are made.  length : how many there are.
    vouched : rows for which a writer vouches; a look at a shorter array takes the others away.
    committed : the attribute of a writer that decides alone, None without; it holds up to row
    ``least``, the smallest length that was seen with this value.
    calls : ids of the calls that were seen.  stat : digest of the chunks with rows behind the end.
    parts : by place, the rows of chunks that do not count.
    """

    grid: str
    length: int
    vouched: tuple[Span, ...] = ()
    committed: int | None = None
    least: int = 0
    calls: tuple[str, ...] = ()
    stat: str = ""
    parts: Mapping[Place, Part] = field(default_factory=dict)

    def mark(self, own: RowMark) -> RowMark:
        """What still holds of the mark of the array."""
        decides = self.committed is not None and self.committed <= self.least
        return RowMark(self.vouched, decides, own.may_be_blank)

    def first_left(self, source: LedgerSource) -> int | None:
        """The first row of the array that is as it was when it lay behind its end, or None."""
        starts = [
            place[source.dim] * source.step + int(np.flatnonzero(part.sums.any(axis=1))[0])
            for place, part in self.parts.items()
        ]
        return min((row for row in starts if row < self.length), default=None)

    def to_json(self) -> str:
        """The state for the next look."""
        plain = {**self.__dict__, "parts": [_packed(*part) for part in sorted(self.parts.items())]}
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str | bytes, source: LedgerSource) -> Self | None:
        """The inverse of ``to_json``; None if it is of another array, or malformed."""
        try:
            known = json.loads(text)
            if known["grid"] != _grid(source):
                return None
            known["parts"] = dict(_unpacked(part, source) for part in known["parts"])
            known["vouched"] = joined((int(a), int(b)) for a, b in known["vouched"])
            known["calls"] = tuple(map(str, known["calls"]))
            known["length"], known["least"] = int(known["length"]), int(known["least"])
            if not isinstance(known["stat"], str) or type(known["committed"]) not in (
                int,
                NoneType,
            ):
                return None
            return cls(**known)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None


def _packed(place: Place, part: Part) -> list[Any]:
    sums = base64.b64encode(part.sums.astype("<u4").tobytes()).decode()
    return [list(place), part.version, sums]


def _unpacked(packed: Any, source: LedgerSource) -> tuple[Place, Part]:
    place, version, text = packed
    sums = np.frombuffer(base64.b64decode(text), "<u4").astype(np.uint32)
    if len(place) != len(source.shape) or min(place) < 0 or not sums.any():
        raise ValueError("no rows of this array")
    return tuple(map(int, place)), Part(int(version), sums.reshape(source.step, -1))


# A look.


def look_at(source: LedgerSource, seen: Seen, last: Look | None) -> Look:
    """The array as it is now.  last : of the look before.

    Cost: if the last row of chunks is not full, and was written since the last look or the length
    is another, a read of it; and of chunks behind it that a writer left there.
    """
    size = source.shape[source.dim]
    mark = RowMark.of(source.reader.array.attrs)
    marks = _marks(mark, size, last)
    hidden = dict(_behind(source, seen, size))
    stat = hashlib.sha256(repr((size, sorted(hidden.items()))).encode()).hexdigest()
    parts = _still_left(source, seen, last, size)
    if last is not None and stat == last.stat:
        new = {place: part.sums.copy() for place, part in last.parts.items()}
        for place, sums in new.items():
            sums[: max(0, size - place[source.dim] * source.step)] = 0
    else:
        new = dict(_lying(source, hidden, size))
    for place, sums in new.items():
        old = parts.get(place)
        version = _version(seen, place, hidden.get(place, 0)) if old is None else old.version
        parts[place] = Part(version, sums if old is None else np.where(sums, sums, old.sums))
    for place, part in parts.items():
        start = place[source.dim] * source.step
        for first, end in marks["vouched"]:
            part.sums[max(0, first - start) : max(0, end - start)] = 0
    left = {place: part for place, part in parts.items() if part.sums.any()}
    return Look(_grid(source), size, stat=stat, parts=left, **marks)


def _grid(source: LedgerSource) -> str:
    """What makes the parts of two arrays comparable, wherever they lie and however compressed."""
    others = [d for d in range(len(source.shape)) if d != source.dim]
    sizes = [(source.shape[d], int(source.reader.array.chunks[d])) for d in others]  # within shards
    return json.dumps([sizes, source.dim, source.reader.unit, source.reader.stored.str])


def _marks(mark: RowMark, size: int, last: Look | None) -> dict[str, Any]:
    """What is vouched for: what was at the last look and is still there, and what is new."""
    before = () if last is None else last.calls
    calls = tuple(dict.fromkeys([*before, *mark.ids]))[-MOST_IDS:]
    new, there = mark.new(before), ((0, size),)
    if mark.decides:
        same = last is not None and last.committed == mark.end and not new
        least = min(last.least, size) if same and last is not None else max(size, mark.end)
        vouched = common(((0, min(mark.end, least)),), there)
        return {"vouched": vouched, "committed": mark.end, "least": least, "calls": calls}
    if last is None:
        vouched = common(mark.spans, there)
    else:
        vouched = common([*common(mark.spans, last.vouched), *common(mark.spans, new)], there)
    return {"vouched": vouched, "calls": calls}


def _behind(source: LedgerSource, seen: Seen, size: int) -> Iterator[tuple[Place, int]]:
    """(place, version) of every chunk that may hold rows behind the end."""
    if size % source.step:
        edge = np.moveaxis(seen.nbytes, source.dim, 0)[size // source.step] != ABSENT
        for rest in np.argwhere(edge).tolist():
            place = (*rest[: source.dim], size // source.step, *rest[source.dim :])
            yield place, _version(seen, place, 0)
    for place, version in seen.behind.items():
        yield place, _version(seen, place, version)


def _version(seen: Seen, place: Place, version: int) -> int:
    """The version of a chunk; Icechunk has one for the whole array."""
    if seen.snapshot:
        return version_number(seen.snapshot)
    inside = all(i < n for i, n in zip(place, seen.version.shape, strict=True))
    return int(seen.version[place]) if inside else version


def _still_left(
    source: LedgerSource, seen: Seen, last: Look | None, size: int
) -> dict[Place, Part]:
    """The rows before ``size`` that are as they were when they did not count."""
    found = {}
    for place, part in (last.parts if last is not None else {}).items():
        inside = all(i < n for i, n in zip(place, seen.nbytes.shape, strict=True))
        if not inside or seen.nbytes[place] == ABSENT:
            continue
        start, sums = place[source.dim] * source.step, part.sums.copy()
        now = _version(seen, place, 0)
        sums[max(0, size - start) :] = 0
        if now != part.version and sums.any():
            rows = np.flatnonzero(sums.any(axis=1))
            low, high = int(rows[0]), int(rows[-1]) + 1
            again = _sums(source, place, start + low, start + high)
            sums[low:high] = np.where(again == sums[low:high], again, 0)
        if sums.any():
            found[place] = Part(now, sums)
    return found


def _lying(
    source: LedgerSource, hidden: Mapping[Place, int], size: int
) -> Iterator[tuple[Place, Array]]:
    """What lies behind row ``size``, by chunk."""
    left = BEHIND_NBYTES
    for place in hidden:
        start = place[source.dim] * source.step
        first = max(0, size - start)
        sums = np.zeros((source.step, len(_columns(source))), np.uint32)
        if not first:
            left -= math.prod(source.reader.unit) * source.reader.stored.itemsize
        if not first and left < 0:
            sums[:] = ANY
        else:
            try:
                sums[first:] = _sums(source, place, start + first, start + source.step)
            except DamagedSourceError:
                if first:
                    raise
        if sums.any():
            yield place, sums


def _columns(source: LedgerSource) -> list[tuple[slice, ...]]:
    """Of a chunk, or of a shard those of the chunks in it, along the other dimensions."""
    array = source.reader.array
    sizes = list(zip(source.reader.unit, array.chunks, strict=True))
    del sizes[source.dim]
    parts = [[slice(i, i + n) for i in range(0, unit, n)] for unit, n in sizes]
    return list(itertools.product(*parts))


def _sums(source: LedgerSource, place: Place, first: int, end: int) -> Array:
    """Checksums of some rows of a chunk, also behind the end; 0 where they are blank."""
    reader, dim = source.reader.longer(source.dim, end), source.dim
    index = [
        slice(i * step, min((i + 1) * step, n))
        for i, step, n in zip(place, reader.unit, reader.shape, strict=True)
    ]
    inner, columns = int(reader.array.chunks[dim]), _columns(source)
    sums = np.zeros((end - first, len(columns)), np.uint32)
    row = math.prod(reader.unit) // reader.unit[dim] * reader.stored.itemsize
    step = max(1, AT_ONCE // max(1, row * inner)) * inner
    bounds = [first, *range((first // step + 1) * step, end, step), end]
    for low, high in itertools.pairwise(bounds):
        index[dim] = slice(low, high)
        values = np.moveaxis(reader.read(tuple(index)), dim, 0)
        for number, part in enumerate(columns):
            rows = values[(slice(None), *part)]
            rows = rows.reshape(high - low, math.prod(rows.shape[1:]))
            if not rows.size:
                continue
            crc = [google_crc32c.value(row.tobytes()) or 1 for row in rows]
            found = np.array(crc, np.uint32)
            for fill in (reader.fill, reader.array.fill_value or 0):
                found[blank_rows(rows, fill)] = 0
            sums[low - first : high - first, number] = found
    return sums
