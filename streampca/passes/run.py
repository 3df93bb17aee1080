"""The pass: read every block once, fold it, in a fixed order. The only door to execution."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.cluster import find_client, run_on_cluster
from streampca.passes.progress import Advance, Progress, resolve
from streampca.passes.readers import PATIENCE, join
from streampca.passes.records import PassPlan, Plan
from streampca.passes.threads import single_threaded_blas
from streampca.passes.work import (
    Map,
    ReadAhead,
    SpanResult,
    Stopped,
    Work,
    fold_span,
    values_nbytes,
)
from streampca.store import Sink


@dataclass
class PassCost:
    """What a pass really cost, beside what its plan promised."""

    name: str
    reads: int = 0
    nbytes: int = 0
    stored: int = 0
    seconds: float = 0.0
    blocks: int = 0
    most_live_blocks: int = 0  # raw blocks in one lane
    resumed_blocks: int = 0  # taken from a checkpoint instead of read


@dataclass
class PassResult:
    """Folded accumulators by name, and the cost."""

    accumulators: dict[str, Any]
    cost: PassCost

    def __getitem__(self, name: str) -> Any:
        return self.accumulators[name]


@dataclass
class Execution:
    """How the passes of one fit are run, which never changes a result, and how far they are.

    scheduler : None (the ambient ``distributed.Client`` if there is one, else threads),
        "threads", an address, or a Client.
    checkpoint : directory for span checkpoints, or None.  every : seconds between them.
    pass_number, n_passes : told by the fit before each pass. After the last one the checkpoints
        of all are dropped.
    costs, checkpoints : one more after each pass.
    """

    lanes: int = 2
    blocks_ahead: int = 1
    scheduler: Any = None
    progress: Progress | None = None
    checkpoint: str | None = None
    every: float = 60.0
    pass_number: int = 1
    n_passes: int = 1
    costs: list[PassCost] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, scheduler: Any = None, progress: Any = None) -> Execution:
        """As the plan says; scheduler and progress as the models take them."""
        return cls(plan.lanes, plan.blocks_ahead, scheduler, resolve(progress))

    def finished(self) -> None:
        """The fit is done, perhaps in less passes than planned: drop its checkpoints."""
        for one in self.checkpoints:
            one.clear()
        self.checkpoints.clear()


def run(plan: PassPlan, matrix: ChunkedMatrix, *,
        accumulators: Mapping[str, Accumulator] | None = None,
        operands: Mapping[str, Any] | None = None, side_inputs: Mapping[str, Any] | None = None,
        maps: Mapping[str, Map] | None = None, sinks: Mapping[str, Sink] | None = None,
        weights: Any = None, hidden: Any = None, halo: int = 0,
        execution: Execution | None = None) -> PassResult:  # fmt: skip
    """Walk the matrix once as planned.

    accumulators : empty accumulators by name; they are not changed, the result holds others.
    operands : small arrays that every block needs: ``block["Q"]``.
    side_inputs : arrays aligned with the streamed axis; ``block["scores"]`` is the slice.
    maps : name -> function of a block; its result is ``block[name]`` for what follows.
    sinks : name of a map -> where its results are written. Idempotent.
    weights : (samples,) row weights.  hidden : (samples, features) boolean, more missing cells.
    halo : streamed rows before each block, as ``block.halo``. A pass with a halo is a scan: its
        plan is ordered, accumulators are updated in one lane and never merged.

    Bits depend on the plan alone, not on lanes, workers or the order in which they finish.
    Ctrl-C stops it within a block. Raises what reading, maps and accumulators raise.
    """
    execution = execution or Execution()
    operands = dict(operands or {})
    if matrix.removed is not None:
        operands["removed"] = matrix.removed
    work = Work(
        matrix.without(None).streamed(plan.axis, plan.edges), dict(accumulators or {}),
        {name: _laid_out(value) for name, value in operands.items()},
        dict(side_inputs or {}), dict(maps or {}), dict(sinks or {}), weights, hidden, halo,
        design=matrix.design,
    )  # fmt: skip
    _check(work)
    if halo and not plan.ordered:
        raise InvalidInputError("a halo needs blocks in order: PassSpec(..., ordered=True)")
    cost = PassCost(plan.name)
    begun = time.perf_counter()
    client = find_client(execution.scheduler)
    shared = matrix.prepared()
    fold = _Fold(plan, work, cost, execution, begun)
    todo = list(enumerate(plan.spans))[fold.next :]
    try:
        with single_threaded_blas():  # on a cluster too: spans are merged here
            if todo and client is not None:
                run_on_cluster(client, work, todo, execution.blocks_ahead, fold.take_remote)
            elif todo:
                _run_here(work, todo, execution, fold)
    except BaseException as error:
        fold.interrupted(error)
        raise
    fold.finish()
    shared = matrix.prepared() - shared
    cost.reads += shared.chunks
    cost.nbytes += shared.nbytes
    cost.seconds = time.perf_counter() - begun
    execution.costs.append(cost)
    return PassResult(fold.total, cost)


def _laid_out(operand: Any) -> Any:
    """The operand without gaps in memory: travelling closes them, and BLAS rounds otherwise."""
    gaps = isinstance(operand, np.ndarray) and not operand.flags.forc
    return np.ascontiguousarray(operand) if gaps else operand


def _check(work: Work) -> None:
    axis = work.matrix.streamed_axis
    for name, accumulator in work.accumulators.items():
        if accumulator.axis not in (None, axis):
            streamed, wanted = (("samples", "features")[a] for a in (axis, accumulator.axis))
            raise InvalidInputError(f"{name!r} needs blocks of {wanted}; this pass has {streamed}")
    length, edges = work.matrix.shape[axis], work.matrix.edges
    if edges[0] < 0 or edges[-1] > length:
        raise InvalidInputError(f"the plan is for another matrix: {edges[-1]} rows, here {length}")
    names = [*work.operands, *work.side_inputs, *work.maps]
    if len(set(names)) < len(names):
        raise InvalidInputError(f"operands, side inputs and maps share a name: {sorted(names)}")
    for name, values in work.side_inputs.items():
        if len(values) != length:
            raise InvalidInputError(f"side input {name!r} has {len(values)} rows, not {length}")
    if work.design is not None:
        if len(work.design) != work.matrix.shape[0]:
            raise InvalidInputError(
                f"a design of {len(work.design)} rows for {work.matrix.shape[0]} samples"
            )
        if axis == 0 and "removed" not in work.operands:
            raise InvalidInputError("streamed samples need to know what the design removes")
    if work.weights is not None and len(work.weights) != work.matrix.shape[0]:
        raise InvalidInputError(
            f"{len(work.weights)} weights for {work.matrix.shape[0]} samples; expected one each"
        )
    if work.hidden is not None and np.shape(work.hidden) != tuple(work.matrix.shape):
        raise InvalidInputError(
            f"hidden has shape {np.shape(work.hidden)}, not that of the matrix, {work.matrix.shape}"
        )
    sources = set(work.matrix.paths())
    for sink in work.sinks.values():
        if same := sources.intersection(sink.paths()):
            raise InvalidInputError(f"{same.pop()} is what is read; choose another output")
    if missing := set(work.sinks) - set(work.maps):
        raise InvalidInputError(f"sinks {sorted(missing)} have no map of that name")


class _Fold:
    """Takes span results in any order, merges them in plan order, writes checkpoints."""

    def __init__(self, plan: PassPlan, work: Work, cost: PassCost, execution: Execution,
                 begun: float) -> None:  # fmt: skip
        self.plan, self.spans, self.work = plan, plan.spans, work
        self.cost, self.execution = cost, execution
        self.total = work.fresh()
        self.next = 0
        self._whole = True  # False while a span is merged: the total is then neither here nor there
        self._closed = False  # nothing more is accepted
        self.begun = begun
        self._waiting: dict[int, SpanResult] = {}
        self._lock = threading.Lock()
        self._progress = threading.Lock()
        self._done_blocks = self._done_nbytes = 0
        self.checkpoint: Checkpoint | None = None
        if execution.checkpoint is not None and Checkpoint.can_keep(work):
            self.checkpoint = Checkpoint.open(
                execution.checkpoint, plan.to_dict(), work, execution.every
            )
            self.next, self.total = self.checkpoint.resume(self.total)
            cost.resumed_blocks = sum(len(s) for s in self.spans[: self.next])
            self._done_blocks = cost.resumed_blocks

    def take(self, number: int, result: SpanResult) -> int:
        """Accept a span; returns the number of the first span not yet merged."""
        with self._lock:
            if self._closed:
                raise Stopped
            self._waiting[number] = result
            while (ready := self._waiting.pop(self.next, None)) is not None:
                self._whole = False
                for name, accumulator in ready.accumulators.items():
                    self.total[name].merge(accumulator)
                for name, start, values in ready.pieces:
                    self.work.sinks[name].write(start, values)
                self.cost.reads += ready.reads.chunks
                self.cost.stored += ready.reads.stored
                self.cost.nbytes += ready.nbytes
                self.cost.blocks += ready.n_blocks
                self.cost.most_live_blocks = max(self.cost.most_live_blocks, ready.live)
                self.next += 1
                self._whole = True
                if self.checkpoint is not None and self.next < len(self.spans):
                    self.checkpoint.save_if_due(self.next, self.total)
            return self.next

    def take_remote(self, number: int, result: SpanResult) -> int:
        """Accept a span from a worker, and report its blocks."""
        first = self.take(number, result)
        self.block_done(result.nbytes, result.n_blocks)
        return first

    def block_done(self, nbytes: int, blocks: int = 1) -> None:
        """Report processed blocks."""
        with self._progress:
            if self._closed:
                raise Stopped
            self._done_blocks += blocks
            self._done_nbytes += nbytes
            if self.execution.progress is not None:
                self.execution.progress(
                    Advance(self.plan.name, self.execution.pass_number, self.execution.n_passes,
                            self._done_blocks, self.plan.n_blocks, self._done_nbytes,
                            time.perf_counter() - self.begun, self.cost.resumed_blocks)
                )  # fmt: skip

    def interrupted(self, error: BaseException) -> None:
        """Leave a checkpoint of what was folded, whatever it was that stopped the pass.

        A lane that hangs in a read may still be there; it changes nothing any more.
        """
        self._closed = True
        if not self._lock.acquire(timeout=PATIENCE):
            return  # within a merge or a write that does not end
        try:
            if self.checkpoint is not None and self._whole:
                self.checkpoint.save(self.next, self.total)
        except Exception as failure:  # the first error is the one to report
            error.add_note(f"and no checkpoint could be written: {failure}")
        finally:
            self._lock.release()

    def finish(self) -> None:
        """The pass is complete: close sinks; keep its result, or after the last pass drop all."""
        for accumulator in self.total.values():
            accumulator.settle()
        for sink in self.work.sinks.values():
            sink.finish()
        kept = self.execution.checkpoints
        if self.checkpoint is not None:
            kept.append(self.checkpoint)
        if self.execution.pass_number < self.execution.n_passes:
            if self.checkpoint is not None:
                self.checkpoint.save(len(self.spans), self.total)
            return
        self.execution.finished()


def _run_here(work: Work, todo: list[tuple[int, range]], execution: Execution,
              fold: _Fold) -> None:  # fmt: skip
    """Lanes as threads of this process; an ordered pass is one span, and takes one."""
    n_lanes = max(1, min(execution.lanes, len(todo)))
    if n_lanes > 1:
        work.hold = tuple(
            name for name, sink in work.sinks.items()
            if not sink.concurrent_threads(work.matrix.edges)
        )  # fmt: skip
    stop = threading.Event()
    if n_lanes == 1:
        ahead = execution.blocks_ahead if sum(len(span) for _, span in todo) > 1 else 0
        try:
            for number, span in todo:
                ready = lambda block: fold.block_done(values_nbytes(block))  # noqa: E731
                fold.take(number, fold_span(work, span, ahead, stop, ready))
        except BaseException:
            stop.set()
            raise
        return
    _Lanes(work, todo, n_lanes, execution.blocks_ahead, fold, stop).run()


class _Lanes:
    """A few threads, each folding whole spans with its own reader ahead across span ends.

    A span is claimed (its first block may be read) only when it is within ``n_lanes`` of the first
    one not yet merged, and begun only when the lane's last one is merged: at most ``n_lanes``
    partial accumulators are alive.
    """

    def __init__(self, work: Work, todo: list[tuple[int, range]], n_lanes: int, ahead: int,
                 fold: _Fold, stop: threading.Event) -> None:  # fmt: skip
        self.work, self.todo, self.n_lanes, self.ahead = work, todo, n_lanes, ahead
        self.fold, self.stop = fold, stop
        self.turn = threading.Condition()
        self.claimed = 0
        self.error: BaseException | None = None
        self.alive = n_lanes

    def run(self) -> None:
        before = self.work.matrix.reads()
        threads = [
            threading.Thread(target=self._lane, name=f"streampca-lane-{i}", daemon=True)
            for i in range(self.n_lanes)
        ]
        try:
            for thread in threads:
                thread.start()
            with self.turn:
                while self.alive:
                    self.turn.wait(0.2)  # short, so that Ctrl-C is seen at once
        except BaseException:
            self._halt()
            join(threads, 2 * PATIENCE)  # a lane waits for its reader in the same way
            raise
        join(threads, 2 * PATIENCE)  # all have said that they are done
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # or the error, its traceback and all blocks there stay alive
        read = self.work.matrix.reads() - before
        self.fold.cost.reads += read.chunks
        self.fold.cost.stored += read.stored

    def _halt(self) -> None:
        with self.turn:
            self.stop.set()
            self.turn.notify_all()

    def claim(self, wait: bool) -> tuple[int, range] | None:
        """The next span, once it is near enough to the first unmerged one."""
        with self.turn:
            while not self.stop.is_set():
                if self.claimed == len(self.todo):
                    return None
                number, span = self.todo[self.claimed]
                if number <= self.fold.next + self.n_lanes:
                    self.claimed += 1
                    return number, span
                if not wait:
                    return None
                self.turn.wait(0.5)
            raise Stopped

    def _lane(self) -> None:
        try:
            self._fold_spans()
        except Stopped:
            pass
        except BaseException as error:
            with self.turn:
                self.error = self.error or error
            self._halt()
        finally:
            with self.turn:
                self.alive -= 1
                self.turn.notify_all()

    def _fold_spans(self) -> None:
        order = _Claims(self)
        reader = ReadAhead(self.work, order, self.ahead, self.stop)
        result = SpanResult(self.work.fresh(), [])
        for block in reader:
            if self.stop.is_set():
                raise Stopped
            number, span = order.spans[0]
            result.pieces += self.work.process(block, result.accumulators)
            result.nbytes += values_nbytes(block)
            result.n_blocks += 1
            self.fold.block_done(values_nbytes(block))
            if block.index == span[-1]:  # merged before the lane waits for another span
                result.live = reader.most_live
                self.fold.take(number, result)
                order.spans.pop(0)
                result = SpanResult(self.work.fresh(), [])
                self._until_merged(number)
            del block

    def _until_merged(self, number: int) -> None:
        """Begin no other span before this one is merged: no lane has two partial accumulators.

        The owner of the first unmerged span never waits here, so some lane always goes on.
        """
        with self.turn:
            self.turn.notify_all()
            while self.fold.next <= number:
                if self.stop.is_set():
                    raise Stopped
                self.turn.wait(0.5)


class _Claims:
    """The blocks of the spans that one lane claims, in order."""

    def __init__(self, lanes: _Lanes) -> None:
        self._lanes = lanes
        self.spans: list[tuple[int, range]] = []  # claimed and not yet folded
        self._blocks: Iterator[int] = iter(())

    def next(self, wait: bool) -> int | None:
        if (i := next(self._blocks, None)) is not None:
            return i
        if (claim := self._lanes.claim(wait)) is None:
            return None
        self.spans.append(claim)
        self._blocks = iter(claim[1])
        return next(self._blocks)
