"""Sums that are made in the working dtype within a span, and kept in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators.base import OPEN_BLOCKS
from streampca.kernels import Array

TILE_NBYTES = 4 << 20  # of a tile, or of where it is observed (matrix.block)


class OpenSum:
    """An array of sums. ``open(...)`` gives the part to add to, in place; ``closed`` is float64."""

    def __init__(self) -> None:
        self.closed: Any = None
        self._open: Any = None
        self._blocks = 0

    def open(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """What this block adds to: zeros at first, and again after OPEN_BLOCKS blocks."""
        if self._blocks >= OPEN_BLOCKS or (self._open is not None and self._open.dtype != dtype):
            self.settle()
        if self._open is None:
            self._open = np.zeros(shape, dtype)
        self._blocks += 1
        return np.asarray(self._open)

    def kept(self, shape: tuple[int, ...]) -> Array:
        """The float64 sums themselves, to add to in place; zeros at first."""
        self.settle()
        if self.closed is None:
            self.closed = np.zeros(shape)
        return np.asarray(self.closed)

    def settle(self) -> None:
        """Fold the open part into the float64 sums."""
        if self._open is not None:
            self.add(self._open)
        self._open, self._blocks = None, 0

    def add(self, part: Array) -> None:
        """Add sums made elsewhere, which are left as they are."""
        if self.closed is None:
            self.closed = np.array(part, np.float64)
        else:
            self.closed += part

    def merge(self, other: OpenSum) -> None:
        """Take in other sums, their open part too."""
        for part in (other.closed, other._open):
            if part is not None:
                self.add(part)
