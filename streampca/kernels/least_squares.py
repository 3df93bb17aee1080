"""Small least squares problems and posteriors, one for every line of a matrix with holes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.columns import row_pieces

# Many small least squares problems at once: the rows, and the columns, of a matrix with holes.
#
# Line i of a tile observes the cells where w_i is 1, and needs x_i = argmin |w_i (z_i - V x)|^2 +
# ridge |x|^2: r normal equations, (V' diag(w_i) V + ridge I) x = V'z_i, with z 0 in the holes.
# Their left sides are linear in w, so those of all lines are one matrix product with the products
# of columns of V, at the speed of BLAS. They are kept as (r (r + 1) / 2, lines), lower triangle by
# rows: entry i (i + 1) / 2 + j is (i, j); every step of the factorisation is a vector operation
# over lines.

DEFICIENT = 1e-5  # a pivot below this share of its diagonal, in float32 data: see resolution
LINES = 1024  # that are solved together, at least: each step is a call that others wait for
EQUATIONS_NBYTES = 1 << 20  # of small ones: up to 4 LINES are solved together
COLUMNS = 8  # of float64 in a vector of the compiled kernels


def packed_length(r: int) -> int:
    """Number of entries of the triangle of an r x r matrix."""
    return r * (r + 1) // 2


def packed_products(v: Array) -> Array:
    """(r (r + 1) / 2, m) products of all pairs of columns of v (m, r), in its dtype."""
    columns = np.ascontiguousarray(v.T)
    r, m = columns.shape
    out = np.empty((packed_length(r), m), v.dtype)
    for i in range(r):
        np.multiply(columns[i], columns[: i + 1], out=out[packed_length(i) : packed_length(i + 1)])
    return out


def packed_gram(v: Array) -> Array:
    """(r (r + 1) / 2, 1) V'V: the left side of a line without holes."""
    return np.asarray((v.T @ v)[np.tril_indices(v.shape[1])][:, None])


def unpacked(left: Array) -> Array:
    """(lines, r, r) symmetric matrices from (r (r + 1) / 2, lines)."""
    r = int((np.sqrt(8 * len(left) + 1) - 1) / 2)
    full = np.empty((left.shape[1], r, r), left.dtype)
    i, j = np.tril_indices(r)
    full[:, i, j] = full[:, j, i] = left.T
    return full


def resolution(dtype: np.dtype[np.generic] | type) -> float:
    """The share of its diagonal below which a pivot is rounding, for sums of this dtype."""
    return DEFICIENT if np.dtype(dtype) == np.float32 else 1e-11


def solve_packed(
    left: Array,
    right: Array,
    ridge: float | Array = 0.0,
    floor: float = 1e-11,
    factorise: Callable[[Array, Array, float], Array] | None = None,
) -> tuple[Array, Array]:
    """(x (r, lines) float64, numbers of the lines whose equations are singular).

    left : (r (r + 1) / 2, lines).  right : (r, lines).  ridge : of all unknowns, or (r,) of each.
    floor : pivots below this share of their diagonal count as 0; see :func:`resolution`.
    factorise : ``kernels.completion.cholesky_solve``, where Numba is loaded anyway.

    A singular line (fewer observations than r, or dependent ones) gets the solution of minimum
    norm, the limit for ridge -> 0; a line without observations gets 0.
    Cost: lines (r^3 / 6 + r^2) multiplications; singular lines cost an eigenproblem each.
    Source: Golub and Van Loan 2013, "Matrix Computations", sections 4.2.5 and 5.5.1.
    """
    solve = factorise or _cholesky_solve
    r, lines = right.shape
    x, ridge = np.empty((r, lines)), np.reshape(ridge, (-1, 1))
    singular, diagonal = [], [packed_length(i) - 1 for i in range(1, r + 1)]
    for part in _together(lines, len(left) + r):
        a, b = np.array(left[:, part], np.float64), np.array(right[:, part], np.float64)
        a[diagonal] += ridge
        bad = np.flatnonzero(solve(a, b, floor))
        if len(bad):
            kept = np.array(left[:, part.start + bad], np.float64)
            kept[diagonal] += ridge
            b[:, bad] = _minimum_norm(kept, np.array(right[:, part.start + bad], np.float64), floor)
            singular.append(part.start + bad)
        x[:, part] = b
    return x, np.concatenate(singular) if singular else np.zeros(0, np.int64)


