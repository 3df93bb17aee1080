"""The fitted result of probabilistic PCA, and its EM for matrices with holes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import AccuracyWarning, warn_caller
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.decomposition import Decomposition, OrthogonalProjection
from streampca.models.latent.em import EmRequest, run_em
from streampca.models.latent.latent import LatentDecomposition
from streampca.models.latent.rows import LatentLikelihood
from streampca.models.result import shaped
from streampca.models.row_passes import RowOptions
from streampca.passes import Execution, Plan, single_threaded_blas
from streampca.solvers import FactorModel, LatentState, signs_of_components
from streampca.solvers.latent import LOG_2_PI

# --------------------------------------------------------------------------------------------------
# The fitted result of probabilistic PCA.


@dataclass(frozen=True, repr=False, kw_only=True)
class ProbabilisticDecomposition(
    LatentDecomposition, OrthogonalProjection, kind="probabilistic model"
):
    """Components of the model V'(Lambda - noise I)V + noise I of standardised rows.

    explained_variance : (k,) Lambda, variances of the model along the components.
    noise : variance of the model in every other direction, and in these beside the factors.
    trace : (passes,) log-likelihood at each pass of EM; empty where the form is closed.
    converged : whether EM did.  gain : what the log-likelihood may still lack, estimated.
    """

    noise: float = 0.0
    trace: Array = shaped(None, empty=0)
    converged: bool = True
    gain: float = 0.0

    @classmethod
    def closed_form(cls, result: Decomposition, method: str) -> ProbabilisticDecomposition:
        """The maximum of the likelihood, from a PCA of rows without holes.

        Source: Tipping and Bishop 1999, eqs. 3.7 and 3.8.
        """
        kept = result.fields_of(Decomposition)
        noise = noise_of(result, result.n_components)
        scores, mean = result.scores, np.inf  # no noise: the density has no upper bound
        made = cls(**(kept | {"method": method, "scores": None}), noise=noise)
        if scores is not None:  # means of the factors, given the rows
            variance = np.maximum(result.explained_variance, made.smallest)
            kept["scores"] = scores * (made.factor_scale**2 / variance)
        if not made.singular:
            mean = mean_log_likelihood(result, result.n_components) + made.log_jacobian
        kept |= {"method": method, "log_likelihood": result.weight * mean}
        return cls(**kept, noise=noise)

    @classmethod
    def of_state(
        cls, result: Decomposition, state: LatentState, trace: Array, converged: bool, gain: float
    ) -> ProbabilisticDecomposition:
        """The result of an EM that began at ``result``; its components span the loadings.

        trace : (passes,) log-likelihood of the data.
        """
        used = np.flatnonzero(state.noise > 0)
        noise = float(state.noise[used[0]]) if used.size else 0.0
        with single_threaded_blas():
            u, singular, _ = np.linalg.svd(state.loadings, full_matrices=False)
        variance = singular**2 + noise
        kept = result.fields_of(Decomposition)
        kept |= {
            "method": "PPCA",
            "explained_variance": variance,
            "total_variance": float(variance.sum()) + max(len(used) - len(variance), 0) * noise,
            "components": np.ascontiguousarray((u * signs_of_components(u)).T),
            "mean": state.center,
            "ddof": 0,
            "scores": None,
            "spectrum": None,
            "certificate": None,
            "log_likelihood": float(trace[-1]),
        }
        return cls(**kept, noise=noise, trace=trace, converged=converged, gain=gain)

    def _factor_model(self) -> FactorModel:
        used = np.ones(self.n_features) if self.divisors is None else self.divisors
        noise = np.where(used > 0, max(self.noise, self.smallest), 0.0)
        return FactorModel(self.directions.T * self.factor_scale, noise)

    @property
    def singular(self) -> bool:
        """Whether the density has no upper bound: no noise is left, in a closed form."""
        return not len(self.trace) and super().singular

    def likelihood_of(self, options: RowOptions) -> LatentLikelihood:
        """As of every latent model. Raises InvalidInputError where no noise is left."""
        if self.singular:
            raise self.no_density("likelihood")
        return super().likelihood_of(options)

    @property
    def smallest(self) -> float:
        """Rounding of the total variance, a lower bound of the model's variances."""
        return smallest_variance(self)

    @property
    def directions(self) -> Array:
        """(k, p) the components."""
        return self.require_components()

    @property
    def factor_scale(self) -> Array:
        """(k,) standard deviations of the factors along the components."""
        return np.sqrt(np.maximum(self.explained_variance - self.noise, 0.0))

    @property
    def noise_variance(self) -> float:
        """The maximum likelihood estimate: the sum of the p - k variances left out, over p - k."""
        return self.noise

    @property
    def n_parameters(self) -> int:
        """Directions, their variances, the noise and the means."""
        p, k = self.n_dimensions, self.n_components
        return p * k - k * (k - 1) // 2 + 1 + p


def smallest_variance(result: Decomposition) -> float:
    """Rounding of the total variance, at least 1e-300 so that it can be divided by."""
    return max(float(np.finfo(np.float64).eps) * float(result.total_variance), 1e-300)


def noise_of(result: Decomposition, k: int) -> float:
    """Mean variance of the directions beside the first k, of all that there are."""
    left = result.n_dimensions - k
    if result.rank <= k:  # what is left is rounding
        return 0.0
    rest = float(result.total_variance - np.sum(result.explained_variance[:k]))
    return max(rest, 0.0) / left if left > 0 else 0.0


