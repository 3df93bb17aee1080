"""Dask arrays: a block is one strip of the graph, and strips share no reads."""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import dask.threaded
import numpy as np
import scipy

from streampca.errors import InvalidInputError, InvalidTypeError, shorten
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.matrix.block import check_dtype
from streampca.matrix.entries import sparse_nbytes
from streampca.matrix.kinds import CHUNKS, as_scipy, is_sparse, refuse_gpu
from streampca.passes.cluster.workers import await_all, gathered
from streampca.passes.settings import setting
from streampca.sources.dask import sharing as dask_sharing
from streampca.sources.dask.chunks import Spot, check_numbers, check_shape, floats_of_masked
from streampca.sources.dask.graph import is_future
from streampca.sources.dask.sharing import MiB, Window
from streampca.sources.dask.strips import DaskReader
from streampca.sources.stacked import STEP_NBYTES, Dim, Index, StackedMatrix, sample_dims
from streampca.sources.tables.frames import frame_values, is_frame

LOOSE = 4  # of a window, malloc keeps one part in so many between chunks that differ by some rows


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
        loose = self._window(axis).nbytes // LOOSE
        return super().read_scratch_nbytes(axis, length) + self._kept(axis) + loose

    def _kept(self, axis: int) -> int:
        """Bytes that reading keeps besides a strip, or that come before the first one."""
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
        places = {
            (self.name, i.block, j.block): Piece(kept, n, (i, j), self.dtype)
            for n, (i, j) in enumerate(itertools.product(rows, columns))
        }
        read = self._compute(dim, index[dim], places)
        pieces = [kept.pieces[n] for n in range(len(places))]
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
        check_shape(chunk, tuple(spot.length for spot in self.spot))
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


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: only a few layers are examined where these show what strips share: elementwise operations,
    reads, operands of all strips, ``map_overlap`` with boundary "none". Otherwise the graph is
    materialised and analysed (about 0.2 ms per task). Nothing is computed before the first block.
    Bits: chunks that are computed, or lie on a cluster, make small blocks, so that workers share
    them and fold them where they lie. Stored chunks, and those in this process, make larger ones.
    Sums in float32 are grouped by blocks: an array persisted on a cluster gives the bits of a
    computed one, and differs by rounding from the path that it was read from.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, chunks of another kind than declared).
    """
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")
    check_dtype(np.dtype(array.dtype))
    return dask_matrix(array, sample_dims(array.shape, dim))


def dask_matrix(array: Any, dims: Sequence[int], labels: Labels | None = None) -> ChunkedMatrix:
    """The matrix for a Dask array of sparse, masked or plain chunks.

    dims : numbers of the sample dimensions.
    """
    refuse_gpu(array._meta, CHUNKS)
    if is_sparse(array._meta):
        matrix: ChunkedMatrix = SparseDaskMatrix(SparseDaskReader(array), dims)
        matrix.labels = labels or matrix.labels
        return matrix
    array = floats_of_masked(array)
    if joined := _in_one_dimension(array, dims):
        return DaskMatrix(DaskReader(joined[0]), (0,), labels=labels)
    return DaskMatrix(DaskReader(array), dims, labels=labels)


def _in_one_dimension(array: Any, dims: Sequence[int]) -> tuple[Any] | None:
    """The array with its sample dimensions as one, so that strips may end within a large step of
    the first; None where that is not needed, or a chunk holds two steps."""
    rest = [d for d in range(array.ndim) if d not in dims]
    step = array.dtype.itemsize * math.prod(n for d, n in enumerate(array.shape) if d != dims[0])
    outer = [array.chunks[d] for d in dims[:-1]]
    if not outer or step <= STEP_NBYTES or any(max(sizes, default=0) > 1 for sizes in outer):
        return None
    turned = array.transpose((*dims, *rest))
    return (turned.reshape((-1, *(array.shape[d] for d in rest))),)


# Futures of ``distributed`` as X: an array, or a frame, that was scattered or computed.

PIECE_NBYTES = 16 * 1024 * 1024  # rows of one future that are read at once


@dataclass(frozen=True)
class Description:
    """The description of a value by its worker."""

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the columns of a frame, of any type


def futures_in(source: Any) -> list[Any]:
    """The futures where X is one, or a list of some; else none."""
    if is_future(source):
        return [source]
    several = isinstance(source, (list, tuple)) and bool(source) and all(map(is_future, source))
    return list(source) if several else []


def from_futures(futures: list[Any], dim: Dim = None) -> ChunkedMatrix:
    """A matrix over arrays, or data frames, that lie on a cluster; several are joined by rows.

    Cost: one small task per future says what it is. The values stay where they are.
    Raises InvalidTypeError for futures of anything else, InvalidInputError where widths differ.
    """
    client = futures[0].client
    tasks = [client.submit(_describe, one, pure=False) for one in futures]
    await_all(client, tasks, what := "futures given as X", float(setting("read-timeout")))
    described: list[Description] = gathered(client, tasks, what)
    for future, one in zip(futures, described, strict=True):
        if one.dtype is None:
            raise InvalidTypeError(
                f"{future!r} is a future of {one.kind}; expected one of a NumPy array or a data "
                "frame. For a Dask array, give the array itself: PCA().fit(client.persist(X))."
            )
    if len(widths := sorted({str(one.shape[1:]) for one in described})) > 1:
        raise InvalidInputError(
            f"futures of arrays that do not fit under one another: rows of {shorten(widths)}"
        )
    if len(names := {one.names for one in described if one.names}) > 1 or (
        names and not all(one.names for one in described)
    ):
        raise InvalidInputError(
            "futures of data frames whose columns differ, or of frames and arrays; give all "
            "of them the same columns in one order, such as frame[columns]"
        )
    if any(len(one.shape) == 0 for one in described):
        raise InvalidInputError("a future of one number; expected one of rows and columns")
    matrix = from_dask(_joined(futures, described), dim)
    if described[0].columns and all(one.columns == described[0].columns for one in described):
        matrix.labels = Labels.plain(matrix.shape, list(described[0].columns), None)
    return matrix


def _joined(futures: list[Any], described: list[Description]) -> dask.array.Array:
    """One Dask array, in pieces of rows."""
    rest = described[0].shape[1:]
    dtype = np.result_type(*(one.dtype for one in described if one.dtype is not None))
    row = max(1, int(np.prod(rest)) * dtype.itemsize)
    name = "futures-" + dask.base.tokenize([one.key for one in futures])
    step = max(1, PIECE_NBYTES // row)
    graph: dict[Any, Any] = {}
    lengths: list[int] = []
    for future, one in zip(futures, described, strict=True):
        for start in range(0, max(1, one.shape[0]), step):
            number, stop = len(lengths), min(start + step, one.shape[0])
            source = (f"{name}-source", number)  # one for each piece: strips share nothing
            graph[source] = future
            graph[(name, number, *(0 for _ in rest))] = (_rows, source, start, stop, dtype.str)
            lengths.append(stop - start)
    chunks = (tuple(lengths), *((n,) for n in rest))
    return dask.array.Array(graph, name, chunks, dtype=dtype)


def _describe(value: Any) -> Description:
    """The description of a value, on the worker that holds it."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_frame(value):
        values = frame_values(value)
        columns = tuple(value.columns) if all(isinstance(c, str) for c in value.columns) else ()
        names = tuple(map(repr, value.columns))
        return Description(kind, values.shape, values.dtype, columns, names)
    if isinstance(value, np.ndarray):
        return Description(kind, value.shape, value.dtype)
    return Description(kind, (), None)


def _rows(value: Any, start: int, stop: int, dtype: str) -> Any:
    values = value[start:stop]
    return np.asarray(frame_values(values) if is_frame(values) else values, dtype)
