"""Fitted linear Gaussian models, and their estimators: posteriors, likelihoods, samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from streampca.kernels import Array, reciprocal
from streampca.kernels.least_squares import unpacked_triangle
from streampca.matrix import AxisLabels
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.request import whole_number
from streampca.models.latent.rows import FactorScores, LatentLikelihood, PosteriorRows
from streampca.models.results.decomposition import Decomposition, scaled_matrix
from streampca.models.results.projection import BackProjection
from streampca.models.results.row_maps import RowOptions
from streampca.models.results.value_attributes import of_values
from streampca.solvers import FactorModel

# A fitted linear Gaussian model: what probabilistic PCA and factor analysis have in common.


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
        """The cached value of ``factor_model``."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Free parameters, the means among them."""

    @property
    def factor_scale(self) -> Array:
        """(k,) prior standard deviation of the scores."""
        return np.ones(self.n_components)

    @property
    def directions(self) -> Array:
        """(k, p) whose rows times ``factor_scale`` are W'."""
        return self.factor_model.loadings.T

    @property
    def log_jacobian(self) -> float:
        """The term that turns the log-likelihood of a standardised row into that of a data row."""
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
        """The arguments that all of these maps share."""
        return {
            "model": self.factor_model,
            "center": self.mean if options.centre else np.zeros(self.n_features),
            "scale": self.divisors,
            "missing": options.missing,
            "absent": tuple(self.dropped.tolist()),
            "jacobian": self.log_jacobian,
        }

    def rows_of(self, whiten: bool) -> BackProjection:
        """The map from scores to rows, (rows, p), without what a design removed."""
        center = np.array(self.mean)
        center[self.dropped] = np.nan
        rows = self.directions
        rows = rows * self.factor_scale[:, None] if whiten else rows
        return BackProjection(rows, center, self.divisors, None)

    @property
    def score_deviation(self) -> Array:
        """(k,) by which whitening divides scores; 1 for a factor without variance."""
        return np.where(self.factor_scale > 0, self.factor_scale, 1.0)

    # -- the model itself -----------------------------------------------------------------------

    def covariance(self) -> Array:
        """(p, p) covariance of the model in the units of the data, W C W' + noise."""
        return scaled_matrix(self.factor_model.covariance(), self.divisors)

    def precision(self) -> Array:
        """(p, p) inverse of the covariance; 0 for features that the model leaves out.

        Raises InvalidInputError if no variance is left for the noise.
        """
        divisors = self.divisors
        factors = None if divisors is None else reciprocal(divisors)
        return scaled_matrix(self.factor_model.precision(), factors)


# What every fitted linear Gaussian model can do: posteriors, likelihoods, samples.


class LatentModel(LinearModel):
    """x = mean + scale * (W f + e), f and e Gaussian: PPCA and factor analysis.

    A hole is left out of the likelihood of its row, exactly, wherever ``missing`` allows holes.
    """

    scores: str = "regression"

    @abstractmethod
    def _fitted(self) -> LatentDecomposition:
        """The result, of the kind of the model."""

    # -- rows -------------------------------------------------------------------------------

    def posterior(self, X: Any, *, dim: Any = None, remove: Any = None) -> tuple[Array, Array]:
        """The posterior of the factors of each row: (means (n, k), covariances (n, k, k)).

        The covariance of a row depends on which features it observes, not on their values. Units
        are those of ``transform``; of regression scores, whatever ``scores`` says.
        X, dim, remove : as for ``transform``.
        Cost: one pass; 8 n k (k + 3) / 2 bytes and a few blocks.
        """
        result = self._fitted()
        matrix, k = self._matrix(X, dim, remove), result.n_components
        factor = np.ones(k) if self.whiten else result.factor_scale
        scale = factor[:, None] * factor[None, :]
        rows = self._passes(matrix)
        packed = rows.table("posterior", result.posterior_of(rows.options))
        return packed[:, :k] * factor, unpacked_triangle(packed[:, k:], k) * scale

    # -- the model itself -------------------------------------------------------------------

    @property
    def log_likelihood_(self) -> float:
        """Of the rows of the fit, in the units of the data."""
        return self._fitted().log_likelihood

    @property
    def aic_(self) -> float:
        """Akaike's criterion of the fit; smaller is better."""
        return self._fitted().aic

    @property
    def bic_(self) -> float:
        """Schwarz's criterion of the fit; smaller is better."""
        return self._fitted().bic

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """(n_samples, p) rows drawn from the model, in the units of the data.

        Labelled xarray where the features have names, else NumPy. Features that never vary hold
        their mean, those without any observation NaN.
        random_state : as :class:`PCA` takes it; the same seed gives the same rows.
        Raises InvalidInputError for fewer than one row.
        """
        count, result = whole_number("n_samples", n_samples), self._fitted()
        model = result.factor_model
        rng = np.random.default_rng(random_state)
        factors = rng.standard_normal((count, result.n_components))
        if model.correlations is not None:
            factors = factors @ np.linalg.cholesky(model.correlations).T
        rows = factors @ model.loadings.T
        rows += rng.standard_normal(rows.shape) * np.sqrt(model.noise)
        if result.divisors is not None:
            rows *= result.divisors
        rows += result.mean
        rows[:, result.dropped] = np.nan
        features = result.labels.features
        if not features.named:
            return rows
        from streampca.sources.labelled.to_xarray import to_dataarray

        return to_dataarray(
            rows,
            [AxisLabels.plain("sample", count), features],
            "sample",
            partial(of_values, result.labels),
        )
