"""Sums that are made in the working dtype within a span, and kept in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators.base import OPEN_BLOCKS
from streampca.errors import InvalidInputError
from streampca.kernels import Array, zeros

TILE_NBYTES = 4 << 20  # of a tile, or of where it is observed (matrix.block)


@dataclass(eq=False)
class OpenSum:
    """An array of sums. ``open(...)`` gives the part to add to, in place; ``closed`` is float64."""

    closed: Any = None
    _open: Any = None
    _blocks: int = 0
    _spare: Any = None  # an array that is not needed any more

    def emptied(self) -> OpenSum:
        """No sums, and the room that they took."""
        return OpenSum(_spare=self._open)

    def open(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """What this block adds to: zeros at first, and again after OPEN_BLOCKS blocks."""
        self._check(shape)
        if self._blocks >= OPEN_BLOCKS or (self._open is not None and self._open.dtype != dtype):
            self.settle()
        if self._open is None:
            self._open, self._spare = zeros(shape, dtype, self._spare), None
        self._blocks += 1
        return np.asarray(self._open)

    def kept(self, shape: tuple[int, ...]) -> Array:
        """The float64 sums themselves, to add to in place; zeros at first."""
        self._check(shape)
        self.settle()
        if self.closed is None:
            self.closed = zeros(shape)
        return np.asarray(self.closed)

    def _check(self, shape: tuple[int, ...]) -> None:
        """Refuse sums of another shape, before BLAS writes beside the array."""
        for part in (self.closed, self._open):
            if part is not None and part.shape != shape:
                raise InvalidInputError(
                    f"sums have seen width {part.shape[-1]}, now came {shape[-1]}"
                )

    def settle(self) -> None:
        """Fold the open part into the float64 sums."""
        if self._open is not None:
            self.add(self._open)
        self._open, self._blocks = None, 0

    def add(self, part: Array) -> None:
        """Add sums made elsewhere, which are left as they are."""
        if self.closed is None:
            self.closed = zeros(part.shape)
        self.closed += part

    def total(self) -> Array | None:
        """All of it in float64, a fresh array; None where nothing was summed."""
        parts = [part for part in (self.closed, self._open) if part is not None]
        return sum(parts[1:], np.array(parts[0], np.float64)) if parts else None

    def merge(self, other: OpenSum) -> None:
        """Take in other sums, their open part too."""
        for part in (other.closed, other._open):
            if part is not None:
                self._check(part.shape)
        for part in (other.closed, other._open):
            if part is not None:
                self.add(part)
