"""Any Dask array: a block is one strip of its graph, and nothing is read again for the next.

Two things make strips share work. An operand of all of them (``x.mean(0)`` in ``x - x.mean(0)``)
is computed once before the first strip. Chunks that do not line up (``x.rechunk``) make one strip
of several. Both are found in the graph, per streamed dimension, without reading anything.

A *read* here is a task that depends on no other task; data that lie in the graph are constants.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import threading
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask.array
import dask.local
import dask.threaded
import numpy as np
import scipy.sparse
from dask.core import flatten, get_dependencies, istask, toposort
from dask.sizeof import sizeof

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import ChunkedMatrix, ReadCount
from streampca.sources.stacked import Index, Reader, StackedMatrix, check_dtype, check_rank

Key = Any  # a string, or a tuple of a layer's name and a chunk's numbers
Dim = Hashable | Sequence[Hashable] | None

MiB = 1024 * 1024
PREPARED_NBYTES = 64 * MiB  # of all results that are computed before the first strip
MERGED_NBYTES = 1024 * MiB  # of one strip that is merged from several
PREPARE_THREADS = 2
ROUNDS = 8  # of looking for shared operands inside shared operands

MANY = object()  # more than one read


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: the graph is analysed (about 0.1 ms per task); nothing is
    computed before the first block.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, data frames, sparse chunks).
    """
    if hasattr(array, "to_dask_array"):
        raise InvalidTypeError(
            f"{type(array).__module__}.{type(array).__name__} is a Dask data frame; expected a "
            "Dask array. Use X = X.to_dask_array(lengths=True)."
        )
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")
    if dim is None:
        check_rank(array.shape)
        return DaskMatrix(DaskReader(array), (0,))
    wanted = list(dim) if isinstance(dim, Sequence) and not isinstance(dim, str) else [dim]
    found = [int(d) % array.ndim for d in wanted
             if isinstance(d, (int, np.integer)) and -array.ndim <= d < array.ndim]  # fmt: skip
    if not found or len(set(found)) != len(wanted) or len(found) == array.ndim:
        raise InvalidInputError(
            f"dim={dim!r}; expected sample dimension numbers of a Dask array of shape "
            f"{array.shape}, each once and not all, such as dim=0"
        )
    return DaskMatrix(DaskReader(array), found)


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
        if held > MERGED_NBYTES and other > MERGED_NBYTES:
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

    def prepare_nbytes(self, axis: int | None = None) -> int:
        """Decoded bytes read before the first strip along axis; without one, for either axis."""
        axes = (0, 1) if axis is None else (axis,)
        return max(self.reader.prepared_nbytes(self._dim(a)) for a in axes)


