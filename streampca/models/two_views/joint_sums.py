"""Two views by the joint sums of [X, Y]: one read of both, a scatter matrix or an R factor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, FoldScatter, MeanImputedScatter, RFactor, Scatter
from streampca.accumulators.scatter import NARROW
from streampca.kernels import Array, reciprocal
from streampca.kernels.columns import sum_error
from streampca.matrix import ChunkedMatrix, Resolution, Standardize
from streampca.models.decompose.scatter import SPAN_ROWS, stats_of_sums
from streampca.models.side_data.design import Removed, factor_without, scatter_without
from streampca.models.two_views.request import (
    Found,
    Sums,
    ViewRequest,
    found_of,
    refuse_still,
    scaled_scatter,
    side_by_side,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import JointFactor, JointScatter


def sums_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """One pass that sums the joint scatter matrix."""
    (n, m), method, holes = matrix.shape, request.method, request.missing == "mean"
    sums: dict[str, Accumulator] = {"scatter": MeanImputedScatter() if holes else Scatter()}
    if method.folds:
        sums = {f"fold {i}": FoldScatter(fold=i, folds=method.folds) for i in range(method.folds)}
    read = request.summed(matrix)
    spec = pass_spec("scatter", read, 0, sums, flops=(4.0 if holes else 1.0) * n * m * m)
    spec = replace(spec, matrix=read)
    solve, flops = _solving(request, m)
    solve["joint scatter"] = spec.total_nbytes
    if method.folds:
        solve["sums of all folds"] = 4 * m * m * 8
    if holes or request.side.rank:
        solve["filled, or residual scatter"] = 4 * m * m * 8
    reason = "one read of both; joint scatter of their features, then an SVD"
    solver = partial(by_scatter, request=request, read=read, spec=spec)
    candidate = Candidate("scatter", reason, (spec,), solve, flops, solve=solver)
    return [candidate.weighted(request.side.sample_weight)]


def factor_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """One pass that keeps the R factor of both."""
    n, m = matrix.shape
    read = request.summed(matrix)
    spec = pass_spec("tsqr", read, 0, {"r": RFactor()}, flops=2.0 * n * m * m, work="factor")
    spec = replace(spec, matrix=read)
    solve, flops = _solving(request, m)
    reason = "one read of both; R factor of [X, Y], whose condition is not squared"
    solve["R factor"] = 2 * m * m * 8
    solver = partial(by_factor, request=request, spec=spec)
    candidate = Candidate("tsqr", reason, (spec,), solve, flops, solve=solver)
    return [candidate.weighted(request.side.sample_weight)]


def _solving(request: ViewRequest, m: int) -> tuple[dict[str, int], float]:
    """(bytes by term, flops) of what follows the sums."""
    p, q = request.p, m - request.p
    arrays = {
        "whitening": 3 * 8 * (p * p + q * q),
        "singular vectors": 4 * 8 * p * q,
        "weights and loadings": 8 * 8 * m * request.count,
    }
    solves = 1 + 26 * request.method.folds
    return arrays, float(solves * (2.0 * (p**3 + q**3) + 14.0 * p * q * min(p, q)))


def by_scatter(
    planned: Planned[Any], *, request: ViewRequest, read: ChunkedMatrix, spec: PassSpec
) -> Steps[Found]:
    """The joint scatter of all rows, and of each fold, if there are folds.

    read : what the sums are of.
    """
    done = (yield Pass(spec)).accumulators
    parts = [done.pop(name) for name in list(done)]
    whole, removed = parts[0], None
    if request.method.folds:
        whole = Scatter()
        for part in parts:
            whole.merge(part)
    with single_threaded_blas():
        spread = np.sqrt(np.maximum(np.diagonal(whole.lower()), 0.0))[request.side.rank :]
        if request.side.rank:
            whole, removed = scatter_without(whole, request.side.rank)
        scale = _scale(request, planned.matrix, whole)
        sums = _scatter_sums(whole, request.p, Resolution.of(read.dtype).work, scale, spread)
        coefficients = None if removed is None else removed.coefficients
        sums = replace(sums, parts=tuple(parts), removed=coefficients)
        return _found(sums, whole, request, removed)


def by_factor(planned: Planned[Any], *, request: ViewRequest, spec: PassSpec) -> Steps[Found]:
    """The R factor of both views."""
    removed = None
    done = (yield Pass(spec)).accumulators.pop("r")
    spread = np.linalg.norm(done.r_factor(), axis=0)[request.side.rank :]
    if request.side.rank:
        done, removed = factor_without(done, request.side.rank)
    scale, factor = _scale(request, planned.matrix, done), done.r_factor()
    if scale is not None:
        factor *= reciprocal(scale)
    with single_threaded_blas():
        joint = JointFactor(factor, request.p)
        sums = Sums(joint, done.weight - 1.0, np.linalg.norm(factor, axis=0), scale, spread)
        return _found(sums, done, request, removed)


def _scale(request: ViewRequest, matrix: ChunkedMatrix, sums: Any) -> Array | None:
    """(p + q,) divisors of the columns; 0 for those that do not vary.  matrix : both views."""
    eps, stats = Resolution.of(matrix.dtype).eps, stats_of_sums(sums)
    standardize = Standardize(True, request.method.scale)
    scaling = standardize.resolve(stats, eps, request.joint_weights())
    still = scaling.constant if scaling.scale is None else scaling.scale == 0.0
    refuse_still(~still & (stats.count > 0), request.p)
    return scaling.scale


def _scatter_sums(
    scatter: Scatter | MeanImputedScatter, p: int, work: Any, scale: Array | None, read: Array
) -> Sums:
    """p : features of X.  work : dtype of the products.
    read : (p + q,) deviations of the columns before anything was removed."""
    lower, plain, terms = scatter.lower(), isinstance(scatter, Scatter), scatter.count
    deviations = np.sqrt(np.maximum(np.diagonal(lower), 0.0))
    if plain and work == np.float32 and len(lower) > NARROW:
        entry = sum_error(work, min(terms, SPAN_ROWS))
    else:
        entry = sum_error(np.dtype(np.float64), terms)
    probed = scatter.rounding() if isinstance(scatter, Scatter) else None
    level = entry * (read * reciprocal(deviations)) ** 2
    if probed is not None:
        rough = np.sqrt(np.mean(probed**2, axis=1)) * reciprocal(deviations) ** 2
        level = np.minimum(level, rough)
    if scale is not None:
        deviations = deviations * reciprocal(scale)
    joint = JointScatter(scaled_scatter(lower, scale), p, level)
    drift = (scatter.drift or 0.0) if isinstance(scatter, Scatter) else 0.0
    return Sums(joint, scatter.weight - 1.0, deviations, scale, read, entry, probed, drift)


def _found(sums: Sums, whole: Any, request: ViewRequest, removed: Removed | None) -> Found:
    """Weights and loadings from the joint sums."""
    solved = request.method.of_sums(sums)
    images = sums.joint.times(side_by_side(solved.x, solved.y))
    return found_of(
        solved,
        images,
        sums.deviations,
        sums.freedom,
        request.method.weighs,
        mean=np.array(whole.mean),
        scale=sums.scale,
        absent=np.flatnonzero(whole.missing >= whole.count),
        removed=None if removed is None else removed.coefficients,
    )
