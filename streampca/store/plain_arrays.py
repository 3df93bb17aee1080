"""Zarr v3 arrays of plain numbers, written and read without Zarr: the same bytes, in a tenth of the
time. Zarr hands every call to a thread of its own, which for the twenty small arrays of a version
costs more than the arithmetic of a small refresh.

Source: Zarr v3 core specification; codecs bytes, zstd and crc32c.
"""

from __future__ import annotations

import json
import math
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

Array = np.ndarray[Any, Any]
NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
ENCODING = {"name": "default", "configuration": {"separator": "/"}}


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype are written here: numbers and booleans."""
    return dtype.name in NUMBERS


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
    """The name of a chunk below its array."""
    return "/".join(["c", *map(str, place)])


def encode(values: Array, chunks: tuple[int, ...]) -> bytes:
    """One chunk; zeros behind values that do not fill it."""
    if values.shape != chunks:
        whole = np.zeros(chunks, values.dtype)
        whole[tuple(slice(0, n) for n in values.shape)] = values
        values = whole
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    body = bytes(numcodecs.Zstd(level=3).encode(little.reshape(-1).view(np.uint8)))
    return body + google_crc32c.value(body).to_bytes(4, "little")


class PlainArray:
    """What ``zarr.json`` says of an array that can be read here."""

    def __init__(self, shape: list[int], chunks: list[int], dtype: str) -> None:
        self.shape, self.chunks = tuple(shape), tuple(chunks)
        self.dtype = np.dtype(dtype)

    @classmethod
    def of(cls, metadata: bytes) -> PlainArray | None:
        """None of anything that ``metadata_of`` would have written otherwise."""
        whole = json.loads(metadata)
        try:
            shape, chunks = whole["shape"], whole["chunk_grid"]["configuration"]["chunk_shape"]
            name = whole["data_type"]
        except (KeyError, TypeError):  # Zarr has the words for it
            return None
        if name not in NUMBERS or any(c < n for c, n in zip(chunks[1:], shape[1:])):
            return None
        found = cls(shape, chunks, name)
        same = json.loads(metadata_of(found.shape, found.chunks, found.dtype))
        return found if same == whole else None

    def decode(self, data: bytes) -> Array:
        """One chunk. Raises ValueError where it is damaged."""
        body, told = data[:-4], data[-4:]
        if google_crc32c.value(body).to_bytes(4, "little") != told:
            raise ValueError("its crc32c does not match")
        raw = np.empty(math.prod(self.chunks) * self.dtype.itemsize, np.uint8)
        if len(plain := numcodecs.Zstd().decode(body)) != len(raw):
            raise ValueError(f"it decodes to {len(plain)} bytes instead of {len(raw)}")
        raw[:] = np.frombuffer(plain, np.uint8)
        values = raw.view(self.dtype.newbyteorder("<")).reshape(self.chunks)
        return values.astype(self.dtype, copy=False)
