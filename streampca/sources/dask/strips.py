"""The strips of a Dask graph: each is computed in the thread that reads it, none twice."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import dask.threaded
import numpy as np

from streampca.errors import StreamPCAError
from streampca.kernels import give_back
from streampca.matrix import Location, ReadCount, SpanCache, current_cache
from streampca.matrix.block import check_dtype
from streampca.sources.dask import sharing as dask_sharing
from streampca.sources.dask.chunks import (
    Place,
    Room,
    Spot,
    StoredArrays,
    check_chunk,
    computes,
    covering,
    ends_of,
    leaves_of,
    locations_of,
)
from streampca.sources.dask.execution import compute
from streampca.sources.dask.graph import Graph, Key, Sizes, computed_there, low_level
from streampca.sources.dask.layers import Layers, outline_of_layers, rechunked_nbytes
from streampca.sources.dask.outline import Outline, UnclearError, outline_of
from streampca.sources.dask.rechunk import looked_through
from streampca.sources.dask.sharing import Keep, MiB, Results, Sharing, Window, find_sharing
from streampca.sources.stacked import Index, Reader, Tally, refuse_uncounted, room_for
from streampca.sources.zarr.location import stamp
from streampca.sources.zarr.stores import zarr_array_in

PREPARE_THREADS = 2
Found = TypeVar("Found")


class DaskReader(Reader):
    """Strips of a Dask graph, each computed in the thread that reads it.

    ``reads`` counts the tasks without dependencies that strips executed, and the bytes that
    they returned; ``prepared`` the same for the operands shared by strips.
    """

    into_buffer = True

    loads = ("dask",)

    def __init__(self, array: Any) -> None:
        refuse_uncounted(array)
        check_dtype(np.dtype(array.dtype))
        self._check_meta(array._meta)
        self.misread: list[str] = []  # why layers were not understood, although nobody said so
        array = self._guarded(partial(looked_through, array), lambda: array)
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.name = array.name
        self.chunks = tuple(tuple(int(n) for n in sizes) for sizes in array.chunks)
        self.ends = tuple(ends_of(sizes) for sizes in self.chunks)
        self.offsets = (0,) * len(self.chunks)  # number of the first chunk: a part knows its own
        self._digest = ""
        self.sizes: Sizes | None = Sizes.of(array)
        self.layers = self._guarded(partial(Layers.of, array), lambda: None)
        self._array: Any = array  # until it is materialised
        self._graph: Graph | None = None
        self.dim: int | None = None  # streamed; set by the matrix
        self._sharing: dict[int, Sharing] = {}
        self._outlines: list[tuple[Graph | Layers, Outline]] = []  # one, until a strip is read
        self._sources: dict[int, Graph | Layers] = {}  # of strips along a dimension
        self._ready: dict[int, Graph | Layers] = {}
        self._kept: dict[Key, Any] = {}
        self._stored = StoredArrays()
        self._places: tuple[Location, ...] | None = None
        self.tally, self.preparing = Tally(), Tally()
        self._cache = SpanCache()  # of reads outside of a pass
        self._lock = threading.RLock()
        self.computes = computes(self.graph if self.layers is None else self.layers.specimens())

    def _check_meta(self, meta: Any) -> None:
        check_chunk(meta)

    def _guarded(self, find: Callable[[], Found], plain: Callable[[], Found]) -> Found:
        """What is found by arithmetic; where that fails, for whatever reason, by the plain way.

        Layers are of many kinds, and of Dask's next version: what is not understood costs time.
        """
        try:
            return find()
        except StreamPCAError:
            raise
        except Exception as error:
            self.misread.append(repr(error))
            return plain()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_lock"]
        return {**state, "_places": None, "_outlines": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    @property
    def graph(self) -> Graph:
        """All tasks; materialised when the layers of the graph do not say enough."""
        with self._lock:
            if self._graph is None:
                self._graph, self._array = low_level(self._array), None
            return self._graph

    def along(self, dim: int) -> DaskReader:
        """The same reader, sharing everything, for one streamed dimension."""
        view = object.__new__(type(self))
        view.__dict__ = {**self.__dict__, "dim": dim}
        return view

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(s.stop - s.start for s in index)
        out = room_for(shape, self.dtype, buffer)
        if not out.size:
            return out
        dim = self._dim(index)
        spots = [self._spots(d, s) for d, s in enumerate(index)]
        places: dict[Key, Any] = {}
        for spot in itertools.product(*spots):
            key = (self.name, *(s.block for s in spot))
            place = Place(
                out,
                tuple(s.into for s in spot),
                tuple(s.part for s in spot),
                tuple(s.length for s in spot),
            )
            places[key] = place
        self.tally.add(self._compute(dim, index[dim], places) + ReadCount(0, out.nbytes))
        return out

    def _compute(self, dim: int, part: slice, places: dict[Key, Any]) -> ReadCount:
        """Execute here these keys, and what places them. Returns the reads.

        What later strips need as well is kept, and what earlier ones left is used.
        """
        source, window = self._prepare(dim), self.sharing(dim).window
        sinks = {key: [place] for key, place in places.items()}
        if not window.until:
            return compute(self._part_of(source, places), sinks, self._stored)
        cache = current_cache() or self._cache
        limit = 2 * window.nbytes + MiB  # it was estimated
        results = cache.of((self._cache, dim), lambda: Results(limit))
        first, last = self._strips(dim, part.start, part.stop)
        known = results.values()
        ahead = [k for k in window.cut_ahead(first, last) if k not in known]
        graph = self._part_of(source, [*places, *ahead])
        here = graph.cull(places, known)
        ahead = [k for k in ahead if here.keys() >= set(graph.links[k])]
        sinks |= {k: [] for k in ahead if k not in sinks}
        for key in {**here, **dict.fromkeys(ahead)}:
            if window.until.get(key, -1) >= last and key not in known:
                sinks.setdefault(key, []).append(Keep(results, key))
        del here
        results.forget(window, last)  # what this strip needs last, it lets go of when it is used
        read = compute(graph, sinks, self._stored, known)
        # malloc leaves the places of chunks empty where the next is a row longer
        give_back(window.nbytes)
        return read

    def _dim(self, index: Index) -> int:
        """The streamed dimension: the one that was set, or the first that is cut."""
        partial = (d for d, s in enumerate(index) if s.stop - s.start < self.shape[d])
        return self.dim if self.dim is not None else next(partial, 0)

    def edges(self, dim: int) -> np.ndarray[Any, Any]:
        ends = self.ends[dim]
        result: np.ndarray[Any, Any] = ends[np.concatenate([[True], np.diff(ends) > 0])]
        return result  # without empty chunks

    def count(self, dim: int, start: int, stop: int) -> int:
        """How many reads the strips that hold [start, stop) execute."""
        first, last = self._strips(dim, start, stop)
        return self.sharing(dim).count(first, last)

    def count_shared(self, dim: int, stop: int, start: int) -> int:
        """How many reads strips before ``stop`` and those from ``start`` on have in common."""
        (_, last), (first, _) = (self._strips(dim, row, row + 1) for row in (stop - 1, start))
        return self.sharing(dim).count(first, last)

    def _strips(self, dim: int, start: int, stop: int) -> tuple[int, int]:
        """Numbers (first, after the last) of the strips that hold [start, stop)."""
        first, last = covering(self.ends[dim], start, stop)
        return first + self.offsets[dim], last + self.offsets[dim]

    def part(self, dim: int, start: int, stop: int) -> Reader:
        """Only the graph of these strips, with shared operands already computed."""
        rest = [
            range(o, o + len(sizes)) for o, sizes in zip(self.offsets, self.chunks, strict=True)
        ]
        rest[dim] = range(*self._strips(dim, start, stop))
        keys = [(self.name, *block) for block in itertools.product(*rest)]
        graph = self._part_of(self._prepare(dim), keys)
        nodes = graph.cull(keys)
        smaller = copy.copy(self)
        smaller.tally, smaller.preparing, smaller._outlines = Tally(), Tally(), []
        smaller._graph = Graph(nodes)
        smaller._array = smaller.layers = smaller.sizes = None
        smaller._sources, smaller._ready, smaller._kept = {}, {dim: smaller._graph}, {}
        smaller._digest, smaller._cache = self.fingerprint(), SpanCache()
        smaller._keep_chunks(dim, *covering(self.ends[dim], start, stop))
        smaller._sharing = {dim: self.sharing(dim).bare(nodes, rest[dim])}
        smaller._places = self._places
        return smaller

    def _keep_chunks(self, dim: int, first: int, last: int) -> None:
        """Forget where other chunks along dim than these lie: there may be very many."""
        change = {"chunks": self.chunks[dim][first:last], "ends": self.ends[dim][first : last + 1]}
        for name, part in change.items():
            every = getattr(self, name)
            setattr(self, name, (*every[:dim], part, *every[dim + 1 :]))
        self.offsets = (*self.offsets[:dim], self.offsets[dim] + first, *self.offsets[dim + 1 :])

    def fingerprint(self) -> str:
        """Of the name that Dask gives the graph: the same array opened again may differ."""
        with self._lock:
            if not self._digest:
                text = repr((self.name, self.shape, str(self.dtype), self.chunks))
                self._digest = hashlib.sha256(text.encode()).hexdigest()
            return self._digest

    def content_stamp(self) -> str:
        """Also of the files of every Zarr array that the graph reads."""
        digest = hashlib.sha256(self.fingerprint().encode())
        for one in leaves_of(self._nodes()):
            if (stored := zarr_array_in(one)) is not None:
                digest.update(stamp(stored.store, stored.path).encode())
        return digest.hexdigest()

    def locations(self) -> tuple[Location, ...]:
        if self._places is None:
            self._places = locations_of(self._nodes())
        return self._places

    def _nodes(self) -> list[Any]:
        """Every node, or one of each layer and those that may differ within one."""
        if self.layers is None:
            return list(self.graph.nodes.values())
        return [*self.layers.specimens().nodes.values(), *self.layers.listed.values()]

    def prepared(self) -> ReadCount:
        """What was read for shared operands: tasks, and estimated decoded bytes."""
        return self.preparing.count

    def restart_counts(self) -> None:
        super().restart_counts()
        self.preparing.restart()

    def scratch_nbytes(self, index: Index) -> int:
        # source chunks and one intermediate of the strip, before they are placed
        return int(2 * math.prod(s.stop - s.start for s in index) * self.dtype.itemsize)

    def sharing(self, dim: int) -> Sharing:
        """What strips along dim share; found once."""
        with self._lock:
            if dim not in self._sharing:
                self._sharing[dim] = self._guarded(
                    partial(self._find_sharing, dim), partial(self._sharing_of_tasks, dim)
                )
            return self._sharing[dim]

    def _sharing_of_tasks(self, dim: int) -> Sharing:
        """The same from the whole graph; where that is not understood either, strips share nothing.

        Each is then computed by itself.
        """
        self.layers, rows = None, self.chunks[dim]
        self._outlines.clear()
        self._sources[dim] = self.graph
        step = math.prod(self.shape) * self.dtype.itemsize / max(1, len(rows))
        every = np.arange(len(rows))
        alone = Sharing(frozenset(), (), 0, step, every, every)
        return self._guarded(partial(self._find_sharing, dim), lambda: alone)

    def window(self, dim: int) -> Window:
        """What is kept while strips along dim are read in order."""
        return self.sharing(dim).window if len(self.chunks[dim]) > 1 else Window()

    def _find_sharing(self, dim: int) -> Sharing:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        outline = self._outlined(dim)
        numbers = [
            range(first, first + len(sizes))
            for first, sizes in zip(self.offsets, self.chunks, strict=True)
        ]
        strips = np.moveaxis(outline.keys.table(self.name, numbers), dim, 0)
        strips = strips.reshape(
            len(numbers[dim]), math.prod(map(len, numbers)) // len(numbers[dim])
        )
        sizes = self.sizes or Sizes({}, nbytes)
        found = find_sharing(outline, strips, self.chunks[dim], nbytes, sizes)
        if found.cuts and self._sources[dim] is self.layers:
            held = rechunked_nbytes(self.layers, outline, found.cuts)
            return replace(found, held=held)
        return found

    def _part_of(self, source: Graph | Layers, keys: Collection[Key]) -> Graph:
        """The graph of what these keys need, from the layers or from the whole graph."""
        if isinstance(source, Graph):
            return source
        return self._guarded(lambda: source.part(keys), lambda: self.graph.fixed(source.values))

    def _outlined(self, dim: int) -> Outline:
        """The graph in outline: from its layers, or where these say too little from its tasks."""
        if not self._outlines and self.layers is not None:
            with contextlib.suppress(UnclearError):
                self._outlines.append((self.layers, outline_of_layers(self.layers, self.name)))
        if not self._outlines:
            self._outlines.append((self.graph, outline_of(self.graph)))
        self._sources[dim], outline = self._outlines[0]
        return outline

    def futures(self) -> tuple[Any, ...]:
        if self.layers is not None:  # nothing lies on a cluster
            return ()
        for one in (one for one in self.graph.held if one.future.client is None):
            one.bind()
        return tuple(one.future for one in self.graph.held)

    def _prepare(self, dim: int) -> Graph | Layers:
        """The graph with the operands that strips along dim share replaced by their values."""
        with self._lock:
            if dim in self._ready:
                return self._ready[dim]
            sharing = self.sharing(dim)
            source = self._sources[dim]
            self._outlines.clear()
            values = {k: v for k, v in self._kept.items() if k in sharing.cuts}
            room = Room(dask_sharing.PREPARED_NBYTES)
            for stage in self._local_stages(sharing, values, room):
                if not (todo := [k for k in stage if k not in values]):
                    continue
                graph = self._part_of(source.fixed(values), todo)
                nodes = graph.cull(todo)
                leaves = graph.count_reads(nodes)
                self._stored.put_into(nodes)
                wanted: Any = {("streampca-keep", i): (room, k) for i, k in enumerate(todo)}
                got = dask.threaded.get(
                    {**nodes, **wanted}, list(wanted), num_workers=PREPARE_THREADS
                )
                values.update(zip(todo, got, strict=True))
                self.preparing.add(ReadCount(leaves, int(leaves * sharing.leaf_nbytes)))
            give_back()  # what threads of Dask keep
            self._kept.update({k: values[k] for k in sharing.cuts})
            self._ready[dim] = source.fixed({k: values[k] for k in sharing.cuts})
            return self._ready[dim]

    def _local_stages(self, sharing: Sharing, values: dict[Key, Any], room: Room) -> Any:
        """The stages to be computed here: none where a cluster holds X, and puts in all cuts.

        There it is in memory anyway, and nothing is gained by stages.
        """
        todo = [k for k in sharing.cuts if k not in values]
        if not todo or self.layers is not None:  # then nothing lies on a cluster
            return sharing.stages
        nodes = self.graph.cull(todo)
        if (found := computed_there(nodes, todo, room.take)) is None:
            return sharing.stages
        values.update(zip(todo, found, strict=True))
        leaves = self.graph.count_reads(nodes)
        self.preparing.add(ReadCount(leaves, int(leaves * sharing.leaf_nbytes)))
        return ()

    def _spots(self, dim: int, wanted: slice) -> list[Spot]:
        """The chunks along one dimension that hold ``wanted``."""
        ends = self.ends[dim]
        spots = []
        for block in range(*covering(ends, wanted.start, wanted.stop)):
            first, last = int(ends[block]), int(ends[block + 1])
            low, high = max(first, wanted.start), min(last, wanted.stop)
            if low < high:
                into = slice(low - wanted.start, high - wanted.start)
                number = block + self.offsets[dim]
                spots.append(Spot(number, into, slice(low - first, high - first), last - first))
        return spots
