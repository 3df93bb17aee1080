"""The ways to a kernel PCA, and which of them is taken."""

from __future__ import annotations

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.kernel_functions import KernelFound, KernelRequest
from streampca.models.kernel_krylov import matrix_free, matrix_free_candidates
from streampca.models.kernel_matrix import exact, exact_candidates
from streampca.models.kernel_scratch import scratch, scratch_candidates, stored, stored_candidates
from streampca.models.pca.routes import ordered
from streampca.passes import (
    Execution,
    Plan,
    Rates,
    Route,
    SolverInput,
    follow,
    make_plan,
)

ROUTES = {
    "features": Route(exact_candidates, exact),
    "rows": Route(exact_candidates, exact),
    "matrix-free": Route(matrix_free_candidates, matrix_free),
    "stored": Route(stored_candidates, stored),
    "scratch": Route(scratch_candidates, scratch),
}
SOLVERS = ("auto", "exact", "matrix-free", "scratch")
EXACT = ("features", "rows")
TAKEN = {"exact": EXACT, "matrix-free": ("matrix-free", "stored"), "scratch": ("scratch", "stored")}


def plan_kernel(
    matrix: ChunkedMatrix, request: KernelRequest, solver: str, memory_limit: int | str | None
) -> Plan:
    """The plan of a kernel PCA: exact where that fits the memory and does not take far longer.

    Raises MemoryLimitError if none fits, InvalidInputError for a solver that cannot answer.
    """
    rates, taken = Rates.of(None), TAKEN.get(solver, tuple(ROUTES))
    exact = exact_candidates(matrix, request) if taken[0] in EXACT else []
    makers = dict.fromkeys(ROUTES[name].candidates for name in taken if name not in EXACT)
    steps = [one for make in makers for one in make(matrix, request)]
    if not exact and not steps:
        raise InvalidInputError(
            f"solver={solver!r} finds fewer than n - 1 = {matrix.shape[0] - 1} components, and "
            f"n_components={request.count!r}; expected a smaller number, or solver='exact'"
        )
    candidates = ordered(rates.timed(matrix, exact), rates.timed(matrix, steps))
    return make_plan(matrix, "KernelPCA", candidates, memory_limit)


def fit_kernel(
    plan: Plan, matrix: ChunkedMatrix, request: KernelRequest, execution: Execution
) -> KernelFound:
    """Run the plan; where the answer is uncertain, go over to another plan."""
    execution.n_passes = execution.first_pass + plan.n_passes
    found = follow(ROUTES[plan.solver], SolverInput(plan, matrix, request), execution)
    execution.finished()
    if not found.doubt or plan.then is None:
        return found
    execution.first_pass, execution.plan = len(execution.costs), plan.then
    return fit_kernel(plan.then, matrix, request, execution)
