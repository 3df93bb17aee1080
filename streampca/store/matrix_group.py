"""A stored matrix: one array in a Zarr v3 group with its labels, written in one pass.

The array's attributes say how much of it is written (``streampca_written``), whether it is complete
(``streampca_complete``) and what it was made from (``source_fingerprint``). So an interrupted write
can resume, and an unfinished array is never opened as a complete one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import InvalidInputError, SourceError
from streampca.store.chunks import put
from streampca.store.places import exists_already, no_library, occupied, writing
from streampca.store.sinks import WHOLE, ZARR_ERRORS, Sink

Array = np.ndarray[Any, Any]
LABEL_CHUNK = 65536
LABEL_PIECE = 8192
MARK_SECONDS = 2.0  # between updates of ``streampca_written``


@dataclass(frozen=True)
class GroupLayout:
    """The stored array: its name, and the shape, chunks and names of its dimensions as stored.

    samples : the stored dimension (0 or 1) of the samples.
    along : the stored dimension along which slices are written.
    fingerprint : of the source.  missing_value : code of missing cells, or None.
    ploidy : of allele counts, or None.
    grid : (name, length) of the dimensions that were stacked into features, such as those of
        pixels.
    """

    name: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    dims: tuple[str, str]
    dtype: np.dtype[Any]
    samples: int
    along: int
    fingerprint: str
    missing_value: float | None = None
    grid: tuple[tuple[str, int], ...] = ()
    ploidy: int | None = None

    def attributes(self) -> dict[str, Any]:
        """The attributes of a new array."""
        known: dict[str, Any] = {}
        if self.missing_value is not None:
            known["missing_value"] = self.missing_value
        if self.ploidy is not None:
            known["ploidy"] = self.ploidy
        if self.grid:
            known["streampca_grid"] = [list(one) for one in self.grid]
        return known | {
            "streampca_samples": self.samples,
            "source_fingerprint": self.fingerprint,
            "streampca_written": 0,
            "streampca_complete": False,
        }


class GroupSink(Sink):
    """Takes slices along ``layout.along``, (length, other) each, and writes whole chunks.

    Slices of whole chunks may come in any order and from several threads. Others must come in
    order, from one thread: rows that do not fill a chunk wait for the next slice.
    written : length of the part on disk that begins at 0 and has no gap.
    """

    def __init__(self, array: Any, layout: GroupLayout, path: str) -> None:
        self.array, self.layout, self.path = array, layout, path
        self.length = layout.shape[layout.along]
        self.chunk = layout.chunks[layout.along]
        self.written = int(array.attrs["streampca_written"])
        self._done: dict[int, int] = {}  # slices beyond ``written``: first -> end
        self._waiting: list[Array] = []  # pieces of a chunk that is not full yet
        self._from = self.written  # where that chunk begins
        self._lock = threading.Lock()
        self._marked = time.monotonic()

    def concurrent(self, edges: Array) -> bool:
        """Whether blocks with these edges consist of whole chunks."""
        cuts = np.asarray(edges)
        return bool(np.all(cuts[cuts < self.length] % self.chunk == 0))

    def nbytes_in_memory(self) -> int:
        """Bytes of a waiting chunk, in pieces and joined."""
        across = self.layout.shape[1 - self.layout.along]
        return 2 * self.chunk * across * self.layout.dtype.itemsize

    def paths(self) -> tuple[str, ...]:
        """The group's directory."""
        return () if "://" in self.path else (os.path.realpath(self.path),)

    def write(self, start: int, values: Array) -> None:
        """Put values (rows, width) at [start, start + rows)."""
        whole = self.concurrent(np.array([start, start + len(values)]))
        if whole and not self._waiting:
            self._put(start, values)
            return
        held = sum(len(piece) for piece in self._waiting)
        if held and start != self._from + held:
            raise InvalidInputError(f"slice {start} does not follow {self._from + held}")
        if not held:
            if start % self.chunk:
                raise InvalidInputError(f"slice {start} does not begin with a chunk")
            self._from = start
        self._fill(values)

    def _fill(self, values: Array) -> None:
        """Add to the waiting chunk, and write it each time it is full."""
        while len(values):
            held = sum(len(piece) for piece in self._waiting)
            room = min(self.chunk, self.length - self._from) - held
            self._waiting.append(np.array(values[:room]))  # copied: the caller reuses its block
            values = values[room:]
            if held + len(self._waiting[-1]) == min(self.chunk, self.length - self._from):
                chunk = np.concatenate(self._waiting)
                self._waiting.clear()
                self._put(self._from, chunk)
                self._from += len(chunk)

    def _put(self, start: int, values: Array) -> None:
        stop = start + len(values)
        with writing(self.path):
            if self.layout.along:
                put(self.array, (0, start), values.T)
            else:
                put(self.array, (start, 0), values)
            with self._lock:
                self._done[start] = stop
                while self.written in self._done:
                    self.written = self._done.pop(self.written)
                if time.monotonic() - self._marked >= MARK_SECONDS:
                    self._mark()

    def _mark(self) -> None:
        self.array.update_attributes({"streampca_written": self.written})
        self._marked = time.monotonic()

    def interrupted(self) -> None:
        """Store how much is written: the next run resumes there."""
        with self._lock:
            self._mark()

    def finish(self) -> None:
        """Mark the array as complete. Raises SourceError if parts were not written."""
        if self.written != self.length:
            raise SourceError(f"{self.path}: only {self.written} of {self.length} were written")
        whole = {"streampca_written": self.written, "streampca_complete": True}
        self.array.update_attributes(whole)


