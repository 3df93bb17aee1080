"""Chunks that take rows of their neighbours (``map_overlap``), told by the layer alone.

Which chunks a strip needs, and how long each is kept, follows from the number of the strip: the
tasks of a hundred thousand chunks need not be made to find it out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.layers import ArrayOverlapLayer

from streampca.sources.dask.graph import Key, annotated, layer_of

Array = np.ndarray[Any, Any]
FAR = 1 << 40  # strips


@dataclass
class Band:
    """Which strips use chunk j of an array: from ``j - early`` to ``j + late``.

    kept : ``j + kept`` is the last strip that computes something from it, in order.
    """

    early: int = 0
    late: int = 0
    kept: int = 0

    @classmethod
    def unused(cls) -> Band:
        """Of an array that no strip uses yet."""
        return cls(-FAR, -FAR, -FAR)

    def widen(self, user: Band, left: int = 0, right: int = 0) -> bool:
        """Take in another array whose chunks need so many chunks before and after. Whether it grew.

        The first use of any chunk of the user lies ``user.early`` before it.
        """
        old = (self.early, self.late, self.kept)
        self.early = max(self.early, user.early + right)
        self.late = max(self.late, user.late + left)
        self.kept = max(self.kept, left - user.early)
        return old != (self.early, self.late, self.kept)

    @property
    def is_shared(self) -> bool:
        """Whether a chunk must be kept for strips after the one that computes it."""
        return self.kept > -self.early

    def first(self, n_strips: int) -> Array:
        """(strips,) the first strip that uses each chunk."""
        return np.maximum(np.arange(n_strips) - self.early, 0)

    def last(self, n_strips: int) -> Array:
        """(strips,) the last strip that uses each chunk."""
        return np.minimum(np.arange(n_strips) + self.late, n_strips - 1)

    def until(self, n_strips: int) -> Array:
        """(strips,) the last strip that computes something from each chunk."""
        return np.clip(np.arange(n_strips) + self.kept, 0, n_strips - 1)


class Kept(Mapping[Key, int]):
    """Task -> the last strip that computes something from it, for chunks of a few arrays.

    bands : array -> (place of the number of the strip in its keys, how its chunks are used).
    """

    def __init__(self, bands: Mapping[str, tuple[int, Band]], n_strips: int) -> None:
        self.bands, self.n_strips = dict(bands), n_strips

    def __getitem__(self, key: Key) -> int:
        place, band = self.bands[layer_of(key)]
        return int(min(max(key[1 + place] + band.kept, 0), self.n_strips - 1))

    def __len__(self) -> int:
        return len(self.bands) * self.n_strips

    def __iter__(self) -> Any:
        raise NotImplementedError("the tasks of all strips are never listed")


def window_nbytes(
    bands: Mapping[str, tuple[int, Band]], layers: Mapping[str, Any], n_strips: int, other: float
) -> int:
    """Most bytes of chunks that are kept at once.  other : of a strip whose size nobody says."""
    steps = np.zeros(n_strips + 1)
    for name, (place, band) in bands.items():
        sizes = np.full(n_strips, other)
        if (said := annotated(layers.get(name))) is not None:
            chunks, dtype = said
            across = math.prod(sum(one) for i, one in enumerate(chunks) if i != place)
            sizes = np.asarray(chunks[place], float) * across * dtype.itemsize
        np.add.at(steps, band.first(n_strips), sizes)
        np.add.at(steps, band.until(n_strips) + 1, -sizes)
    return int(np.cumsum(steps).max(initial=0))


def is_overlap(layer: Any) -> bool:
    """Whether the chunks of a layer are those of another with rows of their neighbours."""
    return isinstance(layer, ArrayOverlapLayer)


def parts_of(layer: Any) -> tuple[str, str]:
    """The names in the keys of an overlap layer: of its chunks, and of what they are made of."""
    return f"overlap-{layer.token}", f"getitem-{layer.token}"


def depth(layer: Any, dim: int) -> tuple[int, int]:
    """How many chunks before and after one an overlap needs along a dimension: 0 or 1."""
    found = layer.axes.get(dim, 0)
    left, right = found if isinstance(found, tuple) else (found, found)
    return int(left > 0), int(right > 0)


def slices_of(layer: Any, dim: int) -> Array:
    """(chunks along dim,) slices that an overlap makes for the chunks of each number."""
    counts = []
    for d, n in enumerate(layer.numblocks):
        left, right = depth(layer, d)
        along = np.ones(n, np.int64)
        along[1:] += left
        along[: n - 1] += right
        counts.append(along)
    across = math.prod(int(one.sum()) for d, one in enumerate(counts) if d != dim)
    return counts[dim] * across


def nodes_of(layer: Any, keys: Collection[Key]) -> dict[Key, Any]:
    """The nodes that make these chunks of an overlap layer, and no others."""
    own, _ = parts_of(layer)
    few = _Few(layer, [(layer.name, *key[1:]) for key in keys if layer_of(key) == own])
    return dict(few._construct_graph())  # type: ignore[no-untyped-call]


class _Few(ArrayOverlapLayer):
    """Some chunks of an overlap layer."""

    def __init__(self, layer: Any, keys: Iterable[Key]) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            layer.name, layer.axes, layer.chunks, layer.numblocks, layer.token
        )
        self._few = list(keys)

    def _dask_keys(self) -> list[Key]:
        return self._few
