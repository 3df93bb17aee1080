"""Scores while features stream, and the share of the matrix that the components explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from streampca.accumulators.base import Accumulator, refuse_holes, refuse_sparse_holes
from streampca.kernels import Array, row_pieces, row_product
from streampca.kernels.least_squares import pair_columns

# The squared error of the first k components, for every k at once.


class Reconstruction(Accumulator):
    """Sums of the squared scores, and of the squares outside the components.

    Operands by name: ``components`` (k, p) orthonormal rows, ``center`` (p,), ``scale`` (p,) or
    None. The remainder is computed as a residual, not as a difference of large sums. For sparse
    rows it is ||z||^2 - ||scores||^2, in float64 (accurate to 1e-15 of ||z||^2).

    missing : "mean" counts a hole as its feature's mean; "raise" refuses it, except in the
    features whose indices are in ``absent``.
    width : k, for the projection of memory only.
    counts : of new allele counts (:class:`streampca.matrix.Standardize`): refuses other values.
    """

    settings = ("components", "center", "scale", "missing", "absent", "width", "counts")
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
        counts: Any = None,
    ) -> None:
        self.components, self.center, self.scale = components, center, scale
        self.missing, self.absent, self.width, self.counts = missing, absent, width, counts
        self.count = 0
        self.captured: Any = None  # (k,) sum of squared scores
        self.residual: Any = None  # sum of squares outside the components

    def update(self, block: Any) -> None:
        self._check(block)
        if self.counts is not None:
            self.counts.refuse_block(block)
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

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 1024

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        tile = max(4 << 20, 512 * shape[1] * 8)
        return 2 * min(tile, block_length * shape[1] * 8) + self.width * shape[1] * 8

    def errors(self) -> Array:
        """(k + 1,) summed squared error of the reconstruction from 0, 1, ..., k components."""
        if self.captured is None:
            raise self._nothing_seen()
        return errors_of(self.captured, self.residual)


def errors_of(captured: Array, residual: float) -> Array:
    """(k + 1,) summed squared errors of the first 0, 1, ..., k components.

    captured : (k,) sums of squares along them.  residual : sum of squares outside all of them.
    """
    tail = np.concatenate([np.cumsum(captured[::-1])[::-1], [0.0]])
    return np.asarray(residual + tail)


# Scores of all samples while features stream, and squared norms of the rows.

TERMS = 512  # squares that are added in the working dtype before they are added to float64


class FeatureProjection(Accumulator):
    """Z V' and the squared norms of the rows of Z, summed over blocks of features.

    z = (x - center) / scale, holes 0. For stores whose chunks hold all samples, where a block of
    samples would be most of the matrix.

    components : operand (k, p), orthonormal rows.  center, scale : operands (p,), or None.
    missing, absent, counts : as :class:`Reconstruction`.
    width : k, for the projection of memory only.
    """

    axis = 1
    settings = ("components", "center", "scale", "missing", "absent", "width", "counts")
    fields: ClassVar[tuple[str, ...]] = ("scores", "norms")
    work_dtype: ClassVar[Any] = None  # of products; None: that of the block

    def __init__(
        self,
        *,
        components: str = "components",
        center: str | None = "center",
        scale: str | None = None,
        missing: str = "mean",
        absent: tuple[int, ...] = (),
        width: int = 64,
        counts: Any = None,
    ) -> None:
        self.components, self.center, self.scale = components, center, scale
        self.missing, self.absent, self.width, self.counts = missing, absent, width, counts
        self.scores: Any = None  # (n, k) float64
        self.norms: Any = None  # (n,) sum z^2

    def update(self, block: Any) -> None:
        self._check(block)
        v, part = block[self.components], block.columns
        center = None if self.center is None else block[self.center][part]
        if self.counts is not None:
            self.counts.refuse_block(block, center)
        self._check_width(self.scores, block.shape[0])
        if self.scores is None:
            self.scores, self.norms = np.zeros((block.shape[0], len(v))), np.zeros(block.shape[0])
        scale = None if self.scale is None else block[self.scale][part]
        if block.sparse and block.weights is None and not self._needs_cells(block):
            if self.missing == "raise":
                refuse_sparse_holes(block, self.absent)
            self.scores += block.entries.product(v[:, part].T, center, scale)
            self.norms += block.entries.row_norms(center, scale)
            return
        for tile in block.tiles(self.work_dtype or block.work_dtype, center=center, scale=scale):
            if self.missing == "raise":
                refuse_holes(block, tile, self.absent)
            z = tile.values
            self.scores += z @ v[:, tile.start : tile.stop].T.astype(z.dtype)
            for j in range(0, z.shape[1], TERMS):
                piece = z[:, j : j + TERMS]
                self.norms += np.einsum("ij,ij->i", piece, piece)
            self._take_holes(tile, v)

    def _needs_cells(self, block: Any) -> bool:
        """Whether a sparse block has to be looked at cell by cell."""
        return False

    def _take_holes(self, tile: Any, v: Array) -> None:
        """Sum up what else is wanted of the missing cells of a tile."""

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] * (self.width + 1) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return (shape[0] + block_length) * self.width * 8

    # -- results ----------------------------------------------------------------------------

    def projected(self) -> Array:
        """(n, k) scores, a fresh array."""
        if self.scores is None:
            raise self._nothing_seen()
        return np.array(self.scores)

    def residuals(self, eps: float) -> Array:
        """(n,) squared distance from the span of the components, ||z||^2 - ||scores||^2.

        A difference of sums, accurate to 16 eps ||z||^2; anything smaller is returned as 0.
        eps : of the working dtype.
        """
        left = self.norms - np.einsum("ij,ij->i", self.projected(), self.scores)
        return np.where(left > 16.0 * eps * self.norms, left, 0.0)

    def errors(self, eps: float) -> Array:
        """(k + 1,) summed squared error of the reconstruction from 0, 1, ..., k components."""
        captured = np.sum(self.projected() ** 2, axis=0)
        return errors_of(captured, float(np.sum(self.residuals(eps))))


class FeatureDistances(FeatureProjection):
    """:class:`FeatureProjection` in float64, and what each row lacks.

    pairs : (n, k (k + 1) / 2) sums over missing cells of V_j V_j', as lower triangles.
    lost : (n,) how many cells are missing, in features that the fit observed.
    Sparse blocks with holes are made dense, tile by tile.
    """

    fields = ("scores", "norms", "pairs", "lost")
    work_dtype = np.dtype(np.float64)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.pairs: Any = None
        self.lost: Any = None

    def _needs_cells(self, block: Any) -> bool:
        return self.missing != "raise" and block.entries.holes is not None

    def _take_holes(self, tile: Any, v: Array) -> None:
        if (mask := missing_cells(tile, self.absent, tile.start)) is None:
            return
        k = len(v)
        if self.pairs is None:
            self.pairs = np.zeros((len(mask), k * (k + 1) // 2))
            self.lost = np.zeros(len(mask))
        pairs, lost = missing_pairs(mask, v[:, tile.start : tile.stop])
        self.pairs += pairs
        self.lost += lost

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        own = super().projected_nbytes(shape, itemsize)
        if self.missing == "raise":
            return own
        return own + shape[0] * (self.width * (self.width + 1) // 2 + 1) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        own = super().scratch_nbytes(shape, block_length)
        more = 0 if self.missing == "raise" else shape[0] * self.width * (self.width + 1) // 2 * 8
        return own + more + 2 * PAIRS_NBYTES + 9 * shape[0] * TERMS


PAIRS_NBYTES = 4 << 20  # of products of two components that are held at a time


def missing_cells(tile: Any, absent: Sequence[int], first: int) -> Array | None:
    """(rows, columns) True where a cell is missing, but for the features ``absent``; or None.

    first : the number of the feature in the first column.
    """
    if (mask := tile.mask) is None:
        return None
    known = np.asarray(absent, dtype=np.int64) - first
    known = known[(known >= 0) & (known < mask.shape[1])]
    if len(known):
        mask = mask.copy()
        mask[:, known] = False
    return mask if mask.any() else None


def missing_pairs(mask: Array, v: Array) -> tuple[Array, Array]:
    """((rows, k (k + 1) / 2) sums of V_j V_j' over missing cells, as lower triangles; (rows,) how
    many these are).  mask : (rows, columns).  v : (k, columns)."""
    k, columns = v.shape
    pairs = np.zeros((len(mask), k * (k + 1) // 2))
    for part in row_pieces(columns, 8 * pairs.shape[1], PAIRS_NBYTES):
        for some in row_pieces(len(mask), 8 * (part.stop - part.start), PAIRS_NBYTES):
            seen = mask[some, part].astype(np.float64)
            pairs[some] += row_product(seen, pair_columns(v[:, part].T))
    return pairs, np.count_nonzero(mask, axis=1).astype(np.float64)
