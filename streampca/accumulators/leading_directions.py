"""Starts of an iteration: leading directions of the rows, products with random vectors."""

from __future__ import annotations

from itertools import combinations_with_replacement, zip_longest
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, refuse_incomplete, refuse_partly_missing
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array, reciprocal, row_pieces, zeros

# The leading directions of the rows seen so far, as the start of an iterative solver.

PIECE_NBYTES = 16 << 20  # of factor and rows together, while their products are summed
CACHE_NBYTES = 1 << 20  # of pieces that are rotated in place
STEP_CELLS = 1 << 16  # of the rows of a step: with fewer, threads wait for each other's calls


class LeadingDirections(Accumulator):
    """A factor F of ``width`` rows with F'F approximately the scatter of the rows seen.

    Rows are added a few at a time. After each step the ``width`` leading directions are kept, so
    later blocks refine the directions of the first ones within the pass. Streamed samples are
    centred by the mean of their block, and the difference of the means of blocks is a row of its
    own. Scaling also uses the block alone, since the whole matrix is not known yet. Arithmetic is
    in the working dtype. As the start of an iteration this guarantees nothing (block Krylov needs
    one or two passes fewer than from random columns). Without scaling it is a sketch: every
    eigenvalue of the scatter is between that of F'F and that plus ``lost``, up to rounding.

    streamed : the axis that is streamed.  standardize : how columns are centred and scaled.
    missing : "raise", or "mean".
    ``block["feature_weights"]`` multiplies the columns of the block if present.
    Cost: about 6 n p width flops.
    Source: Brand 2006, "Fast low-rank modifications of the thin SVD", section 4.1; Weyl's
    inequality (Golub and Van Loan 2013, section 8.1.2) for the bound.
    """

    reuses = "factor"
    settings = ("streamed", "standardize", "width", "missing")
    fields = ("count", "weight", "mean", "unit", "holes", "factor", "squares", "lost", "lost_trace")

    def __init__(
        self, *, streamed: int, standardize: Any, width: int, missing: str = "raise"
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.standardize, self.width, self.missing = standardize, width, missing
        self.count = 0  # of streamed samples
        self.weight = 0.0
        self.holes: Any = None  # (p,) of streamed samples
        self.mean: Any = None  # (p,) of streamed samples, neither scaled nor weighted
        self.unit: Any = None  # (p,) scale and weight of the columns in the last block, or None
        self.lost = 0.0  # norms of the parts cut off: F'F <= S <= F'F + lost I, without scaling
        self.lost_trace = 0.0
        self.factor: Any = None  # (at most width, m) working dtype, orthogonal rows
        self.squares: Any = None  # (at most width,) squared norms of these rows

    @staticmethod
    def rows_at_once(width: int, m: int) -> int:
        """How many rows of length m are added before the leading directions are computed again."""
        return max(2 * width, 16, min(48, STEP_CELLS // max(m, 1)))

    def update(self, block: Any) -> None:
        self._check(block)
        stats = block.stats
        m = block.shape[1 - block.axis]
        self._check_width(None if self.factor is None else self.factor.T, m)
        if self.missing == "raise":
            refuse_incomplete(block)
            self._refuse_joint(stats.missing, block.length, block)
        if self.factor is None:
            self.factor = np.zeros((0, m), block.work_dtype)
        scaling = self.standardize.resolve(stats, block.eps, block.arrays.get("feature_weights"))
        bridge = self.factor[:0]
        if block.axis == 0 and block.length and self.standardize.center:
            self.unit = None if scaling.scale is None else reciprocal(scaling.scale)
            bridge = self._join_means(block.total_weight, stats.mean)
        if block.axis == 1 and block.compiled and self.factor.dtype == np.float32:
            self._take_calls(block, scaling)
            return
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale, thin=True):
            rows = tile.values.T if block.axis == 1 else tile.values
            for part in self._pieces(len(rows)):
                self._absorb(rows[part], bridge)
                bridge = bridge[:0]

    def _pieces(self, count: int) -> list[slice]:
        """Equal slices of ``count`` rows, each added at once."""
        times = max(1, round(count / self.rows_at_once(self.width, self.factor.shape[1])))
        return row_pieces(count, 1, -(-count // times))

    def _take_calls(self, block: Any, scaling: Any) -> None:
        """Add a block of small integers, whose features are streamed."""
        from streampca.kernels.call_products import stacked_gram, turn_stacked, whole_vectors

        k, m = self.factor.shape
        factor = np.zeros((m, whole_vectors(self.width)), self.factor.dtype)
        factor[:, :k] = self.factor.T
        for tile in block.tiles(block.work_dtype, scaling.center, scaling.scale, thin=True):
            rows = np.ascontiguousarray(tile.values)
            for part in self._pieces(rows.shape[1]):
                gram = stacked_gram(factor, rows, part)
                turn = self._leading(gram)
                turn_stacked(factor, rows, part, turn)
                k = len(turn)
        if k != len(self.factor):
            self.factor = zeros((k, m), factor.dtype)
        self.factor[:] = factor.T[:k]

    def merge(self, other: Self) -> None:
        if other.factor is None:
            return
        self._check_width(None if self.factor is None else self.factor.T, other.factor.shape[1])
        if self.missing == "raise" and other.holes is not None:
            self._refuse_joint(other.holes, other.count)
        if self.factor is None or not (len(self.factor) or self.weight):
            self.weight, self.factor = other.weight, other.factor.copy()
            self.squares = None if other.squares is None else other.squares.copy()
            self.mean = None if other.mean is None else other.mean.copy()
            self.unit = None if other.unit is None else other.unit.copy()
            self.lost, self.lost_trace = other.lost, other.lost_trace
            return
        self.lost += other.lost
        self.lost_trace += other.lost_trace
        bridge = self.factor[:0]
        if other.mean is not None:
            self.unit = None if other.unit is None else other.unit.copy()
            bridge = self._join_means(other.weight, other.mean)
        self._absorb(other.factor, bridge, squares=other.squares)

    def _refuse_joint(self, missing: Array, count: int, block: Any = None) -> None:
        """Refuse a column of streamed samples that is only partly missing."""
        if self.axis == 1:
            return
        joint = missing if self.holes is None else self.holes + missing
        refuse_partly_missing(joint, self.count + count, block)
        self.holes, self.count = joint.copy(), self.count + count

    def _join_means(self, weight: float, mean: Array) -> Array:
        """(1 or 0, m) the row for the difference between the means of two sets of rows."""
        joint = self.weight + weight
        if self.mean is None:
            self.mean, self.weight = mean.copy(), joint
            return np.asarray(self.factor[:0])
        delta = mean - self.mean
        bridge = delta * np.sqrt(self.weight * weight / max(joint, 1e-300))
        if self.unit is not None:
            bridge *= self.unit
        self.mean = self.mean + delta * (weight / max(joint, 1e-300))
        self.weight = joint
        return np.asarray(bridge[None].astype(self.factor.dtype))

    def _absorb(self, *more: Array, squares: Array | None = None) -> None:
        """Add rows, and keep the leading directions of all.

        squares : squared norms of the first of them, whose rows are orthogonal.
        """
        if not any(map(len, more)):
            return
        k, m = self.factor.shape
        everything = zip_longest((self.factor, *more), (self.squares, squares))
        parts, known = zip(*((rows, of) for rows, of in everything if len(rows)), strict=True)
        ends = np.cumsum([len(part) for part in parts])
        own = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        total = int(ends[-1])
        columns = row_pieces(m, total * self.factor.itemsize, PIECE_NBYTES)
        gram = np.zeros((total, total))  # its lower triangle
        pairs = list(combinations_with_replacement(range(len(parts)), 2))
        for i, diagonal in enumerate(known):
            if diagonal is not None:
                gram[own[i], own[i]] = np.diag(diagonal)
                pairs.remove((i, i))
        with np.errstate(over="ignore", invalid="ignore"):
            for piece in columns:
                for i, j in pairs:
                    gram[own[j], own[i]] += parts[j][:, piece] @ parts[i][:, piece].T
        turn = self._leading(gram)
        into = self.factor
        if len(turn) != k:
            into, self._spare = zeros((len(turn), m), turn.dtype, self._spare), None
        narrow = row_pieces(m, total * self.factor.itemsize, CACHE_NBYTES)
        room = np.empty(
            (total, max((one.stop - one.start for one in narrow), default=0)), turn.dtype
        )
        for piece in narrow:
            stack = room[:, : piece.stop - piece.start]
            for rows, part in zip(own, parts, strict=True):
                stack[rows] = part[:, piece]
            into[:, piece] = turn @ stack  # where the old rows were, if there are as many
        self.factor = into

    def _leading(self, gram: Array) -> Array:
        """(at most width, rows) the matrix that rotates the rows to their leading directions.

        gram : (rows, rows) their Gram matrix, the lower triangle valid.
        """
        if not np.isfinite(gram).all():
            raise NonFiniteError(
                f"sums of squares overflowed {self.factor.dtype}; convert with "
                "X.astype('float64') or rescale the columns"
            )
        values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero(values > 1e-12 * max(values[-1], 0.0))[::-1][: self.width]
        cut = np.maximum(values[: len(values) - len(kept)], 0.0)
        self.lost += float(cut.max(initial=0.0))
        self.lost_trace += float(cut.sum())
        self.squares = values[kept]
        return np.asarray(vectors[:, kept].T.astype(self.factor.dtype))

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m = shape[1 - self.streamed]
        return self.width * m * itemsize + 4 * m * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[0] * (self.width + 16) * 4 if self.streamed else 0  # of small integers

    def rows(self) -> Array:
        """(at most width, m) float64 F, a fresh array."""
        if self.factor is None:
            raise InvalidInputError("LeadingDirections has seen no block")
        return np.array(self.factor, dtype=np.float64)

    def directions(self) -> tuple[Array, Array]:
        """((m, at most width) nearly orthonormal directions, leading first; singular values)."""
        rows = self.rows()
        norms = np.linalg.norm(rows, axis=1)
        seen = norms > 0
        return (rows[seen] / norms[seen, None]).T, norms[seen]


# A product of the observed cells with random vectors, as the start of an iteration over ratings.

PRIOR = 5.0


class ObservedPower(Accumulator):
    """S Q with S = Z'Z (samples streamed) or ZZ' (features), Z 0 in all cells not observed.

    The operand "q" (m, width) has random columns. Nothing is known of the matrix yet: with
    ``center``, columns are centred by their mean in the block, shrunk towards that of all columns
    as if PRIOR more cells had that mean. As the start of an iteration this is accurate enough.

    Cost: 4 width flops per observed cell.
    Source: Halko, Martinsson and Tropp 2011, SIAM Review 53(2), section 4.5, one power.
    """

    settings = ("streamed", "width", "center")
    fields = ("product",)

    def __init__(self, *, streamed: int, width: int, center: bool) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.width, self.center = width, center
        self.product: Any = None  # (m, width) float64

    def update(self, block: Any) -> None:
        self._check(block)
        q, observed = block["q"], block.observed
        if self.product is None:
            self.product = np.zeros((len(q), self.width))
        z = observed.data.astype(np.float64)
        if self.center and len(z):
            z -= z.mean()
            stats = observed.stats
            share = stats.count / (stats.count + PRIOR)
            z -= (share * (stats.mean - observed.data.mean(dtype=np.float64)))[observed.columns]
        entries = observed.entries(z)
        entries.two_products(q, self.product, np.zeros(self.width))

    def merge(self, other: Self) -> None:
        if other.product is not None:
            self._check_width(self.product, len(other.product))
            mine = self.product
            self.product = other.product.copy() if mine is None else mine + other.product

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1 - self.streamed] * self.width * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 2 * block_length * self.width * 8

    def directions(self) -> tuple[Array, Array]:
        """((m, width) orthonormal directions, leading first; about the singular values of Z).

        A direction in which Z has the singular value d has d^2 times a normal row of norm about
        sqrt(width) in the product.
        """
        found, values, _ = np.linalg.svd(self.product, full_matrices=False)
        return found, np.sqrt(values / np.sqrt(self.width))
