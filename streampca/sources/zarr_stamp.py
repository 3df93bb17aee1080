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

from streampca.sources.urls import hide_secrets

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
    return found[0] if found else hide_secrets(f"{array.store}/{array.path}")


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
    if found := local_paths(store, path):
        return _digest(_files(found[0]))
    if isinstance(store, zarr.storage.MemoryStore):
        inside = (k for k in list(store._store_dict) if not path or k.startswith(path + "/"))
        return _digest(
            (k, hashlib.sha256(store._store_dict[k].to_bytes()).hexdigest()) for k in inside
        )
    fs = getattr(store, "fs", None)
    if fs is None or not hasattr(fs, "_find") or "http" in str(fs.protocol):
        return UNKNOWN
    root = f"{store.path}/{path}".rstrip("/")
    listed = sync(fs._find(root, detail=True)).items()
    if not all(any(key in about for key in VERSIONS) for _, about in listed):
        return UNKNOWN
    return _digest(
        (name, about.get("size"), *(str(about.get(key)) for key in VERSIONS))
        for name, about in listed
    )


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
                about = entry.stat()
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
