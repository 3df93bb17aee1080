"""A part of a Dask graph is executed in the thread that asks for it, one task after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask._task_spec import DataNode, GraphNode, convert_legacy_task
from dask.sizeof import sizeof

from streampca.errors import InvalidInputError
from streampca.matrix import ReadCount
from streampca.matrix.location import Held
from streampca.sources.dask.chunks import StoredArrays
from streampca.sources.dask.graph import Graph, Key, held_of

Sinks = Mapping[Key, Iterable[Callable[[Any], None]]]  # what is called with the result of a key


def compute(
    graph: Graph, sinks: Sinks, stored: StoredArrays, known: dict[Key, Any] | None = None
) -> ReadCount:
    """Execute here the part of a graph that the keys of ``sinks`` need.

    known : results that are at hand; they are taken out of it. Returns how many tasks without
    dependencies there were, and what came over a wire.
    """
    known = known or {}
    fetches = Fetches(graph.cull(sinks, known))
    leaves = graph.count_reads(fetches.nodes.keys() - known.keys())
    stored.put_into(fetches.nodes)
    for key in known.keys() & fetches.nodes.keys():
        fetches.nodes[key] = (Once(known.pop(key)),)
    known.clear()
    execute(fetches.nodes, sinks)
    return ReadCount(leaves, moved=fetches.moved)


def execute(nodes: Mapping[Key, Any], sinks: Sinks) -> None:
    """Execute nodes, all of which the keys of ``sinks`` need; depth first, in their order.

    A result is let go after its last use. Dask's own scheduler for one thread sorts and looks
    after all tasks first, which takes longer than small tasks do.
    """
    tasks = {key: _node(key, node, nodes) for key, node in nodes.items()}
    uses = Counter(need for task in tasks.values() for need in task.dependencies)
    results: dict[Key, Any] = {}
    todo = list(reversed(list(sinks)))
    begun: set[Key] = set()
    done: set[Key] = set()
    while todo:
        task = tasks[key := todo[-1]]
        needs = task.dependencies
        if key in done:
            todo.pop()
            continue
        if missing := [one for one in needs if one not in results]:
            if key in begun:
                raise InvalidInputError(f"the task {key!r} of this Dask graph needs itself")
            begun.add(key)
            todo += sorted(missing, key=str, reverse=True) if len(missing) > 1 else missing
            continue
        todo.pop()
        done.add(key)
        result = task({one: results[one] for one in needs})
        for sink in sinks.get(key, ()):
            sink(result)
        if uses[key]:
            results[key] = result
        del result
        for need in needs:
            uses[need] -= 1
            if not uses[need]:
                del results[need]


def _node(key: Key, node: Any, keys: Mapping[Key, Any]) -> GraphNode:
    """A node of any form as Dask's own."""
    if isinstance(node, GraphNode):
        return node
    made = convert_legacy_task(key, node, keys)
    return made if isinstance(made, GraphNode) else DataNode(key, made)


class Fetches:
    """The same nodes, counting what they bring: ``moved`` bytes crossed a wire."""

    def __init__(self, nodes: Mapping[Key, Any]) -> None:
        self.moved = 0
        self.nodes = dict(nodes)
        for key, held in held_of(nodes).items():
            self.nodes[key] = (self._get, held)

    def _get(self, held: Held) -> Any:
        value = held()
        self.moved += held.moved(int(sizeof(value)))
        return value


@dataclass
class Once:
    """A value in place of a subgraph, let go when it is taken: the graph frees it after its use."""

    value: Any

    def __call__(self) -> Any:
        value, self.value = self.value, None
        return value
