"""The low-level graph of a Dask array: what depends on what, which nodes are reads, and running it.

A *read* here is a task that depends on no other task; data that lie in the graph are constants.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.local
from dask.core import flatten, get_dependencies, istask

from streampca.errors import InvalidInputError
from streampca.matrix import ReadCount
from streampca.sources.dask_futures import Fetches, held_of, with_held

Key = Any  # a string, or a tuple of a layer's name and a chunk's numbers


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

    def part(self, keys: Iterable[Key]) -> Graph:
        """A graph that has what these keys need."""
        return self

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
        if str(layer_of(key)).startswith(("rechunk-transfer-", "shuffle-p2p-")):
            raise InvalidInputError(
                "this Dask array was rechunked between workers (p2p), which cannot be read in "
                "strips. Build it inside: with dask.config.set({'array.rechunk.method': 'tasks'})"
            )
    if "distributed" in sys.modules:
        nodes = with_held(nodes)
    whole = Graph(nodes)
    needed = whole.cull(keys)
    return whole if len(needed) == len(nodes) else Graph(needed, whole.links)


def compute(
    graph: Graph, keys: list[Key], places: dict[Any, Any], known: Mapping[Key, Any] | None = None
) -> ReadCount:
    """Execute here the part of a graph that ``keys`` need, and the tasks that place them.

    known : results that are at hand. Returns how many tasks without dependencies there were, and
    what came over a wire.
    """
    known = known or {}
    nodes = graph.cull(keys, known)
    leaves = graph.count_reads(nodes.keys() - known.keys())
    fetches = Fetches(nodes)
    dask.local.get_sync({**fetches.nodes, **places}, list(places))
    return ReadCount(leaves, moved=fetches.moved)


def known(node: Any) -> bool:
    return type(node) is tuple and len(node) == 1 and isinstance(node[0], Constant)


def layer_of(key: Key) -> Key:
    """What Dask calls the array that a key is a chunk of."""
    return key[0] if isinstance(key, tuple) and key else key
