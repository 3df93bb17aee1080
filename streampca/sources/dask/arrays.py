"""Dask arrays: a block is one strip of the graph, and strips share no reads."""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array
import numpy as np
import scipy.sparse

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.matrix.entries import sparse_nbytes
from streampca.matrix.kinds import CHUNKS, as_scipy, check_dtype, is_sparse, refuse_gpu
from streampca.sources.dask import sharing as dask_sharing
from streampca.sources.dask.chunks import Spot, check_numbers, floats_of_masked
from streampca.sources.dask.sharing import MiB, Window
from streampca.sources.dask.strips import DaskReader
from streampca.sources.stacked import Index, StackedMatrix, check_rank


class DaskMatrix(StackedMatrix):
    """The strips of a Dask array as a matrix."""

    reader: DaskReader

    def _dim(self, axis: int) -> int:
        """The dimension that a pass along axis streams."""
        return self.dims[axis][0]

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> np.ndarray[Any, Any]:
        laid = copy.copy(self)
        laid.reader = self.reader.along(self._dim(axis))
        return StackedMatrix.read(laid, axis, start, stop, buffer)

    def chunk_edges(self, axis: int) -> np.ndarray[Any, Any] | None:
        """As the contract says. Refuses where strips of neither axis can be separated."""
        held, limit = self._kept(axis), dask_sharing.WINDOW_NBYTES
        if held > limit and self._held(1 - axis) > limit:
            raise InvalidInputError(
                f"chunks of this Dask graph do not line up: {held // MiB} MiB would have to be "
                "held at once so that none is computed twice. Write the array down first, "
                "X.to_zarr('scratch.zarr'), and use streampca.open('scratch.zarr'); or rechunk to "
                "multiples of the source's chunks."
            )
        return super().chunk_edges(axis)

    def _held(self, axis: int) -> int:
        """Bytes of the longest strip, and of what is kept for those that follow."""
        dim = self._dim(axis)
        step = self.nbytes // max(1, self.reader.shape[dim])
        return self._kept(axis) + step * max(self.reader.chunks[dim], default=0)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        return super().read_scratch_nbytes(axis, length) + self._kept(axis)

    def _kept(self, axis: int) -> int:
        """Bytes that reading keeps beside a strip, or that come before the first one."""
        dim = self._dim(axis)
        before = self.reader.sharing(dim).held if len(self.reader.chunks[dim]) > 1 else 0
        return max(self._window(axis).nbytes, before)

    def _window(self, axis: int) -> Window:
        return self.reader.window(self._dim(axis))

    def reach(self, axis: int) -> int:
        return self._window(axis).reach * max(1, self._inner(axis))

    def count_span(self, axis: int, edges: np.ndarray[Any, Any]) -> int:
        return self.count_chunks(axis, int(edges[0]), int(edges[-1])) if len(edges) > 1 else 0

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        index, _ = self._index(axis, start, stop)
        dim = self._dim(axis)
        return self.reader.count(dim, index[dim].start, index[dim].stop)

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        dim = self._dim(axis)
        before, after = self._index(axis, stop - 1, stop)[0], self._index(axis, start, start + 1)[0]
        return self.reader.count_shared(dim, before[dim].stop, after[dim].start)

    def prepare_reads(self, axis: int) -> ReadCount:
        if len(self.reader.chunks[self._dim(axis)]) == 1:
            return ReadCount()
        sharing = self.reader.sharing(self._dim(axis))
        chunks = sharing.prepared_chunks
        return ReadCount(chunks, int(chunks * sharing.leaf_nbytes))

    def prepared(self) -> ReadCount:
        return self.reader.prepared()


# --------------------------------------------------------------------------------------------------
# Dask arrays whose chunks are sparse: scipy.sparse, or ``sparse.COO``.


class SparseDaskReader(DaskReader):
    """Strips of a Dask graph of sparse chunks."""

    into_buffer = False

    def _check_meta(self, meta: Any) -> None:
        pass

    def read(self, index: Index, buffer: Any = None) -> Any:
        dim = self._dim(index)
        rows, columns = (self._spots(d, s) for d, s in enumerate(index))
        shape = tuple(s.stop - s.start for s in index)
        if not rows or not columns:
            return scipy.sparse.csr_array(shape, dtype=self.dtype)
        kept = Kept()
        keys = [(self.name, i.block, j.block) for i, j in itertools.product(rows, columns)]
        spots = list(itertools.product(rows, columns))
        places = {
            ("streampca-place", n): (Piece(kept, n, spots[n], self.dtype), key)
            for n, key in enumerate(keys)
        }
        read = self._compute(dim, index[dim], keys, places)
        pieces = [kept.pieces[n] for n in range(len(keys))]
        grid = [pieces[i : i + len(columns)] for i in range(0, len(pieces), len(columns))]
        values = scipy.sparse.block_array(grid, format="csc" if dim else "csr", dtype=self.dtype)
        self.tally.add(read + ReadCount(0, sparse_nbytes(values)))
        return values

    def scratch_nbytes(self, index: Index) -> int:
        cells = math.prod(s.stop - s.start for s in index)
        return int(2 * cells * (self.dtype.itemsize + 4))


