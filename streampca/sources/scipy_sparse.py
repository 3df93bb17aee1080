"""scipy.sparse matrices in memory."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.matrix.entries import sparse_nbytes
from streampca.matrix.kinds import as_scipy, check_dtype
from streampca.sources.tally import Tally

SAMPLED_NBYTES = 1 << 16


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
        self.given_nbytes = self.carried_nbytes = sparse_nbytes(self.matrix)
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.labels = labels or Labels.plain(self.shape)
        self.first = (0, 0)  # where a part begins, by axis
        self.tally = Tally()

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
        self.tally.add(ReadCount(1, sparse_nbytes(values)))
        return values

    def _pointers(self, axis: int) -> np.ndarray[Any, Any]:
        """indptr along either axis; the matrix is not converted for it."""
        if self.matrix.format == ("csc" if axis else "csr"):
            return np.asarray(self.matrix.indptr)
        if axis not in self.pointers:
            lines = self.matrix.shape[axis]
            counts = np.bincount(self.matrix.indices, minlength=lines)
            self.pointers[axis] = np.concatenate([[0], np.cumsum(counts)])
        result: np.ndarray[Any, Any] = self.pointers[axis]
        return result

    def row_nbytes(self, axis: int) -> float:
        whole = self.spans_nbytes(axis, np.array([0, self.shape[axis]]))
        return float(whole[0]) / max(1, self.shape[axis])

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        pointers, index = self._pointers(axis), self.matrix.indices.itemsize
        edges = np.clip(np.asarray(edges) - self.first[axis], 0, len(pointers) - 1)
        entries = np.diff(pointers[edges].astype(np.int64))
        result: np.ndarray[Any, Any] = (
            entries * (self.matrix.data.itemsize + index) + (np.diff(edges) + 1) * index
        )
        return result

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
        smaller.compressed, smaller.pointers, smaller.tally = {}, {}, Tally()
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
        return self.tally.count

    def restart_counts(self) -> None:
        self.tally.restart()


def from_sparse(matrix: Any, dim: Any = None) -> ChunkedMatrix:
    """A matrix over any sparse array of scipy or of ``sparse``; dim=1: its columns are the samples.

    Raises InvalidInputError (dimensions) or InvalidTypeError (dtype, fill value).
    """
    matrix = as_scipy(matrix)
    if matrix.ndim != 2:
        raise InvalidInputError(f"expected a 2-D sparse matrix, got {type(matrix).__name__}")
    if dim not in (None, 0, 1) or isinstance(dim, bool):
        raise InvalidInputError(f"dim={dim!r}; expected 0 (rows are samples) or 1 (columns are)")
    return SparseMatrix(matrix.T if dim == 1 else matrix)
