"""Arrays as named files (Zarr v3 with crc32c), archives of small files, and arrays read by rows."""

from __future__ import annotations

import hashlib
import io
import math
import operator
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
import zarr.codecs
import zarr.storage
from zarr.core.buffer import Buffer

from streampca.errors import DamagedSourceError, InvalidInputError, MemoryLimitError, SourceError
from streampca.store.checked import NAME_OF_ARRAY as NAME
from streampca.store.checked import parse
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

# Arrays as named files (Zarr v3 with crc32c), independent of where the files are stored.
#
# Numbers are written by :mod:`streampca.store.plain_arrays`; text and dates by Zarr into a
# dictionary, which is emptied after every chunk. All are read without Zarr, which would decode any
# content without bounds. Files are stored and fetched in the caller's thread: an interruption must
# not end Zarr's own.

Array = np.ndarray[Any, Any]
Put = Callable[[str, bytes], object]
Get = Callable[[str, int], bytes]  # (name, the most bytes to read)
CHUNK_NBYTES = 8 * 1024 * 1024
TEXT_ROWS = 16384  # Zarr encodes them as Python strings
TEXT = np.dtype(np.dtypes.StringDType())
MOST_METADATA = 64 << 10
FREE = 64 << 20  # bytes that the arrays of a bundle may decode to, however little is stored
RATIO = 200  # beyond that, at most so many times the stored bytes


def check_name(name: str) -> None:
    """Raise InvalidInputError for a name that cannot be an array's directory."""
    if name in (".", "..") or not NAME.fullmatch(name):
        raise InvalidInputError(f"array name {name!r}; expected one that can name a directory")


def write_array(put: Put, name: str, array: Any) -> None:
    """Pass the files of one array to ``put(path, bytes)``, chunk by chunk (at most 8 MiB each).

    array : an array, or an object with shape, dtype and ndim whose slices are arrays.
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
        hand_on()  # chunk by chunk, to hold only one encoded chunk
    hand_on()


def _text_rows(array: Any, rows: int) -> int:
    """Rows of a chunk of text: fewer if a reader would refuse a chunk of that size."""
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not array.size:
        return rows
    lengths = np.strings.str_len(array if array.dtype.kind == "T" else array.astype(TEXT))
    while rows > 1 and _most_text(lengths, rows) > FREE:
        rows //= 2
    return rows


def _most_text(lengths: Array, rows: int) -> int:
    """An upper bound of the bytes of a chunk, with the lengths of its entries."""
    sums = np.add.reduceat(lengths, np.arange(0, len(lengths), rows))
    return int(4 * (sums.max() + rows + 1))


def _checked_text(data: bytes) -> bytes:
    """A chunk of text in its stored form. Raises InvalidInputError if readers would refuse it."""
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
    """The checked content of an array's ``zarr.json``; no chunk is decoded yet.

    files : the names of its chunks in the bundle, in order.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the array in memory, without the characters of text."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_nbytes(self) -> int:
        """The most bytes that a chunk may decode to."""
        return FREE if self.dtype.kind == "T" else math.prod(self.chunks) * self.dtype.itemsize


