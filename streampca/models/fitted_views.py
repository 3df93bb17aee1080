"""A fitted result under scikit-learn's names: read-only views, none of which reads data."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.models.eof_views import EofViews
from streampca.models.estimator import Estimator


class FittedViews(Estimator):
    """Properties of ``result_``."""

    @property
    def components_(self) -> Array:
        """(k, p) orthonormal rows."""
        return self._fitted().require_components()

    @property
    def explained_variance_(self) -> Array:
        """(k,) variance along each component."""
        return self._fitted().explained_variance

    @property
    def explained_variance_ratio_(self) -> Array:
        """(k,) share of the total variance, of all components, kept or not."""
        return self._fitted().explained_variance_ratio

    @property
    def singular_values_(self) -> Array:
        """(k,) of the centred (and scaled) matrix."""
        return self._fitted().singular_values

    @property
    def mean_(self) -> Array:
        """(p,) column means (0 with center=False)."""
        return np.asarray(self._fitted().mean)

    @property
    def scale_(self) -> Array | None:
        """(p,) column divisors, 0 for constant columns; None where nothing was scaled."""
        scale = self._fitted().scale
        return None if scale is None else np.asarray(scale)

    @property
    def eof_(self) -> EofViews:
        """EOFs and PCs with scalings, correlation and covariance maps, North's errors."""
        return self._fitted().eof

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the directions left out."""
        return self._fitted().noise_variance

    @property
    def n_components_(self) -> int:
        """k."""
        return self._fitted().n_components

    @property
    def n_samples_(self) -> int:
        """Rows of the fit."""
        return self._fitted().n_samples

    @property
    def n_samples_seen_(self) -> int:
        """Rows of the fit (scikit-learn's name in IncrementalPCA)."""
        return self._fitted().n_samples

    @property
    def n_features_used_(self) -> int:
        """Features that have observations, vary, and were not filtered."""
        return self._fitted().n_features_used

    @property
    def rank_(self) -> int:
        """Numerical rank of the centred (and scaled) matrix, among the values computed.

        A fit of k components knows k + 1 values: of a larger rank it can only say "at least
        k + 1" (``result_.rank_is_exact`` is False then).
        """
        return self._fitted().rank

    @property
    def certificate_(self) -> Any:
        """How far each component can be from the true one (:class:`Certificate`)."""
        return self._fitted().certificate

    @property
    def _n_features_out(self) -> int:
        return self._fitted().n_components
