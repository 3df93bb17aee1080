"""NumPy arrays, lists, data frames, ``.npy`` files and scipy.sparse matrices."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from typing import Any

import numpy as np
import scipy.sparse

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.matrix.entries import sparse_nbytes
from streampca.sources.stacked import Index, Reader, check_dtype

SAMPLED_NBYTES = 1 << 16
GROUP_NBYTES = 1 << 20  # of a file that are read at once where pieces lie near each other
GAP_NBYTES = 1 << 14  # between pieces that do


class ArrayReader(Reader):
    """An array in memory."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self.offset: tuple[int, int] | None = None  # (dim, start) of a part
        self._count = ReadCount()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        if self.offset is not None:
            dim, start = self.offset
            moved = slice(index[dim].start - start, index[dim].stop - start)
            index = (*index[:dim], moved, *index[dim + 1 :])
        values = self.array[index]
        self._count.chunks += 1
        self._count.nbytes += values.nbytes
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> Reader:
        smaller = copy.copy(self)
        base = self.offset[1] if self.offset is not None else 0
        cut = tuple(
            slice(start - base, stop - base) if d == dim else slice(None)
            for d in range(self.array.ndim)
        )
        smaller.array, smaller.offset, smaller._count = self.array[cut], (dim, start), ReadCount()
        return smaller

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.shape} {self.dtype}".encode())
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.ravel("K")
        step = max(1, len(flat) * flat.itemsize // SAMPLED_NBYTES)
        digest.update(np.ascontiguousarray(flat[::step]).tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for row in self.array:
            digest.update(np.ascontiguousarray(row).view(np.uint8).data)
        return digest.hexdigest()

    def reads(self) -> ReadCount:
        return copy.copy(self._count)

    def restart_counts(self) -> None:
        self._count = ReadCount()


class NpyReader(ArrayReader):
    """A ``.npy`` file, read by position: nothing is mapped, so resident memory stays flat."""

    into_buffer = True

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)  # looks at the header
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except ValueError as error:
            raise SourceError(f"{path}: not a readable .npy file ({error})") from None
        self._lay(path, mapped.shape, mapped.dtype, int(mapped.offset))
        self._fortran = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def _lay(self, path: str, shape: tuple[int, ...], dtype: Any, start: int) -> None:
        """An array in C order that begins at this byte of a file."""
        self.path = os.path.realpath(path)
        self.shape, self._stored, self._start = shape, np.dtype(dtype), start
        self.dtype, self._fortran = self._stored.newbyteorder("="), False
        self.offset, self._count = None, ReadCount()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = [s.stop - s.start for s in index]
        size = math.prod(shape) * self.dtype.itemsize
        raw = buffer[:size] if buffer is not None and len(buffer) >= size else np.empty(size, "u1")
        values = raw.view(self.dtype).reshape(shape)
        with open(self.path, "rb", buffering=0) as file:
            if self._laid_out_anew():
                self._read_turned(file.fileno(), values, index)
            else:
                _read_part(file.fileno(), values, self.shape, index, self._start, self.path)
        self._count.chunks += 1
        self._count.nbytes += values.nbytes
        return values

    def _laid_out_anew(self) -> bool:
        return self._fortran or self._stored != self.dtype

    def _read_turned(self, handle: int, into: np.ndarray[Any, Any], index: Index) -> None:
        """Read what lies in the file in another order, of axes or of bytes, piece by piece."""
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
        """Of what lies at one place along the first axis of the file."""
        others = [index[d] for d in self._axes()][1:]
        return max(1, math.prod(s.stop - s.start for s in others) * self._stored.itemsize)

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
    """Read one hyperrectangle of an array of this shape that lies in C order from ``start`` on.

    Pieces that lie near each other in the file are read together with what is between them.
    """
    if not into.size:
        return
    cut = max((d for d in range(len(shape)) if into.shape[d] < shape[d]), default=0)
    strides = [math.prod(shape[d + 1 :]) * into.itemsize for d in range(len(shape))]
    run = into.shape[cut] * strides[cut]  # bytes that lie together
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
        got = os.preadv(handle, [view[done:]], offset + done)
        if got == 0:
            raise SourceError(f"{path} is truncated: {len(view) - done} bytes are missing")
        done += got


class SparseMatrix(ChunkedMatrix):
    """A scipy.sparse matrix: CSR blocks of samples, CSC blocks of features."""

    sparse = True
    loads = ("numba",)

    def __init__(self, matrix: Any, labels: Labels | None = None) -> None:
        check_dtype(matrix.dtype)
        self.compressed: dict[int, Any] = {}
        self.pointers: dict[int, Any] = {}
        format_ = matrix.format if matrix.format in ("csr", "csc") else "csr"
        self.matrix = matrix.asformat(format_)
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.labels = labels or Labels.plain(self.shape)
        self.first = (0, 0)  # where a part begins, by axis
        self._count = ReadCount()

    def _along(self, axis: int) -> Any:
        """The matrix compressed along axis; converted once where it is stored the other way."""
        wanted = "csc" if axis else "csr"
        if self.matrix.format != wanted:
            if axis not in self.compressed:
                self.compressed[axis] = self.matrix.asformat(wanted)
            return self.compressed[axis]
        return self.matrix

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        matrix = self._along(axis)
        start, stop = start - self.first[axis], stop - self.first[axis]
        values = matrix[:, start:stop] if axis else matrix[start:stop]
        self._count.chunks += 1
        self._count.nbytes += sparse_nbytes(values)
        return values

    def _pointers(self, axis: int) -> np.ndarray[Any, Any]:
        """indptr along either axis; the matrix is not converted for it."""
        if self.matrix.format == ("csc" if axis else "csr"):
            return np.asarray(self.matrix.indptr)
        if axis not in self.pointers:
            lines = self.matrix.shape[axis]
            counts = np.bincount(self.matrix.indices, minlength=lines)
            self.pointers[axis] = np.concatenate([[0], np.cumsum(counts)])
        return self.pointers[axis]

    def row_nbytes(self, axis: int) -> float:
        whole = self.spans_nbytes(axis, np.array([0, self.shape[axis]]))
        return float(whole[0]) / max(1, self.shape[axis])

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        pointers, index = self._pointers(axis), self.matrix.indices.itemsize
        edges = np.clip(np.asarray(edges) - self.first[axis], 0, len(pointers) - 1)
        entries = np.diff(pointers[edges].astype(np.int64))
        return entries * (self.matrix.data.itemsize + index) + (np.diff(edges) + 1) * index

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """Of the conversion, where the matrix is compressed along the other axis."""
        converted = self.matrix.format != ("csc" if axis else "csr")
        return sparse_nbytes(self.matrix) if converted else 0

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        return None

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return 1

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        inside = slice(start - self.first[axis], stop - self.first[axis])
        whole = self._along(axis)
        smaller.matrix = whole[:, inside] if axis else whole[inside]
        smaller.first = (self.first[0], start) if axis else (start, self.first[1])
        smaller.compressed, smaller.pointers, smaller._count = {}, {}, ReadCount()
        return smaller

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.shape} {self.dtype} {self.matrix.nnz}".encode())
        digest.update(np.ascontiguousarray(self.matrix.data[: SAMPLED_NBYTES // 8]).tobytes())
        digest.update(repr(self.missing_value).encode())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for array in (self.matrix.data, self.matrix.indices, self.matrix.indptr):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def reads(self) -> ReadCount:
        return copy.copy(self._count)

    def restart_counts(self) -> None:
        self._count = ReadCount()


def from_sparse(matrix: Any, dim: Any = None) -> ChunkedMatrix:
    """A matrix over any scipy.sparse array or matrix; dim=1 where its columns are the samples."""
    if not scipy.sparse.issparse(matrix) or matrix.ndim != 2:
        raise InvalidInputError(f"expected a 2-D sparse matrix, got {type(matrix).__name__}")
    if dim not in (None, 0, 1) or isinstance(dim, bool):
        raise InvalidInputError(f"dim={dim!r}; expected 0 (rows are samples) or 1 (columns are)")
    return SparseMatrix(matrix.T if dim == 1 else matrix)