def find_array(get: Get, known: Iterable[str], name: str) -> StoredArray:
    """The metadata of the array whose files ``get(path, most)`` returns; see ``decode_array``.

    known : the existing paths.
    Raises SourceError if streampca does not write such arrays, or a chunk is absent.
    """
    folder = f"arrays/{name}/"
    files = {path for path in known if path.startswith(folder)}
    if folder + METADATA not in files:
        raise _absent(folder + METADATA)
    text = get(folder + METADATA, MOST_METADATA)
    if (known_as := _of_metadata(text)) is None:
        parse(text, folder + METADATA)  # raises where that is what is wrong
        raise DamagedSourceError(f"{folder}{METADATA} is not of an array as streampca writes them")
    dtype, shape, chunks = known_as
    number = (-(-shape[0] // chunks[0]) if shape else 1) if math.prod(shape) else 0
    if number > len(files):
        raise _absent(f"{folder}c/{len(files)}")
    places = ((i, *(0 for _ in shape[1:])) if shape else () for i in range(number))
    wanted = tuple(folder + chunk_key(place) for place in places)
    if missing := [file for file in wanted if file not in files]:
        raise _absent(missing[0])
    return StoredArray(dtype, tuple(shape), tuple(chunks), wanted)


@lru_cache(maxsize=64)  # the arrays of a model have few shapes
def _of_metadata(text: bytes) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]] | None:
    """(dtype, shape, chunks) in a ``zarr.json``; None if streampca does not write such arrays."""
    try:
        whole = parse(text, METADATA)
    except SourceError:
        return None
    dtype = dtype_of(whole)
    shape: Any = None if dtype is None else whole.get("shape")
    chunks: Any = None if dtype is None else _chunk_shape(whole)
    return (dtype, tuple(shape), tuple(chunks)) if dtype and fits(shape, chunks) else None


def _chunk_shape(whole: Any) -> Any:
    grid = whole["chunk_grid"].get("configuration")
    return grid.get("chunk_shape") if isinstance(grid, dict) else None


def check_growth(need: int, stored: int, what: str) -> None:
    """Raise DamagedSourceError for more than FREE bytes and RATIO times the stored ones."""
    if need > max(FREE, RATIO * stored):
        raise DamagedSourceError(
            f"{what} would take {need} bytes, and {stored} are stored: more than {RATIO} times as "
            "many are not decoded"
        )


def decode_array(get: Get, stored: StoredArray) -> Array:
    """The values of an array. Raises SourceError for damaged chunks, and MemoryLimitError."""
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
    """Text as fixed-width strings; unchanged if one long string would widen all of them."""
    width = int(np.strings.str_len(array).max(initial=1))
    return array if 4 * width * array.size > FREE else array.astype(f"U{width}")


def _absent(file: str) -> SourceError:
    return SourceError(f"{file} is not among the files; restore them from a backup")


# The small files of a version in one uncompressed ZIP archive: one flush to disk, or one request to
# an object store, instead of two for each file. Zarr can open the arrays inside it.

PACK = "files.zip"  # small files of all bundles of one version
MOST_OF_ONE = 1 << 20  # a larger file is stored separately: a chunk of an array, at most 8 MiB
MOST = 8 << 20  # bytes of one archive, which is held in memory when it is written or read
MOST_READ = 64 << 20  # including the names of its files, which it holds twice
EPOCH = (1980, 1, 1, 0, 0, 0)  # time of every member: the same files make the same archive
LOCAL = struct.Struct("<4s5H3I2H")  # the header before each member
MAGIC, STORED, PLAIN = b"PK\x03\x04", 0, 0x800  # PLAIN, the only flag: the name is UTF-8


class Packer:
    """Takes the files of a version one by one; ``finish`` stores the archive.

    files : name -> digest and size, and "packed" if it is in the archive.
    """

    def __init__(self, put: Put) -> None:
        self._put = put
        self._buffer = io.BytesIO()
        self._zip = zipfile.ZipFile(self._buffer, "w", zipfile.ZIP_STORED)
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, data: bytes) -> None:
        """Add a file to the archive, or store it separately."""
        self.files[name] = _digest(data)
        if len(data) <= MOST_OF_ONE and self._buffer.tell() + len(data) <= MOST:
            self._zip.writestr(zipfile.ZipInfo(name, EPOCH), data)
            self.files[name]["packed"] = True
        else:
            self._put(name, data)

    def finish(self) -> dict[str, Any]:
        """Store the archive. Returns its digest and size."""
        self._zip.close()
        data = self._buffer.getvalue()
        self._put(PACK, data)
        return _digest(data)


def _digest(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}


