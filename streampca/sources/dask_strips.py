"""The strips of a Dask graph: each is computed in the thread that reads it, none twice."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import threading
from typing import Any

import dask.local
import dask.threaded
import numpy as np
import zarr

from streampca.errors import InvalidInputError
from streampca.matrix import Location, ReadCount
from streampca.sources import dask_sharing
from streampca.sources.dask_chunks import Place, Room, Spot, check_chunk, covering
from streampca.sources.dask_graph import Graph, Key, low_level
from streampca.sources.dask_locations import locations_of
from streampca.sources.dask_sharing import MiB, Sharing, find_sharing
from streampca.sources.stacked import Index, Reader, StackedMatrix, check_dtype, room_for
from streampca.sources.tally import Tally
from streampca.sources.zarr_stamp import stamp

PREPARE_THREADS = 2


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
        if min(held, other) > dask_sharing.MERGED_NBYTES:
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
        self._places: tuple[Location, ...] | None = None
        self.tally, self.preparing = Tally(), Tally()
        self._lock = threading.RLock()

    def _check_meta(self, meta: Any) -> None:
        check_chunk(meta)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_lock"]
        return {**state, "_places": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def along(self, dim: int) -> DaskReader:
        """The same reader, sharing everything, told which dimension is streamed."""
        view = object.__new__(type(self))
        view.__dict__ = {**self.__dict__, "dim": dim}
        return view

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(s.stop - s.start for s in index)
        out = room_for(shape, self.dtype, buffer)
        if not out.size:
            return out
        graph = self._prepare(self._dim(index))
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
        self.tally.add(ReadCount(compute(graph, keys, places), out.nbytes))
        return out

    def _dim(self, index: Index) -> int:
        """The streamed dimension: the one that was told, or the first that is cut."""
        partial = (d for d, s in enumerate(index) if s.stop - s.start < self.shape[d])
        return self.dim if self.dim is not None else next(partial, 0)

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
        rest[dim] = range(*covering(self.chunks[dim], start, stop))
        keys = [(self.name, *block) for block in itertools.product(*rest)]
        smaller = copy.copy(self)
        smaller.tally, smaller.preparing = Tally(), Tally()
        smaller.graph = Graph(graph.cull(keys))
        smaller._ready, smaller._kept = {dim: smaller.graph}, {}
        smaller._places = self._places
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

    def locations(self) -> tuple[Location, ...]:
        if self._places is None:
            self._places = locations_of(self.graph.nodes.values())
        return self._places

    def prepared(self) -> ReadCount:
        """What was read for shared operands: tasks, and estimated decoded bytes."""
        return self.preparing.count

    def restart_counts(self) -> None:
        super().restart_counts()
        self.preparing.restart()

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
            room = Room(dask_sharing.PREPARED_NBYTES)
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
                self.preparing.add(ReadCount(leaves, int(leaves * sharing.leaf_nbytes)))
            self._kept.update({k: values[k] for k in sharing.cuts})
            self._ready[dim] = self.graph.fixed({k: values[k] for k in sharing.cuts})
            return self._ready[dim]

    def _spots(self, dim: int, wanted: slice) -> list[Spot]:
        """The chunks along one dimension that hold ``wanted``."""
        ends = np.cumsum((0, *self.chunks[dim]))
        spots = []
        for block in range(*covering(self.chunks[dim], wanted.start, wanted.stop)):
            first, last = int(ends[block]), int(ends[block + 1])
            low, high = max(first, wanted.start), min(last, wanted.stop)
            if low < high:
                into = slice(low - wanted.start, high - wanted.start)
                spots.append(Spot(block, into, slice(low - first, high - first), last - first))
        return spots


def compute(graph: Graph, keys: list[Key], places: dict[Any, Any]) -> int:
    """Execute here the part of a graph that ``keys`` need, and the tasks that place them.

    Returns how many tasks without dependencies there were.
    """
    nodes = graph.cull(keys)
    leaves = graph.count_reads(nodes)
    dask.local.get_sync({**nodes, **places}, list(places))
    return leaves


def _zarr_array(node: Any) -> Any:
    """The Zarr array that a node of a graph is, or that xarray's wrappers around it hold."""
    for _ in range(8):
        if node is None or isinstance(node, zarr.Array):
            return node
        inner = getattr(node, "_array", None)
        node = getattr(node, "array", None) if inner is None else inner
    return None
