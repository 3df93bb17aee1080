"""Small Gaussian systems, one for every row: the posterior of a few latent variables."""

from __future__ import annotations

import numpy as np

from streampca.kernels.blas import Array


def pair_columns(w: Array) -> Array:
    """(p, k (k + 1) / 2) products of the columns a >= b of w (p, k), in the order of the lower
    triangle: sums of rows of it are packed symmetric matrices."""
    a, b = np.tril_indices(w.shape[1])
    return np.asarray(w[:, a] * w[:, b])


def unpacked(packed: Array, k: int) -> Array:
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

    The means of an explicit inverse are refined once: where a row hardly tells two factors apart,
    and the noise is small, its likelihood would be wrong by tenths else.

    Cost: about 2 k^3 flops a row.  Source: any text on linear Gaussian models.
    """
    covariance = np.linalg.inv(information)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    _, logdet = np.linalg.slogdet(information)
    means = np.einsum("ijk,ik->ij", covariance, b)
    left = b - np.einsum("ijk,ik->ij", information, means)
    means += np.einsum("ijk,ik->ij", covariance, left)
    return means, covariance, logdet
