"""The triangular factor of the centred matrix: R'R = scatter, without squaring its condition."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, joint_missing, refuse_partly_missing
from streampca.errors import InvalidInputError
from streampca.kernels import Array, add_exactly, triangular_factor


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
        """Factor [R; mean difference; centred new rows]; the last are in place already."""
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
            raise InvalidInputError("RFactor has seen no block")
        return np.array(self.r, order="C")

    def scatter(self) -> Array:
        """(p, p) R'R; this squares the condition number again."""
        r = self.r_factor()
        return r.T @ r

    def covariance(self, ddof: int = 1) -> Array:
        """(p, p) scatter / (sum of weights - ddof)."""
        if self.weight - ddof <= 0:
            raise InvalidInputError(f"covariance of {self.count} rows with ddof={ddof}")
        return self.scatter() / (self.weight - ddof)
