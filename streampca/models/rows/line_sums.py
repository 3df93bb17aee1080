"""Column statistics and row sums of a matrix, each by one planned pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from streampca.accumulators import FeatureProjection, Moments
from streampca.kernels import Array, ColumnStats
from streampca.matrix import Block, ChunkedMatrix
from streampca.passes import (
    Candidate,
    Pass,
    PassCost,
    PassResult,
    PassSpec,
    Planned,
    Running,
    Steps,
    choose_axis,
    execute,
    pass_spec,
)
from streampca.store import MemorySink

RUNNING = Running()


def column_stats(
    matrix: ChunkedMatrix,
    name: str = "columns",
    running: Running = RUNNING,
    costs: list[PassCost] | None = None,
) -> ColumnStats:
    """Statistics of all columns: one pass along the axis that takes the least memory.

    costs : takes that of the pass.
    """
    done = execute(columns_planned(matrix, name, running.memory_limit), running)
    if costs is not None:
        costs += done.costs
    stats: ColumnStats = done.answer["columns"].columns()
    return stats


def columns_planned(
    matrix: ChunkedMatrix, name: str, memory_limit: int | str | None
) -> Planned[PassResult]:
    """What :func:`column_stats` runs."""
    specs = [pass_spec(name, matrix, axis, {"columns": Moments()}, stored=True) for axis in (0, 1)]
    return choose_axis(matrix, [Candidate(name, "", (spec,)) for spec in specs], memory_limit)


def row_sums(
    matrix: ChunkedMatrix,
    *,
    squares: bool = False,
    running: Running = RUNNING,
    costs: list[PassCost] | None = None,
) -> Array:
    """(n,) sums of the observed cells of every row, or of their squares: one pass.

    costs : takes that of the pass.
    """
    done = execute(rows_planned(matrix, squares, running.memory_limit), running)
    if costs is not None:
        costs += done.costs
    return done.answer


def rows_planned(
    matrix: ChunkedMatrix, squares: bool, memory_limit: int | str | None
) -> Planned[Array]:
    """What :func:`row_sums` runs."""
    name, (n, p) = "row sums", matrix.shape
    sums = {"sums": FeatureProjection(components="ones", center=None, width=1)}
    by_samples = PassSpec(
        name, 0, 0, 0, scratch=lambda length: 32 * length, kept_nbytes=8 * n, stored=True
    )
    by_features = pass_spec(name, matrix, 1, sums, kept_nbytes=8 * p, stored=True)
    by_axis = [
        Candidate(name, "", (spec,), solve=partial(solver, matrix=matrix, squares=squares))
        for spec, solver in ((by_samples, _sums_by_samples), (by_features, _sums_by_features))
    ]
    return choose_axis(matrix, by_axis, memory_limit)


def _sums_by_samples(
    planned: Planned[Array], *, matrix: ChunkedMatrix, squares: bool
) -> Steps[Array]:
    (spec,), sink = planned.candidate.passes, MemorySink(matrix.shape[0], 1)
    yield Pass(spec, maps={"sums": RowTotal(squares)}, sinks={"sums": sink})
    return sink.values[:, 0]


def _sums_by_features(
    planned: Planned[Array], *, matrix: ChunkedMatrix, squares: bool
) -> Steps[Array]:
    (spec,) = planned.candidate.passes
    done = (yield Pass(spec, operands={"ones": np.ones((1, matrix.shape[1]))}))["sums"]
    return np.array(done.norms if squares else done.projected()[:, 0])


def totals(stats: ColumnStats) -> Array:
    """(p,) sums of the observed cells."""
    return np.asarray((stats.mean + stats.mean_low) * stats.weight)


def row_sums_in_memory(matrix: ChunkedMatrix, squares: bool) -> Array:
    """(n,) as :func:`row_sums`, for rows in memory: no pass."""
    n = matrix.shape[0]
    block = Block(matrix.read(0, 0, n), 0, 0, n, missing_value=matrix.missing_value)
    return RowTotal(squares)(block)[:, 0]


@dataclass(frozen=True)
class RowTotal:
    """Sums of the rows of a block of samples, or of their squares, as a map."""

    squares: bool

    def __call__(self, block: Block) -> Array:
        p = block.shape[1]
        if block.sparse:
            entries = block.entries
            return (
                entries.row_norms()[:, None] if self.squares else entries.product(np.ones((p, 1)))
            )
        out = np.empty((block.length, 1))
        for tile in block.tiles(block.work_dtype):
            z = tile.values
            part = slice(tile.start - block.start, tile.stop - block.start)
            total = np.einsum("ij,ij->i", z, z, dtype=np.float64) if self.squares else None
            out[part, 0] = z.sum(axis=1, dtype=np.float64) if total is None else total
        return out
