"""One span: consecutive blocks, read and folded into accumulators of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.matrix import Block, ReadCount
from streampca.matrix.entries import sparse_nbytes
from streampca.passes.read_ahead import InOrder, ReadAhead, Stopped
from streampca.passes.work import Work


@dataclass
class SpanResult:
    """What one span gave."""

    accumulators: dict[str, Accumulator]
    pieces: list[tuple[str, int, Any]]
    reads: ReadCount = field(default_factory=ReadCount)
    checksums: dict[str, int] = field(default_factory=dict)  # of what a worker read, for a ledger
    nbytes: int = 0
    n_blocks: int = 0
    live: int = 0  # most raw blocks alive at once in its lane


def fold_span(work: Work, span: range, ahead: int, stop: threading.Event | None = None,
              ready: Callable[[Block], None] | None = None,
              patience: float | None = None) -> SpanResult:  # fmt: skip
    """Read and fold consecutive blocks in order: one task on a cluster, one scan locally."""
    stop = stop or threading.Event()
    accumulators = work.fresh()
    result = SpanResult(accumulators, [])
    before = work.matrix.reads()
    reader = ReadAhead(work, InOrder(span), ahead, stop, patience)
    tail: list[Any] = []
    with reader.blocks() as blocks:
        for block in blocks:
            if stop.is_set():
                raise Stopped
            if work.halo:
                block.halo = _halo(tail, work.halo, block)
            result.pieces += work.process(block, accumulators)
            result.nbytes += values_nbytes(block)
            result.n_blocks += 1
            if work.halo:
                _remember(tail, work.halo, block)
            if ready is not None:
                ready(block)
            del block
    result.reads = work.matrix.reads() - before
    result.live = reader.most_live
    return result


def values_nbytes(block: Block) -> int:
    """Decoded bytes of a block."""
    if not isinstance(block.values, np.ndarray):
        return sparse_nbytes(block.values)
    rows, columns = block.shape
    return int(rows * columns * block.values.dtype.itemsize)


def _halo(tail: list[Any], halo: int, block: Block) -> Any:
    """The last ``halo`` streamed rows before this block."""
    if not tail:
        return block.dense()[:, :0] if block.axis else block.dense()[:0]
    joined = np.concatenate(tail, axis=block.axis)
    return joined[:, -halo:] if block.axis else joined[-halo:]


def _remember(tail: list[Any], halo: int, block: Block) -> None:
    values = block.dense()
    tail.append((values[:, -halo:] if block.axis else values[-halo:]).copy())
    while sum(t.shape[block.axis] for t in tail[1:]) >= halo:
        tail.pop(0)
