"""The one store through which chunks are read: it counts, checks, and does not wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import google_crc32c
import numpy as np
import zarr
import zarr.storage
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from streampca.errors import AbsentChunkError, DamagedSourceError, NoAnswerError, SourceError
from streampca.matrix import ReadCount
from streampca.remote import plain_errors
from streampca.shown import hide_secrets
from streampca.sources.tally import Tally
from streampca.sources.zarr_frames import FrameLimit
from streampca.sources.zarr_shards import ShardIndex

METADATA = (".zarray", ".zgroup", ".zattrs", ".zmetadata", "zarr.json")
READ_TIMEOUT = 300.0  # seconds without an answer after which a read fails


def default_timeout() -> float:
    """Zarr's own setting, ``async.timeout``, where it was made; else READ_TIMEOUT."""
    return float(zarr.config.get("async.timeout", None) or READ_TIMEOUT)


class GuardedStore(zarr.storage.WrapperStore[Any]):
    """Counts every chunk read, refuses one that is absent or would swell, waits for none for ever.

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
        frames: FrameLimit | None = None,
    ) -> None:
        super().__init__(store)
        self.missing, self.timeout, self.shards = missing, timeout, shards
        self.tally, self.frames = tally or Tally(), frames

    @property
    def wrapped(self) -> Any:
        """The store that is guarded: what is read there is neither counted nor checked."""
        return self._store

    def limited(self, dim: int, size: int) -> GuardedStore:
        """The same, where the array ends after ``size`` along dim: of shards no more is expected
        to be there."""
        shards = None if self.shards is None else self.shards.limited(dim, size)
        return GuardedStore(
            self._store, self.missing, self.timeout, shards, self.tally, self.frames
        )

    def _with_store(self, store: Any) -> GuardedStore:
        return GuardedStore(store, self.missing, self.timeout, self.shards, self.tally, self.frames)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        try:
            with plain_errors():
                async with asyncio.timeout(self.timeout):
                    value: Buffer | None = await self._store.get(key, prototype, byte_range)
        except TimeoutError:
            raise no_answer(repr(key), str(self._store), self.timeout) from None
        if key.rsplit("/", 1)[-1] in METADATA:
            return value
        whole = None if value is None or byte_range is not None else value.as_numpy_array()
        self.note(key, None if value is None else len(value), whole)
        if value is not None and not len(value):  # of a shard, Zarr would make fill values
            raise DamagedSourceError(
                f"{key!r} in {hide_secrets(str(self._store))} is empty: it was cut off. Restore it."
            )
        if value is not None and self.shards is not None:
            absent = self.shards.absent(key, value, byte_range) if self.missing == "error" else None
            if absent is not None:
                raise self._refusal(absent)
            self.shards.check_frames(key, value, byte_range)
        if value is not None and self.frames is not None:
            self.frames.check(key, value.to_bytes())
        return value

    def note(self, key: str, nbytes: int | None, encoded: Any = None) -> None:
        """Count a chunk of so many bytes at rest; None for one that is absent.

        encoded : the chunk, if all of it was read.
        """
        if nbytes is not None:
            self.tally.add(ReadCount(chunks=1, stored=nbytes))
            if encoded is not None and self.tally.checksums is not None:
                self.tally.keep_checksums({key: checksum(encoded)})
            return
        if self.missing == "error":
            raise self._refusal(f"chunk {key!r}")

    def _refusal(self, what: str) -> SourceError:
        return AbsentChunkError(
            f"{what} is absent from {hide_secrets(str(self._store))}. Restore it; or, "
            "if absent chunks are meant to be the fill value, "
            "streampca.open(..., missing_chunks='fill'), or 'mask' for missing cells."
        )


def checksum(encoded: Any) -> int:
    """63 bits: the crc32c of all but the last four bytes, beside those four.

    Of all bytes it would be the same number for every chunk that ends with its own crc32c, as
    Zarr's crc32c codec makes them: that is how such a code works.
    """
    data = np.frombuffer(encoded, np.uint8)
    body = data[: max(len(data) - 4, 0)]
    body.flags.writeable = False  # what can be written to is not taken
    return int(google_crc32c.value(body)) << 31 ^ int.from_bytes(data[len(body) :].tobytes())


def no_answer(what: str, store: str, timeout: float | None) -> NoAnswerError:
    return NoAnswerError(
        f"no answer for {what} from {hide_secrets(store)} within {timeout:g} s. Try again; or "
        "wait longer: zarr.config.set({'async.timeout': seconds}), ZARR_ASYNC__TIMEOUT=seconds."
    )
