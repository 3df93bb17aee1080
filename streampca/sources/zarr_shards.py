"""Inner chunks that were never written into a shard: Zarr reads them as the fill value."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.codecs import ShardingCodec

from streampca.errors import InvalidInputError
from streampca.sources.zarr_frames import SLACK, FrameLimit

EMPTY = np.uint64(2**64 - 1)


class ShardIndex:
    """Finds empty entries in the index of a shard while the shard, or its index, is read.

    Source: Zarr sharding codec, version 1.0, "Binary shard format".
    """

    def __init__(self, array: Any, codec: ShardingCodec) -> None:
        self.shape = tuple(int(n) for n in array.shape)
        self.shard = tuple(int(n) for n in array.metadata.chunk_grid.chunk_shape)
        self.chunk = tuple(int(n) for n in codec.chunk_shape)
        self.counts = tuple(s // c for s, c in zip(self.shard, self.chunk, strict=True))
        self.prefix = f"{array.path}/" if array.path else ""
        self.at_start = codec.index_location.value == "start"
        self.nbytes = 16 * math.prod(self.counts)
        self.size = self.nbytes + 4 * (len(codec.index_codecs) - 1)
        decoded = math.prod(self.chunk) * np.dtype(array.dtype).itemsize
        self.frames = FrameLimit.of_codecs(codec.codecs, 2 * decoded + SLACK)

    @classmethod
    def of(cls, array: Any, strict: bool = True) -> ShardIndex | None:
        """Of a ``zarr.Array``; None where it has no shards.

        strict : raise InvalidInputError for shards whose index cannot be read here; else None.
        """
        codecs: Any = getattr(array.metadata, "codecs", ())
        if not any(isinstance(codec, ShardingCodec) for codec in codecs):
            return None
        codec = codecs[0]
        inner = codec.codecs if isinstance(codec, ShardingCodec) else codecs
        names = [
            (one.to_dict()["name"], (one.to_dict().get("configuration") or {}).get("endian"))
            for one in getattr(codec, "index_codecs", ())
        ]
        known = names in ([("bytes", "little")], [("bytes", "little"), ("crc32c", None)])
        if len(codecs) > 1 or not known or any(isinstance(one, ShardingCodec) for one in inner):
            if not strict:
                return None
            raise InvalidInputError(
                f"the shards of {array.path or 'this array'} are nested or have an unusual index, "
                "and absent chunks in them would not be seen. If none are absent, or they are "
                "meant to be the fill value: streampca.open(..., missing_chunks='fill')."
            )
        return cls(array, codec)

    def limited(self, dim: int, size: int) -> ShardIndex:
        """The same of an array that ends after ``size`` along dim."""
        shorter = copy.copy(self)
        shorter.shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return shorter

    def absent(self, key: str, data: Any, byte_range: ByteRequest | None) -> str | None:
        """The first inner chunk inside the array that is not there, in words, or None."""
        raw = self._index(data, byte_range)
        if raw is None:
            return None  # a chunk that was found in the index before
        if len(raw) < self.size:
            return f"the index of shard {key!r}, which is cut off,"
        table = self._table(raw)
        place = [int(number) for number in re.findall(r"\d+", key.removeprefix(self.prefix))]
        inside = tuple(
            slice(0, -(-(min(n, (i + 1) * s) - i * s) // c))
            for i, n, s, c in zip(place, self.shape, self.shard, self.chunk, strict=True)
        )
        empty = np.argwhere((table[inside] == EMPTY).all(axis=-1))
        if not len(empty):
            return None
        first = tuple(int(i) for i in empty[0])
        return f"chunk {first} of shard {key!r} ({len(empty)} of its chunks were never written)"

    def check_frames(self, key: str, data: Any, byte_range: ByteRequest | None) -> None:
        """Raises DamagedSourceError for an inner chunk that would decode to far too much."""
        if self.frames is None:
            return
        raw = self._index(data, byte_range)
        if raw is None:
            self.frames.check(key, data.to_bytes())
        elif byte_range is None and len(raw) >= self.size:
            held = memoryview(data.to_bytes())
            for offset, nbytes in self._table(raw).reshape(-1, 2).tolist():
                if offset + nbytes <= len(held):  # else Zarr says so
                    self.frames.check(key, held[offset : offset + nbytes])

    def _index(self, data: Any, byte_range: ByteRequest | None) -> Any:
        """The encoded index, where it is among what was read."""
        if byte_range is None:
            return data[: self.size] if self.at_start else data[len(data) - self.size :]
        if byte_range in (SuffixByteRequest(self.size), RangeByteRequest(0, self.size)):
            return data
        return None

    def _table(self, raw: Any) -> np.ndarray[Any, Any]:
        """(offset, length) of every inner chunk."""
        return np.frombuffer(raw.to_bytes()[: self.nbytes], "<u8").reshape(*self.counts, 2)
