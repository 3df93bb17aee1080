"""Factors of the scatter: R of the centred matrix, and one of few rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy

from streampca.accumulators.base import (
    Accumulator,
    divisor_of,
    joint_missing,
    refuse_partly_missing,
)
from streampca.kernels import Array, add_exactly, triangular_factor

# The triangular factor of the centred matrix: R'R = scatter, without squaring its condition.


class RFactor(Accumulator):
    """R of the QR factorisation of the centred rows (TSQR), in float64.

    Each block is shifted by its own mean before it is factored, and the difference of the means
    enters as one more row: R'R = R1'R1 + R2'R2 + (w1 w2 / (w1 + w2)) d d'. Singular values are
    right to about 1e-14 of the largest, where a scatter matrix resolves 1e-8.
    Source: Demmel, Grigori, Hoemmen and Langou 2012, "Communication-optimal parallel and
    sequential QR", section 5; the extra row is Chan, Golub and LeVeque 1983 in factored form.

    missing : as :class:`Scatter`.
    """

    settings = ("center",)
    fields = ("count", "weight", "mean", "mean_low", "missing", "r")

    def __init__(self, *, center: bool = True) -> None:
        self.center = center
        self.count = 0
        self.weight = 0.0
        self.mean: Any = None  # (p,)
        self.mean_low: Any = None  # (p,) what rounding took off the mean
        self.missing: Any = None  # (p,) missing cells
        self.r: Any = None  # (p, p) upper triangular float64

    def update(self, block: Any) -> None:
        self._check(block)
        p = block.shape[1]
        self._check_width(self.mean, p)
        if self.mean is None:
            self.mean, self.mean_low = np.zeros(p), np.zeros(p)
            self.missing = np.zeros(p, dtype=np.int64)
            self.r = np.zeros((p, p), order="F")
        if block.length == 0:
            return
        shift = block.head_mean() if self.center else np.zeros(p)
        stack = block.borrow("stack", (p + 1 + block.length, p), np.float64, "F")
        total = np.zeros(p)
        for tile in block.tiles(np.dtype(np.float64), center=shift):
            rows = slice(p + 1 + tile.start - block.start, p + 1 + tile.stop - block.start)
            stack[rows] = tile.values
            total += tile.sums
            if tile.mask is not None:
                self.missing += np.count_nonzero(tile.mask, axis=0)
        self.count += block.length
        refuse_partly_missing(self.missing, self.count, block)
        weight = block.total_weight
        offset = total / weight if weight > 0 else np.zeros(p)
        if self.center:
            root = 1.0 if block.weights is None else np.sqrt(block.weights)[:, None]
            stack[p + 1 :] -= root * offset
        self._absorb(stack, weight, *add_exactly(shift, offset))

    def merge(self, other: Self) -> None:
        if other.r is None:
            return
        p = len(other.mean)
        self._check_width(self.mean, p)
        if self.count == 0:  # exact, and no factorisation
            self.count, self.weight = other.count, other.weight
            self.mean, self.mean_low = other.mean.copy(), other.mean_low.copy()
            self.missing = other.missing.copy()
            self.r = other.r.copy(order="F")
            return
        if other.count == 0:
            return
        count = self.count + other.count
        missing = joint_missing(self.missing, other.missing, count)
        stack = np.empty((2 * p + 1, p), order="F")
        stack[p + 1 :] = other.r
        self.count, self.missing = count, missing
        self._absorb(stack, other.weight, other.mean, other.mean_low)

    def _absorb(self, stack: Array, weight: float, mean: Array, low: Array) -> None:
        """Factor [R; mean difference; centred new rows]; the new rows are in place already."""
        p = len(mean)
        joint = self.weight + weight
        delta = (mean - self.mean) + (low - self.mean_low)
        stack[:p] = self.r
        link = self.weight * weight / joint if self.center and joint > 0 else 0.0
        stack[p] = np.sqrt(link) * delta
        self.r = triangular_factor(stack)
        if self.weight == 0:
            self.mean, self.mean_low = mean.copy(), low.copy()
        elif joint > 0:
            step = self.mean_low + delta * (weight / joint)
            self.mean, self.mean_low = add_exactly(self.mean, step)
        self.weight = joint

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        p = shape[1]
        return p * p * 8 + 5 * p * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        p = shape[1]
        stack, merging = (p + 1 + block_length) * p * 8, (2 * p + 1) * p * 8
        return stack + merging + 2 * p * p * 8 + 64 * p * 8

    # -- results ----------------------------------------------------------------------------

    def r_factor(self) -> Array:
        """(p, p) float64 upper triangular, C order."""
        if self.r is None:
            raise self._nothing_seen()
        return np.array(self.r, order="C")

    def scatter(self) -> Array:
        """(p, p) R'R; this squares the condition number again."""
        r = self.r_factor()
        return r.T @ r

    def covariance(self, ddof: int = 1) -> Array:
        """(p, p) scatter / (sum of weights - ddof)."""
        return self.scatter() / divisor_of(self.weight, ddof)


# A factor B of at most r rows with B'B near the scatter, and a bound of what was cut off.


