"""How well an estimate by factors predicts cells that were held out of it."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.kernels import Array, side_by_side

CELLS = 1 << 15  # that are judged together


class HeldOutError(Accumulator):
    """Sum of squared errors of U V' in the held-out cells of every candidate.

    ``block["held"]`` has the ``rows`` and ``columns`` (of the block) and ``values`` of those cells;
    ``block["u"]`` (length, sum of ranks) the factors of the lines; the operand named by ``factors``
    (m, sum of ranks) those across them. Errors are in the units of the data: predictions of scaled
    columns and rows are scaled back, and kept within ``bounds``.

    ranks : columns of the factors of each candidate.  bounds : (low, high) of all predictions.
    share : of all cells of a block, held-out ones, at most: what memory is planned for.
    """

    settings = ("streamed", "ranks", "factors", "bounds", "share")
    fields = ("squares", "products", "cells")

    def __init__(
        self,
        *,
        streamed: int,
        ranks: tuple[int, ...],
        factors: str = "v",
        bounds: tuple[float, float] = (-np.inf, np.inf),
        share: float = 0.1,
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.ranks, self.factors, self.bounds = tuple(ranks), factors, tuple(bounds)
        self.share = share
        self.squares: Any = None  # (candidates,)
        self.products: Any = None  # (candidates, candidates) of their squared errors
        self.cells = 0

    def update(self, block: Any) -> None:
        self._check(block)
        held = block["held"]
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
        kept: Any = slice(None)
        if spread is not None:  # infinite in rows of weight 0, which are not judged
            kept = np.isfinite(spread[held.rows])
            line, across, target = line[kept], across[kept], target[kept]
            factor = (factor * spread[held.rows])[kept]
        shift = held.values.astype(np.float64)[kept] - target
        low, high = (one - shift for one in self.bounds)
        for first in range(0, max(len(target), 1), CELLS):
            some = slice(first, first + CELLS)
            errors = np.empty((len(self.ranks), len(target[some])))
            for c, part in enumerate(side_by_side(self.ranks)):
                sides = u[line[some], part], v[across[some], part]
                predicted = np.einsum("ij,ij->i", *sides, dtype=np.float64) * factor[some]
                within = np.clip(predicted, low[some], high[some])
                errors[c] = (target[some] - within) ** 2
            self._add(errors.sum(axis=1), errors @ errors.T, errors.shape[1])

    def _add(self, squares: Array, products: Array, cells: int) -> None:
        if self.squares is None:
            self.squares, self.products = np.zeros_like(squares), np.zeros_like(products)
        self.squares = self.squares + squares
        self.products = self.products + products
        self.cells += cells

    def merge(self, other: Self) -> None:
        if other.squares is not None:
            self._add(other.squares, other.products, other.cells)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * len(self.ranks) * (len(self.ranks) + 1) + 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """What is known of the held-out cells of a block, and the factors of some of them."""
        held = int(self.share * block_length * shape[1 - self.streamed]) + 1
        numbers = 5 + len(self.ranks) + 2 * max(self.ranks)
        return int(9 * held + numbers * min(held, CELLS)) * 8

    def rmse(self) -> Array:
        """(candidates,) root mean square error; NaN where no cell was held out."""
        if self.squares is None or not self.cells:
            return np.full(len(self.ranks), np.nan)
        return np.asarray(np.sqrt(self.squares / self.cells))

    def best(self, simplest: int | None = None) -> int:
        """Number of the candidate with the least error; 0 where no cell was held out.

        simplest : a candidate that is preferred to any that is better by less than the standard
            error of the difference of their mean squares.
        Source: Hastie, Tibshirani and Friedman 2009, "The Elements of Statistical Learning",
        section 7.10.1 (the one-standard-error rule), of paired errors.
        """
        if self.squares is None or not self.cells:
            return 0
        least = int(np.argmin(self.squares))
        if simplest is None:
            return least
        q, cells = self.products, self.cells
        gain = float(self.squares[simplest] - self.squares[least]) / cells
        spread = (q[simplest, simplest] + q[least, least] - 2.0 * q[simplest, least]) / cells
        error = float(np.sqrt(max(spread - gain**2, 0.0) / cells))
        return simplest if gain <= error else least
