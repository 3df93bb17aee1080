"""What a fit that streams features keeps: relationship matrix, components, column statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.kernels import Array, ColumnStats
from streampca.matrix import (
    AxisLabels,
    Block,
    ChunkedMatrix,
    Column,
    Resolution,
    Scaling,
    Standardize,
    work_dtype,
)
from streampca.models.contract.request import Request
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.side_data.design import Removal
from streampca.passes import single_threaded_blas
from streampca.solvers import complete_columns
from streampca.store import ColumnsSink, LabelledSink, labelled_vector
from streampca.store.chunks import writing_nbytes
from streampca.store.sinks import CHUNK_NBYTES, chunk_for

RELATIONSHIP = "relationship"  # the name of the array


@dataclass(frozen=True)
class Cohort:
    """Samples that are scored in addition to the fitted ones.

    everyone : the matrix of all of them.  rows : increasing numbers of the fitted ones.
    """

    everyone: ChunkedMatrix
    rows: Array


@dataclass(frozen=True)
class GramOutputs:
    """What the fit makes of the Gram matrix on its way.

    loadings, relationship : paths of new Zarr groups for components and relationship matrix.
    cohort : all samples, where some are fitted and all are scored in the pass for the loadings.
    """

    loadings: str | None = None
    relationship: str | None = None
    cohort: Cohort | None = None


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


def finish_components(
    components: Array, rank: int, features: FeatureSummary, centered: bool
) -> Array:
    """(k, p) orthonormal rows from Z'u / s, in place; directions beyond the numerical rank are
    completed."""
    dead = features.dropped
    if features.divisors is not None:
        dead = np.union1d(dead, np.flatnonzero(features.divisors == 0.0))
    if centered:
        dead = np.union1d(dead, features.constant)
    with single_threaded_blas():
        complete_columns(components.T, rank, dead)
    return components


def streamed_nbytes(k: int, itemsize: int, length: int) -> int:
    """Scratch of writing blocks of that length: in the stored dtype, and what Zarr holds."""
    return k * itemsize * length + writing_nbytes(min(CHUNK_NBYTES, k * itemsize * length))


# Column statistics of a fit that streams features: in memory, or stored with its components.
#
# The statistics of a block are final when it passes, so that they are written as it passes: 40
# bytes a feature where they are held, nothing where they go to Zarr.

DROPPED, CONSTANT, FILTERED = 1, 2, 3  # codes of "left_out"; 0 means used
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
class FeatureSummary:
    """What a fit knows of each feature, under the names of the result: arrays, or stored columns.

    mean : what was subtracted.  divisors : weights of the features included; or None.
    scale : the divisors before weights entered them.  feature_variance, feature_mean : unscaled.
    missing : holes.  dropped, constant, filtered : places.
    removed : (r, p) coefficients of the basis of the design, or None.
    """

    mean: Any
    divisors: Any
    scale: Any
    feature_variance: Any
    feature_mean: Any
    missing: Any
    dropped: Any
    constant: Any
    filtered: Any
    removed: Any = None

    def fields(self, request: Request) -> dict[str, Any]:
        """The fields of the result."""
        known = dict(vars(self))
        del known["divisors"]  # which follow from the scale and the weights
        removed, design = known.pop("removed"), request.side.design
        if design is not None and removed is not None:
            known["removal"] = Removal(design, removed)
        if request.center:
            del known["feature_mean"]  # it is the mean
        return known

    def without(self, removed: Array) -> FeatureSummary:
        """These, where a design was removed.  removed : (1 + r, p) means, and coefficients."""
        return replace(self, mean=removed[0].copy(), removed=removed[1:].copy())

    @classmethod
    def of_stats(
        cls, stats: ColumnStats, matrix: ChunkedMatrix, request: Request, divisor: float
    ) -> FeatureSummary:
        """From the statistics of all columns.  divisor : of the sums of squares."""
        eps = Resolution.of(matrix.dtype).eps
        scaling = request.standardize.resolve(stats, eps, request.side.weights)
        return cls.of_scaling(stats, scaling, divisor)

    @classmethod
    def of_scaling(cls, stats: ColumnStats, scaling: Scaling, divisor: float) -> FeatureSummary:
        """The same, where their scaling is known."""
        codes = left_out_codes(stats, scaling)
        return cls(
            scaling.center,
            scaling.scale,
            scaling.deviation,
            stats.m2 / divisor,
            np.array(stats.mean),
            np.asarray(stats.missing),
            *(np.flatnonzero(codes == code) for code in (DROPPED, CONSTANT, FILTERED)),
        )

    @classmethod
    def held(cls, sink: ColumnsSink, statistics: FeatureStatistics) -> FeatureSummary:
        """From the rows that the map :class:`FeatureStatistics` wrote to memory."""
        rows = dict(zip(statistics.names, sink.values, strict=True))
        codes = rows[LEFT_OUT]
        return cls(
            rows[MEAN] if statistics.standardize.center else np.zeros_like(rows[MEAN]),
            rows.get(SCALE),
            rows.get(DEVIATION, rows.get(SCALE) if not statistics.weighted else None),
            rows[VARIANCE],
            rows[MEAN],
            rows[MISSING].astype(np.int64),
            *(np.flatnonzero(codes == code) for code in (DROPPED, CONSTANT, FILTERED)),
        )

    @classmethod
    def stored(cls, path: str, statistics: FeatureStatistics) -> FeatureSummary:
        """From the columns that the map stored with the components."""
        found: dict[str, Any] = {name: StoredColumn(path, name) for name in statistics.names}
        return cls(
            found[MEAN],
            found.get(SCALE),
            found.get(DEVIATION, found.get(SCALE) if not statistics.weighted else None),
            found[VARIANCE],
            found[MEAN],
            StoredColumn(path, MISSING, np.int64),
            *places_of(found[LEFT_OUT], (DROPPED, CONSTANT, FILTERED)),
        )


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


def left_out_codes(stats: ColumnStats, scaling: Scaling) -> Array:
    """(columns,) why a column is left out: no value, constant, filtered; 0 if it is used."""
    codes = np.where(scaling.filtered, FILTERED, 0)
    codes[scaling.constant] = CONSTANT
    codes[stats.count == 0] = DROPPED
    return codes


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


def places_of(codes: Column, wanted: Sequence[int]) -> list[Any]:
    """Positions of each code, as arrays, or as lazy columns if there are many. One read."""
    counts = dict.fromkeys(wanted, 0)
    for piece in codes.pieces():
        for code in wanted:
            counts[code] += int(np.count_nonzero(piece == code))
    columns = [Places(codes, code, count) for code, count in counts.items()]
    return [np.asarray(one) if len(one) <= HELD else one for one in columns]
