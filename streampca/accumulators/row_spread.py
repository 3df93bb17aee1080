"""How the means of rows spread: what says how much rows differ beyond the noise of their cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.accumulators.observed_tiles import observed_tiles, observed_values
from streampca.errors import InvalidInputError
from streampca.kernels import Array


class RowSpread(Accumulator):
    """Sum of squares of the means of rows about the mean of all cells, each times its cells.

    Of values standardised by what lies beside the block: see ``observed_tiles``.
    Rows with a weight count so many times. Merged pairwise about the mean; sums are float64.
    Cost: one addition per observed cell.
    Source: Searle, Casella and McCulloch 1992, "Variance Components", section 3.6 (the sums of
    squares of the one-way layout with unequal numbers).
    """

    fields = ("width", "rows", "cells", "cells_squared", "mean", "between")

    def __init__(self) -> None:
        self.width: int | None = None  # columns
        self.rows = 0.0  # that observe anything
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
        """What was seen."""
        if self.width is None:
            raise InvalidInputError("RowSpread has seen no block")
        return RowSums(self.rows, self.cells, self.cells_squared, self.mean, self.between)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * len(self.fields)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 6 * 8 * block_length


class RowSums(NamedTuple):
    """rows : that observe anything.  cells : sum of n_i, the cells of row i.  cells_squared : of
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
