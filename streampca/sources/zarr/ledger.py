"""The ledger of a Zarr array: its chunks are listed, recorded, and compared with older ones."""

from __future__ import annotations

import copy
import datetime
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import ChangingSourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, select
from streampca.sources.ledger import (
    ABSENT,
    APPENDED,
    CHANGED,
    NOTHING,
    RELAID,
    REMOVED,
    UNKNOWN,
    VANISHED,
    Change,
    Ledger,
    Place,
    Seen,
    version_number,
)
from streampca.sources.stacked import StackedMatrix
from streampca.sources.zarr.location import listing
from streampca.sources.zarr.marks import RowMark
from streampca.sources.zarr.reader import ZarrReader
from streampca.sources.zarr.stores import checksum, place_of, snapshot_of

Array = np.ndarray[Any, Any]


class LedgerSource:
    """A matrix in a single Zarr array, of which ledgers are made.

    ``LedgerSource.of`` returns None for any other matrix, which only has a content stamp.
    """

    def __init__(self, matrix: StackedMatrix, reader: ZarrReader) -> None:
        self.matrix, self.reader = matrix, reader
        self.dim = matrix.dims[0][0]
        self.step = reader.unit[self.dim]
        self.inner = math.prod(reader.shape[d] for d in matrix.dims[0][1:])  # samples per row
        self.place = place_of(reader.array)
        self._found: dict[tuple[Place, int], int] = {}  # checksums, by place and writing

    @classmethod
    def of(cls, matrix: Any) -> LedgerSource | None:
        """The source of an opened matrix."""
        if type(matrix) is not StackedMatrix or not isinstance(matrix.reader, ZarrReader):
            return None
        reader = matrix.reader
        if not matrix.dims[0] or listing(reader.guard.wrapped, reader.array.path) is None:
            return None
        if snapshot_of(reader.guard.wrapped) and reader.history is None:
            return None  # an array of a user's session, which gives no access to older snapshots
        return cls(matrix, reader)

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape, from metadata that may be ahead of the rows."""
        return tuple(int(n) for n in self.reader.array.shape)

    def grid(self, rows: int) -> tuple[int, ...]:
        """The number of chunks along each dimension, for so many rows."""
        sizes = [rows if d == self.dim else n for d, n in enumerate(self.shape)]
        return tuple(-(-n // step) for n, step in zip(sizes, self.reader.unit, strict=True))

    def layout(self) -> str:
        """A digest of how the array is stored, except for its place and its length."""
        metadata = self.reader.array.metadata.to_dict()
        loose = ("shape", "attributes", "dimension_names", "consolidated_metadata")
        kept = {name: value for name, value in metadata.items() if name not in loose}
        sizes = [n for d, n in enumerate(self.shape) if d != self.dim]
        text = json.dumps(
            [
                sizes,
                self.dim,
                self.matrix.missing_value,
                repr(self.reader.decoding),
                kept,
                _names(self.matrix.labels.features),
            ],
            sort_keys=True,
            default=repr,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def look(self, rows: int | None = None) -> Seen:
        """List the current chunks. Cost: one ``stat`` each, or a listing."""
        counts = self.grid(self.shape[self.dim] if rows is None else rows)
        nbytes, version = np.full(counts, ABSENT, np.int64), np.zeros(counts, np.int64)
        times, written = np.full(counts, np.nan), np.nan
        store, path = self.reader.guard.wrapped, self.reader.array.path
        about = dict(listing(store, path) or ())
        for name in ("zarr.json", ".zarray"):
            if name in about:
                written = _time(about[name])
        encode = self.reader.array.metadata.encode_chunk_key
        for place in itertools.product(*(range(n) for n in counts)):
            if (found := about.pop(encode(place), None)) is not None:
                nbytes[place], version[place] = found[0], _version(found)
                times[place] = _time(found)
        behind = dict(self._behind(about, counts))
        if snapshot := snapshot_of(store):
            return Seen(nbytes, version, np.full(counts, np.nan), np.nan, snapshot, behind)
        return Seen(nbytes, version, times, written, behind=behind)

    def _behind(
        self, about: Mapping[str, tuple[Any, ...]], counts: Place
    ) -> Iterator[tuple[Place, int]]:
        """(place, version) of the files that are chunks outside of a grid, along the rows."""
        encode = self.reader.array.metadata.encode_chunk_key
        for name, found in about.items():
            place = tuple(map(int, re.findall(r"\d{1,18}", name)[-len(counts) :]))
            others = [i < n for d, (i, n) in enumerate(zip(place, counts)) if d != self.dim]
            inside = len(place) == len(counts) and all(others)
            if inside and place[self.dim] >= counts[self.dim] and encode(place) == name:
                yield place, _version(found)

    def keep_checksums(self) -> None:
        """From now on take the checksum of every chunk that is read whole, and look for blank rows
        in it, unless absent chunks are fill values on purpose: so are blank rows then."""
        tally = self.reader.tally
        if tally.checksums is None:
            tally.checksums = {}
        if self.reader.guard.missing != "fill":
            self.reader.rows_dim = self.dim

    def make(self, rows: int, seen: Seen, old: Ledger | None = None) -> Ledger:
        """The ledger of the rows that have been read.

        seen : the chunks as listed before reading.  old : of an earlier fit, for chunks that were
        not read again. Chunks whose checksum is not known are read now. Raises
        ChangingSourceError where a chunk was changed since ``seen``.
        """
        now = self.look(rows)
        part = tuple(slice(0, n) for n in now.nbytes.shape)
        moved = np.argwhere(now.version != seen.version[part])
        if len(moved):
            key = self.reader.key(tuple(int(i) for i in moved[0]))
            raise ChangingSourceError(f"chunk {key!r} was changed while it was read; start again")
        crc = np.full(now.nbytes.shape, UNKNOWN, np.int64)
        if old is not None:
            both = tuple(slice(0, min(n, m)) for n, m in zip(crc.shape, old.crc32c.shape))
            same = now.version[both] == old.version[both]
            crc[both] = np.where(same, old.crc32c[both], UNKNOWN)
        known = self.matrix.checksums()
        for place in itertools.product(*(range(n) for n in crc.shape)):
            if (found := known.get(self.reader.key(place))) is not None:
                crc[place] = found
        for place in _places((crc == UNKNOWN) & (now.nbytes != ABSENT)):
            crc[place] = checksum(self.reader.encoded(place) or b"")
        written = 0.0 if math.isnan(seen.written) else seen.written
        return Ledger(
            rows,
            self.dim,
            self.layout(),
            now.nbytes,
            now.version,
            crc,
            self.tail(rows),
            now.snapshot,
            written,
            self.place,
            RowMark.of(self.reader.array.attrs).ids,
        )

    def tail(self, rows: int) -> int:
        """The checksum of the decoded rows of the last chunk, where it is not full."""
        first = rows // self.step * self.step
        if first == rows:
            return UNKNOWN
        values = self.first_rows(rows).read(0, first * self.inner, rows * self.inner)
        return checksum(np.ascontiguousarray(values).tobytes())

    def first_rows(self, rows: int) -> StackedMatrix:
        """The matrix, cut off after so many rows."""
        if rows == self.reader.shape[self.dim]:
            return self.matrix
        shorter = copy.copy(self.matrix)
        shorter.reader = self.reader.limited(self.dim, rows)
        shorter.shape = (rows * self.inner, self.matrix.shape[1])
        samples = self.matrix.labels.samples.take(0, rows * self.inner)
        shorter.labels = replace(self.matrix.labels, samples=samples)
        return shorter

    def rows_from(self, first: int, rows: int) -> ChunkedMatrix:
        """The samples of rows ``first`` up to ``rows``."""
        numbers = np.arange(first * self.inner, rows * self.inner)
        return select(self.first_rows(rows), samples=numbers)

    def compare(self, old: Ledger, rows: int, seen: Seen, full: bool = False) -> Change:
        """The change of the array since ``old``.

        rows : rows that are written now (see :mod:`streampca.sources.zarr.watermark`).
        full : read every old chunk; else only those whose length or time differ, or that Icechunk
            says were written, of which the bytes decide.
        """
        how, span = ("full" if full else "stat"), (old.rows, rows)
        if self.layout() != old.layout or self.dim != old.dim:
            return Change(RELAID, span, how)
        if self.place != old.place:
            found = self.compare(replace(old, place=self.place), rows, seen, full=True)
            moved = (old.place, self.place)
            return Change(
                RELAID, span, "full", read=found.read, moved=moved, same_rows=found.same_rows
            )
        if self.shape[self.dim] < old.rows:
            return Change(REMOVED, (old.rows, self.shape[self.dim]), how)
        whole = old.rows // self.step  # chunk rows that were full
        part = tuple(slice(0, n) for n in old.nbytes.shape)
        here = seen.nbytes[part] != ABSENT
        decided = RowMark.of(self.reader.array.attrs).decides  # what it leaves out is not lost
        gone = ~here & (old.nbytes != ABSENT)
        if decided:
            gone[(slice(None),) * self.dim + (slice(-(-rows // self.step), None),)] = False
        vanished = [self.reader.key(p) for p in _places(gone)]
        suspect = here & (np.True_ if full else self._written(old, seen, part))
        last = (slice(None),) * self.dim + (slice(whole, None),)
        renewed = bool(suspect[last].any()) or rows > old.rows
        suspect[last] = False  # appending writes it anew: its old rows are compared below
        changed, hidden, where, read = self._compared(old, seen, suspect)
        cut = whole * self.step
        if not vanished and renewed and old.rows > cut and (now := self.tail(old.rows)) != old.tail:
            changed[f"rows {cut} to {old.rows - 1}"] = now
            if not seen.snapshot and np.array_equal(seen.version[part][last], old.version[last]):
                hidden.append(now)
            where.add((cut, old.rows))
        if vanished:
            return Change(VANISHED, span, how, tuple(vanished), read)
        if rows < old.rows:
            return Change(REMOVED, span, how, (), read)
        if changed:
            rows_of = tuple(sorted(where))
            return Change(CHANGED, span, how, tuple(changed), read, tuple(hidden), rows_of)
        kind = APPENDED if rows > old.rows else NOTHING
        return Change(kind, span, how, (), read, same_rows=True)

    def _compared(
        self, old: Ledger, seen: Seen, suspect: Array
    ) -> tuple[dict[str, int], list[int], set[tuple[int, int]], int]:
        """Suspect chunks by their bytes.

        (key -> checksum of those that changed, checksums of those whose length, time and snapshot
        do not show it, their rows, bytes read)
        """
        changed: dict[str, int] = {}
        hidden: list[int] = []
        where: set[tuple[int, int]] = set()
        read = 0
        for place in _places(suspect):
            which = place, int(seen.version[place])
            if which not in self._found:
                data = self.reader.encoded(place) or b""
                read += len(data)
                self._found[which] = checksum(data)
            if (now := self._found[which]) != old.crc32c[place]:
                changed[self.reader.key(place)] = now
                if not seen.snapshot and seen.version[place] == old.version[place]:
                    hidden.append(now)
                first = place[self.dim] * self.step
                where.add((first, min(first + self.step, old.rows)))
        return changed, hidden, where, read

    def _written(self, old: Ledger, seen: Seen, part: tuple[slice, ...]) -> Array:
        """The chunks of a ledger that may have been written since."""
        if not seen.snapshot:
            lengths = seen.nbytes[part] != old.nbytes  # a restored time hides no cut
            return np.asarray(lengths | (seen.version[part] != old.version))
        assert self.reader.history is not None
        path = self.reader.array.path
        found = self.reader.history.changed(path, old.snapshot, seen.snapshot)
        if found is None:
            return np.ones(old.nbytes.shape, bool)
        written = np.zeros(seen.nbytes.shape, bool)
        for place in found:
            if all(i < n for i, n in zip(place, written.shape)):
                written[place] = True
        return written[part]


def _names(axis: AxisLabels) -> str:
    """A digest of the names along an axis: columns may be reordered."""
    digest = hashlib.sha256(repr((axis.dims, axis.sizes)).encode())
    columns = {**axis.coords, **axis.extra}
    columns |= {f"grid {name}": values for name, (_, values) in axis.grids.items()}
    for name, values in sorted(columns.items()):
        plain = values.dtype.kind in "biufMm"
        text = values.tobytes() if plain else "\0".join(map(str, values.flat)).encode()
        digest.update(f"{name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def _places(chosen: Array) -> Iterator[Place]:
    """The grid places where a boolean array is True."""
    yield from map(tuple, np.argwhere(chosen).tolist())


def _time(about: tuple[Any, ...]) -> float:
    if len(about) == 2 and isinstance(about[1], int):
        return about[1] / 1e9
    if len(about) == 3:  # object storage: full seconds
        return datetime.datetime.fromisoformat(about[2]).timestamp()
    return float("nan")


def _version(about: tuple[Any, ...]) -> int:
    """63 bits that change with the version that a store reports for a chunk."""
    if len(about) == 2 and isinstance(about[1], int):
        return about[1]
    return version_number(repr(about))
