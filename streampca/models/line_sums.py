"""Column statistics and row sums of a matrix, each by one planned pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators import FeatureProjection, Moments
from streampca.kernels import Array, ColumnStats
from streampca.matrix import Block, ChunkedMatrix
from streampca.passes import (
    Candidate,
    Execution,
    PassCost,
    PassSpec,
    Plan,
    make_plan,
    pass_spec,
    run,
)
from streampca.store import MemorySink


def column_stats(
    matrix: ChunkedMatrix, name: str = "columns", *, memory_limit: int | str | None = None,
    scheduler: Any = None, progress: Any = None, costs: list[PassCost] | None = None,
) -> ColumnStats:  # fmt: skip
    """Statistics of all columns: one pass along the axis that takes the least memory.

    costs : takes that of the pass.
    """
    plan = columns_plan(matrix, name, memory_limit)
    execution = Execution.begun(plan, matrix, scheduler, progress)
    done = run(plan.passes[0], matrix, execution=execution)
    if costs is not None:
        costs += execution.costs
    stats: ColumnStats = done["columns"].columns()
    return stats


def columns_plan(matrix: ChunkedMatrix, name: str, memory_limit: int | str | None) -> Plan:
    """The plan of :func:`column_stats`."""
    specs = [pass_spec(name, matrix, axis, {"columns": Moments()}, stored=True) for axis in (0, 1)]
    return _easier(matrix, name, specs, memory_limit)


def row_sums(
    matrix: ChunkedMatrix, *, squares: bool = False, memory_limit: int | str | None = None,
    scheduler: Any = None, progress: Any = None, costs: list[PassCost] | None = None,
) -> Array:  # fmt: skip
    """(n,) sums of the observed cells of every row, or of their squares: one pass.

    costs : takes that of the pass.
    """
    n, p = matrix.shape
    ones = np.ones((1, p))
    sink, total = MemorySink(n, 1), RowTotal(squares)
    plan = rows_plan(matrix, memory_limit)
    execution = Execution.begun(plan, matrix, scheduler, progress)
    one = plan.passes[0]
    if one.axis == 0:
        run(one, matrix, maps={"sums": total}, sinks={"sums": sink}, execution=execution)
        found = sink.values[:, 0]
    else:
        done = run(one, matrix, operands={"ones": ones}, execution=execution)["sums"]
        found = np.array(done.norms if squares else done.projected()[:, 0])
    if costs is not None:
        costs += execution.costs
    return found


def rows_plan(matrix: ChunkedMatrix, memory_limit: int | str | None) -> Plan:
    """The plan of :func:`row_sums`."""
    name, (n, p) = "row sums", matrix.shape
    by_features = FeatureProjection(components="ones", center=None, width=1)
    specs = [
        PassSpec(name, 0, 0, 0, scratch=lambda length: 32 * length, kept_nbytes=8 * n, stored=True),
        pass_spec(name, matrix, 1, {"sums": by_features}, kept_nbytes=8 * p, stored=True),
    ]
    return _easier(matrix, name, specs, memory_limit)


def planned_pass(
    matrix: ChunkedMatrix, name: str, specs: list[PassSpec], memory_limit: Any, scheduler: Any,
    progress: Any,
) -> tuple[Plan, Execution]:  # fmt: skip
    """The plan of one pass, along the more suitable axis, and its execution."""
    plan = _easier(matrix, name, specs, memory_limit)
    return plan, Execution.begun(plan, matrix, scheduler, progress)


def _easier(
    matrix: ChunkedMatrix, name: str, specs: list[PassSpec], memory_limit: int | str | None
) -> Plan:
    """The plan of one pass, along the more suitable axis."""
    plans = [make_plan(matrix, name, [Candidate(name, "", (spec,))]) for spec in specs]
    best = 0 if plans[0].portable_nbytes <= 1.5 * plans[1].portable_nbytes else 1
    return make_plan(matrix, name, [Candidate(name, "", (specs[best],))], memory_limit)


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
