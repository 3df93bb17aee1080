"""Arrays as named files (Zarr v3 with crc32c), wherever the files are put and come from.

Numbers go by :mod:`streampca.store.plain_arrays`, text and dates by Zarr. Zarr writes into a
dictionary, and what it wrote is handed on after every chunk; it reads from one that holds one chunk
at a time. Files are put and fetched in the caller's thread: an interruption there must not end
Zarr's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import zarr
import zarr.codecs
import zarr.storage
from zarr.core.buffer import Buffer, default_buffer_prototype

from streampca.errors import InvalidInputError, SourceError
from streampca.store.plain_arrays import PlainArray, chunk_key, encode, is_plain, metadata_of

Array = np.ndarray[Any, Any]
Put = Callable[[str, bytes], object]
Get = Callable[[str], bytes]
CHUNK_NBYTES = 8 * 1024 * 1024
TEXT_ROWS = 16384  # Zarr encodes them as Python strings
METADATA = "zarr.json"


def check_name(name: str) -> None:
    """Refuse what cannot name an array's directory."""
    if name in ("", ".", "..") or "/" in name:
        raise InvalidInputError(f"array name {name!r}; expected one that can name a directory")


def write_array(put: Put, name: str, array: Any) -> None:
    """Hand the files of one array to ``put(path, bytes)``, chunk by chunk (at most 8 MiB).

    array : or what gives one where it is sliced, with shape, dtype and ndim.
    """
    text = array.dtype.kind in "OSUT"
    dtype = np.dtype(np.dtypes.StringDType()) if text else array.dtype
    row = dtype.itemsize * math.prod(array.shape[1:])
    rows = max(1, CHUNK_NBYTES // max(1, row)) if array.ndim else 1
    rows = min(rows, TEXT_ROWS) if text else rows
    chunks = (
        (min(rows, array.shape[0]) or 1, *(s or 1 for s in array.shape[1:])) if array.ndim else ()
    )
    if is_plain(dtype):
        _write_plain(put, name, array, chunks)
        return
    written: dict[str, Buffer] = {}

    def hand_on() -> None:
        for file in sorted(written, reverse=True):
            put(f"arrays/{name}/{file}", written.pop(file).to_bytes())

    stored = zarr.create_array(
        zarr.storage.MemoryStore(written),
        shape=array.shape,
        chunks=chunks,
        dtype=dtype,
        zarr_format=3,
        compressors=[zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()],
        config={"write_empty_chunks": True},
    )
    if not array.ndim:
        stored[...] = array.astype(dtype)
    for start in range(0, len(array) if array.ndim else 0, chunks[0] if chunks else 1):
        stored[start : start + chunks[0]] = array[start : start + chunks[0]].astype(dtype)
        hand_on()  # all at once, it would encode and hold all at once
    hand_on()


def _write_plain(put: Put, name: str, array: Any, chunks: tuple[int, ...]) -> None:
    put(f"arrays/{name}/{METADATA}", metadata_of(array.shape, chunks, array.dtype))
    for i in range(-(-array.shape[0] // chunks[0]) if array.ndim else 1) if array.size else ():
        part = array[i * chunks[0] : (i + 1) * chunks[0]] if array.ndim else array
        key = chunk_key((i, *(0 for _ in array.shape[1:])) if array.ndim else ())
        put(f"arrays/{name}/{key}", encode(part, chunks))


def read_array(get: Get, known: Iterable[str], name: str) -> Array:
    """The array whose files ``get(path)`` returns, chunk by chunk.

    known : the paths that there are. Raises SourceError where a chunk is not among them: Zarr
    would make fill values of it.
    """
    folder, held = f"arrays/{name}/", dict[str, Buffer]()
    files = {path.removeprefix(folder) for path in known if path.startswith(folder)}

    def fetch(file: str) -> None:
        if file not in files:
            raise _absent(folder + file)
        held[file] = default_buffer_prototype().buffer.from_bytes(get(folder + file))

    fetch(METADATA)
    if (plain := PlainArray.of(held[METADATA].to_bytes())) is not None:
        return _read_plain(plain, files, lambda file: get(folder + file), folder)
    stored = zarr.open_array(zarr.storage.MemoryStore(held, read_only=True), mode="r")
    if not stored.ndim or 0 in stored.shape:
        for file in sorted(files - {METADATA}):
            fetch(file)
        array = np.asarray(stored[...])
    else:
        array = np.empty(stored.shape, stored.dtype)
        step = stored.chunks[0]
        for i in range(-(-stored.shape[0] // step)):
            file = stored.metadata.encode_chunk_key((i, *(0 for _ in stored.shape[1:])))
            fetch(file)
            array[i * step : (i + 1) * step] = stored[i * step : (i + 1) * step]
            del held[file]
    if array.dtype.kind == "T":
        array = array.astype(f"U{np.strings.str_len(array).max(initial=1)}")
    return array


def _read_plain(plain: PlainArray, files: set[str], get: Get, folder: str) -> Array:
    array = np.empty(plain.shape, plain.dtype)
    step = plain.chunks[0] if plain.shape else 1
    for i in range(-(-plain.shape[0] // step) if plain.shape else 1) if array.size else ():
        key = chunk_key((i, *(0 for _ in plain.shape[1:])) if plain.shape else ())
        if key not in files:
            raise _absent(folder + key)
        try:
            values = plain.decode(get(key))
        except (ValueError, RuntimeError) as error:
            raise SourceError(f"{folder}{key} is damaged: {error}") from error
        if not plain.shape:
            return values
        rows = array[i * step : (i + 1) * step]
        rows[...] = values[tuple(slice(0, n) for n in rows.shape)]
    return array


def _absent(file: str) -> SourceError:
    return SourceError(f"{file} is not among the files; restore them from a backup")
