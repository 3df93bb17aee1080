"""Means, variances, extremes and missing cells of columns, and their products with side columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, joint_missing, refuse_partly_missing
from streampca.errors import InvalidInputError
from streampca.kernels import VARIES, Array, ColumnStats, add_exactly

# Count, mean, second moment, minimum, maximum and missing cells of every column.

NAMES = ("count", "missing", "weight", "mean", "m2", "minimum", "maximum", "mean_low")


class Moments(Accumulator):
    """Column moments along either axis. NaN and missing codes are counted, not used.

    Merged pairwise about the mean. Source: Chan, Golub and LeVeque 1983, "Algorithms for
    computing the sample variance", eq. 2.1.
    """

    axis = None
    fields = ("starts", "table")

    def __init__(self) -> None:
        self.parts: dict[int, ColumnStats] = {}  # first column -> statistics from there on

    def update(self, block: Any) -> None:
        if block.axis == 0 or block.length:  # an empty block of features adds no part
            self._take(block.columns.start, block.stats)

    def merge(self, other: Self) -> None:
        for start, stats in other.parts.items():
            self._take(start, stats)

    def _take(self, start: int, stats: ColumnStats) -> None:
        mine = self.parts.get(start)
        if mine is not None and len(mine.mean) != len(stats.mean):
            raise InvalidInputError(f"Moments of {len(mine.mean)} columns, now {len(stats.mean)}")
        self.parts[start] = stats if mine is None else combine(mine, stats)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * len(NAMES) * 8 * shape[1]

    # -- results ----------------------------------------------------------------------------

    def columns(self) -> ColumnStats:
        """Everything, one entry per column, fresh arrays."""
        ordered = [self.parts[start] for start in sorted(self.parts)]
        if not ordered:
            raise self._nothing_seen()
        return ColumnStats(*(np.concatenate([getattr(s, n) for s in ordered]) for n in NAMES))

    def mean(self) -> Array:
        """(p,) mean of the observed cells; 0 where there is none."""
        return self.columns().mean

    def variance(self, ddof: int = 1) -> Array:
        """(p,) variance of the observed cells."""
        seen = self.columns()
        freedom = seen.weight - ddof
        return np.where(freedom > 0, seen.m2 / np.where(freedom > 0, freedom, 1.0), np.nan)

    # -- state: one table instead of a field per segment ---------------------------------------

    @property
    def starts(self) -> Array:
        """(segments, 2) first column and number of columns of each segment."""
        return np.array([(s, len(self.parts[s].mean)) for s in sorted(self.parts)], dtype=np.int64)

    @property
    def table(self) -> Array | None:
        """(statistics, columns) of all segments side by side."""
        if not self.parts:
            return None
        seen = self.columns()
        return np.stack([getattr(seen, name).astype(np.float64) for name in NAMES])

    def from_state(self, state: Mapping[str, Array]) -> Self:
        restored = self.blank()
        self._check_state(state)
        offset = 0
        for start, length in np.asarray(state["starts"]).reshape(-1, 2):
            rows = np.array(state["table"])[:, offset : offset + length]
            integers = [rows[i].astype(np.int64) for i in range(2)]
            restored.parts[int(start)] = ColumnStats(*integers, *rows[2:])
            offset += length
        return restored


@np.errstate(over="ignore", invalid="ignore")  # the solver checks for overflow
def combine(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    """Statistics of two disjoint sets of rows (Chan, Golub, LeVeque 1983)."""
    weight = a.weight + b.weight
    safe = np.where(weight > 0, weight, 1.0)
    delta = (b.mean - a.mean) + (b.mean_low - a.mean_low)
    first = a.weight > 0
    mean, low = add_exactly(a.mean, a.mean_low + np.where(first, delta * b.weight / safe, 0.0))
    mean, low = np.where(first, mean, b.mean), np.where(first, low, b.mean_low)
    m2 = a.m2 + b.m2 + delta**2 * a.weight * b.weight / safe
    m2[(m2 == 0.0) & (delta != 0.0) & (a.weight > 0) & (b.weight > 0)] = VARIES
    return ColumnStats(
        a.count + b.count,
        a.missing + b.missing,
        weight,
        mean,
        m2,
        np.minimum(a.minimum, b.minimum),
        np.maximum(a.maximum, b.maximum),
        low,
    )


# Missing cells of every row, counted while features stream.


class RowMissing(Accumulator):
    """Number of missing cells of each sample over the features seen.

    part : of the blocks, which a map makes; None counts them whole.
    """

    axis = 1
    settings = ("part",)
    fields = ("missing", "n_features")

    def __init__(self, *, part: str | None = None) -> None:
        self.part = part
        self.missing: Any = None  # (n,) int64
        self.n_features = 0

    def update(self, block: Any) -> None:
        self._check(block)
        block = block.part(self.part)
        self._check_width(self.missing, block.shape[0])
        lost = block.row_missing
        self.missing = lost.copy() if self.missing is None else self.missing + lost
        self.n_features += block.length

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] * 8

    def counts(self) -> Array:
        """(n,) int64, a fresh array."""
        if self.missing is None:
            raise self._nothing_seen()
        return np.array(self.missing)


# Means of streamed rows and of a few side columns, and their cross-product about the means.


class CrossMoments(Accumulator):
    """sum over rows of w (x - mean)(y - mean)', p x c, for a few columns Y of the samples.

    y is a side input, read from the block by name. Rows are shifted by a provisional mean and
    merged about their means; arithmetic is float64.
    missing : as :class:`Scatter`.
    width : c, for the projection of memory only.
    Source: Chan, Golub and LeVeque 1983, eq. 2.1, for two variables.
    """

    settings = ("y", "width")
    fields = ("count", "weight", "missing", "mean", "mean_low", "y_mean", "cross")

    def __init__(self, *, y: str = "y", width: int = 16) -> None:
        self.y, self.width = y, width
        self.count = 0
        self.weight = 0.0
        self.missing: Any = None  # (p,) missing cells
        self.mean: Any = None  # (p,)
        self.mean_low: Any = None  # (p,) what rounding took off the mean
        self.y_mean: Any = None  # (c,)
        self.cross: Any = None  # (p, c) sum w (x - mean)(y - y_mean)'

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_width(self.missing, block.shape[1])
        y = np.asarray(block[self.y], dtype=np.float64)
        self._open(block.shape[1], y.shape[1])
        if block.length == 0:
            return
        w = np.ones(block.length) if block.weights is None else block.weights
        weight = float(w.sum())
        y_mean = w @ y / (weight or 1.0)
        y = (y - y_mean) * np.sqrt(w)[:, None]
        shift = block.head_mean()
        cross, total = np.zeros((block.shape[1], y.shape[1])), np.zeros(block.shape[1])
        for tile in block.tiles(np.dtype(np.float64), center=shift):
            cross += tile.values.T @ y[tile.start - block.start : tile.stop - block.start]
            total += tile.sums
            if tile.mask is not None:
                self.missing += np.count_nonzero(tile.mask, axis=0)
        self.count += block.length
        refuse_partly_missing(self.missing, self.count, block)
        mean, low = add_exactly(shift, total / (weight or 1.0))
        self._take(weight, mean, low, y_mean, cross)

    def _open(self, p: int, c: int) -> None:
        if self.cross is None:
            self.missing = np.zeros(p, np.int64)
            self.mean, self.mean_low, self.y_mean = np.zeros(p), np.zeros(p), np.zeros(c)
            self.cross = np.zeros((p, c))

    def merge(self, other: Self) -> None:
        if other.cross is None:
            return
        self._check_width(self.missing, len(other.missing))
        self._open(*other.cross.shape)
        count = self.count + other.count
        missing = joint_missing(self.missing, other.missing, count)
        self.count, self.missing = count, missing
        self._take(other.weight, other.mean, other.mean_low, other.y_mean, other.cross)

    def _take(self, weight: float, mean: Array, low: Array, y_mean: Array, cross: Array) -> None:
        joint = self.weight + weight
        if joint <= 0:
            return
        if self.weight == 0:  # rows of weight 0 have no mean
            self.mean, self.mean_low, self.y_mean = mean.copy(), low.copy(), y_mean.copy()
        delta = (mean - self.mean) + (low - self.mean_low)
        step = y_mean - self.y_mean
        link = self.weight * weight / joint
        self.cross = self.cross + cross + link * delta[:, None] * step
        share = weight / joint
        self.mean, self.mean_low = add_exactly(self.mean, self.mean_low + delta * share)
        self.y_mean = self.y_mean + step * share
        self.weight = joint

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1] * (2 * self.width + 2) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[1] * (2 * self.width + 2) * 8 + block_length * self.width * 8

    # -- results ----------------------------------------------------------------------------

    def deviations(self) -> Array:
        """(p, c) float64 sum w (x - mean)(y - mean)', a fresh array."""
        if self.cross is None:
            raise self._nothing_seen()
        return np.array(self.cross)
