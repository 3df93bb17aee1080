"""What one pass does to one block and one span: the part that travels to workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import NoAnswerError
from streampca.kernels import pages
from streampca.matrix import Block, ChunkedMatrix, ReadCount, residual_block
from streampca.matrix.entries import sparse_nbytes
from streampca.passes.readers import Readers
from streampca.store import Sink

Map = Callable[[Block], np.ndarray[Any, Any]]


class Stopped(Exception):
    """The pass was told to stop; not an error of its own."""


@dataclass
class Work:
    """All that a lane needs. ``accumulators`` are empty; each span folds into fresh ones.

    side_inputs : name -> array aligned with the streamed axis; blocks get their slice.
    weights : (samples,) row weights, or None.  hidden : boolean (samples, features), True =
    treat as missing.  design : (samples, r), projected out of every block before it is folded; the
    operand "removed" says what that takes away where samples are streamed.
    """

    matrix: ChunkedMatrix
    accumulators: Mapping[str, Accumulator]
    operands: Mapping[str, Any] = field(default_factory=dict)
    side_inputs: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Map] = field(default_factory=dict)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    weights: Any = None
    hidden: Any = None
    halo: int = 0
    offset: int = 0  # of side inputs, weights and mask that were cut for one span
    design: Any = None
    hold: tuple[str, ...] = ()  # sinks that the folding process writes itself

    def fresh(self) -> dict[str, Accumulator]:
        """Empty accumulators for one span."""
        return {name: a.blank() for name, a in self.accumulators.items()}

    def read(self, i: int, buffer: Any = None) -> Block:
        """Read block i and lay what is aligned with it beside it."""
        block = self.matrix.read_block(i, buffer)
        part = slice(block.start - self.offset, block.stop - self.offset)
        block.arrays = {
            **self.operands,
            **{n: np.ascontiguousarray(values[part]) for n, values in self.side_inputs.items()},
        }
        if self.weights is not None:
            weights = self.weights if block.axis else self.weights[part]
            block.weights = np.ascontiguousarray(weights, dtype=float)
        if self.hidden is not None:
            block.hidden = np.asarray(self.hidden[:, part] if block.axis else self.hidden[part])
        return block

    def process(self, block: Block, into: Mapping[str, Accumulator]) -> list[tuple[str, int, Any]]:
        """Maps, then accumulators, then sinks. Returns the pieces that were not written here."""
        try:
            if self.design is not None:
                block = self._residual(block)
            return self._process(block, into)
        except Exception as error:
            error.add_note(f"while folding {block.describe()}")
            raise

    def _process(self, block: Block, into: Mapping[str, Accumulator]) -> list[tuple[str, int, Any]]:
        pieces = []
        arrays = dict(block.arrays)
        block.arrays = arrays
        for name, function in self.maps.items():
            arrays[name] = function(block)
        for accumulator in into.values():
            accumulator.update(block)
        for name, sink in self.sinks.items():
            if name in self.hold:  # a copy: the map may have returned a view of the block
                pieces.append((name, block.start, np.array(arrays[name])))
            else:
                sink.write(block.start, arrays[name])
        return pieces

    def _residual(self, block: Block) -> Block:
        """The block without what the design explains."""
        removed = self.operands.get("removed")
        if block.axis:
            removed = None if removed is None else removed[:, block.columns]
            return residual_block(block, self.design, removed)
        rows = slice(block.start - self.offset, block.stop - self.offset)
        return residual_block(block, self.design[rows], removed)

    def cut(self, blocks: range) -> Work:
        """The same work for these blocks only, carrying no more data than they need."""
        matrix = self.matrix
        start, stop = int(matrix.edges[blocks[0]]), int(matrix.edges[blocks[-1] + 1])
        axis = matrix.streamed_axis
        part = slice(start - self.offset, stop - self.offset)
        sides = {name: np.asarray(values[part]) for name, values in self.side_inputs.items()}
        weights = self.weights if self.weights is None or axis else self.weights[part]
        hidden = self.hidden
        if hidden is not None:
            hidden = np.asarray(hidden[:, part] if axis else hidden[part])
        design = self.design if self.design is None or axis else self.design[part]
        sinks: dict[str, Any] = {n: None if n in self.hold else s for n, s in self.sinks.items()}
        return replace(
            self, matrix=matrix.part(axis, start, stop), side_inputs=sides, weights=weights,
            hidden=hidden, offset=start, sinks=sinks, design=design,
        )  # fmt: skip


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


class Order(Protocol):
    """The numbers of the blocks to read, one by one."""

    def next(self, wait: bool) -> int | None:
        """The next block; None when there is none, or none yet and ``wait`` is False."""


class InOrder:
    """Consecutive blocks."""

    def __init__(self, blocks: range) -> None:
        self._blocks = iter(blocks)

    def next(self, wait: bool) -> int | None:
        return next(self._blocks, None)


class ReadAhead:
    """Blocks in order, read by ``ahead`` threads before they are asked for.

    At most ``ahead + 1`` raw blocks are alive: the one handed out and those ahead of it.
    patience : seconds that a block is waited for; then NoAnswerError, and the thread that reads it
    is left to itself. None waits for ever.
    """

    def __init__(self, work: Work, order: Order, ahead: int, stop: threading.Event,
                 patience: float | None = None) -> None:  # fmt: skip
        self._work, self._order, self._ahead, self._stop = work, order, ahead, stop
        self._patience = patience
        self._lock = threading.Lock()
        self._live = self.most_live = 0
        self._free: list[Any] = []  # block buffers that no block uses at present
        self._scratch: dict[Any, Any] = {}  # tile buffers of this lane

    def __iter__(self) -> Iterator[Block]:
        if not self._ahead:
            while (i := self._order.next(wait=True)) is not None:
                block = self._read(i) if self._patience is None else self._read_apart(i)
                yield block
                self._release(block)
                del block
            return
        readers = Readers(self._ahead)
        waiting: list[tuple[int, Future[Block]]] = []
        try:
            self._fill(readers, waiting, wait=True)
            while waiting:
                block = self._result(*waiting.pop(0))
                self._fill(readers, waiting, wait=False)
                yield block
                self._release(block)
                del block
                if not waiting:
                    self._fill(readers, waiting, wait=True)
        finally:
            for _, future in waiting:
                future.cancel()
            readers.close()

    def _read_apart(self, i: int) -> Block:
        """Read in another thread, which may be left to itself."""
        readers = Readers(1)
        try:
            return self._result(i, readers.submit(self._read, i))
        finally:
            readers.close()

    def _fill(self, readers: Readers, waiting: list[tuple[int, Future[Block]]],
              wait: bool) -> None:  # fmt: skip
        while len(waiting) < self._ahead and (i := self._order.next(wait)) is not None:
            waiting.append((i, readers.submit(self._read, i)))
            wait = False

    def _result(self, i: int, future: Future[Block]) -> Block:
        """The block, unless the pass is stopped, or patience ends, while it is waited for."""
        begun = time.monotonic()
        while not wait([future], timeout=0.2).done:
            if self._stop.is_set():
                raise Stopped
            if self._patience is not None and time.monotonic() - begun > self._patience:
                raise NoAnswerError(
                    f"{self._which(i)} was not read within {self._patience:g} s. Wait longer: "
                    'dask.config.set({"streampca.read-timeout": seconds})'
                )
        return future.result()

    def _which(self, i: int) -> str:
        matrix = self._work.matrix
        kind = ("samples", "features")[matrix.streamed_axis]
        return f"block {i} ({kind} {matrix.edges[i]} to {matrix.edges[i + 1] - 1})"

    def _read(self, i: int) -> Block:
        if self._stop.is_set():
            raise Stopped
        buffer = None
        with self._lock:
            self._live += 1
            self.most_live = max(self.most_live, self._live)
            if self._work.matrix.into_buffer:
                buffer = self._free.pop() if self._free else None
        if buffer is None and self._work.matrix.into_buffer:
            buffer = pages(self._work.matrix.block_nbytes)
        try:
            block = self._work.read(i, buffer)
        except Exception as error:
            error.add_note(f"while reading {self._which(i)}")
            raise
        block.buffer, block.scratch = buffer, self._scratch
        return block

    def _release(self, block: Block) -> None:
        """The block handed out last is no longer in use; its buffer serves another."""
        with self._lock:
            self._live -= 1
            if block.buffer is not None:
                self._free.append(block.buffer)


def fold_span(work: Work, blocks: range, ahead: int, stop: threading.Event | None = None,
              ready: Callable[[Block], None] | None = None,
              patience: float | None = None) -> SpanResult:  # fmt: skip
    """Read and fold consecutive blocks in order: one task on a cluster, one scan locally."""
    stop = stop or threading.Event()
    accumulators = work.fresh()
    result = SpanResult(accumulators, [])
    before = work.matrix.reads()
    reader = ReadAhead(work, InOrder(blocks), ahead, stop, patience)
    tail: list[Any] = []
    for block in reader:
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
