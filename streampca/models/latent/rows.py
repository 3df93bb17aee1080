"""Rows to the posterior of their factors and to their log-likelihood, holes integrated out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streampca.accumulators import FeaturePosterior
from streampca.accumulators.base import refuse_holes, refuse_sparse_holes
from streampca.kernels import Array
from streampca.kernels.least_squares import posterior, unpacked_triangle
from streampca.matrix import Block, ChunkedMatrix, Tile
from streampca.matrix.tiles import tile_length
from streampca.models.results.row_maps import FeatureSums, RowMap
from streampca.solvers import FactorModel

REGRESSION, BARTLETT = "regression", "bartlett"
SCORES = (REGRESSION, BARTLETT)


@dataclass(frozen=True)
class Posterior:
    """The posterior of the factors of some rows.

    means : (rows, k).  covariances : (rows, k, k), or (1, k, k) where all rows share it.
    constants : (rows,) or (1,) of the log-likelihood.
    """

    means: Array
    covariances: Array
    constants: Array


@dataclass(frozen=True)
class LatentRows(RowMap):
    """What the maps share: standardisation of rows, and the model.

    missing : "raise" refuses holes, but in the features ``absent``; anything else leaves a hole
        out of its row's likelihood.
    jacobian : added to every log-likelihood.
    """

    model: FactorModel
    center: Array
    scale: Array | None
    missing: str
    absent: tuple[int, ...]
    jacobian: float

    @property
    def k(self) -> int:
        """How many factors."""
        return int(self.model.loadings.shape[1])

    @abstractmethod
    def _finished(self, total: FeaturePosterior, eps: float) -> Array:
        """(rows, width) from the sums over blocks of features."""

    def by_features(self) -> FeatureSums:
        """The sums over blocks of features from which posteriors follow."""
        model = self.model
        operands: dict[str, Any] = {
            "weighted": model.weighted,
            "inverse_noise": model.inverse_noise,
            "center": self.center,
        }
        used = (model.noise > 0).astype(np.float64)
        if self.scale is not None:
            operands["scale"] = self.scale
        if self.missing != "raise":
            scale = np.ones_like(used) if self.scale is None else self.scale
            jacobian = -np.log(scale, out=np.zeros_like(used), where=scale > 0)
            operands["table"] = np.column_stack([model.pairs, model.log_noise, used, jacobian])
        total = FeaturePosterior(
            scale=None if self.scale is None else "scale",
            missing=self.missing,
            absent=self.absent,
            width=self.k,
            columns=0 if self.missing == "raise" else operands["table"].shape[1],
        )
        return FeatureSums(total, operands, self._finished)

    def information(self, tables: Array, rows: int) -> Array:
        """(rows, k, k) precisions of the factors, from the sums of a pass over features."""
        if self.missing == "raise":
            return np.broadcast_to(self.model.information, (rows, self.k, self.k))
        return unpacked_triangle(tables[:, : self.k * (self.k + 1) // 2], self.k) + self.model.prior

    def check(self, block: Block, tile: Tile) -> None:
        """Raise where cells are missing and may not be."""
        if self.missing == "raise":
            refuse_holes(block, tile, self.absent)

    def posterior(self, b: Array, observed: Array | None) -> Posterior:
        """Of rows with W'x / noise (rows, k).  observed : (rows, p) where there are holes."""
        model = self.model
        if observed is None or not self._own(observed).size:
            means = b @ model.covariance_given_all
            shared = model.covariance_given_all[None]
            return Posterior(means, shared, self._constant_given_all)
        own = self._own(observed)
        means = b @ model.covariance_given_all
        covariances = np.repeat(model.covariance_given_all[None], len(b), axis=0)
        constants = np.repeat(self._constant_given_all, len(b))
        seen = observed[own].astype(np.float64)
        information = unpacked_triangle(seen @ model.pairs, b.shape[1]) + model.prior
        means[own], covariances[own], logdet = posterior(information, b[own])
        counts = seen @ (model.noise > 0)
        constants[own] = model.constants(logdet, seen @ model.log_noise, counts)
        constants[own] += self.jacobian_of(seen)
        return Posterior(means, covariances, constants)

    def jacobian_of(self, seen: Array) -> Array:
        """(rows,) for the observed features of each row alone."""
        if self.scale is None:
            return np.zeros(len(seen))
        return -(seen @ np.log(self.scale, out=np.zeros_like(self.scale), where=self.scale > 0))

    def _own(self, observed: Array) -> Array:
        """Numbers of the rows with holes in features of the model."""
        return np.flatnonzero(~np.all(observed | (self.model.noise <= 0), axis=1))

    @cached_property
    def _constant_given_all(self) -> Array:
        model = self.model
        used = np.count_nonzero(model.noise > 0)
        logdet = np.linalg.slogdet(model.information)[1]
        one = model.constants(*(np.array([v]) for v in (logdet, model.log_noise.sum(), used)))
        return np.asarray(one + self.jacobian)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes in addition to blocks: the loadings three times, a tile and its remainder, the
        masks and small matrices of its rows."""
        p, k = self.model.loadings.shape
        pairs = k * (k + 1) // 2
        small = 4 * k * k + 2 * pairs + 4 * k
        held = (3 * k + pairs) * p * 8

        def scratch(length: int) -> int:
            rows = tile_length(length, p, 8)
            return int(held + rows * (4 * p + small) * 8 + length * (k + 1) * 8)

        return scratch


@dataclass(frozen=True)
class FactorScores(LatentRows):
    """(rows, k) scores of a block of samples, or of rows in memory.

    factor : (k,) multiplies the scores.  kind : "regression", the posterior mean (Thomson), or
    "bartlett", weighted least squares without a prior (of a row that observes too little, those
    of smallest norm).
    """

    factor: Array | None = None
    kind: str = REGRESSION

    @property
    def width(self) -> int:
        """k."""
        return self.k

    def _finished(self, total: FeaturePosterior, eps: float) -> Array:
        b, _, tables = total.sums()
        information = self.information(tables, len(b))
        if self.kind == BARTLETT:
            plain = information - self.model.prior
            means = np.einsum("ijk,ik->ij", np.linalg.pinv(plain, hermitian=True), b)
        else:
            means = posterior(information, b)[0]
        return np.asarray(means if self.factor is None else means * self.factor)

    def __call__(self, block: Block) -> Array:
        dtype = block.work_dtype
        matrix = self.model.regression if self.kind == REGRESSION else self.model.least_squares
        if self.factor is not None:
            matrix = matrix * self.factor[:, None]
        if block.sparse and block.entries.holes is None:
            if self.missing == "raise":
                refuse_sparse_holes(block, self.absent)
            return block.entries.product(matrix.T, self.center, self.scale).astype(dtype)
        out = np.empty((block.length, len(matrix)), dtype)
        for tile in block.tiles(dtype, center=self.center, scale=self.scale):
            self.check(block, tile)
            rows = slice(tile.start - block.start, tile.stop - block.start)
            out[rows] = tile.values @ matrix.T.astype(dtype)
            if tile.mask is not None:
                self._correct(out[rows], tile)
        return out

    def _correct(self, scores: Array, tile: Tile) -> None:
        """Replace the scores of rows with holes by those that their observed features make."""
        observed = ~tile.mask  # type: ignore[operator]
        own = self._own(observed)
        if not own.size:
            return
        model = self.model
        b = tile.values[own].astype(np.float64) @ model.weighted
        if self.kind == REGRESSION:
            means = self.posterior(b, observed[own]).means
        else:
            seen = observed[own].astype(np.float64)
            plain = unpacked_triangle(seen @ model.pairs, b.shape[1])
            means = np.einsum("ijk,ik->ij", np.linalg.pinv(plain, hermitian=True), b)
        scores[own] = means if self.factor is None else means * self.factor


@dataclass(frozen=True)
class LatentLikelihood(LatentRows):
    """(rows, 1) log-likelihood of a block of samples; a row without any observation has 0.

    The distance of a row is that of what its factors leave, and that of the factors from the
    prior: sums of squares, never a difference of large ones (but of sparse rows).
    """

    @property
    def width(self) -> int:
        """One."""
        return 1

    def _finished(self, total: FeaturePosterior, eps: float) -> Array:
        b, squares, tables = total.sums()
        if self.missing == "raise":
            return self.of_parts(b, squares)[:, None]
        model, pairs = self.model, self.k * (self.k + 1) // 2
        means, _, logdet = posterior(self.information(tables, len(b)), b)
        noise, seen, jacobian = tables[:, pairs:].T
        distance = np.maximum(squares - np.einsum("ij,ij->i", b, means), 0.0)
        found = model.constants(logdet, noise, seen) + jacobian - 0.5 * distance
        return np.asarray(found)[:, None]

    def __call__(self, block: Block) -> Array:
        model = self.model
        if block.sparse and block.entries.holes is None:
            return self._of_entries(block)
        out = np.empty((block.length, 1))
        for tile in block.tiles(np.dtype(np.float64), center=self.center, scale=self.scale):
            self.check(block, tile)
            observed = None if tile.mask is None else ~tile.mask
            values = tile.values
            found = self.posterior(values @ model.weighted, observed)
            left = values - found.means @ model.loadings.T
            if observed is not None:
                left *= observed
            distance = np.einsum("ij,ij,j->i", left, left, model.inverse_noise)
            distance += np.einsum("ij,ij->i", found.means @ model.prior, found.means)
            rows = slice(tile.start - block.start, tile.stop - block.start)
            out[rows, 0] = found.constants - 0.5 * distance
        return out

    def _of_entries(self, block: Block) -> Array:
        """Of a sparse block without holes, by the stored entries alone."""
        model = self.model
        if self.missing == "raise":
            refuse_sparse_holes(block, self.absent)
        divisors = np.sqrt(model.noise) * (1.0 if self.scale is None else self.scale)
        squares = block.entries.row_norms(self.center, divisors)
        b = block.entries.product(model.weighted, self.center, self.scale)
        return self.of_parts(b, squares)[:, None]

    def of_parts(self, b: Array, squares: Array) -> Array:
        """(rows,) of rows without holes, from W'x / noise (rows, k) and x'x / noise (rows,)."""
        found = self.posterior(b, None)
        distance = squares - np.einsum("ij,ij->i", b, found.means)
        return np.asarray(found.constants - 0.5 * np.maximum(distance, 0.0))


@dataclass(frozen=True)
class PosteriorRows(LatentRows):
    """(rows, k + k (k + 1) / 2): means of the factors, and their covariances as lower triangles."""

    @property
    def width(self) -> int:
        """k + k (k + 1) / 2."""
        return self.k + self.k * (self.k + 1) // 2

    def _finished(self, total: FeaturePosterior, eps: float) -> Array:
        b, _, tables = total.sums()
        means, covariances, _ = posterior(self.information(tables, len(b)), b)
        i, j = np.tril_indices(self.k)
        return np.hstack([means, covariances[:, i, j]])

    def __call__(self, block: Block) -> Array:
        k = self.k
        a, b = np.tril_indices(k)
        out = np.empty((block.length, k + len(a)))
        for tile in block.tiles(np.dtype(np.float64), center=self.center, scale=self.scale):
            self.check(block, tile)
            observed = None if tile.mask is None else ~tile.mask
            found = self.posterior(tile.values @ self.model.weighted, observed)
            rows = slice(tile.start - block.start, tile.stop - block.start)
            out[rows, :k] = found.means
            out[rows, k:] = found.covariances[:, a, b]
        return out
