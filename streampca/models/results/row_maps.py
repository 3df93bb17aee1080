"""The planned passes by which a fitted result is applied to rows: into a sink, or into sums."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from streampca.accumulators import Accumulator
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, work_dtype
from streampca.matrix.block import score_dtype
from streampca.passes import (
    Pass,
    PassCost,
    PassResult,
    PassSpec,
    Planned,
    Running,
    Steps,
    easier_axis,
    one_pass,
    pass_spec,
    small_pass,
)
from streampca.store import MemorySink, ZarrSink
from streampca.store.chunks import writing_nbytes
from streampca.store.sinks import chunk_for

WRITTEN_NBYTES = 16 << 20  # of rows in a chunk
SinkOf = TypeVar("SinkOf", MemorySink, ZarrSink)
SHARED_NBYTES = 2 << 20  # of those in a chunk that several blocks fill, if these are short


@dataclass(frozen=True)
class RowOptions:
    """Parameters of an estimator that concern rows; a kind reads those that it knows.

    missing : "raise" refuses holes.  whiten : scores have variance 1.  scores : which ones, of
        factors.  centre : False where blocks come without the mean, and what else was removed.
    unstated : nothing says what calls of genotypes mean: of how many copies, which is missing.
    """

    missing: str = "raise"
    whiten: bool = False
    scores: str = "regression"
    centre: bool = True
    unstated: bool = False


@dataclass(frozen=True)
class FeatureSums:
    """How a map is applied to blocks of features: sums over the features of each row.

    finish : of the accumulator and the eps of the arithmetic, the rows (n, width).
    """

    accumulator: Accumulator
    operands: dict[str, Any]
    finish: Callable[[Any, float], Array]


class RowMap:
    """A map of a pass, from a block of rows to (rows, ``width``).

    It holds everything that it needs, and is sent to workers.
    """

    @property
    def width(self) -> int:
        """The number of output columns."""
        raise NotImplementedError

    def __call__(self, block: Block) -> Array:
        """(rows, width) of a block of samples."""
        raise NotImplementedError

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Bytes that so many rows need in addition to blocks and tiles."""
        raise NotImplementedError

    def by_features(self) -> FeatureSums | None:
        """The same by blocks of features, for very wide rows; None if that is not possible."""
        return None

    def apply(self, values: Any, missing_value: float | None = None) -> Array:
        """(rows, width) of rows in memory."""
        return self(self.block_of(values, missing_value))

    def block_of(self, values: Any, missing_value: float | None) -> Block:
        """Rows in memory as a block of the matrix that this maps."""
        return Block(values, 0, 0, values.shape[0], missing_value=missing_value)


@dataclass(frozen=True)
class RowPasses:
    """Rows, opened as those of a fit, and the passes over them.

    Blocks of samples are mapped one by one. Where those would be huge, features are streamed, and
    what belongs to a row is summed up over all blocks.
    kept_nbytes : of the model that is applied.  costs : takes those of the passes that were made.
    """

    matrix: ChunkedMatrix
    options: RowOptions
    running: Running
    kept_nbytes: int
    costs: list[PassCost] = field(default_factory=list)

    @property
    def by_features(self) -> bool:
        """Whether features are streamed."""
        return easier_axis(self.matrix) == 1

    @property
    def dtype(self) -> Any:
        """The dtype of scores of these rows."""
        return score_dtype(self.matrix.dtype)

    @property
    def eps(self) -> float:
        """The resolution of the arithmetic of blocks."""
        return float(np.finfo(work_dtype(self.matrix.dtype)).eps)

    def table(self, name: str, rows: RowMap, dtype: Any = np.float64) -> Array:
        """(n, width) in memory, by samples or by features.  name : of the pass."""
        sums = rows.by_features() if self.by_features else None
        if sums is None:
            return self.mapped(name, rows).in_memory(rows.width, dtype)
        total = self.fold(name, 1, {"total": sums.accumulator}, sums.operands)["total"]
        return np.asarray(sums.finish(total, self.eps), dtype=dtype)

    def written(self, name: str, rows: RowMap, out: str | os.PathLike[str], overwrite: bool) -> Any:
        """The new Zarr array of (n, width), block by block where samples are streamed."""
        if not self.by_features or rows.by_features() is None:
            mapped = self.mapped(name, rows)
            return mapped.written(out, rows.width, self.dtype, overwrite=overwrite)
        sink = ZarrSink(out, self.matrix.shape[0], rows.width, self.dtype, overwrite=overwrite)
        sink.write(0, self.table(name, rows, self.dtype))
        sink.finish()
        return sink.array

    def fold(
        self,
        name: str,
        axis: int,
        accumulators: Mapping[str, Accumulator],
        operands: dict[str, Any],
    ) -> PassResult:
        """One planned pass of accumulators."""
        kept = sum(int(operand.nbytes) for operand in operands.values())
        spec = pass_spec(name, self.matrix, axis, accumulators, kept_nbytes=kept, stored=True)
        done = one_pass(self.matrix, spec, self.running, operands=operands)
        self.costs.extend(done.costs)
        sums: PassResult = done.answer
        return sums

    def mapped(
        self,
        name: str,
        function: Any,
        side_inputs: dict[str, Any] | None = None,
        stored: bool = True,
    ) -> MappedRows:
        """The results of a function of every block of samples, by one planned pass."""
        return MappedRows(name, self, function, stored, side_inputs)


