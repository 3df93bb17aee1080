"""PCA through the n x n Gram matrix of streamed features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, Gram, RowMissing
from streampca.kernels import Array
from streampca.matrix import (
    Block,
    ChunkedMatrix,
    Column,
    Resolution,
    Standardize,
    found,
    work_dtype,
)
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import (
    LEFT_OUT_CODES,
    FeatureSummary,
    Fitted,
    finish_components,
    left_out_codes,
)
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
    GramOutputs,
    components_sink,
    lengths_of_images,
    mean_over_pairs,
    streamed_nbytes,
    with_others,
    write_relationship,
)
from streampca.models.results.projection import FeatureLoadings
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, larger, pass_spec
from streampca.store import ColumnsSink, LabelledSink, MemorySink, PartSink, labelled_vector

NOTHING_ELSE = GramOutputs()


def gram_candidates(
    matrix: ChunkedMatrix, request: Request, outputs: GramOutputs = NOTHING_ELSE
) -> list[Candidate[Fitted]]:
    """One pass that sums the Gram matrix, and one for the components."""
    n, p = matrix.shape
    k, cohort = kept_count(matrix, request), outputs.cohort
    standardize = request.standardize
    others = outputs.same_read
    part = None if others is None else others.fitted
    gram = Gram(standardize=standardize, missing=request.missing, part=part)
    sums: dict[str, Accumulator] = {"gram": gram}
    if request.missing == "mean" and (cohort is None or not request.components):
        sums["rows"] = RowMissing(part=part)
    if outputs.joint is not None:
        sums["joint"] = outputs.joint.blank(part=part)
    solve, flops = eigh_cost(n, request, k)
    streamed = outputs.loadings is not None
    held = {} if streamed else {"statistics of features": statistics_nbytes(matrix, request)}
    first = pass_spec("gram", matrix, 1, sums, flops=float(p) * n * n, kept=held)
    if others is not None:
        first = with_others(first, others)
    reason = "one pass over features; n x n Gram, then eigh"
    more = 0 if others is None else others.nbytes()
    loadings: PassSpec | None = None
    if request.components:
        loadings = _loadings_pass(matrix, request, outputs, held, more)
        to = " to Zarr" if streamed else ""
        reason += f"; a second pass for the components{to} (components=False saves it)"
    if (basis := request.side.basis) is not None:
        matrix = matrix.without(basis)
    first = replace(first, matrix=matrix if others is None else others.matrix)
    passes: tuple[PassSpec, ...] = (first,)
    if loadings is not None:
        loadings = replace(loadings, matrix=matrix if cohort is None else cohort.everyone)
        passes += (loadings,)
    solving = {"Gram matrix": first.total_nbytes} | solve
    if request.components and not streamed:  # the Gram matrix is freed before they are completed
        components = {"components": k * p * 8, "features of no use": 16 * p}
        solving = larger(solving, components | ({"kept arrays": more} if more else {}))
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


def _loadings_pass(
    matrix: ChunkedMatrix,
    request: Request,
    outputs: GramOutputs,
    held: Mapping[str, int],
    more: int,
) -> PassSpec:
    """The pass for the components.  held, more : bytes that are kept from the pass before."""
    (n, p), k, cohort = matrix.shape, kept_count(matrix, request), outputs.cohort
    rows = n if cohort is None else cohort.everyone.shape[0]
    vectors, streamed = vectors_nbytes(matrix, request, k), outputs.loadings is not None
    components = {} if streamed else {"components": k * p * 8}
    itemsize = work_dtype(matrix.dtype).itemsize

    def scratch(length: int) -> int:
        written = streamed_nbytes(k, itemsize, length) if streamed else 0
        return k * (rows + 2 * length) * 8 + written

    return PassSpec(
        "loadings",
        1,
        0,
        0,
        scratch=scratch,
        accumulators={} if cohort is None else cohort.sums(request.standardize),
        kept_nbytes=(0 if cohort is None else 4 * k * rows * 8) + more,
        kept={**held, **components, "eigenvectors and scores": vectors},
        flops=(2.0 if cohort is None else 4.0) * rows * p * k,
    )


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
    others = outputs.same_read
    statistics = FeatureStatistics.of(matrix, request, 1.0)
    if others is not None:
        statistics = replace(statistics, part=others.fitted)
    sinks = _first_sinks(matrix, statistics if streamed is None else None)
    known: dict[str, Any] = {"statistics": statistics, "removed": found}
    maps = {name: known[name] for name in sinks}
    written_first = sinks
    if others is not None:
        maps = {**others.parts, **maps}
        written_first = {name: PartSink(sink, others.place) for name, sink in sinks.items()}
    first = (yield Pass(spec, maps=maps, sinks=written_first)).accumulators
    space, lengths, written = _solved(first, matrix, request, outputs)
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
        wanted = _loadings(loadings, request, space, lengths, written_to, rows, statistics)
        second = (yield wanted).accumulators
        summary = statistics.stored(streamed)
    else:
        sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
        summary = statistics.held(sinks["statistics"])
        if loadings is not None:
            components = np.empty((space.k, matrix.shape[1]))
            held = {"loadings": RowsSink(components.T, 0)}
            second = (yield _loadings(loadings, request, space, lengths, held, rows)).accumulators
            components = finish_components(components, space.rank, summary, request.center)
    if "removed" in sinks:
        summary = summary.without(sinks["removed"].values.T)
    fitted = fitted_from_samples(space, summary, matrix, request, 1)
    fitted.components, fitted.streamed = components, streamed is not None
    fitted.others = {name: first[name] for name in (others.sums if others else ())}
    counts = second.get("rows", first.get("rows"))
    if request.missing == "mean" and counts is not None:
        fitted.missing_by_sample = counts.counts()
    if cohort is not None and "scores" in second:
        fitted.scores, fitted.squares = second["scores"].scores, second["scores"].squares
        fitted.scores[cohort.rows] = space.u * space.s
    if written is not None:  # not before: after an interruption the path must be free
        written.finish()
    return fitted


def _solved(
    first: dict[str, Any], matrix: ChunkedMatrix, request: Request, outputs: GramOutputs
) -> tuple[SampleSpace, Array, LabelledSink | None]:
    """(the eigenproblem solved, the lengths (k,) of Z'u, the relationship matrix if it is written).

    first : sums of the first pass, from which those are taken that are not needed any more.
    """
    gram, joint = first.pop("gram"), first.pop("joint", None)
    lower, used, written = gram.lower(), gram.n_used, None
    samples = matrix.labels.samples
    probed = gram.rounding()
    if joint is not None:
        probed = probed * mean_over_pairs(lower, joint, used, samples)
    if outputs.relationship is not None:
        written = write_relationship(outputs.relationship, lower, used, samples)
    if request.center and joint is None:
        remove_mean(lower, gram.z_probe, request.side.sample_weight)
    space = solve_sample_space(lower, gram.z_probe, request, matrix, used, probed)
    lengths = space.s if joint is None else lengths_of_images(lower, joint, used, space.u)
    return space, lengths, written


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
    lengths: Array,
    sinks: dict[str, Any],
    rows: Array | None,
    statistics: FeatureStatistics | None = None,
) -> Pass:
    """The second pass.

    lengths : (k,) of Z'u.  rows : of the fitted samples, where blocks hold more.
    Components beyond the numerical rank are 0 here; in memory they are completed afterwards.
    """
    real = np.where(np.arange(space.k) < space.rank, lengths, np.inf)
    loadings = FeatureLoadings(request.standardize, rows)
    return Pass(
        spec,
        operands={"u": space.u, "s": real},
        maps={**({} if statistics is None else {"statistics": statistics}), "loadings": loadings},
        sinks=sinks,
    )


# Column statistics of the features, in memory, or stored with the components.
#
# The statistics of a block are final when it passes, so that they are written as it passes: 40
# bytes a feature where they are held, nothing where they go to Zarr.

MEAN, VARIANCE, MISSING, LEFT_OUT, SCALE, DEVIATION = (
    "mean",
    "variance",
    "missing",
    "left_out",
    "scale",
    "deviation",
)
DTYPES = {MISSING: np.int32, LEFT_OUT: np.uint8}  # as stored; the others are float64
HELD = 65536  # positions kept in memory
AT_ONCE = 65536  # entries


@dataclass(frozen=True)
class FeatureStatistics:
    """(columns, len(names)) statistics of a block of features: a map.

    eps : resolution of the stored values.  divisor : of the sums of squares.
    rows : numbers of the samples that are fitted, where blocks hold more; None = all.
    part : of the blocks, where they hold more features too.
    """

    standardize: Standardize
    eps: float
    divisor: float
    weighted: bool
    rows: Array | None = None
    part: str | None = None

    @classmethod
    def of(
        cls, matrix: ChunkedMatrix, request: Request, divisor: float, rows: Array | None = None
    ) -> FeatureStatistics:
        """The statistics that this request needs."""
        weighted = request.side.weights is not None
        eps = Resolution.of(matrix.dtype).eps
        return cls(request.standardize, eps, divisor, weighted, rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the map returns."""
        scaled = self.standardize.scale is not None or self.standardize.filters
        divisors = (
            *([SCALE] if scaled or self.weighted else []),
            *([DEVIATION] if scaled and self.weighted else []),
        )
        return (MEAN, VARIANCE, MISSING, LEFT_OUT, *divisors)

    @property
    def dtypes(self) -> dict[str, Any]:
        """Name -> stored dtype."""
        return {name: DTYPES.get(name, np.float64) for name in self.names}

    def held(self, sink: ColumnsSink) -> FeatureSummary:
        """What the rows say that this map wrote to memory."""
        rows = dict(zip(self.names, sink.values, strict=True))
        places = [np.flatnonzero(rows[LEFT_OUT] == code) for code in LEFT_OUT_CODES]
        mean = rows[MEAN] if self.standardize.center else np.zeros_like(rows[MEAN])
        return self._summary(rows, mean, rows[MISSING].astype(np.int64), places)

    def stored(self, path: str) -> FeatureSummary:
        """What the columns say that this map stored with the components."""
        columns = {name: StoredColumn(path, name) for name in self.names}
        missing = StoredColumn(path, MISSING, np.int64)
        return self._summary(columns, columns[MEAN], missing, places_of(columns[LEFT_OUT]))

    def _summary(
        self, known: Mapping[str, Any], mean: Any, missing: Any, places: Sequence[Any]
    ) -> FeatureSummary:
        scale = known.get(SCALE)
        deviation = known.get(DEVIATION, None if self.weighted else scale)
        return FeatureSummary(
            mean, scale, deviation, known[VARIANCE], known[MEAN], missing, *places
        )

    def __call__(self, block: Block) -> Array:
        block = block.part(self.part)
        block = block if self.rows is None else block.take_rows(self.rows)
        stats = block.stats
        weights = block.arrays.get("feature_weights")
        scaling = self.standardize.resolve(stats, self.eps, weights)
        found = {
            MEAN: stats.mean,
            VARIANCE: stats.m2 / self.divisor,
            MISSING: stats.missing,
            LEFT_OUT: left_out_codes(stats, scaling),
            SCALE: scaling.scale,
            DEVIATION: scaling.deviation,
        }
        return np.stack([np.asarray(found[name], np.float64) for name in self.names], axis=1)


def statistics_nbytes(matrix: ChunkedMatrix, request: Request) -> int:
    """Bytes of these statistics for all features, held in memory."""
    names = FeatureStatistics.of(matrix, request, 1.0).names
    return 8 * (len(names) + 1) * matrix.shape[1]


class StoredColumn(Column):
    """An array of one dimension in the Zarr group of a fit.

    dtype : of what is read, where it is not the stored one. Raises SourceError where it is gone.
    """

    def __init__(self, path: str, name: str, dtype: Any = None) -> None:
        self.path, self.name = path, name
        self._array: Any = labelled_vector(path, name)
        self.length = int(self._array.shape[0])
        self.dtype = np.dtype(self._array.dtype if dtype is None else dtype)
        chunk = max(1, int(self._array.chunks[0]))
        self.piece = chunk * max(1, AT_ONCE // chunk)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> Array:
        if self._array is None:
            self._array = labelled_vector(self.path, self.name)
        return np.asarray(self._array[start:stop]).astype(self.dtype, copy=False)


class Places(Column):
    """Positions of the entries with one code, found on first use."""

    dtype = np.dtype(np.int64)

    def __init__(self, codes: Column, code: int, count: int) -> None:
        self.codes, self.code, self.count = codes, code, count
        self.piece = max(count, 1)  # one read finds the positions of all codes

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int) -> Array:
        found, first, seen = [np.empty(0, np.int64)], 0, 0
        for piece in self.codes.pieces():
            here = np.flatnonzero(piece == self.code) + first
            found.append(here[max(start - seen, 0) : max(stop - seen, 0)])
            first, seen = first + len(piece), seen + len(here)
            if seen >= stop:
                break
        return np.concatenate(found)


def places_of(codes: Column) -> list[Any]:
    """Positions of each code, as arrays, or as lazy columns if there are many. One read."""
    counts = dict.fromkeys(LEFT_OUT_CODES, 0)
    for piece in codes.pieces():
        for code in counts:
            counts[code] += int(np.count_nonzero(piece == code))
    columns = [Places(codes, code, count) for code, count in counts.items()]
    return [np.asarray(column) if len(column) <= HELD else column for column in columns]
