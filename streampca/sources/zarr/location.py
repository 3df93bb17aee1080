"""What is seen of a Zarr array without reading it: stamps, listings, and a location."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import stat as file_modes
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import zarr
import zarr.storage
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from streampca.matrix import Location
from streampca.paths import plain_errors
from streampca.sources.zarr.stores import (
    METADATA,
    default_timeout,
    held_in_process,
    local_paths,
    place_of,
    protocols_of,
    snapshot_of,
)

# The stamp of a store that cannot be listed: nothing but that this process has just read it
UNKNOWN = uuid.uuid4().hex
VERSIONS = (
    "created",
    "ETag",
    "etag",
    "e_tag",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
)


def stamp(store: Any, path: str) -> str:
    """A digest of the names, sizes and times of all files of an array.

    Cost: one ``stat`` per file, about 8 s for a million; one listing of an object store.
    """
    if snapshot := snapshot_of(store):
        return snapshot
    found = listing(store, path)
    return UNKNOWN if found is None else _digest((name, *about) for name, about in found)


def listing(store: Any, path: str) -> Iterator[tuple[str, tuple[Any, ...]]] | None:
    """(name below the array, (size, what changes when it is written)) of all files of an array.

    None for a store that cannot be listed, or does not say when its files were written.
    """
    if snapshot_of(store):
        return ((name, (0, 0)) for name in _names(store, path))
    if found := local_paths(store, path):
        return ((name.strip("/"), (size, time)) for name, size, time in _files(found[0]))
    if isinstance(store, zarr.storage.MemoryStore):
        start = f"{path}/" if path else ""
        held = [(key, value.to_bytes()) for key, value in list(store._store_dict.items())]
        return (
            (key.removeprefix(start), (len(data), hashlib.sha256(data).hexdigest()))
            for key, data in held
            if key.startswith(start)
        )
    if isinstance(store, zarr.storage.ObjectStore):
        start = f"{path}/" if path else ""
        with plain_errors():
            found_there = [one for batch in store.store.list(path or None) for one in batch]
        return (
            (
                one["path"].removeprefix(start),
                (one["size"], str(one["e_tag"]), one["last_modified"].isoformat()),
            )
            for one in found_there
        )
    fs = getattr(store, "fs", None)
    if fs is None or not hasattr(fs, "_find") or "http" in str(fs.protocol):
        return None
    root = f"{store.path}/{path}".rstrip("/")
    listed = sync(fs._find(root, detail=True)).items()
    if not all(any(key in about for key in VERSIONS) for _, about in listed):
        return None
    return (
        (name[len(root) :].strip("/"), (about.get("size"), *(str(about.get(k)) for k in VERSIONS)))
        for name, about in listed
    )


def _names(store: Any, path: str) -> list[str]:
    """The names of all objects below an array, as the store lists them."""
    start = f"{path}/" if path else ""

    async def listed() -> list[str]:
        return [key.removeprefix(start) async for key in store.list_prefix(start)]

    with plain_errors():
        return list(sync(listed()))


def _files(root: str) -> Iterator[tuple[Any, ...]]:
    """(name below root, size, time of change) of every file."""
    if not os.path.isdir(root):
        about = os.stat(root)
        yield "", about.st_size, about.st_mtime_ns
        return
    folders = [root]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    about = entry.stat()
                except FileNotFoundError:  # a temporary file of a writer
                    continue
                if file_modes.S_ISDIR(about.st_mode):
                    folders.append(entry.path)
                else:
                    yield entry.path[len(root) :], about.st_size, about.st_mtime_ns


def _digest(entries: Iterable[tuple[Any, ...]]) -> str:
    """A digest of entries in any order: a sum, so that a million names need not be sorted."""
    total = 0
    for entry in entries:
        total += int.from_bytes(hashlib.sha256(repr(entry).encode()).digest(), "little")
    return f"{total % (1 << 256):064x}"


# Zarr arrays as locations: their metadata, and a sample of their chunks.

SPREAD = 6  # sampled chunks, spread evenly over the array
LISTED = 6  # and the first ones that the store lists
HEAD_NBYTES = 1024  # of each of them
GROWS = ("shape", "attributes", "consolidated_metadata")  # metadata that may change meanwhile


class ZarrLocation(Location):
    """One Zarr array.

    store : not guarded, what is read for a check is not counted.  shape : that of what is read of
    it; an array that has grown since holds that too.  listed : look for chunks that are there,
    where absent ones read as fill values.
    """

    def __init__(
        self, name: str, array: Any, store: Any, shape: Sequence[int], listed: bool
    ) -> None:
        snapshot = snapshot_of(store)
        self.name = f"{name} ({snapshot})" if snapshot else name
        self.store, self.path, self.shape = store, array.path, tuple(shape)
        self.in_process = held_in_process(store)
        self._metadata, self._listed = array.metadata, listed
        self._unit = tuple(int(n) for n in (array.shards or array.chunks))

    @classmethod
    def of(cls, array: Any) -> ZarrLocation:
        """The location of an array that xarray or Dask reads directly."""
        return cls(place_of(array), array, array.store, array.shape, listed=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_metadata": None}  # only to choose a sample

    def sample(self) -> Sequence[str]:
        document = "zarr.json" if self._metadata.zarr_format == 3 else ".zarray"
        names = [document, *self._spread()]
        if self._listed and self.store.supports_listing:
            names += sync(self._first())
        return tuple(dict.fromkeys(names))

    def _spread(self) -> list[str]:
        """Chunks wholly inside the part that is read, if any: writers append to the last one."""
        pairs = list(zip(self.shape, self._unit, strict=True))
        grid = [max(1, size // step) for size, step in pairs]
        if 0 in self.shape:
            return []
        numbers = np.unique(np.linspace(0, math.prod(grid) - 1, SPREAD).astype(np.int64))
        places = (np.unravel_index(int(number), grid) for number in numbers)
        encode = self._metadata.encode_chunk_key
        return [encode(tuple(int(i) for i in place)) for place in places]

    async def _first(self) -> list[str]:
        """The first chunks of a listing."""
        start, found = self._key(""), list[str]()
        async for key in self.store.list_prefix(start):
            name = key.removeprefix(start)
            if name.rsplit("/", 1)[-1] not in METADATA:
                found.append(name)
            if len(found) == LISTED:
                break
        return found

    def _key(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def look(self, names: Sequence[str]) -> dict[str, str]:
        async def all_of_them() -> list[str]:
            async with asyncio.timeout(default_timeout()):
                return await asyncio.gather(*map(self._seen, names))

        try:
            return dict(zip(names, sync(all_of_them()), strict=True))
        except TimeoutError:
            return dict.fromkeys(names, "not answered for")

    async def _seen(self, name: str) -> str:
        metadata = name in METADATA
        part = None if metadata or _is_web(self.store) else RangeByteRequest(0, HEAD_NBYTES)
        key = self._key(name)
        try:
            if part is None and not metadata:
                found = await self.store.exists(key)
                return f"{await self.store.getsize(key)} bytes" if found else "absent"
            value = await self.store.get(key, default_buffer_prototype(), part)
            if value is None:
                return "absent"
            if metadata:
                return _described(value.to_bytes(), self.shape)
            digest = hashlib.sha256(value.to_bytes()).hexdigest()[:12]
            return f"{await self.store.getsize(key)} bytes, digest {digest}"
        except FileNotFoundError:
            return "absent"
        except Exception as error:  # every store has its own errors; reading will show them
            return f"unreadable ({type(error).__name__})"


def _described(document: bytes, shape: Sequence[int]) -> str:
    """The metadata, without what changes when rows are appended."""
    try:
        found = json.loads(document)
        there = [int(n) for n in found["shape"]]
    except (ValueError, KeyError, TypeError):
        return "not the metadata of an array"
    fixed = {name: value for name, value in found.items() if name not in GROWS}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:12]
    dtype = found.get("data_type", found.get("dtype"))
    whole = len(there) == len(shape) and all(a >= b for a, b in zip(there, shape, strict=True))
    held = tuple(shape) if whole else tuple(there)
    return f"{dtype} {held}, digest {digest}"


def _is_web(store: Any) -> bool:
    return any(one.startswith("http") for one in protocols_of(store))
