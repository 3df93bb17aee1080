"""The reader of one Zarr array: v2 and v3, any chunk grid, sharded or not, CF-decoded."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError, StreamPCAError, hide_secrets
from streampca.matrix import Location, ReadCount
from streampca.matrix.chunked_matrix import regular_edges
from streampca.sources.cf import Decoding
from streampca.sources.stacked import Index, Reader, ThreadBuffers, check_grid, room_for
from streampca.sources.zarr.chunks import FrameLimit, ShardIndex, decoder_of
from streampca.sources.zarr.icechunk import Snapshots
from streampca.sources.zarr.location import ZarrLocation, stamp
from streampca.sources.zarr.stores import (
    CONCURRENCY,
    EncodedChunks,
    GuardedStore,
    absolute,
    default_timeout,
    local_paths,
    place_of,
    rebuilt,
)

# What malloc keeps for Zarr's own threads: of arrays that it does not map one by one, which those
# above 32 MiB are. 4 to 5 chunks measured with chunks of 10 MB, about half of one with 40.
KEPT_CHUNKS, KEPT_NBYTES = 5, 64 << 20
BLANK = "\0blank "  # prefix of a chunk's key for the note of its blank rows, among checksums


class ZarrReader(Reader):
    """One Zarr array behind a guarded store.

    Chunks of common codecs are decoded directly into the block (see ``chunks``). Others, and
    sharded arrays, are read by Zarr. Whole shards are then the unit of a read: if a shard is read
    in parts, its index is read again for each.

    decoding : from stored numbers to values; None where they are the values.
    hole : the missing code for absent chunks of integers under ``missing_chunks="mask"``.
    """

    into_buffer = True

    def __init__(
        self,
        array: Any,
        missing_chunks: str = "error",
        decoding: Decoding | None = None,
        hole: float | None = None,
    ) -> None:
        if missing_chunks not in ("error", "fill", "mask"):
            raise InvalidInputError(
                f"missing_chunks={missing_chunks!r}; expected 'error', 'fill' or 'mask'"
            )
        check_grid(array.shape, array.shards or array.chunks, place_of(array))
        shards = ShardIndex.of(array, strict=missing_chunks == "error")
        odd = shards is None and decoder_of(array) is None
        frames = FrameLimit.of(array) if odd else None
        store = absolute(array.store)
        self.guard = GuardedStore(store, missing_chunks, default_timeout(), shards, frames=frames)
        self.tally, self.chunks = self.guard.tally, EncodedChunks(self.guard)
        self.array = rebuilt(array, store=self.guard)
        self.shape = tuple(int(n) for n in self.array.shape)
        self.rows_dim: int | None = None  # of rows that are looked at for blank ones
        self.fill = 0 if self.array.fill_value is None else self.array.fill_value
        self.stored = np.dtype(self.array.dtype).newbyteorder("=")
        self.decoding = decoding
        self.dtype = self.stored if decoding is None else decoding.dtype
        self.loads = () if decoding is None else ("xarray",)
        if missing_chunks == "mask":
            fill = absent_value(self.stored, self.decoding, hole)
            metadata = replace(self.array.metadata, fill_value=fill)
            self.array = rebuilt(self.array, metadata=metadata)
        self.unit = tuple(int(c) for c in (self.array.shards or self.array.chunks))
        self.place = place_of(array)
        self.history: Snapshots | None = None  # of an Icechunk repository
        self.decoder = decoder_of(self.array)
        self.buffers = ThreadBuffers()

    def pin(self, history: Snapshots) -> None:
        """Set the Icechunk repository of the snapshot that is read."""
        self.history = history
        place = history.place if "://" in history.place else os.path.realpath(history.place)
        self.place = hide_secrets(f"{place}/{self.array.path}")

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        if self.decoder is None:
            values = self._by_zarr(index)
        else:
            values = self._assemble(index, None if self.decoding else buffer)
        self.tally.add(ReadCount(nbytes=values.size * self.dtype.itemsize))
        if self.rows_dim is not None:
            self._note_blank_rows(index, values)
        if self.decoding is not None:
            return self.decoding.decode(values)
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def _note_blank_rows(self, index: Index, values: np.ndarray[Any, Any]) -> None:
        """Note blank rows; nothing is known of a chunk that is not read in its full width."""
        assert self.rows_dim is not None
        found = {}
        for place in self._crossed(index):
            here, whole, row = [], True, 0
            for d, (number, step, part) in enumerate(zip(place, self.unit, index, strict=True)):
                start, end = number * step, min((number + 1) * step, self.array.shape[d])
                low, high = max(start, part.start), min(end, part.stop)
                here.append(slice(low - part.start, high - part.start))
                if d == self.rows_dim:
                    row = low - start
                else:
                    whole &= (low, high) == (start, end)
            note = note_of(values[tuple(here)], self.rows_dim, row, self.fill) if whole else UNSEEN
            if note:
                found[self.key(place)] = note
        self.tally.keep_blank(found)

    def _crossed(self, index: Index) -> Iterator[tuple[int, ...]]:
        """The places in the grid of the chunks that cross the index."""
        return itertools.product(
            *(
                range(part.start // step, -(-part.stop // step))
                for part, step in zip(index, self.unit, strict=True)
            )
        )

    def _by_zarr(self, index: Index) -> np.ndarray[Any, Any]:
        """Raises DamagedSourceError where a codec cannot decode what is stored."""
        try:
            return np.asarray(self.array[index])
        except (StreamPCAError, MemoryError, OSError):
            raise
        except Exception as error:  # every codec has errors of its own
            spans = ", ".join(f"{part.start} to {part.stop - 1}" for part in index)
            raise DamagedSourceError(
                f"{hide_secrets(self.place)}: a chunk within [{spans}] is damaged: {error}"
            ) from error

    def _assemble(self, index: Index, buffer: Any) -> np.ndarray[Any, Any]:
        """Decode every chunk that crosses the index into one array."""
        shape = tuple(part.stop - part.start for part in index)
        out = room_for(shape, self.stored, buffer)
        places = list(self._crossed(index))
        step = self.chunks.at_once
        for some in (places[i : i + step] for i in range(0, len(places), step)):
            found = self.chunks.fetch([self.key(place) for place in some])
            for place, encoded in zip(some, found, strict=True):
                self._place(place, encoded, index, out, buffer)
        return out

    def _place(
        self,
        place: tuple[int, ...],
        encoded: Any,
        index: Index,
        out: np.ndarray[Any, Any],
        buffer: Any,
    ) -> None:
        """Decode one chunk into its part of ``out``.

        The last chunk along the first dimension is stored padded. It is still decoded in place if
        the buffer has room after ``out``.
        """
        assert self.decoder is not None
        into, source, whole = [], [], True
        for number, step, part in zip(place, self.unit, index, strict=True):
            low, high = max(number * step, part.start), min((number + 1) * step, part.stop)
            into.append(slice(low - part.start, high - part.start))
            source.append(slice(low - number * step, high - number * step))
            whole &= high - low == step
        target = out[tuple(into)]
        if encoded is None:
            target[...] = self.array.fill_value
            return
        key = self.key(place)
        plain = self.decoder.order == "C" and self.decoder.dtype == self.stored
        if whole and plain and target.flags.c_contiguous:
            self.decoder.decode(encoded, target.reshape(-1).view(np.uint8), key)
            return
        offset = self._padded(into, source, index) if plain and buffer is not None else None
        if offset is not None and offset + self.decoder.nbytes <= len(buffer):
            self.decoder.decode(encoded, buffer[offset : offset + self.decoder.nbytes], key)
            return
        scratch = self.buffers.take("decoded", self.decoder.nbytes)
        self.decoder.decode(encoded, scratch, key)
        target[...] = self.decoder.values(scratch)[tuple(source)]

    def _padded(self, into: list[slice], source: list[slice], index: Index) -> int | None:
        """Where a chunk that is cut only at the end of the first dimension begins, in bytes."""
        rest = zip(into[1:], self.unit[1:], index[1:], strict=True)
        if (
            source[0].start == 0
            and into[0].stop == index[0].stop - index[0].start
            and all(i.start == 0 and i.stop == u == s.stop - s.start for i, u, s in rest)
        ):
            row = int(np.prod(self.unit[1:], dtype=np.int64)) * self.stored.itemsize
            result: int | None = into[0].start * row
            return result
        return None

    def free_buffers(self) -> None:
        """Free the memory that this thread keeps for its next read."""
        self.buffers.free()
        self.chunks.buffers.free()

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return regular_edges(self.shape[dim], self.unit[dim])

    def scratch_nbytes(self, index: Index) -> int:
        chunk = int(np.prod(self.unit, dtype=np.int64)) * self.stored.itemsize
        parts = list(zip(index, self.unit, strict=True))
        chunks = int(np.prod([max(1, -(-(s.stop - s.start) // u)) for s, u in parts]))
        cells = int(np.prod([s.stop - s.start for s in index], dtype=np.int64))
        # encoded chunks (nearly incompressible at worst), and a decoded one that is not in place
        if self.decoder is None:
            scratch = min(chunks, CONCURRENCY) * 2 * chunk + cells * self.stored.itemsize
            scratch += max(0, min(KEPT_CHUNKS * chunk, KEPT_NBYTES - chunk))
        else:
            flat = all(
                s.start == 0 and s.stop >= n for s, n in zip(index[1:], self.unit[1:], strict=True)
            )
            inside = flat and index[0].stop - index[0].start >= self.unit[0]
            scratch = self.chunks.at_once * chunk * 9 // 8
            scratch += 0 if inside and chunks * chunk == cells * self.stored.itemsize else chunk
        if self.decoding is not None:
            scratch += cells * self.stored.itemsize + self.decoding.scratch_nbytes
        return int(scratch)

    def fingerprint(self) -> str:
        text = json.dumps(
            [
                self.place,
                self.shape,
                self.unit,
                str(self.array.dtype),
                repr(self.array.fill_value),
                repr(self.decoding),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def content_stamp(self) -> str:
        text = f"{self.fingerprint()} {stamp(self.guard.wrapped, self.array.path)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return local_paths(self.guard.wrapped, self.array.path)

    def locations(self) -> tuple[Location, ...]:
        listed = self.guard.missing != "error"
        found = ZarrLocation(self.place, self.array, self.guard.wrapped, self.shape, listed)
        return (found,)

    def checksums(self) -> dict[str, int]:
        """Checksums of chunks by their keys, and notes of blank rows by BLANK and the key."""
        seen = {BLANK + key: note for key, note in self.tally.blank.items()}
        return {**(self.tally.checksums or {}), **seen}

    def add_checksums(self, found: Mapping[str, int]) -> None:
        seen = {key.removeprefix(BLANK): n for key, n in found.items() if key.startswith(BLANK)}
        self.tally.keep_blank(seen)
        self.tally.keep_checksums({k: n for k, n in found.items() if not k.startswith(BLANK)})

    def encoded(self, place: tuple[int, ...]) -> bytes | None:
        """One chunk as it is stored now, not counted; None if it is absent."""
        return self.chunks.look(self.key(place))

    def key(self, place: tuple[int, ...]) -> str:
        """The name of a chunk in its store."""
        name = self.array.metadata.encode_chunk_key(place)
        return f"{self.array.path}/{name}" if self.array.path else name

    def limited(self, dim: int, size: int) -> ZarrReader:
        """The same array, as if it ended after ``size`` along dim."""
        shorter = copy.copy(self)
        shorter.shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        if self.guard.shards is not None:
            shorter.guard = self.guard.limited(dim, size)
            shorter.chunks = EncodedChunks(shorter.guard)
            shorter.array = rebuilt(self.array, store=shorter.guard)
        return shorter

    def longer(self, dim: int, size: int) -> ZarrReader:
        """Stored values of the same array as if it went on to ``size`` along dim.

        Absent chunks are fill values, and nothing is counted.
        """
        other, shape = copy.copy(self), list(self.array.shape)
        shape[dim] = max(size, shape[dim])
        shards = self.guard.shards and self.guard.shards.limited(dim, shape[dim])
        other.guard = guard = GuardedStore(
            self.guard.wrapped, "fill", self.guard.timeout, shards, frames=self.guard.frames
        )
        other.tally, other.chunks = guard.tally, EncodedChunks(guard)
        metadata = self.array.metadata.update_shape(tuple(shape))
        other.array, other.shape = rebuilt(self.array, store=guard, metadata=metadata), tuple(shape)
        other.decoding, other.dtype, other.rows_dim = None, self.stored, None
        return other


def absent_value(stored: np.dtype[Any], decoding: Decoding | None, hole: float | None) -> Any:
    """The stored number that means missing: NaN, a code that is decoded, or ``hole``.

    Raises InvalidInputError where integers have none.
    """
    if stored.kind == "f":
        return stored.type(np.nan)
    codes = np.array([] if decoding is None else decoding.codes, stored)
    if not codes.size and hole is not None and decoding is None and stored.kind in "iu":
        info = np.iinfo(stored)
        if hole == int(hole) and info.min <= hole <= info.max:
            codes = np.array([int(hole)], stored)
    if not codes.size:
        raise InvalidInputError(
            f"missing_chunks='mask' of {stored}: no number means missing. Name one that {stored} "
            "holds: streampca.open(..., missing_value=-9); or missing_chunks='fill'."
        )
    return codes[0]


# Rows that hold only the fill value, as rows do that were never written.
#
# A chunk is written as a whole, so its content shows which of its rows a writer has reached. Passes
# inspect the chunks that they read anyway, without further reads.

Array = np.ndarray[Any, Any]
UNSEEN = -1  # instead of a note: the chunk was not read in its full width
PROBES = 16  # cells of a row that are inspected before all of them are
PART = 1024  # rows that are searched for the fill value at a time


def note_of(values: Array, dim: int, first: int, fill: Any) -> int:
    """What is seen of one chunk, or of some of its rows, as one integer.

    values : the stored values.  dim : of the rows.  first : number of the first row in the chunk.
    fill : the fill value of the array.

    Bit 0 is set if a row that is not blank also holds the fill value, and bit 1 + i if row i holds
    nothing else. Notes of parts of a chunk are joined by ``|``. Cost: one cell of each row if no
    cell is the fill value.
    """
    rows = np.moveaxis(values, dim, 0)
    if not rows.size:
        return 0
    blank = blank_rows(rows, fill)
    if not len(blank):
        return 0
    mask = np.zeros(len(rows), bool)
    mask[blank] = True
    others = np.flatnonzero(~mask)
    parts = (others[i : i + PART] for i in range(0, len(others), PART))
    sparse = any(_equal(rows[part], fill).any() for part in parts)
    bits = int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
    return bits << (first + 1) | sparse


def doubtful(notes: Iterable[int], n: int) -> int:
    """Of the chunks of one row of chunks: a bit for every row that nothing shows to be written.

    n : rows of the chunks that were looked at, from the first on.

    These are the rows that are blank in all chunks, and those that are blank in a chunk whose
    other rows never hold the fill value. A chunk that is blank as a whole (a place on land) shows
    nothing: it would not be there if nobody had written it.
    """
    whole = (1 << n) - 1
    everywhere, dense = whole, 0
    for note in notes:
        blank = note >> 1 & whole
        everywhere &= blank
        if not note & 1 and blank != whole:
            dense |= blank
    return dense | everywhere


def blank_rows(rows: Array, fill: Any) -> Array:
    """The numbers of the rows that hold only the fill value."""
    found = np.arange(len(rows))
    each = PROBES if rows.ndim == 2 else 4
    inner = [np.unique(np.linspace(0, n - 1, each, dtype=int)) for n in rows.shape[1:]]
    for cell in itertools.islice(itertools.product(*inner), PROBES):
        found = found[_equal(rows[(found, *cell)], fill)]
        if not len(found):
            return found
    whole = _equal(rows[found], fill).reshape(len(found), -1).all(axis=1)
    return found[whole]


def _equal(values: Array, fill: Any) -> Array:
    return np.isnan(values) if fill != fill else np.asarray(values == fill)
