"""Scores of rows with holes, by least squares over their observed cells, and imputed rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators.observed import ObservedTile, observed_tiles, observed_values
from streampca.accumulators.two_way_step import lay_row_effects
from streampca.kernels import Array
from streampca.kernels.least_squares import (
    packed_gram,
    packed_length,
    packed_products,
    resolution,
    solve_packed,
)
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.completion.withheld import Withhold
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.row_maps import RowMap

ENTRIES = 1 << 16  # observed cells of sparse rows that are compared at a time


@dataclass(frozen=True)
class RowSolve(RowMap):
    """scores = argmin |w (z - V s)|^2 + ridge |s / sqrt(values)|^2 of every row. A map.

    The penalty is that of the fit: with s = sqrt(values) u it is ridge |u|^2. Rows of fewer
    observations than components have the solution of least |u|, rows of none 0.

    bias : None, or the ridge of a bias a of the row, which is solved for with its scores:
        |w (z - V s - a)|^2 + bias a^2.
    """

    balanced: Array  # (p, r) V sqrt(values); with a bias (p, r + 1), 1 at the end, 0 if unknown
    roots: Array  # (r,) sqrt(values), bounded away from 0
    center: Array
    scale: Array | None
    ridge: float
    about_rows: bool = False
    rows_scaled: bool = False
    bias: float | None = None
    absent: bool = False  # cells that sparse rows in memory do not store are missing

    @classmethod
    def of(
        cls, result: Decomposition, ridge: float, absent: bool, about_rows: bool, rows_scaled: bool
    ) -> RowSolve:
        """The map of a fitted completion.  about_rows, rows_scaled : rows have means, scales."""
        values = result.singular_values
        if len(values) and values[0] > 0:
            roots = np.sqrt(np.maximum(values, 1e-6 * float(values[0])))
        else:  # an estimate of 0 has scores of 0
            roots = np.zeros(len(values))
        v, bias = result.require_components().T * roots, _bias_ridge(result)
        if bias is not None:
            inside = np.ones((len(v), 1))
            inside[result.dropped] = 0.0
            v = np.hstack([v, inside])
        return cls(
            np.ascontiguousarray(v),
            roots,
            result.mean,
            result.divisors,
            ridge,
            about_rows and bias is None,
            rows_scaled,
            bias,
            absent,
        )

    @property
    def width(self) -> int:
        """r."""
        return len(self.roots)

    def standing(self, block: Block) -> None:
        """Attach to the block how its columns are standardised, and its rows by their cells."""
        arrays = {**block.arrays, "center": self.center}
        block.arrays = arrays if self.scale is None else {**arrays, "scale": self.scale}
        if self.about_rows:
            lay_row_effects(block, self.rows_scaled)

    def __call__(self, block: Block) -> Array:
        """(rows, r) scores."""
        return self.factors(block)[:, : len(self.roots)]

    def factors(self, block: Block) -> Array:
        """(rows, r) scores; with a bias (rows, r + 1), the bias at the end."""
        self.standing(block)
        if block.absent:
            return self._of_observed(block).astype(block.work_dtype)
        out = np.empty((block.length, self.balanced.shape[1]), block.work_dtype)
        for tile in observed_tiles(block):
            out[tile.start - block.start :][: len(tile.z)] = self.solve(tile)
        return out

    def solve(self, tile: ObservedTile) -> Array:
        """(lines, factors) of a tile."""
        v = self.balanced.astype(tile.z.dtype)
        if tile.w is None:
            left = np.broadcast_to(packed_gram(v), (packed_length(v.shape[1]), len(tile.z)))
        else:
            left = packed_products(v) @ tile.w.T
        x, _ = solve_packed(left, v.T @ tile.z.T, self._ridges, resolution(v.dtype))
        return np.asarray(x.T * self._along)

    def _of_observed(self, block: Block) -> Array:
        from streampca.kernels.completion import Lines

        seen, z, biased = block.observed, observed_values(block), self.bias is not None
        if biased and (unknown := self.balanced[:, -1] == 0.0).any():
            removed = unknown[seen.indices]
            seen, z = seen.without(removed), z[~removed]
        v = self.balanced[:, : len(self.roots)]
        lines = Lines(z, seen.indices, seen.indptr, v, biased)
        return lines.solved(self._ridges)[0] * self._along

    @property
    def _along(self) -> Array:
        """(factors,) multipliers that turn solutions into factors: roots, and 1 for a bias."""
        return self.roots if self.bias is None else np.append(self.roots, 1.0)

    @property
    def _ridges(self) -> Array:
        ridges = np.full(len(self.roots), self.ridge)
        return ridges if self.bias is None else np.append(ridges, self.bias)

    @property
    def components(self) -> Array:
        """(p, factors) by which factors are multiplied: V, and 1 where a bias counts."""
        along = self._along
        return np.asarray(self.balanced / np.where(along > 0, along, 1.0))

    def apply(self, values: Any, missing_value: float | None = None) -> Array:
        """(rows, r) scores of rows in memory."""
        sparse = not isinstance(values, np.ndarray)
        if sparse:
            values = values.tocsr()
            values.sum_duplicates()
        return self(
            Block(
                values,
                0,
                0,
                values.shape[0],
                missing_value=missing_value,
                absent=self.absent and sparse,
            )
        )

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes apart from blocks and tiles: products of loadings, equations, a tile of holes."""
        p, r = self.balanced.shape
        height = packed_length(r) + r  # r: of factors
        tile = min(1 << 20, 4096 * p)
        return lambda length: 8 * (height * (p + 4 * min(length, 4096)) + 2 * tile + length * r)


