"""Zarr v3 arrays of plain numbers, written and read without Zarr, with the same bytes.

Zarr passes every call to a thread of its own. The twenty small arrays of a version take 3 ms to
write and 2 ms to read here, 60 and 42 ms by Zarr: more than the arithmetic of a small refresh. And
Zarr decodes without bounds: a chunk of 16 kB can take 1.1 GB. Here it is refused before anything is
allocated (``python -m tests.benchmarks.libraries``).

Source: Zarr v3 core specification; codecs bytes, zstd and crc32c.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

Array = np.ndarray[Any, Any]
NUMBERS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
METADATA = "zarr.json"
LEAST_RAW = 64 << 10  # smaller chunks are always compressed
MOST_SHRINKING = 100  # the largest ratio of decoded to stored bytes of other chunks
RAW_BLOCK = 128 << 10  # bytes of a block, at most (RFC 8878, section 3.1.1.2.4)
COMPLEX = "complex64", "complex128"
TEXT = "string", "variable_length_utf8"
TIMES = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}
UNITS = ("generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as")
MOST_ENTRIES, MOST_DIMENSIONS = 1 << 50, 32
ENCODING = {"name": "default", "configuration": {"separator": "/"}}


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype are written by this module: numbers and booleans."""
    return dtype.name in NUMBERS


