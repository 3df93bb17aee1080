"""Chunks that take rows of their neighbours (``map_overlap``), told by the layer alone."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import numpy as np
from dask.array.core import concatenate_shaped
from dask.layers import ArrayOverlapLayer, fractional_slice

from streampca.sources.dask.graph import Key, layer_of
from streampca.sources.dask.outline import Array, Grid, Keys


class Overlap:
    """The chunks of an overlap, and the slices of the array below that they are made of.

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
        fractions = [np.asarray(one) % 1 != 0 for one in axes]
        cuts = functools.reduce(np.logical_or.outer, fractions, np.zeros((), bool))
        slices = Grid(self.cut, axes, cuts=cuts)
        if below is not None:
            lengths = [self._lengths(dim, sizes) for dim, sizes in enumerate(below[0])]
            slices = Grid(self.cut, axes, lengths, below[1].itemsize, cuts)
        return [Grid(self.own, [range(n) for n in self.numblocks]), slices]

    def cuts_needed(self, keys: Keys) -> tuple[Array, Array]:
        """(users, needs) numbers of the slices, and of the chunks that they cut."""
        theirs = keys.table(self.source, [range(n) for n in self.numblocks])
        places = (np.round(np.asarray(one)).astype(np.int64) for one in self._axes())
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
