"""The result of a factor analysis: rotated, ordered, tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from streampca.errors import (
    AccuracyWarning,
    HeywoodWarning,
    InvalidInputError,
    convergence_warning,
    shorten,
    warn_caller,
)
from streampca.kernels import Array
from streampca.models.latent.factor_fit import FactorFit, FactorRequest
from streampca.models.latent.latent import LatentDecomposition
from streampca.models.results.result import places, shaped
from streampca.passes import single_threaded_blas
from streampca.solvers import FactorModel, rotate_loadings, signs_of_components


def degrees_of_freedom(p: int, k: int) -> int:
    """((p - k)^2 - p - k) / 2: correlations less parameters. Negative where k is too many."""
    return ((p - k) ** 2 - p - k) // 2


@dataclass(frozen=True, repr=False, kw_only=True)
class FactorDecomposition(LatentDecomposition, kind="factor model"):
    """Correlations as L C L' + diag(uniquenesses); ``scale`` has the standard deviations.

    components : (k, p) columns of L with length 1, which are not orthogonal.
    explained_variance : (k,) their squared lengths, descending (R's "SS loadings");
        total_variance : how many features vary.
    uniquenesses : (p,) shares of the variance that no factor explains; 0 in features that the
        model leaves out.
    rotation : (k, k), L = unrotated loadings @ rotation.  correlations : C (k, k) of the factors.
    heywood : numbers of the features whose uniqueness lies at ``lower``, the bound.
    discrepancy : log|Sigma| - log|S| + tr(S / Sigma) - p, NaN where S is singular or unknown.
    statistic, freedom, p_value : Bartlett's test that k factors are enough.
    steps, converged : of the iteration.  gradient : the largest of the likelihood equations at
        its end.  gain : what the log-likelihood may still lack, estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import FactorAnalysis
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 1)) + 0.5 * rng.standard_normal((200, 5))
    >>> result = FactorAnalysis(1).fit(X).result_
    >>> result.communalities.round(1)
    array([0.8, 0.9, 0.8, 0.7, 0.8])
    """

    instead: ClassVar[Mapping[str, str]] = {
        "r2_of": "factors are no orthogonal projection of rows; compare models by score(X), or "
        "take PCA for the variance of other rows",
        "reconstruction_error": "factors explain correlations; compare models by score(X)",
    }

    uniquenesses: Array = shaped("p", empty=0)
    rotation: Array = shaped("k", "k", empty=(0, 0))
    correlations: Array = shaped("k", "k", empty=(0, 0))
    heywood: Array = places()
    trace: Array = shaped(None, empty=0)
    lower: float = 0.005
    discrepancy: float = float("nan")
    statistic: float = float("nan")
    freedom: int = 0
    p_value: float = float("nan")
    steps: int = 0
    converged: bool = True
    gradient: float = 0.0
    gain: float = 0.0

    def _factor_model(self) -> FactorModel:
        k = self.n_components
        plain = np.array_equal(self.correlations, np.eye(k))
        return FactorModel(self.loadings, self.uniquenesses, None if plain else self.correlations)

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """The rotation and the correlations, (k, k), of components that change places or signs."""
        between = self.correlations[np.ix_(order, order)] * np.multiply.outer(sign, sign)
        return {"rotation": self.rotation[:, order] * sign, "correlations": between}

    @property
    def structure(self) -> Array:
        """(p, k) correlations of features with factors: loadings @ correlations."""
        return self.loadings @ self.correlations

    @property
    def communalities(self) -> Array:
        """(p,) shares of the variance that the factors explain."""
        return np.asarray(np.sum(self.loadings * self.structure, axis=1))

    @property
    def n_parameters(self) -> int:
        """Loadings but for a rotation, uniquenesses, means and standard deviations."""
        p, k = self.n_features_used, self.n_components
        return p * k - k * (k - 1) // 2 + 2 * p

    def rotate(self, *_: Any, **__: Any) -> Any:
        """Raises InvalidInputError: factors are rotated by their fit."""
        raise InvalidInputError(
            "factors are rotated by the fit: FactorAnalysis(rotation='varimax'), 'quartimax' or "
            "'promax'"
        )


def factor_result(
    fit: FactorFit, request: FactorRequest, described: Mapping[str, Any]
) -> FactorDecomposition:
    """The frozen result: rotated, ordered and tested. Warns the user.

    described : the fields of every result: method, n_samples (0: not known), labels and so on.
    """
    p, live, solution = len(fit.mean), fit.live, fit.solution
    k, n_samples = request.n_components, described["n_samples"]
    plain, uniquenesses = np.zeros((p, k)), np.zeros(p)
    plain[live, : solution.loadings.shape[1]] = solution.loadings
    uniquenesses[live] = solution.uniquenesses
    full, rotation, correlations = _rotated(plain, request)
    lengths = np.linalg.norm(full, axis=0)
    unit = np.divide(full, lengths, out=np.zeros_like(full), where=lengths > 0)
    at_bound = solution.uniquenesses <= request.min_uniqueness * (1.0 + 1e-9)
    discrepancy = solution.discrepancy - fit.log_determinant - len(live)
    freedom = degrees_of_freedom(len(live), k)
    jacobian = float(np.sum(np.log(fit.deviation[live])))
    likelihood = fit.weight * (fit.log_likelihood - jacobian) if n_samples else float("nan")
    statistic, p_value = _test(discrepancy, fit.weight if n_samples else 0.0, len(live), k)
    result = FactorDecomposition(
        **described,
        explained_variance=lengths**2,
        total_variance=float(len(live)),
        mean=fit.mean,
        ddof=request.ddof,
        rank=k,
        components=np.ascontiguousarray(unit.T),
        scale=fit.deviation,
        dropped=fit.dropped,
        constant=np.setdiff1d(np.arange(p), np.union1d(live, fit.dropped)),
        missing=fit.missing,
        weight=fit.weight if n_samples else float("nan"),
        feature_variance=fit.deviation**2,
        log_likelihood=likelihood,
        uniquenesses=uniquenesses,
        rotation=rotation,
        correlations=correlations,
        heywood=live[at_bound],
        trace=fit.trace,
        lower=request.min_uniqueness,
        discrepancy=discrepancy,
        statistic=statistic,
        freedom=freedom,
        p_value=p_value,
        steps=solution.steps,
        converged=solution.converged,
        gradient=solution.gradient,
        gain=fit.gain,
    )
    _warn(result, request)
    return result


def _rotated(loadings: Array, request: FactorRequest) -> tuple[Array, Array, Array]:
    """(loadings, rotation, correlations of the factors), ordered by squared lengths, with the
    sign rule of all components."""
    turn = np.eye(loadings.shape[1])
    used = np.flatnonzero(np.any(loadings != 0.0, axis=0))
    if request.rotation is not None and len(used):
        with single_threaded_blas():
            found = rotate_loadings(
                loadings[:, used],
                request.rotation,
                normalize=request.normalize,
                power=request.power,
                growth=request.rotation_tol,
            )
        turn[np.ix_(used, used)] = found.matrix
        if not found.converged:
            warn_caller(
                f"the rotation has not converged after {found.sweeps} sweeps: the criterion is "
                "flat. Take another number of factors",
                AccuracyWarning,
            )
    made = loadings @ turn
    order = np.argsort(-np.sum(made**2, axis=0), kind="stable")
    turn = turn[:, order] * signs_of_components(made[:, order])
    inverse = np.linalg.inv(turn)
    oblique = request.rotation == "promax"
    return loadings @ turn, turn, inverse @ inverse.T if oblique else np.eye(len(turn))


def _test(discrepancy: float, weight: float, p: int, k: int) -> tuple[float, float]:
    """(statistic, p-value) of the hypothesis that k factors are enough; NaN where there is none.

    Source: Bartlett 1951, Biometrika 38, 337-344; Lawley and Maxwell 1971, section 4.3.
    """
    freedom = degrees_of_freedom(p, k)
    factor = weight - 1.0 - (2 * p + 5) / 6.0 - 2.0 * k / 3.0
    if freedom <= 0 or factor <= 0 or not np.isfinite(discrepancy):
        return float("nan"), float("nan")
    statistic = factor * max(discrepancy, 0.0)
    return statistic, float(scipy.special.chdtrc(freedom, statistic))


def _warn(result: FactorDecomposition, request: FactorRequest) -> None:
    names, at_bound = result.labels.features, result.heywood
    if len(at_bound):
        shown = shorten(names.names(at_bound[:4].tolist()), len(at_bound))
        warn_caller(
            f"a Heywood case: the uniqueness of {shown} lies at its lower bound, "
            f"min_uniqueness={result.lower:g}, and the likelihood would grow below it. Fewer "
            "factors, or more samples, may give a proper solution",
            HeywoodWarning,
        )
    p, k = result.n_features_used, result.n_components
    if result.freedom < 0 or p < k:
        warn_caller(
            f"{k} factors are too many for {p} features that vary: the likelihood does not "
            "determine their loadings. Fit a smaller n_components",
            AccuracyWarning,
        )
    if not result.converged and request.missing != "em":  # EM gives its own warning
        left = f"{result.gain:.1e} (tol={request.tol:g})" if result.gain else "little"
        warn_caller(
            f"the factors have not converged: the likelihood equations are solved to "
            f"{result.gradient:.1e} after {result.steps} steps, and the log-likelihood may gain "
            f"{left}; max_passes={request.max_passes}, max_iter={request.max_iter} or rounding "
            "ended the iteration",
            convergence_warning(),
        )
