"""The layers of a Dask graph: parts of them are made, and the whole is outlined without it.

Blockwise layers and overlaps say what each block needs: their tasks are made for the strip that
is read, and never all of them.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from dask._task_spec import GraphNode, TaskRef
from dask.base import tokenize
from dask.blockwise import Blockwise
from dask.core import istask
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayOverlapLayer

from streampca.sources.dask.graph import (
    BETWEEN_WORKERS,
    Constant,
    Graph,
    Key,
    annotated,
    has_futures,
    layer_of,
)
from streampca.sources.dask.lazy_layers import Blocks, Overlap, Rechunk
from streampca.sources.dask.outline import Array, Grid, Keys, Outline, UnclearError


def _lazy_layer(layer: Any) -> Overlap | Rechunk | None:
    """What tells the tasks of a layer without making them; None of another layer."""
    if isinstance(layer, ArrayOverlapLayer):
        return Overlap(layer)
    return layer if isinstance(layer, Rechunk) else None


class Layers:
    """The layers of a graph, from which parts are materialised.

    listed : the tasks of the layers that list them one by one. Layers may repeat a task: two
    permutations by one order do. The tasks of other layers are made when they are needed.
    values : results in place of the tasks that make them.
    """

    def __init__(self, layers: Mapping[str, Any]) -> None:
        self.layers: dict[str, Any] = dict(layers)
        self.values: dict[Key, Any] = {}
        self._blocks: dict[str, Blocks | None] = {}
        self._owners: dict[Key, str] = {name: name for name in self.layers}
        self.lazy = {
            k: one for k, layer in self.layers.items() if (one := _lazy_layer(layer)) is not None
        }
        self.listed: dict[Key, Any] = {}
        for name, layer in self.layers.items():
            if name in self.lazy:
                self._owners |= dict.fromkeys((self.lazy[name].own, self.lazy[name].cut), name)
            elif not isinstance(layer, Blockwise):
                self._owners |= dict.fromkeys(map(layer_of, layer), name)  # of parts of its tasks
                self.listed.update(getattr(layer, "mapping", layer))

    @classmethod
    def of(cls, array: Any) -> Layers | None:
        """The layers of a Dask array; None where only the whole graph says what its tasks are.

        Dask keeps no layers, chunks lie on a cluster, or layers differ about a task.
        """
        graph = array.__dask_graph__()
        if not isinstance(graph, HighLevelGraph):
            return None
        made = cls(graph.layers)
        if made._differ():
            return None
        specimens = made.specimens()  # literals are in every task
        if "distributed" in sys.modules:
            nodes = (*made.listed.values(), *specimens.nodes.values())
            if any(map(has_futures, nodes)):
                return None
        every = itertools.chain(specimens.links.values(), made.links.values())
        # what no layer makes is only on a cluster
        return None if "" in made.owners(every) else made

    def _differ(self) -> bool:
        """Whether several layers make a task of one key, and not all the same."""
        listing = [
            layer
            for name, layer in self.layers.items()
            if name not in self.lazy and not isinstance(layer, Blockwise)
        ]
        made = {name for name, layer in self.layers.items() if isinstance(layer, Blockwise)}
        made.update(*((one.own, one.cut) for one in self.lazy.values()))
        if not made.isdisjoint(map(layer_of, self.listed)):
            return True
        if sum(map(len, listing)) == len(self.listed):
            return False
        return any(
            node is not self.listed[key] and tokenize(node) != tokenize(self.listed[key])
            for layer in listing
            for key, node in layer.items()
        )

    @cached_property
    def links(self) -> dict[Key, Collection[Key]]:
        """What each of the listed tasks needs."""
        return {key: self.needs(node) for key, node in self.listed.items()}

    def owner(self, key: Key) -> str:
        """The layer that a task is of, or one of several; "" where there is none."""
        return self._owners.get(layer_of(key), "")

    def owners(self, links: Iterable[Iterable[Key]]) -> set[str]:
        """The layers of these keys."""
        names = set(map(layer_of, itertools.chain.from_iterable(links)))
        return {self._owners.get(name, "") for name in names}

    def specimens(self) -> Graph:
        """One node of each layer."""
        nodes: dict[Key, Any] = {}
        for name, layer in self.layers.items():
            if isinstance(layer, Blockwise):
                nodes |= self._nodes([(name, *(0 for _ in layer.output_indices))])
            elif (one := self.lazy.get(name)) is not None:
                nodes |= self._nodes([(one.own, *(0 for _ in one.numblocks))])
            elif (key := next(iter(layer), None)) is not None:
                nodes[key] = layer[key]
        return Graph(nodes, {k: self.needs(node) for k, node in nodes.items()})

    def fixed(self, values: Mapping[Key, Any]) -> Layers:
        """The same with values in place of these tasks."""
        fixed = copy.copy(self)
        fixed.values = {**self.values, **values}
        return fixed

    def part(self, keys: Iterable[Key]) -> Graph:
        """The graph of what these keys need. Raises UnclearError where it is in no layer."""
        nodes: dict[Key, Any] = {}
        links: dict[Key, Collection[Key]] = {}
        todo = set(keys)
        while todo:
            fresh = self._nodes(todo)
            nodes |= fresh
            links |= {key: self.needs(node) for key, node in fresh.items()}
            todo = {need for key in fresh for need in links[key]} - nodes.keys()
        return Graph(nodes, links)

    def _nodes(self, keys: Collection[Key]) -> dict[Key, Any]:
        """The nodes of these keys."""
        nodes: dict[Key, Any] = {}
        by_layer: dict[Any, set[Key]] = {}
        for key in keys:
            if key in self.values:
                nodes[key] = (Constant(self.values[key]),)
            elif key in self.listed:
                nodes[key] = self.listed[key]
            else:
                by_layer.setdefault(self._owners.get(layer_of(key)), set()).add(key)
        for name, wanted in by_layer.items():
            layer = self.layers.get(name or "")
            made: Mapping[Key, Any] = {}
            if isinstance(layer, Blockwise):
                if name not in self._blocks:
                    self._blocks[name] = Blocks.of(layer)
                blocks = self._blocks[name]
                made = dict(layer.cull(wanted, ())[0]) if blocks is None else blocks.nodes(wanted)
            elif name in self.lazy:
                made = self.lazy[name].nodes(wanted)
            if not wanted <= made.keys():
                raise UnclearError(name)
            nodes |= {key: made[key] for key in wanted}
        return nodes

    def needs(self, node: Any) -> Collection[Key]:
        """What a node depends on. A node of the old form, a tuple, does not say it itself."""
        if isinstance(node, GraphNode):
            return node.dependencies  # no copy: many new objects wake the garbage collector
        found: dict[Key, None] = {}
        parts = [node]
        for part in parts:  # grows meanwhile
            if isinstance(part, tuple):
                if part and isinstance(part[0], str) and part[0] in self._owners:
                    found[part] = None
                else:
                    parts += part
            elif isinstance(part, str):
                if part in self._owners:
                    found[part] = None
            elif isinstance(part, list):
                parts += part
            elif isinstance(part, dict):
                parts += part.values()
        return tuple(found)


def outline_of_layers(layers: Layers, name: str) -> Outline:
    """The outline of what an array needs. Raises UnclearError where layers say too little."""
    grids, listed = _reached(layers, name)
    nodes: Mapping[Key, Any] = layers.listed if listed else {}
    needed = list(layers.links.values()) if listed else []
    keys = Keys(grids, nodes)
    links: list[tuple[Array, Array]] = []
    try:
        for grid in grids:
            owner = layers.owner(grid.name)
            if (lazy := layers.lazy.get(owner)) is None:
                links += _blocks_needed(layers.layers[owner], keys)
            elif grid.name == lazy.own:
                links.append(lazy.parts_needed(keys))
            else:
                links.append(lazy.cuts_needed(keys))
        needs = [keys.place(need) for one in needed for need in one]
    except KeyError as error:
        raise UnclearError(str(error)) from None
    own = np.arange(keys.n_grids, len(keys))  # of those that are listed, in their order
    users = np.repeat(own, list(map(len, needed)))
    links.append((users, np.asarray(needs, np.int64)))
    tasks = [bool(one) or istask(node) for node, one in zip(nodes.values(), needed, strict=True)]
    return Outline(
        keys,
        np.concatenate([one for one, _ in links]),
        np.concatenate([one for _, one in links]),
        nodes,
        np.concatenate([np.ones(keys.n_grids, bool), np.asarray(tasks, bool)]),
    )


def _reached(layers: Layers, name: str) -> tuple[list[Grid], bool]:
    """The blocks of the layers below one whose tasks need not be made; whether others are there."""
    grids: list[Grid] = []
    listed = False
    todo, seen = [layers.owner(name)], {layers.owner(name)}
    while todo:
        one = todo.pop()
        layer: Any = layers.layers.get(one)
        if isinstance(layer, Blockwise):
            grids.append(_grid(layer))
            below = {layers.owner(key) for key in _operands(layer)}
        elif (whole := layers.lazy.get(one)) is not None:
            grids += whole.grids(annotated(layers.layers.get(whole.source)))
            below = {layers.owner(whole.source)}
        elif layer is None or one.startswith(BETWEEN_WORKERS):
            raise UnclearError(one)
        else:
            below = set() if listed else layers.owners(layers.links.values())
            listed = True
        todo += below - seen
        seen |= below
    return grids, listed


def _grid(layer: Blockwise) -> Grid:
    """All blocks of a blockwise layer."""
    axes = [range(layer.dims[symbol]) for symbol in layer.output_indices]
    said = annotated(layer)
    if said is None or [len(one) for one in said[0]] != [len(axis) for axis in axes]:
        return Grid(layer.output, axes)
    return Grid(layer.output, axes, [np.asarray(one) for one in said[0]], said[1].itemsize)


def _operands(layer: Blockwise) -> list[Key]:
    """The arrays and the single tasks that a blockwise layer takes."""
    if any(made.produces_keys for made in layer.io_deps.values()):
        raise UnclearError(layer.output)
    found: list[Key] = []
    for arg, index in layer.indices:
        if index is not None:
            found += [arg] if arg not in layer.io_deps else []
        elif isinstance(arg, TaskRef):
            found.append(arg.key)
        elif isinstance(arg, GraphNode) and arg.dependencies:
            raise UnclearError(layer.output)
    return found


def _blocks_needed(layer: Blockwise, keys: Keys) -> list[tuple[Array, Array]]:
    """(users, needs) numbers of a layer's blocks, and of the blocks and tasks that they need."""
    sizes = {symbol: layer.dims[symbol] for symbol in layer.output_indices}
    mine = keys.table(layer.output, [range(n) for n in sizes.values()])
    if mine.ndim != len(layer.output_indices):
        raise UnclearError(layer.output)
    links: list[tuple[Array, Array]] = []
    for arg, index in layer.indices:
        if index is None:
            if isinstance(arg, TaskRef):
                links.append((mine.ravel(), np.full(mine.size, keys.place(arg.key))))
            continue
        if arg in layer.io_deps:
            continue
        blocks = layer.numblocks[str(arg)]
        theirs = keys.table(arg, [range(n) for n in blocks])
        whole = {**sizes, **{s: n for s, n in zip(index, blocks, strict=True) if s not in sizes}}
        order = {symbol: place for place, symbol in enumerate(whole)}
        shape = tuple(whole.values())
        places = [
            np.zeros((1,) * len(shape), np.int64)
            if n == 1
            else np.arange(n).reshape([n if order[s] == d else 1 for d in range(len(shape))])
            for s, n in zip(index, blocks, strict=True)
        ]
        users = mine.reshape(mine.shape + (1,) * (len(shape) - mine.ndim))
        needs = theirs[tuple(places)] if places else theirs
        links.append((np.broadcast_to(users, shape).ravel(), np.broadcast_to(needs, shape).ravel()))
    return links


def rechunked_nbytes(layers: Layers, outline: Outline, cuts: Collection[Key]) -> int:
    """Most bytes that one rechunk within the graph of operands has to hold, as far as layers say.

    Where it makes chunks longer along some dimension, what lies across them in the others.
    """
    live = outline.needed(outline.marked(cuts))
    users, needs = outline.links
    owners = [layers.owner(name) for name in outline.names]
    named = {
        (owners[user], owners[need])
        for user, need in np.unique(
            outline.named[np.stack([users, needs])][:, live[users]], axis=1
        ).T
    }
    most = 0
    for new, old in named:
        if old == new or not new.startswith("rechunk-merge-"):
            continue
        after, before = (annotated(layers.layers.get(name)) for name in (new, old))
        if after is None or before is None:
            continue
        longest = [
            (max(a, default=0), max(b, default=0)) for a, b in zip(after[0], before[0], strict=True)
        ]
        lengths = [
            a if a > b else sum(sizes) for (a, b), sizes in zip(longest, after[0], strict=True)
        ]
        if any(a > b for a, b in longest) and any(a < b for a, b in longest):
            most = max(most, math.prod(lengths) * after[1].itemsize)
    return most
