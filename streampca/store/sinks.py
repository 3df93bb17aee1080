"""Sinks: where a pass writes what it computes block by block, such as scores and loadings.

Writing a region twice gives the same result, so a retried task does no harm. A method whose output
is also its input (row factors of alternating least squares) must not write to the array it reads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import BusyError, SourceError
from streampca.paths import read_inside
from streampca.store.array_files import MOST_METADATA
from streampca.store.bundle import put_folder
from streampca.store.checked import parse
from streampca.store.chunks import put
from streampca.store.places import (
    Lock,
    discard,
    exists_already,
    give_up,
    hold,
    in_use,
    no_library,
    occupied,
    refuse_file_name,
    release,
    settled,
    unfinished_name,
    writing,
)
from streampca.store.plain_arrays import METADATA

Array = np.ndarray[Any, Any]
ATTEMPTS = 5
LEAST_ROWS = 64  # of a chunk, unless the output is shorter
CHUNK_NBYTES = 8 * 1024 * 1024
WHOLE: Any = {"write_empty_chunks": True}  # an absent chunk would be taken for a lost one
ZARR_ERRORS = (OSError, KeyError, ValueError, zarr.errors.BaseZarrError)  # of what is not there
COMPLETE = "streampca_complete"  # whether all of an array was written
MARK = "streampca_made_by"
TOKEN = "streampca_writer"  # during writing: lets workers check that they open the same array
VERSION = "streampca_version"


class Sink(Protocol):
    """Output aligned with the streamed axis. A subclass inherits defaults for the last five."""

    def write(self, start: int, values: Array) -> None:
        """Put values (rows, width) at [start, start + rows)."""

    def concurrent(self, edges: Array) -> bool:
        """Whether several workers may write blocks with these edges at the same time."""

    def nbytes_in_memory(self) -> int:
        """Bytes that the sink itself holds in this process."""
        return 0

    def concurrent_threads(self, edges: Array) -> bool:
        """Whether threads of this process may write such blocks at the same time."""
        return self.concurrent(edges)

    def held(self) -> Array | None:
        """The array in memory that is its whole state, for a checkpoint; None if there is none."""
        return None

    def paths(self) -> tuple[str, ...]:
        """The local directories that it will replace or fill."""
        return ()

    def finish(self) -> None:
        """Everything was written."""
        return


class MemorySink(Sink):
    """An array in memory: ``sink.values`` (length, width) of ``dtype``."""

    def __init__(self, length: int, width: int, dtype: Any = np.float64) -> None:
        self.values = np.zeros((length, width), dtype)

    def write(self, start: int, values: Array) -> None:
        self.values[start : start + len(values)] = values

    def concurrent(self, edges: Array) -> bool:
        return False  # a worker would write to its own copy

    def concurrent_threads(self, edges: Array) -> bool:
        return True  # blocks have different rows

    def nbytes_in_memory(self) -> int:
        return self.values.nbytes

    def held(self) -> Array:
        return self.values


class PartSink(Sink):
    """A sink of a part of the rows that are streamed.

    place : of a streamed row, how many rows of the part come before it.
    """

    def __init__(self, sink: Sink, place: Callable[[int], int]) -> None:
        self.sink, self.place = sink, place

    def write(self, start: int, values: Array) -> None:
        self.sink.write(self.place(start), values)

    def concurrent(self, edges: Array) -> bool:
        return False

    def nbytes_in_memory(self) -> int:
        return self.sink.nbytes_in_memory()

    def concurrent_threads(self, edges: Array) -> bool:
        return self.sink.concurrent_threads(np.array([self.place(int(one)) for one in edges]))

    def held(self) -> Array | None:
        return self.sink.held()


class ColumnsSink(MemorySink):
    """Rows stored as columns in memory: ``sink.values`` (width, length) float64."""

    def __init__(self, length: int, width: int) -> None:
        self.values = np.zeros((width, length))

    def write(self, start: int, values: Array) -> None:
        self.values[:, start : start + len(values)] = values.T


class ChunkedSink(Sink):
    """Zarr arrays of ``length`` rows in chunks of ``chunk``.

    Workers write blocks that begin with a chunk. Otherwise threads of the folding process write,
    one at a time where blocks share a chunk.
    """

    chunk: int
    length: int

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def write(self, start: int, values: Array) -> None:
        stop = start + len(values)
        alone = start % self.chunk == 0 and (stop % self.chunk == 0 or stop == self.length)
        with contextlib.nullcontext() if alone else self._lock:
            self._put(start, stop, values)

    def _put(self, start: int, stop: int, values: Array) -> None:
        raise NotImplementedError

    def concurrent(self, edges: Array) -> bool:
        return bool(np.all(np.asarray(edges)[:-1] % self.chunk == 0))

    def concurrent_threads(self, edges: Array) -> bool:
        return True


class ZarrSink(ChunkedSink):
    """A new Zarr v3 array (length, width), zstd and crc32c, chunked along its first axis.

    Cells not written yet are NaN (0 in integers). Until ``finish`` the array's attributes say that
    it is unfinished. An existing output that is to be overwritten stays until then: the new one is
    written beside it.

    Raises InvalidInputError if something is at ``path`` that may not be replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        length: int,
        width: int,
        dtype: Any = np.float64,
        chunk: int | None = None,
        dims: tuple[str, str] = ("sample", "component"),
        overwrite: bool = False,
        across: int | None = None,
    ) -> None:
        """across : columns of a chunk, or None for all."""
        super().__init__()
        self.path, dtype = os.fspath(path), np.dtype(dtype)
        rows = chunk or max(1, CHUNK_NBYTES // max(1, width * dtype.itemsize))
        self.chunk = max(1, min(rows, length))
        self.length = length
        replaces = refuse_occupied(self.path, overwrite)
        self.place = unfinished_name(self.path) if replaces else settled(self.path)
        self._replaces = replaces
        self._token: str | None = uuid.uuid4().hex
        try:
            self._array: Any = zarr.create_array(
                self.place,
                shape=(length, width),
                chunks=(self.chunk, across or max(1, width)),
                dtype=dtype,
                fill_value=np.nan if dtype.kind == "f" else 0,
                compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                zarr_format=3,
                dimension_names=dims,
                overwrite=overwrite and "://" in self.path,  # locally it would remove a lock
                attributes={COMPLETE: False, TOKEN: self._token},
                config=WHOLE,
            )
        except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError, FileExistsError):
            raise exists_already(self.path) from None
        except ImportError as error:
            raise no_library(self.path, error) from None
        if replaces:
            weakref.finalize(self, give_up, self.place, os.getpid())
        self._held: Lock | None = None
        if not replaces and "://" not in self.path:
            self._hold()

    def _hold(self) -> None:
        """Lock the array. Before, another process may have taken it for abandoned, and removed it.

        Raises InvalidInputError then.
        """
        place = os.path.realpath(self.place)
        try:
            self._held = hold(place)
        except (BusyError, FileNotFoundError):
            raise exists_already(self.path) from None
        if self._held is not None:
            weakref.finalize(self, release, place, self._held)  # if it is never finished
        if (_attributes(place) or {}).get(TOKEN) != self._token:
            raise exists_already(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_array": None, "_held": None}

    @property
    def array(self) -> Any:
        """The Zarr array, opened on first use in each process."""
        if self._array is None:
            try:
                opened = zarr.open_array(self.place, mode="r+")
            except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
                raise another_array(self.place) from error
            if self._token is not None and opened.attrs.get(TOKEN) != self._token:
                raise another_array(self.place)
            self._array = opened.with_config(WHOLE)
        return self._array

    def _put(self, start: int, stop: int, values: Array) -> None:
        with writing(self.path):
            put(self.array, (start, 0), values)

    def paths(self) -> tuple[str, ...]:
        return () if "://" in self.path else (os.path.realpath(self.path),)

    def finish(self) -> None:
        """Mark the array as complete, and put it in its place.

        Raises SourceError if another array lies there by now, InvalidInputError if something is at
        the path that may not be overwritten.
        """
        self._array = None  # open what lies there now
        attributes = self.array.attrs.asdict() | {COMPLETE: True}
        attributes.pop(TOKEN, None)
        self.array.attrs.put(attributes)
        self._token = None
        if self._replaces:
            put_folder(self.place, self.path, ours)
            discard(self.place)
            self.place, self._array, self._replaces = settled(self.path), None, False
        elif self._held is not None:
            release(os.path.realpath(self.place), self._held)


class PanelSink(ChunkedSink):
    """Some columns of the array of another sink, which is finished when all of them are written."""

    def __init__(self, whole: ZarrSink, columns: slice) -> None:
        super().__init__()
        self.whole, self.columns = whole, columns
        self.chunk, self.length = whole.chunk, whole.length

    def _put(self, start: int, stop: int, values: Array) -> None:
        with writing(self.whole.path):
            put(self.whole.array, (start, self.columns.start), values)

    def paths(self) -> tuple[str, ...]:
        return self.whole.paths()


def copy_rows(rows: Any, path: str, overwrite: bool = False) -> None:
    """Write an (n, k) array, or an object whose slices are arrays, by a :class:`ZarrSink`."""
    n, k = rows.shape
    sink = ZarrSink(path, n, k, rows.dtype, overwrite=overwrite)
    for start in range(0, n, sink.chunk):
        sink.write(start, rows[start : start + sink.chunk])
    sink.finish()


def open_written(path: str) -> Any:
    """The Zarr array that a :class:`ZarrSink` left at this path."""
    return zarr.open_array(path, mode="r")


def append_rows(path: str, start: int, rows: Array) -> None:
    """Write rows (m, k) behind the first ``start`` of the array that a :class:`ZarrSink` left."""
    array = zarr.open_array(path, mode="r+").with_config(WHOLE)
    with writing(path):
        array.resize((start + len(rows), array.shape[1]))
        put(array, (start, 0), rows)


def mark_written(path: str, mark: str, version: Mapping[str, Any] | None = None) -> None:
    """Store in an output's attributes what made it.  version : of a model store."""
    zarr.open_array(path, mode="r+").attrs.update({MARK: mark, VERSION: version})


def marked(path: str) -> str | None:
    """The mark of :func:`mark_written`; "" if there is none, None if there is no output of ours."""
    attributes = _attributes(path)
    return None if attributes is None else str(attributes.get(MARK, ""))


def ours(path: str) -> bool:
    """Whether an array written by streampca is at this path."""
    return _attributes(path) is not None


def version_of(path: str) -> Mapping[str, Any]:
    """Number and id of the version that made the scores at a path, or {}."""
    there = (_attributes(path) or {}).get(VERSION)
    return there if isinstance(there, dict) else {}


def another_array(place: str) -> SourceError:
    """The error if a process finds another array, or none, at the place of an output."""
    return SourceError(
        f"{place} is not the array here that is being written, or there is none: the output must "
        "lie where every worker sees the same, on a shared file system or in object storage. Or "
        "use scheduler='threads'."
    )


def chunk_for(edges: Array, most: int | None = None) -> int | None:
    """A chunk length such that blocks with these edges share no chunk; None for the default.

    Chunks of fewer than LEAST_ROWS rows would make too many files: then blocks share chunks.
    most : rows of a chunk.
    """
    lengths = np.diff(edges)
    if not len(lengths):
        return None
    even = int(lengths[0])
    if np.any(np.asarray(edges)[:-1] % max(1, even)):
        even = int(np.gcd.reduce(lengths))
    parts = -(-even // most) if most else 1
    while even % parts:
        parts += 1
    chunk = even // parts
    return chunk if chunk >= min(LEAST_ROWS, int(edges[-1] - edges[0])) else most


def refuse_occupied(path: str, overwrite: bool) -> bool:
    """Whether an output of ours is at this path and will be replaced.

    Removes one that was abandoned unfinished. Raises InvalidInputError for anything else.
    """
    refuse_file_name(path)
    for left in reversed(range(ATTEMPTS if overwrite else 1)):
        if not occupied(path):
            return False
        if remove_abandoned(path):
            return False
        if overwrite and ours(path):
            return True
        if left:  # another process may be replacing it right now
            time.sleep(0.01)
    raise exists_already(path)


def remove_abandoned(path: str) -> bool:
    """Remove an unfinished output of ours that no process is writing. Whether there was one."""
    if "://" in path or os.path.islink(path) or in_use(path):
        return False
    if (_attributes(path) or {}).get(COMPLETE) is not False:
        return False
    shutil.rmtree(path)
    return True


def _attributes(path: str) -> Mapping[str, Any] | None:
    """The attributes of an array that streampca wrote, else None: only these are overwritten."""
    try:
        attributes = _stored_attributes(path)
    except ZARR_ERRORS:
        return None
    return attributes if COMPLETE in attributes else None


def _stored_attributes(path: str) -> dict[str, Any]:
    """The attributes of a Zarr array. Local ones are read without Zarr, with bounds."""
    if "://" in path:
        return dict(zarr.open_array(path, mode="r").attrs)
    file = os.path.join(path, METADATA)
    whole = parse(read_inside(path, METADATA, MOST_METADATA), file)
    found = whole.get("attributes") if isinstance(whole, dict) else None
    return found if isinstance(found, dict) and whole.get("node_type") == "array" else {}
