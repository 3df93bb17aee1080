"""PCA through the n x n Gram matrix of streamed features, and what else the fit writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from streampca.accumulators import Accumulator, Gram, RowMissing
from streampca.errors import InvalidInputError, OccupiedError
from streampca.kernels import Array
from streampca.matrix import (
    AxisLabels,
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
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.results.projection import FeatureLoadings, ScoresOfAllSamples
from streampca.passes import Candidate, Pass, PassSpec, Planned, Steps, larger, pass_spec
from streampca.store import ColumnsSink, LabelledSink, MemorySink, labelled_vector, occupied
from streampca.store.chunks import writing_nbytes
from streampca.store.sinks import CHUNK_NBYTES, chunk_for

RELATIONSHIP = "relationship"  # the name of the array
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Cohort:
    """Samples that are scored in addition to the fitted ones.

    everyone : the matrix of all of them.  rows : increasing numbers of the fitted ones.
    residuals : whether the squares of everyone's values are summed, too.
    """

    everyone: ChunkedMatrix
    rows: Array
    residuals: bool = False

    def sums(self, standardize: Standardize) -> dict[str, Accumulator]:
        """What the pass for the loadings sums of all samples."""
        scores = ScoresOfAllSamples(
            standardize=standardize, rows=self.rows, residuals=self.residuals
        )
        return {"scores": scores, "rows": RowMissing()}


@dataclass(frozen=True)
class GramOutputs:
    """What the fit makes of the Gram matrix on its way.

    loadings, relationship : paths of new Zarr groups for components and relationship matrix.
    cohort : all samples, where some are fitted and all are scored in the pass for the loadings.
    """

    loadings: str | None = None
    relationship: str | None = None
    cohort: Cohort | None = None

    @classmethod
    def at(cls, loadings: Path | None, relationship: Path | None, cohort: Cohort | None) -> Self:
        """The same, of paths of any kind."""
        v, grm = (None if one is None else os.fspath(one) for one in (loadings, relationship))
        return cls(v, grm, cohort)

    def refuse_occupied(self) -> None:
        """Refuse outputs that exist, or that share a path, before reading."""
        named = {"loadings": self.loadings, "relationship": self.relationship}
        paths = {name: path for name, path in named.items() if path is not None}
        for name, path in paths.items():
            if occupied(path):
                raise OccupiedError(f"{name}: {path} exists already; remove it or name another")
        if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
            raise InvalidInputError(f"{' and '.join(paths)} are one path; name two")


def write_relationship(path: str, lower: Array, n_used: int, samples: AxisLabels) -> LabelledSink:
    """The relationship matrix ZZ'/M as a Zarr group, M features used; in place when finished.

    ``relationship`` (sample, sample_2) float32, beside the samples' names and families.
    """
    n = len(lower)
    labels = {"sample": samples.columns("sample")}
    if "sample" in labels["sample"]:
        labels["sample_2"] = {"sample_2": labels["sample"]["sample"]}
    about = {"n_features_used": n_used}
    sink = LabelledSink(
        path, RELATIONSHIP, (n, n), ("sample", "sample_2"), labels, attributes=about
    )
    for start in range(0, n, sink.chunk):
        stop = min(start + sink.chunk, n)
        rows = np.empty((stop - start, n))
        rows[:, :stop] = np.tril(lower[start:stop, :stop], start)
        rows[:, start:stop] += np.tril(lower[start:stop, start:stop], -1).T
        rows[:, stop:] = lower[stop:, start:stop].T
        sink.write(start, (rows / max(n_used, 1)).astype(np.float32))
    return sink


def components_sink(
    path: str, rank: int, variance: Array, matrix: ChunkedMatrix, edges: Array
) -> LabelledSink:
    """The sink of components, block by block: (p, k) in the working dtype of the matrix.

    ``components`` (feature, component), unit columns, 0 in those after the rank; beside it the
    features' labels and ``explained_variance``; the pass adds the statistics of the features.
    edges : block boundaries of the pass that writes them.
    """
    p, k = matrix.shape[1], len(variance)
    dim = "-".join(matrix.labels.features.dims)
    dtype = work_dtype(matrix.dtype)
    return LabelledSink(
        path,
        COMPONENTS,
        (p, k),
        (dim, "component"),
        {dim: matrix.labels.features.columns(dim), "component": {"component": np.arange(1, k + 1)}},
        dtype,
        chunk_for(edges, max(1, CHUNK_NBYTES // (k * dtype.itemsize))),
        {"component": {"explained_variance": variance}},
        {"rank": rank},
    )


def streamed_nbytes(k: int, itemsize: int, length: int) -> int:
    """Scratch of writing blocks of that length: in the stored dtype, and what Zarr holds."""
    return k * itemsize * length + writing_nbytes(min(CHUNK_NBYTES, k * itemsize * length))


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
            scoring = cohort.sums(standardize)
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
        summary = statistics.stored(streamed)
    else:
        sinks["statistics"].values[statistics.names.index(VARIANCE)] /= divisor
        summary = statistics.held(sinks["statistics"])
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
        fitted.scores, fitted.squares = second["scores"].scores, second["scores"].squares
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
    """

    standardize: Standardize
    eps: float
    divisor: float
    weighted: bool
    rows: Array | None = None

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
