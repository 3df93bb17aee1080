"""Chunks of 1-D arrays that lie in several blocks of a pass, decoded once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.sources.stacked import Reader, room_for


class SharedChunks:
    """What a pass over blocks of entries keeps of chunks that more than one block needs.

    bounds : (blocks + 1,) entries at which blocks begin and end.

    The first block that needs such a chunk decodes it, and what the others need stays until they
    took it. Where a later block comes first, on another lane, that is the rest of one line.
    Thread-safe. A pickled one is empty: a worker reads the chunks at the ends of its span again.
    """

    def __init__(self, bounds: Array) -> None:
        self.bounds = np.unique(bounds)
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SharedChunks, (self.bounds,)

    def read(self, reader: Reader, low: int, high: int, buffer: Any = None) -> Array:
        """Entries [low, high) of an array, in the buffer if the reader supports that."""
        edges = reader.edges(0)
        if edges is None or not self._is_block(low, high):
            return read_entries(reader, low, high, buffer)
        after = int(edges[np.searchsorted(edges, low, "right")])  # of the chunk of the first entry
        before = int(edges[np.searchsorted(edges, high, "left") - 1])
        first, last = min(after, high), max(before, low)
        head, tail = self._takers(edges, low), self._takers(edges, high - 1)
        a = first if head > 1 else low
        b = max(a, last) if tail > 1 else max(a, high)
        if (a, b) == (low, high):
            return read_entries(reader, low, high, buffer)
        out = room_for((high - low,), reader.dtype, buffer if reader.into_buffer else None)
        if a > low:
            self._take(reader, edges, low, out[: a - low], head)
        if b > a:
            inside = out[a - low : b - low]
            found = read_entries(reader, a, b, inside.view(np.uint8))
            if not np.may_share_memory(found, inside):
                inside[...] = found
        if high > b:
            self._take(reader, edges, b, out[b - low :], tail)
        return out

    def _is_block(self, low: int, high: int) -> bool:
        i = int(np.searchsorted(self.bounds, low))
        pair = self.bounds[i : i + 2]
        return len(pair) == 2 and (int(pair[0]), int(pair[1])) == (low, high)

    def _takers(self, edges: Array, entry: int) -> int:
        """Blocks that need the chunk of an entry."""
        i = int(np.searchsorted(edges, entry, "right"))
        first = np.searchsorted(self.bounds, edges[i - 1], "right") - 1
        last = np.searchsorted(self.bounds, edges[i], "left")
        return int(min(last, len(self.bounds) - 1) - max(first, 0))

    def _take(self, reader: Reader, edges: Array, low: int, out: Array, takers: int) -> None:
        """Fill ``out`` with the entries from ``low`` on, of one chunk."""
        i = int(np.searchsorted(edges, low, "right"))
        key = (id(reader), i)
        with self._lock:
            kept = self._kept.setdefault(key, _Kept(takers))
        with kept.lock:
            if kept.values is None:
                kept.start = int(edges[i - 1])
                kept.values = read_entries(reader, kept.start, int(edges[i]))
            if kept.holds(low, len(out)):
                kept.take(low, out)
            else:  # a block that is read a second time
                out[...] = read_entries(reader, low, low + len(out))
        if kept.takers <= 0:
            with self._lock:
                self._kept.pop(key, None)


class _Kept:
    """What is left of one chunk, from entry ``start`` on, for so many blocks."""

    def __init__(self, takers: int) -> None:
        self.takers, self.start = takers, 0
        self.values: Array | None = None
        self.lock = threading.Lock()

    def holds(self, low: int, count: int) -> bool:
        assert self.values is not None
        return self.start <= low and low + count <= self.start + len(self.values)

    def take(self, low: int, out: Array) -> None:
        """Hand out entries at either end, and let go of them."""
        assert self.values is not None
        a = low - self.start
        b = a + len(out)
        out[...] = self.values[a:b]
        self.takers -= 1
        if a == 0:
            rest, self.start = self.values[b:], low + len(out)
        else:
            rest = self.values[:a] if b == len(self.values) else self.values
        # a view keeps the whole chunk alive
        self.values = rest.copy() if 2 * len(rest) < len(self.values) else rest


def read_entries(reader: Reader, low: int, high: int, buffer: Any = None) -> Array:
    """Entries [low, high) of a 1-D array, in the buffer if the reader supports that."""
    part = (slice(low, high),)
    if not reader.into_buffer:
        return reader.read(part)
    read: Any = reader.read
    values: Array = read(part, buffer)
    return values
