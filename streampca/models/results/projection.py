"""From rows to scores and back: the maps that a pass applies to every block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator, FeatureProjection
from streampca.accumulators.base import refuse_holes, refuse_sparse_holes
from streampca.kernels import Array, row_pieces
from streampca.matrix import Block, ChunkedMatrix, Standardize, Tile, work_dtype
from streampca.matrix.alignment import refuse_masked
from streampca.matrix.block import score_dtype
from streampca.matrix.tiles import tile_length
from streampca.models.results.linear_result import LinearResult
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions


def whitened(scores: Array, deviation: Array) -> Array:
    """(rows, k) scores divided by their deviations, (k,), in place; 0 where that is 0."""
    divisors = deviation.astype(scores.dtype)
    scores[:, divisors == 0] = 0.0
    scores /= np.where(divisors > 0, divisors, 1.0).astype(scores.dtype)
    return scores


@dataclass(frozen=True)
class Projection(RowMap):
    """scores = ((x - mean) / scale) V', optionally whitened. A map, and a plain function.

    Missing cells count as their feature's mean; with ``missing="raise"`` they are refused,
    except in features that had no observation in the fit either.
    """

    components: Array  # (k, p)
    center: Array | None  # (p,) or None
    scale: Array | None  # (p,) or None
    whiten: Array | None  # (k,) deviations of the scores, 0 beyond the rank, or None
    missing: str
    absent: tuple[int, ...]  # indices of features without any observation in the fit
    counts: Standardize | None = None  # of a fit of allele counts: refuses other values

    @classmethod
    def of(cls, result: LinearResult, options: RowOptions) -> Projection:
        """The projection that a fitted result defines."""
        return cls(
            result.projectors,
            np.asarray(result.mean) if options.centre else np.zeros(result.n_features),
            result.divisors,
            result.score_deviation if options.whiten else None,
            options.missing,
            tuple(result.dropped.tolist()),
            Standardize.of_new_counts(options.unstated, **result.settings),
        )

    @property
    def width(self) -> int:
        """k."""
        return len(self.components)

    def operands(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Operands of a pass that projects, and the settings of its accumulator."""
        operands: dict[str, Any] = {"components": self.components, "center": self.center}
        if self.scale is not None:
            operands["scale"] = self.scale
        settings = {
            "scale": None if self.scale is None else "scale",
            "missing": self.missing,
            "absent": self.absent,
            "width": self.width,
            "counts": self.counts,
        }
        return operands, settings

    def by_features(self) -> FeatureSums:
        """By blocks of features."""
        operands, settings = self.operands()
        return FeatureSums(FeatureProjection(**settings), operands, self._finished)

    def _finished(self, total: FeatureProjection, eps: float) -> Array:
        scores = total.projected()
        return scores if self.whiten is None else whitened(scores, self.whiten)

    def __call__(self, block: Block) -> Array:
        """(rows, k) scores of a block of samples."""
        if self.counts is not None:
            self.counts.refuse_block(block, self.center)
        dtype = block.work_dtype
        if block.sparse:
            out = self._of_sparse(block).astype(dtype, copy=False)
            return out if self.whiten is None else whitened(out, self.whiten)
        k = len(self.components)
        v = np.ascontiguousarray(self.components.T, dtype=dtype)
        out = np.empty((block.length, k), dtype)
        for tile in block.tiles(dtype, center=self.center, scale=self.scale):
            self.check(block, tile)
            at = tile.start - block.start
            for piece in row_pieces(len(tile.values), tile.values.strides[0]):
                out[at + piece.start : at + piece.stop] = tile.values[piece] @ v
        return out if self.whiten is None else whitened(out, self.whiten)

    def _of_sparse(self, block: Block) -> Array:
        """(rows, k) float64 unwhitened scores of a sparse block, by the stored entries alone."""
        if self.missing == "raise":
            refuse_sparse_holes(block, self.absent)
        return block.entries.product(self.components.T, self.center, self.scale)

    def check(self, block: Block, tile: Tile) -> None:
        """Refuse missing cells where they are not allowed."""
        if self.missing == "raise":
            refuse_holes(block, tile, self.absent)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """As :meth:`needed`."""
        return self.needed(matrix, len(self.components))

    @staticmethod
    def needed(matrix: ChunkedMatrix, k: int) -> Callable[[int], int]:
        """Bytes in addition to blocks and tiles: V in the working dtype, and the scores of a block.

        Products of sparse entries are float64 before they become scores.
        """
        p = matrix.shape[1]
        itemsize = work_dtype(matrix.dtype).itemsize + 8 * matrix.sparse
        return lambda length: itemsize * k * (p + length)