def _together(lines: int, entries: int) -> list[slice]:
    """Equal pieces of so many lines, whose equations have so many entries each."""
    wanted = min(max(EQUATIONS_NBYTES // (8 * max(entries, 1)), LINES), 4 * LINES)
    times = max(1, round(lines / wanted))
    return row_pieces(lines, 1, max(1, -(-lines // times)))


def _cholesky_solve(a: Array, b: Array, floor: float) -> Array:
    """Overwrite a with its factors and b with the solutions; (lines,) True where singular."""
    r = len(b)
    bad = np.zeros(b.shape[1], bool)
    inverse = np.empty_like(b)  # of the diagonals
    for i in range(r):
        row = a[packed_length(i) :][: i + 1]
        diagonal = row[i].copy()
        for j in range(i):
            other = a[packed_length(j) :][:j]
            if j:
                row[j] -= np.einsum("kn,kn->n", row[:j], other)
            row[j] *= inverse[j]
        if i:
            row[i] -= np.einsum("kn,kn->n", row[:i], row[:i])
        small = ~(row[i] > floor * diagonal)
        bad |= small
        inverse[i] = 1.0 / np.sqrt(np.where(small, 1.0, row[i]))
    for i in range(r):
        row = a[packed_length(i) :][:i]
        if i:
            b[i] -= np.einsum("kn,kn->n", row, b[:i])
        b[i] *= inverse[i]
    for i in reversed(range(r)):
        b[i] *= inverse[i]
        b[:i] -= a[packed_length(i) :][:i] * b[i]
    return bad


def _minimum_norm(left: Array, right: Array, floor: float) -> Array:
    """(r, lines) from the eigenvectors of each left side with eigenvalues above rounding."""
    values, vectors = np.linalg.eigh(unpacked(left))
    kept = values > floor * np.maximum(values[:, -1:], 0.0)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=kept)
    inside = np.einsum("nij,in->nj", vectors, right) * inverse
    return np.asarray(np.einsum("nij,nj->in", vectors, inside))


# Small Gaussian systems, one per row: the posterior of a few latent variables.


def pair_columns(w: Array) -> Array:
    """(p, k (k + 1) / 2) products of the columns a >= b of w (p, k), in the order of the lower
    triangle: sums of rows of it are packed symmetric matrices."""
    a, b = np.tril_indices(w.shape[1])
    return np.asarray(w[:, a] * w[:, b])


def unpacked_triangle(packed: Array, k: int) -> Array:
    """(rows, k, k) symmetric matrices from their lower triangles (rows, k (k + 1) / 2)."""
    a, b = np.tril_indices(k)
    full = np.empty((len(packed), k, k))
    full[:, a, b] = packed
    full[:, b, a] = packed
    return full


def packed(full: Array) -> Array:
    """(rows, k (k + 1) / 2) lower triangles of (rows, k, k)."""
    a, b = np.tril_indices(full.shape[-1])
    return np.asarray(full[:, a, b])


def posterior(information: Array, b: Array) -> tuple[Array, Array, Array]:
    """(means (rows, k), covariances (rows, k, k), log-determinants of the information (rows,)).

    information : (rows, k, k) symmetric positive definite, the precisions.  b : (rows, k).

    The means from an explicit inverse are refined once. Without that, a likelihood would be off by
    tenths where a row hardly distinguishes two factors and the noise is small.

    Cost: about 2 k^3 flops a row.  Source: any text on linear Gaussian models.
    """
    covariance = np.linalg.inv(information)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    _, logdet = np.linalg.slogdet(information)
    means = np.einsum("ijk,ik->ij", covariance, b)
    left = b - np.einsum("ijk,ik->ij", information, means)
    means += np.einsum("ijk,ik->ij", covariance, left)
    return means, covariance, logdet
