"""The plan of rows that are taken into a state."""

from __future__ import annotations

from streampca.accumulators import Accumulator
from streampca.matrix import ChunkedMatrix
from streampca.models.pca.incremental_state import StateRequest
from streampca.models.pca.solve_cost import scatter_cost
from streampca.passes import Candidate, Plan, larger, make_plan, pass_spec
from streampca.solvers import known_count


def plan_append(
    matrix: ChunkedMatrix, request: StateRequest, accumulator: Accumulator, held: bool
) -> Plan:
    """The plan of taking rows into a state (``IncrementalPCA``), and of solving it.

    held : whether there is a state of earlier rows, which lives beside the new one.
    """
    n, p = matrix.shape
    state = accumulator.projected_nbytes(matrix.shape, 8)
    spec = pass_spec(
        "append",
        matrix,
        0,
        {"state": accumulator},
        flops=float(n) * p * p,
        kept_nbytes=state if held else 0,
        longest=request.batch_size,
    )
    if request.state == "scatter":
        solve, flops = scatter_cost(p, request, known_count(request.n_components, p, p) or p)
    else:
        rows = p if request.state == "tsqr" else min(p, request.max_rows)
        solve, flops = {"SVD of the factor": 5 * rows * p * 8}, 22.0 * rows * rows * p
    merge = {"new state": state, "merging": accumulator.scratch_nbytes(matrix.shape, 0)}
    reason = "rows are appended to the state"
    need = {"state": spec.total_nbytes} | (larger(solve, merge) if held else solve)
    candidate = Candidate(request.state, reason, (spec,), need, flops)
    return make_plan(matrix, "IncrementalPCA", [candidate], request.memory_limit)