class DaskReader(Reader):
    """Strips of a Dask graph, each computed in the thread that reads it.

    ``reads`` counts the tasks without dependencies that strips executed, and the bytes that
    they returned; ``prepared`` the same for the operands shared by strips.
    """

    into_buffer = True

    def __init__(self, array: Any) -> None:
        if any(math.isnan(n) for n in array.shape):
            raise InvalidInputError(
                f"the chunk sizes of this Dask array are not known (shape {array.shape}). "
                "Use X = X.compute_chunk_sizes(), which reads it once."
            )
        check_dtype(np.dtype(array.dtype))
        _check_chunk(array._meta)
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.name = array.name
        self.chunks = tuple(tuple(int(n) for n in sizes) for sizes in array.chunks)
        self.graph = _low_level(array)
        self.dim: int | None = None  # streamed; told by the matrix
        self._sharing: dict[int, Sharing] = {}
        self._ready: dict[int, Graph] = {}
        self._kept: dict[Key, Any] = {}
        self._cost: dict[str, ReadCount] = {"strips": ReadCount(), "prepared": ReadCount()}
        self._lock = threading.RLock()
        self._counting = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_lock"], state["_counting"]
        return {**state, "_cost": {name: ReadCount() for name in self._cost}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._counting = threading.RLock(), threading.Lock()

    def along(self, dim: int) -> DaskReader:
        """The same reader, sharing everything, told which dimension is streamed."""
        view = object.__new__(DaskReader)
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
            place = Place(out, tuple(s.into for s in spot), tuple(s.part for s in spot),
                          tuple(s.length for s in spot))  # fmt: skip
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

    def prepared_nbytes(self, dim: int) -> int:
        """Estimated decoded bytes read before the first strip along dim."""
        sharing = self.sharing(dim)
        return int(sharing.prepared_chunks * sharing.leaf_nbytes)

    def prepare_nbytes(self) -> int:
        return max(self.prepared_nbytes(d) for d in range(len(self.shape)))

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
            room = Room(PREPARED_NBYTES)
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


# -- the graph ------------------------------------------------------------------------------


class Graph:
    """Nodes of a low-level Dask graph, and which depend on which.

    links : node -> all nodes it depends on.  needs : task -> the tasks among them. A node that
    is data, or a value in place of a subgraph, is not a task.
    """

    def __init__(
        self, nodes: Mapping[Key, Any], links: Mapping[Key, Collection[Key]] | None = None
    ) -> None:
        self.nodes = dict(nodes)
        self.links = links or {k: tuple(get_dependencies(nodes, k)) for k in self.nodes}
        tasks = {
            k for k, node in self.nodes.items()
            if self.links[k] or (istask(node) and not _known(node))
        }  # fmt: skip
        self.needs = {k: tuple(n for n in self.links[k] if n in tasks) for k in tasks}

    def fixed(self, values: Mapping[Key, Any]) -> Graph:
        """The same graph with values in place of these nodes."""
        if not values:
            return self
        constants = {k: (Constant(v),) for k, v in values.items()}
        return Graph({**self.nodes, **constants}, {**self.links, **dict.fromkeys(values, ())})

    def cull(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """The nodes that these keys need."""
        found: dict[Key, Any] = {}
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key not in found:
                found[key] = self.nodes[key]
                todo.extend(self.links[key])
        return found

    def is_read(self, key: Key) -> bool:
        """Whether a node is a task that depends on no task, and not just part of a known value.

        What is known by a plain string is a Delayed (an opened file), and using it is a read.
        """
        if self.needs.get(key, ("data",)):
            return False
        links = self.links[key]
        return not links or any(isinstance(n, str) or not _known(self.nodes[n]) for n in links)

    def count_reads(self, nodes: Iterable[Key]) -> int:
        """How many of these nodes are reads."""
        return sum(map(self.is_read, nodes))


@dataclass(frozen=True)
class Constant:
    """A value in place of a subgraph."""

    value: Any

    def __call__(self) -> Any:
        return self.value


class Fetch:
    """A result that lies on a cluster (a persisted array), fetched where it is needed.

    Only its key travels: a future belongs to one client, and a worker has its own.
    """

    def __init__(self, future: Any) -> None:
        self.key, self.future = future.key, future

    def __reduce__(self) -> Any:
        return Fetch.on_worker, (self.key,)

    @classmethod
    def on_worker(cls, key: Key) -> Fetch:
        """The result of that key, for the client of the process that asks for it."""
        fetch = object.__new__(cls)
        fetch.key, fetch.future = key, None
        return fetch

    def __call__(self) -> Any:
        if self.future is None:
            from distributed import Future, get_client

            return Future(self.key, get_client()).result()
        return self.future.result()


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
                    f"{PREPARED_NBYTES // MiB} MiB and cannot be kept. Write the array down first, "
                    "X.to_zarr('scratch.zarr'), and use streampca.open('scratch.zarr'); or, if it "
                    "fits into memory, X = X.persist()."
                )
        return value


def _covering(sizes: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """Numbers (first, after the last) of the chunks that hold [start, stop)."""
    ends = np.cumsum((0, *sizes))
    return int(np.searchsorted(ends, start, "right")) - 1, int(np.searchsorted(ends, stop, "left"))


def _low_level(array: Any) -> Graph:
    """The materialised graph of an array, without what it does not need, futures made tasks."""
    graph = array.__dask_graph__()
    keys = set(flatten(array.__dask_keys__()))
    nodes = dict(graph.cull(keys) if hasattr(graph, "cull") else graph)
    for key, node in nodes.items():
        if str(_layer(key)).startswith(("rechunk-p2p-", "rechunk-transfer-", "shuffle-p2p-")):
            raise InvalidInputError(
                "this Dask array was rechunked between workers (p2p), which cannot be read in "
                "strips. Build it inside: with dask.config.set({'array.rechunk.method': 'tasks'})"
            )
        if type(node).__module__.startswith("distributed") and hasattr(node, "result"):
            nodes[key] = (Fetch(node),)
    whole = Graph(nodes)
    needed = whole.cull(keys)
    return whole if len(needed) == len(nodes) else Graph(needed, whole.links)


def _known(node: Any) -> bool:
    return type(node) is tuple and len(node) == 1 and isinstance(node[0], Constant)


def _layer(key: Key) -> Key:
    """What Dask calls the array that a key is a chunk of."""
    return key[0] if isinstance(key, tuple) and key else key


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


# -- what strips share ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sharing:
    """What strips of one dimension share, and what follows from it.

    edges : where slices may begin and end.  merged, longest : length of the longest slice that
    is made of several strips, and of any.  cuts : operands to compute before the first strip.
    stages : the same with what they need themselves, in order of computation.
    firsts, lasts : sorted numbers of the first (last) strip that uses each read.
    """

    edges: np.ndarray[Any, Any]
    merged: int
    longest: int
    cuts: frozenset[Key]
    stages: tuple[tuple[Key, ...], ...]
    prepared_chunks: int
    leaf_nbytes: float
    firsts: np.ndarray[Any, Any]
    lasts: np.ndarray[Any, Any]

    def count(self, first: int, last: int) -> int:
        """Reads of the strips [first, last)."""
        begun = int(np.searchsorted(self.firsts, last, "left"))
        return max(0, begun - int(np.searchsorted(self.lasts, first, "left")))

    def bare(self) -> Sharing:
        """Without what only planning needs."""
        none = np.empty(0, np.int64)
        return replace(self, cuts=frozenset(), stages=(), firsts=none, lasts=none)


@dataclass(frozen=True)
class Users:
    """Which strips use a task: from ``first`` to ``last``. ``inner``: used by a shared task."""

    first: dict[Key, int]
    last: dict[Key, int]
    inner: set[Key]

    def groups(self, n_strips: int) -> np.ndarray[Any, Any]:
        """(strips,) number of the group of adjacent strips that share nothing with others."""
        steps = np.zeros(n_strips + 1, np.int64)
        for key, first in self.first.items():
            steps[first + 1] += 1
            steps[self.last[key] + 1] -= 1
        return np.cumsum(np.cumsum(steps[:n_strips]) == 0) - 1


def find_sharing(graph: Graph, strips: Sequence[Sequence[Key]], lengths: Sequence[int],
                 nbytes: int) -> Sharing:  # fmt: skip
    """Operands to compute first, and edges across which nothing is shared.

    strips : the output keys of each strip.  lengths : rows of each.  nbytes : of the array.
    """
    order = [k for k in toposort(graph.needs, dependencies=graph.needs) if k in graph.needs]
    weights = np.asarray(lengths, dtype=np.int64)
    step = nbytes / max(1, int(weights.sum()))
    cuts: set[Key] = set()
    given, users = graph, _users(graph, order, strips)
    whole = groups = users.groups(len(strips))
    for _ in range(ROUNDS):
        counts, sizes = np.bincount(groups), np.bincount(groups, weights) * step
        # a small group is cheaper to hold than to read twice
        split = (counts > 1) & ((sizes > PREPARED_NBYTES) | (len(counts) == 1))
        found = _operands(given, order, strips, users, split) if split.any() else set()
        if not found:
            break
        cuts |= found
        given = graph.fixed(dict.fromkeys(cuts))
        users = _users(given, order, strips)
        groups = users.groups(len(strips))
    if groups[-1] == whole[-1]:  # nothing came apart
        cuts, given, groups = set(), graph, whole
        users = _users(graph, order, strips)
    rows, counts = np.bincount(groups, weights), np.bincount(groups)
    leaves = [k for k in users.first if given.is_read(k)]
    leaf_nbytes = nbytes / max(1, len(leaves))
    stages = _stages(graph, order, cuts, leaf_nbytes)
    return Sharing(
        np.unique(np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)),
        int(rows[counts > 1].max(initial=0)), int(rows.max(initial=0)), frozenset(cuts), stages,
        _prepared_chunks(graph, stages), leaf_nbytes,
        np.sort(np.array([users.first[k] for k in leaves], np.int64)),
        np.sort(np.array([users.last[k] for k in leaves], np.int64)),
    )  # fmt: skip


def _users(graph: Graph, order: Sequence[Key], strips: Sequence[Sequence[Key]]) -> Users:
    """For each task that strips compute, which strips use it."""
    users = Users({}, {}, set())
    for number, keys in enumerate(strips):
        for key in keys:
            if key in graph.needs:
                users.first.setdefault(key, number)
                users.last[key] = number
    for key in reversed(order):
        if key not in users.first:
            continue
        first, last = users.first[key], users.last[key]
        for need in graph.needs[key]:
            users.first[need] = min(users.first.get(need, first), first)
            users.last[need] = max(users.last.get(need, last), last)
            if first < last:
                users.inner.add(need)
    return users


def _operands(graph: Graph, order: Sequence[Key], strips: Sequence[Sequence[Key]], users: Users,
              split: np.ndarray[Any, Any]) -> set[Key]:  # fmt: skip
    """The largest shared subgraphs that are operands of a group, not its data passed on.

    Chunks that are cut up for several strips are shared as well. An operand differs in that
    every chunk of its layer is used across more than half of the group, and in that strips still
    read something else once it is given.
    """
    groups = users.groups(len(strips))
    counts = np.bincount(groups)
    group = {k: int(groups[first]) for k, first in users.first.items()}
    narrow = {
        (g, _layer(k)) for k, g in group.items()
        if 2 * (users.last[k] - users.first[k] + 1) <= counts[g] or counts[g] == 1
    }  # fmt: skip
    origins: dict[Key, Any] = {}
    for key in order:
        if key in group:
            above = {origins[n] for n in graph.needs[key]}
            origins[key] = key if not above else above.pop() if len(above) == 1 else MANY
    found = {
        k for k, g in group.items()
        if split[g] and k not in users.inner and (g, _layer(k)) not in narrow
        and (origins[k] is MANY or (g, _layer(origins[k])) not in narrow)
    }  # fmt: skip
    given = graph.fixed(dict.fromkeys(found))
    fresh: set[Key] = set()
    for key in order:
        if given.is_read(key) or not fresh.isdisjoint(given.needs.get(key, ())):
            fresh.add(key)
    fed = {int(groups[i]) for i, keys in enumerate(strips) if not fresh.isdisjoint(keys)}
    return {k for k in found if group[k] in fed or isinstance(k, str)}


def _stages(graph: Graph, order: Sequence[Key], cuts: Collection[Key],
            leaf_nbytes: float) -> tuple[tuple[Key, ...], ...]:  # fmt: skip
    """Operands in an order that keeps memory small.

    Computing ``((x - x.mean(0)) ** 2).sum(0)`` in one go would hold all of x from the mean to
    the end. What is used together with reads that it was made of is computed a stage earlier.
    """
    live = Graph(graph.cull(cuts), graph.links).needs
    order = [k for k in order if k in live]
    users: dict[Key, list[Key]] = {k: [] for k in order}
    for key in order:
        for need in live[key]:
            users[need].append(key)
    reads = sum(not needs for needs in live.values())
    pivots = set()
    if reads * leaf_nbytes > PREPARED_NBYTES:
        pivots = {
            k for k in order if len(users[k]) > 1 and _is_pivot(live, users[k], k, leaf_nbytes)
        }
    level: dict[Key, int] = {}
    for key in order:
        level[key] = max((level[n] + (n in pivots) for n in live[key]), default=0)
    stages: dict[int, list[Key]] = {}
    for key in order:
        if key in pivots or key in cuts:
            stages.setdefault(level[key], []).append(key)
    return tuple(tuple(sorted(stages[i], key=str)) for i in sorted(stages))


def _is_pivot(needs: Mapping[Key, Sequence[Key]], users: Sequence[Key], key: Key,
              leaf_nbytes: float) -> bool:  # fmt: skip
    """Whether a task that uses ``key`` also uses, beside it, reads that ``key`` was made of."""
    reads = {k for k in _ancestors(needs, [key]) if not needs[k]}
    if len(reads) * leaf_nbytes <= PREPARED_NBYTES:
        return False
    return any(
        not reads.isdisjoint(_ancestors(needs, [n for n in needs[user] if n != key]))
        for user in users
    )


def _ancestors(needs: Mapping[Key, Sequence[Key]], keys: Iterable[Key]) -> set[Key]:
    found: set[Key] = set()
    todo = list(keys)
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo.extend(needs[key])
    return found


def _prepared_chunks(graph: Graph, stages: Iterable[Sequence[Key]]) -> int:
    """Reads that the stages execute."""
    total, known = 0, graph
    for stage in stages:
        total += known.count_reads(known.cull(stage))
        known = known.fixed(dict.fromkeys(stage))
    return total
