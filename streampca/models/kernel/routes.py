"""The ways to a kernel PCA, and which of them is taken."""

from __future__ import annotations

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.decompose.routes import ordered
from streampca.models.kernel.functions import KernelFound, KernelRequest
from streampca.models.kernel.krylov import matrix_free_candidates
from streampca.models.kernel.matrix import exact_candidates
from streampca.models.kernel.scratch import scratch_candidates, stored_candidates
from streampca.passes import Candidate, Rates

SOLVERS = ("auto", "exact", "matrix-free", "scratch")
EXACT = ("auto", "exact")
ITERATIONS = {  # of candidates, the values of ``solver`` that take them
    matrix_free_candidates: ("auto", "matrix-free"),
    stored_candidates: ("auto", "matrix-free", "scratch"),
    scratch_candidates: ("auto", "scratch"),
}


def kernel_candidates(
    matrix: ChunkedMatrix, request: KernelRequest, solver: str
) -> list[Candidate[KernelFound]]:
    """The ways to a kernel PCA: exact ones come first where they do not take far longer.

    Raises InvalidInputError for a solver that cannot answer.
    """
    exact = exact_candidates(matrix, request) if solver in EXACT else []
    makers = [make for make, solvers in ITERATIONS.items() if solver in solvers]
    iterative = [one for make in makers for one in make(matrix, request)]
    if not exact and not iterative:
        raise InvalidInputError(
            f"solver={solver!r} finds fewer than n - 1 = {matrix.shape[0] - 1} components, and "
            f"n_components={request.count!r}; expected a smaller number, or solver='exact'"
        )
    rates = Rates.of(None)
    return ordered(rates.timed(matrix, exact), rates.timed(matrix, iterative))
