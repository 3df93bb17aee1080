"""Chunks that take rows of their neighbours (``map_overlap``), told by the layer alone.

Which chunks a strip needs, and how long each is kept, follows from the number of the strip: the
tasks of a hundred thousand chunks need not be made to find it out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from dask.layers import ArrayOverlapLayer, fractional_slice

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

        The first use of any chunk of the user lies ``user.early`` before it. What it needs of the
        chunk before it was cut from that one when it was there (:class:`Pieces`).
        """
        old = (self.early, self.late, self.kept)
        self.early = max(self.early, user.early + right)
        self.late = max(self.late, user.late + left)
        self.kept = max(self.kept, -user.early)
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


@dataclass(frozen=True)
class Pieces:
    """What each chunk of an overlap takes of the one before it along a dimension.

    layer : of the overlap.  place : the dimension.  early : so many strips before its own is a
    chunk of the overlap made. The piece is cut a strip earlier, when the chunk before it is made.
    """

    layer: Any
    place: int
    early: int

    @property
    def name(self) -> str:
        """In the keys of its slices."""
        return parts_of(self.layer)[1]

    @property
    def band(self) -> Band:
        """Which strips use the piece that is cut from chunk j."""
        return Band(self.early, 1 - self.early, 1 - self.early)

    def cut_by(self, strip: int) -> list[Key]:
        """The slices for the chunk of the overlap that is made for the next strip."""
        numblocks, number = self.layer.numblocks, strip + 1 + self.early
        if number >= numblocks[self.place]:
            return []
        numbers = [_numbers(self.layer, d) for d in range(len(numblocks))]
        numbers[self.place] = [number - 0.9]
        return [(self.name, *one) for one in product(*numbers)]

    def sizes(self, chunks: Sequence[Sequence[int]], itemsize: int) -> Array:
        """(strips,) bytes of what is cut from each chunk of the array below."""
        lengths = [sum(one) for one in chunks]
        for d, n in enumerate(self.layer.numblocks):
            lengths[d] += (n - 1) * sum(_rows(self.layer, d))
        lengths[self.place] = _rows(self.layer, self.place)[0]
        return np.full(len(chunks[self.place]), float(math.prod(lengths) * itemsize))


class Kept(Mapping[Key, int]):
    """Task -> the last strip that computes something from it, for chunks of a few arrays.

    bands : array -> (place of the number of the strip in its keys, how its chunks are used).
    pieces : of overlaps. The number of the strip in the key of one lies .1 above its chunk's.
    """

    def __init__(
        self, bands: Mapping[str, tuple[int, Band]], pieces: Iterable[Pieces], n_strips: int
    ) -> None:
        self.bands, self.n_strips = dict(bands), n_strips
        self.pieces = {one.name: one for one in pieces}

    def __getitem__(self, key: Key) -> int:
        piece = self.pieces.get(layer_of(key))
        place, band = (piece.place, piece.band) if piece else self.bands[layer_of(key)]
        number = round(key[1 + place])
        if piece and key[1 + place] <= number:
            raise KeyError(key)
        return int(min(max(number + band.kept, 0), self.n_strips - 1))

    def __len__(self) -> int:
        return (len(self.bands) + len(self.pieces)) * self.n_strips

    def __iter__(self) -> Any:
        raise NotImplementedError("the tasks of all strips are never listed")


class Ahead(Mapping[int, Sequence[Key]]):
    """Strip -> the slices for the next one that are cut when it is read."""

    def __init__(self, pieces: Iterable[Pieces], n_strips: int) -> None:
        self.pieces, self.n_strips = list(pieces), n_strips

    def __getitem__(self, strip: int) -> list[Key]:
        return [key for one in self.pieces for key in one.cut_by(strip)]

    def __len__(self) -> int:
        return self.n_strips

    def __iter__(self) -> Any:
        return iter(range(self.n_strips))


def window_nbytes(kept: Kept, layers: Mapping[str, Any], other: float) -> int:
    """Most bytes of chunks that are kept at once.  other : of a strip whose size nobody says."""
    steps = np.zeros(kept.n_strips + 1)
    for name, (place, band) in kept.bands.items():
        sizes = np.full(kept.n_strips, other)
        if (said := annotated(layers.get(name))) is not None:
            chunks, dtype = said
            across = math.prod(sum(one) for i, one in enumerate(chunks) if i != place)
            sizes = np.asarray(chunks[place], float) * across * dtype.itemsize
        _hold(steps, band, sizes)
    for piece in kept.pieces.values():
        said = annotated(layers.get(piece.layer.name))
        sizes = np.full(kept.n_strips, other)
        _hold(steps, piece.band, sizes if said is None else piece.sizes(said[0], said[1].itemsize))
    return int(np.cumsum(steps).max(initial=0))


def _hold(steps: Array, band: Band, sizes: Array) -> None:
    """Note when chunks of these sizes come and go."""
    np.add.at(steps, band.first(len(sizes)), sizes)
    np.add.at(steps, band.until(len(sizes)) + 1, -sizes)


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
    own, cut = parts_of(layer)
    few = _Few(layer, [(layer.name, *key[1:]) for key in keys if layer_of(key) == own])
    nodes = dict(few._construct_graph())  # type: ignore[no-untyped-call]
    for key in (key for key in keys if layer_of(key) == cut):
        nodes[key] = fractional_slice((layer.name, *key[1:]), layer.axes)
    return nodes


class _Few(ArrayOverlapLayer):
    """Some chunks of an overlap layer."""

    def __init__(self, layer: Any, keys: Iterable[Key]) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            layer.name, layer.axes, layer.chunks, layer.numblocks, layer.token
        )
        self._few = list(keys)

    def _dask_keys(self) -> list[Key]:
        return self._few