@dataclass(frozen=True)
class BackProjection:
    """x = mean + scale * (scores V): from scores to reconstructed rows.

    NaN in features without any observation in the fit: the model knows nothing of them.
    """

    components: Array
    center: Array
    scale: Array | None
    whiten: Array | None

    @classmethod
    def of(cls, result: LinearResult, whiten: bool) -> BackProjection:
        """The inverse of ``Projection.of``."""
        forward = Projection.of(result, RowOptions(whiten=whiten))
        center = np.array(result.mean)
        center[result.dropped] = np.nan
        return cls(result.require_components(), center, forward.scale, forward.whiten)

    def of_modes(self, chosen: Array, mean: bool) -> BackProjection:
        """The map of some components only, from all scores; without the mean for anomalies."""
        components = np.zeros_like(self.components)
        components[chosen] = self.components[chosen]
        center = self.center if mean else np.where(np.isnan(self.center), np.nan, 0.0)
        return replace(self, components=components, center=center)

    def __call__(self, block: Block) -> Array:
        """(rows, p) of a block of scores."""
        return self.apply(block.dense())

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes in addition to blocks of scores: V, the rows, and a copy of them."""
        k, p = self.components.shape
        return lambda length: 8 * p * (k + 3 * length)

    def apply(self, scores: Array) -> Array:
        """(rows, p) of scores in memory; float32 stays float32. Refuses masked ones."""
        refuse_masked(scores, "X")
        dtype = score_dtype(scores.dtype)
        z = np.asarray(scores, dtype=dtype)
        if self.whiten is not None:
            z = z * self.whiten.astype(dtype)
        rows = z @ self.components.astype(dtype)
        if self.scale is not None:
            rows *= self.scale.astype(dtype)
        rows += self.center.astype(dtype)
        return np.asarray(rows)


@dataclass(frozen=True)
class FeatureLoadings:
    """v = z'u / s for every feature z of a block: the loadings of a wide fit, as a map.

    Needs the operands "u" (n, k), "s" (k,); standardises as the Gram pass did.
    rows : numbers of the samples that were fitted, where blocks hold more; None = all.
    """

    standardize: Any
    rows: Array | None = None

    def __call__(self, block: Block) -> Array:
        block = block if self.rows is None else block.take_rows(self.rows)
        weights = block.arrays.get("feature_weights")
        scaling = self.standardize.resolve(block.stats, block.eps, weights)
        u, s = block["u"], block["s"]
        out = np.empty((block.length, u.shape[1]))
        divisor = np.where(s > 0, s, 1.0)
        if block.sparse:
            u = u if block.weights is None else u * np.sqrt(block.weights)[:, None]
            return block.entries.cross(u, scaling.center, scaling.scale) / divisor
        u = u.astype(block.work_dtype, copy=False)
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale):
            rows = out[tile.start - block.start : tile.stop - block.start]
            np.divide(tile.values.T @ u, divisor, out=rows)
        return out


class ScoresOfAllSamples(Accumulator):
    """Scores of all samples from the loadings of some, in the pass that makes the loadings.

    Every block must hold ``block["loadings"]``, the result of :class:`FeatureLoadings` with the
    same settings. Missing cells count as the mean of the fitted samples.
    """

    axis = 1
    settings = ("standardize", "rows")
    fields = ("scores",)

    def __init__(self, *, standardize: Any, rows: Array) -> None:
        self.standardize = standardize
        self.rows = rows
        self.scores: Any = None  # (n, k) float64

    def update(self, block: Block) -> None:
        self._check(block)
        if self.standardize.of_counts:
            self.standardize.refuse_block(block)
        fitted = block.take_rows(self.rows)
        weights = block.arrays.get("feature_weights")
        scaling = self.standardize.resolve(fitted.stats, fitted.eps, weights)
        v = block["loadings"]
        if self.scores is None:
            self.scores = np.zeros((block.shape[0], v.shape[1]))
        if block.sparse and block.weights is None:
            self.scores += block.entries.product(v, scaling.center, scaling.scale)
            return
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale):
            part = slice(tile.start - block.start, tile.stop - block.start)
            self.scores += tile.values @ v[part].astype(tile.values.dtype)

    def merge(self, other: Self) -> None:
        self._join(other, "scores")

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 0  # (n, k): the plan counts it with the kept arrays


@dataclass(frozen=True)
class Likelihood(RowMap):
    """Log-likelihood of rows under probabilistic PCA, as a map: (rows, 1).

    Source: Tipping and Bishop 1999, eq. 2.9, with the inverse of C split into the part inside
    the components (scores^2 / variance) and the part outside (residual^2 / noise).
    """

    projection: Projection
    variance: Array  # (k,)
    noise: float
    constant: float  # -1/2 (p log 2 pi + log |C|), in the units of the data

    @classmethod
    def of(cls, result: LinearResult, options: RowOptions) -> Likelihood:
        """The likelihood of a fitted result."""
        used = result.n_dimensions
        noise = result.noise_variance or 1.0  # 0 where no direction is left out
        real = np.arange(result.n_components) < result.rank
        variance = np.where(real, result.explained_variance, np.inf)
        left = max(used - result.n_components, 0)
        logdet = float(np.sum(np.log(variance[real]))) + left * np.log(noise)
        if (divisors := result.divisors) is not None:
            logdet += 2.0 * float(np.sum(np.log(divisors[divisors > 0])))
        constant = -0.5 * (used * np.log(2.0 * np.pi) + logdet)
        projection = Projection.of(result, replace(options, whiten=False))
        return cls(projection, variance, noise, constant)

    @property
    def width(self) -> int:
        """One."""
        return 1

    def by_features(self) -> FeatureSums:
        """By blocks of features."""
        return replace(self.projection.by_features(), finish=self._finished)

    def _finished(self, total: FeatureProjection, eps: float) -> Array:
        return self.of_parts(total.projected(), total.residuals(eps))[:, None]

    def __call__(self, block: Block) -> Array:
        one = self.projection
        if one.counts is not None:
            one.counts.refuse_block(block, one.center)
        v = one.components
        if block.sparse:
            scores = one._of_sparse(block)
            left = block.entries.row_norms(one.center, one.scale) - np.sum(scores**2, axis=1)
            return self.of_parts(scores, np.maximum(left, 0.0))[:, None]
        out = np.empty((block.length, 1))
        for tile in block.tiles(np.dtype(np.float64), center=one.center, scale=one.scale):
            one.check(block, tile)
            scores = tile.values @ v.T
            left = tile.values - scores @ v
            rows = slice(tile.start - block.start, tile.stop - block.start)
            out[rows, 0] = self.of_parts(scores, np.einsum("ij,ij->i", left, left))
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes in addition to blocks: three tiles in float64, and the scores of one."""
        k, p = self.projection.components.shape
        return lambda length: 8 * tile_length(length, p, 8) * (3 * p + 2 * k)

    def of_parts(self, scores: Array, residual: Array) -> Array:
        """(rows,) from the scores (rows, k) and the squared norms of the residuals."""
        distance = np.sum(scores**2 / self.variance, axis=1) + residual / self.noise
        return np.asarray(self.constant - 0.5 * distance)
