"""PCA through the n x n Gram matrix of streamed features."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Gram, RowMissing
from streampca.kernels import Array
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
    GramOutputs,
    components_sink,
    finish_components,
    statistics_nbytes,
    streamed_nbytes,
    write_relationship,
)
from streampca.models.results.projection import FeatureLoadings, ScoresOfAllSamples
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, larger, pass_spec
from streampca.store import ColumnsSink, MemorySink

NOTHING_ELSE = GramOutputs()


def gram_candidates(
    matrix: ChunkedMatrix, request: Request, outputs: GramOutputs = NOTHING_ELSE
) -> list[Candidate[Fitted]]:
    """One pass that sums the Gram matrix, and one for the components."""
    n, p = matrix.shape
    k, cohort = kept_count(matrix, request), outputs.cohort
    standardize = request.standardize
    sums: dict[str, Accumulator] = {"gram": Gram(standardize=standardize, missing=request.missing)}
    if request.missing == "mean" and (cohort is None or not request.components):
        sums["rows"] = RowMissing()
    solve, flops = eigh_cost(n, request, k)
    streamed = outputs.loadings is not None
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
        gram_by_features,
        matrix=matrix,
        request=request,
        outputs=outputs,
        spec=first,
        loadings=loadings,
    )
    return [Candidate("gram", reason, passes, terms, flops, solve=solver)]


def gram_by_features(
    planned: Planned[Any],
    *,
    matrix: ChunkedMatrix,
    request: Request,
    outputs: GramOutputs,
    spec: PassSpec,
    loadings: PassSpec | None,
) -> Steps[Fitted]:
    """Gram matrix in one pass, loadings (and the scores of a cohort) in a second.

    matrix : without what a design explains.
    """
    cohort, streamed = outputs.cohort, outputs.loadings
    weight = request.side.count(matrix.shape[0])
    statistics = FeatureStatistics.of(matrix, request, 1.0)
    sinks = _first_sinks(matrix, statistics if streamed is None else None)
    known: dict[str, Any] = {"statistics": statistics, "removed": found}
    maps = {name: known[name] for name in sinks}
    first = (yield Pass(spec, maps=maps, sinks=sinks)).accumulators
    gram = first.pop("gram")
    if outputs.relationship is not None:
        samples = matrix.labels.samples
        written = write_relationship(outputs.relationship, gram.lower(), gram.n_used, samples)
    probed = gram.rounding()
    if request.center:
        remove_mean(gram.lower(), gram.z_probe, request.side.sample_weight)
    space = solve_sample_space(gram.lower(), gram.z_probe, request, matrix, gram.n_used, probed)
    del gram  # n x n
    divisor = request.divisor(weight)
    second: dict[str, Any] = {}
    rows = None if cohort is None else cohort.rows
    components: Array | None = None
    if streamed is not None:
        assert loadings is not None
        edges = planned.blocks(loadings).edges
        statistics = FeatureStatistics.of(matrix, request, divisor, rows)
        variance = space.spectrum.head(space.k).values / divisor
        sink = components_sink(streamed, space.rank, variance, matrix, edges)
        # in this order: the last one moves the finished group to its path
        written_to = {"statistics": sink.columns(statistics.dtypes), "loadings": sink}
        wanted = _loadings(loadings, request, space, written_to, rows, statistics)
        second = (yield wanted).accumulators
        summary = FeatureSummary.stored(streamed, statistics)
    else:
        sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
        summary = FeatureSummary.held(sinks["statistics"], statistics)
        if loadings is not None:
            components = np.empty((space.k, matrix.shape[1]))
            held = {"loadings": RowsSink(components.T, 0)}
            second = (yield _loadings(loadings, request, space, held, rows)).accumulators
            components = finish_components(components, space.rank, summary, request.center)
    if "removed" in sinks:
        summary = summary.without(sinks["removed"].values.T)
    fitted = fitted_from_samples(space, summary, matrix, request, 1)
    fitted.components, fitted.streamed = components, streamed is not None
    counts = second.get("rows", first.get("rows"))
    if request.missing == "mean" and counts is not None:
        fitted.missing_by_sample = counts.counts()
    if cohort is not None and "scores" in second:
        fitted.scores = second["scores"].scores
        fitted.scores[cohort.rows] = space.u * space.s
    if outputs.relationship is not None:  # not before: after an interruption the path must be free
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


def _loadings(
    spec: PassSpec,
    request: Request,
    space: SampleSpace,
    sinks: dict[str, Any],
    rows: Array | None,
    statistics: FeatureStatistics | None = None,
) -> Pass:
    """The second pass.  rows : of the fitted samples, where blocks hold more.

    Components beyond the numerical rank are 0 here; in memory they are completed afterwards.
    """
    real = np.where(np.arange(space.k) < space.rank, space.s, np.inf)
    loadings = FeatureLoadings(request.standardize, rows)
    return Pass(
        spec,
        operands={"u": space.u, "s": real},
        maps={**({} if statistics is None else {"statistics": statistics}), "loadings": loadings},
        sinks=sinks,
    )
