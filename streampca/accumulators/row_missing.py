"""Missing cells of every row, counted while features stream."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array


class RowMissing(Accumulator):
    """Number of missing cells of each sample over the features seen."""

    axis = 1
    fields = ("missing", "n_features")

    def __init__(self) -> None:
        self.missing: Any = None  # (n,) int64
        self.n_features = 0

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_width(self.missing, block.shape[0])
        lost = block.row_missing
        self.missing = lost.copy() if self.missing is None else self.missing + lost
        self.n_features += block.length

    def merge(self, other: Self) -> None:
        if other.missing is not None:
            self._check_width(self.missing, len(other.missing))
            mine = self.missing
            self.missing = other.missing.copy() if mine is None else mine + other.missing
        self.n_features += other.n_features

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] * 8

    def counts(self) -> Array:
        """(n,) int64, a fresh array."""
        if self.missing is None:
            raise InvalidInputError("RowMissing has seen no block")
        return np.array(self.missing)
