"""The low-level graph of a Dask array: dependencies, reads, futures, and sizes."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

import dask
import dask.array.chunk
import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.array.chunk import getitem
from dask.core import flatten, get_dependencies, istask

from streampca.errors import InvalidInputError
from streampca.matrix.location import Held, laid_out
from streampca.passes.cluster.calls import reply
from streampca.passes.cluster.workers import await_all, gathered
from streampca.passes.settings import setting

# Futures in a Dask graph: chunks of a persisted or scattered array, which lie on a cluster.

Key = Any
BETWEEN_WORKERS = ("rechunk-transfer-", "shuffle-p2p-")  # names of tasks that send to others
SLICES = (operator.getitem, dask.array.chunk.getitem)
PLAIN = {slice, int, float, str, bool, type(None), type, FunctionType, TaskRef}  # hold no futures


class Fetch(Held):
    """A future of this process. In a task it belongs to the client of the worker."""

    def __init__(self, future: Any) -> None:
        super().__init__(future)
        self.bind()

    def bind(self) -> None:
        """Know whether this is a task. What is unpickled before a task looks again in it."""
        from distributed import get_client, get_worker

        try:
            get_worker()
        except ValueError:
            return
        self.in_task = True
        if self.future.client is None:  # the scheduler does not know that this client wants it
            client = get_client()
            self.future.bind_client(client)
            client._send_to_scheduler({"op": "client-desires-keys", "keys": [self.future.key]})

    def __call__(self) -> Any:
        if self.future.client is None:
            self.bind()
        if self.in_task:  # the scheduler knows what its workers wait for
            return super().__call__()
        client, what = self.future.client, "chunks of X"
        await_all(client, [self.future], what, float(setting("read-timeout")))
        return laid_out(gathered(client, self.future, what))

    def __reduce__(self) -> Any:
        return Fetch, (self.future,)


def is_future(node: Any) -> bool:
    """Whether this is a ``distributed.Future``; ``distributed`` is not loaded to find out."""
    return "distributed" in sys.modules and isinstance(node, sys.modules["distributed"].Future)


def has_futures(node: Any) -> bool:
    """Whether a node is a future, or a task with one among its arguments."""
    if type(node) is Alias or (type(node) is Task and not node.kwargs and _plain(node.args)):
        return False
    held = node.value if isinstance(node, DataNode) else node
    return next(_futures(held), None) is not None


def _plain(args: tuple[Any, ...]) -> bool:
    """Whether these are numbers, names and slices, or tuples of such."""
    for one in args:
        if type(one) not in PLAIN and not (type(one) is tuple and PLAIN.issuperset(map(type, one))):
            return False
    return True


def with_held(nodes: Mapping[Key, Any]) -> dict[Key, Any]:
    """The nodes, with tasks that fetch in place of futures, and such tasks for those in arguments.

    ``dask.delayed(f)(future)`` names its future without a node of that name.
    """
    made = dict(nodes)
    for key, node in nodes.items():
        held = node.value if isinstance(node, DataNode) else node
        if is_future(held):
            made[key] = (Fetch(held),)
        elif not isinstance(node, GraphNode) or not node.dependencies <= nodes.keys():
            for future in _futures(node):
                made.setdefault(future.key, (Fetch(future),))
    return _sliced_apart(made)


def _sliced_apart(nodes: dict[Key, Any]) -> dict[Key, Any]:
    """Each slice of a value on a cluster gets a node of it for itself.

    Strips that share a stored chunk are read together, or it would be read twice. What lies in
    memory is sliced as often as one likes.
    """
    held = held_of(nodes)
    made = dict(nodes)
    for key, node in nodes.items():
        target = node
        while isinstance(target, Alias) and target.target != target.key:
            target = nodes.get(target.target)
        if isinstance(node, Alias) and is_held(target):
            made[key] = held[key] = target
    for key, node in nodes.items():
        if isinstance(node, Task) and node.func in SLICES:
            for used in node.dependencies & held.keys():
                own = (f"{used}-of", key)
                made[own] = made[used]
                made[key] = made[key].substitute({used: own})
    return made


def held_of(nodes: Mapping[Key, Any]) -> dict[Key, Held]:
    """The nodes that are values on a cluster."""
    return {key: node[0] for key, node in nodes.items() if is_held(node)}


def is_held(node: Any) -> bool:
    """Whether a node is a value on a cluster."""
    return type(node) is tuple and len(node) == 1 and isinstance(node[0], Held)


def computed_there(
    nodes: Mapping[Key, Any], keys: list[Key], take: Callable[[int], None]
) -> list[Any] | None:
    """These results, computed on the cluster that holds what they are made of; they alone come.

    None where nothing lies on a cluster, or where a task of that cluster asks: it must not wait for
    others.  take : gets their bytes before they come, and may refuse them.
    """
    held = held_of(nodes)
    if not held or any(one.in_task for one in held.values()):
        return None
    client = next(iter(held.values())).future.client
    graph = {**nodes, **{key: value.future for key, value in held.items()}}
    futures, what = client.get(graph, keys, sync=False), "operands that all strips of X share"
    await_all(client, futures, what, float(setting("read-timeout")))
    sizes = reply(client, lambda s: s.nbytes(keys=[one.key for one in futures], summary=False))
    take(sum(sizes.values()))
    return [laid_out(value) for value in gathered(client, futures, what)]


def _futures(node: Any) -> Iterator[Any]:
    """The futures among the arguments of a task, nested ones too."""
    if "distributed" not in sys.modules:
        return
    future = sys.modules["distributed"].Future
    todo = [node]
    for part in todo:  # grows meanwhile
        if type(part) in PLAIN:
            continue
        if isinstance(part, (list, tuple)):
            todo += part
        elif isinstance(part, GraphNode):
            todo += getattr(part, "args", ())
            todo += (getattr(part, "kwargs", None) or {}).values()
        elif isinstance(part, future):
            yield part
        elif isinstance(part, dict):
            todo += part.values()


# The low-level graph of a Dask array: what depends on what, and which nodes are reads.
#
# A *read* here is a task that depends on no other task; data that lie in the graph are constants.


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
            k
            for k, node in self.nodes.items()
            if self.links[k] or (istask(node) and not known(node))
        }
        self.needs = {k: tuple(n for n in self.links[k] if n in tasks) for k in tasks}

    @cached_property
    def held(self) -> tuple[Any, ...]:
        """The values on a cluster among the nodes, those with a future."""
        return tuple(one for one in held_of(self.nodes).values() if one.future is not None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the futures: where it is unpacked they may have become values."""
        return {name: value for name, value in self.__dict__.items() if name != "held"}

    def fixed(self, values: Mapping[Key, Any]) -> Graph:
        """The same graph with values in place of these nodes."""
        if not values:
            return self
        constants = {k: (Constant(v),) for k, v in values.items()}
        return Graph({**self.nodes, **constants}, {**self.links, **dict.fromkeys(values, ())})

    def cull(self, keys: Iterable[Key], known: Mapping[Key, Any] | None = None) -> dict[Key, Any]:
        """The nodes that these keys need; with ``known`` results in place of what makes them."""
        known = known or {}
        found: dict[Key, Any] = {}
        todo = list(keys)
        while todo:
            key = todo.pop()
            if key in known:
                found[key] = (Constant(known[key]),)
            elif key not in found:
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
        return not links or any(isinstance(n, str) or not known(self.nodes[n]) for n in links)

    def count_reads(self, nodes: Iterable[Key]) -> int:
        """How many of these nodes are reads."""
        return sum(map(self.is_read, nodes))


