"""The one store through which chunks are read: it counts, checks, and does not wait for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import zarr
import zarr.storage
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from streampca.errors import SourceError
from streampca.matrix import ReadCount
from streampca.sources.urls import hide_secrets
from streampca.sources.zarr_shards import ShardIndex

METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
READ_TIMEOUT = 300.0  # seconds without an answer after which a read fails


def default_timeout() -> float:
    """Zarr's own setting, ``async.timeout``, where it was made; else READ_TIMEOUT."""
    return float(zarr.config.get("async.timeout", None) or READ_TIMEOUT)


class Tally:
    """What was read through a store and all copies that Zarr makes of it; counts from zero
    where it was unpickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = ReadCount()

    def __reduce__(self) -> Any:
        return Tally, ()

    def add(self, count: ReadCount) -> None:
        """Count more."""
        with self.lock:
            self.count = self.count + count

    def restart(self) -> None:
        """Count from zero."""
        with self.lock:
            self.count = ReadCount()


class GuardedStore(zarr.storage.WrapperStore):
    """Counts every chunk read, refuses one that is absent, and waits for none for ever.

    Zarr reads an absent chunk, or one that was never written into its shard, as its fill value
    without a word; here that is an error unless the caller said that absent chunks are fill
    values on purpose.
    """

    def __init__(
        self,
        store: Any,
        missing: str = "error",
        timeout: float | None = None,
        shards: ShardIndex | None = None,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(store)
        self.missing, self.timeout, self.shards = missing, timeout, shards
        self.tally = tally or Tally()

    def _with_store(self, store: Any) -> GuardedStore:
        return GuardedStore(store, self.missing, self.timeout, self.shards, self.tally)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        try:
            async with asyncio.timeout(self.timeout):
                value = await self._store.get(key, prototype, byte_range)
        except TimeoutError:
            raise no_answer(repr(key), str(self._store), self.timeout) from None
        if key.rsplit("/", 1)[-1] in METADATA:
            return value
        self.note(key, None if value is None else len(value))
        if value is not None and self.shards is not None:
            absent = self.shards.absent(key, value, byte_range)
            if absent is not None:
                raise self._refusal(absent)
        return value

    def note(self, key: str, nbytes: int | None) -> None:
        """Count a chunk of so many bytes at rest; None for one that is absent."""
        if nbytes is not None:
            self.tally.add(ReadCount(chunks=1, stored=nbytes))
            return
        if self.missing == "error":
            raise self._refusal(f"chunk {key!r}")

    def _refusal(self, what: str) -> SourceError:
        return SourceError(
            f"{what} is absent from {hide_secrets(str(self._store))}. Restore it; or, "
            "if absent chunks are meant to be the fill value, "
            "streampca.open(..., missing_chunks='fill')."
        )


def no_answer(what: str, store: str, timeout: float | None) -> SourceError:
    return SourceError(
        f"no answer for {what} from {hide_secrets(store)} within {timeout:g} s. Try again; or "
        "wait longer: zarr.config.set({'async.timeout': seconds}), ZARR_ASYNC__TIMEOUT=seconds."
    )
