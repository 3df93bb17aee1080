"""Sparse matrices: of SciPy in memory, and compressed in a store, read by slices of lines."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import scipy

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import ChunkedMatrix, Labels, Location, ReadCount
from streampca.matrix.block import check_dtype, refuse_complex
from streampca.matrix.entries import canonical, check_compressed, lines_of, spans_of, sparse_nbytes
from streampca.matrix.kinds import as_scipy
from streampca.sources.sparse.shared_chunks import SharedChunks, read_entries
from streampca.sources.stacked import Reader, Tally, crossed, sample_dims

# Compressed sparse matrices in a store: values, indices and indptr, read by slices of lines.

PIECE_NBYTES = 16 << 20  # of lines that are read at a time where all are needed
ALIGNED = 64  # bytes: alignment of the indices after the values in a buffer
WORDS = ("samples", "features")


class CompressedMatrix(ChunkedMatrix):
    """CSR (axis 0: its lines are samples) or CSC (axis 1) in a store.

    data, indices : readers of 1-D arrays.  indptr : (lines + 1,), in memory.
    where : name of the source in messages.

    Blocks along the stored axis take one read of each array. A pass in one process decodes each
    chunk once; the tasks of a cluster read chunks that straddle two of them for both. The other
    axis cannot be streamed: a block of it needs the whole matrix, and the plan counts it so.
    """

    sparse = True
    into_buffer = True

    def __init__(
        self,
        data: Reader,
        indices: Reader,
        indptr: Any,
        axis: int,
        shape: tuple[int, int],
        labels: Labels | None = None,
        where: str = "the sparse matrix",
    ) -> None:
        check_dtype(data.dtype)
        refuse_complex(data.dtype, fit="ComplexEOF(2).fit(X.toarray())")
        self.data, self.indices, self.stored, self.where = data, indices, axis, where
        self.indptr = _checked(indptr, shape[axis], data, indices, where)
        self.shape, self.dtype = (int(shape[0]), int(shape[1])), data.dtype
        self.labels = labels or Labels.plain(self.shape)
        self.resident_nbytes = self.indptr.nbytes
        self.loads = tuple(dict.fromkeys(("numba", *data.loads)))
        self.entries = int(self.indptr[-1])
        self.first = 0  # the first line of indptr, in a part
        small = max(self.shape) < 2**31
        self.index_dtype = np.dtype(np.int32 if small else np.int64)
        self.made = Tally()
        self.shared: SharedChunks | None = None  # of the blocks of a pass
        self.origin: Any = None  # source of a scratch copy; keeps its folder alive
        self.folder: Any = None

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == self.stored:
            block = self._lines(start, stop, buffer)
            self.made.add(ReadCount(nbytes=sparse_nbytes(block)))
            return block
        pieces = [self._lines(int(a), int(b)) for a, b in pairwise(self._pieces())]
        cut = [piece[:, start:stop] if axis == 1 else piece[start:stop] for piece in pieces]
        stack = scipy.sparse.vstack if axis == 1 else scipy.sparse.hstack
        block = stack(cut, format="csc" if axis == 1 else "csr", dtype=self.dtype)
        self.made.add(ReadCount(nbytes=sparse_nbytes(block)))
        return block

    def _lines(self, start: int, stop: int, buffer: Any = None) -> Any:
        """CSR or CSC of some lines with checked indices, in the buffer as far as it fits."""
        pointers = self.indptr[start - self.first : stop - self.first + 1]
        low, high = int(pointers[0]), int(pointers[-1])
        length = self.shape[1 - self.stored]
        values_nbytes = (high - low) * self.dtype.itemsize
        behind = None if buffer is None else buffer[-(-values_nbytes // ALIGNED) * ALIGNED :]
        read = read_entries if self.shared is None else self.shared.read
        data, indices = np.empty(0, self.dtype), np.empty(0, self.index_dtype)
        if high > low:
            data = read(self.data, low, high, buffer)
            indices = read(self.indices, low, high, behind)
        lines = f"{self.where}, {WORDS[self.stored]} {start} to {stop - 1}"
        inside = pointers - low
        try:
            check_compressed(indices, inside, length, lines)
        except InvalidInputError as error:
            raise SourceError(str(error)) from None
        narrow = self.index_dtype if high - low < 2**31 else np.dtype(np.int64)
        arrays = (data, indices.astype(narrow, copy=False), inside.astype(narrow))
        if self.stored:
            return scipy.sparse.csc_array(arrays, shape=(length, stop - start))
        return scipy.sparse.csr_array(arrays, shape=(stop - start, length))

    def _pieces(self) -> np.ndarray[Any, Any]:
        """Edges between the lines that are read at a time where all are needed."""
        ends = self.first + len(self.indptr) - 1
        step = max(1, int(PIECE_NBYTES // max(1.0, self.row_nbytes(self.stored))))
        return np.append(np.arange(self.first, ends, step), ends)

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        if axis != self.stored:
            return np.array([0, self.shape[axis]])
        known = [e for e in (self.data.edges(0), self.indices.edges(0)) if e is not None]
        if not known:
            return None
        # of the larger chunks, so that no block is smaller than one
        longest = max(known, key=lambda edges: int(np.diff(edges).max(initial=0)))
        lines = self.first + np.searchsorted(self.indptr, longest, side="left")
        return np.unique(
            np.clip(np.concatenate([[0], lines, [self.shape[axis]]]), 0, self.shape[axis])
        )

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        if axis != self.stored:
            return sum(
                self.count_chunks(self.stored, int(a), int(b)) for a, b in pairwise(self._pieces())
            )
        low, high = (int(self.indptr[i - self.first]) for i in (start, stop))
        return _crossed(self.data, low, high) + _crossed(self.indices, low, high)

    def count_pass(self, axis: int, spans: Sequence[np.ndarray[Any, Any]]) -> int:
        if axis != self.stored:
            return super().count_pass(axis, spans)
        low, high = (int(self.indptr[i - self.first]) for i in (spans[0][0], spans[-1][-1]))
        total = 0
        for one in (self.data, self.indices):
            if one.edges(0) is None:  # one read for each block
                total += sum(
                    int(np.count_nonzero(np.diff(self.indptr[e - self.first]))) for e in spans
                )
            else:
                total += _crossed(one, low, high)
        return total

    def streamed(self, axis: int, edges: np.ndarray[Any, Any]) -> ChunkedMatrix:
        laid = cast("CompressedMatrix", super().streamed(axis, edges))
        if axis == self.stored:
            laid.shared = SharedChunks(self.indptr[np.asarray(edges) - self.first])
        return laid

    def row_nbytes(self, axis: int) -> float:
        return (
            self._entry_nbytes * float(self.indptr[-1] - self.indptr[0]) / max(1, self.shape[axis])
        )

    @property
    def _entry_nbytes(self) -> int:
        return int(self.dtype.itemsize + self.index_dtype.itemsize)

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        edges = np.asarray(edges, np.int64)
        sizes = (self.dtype.itemsize, self.index_dtype.itemsize)
        if axis == self.stored:
            inside = np.clip(edges - self.first, 0, len(self.indptr) - 1)  # a part has only its own
            pointers = self.indptr[inside]
            entries = np.diff(pointers) * sum(sizes)
            return np.asarray(entries + (np.diff(edges) + 1) * self.index_dtype.itemsize)
        whole = int(spans_of(self.indptr, np.array([0, len(self.indptr) - 1]), *sizes)[0])
        return np.where(np.diff(edges) > 0, whole, 0)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        most = self._most_entries(length) if axis == self.stored else int(self.indptr[-1])
        part = (slice(0, most),)
        scratch = 0
        for one in (self.data, self.indices):
            scratch += one.scratch_nbytes(part) + one.dtype.itemsize * _longest(one)
            # what does not decode into the block is copied to it
            scratch += 0 if one.into_buffer else one.dtype.itemsize * most
        wide = self.indices.dtype.itemsize * most * (self.indices.dtype != self.index_dtype)
        # the whole matrix, before it is converted
        whole = 0 if axis == self.stored else 2 * most * self._entry_nbytes
        return scratch + wide + whole

    def _most_entries(self, length: int) -> int:
        length = min(length, len(self.indptr) - 1)
        return int(
            np.max(self.indptr[length:] - self.indptr[: len(self.indptr) - length], initial=0)
        )

    def advice(self, axis: int) -> str:
        if axis == self.stored:
            return ""
        kind, other = WORDS[self.stored], ("tocsc", "tocsr")[self.stored]
        return (
            f"{self.where} is stored by {kind}, so that blocks of {WORDS[axis]} cannot be read: "
            f"choose a solver that streams {kind} (solver='randomized' or "
            f"{('scatter', 'gram')[self.stored]!r}), or store it the other way: X.{other}()."
        )

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        smaller.made, smaller.shared = Tally(), None
        if axis == self.stored:
            if self.shared is not None:
                smaller.shared = SharedChunks(self.shared.bounds)
            smaller.indptr = self.indptr[start - self.first : stop - self.first + 1].copy()
            smaller.first = start
        return smaller

    def fingerprint(self) -> str:
        if self.origin is not None:
            return self._digest(str(self.origin))
        return self._digest(self.data.fingerprint(), self.indices.fingerprint())

    def content_stamp(self) -> str:
        if self.origin is not None:
            return self.fingerprint()
        return self._digest(self.data.content_stamp(), self.indices.content_stamp())

    def _digest(self, *parts: str) -> str:
        text = f"{parts} {self.stored} {self.shape} {self.entries} {self.missing_value}"
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        if self.origin is not None:
            return (str(self.origin[0]),)
        return tuple(dict.fromkeys((*self.data.paths(), *self.indices.paths())))

    def locations(self) -> tuple[Location, ...]:
        return (*self.data.locations(), *self.indices.locations())

    def reads(self) -> ReadCount:
        below = self.data.reads() + self.indices.reads()
        return ReadCount(below.chunks, self.made.count.nbytes, below.stored)

    def restart_counts(self) -> None:
        self.made.restart()
        self.data.restart_counts()
        self.indices.restart_counts()


def _longest(reader: Reader) -> int:
    """Entries of the longest chunk: one is kept for the next block."""
    edges = reader.edges(0)
    return 0 if edges is None or len(edges) <= 2 else int(np.diff(edges).max(initial=0))


def _crossed(reader: Reader, low: int, high: int) -> int:
    """How many chunks of a 1-D array hold its entries [low, high)."""
    edges = reader.edges(0)
    return int(high > low) if edges is None else crossed(edges, low, high)


def _checked(
    indptr: Any, lines: int, data: Reader, indices: Reader, where: str
) -> np.ndarray[Any, Any]:
    """indptr as int64. Raises SourceError where it does not match these arrays."""
    pointers = np.asarray(indptr)
    if pointers.dtype.kind not in "iu" or pointers.ndim != 1 or len(pointers) != lines + 1:
        raise SourceError(
            f"{where}: indptr is {pointers.dtype} of shape {pointers.shape}, expected {lines + 1} "
            "integers; the file is damaged"
        )
    pointers = pointers.astype(np.int64)
    wrong = np.flatnonzero(np.diff(pointers) < 0)
    if wrong.size or pointers[0] != 0:
        at = int(wrong[0]) if wrong.size else 0
        raise SourceError(
            f"{where}: indptr begins at {int(pointers[0])} and falls {wrong.size} times (first "
            f"after line {at}); expected 0, then never less; the file is damaged"
        )
    sizes = data.shape[0], indices.shape[0]
    if sizes[0] != sizes[1] or pointers[-1] > sizes[0]:
        raise SourceError(
            f"{where}: indptr ends at {int(pointers[-1])}, and there are {sizes[0]} values and "
            f"{sizes[1]} indices; the file is cut off or damaged"
        )
    return pointers


# Matrices of scipy.sparse in memory.

SAMPLED_NBYTES = 1 << 16


class SparseMatrix(ChunkedMatrix):
    """A scipy.sparse matrix: CSR blocks of samples, CSC blocks of features."""

    sparse = True
    loads = ("numba",)

    def __init__(self, matrix: Any, labels: Labels | None = None) -> None:
        check_dtype(matrix.dtype)
        refuse_complex(matrix.dtype, fit="ComplexEOF(2).fit(X.toarray())")
        self.compressed: dict[int, Any] = {}
        self.in_order: int | None = None  # the axis along which it serves as it is
        self.pointers: dict[int, Any] = {}
        format_ = matrix.format if matrix.format in ("csr", "csc") else "csr"
        self.matrix = matrix.asformat(format_)
        self.given_nbytes = self.carried_nbytes = sparse_nbytes(self.matrix)
        self.shape = matrix.shape
        self.dtype = matrix.dtype
        self.labels = labels or Labels.plain(self.shape)
        self.first = (0, 0)  # start of a part, by axis
        self.tally = Tally()

    def _along(self, axis: int) -> Any:
        """The matrix compressed along axis, its lines in order; made and checked once."""
        if self.in_order == axis:
            return self.matrix
        if axis not in self.compressed:
            made = canonical(self.matrix, axis)
            if made is self.matrix:
                self.in_order = axis
                return made
            self.compressed[axis] = made
        return self.compressed[axis]

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        matrix = self._along(axis)
        values = lines_of(matrix, start - self.first[axis], stop - self.first[axis])
        self.tally.add(ReadCount(1, sparse_nbytes(values)))
        return values

    def _pointers(self, axis: int) -> np.ndarray[Any, Any]:
        """indptr along either axis, without converting the matrix."""
        if self.matrix.format == ("csc" if axis == 1 else "csr"):
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
        """Bytes of the conversion, where the matrix is compressed along the other axis, or its
        lines are not in order."""
        converted = self.matrix.format != ("csc" if axis == 1 else "csr")
        converted = converted or not self.matrix.has_canonical_format
        return sparse_nbytes(self.matrix) if converted else 0

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        return None

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return 1

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        smaller = copy.copy(self)
        inside = slice(start - self.first[axis], stop - self.first[axis])
        smaller.matrix = lines_of(self._along(axis), inside.start, inside.stop)
        smaller.first = (self.first[0], start) if axis == 1 else (start, self.first[1])
        smaller.compressed, smaller.pointers, smaller.tally = {}, {}, Tally()
        smaller.in_order = axis
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
    """A matrix over a sparse array of SciPy or of ``sparse``.  dim : 1 where columns are samples.

    Raises InvalidInputError (dimensions) or InvalidTypeError (dtype, fill value).
    """
    matrix = as_scipy(matrix)
    return SparseMatrix(matrix if sample_dims(matrix.shape, dim) == (0,) else matrix.T)
