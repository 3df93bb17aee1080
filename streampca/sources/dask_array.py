"""Any Dask array: a block is one strip of its graph, and nothing is read again for the next."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array
import dask.local
import dask.threaded
import numpy as np
import scipy.sparse
import zarr
from dask.sizeof import sizeof

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import ChunkedMatrix, ReadCount
from streampca.sources import dask_graph
from streampca.sources.dask_graph import Graph, Key, MiB, Sharing, find_sharing, low_level
from streampca.sources.stacked import Index, Reader, StackedMatrix, check_dtype, check_rank
from streampca.sources.zarr_stamp import stamp

Dim = Hashable | Sequence[Hashable] | None

PREPARE_THREADS = 2


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: the graph is analysed (about 0.1 ms per task); nothing is
    computed before the first block.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, data frames, chunks of another kind than declared).
    """
    if hasattr(array, "to_dask_array"):
        raise InvalidTypeError(
            f"{type(array).__module__}.{type(array).__name__} is a Dask data frame; expected a "
            "Dask array. Use X = X.to_dask_array(lengths=True)."
        )
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")
    from streampca.sources.dask_sparse import (  # it builds on this module
        SparseDaskMatrix,
        SparseDaskReader,
        is_sparse_chunk,
    )

    def made(dims: Sequence[int]) -> ChunkedMatrix:
        if is_sparse_chunk(array._meta):
            return SparseDaskMatrix(SparseDaskReader(array), dims)
        return DaskMatrix(DaskReader(array), dims)

    if dim is None:
        check_rank(array.shape)
        return made((0,))
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
    return made(found)


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
        here, there = (self.reader.sharing(self._dim(a)) for a in (axis, 1 - axis))
        held, other = here.merged * self._step(axis), there.longest * self._step(1 - axis)
        if min(held, other) > dask_graph.MERGED_NBYTES:
            raise InvalidInputError(
                f"chunks of this Dask graph do not line up: {held // MiB} MiB would have to be "
                "held at once so that none is computed twice. Write the array down first, "
                "X.to_zarr('scratch.zarr'), and use streampca.open('scratch.zarr'); or rechunk to "
                "multiples of the source's chunks."
            )
        return super().chunk_edges(axis)

    def _step(self, axis: int) -> int:
        """Bytes of one step along the streamed dimension."""
        return self.nbytes // max(1, self.reader.shape[self._dim(axis)])

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        index, _ = self._index(axis, start, stop)
        dim = self._dim(axis)
        return self.reader.count(dim, index[dim].start, index[dim].stop)

    def prepare_reads(self, axis: int) -> ReadCount:
        sharing = self.reader.sharing(self._dim(axis))
        chunks = sharing.prepared_chunks
        return ReadCount(chunks, int(chunks * sharing.leaf_nbytes))

    def prepared(self) -> ReadCount:
        return self.reader.prepared()


