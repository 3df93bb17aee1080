"""Layers known by arithmetic: what their chunks are made of, before any of their tasks is made.

Dask lists each slice and each chunk of a rechunk or an overlap, which takes seconds for 100,000
chunks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef, parse_input
from dask.array.chunk import getitem
from dask.array.core import concatenate_shaped
from dask.base import tokenize
from dask.blockwise import Blockwise, blockwise_token
from dask.highlevelgraph import Layer
from dask.layers import ArrayOverlapLayer, fractional_slice

from streampca.sources.dask.graph import Chunks, Key, layer_of
from streampca.sources.dask.outline import Array, Grid, Keys

MANY = 2  # times as many pieces as chunks: Dask goes by chunks between the two


@dataclass(frozen=True)
class Pieces:
    """The parts along a dimension that lie in one old and in one new chunk.

    old, new : (pieces,) numbers of these chunks.  starts : rows before a piece in its old chunk.
    lengths : rows.  whole : whether it is all of the old chunk.
    first : (new chunks + 1,) numbers of the first piece of each.
    """

    old: Array
    new: Array
    starts: Array
    lengths: Array
    whole: Array
    first: Array

    @classmethod
    def of(cls, old: Sequence[int], new: Sequence[int]) -> Pieces:
        """old, new : rows of the chunks, none of them empty."""
        ends, wanted = (np.cumsum([0, *sizes]) for sizes in (old, new))
        every = np.union1d(ends, wanted)
        starts, lengths = every[:-1], np.diff(every)
        have, make = (np.searchsorted(one, starts, "right") - 1 for one in (ends, wanted))
        return cls(
            have,
            make,
            starts - ends[have],
            lengths,
            lengths == np.diff(ends)[have],
            np.searchsorted(every, wanted),
        )


class Rechunk(Layer):
    """The layer of an array in other chunks.

    own, cut : the names in the keys of its chunks, and of the pieces that they are made of.
    source : of the array.
    """

    def __init__(
        self, source: str, old: Chunks, new: Chunks, dtype: np.dtype[Any], own: str = ""
    ) -> None:
        super().__init__(collection_annotations={"chunks": new, "dtype": dtype})
        self.own = own or f"rechunk-merge-{tokenize(source, old, new)}"
        self.cut = f"pieces-of-{self.own}"
        self.source, self.old, self.new, self.itemsize = source, old, new, dtype.itemsize
        self.numblocks = tuple(map(len, new))
        self.along = [Pieces.of(*sizes) for sizes in zip(old, new, strict=True)]

    @staticmethod
    def fits(old: Chunks, new: Chunks) -> bool:
        """Whether to go from the old chunks to the new ones at once."""
        if any(n == 0 for sizes in (*old, *new) for n in sizes):
            return False
        pieces = math.prod(len(np.union1d(*map(np.cumsum, one))) for one in zip(old, new))
        return pieces <= MANY * sum(math.prod(map(len, chunks)) for chunks in (old, new))

    def grids(self, below: Any) -> list[Grid]:
        """The chunks and the pieces.  below : of no use here."""
        whole = functools.reduce(np.logical_and.outer, (one.whole for one in self.along))
        sizes = [np.asarray(one) for one in self.new]
        pieces = [one.lengths for one in self.along]
        return [
            Grid(self.own, [range(len(size)) for size in sizes], sizes, self.itemsize),
            Grid(self.cut, [range(len(piece)) for piece in pieces], pieces, self.itemsize, ~whole),
        ]

    def cuts_needed(self, keys: Keys) -> tuple[Array, Array]:
        """(users, needs) numbers of the pieces, and of the chunks that they cut."""
        theirs = keys.table(self.source, [range(len(one)) for one in self.old])
        return keys.whole(self.cut).ravel(), theirs[np.ix_(*(p.old for p in self.along))].ravel()

    def parts_needed(self, keys: Keys) -> tuple[Array, Array]:
        """(users, needs) numbers of the chunks, and of the pieces they are made of."""
        mine = keys.whole(self.own)[np.ix_(*(p.new for p in self.along))]
        return mine.ravel(), keys.whole(self.cut).ravel()

    def nodes(self, keys: Collection[Key]) -> dict[Key, Any]:
        """The nodes that make these chunks, and the pieces among ``keys``."""
        return {key: self[key] for key in keys if layer_of(key) in (self.own, self.cut)}

    def __getitem__(self, key: Key) -> GraphNode:
        if layer_of(key) == self.cut:
            return self._piece(key)
        if layer_of(key) != self.own:
            raise KeyError(key)
        numbers = [
            range(int(p.first[i]), int(p.first[i + 1]))
            for p, i in zip(self.along, key[1:], strict=True)
        ]
        pieces = [TaskRef((self.cut, *one)) for one in product(*numbers)]
        if len(pieces) == 1:
            return Alias(key, pieces[0].key)
        return Task(key, concatenate_shaped, List(*pieces), [len(number) for number in numbers])

    def _piece(self, key: Key) -> GraphNode:
        places = list(zip(self.along, key[1:], strict=True))
        chunk: Key = (self.source, *(int(p.old[i]) for p, i in places))
        if all(p.whole[i] for p, i in places):
            return Alias(key, chunk)
        starts = [(int(p.starts[i]), int(p.lengths[i])) for p, i in places]
        return Task(key, getitem, TaskRef(chunk), tuple(slice(a, a + n) for a, n in starts))

    def __iter__(self) -> Iterator[Key]:
        yield from self.get_output_keys()
        for one in product(*(range(len(p.lengths)) for p in self.along)):
            yield (self.cut, *one)

    def __len__(self) -> int:
        pieces = math.prod(len(p.lengths) for p in self.along)
        return pieces + math.prod(self.numblocks)

    def get_output_keys(self) -> set[Key]:
        """The keys of the chunks."""
        return {(self.own, *one) for one in product(*map(range, self.numblocks))}

    def is_materialized(self) -> bool:
        """Tasks are made when they are needed."""
        return False


class Blocks:
    """The tasks of a blockwise layer of which each needs one block of every array.

    Dask puts one argument after the other into a copy of the layer's task, which takes ten times
    as long. Whether both make the same is looked up in two of them: see :meth:`of`.
    """

    def __init__(self, layer: Blockwise) -> None:
        self.layer = layer
        self.args = [self._argument(one) for one in layer.task.args]

    @classmethod
    def of(cls, layer: Blockwise) -> Blocks | None:
        """The tasks of a layer; None where Dask has to make them."""
        counts = [layer.dims[symbol] for symbol in layer.output_indices]
        nested = (one for one in layer.task.kwargs.values() if isinstance(one, GraphNode | TaskRef))
        if type(layer.task) is not Task or any(nested) or 0 in counts:
            return None
        try:
            made = cls(layer)
            keys = {(layer.output, *(0 for _ in counts)), (layer.output, *(n - 1 for n in counts))}
            nodes = made.nodes(keys)
        except LookupError:
            return None
        theirs = dict(layer.cull(keys, ())[0])
        return made if all(_is_same(nodes[key], theirs[key]) for key in keys) else None

    def nodes(self, keys: Collection[Key]) -> dict[Key, Any]:
        """The nodes that make these blocks."""
        function, named = self.layer.task.func, self.layer.task.kwargs
        return {
            key: Task(
                key,
                function,
                *(one.at(key) if isinstance(one, Block) else one for one in self.args),
                **named,
            )
            for key in keys
        }

    def _argument(self, one: Any) -> Any:
        """An argument of the layer's task: a Block, or what all tasks get. Raises LookupError."""
        if not isinstance(one, TaskRef):
            if isinstance(one, GraphNode) and one.dependencies:
                raise LookupError(one)
            return one
        tokens = [blockwise_token(i) for i in range(len(self.layer.indices))]
        if one.key not in tokens:
            raise LookupError(one)
        arg, index = self.layer.indices[tokens.index(one.key)]
        if index is None:
            return arg if isinstance(arg, GraphNode | TaskRef) else DataNode(None, arg)
        arg = str(arg)  # of an array
        counts = self.layer.numblocks[arg]
        outer = {symbol: 1 + place for place, symbol in enumerate(self.layer.output_indices)}
        places = tuple(0 if n == 1 else outer[s] for s, n in zip(index, counts, strict=True))
        return Block(arg, places, self.layer.io_deps.get(arg))


