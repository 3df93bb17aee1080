"""Products of a matrix with itself or a few columns: Gram, X'Y, mean-imputed scatter."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import (
    OPEN_BLOCKS,
    TILE_NBYTES,
    Accumulator,
    divisor_of,
    refuse_incomplete,
    squares_vanish,
)
from streampca.kernels import (
    PROBES,
    Array,
    add_in_place,
    lower_product,
    probe,
    probe_vectors,
    probed_product,
    rank_k_update,
    symmetrize,
    zeros,
)

# The Gram matrix G = sum over features of z z', n x n, with features standardised on the fly.


class Gram(Accumulator):
    """Gram matrix of streamed features.

    A block holds whole columns, so their statistics are final when the block arrives: centring and
    scaling need no pass of their own.

    standardize : how columns are centred and scaled (:class:`streampca.matrix.Standardize`).
    missing : "raise", or "mean" (a hole is 0 after centring). A column without any observation
        contributes nothing. The side input "feature_weights" weights the features.
    part : of the blocks, which a map makes; None sums them whole.
    The rounding error of the sums is measured (:mod:`streampca.kernels.columns`): :meth:`rounding`.
    """

    axis = 1
    reuses = "_product"
    height = 1  # vectors of the Gram matrix are so many times as long as the columns of a block
    settings = ("standardize", "missing", "part")
    fields = ("g", "z_probe", "n_features", "n_used", "probed")

    def __init__(
        self, *, standardize: Any, missing: str = "raise", part: str | None = None
    ) -> None:
        self.standardize = standardize
        self.missing = missing
        self.part = part
        self.g: Any = None  # (n, n) float64, lower: sum of z z'
        self.z_probe: Any = None  # (n,) Z h, with h of kernels.probe
        self.n_features = 0
        self.n_used = 0  # features that are not constant, filtered or entirely missing
        self.probed: Any = None  # (n, PROBES) g H in short sums
        self._product: Any = None  # (n, n) working dtype, lower, of the open span
        self._blocks = 0

    def update(self, block: Any) -> None:
        self._check(block)
        block = block.part(self.part)
        n = self.height * block.shape[0]
        self._check_width(self.g if self.g is not None else self._product, n)
        stats = block.stats
        if self.missing == "raise":
            refuse_incomplete(block)
        dtype = block.work_dtype
        scaling = self.standardize.resolve(stats, block.eps, block.arrays.get("feature_weights"))
        full = self._blocks >= OPEN_BLOCKS  # settled only now: a whole span then stays float32
        if full or (self._product is not None and self._product.dtype != dtype):
            self.settle()
        if self._product is None:
            self._product, self._spare = zeros((n, n), dtype, self._spare), None
        if self.z_probe is None:
            self.z_probe = np.zeros(n)
        if self.probed is None:
            self.probed = np.zeros((n, PROBES))
        h = probe_vectors(n)
        each = self.height
        for tile in block.tiles(dtype, scaling.center, scaling.scale, multiple=each):
            vectors = self._vectors(tile.values)
            rank_k_update(self._product, vectors, rows=False)
            further = probe(tile.start // each, tile.stop // each).astype(dtype)[:, None]
            products = probed_product(vectors, h, rows=False, further=further)
            self.probed += products[:, :PROBES]
            self.z_probe += products[:, PROBES]
        self.n_features += block.length // each
        unused = scaling.constant | scaling.filtered | (stats.count == 0)
        self.n_used += (block.length - int(np.count_nonzero(unused))) // each
        self._blocks += 1

    def _vectors(self, columns: Array) -> Array:
        """(n, vectors) of the columns of a tile."""
        return columns

    def settle(self) -> None:
        if self._product is not None:
            self.g = zeros(self._product.shape) if self.g is None else self.g
            add_in_place(self.g, self._product)
        self._product, self._blocks = None, 0

    def merge(self, other: Self) -> None:
        self.settle()
        for part in (other.g, other._product):
            if part is not None:
                self._check_width(self.g, len(part))
                self.g = zeros(part.shape) if self.g is None else self.g
                add_in_place(self.g, part)
        self._join(other, "z_probe", "probed", "n_features", "n_used")

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = self.height * shape[0]
        return n * n * 8 + (1 + 2 * PROBES) * n * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = self.height * shape[0]
        return n * n * itemsize + (1 + 2 * PROBES) * n * 8

    # -- results ----------------------------------------------------------------------------

    def lower(self) -> Array:
        """(n, n) float64 with the lower triangle valid: the state itself, not a copy."""
        self.settle()
        if self.g is None:
            raise self._nothing_seen()
        return np.asarray(self.g)

    def rounding(self) -> Array:
        """(n, PROBES) float64 E H: the error E of the sums times the random vectors H."""
        lower = self.lower()
        with np.errstate(invalid="ignore"):  # the solver checks for overflow
            return np.asarray(lower_product(lower, probe_vectors(len(lower))) - self.probed)

    def gram(self) -> Array:
        """(n, n) float64 symmetric."""
        return symmetrize(self.copied().lower())


# X'Y for a few columns Y of the streamed samples: loadings, Krylov steps.


class CrossProduct(Accumulator):
    """sum over rows of w z y', p x k, with z = (x - center) / scale.

    y is read from the block by name: a side input (scores) or the output of a map (X Q).
    ``center`` and ``scale`` are operands, also by name; None omits that step. Y should sum to zero
    over all rows, or center should be the mean: then the result does not depend on the center.
    ``width`` is the number of columns of Y, for the projection of memory only.
    """

    settings = ("y", "center", "scale", "width")
    fields = ("product",)

    def __init__(
        self, *, y: str, center: str | None = None, scale: str | None = None, width: int = 64
    ) -> None:
        self.y, self.center, self.scale, self.width = y, center, scale, width
        self.product: Any = None  # (p, k) float64

    def update(self, block: Any) -> None:
        self._check(block)
        y = np.asarray(block[self.y])
        if self.product is not None:
            self._check_width(self.product, block.shape[1])
            self._check_width(self.product.T, y.shape[1])
        if self.product is None:
            self.product = np.zeros((block.shape[1], y.shape[1]))
        center = None if self.center is None else block[self.center]
        scale = None if self.scale is None else block[self.scale]
        if block.sparse:
            y = y if block.weights is None else y * block.weights[:, None]
            self.product += block.entries.cross(y, center, scale)
            return
        for tile in block.tiles(block.work_dtype, center=center, scale=scale):
            part = y[tile.start - block.start : tile.stop - block.start].astype(tile.values.dtype)
            if tile.root_weights is not None:
                part = part * tile.root_weights[:, None]
            self.product += tile.values.T @ part

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * shape[1] * self.width * 8  # the sum, and one tile's contribution

    def cross_product(self) -> Array:
        """(p, k) float64, a fresh array."""
        if self.product is None:
            raise self._nothing_seen()
        return np.array(self.product)


# The scatter of a matrix with its holes filled by column means, in one pass.
#
# The mean is not known while the pass runs. With Z = X - shift (0 in holes) and M = 1 in
# holes, the filled and centred matrix is Y = Z - (1 - M) D with D = diag(mean - shift), and
# Y'Y follows from Z'Z, Z'M and M'M for any shift. Only rows with holes enter the last two.


class MeanImputedScatter(Accumulator):
    """Exact centred scatter with missing="mean". Arithmetic is float64 throughout.

    ``zz``, ``zm`` and ``mm`` are three p x p matrices: three times the memory of
    :class:`Scatter`, and up to four times its arithmetic where most rows have holes.
    """

    fields = (
        "count",
        "weight",
        "shift",
        "fixed",
        "total",
        "holes",
        "missing",
        "zz",
        "zm",
        "mm",
        "varies",
    )

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
        self.varies: Any = None  # 1 where rows vary so little that squares underflow, or None

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
            if squares_vanish(self.zz, tile.values):
                self.varies = 1
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
        step = np.where(other.fixed == 1, self.shift - other.shift, 0.0)
        zz, zm, total = other._about(step)
        self.zz += zz
        self.varies = self.varies or other.varies or (int(squares_vanish(self.zz, step)) or None)
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
        # merging two spans about one shift; the rows of a tile with holes, and their mask
        return 5 * shape[1] ** 2 * 8 + 3 * TILE_NBYTES

    # -- results ----------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """(p,) mean of the observed cells; 0 where there is none."""
        if self.shift is None or self.total is None or self.holes is None:
            raise self._nothing_seen()
        seen = self.weight - self.holes
        return np.where(seen > 0, self.shift + self._from_shift(), 0.0)

    def _from_shift(self) -> Array:
        """(p,) mean - shift, not rounded as the mean is; 0 where nothing was observed."""
        seen = self.weight - self.holes
        return np.where(seen > 0, self.total / np.where(seen > 0, seen, 1.0), 0.0)

    def lower(self) -> Array:
        """(p, p) float64, lower triangle valid: scatter of the filled matrix about its mean.

        With holes, an error of the mean counts linearly, not squared: it must not be rounded.
        """
        if self.shift is None:
            raise self._nothing_seen()
        zz = self._about(self._from_shift())[0]
        return zz.copy() if zz is self.zz else zz

    def scatter(self) -> Array:
        """(p, p) float64 symmetric."""
        return symmetrize(self.lower())

    def covariance(self, ddof: int = 1) -> Array:
        """(p, p) scatter / (sum of weights - ddof)."""
        return self.scatter() / divisor_of(self.weight, ddof)
