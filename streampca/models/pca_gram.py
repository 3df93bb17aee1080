"""PCA through the n x n Gram matrix: features streamed, or samples by panels of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import (
    OPEN_BLOCKS,
    Accumulator,
    CrossMoments,
    CrossProduct,
    Gram,
    Moments,
    RowMissing,
)
from streampca.accumulators.base import refuse_partly_missing
from streampca.kernels import Array, ColumnStats, probe
from streampca.matrix import (
    Block,
    ChunkedMatrix,
    Standardize,
    found,
    weighted_divisors,
    work_dtype,
)
from streampca.models.fitted import (
    Cohort,
    Fitted,
    Resolution,
    Runner,
    count_components,
    freedom,
    refuse_no_variant,
    solve_symmetric,
    standardization,
)
from streampca.models.given import given
from streampca.models.gram_outputs import components_sink, finish_components, write_relationship
from streampca.models.pca_plan import needs_moments
from streampca.models.pca_removal import residual_stats
from streampca.models.projection import FeatureLoadings, ScoresBesideFit
from streampca.passes import Plan, single_threaded_blas
from streampca.solvers import (
    Spectrum,
    certify,
    numerical_rank,
    residual_norms,
    rounding_floor,
    signs,
)
from streampca.store import MemorySink, Sink

LEAST_WEIGHT = 1e-4  # of the largest: rounding in the scores grows with the root of its inverse
FEATURES_AT_ONCE = 16384  # products over this many are added in the working dtype


@dataclass
class _Dual:
    """The eigenproblem on the side of the samples."""

    spectrum: Spectrum
    values: Array
    everything: bool
    residual: Array
    k: int
    gap: int | None
    rank: int  # components after it are rounding; their loadings are completed
    orientation: Array
    floor: float

    @property
    def u(self) -> Array:
        """(n, k) oriented eigenvectors."""
        return np.asarray(self.spectrum.vectors[:, : self.k] * self.orientation)

    @property
    def s(self) -> Array:
        """(k,) singular values."""
        return np.asarray(np.sqrt(self.spectrum.values[: self.k]))


def _solve_dual(
    lower: Array,
    z_probe: Array,
    settings: dict[str, Any],
    matrix: ChunkedMatrix,
    terms: int,
    used: int,
) -> _Dual:
    """terms : products that were added in the working dtype before float64 took them.

    used : features that vary; with none there is one component, of 0.
    """
    n = len(lower)
    refuse_no_variant(settings, used, matrix.shape[1])
    limit = min(n, max(used, 1) if settings["center"] else matrix.shape[1])
    with single_threaded_blas():
        spectrum, values, everything = solve_symmetric(lower, settings, limit)
        residual = residual_norms(lower, spectrum)
    floor = rounding_floor(work_dtype(matrix.dtype), spectrum, terms)
    rank = numerical_rank(values, n, floor)
    count = n - given(settings).rank
    k, gap = count_components(settings, values, spectrum, count, limit, rank)
    orientation = signs(spectrum.vectors[:, :k].T @ z_probe)
    return _Dual(spectrum, values, everything, residual, k, gap, rank, orientation, floor)


def _dual_fitted(
    dual: _Dual,
    stats: ColumnStats,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    passes: int,
) -> Fitted:
    beside = given(settings)
    weight = beside.count(matrix.shape[0])
    eps = Resolution.of(matrix.dtype).eps
    scaling = standardization(settings).resolve(stats, eps, beside.weights)
    dropped = np.flatnonzero(stats.count == 0)
    kept = dual.spectrum.head(dual.k)
    divisor = freedom(weight, settings)
    return Fitted(
        kept,
        dual.values if dual.everything else None,
        scaling.center,
        scaling.scale,
        weight,
        dual.rank,
        dropped,
        np.setdiff1d(np.flatnonzero(scaling.constant), dropped),
        certify(dual.residual[: dual.k], kept, dual.floor, divisor, passes, dual.rank),
        stats.m2 / divisor,
        dual.gap,
        None,
        unweighted_rows(dual.u * dual.s, beside.sample_weight),
        np.flatnonzero(scaling.filtered),
        stats.missing,
        column_mean=np.array(stats.mean),
        deviation=scaling.deviation,
    )


def unweighted_rows(values: Array, sample_weight: Array | None) -> Array | None:
    """Rows without the square roots of the sample weights; None where a weight is too small.

    (A row of weight 0 has no scores in the eigenvectors: those take the components.)
    """
    if sample_weight is None:
        return values
    if sample_weight.min() < LEAST_WEIGHT * sample_weight.max():
        return None
    return np.asarray(values / np.sqrt(sample_weight)[:, None])


def gram_by_features(
    plan: Plan,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    step: Runner,
    cohort: Cohort | None = None,
) -> Fitted:
    """Gram matrix in one pass, loadings (and the scores of a cohort) in a second."""
    standardize = standardization(settings)
    accumulators = {
        "gram": Gram(standardize=standardize, missing=settings["missing"]),
        "columns": Moments(),
    }
    sinks: dict[str, Any] = {}
    if matrix.design is not None:
        rank = 1 + matrix.design.shape[1]
        sinks = {
            "sinks": {"removed": MemorySink(matrix.shape[1], rank)},
            "maps": {"removed": found},
        }
    counted = settings["missing"] == "mean"
    scores_all = cohort is not None and settings["components"]
    if counted and not scores_all:
        accumulators["rows"] = RowMissing()
    first = step("gram", accumulators=accumulators, **sinks).accumulators
    gram = first.pop("gram")
    if (relationship := settings.get("relationship")) is not None:
        samples = matrix.labels.samples
        written = write_relationship(relationship, gram.lower(), gram.n_used, samples)
    terms = OPEN_BLOCKS * int(np.diff(plan.named("gram").edges).max())
    dual = _solve_dual(gram.lower(), gram.z_probe, settings, matrix, terms, gram.n_used)
    del gram  # n x n, before the statistics of all columns are joined
    fitted = _dual_fitted(dual, first["columns"].columns(), matrix, settings, 1)
    if sinks:
        removed = sinks["sinks"]["removed"].values.T
        fitted.mean, fitted.removed = removed[0].copy(), removed[1:].copy()
    if "rows" in accumulators:
        fitted.missing_by_sample = first["rows"].counts()
    del first
    if settings["components"]:
        _loadings(plan, matrix, settings, step, cohort, dual, fitted)
    if relationship is not None:  # not before: an interrupted fit must find its place free
        written.finish()
    return fitted


def _loadings(
    plan: Plan,
    matrix: ChunkedMatrix,
    settings: dict[str, Any],
    step: Runner,
    cohort: Cohort | None,
    dual: _Dual,
    fitted: Fitted,
) -> None:
    """The pass for the components, in memory or streamed to Zarr, and for a cohort's scores.

    Components of mere rounding are 0 in it, and completed afterwards where they are in memory.
    """
    standardize = standardization(settings)
    components, sink = None, None  # type: Array | None, Sink | None
    if (path := settings.get("loadings")) is None:
        components = np.empty((dual.k, matrix.shape[1]))
        sink = RowsSink(components.T, 0)
    else:
        variance = fitted.spectrum.values / freedom(fitted.weight, settings)
        sink = components_sink(path, fitted, variance, matrix, plan.named("loadings").edges)
    real = np.where(np.arange(dual.k) < dual.rank, dual.s, np.inf)
    second = step(
        "loadings",
        operands={"u": dual.u, "s": real},
        sinks={"loadings": sink},
        maps={"loadings": FeatureLoadings(standardize, None if cohort is None else cohort.rows)},
        accumulators=_cohort_scores(standardize, cohort),
        matrix=matrix if cohort is None else cohort.everyone,
    )
    if components is not None:
        fitted.components = finish_components(components, dual.rank, fitted, settings["center"])
    if cohort is not None:
        fitted.scores = second["scores"].scores
        fitted.scores[cohort.rows] = dual.u * dual.s
        counted = settings["missing"] == "mean"
        fitted.missing_by_sample = second["rows"].counts() if counted else None


def _cohort_scores(standardize: Standardize, cohort: Cohort | None) -> dict[str, Accumulator]:
    if cohort is None:
        return {}
    scores = ScoresBesideFit(standardize=standardize, rows=cohort.rows)
    return {"scores": scores, "rows": RowMissing()}


def gram_by_panels(
    plan: Plan, matrix: ChunkedMatrix, settings: dict[str, Any], step: Runner
) -> Fitted:
    """Gram of streamed samples: a panel of rows is held while the rows below it pass by.

    Without scaling, the rows are shifted by the first panel's mean and the Gram matrix is
    centred afterwards (J G J), so that the means cost no pass of their own.
    """
    work = _Panels(matrix, settings, step)
    if needs_moments(settings):
        work.standardize_first()
    count = sum(one.name.startswith("panel ") for one in plan.passes)
    for i in range(1, count + 1):
        edges = plan.named(f"panel {i}").edges
        work.add(i, int(edges[0]), int(edges[-1]))
    stats = work.stats()
    if settings["center"] and not needs_moments(settings):
        center_twice(work.gram, work.z_probe)
    terms = min(matrix.shape[1], FEATURES_AT_ONCE)
    dual = _solve_dual(work.gram, work.z_probe, settings, matrix, terms, work.used(stats))
    holes, read, removed = work.holes, work.matrix, work.matrix.removed
    del work  # n x n
    fitted = _dual_fitted(dual, stats, matrix, settings, len(plan.passes))
    fitted.missing_by_sample = None if holes is None else holes.values[:, 0]
    center = fitted.mean
    if removed is not None:  # residuals have no mean
        fitted.removed, center = removed[1:], np.zeros_like(center)
    if settings["components"]:
        operands = {"center": center}
        u = dual.u
        if (sample_weight := given(settings).sample_weight) is not None:
            u *= np.sqrt(sample_weight)[:, None]
        if fitted.scale is not None:
            operands["scale"] = fitted.scale
        cross = CrossProduct(
            y="u", center="center", scale="scale" if "scale" in operands else None, width=dual.k
        )
        v = step(
            "loadings",
            accumulators={"v": cross},
            side_inputs={"u": u},
            operands=operands,
            weights=None,
            matrix=read,
        )["v"].cross_product()
        v /= np.where(dual.s > 0, dual.s, 1.0)
        fitted.components = finish_components(
            np.ascontiguousarray(v.T), dual.rank, fitted, settings["center"]
        )
    return fitted


def count_missing(block: Block) -> Array:
    """(rows, 1) missing cells of each row of a block: a map."""
    return block.row_missing[:, None]


class _Panels:
    """The Gram matrix as it grows, panel by panel."""

    def __init__(self, matrix: ChunkedMatrix, settings: dict[str, Any], step: Runner) -> None:
        n = matrix.shape[0]
        self.matrix, self.settings, self.step = matrix, settings, step
        self.gram, self.z_probe = np.zeros((n, n)), np.zeros(n)
        self.center: Array | None = None
        self.scale: Array | None = None
        self.weights = given(settings).weights
        if self.weights is not None:  # without scaling they are known from the beginning
            self.scale = weighted_divisors(None, self.weights)
        self.columns: Moments | None = None  # complete after the first panel
        self.m2: Array | None = None  # (p,) of what a design leaves, else that of the columns
        self.holes: MemorySink | None = None  # (n, 1), where they count as means

    def standardize_first(self) -> None:
        """A pass for the column statistics, where products need them."""
        more: dict[str, Any] = {}
        if self.settings["missing"] == "mean":
            self.holes = MemorySink(self.matrix.shape[0], 1, np.int64)
            more = {"maps": {"missing": count_missing}, "sinks": {"missing": self.holes}}
        accumulators: dict[str, Accumulator] = {"columns": Moments()}
        basis = given(self.settings).basis
        if basis is not None:
            accumulators["design"] = CrossMoments(y="design", width=basis.shape[1])
            more["side_inputs"] = {"design": basis}
        done = self.step("moments", accumulators=accumulators, **more)
        self.columns = done["columns"]
        if basis is not None:
            self._remove(basis, done["design"])
        eps = Resolution.of(self.matrix.dtype).eps
        scaling = standardization(self.settings).resolve(self.stats(), eps, self.weights)
        self.center, self.scale = scaling.center, scaling.scale
        if basis is not None:
            self.center = np.zeros_like(scaling.center)

    def _remove(self, basis: Array, cross: CrossMoments) -> None:
        """From here on rows are read without what the design explains."""
        assert self.columns is not None
        columns, slopes = self.columns.columns(), cross.deviations().T
        eps = Resolution.of(self.matrix.dtype).eps
        self.m2 = residual_stats(columns, slopes, eps).m2
        self.matrix = self.matrix.without(basis, np.vstack([columns.mean, slopes]))

    def stats(self) -> ColumnStats:
        """Column statistics of the whole matrix; holes are refused here if they must be."""
        assert self.columns is not None
        stats = self.columns.columns()
        if self.settings["missing"] == "raise":
            refuse_partly_missing(stats.missing, self.matrix.shape[0])
        return stats if self.m2 is None else replace(stats, m2=self.m2)

    def used(self, stats: ColumnStats) -> int:
        """Features that have observations, vary, and are not filtered."""
        eps = Resolution.of(self.matrix.dtype).eps
        scaling = standardization(self.settings).resolve(stats, eps, self.weights)
        unused = scaling.constant | scaling.filtered | (stats.count == 0)
        return len(unused) - int(np.count_nonzero(unused))

    def add(self, i: int, first: int, last: int) -> None:
        """Hold rows first..last, and take their products with themselves and all below."""
        n, p = self.matrix.shape
        gather = self.columns is None
        fresh = {"columns": Moments()} if gather else {}
        panel = np.empty((last - first, p), work_dtype(self.matrix.dtype))
        loaded = self.step(
            f"panel {i}",
            matrix=self.matrix,
            maps={"panel": standardized},
            accumulators=fresh,
            sinks={"panel": RowsSink(panel, first)},
            operands={} if self.center is None else self._operands(),
        )
        if self.center is None:
            self.center = panel.mean(axis=0, dtype=np.float64).astype(panel.dtype)
            if not self.settings["center"]:
                self.center[:] = 0
            panel -= self.center
            if self.weights is not None:
                panel *= self.weights.astype(panel.dtype)
        with single_threaded_blas():
            self.gram[first:last, first:last] = feature_products(panel, panel)
            self.z_probe[first:last] = panel @ probe(0, p).astype(panel.dtype)
        seen = [loaded]
        if last < n:
            below = RowsSink(self.gram[last:, first:last], last)
            seen.append(
                self.step(
                    f"below panel {i}",
                    matrix=self.matrix,
                    maps={"gram": AgainstPanel()},
                    sinks={"gram": below},
                    operands={**self._operands(), "panel": panel},
                    accumulators=fresh,
                )
            )
        if gather:
            self.columns = Moments()
            for one in seen:
                self.columns.merge(one["columns"])

    def _operands(self) -> dict[str, Any]:
        known = {"center": self.center, "scale": self.scale}
        return {name: value for name, value in known.items() if value is not None}


@dataclass
class RowsSink(Sink):
    """A sink into an array in memory whose first row is row ``first`` of the streamed axis."""

    values: Array
    first: int

    def write(self, start: int, values: Array) -> None:
        self.values[start - self.first : start - self.first + len(values)] = values

    def concurrent(self, edges: Array) -> bool:
        return False

    def concurrent_threads(self, edges: Array) -> bool:
        return True  # rows of one block are not those of another

    def nbytes_in_memory(self) -> int:
        return int(self.values.nbytes)


def standardized(block: Any) -> Array:
    """A block of samples, centred and scaled by the operands, holes 0: (rows, p)."""
    out = np.empty(block.shape, block.work_dtype)
    center, scale = block.arrays.get("center"), block.arrays.get("scale")
    for tile in block.tiles(block.work_dtype, center=center, scale=scale):
        out[tile.start - block.start : tile.stop - block.start] = tile.values
    return out


class AgainstPanel:
    """Rows of the Gram matrix: products of a block's samples with those of the panel."""

    def __call__(self, block: Any) -> Array:
        panel = block["panel"]
        out = np.empty((block.length, len(panel)))
        scale = block.arrays.get("scale")
        for tile in block.tiles(block.work_dtype, center=block["center"], scale=scale):
            rows = slice(tile.start - block.start, tile.stop - block.start)
            out[rows] = feature_products(tile.values, panel)
        return out


def feature_products(a: Array, b: Array) -> Array:
    """a b' in float64, from products over pieces of the features in the working dtype."""
    out = np.zeros((len(a), len(b)))
    step = FEATURES_AT_ONCE
    for i in range(0, a.shape[1], step):
        out += a[:, i : i + step] @ b[:, i : i + step].T
    return out


def center_twice(lower: Array, z_probe: Array) -> None:
    """Turn the Gram matrix of shifted samples into that of centred ones, J G J, in place.

    lower : (n, n), only its lower triangle is valid.  z_probe : (n,) Z h of the same samples.
    """
    for i in range(len(lower)):
        lower[i, i + 1 :] = 0.0
    mean = (lower.sum(axis=1) + lower.sum(axis=0) - np.diagonal(lower)) / len(lower)
    lower -= mean[:, None]
    lower -= mean[None, :]
    lower += mean.mean()
    z_probe -= z_probe.mean()