@dataclass(frozen=True)
class ObservedErrors:
    """(rows, 1) sum of |z - V s|^2 over the observed cells of every row. A map."""

    solve: RowSolve

    def __call__(self, block: Block) -> Array:
        one = self.solve
        scores, v = one.factors(block), one.components
        out = np.zeros((block.length, 1))
        if block.absent:
            seen = block.observed
            z = observed_values(block)
            lines = np.repeat(np.arange(block.length), np.diff(seen.indptr))
            for i in range(0, len(z), ENTRIES):
                part = slice(i, i + ENTRIES)
                model = np.einsum("ij,ij->i", scores[lines[part]], v[seen.indices[part]])
                np.add.at(out[:, 0], lines[part], (z[part] - model) ** 2)
            return out
        for tile in observed_tiles(block):
            first = tile.start - block.start
            inside = slice(first, first + len(tile.z))
            rest = tile.z - scores[inside].astype(tile.z.dtype) @ v.T.astype(tile.z.dtype)
            if tile.w is not None:
                rest *= tile.w
            out[inside, 0] = np.einsum("ij,ij->i", rest, rest, dtype=np.float64)
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """In addition to the solution: residuals of a tile, or of some entries."""
        p, r = self.solve.balanced.shape
        base = self.solve.scratch_nbytes(matrix)
        return lambda length: base(length) + 8 * (p * r + 3 * ENTRIES * r + 2 * max(length, 64) * p)


@dataclass(frozen=True)
class FillHoles:
    """Rows with their holes filled by the model; observed cells are unchanged. A map, (rows, p).

    everywhere : all cells by the model.
    bounds : (low, high) of imputed values, or None. A row with observations outside these bounds
        may be filled with values as extreme.
    """

    solve: RowSolve
    dtype: Any
    everywhere: bool = False
    bounds: tuple[float, float] | None = None
    widened: bool = True

    def __call__(self, block: Block) -> Array:
        one, r = self.solve, len(self.solve.roots)
        values = block.dense()
        out = np.array(values, dtype=self.dtype)
        factors = one.factors(block).astype(out.dtype)
        mask = block.mask
        if mask is None and not self.everywhere:
            return out
        predicted = factors[:, :r] @ one.components[:, :r].T.astype(out.dtype)
        if one.scale is not None:
            predicted *= one.scale.astype(out.dtype)
        if one.bias is not None:
            predicted += factors[:, r:]
        if one.about_rows:
            predicted *= block["row_scale"][:, None].astype(out.dtype)
            predicted += block["row_center"][:, None].astype(out.dtype)
        predicted += one.center.astype(out.dtype)
        if self.bounds is not None:
            np.clip(predicted, *self._bounds_of(out, mask), out=predicted)
        if self.everywhere or mask is None:
            return np.asarray(predicted)
        np.copyto(out, predicted, where=mask)
        return out

    def _bounds_of(self, values: Array, mask: Array | None) -> Any:
        """(low, high) of these rows, each (rows, 1) or a number."""
        assert self.bounds is not None
        low, high = (np.asarray(bound, values.dtype) for bound in self.bounds)
        if not self.widened:
            return low, high
        seen: Any = True if mask is None else ~mask
        least = values.min(axis=1, initial=np.inf, where=seen, keepdims=True)
        most = values.max(axis=1, initial=-np.inf, where=seen, keepdims=True)
        return np.minimum(low, least), np.maximum(high, most)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """In addition to the solution: the rows and their predictions."""
        p, base = len(self.solve.balanced), self.solve.scratch_nbytes(matrix)
        return lambda length: base(length) + 4 * p * length * 8


@dataclass(frozen=True)
class HiddenErrors:
    """(rows, 2) squared errors of hidden cells, and how many they are. A map.

    The rest of their row predicts them.  fill : predicts all cells, in float64.
    """

    hide: Withhold
    fill: FillHoles

    def __call__(self, block: Block) -> Array:
        held = self.hide(block)
        errors = self.fill(block)[held.rows, held.columns] - held.values
        squares = np.bincount(held.rows, errors**2, block.length)
        return np.column_stack([squares, np.bincount(held.rows, minlength=block.length)])

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """In addition to the predictions: places, values and errors of the hidden cells."""
        p, base = matrix.shape[1], self.fill.scratch_nbytes(matrix)
        return lambda length: base(length) + 5 * p * length * 8


def _bias_ridge(result: Decomposition) -> float | None:
    """The ridge of the row biases, if the fit had any."""
    ridges = result.provenance.get("bias_ridges")
    return None if ridges is None else float(ridges[0])