@dataclass(frozen=True)
class Constant:
    """A value in place of a subgraph."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def low_level(array: Any) -> Graph:
    """The materialised graph of an array, without what it does not need, futures made tasks."""
    graph = array.__dask_graph__()
    keys = set(flatten(array.__dask_keys__()))
    nodes = dict(graph.cull(keys) if hasattr(graph, "cull") else graph)
    for key in nodes:
        if str(layer_of(key)).startswith(BETWEEN_WORKERS):
            raise InvalidInputError(
                "this Dask array was rechunked between workers (p2p), which cannot be read in "
                "strips. Build it inside: with dask.config.set({'array.rechunk.method': 'tasks'})"
            )
    if "distributed" in sys.modules:
        nodes = with_held(nodes)
    whole = Graph(nodes)
    needed = whole.cull(keys)
    return whole if len(needed) == len(nodes) else Graph(needed, whole.links)


def known(node: Any) -> bool:
    return type(node) is tuple and len(node) == 1 and isinstance(node[0], Constant)


def slice_of(node: Any) -> tuple[Key, tuple[slice, ...]] | None:
    """(the chunk, the slices) of a node that cuts a chunk; None of another."""
    if isinstance(node, Task) and len(node.args) == 2 and not node.kwargs:
        function, (key, index) = node.func, node.args
    elif isinstance(node, tuple) and len(node) == 3:
        function, key, index = node
    else:
        return None
    if function is not operator.getitem and function is not getitem:
        return None
    key, index = getattr(key, "key", key), getattr(index, "value", index)
    index = index if isinstance(index, tuple) else (index,)
    return (key, index) if all(isinstance(one, slice) for one in index) else None


def layer_of(key: Key) -> Key:
    """What Dask calls the array that a key is a chunk of."""
    return key[0] if isinstance(key, tuple) and key else key


# How large the results of a Dask graph's tasks are, as far as its layers say.

Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sizes:
    """Estimated bytes of a task's result: those of its chunk, or of the array's largest one.

    chunks : name of an array -> its chunks, and the bytes of an item.
    """

    chunks: Mapping[Key, tuple[Chunks, int]]
    other: int

    @classmethod
    def of(cls, array: Any) -> Sizes:
        """The sizes of all tasks in the graph of a Dask array."""
        layers = getattr(array.__dask_graph__(), "layers", {})
        known = {name: said for name in layers if (said := annotated(layers[name])) is not None}
        largest = math.prod(max(sizes, default=0) for sizes in array.chunks)
        return cls(
            {name: (chunks, dtype.itemsize) for name, (chunks, dtype) in known.items()},
            largest * array.dtype.itemsize,
        )

    def __call__(self, key: Key) -> int:
        return self.of_part(key, ())

    def of_chunks(self, keys: Sequence[Key]) -> Any:
        """(keys,) the same of several chunks of one array; None where its layer does not say."""
        chunks, itemsize = self.chunks.get(layer_of(keys[0]), (None, 0)) if keys else (None, 0)
        if chunks is None or {isinstance(key, tuple) and len(key) for key in keys} != {
            1 + len(chunks)
        }:
            return None
        numbers = np.asarray([key[1:] for key in keys]).reshape(len(keys), -1).T
        lengths = [np.asarray(chunk)[n] for chunk, n in zip(chunks, numbers, strict=True)]
        return itemsize * np.prod(lengths, axis=0, dtype=float)

    def of_node(self, key: Key, node: Any) -> int:
        """The same of a task whose node is at hand, which says what it cuts of a chunk."""
        cut = None if layer_of(key) in self.chunks else slice_of(node)
        return self(key) if cut is None else self.of_part(*cut)

    def of_part(self, key: Key, index: tuple[slice, ...]) -> int:
        """Bytes of the slices of a task's result."""
        chunks, itemsize = self.chunks.get(layer_of(key), (None, 0))
        if chunks is None or not isinstance(key, tuple) or len(key) != 1 + len(chunks):
            return self.other
        shape = [sizes[number] for sizes, number in zip(chunks, key[1:], strict=True)]
        shape[: len(index)] = [len(range(*s.indices(n))) for s, n in zip(index, shape)]
        result: int = itemsize * math.prod(shape)
        return result


def annotated(layer: Any) -> tuple[Chunks, np.dtype[Any]] | None:
    """(chunks, dtype) of the array that a layer makes, where Dask left them there."""
    said = getattr(layer, "collection_annotations", None) or {}
    chunks, dtype = said.get("chunks"), said.get("dtype")
    if chunks is None or dtype is None or any(n != n for sizes in chunks for n in sizes):
        return None
    return chunks, np.dtype(dtype)


def array_operands(layer: Any) -> dict[str, tuple[str, ...]]:
    """Name of an array -> its indices, of all operands of a blockwise layer."""
    return {str(arg): index for arg, index in layer.indices if index is not None}
