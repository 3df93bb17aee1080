"""Factor analysis by maximum likelihood: a few factors, and a noise variance for each feature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import WeighsSamples, attach
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import degrees_of_freedom, sample_weights
from streampca.models.decompose.covariance import checked_covariance
from streampca.models.latent.factor_fit import FactorRequest, fit_covariance
from streampca.models.latent.factor_result import FactorDecomposition, factor_result
from streampca.models.latent.factor_routes import factor_candidates
from streampca.models.latent.latent import LatentModel
from streampca.models.side_data.row_weights import refuse_few
from streampca.passes import Candidate, Outcome


@estimator
class FactorAnalysis(WeighsSamples, LatentModel):
    """Maximum likelihood factor analysis of a matrix that need not fit in memory.

    x = mean + deviation * (L f + e), factors f of variance 1, e independent with the variances
    ``uniquenesses_``: R's ``factanal``, which fits correlations.

    Attributes
    ----------
    loadings_ (p, k) and uniquenesses_ (p,) on the scale of correlations; components_ (k, p) and
    noise_variance_ (p,) in the units of the data, as scikit-learn has them; correlations_ (k, k)
    of the factors; heywood_ : numbers of the features at the bound; log_likelihood_;
    test_statistic_, degrees_of_freedom_ and p_value_ of the test that k factors are enough
    (Bartlett's correction); aic_, bic_; converged_, n_iter_; result_, a
    :class:`FactorDecomposition`. explained_variance_ are the sums of squared loadings,
    explained_variance_ratio_ their share of the p unit variances.

    trace_ : of "scatter", the log-likelihood after every Newton step, of "streamed" the best one
    known after every product, of EM that of every pass; loglike_ : those that are above all before
    them; result_.gain estimates what it may still lack, up to the maximum that it climbs. The test
    needs log|S|: NaN where that is not known.

    Cost: "scatter" one pass, n p^2 flops, 10 p^2 float64, then 5 to 10 Newton steps of about
    (13 + 2 k) p^3 flops; "streamed" 3 to 6 passes of 4 n p (k + 12) flops, 6 p (9 k + 12) float64.
    The maximum is a local one, climbed to from factanal's start. Small samples and Heywood cases
    can have several: of 300 random data sets of 3 to 13 features, 9 had one that is more likely,
    to which another method came from the same start in 3 of them.
    Source: Lawley and Maxwell 1971, "Factor Analysis as a Statistical Method", chapters 2 to 4.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import FactorAnalysis
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 1)) + 0.5 * rng.standard_normal((200, 5))
    >>> model = FactorAnalysis(1).fit(X)
    >>> model.uniquenesses_.round(2)
    array([0.22, 0.15, 0.18, 0.28, 0.19])
    """

    n_components: int | None = parameter(
        default=1,
        kw_only=False,
        counts_components=True,
        meaning="number of factors, from 0; None means that of the features.",
    )
    rotation: str | None = parameter(
        default=None,
        meaning="""None, "varimax" or "quartimax" (both orthogonal), or "promax" (factors may
            correlate).""",
    )
    normalize: bool = parameter(
        default=True, meaning="of the rotation, as :func:`streampca.rotate`."
    )
    power: float = parameter(default=4.0, meaning="of the rotation, as :func:`streampca.rotate`.")
    rotation_tol: float = parameter(
        default=1e-05,
        meaning="""varimax stops where R's does, when its criterion grows by less than this share;
            0 goes to the optimum, as :func:`streampca.rotate` does. Where the structure is
            simple the two agree; else factors can differ by 0.01 radians.""",
    )
    scores: str = parameter(
        default="regression",
        meaning="""what ``transform`` gives: "regression" (the posterior mean; Thomson's) or
            "bartlett" (weighted least squares, without bias).""",
    )
    min_uniqueness: float = parameter(
        default=0.005,
        meaning="""least uniqueness; one that ends there is a Heywood case, and is reported.""",
    )
    solver: str = parameter(
        default="auto",
        meaning=""""scatter" (p x p correlations, one pass, Newton steps), "streamed" (p large: a
            look, and one pair of products with k vectors for each read, usually 3 to 5; 10
            to 20 for more factors than the data hold), or "auto": as ``plan(X)`` says, by
            memory and predicted time.""",
    )
    tol: float = parameter(
        default=0.01,
        meaning=""""streamed" and EM stop when the log-likelihood of all rows has at most this to
            gain, by an estimate.""",
    )
    max_passes: int = parameter(
        default=100, meaning="""of "streamed", the look included, and of EM."""
    )
    max_iter: int = parameter(
        default=1000,
        meaning="""steps of the climb: at most so many Newton steps of "scatter", and two passes
            more of the others.""",
    )
    noise_variance_init: Any = parameter(
        default=None,
        kept=Kept.NOT,
        needs_data=True,
        meaning="""(p,) variances of the noise at which the Newton steps of "scatter" begin; None
            begins where R's factanal does. It matters where there are several maxima.""",
    )
    copy: bool = shared.COPY
    svd_method: str = shared.accepted("randomized", "no step approximates its eigenvectors")
    iterated_power: int = shared.accepted(3, "as ``svd_method``")
    random_state: Any = shared.accepted(0, "nothing is drawn")
    ddof: int = parameter(
        default=0,
        meaning="""variances divide by n - ddof. With 0, as in scikit-learn, the likelihood is the
            largest. Correlations, uniquenesses and the test do not depend on it.""",
    )
    missing: str = parameter(
        default="raise",
        meaning=""""raise"; "em" leaves holes out of the likelihood, exactly, with one read for
            each step of EM, from "mean" on, where a hole holds its column's mean in the fit
            and in ``log_likelihood_``. ``transform``, ``posterior`` and ``score_samples``
            leave holes out under both.""",
    )

    whiten = False
    reconstructs = False

    def _request(
        self, matrix: ChunkedMatrix, *, sample_weight: Any = None, **_: Any
    ) -> FactorRequest:
        """The checked parameters, and the weights of the samples of this matrix."""
        request = FactorRequest.of(self, matrix.shape[1])
        request = replace(request, weights=sample_weights(sample_weight, matrix))
        refuse_few(request.weights, max(self.ddof, 1), "a row, which has no covariance")
        degrees_of_freedom(request.count(matrix.shape[0]), self.ddof)
        return request

    def _candidates(self, matrix: ChunkedMatrix, request: FactorRequest) -> list[Candidate[Any]]:
        return factor_candidates(matrix, request)

    def _result(
        self, matrix: ChunkedMatrix, request: FactorRequest, done: Outcome[Any]
    ) -> FactorDecomposition:
        self.result_: FactorDecomposition
        return factor_result(done.answer, request, self._described(matrix, done))

    @classmethod
    def from_covariance(
        cls,
        covariance: Any,
        n_samples: int | None = None,
        *,
        mean: Any = None,
        names: Any = None,
        **parameters: Any,
    ) -> FactorAnalysis:
        """A fitted factor analysis from a covariance or correlation matrix alone.

        covariance : (p, p) symmetric.  mean : (p,) or None (0).  names : of the features.
        n_samples : rows behind it, if known; without it there is no test and no likelihood.
        parameters : of the estimator, such as n_components=2, rotation="varimax".
        Raises InvalidInputError for a matrix that is no covariance.
        """
        model = cls(**parameters)
        matrix, center, names = checked_covariance(covariance, mean, names)
        request = FactorRequest.of(model, len(matrix))
        weight = float("nan") if n_samples is None else float(n_samples)
        if n_samples is not None:
            degrees_of_freedom(weight, model.ddof)
        variance = np.diagonal(matrix)
        if variance.min() < 0 or np.linalg.eigvalsh(matrix)[0] < -1e-8 * variance.sum():
            raise InvalidInputError("S has a negative eigenvalue; expected a covariance matrix")
        found = fit_covariance(
            matrix, center, weight, request, np.flatnonzero(variance > 0), np.zeros(0, np.int64)
        )
        labels = Labels.plain((0, len(matrix)), None if names is None else list(names))
        described = {
            "method": cls.registered_name,
            "n_samples": n_samples or 0,
            "labels": labels,
            "settings": model.stored_params(),
        }
        attach(model, factor_result(found, request, described))
        return model

    # -- what was found -------------------------------------------------------------------------

    def _fitted(self) -> FactorDecomposition:
        return self._result_as(FactorDecomposition)

    @property
    def components_(self) -> Array:
        """(k, p) loadings in the units of the data, as scikit-learn has them."""
        result = self._fitted()
        return np.asarray(result.loadings.T * result.scale)

    @property
    def loadings_(self) -> Array:
        """(p, k) loadings on the scale of correlations."""
        return self._fitted().loadings

    @property
    def uniquenesses_(self) -> Array:
        """(p,) shares of the variances that no factor explains; 0 where nothing varies."""
        return self._fitted().uniquenesses

    @property
    def noise_variance_(self) -> Array:  # type: ignore[override]
        """(p,) variances that no factor explains, in the units of the data."""
        result = self._fitted()
        return np.asarray(result.uniquenesses * np.asarray(result.scale) ** 2)

    @property
    def correlations_(self) -> Array:
        """(k, k) of the factors; the identity unless promax rotated them."""
        return self._fitted().correlations

    @property
    def heywood_(self) -> Array:
        """(m,) numbers of the features whose uniqueness lies at its lower bound."""
        return self._fitted().heywood

    @property
    def test_statistic_(self) -> float:
        """Chi-square statistic of the hypothesis that k factors are enough."""
        return self._fitted().statistic

    @property
    def degrees_of_freedom_(self) -> int:
        """Degrees of freedom of the test; negative if there are too many factors."""
        return self._fitted().freedom

    @property
    def p_value_(self) -> float:
        """P-value of the test; NaN if there is no test."""
        return self._fitted().p_value

    @property
    def trace_(self) -> Array:
        """(steps,) log-likelihoods on the way; of "streamed" the best one known."""
        return self._fitted().trace

    @property
    def loglike_(self) -> list[float]:
        """Log-likelihoods on the way, each above those before it; the last is that of the fit."""
        trace = self.trace_
        before = np.maximum.accumulate(np.concatenate([[-np.inf], trace[:-1]]))
        rising = trace[(trace > before) & (trace < self.log_likelihood_)]
        return [*rising.tolist(), self.log_likelihood_]

    @property
    def converged_(self) -> bool:
        """Whether the likelihood equations are solved."""
        return self._fitted().converged

    @property
    def n_iter_(self) -> int:
        """Newton steps of "scatter", reads with products of "streamed"."""
        return self._fitted().steps
