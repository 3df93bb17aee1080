"""The request of a factor analysis, and factors by maximum likelihood: of correlations, of EM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.contract.request import array_of_numbers, check_ddof, whole_number
from streampca.models.latent.em import EmResult
from streampca.models.latent.rows import SCORES
from streampca.passes import single_threaded_blas
from streampca.solvers import FactorModel, FactorSolution, LatentState, maximum_likelihood
from streampca.solvers.factor_likelihood import MAX_STEPS
from streampca.solvers.latent import LOG_2_PI
from streampca.solvers.rotation import METHODS

AS_THEY_ARE = (
    "rotation",
    "normalize",
    "power",
    "rotation_tol",
    "min_uniqueness",
    "solver",
    "tol",
    "ddof",
    "missing",
)


@dataclass(frozen=True, kw_only=True)
class FactorRequest:
    """Parameters as :class:`streampca.FactorAnalysis` describes them.

    weights : (n,) of the samples, or None.
    start : (p,) variances of the noise at which the climb begins, or None.
    """

    n_components: int
    rotation: str | None
    normalize: bool
    power: float
    rotation_tol: float
    min_uniqueness: float
    solver: str
    tol: float
    max_passes: int
    max_iter: int
    ddof: int
    missing: str
    weights: Array | None = None
    start: Array | None = None

    def count(self, n: int) -> float:
        """Sum of the weights of n samples."""
        return float(n) if self.weights is None else float(self.weights.sum())

    @classmethod
    def of(cls, model: Any, p: int) -> FactorRequest:
        """The request of an estimator. Refuses what no data of p features can satisfy."""
        check_ddof(model.ddof)
        k, lower = model.n_components, model.min_uniqueness
        k = p if k is None else k
        whole_number("n_components", k, 0, p, "None or ", ", that of the features")
        if isinstance(lower, bool) or not isinstance(lower, (int, float)) or not 0 < lower < 1:
            raise InvalidInputError(
                f"min_uniqueness={lower!r}; expected a share of variance between 0 and 1, as 0.005"
            )
        if model.missing not in ("raise", "mean", "em"):
            raise InvalidInputError(f"missing={model.missing!r}; expected 'raise', 'mean' or 'em'")
        if model.rotation is not None and model.rotation not in METHODS:
            raise InvalidInputError(
                f"rotation={model.rotation!r}; expected None or one of {METHODS}"
            )
        most = whole_number("max_passes", model.max_passes, 3)
        steps = whole_number("max_iter", model.max_iter)
        if not 0.0 <= model.rotation_tol < 1.0:
            raise InvalidInputError(f"rotation_tol={model.rotation_tol!r}; expected 0 or a share")
        if model.scores not in SCORES:
            raise InvalidInputError(f"scores={model.scores!r}; expected one of {SCORES}")
        return cls(
            n_components=int(k),
            max_passes=min(int(most), int(steps) + 2),
            max_iter=int(steps),
            start=_first_noise(model.noise_variance_init, p),
            **{name: getattr(model, name) for name in AS_THEY_ARE},
        )


def _first_noise(values: Any, p: int) -> Array | None:
    """(p,) variances, or None. Raises InvalidInputError."""
    if values is None:
        return None
    expected = f"({p},): a finite variance above 0 for each feature"
    found = array_of_numbers(values, "noise_variance_init", expected)
    if found.shape != (p,) or not np.all(np.isfinite(found) & (found > 0)):
        raise InvalidInputError(f"noise_variance_init has shape {found.shape}; expected {expected}")
    return found


@dataclass
class FactorFit:
    """The solution of a fit, before it is rotated and labelled.

    solution : of the features ``live``, on the scale of their correlations.
    log_determinant : of their correlation matrix, NaN where it is singular or not known.
    log_likelihood : of one standardised row with the mean square of the fit, NaN where unknown.
    """

    solution: FactorSolution
    live: Array
    mean: Array
    deviation: Array  # (p,) 0 for features that never vary
    weight: float
    log_determinant: float
    log_likelihood: float
    dropped: Array
    missing: Array | None = None
    trace: Array = field(default_factory=lambda: np.zeros(0))
    gain: float = 0.0

    @property
    def partly_missing(self) -> Array:
        """(holes,) the features that vary and have missing cells."""
        return self.live[:0] if self.missing is None else self.live[self.missing[self.live] > 0]


def fit_covariance(
    covariance: Array,
    mean: Array,
    weight: float,
    request: FactorRequest,
    live: Array,
    dropped: Array,
) -> FactorFit:
    """Maximum likelihood from a covariance or correlation matrix.

    covariance : (p, p) with the lower triangle valid.  weight : of the samples behind it, with
    divisor weight - ddof; NaN where it is not known.  live : numbers of the features that vary.
    """
    p = len(covariance)
    deviation = np.zeros(p)
    deviation[live] = np.sqrt(np.diagonal(covariance)[live])
    if not len(live):
        nothing = FactorSolution(np.zeros((0, 0)), np.zeros(0), 0.0, 0, 0.0, True)
        return FactorFit(nothing, live, mean, deviation, weight, 0.0, 0.0, dropped)
    correlation = np.tril(covariance if len(live) == p else covariance[np.ix_(live, live)])
    correlation /= deviation[live][:, None] * deviation[live][None, :]
    correlation += np.tril(correlation, -1).T
    np.fill_diagonal(correlation, 1.0)
    k = min(request.n_components, len(live))
    start = None if request.start is None else request.start[live] / deviation[live] ** 2
    with single_threaded_blas():
        most = min(request.max_iter, MAX_STEPS)
        solution = maximum_likelihood(correlation, k, request.min_uniqueness, start, most)
        logdet = _log_determinant(correlation)
        model = FactorModel(solution.loadings, solution.uniquenesses)
        correlation *= (weight - request.ddof) / weight
        likelihood = model.mean_log_likelihood(correlation)
    found = FactorFit(solution, live, mean, deviation, weight, logdet, likelihood, dropped)
    found.trace = _likelihoods(found, request.ddof)
    return found


def _likelihoods(fit: FactorFit, ddof: int) -> Array:
    """(steps + 1,) of all rows, in the units of the data, where each Newton step ended."""
    trace = fit.solution.trace
    assert trace is not None
    whole, spread = trace.T
    spread = spread * ((fit.weight - ddof) / fit.weight - 1.0)  # the mean square has divisor n
    jacobian = float(np.sum(np.log(fit.deviation[fit.live])))
    one = -0.5 * (len(fit.live) * LOG_2_PI + whole + spread) - jacobian
    return np.asarray(fit.weight * one)


def first_factors(fit: FactorFit, lower: float) -> LatentState:
    """The start of EM with holes: the factors of the mean-filled matrix, on its own scale.

    No factor begins at 0: EM would leave it there.
    lower : least share of a feature's variance in the model that is noise.
    """
    p, k = len(fit.mean), fit.solution.loadings.shape[1]
    loadings, noise = np.zeros((p, k)), np.zeros(p)
    loadings[fit.live] = fit.solution.loadings
    weak = np.flatnonzero(np.linalg.norm(loadings, axis=0) < 1e-6)
    start = np.random.default_rng(0).standard_normal((len(fit.live), len(weak)))
    loadings[np.ix_(fit.live, weak)] = 0.1 * start
    least = np.sum(loadings[fit.live] ** 2, axis=1) * lower / (1.0 - lower)
    noise[fit.live] = np.maximum(fit.solution.uniquenesses, np.maximum(least, lower))
    return LatentState(loadings, noise, fit.mean)


def factors_of_em(fit: FactorFit, found: EmResult) -> FactorFit:
    """The solution of EM, on the scale of the correlations of its model."""
    live, state = fit.live, found.state
    spread = np.sum(state.loadings[live] ** 2, axis=1) + state.noise[live]
    root = np.sqrt(spread)
    unique = state.noise[live] / spread
    weighted = state.loadings[live] / np.sqrt(state.noise[live])[:, None]
    with single_threaded_blas():  # canonical: W'W / noise is diagonal
        u, singular, _ = np.linalg.svd(weighted, full_matrices=False)
    loadings = u * singular * np.sqrt(state.noise[live] / spread)[:, None]
    solution = FactorSolution(
        loadings, unique, float("nan"), len(found.trace), float("nan"), found.converged
    )
    deviation = np.zeros_like(fit.deviation)
    deviation[live] = fit.deviation[live] * root
    likelihood = float(found.trace[-1] / fit.weight + np.sum(np.log(deviation[live])))
    return FactorFit(
        solution,
        live,
        state.center,
        deviation,
        fit.weight,
        float("nan"),
        likelihood,
        fit.dropped,
        fit.missing,
        found.trace,
        found.gain,
    )


def _log_determinant(correlation: Array) -> float:
    """NaN where the matrix is singular to rounding."""
    try:
        factor = scipy.linalg.cholesky(correlation, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return float("nan")
    diagonal = np.diagonal(factor)
    if diagonal.min() ** 2 <= len(diagonal) * np.finfo(np.float64).eps:
        return float("nan")
    return 2.0 * float(np.sum(np.log(diagonal)))
