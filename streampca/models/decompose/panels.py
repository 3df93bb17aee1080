"""PCA through the n x n Gram matrix of streamed samples, by panels of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator, CrossMoments, CrossProduct, Moments
from streampca.accumulators.base import refuse_partly_missing
from streampca.kernels import (
    PROBES,
    Array,
    ColumnStats,
    lower_product,
    probe,
    probe_vectors,
    reciprocal,
)
from streampca.matrix import ChunkedMatrix, Resolution, weighted_divisors, work_dtype
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import FeatureSummary, Fitted, finish_components
from streampca.models.decompose.eigenproblem import (
    RowsSink,
    count_missing,
    eigh_cost,
    fitted_from_samples,
    kept_count,
    remove_mean,
    sample_space_nbytes,
    solve_sample_space,
)
from streampca.models.side_data.design import residual_stats
from streampca.passes import (
    Candidate,
    Pass,
    PassResult,
    PassSpec,
    Planned,
    Steps,
    pass_spec,
    single_threaded_blas,
    size,
)
from streampca.store import MemorySink

PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_PANEL_NBYTES = 1 << 20  # not divided further: more reads would save almost no memory
FEATURES_AT_ONCE = 16384  # products over this many are added in the working dtype


@dataclass(frozen=True)
class PanelPasses:
    """The passes of a division into panels, in their order.

    moments : column statistics, where products need them.  panels : for each panel the pass that
    loads it, and one over the rows below it, unless it is the last.  loadings : if asked.
    """

    moments: PassSpec | None
    panels: tuple[tuple[PassSpec, PassSpec | None], ...]
    loadings: PassSpec | None

    def all(self) -> tuple[PassSpec, ...]:
        """All of them."""
        each = (self.moments, *(one for pair in self.panels for one in pair), self.loadings)
        return tuple(one for one in each if one is not None)


def panel_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """The Gram matrix from streamed samples: P panels of rows, (P + 1) / 2 reads."""
    n, p = matrix.shape
    k = kept_count(matrix, request)
    solve, flops = eigh_cost(n, request, k)
    solve |= {"Gram matrix": n * n * 8, "scores": 2 * n * k * 8, "column statistics": 20 * p * 8}
    before: dict[str, Accumulator] = {"columns": Moments()}
    read = matrix
    if (basis := request.side.basis) is not None:
        before["design"] = CrossMoments(y="design", width=basis.shape[1])
        read = matrix.without(basis, np.broadcast_to(0.0, (1 + basis.shape[1], p)))
    candidates = []
    for bounds in panel_divisions(matrix):
        moments = loadings = None
        if needs_moments(request):
            moments = pass_spec("moments", matrix, 0, before, flops=6.0 * n * p)
        if request.components:
            cross = CrossProduct(y="u", center="center", width=k)
            held = sample_space_nbytes(matrix, request, k)
            loadings = pass_spec(
                "loadings", matrix, 0, {"v": cross}, flops=2.0 * n * p * k, kept_nbytes=held
            )
            loadings = replace(loadings, matrix=read)
        specs = PanelPasses(moments, _panel_passes(matrix, read, request, bounds), loadings)
        count = len(bounds) - 1
        panel = int(np.diff(bounds).max()) * p * work_dtype(matrix.dtype).itemsize
        reason = (
            f"n x n Gram of streamed samples by {count} panels of rows ({size(panel)} each), "
            f"{(count + 1) / 2:g} reads, then eigh"
        )
        solver = partial(gram_by_panels, matrix=matrix, request=request, passes=specs)
        candidates.append(
            Candidate("gram by panels", reason, specs.all(), solve, flops, solve=solver)
        )
    return candidates


def _panel_passes(
    matrix: ChunkedMatrix, read: ChunkedMatrix, request: Request, bounds: np.ndarray[Any, Any]
) -> tuple[tuple[PassSpec, PassSpec | None], ...]:
    """For each panel a pass that loads it, and one over the rows below it.

    read : the matrix without what a design explains.
    """
    n, p = matrix.shape
    itemsize = work_dtype(matrix.dtype).itemsize
    longest = int(np.diff(bounds).max())
    held = (longest + 3 * PROBES) * p * itemsize + n * n * 8 + 2 * longest**2 * 8 + 12 * p * 8
    pairs: list[tuple[PassSpec, PassSpec | None]] = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        first, last = int(start), int(stop)
        counted = not (needs_moments(request) or i)
        columns: dict[str, Accumulator] = {"columns": Moments()} if counted else {}
        own = pass_spec(
            f"panel {i + 1}",
            matrix,
            0,
            columns,
            kept_nbytes=held,
            rows=(first, last),
            flops=float(last - first) ** 2 * p * 2,
        )
        own = replace(own, matrix=read, scratch=lambda length: length * p * itemsize)
        below = None
        if last < n:
            below = pass_spec(
                f"below panel {i + 1}",
                matrix,
                0,
                {"image": CrossProduct(y="h", center="center", width=PROBES), **columns},
                kept_nbytes=held,
                rows=(last, n),
                flops=2.0 * (n - last) * (last - first) * p,
            )
            scratch = partial(_below_scratch, longest=longest)
            below = replace(below, matrix=read, scratch=scratch)
        pairs.append((own, below))
    return tuple(pairs)


def _below_scratch(length: int, longest: int) -> int:
    """Bytes of products of so many rows with a panel."""
    return 3 * length * longest * 8


def panel_divisions(matrix: ChunkedMatrix) -> list[np.ndarray[Any, Any]]:
    """Bounds of the panels of rows, for each number of panels worth planning; fewest first."""
    row_nbytes = matrix.shape[1] * work_dtype(matrix.dtype).itemsize
    divisions: dict[int, np.ndarray[Any, Any]] = {}
    for wanted in PANELS:
        bounds = panel_bounds(matrix, wanted)
        divisions.setdefault(len(bounds), bounds)
        if int(np.diff(bounds).max()) * row_nbytes <= LEAST_PANEL_NBYTES:
            break
    return list(divisions.values())


def panel_bounds(matrix: ChunkedMatrix, count: int) -> np.ndarray[Any, Any]:
    """Row bounds of about ``count`` panels, on chunk edges."""
    n = matrix.shape[0]
    edges = matrix.chunk_edges(0)
    edges = np.arange(n + 1) if edges is None else edges
    wanted = np.linspace(0, n, count + 1)
    nearest = np.searchsorted(edges, wanted - 1e-9)
    return np.unique(edges[np.clip(nearest, 0, len(edges) - 1)])


def needs_moments(request: Request) -> bool:
    """Whether means or deviations must be known before products are formed."""
    filters = request.standardize.filters
    known = request.scale is None and not filters and request.missing != "mean"
    side = request.side
    return not known or side.sample_weight is not None or side.basis is not None


def gram_by_panels(
    planned: Planned[Any], *, matrix: ChunkedMatrix, request: Request, passes: PanelPasses
) -> Steps[Fitted]:
    """Gram of streamed samples: a panel of rows is held while the rows below it pass by.

    Without scaling, the rows are shifted by the first panel's mean and the Gram matrix is
    centred afterwards (J G J), so that the means cost no pass of their own.
    """
    work = _Panels(matrix, request)
    if passes.moments is not None:
        yield from work.standardize_first(passes.moments)
    for own, below in passes.panels:
        yield from work.add(own, below)
    stats = work.stats()
    probed = lower_product(work.gram, work.probes) - work.probed
    if request.center:
        remove_mean(work.gram, work.z_probe, request.side.sample_weight)
    space = solve_sample_space(work.gram, work.z_probe, request, matrix, work.used(stats), probed)
    holes, read, removed = work.holes, work.matrix, work.matrix.removed
    del work  # n x n
    divisor = request.divisor(request.side.count(matrix.shape[0]))
    summary = FeatureSummary.of_stats(stats, matrix, request, divisor)
    center = summary.mean
    if removed is not None:  # residuals have no mean
        summary, center = replace(summary, removed=removed[1:]), np.zeros_like(center)
    fitted = fitted_from_samples(space, summary, matrix, request, len(passes.all()))
    fitted.missing_by_sample = None if holes is None else holes.values[:, 0]
    if passes.loadings is not None:
        u, operands = space.u, {"center": center}
        if (sample_weight := request.side.sample_weight) is not None:
            u *= np.sqrt(sample_weight)[:, None]
        sums: dict[str, Any] = {"width": space.k}
        if summary.divisors is not None:
            operands["scale"], sums["scale"] = summary.divisors, "scale"
        done = yield Pass(
            passes.loadings,
            matrix=read,
            changed={"v": sums},
            side_inputs={"u": u},
            operands=operands,
            weighted=False,
        )
        v = done.accumulators.pop("v").cross_product()
        v /= np.where(space.s > 0, space.s, 1.0)
        fitted.components = finish_components(
            np.ascontiguousarray(v.T), space.rank, summary, request.center
        )
    return fitted


class _Panels:
    """The Gram matrix, filled panel by panel."""

    def __init__(self, matrix: ChunkedMatrix, request: Request) -> None:
        n = matrix.shape[0]
        self.matrix, self.request = matrix, request
        self.gram, self.z_probe = np.zeros((n, n)), np.zeros(n)
        self.probes, self.probed = probe_vectors(n), np.zeros((n, PROBES))  # H, and G H
        self.center: Array | None = None
        self.scale: Array | None = None
        self.weights = request.side.weights
        if self.weights is not None:  # without scaling they are known from the beginning
            self.scale = weighted_divisors(None, self.weights)
        self.columns: Moments | None = None  # complete after the first panel
        self.m2: Array | None = None  # (p,) of what a design leaves, else that of the columns
        self.holes: MemorySink | None = None  # (n, 1), where they count as means

    def standardize_first(self, spec: PassSpec) -> Steps[None]:
        """A pass for the column statistics, where products need them."""
        more: dict[str, Any] = {}
        if self.request.missing == "mean":
            self.holes = MemorySink(self.matrix.shape[0], 1, np.int64)
            more = {"maps": {"missing": count_missing}, "sinks": {"missing": self.holes}}
        basis = self.request.side.basis
        if basis is not None:
            more["side_inputs"] = {"design": basis}
        done = yield Pass(spec, **more)
        self.columns = done["columns"]
        if basis is not None:
            self._remove(basis, done["design"])
        eps = Resolution.of(self.matrix.dtype).eps
        scaling = self.request.standardize.resolve(self.stats(), eps, self.weights)
        self.center, self.scale = scaling.center, scaling.scale
        if basis is not None:
            self.center = np.zeros_like(scaling.center)

    def _remove(self, basis: Array, cross: CrossMoments) -> None:
        """From now on, read rows without what the design explains."""
        assert self.columns is not None
        columns, slopes = self.columns.columns(), cross.deviations().T
        eps = Resolution.of(self.matrix.dtype).eps
        self.m2 = residual_stats(columns, slopes, eps).m2
        self.matrix = self.matrix.without(basis, np.vstack([columns.mean, slopes]))

    def stats(self) -> ColumnStats:
        """Column statistics of the whole matrix; missing cells are refused here if required."""
        assert self.columns is not None
        stats = self.columns.columns()
        if self.request.missing == "raise":
            refuse_partly_missing(stats.missing, self.matrix.shape[0])
        return stats if self.m2 is None else replace(stats, m2=self.m2)

    def used(self, stats: ColumnStats) -> int:
        """Features that have observations, vary, and are not filtered."""
        eps = Resolution.of(self.matrix.dtype).eps
        scaling = self.request.standardize.resolve(stats, eps, self.weights)
        unused = scaling.constant | scaling.filtered | (stats.count == 0)
        return len(unused) - int(np.count_nonzero(unused))

    def add(self, own: PassSpec, below: PassSpec | None) -> Steps[None]:
        """Read the rows of a panel, and multiply them with themselves and all rows below."""
        p = self.matrix.shape[1]
        first, last = own.rows or (0, self.matrix.shape[0])
        stacked = np.empty((last - first + PROBES, p), work_dtype(self.matrix.dtype))
        panel, image = stacked[:-PROBES], stacked[-PROBES:]  # rows, and their part of H'Z
        loaded = yield Pass(
            own,
            matrix=self.matrix,
            maps={"panel": standardized},
            sinks={"panel": RowsSink(panel, first)},
            operands={} if self.center is None else self._operands(),
        )
        if self.center is None:
            self.center = panel.mean(axis=0, dtype=np.float64).astype(panel.dtype)
            if not self.request.center:
                self.center[:] = 0
            panel -= self.center
            if self.weights is not None:
                panel *= self.weights.astype(panel.dtype)
        with single_threaded_blas():
            self.gram[first:last, first:last] = feature_products(panel, panel)
            self.z_probe[first:last] = panel @ probe(0, p).astype(panel.dtype)
            image[...] = self.probes[first:last].T.astype(panel.dtype) @ panel
            self.probed[first:last] += feature_products(panel, image)
        seen = [loaded]
        if below is not None:
            seen.append((yield from self._below(below, first, last, stacked)))
        if self.columns is None:
            self.columns = Moments()
            for one in seen:
                self.columns.merge(one["columns"])

    def _below(self, spec: PassSpec, first: int, last: int, stacked: Array) -> Steps[PassResult]:
        """Products of the rows below a panel with it, and of both with H."""
        known = self._operands()
        own = np.zeros((len(self.probed) - last, PROBES))
        done = yield Pass(
            spec,
            matrix=self.matrix,
            changed={"image": {"scale": "scale"}} if "scale" in known else {},
            maps={"gram": AgainstPanel()},
            sinks={"gram": _Below(self.gram[last:, first:last], last, own)},
            operands={**known, "panel": stacked},
            side_inputs={"h": self._unweighted_probes()},
        )
        with single_threaded_blas():
            rest = done["image"].cross_product().T.astype(stacked.dtype)
            self.probed[first:last] += feature_products(stacked[:-PROBES], rest)
        self.probed[last:] += own
        return done

    def _unweighted_probes(self) -> Array:
        """H over the roots of the sample weights, since CrossProduct multiplies by the weights."""
        weight = self.request.side.sample_weight
        return self.probes if weight is None else self.probes * reciprocal(np.sqrt(weight))[:, None]

    def _operands(self) -> dict[str, Any]:
        known = {"center": self.center, "scale": self.scale}
        return {name: value for name, value in known.items() if value is not None}


def standardized(block: Any) -> Array:
    """A block of samples, centred and scaled by the operands, holes 0: (rows, p)."""
    out = np.empty(block.shape, block.work_dtype)
    center, scale = block.arrays.get("center"), block.arrays.get("scale")
    for tile in block.tiles(block.work_dtype, center=center, scale=scale):
        out[tile.start - block.start : tile.stop - block.start] = tile.values
    return out


@dataclass
class _Below(RowsSink):
    """Products with a panel go to the Gram matrix, those with its part of H'Z to ``probed``."""

    probed: Array

    def write(self, start: int, values: Array) -> None:
        super().write(start, values[:, :-PROBES])
        self.probed[start - self.first : start - self.first + len(values)] = values[:, -PROBES:]


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


@np.errstate(over="ignore", invalid="ignore")  # the solver checks for overflow
def feature_products(a: Array, b: Array) -> Array:
    """a b' in float64, from products over pieces of the features in the working dtype."""
    out = np.zeros((len(a), len(b)))
    step = FEATURES_AT_ONCE
    for i in range(0, a.shape[1], step):
        out += a[:, i : i + step] @ b[:, i : i + step].T
    return out