class DaskReader(Reader):
    """Strips of a Dask graph, each computed in the thread that reads it.

    ``reads`` counts the tasks without dependencies that strips executed, and the bytes that
    they returned; ``prepared`` the same for the operands shared by strips.
    """

    into_buffer = True

    loads = ("dask",)

    def __init__(self, array: Any) -> None:
        if any(math.isnan(n) for n in array.shape):
            raise InvalidInputError(
                f"the chunk sizes of this Dask array are not known (shape {array.shape}). "
                "Use X = X.compute_chunk_sizes(), which reads it once."
            )
        check_dtype(np.dtype(array.dtype))
        self._check_meta(array._meta)
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.name = array.name
        self.chunks = tuple(tuple(int(n) for n in sizes) for sizes in array.chunks)
        self.graph = low_level(array)
        self.dim: int | None = None  # streamed; told by the matrix
        self._sharing: dict[int, Sharing] = {}
        self._ready: dict[int, Graph] = {}
        self._kept: dict[Key, Any] = {}
        self._cost: dict[str, ReadCount] = {"strips": ReadCount(), "prepared": ReadCount()}
        self._lock = threading.RLock()
        self._counting = threading.Lock()

    def _check_meta(self, meta: Any) -> None:
        _check_chunk(meta)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_lock"], state["_counting"]
        return {**state, "_cost": {name: ReadCount() for name in self._cost}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._counting = threading.RLock(), threading.Lock()

    def along(self, dim: int) -> DaskReader:
        """The same reader, sharing everything, told which dimension is streamed."""
        view = object.__new__(type(self))
        view.__dict__ = {**self.__dict__, "dim": dim}
        return view

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(s.stop - s.start for s in index)
        size = math.prod(shape) * self.dtype.itemsize
        raw = buffer[:size] if buffer is not None and len(buffer) >= size else np.empty(size, "u1")
        out = raw.view(self.dtype).reshape(shape)
        if not size:
            return out
        partial = [d for d, s in enumerate(index) if s.stop - s.start < self.shape[d]]
        dim = self.dim if self.dim is not None else next(iter(partial), 0)
        graph = self._prepare(dim)
        spots = [self._spots(d, s) for d, s in enumerate(index)]
        places: dict[Any, Any] = {}
        keys: list[Key] = []
        for spot in itertools.product(*spots):
            key = (self.name, *(s.block for s in spot))
            place = Place(
                out,
                tuple(s.into for s in spot),
                tuple(s.part for s in spot),
                tuple(s.length for s in spot),
            )
            places["streampca-place", len(keys)] = (place, key)
            keys.append(key)
        nodes = graph.cull(keys)
        leaves = graph.count_reads(nodes)
        dask.local.get_sync({**nodes, **places}, list(places))
        self._add("strips", ReadCount(leaves, out.nbytes))
        return out

    def edges(self, dim: int) -> np.ndarray[Any, Any]:
        return self.sharing(dim).edges

    def count(self, dim: int, start: int, stop: int) -> int:
        """How many reads the strips that hold [start, stop) execute."""
        sharing, ends = self.sharing(dim), np.cumsum((0, *self.chunks[dim]))
        first = int(np.searchsorted(ends, start, "right")) - 1
        last = int(np.searchsorted(ends, stop, "left"))
        return sharing.count(first, last)

    def part(self, dim: int, start: int, stop: int) -> Reader:
        """Only the graph of these strips, with shared operands already computed."""
        graph = self._prepare(dim)
        rest = [range(len(sizes)) for sizes in self.chunks]
        rest[dim] = range(*_covering(self.chunks[dim], start, stop))
        keys = [(self.name, *block) for block in itertools.product(*rest)]
        smaller = copy.copy(self)
        smaller.graph = Graph(graph.cull(keys))
        smaller._ready, smaller._kept = {dim: smaller.graph}, {}
        smaller._sharing = {dim: self.sharing(dim).bare()}
        return smaller

    def fingerprint(self) -> str:
        """Of the name that Dask gives the graph: the same array opened again may differ."""
        text = repr((self.name, self.shape, str(self.dtype), self.chunks))
        return hashlib.sha256(text.encode()).hexdigest()

    def content_stamp(self) -> str:
        """Also of the files of every Zarr array that the graph reads."""
        digest = hashlib.sha256(self.fingerprint().encode())
        for node in self.graph.nodes.values():
            if (stored := _zarr_array(node)) is not None:
                digest.update(stamp(stored.store, stored.path).encode())
        return digest.hexdigest()

    def reads(self) -> ReadCount:
        with self._counting:
            return copy.copy(self._cost["strips"])

    def prepared(self) -> ReadCount:
        """What was read for shared operands: tasks, and estimated decoded bytes."""
        with self._counting:
            return copy.copy(self._cost["prepared"])

    def restart_counts(self) -> None:
        with self._counting:
            self._cost.update({name: ReadCount() for name in self._cost})

    def scratch_nbytes(self, index: Index) -> int:
        # source chunks and one intermediate of the strip, before they are placed
        return 2 * math.prod(s.stop - s.start for s in index) * self.dtype.itemsize

    def sharing(self, dim: int) -> Sharing:
        """What strips along dim share; found once."""
        with self._lock:
            if dim not in self._sharing:
                counts = [range(len(sizes)) for sizes in self.chunks]
                strips = []
                for i in counts[dim]:
                    blocks = itertools.product(*counts[:dim], (i,), *counts[dim + 1 :])
                    strips.append([(self.name, *block) for block in blocks])
                nbytes = math.prod(self.shape) * self.dtype.itemsize
                self._sharing[dim] = find_sharing(self.graph, strips, self.chunks[dim], nbytes)
            return self._sharing[dim]

    def _prepare(self, dim: int) -> Graph:
        """The graph with the operands that strips along dim share replaced by their values."""
        with self._lock:
            if dim in self._ready:
                return self._ready[dim]
            sharing = self.sharing(dim)
            values = {k: v for k, v in self._kept.items() if k in sharing.cuts}
            room = Room(dask_graph.PREPARED_NBYTES)
            for stage in sharing.stages:
                if not (todo := [k for k in stage if k not in values]):
                    continue
                graph = self.graph.fixed(values)
                nodes = graph.cull(todo)
                wanted: dict[Any, Any] = {}
                wanted |= {("streampca-keep", i): (room, k) for i, k in enumerate(todo)}
                got = dask.threaded.get(
                    {**nodes, **wanted}, list(wanted), num_workers=PREPARE_THREADS
                )
                values.update(zip(todo, got, strict=True))
                leaves = graph.count_reads(nodes)
                self._add("prepared", ReadCount(leaves, int(leaves * sharing.leaf_nbytes)))
            self._kept.update({k: values[k] for k in sharing.cuts})
            self._ready[dim] = self.graph.fixed({k: values[k] for k in sharing.cuts})
            return self._ready[dim]

    def _spots(self, dim: int, wanted: slice) -> list[Spot]:
        """The chunks along one dimension that hold ``wanted``."""
        ends = np.cumsum((0, *self.chunks[dim]))
        spots = []
        for block in range(*_covering(self.chunks[dim], wanted.start, wanted.stop)):
            first, last = int(ends[block]), int(ends[block + 1])
            low, high = max(first, wanted.start), min(last, wanted.stop)
            if low < high:
                into = slice(low - wanted.start, high - wanted.start)
                spots.append(Spot(block, into, slice(low - first, high - first), last - first))
        return spots

    def _add(self, name: str, count: ReadCount) -> None:
        with self._counting:
            self._cost[name] = self._cost[name] + count


@dataclass(frozen=True)
class Spot:
    """One chunk along one dimension: its number, where it goes, which part of it, its length."""

    block: int
    into: slice
    part: slice
    length: int


@dataclass(frozen=True)
class Place:
    """Writes a chunk into the array that is being read, so that the graph can let go of it."""

    out: np.ndarray[Any, Any]
    into: tuple[slice, ...]
    part: tuple[slice, ...]
    shape: tuple[int, ...]

    def __call__(self, chunk: Any) -> None:
        _check_chunk(chunk)
        values = np.asarray(chunk)
        if values.shape != self.shape:
            raise InvalidInputError(
                f"a chunk of this Dask array computed to shape {values.shape} and was declared as "
                f"{self.shape}. State the real chunks: X.map_blocks(..., chunks=...)."
            )
        if not np.can_cast(values.dtype, self.out.dtype, "same_kind"):
            raise InvalidTypeError(
                f"a chunk of this Dask array computed to dtype {values.dtype}, declared as "
                f"{self.out.dtype}. State it: X.map_blocks(..., dtype={str(values.dtype)!r})."
            )
        self.out[self.into] = values[self.part]


class Room:
    """Passes results on while all of them together fit."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> Any:
        with self._lock:
            self.left -= int(sizeof(value))
            if self.left < 0:
                raise InvalidInputError(
                    f"the operands that all strips of this Dask graph share are larger than "
                    f"{dask_graph.PREPARED_NBYTES // MiB} MiB and cannot be kept. Write the array "
                    "down first, X.to_zarr('scratch.zarr'), and use "
                    "streampca.open('scratch.zarr'); or, if it fits into memory, X = X.persist()."
                )
        return value


def _zarr_array(node: Any) -> Any:
    """The Zarr array that a node of a graph is, or that xarray's wrappers around it hold."""
    for _ in range(8):
        if node is None or isinstance(node, zarr.Array):
            return node
        inner = getattr(node, "_array", None)
        node = getattr(node, "array", None) if inner is None else inner
    return None


def _covering(sizes: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """Numbers (first, after the last) of the chunks that hold [start, stop)."""
    ends = np.cumsum((0, *sizes))
    return int(np.searchsorted(ends, start, "right")) - 1, int(np.searchsorted(ends, stop, "left"))


def _check_chunk(chunk: Any) -> None:
    """Refuse chunks that are not plain arrays."""
    if scipy.sparse.issparse(chunk) or hasattr(chunk, "todense"):
        raise InvalidTypeError(
            f"chunks of this Dask array are {type(chunk).__name__}; expected NumPy arrays. "
            "Use X.map_blocks(lambda block: block.todense()), or pass one scipy.sparse matrix."
        )
    if isinstance(chunk, np.ma.MaskedArray):
        raise InvalidTypeError(
            "chunks of this Dask array are masked arrays; expected NaN for what is missing. "
            "Use dask.array.ma.filled(X.astype('float64'), numpy.nan)."
        )
