"""Chunks of Zarr arrays and shards: decoded into place, refused where they would grow too far."""

from __future__ import annotations

import copy
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.codecs import ShardingCodec

from streampca.errors import DamagedSourceError, InvalidInputError

# Decoding of Zarr chunks straight into place, for the codecs that nearly every store uses.
#
# Zarr's own read allocates an encoded, a decoded and an assembled copy of every chunk. Where page
# faults are expensive, that costs more than decompression. Here a chunk is decompressed directly
# into the block if it is contiguous there, otherwise into one reused buffer. Any other codec,
# including sharding, goes through Zarr: :func:`decoder_of` then returns None.


class ChunkDecoder:
    """bytes -> values for one array: optional crc32c, at most one compressor, little or big endian.

    order : "C", or "F" for arrays stored in Fortran order within each chunk.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        compressor: Any | None,
        checksum: bool,
        order: str,
    ) -> None:
        self.shape, self.dtype, self.compressor = shape, dtype, compressor
        self.checksum, self.order = checksum, order
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def decode(self, encoded: Any, into: np.ndarray[Any, Any], key: str) -> None:
        """Decode one chunk into a contiguous uint8 array of exactly ``nbytes``."""
        view = memoryview(encoded).cast("B")
        try:
            if self.checksum:
                view, tail = view[:-4], bytes(view[-4:])
                if google_crc32c.value(np.frombuffer(view, np.uint8)).to_bytes(4, "little") != tail:
                    raise ValueError("its crc32c does not match")
            if self.compressor is None:
                self._check_size(len(view))
                into[:] = np.frombuffer(view, np.uint8)
                return
            if isinstance(self.compressor, (numcodecs.GZip, numcodecs.Zlib)):
                _inflate(view, into)
                return
            check_stored_size(self.compressor, view)
            declared = declared_size(self.compressor, view)
            if declared is None:  # decoded separately: a short chunk would otherwise go unnoticed
                decoded = np.frombuffer(self.compressor.decode(view), np.uint8)
                self._check_size(len(decoded))
                into[:] = decoded
                return
            self._check_size(declared)
            self.compressor.decode(view, out=into)
        except (RuntimeError, ValueError, OSError, TypeError, zlib.error) as error:
            raise DamagedSourceError(f"chunk {key!r} is damaged: {error}") from error

    def _check_size(self, nbytes: int) -> None:
        if nbytes != self.nbytes:
            raise ValueError(f"it decodes to {nbytes} bytes instead of {self.nbytes}")

    def values(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The decoded bytes as an array of the chunk's shape (a view)."""
        return raw.view(self.dtype).reshape(self.shape, order="F" if self.order == "F" else "C")


def declared_size(compressor: Any, view: memoryview) -> int | None:
    """The decoded size stated in the first bytes of a chunk, or None.

    Sources: Blosc chunk format; RFC 8878, section 3.1.1.1 (zstd); numcodecs (LZ4).
    """
    if isinstance(compressor, numcodecs.Blosc):
        return int.from_bytes(view[4:8], "little")
    if isinstance(compressor, numcodecs.LZ4):
        return int.from_bytes(view[:4], "little")
    if bytes(view[:4]) != b"\x28\xb5\x2f\xfd" or len(view) < 6:
        raise ValueError("it does not begin as a zstd frame")
    descriptor = view[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if not width:
        return None
    start = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]  # behind window and dictionary
    return int.from_bytes(view[start : start + width], "little") + (256 if width == 2 else 0)


def check_stored_size(compressor: Any, view: memoryview) -> None:
    """Raises ValueError for a chunk of Blosc that is shorter than its header says.

    Blosc decodes what is left, and whatever lies behind it in memory. Other codecs see their end.
    """
    if not isinstance(compressor, numcodecs.Blosc):
        return
    stated = int.from_bytes(view[12:16], "little")
    if len(view) < max(stated, 16):
        raise ValueError(f"it is cut off: {len(view)} bytes are there, and it had {stated}")


