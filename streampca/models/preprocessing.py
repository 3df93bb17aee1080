"""Count matrices made ready: total counts, logarithms, term weights. Lazy, block by block.

Each function takes what ``streampca.open`` takes and returns a matrix that every method takes;
sparse stays sparse. What must be known of all rows or columns first costs the passes that its
docstring says; the result reads the source again when it is used.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from streampca.accumulators import FeatureProjection, Moments
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats
from streampca.matrix import Block, ChunkedMatrix
from streampca.matrix.derived import DerivedMatrix, Function, Scale
from streampca.passes import Candidate, Execution, PassSpec, make_plan, pass_spec, run
from streampca.sources import as_matrix
from streampca.store import MemorySink


class _Running(TypedDict):
    """How a pass is run; no result depends on it."""

    memory_limit: int | str | None
    scheduler: Any
    progress: Any


def normalize_total(
    X: Any, target_sum: float | None = None, *,
    memory_limit: int | str | None = None, scheduler: Any = None, progress: Any = None,
) -> ChunkedMatrix:  # fmt: skip
    """Every row times target_sum / its sum, as scanpy's ``normalize_total``. Rows of zeros stay.

    target_sum : None takes the median of the sums that are not 0.
    memory_limit, scheduler, progress : of the pass, as :class:`PCA`.

    Cost: one pass for the sums of the rows.
    """
    running = _Running(memory_limit=memory_limit, scheduler=scheduler, progress=progress)
    number = isinstance(target_sum, numbers.Real) and not isinstance(target_sum, bool)
    if target_sum is not None and not (number and 0 < float(target_sum) < np.inf):
        raise InvalidInputError(f"target_sum={target_sum!r}; expected a positive number, or None")
    matrix = as_matrix(X)
    sums = row_sums(matrix, **running)
    if target_sum is None:
        counted = sums[sums > 0]
        target_sum = float(np.median(counted)) if counted.size else 1.0
    return DerivedMatrix(matrix, Scale(target_sum / np.where(sums == 0, target_sum, sums), 0))


def log1p(X: Any, base: float | None = None) -> ChunkedMatrix:
    """log(1 + x) of every cell, to that base (e).

    Cost: no pass. Raises InvalidInputError when a block with a value below 0 is read.
    """
    if base is not None and not (base > 0 and base != 1):
        raise InvalidInputError(f"base={base!r}; expected a positive number, or None for e")
    factor = 1.0 if base is None else 1.0 / float(np.log(base))
    return DerivedMatrix(as_matrix(X), Function("log1p", factor))


def tf_idf(
    X: Any, *, smooth: bool = True, norm: str | None = "l2",
    memory_limit: int | str | None = None, scheduler: Any = None, progress: Any = None,
) -> ChunkedMatrix:  # fmt: skip
    """Counts of terms times log inverse document frequency, as scikit-learn's TfidfTransformer.

    X : documents x terms.  idf = log((1 + n) / (1 + df)) + 1; without ``smooth`` no 1 is added to
    the counts.  norm : "l2" gives documents length 1; None leaves them.
    memory_limit, scheduler, progress : of the passes, as :class:`PCA`.

    Cost: one pass for the document frequencies, one for the lengths of the documents.
    """
    running = _Running(memory_limit=memory_limit, scheduler=scheduler, progress=progress)
    if norm not in ("l2", None):
        raise InvalidInputError(f"norm={norm!r}; expected 'l2' or None")
    matrix = as_matrix(X)
    presence = DerivedMatrix(matrix, Function("sign"))
    documents = np.rint(_totals(column_stats(presence, "document frequencies", **running)))
    n = matrix.shape[0]
    with np.errstate(divide="ignore"):
        weight = np.log((n + smooth) / (documents + smooth)) + 1.0
    weighted = DerivedMatrix(matrix, Scale(np.where(np.isfinite(weight), weight, 0.0), 1))
    if norm is None:
        return weighted
    lengths = np.sqrt(row_sums(weighted, squares=True, **running))
    return DerivedMatrix(weighted, Scale(1.0 / np.where(lengths > 0, lengths, 1.0), 0))


def log_entropy(
    X: Any, *,
    memory_limit: int | str | None = None, scheduler: Any = None, progress: Any = None,
) -> ChunkedMatrix:  # fmt: skip
    """log(1 + count) times the term's 1 + sum_i p_i log p_i / log n, p_i = count / its total.

    X : documents x terms.  memory_limit, scheduler, progress : of the passes, as :class:`PCA`.

    Cost: two passes. Source: Dumais 1991, "Improving the retrieval of information from external
    sources", eq. 1 (entropy).
    """
    running = _Running(memory_limit=memory_limit, scheduler=scheduler, progress=progress)
    matrix = as_matrix(X)
    if matrix.shape[0] < 2:
        raise InvalidInputError("log_entropy needs two documents or more: log n is its divisor")
    total = _totals(column_stats(matrix, "term totals", **running))
    information = DerivedMatrix(matrix, Function("x log x"))
    logs = _totals(column_stats(information, "term entropies", **running))
    safe = np.where(total > 0, total, 1.0)
    weight = 1.0 + (logs / safe - np.log(safe)) / np.log(matrix.shape[0])
    local = DerivedMatrix(matrix, Function("log1p"))
    return DerivedMatrix(local, Scale(np.where(total > 0, weight, 0.0), 1))


# -- the passes -----------------------------------------------------------------------------------


def column_stats(
    matrix: ChunkedMatrix, name: str = "columns", *, memory_limit: int | str | None = None,
    scheduler: Any = None, progress: Any = None,
) -> ColumnStats:  # fmt: skip
    """Statistics of all columns: one pass along the axis that takes the least memory."""
    specs = [pass_spec(name, matrix, axis, [Moments()], stored=True) for axis in (0, 1)]
    plan, execution = _planned(matrix, name, specs, memory_limit, scheduler, progress)
    done = run(plan.passes[0], matrix, accumulators={"columns": Moments()}, execution=execution)
    stats: ColumnStats = done["columns"].columns()
    return stats


def row_sums(
    matrix: ChunkedMatrix, *, squares: bool = False, memory_limit: int | str | None = None,
    scheduler: Any = None, progress: Any = None,
) -> Array:  # fmt: skip
    """(n,) sums of the observed cells of every row, or of their squares: one pass."""
    name, (n, p) = "row sums", matrix.shape
    ones = np.ones((1, p))
    by_features = FeatureProjection(components="ones", center=None, width=1)
    sink, total = MemorySink(n, 1), RowTotal(squares)
    specs = [
        PassSpec(name, 0, 0, 0, scratch=lambda length: 32 * length, kept_nbytes=8 * n, stored=True),
        pass_spec(name, matrix, 1, [by_features], kept_nbytes=8 * p, stored=True),
    ]
    plan, execution = _planned(matrix, name, specs, memory_limit, scheduler, progress)
    one = plan.passes[0]
    if one.axis == 0:
        run(one, matrix, maps={"sums": total}, sinks={"sums": sink}, execution=execution)
        return sink.values[:, 0]
    done = run(one, matrix, accumulators={"sums": by_features}, operands={"ones": ones},
               execution=execution)["sums"]  # fmt: skip
    return np.array(done.norms if squares else done.projected()[:, 0])


def _planned(
    matrix: ChunkedMatrix, name: str, specs: list[PassSpec], memory_limit: Any, scheduler: Any,
    progress: Any,
) -> tuple[Any, Execution]:  # fmt: skip
    """The plan of one pass, along the axis that fits better, and how to run it."""
    plans = [make_plan(matrix, name, [Candidate(name, "", (spec,))]) for spec in specs]
    best = 0 if plans[0].peak_nbytes <= 1.5 * plans[1].peak_nbytes else 1
    plan = make_plan(matrix, name, [Candidate(name, "", (specs[best],))], memory_limit)
    plan.check_machine()
    return plan, Execution.of(plan, scheduler, progress)


def _totals(stats: ColumnStats) -> Array:
    return np.asarray((stats.mean + stats.mean_low) * stats.weight)


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
