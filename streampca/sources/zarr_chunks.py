"""Decoding of Zarr chunks straight into place, for the codecs that nearly every store uses.

Zarr's own read allocates an encoded, a decoded and an assembled copy of every chunk, anew each
time; on a machine where page faults are dear that costs more than decompression. Here a chunk
is decompressed into the block where it lies contiguously, else into one reused buffer. Any
other codec, sharding included, goes through Zarr: :func:`decoder_of` returns None.
"""

from __future__ import annotations

import zlib
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

from streampca.errors import DamagedSourceError


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
            declared = declared_size(self.compressor, view)
            if declared is None:  # decoded apart: into a longer array it would fit without a word
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
    """The decoded size that a chunk states in its first bytes, None where it does not.

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
        name, settings = described["name"], described.get("configuration") or {}
        if checksum:
            return None  # crc32c must be the last step of encoding
        if position == 0:
            if name != "bytes":
                return None
            if settings.get("endian") == "big":
                dtype = dtype.newbyteorder(">")
        elif name in COMPRESSORS and compressor is None:
            compressor = COMPRESSORS[name]()
        elif name == "crc32c":
            checksum = True
        else:
            return None
    return ChunkDecoder(shape, dtype, compressor, checksum, "C")


COMPRESSORS = {"blosc": numcodecs.Blosc, "zstd": numcodecs.Zstd, "gzip": numcodecs.GZip}


def is_known(codec: Any) -> bool:
    """Whether a codec is one whose frames are decoded here."""
    return isinstance(
        codec, (numcodecs.Blosc, numcodecs.Zstd, numcodecs.GZip, numcodecs.Zlib, numcodecs.LZ4)
    )
