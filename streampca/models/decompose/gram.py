"""PCA through the n x n Gram matrix of streamed features."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Gram, RowMissing
from streampca.matrix import ChunkedMatrix, found, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted
from streampca.models.decompose.eigenproblem import (
    RowsSink,
    SampleSpace,
    eigh_cost,
    fitted_from_samples,
    kept_count,
    remove_mean,
    solve_sample_space,
    vectors_nbytes,
)
from streampca.models.decompose.gram_outputs import (
    VARIANCE,
    FeatureStatistics,
    FeatureSummary,
    components_sink,
    finish_components,
    statistics_nbytes,
    streamed_nbytes,
    write_relationship,
)
from streampca.models.results.projection import FeatureLoadings, ScoresOfAllSamples
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, larger, pass_spec
from streampca.store import ColumnsSink, LabelledSink, MemorySink


def gram_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """One pass that sums the Gram matrix, and one for the components."""
    n, p = matrix.shape
    k, cohort = kept_count(matrix, request), request.cohort
    standardize = request.standardize
    sums: dict[str, Accumulator] = {"gram": Gram(standardize=standardize, missing=request.missing)}
    if request.missing == "mean" and (cohort is None or not request.components):
        sums["rows"] = RowMissing()
    solve, flops = eigh_cost(n, request, k)
    streamed = request.loadings is not None
    held = {} if streamed else {"statistics of features": statistics_nbytes(matrix, request)}
    first = pass_spec("gram", matrix, 1, sums, flops=float(p) * n * n, kept=held)
    reason = "one pass over features; n x n Gram, then eigh"
    loadings: PassSpec | None = None
    if request.components:
        rows = n if cohort is None else cohort.everyone.shape[0]
        vectors = vectors_nbytes(matrix, request, k)
        components = {} if streamed else {"components": k * p * 8}
        scoring: dict[str, Accumulator] = {}
        if cohort is not None:
            scores = ScoresOfAllSamples(standardize=standardize, rows=cohort.rows)
            scoring = {"scores": scores, "rows": RowMissing()}
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
            accumulators=scoring,
            kept_nbytes=0 if cohort is None else 4 * k * rows * 8,
            kept=held | components | {"eigenvectors and scores": vectors},
            flops=(2.0 if cohort is None else 4.0) * rows * p * k,
        )
        to = " to Zarr" if streamed else ""
        reason += f"; a second pass for the components{to} (components=False saves it)"
    if (basis := request.side.basis) is not None:
        matrix = matrix.without(basis)
    first = replace(first, matrix=matrix)
    passes: tuple[PassSpec, ...] = (first,)
    if loadings is not None:
        loadings = replace(loadings, matrix=matrix if cohort is None else cohort.everyone)
        passes += (loadings,)
    solving = {"Gram matrix": first.total_nbytes} | solve
    if request.components and not streamed:  # the Gram matrix is freed before they are completed
        solving = larger(solving, {"components": k * p * 8, "features of no use": 16 * p})
    terms = {**solving, **held, "scores": 2 * n * k * 8}
    solver = partial(
        gram_by_features, matrix=matrix, request=request, spec=first, loadings=loadings
    )
    return [Candidate("gram", reason, passes, terms, flops, solve=solver)]


def gram_by_features(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: Request,
    spec: PassSpec,
    loadings: PassSpec | None,
) -> Steps[Fitted]:
    """Gram matrix in one pass, loadings (and the scores of a cohort) in a second.

    matrix : without what a design explains.
    """
    cohort = request.cohort
    streamed = request.loadings is not None
    weight = request.side.count(matrix.shape[0])
    statistics = FeatureStatistics.of(matrix, request, 1.0)
    sinks = _first_sinks(matrix, None if streamed else statistics)
    known: dict[str, Any] = {"statistics": statistics, "removed": found}
    maps = {name: known[name] for name in sinks}
    first = (yield Pass(spec, maps=maps, sinks=sinks)).accumulators
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
    second: dict[str, Any] = {}
    if streamed:
        assert loadings is not None
        edges = planned.blocks(loadings).edges
        sink, statistics = _streamed_components(matrix, request, space, divisor, edges)
        # in this order: the last one moves the finished group to its path
        outputs = {"statistics": sink.columns(statistics.dtypes), "loadings": sink}
        second = (yield _loadings(loadings, request, space, outputs, statistics)).accumulators
        assert request.loadings is not None
        summary = FeatureSummary.stored(request.loadings, statistics)
        fitted = fitted_from_samples(space, summary, matrix, request, 1)
    else:
        sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
        summary = FeatureSummary.held(sinks["statistics"], statistics)
        fitted = fitted_from_samples(space, summary, matrix, request, 1)
        if loadings is not None:
            components = np.empty((space.k, matrix.shape[1]))
            held = {"loadings": RowsSink(components.T, 0)}
            second = (yield _loadings(loadings, request, space, held)).accumulators
            fitted.components = finish_components(components, space.rank, fitted, request.center)
    if "removed" in sinks:
        removed = sinks["removed"].values.T
        fitted.mean, fitted.removed = removed[0].copy(), removed[1:].copy()
    counts = second.get("rows", first.get("rows"))
    if request.missing == "mean" and counts is not None:
        fitted.missing_by_sample = counts.counts()
    if cohort is not None and "scores" in second:
        fitted.scores = second["scores"].scores
        fitted.scores[cohort.rows] = space.u * space.s
    if relationship is not None:  # not before: after an interrupted fit the path must still be free
        written.finish()
    return fitted


def _first_sinks(matrix: ChunkedMatrix, statistics: FeatureStatistics | None) -> dict[str, Any]:
    """What the first pass keeps of every feature.  statistics : None if the second does."""
    sinks: dict[str, Any] = {}
    if statistics is not None:
        sinks["statistics"] = ColumnsSink(matrix.shape[1], len(statistics.names))
    if matrix.design is not None:
        sinks["removed"] = MemorySink(matrix.shape[1], 1 + matrix.design.shape[1])
    return sinks


def _streamed_components(
    matrix: ChunkedMatrix, request: Request, space: SampleSpace, divisor: float, edges: Any
) -> tuple[LabelledSink, FeatureStatistics]:
    """The Zarr sink of the components, and the map of the feature statistics stored with them."""
    assert request.loadings is not None
    variance = space.spectrum.head(space.k).values / divisor
    sink = components_sink(request.loadings, space.rank, variance, matrix, edges)
    rows = None if request.cohort is None else request.cohort.rows
    return sink, FeatureStatistics.of(matrix, request, divisor, rows)


def _loadings(
    spec: PassSpec,
    request: Request,
    space: SampleSpace,
    sinks: dict[str, Any],
    statistics: FeatureStatistics | None = None,
) -> Pass:
    """The second pass.

    Components beyond the numerical rank are 0 here; in memory they are completed afterwards.
    """
    cohort = request.cohort
    real = np.where(np.arange(space.k) < space.rank, space.s, np.inf)
    loadings = FeatureLoadings(request.standardize, None if cohort is None else cohort.rows)
    return Pass(
        spec,
        operands={"u": space.u, "s": real},
        maps={**({} if statistics is None else {"statistics": statistics}), "loadings": loadings},
        sinks=sinks,
    )
