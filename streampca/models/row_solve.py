"""Rows with holes: their scores by least squares over what is observed, and the holes filled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators.observed_tiles import ObservedTile, observed_tiles
from streampca.kernels import Array
from streampca.kernels.least_squares import (
    packed_gram,
    packed_length,
    packed_products,
    resolution,
    solve_packed,
)
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.decomposition import Decomposition


@dataclass(frozen=True)
class RowSolve:
    """scores = argmin |w (z - V s)|^2 + ridge |s / sqrt(values)|^2 of every row. A map.

    The penalty is that of the fit: with s = sqrt(values) u it is ridge |u|^2. Rows of fewer
    observations than components have the solution of least |u|, rows of none 0.
    """

    balanced: Array  # (p, r) V sqrt(values)
    roots: Array  # (r,) sqrt(values), or 1 where that is 0
    center: Array
    scale: Array | None
    ridge: float

    @classmethod
    def of(cls, result: Decomposition, ridge: float) -> RowSolve:
        """That of a fitted completion."""
        values = result.singular_values
        floor = 1e-6 * float(values[0]) if len(values) and values[0] > 0 else 1.0
        roots = np.sqrt(np.maximum(values, floor))
        v = result.require_components().T * roots
        return cls(np.ascontiguousarray(v), roots, result.mean, result.divisors, ridge)

    def standing(self, block: Block) -> None:
        """Lay beside the block how its columns are standardised."""
        arrays = {**block.arrays, "center": self.center}
        block.arrays = arrays if self.scale is None else {**arrays, "scale": self.scale}

    def __call__(self, block: Block) -> Array:
        """(rows, r) scores."""
        self.standing(block)
        out = np.empty((block.length, len(self.roots)), block.work_dtype)
        if block.absent:
            return self._of_observed(block).astype(out.dtype)
        for tile in observed_tiles(block):
            out[tile.start - block.start :][: len(tile.z)] = self.solve(tile)
        return out

    def solve(self, tile: ObservedTile) -> Array:
        """(lines, r) of a tile."""
        v = self.balanced.astype(tile.z.dtype)
        if tile.w is None:
            left = np.broadcast_to(packed_gram(v), (packed_length(v.shape[1]), len(tile.z)))
        else:
            left = packed_products(v) @ tile.w.T
        x, _ = solve_packed(left, v.T @ tile.z.T, self.ridge, resolution(v.dtype))
        return np.asarray(x.T * self.roots)

    def _of_observed(self, block: Block) -> Array:
        from streampca.kernels.completion import line_equations

        seen = block.observed
        z = seen.standardized(self.center, self.scale)
        equations = line_equations(z, seen.indices, seen.indptr, self.balanced)
        return np.asarray(solve_packed(*equations, self.ridge, compiled=True)[0].T * self.roots)

    def apply(self, values: Any, missing_value: float | None = None) -> Array:
        """(rows, r) scores of rows in memory."""
        return self(Block(values, 0, 0, values.shape[0], missing_value=missing_value))

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes beside blocks and tiles: products of loadings, equations, a tile of holes."""
        p, r = self.balanced.shape
        height = packed_length(r) + r
        tile = min(1 << 20, 4096 * p)
        return lambda length: 8 * (height * (p + 4 * min(length, 4096)) + 2 * tile + length * r)


@dataclass(frozen=True)
class FillHoles:
    """Rows with their holes filled by the model, what is observed as it was. A map, (rows, p)."""

    solve: RowSolve
    dtype: Any

    def __call__(self, block: Block) -> Array:
        one = self.solve
        values = block.dense()
        out = np.array(values, dtype=self.dtype)
        scores = one(block)
        v = (one.balanced / one.roots).astype(out.dtype)
        mask = block.mask
        if mask is None:
            return out
        predicted = scores.astype(out.dtype) @ v.T
        if one.scale is not None:
            predicted *= one.scale.astype(out.dtype)
        predicted += one.center.astype(out.dtype)
        np.copyto(out, predicted, where=mask)
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Beside that of the solution: the rows, and what is predicted of them."""
        p, base = len(self.solve.balanced), self.solve.scratch_nbytes(matrix)
        return lambda length: base(length) + 4 * p * length * 8
