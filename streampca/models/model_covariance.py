"""The covariance matrix of the probabilistic model of a decomposition, and its inverse.

Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", section 3.3.
"""

from __future__ import annotations

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.models.decomposition import Decomposition


def covariance_of(result: Decomposition) -> Array:
    """(p, p) V'(L - s2 I)V + s2 I, in the units of the data.  Cost: p^2 k flops."""
    v, noise = result.require_components(), result.noise_variance
    covariance = (v.T * np.maximum(result.explained_variance - noise, 0.0)) @ v
    covariance[np.diag_indices_from(covariance)] += noise
    if (scale := result.divisors) is not None:
        covariance *= scale[:, None] * scale[None, :]
    return np.asarray(covariance)


def precision_of(result: Decomposition) -> Array:
    """(p, p) V'L^-1 V + (I - V'V) / s2, the inverse of the covariance, in the data's units.

    0 beside features that the model leaves out. Raises InvalidInputError where the covariance is
    singular.  Cost: p^2 k flops; nothing is inverted.
    """
    v, noise = result.require_components(), result.noise_variance
    k, dimensions = result.n_components, result.n_dimensions
    variance = np.maximum(result.explained_variance, noise)
    smallest = float(variance.min(initial=np.inf)) if k >= dimensions else noise
    if smallest <= np.finfo(np.float64).eps * dimensions * float(variance.max(initial=noise)):
        raise InvalidInputError(
            f"the covariance of this model has no inverse: {k} components hold all of the "
            f"variance of {dimensions} features. Fit fewer components than the rank "
            f"({result.rank}), so that a noise variance is left, for example "
            f"n_components={max(1, min(k, result.rank) - 1)}."
        )
    precision = (v.T / variance) @ v
    if k < dimensions:
        precision -= (v.T @ v) / noise
        precision[np.diag_indices_from(precision)] += 1.0 / noise
    if (scale := result.divisors) is not None:
        inverse = reciprocal(scale)
        precision *= inverse[:, None] * inverse[None, :]
    return np.asarray(precision)
