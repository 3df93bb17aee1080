"""PCA of streamed samples through p x p sums: the scatter matrix, or its R factor (TSQR)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    MeanImputedScatter,
    Moments,
    RFactor,
    Scatter,
    TruncatedFactor,
)
from streampca.accumulators.scatter import NARROW
from streampca.errors import InvalidInputError
from streampca.kernels import VARIES, Array, ColumnStats, norm_estimate, reciprocal
from streampca.matrix import ChunkedMatrix, Resolution, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import FeatureSummary, Fitted
from streampca.models.decompose.eigenproblem import (
    count_components,
    count_missing,
    kept_count,
    scatter_cost,
    solve_symmetric,
)
from streampca.models.side_data.design import (
    Removed,
    factor_without,
    scatter_without,
    with_design_columns,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    all_threads,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import (
    Spectrum,
    certify,
    numerical_rank,
    rank_floor,
    residual_norms,
    signs_of_components,
    solver_floor,
    sum_floor,
    svd_of_r,
)
from streampca.store import MemorySink

SPAN_ROWS = 16 * 8192  # rows in a span of float32 sums, about


def scatter_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass that sums the scatter matrix."""
    n, p = matrix.shape
    k = kept_count(matrix, request)
    imputed = request.missing == "mean"
    accumulator = MeanImputedScatter() if imputed else Scatter(center=request.center)
    solve, flops = scatter_cost(p, request, k)
    read = matrix
    if (basis := request.side.basis) is not None:
        read = with_design_columns(matrix, basis)
        solve["scatter of residuals"] = p * p * 8
    flops_of_pass = (4.0 if imputed else 1.0) * n * p * p
    sums: dict[str, Accumulator] = {"scatter": accumulator}
    if _judges_counts(request):
        sums["columns"] = Moments()
    spec = pass_spec("scatter", read, 0, sums, flops=flops_of_pass)
    spec = replace(spec, matrix=read)
    reason = "one pass; p x p scatter, then eigh; eigenvalues to about {} of the largest".format(
        "1e-7" if str(work_dtype(matrix.dtype)) == "float32" else "1e-15"
    )
    if imputed:
        reason = "one pass with Z'Z, Z'M and M'M, so that holes hold the mean exactly"
    solve = {"scatter": spec.total_nbytes} | solve
    solver = partial(solve_scatter, matrix=matrix, request=request, spec=spec)
    return [Candidate("scatter", reason, (spec,), solve, flops, solve=solver)]


def solve_scatter(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: Request,
    spec: PassSpec,
    solve: Callable[..., Fitted] | None = None,
) -> Steps[Fitted]:
    """Eigenvectors of the scatter matrix.  solve : the sums; None is :func:`solve_accumulator`."""
    more: dict[str, Any] = {}
    counts: MemorySink | None = None
    if request.missing == "mean":
        counts = MemorySink(matrix.shape[0], 1, np.int64)
        more = {"maps": {"missing": count_missing}, "sinks": {"missing": counts}}
    resolution, removed = Resolution.of(matrix.dtype), None
    sums = (yield Pass(spec, **more)).accumulators
    done = sums.pop("scatter")
    if (basis := request.side.basis) is not None:
        done, removed = scatter_without(done, basis.shape[1])
        resolution = replace(resolution, work=np.dtype(np.float64))
    if _judges_counts(request):
        request.standardize.refuse_other_counts(sums.pop("columns").columns())
    solve = solve or solve_accumulator
    fitted = solve(done, request, resolution, min(matrix.shape), removed)
    if matrix.shape[1] > NARROW:
        fitted.squared_in = str(work_dtype(matrix.dtype))
    if counts is not None:
        fitted.missing_by_sample = counts.values[:, 0]
    return fitted


def _judges_counts(request: Request) -> bool:
    """Whether the least and largest value of each column are needed: not of sums that are kept."""
    return request.standardize.of_counts and not request.warm_start and request.side.basis is None


