"""The ways to a completion: streamed axis, place of the factors of its lines, passes, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from streampca.matrix.block import score_dtype
from streampca.models.completion.request import REASONS, CompletionRequest
from streampca.passes import Candidate, PassSpec, larger, pass_spec

OVERSAMPLED = 40  # random vectors beyond the rank, in a first look at ratings
MORE = 5  # directions beyond the rank that a first look at dense data keeps
ENTRY = 6.0  # bytes for each stored one: values in float64, and their other order
HOLES = 3.0  # bytes for each cell of a dense block: masks of missing cells
STORE_NBYTES = 32 << 20  # taken by writing and reading a store of factors; 27 MiB measured
EVEN, CROWDED = 1.5, 6.0  # times the mean share of held-out cells, in a block
LIKELY = 8  # sweeps, for predictions of time


@dataclass(frozen=True)
class CompletionPasses:
    """The passes of a completion.

    turn : of the effects of rows and columns, where both are centred; else None.
    scratch : whether the factors of the lines lie in a scratch store.
    """

    look: PassSpec
    turn: PassSpec | None
    sweep: PassSpec
    scratch: bool

    @property
    def specs(self) -> tuple[PassSpec, ...]:
        """All of them, in the order of a fit."""
        return tuple(one for one in (self.look, self.turn, self.sweep) if one is not None)


def completion_candidates(
    matrix: ChunkedMatrix, request: CompletionRequest, solve: Callable[..., Any]
) -> list[Candidate[Any]]:
    """Along either axis with the factors of the lines in memory, then in a scratch store.

    solve : takes what is planned, and ``passes``, the :class:`CompletionPasses` of its candidate.
    """
    n, p = matrix.shape
    axes: tuple[int, ...] = (0, 1) if n >= p or matrix.sparse else (1, 0)
    if request.means or request.biases:
        axes = (0,)
    places = [*((axis, False) for axis in axes), (0, True)]
    return [_candidate(matrix, request, solve, axis, scratch) for axis, scratch in places]


def _candidate(
    matrix: ChunkedMatrix,
    request: CompletionRequest,
    solve: Callable[..., Any],
    axis: int,
    scratch: bool,
) -> Candidate[Any]:
    lines, m = matrix.shape[axis], matrix.shape[1 - axis]
    itemsize = np.dtype(score_dtype(matrix.dtype)).itemsize
    factors = (0 if scratch else 1 + request.filled) * lines * request.total * itemsize
    kept = factors + _kept_nbytes(matrix, request, m) + (STORE_NBYTES if scratch else 0)
    cells = _observed_cells(matrix, axis)
    flops, work = _work_of_a_sweep(request, m, cells)
    passes = _passes(matrix, request, axis, scratch, cells, kept, flops)
    done = {"result": factors + 4 * max(request.ranks) * (lines * (not scratch) + m) * 8}
    return Candidate(
        request.solver,
        _reason(request, axis, scratch),
        passes.specs,
        {"kept arrays": kept} | larger(work, done),
        sizes={"scratch": int(scratch), "factors": request.total},
        solve=partial(solve, passes=passes),
    ).weighted(request.weights)


def _observed_cells(matrix: ChunkedMatrix, axis: int) -> float:
    """Cells of a dense matrix, stored entries of a sparse one."""
    lines, m = matrix.shape[axis], matrix.shape[1 - axis]
    if not matrix.absent:
        return float(lines) * m
    nbytes = int(matrix.spans_nbytes(axis, np.array([0, lines])).sum())
    return nbytes / (matrix.dtype.itemsize + 4)


def _kept_nbytes(matrix: ChunkedMatrix, request: CompletionRequest, m: int) -> int:
    """Bytes of arrays that live during all passes, without the factors of the lines."""
    n, p = matrix.shape
    effects = 14 * 8 * (n + p) * request.both  # before and after a turn
    weights = 4 * 8 * n * (request.weights is not None)
    return effects + weights + 6 * m * request.total * 8 + 16 * p * 8


def _work_of_a_sweep(
    request: CompletionRequest, m: int, cells: float
) -> tuple[float, dict[str, int]]:
    """(flops of a sweep, bytes of the solution after it)."""
    total, tall = request.total, sum(map(packed_length, request.widths))
    if request.solver == "exact":
        flops = len(request.ranks) * cells * m + 6 * cells * total
        return flops, {"projections and an eigenproblem": (len(request.ranks) + 2) * m * m * 8}
    if request.filled:
        return 10 * cells * total, {"factors of the columns": 6 * m * total * 8}
    largest = max(map(packed_length, request.widths)) + max(request.widths)
    return 4 * cells * (tall + total), {"normal equations": m * (tall + total + 3 * largest) * 8}


def _passes(
    matrix: ChunkedMatrix,
    request: CompletionRequest,
    axis: int,
    scratch: bool,
    cells: float,
    kept: int,
    flops: float,
) -> CompletionPasses:
    """kept : bytes that live during them.  flops : of a sweep."""
    stored, m = matrix.absent, matrix.shape[1 - axis]
    held = ENTRY * matrix.row_nbytes(axis) if stored else HOLES * float(m)

    def declared(name: str, sums: dict[str, Accumulator], flops: float, **more: Any) -> PassSpec:
        shared: dict[str, Any] = {"kept_nbytes": kept, "work": "skinny", "thin": True}
        spec = pass_spec(
            name, matrix, axis, sums, flops=flops, **shared, **{"stored": stored, **more}
        )
        scratch_nbytes = spec.scratch
        return replace(spec, scratch=lambda length: scratch_nbytes(length) + int(held * length))

    turning: dict[str, Accumulator] = {}
    if request.both:
        turning["effects"] = TwoWayStep(streamed=axis, scaled=request.both_scaled)
    start = _start_of(matrix, request, axis)
    looking: dict[str, Accumulator] = {"columns": Moments(), "start": start, **turning}
    if request.biases:
        looking["rows"] = RowSpread()
    sweeping: dict[str, Accumulator] = {"step": _step_of(request, axis, stored)}
    if request.validation is not None:
        sweeping["judge"] = HeldOutError(
            streamed=axis,
            ranks=request.widths,
            factors="new" if request.filled else "v",
            share=_held_share(request, matrix, cells),
        )
    look_flops = 6.0 * cells * max(request.ranks)
    look = declared("look", looking, look_flops, times=1 + request.gives_back)
    times = max(1, request.max_passes - max(1, request.turns) - request.gives_back)
    often: dict[str, Any] = {"times": times, "likely": min(times, LIKELY)}
    sweep = declared("sweep", sweeping, flops, stored=stored and not request.filled, **often)
    turn = None
    if request.both:
        often = {"times": request.turns - 1, "likely": min(request.turns - 1, LIKELY)}
        turn = declared("turn", turning, 16.0 * cells, **often)
    return CompletionPasses(look, turn, sweep, scratch)


def _start_of(matrix: ChunkedMatrix, request: CompletionRequest, axis: int) -> Accumulator:
    """The accumulator of the first look that finds directions to begin with."""
    m, width = matrix.shape[1 - axis], max(request.ranks)
    if matrix.absent:
        width = min(m, width + OVERSAMPLED)
        return ObservedPower(streamed=axis, width=width, center=request.standardize.center)
    width = min(m, max(width + MORE, 2 * MORE))
    return LeadingDirections(
        streamed=axis, standardize=request.standardize, width=width, missing="mean"
    )


def _step_of(request: CompletionRequest, axis: int, absent: bool) -> AlternatingStep | FilledStep:
    """The accumulator of one sweep."""
    if request.filled:
        return FilledStep(streamed=axis, ranks=request.ranks, whole=request.solver == "exact")
    return AlternatingStep(
        streamed=axis, ranks=request.ranks, means=request.means, absent=absent, **request.penalties
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


def _reason(request: CompletionRequest, axis: int, scratch: bool) -> str:
    """The way in words."""
    about = "; rows and columns centred by turns" if request.both else ""
    about = "; biases of rows and columns in every sweep" if request.biases else about
    where = "in a scratch store" if scratch else "in memory"
    streamed = ("samples", "features")[axis]
    return (
        f"{REASONS[request.solver]}; {streamed} streamed, their factors {where}{about}; "
        f"stops when the estimate and the objective change by less than tol={request.tol:g}"
    )
