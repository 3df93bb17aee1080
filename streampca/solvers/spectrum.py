"""Eigenvalues and vectors of what a pass accumulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.linalg.lapack

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array, mirror_lower

LARGEST = 1e140  # entry of a symmetric matrix: sums of squares of such, too, are finite

SMALLEST = 1e-146  # singular value whose square float64 holds to all digits


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenpairs of a symmetric positive semidefinite matrix.

    values : (k,) descending, not negative.  vectors : (m, k) orthonormal columns.
    next_value : the eigenvalue after the last one here, or 0 where there is none.
    total : sum of all eigenvalues (the trace).  squares : sum of their squares.
    """

    values: Array
    vectors: Array
    next_value: float
    total: float
    squares: float

    def head(self, k: int) -> Spectrum:
        """The first k of these."""
        if k >= len(self.values):
            return self
        following = float(self.values[k])
        return Spectrum(self.values[:k], self.vectors[:, :k], following, self.total, self.squares)


def eigh_lower(lower: Array, k: int | None = None) -> Spectrum:
    """Eigenpairs of a symmetric matrix given by its lower triangle (C order).

    lower : writable for a subset: the triangle that is not valid is used for work, then zeroed.
    k : how many, or None for all.
    Cost: 4/3 m^3 flops, and no copy; for all vectors a copy and 16 m^2 bytes more.
    Source: LAPACK's dsyevr (subset) and dsyevd (all).
    """
    m = len(lower)
    if not np.diagonal(lower).max(initial=0.0) <= LARGEST:  # nor is NaN
        raise NonFiniteError(
            "sums of squares overflowed the working precision; convert with "
            "X.astype('float64') or rescale the columns"
        )
    count = m if k is None else min(k + 1, m)
    total, squares = float(np.trace(lower)), _sum_of_squares(lower)
    if count >= m:
        upper = np.array(lower.T, order="F")  # lower in C order is upper in F order
        values, vectors = scipy.linalg.eigh(
            upper, lower=False, driver="evd", overwrite_a=True, check_finite=False
        )
    else:
        values, vectors = _leading_in_place(lower, count)
    values = np.maximum(values[::-1], 0.0)
    vectors = np.ascontiguousarray(vectors[:, ::-1])
    whole = Spectrum(values, vectors, 0.0, total, squares)
    return whole if k is None else whole.head(k)


def _leading_in_place(lower: Array, count: int) -> tuple[Array, Array]:
    """The last ``count`` eigenpairs, ascending. LAPACK destroys the triangle that it reads, and
    the diagonal: it is given a mirror image of the valid one, in the place of the other."""
    m = len(lower)
    if not (lower.flags.c_contiguous and lower.flags.writeable and lower.dtype == np.float64):
        lower = np.array(lower, dtype=np.float64, order="C")
    diagonal = np.diagonal(lower).copy()
    mirror_lower(lower)
    values, vectors = scipy.linalg.eigh(
        lower.T,
        lower=True,
        driver="evr",
        overwrite_a=True,
        check_finite=False,
        subset_by_index=(m - count, m - 1),
    )
    for i, row in enumerate(lower):
        row[i + 1 :] = 0.0
    np.fill_diagonal(lower, diagonal)
    return values, vectors


def svd_of_r(r: Array, k: int | None = None) -> Spectrum:
    """Eigenpairs of R'R from the singular values of R, without forming R'R.

    r : (p, p) upper triangular. Values are squared singular values.
    """
    if not np.isfinite(r).all():
        raise NonFiniteError("the R factor overflowed; rescale the columns")
    _, singular, vt = scipy.linalg.svd(r, full_matrices=False, check_finite=False)
    if singular[:1].max(initial=0.0) > np.sqrt(LARGEST):
        raise NonFiniteError("the R factor overflowed when squared; rescale the columns")
    if 0.0 < singular[:1].max(initial=0.0) < SMALLEST:
        raise NonFiniteError(
            "the squares of the R factor are too small for float64; rescale the columns, X * 1e100"
        )
    values = singular**2
    vectors = np.ascontiguousarray(vt.T)
    whole = Spectrum(values, vectors, 0.0, float(np.sum(values)), float(np.sum(values**2)))
    return whole if k is None else whole.head(k)


def _sum_of_squares(lower: Array) -> float:
    """Squared Frobenius norm of a symmetric matrix of which the lower triangle is valid."""
    total = 0.0
    for i, row in enumerate(lower):
        total += 2.0 * float(row[:i] @ row[:i]) + float(row[i]) ** 2
    return total


def orthonormal_columns(v: Array, rank: int, dead: Array) -> None:
    """Make the columns of v orthonormal in their order, in place; complete those after ``rank``.

    v : (p, k) float64 in Fortran order, p >= k. Used where columns are products of long sums
    and carry their rounding.
    dead : rows that are exactly 0 in every column (constant features, dropped ones).
    Source: LAPACK's dgeqrf and dorgqr.
    """
    rng = np.random.default_rng(0)
    for j in range(rank, v.shape[1]):
        v[:, j] = rng.standard_normal(len(v))
    v[dead] = 0.0
    room = 64 * v.shape[1]
    q, tau, _, _ = scipy.linalg.lapack.dgeqrf(v, lwork=room, overwrite_a=1)
    turned = np.diagonal(q) < 0  # R gets a positive diagonal, so that no column turns round
    q, _, _ = scipy.linalg.lapack.dorgqr(q, tau, lwork=room, overwrite_a=1)
    if not np.shares_memory(q, v):
        raise InvalidInputError(f"v is {v.dtype}, strides {v.strides}; expected Fortran order")
    for j in np.flatnonzero(
        turned
    ).tolist():  # one by one: all of them at once would be a copy of half of v
        v[:, j] *= -1.0
    v[dead] = 0.0