def tsqr_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass that keeps the R factor. Raises InvalidInputError where holes hold means."""
    if request.missing == "mean":
        raise InvalidInputError(
            "solver='tsqr' cannot put means into holes in one pass; use solver='scatter'"
        )
    n, p = matrix.shape
    basis = request.side.basis
    read = matrix if basis is None else with_design_columns(matrix, basis)
    accumulators = {"r": RFactor(center=request.center)}
    spec = pass_spec("tsqr", read, 0, accumulators, flops=2.0 * n * p * p, work="factor")
    spec = replace(spec, matrix=read)
    reason = "one pass; R factor, then its SVD: singular values to about 1e-14 of the largest"
    solve = {"R factor and its SVD": 6 * p * p * 8}
    solver = partial(solve_tsqr, matrix=matrix, request=request, spec=spec)
    return [Candidate("tsqr", reason, (spec,), solve, 22.0 * p**3, solve=solver)]


def solve_tsqr(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: Request,
    spec: PassSpec,
    solve: Callable[..., Fitted] | None = None,
) -> Steps[Fitted]:
    """Singular vectors of the R factor.  solve : as above."""
    removed, basis = None, request.side.basis
    resolution, limit = Resolution.of(matrix.dtype), min(matrix.shape)
    done = (yield Pass(spec)).accumulators.pop("r")
    if basis is not None:
        done, removed = factor_without(done, basis.shape[1])
    return (solve or solve_accumulator)(done, request, resolution, limit, removed)


@dataclass(frozen=True)
class Solved:
    """The spectrum of an accumulator, with its error bounds."""

    spectrum: Spectrum
    known: Array  # the eigenvalues that are known
    everything: bool  # whether those are all eigenvalues
    residual: Array
    floor: float
    rank: int
    rounding: Array | None = None  # (k,) bounds of |E v| for the error E of what was solved

    def bounds(self, k: int) -> Array | None:
        """The first k of the bounds."""
        return None if self.rounding is None else self.rounding[:k]


def solve_accumulator(
    accumulator: Any,
    request: Request,
    resolution: Resolution,
    limit: int,
    removed: Removed | None = None,
    stats: ColumnStats | None = None,
    solve: Callable[..., Solved] | None = None,
) -> Fitted:
    """A PCA from a Scatter, MeanImputedScatter, RFactor or TruncatedFactor; no data are read.

    resolution : of what was accumulated.  limit : min(n, p), the most components there are.
    removed : what a design took out of it beforehand.
    stats, solve : of the features, and of the sums over them; None: those of its columns.
    """
    stats = stats_of_sums(accumulator) if stats is None else stats
    dropped = np.flatnonzero(stats.missing >= accumulator.count)
    scaling = request.standardize.resolve(stats, resolution.eps, request.side.weights)
    constant, scale = scaling.constant, scaling.scale
    constant[dropped] = False
    still = constant if request.center else np.zeros_like(constant)
    if scale is not None:
        still = still | (scale == 0.0)
    p = len(still)
    varies = ~still
    varies[dropped] = False
    varying = np.flatnonzero(varies)
    request.refuse_unused(len(varying), p)
    live = varying if varying.size else np.arange(1)  # where nothing varies: a component of 0
    limit = min(limit, len(live))
    if solve is None:
        factors = (RFactor, TruncatedFactor)
        solve = _solve_factor if isinstance(accumulator, factors) else _solve_sums
    gone = None if removed is None else _scaled_columns(removed.explained, scale, live)
    one = solve(accumulator, request, scale, live, resolution, limit, gone)
    count = accumulator.count - (0 if gone is None else len(gone))
    k, gap = count_components(request, one.known, one.spectrum, count, limit, one.rank)
    kept = one.spectrum.head(k)
    k = min(k, len(kept.values))
    divisor = request.divisor(accumulator.weight)
    vectors = kept.vectors
    if len(varying) < p:  # a constant column has a loading of exactly 0
        vectors = np.zeros((p, k), kept.vectors.dtype)
        vectors[varying] = kept.vectors[: len(varying)]
    components = np.array((vectors * signs_of_components(vectors)).T, order="C")
    certificate = certify(one.residual[:k], kept, one.floor, divisor, 1, one.rank, one.bounds(k))
    features = FeatureSummary.of_scaling(stats, scaling, divisor)
    return Fitted(
        spectrum=kept,
        all_values=one.known if one.everything else None,
        weight=accumulator.weight,
        rank=one.rank,
        certificate=certificate,
        gap=gap,
        components=components,
        features=replace(features, removed=None if removed is None else removed.coefficients),
    )


def stats_of_sums(accumulator: Any) -> ColumnStats:
    """Column statistics from an accumulator of samples."""
    p = len(accumulator.mean)
    if isinstance(accumulator, TruncatedFactor):
        m2 = accumulator.m2
    elif isinstance(accumulator, RFactor):
        with np.errstate(over="ignore"):
            m2 = np.sum(accumulator.r**2, axis=0)
    else:
        m2 = np.maximum(np.diagonal(accumulator.lower()), 0.0).copy()
        if getattr(accumulator, "varies", None) and not m2.any():
            m2[:] = VARIES
    count = accumulator.count - accumulator.missing
    weight = np.full(p, accumulator.weight)
    if isinstance(accumulator, MeanImputedScatter):
        weight -= accumulator.holes  # deviations are those of the observed cells
    nothing = np.full(p, np.nan)
    return ColumnStats(
        count, accumulator.missing, weight, np.array(accumulator.mean), m2, nothing, nothing
    )


def scaled_lower(lower: Array, scale: Array | None, live: Array) -> Array:
    """The scatter of the columns that vary, scaled where they are."""
    if scale is None and len(live) == len(lower):
        return lower
    scaled = np.array(lower) if len(live) == len(lower) else lower[np.ix_(live, live)]
    if scale is not None:
        inverse = reciprocal(scale[live])
        scaled *= inverse[:, None]
        scaled *= inverse[None, :]
    return scaled


def _scaled_columns(rows: Array, scale: Array | None, live: Array) -> Array:
    """The columns that vary, scaled where they are."""
    return rows[:, live] if scale is None else rows[:, live] * reciprocal(scale[live])


def with_explained(spectrum: Spectrum, explained: Array | None) -> Spectrum:
    """The larger sums from before a design was eliminated, which determine the rounding.

    explained : (r, live), with explained'explained what was taken off.
    """
    if explained is None:
        return spectrum
    top = float(np.linalg.norm(explained, 2)) ** 2
    total = spectrum.total + float(np.sum(np.abs(explained) ** 2))
    return replace(spectrum, values=spectrum.values + top, total=total)


def _solve_sums(
    accumulator: Scatter | MeanImputedScatter,
    request: Request,
    scale: Array | None,
    live: Array,
    resolution: Resolution,
    limit: int,
    explained: Array | None,
) -> Solved:
    """From the scatter matrix."""
    lower = scaled_lower(accumulator.lower(), scale, live)
    with all_threads():
        spectrum, known, everything = solve_symmetric(lower, request, limit)
        residual = residual_norms(lower, spectrum)
    summed = with_explained(spectrum, explained)
    work, terms = longest_sum(accumulator, resolution)
    longest = sum_floor(work, summed, terms)
    rounding = entries_bound(accumulator, scale, live, spectrum.vectors, longest)
    floor = solver_floor(summed.values, len(lower))
    level = rank_floor(work, summed, terms, rounding)
    rank = min(numerical_rank(known, len(lower), floor + level), limit)
    if isinstance(accumulator, Scatter):  # rounding that forgotten rows left
        floor += accumulator.forgotten / _least(scale, live) ** 2
    return Solved(spectrum, known, everything, residual, floor, rank, rounding)


def _least(scale: Array | None, live: Array) -> float:
    return 1.0 if scale is None else float(scale[live].min()) or 1.0


def longest_sum(
    accumulator: Scatter | MeanImputedScatter, resolution: Resolution
) -> tuple[np.dtype[Any], int]:
    """(the dtype of the sums, about how many rows are added in it)."""
    if isinstance(accumulator, Scatter) and resolution.work == np.float32:
        return np.dtype(np.float32), min(accumulator.count, SPAN_ROWS)
    return np.dtype(np.float64), accumulator.count


def entries_bound(
    accumulator: Scatter | MeanImputedScatter,
    scale: Array | None,
    live: Array,
    vectors: Array,
    longest: float,
) -> Array:
    """(k,) bounds of |E v|, E the error of the scaled scatter: measured, if it was.

    longest : the bound by the longest sum.
    Under a scale D the error is D E D, and D E D v is at most 1 / min(scale) times E D v: columns
    of very different scales are better off with the bound by the longest sum.
    """
    bound = np.full(vectors.shape[1], longest)
    if not isinstance(accumulator, Scatter) or (probed := accumulator.rounding()) is None:
        return bound
    turned = vectors if scale is None else vectors * reciprocal(scale[live])[:, None]
    least = _least(scale, live)
    measured = norm_estimate(turned.T @ probed[live]) / least + accumulator.drift / least**2
    return np.asarray(measured if scale is None else np.minimum(measured, bound))


def _solve_factor(
    accumulator: RFactor | TruncatedFactor,
    request: Request,
    scale: Array | None,
    live: Array,
    resolution: Resolution,
    limit: int,
    explained: Array | None,
) -> Solved:
    """The solution from a factor of the scatter matrix, in float64 throughout."""
    factor = accumulator.r_factor() if isinstance(accumulator, RFactor) else accumulator.factor()
    if len(live) < factor.shape[1]:
        factor = factor[:, live]
    if scale is not None:
        factor *= reciprocal(scale[live])
    with single_threaded_blas():
        spectrum = svd_of_r(factor)
        image = factor @ spectrum.vectors
        residual = np.linalg.norm(factor.T @ image - spectrum.vectors * spectrum.values, axis=0)
    floor = solver_floor(with_explained(spectrum, explained).values, factor.shape[1])
    if isinstance(accumulator, TruncatedFactor):
        floor += accumulator.lost
        total = spectrum.total + accumulator.lost_trace
        spectrum = replace(spectrum, next_value=accumulator.lost, total=total)
    size = max(accumulator.count, factor.shape[1])
    rank = min(numerical_rank(np.sqrt(spectrum.values), size), limit)
    everything = not spectrum.next_value  # else values were cut off
    return Solved(spectrum, spectrum.values, everything, residual, floor, rank)
