"""Means of streamed rows and of a few columns beside them, and their joint deviations."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, joint_missing, refuse_partly_missing
from streampca.errors import InvalidInputError
from streampca.kernels import Array, add_exactly


class CrossMoments(Accumulator):
    """sum over rows of w (x - mean)(y - mean)', p x c, for a few columns Y beside the samples.

    y is read from the block by name, a side input. Rows are shifted by a provisional mean and
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
            raise InvalidInputError("CrossMoments has seen no block")
        return np.array(self.cross)
