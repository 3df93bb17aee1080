"""One array in a file: ``.npy`` by position, HDF5 by slices."""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, MissingDependencyError, SourceError
from streampca.matrix import ReadCount
from streampca.paths import read_at
from streampca.sources.labelled.cf import Decoding
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.reading import Tally, check_grid
from streampca.sources.stacked import Index, Reader, room_for

# ``.npy`` files, read by position.

GROUP_NBYTES = 1 << 20  # of a file that are read at once where pieces are close together
GAP_NBYTES = 1 << 14  # largest gap between such pieces


class NpyReader(ArrayReader):
    """A ``.npy`` file, read by position and not mapped, so that resident memory stays constant."""

    into_buffer = True

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)  # looks at the header
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except (ValueError, EOFError) as error:
            raise SourceError(f"{path}: not a readable .npy file ({error})") from None
        self._lay(path, mapped.shape, mapped.dtype, int(mapped.offset))
        self._fortran = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def _lay(self, path: str, shape: tuple[int, ...], dtype: Any, start: int) -> None:
        """Describe an array in C order that begins at byte ``start`` of a file."""
        self.path = os.path.realpath(path)
        self.shape, self._stored, self._start = shape, np.dtype(dtype), start
        self.dtype, self._fortran = self._stored.newbyteorder("="), False
        self.offset, self.tally = None, Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        values = room_for([s.stop - s.start for s in index], self.dtype, buffer)
        with open(self.path, "rb", buffering=0) as file:
            if self._laid_out_anew():
                self._read_turned(file.fileno(), values, index)
            else:
                _read_part(file.fileno(), values, self.shape, index, self._start, self.path)
        self.tally.add(ReadCount(1, values.nbytes))
        return values

    def _laid_out_anew(self) -> bool:
        return self._fortran or self._stored != self.dtype

    def _read_turned(self, handle: int, into: np.ndarray[Any, Any], index: Index) -> None:
        """Read values with another order of axes or bytes in the file, piece by piece."""
        axes = self._axes()
        shape, into = tuple(self.shape[d] for d in axes), into.transpose(axes)
        first, *others = (index[d] for d in axes)
        step = max(1, GROUP_NBYTES // self._row_nbytes(index))
        for start in range(first.start, first.stop, step):
            part = (slice(start, min(start + step, first.stop)), *others)
            piece = np.empty([s.stop - s.start for s in part], self._stored)
            _read_part(handle, piece, shape, part, self._start, self.path)
            into[start - first.start : part[0].stop - first.start] = piece

    def _axes(self) -> range:
        """The axes of the array in the order of the file."""
        n = len(self.shape)
        return range(n - 1, -1, -1) if self._fortran else range(n)

    def _row_nbytes(self, index: Index) -> int:
        """Bytes per position along the first axis of the file."""
        others = [index[d] for d in self._axes()][1:]
        return int(max(1, math.prod(s.stop - s.start for s in others) * self._stored.itemsize))

    def scratch_nbytes(self, index: Index) -> int:
        again = max(GROUP_NBYTES, self._row_nbytes(index)) if self._laid_out_anew() else 0
        return GROUP_NBYTES + again

    def part(self, dim: int, start: int, stop: int) -> Reader:
        return self

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = f"{self.path} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
        return hashlib.sha256(text.encode()).hexdigest()

    def content_stamp(self) -> str:
        return self.fingerprint()

    def paths(self) -> tuple[str, ...]:
        return (self.path,)


def _read_part(
    handle: int,
    into: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    part: tuple[slice, ...],
    start: int,
    path: str,
) -> None:
    """Read one hyperrectangle of an array of this shape, in C order from byte ``start`` on.

    Pieces that are close together in the file are read together with the gaps between them.
    """
    if not into.size:
        return
    cut = max((d for d in range(len(shape)) if into.shape[d] < shape[d]), default=0)
    strides = [math.prod(shape[d + 1 :]) * into.itemsize for d in range(len(shape))]
    run = into.shape[cut] * strides[cut]  # contiguous bytes
    begin = start + sum(s.start * stride for s, stride in zip(part, strides, strict=True))
    near = max(0, cut - 1)  # the dimension along which pieces are grouped
    pieces = into.view(np.uint8).reshape(*into.shape[:cut], run)
    if cut == 0:
        _read_fully(handle, pieces, begin, path)
        return
    step = strides[near]
    together = max(1, GROUP_NBYTES // step) if step - run <= GAP_NBYTES else 1
    for outer in np.ndindex(*into.shape[:near]):
        first = begin + sum(i * stride for i, stride in zip(outer, strides, strict=False))
        rows = pieces[outer]
        for i in range(0, len(rows), together):
            some, place = rows[i : i + together], first + i * step
            if len(some) == 1:
                _read_fully(handle, some, place, path)
                continue
            group = np.empty(len(some) * step, np.uint8)
            _read_fully(handle, group[: (len(some) - 1) * step + run], place, path)
            some[...] = group.reshape(len(some), step)[:, :run]


def _read_fully(handle: int, into: np.ndarray[Any, Any], offset: int, path: str) -> None:
    view: Any = memoryview(into.reshape(-1))  # type: ignore[arg-type]
    done = 0
    while done < len(view):
        got = read_at(handle, view[done:], offset + done)
        if got == 0:
            raise SourceError(f"{path} is truncated: {len(view) - done} bytes are missing")
        done += got


# Datasets of HDF5 files (``.h5ad``), read by slices.


def open_hdf5(path: str) -> Any:
    """The file, open for reading. Raises SourceError where it is not HDF5 or is truncated."""
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError(
            f"{path} is an HDF5 file and h5py is not installed: pip install 'streampca[h5ad]'"
        ) from None
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise SourceError(f"{path}: not a readable HDF5 file ({error})") from None


def refuse_external(file: Any, path: str) -> None:
    """Raises DamagedSourceError where part of an open file is in another file.

    Such parts are external links, external storage and virtual datasets.
    """
    import h5py

    waiting, seen = [file], set()
    while waiting:
        group = waiting.pop()
        if (place := h5py.h5o.get_info(group.id).addr) in seen:
            continue
        seen.add(place)
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise _external(path, f"{group.name}/{name}", link.filename)
            if isinstance(link, h5py.SoftLink):
                continue  # to an object that is visited anyway, or behind an external link
            node = group[name]
            if isinstance(node, h5py.Group):
                waiting.append(node)
            elif isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
                others = node.virtual_sources() if node.is_virtual else node.external
                raise _external(path, node.name, str(others[0][1 if node.is_virtual else 0]))


def _external(path: str, name: str, other: str) -> DamagedSourceError:
    return DamagedSourceError(
        f"{path}: {name} lies in another file, {other!r:.200}, which is not opened. If that is "
        "meant: streampca.open(..., external_links=True)"
    )


def hdf5_attributes(dataset: Any) -> dict[str, Any]:
    """The attributes as a NetCDF library gives them: one element as a number, bytes as text."""
    import h5py

    found = {}
    for name, value in dataset.attrs.items():
        if isinstance(value, h5py.Empty):
            continue
        if isinstance(value, np.ndarray) and value.shape == (1,):
            value = value[0]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        found[name] = value
    return found


class HDF5Reader(Reader):
    """One dataset. The file is open only during a read, so that results can be written into it.

    decoding : of what is stored.
    """

    into_buffer = True

    def __init__(self, dataset: Any, decoding: Decoding | None = None) -> None:
        self.decoding = decoding
        self.loads = ("h5py",) if decoding is None else ("h5py", "xarray")
        self.path = os.path.realpath(dataset.file.filename)
        self.name = dataset.name
        self.shape = tuple(int(n) for n in dataset.shape)
        self.stored = np.dtype(dataset.dtype).newbyteorder("=")
        self.dtype = self.stored if decoding is None else decoding.dtype
        self.chunks = None if dataset.chunks is None else tuple(int(c) for c in dataset.chunks)
        if self.chunks is not None:
            check_grid(self.shape, self.chunks, f"{self.path}: {self.name}")
        self.tally = Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(part.stop - part.start for part in index)
        values = room_for(shape, self.stored, None if self.decoding else buffer)
        with open_hdf5(self.path) as file:
            try:
                if values.size:
                    file[self.name].read_direct(values, index)
            except (OSError, KeyError) as error:
                raise SourceError(
                    f"{self.path}: {self.name} cannot be read ({error}); the file is cut off or "
                    "damaged"
                ) from None
        self.tally.add(ReadCount(self._crossed(index), values.nbytes))
        return values if self.decoding is None else self.decoding.decode(values)

    def _crossed(self, index: Index) -> int:
        if self.chunks is None:
            return 1
        pairs = zip(index, self.chunks, strict=True)
        return math.prod(-(-part.stop // step) - part.start // step for part, step in pairs)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        if self.chunks is None:
            return None
        step, size = self.chunks[dim], self.shape[dim]
        return np.append(np.arange(0, size, step, dtype=np.int64), size)

    def scratch_nbytes(self, index: Index) -> int:
        chunks = 0 if self.chunks is None else 2 * math.prod(self.chunks) * self.stored.itemsize
        if self.decoding is None:
            return chunks
        cells = math.prod(s.stop - s.start for s in index)
        return int(chunks + cells * self.stored.itemsize + self.decoding.scratch_nbytes)

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = (
            f"{self.path} {self.name} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
            f"{'' if self.decoding is None else self.decoding}"
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return (self.path,)
