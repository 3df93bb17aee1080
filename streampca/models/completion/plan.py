"""The plan of a completion: which axis is streamed, and where the factors of its lines lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    AlternatingStep,
    FilledStep,
    HeldOutError,
    LeadingDirections,
    Moments,
    ObservedPower,
    RowSpread,
    TwoWayStep,
)
from streampca.kernels.least_squares import packed_length
from streampca.matrix import ChunkedMatrix
from streampca.models.completion.request import REASONS, CompletionRequest
from streampca.models.row_passes import score_dtype
from streampca.passes import Candidate, PassSpec, Plan, larger, make_plan, pass_spec

OVERSAMPLED = 40  # random vectors beyond the rank, in a first look at ratings
BESIDE = 5  # directions beyond the rank that a first look at dense data keeps
ENTRY = 6.0  # bytes beside each stored one: values in float64, and their other order
HOLES = 3.0  # bytes for each cell of a dense block: where it is missing
STORE_NBYTES = 32 << 20  # what writing and reading a store of factors takes, 27 MiB measured
EVEN, CROWDED = 1.5, 6.0  # times the mean share of held-out cells, in a block
LIKELY = 8  # sweeps, for predictions of time


def plan_completion(matrix: ChunkedMatrix, method: str, request: CompletionRequest) -> Plan:
    """The plan of this request. Raises MemoryLimitError where nothing fits the limit."""
    n, p = matrix.shape
    axes: tuple[int, ...] = (0, 1) if n >= p or matrix.sparse else (1, 0)
    if request.means or request.biases:
        axes = (0,)
    candidates = [_candidate(matrix, request, axis, scratch=False) for axis in axes]
    candidates.append(_candidate(matrix, request, 0, scratch=True))
    return make_plan(matrix, method, candidates, request.memory_limit)


def look_of(matrix: ChunkedMatrix, request: CompletionRequest, axis: int) -> Accumulator:
    """The empty accumulator that finds where to begin."""
    m, width = matrix.shape[1 - axis], max(request.ranks)
    if matrix.absent:
        width = min(m, width + OVERSAMPLED)
        return ObservedPower(streamed=axis, width=width, center=request.standardize.center)
    width = min(m, max(width + BESIDE, 2 * BESIDE))
    return LeadingDirections(
        streamed=axis, standardize=request.standardize, width=width, missing="mean"
    )


def step_of(request: CompletionRequest, axis: int) -> AlternatingStep | FilledStep:
    """The empty accumulator of one sweep."""
    if request.filled:
        return FilledStep(streamed=axis, ranks=request.ranks, whole=request.solver == "exact")
    biases = None
    if request.biases:
        biases = (request.bias_ridges[0],) * len(request.ranks)
    return AlternatingStep(
        streamed=axis,
        ranks=request.ranks,
        ridges=request.ridges,
        means=request.means,
        biases=biases,
    )


def judge_of(
    request: CompletionRequest,
    axis: int,
    bounds: tuple[float, float] | None = None,
    share: float = 0.1,
) -> HeldOutError:
    """The empty accumulator of held-out errors, of predictions within these bounds.

    share : of the cells of a block that are held out, at most.
    """
    factors, bounds = "new" if request.filled else "v", bounds or (-np.inf, np.inf)
    return HeldOutError(
        streamed=axis, ranks=request.widths, factors=factors, bounds=bounds, share=share
    )


def _held_share(request: CompletionRequest, matrix: ChunkedMatrix, cells: float) -> float:
    """The share of cells that are held out in the block that has most of them.

    cells : that are stored. Chosen by a hash they are spread evenly over these; ``CROWDED`` allows
    for rows with more stored cells than others, and for cells that the user has chosen.
    """
    n, p = matrix.shape
    every = max(float(n) * p, 1.0)
    if isinstance(request.validation, (int, float, np.number)):
        share, even = float(request.validation) * cells / every, not matrix.absent
    else:
        rows = request.validation[0] if isinstance(request.validation, tuple) else None
        count = np.count_nonzero(request.validation) if rows is None else len(rows)
        share, even = count / every, False
    return min(share * (EVEN if even else CROWDED), 1.0)


def factor_dtype(matrix: ChunkedMatrix) -> np.dtype[Any]:
    """In which the factors of the lines are kept: float32 beside float32 data."""
    result: np.dtype[Any] = np.dtype(score_dtype(matrix.dtype))
    return result


def _with_holes(spec: PassSpec, row_nbytes: float) -> PassSpec:
    """The pass with so many bytes for every streamed row of a block, for its holes or entries."""
    scratch = spec.scratch
    return replace(spec, scratch=lambda length: scratch(length) + int(row_nbytes * length))


def _candidate(
    matrix: ChunkedMatrix, request: CompletionRequest, axis: int, scratch: bool
) -> Candidate:
    (lines, m), p = (matrix.shape[axis], matrix.shape[1 - axis]), matrix.shape[1]
    total, tall = request.total, sum(map(packed_length, request.widths))
    cells = float(lines) * m
    stored = matrix.absent
    if stored:
        nbytes = int(matrix.spans_nbytes(axis, np.array([0, lines])).sum())
        cells = nbytes / (matrix.dtype.itemsize + 4)
    factors = (0 if scratch else 1 + request.filled) * lines * total * factor_dtype(matrix).itemsize
    beside_rows = 14 * 8 * (lines + m) * request.both  # effects before and after a turn, as given
    beside_rows += 4 * 8 * matrix.shape[0] * (request.weights is not None)
    kept = factors + beside_rows + 6 * m * total * 8 + 16 * p * 8 + (STORE_NBYTES if scratch else 0)
    turning: dict[str, Accumulator] = {}
    if request.both:
        turning["effects"] = TwoWayStep(streamed=axis, scaled=request.both_scaled)
    start = look_of(matrix, request, axis)
    looking: dict[str, Accumulator] = {"columns": Moments(), "start": start, **turning}
    if request.biases:
        looking["rows"] = RowSpread()
    sweeping: dict[str, Accumulator] = {"step": step_of(request, axis)}
    if request.validation is not None:
        sweeping["judge"] = judge_of(request, axis, share=_held_share(request, matrix, cells))
    look = pass_spec("look", matrix, axis, looking, flops=6.0 * cells * max(request.ranks),
                     kept_nbytes=kept, work="skinny", stored=stored, thin=True)  # fmt: skip
    if request.solver == "exact":
        flops = len(request.ranks) * cells * m + 6 * cells * total
        solve = {"projections and an eigenproblem": (len(request.ranks) + 2) * m * m * 8}
    elif request.filled:
        flops, solve = 10 * cells * total, {"factors of the columns": 6 * m * total * 8}
    else:
        flops = 4 * cells * (tall + total)
        solve = {"normal equations": 2 * m * (tall + total) * 8}
    times = max(1, request.max_passes - max(1, request.turns))
    sweep = pass_spec("sweep", matrix, axis, sweeping, flops=flops, kept_nbytes=kept,
                      work="skinny", stored=stored and not request.filled, thin=True, times=times,
                      likely=min(times, LIKELY))  # fmt: skip
    beside = ENTRY * matrix.row_nbytes(axis) if stored else HOLES * float(m)
    passes = [look, sweep]
    if request.both:
        turn = pass_spec("turn", matrix, axis, turning, flops=16.0 * cells, kept_nbytes=kept,
                         work="skinny", stored=stored, thin=True, times=request.turns - 1,
                         likely=min(request.turns - 1, LIKELY))  # fmt: skip
        passes.insert(1, turn)
    about = "; rows and columns centred by turns" if request.both else ""
    about = "; biases of rows and columns in every sweep" if request.biases else about
    where = "in a scratch store" if scratch else "in memory"
    lines_streamed = ("samples", "features")[axis]
    reason = (
        f"{REASONS[request.solver]}; {lines_streamed} streamed, their factors {where}{about}; "
        f"stops when the estimate and the objective change by less than tol={request.tol:g}"
    )
    sizes = {"scratch": int(scratch), "factors": total}
    done = {"result": factors + 4 * max(request.ranks) * (lines * (not scratch) + m) * 8}
    wanted = tuple(_with_holes(one, beside) for one in passes)
    return Candidate(request.solver, reason, wanted, {"kept arrays": kept} | larger(solve, done),
                     sizes=sizes)  # fmt: skip
