"""Arrays as named files (Zarr v3 with crc32c), wherever the files are put and come from.

Numbers are written by :mod:`streampca.store.plain_arrays`; text and dates by Zarr, into a
dictionary whose entries are handed on after every chunk. All are read without Zarr, which would
decode whatever is there. Files are put and fetched in the caller's thread: an interruption there
must not end Zarr's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
import zarr.codecs
import zarr.storage
from zarr.core.buffer import Buffer

from streampca.errors import DamagedSourceError, InvalidInputError, MemoryLimitError, SourceError
from streampca.store.checked import NAME_OF_ARRAY as NAME
from streampca.store.plain_arrays import (
    METADATA,
    chunk_key,
    decode,
    decode_text,
    dtype_of,
    encode,
    fits,
    frame_nbytes,
    is_plain,
    metadata_of,
    unshrunk,
    without_checksum,
)
from streampca.store.signed import parse

Array = np.ndarray[Any, Any]
Put = Callable[[str, bytes], object]
Get = Callable[[str, int], bytes]  # of a name, at most so many bytes
CHUNK_NBYTES = 8 * 1024 * 1024
TEXT_ROWS = 16384  # Zarr encodes them as Python strings
TEXT = np.dtype(np.dtypes.StringDType())
MOST_METADATA = 64 << 10
FREE = 64 << 20  # bytes that the arrays of one bundle may take however little is stored of them
RATIO = 200  # times what is stored, which they may take beyond that


def check_name(name: str) -> None:
    """Refuse what cannot name an array's directory."""
    if name in (".", "..") or not NAME.fullmatch(name):
        raise InvalidInputError(f"array name {name!r}; expected one that can name a directory")


