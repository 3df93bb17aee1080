"""What a projection of genotypes sums over the variants that are observed in each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Block
from streampca.matrix.tiles import tile_length

MASK_COLUMNS = 4096  # of a mask that are turned into numbers at once
FLOAT = np.dtype(np.float64)


@dataclass(frozen=True)
class SumsLayout:
    """The columns of one array (n, width) of sums over the variants of each sample.

    0 to k: V'z.  k: z'z.  k + 1: the variants missing.  From k + 2 on, with ``gram``: the
    products v v' of their loadings, upper triangle.
    """

    k: int
    ploidy: int
    gram: bool
    squares: bool

    @property
    def width(self) -> int:
        return self.k + 2 + (self.k * (self.k + 1) // 2 if self.gram else 0)

    def add(self, sums: Array, z: Array, mask: Array | None, loadings: Array, used: Array) -> None:
        """Add the variants of one tile. z : (rows, variants).  loadings : (variants, k)."""
        k = self.k
        sums[:, :k] += z @ loadings
        if self.squares:
            sums[:, k] += np.einsum("ij,ij->i", z, z)
        for start in range(0, 0 if mask is None else z.shape[1], MASK_COLUMNS):
            part = slice(start, start + MASK_COLUMNS)
            hole = mask[:, part]  # type: ignore[index]
            columns = np.flatnonzero(used[part] & hole.any(axis=0))
            if columns.size:
                products = self._products(loadings[part][columns])
                sums[:, k + 1 :] += hole[:, columns].astype(FLOAT) @ products

    def _products(self, v: Array) -> Array:
        """(variants, 1 or 1 + k (k + 1) / 2): 1, and the products of loadings."""
        ones = np.ones((len(v), 1))
        if not self.gram:
            return ones
        rows, columns = np.triu_indices(self.k)
        return np.concatenate([ones, v[:, rows] * v[:, columns]], axis=1)

    def check(self, block: Block, scale: Array) -> None:
        """Refuse values of used variants that are no allele counts."""
        stats = block.stats
        seen = (stats.count > 0) & (scale > 0)
        slack = 1e-6 * self.ploidy  # dosages are rounded
        bad = seen & ((stats.minimum < -slack) | (stats.maximum > self.ploidy + slack))
        if bad.any():
            first = int(np.argmax(bad))
            low, high = stats.minimum[first], stats.maximum[first]
            value = low if low < -slack else high
            raise InvalidInputError(
                f"expected copies of an allele from 0 to {self.ploidy}; {block.describe()}, "
                f"{block.name_columns(np.flatnonzero(bad))} hold others (such as {value:g}). If "
                f"that means missing, say missing_value={value:g}; for another ploidy, ploidy=."
            )


class VariantSums(Accumulator):
    """The sums of all samples over blocks of variants."""

    axis = 1
    settings = ("layout",)
    fields = ("sums",)

    def __init__(self, *, layout: SumsLayout) -> None:
        self.layout = layout
        self.sums: Any = None  # (n, width) float64

    def update(self, block: Block) -> None:
        self._check(block)
        if self.sums is None:
            self.sums = np.zeros((block.shape[0], self.layout.width))
        scale, loadings = block["scale"], block["loadings"]
        self.layout.check(block, scale)
        for tile in block.tiles(FLOAT, center=block["center"], scale=scale):
            part = slice(tile.start - block.start, tile.stop - block.start)
            self.layout.add(self.sums, tile.values, tile.mask, loadings[part], scale[part] > 0)

    def merge(self, other: Self) -> None:
        if other.sums is not None:
            self.sums = other.sums.copy() if self.sums is None else self.sums + other.sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * shape[0] * self.layout.width * 8  # the sums, and those of one tile

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return tile_nbytes(block_length, shape[0])


@dataclass(frozen=True)
class SampleSums:
    """The sums of the samples of one block, as a map: (rows, width)."""

    layout: SumsLayout

    def __call__(self, block: Block) -> Array:
        scale, loadings = block["scale"], block["loadings"]
        self.layout.check(block, scale)
        sums = np.zeros((block.length, self.layout.width))
        for tile in block.tiles(FLOAT, center=block["center"], scale=scale):
            rows = slice(tile.start - block.start, tile.stop - block.start)
            self.layout.add(sums[rows], tile.values, tile.mask, loadings, scale > 0)
        return sums


def tile_nbytes(length: int, across: int) -> int:
    """A float64 tile, its mask, and the mask as numbers."""
    return tile_length(length, across, FLOAT.itemsize) * across * (2 * FLOAT.itemsize + 2)