@lru_cache(maxsize=256)  # arrays of one model have few shapes
def metadata_of(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """``zarr.json``, as Zarr writes it."""
    order = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    whole = {
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": ENCODING,
        "fill_value": dtype.type(0).item(),
        "codecs": [{"name": "bytes", **order}, ZSTD, {"name": "crc32c"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(whole, indent=2).encode()


def chunk_key(place: tuple[int, ...]) -> str:
    """The name of a chunk, relative to its array."""
    return "/".join(["c", *map(str, place)])


def encode(values: Array, chunks: tuple[int, ...]) -> bytes:
    """One chunk in stored form, padded with zeros to its full shape."""
    held = values.nbytes
    if values.shape != chunks:
        whole = np.zeros(chunks, values.dtype)
        whole[tuple(slice(0, n) for n in values.shape)] = values
        values = whole
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return sealed(little.reshape(-1).view(np.uint8).tobytes(), held)


def sealed(raw: bytes, held: int) -> bytes:
    """A zstd frame and its checksum.  held : bytes of it that are not padding.

    Data that would shrink so much that readers take it for a decompression bomb
    (``array_files.RATIO``) are stored in raw blocks.
    """
    body = bytes(numcodecs.Zstd(level=3).encode(raw))
    if held >= LEAST_RAW and held > MOST_SHRINKING * len(body):
        body = _raw_frame(raw)
    result: bytes = body + google_crc32c.value(body).to_bytes(4, "little")
    return result


def unshrunk(data: bytes) -> bytes:
    """A chunk of text from Zarr, sealed again if it shrank too much."""
    body = without_checksum(data)
    if frame_nbytes(body) < max(LEAST_RAW, MOST_SHRINKING * len(body)):
        return data
    raw = _inflated(body, frame_nbytes(body)).tobytes()
    return sealed(raw, len(raw))


def _raw_frame(raw: bytes) -> bytes:
    """A single-segment zstd frame of raw blocks.  Source: RFC 8878, sections 3.1.1 and 3.1.1.2."""
    parts = [ZSTD_MAGIC, b"\xa0", len(raw).to_bytes(4, "little")]
    for start in range(0, len(raw), RAW_BLOCK):
        block = raw[start : start + RAW_BLOCK]
        last = start + RAW_BLOCK >= len(raw)
        parts += [(last | len(block) << 3).to_bytes(3, "little"), block]
    return b"".join(parts)


def decode(data: bytes, chunks: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """One chunk of numbers, dates or time spans. Raises ValueError if it is damaged."""
    body = without_checksum(data)
    nbytes = math.prod(chunks) * dtype.itemsize
    raw = _inflated(body, nbytes)
    if len(raw) != nbytes:
        raise ValueError(f"it decodes to {len(raw)} bytes instead of {nbytes}")
    values = raw.view(dtype.newbyteorder("<")).reshape(chunks)
    return values.astype(dtype, copy=False)


def decode_text(data: bytes, chunks: tuple[int, ...], most: int) -> tuple[Array, int]:
    """(one chunk of strings, its encoded bytes), at most ``most`` bytes.

    Raises ValueError if it is damaged, or longer.
    """
    raw = _inflated(without_checksum(data), most)
    count = int.from_bytes(raw[:4].tobytes(), "little")
    if len(raw) < 4 or count != math.prod(chunks) or len(raw) < 4 * (count + 1):
        raise ValueError(f"it has {count} strings instead of {math.prod(chunks)}")
    return numcodecs.VLenUTF8().decode(raw).reshape(chunks), len(raw)


def _inflated(body: memoryview, most: int) -> Array:
    """The decoded bytes of a zstd frame. Raises ValueError if it states more than ``most``."""
    if (nbytes := frame_nbytes(body)) > most:
        raise ValueError(f"it decodes to {nbytes} bytes where at most {most} are expected")
    raw = np.empty(nbytes, np.uint8)
    if nbytes:
        numcodecs.Zstd().decode(body, out=raw)
    return raw


def dtype_of(whole: Any) -> np.dtype[Any] | None:
    """The dtype in a ``zarr.json``; None for one that is never written here.

    The codecs must be those of :func:`metadata_of`, or those with which Zarr writes text.
    """
    try:
        name, codecs = whole["data_type"], [one["name"] for one in whole["codecs"]]
        dtype = _named(name)
        endian = whole["codecs"][0].get("configuration", {}).get("endian", "little")
        grid, keys = whole["chunk_grid"]["name"], whole["chunk_key_encoding"]
        kind = (whole["zarr_format"], whole["node_type"], whole.get("storage_transformers") or [])
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return None
    first = "vlen-utf8" if dtype is not None and dtype.kind == "T" else "bytes"
    known = codecs == [first, "zstd", "crc32c"] and endian == "little" and grid == "regular"
    return dtype if known and keys == ENCODING and kind == (3, "array", []) else None


def _named(name: Any) -> np.dtype[Any] | None:
    if isinstance(name, str):
        if name in TEXT:
            return np.dtype(np.dtypes.StringDType())
        return np.dtype(name) if name in NUMBERS or name in COMPLEX else None
    if name["name"] not in TIMES:
        return None
    unit, scale = name["configuration"]["unit"], name["configuration"]["scale_factor"]
    if unit not in UNITS or type(scale) is not int or not 0 < scale < 2**31:
        return None
    kind = TIMES[name["name"]]
    return np.dtype(kind) if unit == "generic" else np.dtype(f"{kind}[{scale}{unit}]")


def fits(shape: Any, chunks: Any) -> bool:
    """Whether these are a valid shape, and chunks of whole rows as streampca writes them."""
    if not (isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks)):
        return False
    if not all(type(n) is int and 0 <= n < MOST_ENTRIES for n in (*shape, *chunks)):
        return False
    whole = [n or 1 for n in shape]
    return (
        len(shape) <= MOST_DIMENSIONS
        and chunks[1:] == whole[1:]
        and all(1 <= c <= n for c, n in zip(chunks[:1], whole[:1]))
        and math.prod(whole) < MOST_ENTRIES
    )


def without_checksum(data: bytes) -> memoryview:
    """A chunk without its crc32c. Raises ValueError if the checksum does not match."""
    body, checksum = memoryview(data)[:-4], data[-4:]
    if google_crc32c.value(bytes(body)).to_bytes(4, "little") != checksum:
        raise ValueError("its crc32c does not match")
    return body


def frame_nbytes(frame: memoryview) -> int:
    """The decoded size that a zstd frame states. Raises ValueError if it states none.

    Source: RFC 8878, section 3.1.1.1.
    """
    if bytes(frame[:4]) != ZSTD_MAGIC or len(frame) < 6:
        raise ValueError("it does not begin as a zstd frame")
    single = frame[4] >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[frame[4] >> 6]
    if not width:
        raise ValueError("its zstd frame does not state its size")
    start = 5 + (not single) + (0, 1, 2, 4)[frame[4] & 3]  # after window and dictionary
    return int.from_bytes(frame[start : start + width], "little") + (256 if width == 2 else 0)
