"""NumPy arrays, lists, data frames, ``.npy`` files and scipy.sparse matrices."""

from __future__ import annotations

import copy
import hashlib
import os
from typing import Any

import numpy as np
import scipy.sparse

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.sources.stacked import Index, Reader, check_dtype

SAMPLED_NBYTES = 1 << 16


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

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except ValueError as error:
            raise SourceError(f"{path}: not a readable .npy file ({error})") from None
        super().__init__(mapped)
        self._start = int(mapped.offset)
        self._stored = mapped.dtype
        self._fortran = mapped.flags.f_contiguous and not mapped.flags.c_contiguous
        self._mapped = mapped
        del self.array

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def mapped(self) -> np.ndarray[Any, Any]:
        """The file as an array; only touched where a read is not one run of bytes."""
        if self._mapped is None:
            self._mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return self._mapped

    into_buffer = True

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        whole = all(
            s.start == 0 and s.stop == n for s, n in zip(index[1:], self.shape[1:], strict=True)
        )
        if whole and not self._fortran:
            row = int(np.prod(self.shape[1:], dtype=np.int64)) * self._stored.itemsize
            first, last = index[0].start, index[0].stop
            size = (last - first) * row
            raw = (
                buffer[:size]
                if buffer is not None and len(buffer) >= size
                else np.empty(size, "u1")
            )
            values = raw.view(self._stored).reshape(last - first, *self.shape[1:])
            with open(self.path, "rb", buffering=0) as file:
                _read_fully(file.fileno(), values, self._start + first * row, self.path)
        else:
            values = np.array(self.mapped[index])
        self._count.chunks += 1
        self._count.nbytes += values.nbytes
        return values if values.dtype == self.dtype else values.astype(self.dtype)

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


def _read_fully(handle: int, into: np.ndarray[Any, Any], offset: int, path: str) -> None:
    view: Any = memoryview(into.reshape(-1)).cast("B") if into.size else memoryview(b"")  # type: ignore[arg-type]
    done = 0
    while done < len(view):
        got = os.preadv(handle, [view[done:]], offset + done)
        if got == 0:
            raise SourceError(f"{path} is truncated: {len(view) - done} bytes are missing")
        done += got


class SparseMatrix(ChunkedMatrix):
    """A scipy.sparse matrix: CSR blocks of samples, CSC blocks of features."""

    def __init__(self, matrix: Any, labels: Labels | None = None) -> None:
        check_dtype(matrix.dtype)
        self.compressed: dict[int, Any] = {}
        format_ = matrix.format if matrix.format in ("csr", "csc") else "csr"
        self.matrix = matrix.asformat(format_)
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.labels = labels or Labels.plain(self.shape)
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
        values = matrix[:, start:stop] if axis else matrix[start:stop]
        self._count.chunks += 1
        self._count.nbytes += values.shape[0] * values.shape[1] * values.dtype.itemsize
        return values

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        return None

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return 1

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


def from_sparse(matrix: Any) -> ChunkedMatrix:
    """A matrix over any scipy.sparse array or matrix."""
    if not scipy.sparse.issparse(matrix) or matrix.ndim != 2:
        raise InvalidInputError(f"expected a 2-D sparse matrix, got {type(matrix).__name__}")
    return SparseMatrix(matrix)
