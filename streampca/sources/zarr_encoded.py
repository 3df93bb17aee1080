"""Chunks as they are stored: from files on this machine, or many at once from any other store."""

from __future__ import annotations

import asyncio
from typing import Any

import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from streampca.regular_file import check_regular, open_at_once, read_regular
from streampca.remote import plain_errors
from streampca.sources.thread_buffers import ThreadBuffers
from streampca.sources.zarr_guard import GuardedStore

CONCURRENCY = 10  # chunks that Zarr fetches and decodes at once within one read (its default)


MOST = 1 << 31  # bytes of one chunk at rest


class EncodedChunks:
    """The encoded chunks of a guarded store, by their keys.

    at_once : how many to ask for. One of a local store: it lies in a buffer that every thread
    has one of, and that its next chunk overwrites.
    """

    def __init__(self, guard: GuardedStore) -> None:
        self.guard = guard
        self.is_local = isinstance(guard.wrapped, zarr.storage.LocalStore)
        self.at_once = 1 if self.is_local else CONCURRENCY
        self.buffers = ThreadBuffers()

    def fetch(self, keys: list[str]) -> list[Any]:
        """Encoded chunks, checked and counted; None where one is absent and may be."""
        if self.is_local:
            return [self._read_file(key) for key in keys]
        prototype = default_buffer_prototype()

        async def gather() -> list[Any]:
            return await asyncio.gather(*(self.guard.get(key, prototype) for key in keys))

        return [None if b is None else b.to_bytes() for b in sync(gather())]

    def look(self, key: str) -> bytes | None:
        """One chunk as it is stored now, counted nowhere; None where it is absent."""
        if self.is_local:
            try:
                return read_regular(self.guard.wrapped.root / key, MOST)
            except (FileNotFoundError, NotADirectoryError):
                return None
        with plain_errors():
            found = sync(
                self.guard.wrapped.get(key, default_buffer_prototype()), timeout=self.guard.timeout
            )
        return None if found is None else bytes(found.to_bytes())

    def _read_file(self, key: str) -> Any:
        """One chunk of a local store, read into a buffer that this thread uses again."""
        path = self.guard.wrapped.root / key
        try:
            with open(path, "rb", buffering=0, opener=open_at_once) as file:
                size = check_regular(file.fileno(), str(path))
                held: Any = self.buffers.take("encoded", size, spare=size // 8)
                view = memoryview(held)
                done = 0
                while done < size and (got := file.readinto(view[done:])):
                    done += got
        except (FileNotFoundError, NotADirectoryError):
            self.guard.note(key, None)
            return None
        self.guard.note(key, done, view[:done])
        return view[:done]
