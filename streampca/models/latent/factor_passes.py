"""The passes of a factor analysis, and what is read off them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, constant_columns
from streampca.models.fitted import Resolution
from streampca.models.latent.em import run_em
from streampca.models.latent.factor_fit import (
    FactorFit,
    factors_of_em,
    first_factors,
    fit_covariance,
)
from streampca.models.latent.factor_request import FactorRequest
from streampca.models.latent.factor_streamed import fit_streamed
from streampca.models.pca.solve import stats_of_sums
from streampca.models.request import degrees_of_freedom
from streampca.passes import Execution, PassResult, Plan, run


def fit_factors(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: FactorRequest,
    execution: Execution,
    weights: Array | None,
) -> FactorFit:
    """Run the plan's passes and solve; holes, where they are allowed, hold means.

    weights : (n,) of the samples, or None.
    """

    def step(name: str, number: int = 1, **more: Any) -> PassResult:
        one = plan.named(name)
        execution.pass_number = number + plan.passes.index(one)
        named = one if one.times == 1 else replace(one, name=f"{name} {number}")
        return run(named, matrix, weights=weights, execution=execution, **more)

    if plan.solver == "streamed":
        total = float(matrix.shape[0]) if weights is None else float(weights.sum())
        return fit_streamed(plan, matrix, request, step, total)
    sums = step("scatter")["scatter"]
    stats = stats_of_sums(sums)
    dropped = np.flatnonzero(sums.missing >= sums.count)
    still = constant_columns(stats, Resolution.of(matrix.dtype).eps)
    live = np.setdiff1d(np.flatnonzero(~still), dropped)
    divisor = degrees_of_freedom(sums.weight, request.ddof)
    lower = sums.lower()
    lower /= divisor
    found = fit_covariance(lower, np.array(sums.mean), sums.weight, request, live, dropped)
    found.missing = np.asarray(sums.missing)
    return found


def fit_around_holes(
    plan: Plan,
    matrix: ChunkedMatrix,
    start: FactorFit,
    request: FactorRequest,
    execution: Execution,
    weights: Array | None,
) -> FactorFit:
    """EM from the factors of the mean-filled matrix, one read a step.

    plan : of the steps alone.  Warns (AccuracyWarning) where it has not converged.
    """
    lower = request.min_uniqueness
    found = run_em(
        plan,
        matrix,
        first_factors(start, lower),
        scale=start.deviation,
        shared=False,
        lower=lower,
        tol=request.tol,
        execution=execution,
        weights=weights,
    )
    return factors_of_em(start, found)
