"""One planned pass that maps blocks of samples: into memory, or into a Zarr array."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.passes import Candidate, Execution, PassSpec, Plan, make_plan, run
from streampca.store import MemorySink, ZarrSink
from streampca.store.sinks import chunk_for

WRITTEN_NBYTES = 16 << 20  # of rows in a chunk


@dataclass(frozen=True)
class MappedRows:
    """What a function makes of every block of samples; nothing is read before it is asked for.

    name : of the pass.
    function : of a Block, its rows; ``scratch_nbytes(matrix)`` says what a block needs for it.
    kept_nbytes : of the model that is applied.
    stored : of sparse blocks it takes the stored entries alone.
    side_inputs : arrays aligned with the samples.
    """

    name: str
    matrix: ChunkedMatrix
    function: Any
    kept_nbytes: int
    memory_limit: int | str | None
    scheduler: Any
    progress: Any
    stored: bool = True
    side_inputs: dict[str, Any] | None = None

    def in_memory(self, width: int, dtype: Any = np.float64) -> Array:
        """(n, width) rows."""
        sink = MemorySink(self.matrix.shape[0], width, dtype)
        self._run(sink)
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
        edges = self._plan(0).passes[0].edges
        most = max(1, WRITTEN_NBYTES // max(1, np.dtype(dtype).itemsize * width))
        sink = ZarrSink(
            out,
            self.matrix.shape[0],
            width,
            dtype,
            chunk=chunk_for(edges, most=most),
            dims=dims,
            overwrite=overwrite,
        )
        self._run(sink)
        return sink.array

    def _run(self, sink: MemorySink | ZarrSink) -> None:
        plan = self._plan(sink.nbytes_in_memory())
        run(
            plan.passes[0],
            self.matrix,
            maps={"rows": self.function},
            sinks={"rows": sink},
            side_inputs=self.side_inputs,
            execution=Execution.begun(plan, self.matrix, self.scheduler, self.progress),
        )

    def _plan(self, held_nbytes: int) -> Plan:
        scratch, kept = self.function.scratch_nbytes(self.matrix), held_nbytes + self.kept_nbytes
        spec = PassSpec(self.name, 0, 0, 0, scratch, kept_nbytes=kept, stored=self.stored)
        return plan_one_pass(self.matrix, spec, self.memory_limit)


def plan_one_pass(matrix: ChunkedMatrix, spec: PassSpec, memory_limit: int | str | None) -> Plan:
    """A plan for one pass that needs no solver. Raises MemoryLimitError.

    Rows in memory do not count: who applies a model with a limit to them has them already.
    """
    matrix = copy.copy(matrix)
    matrix.given_nbytes = 0
    return make_plan(matrix, spec.name, [Candidate(spec.name, "", (spec,))], memory_limit)
