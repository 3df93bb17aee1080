"""Passes of a completion over the observed cells: tiles, spread of the rows, held-out error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.kernels import Array, reciprocal, row_pieces, side_by_side

# Cache-sized pieces of a block, with the streamed lines as rows, and a mask of the observed cells.
#
# Operands of a block are "center" and "scale", of all columns of the matrix, and "row_center" and
# "row_scale", of the rows of the block. Then z_ij = ((x_ij - center_j) / scale_j -
# row_center_i / scale_j) / row_scale_i. A scale of 0 gives 0, and so does an infinite row_scale.


@dataclass
class ObservedTile:
    """Some lines of a block. Valid until the next one.

    z : (lines, m) standardised values in the working dtype, 0 in the holes.
    w : the same shape and dtype, 1 where a cell is observed, else 0; None without holes.
    start : number of the first line, on the streamed axis.
    """

    z: Array
    w: Array | None
    start: int

    @property
    def squares(self) -> float:
        """Sum of z^2."""
        per_line = np.einsum("ij,ij->i", self.z, self.z)
        return float(per_line.sum(dtype=np.float64))

    @property
    def cells(self) -> int:
        """Number of observed cells."""
        if self.w is None:
            return self.z.size
        return int(np.add.reduce(self.w, axis=1).sum(dtype=np.float64))


def observed_tiles(block: Any) -> Iterator[ObservedTile]:
    """The tiles of a block, standardised by its operands."""
    center, scale = (_of_columns(block, name) for name in ("center", "scale"))
    about_rows = _AboutRows.of(block, scale)
    dtype, buffer = block.work_dtype, None
    for tile in block.tiles(dtype, center=center, scale=scale, thin=True):
        mask = tile.mask
        if about_rows is not None:
            about_rows.take_from(tile.values, mask, tile.start - block.start)
        w = None
        if mask is not None:
            if buffer is None or buffer.size < mask.size:  # the first tile is the largest
                buffer = block.borrow("observed", (max(mask.size, tile.values.size),), dtype)
            w = buffer[: mask.size].reshape(mask.shape)
            np.logical_not(mask, out=w, casting="unsafe")
        turned = (
            (tile.values.T, None if w is None else w.T) if block.axis == 1 else (tile.values, w)
        )
        yield ObservedTile(*turned, tile.start)


def observed_values(block: Any) -> Array:
    """(entries,) float64 z of a block in which only stored cells are observed."""
    seen = block.observed
    center, scale = (_of_columns(block, name) for name in ("center", "scale"))
    z = np.asarray(seen.standardized(center, scale))
    shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
    if shift is not None:
        taken = shift[seen.rows]
        z -= taken if scale is None else taken * reciprocal(scale)[seen.columns]
    if spread is not None:
        z /= spread[seen.rows]
    return z


def _of_columns(block: Any, name: str) -> Array | None:
    """The part of an operand over all features that belongs to this block."""
    values = block.arrays.get(name)
    return None if values is None else values[block.columns]


@dataclass
class _AboutRows:
    """The centre and scale of the rows of standardised tiles, in the working dtype.

    rest : rounding error of the shift in that dtype.
    """

    axis: int
    shift: Array | None
    rest: Array | None
    over: Array | None
    columns: Array | None  # reciprocals of the scales of the columns

    @classmethod
    def of(cls, block: Any, scale: Array | None) -> _AboutRows | None:
        shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
        if shift is None and spread is None:
            return None
        dtype, rest = block.work_dtype, None
        if shift is not None:
            whole, shift = shift, shift.astype(dtype)
            rest = (whole - shift).astype(dtype)
            rest = rest if rest.any() else None
        over = None if spread is None else (1.0 / spread).astype(dtype)
        columns = None if scale is None else reciprocal(scale).astype(dtype)
        return cls(block.axis, shift, rest, over, columns)

    def take_from(self, values: Array, mask: Array | None, first: int) -> None:
        """Standardise a tile (rows, columns) in place; ``first`` line of the block."""
        rows, columns = values.shape
        above, left = (0, first) if self.axis == 1 else (first, 0)
        over_columns: Any = 1.0
        if self.columns is not None:
            over_columns = self.columns[left : left + columns]
        for part in row_pieces(rows, columns * values.itemsize):
            z, here = values[part], slice(part.start + above, part.stop + above)
            for shift in (self.shift, self.rest):
                if shift is not None:
                    z -= shift[here, None] * over_columns
            if self.over is not None:
                z *= self.over[here, None]
            if mask is not None and self.shift is not None:
                z[mask[part]] = 0.0


# The spread of row means: how much rows differ beyond the noise of their cells.


class RowSpread(Accumulator):
    """Sum over rows of n_i (mean_i - mean of all cells)^2, with n_i the observed cells of row i.

    Values are standardised by the operands of the block: see ``observed_tiles``. A row of weight w
    counts w times. Merged pairwise about the mean; sums are float64.
    Cost: one addition per observed cell.
    Source: Searle, Casella and McCulloch 1992, "Variance Components", section 3.6 (the sums of
    squares of the one-way layout with unequal numbers).
    """

    fields = ("width", "rows", "cells", "cells_squared", "mean", "between")

    def __init__(self) -> None:
        self.width: int | None = None  # columns
        self.rows = 0.0  # with any observation
        self.cells = 0.0  # sum of n_i, the cells of row i
        self.cells_squared = 0.0  # sum of n_i^2
        self.mean = 0.0  # of all cells
        self.between = 0.0  # sum of n_i (mean_i - mean)^2

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_columns(block.shape[1])
        weights = block.weights
        block = block if weights is None else replace(block, weights=None)
        count, total = _of_entries(block) if block.absent else _of_tiles(block)
        weights = np.ones(block.length) if weights is None else weights
        seen = (count > 0) & (weights > 0)
        if not seen.any():
            return
        count, total, weights = count[seen], total[seen], weights[seen]
        means, each = total / count, weights * count
        mean = float(np.average(means, weights=each))
        self._add(
            float(weights.sum()),
            float(each.sum()),
            float(each @ count),
            mean,
            float(each @ (means - mean) ** 2),
        )

    def _check_columns(self, width: int) -> None:
        self._check_width(None if self.width is None else np.empty(self.width), width)
        self.width = width

    def _add(
        self, rows: float, cells: float, cells_squared: float, mean: float, between: float
    ) -> None:
        if cells == 0.0:
            return
        joint, apart = self.cells + cells, mean - self.mean
        self.between += between + apart**2 * self.cells * cells / joint
        self.mean += apart * cells / joint
        self.rows += rows
        self.cells = joint
        self.cells_squared += cells_squared

    def merge(self, other: Self) -> None:
        if other.width is None:
            return
        self._check_columns(other.width)
        self._add(other.rows, other.cells, other.cells_squared, other.mean, other.between)

    def sums(self) -> RowSums:
        """The sums so far. Raises InvalidInputError where no block was seen."""
        if self.width is None:
            raise self._nothing_seen()
        return RowSums(self.rows, self.cells, self.cells_squared, self.mean, self.between)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * len(self.fields)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 6 * 8 * block_length


class RowSums(NamedTuple):
    """rows : with any observation.  cells : sum of n_i, the cells of row i.  cells_squared : sum of
    n_i^2.  mean : of all cells.  between : sum of n_i (mean_i - mean)^2."""

    rows: float
    cells: float
    cells_squared: float
    mean: float
    between: float


def _of_tiles(block: Any) -> tuple[Array, Array]:
    """(cells, sum of their values) of every row."""
    count, total = np.zeros(block.length), np.zeros(block.length)
    for tile in observed_tiles(block):
        lines = slice(tile.start - block.start, tile.start - block.start + len(tile.z))
        total[lines] = tile.z.sum(axis=1, dtype=np.float64)
        count[lines] = tile.z.shape[1] if tile.w is None else tile.w.sum(axis=1, dtype=np.float64)
    return count, total


def _of_entries(block: Any) -> tuple[Array, Array]:
    lines = block.observed.lines
    count = np.bincount(lines, minlength=block.length).astype(np.float64)
    return count, np.bincount(lines, observed_values(block), minlength=block.length)


# The error of an estimate by factors in held-out cells.

CELLS = 1 << 15  # cells that are evaluated together


class HeldOutError(Accumulator):
    """Sum of squared errors of U V' in the held-out cells of every candidate.

    ``block["held"]`` has the ``rows`` and ``columns`` (of the block) and ``values`` of those cells.
    ``block["u"]`` (length, sum of ranks) has the factors of the lines. The operand named by
    ``factors`` (m, sum of ranks) has those across. Errors are in the units of the data:
    predictions of scaled columns and rows are scaled back, and clipped to ``bounds``.

    ranks : columns of the factors of each candidate.  bounds : (low, high) of all predictions.
    share : largest share of held-out cells in a block, for the projection of memory.
    fitted : which candidates are judged; the errors of all others are infinite. None: all.
    """

    settings = ("streamed", "ranks", "factors", "bounds", "share", "fitted")
    fields = ("squares", "products", "cells")

    def __init__(
        self,
        *,
        streamed: int,
        ranks: tuple[int, ...],
        factors: str = "v",
        bounds: tuple[float, float] = (-np.inf, np.inf),
        share: float = 0.1,
        fitted: tuple[bool, ...] | None = None,
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.ranks, self.factors, self.bounds = tuple(ranks), factors, tuple(bounds)
        self.share = share
        self.fitted = (True,) * len(self.ranks) if fitted is None else tuple(fitted)
        self.squares: Any = None  # (candidates,)
        self.products: Any = None  # (candidates, candidates) of their squared errors
        self.cells = 0

    def update(self, block: Any) -> None:
        self._check(block)
        held = block["held"]
        center, scale = (block.arrays.get(name) for name in ("center", "scale"))
        at = held.columns + (block.start if block.axis == 1 else 0)
        line, across = (held.columns, held.rows) if block.axis == 1 else (held.rows, held.columns)
        u, v = block["u"], block[self.factors]
        target = held.values.astype(np.float64)
        if center is not None:
            target = target - center[at]
        factor = np.ones(len(target)) if scale is None else np.asarray(scale)[at]
        shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
        if shift is not None:
            target = target - shift[held.rows]
        kept: Any = slice(None)
        if spread is not None:  # infinite in rows of weight 0, which are not evaluated
            kept = np.isfinite(spread[held.rows])
            line, across, target = line[kept], across[kept], target[kept]
            factor = (factor * spread[held.rows])[kept]
        shift = held.values.astype(np.float64)[kept] - target
        low, high = (one - shift for one in self.bounds)
        for first in range(0, max(len(target), 1), CELLS):
            some = slice(first, first + CELLS)
            errors = np.zeros((len(self.ranks), len(target[some])))
            for c, part in enumerate(side_by_side(self.ranks)):
                if not self.fitted[c]:
                    continue
                sides = u[line[some], part], v[across[some], part]
                predicted = np.einsum("ij,ij->i", *sides, dtype=np.float64) * factor[some]
                within = np.clip(predicted, low[some], high[some])
                errors[c] = (target[some] - within) ** 2
            squares, products = errors.sum(axis=1), errors @ errors.T
            self.squares = squares if self.squares is None else self.squares + squares
            self.products = products if self.products is None else self.products + products
            self.cells += errors.shape[1]

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * len(self.ranks) * (len(self.ranks) + 1) + 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """The held-out cells of a block, and the factors of some of them."""
        held = int(self.share * block_length * shape[1 - self.streamed]) + 1
        numbers = 5 + len(self.ranks) + 2 * max(self.ranks)
        return int(9 * held + numbers * min(held, CELLS)) * 8

    def rmse(self) -> Array:
        """(candidates,) root mean square error; NaN where no cell was held out."""
        if self.squares is None or not self.cells:
            return np.full(len(self.ranks), np.nan)
        return np.asarray(np.sqrt(self._squares() / self.cells))

    def _squares(self) -> Array:
        return np.where(self.fitted, self.squares, np.inf)

    def best(self, simplest: int | None = None) -> int:
        """Number of the candidate with the least error; 0 where no cell was held out.

        simplest : a candidate that is preferred unless another one is better by more than the
            standard error of the difference of their mean squares.
        Source: Hastie, Tibshirani and Friedman 2009, "The Elements of Statistical Learning",
        section 7.10.1 (the one-standard-error rule), for paired errors.
        """
        if self.squares is None or not self.cells:
            return 0
        least = int(np.argmin(self._squares()))
        if simplest is None:
            return least
        q, cells = self.products, self.cells
        gain = float(self.squares[simplest] - self.squares[least]) / cells
        spread = (q[simplest, simplest] + q[least, least] - 2.0 * q[simplest, least]) / cells
        error = float(np.sqrt(max(spread - gain**2, 0.0) / cells))
        return simplest if gain <= error else least


# A product of the observed cells with random vectors, as the start of an iteration over ratings.

PRIOR = 5.0


class ObservedPower(Accumulator):
    """S Q with S = Z'Z (samples streamed) or ZZ' (features), Z 0 in all cells not observed.

    The operand "q" (m, width) has random columns. Nothing is known of the matrix yet: with
    ``center``, columns are centred by their mean in the block, shrunk towards that of all columns
    as if PRIOR more cells had that mean. As the start of an iteration this is accurate enough.

    Cost: 4 width flops per observed cell.
    Source: Halko, Martinsson and Tropp 2011, SIAM Review 53(2), section 4.5, one power.
    """

    settings = ("streamed", "width", "center")
    fields = ("product",)

    def __init__(self, *, streamed: int, width: int, center: bool) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.width, self.center = width, center
        self.product: Any = None  # (m, width) float64

    def update(self, block: Any) -> None:
        self._check(block)
        q, observed = block["q"], block.observed
        if self.product is None:
            self.product = np.zeros((len(q), self.width))
        z = observed.data.astype(np.float64)
        if self.center and len(z):
            z -= z.mean()
            stats = observed.stats
            share = stats.count / (stats.count + PRIOR)
            z -= (share * (stats.mean - observed.data.mean(dtype=np.float64)))[observed.columns]
        entries = observed.entries(z)
        entries.two_products(q, self.product, np.zeros(self.width))

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1 - self.streamed] * self.width * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 2 * block_length * self.width * 8

    def directions(self) -> tuple[Array, Array]:
        """((m, width) orthonormal directions, leading first; about the singular values of Z).

        A direction in which Z has the singular value d has d^2 times a normal row of norm about
        sqrt(width) in the product.
        """
        found, values, _ = np.linalg.svd(self.product, full_matrices=False)
        return found, np.sqrt(values / np.sqrt(self.width))
