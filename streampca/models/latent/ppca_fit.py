"""The fitted result of probabilistic PCA, and its EM for matrices with holes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import AccuracyWarning, warn_caller
from streampca.kernels import Array, reciprocal
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted, assemble
from streampca.models.decompose.routes import pca_candidates
from streampca.models.latent.em import (
    EmAfter,
    EmRequest,
    EmResult,
    EmSizes,
    around_holes,
    em_after,
    warn_unless_converged,
)
from streampca.models.latent.latent import LatentDecomposition
from streampca.models.latent.rows import LatentLikelihood
from streampca.models.results.decomposition import Decomposition, OrthogonalProjection
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowOptions
from streampca.passes import Candidate, Planned, Steps, single_threaded_blas
from streampca.solvers import FactorModel, LatentState, known_count, signs_of_components
from streampca.solvers.latent import LOG_2_PI

# The fitted result of probabilistic PCA.


@dataclass(frozen=True, repr=False, kw_only=True)
class ProbabilisticDecomposition(
    LatentDecomposition, OrthogonalProjection, kind="probabilistic model"
):
    """Components of the model V'(Lambda - noise I)V + noise I of standardised rows.

    explained_variance : (k,) Lambda, variances of the model along the components.
    noise : variance of the model in every other direction, and along the components that of the
        noise alone.
    trace : (passes,) log-likelihood at each pass of EM; empty where the form is closed.
    converged : whether EM did.  gain : what the log-likelihood may still lack, estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PPCA
    >>> X = np.random.default_rng(0).standard_normal((100, 5))
    >>> result = PPCA(1).fit(X).result_
    >>> result.n_parameters  # 5 loadings, 5 means, the noise
    11
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
    def of_state(cls, result: Decomposition, found: EmResult) -> ProbabilisticDecomposition:
        """The result of an EM that began at ``result``; its components span the loadings."""
        state = found.state
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
            "log_likelihood": float(found.trace[-1]),
        }
        return cls(
            **kept, noise=noise, trace=found.trace, converged=found.converged, gain=found.gain
        )

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
    def score_spread(self) -> Array:
        """(k,) of posterior means, which the noise draws towards 0."""
        shrunk = self.factor_scale**2 * reciprocal(self.explained_variance)
        return np.asarray(super().score_spread * shrunk)

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
    """Mean variance of all directions but the first k."""
    left = result.n_dimensions - k
    if result.rank <= k:  # what is left is rounding
        return 0.0
    rest = float(result.total_variance - np.sum(result.explained_variance[:k]))
    return max(rest, 0.0) / left if left > 0 else 0.0