def _inflate(view: memoryview, into: np.ndarray[Any, Any]) -> None:
    """gzip or zlib, in as many members as there are, to exactly the size of ``into``."""
    done = 0
    rest: Any = view
    while rest:
        member = zlib.decompressobj(wbits=47)  # either header
        plain = member.decompress(rest, len(into) - done + 1)
        if done + len(plain) > len(into) or not member.eof:
            raise ValueError(f"it is cut off, or decodes to more than {len(into)} bytes")
        into[done : done + len(plain)] = np.frombuffer(plain, np.uint8)
        done, rest = done + len(plain), member.unused_data
    if done != len(into):
        raise ValueError(f"it decodes to {done} bytes instead of {len(into)}")


def decoder_of(array: Any) -> ChunkDecoder | None:
    """A decoder for a ``zarr.Array``, or None where its codecs are not among those known here."""
    metadata = array.metadata
    native = np.dtype(array.dtype).newbyteorder("=")
    shape = tuple(int(c) for c in array.chunks)
    if array.shards is not None or native.kind not in "buif":
        return None
    if metadata.zarr_format == 2:
        if metadata.filters:
            return None
        compressor = metadata.compressor
        if compressor is not None and not is_known(compressor):
            return None
        return ChunkDecoder(shape, np.dtype(array.dtype), compressor, False, metadata.order)
    return _decoder_v3(metadata, shape, native)


