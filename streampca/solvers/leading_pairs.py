"""The leading eigenpairs of a large symmetric matrix, by way of a band."""

from __future__ import annotations

import numpy as np
import scipy

from streampca.kernels import Array
from streampca.kernels.band import WIDTH, Band, band_of

STEPS = 4  # of inverse iteration; two are enough, but for a start that is nearly orthogonal
ALLOWED = 4.0  # residual, in units of eps times the norm and the square root of the size


def leading_pairs(a: Array, count: int) -> tuple[Array, Array] | None:
    """(values ascending, vectors (m, count)), or None where they do not pass the check.

    a : (m, m) C-ordered float64, of which the upper triangle is read and overwritten.
    The eigenvalues are those of bisection, none of which can be missed. The vectors are those of
    inverse iteration, orthonormal, and turned so that they diagonalise the matrix. They pass where
    their residuals and the differences from the eigenvalues are rounding.
    Cost: 4/3 m^3 flops on all threads, 6 m^2 WIDTH on one.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", sections 4.5 and 11.
    """
    if (band := band_of(a)) is None:
        return None
    m, stored = len(a), band.stored()
    values = scipy.linalg.eig_banded(
        stored, lower=True, eigvals_only=True, select="i", select_range=(m - count, m - 1),
        check_finite=False,
    )  # fmt: skip
    if len(values) < count:  # bisection loses some among equal ones
        return None
    size = max(abs(float(values[-1])), float(np.abs(stored[0]).max()))
    if (vectors := _vectors(stored, values, size)) is None:
        return None
    small = vectors.T @ band.times(vectors)
    found, rotation = np.linalg.eigh((small + small.T) / 2)
    vectors = vectors @ rotation
    residual = band.times(vectors) - vectors * found
    error = max(float(np.linalg.norm(residual, axis=0).max()), float(np.abs(found - values).max()))
    if not error <= ALLOWED * np.sqrt(m) * np.finfo(np.float64).eps * size:
        return None
    return found, _turned(band, vectors)


def _turned(band: Band, vectors: Array) -> Array:
    return band.turned(np.ascontiguousarray(vectors))


def _vectors(stored: Array, values: Array, size: float) -> Array | None:
    """(m, count) orthonormal, by inverse iteration with each value as the shift."""
    m, count = stored.shape[1], len(values)
    start = np.random.default_rng(0).standard_normal((m, count))
    out = np.empty((m, count))
    general = np.zeros((3 * WIDTH + 1, m))  # a general band, with room for the pivots
    for d in range(WIDTH + 1):
        general[2 * WIDTH + d, : m - d] = stored[d, : m - d]
        general[2 * WIDTH - d, d:] = stored[d, : m - d]
    for i in range(count - 1, -1, -1):  # the largest first
        shifted = general.copy()
        shifted[2 * WIDTH] -= values[i] + (count - i) * np.finfo(np.float64).eps * size
        factors, pivots, info = scipy.linalg.lapack.dgbtrf(shifted, WIDTH, WIDTH, overwrite_ab=1)
        if info < 0:
            return None
        x, known = start[:, i], out[:, i + 1 :]
        for _ in range(STEPS):
            x = x - known @ (known.T @ x)
            x = x / np.linalg.norm(x)
            x = scipy.linalg.lapack.dgbtrs(factors, WIDTH, WIDTH, x, pivots)[0]
            x = x / np.abs(x).max()
        for _ in range(2):
            x = x - known @ (known.T @ x)
            x = x / np.linalg.norm(x)
        if not np.isfinite(x).all():
            return None
        out[:, i] = x
    return out
