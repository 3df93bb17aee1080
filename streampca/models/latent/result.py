"""A fitted linear Gaussian model: what probabilistic PCA and factor analysis have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streampca.kernels import Array, reciprocal
from streampca.models.decomposition import Decomposition, scaled_matrix
from streampca.models.latent.rows import FactorScores, LatentLikelihood, PosteriorRows
from streampca.models.projection import BackProjection
from streampca.models.row_passes import RowOptions
from streampca.solvers import FactorModel


@dataclass(frozen=True, repr=False, kw_only=True)
class LatentDecomposition(Decomposition):
    """x = mean + scale * (W f + e) with Gaussian factors f and noise e.

    log_likelihood : of the rows of the fit, in the units of the data; NaN where their number is
        not known.
    """

    log_likelihood: float = float("nan")

    principal: ClassVar[bool] = False

    @cached_property
    def factor_model(self) -> FactorModel:
        """W, the noise and the correlations of the factors, of standardised features."""
        return self._factor_model()

    @abstractmethod
    def _factor_model(self) -> FactorModel:
        """What ``factor_model`` keeps."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Free parameters, the means among them."""

    @property
    def factor_scale(self) -> Array:
        """(k,) standard deviation of the scores when nothing was observed yet."""
        return np.ones(self.n_components)

    @property
    def directions(self) -> Array:
        """(k, p) whose rows times ``factor_scale`` are W'."""
        return self.factor_model.loadings.T

    @property
    def log_jacobian(self) -> float:
        """What turns the log-likelihood of a standardised row into that of a row of the data."""
        divisors = self.divisors
        return 0.0 if divisors is None else -float(np.sum(np.log(divisors[divisors > 0])))

    @property
    def aic(self) -> float:
        """Akaike's criterion: -2 log-likelihood + 2 parameters. Smaller is better."""
        return -2.0 * self.log_likelihood + 2.0 * self.n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion: -2 log-likelihood + log(n) parameters. Smaller is better."""
        return -2.0 * self.log_likelihood + float(np.log(self.weight)) * self.n_parameters

    # -- rows -----------------------------------------------------------------------------------

    def scores_of(self, options: RowOptions) -> FactorScores:
        """The map from rows to scores of their factors, (rows, k); holes are left out."""
        unit = options.whiten or np.all(self.factor_scale == 1.0)
        factor = None if unit else self.factor_scale
        return FactorScores(**self._rows(options), factor=factor, kind=options.scores)

    def likelihood_of(self, options: RowOptions) -> LatentLikelihood:
        """The map from rows to their log-likelihood, (rows, 1); holes are left out."""
        return LatentLikelihood(**self._rows(options))

    def posterior_of(self, options: RowOptions) -> PosteriorRows:
        """The map from rows to means and covariances of their factors."""
        return PosteriorRows(**self._rows(options))

    def _rows(self, options: RowOptions) -> dict[str, Any]:
        """What all of these maps hold."""
        return {
            "model": self.factor_model,
            "center": self.mean if options.centre else np.zeros(self.n_features),
            "scale": self.divisors,
            "missing": options.missing,
            "absent": tuple(self.dropped.tolist()),
            "jacobian": self.log_jacobian,
        }

    def rows_of(self, whiten: bool, again: bool = False) -> BackProjection:
        """The map from scores to rows, (rows, p).  again : add what a design removed."""
        center = np.array(self.mean)
        center[self.dropped] = np.nan
        rows = self.directions
        rows = rows * self.factor_scale[:, None] if whiten else rows
        return BackProjection(rows, center, self.divisors, None, self.removed if again else None)

    @property
    def score_deviation(self) -> Array:
        """(k,) by which whitening divides scores; never 0."""
        return np.where(self.factor_scale > 0, self.factor_scale, 1.0)

    # -- the model itself -----------------------------------------------------------------------

    def covariance(self) -> Array:
        """(p, p) covariance of the model in the units of the data, W C W' + noise."""
        return scaled_matrix(self.factor_model.covariance(), self.divisors)

    def precision(self) -> Array:
        """(p, p) inverse of the covariance; 0 beside features that the model leaves out.

        Raises InvalidInputError where nothing is left for the noise.
        """
        divisors = self.divisors
        factors = None if divisors is None else reciprocal(divisors)
        return scaled_matrix(self.factor_model.precision(), factors)
