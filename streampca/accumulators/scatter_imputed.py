"""The scatter of a matrix whose holes hold their column's mean, in one pass.

The mean is not known while the pass runs. With Z = X - shift (0 in holes) and M = 1 in
holes, the filled and centred matrix is Y = Z - (1 - M) D with D = diag(mean - shift), and
Y'Y follows from Z'Z, Z'M and M'M for any shift. Only rows with holes enter the last two.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.accumulators.open_sum import TILE_NBYTES
from streampca.errors import InvalidInputError
from streampca.kernels import Array, rank_k_update, symmetrize, zeros


class MeanImputedScatter(Accumulator):
    """Exact centred scatter with missing="mean". Arithmetic is float64 throughout.

    ``zz``, ``zm`` and ``mm`` are three p x p matrices: three times the memory of
    :class:`Scatter`, and up to four times its arithmetic where most rows have holes.
    """

    fields = ("count", "weight", "shift", "fixed", "total", "holes", "missing", "zz", "zm", "mm")

    def __init__(self) -> None:
        self.count = 0
        self.weight = 0.0
        self.shift: Any = None  # (p,) any value near the mean
        self.fixed: Any = None  # (p,) 1 where the shift is chosen (column once observed)
        self.total: Any = None  # (p,) sum w z over observed cells
        self.holes: Any = None  # (p,) sum w over holes
        self.missing: Any = None  # (p,) number of holes
        self.zz: Any = None  # (p, p) lower: sum w z z'
        self.zm: Any = None  # (p, p) sum w z m'
        self.mm: Any = None  # (p, p) lower: sum w m m'

    def _open(self, p: int) -> None:
        if self.shift is None:
            self.shift, self.total, self.holes = np.zeros(p), np.zeros(p), np.zeros(p)
            self.fixed = np.zeros(p)
            self.missing = np.zeros(p, dtype=np.int64)
            self.zz, self.zm, self.mm = (zeros((p, p)) for _ in range(3))

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_width(self.shift, block.shape[1])
        self._open(block.shape[1])
        if block.length == 0:
            return
        if not self.fixed.all():
            stats = block.stats
            fresh = (self.fixed == 0) & (stats.weight > 0)
            self.shift[fresh] = stats.mean[fresh]
            self.fixed[fresh] = 1.0
        for tile in block.tiles(np.dtype(np.float64), center=self.shift):
            rank_k_update(self.zz, tile.values, rows=True)
            self.total += tile.sums
            if tile.mask is not None:
                rows = np.flatnonzero(tile.mask.any(axis=1))
                m = tile.mask[rows].astype(np.float64)
                if tile.root_weights is not None:
                    m *= tile.root_weights[rows, None]
                self.zm += tile.values[rows].T @ m
                rank_k_update(self.mm, m, rows=True)
                self.holes += np.sum(m**2, axis=0)
                self.missing += np.count_nonzero(tile.mask, axis=0)
        self.count += block.length
        self.weight += block.total_weight

    def merge(self, other: Self) -> None:
        if other.shift is None or other.zz is None:
            return
        self._check_width(self.shift, len(other.shift))
        self._open(len(other.shift))
        fresh = (self.fixed == 0) & (other.fixed == 1)
        self.shift[fresh] = other.shift[fresh]
        self.fixed[fresh] = 1.0
        zz, zm, total = other._about(np.where(other.fixed == 1, self.shift - other.shift, 0.0))
        self.zz += zz
        self.zm += zm
        self.mm += other.mm
        self.total = self.total + total
        self.holes = self.holes + other.holes
        self.missing = self.missing + other.missing
        self.count += other.count
        self.weight += other.weight

    def _about(self, d: Array) -> tuple[Array, Array, Array]:
        """(zz lower, zm, total) of the same rows about shift + d."""
        if not d.any():
            return self.zz, self.zm, self.total
        mm = symmetrize(self.mm)
        seen = self.weight - self.holes  # sum w (1 - m) per column
        # sum w z (1-m)' and sum w (1-m)(1-m)', from sums over all rows less those over holes
        z_seen = self.total[:, None] - self.zm
        both = seen[:, None] - self.holes[None, :] + mm
        zz = self.zz - z_seen * d[None, :] - d[:, None] * z_seen.T + d[:, None] * both * d[None, :]
        zm = self.zm - d[:, None] * (self.holes[None, :] - mm)
        return zz, zm, self.total - d * seen

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        p = shape[1]
        return 3 * p * p * 8 + 7 * p * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        # merging two spans about one shift; the rows of a tile that have holes, and the holes
        return 5 * shape[1] ** 2 * 8 + 3 * TILE_NBYTES

    # -- results ----------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """(p,) mean of the observed cells; 0 where there is none."""
        if self.shift is None or self.total is None or self.holes is None:
            raise InvalidInputError("MeanImputedScatter has seen no block")
        seen = self.weight - self.holes
        return np.where(seen > 0, self.shift + self._from_shift(), 0.0)

    def _from_shift(self) -> Array:
        """(p,) mean - shift, not rounded as the mean is; 0 where nothing was observed."""
        seen = self.weight - self.holes
        return np.where(seen > 0, self.total / np.where(seen > 0, seen, 1.0), 0.0)

    def lower(self) -> Array:
        """(p, p) float64, lower triangle valid: scatter of the filled matrix about its mean.

        Beside holes an error of the mean counts in full, not squared: it must not be rounded.
        """
        if self.shift is None:
            raise InvalidInputError("MeanImputedScatter has seen no block")
        zz = self._about(self._from_shift())[0]
        return zz.copy() if zz is self.zz else zz

    def scatter(self) -> Array:
        """(p, p) float64 symmetric."""
        return symmetrize(self.lower())

    def covariance(self, ddof: int = 1) -> Array:
        """(p, p) scatter / (sum of weights - ddof)."""
        if self.weight - ddof <= 0:
            raise InvalidInputError(f"covariance of {self.count} rows with ddof={ddof}")
        return self.scatter() / (self.weight - ddof)
