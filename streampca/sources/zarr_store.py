"""Zarr arrays: v2 and v3, any chunk grid, sharded or not, local or by URL, CF-decoded."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zarr
import zarr.storage
from zarr.api import asynchronous
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    SourceError,
    StreamPCAError,
)
from streampca.matrix import ReadCount
from streampca.remote import OBJECTS, has_obstore, open_objects, plain_errors, scheme_of
from streampca.sources.cf import Packing
from streampca.sources.icechunk_repository import Snapshots
from streampca.sources.stacked import Index, Reader
from streampca.sources.urls import hide_secrets
from streampca.sources.zarr_chunks import decoder_of
from streampca.sources.zarr_frames import FrameLimit
from streampca.sources.zarr_guard import GuardedStore, default_timeout, no_answer
from streampca.sources.zarr_missing import absent_value, with_fill
from streampca.sources.zarr_shards import ShardIndex
from streampca.sources.zarr_stamp import local_paths, place_of, stamp

CONCURRENCY = 10  # chunks that Zarr fetches and decodes at once within one read (its default)


class ZarrReader(Reader):
    """One Zarr array behind a guarded store.

    Chunks of well-known codecs are decoded straight into the block (see ``zarr_chunks``);
    others, and sharded arrays, are read by Zarr. Whole shards are then the unit of a read: a
    shard read in parts has its index read again for each.

    hole : the number that means missing, where ``missing_chunks="mask"`` is to put one into
    integers.
    """

    into_buffer = True

    def __init__(
        self,
        array: Any,
        missing_chunks: str = "error",
        decode: bool = True,
        read_timeout: float | None = None,
        hole: float | None = None,
    ) -> None:
        if missing_chunks not in ("error", "fill", "mask"):
            raise InvalidInputError(
                f"missing_chunks={missing_chunks!r}; expected 'error', 'fill' or 'mask'"
            )
        timeout = default_timeout() if read_timeout is None else read_timeout
        if not timeout > 0:
            raise InvalidInputError(f"read_timeout={read_timeout!r}; expected seconds")
        shards = ShardIndex.of(array, strict=missing_chunks == "error")
        odd = shards is None and decoder_of(array) is None
        frames = FrameLimit.of(array) if odd else None
        self.guard = GuardedStore(array.store, missing_chunks, timeout, shards, frames=frames)
        self.array = zarr.open_array(
            self.guard, path=array.path, mode="r", zarr_format=array.metadata.zarr_format
        )
        self.shape = tuple(int(n) for n in self.array.shape)
        self.attributes = dict(self.array.attrs)
        fill = self.array.fill_value if self.array.metadata.zarr_format == 2 else None
        self.stored = np.dtype(self.array.dtype).newbyteorder("=")
        self.packing = (
            Packing.from_attributes(self.attributes, self.stored, fill) if decode else None
        )
        self.dtype = self.stored if self.packing is None else self.packing.dtype
        if missing_chunks == "mask":
            self.array = with_fill(self.array, absent_value(self.stored, self.packing, hole))
        self.unit = tuple(int(c) for c in (self.array.shards or self.array.chunks))
        self.place = place_of(array)
        self.history: Snapshots | None = None  # of an Icechunk repository
        self.decoder = decoder_of(self.array)
        self._local = threading.local()

    def pin(self, history: Snapshots) -> None:
        """Say which Icechunk repository the snapshot is from that is read here."""
        self.history = history
        place = history.place if "://" in history.place else os.path.realpath(history.place)
        self.place = hide_secrets(f"{place}/{self.array.path}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        if self.decoder is None:
            values = self._by_zarr(index)
        else:
            values = self._assemble(index, None if self.packing else buffer)
        self.guard.tally.add(ReadCount(nbytes=values.size * self.dtype.itemsize))
        if self.packing is not None:
            return self.packing.decode(values)
        return values if values.dtype == self.dtype else values.astype(self.dtype)

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
        size = int(np.prod(shape, dtype=np.int64)) * self.stored.itemsize
        raw = buffer[:size] if buffer is not None and len(buffer) >= size else np.empty(size, "u1")
        out = raw.view(self.stored).reshape(shape)
        grid = [
            range(part.start // step, -(-part.stop // step))
            for part, step in zip(index, self.unit, strict=True)
        ]
        places = list(itertools.product(*grid))
        batch = 1 if self._is_local else CONCURRENCY
        for i in range(0, len(places), batch):
            some = places[i : i + batch]
            for place, encoded in zip(some, self._fetch(some), strict=True):
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

        The last chunk along the first dimension is stored padded: where the buffer has room
        behind ``out`` it is decoded in place all the same.
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
        key = self._key(place)
        plain = self.decoder.order == "C" and self.decoder.dtype == self.stored
        if whole and plain and target.flags.c_contiguous:
            self.decoder.decode(encoded, target.reshape(-1).view(np.uint8), key)
            return
        offset = self._padded(into, source, index) if plain and buffer is not None else None
        if offset is not None and offset + self.decoder.nbytes <= len(buffer):
            self.decoder.decode(encoded, buffer[offset : offset + self.decoder.nbytes], key)
            return
        if getattr(self._local, "scratch", None) is None:
            self._local.scratch = np.empty(self.decoder.nbytes, np.uint8)
        self.decoder.decode(encoded, self._local.scratch, key)
        target[...] = self.decoder.values(self._local.scratch)[tuple(source)]

    def _padded(self, into: list[slice], source: list[slice], index: Index) -> int | None:
        """Where a chunk that is cut only at the end of the first dimension begins, in bytes."""
        rest = zip(into[1:], self.unit[1:], index[1:], strict=True)
        if (
            source[0].start == 0
            and into[0].stop == index[0].stop - index[0].start
            and all(i.start == 0 and i.stop == u == s.stop - s.start for i, u, s in rest)
        ):
            row = int(np.prod(self.unit[1:], dtype=np.int64)) * self.stored.itemsize
            return into[0].start * row
        return None

    @property
    def _is_local(self) -> bool:
        return isinstance(self.guard._store, zarr.storage.LocalStore)

    def _key(self, place: tuple[int, ...]) -> str:
        name = self.array.metadata.encode_chunk_key(place)
        return f"{self.array.path}/{name}" if self.array.path else name

    def _fetch(self, places: list[tuple[int, ...]]) -> list[Any]:
        """Encoded chunks, None where one is absent and may be."""
        if self._is_local:
            return [self._read_file(self._key(place)) for place in places]
        keys = [self._key(place) for place in places]
        prototype = default_buffer_prototype()

        async def gather() -> list[Any]:
            return await asyncio.gather(*(self.guard.get(key, prototype) for key in keys))

        return [None if b is None else b.to_bytes() for b in sync(gather())]

    def _read_file(self, key: str) -> Any:
        """One chunk of a local store, read into a buffer that this thread uses again."""
        path = self.guard._store.root / key
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                held = getattr(self._local, "encoded", None)
                if held is None or len(held) < size:
                    held = self._local.encoded = bytearray(size + size // 8)
                view = memoryview(held)[:size]
                done = 0
                while done < size and (got := file.readinto(view[done:])):
                    done += got
        except (FileNotFoundError, NotADirectoryError):
            self.guard.note(key, None)
            return None
        self.guard.note(key, done, view[:done])
        return view[:done]

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        step, size = self.unit[dim], self.shape[dim]
        return np.append(np.arange(0, size, step, dtype=np.int64), size)

    def scratch_nbytes(self, index: Index) -> int:
        chunk = int(np.prod(self.unit, dtype=np.int64)) * self.stored.itemsize
        parts = list(zip(index, self.unit, strict=True))
        chunks = int(np.prod([max(1, -(-(s.stop - s.start) // u)) for s, u in parts]))
        cells = int(np.prod([s.stop - s.start for s in index], dtype=np.int64))
        # encoded chunks (nearly incompressible at worst), and a decoded one that is not in place
        if self.decoder is None:
            scratch = min(chunks, CONCURRENCY) * 2 * chunk + cells * self.stored.itemsize
        else:
            flat = all(
                s.start == 0 and s.stop >= n for s, n in zip(index[1:], self.unit[1:], strict=True)
            )
            inside = flat and index[0].stop - index[0].start >= self.unit[0]
            scratch = (1 if self._is_local else CONCURRENCY) * chunk * 9 // 8
            scratch += 0 if inside and chunks * chunk == cells * self.stored.itemsize else chunk
        if self.packing is not None:
            scratch += cells * self.stored.itemsize
        return scratch

    def fingerprint(self) -> str:
        text = json.dumps(
            [
                self.place,
                self.shape,
                self.unit,
                str(self.array.dtype),
                repr(self.array.fill_value),
                repr(self.packing),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def content_stamp(self) -> str:
        text = f"{self.fingerprint()} {stamp(self.guard._store, self.array.path)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return local_paths(self.guard._store, self.array.path)

    def reads(self) -> ReadCount:
        return self.guard.tally.count

    def restart_counts(self) -> None:
        self.guard.tally.restart()

    def checksums(self) -> dict[str, int]:
        return dict(self.guard.tally.checksums or {})

    def add_checksums(self, found: Mapping[str, int]) -> None:
        self.guard.tally.keep_checksums(found)

    def encoded(self, place: tuple[int, ...]) -> bytes | None:
        """One chunk as it is stored now, counted nowhere; None where it is absent."""
        key = self._key(place)
        if self._is_local:
            try:
                return bytes((self.guard._store.root / key).read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                return None
        with plain_errors():
            found = sync(
                self.guard._store.get(key, default_buffer_prototype()), timeout=self.guard.timeout
            )
        return None if found is None else bytes(found.to_bytes())

    def key(self, place: tuple[int, ...]) -> str:
        """The name of a chunk in its store."""
        return self._key(place)

    def limited(self, dim: int, size: int) -> ZarrReader:
        """The same array, as if it ended after ``size`` along dim."""
        shorter = copy.copy(self)
        shorter.shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return shorter


def open_array(
    source: str,
    storage_options: dict[str, Any] | None = None,
    read_timeout: float | None = None,
) -> Any:
    """The Zarr array or group at a path or URL. Raises SourceError where there is none."""
    timeout = read_timeout or default_timeout()
    try:
        with understood(source):
            return _open(source, storage_options, timeout)
    except TimeoutError:
        raise no_answer("its metadata", source, timeout) from None
    except (
        FileNotFoundError,
        KeyError,
        zarr.errors.GroupNotFoundError,
        zarr.errors.ArrayNotFoundError,
        zarr.errors.NodeNotFoundError,
    ) as error:
        raise SourceError(f"no Zarr array or group at {hide_secrets(source)}") from error


def _open(source: str, storage_options: dict[str, Any] | None, timeout: float) -> Any:
    if source.endswith(".zip") and "://" not in source:
        store = zarr.storage.ZipStore(source, mode="r")
        try:
            return zarr.open(store, mode="r")
        except ValueError:  # consolidated metadata that name a data type Zarr does not know
            return zarr.open_group(store, mode="r", use_consolidated=False)
    place: Any = source
    if scheme_of(source) in OBJECTS and has_obstore():
        place = zarr.storage.ObjectStore(open_objects(source, storage_options), read_only=True)
        storage_options = None
    opening = asynchronous.open(store=place, mode="r", storage_options=storage_options)
    with plain_errors():
        node = sync(opening, timeout=timeout)
    return zarr.Array(node) if isinstance(node, zarr.AsyncArray) else zarr.Group(node)


@contextlib.contextmanager
def understood(source: str) -> Iterator[None]:
    """What Zarr makes of metadata that it does not take, as our error."""
    try:
        yield
    except (StreamPCAError, FileNotFoundError):  # some of Zarr's are a ValueError too
        raise
    except (ValueError, TypeError, zarr.errors.UnknownCodecError) as error:
        raise DamagedSourceError(
            f"{hide_secrets(source)}: its metadata are damaged, or of a kind that is not read: "
            f"{error}"
        ) from error


def pick_array(node: Any, variable: str | None, source: str) -> Any:
    """The array itself, the named one of a group, or its only matrix; says which there are.

    Coordinates and cell bounds, as xarray writes them, are no data; of several arrays the only one
    with two dimensions or more is meant.
    """
    if not isinstance(node, zarr.Group):
        return node
    arrays: dict[str, Any] = {
        name: array
        for name, array in node.members(max_depth=None)
        if not isinstance(array, zarr.Group)
    }
    if variable in arrays:
        return arrays[variable]
    named = {n for one in (node, *arrays.values()) for n in _beside(dict(one.attrs))}
    data = [n for n, a in arrays.items() if not (n in named or _is_coordinate(n, a))]
    wide = [n for n in data if arrays[n].ndim >= 2]
    for found in (data, wide):
        if variable is None and len(found) == 1:
            return arrays[found[0]]
    shown = ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "none"
    example = min(wide, default=next(iter(arrays), "X"))
    asked = "does not say which array" if variable is None else f"has no array {variable!r}"
    raise InvalidInputError(
        f"{source} is a Zarr group and the call {asked}; it holds: {shown}. "
        f"Use streampca.open({source!r}, variable={example!r})."
    )


def _beside(attributes: dict[str, Any]) -> list[str]:
    """Names of the coordinates and cell bounds that attributes tell of."""
    return f"{attributes.get('coordinates', '')} {attributes.get('bounds', '')}".split()


def _is_coordinate(name: str, array: Any) -> bool:
    """Whether an array is the coordinate of its own dimension, as xarray writes them."""
    dims = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return array.ndim == 1 and dims is not None and tuple(dims) == (name.rpartition("/")[2],)
