"""Scores of new samples from sums over their observed variants, with or without shrinkage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError, shorten, warn_caller
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block, Standardize
from streampca.matrix.standardize import coding_repair
from streampca.matrix.tiles import tile_length

CHUNK_NBYTES = 8 << 20  # of the small matrices that are decomposed together
RESOLVED = 1e-8  # of the largest singular value: smaller directions are left unchanged


def oadp_scores(singular_values: Array, projected: Array, residual: Array) -> Array:
    """(n, k) scores that a decomposition together with each new sample would have given.

    The components of a fit follow the noise of its own samples, so the projection of a new sample
    is shrunken. Online augmentation, decomposition and Procrustes: append the new sample z to the
    reference U S V', decompose the result, and rotate and scale the reference's new scores onto
    its old ones; the new sample's scores are transformed with them. In the basis of V and of the
    part of z outside its span, the augmented matrix is [S 0; c' r] with c = V'z and
    r = ||z - V c||. U drops out of all inner products, so neither the reference samples nor their
    features are needed.

    singular_values : (k,) of the reference.  projected : (n, k) c of each new sample.
    residual : (n,) r of each.

    Not for samples of the reference itself: their plain projections already are their scores.
    Cost: two singular value decompositions of (k + 1) x (k + 1) per sample.
    Source: Zhang, Dey and Lee 2020, "Fast and robust ancestry prediction using principal
    component analysis", Bioinformatics 36:3439, section 2 (OADP).
    """
    kept = singular_values > RESOLVED * singular_values.max(initial=0.0)
    s, k = singular_values[kept], int(np.count_nonzero(kept))
    scores = np.array(projected)
    step = max(1, CHUNK_NBYTES // (8 * 5 * (k + 1) ** 2))
    for start in range(0, len(scores) if k else 0, step):
        rows = slice(start, start + step)
        scores[rows, kept] = _augmented(s, projected[rows][:, kept], residual[rows])
    return scores


def _augmented(s: Array, c: Array, r: Array) -> Array:
    k = len(s)
    matrix = np.zeros((len(c), k + 1, k + 1))
    matrix[:, np.arange(k), np.arange(k)] = s
    matrix[:, k, :k], matrix[:, k, k] = c, r
    w = np.linalg.svd(matrix)[2].transpose(0, 2, 1)[:, :, :k]
    new = matrix[:, k : k + 1, :] @ w  # its scores in the augmented decomposition, (n, 1, k)
    old = s[:, None] * w[:, :k]  # U times this: those of the reference
    left, values, right = np.linalg.svd(s[:, None] * old)
    scale = values.sum(axis=1) / np.einsum("nij,nij->n", old, old)
    rotated = new @ (left @ right).transpose(0, 2, 1)
    return np.asarray(scale[:, None] * rotated[:, 0])


# The sums of a projection of genotypes over the observed variants of each sample.

MASK_COLUMNS = 4096  # of a mask that are turned into numbers at once
FLOAT = np.dtype(np.float64)


@dataclass(frozen=True)
class SumsLayout:
    """The columns of one array (n, width) of sums over the variants of each sample.

    0 to k: V'z.  k: z'z.  k + 1: the variants missing.  From k + 2 on, with ``gram``: the
    products v v' of their loadings, upper triangle.
    unstated : nothing says how many copies the calls have, or which number is missing.
    """

    k: int
    ploidy: int
    gram: bool
    squares: bool
    unstated: bool = False

    @property
    def width(self) -> int:
        return self.k + 2 + (self.k * (self.k + 1) // 2 if self.gram else 0)

    def add(self, sums: Array, z: Array, mask: Array | None, loadings: Array, used: Array) -> None:
        """Add the variants of one tile. z : (rows, variants).  loadings : (variants, k)."""
        k = self.k
        sums[:, :k] += z @ loadings
        if self.squares:
            sums[:, k] += np.einsum("ij,ij->i", z, z)
        for start in range(0, 0 if mask is None else z.shape[1], MASK_COLUMNS):
            part = slice(start, start + MASK_COLUMNS)
            hole = mask[:, part]  # type: ignore[index]
            columns = np.flatnonzero(used[part] & hole.any(axis=0))
            if columns.size:
                products = self._products(loadings[part][columns])
                sums[:, k + 1 :] += hole[:, columns].astype(FLOAT) @ products

    def _products(self, v: Array) -> Array:
        """(variants, 1 or 1 + k (k + 1) / 2): 1, and the products of loadings."""
        ones = np.ones((len(v), 1))
        if not self.gram:
            return ones
        rows, columns = np.triu_indices(self.k)
        return np.concatenate([ones, v[:, rows] * v[:, columns]], axis=1)

    def check(self, block: Block, center: Array, scale: Array) -> None:
        """Refuse values of used variants that are no allele counts.  center : of the fit."""
        stats = block.stats
        seen = (stats.count > 0) & (scale > 0)
        slack = 1e-6 * self.ploidy  # dosages are rounded
        bad = seen & ((stats.minimum < -slack) | (stats.maximum > self.ploidy + slack))
        if bad.any():
            first = int(np.argmax(bad))
            low, high = stats.minimum[first], stats.maximum[first]
            value = low if low < -slack else high
            extremes = stats.minimum[seen].min(), stats.maximum[seen].max()
            lost = self.unstated and bool(stats.missing.any())
            raise InvalidInputError(
                f"expected copies of an allele from 0 to {self.ploidy}; {block.describe()}, "
                f"{block.name_columns(np.flatnonzero(bad))} hold others (such as {value:g}). "
                f"{coding_repair(*extremes, self.ploidy, lost)}"
            )
        if self.unstated:
            expected = replace(stats, mean=np.where(scale > 0, center, 0.0))
            counts = Standardize(ploidy=self.ploidy, code_assumed=True, method="the fit")
            counts.refuse_other_counts(expected)


class VariantSums(Accumulator):
    """The sums of all samples over blocks of variants."""

    axis = 1
    settings = ("layout",)
    fields = ("sums",)

    def __init__(self, *, layout: SumsLayout) -> None:
        self.layout = layout
        self.sums: Any = None  # (n, width) float64

    def update(self, block: Block) -> None:
        self._check(block)
        if self.sums is None:
            self.sums = np.zeros((block.shape[0], self.layout.width))
        scale, loadings = block["scale"], block["loadings"]
        self.layout.check(block, block["center"], scale)
        for tile in block.tiles(FLOAT, center=block["center"], scale=scale):
            part = slice(tile.start - block.start, tile.stop - block.start)
            self.layout.add(self.sums, tile.values, tile.mask, loadings[part], scale[part] > 0)

    def merge(self, other: Self) -> None:
        self._join(other, "sums")

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * shape[0] * self.layout.width * 8  # the sums, and those of one tile

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return tile_nbytes(block_length, shape[0])


@dataclass(frozen=True)
class SampleSums:
    """The sums of the samples of one block, as a map: (rows, width)."""

    layout: SumsLayout

    def __call__(self, block: Block) -> Array:
        scale, loadings = block["scale"], block["loadings"]
        self.layout.check(block, block["center"], scale)
        sums = np.zeros((block.length, self.layout.width))
        for tile in block.tiles(FLOAT, center=block["center"], scale=scale):
            rows = slice(tile.start - block.start, tile.stop - block.start)
            self.layout.add(sums[rows], tile.values, tile.mask, loadings, scale > 0)
        return sums


def tile_nbytes(length: int, across: int) -> int:
    """A float64 tile, its mask, and the mask as numbers."""
    return tile_length(length, across, FLOAT.itemsize) * across * (2 * FLOAT.itemsize + 2)


# Scores of samples from sums over their observed variants: a least-squares system for each.

LEAST_SHARE = 1e-3  # of its squared loadings that every direction of the components must show
SOLVE_NBYTES = 32 << 20  # of the small systems that are solved together


class LowCoverageWarning(UserWarning):
    """Some samples show too few of the model's variants and got no scores."""


@dataclass
class SampleScores:
    """Scores before low coverage is refused, and the quantities for that decision."""

    scores: Array  # (n, k)
    coverage: Array  # (n,)
    seen: Array | None  # (n, k) share of the squared loadings observed
    residual: Array  # (n,) norm of what the components leave, all variants of the fit
    good: Array  # (n,)

    def unshrink(self, singular_values: Array) -> None:
        """Undo the shrinkage of samples that were not in the fit; singular values (k,) of it."""
        scores = np.where(self.good[:, None], self.scores, 0.0)
        self.scores = oadp_scores(singular_values, scores, np.where(self.good, self.residual, 0.0))

    def refuse(self, samples: AxisLabels, min_coverage: float) -> None:
        """Set scores to NaN if too little is observed; InvalidInputError if no sample is left."""
        bad = np.flatnonzero(~self.good)
        if not bad.size:
            return
        self.scores[bad] = np.nan
        names = shorten(
            [f"{samples.name(int(i))}: {self.coverage[i]:.1%}" for i in bad[:4]], bad.size
        )
        message = (
            f"{bad.size} of {len(self.good)} samples show too few of the model's variants "
            f"({names}); min_coverage={min_coverage:g}"
        )
        if bad.size == len(self.good):
            raise InvalidInputError(f"{message}. A lower min_coverage= accepts less.")
        warn_caller(f"{message}. Their scores are NaN.", LowCoverageWarning)


def solve_scores(
    sums: Array,
    layout: SumsLayout,
    loadings: Array,
    n_matched: int,
    n_used: int,
    min_coverage: float,
) -> SampleScores:
    """Scores from the sums over the matched variants.

    sums : (n, layout.width), see :class:`SumsLayout`.  loadings : (m, k), 0 for unused variants.
    n_matched : variants of the fit that were found.  n_used : variants of the fit.

    Cost: with ``layout.gram`` n systems of k equations, SOLVE_NBYTES of them at a time.
    """
    n, k = len(sums), layout.k
    projected, observed = sums[:, :k], n_matched - sums[:, k + 1]
    coverage = observed / n_used
    good = (coverage >= min_coverage) & (observed > 0)
    if not layout.gram:
        residual = _norms(sums[:, k], projected, projected)
        return SampleScores(np.array(projected), coverage, None, residual, good)
    present = loadings.T @ loadings
    scores, seen = np.empty((n, k)), np.empty((n, k))
    step = max(1, SOLVE_NBYTES // (8 * 6 * k * k))
    for start in range(0, n, step):
        rows = slice(start, start + step)
        gram = _without(present, sums[rows, k + 2 :])
        seen[rows] = np.diagonal(gram, axis1=1, axis2=2)
        good[rows] &= np.linalg.eigvalsh(gram)[:, 0] >= LEAST_SHARE
        gram[~good[rows]] = np.eye(k)
        scores[rows] = np.linalg.solve(gram, projected[rows, :, None])[:, :, 0]
    residual = _norms(sums[:, k], scores, projected)
    residual *= np.sqrt(n_used / np.maximum(observed, 1.0))
    return SampleScores(scores, coverage, seen, residual, good)


def _without(present: Array, lost: Array) -> Array:
    """(rows, k, k) V_o'V_o: that of all variants found, less what each sample lacks."""
    rows, columns = np.triu_indices(len(present))
    gram = np.broadcast_to(present, (len(lost), *present.shape)).copy()
    gram[:, rows, columns] -= lost
    gram[:, columns, rows] = gram[:, rows, columns]
    return gram


def _norms(squares: Array, scores: Array, projected: Array) -> Array:
    """(n,) ||z - V s|| over the observed variants, where V'V s = V'z."""
    return np.asarray(np.sqrt(np.maximum(squares - np.einsum("ij,ij->i", scores, projected), 0.0)))