def mean_log_likelihood(result: Decomposition, k: int, rows: Any = None) -> float:
    """Per standardised row, under the first k components of a PCA.

    rows : (captured (k,), residual) mean squares of rows along the components and beside them;
        None takes the rows of the fit.
    Without noise, where components are missing, rows of the fit have an infinite density and all
    others none: inf, and -inf.
    """
    if result.rank <= k and result.rank < result.n_dimensions:
        return np.inf if rows is None else -np.inf
    smallest, left = smallest_variance(result), result.n_dimensions - k
    variance = np.maximum(result.explained_variance[:k], smallest)
    noise = max(noise_of(result, k), smallest)
    if rows is None:
        share = 1.0 - result.ddof / result.weight
        rows = share * variance, share * noise * left
    captured, residual = rows
    distance = float(np.sum(captured[:k] / variance)) + float(residual) / noise
    logdet = float(np.sum(np.log(variance))) + max(left, 0) * float(np.log(noise))
    return -0.5 * (result.n_dimensions * LOG_2_PI + logdet + distance)


def bic_of(likelihood: Array, count: Array, p: int, weight: float) -> Array:
    """Schwarz's criterion of models with so many components."""
    parameters = p * count - count * (count - 1) // 2 + 1 + p
    return np.asarray(-2.0 * likelihood + np.log(weight) * parameters)


def fewest_by_bic(result: Decomposition) -> int:
    """The k, at least 1 and less than the rank, with the smallest criterion."""
    most = max(1, min(result.n_components, result.rank, result.n_dimensions) - 1)
    count = np.arange(1, most + 1)
    likelihood = [result.weight * mean_log_likelihood(result, int(k)) for k in count]
    criterion = bic_of(np.array(likelihood), count, result.n_dimensions, result.weight)
    return int(count[np.argmin(criterion)])


def leading(result: Decomposition, k: int) -> Decomposition:
    """A decomposition of the first k components alone."""
    certificate = result.certificate
    if certificate is not None:
        names = ("residual", "variance_bound", "gap", "angle_bound")
        certificate = replace(certificate, **{n: getattr(certificate, n)[:k] for n in names})
    return replace(
        result,
        explained_variance=result.explained_variance[:k],
        components=None if result.components is None else result.components[:k],
        scores=None if result.scores is None else result.scores[:, :k],
        certificate=certificate,
    )


# --------------------------------------------------------------------------------------------------
# Probabilistic PCA of a matrix with holes: EM from the closed form of the mean-filled one.

LARGEST = 32  # components, where their number is not known
LEAST_NOISE = 1e-10  # of the mean variance of a feature: with less, EM loses precision
LOOSE = 1.0  # of the log-likelihood, where numbers of components are compared


def fit_by_em(
    plan: Plan,
    matrix: ChunkedMatrix,
    start: Decomposition,
    tol: float,
    execution: Execution,
    weights: Array | None,
    warn: bool = True,
) -> ProbabilisticDecomposition:
    """Steps of EM, one read each, from a PCA of the mean-filled matrix.

    plan : of the steps alone; ``execution.first_pass`` counts those before it.
    Warns (AccuracyWarning) where the likelihood may still gain more than ``tol``, and where the
    noise fell to LEAST_NOISE: such a likelihood has no maximum, it grows as the noise falls.
    """
    mean = float(start.total_variance) / max(start.n_dimensions, 1)
    lower = max(LEAST_NOISE * mean, smallest_variance(start))
    scale = start.divisors
    asked = EmRequest(scale=scale, shared=True, lower=lower, tol=tol, weights=weights)
    found = run_em(plan, matrix, first_state(start), asked, execution, warn)
    made = ProbabilisticDecomposition.of_state(
        start, found.state, found.trace, found.converged, found.gain
    )
    if warn and mean > 0.0 and made.noise <= 10.0 * lower:
        k = start.n_components
        warn_caller(
            f"{k} components fit the observed cells to {made.noise / mean:.1g} of their variance, "
            "where the likelihood has no maximum: it measures how little noise there may be, not "
            f"the fit. Take fewer components: n_components={max(k - 1, 1)} or 'bic'",
            AccuracyWarning,
        )
    return made


def fewest_around_holes(
    plan: Plan,
    matrix: ChunkedMatrix,
    start: Decomposition,
    tol: float,
    execution: Execution,
    weights: Array | None,
) -> int:
    """The number of components from which one more makes Schwarz's criterion larger.

    Each has an EM of its own, to LOOSE of the log-likelihood, which is little beside the penalty of
    a component. The mean-filled matrix, where holes look like directions, would take too many.
    start : with all components.  plan : of the steps of one EM.
    """
    best, most = np.inf, min(start.n_components, start.rank, start.n_dimensions, LARGEST + 1) - 1
    for k in range(1, most + 1):
        one = leading(start, k)
        found = fit_by_em(plan, matrix, one, max(tol, LOOSE), execution, weights, warn=False)
        execution.first_pass += plan.n_passes  # the next EM has a plan of its own
        if found.bic >= best:
            return k - 1
        best = found.bic
    return max(most, 1)


def first_state(result: Decomposition) -> LatentState:
    """The start of EM: the closed form of the mean-filled matrix.

    No direction begins at 0, and the noise neither: EM would leave them there.
    """
    total, used = float(result.total_variance), result.divisors
    noise = max(noise_of(result, result.n_components), 1e-3 * total / max(result.n_dimensions, 1))
    variance = np.maximum(result.explained_variance - noise, 1e-2 * result.explained_variance)
    loadings = result.require_components().T * np.sqrt(np.maximum(variance, 1e-300))
    where = np.ones(result.n_features, bool) if used is None else used > 0
    level = np.where(where, max(noise, 1e-300), 0.0)
    return LatentState(np.ascontiguousarray(loadings), level, np.array(result.mean))


def partly_missing(result: Decomposition) -> Array:
    """(holes,) the features that are used and have missing cells."""
    return np.setdiff1d(np.flatnonzero(np.asarray(result.missing)), result.dropped)
