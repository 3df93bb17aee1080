"""The state of an ``IncrementalPCA``: which accumulator holds it, its parameters and its plan."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Self

from streampca.accumulators import (
    Accumulator,
    MeanImputedScatter,
    RFactor,
    Scatter,
    TruncatedFactor,
)
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.request import Request, whole_number
from streampca.models.decompose.eigenproblem import scatter_cost
from streampca.models.decompose.routes import ALIASES
from streampca.passes import (
    Candidate,
    PassResult,
    Plan,
    Planned,
    choose,
    larger,
    parse_nbytes,
    pass_spec,
    setting,
    size,
)
from streampca.passes.memory import as_limit
from streampca.solvers import check_n_components, known_count

STATES = ("scatter", "tsqr", "truncated")
SOLVER_STATES = {"scatter": "scatter", "tsqr": "tsqr", "randomized": "truncated"}
DEFAULT_STATE_NBYTES = 2 << 30  # without a memory_limit, a state beyond this is refused


def state_kind(state: str | None, solver: str) -> str:
    """The state that ``state`` or ``solver`` names; both at once must agree."""
    solver = ALIASES.get(solver, solver)
    if state not in (None, *STATES):
        raise InvalidInputError(f"state={state!r}; expected one of {STATES}")
    if solver == "auto":
        return state or "scatter"
    if solver not in SOLVER_STATES:
        raise InvalidInputError(
            f"solver={solver!r}; expected 'auto' or one of {tuple(SOLVER_STATES)}"
        )
    if state not in (None, SOLVER_STATES[solver]):
        raise InvalidInputError(
            f"state={state!r} and solver={solver!r} say different things; leave one of them out"
        )
    return SOLVER_STATES[solver]


@dataclass(frozen=True, kw_only=True)
class StateRequest(Request):
    """A request with what an ``IncrementalPCA`` keeps: parameters as it describes them.

    state : "scatter", "tsqr" or "truncated".
    """

    state: str = "scatter"
    max_rows: int = 256
    batch_size: int | None = None

    @classmethod
    def of(cls, model: Any, **resolved: Any) -> Self:
        """The parameters of an estimator, its state by name."""
        kind = state_kind(model.state, model.solver)
        return super().of(model, state=kind, **resolved)

    def blank(self) -> Any:
        """The accumulator, before any row."""
        if self.state == "tsqr":
            return RFactor(center=self.center)
        if self.state == "truncated":
            return TruncatedFactor(rows=self.max_rows, center=self.center)
        return MeanImputedScatter() if self.missing == "mean" else Scatter(center=self.center)

    def check_state(self) -> None:
        """Refuse scaling with a truncated state."""
        if self.state == "truncated" and self.scale is not None:
            raise InvalidInputError(
                f"scale={self.scale!r} cannot be applied to state='truncated': what it cut off "
                "is not known column by column. Use state='scatter' or 'tsqr', or scale the rows "
                "before they are taken in."
            )

    def check_appending(self, shape: tuple[int, int]) -> None:
        """Refuse parameters that rows of this shape cannot satisfy, before reading.

        Raises InvalidInputError, MemoryLimitError.
        """
        self.check_state()
        missing, rows = self.missing, self.batch_size
        if missing not in ("raise", "mean"):
            raise InvalidInputError(f"missing={missing!r}; expected 'raise' or 'mean'")
        if rows is not None:
            whole_number("batch_size", rows, beside="None or ")
        if missing == "mean" and (self.state != "scatter" or not self.center):
            raise InvalidInputError("missing='mean' needs state='scatter' and center=True")
        p = shape[1]
        check_n_components(self.n_components, p, p)
        need = self.blank().projected_nbytes(shape, 8)
        limit = parse_nbytes(self.memory_limit or setting("memory-limit"))
        limit = limit or DEFAULT_STATE_NBYTES
        if need > limit:
            smallest = 5 * need  # of the state, and of what solves it
            raise MemoryLimitError(
                f"the state of {p} features needs {size(need)} (p x p), over {size(limit)}. Set "
                f"memory_limit={as_limit(smallest, up=True)!r} if the machine has it, or use "
                "IncrementalPCA(state='truncated', max_rows=...), whose state_bound_ says what it "
                "cut off; PCA reads all rows again and needs no p x p state for n < p.",
                smallest,
            )


KNOWN = 16  # plans that are kept
_known: dict[Hashable, tuple[Candidate[PassResult], Plan]] = {}


def choose_append(
    matrix: ChunkedMatrix,
    request: StateRequest,
    accumulator: Accumulator,
    held: bool,
    weights: Any = None,
) -> Planned[PassResult]:
    """The pass that adds rows to the state of an ``IncrementalPCA``, planned with its solver.

    A plan for an array in memory serves the next batch of the same kind.

    weights : of the rows.
    held : whether there is a state of earlier rows, held in memory together with the new one.
    """
    outline = matrix.outline() if weights is None else None
    if outline is None:
        return _chosen(matrix, request, accumulator, held, weights)
    limit = parse_nbytes(request.memory_limit or setting("memory-limit"))
    asked = request.state, request.max_rows, request.batch_size, request.missing, request.center
    key = outline, held, limit, asked, repr(request.n_components)
    if key in _known:
        candidate, plan = _known[key]
        source = matrix.fingerprint()[:16]
        return Planned(candidate, replace(plan, source=source), matrix)
    planned = _chosen(matrix, request, accumulator, held, weights)
    if len(_known) >= KNOWN:
        _known.clear()
    _known[key] = planned.candidate, planned.plan
    return planned


def _chosen(
    matrix: ChunkedMatrix, request: StateRequest, accumulator: Accumulator, held: bool, weights: Any
) -> Planned[PassResult]:
    """:func:`choose_append`, planned anew."""
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
    candidate: Candidate[PassResult] = Candidate(request.state, reason, (spec,), need, flops)
    candidates = [candidate.weighted(weights)]
    return choose(matrix, "IncrementalPCA", candidates, request.memory_limit)
