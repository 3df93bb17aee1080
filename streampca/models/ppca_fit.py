"""Probabilistic PCA of a matrix with holes: EM from the closed form of the mean-filled one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import LatentEquations
from streampca.errors import AccuracyWarning
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.decomposition import Decomposition
from streampca.models.latent_em import iterate
from streampca.models.ppca_result import (
    ProbabilisticDecomposition,
    noise_of,
    smallest_variance,
)
from streampca.passes import Execution, Plan, run
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
    scale, most = start.divisors, plan.passes[0].times
    before = execution.n_passes - most
    operands: dict[str, Any] = {} if scale is None else {"scale": scale}
    empty = LatentEquations(scale=None if scale is None else "scale", width=start.n_components)

    def step(number: int, state: LatentState) -> LatentEquations:
        execution.pass_number = before + number
        sums: LatentEquations = run(
            replace(plan.passes[0], name=f"em {number}"),
            matrix,
            accumulators={"sums": empty},
            operands=operands | vars(state),
            weights=weights,
            execution=execution,
        )["sums"]
        return sums

    lower = smallest_variance(start)
    found = iterate(
        step, first_state(start), scale=scale, shared=True, lower=lower, tol=tol, max_passes=most
    )
    execution.finished()
    if not found.converged:
        warnings.warn(
            f"EM has not converged in max_passes={most}: the log-likelihood may still gain about "
            f"{found.gain:.2g} (tol={tol:g})",
            AccuracyWarning,
            stacklevel=3,
        )
    jacobian = 0.0 if scale is None else -float(found.seen @ _log(scale))
    return ProbabilisticDecomposition.of_state(
        start, found.state, found.trace + jacobian, found.converged, found.gain
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


def _log(scale: Array) -> Array:
    """Logarithms of the divisors, 0 for columns that are left out."""
    return np.log(scale, out=np.zeros_like(scale), where=scale > 0)