class TruncatedFactor(Accumulator):
    """The centred rows compressed to r directions after every block, in float64.

    Each compression removes a positive semidefinite matrix whose norm is the largest squared
    singular value cut off; ``lost`` is the sum of these norms. So the scatter S satisfies
    B'B <= S <= B'B + lost I, and every eigenvalue is between that of B'B and that plus ``lost``.
    ``m2`` keeps the total variance exact.
    Source: Weyl's inequality (Golub and Van Loan 2013, section 8.1.2) applied to the update of
    Ross, Lim, Lin and Yang 2008, "Incremental learning for robust visual tracking", section 3.
    """

    settings = ("rows", "center")
    fields = ("count", "weight", "mean", "mean_low", "missing", "b", "lost", "lost_trace", "m2")

    def __init__(self, *, rows: int, center: bool = True) -> None:
        self.rows, self.center = rows, center
        self.count = 0
        self.weight = 0.0
        self.mean: Any = None  # (p,)
        self.mean_low: Any = None  # (p,) what rounding took off the mean
        self.missing: Any = None  # (p,)
        self.b: Any = None  # (at most rows, p), singular values times right vectors
        self.lost = 0.0
        self.lost_trace = 0.0
        self.m2: Any = None  # (p,) exact column sums of squares about the mean

    def update(self, block: Any) -> None:
        self._check(block)
        p = block.shape[1]
        self._check_width(self.mean, p)
        self._open(p)
        if block.length == 0:
            return
        shift = block.head_mean() if self.center else np.zeros(p)
        for tile in block.tiles(np.dtype(np.float64), center=shift if self.center else None):
            values = np.array(tile.values)
            if tile.mask is not None:
                self.missing += np.count_nonzero(tile.mask, axis=0)
            rows = len(values)
            self.count += rows
            root = tile.root_weights
            weight = float(rows) if root is None else float(np.sum(root**2))
            offset = tile.sums / (weight or 1.0)
            if self.center:
                values -= offset if root is None else root[:, None] * offset
            self._absorb(values, weight, *add_exactly(shift, offset), np.sum(values**2, axis=0))
        refuse_partly_missing(self.missing, self.count, block)

    def _open(self, p: int) -> None:
        if self.mean is None:
            self.mean, self.mean_low, self.m2 = np.zeros(p), np.zeros(p), np.zeros(p)
            self.missing = np.zeros(p, np.int64)
            self.b = np.zeros((0, p))

    def merge(self, other: Self) -> None:
        if other.mean is None:
            return
        self._check_width(self.mean, len(other.mean))
        self._open(len(other.mean))
        count = self.count + other.count
        missing = joint_missing(self.missing, other.missing, count)
        self.count, self.missing = count, missing
        self.lost += other.lost
        self.lost_trace += other.lost_trace
        self._absorb(other.b, other.weight, other.mean, other.mean_low, other.m2)

    def _absorb(self, rows: Array, weight: float, mean: Array, low: Array, m2: Array) -> None:
        """Add rows about their own mean, then compress to ``self.rows`` directions."""
        joint = self.weight + weight
        if weight <= 0:
            return
        if self.weight == 0:
            self.mean, self.mean_low = mean.copy(), low.copy()
        delta = (mean - self.mean) + (low - self.mean_low)
        link = self.weight * weight / joint if self.center else 0.0
        bridge = np.sqrt(link) * delta[None, :] if link else rows[:0]
        stack = np.concatenate([self.b, rows, bridge])
        self.m2 = self.m2 + m2 + link * delta**2
        step = self.mean_low + delta * (weight / joint)
        self.mean, self.mean_low = add_exactly(self.mean, step)
        self.weight = joint
        if len(stack) <= self.rows:
            self.b = stack
            return
        v, singular = _left_vectors(stack.T)
        cut = singular[self.rows :]
        if cut.size:
            self.lost += float(cut[0] ** 2)
            self.lost_trace += float(np.sum(cut**2))
        self.b = singular[: self.rows, None] * v[:, : self.rows].T

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return (self.rows + 5) * shape[1] * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        from_tile = min(block_length, max(512, (4 << 20) // (8 * shape[1])))
        stacked = self.rows + from_tile + 1
        return (3 * stacked + 3 * from_tile) * shape[1] * 8 + 6 * stacked**2 * 8

    def factor(self) -> Array:
        """(at most rows, p) float64, a fresh array."""
        if self.b is None:
            raise self._nothing_seen()
        return np.array(self.b)


def _left_vectors(matrix: Array) -> tuple[Array, Array]:
    """Left singular vectors and values of a Fortran-ordered matrix, which is overwritten.

    By LAPACK's own routine: from SciPy 1.18 on, ``scipy.linalg.svd`` holds both factors twice.
    """
    lapack = scipy.linalg.lapack
    size, _ = lapack.dgesdd_lwork(*matrix.shape, full_matrices=0)
    left, values, _, info = lapack.dgesdd(matrix, full_matrices=0, lwork=int(size), overwrite_a=1)
    if info:
        raise np.linalg.LinAlgError(f"dgesdd ended with {info}")
    return left, values
