"""A rechunk told by arithmetic: none of its tasks is made before it is needed.

Dask lists each slice and each chunk of a rechunk, which takes seconds for 100,000 chunks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from dask._task_spec import Alias, GraphNode, List, Task, TaskRef
from dask.array.chunk import getitem
from dask.array.core import concatenate_shaped
from dask.base import tokenize
from dask.highlevelgraph import Layer

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
            have, make, starts - ends[have], lengths, lengths == np.diff(ends)[have],
            np.searchsorted(every, wanted),
        )  # fmt: skip


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
            Grid(self.own, [range(len(one)) for one in sizes], sizes, self.itemsize),
            Grid(self.cut, [range(len(one)) for one in pieces], pieces, self.itemsize, ~whole),
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
        return Task(key, concatenate_shaped, List(*pieces), [len(one) for one in numbers])

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
        """Those of the chunks."""
        return {(self.own, *one) for one in product(*map(range, self.numblocks))}

    def is_materialized(self) -> bool:
        """Tasks are made when they are asked for."""
        return False