def mean_log_likelihood(result: Decomposition, k: int, rows: Any = None) -> float:
    """Per standardised row, under the first k components of a PCA.

    rows : (captured (k,), residual) mean squares of rows along the components and orthogonal to
        them; None takes the rows of the fit.
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


# Probabilistic PCA of a matrix with holes: EM from the closed form of the mean-filled one.

LARGEST = 32  # components, where their number is not known
LEAST_NOISE = 1e-10  # of the mean variance of a feature: with less, EM loses precision
LOOSE = 1.0  # of the log-likelihood, where numbers of components are compared


@dataclass(frozen=True, kw_only=True)
class PpcaRequest(Request):
    """The request of the PCA that is the closed form, or where EM begins, and of EM.

    by_bic : whether Schwarz's criterion chooses the number of components.
    iterates : whether there may be holes, and EM for them.
    em_tol, em_passes : ``tol`` and ``max_passes`` of one EM.
    """

    by_bic: bool = False
    iterates: bool = False
    em_tol: float = 0.0
    em_passes: int = 0


def ppca_candidates(
    matrix: ChunkedMatrix, request: PpcaRequest
) -> list[Candidate[ProbabilisticDecomposition | Fitted]]:
    """The ways of a PCA, and EM after each wherever there may be holes.

    The answer has no settings, plan and provenance; it is a Fitted, which has a doubt, where the
    fit goes over to another way. Raises InvalidInputError for an unsuitable solver.
    """
    after = []
    if request.iterates:
        k = None if request.by_bic else known_count(request.n_components, *matrix.shape)
        k = min(*matrix.shape, LARGEST) if k is None else k
        runs = k + 1 if request.by_bic else 1
        scaled = request.scale is not None or request.side.weights is not None
        sizes = EmSizes(k, runs * request.em_passes, scaled)
        after = em_after(matrix, sizes, request.side.sample_weight)
    solve = partial(fit_ppca, matrix=matrix, request=request)
    return around_holes(pca_candidates(matrix, request), after, solve)


def fit_ppca(
    planned: Planned[Any],
    *,
    first: Candidate[Fitted],
    after: EmAfter | None,
    matrix: ChunkedMatrix,
    request: PpcaRequest,
) -> Steps[ProbabilisticDecomposition | Fitted]:
    """The PCA, and with holes EM that begins there.

    Warns (AccuracyWarning) where the likelihood may still gain more than ``tol``, and where the
    noise fell to LEAST_NOISE: such a likelihood has no maximum, it grows as the noise falls.
    """
    fitted = yield from first.solve(planned)
    if fitted.doubt and planned.then is not None:
        return fitted
    described = {"method": "PPCA", "n_samples": matrix.shape[0], "labels": matrix.labels}
    start: Decomposition = assemble(fitted, request, described)
    del fitted
    if after is None or not (yield from after.needed(partly_missing(start))):
        start = leading(start, fewest_by_bic(start)) if request.by_bic else start
        return ProbabilisticDecomposition.closed_form(start, "PPCA")
    climbs = _Climbs(planned, after, request)
    if request.by_bic:
        start = leading(start, (yield from climbs.fewest(start)))
    return (yield from climbs.model(start, request.em_tol))


@dataclass
class _Climbs:
    """EMs of one fit, one after another, one read for each step.

    made : passes of those before.
    """

    planned: Planned[Any]
    after: EmAfter
    request: PpcaRequest
    made: int = 0

    def model(
        self, start: Decomposition, tol: float, warn: bool = True
    ) -> Steps[ProbabilisticDecomposition]:
        """From a PCA of the mean-filled matrix to the largest likelihood."""
        mean = float(start.total_variance) / max(start.n_dimensions, 1)
        lower = max(LEAST_NOISE * mean, smallest_variance(start))
        request = EmRequest(
            state=first_state(start),
            scale=start.divisors,
            shared=True,
            lower=lower,
            tol=tol,
            max_passes=self.request.em_passes,
            weights=self.request.side.sample_weight,
            made=self.made,
        )
        found = yield from self.after.run(self.planned, request)
        self.made += found.passes
        made = ProbabilisticDecomposition.of_state(start, found)
        if warn:
            warn_unless_converged(found, request)
        if warn and mean > 0.0 and made.noise <= 10.0 * lower:
            k = start.n_components
            warn_caller(
                f"{k} components fit the observed cells to {made.noise / mean:.1g} of their "
                "variance, where the likelihood has no maximum: it measures how little noise there "
                f"may be, not the fit. Take fewer components: n_components={max(k - 1, 1)} or "
                "'bic'",
                AccuracyWarning,
            )
        return made

    def fewest(self, start: Decomposition) -> Steps[int]:
        """The number of components from which one more makes Schwarz's criterion larger.

        Each has an EM of its own, to LOOSE of the log-likelihood, which is little compared with the
        penalty of a component. The mean-filled matrix, where holes look like directions, would take
        too many.  start : with all components.
        """
        most = min(start.n_components, start.rank, start.n_dimensions, LARGEST + 1) - 1
        best = np.inf
        for k in range(1, most + 1):
            tol = max(self.request.em_tol, LOOSE)
            found = yield from self.model(leading(start, k), tol, warn=False)
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
