"""The ways to a factor analysis, a row each, and how one of them is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import (
    Accumulator,
    LeadingDirections,
    MeanImputedScatter,
    Moments,
    Scatter,
    SubspaceStep,
)
from streampca.accumulators.base import refuse_partly_missing
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Resolution, Standardize, constant_columns
from streampca.models.contract.request import degrees_of_freedom
from streampca.models.decompose.krylov_plan import (
    PIECES_NBYTES,
    RANDOM,
    space_dtype,
    stored_entries,
)
from streampca.models.decompose.scatter import stats_of_sums
from streampca.models.latent.em import (
    EmAfter,
    EmRequest,
    EmSizes,
    around_holes,
    em_after,
    warn_unless_converged,
)
from streampca.models.latent.factor_fit import (
    FactorFit,
    FactorRequest,
    factors_of_em,
    first_factors,
    fit_covariance,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Rates,
    Steps,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import FactorPoint, FactorSolution, FactorSurrogate, solution_of, start_block
from streampca.solvers.latent import LOG_2_PI

PATIENCE = 10.0  # seconds: "streamed" must save more than this, because it cannot test k


def factor_candidates(matrix: ChunkedMatrix, request: FactorRequest) -> list[Candidate[FactorFit]]:
    """The ways to the factors, the preferred first, and EM after each wherever there may be holes.

    Raises InvalidInputError for an unsuitable solver.
    """
    if request.missing != "em":
        return filled_candidates(matrix, request)
    possible = matrix.dtype.kind == "f" or matrix.missing_value is not None
    first = filled_candidates(matrix, replace(request, missing="mean" if possible else "raise"))
    sizes = EmSizes(request.n_components, request.max_passes, scaled=True)
    after = em_after(matrix, sizes, request.weights) if possible else []
    return around_holes(first, after, partial(fit_factors, request=request))


def fit_factors(
    planned: Planned[Any],
    *,
    first: Candidate[FactorFit],
    after: EmAfter | None,
    request: FactorRequest,
) -> Steps[FactorFit]:
    """The factors, with holes by EM that starts at those of the mean-filled matrix.

    Warns (AccuracyWarning) where EM has not converged.
    """
    start = yield from first.solve(planned)
    if after is None or not (yield from after.needed(start.partly_missing)):
        return start
    em_request = EmRequest(
        state=first_factors(start, request.min_uniqueness),
        scale=start.deviation,
        shared=False,
        lower=request.min_uniqueness,
        tol=request.tol,
        max_passes=request.max_passes,
        weights=request.weights,
    )
    found = yield from after.run(planned, em_request)
    warn_unless_converged(found, em_request)
    return factors_of_em(start, found)


def filled_candidates(matrix: ChunkedMatrix, request: FactorRequest) -> list[Candidate[FactorFit]]:
    """The ways to the factors, the preferred first. Holes, if allowed, are filled with means."""
    solver, known = request.solver, ("auto", *WAYS)
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
    wanted = WAYS if solver == "auto" else (solver,)
    made = [WAYS[name](matrix, request).weighted(request.weights) for name in wanted]
    made = [replace(one, seconds=rates.seconds(matrix, one)) for one in made]
    return sorted(made, key=lambda one: one.seconds + PATIENCE * (one.solver == "streamed"))


def scatter_candidate(matrix: ChunkedMatrix, request: FactorRequest) -> Candidate[FactorFit]:
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
    solver = partial(solve_scatter, matrix=matrix, request=request, spec=spec)
    return Candidate("scatter", reason, (spec,), solve, flops, solve=solver)


def solve_scatter(
    planned: Planned[Any], *, matrix: ChunkedMatrix, request: FactorRequest, spec: PassSpec
) -> Steps[FactorFit]:
    """The factors of the correlations in the accumulated sums."""
    sums = (yield Pass(spec))["scatter"]
    stats = stats_of_sums(sums)
    dropped = np.flatnonzero(sums.missing >= sums.count)
    still = constant_columns(stats, Resolution.of(matrix.dtype).eps)
    live = np.setdiff1d(np.flatnonzero(~still), dropped)
    divisor = degrees_of_freedom(sums.weight, request.ddof)
    lower = sums.lower()
    lower /= divisor
    found = fit_covariance(lower, np.array(sums.mean), sums.weight, request, live, dropped)
    found.missing = np.asarray(sums.missing)
    return found


BLOCKS = 8  # of the basis that are kept after the first
OVER = 12  # vectors of the first product in addition to the factors
LIKELY = 4  # products that are usually enough
SLOWEST = 0.9  # assumed rate at which expected gains fall


# Too many features for a p x p matrix: one product pair for each read.


def streamed_candidate(matrix: ChunkedMatrix, request: FactorRequest) -> Candidate[FactorFit]:
    """A look, and reads that multiply a block of vectors each."""
    p = matrix.shape[1]
    k = int(request.n_components)
    width = min(p, k + OVER)
    most = int(request.max_passes) - 1
    sums: dict[str, Accumulator] = {"columns": Moments()}
    if not matrix.sparse:  # sparse blocks are not expanded to look: random vectors begin
        sums["start"] = LeadingDirections(
            streamed=0,
            standardize=Standardize(scale="std", ddof=request.ddof),
            width=max(1, width - RANDOM),
            missing=request.missing,
        )
    step = SubspaceStep(streamed=0, width=width)
    held = width + (BLOCKS + 1) * k
    cells = float(stored_entries(matrix, 0))
    flops = 4.0 * cells * width
    first = pass_spec(
        "look", matrix, 0, sums, flops=flops, stored=matrix.sparse, work="skinny", thin=True
    )
    again = pass_spec(
        "step",
        matrix,
        0,
        {"step": step},
        flops=flops,
        stored=matrix.sparse,
        work="skinny",
        thin=True,
        kept_nbytes=(2 * held + 3 * k + 8) * p * 8,
    )
    if matrix.sparse:  # sums of their entries are float64 from the beginning
        first, again = (replace(one, partial_nbytes=one.total_nbytes) for one in (first, again))
    again = replace(again, times=most, likely=min(most, LIKELY))
    solve = {
        "searched space": 6 * held * p * 8,
        "points of the search": (24 * k + 26) * p * 8,
        "pieces of the space": PIECES_NBYTES,
    }
    if p <= held:  # where the basis spans everything
        solve["points and Hessians of the search"] = 9 * p * p * 8
    reason = (
        f"1 look, and at most {most} reads with the products of {k} vectors each; stops when the "
        f"log-likelihood has at most tol={request.tol:g} to gain; no test that k is enough"
    )
    work = 12.0 * p * held * k * 100 * LIKELY
    sizes = {"width": width}
    solver = partial(
        fit_streamed, matrix=matrix, request=request, look=first, step=again, width=width
    )
    return Candidate("streamed", reason, (first, again), solve, work, sizes, solve=solver)


def fit_streamed(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: FactorRequest,
    look: PassSpec,
    step: PassSpec,
    width: int,
) -> Steps[FactorFit]:
    """One first pass, then passes until the likelihood converges.

    width : of the first block of vectors.
    """
    weight = request.count(matrix.shape[0])
    done = yield Pass(look)
    stats = done["columns"].columns()
    if request.missing == "raise":
        refuse_partly_missing(stats.missing, matrix.shape[0])
    dropped = np.flatnonzero(stats.count == 0)
    still = constant_columns(stats, Resolution.of(matrix.dtype).eps)
    live = np.setdiff1d(np.flatnonzero(~still), dropped)
    freedom = weight - request.ddof
    deviation = np.zeros(len(stats.m2))
    deviation[live] = np.sqrt(stats.m2[live] / freedom)
    mean = np.array(stats.mean)
    if not len(live):
        nothing = FactorSolution(np.zeros((0, 0)), np.zeros(0), 0.0, 0, 0.0, True)
        return FactorFit(nothing, live, mean, deviation, weight, 0.0, 0.0, dropped)
    start = None if matrix.sparse else done["start"].directions()[0]
    reader = _Reader(step, live, stats.mean, deviation, freedom, space_dtype(matrix))
    surrogate = FactorSurrogate(len(live), request.min_uniqueness)
    with single_threaded_blas():
        block = reader.first_block(start, min(width, len(live)))
        best, trace, gain = yield from _climbed(surrogate, reader, block, request, width, weight)
    steps, share = reader.passes, freedom / weight
    converged = gain <= request.tol
    solution = solution_of(best, request.min_uniqueness, steps, converged)
    row = best.log_determinant + share * best.trace
    likelihood = -0.5 * (len(live) * LOG_2_PI + row)
    fit = FactorFit(solution, live, mean, deviation, weight, float("nan"), likelihood, dropped)
    jacobian = float(np.sum(np.log(deviation[live])))
    fit.trace = weight * (-0.5 * (len(live) * LOG_2_PI + np.array(trace)) - jacobian)
    fit.gain, fit.missing = gain, stats.missing
    return fit


@dataclass
class _Reader:
    """Multiplies S with a few vectors, one pass each, on the features that vary."""

    step: PassSpec
    live: Array
    mean: Array
    deviation: Array
    freedom: float
    dtype: np.dtype[Any]
    passes: int = 0

    def first_block(self, directions: Array | None, width: int) -> Array:
        """(live, width) orthonormal: directions of the first pass, and random vectors."""
        p, rng = len(self.live), np.random.default_rng(0)
        known = np.zeros((p, 0)) if directions is None else directions[self.live]
        known = known[:, : max(width - RANDOM, 1)]
        return start_block(known, width, np.ones(p, bool), rng)

    def product(self, block: Array) -> Steps[tuple[Array, Array]]:
        """(the block as it was multiplied, S times it)."""
        self.passes += 1
        full = np.zeros((len(self.deviation), block.shape[1]), self.dtype)
        full[self.live] = block
        read = yield Pass(
            self.step,
            self.passes,
            changed={"step": {"width": block.shape[1]}},
            operands={"q": full, "center": self.mean, "scale": self.deviation},
        )
        done = read.accumulators.pop("step")
        product = done.finished(self.mean, self.deviation)[self.live] / self.freedom
        return full[self.live].astype(np.float64), product


def _climbed(
    surrogate: FactorSurrogate,
    reader: _Reader,
    block: Array,
    request: FactorRequest,
    width: int,
    weight: float,
) -> Steps[tuple[FactorPoint, list[float], float]]:
    """(the best parameters with known likelihood, the trace of it, the gain still expected).

    Every pass makes the likelihood of the surrogate's optimum known, and the surrogate exact
    there; what the next optimum promises beyond it is what is left to gain. The climb begins at
    the best parameters known, so that an optimum that promised too much costs a pass, and no more.
    Where the basis has come to span everything, S is known, and its own maximum is taken.
    """
    k = min(request.n_components, len(reader.live))
    tol = 2.0 * request.tol / weight  # of the discrepancy
    surrogate.add(*(yield from reader.product(block)))
    best, trace, gains, share = None, [], [], reader.freedom / weight
    promised, _ = surrogate.climb(surrogate.point(*surrogate.start(k), exact=False), tol)
    while reader.passes < reader.step.times and not surrogate.complete:
        surrogate.keep(BLOCKS * k + width, best or promised)
        fresh = surrogate.residual(promised.loadings / promised.uniquenesses[:, None])
        if fresh.shape[1]:
            surrogate.add(*(yield from reader.product(fresh)), promised.uniquenesses)
        here = surrogate.point(promised.loadings, promised.uniquenesses, exact=True)
        if best is None or here.discrepancy < best.discrepancy:
            best = here
        trace.append(best.log_determinant + share * best.trace)
        promised, better = surrogate.climb(best, tol)
        gains.append(0.5 * weight * better)
        if _left_to_gain(gains) <= request.tol or not fresh.shape[1]:
            return best, trace, _left_to_gain(gains)
    if surrogate.complete:
        best, certain = surrogate.maximum(promised)
        trace.append(best.log_determinant + share * best.trace)
        return best, trace, 0.0 if certain else np.inf
    assert best is not None
    return best, trace, _left_to_gain(gains)


def _left_to_gain(gains: list[float]) -> float:
    """The gain expected of the next optima, extrapolated from the last three."""
    if len(gains) < 2:
        return gains[-1]
    rate = max(b / a if a > 0 else 0.0 for a, b in pairwise(gains[-3:]))
    return gains[-1] / (1.0 - min(rate, SLOWEST))


WAYS: dict[str, Callable[[ChunkedMatrix, FactorRequest], Candidate[FactorFit]]] = {
    "scatter": scatter_candidate,
    "streamed": streamed_candidate,
}
