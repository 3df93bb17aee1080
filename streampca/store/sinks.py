"""Where a pass writes what it computes block by block: scores, loadings, completed matrices.

Writing the same region twice gives the same result, so a retried task does no harm. A method
whose output is also its input (row factors of alternating least squares) writes to another
sink than the one it reads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import BusyError, SourceError
from streampca.regular_file import read_inside
from streampca.store.array_files import MOST_METADATA
from streampca.store.bundle import put_folder
from streampca.store.checked import parse
from streampca.store.places import (
    Lock,
    discard,
    exists_already,
    give_up,
    hold,
    in_use,
    occupied,
    release,
    settled,
    unfinished_name,
)
from streampca.store.plain_arrays import METADATA

Array = np.ndarray[Any, Any]
ATTEMPTS = 5
LEAST_ROWS = 64  # of a chunk, unless the output is shorter
CHUNK_NBYTES = 8 * 1024 * 1024
COMPLETE = "streampca_complete"  # whether all of an array was written
MARK = "streampca_made_by"
TOKEN = "streampca_writer"  # while it is written: that a worker opens the same array
VERSION = "streampca_version"


class Sink(Protocol):
    """Output aligned with the streamed axis. Inherit, and the last four have their defaults."""

    def write(self, start: int, values: Array) -> None:
        """Put values at [start, start + len(values))."""

    def concurrent(self, edges: Array) -> bool:
        """Whether workers may write blocks with these edges at the same time, from anywhere."""

    def nbytes_in_memory(self) -> int:
        """Bytes that the sink itself holds in this process."""

    def concurrent_threads(self, edges: Array) -> bool:
        """Whether threads of this process may write such blocks at the same time."""
        return self.concurrent(edges)

    def held(self) -> Array | None:
        """The array in memory that is all of its state, so that a checkpoint can keep it."""
        return None

    def paths(self) -> tuple[str, ...]:
        """The local directories that it will replace or fill."""
        return ()

    def finish(self) -> None:
        """All was written."""
        return


class MemorySink(Sink):
    """An array in memory: ``sink.values`` (length, width)."""

    def __init__(self, length: int, width: int, dtype: Any = np.float64) -> None:
        self.values = np.zeros((length, width), dtype)

    def write(self, start: int, values: Array) -> None:
        self.values[start : start + len(values)] = values

    def concurrent(self, edges: Array) -> bool:
        return False  # a worker elsewhere has a copy of its own

    def concurrent_threads(self, edges: Array) -> bool:
        return True  # rows of one block are not those of another

    def nbytes_in_memory(self) -> int:
        return self.values.nbytes

    def held(self) -> Array:
        return self.values


class ColumnsSink(MemorySink):
    """The same in memory, each column by itself: ``sink.values`` (width, length)."""

    def __init__(self, length: int, width: int) -> None:
        self.values = np.zeros((width, length))

    def write(self, start: int, values: Array) -> None:
        self.values[:, start : start + len(values)] = values.T


class ZarrSink(Sink):
    """A new 2-D Zarr v3 array of (length, width), zstd and crc32c, chunked along its first axis.

    Where the chunks coincide with the blocks, workers write them directly; else threads take
    turns at chunks that they share, and of other processes the one that folds the pass writes.
    What is not written yet is NaN (0 in integers), and the array says that it is not whole until
    ``finish``. An output that is to be overwritten stays what it was until then: the new one is
    written beside it.
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
    ) -> None:
        self.path = os.fspath(path)
        dtype = np.dtype(dtype)
        rows = chunk or max(1, CHUNK_NBYTES // max(1, width * dtype.itemsize))
        self.chunk = max(1, min(rows, length))
        self.length = length
        replaces = refuse_occupied(self.path, overwrite)
        self.place = unfinished_name(self.path) if replaces else settled(self.path)
        self._replaces = replaces
        self._token: str | None = uuid.uuid4().hex
        self._lock = threading.Lock()
        try:
            self._array: Any = zarr.create_array(
                self.place,
                shape=(length, width),
                chunks=(self.chunk, max(1, width)),
                dtype=dtype,
                fill_value=np.nan if dtype.kind == "f" else 0,
                compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                zarr_format=3,
                dimension_names=dims,
                overwrite=overwrite and "://" in self.path,  # it would remove a locked folder
                attributes={COMPLETE: False, TOKEN: self._token},
                config={"write_empty_chunks": True},  # an absent chunk would be a lost one
            )
        except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError, FileExistsError):
            raise exists_already(self.path) from None
        if replaces:
            weakref.finalize(self, give_up, self.place, os.getpid())
        self._held: Lock | None = None
        if not replaces and "://" not in self.path:
            self._hold()

    def _hold(self) -> None:
        """Lock it. Before that, another process may have taken it for one that was given up."""
        place = os.path.realpath(self.place)
        try:
            self._held = hold(place)
        except (BusyError, FileNotFoundError):
            raise exists_already(self.path) from None
        if self._held is not None:
            weakref.finalize(self, release, place, self._held)  # given up, unless it is finished
        if (_attributes(place) or {}).get(TOKEN) != self._token:
            raise exists_already(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_lock": None, "_held": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def array(self) -> Any:
        """The Zarr array, opened where this process needs it."""
        if self._array is None:
            try:
                opened = zarr.open_array(self.place, mode="r+")
            except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
                raise another_array(self.place) from error
            if self._token is not None and opened.attrs.get(TOKEN) != self._token:
                raise another_array(self.place)
            self._array = opened.with_config({"write_empty_chunks": True})
        return self._array

    def write(self, start: int, values: Array) -> None:
        stop = start + len(values)
        alone = start % self.chunk == 0 and (stop % self.chunk == 0 or stop == self.length)
        with contextlib.nullcontext() if alone else self._lock:
            self.array[start:stop] = values

    def concurrent(self, edges: Array) -> bool:
        return bool(np.all(np.asarray(edges)[:-1] % self.chunk == 0))

    def concurrent_threads(self, edges: Array) -> bool:
        return True

    def nbytes_in_memory(self) -> int:
        return 0

    def paths(self) -> tuple[str, ...]:
        return () if "://" in self.path else (os.path.realpath(self.path),)

    def finish(self) -> None:
        """Say in the array's attributes that all of it was written, and put it into its place.

        Raises SourceError where another array lies there by now, InvalidInputError where something
        lies at the path that is not to be overwritten.
        """
        self._array = None  # what lies there now
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


def copy_rows(rows: Any, path: str, overwrite: bool = False) -> None:
    """Write an array of (n, k), or what gives one where it is sliced, as such an array."""
    n, k = rows.shape
    sink = ZarrSink(path, n, k, rows.dtype, overwrite=overwrite)
    for start in range(0, n, sink.chunk):
        sink.write(start, rows[start : start + sink.chunk])
    sink.finish()


def open_written(path: str) -> Any:
    """The Zarr array that a :class:`ZarrSink` left at this path."""
    return zarr.open_array(path, mode="r")


def mark_written(path: str, mark: str, version: Mapping[str, Any] | None = None) -> None:
    """Say in the attributes of such an array what it was made by.  version : of a model store."""
    zarr.open_array(path, mode="r+").attrs.update({MARK: mark, VERSION: version})


def marked(path: str) -> str | None:
    """What was said there; "" where nothing was, None where there is no array of ours."""
    attributes = _attributes(path)
    return None if attributes is None else str(attributes.get(MARK, ""))


def ours(path: str) -> bool:
    """Whether an array lies there that was made here."""
    return _attributes(path) is not None


def version_of(path: str) -> Mapping[str, Any]:
    """Number and id of the version that scores at a path were made with, or {}."""
    there = (_attributes(path) or {}).get(VERSION)
    return there if isinstance(there, dict) else {}


def another_array(place: str) -> SourceError:
    """The refusal of what a process finds where another one made its output."""
    return SourceError(
        f"{place} is not the array here that is being written, or there is none: the output must "
        "lie where every worker sees the same, on a shared file system or in object storage. Or "
        "use scheduler='threads'."
    )


def chunk_for(edges: Array, most: int | None = None) -> int | None:
    """A chunk length that no two blocks with these edges share, or None for the default one.

    Chunks of fewer than LEAST_ROWS would be a file for every few rows: then blocks share chunks.
    most : rows.
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
    """Whether an output of ours lies there and is to be replaced. Raises where it may not be."""
    for left in reversed(range(ATTEMPTS if overwrite else 1)):
        if not occupied(path):
            return False
        if _given_up(path):
            shutil.rmtree(path)
            return False
        if overwrite and ours(path):
            return True
        if left:  # another process may be putting its own there
            time.sleep(0.01)
    raise exists_already(path)


def _given_up(path: str) -> bool:
    """Whether an output of ours lies there that is not whole, and that nobody will finish."""
    if os.path.islink(path) or in_use(path):
        return False
    return (_attributes(path) or {}).get(COMPLETE) is False


def _attributes(path: str) -> Mapping[str, Any] | None:
    """Of an array that was made here: nothing else may be overwritten, least of all a source."""
    try:
        attributes = _stored_attributes(path)
    except (OSError, ValueError, SourceError, zarr.errors.BaseZarrError):
        return None
    return attributes if COMPLETE in attributes else None


def _stored_attributes(path: str) -> dict[str, Any]:
    """Of a Zarr array. A local one is not opened by Zarr: anything may lie at that path."""
    if "://" in path:
        return dict(zarr.open_array(path, mode="r").attrs)
    file = os.path.join(path, METADATA)
    whole = parse(read_inside(path, METADATA, MOST_METADATA), file)
    found = whole.get("attributes") if isinstance(whole, dict) else None
    return found if isinstance(found, dict) and whole.get("node_type") == "array" else {}
