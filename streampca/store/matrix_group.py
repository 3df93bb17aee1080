"""A matrix at rest: one array in a Zarr v3 group, its labels beside it, written in one pass.

The array's attributes say how far it is (``streampca_written``), that it is whole
(``streampca_complete``) and from what it was made (``source_fingerprint``), so that an
interrupted write goes on where it stopped, and nothing unfinished is opened as a whole.
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
from streampca.store.places import exists_already, occupied
from streampca.store.sinks import Sink

Array = np.ndarray[Any, Any]
LABEL_CHUNK = 65536
LABEL_PIECE = 8192
MARK_SECONDS = 2.0  # between two notes of how far the array is


@dataclass(frozen=True)
class GroupLayout:
    """What is stored: the array's name, and by stored dimension its shape, chunks and names.

    samples : the stored dimension that is the samples.
    along : the one that is written piece by piece.
    fingerprint : of the source.  missing_value : code of missing cells, or None.
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

    def attributes(self) -> dict[str, Any]:
        """Of a new array."""
        known = {} if self.missing_value is None else {"missing_value": self.missing_value}
        return known | {
            "streampca_samples": self.samples,
            "source_fingerprint": self.fingerprint,
            "streampca_written": 0,
            "streampca_complete": False,
        }


class GroupSink(Sink):
    """Takes slices along ``layout.along``, (length, other) each, and writes whole chunks.

    Slices that consist of whole chunks may come in any order and from several threads. Others
    must come in order, from one thread: what does not fill a chunk waits for the next slice.
    written : how much of the array is on disk, from its beginning without a gap.
    """

    def __init__(self, array: Any, layout: GroupLayout, path: str) -> None:
        self.array, self.layout, self.path = array, layout, path
        self.length = layout.shape[layout.along]
        self.chunk = layout.chunks[layout.along]
        self.written = int(array.attrs["streampca_written"])
        self._done: dict[int, int] = {}  # slices beyond ``written``: first -> end
        self._waiting: list[Array] = []  # of a chunk that is not full yet
        self._from = self.written  # where the next slice in order begins, less what waits
        self._lock = threading.Lock()
        self._marked = time.monotonic()

    def concurrent(self, edges: Array) -> bool:
        """Whether blocks with these edges are whole chunks."""
        cuts = np.asarray(edges)
        return bool(np.all(cuts[cuts < self.length] % self.chunk == 0))

    def nbytes_in_memory(self) -> int:
        """A slice that waits to be full, in pieces and as a whole."""
        across = self.layout.shape[1 - self.layout.along]
        return 2 * self.chunk * across * self.layout.dtype.itemsize

    def paths(self) -> tuple[str, ...]:
        """The group's directory."""
        return () if "://" in self.path else (os.path.realpath(self.path),)

    def write(self, start: int, values: Array) -> None:
        """Put values at [start, start + len(values))."""
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
        """Add to the chunk that waits, and write it each time it is full."""
        while len(values):
            held = sum(len(piece) for piece in self._waiting)
            room = min(self.chunk, self.length - self._from) - held
            self._waiting.append(np.array(values[:room]))  # the caller uses its block again
            values = values[room:]
            if held + len(self._waiting[-1]) == min(self.chunk, self.length - self._from):
                chunk = np.concatenate(self._waiting)
                self._waiting.clear()
                self._put(self._from, chunk)
                self._from += len(chunk)

    def _put(self, start: int, values: Array) -> None:
        stop = start + len(values)
        try:
            if self.layout.along:
                self.array[:, start:stop] = values.T
            else:
                self.array[start:stop] = values
            with self._lock:
                self._done[start] = stop
                while self.written in self._done:
                    self.written = self._done.pop(self.written)
                if time.monotonic() - self._marked >= MARK_SECONDS:
                    self._mark()
        except OSError as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{self.path} cannot be written: {error}") from error

    def _mark(self) -> None:
        self.array.update_attributes({"streampca_written": self.written})
        self._marked = time.monotonic()

    def interrupted(self) -> None:
        """Note how far it is: the next run goes on there."""
        with self._lock:
            self._mark()

    def finish(self) -> None:
        """Say in the array's attributes that all of it was written."""
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
    """A new group at path, or the unfinished one there.

    labels : dimension -> {name: (size,) array}.
    Raises InvalidInputError where something is in the way, SourceError where what was begun
    there came from another source, or from this one before it changed.
    """
    if _is_there(path):
        group = _own_group(path)
        if group is None:
            raise exists_already(path)
        if not overwrite and layout.name in group:
            array = _begun(group, layout, path, resume)
            write_labels(group, labels)
            return GroupSink(array, layout, path)
        overwrite = True  # stopped before there was an array
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
        config={"write_empty_chunks": True},
    )
    write_labels(group, labels)
    return GroupSink(array, layout, path)


def _is_there(path: str) -> bool:
    if "://" not in path:
        return occupied(path)
    try:
        zarr.open(path, mode="r")
    except (OSError, KeyError, ValueError, zarr.errors.BaseZarrError):
        return False
    return True


def _own_group(path: str) -> Any | None:
    """The group, if it was made here: nothing else may be overwritten."""
    try:
        group = zarr.open_group(path, mode="r+")
    except (OSError, KeyError, ValueError, zarr.errors.BaseZarrError):
        return None
    return group if "streampca_array" in group.attrs else None


def _begun(group: Any, layout: GroupLayout, path: str, resume: bool) -> Any:
    """The unfinished array of this layout."""
    array = group[layout.name]
    attributes = dict(array.attrs)
    if attributes.get("streampca_complete") is not False:
        raise exists_already(path)
    if not resume:
        raise InvalidInputError(f"{path} is unfinished; resume it, or pass overwrite=True")
    if attributes.get("source_fingerprint") != layout.fingerprint:
        raise SourceError(
            f"{path} was begun from another source, or the source has changed since: what is "
            "there cannot be gone on with. Begin anew: overwrite=True"
        )
    found = (tuple(array.shape), tuple(array.chunks), np.dtype(array.dtype))
    if found != (layout.shape, layout.chunks, layout.dtype):
        raise InvalidInputError(f"{path} was begun with another layout; begin anew: overwrite=True")
    return array.with_config({"write_empty_chunks": True})


def write_labels(group: Any, labels: Mapping[str, Mapping[str, Array]]) -> None:
    """Arrays of one dimension in a group, all columns of a dimension chunk by chunk together.

    labels : dimension -> {name: (size,) array, or what gives one where it is sliced}.
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
                config={"write_empty_chunks": True},
                overwrite=True,
            )
            for name, values in columns.items()
        }
        for start in range(0, max(map(len, columns.values()), default=0), LABEL_CHUNK):
            stop = start + LABEL_CHUNK
            parts: dict[str, list[Any]] = {name: [] for name in columns}
            for low in range(start, stop, LABEL_PIECE):  # of a table that is read line by line
                for name, values in columns.items():
                    parts[name].append(storable(values[low : min(low + LABEL_PIECE, stop)]))
            for name, array in arrays.items():
                array[start:stop] = np.concatenate(parts[name])


def storable(values: Any) -> Array:
    """Numbers as they are; strings, dates and anything else as the strings that Zarr v3 knows."""
    values = np.asarray(values)
    if values.dtype.kind in "buif" and values.dtype.itemsize <= 8:
        return np.asarray(values)
    if values.dtype.kind == "M":
        values = np.datetime_as_string(values)
    return np.asarray(values.astype(np.dtypes.StringDType()))
