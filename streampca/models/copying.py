"""Copies a matrix into a sink: one pass in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, regular_edges
from streampca.passes import (
    Candidate,
    Execution,
    PassCost,
    PassSpec,
    Plan,
    block_edges,
    make_plan,
    run,
)
from streampca.passes.work import Map

LABEL_NBYTES = 160  # of one sample or variant: id, chromosome, position, two alleles


def copy_axis(matrix: ChunkedMatrix) -> int:
    """The axis whose blocks are clearly smaller. Where either will do: rows that may be cut
    anywhere lie one after another (``.npy``, CSR), else features as genotype stores hold them.
    """
    sizes = []
    for axis in (0, 1):
        longest = int(np.diff(block_edges(matrix, axis)).max(initial=0))
        sizes.append(longest * matrix.shape[1 - axis])
    if matrix.chunk_edges(0) is None:
        return int(sizes[1] < sizes[0] / 2)
    return int(sizes[1] <= 2 * sizes[0])


def copy_step(matrix: ChunkedMatrix, axis: int, wanted: int) -> int:
    """The length of slices to write, near ``wanted``, so that source blocks are whole slices."""
    edges = block_edges(matrix, axis)
    first = int(edges[1])
    regular = matrix.chunk_edges(axis) is not None and bool(np.all(edges[:-1] % first == 0))
    return first if regular and wanted <= 2 * first and first <= 2 * wanted else wanted


def copy_matrix(
    matrix: ChunkedMatrix,
    sink: Any,
    axis: int,
    *,
    memory_limit: int | str | None = None,
    progress: Any = None,
) -> tuple[Plan, PassCost]:
    """Write all of a matrix from ``sink.written`` on; the sink gets slices along axis.

    sink : with ``written``, ``chunk``, ``concurrent``, ``interrupted`` and ``finish``.
    Where blocks can be whole chunks of the sink, lanes encode at the same time; else one lane
    hands them over in order. Each stored chunk of the source is read once (one more time where an
    interrupted copy goes on inside it).
    """
    start, length = sink.written, matrix.shape[axis]
    itemsize = matrix.dtype.itemsize
    kept = sink.nbytes_in_memory() + LABEL_NBYTES * sum(matrix.shape)
    spec = PassSpec(
        "copy", axis, 0, 0, rows=(start, length), kept_nbytes=kept,
        scratch=lambda n: 2 * n * matrix.shape[1 - axis] * itemsize,  # in the stored order; encoded
    )  # fmt: skip
    laid: Any = _InSlices(matrix, axis, sink.chunk)
    plan = make_plan(laid, "copy", [Candidate("copy", "one pass", (spec,))], memory_limit)
    if start == length:
        sink.finish()
        return plan, PassCost("copy")
    one = plan.passes[0]
    if not sink.concurrent(one.edges):
        plan = replace(plan, lanes=1)
    return plan, _copied(plan, matrix, _slices, sink, progress)


def copy_sparse(
    matrix: ChunkedMatrix,
    sink: Any,
    axis: int,
    *,
    memory_limit: int | str | None = None,
    progress: Any = None,
) -> tuple[Plan, PassCost]:
    """Write the stored entries of a sparse matrix, in order along axis, by one lane.

    sink : with ``nbytes_in_memory``, ``finish`` and ``interrupted``.
    """
    kept = sink.nbytes_in_memory() + LABEL_NBYTES * sum(matrix.shape)
    spec = PassSpec("copy", axis, 0, 0, kept_nbytes=kept, stored=True)
    plan = make_plan(matrix, "copy", [Candidate("copy", "one pass", (spec,))], memory_limit)
    return plan, _copied(replace(plan, lanes=1), matrix, _entries, sink, progress)


def _copied(plan: Plan, matrix: ChunkedMatrix, values: Map, sink: Any, progress: Any) -> PassCost:
    """The cost of the one pass of a plan, which hands ``values`` of every block to the sink."""
    try:
        execution = Execution.begun(plan, matrix, "threads", progress)
        maps, sinks = {"values": values}, {"values": sink}
        return run(plan.passes[0], matrix, maps=maps, sinks=sinks, execution=execution).cost
    except BaseException:
        sink.interrupted()
        raise


def _entries(block: Block) -> Any:
    """The block itself, still sparse."""
    return block.values.asformat("csc" if block.axis else "csr")


class _InSlices:
    """A matrix for the plan: if the source can be cut anywhere, it is cut between slices."""

    def __init__(self, matrix: ChunkedMatrix, axis: int, step: int) -> None:
        self.matrix, self.axis, self.step = matrix, axis, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matrix, name)

    def chunk_edges(self, axis: int) -> Array | None:
        edges = self.matrix.chunk_edges(axis)
        if edges is None and axis == self.axis:
            return regular_edges(self.matrix.shape[axis], self.step)
        return edges


def _slices(block: Block) -> Array:
    """The values, streamed axis first."""
    values = block.dense()
    return values.T if block.axis else values
