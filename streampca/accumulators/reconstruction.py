"""How much of a matrix the first k components carry, for every k at once."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, refuse_holes, refuse_sparse_holes
from streampca.errors import InvalidInputError
from streampca.kernels import Array


class Reconstruction(Accumulator):
    """Squared norms of the rows' projections and of what is left, summed.

    Operands by name: ``components`` (k, p) orthonormal rows, ``center`` (p,), ``scale`` (p,) or
    None. What is left is computed as a residual, never as a difference of large sums; only of
    sparse rows is it ||z||^2 - ||scores||^2, in float64 (right to 1e-15 of ||z||^2).

    missing : "mean" counts a hole as its feature's mean; "raise" refuses it, except in the
    features whose indices are in ``absent``.
    width : k, for the projection of memory only.
    """

    settings = ("components", "center", "scale", "missing", "absent", "width")
    fields = ("count", "captured", "residual")

    def __init__(
        self,
        *,
        components: str = "components",
        center: str | None = "center",
        scale: str | None = None,
        missing: str = "mean",
        absent: tuple[int, ...] = (),
        width: int = 64,
    ) -> None:
        self.components, self.center, self.scale = components, center, scale
        self.missing, self.absent, self.width = missing, absent, width
        self.count = 0
        self.captured: Any = None  # (k,) sum of squared scores
        self.residual: Any = None  # sum of squares outside the components

    def update(self, block: Any) -> None:
        self._check(block)
        v = np.asarray(block[self.components])
        self._check_width(v.T, block.shape[1])
        self._check_width(self.captured, len(v))
        center = None if self.center is None else block[self.center]
        scale = None if self.scale is None else block[self.scale]
        if self.captured is None:
            self.captured, self.residual = np.zeros(len(v)), 0.0
        if block.sparse and block.weights is None:
            self._take_sparse(block, v, center, scale)
            return
        v = v.astype(block.work_dtype)
        for tile in block.tiles(block.work_dtype, center=center, scale=scale):
            if self.missing == "raise":
                refuse_holes(block, tile, self.absent)
            scores = tile.values @ v.T
            left = tile.values - scores @ v
            self.captured += np.sum(scores.astype(np.float64) ** 2, axis=0)
            self.residual += float(np.einsum("ij,ij->", left, left, dtype=np.float64))
        self.count += block.length

    def _take_sparse(self, block: Any, v: Array, center: Array | None, scale: Array | None) -> None:
        if self.missing == "raise":
            refuse_sparse_holes(block, self.absent)
        squares = block.entries.product(v.T, center, scale) ** 2
        left = block.entries.row_norms(center, scale) - squares.sum(axis=1)
        self.captured += squares.sum(axis=0)
        self.residual += float(np.maximum(left, 0.0).sum())
        self.count += block.length

    def merge(self, other: Self) -> None:
        if other.captured is None:
            return
        self._check_width(self.captured, len(other.captured))
        mine = self.captured
        self.captured = other.captured.copy() if mine is None else mine + other.captured
        self.residual = (self.residual or 0.0) + other.residual
        self.count += other.count

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 1024

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        tile = max(4 << 20, 512 * shape[1] * 8)
        return 2 * min(tile, block_length * shape[1] * 8) + self.width * shape[1] * 8

    def errors(self) -> Array:
        """(k + 1,) summed squared error of the reconstruction from 0, 1, ..., k components."""
        if self.captured is None:
            raise InvalidInputError("Reconstruction has seen no block")
        return errors_of(self.captured, self.residual)


def errors_of(captured: Array, residual: float) -> Array:
    """(k + 1,) summed squared errors of the first 0, 1, ..., k components.

    captured : (k,) summed squares along them.  residual : beside all of them.
    """
    tail = np.concatenate([np.cumsum(captured[::-1])[::-1], [0.0]])
    return np.asarray(residual + tail)
