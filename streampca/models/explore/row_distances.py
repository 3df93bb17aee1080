"""T^2 and the squared prediction error of every row, as maps of a pass, and what features add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators.projection import (
    PAIRS_NBYTES,
    FeatureDistances,
    missing_cells,
    missing_pairs,
)
from streampca.kernels import Array, row_product
from streampca.kernels.least_squares import unpacked_triangle
from streampca.matrix import Block, ChunkedMatrix
from streampca.matrix.tiles import tile_length
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.projection import Projection
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions

COLUMNS = ("T2", "SPE", "missing")  # of :class:`RowDistances`


@dataclass(frozen=True)
class RowDistances(RowMap):
    """(T^2, SPE, missing cells) of rows; float64.

    T^2 is the sum of scores^2 / variance, over components within the rank. SPE is the squared norm
    of what they leave of a row, over the cells that the row has. The scores of a row with missing
    cells are expected from the others, under probabilistic PCA. NaN where all are missing.

    Where samples are streamed SPE is the norm of a residual; of sparse rows, and where features
    are streamed, a difference of two norms, right to 16 eps of the norm of the row.
    Source: Nelson, Taylor and MacGregor 1996, "Missing data methods in PCA and PLS: score
    calculations with incomplete observations", section 4.3 (conditional mean replacement).
    """

    projection: Projection
    variance: Array  # (k,)
    noise: float  # variance of each direction that is left out

    @classmethod
    def of(cls, result: PrincipalComponents, options: RowOptions) -> RowDistances:
        """The distances from a fitted PCA."""
        k = min(result.n_components, result.rank)
        whole = Projection.of(result, RowOptions(options.missing, centre=options.centre))
        projection = Projection(
            np.ascontiguousarray(whole.components[:k]),
            whole.center,
            whole.scale,
            None,
            whole.missing,
            whole.absent,
            Projection.of(result, options).counts,
        )
        left = result.total_variance - float(np.sum(result.explained_variance[:k]))
        noise = max(left, 0.0) / max(result.n_dimensions - k, 1)
        return cls(projection, result.explained_variance[:k], noise)

    @property
    def width(self) -> int:
        """The columns."""
        return len(COLUMNS)

    def __call__(self, block: Block) -> Array:
        one, out = self.projection, np.zeros((block.length, self.width))
        if one.counts is not None:
            one.counts.refuse_block(block, one.center)
        if block.sparse and (one.missing == "raise" or block.entries.holes is None):
            scores = one._of_sparse(block)
            norms = block.entries.row_norms(one.center, one.scale)
            self._fill(out, scores, _difference(norms, np.sum(scores**2, axis=1)))
            return out
        for tile in block.tiles(np.dtype(np.float64), center=one.center, scale=one.scale):
            one.check(block, tile)
            rows = slice(tile.start - block.start, tile.stop - block.start)
            scores, left, lost = self._of_tile(tile)
            self._fill(out[rows], scores, np.einsum("ij,ij->i", left, left), lost)
        return out

    def _of_tile(self, tile: Any) -> tuple[Array, Array, Array | None]:
        """(scores (rows, k), what they leave of the cells (rows, p), missing cells (rows,))."""
        v, z = self.projection.components, tile.values
        scores = row_product(z, v.T)
        mask = missing_cells(tile, self.projection.absent, 0)
        if mask is None:
            return scores, z - row_product(scores, v), None
        rows = np.flatnonzero(mask.any(axis=1))
        pairs, _ = missing_pairs(mask[rows], v)
        scores[rows] = self.expected_scores(scores[rows], pairs)
        left = z - row_product(scores, v)
        left[mask] = 0.0
        return scores, left, np.count_nonzero(mask, axis=1)

    def expected_scores(self, known: Array, pairs: Array) -> Array:
        """(rows, k) expected scores given the cells that each row has.

        known : (rows, k) sums of those cells times V.  pairs : packed sums of V_j V_j' over the
        missing cells.
        """
        k = len(self.variance)
        lost = unpacked_triangle(pairs, k)
        root = np.sqrt(np.maximum(self.variance - self.noise, 0.0))
        information = (np.eye(k) - lost) * np.outer(root, root)
        information += max(self.noise, 1e-12 * float(self.variance[0])) * np.eye(k)
        factors = np.linalg.solve(information, (known * root)[..., None])[..., 0]
        return np.asarray(known + np.einsum("nij,nj->ni", lost, factors * root))

    def _fill(self, out: Array, scores: Array, spe: Array, lost: Array | None = None) -> None:
        out[:, 0] = np.einsum("ij,ij->i", scores / self.variance, scores)
        out[:, 1] = spe
        if lost is not None:
            out[:, 2] = lost
            features = self.projection.components.shape[1] - len(self.projection.absent)
            out[lost == features] = np.nan, np.nan, features

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes in addition to blocks: three tiles in float64, masks, scores and their systems."""
        k, p = self.projection.components.shape
        pairs = 0 if self.projection.missing == "raise" else k * (k + 1) // 2 + 3 * k * k
        held = 16 * k * p + (2 * PAIRS_NBYTES if pairs else 0)
        return lambda length: (
            held + 8 * tile_length(length, p, 8) * (4 * p + 3 * k + pairs) + 8 * length * self.width
        )

    def by_features(self) -> FeatureSums:
        """By blocks of features."""
        operands, settings = self.projection.operands()
        return FeatureSums(FeatureDistances(**settings), operands, self._finished)

    def _finished(self, total: Any, eps: float) -> Array:
        scores, norms, lost = total.projected(), total.norms, total.lost
        captured = np.einsum("ij,ij->i", scores, scores)
        if lost is not None:
            rows = np.flatnonzero(lost)
            known, pairs = scores[rows], total.pairs[rows]
            own = scores[rows] = self.expected_scores(known, pairs)
            missed = np.einsum("ni,nij,nj->n", own, unpacked_triangle(pairs, own.shape[1]), own)
            # |z - V t|^2 over the cells of the row is |z|^2 less this
            captured[rows] = np.einsum("ij,ij->i", 2.0 * known - own, own) + missed
        out = np.zeros((len(scores), self.width))
        self._fill(out, scores, _difference(norms, captured), lost)
        return out


