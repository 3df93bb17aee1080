"""Probabilistic PCA of a matrix with holes: EM from the closed form of the mean-filled one."""

from __future__ import annotations

import warnings

import numpy as np

from streampca.errors import AccuracyWarning
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.decomposition import Decomposition
from streampca.models.latent.em import EmRequest, run_em
from streampca.models.latent.ppca_result import (
    ProbabilisticDecomposition,
    leading,
    noise_of,
    smallest_variance,
)
from streampca.passes import Execution, Plan
from streampca.solvers import LatentState

LARGEST = 32  # components, where their number is not known
LEAST_NOISE = 1e-10  # of the mean variance of a feature: less, and EM loses its digits
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
        warnings.warn(
            f"{k} components fit the observed cells to {made.noise / mean:.1g} of their variance, "
            "where the likelihood has no maximum: it measures how little noise there may be, not "
            f"the fit. Take fewer components: n_components={max(k - 1, 1)} or 'bic'",
            AccuracyWarning,
            stacklevel=3,
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
        execution.first_pass += plan.n_passes  # the next one's are others
        if found.bic >= best:
            return k - 1
        best = found.bic
    return max(most, 1)


def first_state(result: Decomposition) -> LatentState:
    """Where EM begins: the closed form of the mean-filled matrix.

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
