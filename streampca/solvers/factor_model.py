"""The linear Gaussian model behind probabilistic PCA and factor analysis: x = W f + e."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.kernels.posterior import pair_columns, posterior

LOG_2_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class FactorModel:
    """Rows z ~ N(0, W C W' + diag(noise)) with factors f ~ N(0, C).

    loadings : W (p, k).  noise : (p,) variances; 0 leaves a feature out of the model.
    correlations : C (k, k) of the factors, None for the identity.

    Given the features o that a row observes, f has precision A = C^-1 + W_o'N_o^-1 W_o and mean
    A^-1 W_o'N_o^-1 z_o.
    Source: Bishop 2006, "Pattern Recognition and Machine Learning", section 12.2.
    """

    loadings: Array
    noise: Array
    correlations: Array | None = None

    @cached_property
    def inverse_noise(self) -> Array:
        """(p,) 1 / noise, 0 for features that are left out."""
        return reciprocal(self.noise)

    @cached_property
    def weighted(self) -> Array:
        """(p, k) W over the noise."""
        return np.asarray(self.loadings * self.inverse_noise[:, None])

    @cached_property
    def pairs(self) -> Array:
        """(p, k (k + 1) / 2): what each feature adds to the information of the factors, packed."""
        return pair_columns(self.loadings * np.sqrt(self.inverse_noise)[:, None])

    @cached_property
    def log_noise(self) -> Array:
        """(p,) logarithms of the noise, 0 for features that are left out."""
        return np.log(self.noise, out=np.zeros_like(self.noise), where=self.noise > 0)

    @cached_property
    def prior(self) -> Array:
        """(k, k) precision of the factors before anything is observed."""
        k = self.loadings.shape[1]
        return np.eye(k) if self.correlations is None else np.linalg.inv(self.correlations)

    @cached_property
    def information(self) -> Array:
        """(k, k) precision of the factors of a row that observes every feature."""
        return np.asarray(self.prior + self.loadings.T @ self.weighted)

    @cached_property
    def covariance_given_all(self) -> Array:
        """(k, k) covariance of the factors of a row that observes every feature."""
        zero = np.zeros((1, len(self.information)))
        return np.asarray(posterior(self.information[None], zero)[1][0])

    @cached_property
    def regression(self) -> Array:
        """(k, p) that makes the mean of the factors of a row that observes every feature."""
        return np.asarray(self.covariance_given_all @ self.weighted.T)

    @cached_property
    def least_squares(self) -> Array:
        """(k, p) that makes Bartlett's factor scores: no prior, weighted least squares."""
        plain = self.loadings.T @ self.weighted
        return np.asarray(np.linalg.pinv(plain, hermitian=True) @ self.weighted.T)

    @cached_property
    def log_determinant(self) -> float:
        """Of the covariance of the features that are in the model."""
        inner = float(np.linalg.slogdet(self.information)[1] - np.linalg.slogdet(self.prior)[1])
        return inner + float(np.sum(self.log_noise))

    def constants(self, logdet: Array, noise: Array, seen: Array) -> Array:
        """(rows,) of the log-likelihood what does not depend on the values.

        logdet : (rows,) of the information.  noise : (rows,) summed logarithms of the noise of
        what a row observes.  seen : (rows,) how many features that are.
        """
        prior = float(np.linalg.slogdet(self.prior)[1])
        return np.asarray(-0.5 * (seen * LOG_2_PI + noise + logdet - prior))

    def covariance(self) -> Array:
        """(p, p) W C W' + diag(noise)."""
        w = self.loadings
        made = (w if self.correlations is None else w @ self.correlations) @ w.T
        made[np.diag_indices_from(made)] += self.noise
        return np.asarray(made)

    def precision(self) -> Array:
        """(p, p) inverse of ``covariance``, by the identity of Woodbury; 0 beside what is left out.

        Raises InvalidInputError where the noise is 0 beside what the factors make.
        """
        largest = float(np.max(np.sum(self.loadings**2, axis=1) + self.noise, initial=0.0))
        used = self.noise[self.noise > 0]
        if not used.size or used.min() <= np.finfo(np.float64).eps * len(self.noise) * largest:
            raise InvalidInputError(
                "the covariance of this model has no inverse: nothing is left for the noise. Fit "
                "fewer components than the rank of the data"
            )
        made = -self.weighted @ self.covariance_given_all @ self.weighted.T
        made[np.diag_indices_from(made)] += self.inverse_noise
        return np.asarray(0.5 * (made + made.T))

    def mean_log_likelihood(self, covariance: Array) -> float:
        """Of rows about their mean whose mean square is this (p, p) matrix, per row."""
        weighted = self.weighted
        inside = np.sum((weighted.T @ covariance @ weighted) * self.covariance_given_all)
        distance = float(np.diagonal(covariance) @ self.inverse_noise - inside)
        used = int(np.count_nonzero(self.noise > 0))
        return -0.5 * (used * LOG_2_PI + self.log_determinant + distance)
