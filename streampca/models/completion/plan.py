"""The plan of a completion: streamed axis, place of the factors of its lines, penalties.

Ridges to choose from are multiples of the noise level s (sqrt(N / n) + sqrt(N / p)): about the
largest singular value of N cells of noise of deviation s in an n x p matrix of zeros, below which
no component stands out. The ridge of the biases of rows is s^2 / v for biases of variance v, as for
random effects, where the posterior mean is the solution with that ridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from streampca.accumulators.observed import RowSums
from streampca.kernels import Array, ColumnStats
from streampca.kernels.least_squares import packed_length
from streampca.matrix import ChunkedMatrix, Scaling
from streampca.models.completion.request import REASONS, CompletionRequest
from streampca.models.results.row_maps import score_dtype
from streampca.passes import Candidate, PassSpec, larger, pass_spec

OVERSAMPLED = 40  # random vectors beyond the rank, in a first look at ratings
BESIDE = 5  # directions beyond the rank that a first look at dense data keeps
ENTRY = 6.0  # bytes beside each stored one: values in float64, and their other order
HOLES = 3.0  # bytes for each cell of a dense block: where it is missing
STORE_NBYTES = 32 << 20  # taken by writing and reading a store of factors; 27 MiB measured
EVEN, CROWDED = 1.5, 6.0  # times the mean share of held-out cells, in a block
LIKELY = 8  # sweeps, for predictions of time
LEAST_NOISE = 0.05  # share of the variance of all cells that is left for noise
LARGEST = 1e4  # ridge of biases that differ by noise alone


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


def completions(
    matrix: ChunkedMatrix, request: CompletionRequest
) -> Iterator[tuple[CompletionPasses, Candidate[Any]]]:
    """Along either axis with the factors of the lines in memory, then in a scratch store; no solver
    is bound yet."""
    n, p = matrix.shape
    axes: tuple[int, ...] = (0, 1) if n >= p or matrix.sparse else (1, 0)
    if request.means or request.biases:
        axes = (0,)
    for axis in axes:
        yield _candidate(matrix, request, axis, scratch=False)
    yield _candidate(matrix, request, 0, scratch=True)


def _look_of(matrix: ChunkedMatrix, request: CompletionRequest, axis: int) -> Accumulator:
    """The accumulators of the first pass, which find the start."""
    m, width = matrix.shape[1 - axis], max(request.ranks)
    if matrix.absent:
        width = min(m, width + OVERSAMPLED)
        return ObservedPower(streamed=axis, width=width, center=request.standardize.center)
    width = min(m, max(width + BESIDE, 2 * BESIDE))
    return LeadingDirections(
        streamed=axis, standardize=request.standardize, width=width, missing="mean"
    )


def _step_of(request: CompletionRequest, axis: int, absent: bool) -> AlternatingStep | FilledStep:
    """The accumulator of one sweep."""
    if request.filled:
        return FilledStep(streamed=axis, ranks=request.ranks, whole=request.solver == "exact")
    return AlternatingStep(
        streamed=axis,
        ranks=request.ranks,
        means=request.means,
        absent=absent,
        **penalties_of(request),
    )


def penalties_of(request: CompletionRequest) -> dict[str, Any]:
    """Settings of a sweep that follow from the first pass; none if the sweeps fill the holes."""
    if request.filled:
        return {}
    biases = (request.bias_ridges[0],) * len(request.ranks) if request.biases else None
    return {"ridges": request.ridges, "biases": biases}


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
    """The dtype of the factors of the lines: float32 for float32 data."""
    result: np.dtype[Any] = np.dtype(score_dtype(matrix.dtype))
    return result


def _with_holes(spec: PassSpec, row_nbytes: float) -> PassSpec:
    """The pass with so many bytes for every streamed row of a block, for its holes or entries."""
    scratch = spec.scratch
    return replace(spec, scratch=lambda length: scratch(length) + int(row_nbytes * length))


def _candidate(
    matrix: ChunkedMatrix, request: CompletionRequest, axis: int, scratch: bool
) -> tuple[CompletionPasses, Candidate[Any]]:
    (lines, m), p = (matrix.shape[axis], matrix.shape[1 - axis]), matrix.shape[1]
    total, tall = request.total, sum(map(packed_length, request.widths))
    cells = float(lines) * m
    stored = matrix.absent
    if stored:
        nbytes = int(matrix.spans_nbytes(axis, np.array([0, lines])).sum())
        cells = nbytes / (matrix.dtype.itemsize + 4)
    factors = (0 if scratch else 1 + request.filled) * lines * total * factor_dtype(matrix).itemsize
    beside_rows = 14 * 8 * (lines + m) * request.both  # effects before and after a turn
    beside_rows += 4 * 8 * matrix.shape[0] * (request.weights is not None)
    kept = factors + beside_rows + 6 * m * total * 8 + 16 * p * 8 + (STORE_NBYTES if scratch else 0)
    turning: dict[str, Accumulator] = {}
    if request.both:
        turning["effects"] = TwoWayStep(streamed=axis, scaled=request.both_scaled)
    start = _look_of(matrix, request, axis)
    looking: dict[str, Accumulator] = {"columns": Moments(), "start": start, **turning}
    if request.biases:
        looking["rows"] = RowSpread()
    sweeping: dict[str, Accumulator] = {"step": _step_of(request, axis, matrix.absent)}
    if request.validation is not None:
        sweeping["judge"] = HeldOutError(
            streamed=axis,
            ranks=request.widths,
            factors="new" if request.filled else "v",
            share=_held_share(request, matrix, cells),
        )
    look = pass_spec(
        "look",
        matrix,
        axis,
        looking,
        flops=6.0 * cells * max(request.ranks),
        kept_nbytes=kept,
        work="skinny",
        stored=stored,
        thin=True,
        times=1 + request.gives_back,
    )
    if request.solver == "exact":
        flops = len(request.ranks) * cells * m + 6 * cells * total
        solve = {"projections and an eigenproblem": (len(request.ranks) + 2) * m * m * 8}
    elif request.filled:
        flops, solve = 10 * cells * total, {"factors of the columns": 6 * m * total * 8}
    else:
        flops = 4 * cells * (tall + total)
        largest = max(map(packed_length, request.widths)) + max(request.widths)
        solve = {"normal equations": m * (tall + total + 3 * largest) * 8}
    times = max(1, request.max_passes - max(1, request.turns) - request.gives_back)
    sweep = pass_spec(
        "sweep",
        matrix,
        axis,
        sweeping,
        flops=flops,
        kept_nbytes=kept,
        work="skinny",
        stored=stored and not request.filled,
        thin=True,
        times=times,
        likely=min(times, LIKELY),
    )
    beside = ENTRY * matrix.row_nbytes(axis) if stored else HOLES * float(m)
    look, sweep, turn = _with_holes(look, beside), _with_holes(sweep, beside), None
    if request.both:
        turn = pass_spec(
            "turn",
            matrix,
            axis,
            turning,
            flops=16.0 * cells,
            kept_nbytes=kept,
            work="skinny",
            stored=stored,
            thin=True,
            times=request.turns - 1,
            likely=min(request.turns - 1, LIKELY),
        )
        turn = _with_holes(turn, beside)
    sizes = {"scratch": int(scratch), "factors": total}
    done = {"result": factors + 4 * max(request.ranks) * (lines * (not scratch) + m) * 8}
    passes = (look, sweep) if turn is None else (look, turn, sweep)
    candidate: Candidate[Any] = Candidate(
        request.solver,
        _reason(request, axis, scratch),
        passes,
        {"kept arrays": kept} | larger(solve, done),
        sizes=sizes,
    )
    candidate = candidate.weighted(request.weights)
    return CompletionPasses(look, turn, sweep, scratch), candidate


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


def with_penalties(
    request: CompletionRequest, stats: ColumnStats, rows: RowSpread | None
) -> CompletionRequest:
    """The request with its ridges in units of the data. rows : of a request with biases."""
    if rows is not None:
        request = replace(request, bias_ridges=_bias_ridges(stats, rows.sums()))
    if request.relative:
        level = noise_level(request, stats)
        ridges = tuple(one * level for one in request.ridges)
        request = replace(request, ridges=ridges, relative=False)
    return request


def noise_level(request: CompletionRequest, stats: ColumnStats) -> float:
    """The expected largest singular value of pure noise, in standardised units."""
    cells = float(stats.weight.sum())
    if cells == 0.0:
        return 0.0
    if request.standardize.scale is not None or request.both_scaled:
        squares = stats.weight
    else:
        squares = stats.m2
        if not request.standardize.center:
            squares = squares + stats.weight * stats.mean**2
    if request.column_weights is not None:
        squares = squares * request.column_weights**2
    variance = float(squares.sum()) / cells
    rows = float(np.max(stats.count + stats.missing, initial=0))
    if request.weights is not None:
        rows = float(request.weights.sum())
    columns = len(stats.mean)
    return float(np.sqrt(variance) * (np.sqrt(cells / rows) + np.sqrt(cells / columns)))


def _bias_ridges(stats: ColumnStats, rows: RowSums) -> tuple[float, float]:
    """(of rows, of columns): noise over the variances of their biases."""
    cells = float(stats.weight.sum())
    if cells == 0.0:
        return LARGEST, LARGEST
    seen = stats.weight > 0
    each, means = stats.weight[seen], stats.mean[seen]
    mean = float(np.average(means, weights=each))
    between = float(each @ (means - mean) ** 2)
    total = float(stats.m2.sum()) + between
    of_rows = _variance_of_means(rows.rows, cells, rows.cells_squared, rows.between, total)
    columns = float(np.count_nonzero(seen))
    of_columns = _variance_of_means(columns, cells, float(each @ each), between, total)
    noise = max(total / cells - of_rows - of_columns, LEAST_NOISE * total / cells)
    ridges = (noise / max(one, noise / LARGEST, 1e-300) for one in (of_rows, of_columns))
    return tuple(ridges)  # type: ignore[return-value]


def _variance_of_means(
    groups: float, cells: float, cells_squared: float, between: float, total: float
) -> float:
    """The variance of the true means of groups, by equating sums of squares to what is expected.

    Source: Searle, Casella and McCulloch 1992, "Variance Components", section 3.6.
    """
    within = (total - between) / max(cells - groups, 1.0)
    freedom = cells - cells_squared / cells
    return max(between - (groups - 1.0) * within, 0.0) / freedom if freedom > 0 else 0.0


def columns_outside(stats: ColumnStats, scaling: Scaling, request: CompletionRequest) -> Array:
    """(p,) True for columns without loadings: never observed, or fully explained by the means."""
    alone = request.standardize.center and not request.means and not request.biases
    still = scaling.still & alone
    return np.asarray(still | (stats.count == 0))


def mean_of_all(stats: ColumnStats) -> float:
    """The mean of all observed cells; 0 if there are none."""
    return float(np.average(stats.mean, weights=stats.weight)) if stats.weight.any() else 0.0


def observed_range(stats: ColumnStats) -> list[float] | None:
    """The smallest and largest cell that the fit has read; None if there was none."""
    if not (stats.count > 0).any():
        return None
    return [float(stats.minimum.min()), float(stats.maximum.max())]
