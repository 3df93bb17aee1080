"""One turn of two-way centring and scaling: solve the lines, accumulate sums for the other axis.

The observed cells get mean 0 and mean square 1 in every row and every column, by
z_ij = (x_ij - a_i - b_j) / (s_i q_j): i are the streamed lines, j run across them. A turn begins
with z as standardised by the previous effects. The corrections are small near convergence, so they
keep their last digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import TILE_NBYTES, Accumulator
from streampca.accumulators.observed import observed_tiles, observed_values
from streampca.kernels import Array, reciprocal, sums_at

NOISE = 8.0  # a spread below this multiple of the rounding of the centre counts as 0


class TwoWayStep(Accumulator):
    """New effects of the lines given those across, and the sums that determine those across.

    The operands of a block are "center" and "scale" of all columns, "row_center" and "row_scale" of
    the rows of the block. For its lines, ``block["effects"]`` (length, 3) receives a_i, s_i and the
    number of observations, for a sink: a_i is the mean of x_ij - b_j with weights 1 / q_j, and s_i
    the root mean square of the residual over q_j.

    scaled : estimate s and q too; otherwise they stay as they are.
    Sample weights are the weights of their cells in all means and mean squares. Sums are float64. A
    line without observations keeps its effects. A line with a residual of rounding only has
    s_i = 1.
    Cost: about 16 flops per observed cell.
    Source: Hastie, Mazumder, Lee and Zadeh 2015, JMLR 16, section 6 ("centering and scaling").
    """

    settings = ("streamed", "scaled")
    fields = ("table", "squares", "largest", "reach")
    makes = ("effects",)

    def __init__(self, *, streamed: int, scaled: bool) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.scaled = scaled
        self.table: Any = None  # (7, m): sums of w, w t, w t^2, z, t z, z^2, t = 1 / s_i; and cells
        self.squares = 0.0  # sum of z^2
        self.largest = 0.0  # |z|
        self.reach = 0.0  # largest |a_i| so far

    def update(self, block: Any) -> None:
        self._check(block)
        m = block.shape[1 - block.axis]
        self._check_width(None if self.table is None else self.table.T, m)
        if self.table is None:
            self.table = np.zeros((7, m))
        lines = _Lines(block, self.scaled)
        for z, w, part in lines.pieces():
            t = reciprocal(lines.scale[part])
            self._add(z, w, t, lines.weights[part] if lines.weighted else np.ones_like(t))
        self.reach = max(self.reach, float(np.abs(lines.center).max(initial=0.0)))
        block.arrays["effects"] = lines.effects

    def _add(self, z: Any, w: Any, t: Array, weights: Array) -> None:
        """Add a piece; ``weights`` of its lines."""
        m = self.table.shape[1]
        if isinstance(w, _Entries):
            over, each = t[w.lines], weights[w.lines]
            sums = (each, each * over, each * over**2, each * z, each * over * z, each * z * z)
            for row, values in enumerate((*sums, np.ones_like(each))):
                self.table[row] += sums_at(w.across, values, m)
            self.squares += float(sums[5].sum())
            self.largest = max(self.largest, float(np.abs(z).max(initial=0.0)))
            return
        ones = np.ones_like(t)
        powers = np.stack([weights, weights * t, weights * t * t, ones]).astype(z.dtype)
        sums = powers.sum(axis=1, dtype=np.float64)[:, None] if w is None else powers @ w
        self.table[[0, 1, 2, 6]] += sums
        self.table[3:5] += powers[:2] @ z
        weighted = z * powers[0][:, None] if (weights != 1.0).any() else z
        squares = np.einsum("ij,ij->j", weighted, z)
        self.table[5] += squares
        self.squares += float(squares.sum(dtype=np.float64))
        self.largest = max(self.largest, float(z.max(initial=0.0)), -float(z.min(initial=0.0)))

    def merge(self, other: Self) -> None:
        if other.table is None:
            return
        self._join(other, "table", "squares")
        self.largest = max(self.largest, other.largest)
        self.reach = max(self.reach, other.reach)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 7 * 8 * shape[1 - self.streamed]

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        m = shape[1 - self.streamed]
        return 8 * (12 * block_length + 16 * m) + 3 * max(TILE_NBYTES, 8 * m)

    # -- results ----------------------------------------------------------------------------

    def across(self, center: Array, scale: Array, eps: float) -> Across:
        """The effects across after this turn, from those before it.

        center, scale : (m,) before the turn.  eps : of the working dtype.
        """
        if self.table is None:
            raise self._nothing_seen()
        weight, once, twice, sums, tilted, squares, cells = self.table
        step = np.divide(sums, once, out=np.zeros_like(sums), where=once > 0)
        left = np.maximum(squares - 2.0 * step * tilted + step**2 * twice, 0.0)
        root = np.sqrt(left / np.where(weight > 0, weight, 1.0))
        center = center + scale * step
        still = (cells < 2) | (root * scale <= NOISE * eps * (np.abs(center) + self.reach))
        moved = float(np.sum(step**2 * twice))
        if self.scaled:
            scale = np.where(still, 1.0, scale * root)
            moved += float(np.sum((weight * (root - 1.0) ** 2)[~still]))
        change = float(np.sqrt(moved / self.squares)) if self.squares > 0 else 0.0
        return Across(center, scale, still, change)


@dataclass(frozen=True)
class Across:
    """Effects across the lines.  center, scale : (m,).  still : (m,) True where nothing varies.

    change : how far they moved, relative to the residual of the data.
    """

    center: Array
    scale: Array
    still: Array
    change: float


def lay_row_effects(block: Any, scaled: bool) -> None:
    """Add to a block of samples the effects of its rows, given those of the columns.

    Two rounds: the second starts from the first and removes the float32 error.
    """
    for _ in range(2):
        lines = _Lines(block, scaled)
        for _ in lines.pieces():
            pass
        block.arrays = {**block.arrays, "row_center": lines.center, "row_scale": lines.scale}


class _Entries:
    """The line and the position across of each observed entry of a sparse block."""

    def __init__(self, lines: Array, across: Array) -> None:
        self.lines, self.across = lines, across


class _Lines:
    """The lines of one block, with the effects that they get in this turn."""

    def __init__(self, block: Any, scaled: bool) -> None:
        weights = block.weights
        block = block if weights is None else replace(block, weights=None)
        self.block, self.scaled = block, scaled
        length, m = block.length, block.shape[1 - block.axis]
        names = (("row_center", "row_scale"), ("center", "scale"))[block.axis]
        center, scale = (block.arrays.get(name) for name in names)
        if block.axis == 1:
            center, scale = center[block.columns], scale[block.columns]
        self.center = np.zeros(length) if center is None else np.array(center, np.float64)
        self.scale = np.ones(length) if scale is None else np.array(scale, np.float64)
        other = block.arrays.get("row_scale" if block.axis == 1 else "scale")
        self.over = np.ones(m) if other is None else reciprocal(np.asarray(other, np.float64))
        shift = block.arrays.get("row_center" if block.axis == 1 else "center")
        self.reach = 0.0 if shift is None else float(np.abs(shift).max(initial=0.0))
        self.eps = float(np.finfo(block.work_dtype).eps)
        self.weighted = weights is not None and block.axis == 0
        self.weights = np.ones(length) if weights is None or block.axis == 1 else weights
        self.across = np.ones(m) if weights is None or block.axis == 0 else weights
        self.count = np.zeros(length)

    @property
    def effects(self) -> Array:
        """(length, 3) center, scale and count."""
        return np.column_stack([self.center, self.scale, self.count])

    def pieces(self) -> Any:
        """(z, w, lines of the block) with the effects of the lines renewed."""
        if self.block.absent:
            yield self._of_entries()
            return
        dtype = self.block.work_dtype
        over, counted = self.over.astype(dtype), np.sign(self.over)
        each = (counted * self.across).astype(dtype)
        sides = np.stack([counted.astype(dtype), each, each * over], axis=1)
        for tile in observed_tiles(self.block):
            z, w, first = tile.z, tile.w, tile.start - self.block.start
            part = slice(first, first + len(z))
            whole = np.ones(len(z), dtype)[:, None] * sides.sum(axis=0)
            count, mass, weight = (whole if w is None else w @ sides).astype(np.float64).T
            step = self._centred(part, count, self._summed(z), weight)
            z -= step.astype(z.dtype)[:, None] * over
            if w is not None:
                z *= w
            weighted = z * each if self.block.axis == 1 and (self.across != 1.0).any() else z
            squares = np.einsum("ij,ij->i", weighted, z).astype(np.float64)
            factor = self._scaled(part, count, squares, mass)
            if factor is not None:
                z *= factor.astype(z.dtype)[:, None]
            yield z, w, part

    def _of_entries(self) -> tuple[Array, _Entries, slice]:
        seen, z = self.block.observed, observed_values(self.block)
        lines, length, part = seen.lines, self.block.length, slice(None)
        over, each = self.over[seen.indices], self.across[seen.indices]

        def summed(values: Array) -> Array:
            return sums_at(lines, values, length)

        count, mass = summed(np.sign(over)), summed(np.sign(over) * each)
        step = self._centred(part, count, summed(each * z), summed(each * over))
        z -= step[lines] * over
        factor = self._scaled(part, count, summed(each * z * z), mass)
        if factor is not None:
            z *= factor[lines]
        return z, _Entries(lines, seen.indices), part

    def _summed(self, z: Array) -> Array:
        """(lines,) float64 weighted sums along the lines of a tile."""
        if self.block.axis == 1 and (self.across != 1.0).any():
            return z @ self.across
        return np.asarray(z.sum(axis=1, dtype=np.float64))

    def _centred(self, part: slice, count: Array, sums: Array, weight: Array) -> Array:
        """Add the mean of these lines to their effects; return what z loses, over q."""
        step = np.divide(sums, weight, out=np.zeros_like(sums), where=weight > 0)
        self.count[part] = count
        self.center[part] += self.scale[part] * step
        return step

    def _scaled(self, part: slice, count: Array, squares: Array, mass: Array) -> Array | None:
        """Add the root mean square of these lines to their effects; return the factors of z."""
        if not self.scaled:
            return None
        root = np.sqrt(squares / np.where(mass > 0, mass, 1.0))
        before = self.scale[part].copy()
        noise = self.eps * (np.abs(self.center[part]) + self.reach) * float(self.over.max())
        spread = (count >= 2) & (root * before > NOISE * noise)
        self.scale[part] = np.where(spread, root * before, 1.0)
        return before / self.scale[part]
