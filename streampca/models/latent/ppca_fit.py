"""Probabilistic PCA of a matrix with holes: EM from the closed form of the mean-filled one."""

from __future__ import annotations

import numpy as np

from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.decomposition import Decomposition
from streampca.models.latent.em import run_em
from streampca.models.latent.ppca_result import (
    ProbabilisticDecomposition,
    noise_of,
    smallest_variance,
)
from streampca.passes import Execution, Plan
from streampca.solvers import LatentState


def fit_by_em(
    plan: Plan,
    matrix: ChunkedMatrix,
    start: Decomposition,
    tol: float,
    execution: Execution,
    weights: Array | None,
) -> ProbabilisticDecomposition:
    """Steps of EM, one read each, from a PCA of the mean-filled matrix.

    plan : of the steps alone; ``execution.n_passes`` counts those before it too.
    Warns (AccuracyWarning) where the likelihood may still gain more than ``tol``.
    """
    found = run_em(
        plan,
        matrix,
        first_state(start),
        scale=start.divisors,
        shared=True,
        lower=smallest_variance(start),
        tol=tol,
        execution=execution,
        weights=weights,
    )
    return ProbabilisticDecomposition.of_state(
        start, found.state, found.trace, found.converged, found.gain
    )


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


def has_holes(result: Decomposition) -> bool:
    """Whether features that are used have missing cells."""
    missing = np.array(result.missing)
    missing[result.dropped] = 0
    return bool(missing.any())
