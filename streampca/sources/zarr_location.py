"""Zarr arrays as locations: what their metadata say, and a sample of the chunks that are there."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
import zarr.storage
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from streampca.matrix import Location
from streampca.sources.zarr_guard import METADATA, default_timeout
from streampca.sources.zarr_stamp import place_of, snapshot_of

SPREAD = 6  # chunks that are looked at, spread evenly over the array
LISTED = 6  # and the first ones that the store names, which are there
HEAD_NBYTES = 1024  # of each of them
GROWS = ("shape", "attributes", "consolidated_metadata")  # of metadata: may change while it is read


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
        """Of an array that is read as it is, by xarray or by Dask."""
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
        """Chunks that lie wholly in what is read, if any do: a writer appends to the last one."""
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
        except Exception as error:  # every store has errors of its own; reading will tell
            return f"unreadable ({type(error).__name__})"


def _described(document: bytes, shape: Sequence[int]) -> str:
    """What metadata say of everything but that to which rows may be appended."""
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


def held_in_process(store: Any) -> str:
    """What holds the chunks of a store, where it is the memory of this process; else ""."""
    store = _unwrapped(store)
    if isinstance(store, zarr.storage.MemoryStore):
        return f"a zarr {type(store).__name__}"
    if isinstance(store, zarr.storage.ObjectStore) and type(store.store).__name__ == "MemoryStore":
        return "an obstore MemoryStore"
    return "memory://" if "memory" in _protocols(store) else ""


def absolute(store: Any) -> Any:
    """The store with an absolute path: a process in another folder finds the same."""
    if isinstance(store, zarr.storage.LocalStore) and not store.root.is_absolute():
        store = copy.copy(store)
        store.root = store.root.absolute()
    elif isinstance(store, zarr.storage.ZipStore) and not store.path.is_absolute():
        store = copy.copy(store)
        store.path = store.path.absolute()
    return store


def zarr_array_in(wrapper: Any) -> Any:
    """The Zarr array that xarray's wrappers around it hold, or None."""
    for _ in range(8):
        if wrapper is None or isinstance(wrapper, zarr.Array):
            return wrapper
        inner = getattr(wrapper, "_array", None)
        wrapper = getattr(wrapper, "array", None) if inner is None else inner
    return None


def _is_web(store: Any) -> bool:
    return any(one.startswith("http") for one in _protocols(store))


def _protocols(store: Any) -> tuple[str, ...]:
    """Of fsspec, where the store is one of its."""
    if not isinstance(store, zarr.storage.FsspecStore):
        return ()
    named = store.fs.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _unwrapped(store: Any) -> Any:
    while isinstance(store, zarr.storage.WrapperStore):
        store = store._store
    return store
