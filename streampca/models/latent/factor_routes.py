"""The ways to a factor analysis: a row each, how one of them is planned, and how a plan is run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators import MeanImputedScatter, Scatter
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix, Resolution, constant_columns
from streampca.models.latent.em import EmRequest, run_em
from streampca.models.latent.factor_fit import (
    FactorFit,
    FactorRequest,
    factors_of_em,
    first_factors,
    fit_covariance,
)
from streampca.models.latent.factor_streamed import fit_streamed, streamed_candidates
from streampca.models.pca.scatter import stats_of_sums
from streampca.models.request import degrees_of_freedom
from streampca.passes import (
    Candidate,
    Execution,
    Pass,
    Plan,
    Rates,
    Route,
    SolverInput,
    Steps,
    follow,
    make_plan,
    pass_spec,
)

PATIENCE = 10.0  # seconds: "streamed" must save more than this, because it cannot test k


def plan_factors(matrix: ChunkedMatrix, request: FactorRequest) -> Plan:
    """The plan of a requested factor analysis.

    Raises InvalidInputError for an unsuitable solver, MemoryLimitError if no plan fits.
    """
    solver, known = request.solver, ("auto", *ROUTES)
    if solver not in known:
        raise InvalidInputError(f"solver={solver!r}; expected one of {known}")
    rates = Rates.of(None)
    if request.start is not None or not request.n_components:
        if solver == "streamed":
            raise InvalidInputError(
                "noise_variance_init, and n_components=0, need solver='scatter' (or 'auto'): "
                "'streamed' begins at what its look finds"
            )
        solver = "scatter"
    wanted = ROUTES if solver == "auto" else (solver,)
    candidates = [one for name in wanted for one in ROUTES[name].candidates(matrix, request)]
    candidates = [replace(one, seconds=rates.seconds(matrix, one)) for one in candidates]
    candidates.sort(key=lambda one: one.seconds + PATIENCE * (one.solver == "streamed"))
    return make_plan(matrix, "FactorAnalysis", candidates, request.memory_limit)


def fit_factors(
    plan: Plan, matrix: ChunkedMatrix, request: FactorRequest, execution: Execution
) -> FactorFit:
    """Run the plan's passes and solve. Holes, if allowed, are filled with means."""
    inputs = SolverInput(plan, matrix, request)
    return follow(ROUTES[plan.solver], inputs, execution, weights=request.weights)


def scatter_candidates(matrix: ChunkedMatrix, request: FactorRequest) -> list[Candidate]:
    """One pass that sums the scatter matrix."""
    n, p = matrix.shape
    imputed = request.missing == "mean"
    sums = MeanImputedScatter() if imputed else Scatter()
    flops = (4.0 if imputed else 1.0) * n * p * p
    spec = pass_spec("scatter", matrix, 0, {"scatter": sums}, flops=flops)
    solve = {  # two points of the search with their vectors, two Hessians, work
        "scatter": spec.total_nbytes,
        "points and Hessians of the search": 9 * p * p * 8,
    }
    flops = 8.0 * (9.0 + 2.0 * request.n_components + 4.0) * p**3
    reason = "one pass; p x p correlations, then Newton steps to the largest likelihood"
    return [Candidate("scatter", reason, (spec,), solve, flops)]


def solve_scatter(inputs: SolverInput[FactorRequest]) -> Steps[FactorFit]:
    """The factors of the correlations in the accumulated sums."""
    request = inputs.request
    sums = (yield Pass("scatter"))["scatter"]
    stats = stats_of_sums(sums)
    dropped = np.flatnonzero(sums.missing >= sums.count)
    still = constant_columns(stats, Resolution.of(inputs.matrix.dtype).eps)
    live = np.setdiff1d(np.flatnonzero(~still), dropped)
    divisor = degrees_of_freedom(sums.weight, request.ddof)
    lower = sums.lower()
    lower /= divisor
    found = fit_covariance(lower, np.array(sums.mean), sums.weight, request, live, dropped)
    found.missing = np.asarray(sums.missing)
    return found


ROUTES: dict[str, Route[FactorRequest, FactorFit]] = {
    "scatter": Route(scatter_candidates, solve_scatter),
    "streamed": Route(streamed_candidates, fit_streamed),
}


def fit_around_holes(
    plan: Plan,
    matrix: ChunkedMatrix,
    start: FactorFit,
    request: FactorRequest,
    execution: Execution,
) -> FactorFit:
    """EM that starts with the factors of the mean-filled matrix, one read for each step.

    plan : of the steps alone.  Warns (AccuracyWarning) where it has not converged.
    """
    asked = EmRequest(
        scale=start.deviation,
        shared=False,
        lower=request.min_uniqueness,
        tol=request.tol,
        weights=request.weights,
    )
    state = first_factors(start, asked.lower)
    return factors_of_em(start, run_em(plan, matrix, state, asked, execution))