@dataclass(frozen=True)
class MappedRows:
    """The results of a function of every block of samples; nothing is read before they are
    requested.

    name : of the pass.
    function : of a Block, its rows; ``scratch_nbytes(matrix)`` says what a block needs for it.
    stored : of sparse blocks it takes the stored entries alone.
    side_inputs : arrays aligned with the samples.
    """

    name: str
    rows: RowPasses
    function: Any
    stored: bool = True
    side_inputs: dict[str, Any] | None = None

    def in_memory(self, width: int, dtype: Any = np.float64) -> Array:
        """(n, width) rows."""
        rows = self.rows
        sink = MemorySink(rows.matrix.shape[0], width, dtype)
        spec, sides = self._spec(sink.nbytes_in_memory()), self.side_inputs or {}
        arrays = {"maps": {"rows": self.function}, "sinks": {"rows": sink}, "side_inputs": sides}
        if (done := small_pass(rows.matrix, spec, rows.running, **arrays)) is not None:
            rows.costs.append(done.cost)
        else:
            self._run(lambda edges: sink, spec)
        return sink.values

    def written(
        self,
        out: str | os.PathLike[str],
        width: int,
        dtype: Any,
        *,
        dims: tuple[str, str] = ("sample", "component"),
        overwrite: bool = False,
    ) -> Any:
        """The new Zarr array of (n, width) rows, in chunks that no two blocks share."""
        row, n = max(1, np.dtype(dtype).itemsize * width), self.rows.matrix.shape[0]
        sink_for = partial(
            stored_rows, out, (n, width), dtype=dtype, dims=dims, overwrite=overwrite
        )
        return self._run(sink_for, self._spec(written=row)).array

    def _run(self, sink_for: Callable[[Array], SinkOf], spec: PassSpec) -> SinkOf:
        """The sink, filled.  sink_for : makes it from the edges of the blocks."""
        solve = partial(self._written, spec=spec, sink_for=sink_for)
        done = one_pass(self.rows.matrix, spec, self.rows.running, solve)
        self.rows.costs.extend(done.costs)
        sink: SinkOf = done.answer
        return sink

    def _written(
        self, planned: Planned[Any], *, spec: PassSpec, sink_for: Callable[[Array], SinkOf]
    ) -> Steps[SinkOf]:
        sink = sink_for(planned.blocks(spec).edges)
        maps, sides = {"rows": self.function}, self.side_inputs or {}
        yield Pass(spec, maps=maps, sinks={"rows": sink}, side_inputs=sides)
        return sink

    def _spec(self, held_nbytes: int = 0, written: int = 0) -> PassSpec:
        """written : bytes of a row that goes to Zarr."""
        rows, scratch = self.rows, self.function.scratch_nbytes(self.rows.matrix)
        kept = held_nbytes + rows.kept_nbytes
        if written:
            scratch = with_writing(scratch, written)
        return PassSpec(self.name, 0, 0, 0, scratch, kept_nbytes=kept, stored=self.stored)


def stored_rows(
    out: str | os.PathLike[str], shape: tuple[int, int], edges: Array, **more: Any
) -> ZarrSink:
    """Where the rows of blocks with these edges are written.  more : as :class:`ZarrSink`."""
    row = max(1, np.dtype(more["dtype"]).itemsize * shape[1])
    # blocks that share a chunk read it again and write it whole: it is not longer than they
    longest = max(int(np.diff(edges).max(initial=0)), SHARED_NBYTES // row)
    chunk = chunk_for(edges, most=max(1, min(longest, WRITTEN_NBYTES // row)))
    return ZarrSink(out, *shape, chunk=chunk, **more)


def with_writing(own: Callable[[int], int], row: int) -> Callable[[int], int]:
    """What so many rows need, and Zarr to write them.  row : bytes of one."""

    def scratch(length: int) -> int:
        whole = writing_nbytes(min(row * length, WRITTEN_NBYTES))
        return int(own(length)) + max(whole, writing_nbytes(SHARED_NBYTES, shared=True))

    return scratch
