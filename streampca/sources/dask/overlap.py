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


def is_overlap(layer: Any) -> bool:
    """Whether the chunks of a layer are those of another with rows of their neighbours."""
    return isinstance(layer, ArrayOverlapLayer)


def parts_of(layer: Any) -> tuple[str, str]:
    """The names in the keys of an overlap layer: of its chunks, and of what they are made of."""
    return f"overlap-{layer.token}", f"getitem-{layer.token}"


def depth(layer: Any, dim: int) -> tuple[int, int]:
    """How many chunks before and after one an overlap needs along a dimension: 0 or 1."""
    left, right = _rows(layer, dim)
    return int(left > 0), int(right > 0)


def _rows(layer: Any, dim: int) -> tuple[int, int]:
    """How many rows of the chunks before and after one an overlap takes along a dimension."""
    found = layer.axes.get(dim, 0)
    return found if isinstance(found, tuple) else (found, found)


def _numbers(layer: Any, dim: int) -> list[float]:
    """The numbers along a dimension in the keys of the slices of an overlap."""
    n, (left, right) = layer.numblocks[dim], depth(layer, dim)
    before = [i - 0.9 for i in range(1, n)] if left else []
    after = [i + 0.9 for i in range(n - 1)] if right else []
    return [*range(n), *before, *after]


def grids_of(layer: Any, below: Any) -> list[Grid]:
    """The blocks of an overlap, and the slices that they are made of.

    below : chunks and dtype of the array that overlaps; None where nobody says.
    """
    own, cut = parts_of(layer)
    axes = [_numbers(layer, dim) for dim in range(len(layer.numblocks))]
    fractions = [np.asarray(one) % 1 != 0 for one in axes]
    cuts = functools.reduce(np.logical_or.outer, fractions, np.zeros((), bool))
    slices = Grid(cut, axes, cuts=cuts)
    if below is not None:
        lengths = [_lengths(layer, dim, sizes) for dim, sizes in enumerate(below[0])]
        slices = Grid(cut, axes, lengths, below[1].itemsize, cuts)
    return [Grid(own, [range(n) for n in layer.numblocks]), slices]


def _lengths(layer: Any, dim: int, sizes: Sequence[int]) -> Array:
    """Rows of the slices of each number along a dimension."""
    n, (left, right) = layer.numblocks[dim], _rows(layer, dim)
    before, after = (max(0, n - 1) * bool(rows) for rows in (left, right))
    return np.concatenate([np.asarray(sizes), np.full(before, left), np.full(after, right)])


def cuts_needed(layer: Any, keys: Keys) -> tuple[Array, Array]:
    """(users, needs) numbers of the slices of an overlap, and of the chunks that they cut."""
    axes = [np.asarray(_numbers(layer, dim)) for dim in range(len(layer.numblocks))]
    mine = keys.whole(parts_of(layer)[1])
    theirs = keys.table(layer.name, [range(n) for n in layer.numblocks])
    return mine.ravel(), theirs[np.ix_(*(np.round(one).astype(np.int64) for one in axes))].ravel()


def parts_needed(layer: Any, keys: Keys) -> tuple[Array, Array]:
    """(users, needs) numbers of the blocks of an overlap, and of the slices they are made of."""
    own, cut = map(keys.whole, parts_of(layer))
    along = [_neighbours(layer, dim) for dim in range(len(layer.numblocks))]
    users, needs = [], []
    for each in product(*along):
        blocks, slices = zip(*each, strict=True)
        users.append(own[np.ix_(*blocks)].ravel())
        needs.append(cut[np.ix_(*slices)].ravel())
    return np.concatenate(users), np.concatenate(needs)


def _neighbours(layer: Any, dim: int) -> list[tuple[Array, Array]]:
    """Blocks along a dimension and the places of the slices: their own, before and after."""
    n, (left, right) = layer.numblocks[dim], depth(layer, dim)
    every = np.arange(n)
    found = [(every, every)]
    if left and n > 1:
        found.append((every[1:], n + every[:-1]))
    if right and n > 1:
        found.append((every[:-1], n + (n - 1) * left + every[:-1]))
    return found


def nodes_of(layer: Any, keys: Collection[Key]) -> dict[Key, Any]:
    """The nodes that make these chunks of an overlap layer, and the slices among ``keys``.

    What Dask makes them with leaves a cycle of frames, which keep what is read here until the
    garbage collector comes.
    """
    own, cut = parts_of(layer)
    nodes: dict[Key, Any] = {}
    for key in keys:
        if layer_of(key) == own:
            numbers = [_around(layer, dim, i) for dim, i in enumerate(key[1:])]
            slices = [(cut, *one) for one in product(*numbers)]
            nodes[key] = (concatenate_shaped, slices, tuple(map(len, numbers)))
        elif layer_of(key) == cut:
            nodes[key] = fractional_slice((layer.name, *key[1:]), layer.axes)
    return nodes


def _around(layer: Any, dim: int, i: int) -> list[float]:
    """The numbers along a dimension in the keys of the slices that a chunk is made of."""
    n, (left, right) = layer.numblocks[dim], depth(layer, dim)
    before, after = bool(left and i > 0), bool(right and i < n - 1)
    return [i - 0.9] * before + [i] + [i + 0.9] * after