def _decoder_v3(metadata: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ChunkDecoder | None:
    compressor: Any | None = None
    checksum = False
    encoding = metadata.chunk_key_encoding
    if type(encoding).__name__ not in ("DefaultChunkKeyEncoding", "V2ChunkKeyEncoding"):
        return None
    for position, codec in enumerate(metadata.codecs):
        described = codec.to_dict()
        name, how = described["name"], described.get("configuration") or {}
        if checksum:
            return None  # crc32c must be the last step of encoding
        if position == 0:
            if name != "bytes":
                return None
            if how.get("endian") == "big":
                dtype = dtype.newbyteorder(">")
        elif name in COMPRESSORS and compressor is None:
            compressor = COMPRESSORS[name]()
        elif name == "crc32c":
            checksum = True
        else:
            return None
    return ChunkDecoder(shape, dtype, compressor, checksum, "C")


COMPRESSORS = {
    "blosc": numcodecs.Blosc,
    "zstd": numcodecs.Zstd,
    "gzip": numcodecs.GZip,
    "numcodecs.blosc": numcodecs.Blosc,
    "numcodecs.zstd": numcodecs.Zstd,
    "numcodecs.gzip": numcodecs.GZip,
    "numcodecs.zlib": numcodecs.Zlib,
    "numcodecs.lz4": numcodecs.LZ4,
}


def is_known(codec: Any) -> bool:
    """Whether a codec is one whose frames are decoded here."""
    return isinstance(
        codec, (numcodecs.Blosc, numcodecs.Zstd, numcodecs.GZip, numcodecs.Zlib, numcodecs.LZ4)
    )


# Protection from compressed chunks that expand without bound.
#
# Chunks of plain arrays are decoded above into buffers of the right size. Those in shards, and
# labels, go through Zarr, which decodes without a limit: 30 kB of zstd can be 1 GB of zeros. Frames
# of zstd, Blosc, LZ4 and gzip state their decoded size, which is checked first.

TEXT = 4096  # bytes that a label may have
SLACK = 1 << 20


def carries_checksum(array: Any) -> bool:
    """Whether the codecs of a chunk detect altered bytes."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        return _checks(metadata.compressor.get_config()) if metadata.compressor else False
    codecs = [codec for one in metadata.codecs for codec in getattr(one, "codecs", (one,))]
    return any(_checks(codec.to_dict()) for codec in codecs)


def _checks(codec: Mapping[str, Any]) -> bool:
    how = codec.get("configuration") or codec
    name = codec.get("name", codec.get("id"))
    return name in ("crc32c", "gzip", "zlib") or bool(how.get("checksum"))


class FrameLimit:
    """The most bytes that a chunk of one array may decode to.

    compressor : the last that was applied.  trailing : bytes behind its frame (a checksum).
    """

    def __init__(self, compressor: Any, trailing: int, most: int) -> None:
        self.compressor, self.trailing, self.most = compressor, trailing, most

    @classmethod
    def of(cls, array: Any) -> FrameLimit | None:
        """The limit of a ``zarr.Array``; None where its frames do not say how long they are."""
        dtype = np.dtype(array.dtype)
        width = dtype.itemsize if dtype.kind in "biufcmMSU" else TEXT
        most = 8 * math.prod(int(c) for c in array.chunks) * width + SLACK
        metadata = array.metadata
        if metadata.zarr_format == 2:
            found = metadata.compressor or next(iter(reversed(metadata.filters or ())), None)
            return cls(found, 0, most) if found is not None and is_known(found) else None
        return cls.of_codecs(metadata.codecs, most)

    @classmethod
    def of_codecs(cls, codecs: Any, most: int) -> FrameLimit | None:
        """The limit of the codecs of a chunk, or of the chunks within a shard."""
        trailing = 0
        for codec in reversed(tuple(codecs)):
            name = codec.to_dict()["name"]
            if name in COMPRESSORS:
                return cls(COMPRESSORS[name](), trailing, most)
            if name != "crc32c":
                return None
            trailing += 4
        return None

    def check(self, key: str, encoded: Any) -> None:
        """Raises DamagedSourceError for a chunk that declares a larger size, or was cut off."""
        view = memoryview(encoded).cast("B")
        view = view[: max(len(view) - self.trailing, 0)]
        try:
            check_stored_size(self.compressor, view)
        except ValueError as error:
            raise DamagedSourceError(f"chunk {key!r} is damaged: {error}") from None
        if isinstance(self.compressor, numcodecs.GZip | numcodecs.Zlib):
            size = int.from_bytes(view[-4:], "little") if len(view) > 18 else 0
        else:
            try:
                size = declared_size(self.compressor, view) or 0
            except ValueError:  # no such frame: the codec says so itself
                return
        if size > self.most:
            raise DamagedSourceError(
                f"chunk {key!r} is damaged: it decodes to {size} bytes where at most {self.most} "
                "are expected"
            )


# Inner chunks that were never written into a shard: Zarr reads them as the fill value.

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
        location: Any = codec.index_location  # an enumeration before Zarr 3.4
        self.at_start = getattr(location, "value", location) == "start"
        self.nbytes = 16 * math.prod(self.counts)
        self.size = self.nbytes + 4 * (len(codec.index_codecs) - 1)
        decoded = math.prod(self.chunk) * np.dtype(array.dtype).itemsize
        self.frames = FrameLimit.of_codecs(codec.codecs, 2 * decoded + SLACK)

    @classmethod
    def of(cls, array: Any, strict: bool = True) -> ShardIndex | None:
        """The index of a ``zarr.Array``; None where it has no shards.

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
        """The index of an array that ends after ``size`` along dim."""
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
        """Raises DamagedSourceError for an inner chunk that is cut off, or would decode to far too
        much."""
        raw = self._index(data, byte_range)
        if raw is None:
            if self.frames is not None:
                self.frames.check(key, data.to_bytes())
        elif byte_range is None and len(raw) >= self.size:
            self._check_inside(key, data, self._table(raw).reshape(-1, 2))

    def _check_inside(self, key: str, data: Any, table: np.ndarray[Any, Any]) -> None:
        there = table[(table != EMPTY).any(axis=1)].tolist()
        end = max((offset + nbytes for offset, nbytes in there), default=0)
        if end > len(data):
            raise DamagedSourceError(
                f"shard {key!r} is cut off: {len(data)} bytes are there, and one of its chunks "
                f"ends at {end}"
            )
        if self.frames is not None:
            held = memoryview(data.to_bytes())
            for offset, nbytes in there:
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
