"""How well an estimate by factors predicts cells that were held out of it."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.kernels import Array, side_by_side


class HeldOutError(Accumulator):
    """Sum of squared errors of U V' in the held-out cells of every candidate.

    ``block["held"]`` has the ``rows`` and ``columns`` (of the block) and ``values`` of those cells;
    ``block["u"]`` (length, sum of ranks) the factors of the lines; the operand named by ``factors``
    (m, sum of ranks) those across them. Errors are in the units of the data: predictions of scaled
    columns and rows are scaled back.
    """

    settings = ("streamed", "ranks", "factors")
    fields = ("squares", "cells")

    def __init__(self, *, streamed: int, ranks: tuple[int, ...], factors: str = "v") -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.ranks, self.factors = tuple(ranks), factors
        self.squares: Any = None  # (candidates,)
        self.cells = 0

    def update(self, block: Any) -> None:
        self._check(block)
        held = block["held"]
        squares = np.zeros(len(self.ranks))
        center, scale = (block.arrays.get(name) for name in ("center", "scale"))
        at = held.columns + (block.start if block.axis else 0)
        line, across = (held.columns, held.rows) if block.axis else (held.rows, held.columns)
        u, v = block["u"], block[self.factors]
        target = held.values.astype(np.float64)
        if center is not None:
            target = target - center[at]
        factor = np.ones(len(target)) if scale is None else np.asarray(scale)[at]
        shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
        if shift is not None:
            target = target - shift[held.rows]
        if spread is not None:  # infinite in rows of weight 0, which are not judged
            counted = np.isfinite(spread[held.rows])
            line, across, at = line[counted], across[counted], at[counted]
            target, factor = target[counted], (factor * spread[held.rows])[counted]
        for c, part in enumerate(side_by_side(self.ranks)):
            predicted = np.einsum("ij,ij->i", u[line, part], v[across, part], dtype=np.float64)
            squares[c] = np.sum((target - predicted * factor) ** 2)
        self.squares = squares if self.squares is None else self.squares + squares
        self.cells += len(target)

    def merge(self, other: Self) -> None:
        if other.squares is not None:
            mine = self.squares
            self.squares = other.squares.copy() if mine is None else mine + other.squares
        self.cells += other.cells

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * len(self.ranks) + 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Factors of the held-out cells of a block; a tenth of all cells are allowed for."""
        return int(block_length * shape[1 - self.streamed] * (3 + 2 * max(self.ranks)) * 8 // 10)

    def rmse(self) -> Array:
        """(candidates,) root mean square error; NaN where no cell was held out."""
        if self.squares is None or not self.cells:
            return np.full(len(self.ranks), np.nan)
        return np.asarray(np.sqrt(self.squares / self.cells))
