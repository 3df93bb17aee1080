"""PCA through the n x n Gram matrix of streamed features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Gram, RowMissing
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Standardize, found, work_dtype
from streampca.models.fitted import Cohort, Fitted, Runner, SolverInput
from streampca.models.pca.feature_summary import (
    VARIANCE,
    FeatureStatistics,
    FeatureSummary,
    statistics_nbytes,
)
from streampca.models.pca.gram_outputs import (
    components_sink,
    finish_components,
    streamed_nbytes,
    write_relationship,
)
from streampca.models.pca.sample_space import (
    RowsSink,
    SampleSpace,
    fitted_from_samples,
    remove_mean,
    solve_sample_space,
)
from streampca.models.pca.solve_cost import eigh_cost, kept_count, vectors_nbytes
from streampca.models.projection import FeatureLoadings, ScoresBesideFit
from streampca.models.request import Request
from streampca.passes import Candidate, PassSpec, Plan, larger, pass_spec
from streampca.store import ColumnsSink, MemorySink


def gram_candidate(
    matrix: ChunkedMatrix, request: Request, everyone: ChunkedMatrix | None = None
) -> Candidate:
    """One pass that sums the Gram matrix, and one for the components.

    everyone : the matrix that the second pass reads, where it has more samples.
    """
    n, p = matrix.shape
    k = kept_count(matrix, request)
    standardize = request.standardize
    sums: dict[str, Accumulator] = {"gram": Gram(standardize=standardize, missing=request.missing)}
    if request.missing == "mean" and (everyone is None or not request.components):
        sums["rows"] = RowMissing()
    solve, flops = eigh_cost(n, request, k)
    streamed = request.loadings is not None
    held = {} if streamed else {"statistics of features": statistics_nbytes(matrix, request)}
    first = pass_spec("gram", matrix, 1, sums, flops=float(p) * n * n, kept=held)
    reason = "one pass over features; n x n Gram, then eigh"
    passes: tuple[PassSpec, ...] = (first,)
    if request.components:
        rows = n if everyone is None else everyone.shape[0]
        vectors = vectors_nbytes(matrix, request, k)
        components = {} if streamed else {"components": k * p * 8}
        others = 0 if everyone is None else 4 * k * rows * 8
        itemsize = work_dtype(matrix.dtype).itemsize

        def scratch(length: int) -> int:
            written = streamed_nbytes(k, itemsize, length) if streamed else 0
            return k * (rows + 2 * length) * 8 + written

        loadings = PassSpec(
            "loadings",
            1,
            0,
            0,
            scratch=scratch,
            kept_nbytes=others,
            kept=held | components | {"eigenvectors and scores": vectors},
            flops=(2.0 if everyone is None else 4.0) * rows * p * k,
            matrix=everyone,
        )
        passes += (loadings,)
        to = " to Zarr" if streamed else ""
        reason += f"; a second pass for the components{to} (components=False saves it)"
    if (basis := request.side.basis) is not None:
        passes = tuple(replace(one, matrix=matrix.without(basis)) for one in passes)
    solving = {"Gram matrix": first.total_nbytes} | solve
    if request.components and not streamed:  # when they are completed, the Gram matrix is gone
        solving = larger(solving, {"components": k * p * 8, "features of no use": 16 * p})
    terms = {**solving, **held, "scores": 2 * n * k * 8}
    return Candidate("gram", reason, passes, terms, flops)


def gram_by_features(given: SolverInput) -> Fitted:
    """Gram matrix in one pass, loadings (and the scores of a cohort) in a second."""
    plan, matrix, request, step = given.plan, given.matrix, given.request, given.step
    cohort = given.cohort
    if request.side.basis is not None:
        matrix = matrix.without(request.side.basis)
    streamed = request.loadings is not None
    weight = request.side.count(matrix.shape[0])
    statistics = FeatureStatistics.of(matrix, request, 1.0)
    maps: dict[str, Any] = {}
    sinks: dict[str, Any] = {}
    if not streamed:  # else the second pass writes them
        maps["statistics"] = statistics
        sinks["statistics"] = ColumnsSink(matrix.shape[1], len(statistics.names))
    if matrix.design is not None:
        maps["removed"] = found
        sinks["removed"] = MemorySink(matrix.shape[1], 1 + matrix.design.shape[1])
    counted = request.missing == "mean"
    first = step("gram", matrix=matrix, maps=maps, sinks=sinks).accumulators
    gram = first.pop("gram")
    if (relationship := request.relationship) is not None:
        samples = matrix.labels.samples
        written = write_relationship(relationship, gram.lower(), gram.n_used, samples)
    probed = gram.rounding()
    if request.center:
        remove_mean(gram.lower(), gram.z_probe, request.side.sample_weight)
    space = solve_sample_space(gram.lower(), gram.z_probe, request, matrix, gram.n_used, probed)
    del gram  # n x n
    divisor = request.divisor(weight)
    if streamed:
        second, summary = _streamed_loadings(plan, matrix, request, step, cohort, space, divisor)
        fitted = fitted_from_samples(space, summary, matrix, request, 1)
    else:
        sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
        summary = FeatureSummary.held(sinks["statistics"], statistics)
        fitted = fitted_from_samples(space, summary, matrix, request, 1)
        second = {}
        if request.components:
            fitted.components, second = _loadings(matrix, request, step, cohort, space, fitted)
    if "removed" in sinks:
        removed = sinks["removed"].values.T
        fitted.mean, fitted.removed = removed[0].copy(), removed[1:].copy()
    counts = second.get("rows", first.get("rows"))
    fitted.missing_by_sample = counts.counts() if counted and counts is not None else None
    if cohort is not None and "scores" in second:
        fitted.scores = second["scores"].scores
        fitted.scores[cohort.rows] = space.u * space.s
    if relationship is not None:  # not before: an interrupted fit must find its place free
        written.finish()
    return fitted


def _loadings(
    matrix: ChunkedMatrix,
    request: Request,
    step: Runner,
    cohort: Cohort | None,
    space: SampleSpace,
    fitted: Fitted,
) -> tuple[Array, dict[str, Any]]:
    """The pass for the components, in memory: those, and what it summed for a cohort."""
    components = np.empty((space.k, matrix.shape[1]))
    sinks = {"loadings": RowsSink(components.T, 0)}
    done = _second_pass(matrix, request, step, cohort, space, sinks, {})
    finished = finish_components(components, space.rank, fitted, request.center)
    return finished, done


def _streamed_loadings(
    plan: Plan,
    matrix: ChunkedMatrix,
    request: Request,
    step: Runner,
    cohort: Cohort | None,
    space: SampleSpace,
    divisor: float,
) -> tuple[dict[str, Any], FeatureSummary]:
    """The pass that streams the components to Zarr, the statistics of the features beside them."""
    path = request.loadings
    assert path is not None
    variance = space.spectrum.head(space.k).values / divisor
    sink = components_sink(path, space.rank, variance, matrix, plan.named("loadings").edges)
    rows = None if cohort is None else cohort.rows
    statistics = FeatureStatistics.of(matrix, request, divisor, rows)
    # in this order: the last one to finish puts the group in its place
    sinks = {"statistics": sink.columns(statistics.dtypes), "loadings": sink}
    maps = {"statistics": statistics}
    done = _second_pass(matrix, request, step, cohort, space, sinks, maps)
    return done, FeatureSummary.stored(path, statistics)


def _second_pass(
    matrix: ChunkedMatrix,
    request: Request,
    step: Runner,
    cohort: Cohort | None,
    space: SampleSpace,
    sinks: dict[str, Any],
    maps: dict[str, Any],
) -> dict[str, Any]:
    """Components of mere rounding are 0 in it; they are completed where they are in memory."""
    standardize = request.standardize
    real = np.where(np.arange(space.k) < space.rank, space.s, np.inf)
    rows = None if cohort is None else cohort.rows
    return step(
        "loadings",
        operands={"u": space.u, "s": real},
        sinks=sinks,
        maps={**maps, "loadings": FeatureLoadings(standardize, rows)},
        accumulators=_cohort_scores(standardize, cohort),
        matrix=matrix if cohort is None else cohort.everyone,
    ).accumulators


def _cohort_scores(standardize: Standardize, cohort: Cohort | None) -> dict[str, Accumulator]:
    if cohort is None:
        return {}
    scores = ScoresBesideFit(standardize=standardize, rows=cohort.rows)
    return {"scores": scores, "rows": RowMissing()}