def unpack(archive: bytes, where: str) -> dict[str, memoryview]:
    """The members of an archive by name, as views of it: nothing is inflated or copied.

    Reads the header before each member, as ``Packer`` wrote it, and not the table at the end, whose
    entries may all point at the same place. Raises DamagedSourceError.
    """
    view, at, members = memoryview(archive), 0, dict[str, memoryview]()
    while bytes(view[at : at + 4]) == MAGIC:
        if at + LOCAL.size > len(view):
            raise _cut_off(where)
        _, _, flags, method, _, _, _, size, plain, named, extra = LOCAL.unpack_from(view, at)
        start = at + LOCAL.size
        at = start + named + extra + size
        if flags & ~PLAIN or method != STORED or size != plain or at > len(view):
            raise _cut_off(where)
        name = str(view[start : start + named], "utf-8" if flags else "cp437", "replace")
        if name in members:
            raise DamagedSourceError(f"{where} holds {name!r:.200} twice")
        members[name] = view[at - size : at]
    return members


def _cut_off(where: str) -> DamagedSourceError:
    return DamagedSourceError(f"{where} is damaged, or not written by streampca")


# A stored array that is read by rows, on demand.


class StoredRows:
    """An array of a stored version: ``shape``, ``dtype``, slices of rows, ``numpy.asarray``.

    Each chunk, at most 8 MiB, is checked against its digest when it is read.
    Raises SourceError if one is absent or altered.
    """

    def __init__(
        self, get: Callable[[str], bytes], sizes: Mapping[str, int], name: str, where: str
    ) -> None:
        """get : returns the checked bytes of a file of the bundle.  sizes : name of file -> bytes.
        where : the bundle, for messages."""
        self._get, self._where = get, where
        self._plain = plain = find_array(lambda file, most: get(file), sizes, name)
        if not (plain.shape and is_plain(plain.dtype)):
            raise DamagedSourceError(f"{where}: {name} is no array of rows of numbers")
        for file in plain.files:
            check_growth(plain.chunk_nbytes, sizes[file], f"{where}: {file}")
        self.shape, self.dtype, self.ndim = plain.shape, plain.dtype, len(plain.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Rows by number or by a slice without steps; further indices may follow."""
        rows, *more = key if isinstance(key, tuple) else (key,)
        if not isinstance(rows, slice):
            number = operator.index(rows)
            number += self.shape[0] * (number < 0)
            if not 0 <= number < self.shape[0]:
                raise IndexError(f"row {rows} of {self.shape[0]}")
            return np.asarray(self._rows(number, number + 1)[(0, *more)])
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise InvalidInputError(f"rows in steps of {step}; expected a slice without steps")
        return np.asarray(self._rows(start, max(start, stop))[(slice(None), *more)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self._rows(0, self.shape[0])
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<StoredRows {self.shape} {self.dtype}>"

    def _rows(self, start: int, stop: int) -> Array:
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        step = self._plain.chunks[0]
        for i in range(start // step, -(-stop // step)) if values.size else ():
            first, last = max(start, i * step), min(stop, (i + 1) * step)
            chunk = self._chunk(i)[first - i * step : last - i * step]
            values[first - start : last - start] = chunk[(slice(None), *map(slice, self.shape[1:]))]
        return values

    def _chunk(self, i: int) -> Array:
        name = self._plain.files[i]
        data = self._get(name)
        try:
            return decode(data, self._plain.chunks, self.dtype)
        except (ValueError, RuntimeError) as error:
            raise DamagedSourceError(f"{self._where}: {name} is damaged: {error}") from error


def blank_array(shape: tuple[int, int], chunk: int, dtype: Any) -> Any:
    """A Zarr array in memory without a stored chunk: what will be written, for a plan.

    chunk : rows of a chunk.
    """
    chunks = (max(1, min(chunk, shape[0])), max(1, shape[1]))
    return zarr.create_array(zarr.storage.MemoryStore(), shape=shape, chunks=chunks, dtype=dtype)
