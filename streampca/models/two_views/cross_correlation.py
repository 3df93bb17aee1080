"""Correlations of all features of X with all of Y, in memory or in blocks to Zarr."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.accumulators import Scatter
from streampca.accumulators.base import refuse_incomplete
from streampca.kernels import Array, row_pieces
from streampca.matrix import Block, ChunkedMatrix, Pair, Standardize, paired, work_dtype
from streampca.matrix.columns import label_array
from streampca.models.decompose.covariance import refuse_single
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Rates,
    Running,
    Steps,
    choose,
    execute,
    pass_spec,
)
from streampca.sources import as_pair
from streampca.store import LabelledSink, PanelSink, Sink
from streampca.store.chunks import writing_nbytes

NAME, DIMS = "cross_correlation", ("x", "y")
PANELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHUNK_NBYTES = 8 << 20


@dataclass(frozen=True)
class Wanted:
    """path : of a new group; None keeps the (p, q) result in memory."""

    pair: Pair
    path: str | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.pair.x.shape[1], self.pair.y.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is written; in memory it is float64."""
        return work_dtype(np.result_type(self.pair.x.dtype, self.pair.y.dtype))


def cross_correlation(
    X: Any,
    Y: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> Any:
    """R_xy: correlations of the p features of X with the q of Y; NaN beside constant features.

    X (n, p), Y (n, q) : rows are paired as by :class:`streampca.CCA`; rows of one side alone are
        left out.
    out : path of a new Zarr group that holds ``cross_correlation`` (p, q) in chunks with the names
        of the features; its array is returned, opened. None: (p, q) float64 in memory, a
        DataArray where features have names.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`streampca.PCA`.

    Cost: one read of both, n (p + q)^2 flops and (p + q)^2 float64; or, where that is more, one
    read of Y and one of X for each panel of Y's features that the memory holds, 2 n p q flops.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError, before anything is written.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import cross_correlation
    >>> X = np.random.default_rng(0).standard_normal((50, 2))
    >>> cross_correlation(X, -X[:, :1]).round(2)
    array([[-1.  ],
           [-0.17]])
    """
    x, y = as_pair(X, Y, dim=dim, missing_value=missing_value)
    wanted = Wanted(paired(x, y), None if out is None else os.fspath(out))
    refuse_single(wanted.pair.x.shape[0])
    running = Running(memory_limit, scheduler, progress)
    return execute(choose_cross_correlation(wanted, running), running).answer


def choose_cross_correlation(wanted: Wanted, running: Running) -> Planned[Any]:
    """The quicker way that fits the memory. Raises MemoryLimitError."""
    matrix = wanted.pair.joint()
    candidates = [one for way in WAYS.values() for one in way(matrix, wanted)]
    timed = Rates.of(None).timed(matrix, candidates)
    return choose(matrix, NAME, timed, running.memory_limit)


# -- by the joint scatter --------------------------------------------------------------------------


def _scatter_candidates(matrix: ChunkedMatrix, wanted: Wanted) -> list[Candidate[Any]]:
    (n, m), (p, q) = matrix.shape, wanted.shape
    spec = pass_spec("scatter", matrix, 0, {"scatter": Scatter()}, flops=float(n) * m * m)
    held = (
        {"correlations": 8 * p * q} if wanted.path is None else {"correlations": 4 * CHUNK_NBYTES}
    )
    solve = {"joint scatter": spec.total_nbytes, **held}
    reason = "one read of both; their joint scatter"
    solver = partial(_by_scatter, wanted=wanted, spec=spec)
    return [Candidate("scatter", reason, (spec,), solve, solve=solver)]


def _by_scatter(planned: Planned[Any], *, wanted: Wanted, spec: PassSpec) -> Steps[Any]:
    output = Output(wanted)
    scatter = (yield Pass(spec)).accumulators.pop("scatter")
    lower, p = scatter.lower(), wanted.shape[0]
    deviation = np.sqrt(np.maximum(np.diagonal(lower), 0.0))
    for rows in row_pieces(p, 8 * (len(lower) - p), CHUNK_NBYTES):
        with np.errstate(divide="ignore", invalid="ignore"):
            part = lower[p:, rows].T / deviation[rows, None] / deviation[p:]
        output.whole.write(rows.start, np.clip(part, -1.0, 1.0))
    return output.finished()


# -- by panels of Y --------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandardColumns:
    """(features, n) standardised features of a block over n - 1; NaN where one does not vary.

    Against a panel of such, (n, w), their products: correlations (features, w).
    dtype : of the arithmetic, that of both views together: float32 only where both are.
    """

    dtype: Any

    def __call__(self, block: Block) -> Array:
        refuse_incomplete(block)
        n, panel = block.shape[0], block.arrays.get("panel")
        scaling = Standardize(True, "std").resolve(block.stats, block.eps)
        out = np.empty((block.length, n if panel is None else panel.shape[1]), self.dtype)
        for tile in block.tiles(self.dtype, scaling.center, scaling.scale):
            rows = out[tile.start - block.start : tile.stop - block.start]
            if panel is None:
                np.divide(tile.values.T, n - 1.0, out=rows, casting="unsafe")
            else:
                np.clip(tile.values.T @ panel, -1.0, 1.0, out=rows)
        out[scaling.constant | (block.stats.count == 0)] = np.nan
        return out


def _panel_candidates(matrix: ChunkedMatrix, wanted: Wanted) -> list[Candidate[Any]]:
    """Panels of Y are held, standardised, while X passes by."""
    (n, _), (p, q), size = matrix.shape, wanted.shape, wanted.dtype.itemsize
    x, y = wanted.pair.x, wanted.pair.y
    chunks = 0 if wanted.path is None else writing_nbytes(CHUNK_NBYTES, shared=True)
    found = []
    for bounds in _divisions(y):
        width, panels = int(np.diff(bounds).max()), []
        held = {"panel": 3 * n * width * size}
        if wanted.path is None:
            held["correlations"] = 8 * p * q

        def against(length: int, width: int = width) -> int:
            return 3 * length * width * size + chunks  # products, clipped, and those before

        for i, (first, last) in enumerate(pairwise(bounds), 1):
            own = PassSpec(
                f"panel {i}",
                1,
                scratch=lambda length: 2 * length * n * size,
                rows=(int(first), int(last)),
                kept=held,
                matrix=y,
            )
            by_x = PassSpec(
                f"X by panel {i}",
                1,
                scratch=against,
                kept=held,
                matrix=x,
                flops=2.0 * n * p * float(last - first),
            )
            panels.append((own, by_x))
        count = len(bounds) - 1
        reason = f"one read of Y, {count} of X: a panel of Y is held while X passes by"
        passes = tuple(spec for pair in panels for spec in pair)
        solver = partial(_by_panels, wanted=wanted, panels=panels, width=width)
        sizes = {"width": width}
        found.append(Candidate("panels", reason, passes, sizes=sizes, solve=solver))
    return found


def _divisions(y: ChunkedMatrix) -> list[Array]:
    """Bounds of panels of features, on chunk edges where there are any; the fewest first."""
    q, edges = y.shape[1], y.chunk_edges(1)
    edges = np.arange(q + 1) if edges is None else np.asarray(edges)
    found: dict[int, Array] = {}
    for count in PANELS:
        wanted = np.searchsorted(edges, np.linspace(0, q, count + 1) - 1e-9)
        bounds = np.unique(edges[np.clip(wanted, 0, len(edges) - 1)])
        found.setdefault(len(bounds), bounds)
    return list(found.values())


def _by_panels(
    planned: Planned[Any],
    *,
    wanted: Wanted,
    panels: Sequence[tuple[PassSpec, PassSpec]],
    width: int,
) -> Steps[Any]:
    """panels : of each the pass that holds it, and that of X.  width : of the widest."""
    n, make, output = planned.matrix.shape[0], StandardColumns(wanted.dtype), Output(wanted, width)
    for own, by_x in panels:
        assert own.rows is not None
        columns = slice(*own.rows)
        rows = np.empty((columns.stop - columns.start, n), wanted.dtype)
        yield Pass(own, maps={"rows": make}, sinks={"rows": RowsSink(rows, columns.start)})
        yield Pass(
            by_x,
            maps={"rows": make},
            sinks={"rows": output.of_columns(columns)},
            operands={"panel": rows.T},
        )
    return output.finished()


WAYS: dict[str, Callable[[ChunkedMatrix, Wanted], list[Candidate[Any]]]] = {
    "scatter": _scatter_candidates,
    "panels": _panel_candidates,
}

# -- where it goes ---------------------------------------------------------------------------------


@dataclass
class Output:
    """Where correlations are written: an array in memory, or a new group.

    width : features of Y that are written at a time; None for all.
    """

    wanted: Wanted
    width: int | None = None
    whole: LabelledSink | RowsSink = field(init=False)

    def __post_init__(self) -> None:
        in_memory = self.wanted.path is None
        self.whole = RowsSink(np.empty(self.wanted.shape), 0) if in_memory else self._group()

    def of_columns(self, columns: slice) -> Sink:
        """What takes these columns."""
        if isinstance(self.whole, LabelledSink):
            return PanelSink(self.whole, columns)
        return RowsSink(self.whole.values[:, columns], 0)

    def finished(self) -> Any:
        """What the caller gets."""
        if isinstance(self.whole, LabelledSink):
            self.whole.finish()
            return self.whole.array
        names = _names(self.wanted)
        if all(name is None for name in names):
            return self.whole.values
        from streampca.sources.labelled.to_xarray import to_dataarray

        return to_dataarray(self.whole.values, list(zip(DIMS, names, strict=True)), NAME, {})

    def _group(self) -> LabelledSink:
        """The new group. A chunk has the features of Y of one panel, at most."""
        wanted = self.wanted
        assert wanted.path is not None
        q = wanted.shape[1]
        across = min(self.width or q, q, CHUNK_NBYTES // wanted.dtype.itemsize)
        labels = {
            dim: {} if names is None else {dim: names}
            for dim, names in zip(DIMS, _names(wanted), strict=True)
        }
        return LabelledSink(
            wanted.path,
            NAME,
            wanted.shape,
            DIMS,
            labels,
            wanted.dtype,
            max(1, CHUNK_NBYTES // (across * wanted.dtype.itemsize)),
            across=across,
        )


def _names(wanted: Wanted) -> list[Array | None]:
    axes = (wanted.pair.x.labels.features, wanted.pair.y.labels.features)
    return [label_array(axis.names()) if axis.named else None for axis in axes]