def write_array(put: Put, name: str, array: Any) -> None:
    """Hand the files of one array to ``put(path, bytes)``, chunk by chunk (at most 8 MiB).

    array : or what gives one where it is sliced, with shape, dtype and ndim.
    """
    text = array.dtype.kind in "OSUT"
    dtype = TEXT if text else array.dtype
    row = dtype.itemsize * math.prod(array.shape[1:])
    rows = max(1, CHUNK_NBYTES // max(1, row)) if array.ndim else 1
    rows = _text_rows(array, min(rows, TEXT_ROWS)) if text else rows
    chunks = (
        (min(rows, array.shape[0]) or 1, *(s or 1 for s in array.shape[1:])) if array.ndim else ()
    )
    if is_plain(dtype):
        _write_plain(put, name, array, chunks)
        return
    written: dict[str, Buffer] = {}

    def hand_on() -> None:
        for file in sorted(written, reverse=True):
            data = written.pop(file).to_bytes()
            put(f"arrays/{name}/{file}", _checked_text(data) if text and file != METADATA else data)

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


def _text_rows(array: Any, rows: int) -> int:
    """Rows of a chunk of text: fewer where a reader would not decode so many of these."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not array.size:
        return rows
    lengths = np.strings.str_len(array if array.dtype.kind == "T" else array.astype(TEXT))
    while rows > 1 and _most_text(lengths, rows) > FREE:
        rows //= 2
    return rows


def _most_text(lengths: Array, rows: int) -> int:
    """Bytes that a chunk may take at most, with those that say how long each entry is."""
    sums = np.add.reduceat(lengths, np.arange(0, len(lengths), rows))
    return int(4 * (sums.max() + rows + 1))


def _checked_text(data: bytes) -> bytes:
    """A chunk of text as it is stored. Raises InvalidInputError where no reader would decode it."""
    if (nbytes := frame_nbytes(without_checksum(data))) > FREE:
        raise InvalidInputError(
            f"{nbytes} bytes of text in a few labels; expected at most {FREE}. Shorten them"
        )
    return unshrunk(data)


def _write_plain(put: Put, name: str, array: Any, chunks: tuple[int, ...]) -> None:
    put(f"arrays/{name}/{METADATA}", metadata_of(array.shape, chunks, array.dtype))
    for i in range(-(-array.shape[0] // chunks[0]) if array.ndim else 1) if array.size else ():
        part = array[i * chunks[0] : (i + 1) * chunks[0]] if array.ndim else array
        key = chunk_key((i, *(0 for _ in array.shape[1:])) if array.ndim else ())
        put(f"arrays/{name}/{key}", encode(part, chunks))


@dataclass(frozen=True)
class StoredArray:
    """What ``zarr.json`` says of an array, checked. Nothing of it has been decoded.

    files : its chunks, by their names in the bundle, in order.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Of the array in memory, less the characters of text."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_nbytes(self) -> int:
        """The most that a chunk decodes to."""
        return FREE if self.dtype.kind == "T" else math.prod(self.chunks) * self.dtype.itemsize


def read_array(get: Get, known: Iterable[str], name: str) -> Array:
    """The array whose files ``get(path, most)`` returns, chunk by chunk.

    known : the paths that there are. Raises SourceError where a chunk is not among them.
    """
    return decode_array(get, find_array(get, known, name))


def find_array(get: Get, known: Iterable[str], name: str) -> StoredArray:
    """Read the metadata of an array alone.  get, known : see :func:`read_array`.

    Raises SourceError where it is not as arrays are written here, or a chunk is absent.
    """
    folder = f"arrays/{name}/"
    files = {path for path in known if path.startswith(folder)}
    if folder + METADATA not in files:
        raise _absent(folder + METADATA)
    whole = parse(get(folder + METADATA, MOST_METADATA), folder + METADATA)
    dtype = dtype_of(whole)
    shape: Any = None if dtype is None else whole.get("shape")
    chunks: Any = None if dtype is None else _chunk_shape(whole)
    if dtype is None or not fits(shape, chunks):
        raise DamagedSourceError(f"{folder}{METADATA} is not of an array as streampca writes them")
    number = (-(-shape[0] // chunks[0]) if shape else 1) if math.prod(shape) else 0
    if number > len(files):
        raise _absent(f"{folder}c/{len(files)}")
    places = ((i, *(0 for _ in shape[1:])) if shape else () for i in range(number))
    wanted = tuple(folder + chunk_key(place) for place in places)
    if missing := [file for file in wanted if file not in files]:
        raise _absent(missing[0])
    return StoredArray(dtype, tuple(shape), tuple(chunks), wanted)


def _chunk_shape(whole: Any) -> Any:
    told = whole["chunk_grid"].get("configuration")
    return told.get("chunk_shape") if isinstance(told, dict) else None


def check_growth(need: int, stored: int, what: str) -> None:
    """Refuse what decodes to more than FREE bytes and more than RATIO times what is stored of it.

    Raises DamagedSourceError.
    """
    if need > max(FREE, RATIO * stored):
        raise DamagedSourceError(
            f"{what} would take {need} bytes, and {stored} are stored: more than {RATIO} times as "
            "many are not decoded"
        )


def decode_array(get: Get, stored: StoredArray) -> Array:
    """The values of an array whose metadata are known. Raises SourceError."""
    try:
        array: Array = np.empty(stored.shape, stored.dtype)
    except MemoryError:
        raise MemoryLimitError(
            f"an array of {stored.nbytes} bytes does not fit in memory"
        ) from None
    most = stored.chunk_nbytes + stored.chunk_nbytes // 64 + MOST_METADATA  # compressed, at worst
    text = read = 0
    for i, file in enumerate(stored.files):
        data = get(file, most)
        try:
            if stored.dtype.kind == "T":
                values, nbytes = decode_text(data, stored.chunks, FREE)
                text, read = text + nbytes, read + len(data)
                check_growth(text, read, file)
            else:
                values = decode(data, stored.chunks, stored.dtype)
        except (ValueError, RuntimeError) as error:
            raise DamagedSourceError(f"{file} is damaged: {error}") from error
        step = stored.chunks[0] if stored.shape else 1
        rows = array[i * step : (i + 1) * step] if stored.shape else array
        rows[...] = values[tuple(slice(0, n) for n in rows.shape)]
    return _plain_strings(array) if stored.dtype.kind == "T" else array


def _plain_strings(array: Array) -> Array:
    """Text as NumPy's plain strings; as it is where one long one would widen all of them."""
    width = int(np.strings.str_len(array).max(initial=1))
    return array if 4 * width * array.size > FREE else array.astype(f"U{width}")


def _absent(file: str) -> SourceError:
    return SourceError(f"{file} is not among the files; restore them from a backup")