def open_group_sink(
    path: str,
    layout: GroupLayout,
    labels: Mapping[str, Mapping[str, Array]],
    *,
    overwrite: bool = False,
    resume: bool = True,
) -> GroupSink:
    """A sink for a new group at path, or for the unfinished one there.

    labels : dimension -> {name: (size,) array}.
    Raises InvalidInputError if something else is there, SourceError if the unfinished group came
    from another source, or from this one before it changed.
    """
    if _is_there(path):
        group = _own_group(path)
        if group is None:
            raise exists_already(path)
        if not overwrite and layout.name in group:
            array = _begun(group, layout, path, resume)
            write_labels(group, labels)
            return GroupSink(array, layout, path)
        overwrite = True  # interrupted before the array was made
    attributes = {"streampca_array": layout.name}
    group = zarr.create_group(path, zarr_format=3, overwrite=overwrite, attributes=attributes)
    array = group.create_array(
        layout.name,
        shape=layout.shape,
        chunks=layout.chunks,
        dtype=layout.dtype,
        fill_value=0,
        compressors=[
            zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
            zarr.codecs.Crc32cCodec(),
        ],
        dimension_names=layout.dims,
        attributes=layout.attributes(),
        config=WHOLE,
    )
    write_labels(group, labels)
    return GroupSink(array, layout, path)


def _is_there(path: str) -> bool:
    if "://" not in path:
        return occupied(path)
    try:
        zarr.open(path, mode="r")
    except ZARR_ERRORS:
        return False
    except ImportError as error:
        raise no_library(path, error) from None
    return True


def _own_group(path: str) -> Any | None:
    """The group if streampca wrote it, else None: nothing else may be overwritten."""
    try:
        group = zarr.open_group(path, mode="r+")
    except ZARR_ERRORS:
        return None
    return group if "streampca_array" in group.attrs else None


def _begun(group: Any, layout: GroupLayout, path: str, resume: bool) -> Any:
    """The unfinished array in a group. Raises if it cannot be continued with this layout."""
    array = group[layout.name]
    attributes = dict(array.attrs)
    if attributes.get("streampca_complete") is not False:
        raise exists_already(path)
    if not resume:
        raise InvalidInputError(f"{path} is unfinished; resume it, or pass overwrite=True")
    if attributes.get("source_fingerprint") != layout.fingerprint:
        raise SourceError(
            f"{path} was begun from another source, or the source has changed since: the "
            "conversion cannot be resumed. Begin anew: overwrite=True"
        )
    found = (tuple(array.shape), tuple(array.chunks), np.dtype(array.dtype))
    if found != (layout.shape, layout.chunks, layout.dtype):
        raise InvalidInputError(f"{path} was begun with another layout; begin anew: overwrite=True")
    return array.with_config(WHOLE)


def write_labels(group: Any, labels: Mapping[str, Mapping[str, Array]]) -> None:
    """Write one-dimensional arrays, all columns of a dimension together, chunk by chunk.

    labels : dimension -> {name: (size,) array, or an object whose slices are arrays}.
    """
    for dim, columns in labels.items():
        arrays = {
            name: group.create_array(
                name,
                shape=(len(values),),
                chunks=(max(1, min(LABEL_CHUNK, len(values))),),
                dtype=storable(values[:1]).dtype,
                compressors=[zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()],
                dimension_names=(dim,),
                config=WHOLE,
                overwrite=True,
            )
            for name, values in columns.items()
        }
        for start in range(0, max(map(len, columns.values()), default=0), LABEL_CHUNK):
            stop = start + LABEL_CHUNK
            parts: dict[str, list[Any]] = {name: [] for name in columns}
            for low in range(start, stop, LABEL_PIECE):  # columns may share a table read by line
                for name, values in columns.items():
                    parts[name].append(storable(values[low : min(low + LABEL_PIECE, stop)]))
            for name, array in arrays.items():
                array[start:stop] = np.concatenate(parts[name])


def storable(values: Any) -> Array:
    """Numbers as they are; strings, dates and anything else as strings of Zarr v3."""
    values = np.asarray(values)
    if values.dtype.kind in "buif" and values.dtype.itemsize <= 8:
        return np.asarray(values)
    if values.dtype.kind == "M":
        values = np.datetime_as_string(values)
    return np.asarray(values.astype(np.dtypes.StringDType()))