@dataclass(frozen=True)
class FeatureShares(RowMap):
    """(rows, 2 p): what every feature adds to T^2, then to SPE; NaN for missing cells.

    To T^2: z_j times the sum over components of t_a v_aj / variance_a; these add up to T^2
    where no cell is missing, and some may be negative. To SPE: the squared residual.
    Source: Nomikos and MacGregor 1995, "Multivariate SPC charts for monitoring batch processes",
    section 5; Westerhuis, Gurden and Smilde 2000, "Generalized contribution plots in multivariate
    statistical process monitoring", eq. 9 and 14.
    """

    distances: RowDistances

    @property
    def width(self) -> int:
        """Both."""
        return int(2 * self.distances.projection.components.shape[1])

    def __call__(self, block: Block) -> Array:
        one, p = self.distances.projection, self.width // 2
        out = np.empty((block.length, self.width))
        for tile in block.tiles(np.dtype(np.float64), center=one.center, scale=one.scale):
            one.check(block, tile)
            rows = slice(tile.start - block.start, tile.stop - block.start)
            scores, left, _ = self.distances._of_tile(tile)
            out[rows, :p] = tile.values * row_product(
                scores / self.distances.variance, one.components
            )
            out[rows, p:] = left**2
            if (mask := tile.mask) is not None:
                out[rows, :p][mask] = out[rows, p:][mask] = np.nan
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Those of the distances, and the rows."""
        own = self.distances.scratch_nbytes(matrix)
        return lambda length: own(length) + 8 * length * self.width


def _difference(norms: Array, captured: Array) -> Array:
    """norms - captured, 0 where that is rounding."""
    left = norms - captured
    return np.where(left > 16.0 * np.finfo(np.float64).eps * norms, left, 0.0)
