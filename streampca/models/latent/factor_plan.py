"""The ways to compute a factor analysis, with their passes and costs."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators import MeanImputedScatter, Scatter, SubspaceStep
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.latent.factor_request import FactorRequest
from streampca.models.latent.factor_streamed import BLOCKS, looking
from streampca.models.pca.krylov_plan import PIECES_NBYTES, stored_entries
from streampca.passes import Candidate, Plan, Rates, make_plan, pass_spec

SOLVERS = ("auto", "scatter", "streamed")
OVER = 12  # vectors of the first product beside the factors
LIKELY = 4  # products that are usually enough
PATIENCE = 10.0  # seconds: a faster streamed solver must save more, for it cannot test k


def plan_factors(matrix: ChunkedMatrix, request: FactorRequest) -> Plan:
    """The plan of a factor analysis with these settings (the estimator's parameters).

    Raises InvalidInputError for a solver that does not suit, MemoryLimitError where none fits.
    """
    solver = request.solver
    if solver not in SOLVERS:
        raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
    families = {"scatter": _scatter, "streamed": _streamed}
    wanted = ("scatter", "streamed") if solver == "auto" else (solver,)
    rates = Rates.of(None)
    candidates = [families[name](matrix, request) for name in wanted]
    candidates = [replace(one, seconds=rates.seconds(matrix, one)) for one in candidates]
    candidates.sort(key=lambda one: one.seconds + PATIENCE * (one.solver == "streamed"))
    return make_plan(matrix, "FactorAnalysis", candidates, request.memory_limit)


def scatter_of(request: FactorRequest) -> Scatter | MeanImputedScatter:
    """The empty accumulator of these settings."""
    return MeanImputedScatter() if request.missing == "mean" else Scatter()


def _scatter(matrix: ChunkedMatrix, request: FactorRequest) -> Candidate:
    n, p = matrix.shape
    times = 4.0 if request.missing == "mean" else 1.0
    spec = pass_spec(
        "scatter", matrix, 0, {"scatter": scatter_of(request)}, flops=times * n * p * p
    )
    solve = {  # two points of the search with their vectors, two Hessians, work
        "scatter": spec.total_nbytes,
        "points and Hessians of the search": 9 * p * p * 8,
    }
    flops = 8.0 * (9.0 + 2.0 * request.n_components + 4.0) * p**3
    reason = "one pass; p x p correlations, then Newton steps to the largest likelihood"
    return Candidate("scatter", reason, (spec,), solve, flops)


def _streamed(matrix: ChunkedMatrix, request: FactorRequest) -> Candidate:
    p = matrix.shape[1]
    k = int(request.n_components)
    width = min(p, k + OVER)
    most = int(request.max_passes) - 1
    sums = looking(matrix, request, width)
    step = SubspaceStep(streamed=0, width=width)
    held = width + (BLOCKS + 1) * k
    cells = float(stored_entries(matrix, 0))
    flops = 4.0 * cells * width
    first = pass_spec(
        "look", matrix, 0, sums, flops=flops, stored=matrix.sparse, work="skinny", thin=True
    )
    again = pass_spec(
        "step", matrix, 0, {"step": step}, flops=flops, stored=matrix.sparse, work="skinny",
        thin=True, kept_nbytes=(2 * held + 3 * k + 8) * p * 8,
    )  # fmt: skip
    if matrix.sparse:  # sums of their entries are float64 from the beginning
        first, again = (replace(one, partial_nbytes=one.total_nbytes) for one in (first, again))
    again = replace(again, times=most, likely=min(most, LIKELY))
    solve = {
        "searched space": 6 * held * p * 8,
        "points of the search": (24 * k + 26) * p * 8,
        "pieces of the space": PIECES_NBYTES,
    }
    if p <= held:  # where all of it comes to be known
        solve["points and Hessians of the search"] = 9 * p * p * 8
    reason = (
        f"1 look, and at most {most} reads with the products of {k} vectors each; stops when the "
        f"log-likelihood has at most tol={request.tol:g} to gain; no test that k is enough"
    )
    work = 12.0 * p * held * k * 100 * LIKELY
    sizes = {"width": width}
    return Candidate("streamed", reason, (first, again), solve, work, sizes)