class SparseDaskMatrix(DaskMatrix):
    """The strips of a 2-D Dask array of sparse chunks as a matrix.

    The number of entries of a chunk is not known before it is computed: the plan counts every cell.
    """

    sparse = True

    def __init__(self, reader: SparseDaskReader, sample_dims: Sequence[int] = (0,)) -> None:
        if len(reader.shape) != 2:
            raise InvalidInputError(f"sparse chunks of {len(reader.shape)} dimensions; expected 2")
        super().__init__(reader, sample_dims)
        self.loads = (*reader.loads, "numba")

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        index, _ = self._index(axis, start, stop)
        values: Any = self.reader.along(self._dim(axis)).read(index)
        values = values if self.dims[0] == (0,) else values.T
        return values.asformat("csc" if axis == 1 else "csr")

    def spans_nbytes(self, axis: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        cells = np.diff(np.asarray(edges, np.int64)) * self.shape[1 - axis]
        return np.asarray(cells * (self.dtype.itemsize + 4) + 4 * (np.diff(edges) + 1))


class Kept:
    """Chunks of one strip, by their number."""

    def __init__(self) -> None:
        self.pieces: dict[int, Any] = {}
        self.lock = threading.Lock()


@dataclass(frozen=True)
class Piece:
    """Keeps the part of a chunk that is being read."""

    kept: Kept
    number: int
    spot: tuple[Spot, Spot]
    dtype: np.dtype[Any]

    def __call__(self, chunk: Any) -> None:
        declared = tuple(s.length for s in self.spot)
        if tuple(chunk.shape) != declared:
            raise InvalidInputError(
                f"a chunk of this Dask array computed to shape {tuple(chunk.shape)} and was "
                f"declared as {declared}. State the real chunks: X.map_blocks(..., chunks=...)."
            )
        stored = _stored(chunk)
        check_numbers(stored, self.dtype)
        part = stored[self.spot[0].part, :][:, self.spot[1].part]
        with self.kept.lock:
            self.kept.pieces[self.number] = part.astype(self.dtype, copy=False)


def _stored(chunk: Any) -> Any:
    """A chunk as CSR, with NaN in masked cells."""
    refuse_gpu(chunk, CHUNKS)
    if is_sparse(chunk):
        return scipy.sparse.csr_array(as_scipy(chunk, CHUNKS))
    if np.ma.is_masked(chunk):
        chunk = chunk.astype(np.result_type(chunk.dtype, np.float32)).filled(np.nan)
    values = np.asarray(chunk)
    return values if values.dtype.kind not in "buif" else scipy.sparse.csr_array(values)


Dim = Hashable | Sequence[Hashable] | None


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: only a few layers are examined where these show what strips share: elementwise operations,
    reads, operands of all strips, ``map_overlap`` with boundary "none". Otherwise the graph is
    materialised and analysed (about 0.2 ms per task). Nothing is computed before the first block.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, chunks of another kind than declared).
    """
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")

    check_dtype(np.dtype(array.dtype))
    if dim is None:
        check_rank(array.shape)
        return dask_matrix(array, (0,))
    wanted = list(dim) if isinstance(dim, Sequence) and not isinstance(dim, str) else [dim]
    found = [
        int(d) % array.ndim
        for d in wanted
        if isinstance(d, (int, np.integer)) and -array.ndim <= d < array.ndim
    ]
    if not found or len(set(found)) != len(wanted) or len(found) == array.ndim:
        raise InvalidInputError(
            f"dim={dim!r}; expected sample dimension numbers of a Dask array of shape "
            f"{array.shape}, each once and not all, such as dim=0"
        )
    return dask_matrix(array, found)


def dask_matrix(array: Any, dims: Sequence[int], labels: Labels | None = None) -> ChunkedMatrix:
    """The matrix for a Dask array of sparse, masked or plain chunks.

    dims : numbers of the sample dimensions.
    """
    refuse_gpu(array._meta, CHUNKS)
    if is_sparse(array._meta):
        matrix: ChunkedMatrix = SparseDaskMatrix(SparseDaskReader(array), dims)
        matrix.labels = labels or matrix.labels
        return matrix
    return DaskMatrix(DaskReader(floats_of_masked(array)), dims, labels=labels)
