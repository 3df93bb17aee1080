"""Principal components: the eigenvectors of a sample covariance, and the model that they make."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.models.decomposition import OrthogonalProjection
from streampca.models.projection import Likelihood
from streampca.models.result import shaped
from streampca.models.row_passes import RowMap, RowOptions
from streampca.solvers import TracyWidom, tracy_widom_test


@dataclass(frozen=True, repr=False, kw_only=True)
class PrincipalComponents(OrthogonalProjection, kind="model"):
    """The result of a PCA: orthonormal components, and variances that are eigenvalues.

    total_squares : sum of the squares of all variances, kept or not; NaN where it is not known.
    feature_mean : (p,) where ``mean`` is not subtracted, else None.
    missing_by_sample : (n,) missing cells in all p features, where they were counted.
    fitted : (n,) True for the rows of the fit, where scores of others were made too.
    """

    total_squares: float = float("nan")
    feature_mean: Array | None = shaped("p", optional=True)
    missing_by_sample: Array | None = shaped(None, optional=True)
    fitted: Array | None = shaped(None, optional=True)

    def tracy_widom(self) -> TracyWidom:
        """Significance of each component: statistic, p-value, effective number of features.

        Raises InvalidInputError where the fit iterated: the test needs the sum of the squares of
        all variances.
        """
        if not np.isfinite(self.total_squares):
            raise InvalidInputError(
                "an iterated fit does not know the sum of the squares of all variances, which the "
                "Tracy-Widom test needs; fit with svd_solver='scatter' or 'gram'"
            )
        centred = self.feature_mean is None
        most = self.n_samples - centred if self.n_samples else self.n_features
        return tracy_widom_test(
            self.explained_variance,
            total=self.total_variance,
            squares=self.total_squares,
            count=min(most, self.n_features_used),
            rounding=self._rounding(),
        )

    def _rounding(self) -> float:
        """Relative error of the largest variance; of float32 sums where no bound is known."""
        bounds = None if self.certificate is None else self.certificate.variance_bound
        largest = float(self.explained_variance[0])
        if bounds is None or not np.isfinite(bounds[0]) or not largest > 0:
            return 1e-6
        return 2.0 * float(bounds[0]) / largest

    def likelihood_of(self, options: RowOptions) -> RowMap:
        """The map from rows to their log-likelihood under probabilistic PCA, (rows, 1)."""
        return Likelihood.of(self, options)

    def covariance(self) -> Array:
        """(p, p) V'(L - s2 I)V + s2 I, in the units of the data.  Cost: p^2 k flops.

        Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", section 3.3.
        """
        v, noise = self.require_components(), self.noise_variance
        covariance = (v.T * np.maximum(self.explained_variance - noise, 0.0)) @ v
        covariance[np.diag_indices_from(covariance)] += noise
        return scaled_matrix(covariance, self.divisors)

    def precision(self) -> Array:
        """(p, p) V'L^-1 V + (I - V'V) / s2, the inverse of the covariance, in the data's units.

        0 beside features that the model leaves out. Raises InvalidInputError where the covariance
        is singular.  Cost: p^2 k flops; nothing is inverted.
        """
        v, noise = self.require_components(), self.noise_variance
        k, dimensions = self.n_components, self.n_dimensions
        variance = np.maximum(self.explained_variance, noise)
        smallest = float(variance.min(initial=np.inf)) if k >= dimensions else noise
        if smallest <= np.finfo(np.float64).eps * dimensions * float(variance.max(initial=noise)):
            raise InvalidInputError(
                f"the covariance of this model has no inverse: {k} components hold all of the "
                f"variance of {dimensions} features. Fit fewer components than the rank "
                f"({self.rank}), so that a noise variance is left, for example "
                f"n_components={max(1, min(k, self.rank) - 1)}."
            )
        precision = (v.T / variance) @ v
        if k < dimensions:
            precision -= (v.T @ v) / noise
            precision[np.diag_indices_from(precision)] += 1.0 / noise
        divisors = self.divisors
        return scaled_matrix(precision, None if divisors is None else reciprocal(divisors))


def scaled_matrix(values: Array, factors: Array | None) -> Array:
    """Multiply rows and columns of a matrix by factors, in place; None: unchanged."""
    if factors is not None:
        values *= factors[:, None] * factors[None, :]
    return np.asarray(values)
