"""Strips of a Dask graph whose high-level layers say that they share nothing but operands.

Where all layers from the top to the reads are blockwise, strip i is made of the chunks of number
i, and of operands that all strips share; where they overlap, of their neighbours too. Nothing is
materialised but those operands, and of the rest what a strip needs when it is read.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from dask._task_spec import GraphNode, TaskRef
from dask.blockwise import Blockwise
from dask.core import istask, keys_in_tasks, toposort
from dask.highlevelgraph import HighLevelGraph

from streampca.sources.dask.graph import (
    Constant,
    Graph,
    Key,
    annotated,
    array_operands,
    has_futures,
    layer_of,
)
from streampca.sources.dask.overlap import (
    Ahead,
    Band,
    Kept,
    Pieces,
    depth,
    is_overlap,
    nodes_of,
    parts_of,
    slices_of,
    window_nbytes,
)
from streampca.sources.dask.sharing import Sharing, Window, find_stages, prepared_chunks, reach_of


class UnclearError(Exception):
    """The layers do not say enough; the whole graph does."""


class Layers:
    """The layers of a graph, from which parts are materialised.

    values : results in place of the tasks that make them.
    """

    def __init__(self, layers: Mapping[str, Any], values: Mapping[Key, Any] | None = None) -> None:
        self.layers, self.values = dict(layers), dict(values or {})
        self._counts: dict[str, tuple[int, int]] = {}
        self._owners: dict[Key, str] = {name: name for name in self.layers}
        for name, layer in self.layers.items():
            if is_overlap(layer):
                self._owners |= dict.fromkeys(parts_of(layer), name)
            elif not isinstance(layer, Blockwise):
                self._owners |= dict.fromkeys(map(layer_of, layer), name)  # of parts of its tasks

    @classmethod
    def of(cls, array: Any) -> Layers | None:
        """Those of a Dask array; None where Dask keeps none, or chunks lie on a cluster."""
        graph = array.__dask_graph__()
        if not isinstance(graph, HighLevelGraph):
            return None
        made = cls(graph.layers)
        nodes = (*made.data(), *made.specimens().nodes.values())  # literals are in every task
        return None if any(map(made._lies_far, nodes)) else made

    def _lies_far(self, node: Any) -> bool:
        """Whether a node is a future, is given one, or needs what only a cluster has."""
        if "distributed" in sys.modules and has_futures(node):
            return True
        return any(self.owner(key) == "" for key in self._needs(node))

    def owner(self, key: Key) -> str:
        """The layer that a task is of; "" where there is none."""
        return self._owners.get(layer_of(key), "")

    def data(self) -> Iterable[Any]:
        """The nodes of the layers that are not blockwise: data in the graph are among them."""
        for layer in self.layers.values():
            if not isinstance(layer, Blockwise) and not is_overlap(layer):
                yield from layer.values()

    def specimens(self) -> Graph:
        """One node of each layer."""
        nodes: dict[Key, Any] = {}
        for name, layer in self.layers.items():
            if isinstance(layer, Blockwise):
                nodes |= self._nodes([(name, *(0 for _ in layer.output_indices))])
            elif is_overlap(layer):
                nodes |= self._nodes([(parts_of(layer)[0], *(0 for _ in layer.chunks))])
            elif (key := next(iter(layer), None)) is not None:
                nodes[key] = layer[key]
        return Graph(nodes, {k: self._needs(node) for k, node in nodes.items()})

    def fixed(self, values: Mapping[Key, Any]) -> Layers:
        """The same with values in place of these tasks."""
        given = copy.copy(self)
        given.values = {**self.values, **values}
        return given

    def part(self, keys: Iterable[Key]) -> Graph:
        """The graph of what these keys need. Raises UnclearError where it is in no layer."""
        nodes: dict[Key, Any] = {}
        links: dict[Key, tuple[Key, ...]] = {}
        todo = set(keys)
        while todo:
            fresh = self._nodes(todo)
            nodes |= fresh
            links |= {key: self._needs(node) for key, node in fresh.items()}
            todo = {need for key in fresh for need in links[key]} - nodes.keys()
        return Graph(nodes, links)

    def _nodes(self, keys: Collection[Key]) -> dict[Key, Any]:
        """The nodes of these keys."""
        nodes: dict[Key, Any] = {}
        by_layer: dict[Any, set[Key]] = {}
        for key in keys:
            if key in self.values:
                nodes[key] = (Constant(self.values[key]),)
            else:
                by_layer.setdefault(self._owners.get(layer_of(key)), set()).add(key)
        for name, wanted in by_layer.items():
            layer = self.layers.get(name, {})
            if isinstance(layer, Blockwise):
                layer = dict(layer.cull(wanted, ())[0])
            elif is_overlap(layer):
                layer = nodes_of(layer, wanted)
                nodes |= layer
            if not wanted <= layer.keys():
                raise UnclearError(name)
            nodes |= {key: layer[key] for key in wanted}
        return nodes

    def counts(self, name: str) -> tuple[int, int]:
        """(tasks, data) of a layer that is not blockwise, whose nodes need no others.

        Raises UnclearError where they do.
        """
        if name not in self._counts:
            if name not in self.layers or is_overlap(self.layers[name]):
                raise UnclearError(name)
            nodes = list(self.layers[name].values())
            if any(map(self._needs, nodes)):
                raise UnclearError(name)
            tasks = sum(map(istask, nodes))
            self._counts[name] = tasks, len(nodes) - tasks
        return self._counts[name]

    def made_of_others(self, name: str) -> bool:
        """Whether a layer is not blockwise, and its nodes need others."""
        try:
            return not isinstance(self.layers.get(name), Blockwise) and not self.counts(name)
        except UnclearError:
            return True

    def _needs(self, node: Any) -> tuple[Key, ...]:
        """What a node depends on. A node of the old form, a tuple, does not say it itself."""
        if isinstance(node, GraphNode):
            return tuple(node.dependencies)
        if isinstance(node, tuple | list | dict):
            return tuple(keys_in_tasks(self, [node]))  # type: ignore[arg-type]
        return ()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | tuple) and layer_of(key) in self._owners


@dataclass
class _Strip:
    """What the strips need of one layer.

    place : at which place its keys have the number of the strip.  blocks : of a strip.
    strips : other layers that are aligned.  operands : keys that all strips need.
    band : which strips need a chunk: those about its number.
    slices : (strips,) tasks that cut what an overlap is made of: its reads where that is data.
    """

    place: int
    blocks: int = 0
    band: Band = field(default_factory=Band.unused)
    slices: Any = None
    is_data: bool = False
    strips: list[str] = field(default_factory=list)
    operands: set[Key] = field(default_factory=set)


def find_aligned(
    layers: Layers, name: str, chunks: Sequence[Sequence[int]], dim: int, nbytes: int
) -> Sharing | None:
    """What strips along ``dim`` share; None where the layers do not tell.

    chunks : of each dimension.  nbytes : of the array.
    Cost: of a few layers, and of the graph of the operands that strips share.
    """
    counts = [len(sizes) for sizes in chunks]
    n_strips = counts[dim]
    try:
        found = _walk(layers, name, counts, dim)
        operands = {key for strip in found.values() for key in strip.operands}
        if any(layer_of(key) in found for key in operands):  # shared, and a part of each
            return None
        shared = layers.part(operands)
    except UnclearError:
        return None
    alone = n_strips == 1  # operands are then as much of the strip as everything else
    reads = {
        one
        for one, strip in found.items()
        if not strip.is_data and _reads(strip, found, shared, alone)
    }
    firsts, lasts = _used([found[one] for one in reads], n_strips)
    cuts = frozenset(key for key in operands if key in shared.needs)
    if alone:
        others = shared.count_reads(k for k in shared.nodes if layer_of(k) not in reads)
        firsts = lasts = np.zeros(len(firsts) + others, np.int64)
        cuts = frozenset()
    leaf_nbytes = nbytes / max(1, len(firsts))
    order = [k for k in toposort(shared.needs, dependencies=shared.needs) if k in shared.needs]
    stages = find_stages(shared, order, cuts, leaf_nbytes)
    bands = {
        one: (s.place, s.band) for one, s in found.items() if s.band.is_shared and not s.is_data
    }
    pieces = [
        Pieces(layer, s.place, s.band.early)
        for one, s in found.items()
        if is_overlap(layer := layers.layers[one]) and depth(layer, s.place)[0]
        and not found[layer.name].is_data
    ]  # fmt: skip
    window = Window()
    if (bands or pieces) and n_strips > 1:
        kept, reach = Kept(bands, pieces, n_strips), reach_of(firsts, lasts, chunks[dim])
        held = window_nbytes(kept, layers.layers, nbytes / n_strips)
        window = Window(kept, held, reach, Ahead(pieces, n_strips))
    made = Sharing(
        cuts, stages, prepared_chunks(shared, stages), leaf_nbytes, np.sort(firsts), np.sort(lasts),
        window,
    )  # fmt: skip
    return replace(made, held=_rechunked_nbytes(layers, shared)) if cuts else made


def _used(strips: Sequence[_Strip], n_strips: int) -> tuple[Any, Any]:
    """(reads,) the first and the last strip that uses each read of these layers."""
    none = np.empty(0, np.int64)
    reads = [one.blocks if one.slices is None else one.slices for one in strips]
    firsts = [np.repeat(s.band.first(n_strips), n) for s, n in zip(strips, reads, strict=True)]
    lasts = [np.repeat(s.band.last(n_strips), n) for s, n in zip(strips, reads, strict=True)]
    return np.concatenate([none, *firsts]), np.concatenate([none, *lasts])


def _rechunked_nbytes(layers: Layers, graph: Graph) -> int:
    """Most bytes that one rechunk within a graph has to hold, as far as layers say.

    Where it makes chunks longer along some dimension, what lies across them in the others.
    """
    pairs = {
        (name, layer_of(need))
        for key, needs in graph.links.items()
        if (name := layers.owner(key)).startswith("rechunk-merge-")
        for need in needs
        if layers.owner(need) != name
    }
    most = 0
    for new, old in pairs:
        after, before = (annotated(layers.layers.get(name)) for name in (new, old))
        if after is None or before is None:
            continue
        longest = [
            (max(a, default=0), max(b, default=0)) for a, b in zip(after[0], before[0], strict=True)
        ]
        lengths = [
            a if a > b else sum(sizes) for (a, b), sizes in zip(longest, after[0], strict=True)
        ]
        grows = any(a > b for a, b in longest)
        splits = any(a < b for a, b in longest)
        if grows and splits:
            most = max(most, math.prod(lengths) * after[1].itemsize)
    return most


def _walk(layers: Layers, name: str, counts: Sequence[int], dim: int) -> dict[str, _Strip]:
    """From the array down to what its strips read."""
    n_strips = counts[dim]
    found = {name: _Strip(dim, math.prod(counts) // max(1, n_strips), Band())}
    todo = [name]
    while todo:
        one = todo.pop()
        layer, strip = layers.layers.get(one), found[one]
        if isinstance(layer, Blockwise):
            todo += _operands(layers, layer, strip, found, n_strips)
        elif is_overlap(layer):
            todo += _neighbours(layer, strip, found, n_strips)
        elif layer is None:
            raise UnclearError(one)
        else:
            tasks, data = layers.counts(one)
            if min(tasks, data) or tasks + data != strip.blocks * n_strips:
                raise UnclearError(one)
            strip.is_data = tasks == 0
    return found


def _operands(
    layers: Layers, layer: Blockwise, strip: _Strip, found: dict[str, _Strip], n_strips: int
) -> list[str]:
    """Sorts what a blockwise layer needs; returns the aligned layers that were not yet found."""
    symbol = layer.output_indices[strip.place]
    if layer.new_axes or layer.output_indices.count(symbol) > 1:
        raise UnclearError(layer.output)
    if any(made.produces_keys for made in layer.io_deps.values()):
        raise UnclearError(layer.output)
    arrays = array_operands(layer)
    if any(index is not None and index != arrays[str(arg)] for arg, index in layer.indices):
        raise UnclearError(layer.output)  # one array by several indices
    for arg, index in layer.indices:
        if index is None and isinstance(arg, TaskRef):
            strip.operands.add(arg.key)
        elif index is None and isinstance(arg, GraphNode) and arg.dependencies:
            raise UnclearError(layer.output)
    new = []
    for name, index in arrays.items():
        if name in layer.io_deps:
            continue
        blocks = layer.numblocks[name]
        place = index.index(symbol) if symbol in index else None
        shared = place is None or (blocks[place] == 1 and n_strips > 1)
        if shared or (n_strips == 1 and layers.made_of_others(name)):
            strip.operands |= {(name, *numbers) for numbers in product(*map(range, blocks))}
            continue
        if place is None or blocks[place] != n_strips or index.count(symbol) > 1:
            raise UnclearError(layer.output)
        new += _needed(name, strip, found, _Strip(place, math.prod(blocks) // n_strips))
    return new


def _neighbours(layer: Any, strip: _Strip, found: dict[str, _Strip], n_strips: int) -> list[str]:
    """The layer below an overlap, if it was not yet found to be used so far apart."""
    if layer.numblocks[strip.place] != n_strips:
        raise UnclearError(layer.name)
    strip.slices = slices_of(layer, strip.place)
    below = _Strip(strip.place, math.prod(layer.numblocks) // n_strips)
    return _needed(layer.name, strip, found, below, *depth(layer, strip.place))


def _needed(
    name: str, user: _Strip, found: dict[str, _Strip], fresh: _Strip, left: int = 0, right: int = 0
) -> list[str]:
    """Note that strips of one layer need another; its name where that is news.

    left, right : neighbours that are needed as well.
    """
    if name not in user.strips:
        user.strips.append(name)
    strip = found.setdefault(name, fresh)
    if strip.place != fresh.place:
        raise UnclearError(name)
    return [name] if strip.band.widen(user.band, left, right) else []


def _reads(strip: _Strip, found: Mapping[str, _Strip], shared: Graph, alone: bool) -> bool:
    """Whether tasks of a layer are reads, as :meth:`Graph.is_read` says it of one."""
    tasks = {key for key in strip.operands if key in shared.needs}
    if any(not found[one].is_data for one in strip.strips) or (alone and tasks):
        return False
    links = bool(strip.strips) or any(
        isinstance(key, str) or key not in tasks for key in strip.operands
    )
    return links or not strip.operands