@dataclass(frozen=True)
class Block:
    """The block of an array that a block's task needs, or what the layer takes in place of one.

    places : where its numbers are in the key of the task; 0 of the only one.
    """

    arg: str
    places: tuple[int, ...]
    substitute: Any

    def at(self, key: Key) -> Any:
        """The argument for the task of this key."""
        numbers = tuple(key[place] if place else 0 for place in self.places)
        if self.substitute is None:
            return TaskRef((self.arg, *numbers))
        found = parse_input(self.substitute[numbers])
        return found if isinstance(found, GraphNode | TaskRef) else DataNode(None, found)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two nodes do the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Task) and one.func is other.func and len(one.args) == len(other.args):
        same = all(map(_is_same, one.args, other.args))
        return same and one.key == other.key and one.kwargs.keys() == other.kwargs.keys()
    if isinstance(one, TaskRef):
        return bool(one.key == other.key)
    if isinstance(one, DataNode):
        one, other = one.value, other.value
    return one is other or tokenize(one) == tokenize(other)


class Overlap:
    """The chunks of an overlap (``map_overlap``), and the slices that they are made of.

    own, cut : the names in the keys of its chunks, and of the slices.  source : of the array.
    """

    def __init__(self, layer: ArrayOverlapLayer) -> None:
        self.layer, self.source, self.numblocks = layer, layer.name, layer.numblocks
        self.own, self.cut = f"overlap-{layer.token}", f"getitem-{layer.token}"

    def grids(self, below: Any) -> list[Grid]:
        """The chunks and the slices.

        below : chunks and dtype of the array that overlaps; None where nobody says.
        """
        axes = self._axes()
        fractions = [np.asarray(axis) % 1 != 0 for axis in axes]
        cuts = functools.reduce(np.logical_or.outer, fractions, np.zeros((), bool))
        slices = Grid(self.cut, axes, cuts=cuts)
        if below is not None:
            lengths = [self._lengths(dim, sizes) for dim, sizes in enumerate(below[0])]
            slices = Grid(self.cut, axes, lengths, below[1].itemsize, cuts)
        return [Grid(self.own, [range(n) for n in self.numblocks]), slices]

    def cuts_needed(self, keys: Keys) -> tuple[Array, Array]:
        """(users, needs) numbers of the slices, and of the chunks that they cut."""
        theirs = keys.table(self.source, [range(n) for n in self.numblocks])
        places = (np.round(np.asarray(axis)).astype(np.int64) for axis in self._axes())
        return keys.whole(self.cut).ravel(), theirs[np.ix_(*places)].ravel()

    def parts_needed(self, keys: Keys) -> tuple[Array, Array]:
        """(users, needs) numbers of the chunks, and of the slices they are made of."""
        own, cut = keys.whole(self.own), keys.whole(self.cut)
        along = [self._neighbours(dim) for dim in range(len(self.numblocks))]
        users, needs = [], []
        for each in product(*along):
            blocks, slices = zip(*each, strict=True)
            users.append(own[np.ix_(*blocks)].ravel())
            needs.append(cut[np.ix_(*slices)].ravel())
        return np.concatenate(users), np.concatenate(needs)

    def nodes(self, keys: Collection[Key]) -> dict[Key, Any]:
        """The nodes that make these chunks, and the slices among ``keys``.

        What Dask makes them with leaves a cycle of frames, which keep what is read here until the
        garbage collector comes.
        """
        nodes: dict[Key, Any] = {}
        for key in keys:
            if layer_of(key) == self.own:
                numbers = [self._around(dim, i) for dim, i in enumerate(key[1:])]
                slices = [(self.cut, *one) for one in product(*numbers)]
                nodes[key] = (concatenate_shaped, slices, tuple(map(len, numbers)))
            elif layer_of(key) == self.cut:
                nodes[key] = fractional_slice((self.source, *key[1:]), self.layer.axes)
        return nodes

    def _rows(self, dim: int) -> tuple[int, int]:
        """How many rows of the chunks before and after one are taken along a dimension."""
        found = self.layer.axes.get(dim, 0)
        return found if isinstance(found, tuple) else (found, found)

    def _depth(self, dim: int) -> tuple[int, int]:
        """How many chunks before and after one are needed along a dimension: 0 or 1."""
        left, right = self._rows(dim)
        return int(left > 0), int(right > 0)

    def _axes(self) -> list[list[float]]:
        """The numbers along each dimension in the keys of the slices."""
        found: list[list[float]] = []
        for dim, n in enumerate(self.numblocks):
            left, right = self._depth(dim)
            before = [i - 0.9 for i in range(1, n)] if left else []
            after = [i + 0.9 for i in range(n - 1)] if right else []
            found.append([*range(n), *before, *after])
        return found

    def _lengths(self, dim: int, sizes: Sequence[int]) -> Array:
        """Rows of the slices of each number along a dimension."""
        n, (left, right) = self.numblocks[dim], self._rows(dim)
        before, after = (max(0, n - 1) * bool(rows) for rows in (left, right))
        return np.concatenate([np.asarray(sizes), np.full(before, left), np.full(after, right)])

    def _neighbours(self, dim: int) -> list[tuple[Array, Array]]:
        """Chunks along a dimension and the places of the slices: their own, before and after."""
        n, (left, right) = self.numblocks[dim], self._depth(dim)
        every = np.arange(n)
        found = [(every, every)]
        if left and n > 1:
            found.append((every[1:], n + every[:-1]))
        if right and n > 1:
            found.append((every[:-1], n + (n - 1) * left + every[:-1]))
        return found

    def _around(self, dim: int, i: int) -> list[float]:
        """The numbers along a dimension in the keys of the slices that a chunk is made of."""
        n, (left, right) = self.numblocks[dim], self._depth(dim)
        before, after = bool(left and i > 0), bool(right and i < n - 1)
        return [i - 0.9] * before + [i] + [i + 0.9] * after
