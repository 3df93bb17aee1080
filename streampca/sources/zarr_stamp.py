"""Where a Zarr array lies, and whether what is stored there has changed since."""

from __future__ import annotations

import hashlib
import os
import stat as file_modes
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import zarr
import zarr.storage
from zarr.core.sync import sync

from streampca.remote import plain_errors
from streampca.shown import hide_secrets

# Of a store that cannot be listed nothing is known but that this process has just read it.
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


def place_of(array: Any) -> str:
    """The place of a ``zarr.Array``, however it was spelt, without credentials."""
    found = local_paths(array.store, array.path)
    if snapshot_of(array.store):
        return f"icechunk/{array.path}"  # of which repository, a session does not tell
    return found[0] if found else hide_secrets(f"{array.store}/{array.path}")


def snapshot_of(store: Any) -> str:
    """The snapshot that a store of Icechunk, perhaps guarded, shows; "" of any other."""
    if not type(store).__module__.startswith("icechunk"):
        store = getattr(store, "_store", None)
    if not type(store).__module__.startswith("icechunk"):
        return ""
    return str(store.session.snapshot_id)


def local_paths(store: Any, path: str) -> tuple[str, ...]:
    """(directory of the array,) or (archive,) where it lies on this machine, else ()."""
    if isinstance(store, zarr.storage.LocalStore):
        return (os.path.realpath(os.path.join(store.root, path)),)
    if isinstance(store, zarr.storage.ZipStore):
        return (os.path.realpath(store.path),)
    return ()


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
    """Of all objects below an array, as the store lists them."""
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
                except FileNotFoundError:  # of a writer, on its way to its place
                    continue
                if file_modes.S_ISDIR(about.st_mode):
                    folders.append(entry.path)
                else:
                    yield entry.path[len(root) :], about.st_size, about.st_mtime_ns


def _digest(entries: Iterable[tuple[Any, ...]]) -> str:
    """Of entries in any order: a sum, so that a million names need not be held and sorted."""
    total = 0
    for entry in entries:
        total += int.from_bytes(hashlib.sha256(repr(entry).encode()).digest(), "little")
    return f"{total % (1 << 256):064x}"
