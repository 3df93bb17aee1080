"""Spans folded into one result, in the order of the plan whatever order they come in."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from streampca.accumulators import Accumulator
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.execution import Execution, PassCost
from streampca.passes.progress import Advance
from streampca.passes.read_ahead import Stopped
from streampca.passes.readers import PATIENCE
from streampca.passes.records import PassPlan
from streampca.passes.span import SpanResult
from streampca.passes.work import Work


class Fold:
    """Takes span results in any order, merges them in plan order, writes checkpoints.

    While the total goes on elsewhere (:meth:`leave`), what comes has been merged there, and the
    one here stays as it was until it is brought.
    """

    def __init__(self, plan: PassPlan, work: Work, cost: PassCost, execution: Execution,
                 begun: float) -> None:  # fmt: skip
        self.plan, self.spans, self.work = plan, plan.spans, work
        self.cost, self.execution = cost, execution
        self.total = work.fresh()
        self.next = 0
        self._whole = True  # False while a span is merged: the total is then neither here nor there
        self._closed = False  # nothing more is accepted
        self.begun = begun
        self._left: tuple[int, PassCost, float] | None = None  # how far it was, since when
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
        self._told = self.next  # spans before it were reported

    def take(self, number: int, result: SpanResult) -> int:
        """Accept a span; returns the number of the first span not yet merged."""
        with self._lock:
            if self._closed:
                raise Stopped
            self._waiting[number] = result
            while (ready := self._waiting.pop(self.next, None)) is not None:
                self.work.matrix.add_checksums(ready.checksums)
                self._whole = False
                for name, accumulator in ready.accumulators.items():
                    self.total[name].merge(accumulator)
                for name, start, values in ready.pieces:
                    self.work.sinks[name].write(start, values)
                self.cost.reads += ready.reads.chunks
                self.cost.stored += ready.reads.stored
                self.cost.moved += ready.reads.moved
                self.cost.nbytes += ready.nbytes
                self.cost.blocks += ready.n_blocks
                self.cost.most_live_blocks = max(self.cost.most_live_blocks, ready.live)
                self.next += 1
                self._whole = True
                here = self._left is None
                if here and self.checkpoint is not None and self.next < len(self.spans):
                    self.checkpoint.save_if_due(self.next, self.total)
            return self.next

    def take_remote(self, number: int, result: SpanResult) -> int:
        """Accept a span from a worker, and report its blocks."""
        first = self.take(number, result)
        if number >= self._told:
            self._told = number + 1
            self.block_done(result.nbytes, result.n_blocks)
        return first

    def leave(self) -> None:
        """The total goes on elsewhere."""
        self._left = (self.next, replace(self.cost), time.monotonic())

    def overdue(self) -> bool:
        """Whether it should be brought: more work would be lost with it than may be."""
        return self._left is not None and time.monotonic() - self._left[2] >= self.execution.every

    def bring(self, total: dict[str, Accumulator]) -> None:
        """It is here again, with all spans that were taken."""
        self.total, self._left = total, None
        if self.checkpoint is not None and self.next < len(self.spans):
            self.checkpoint.save_if_due(self.next, self.total)

    def go_back(self) -> None:
        """It is lost: what was taken since it left is to be folded again."""
        if self._left is not None:
            self.next, cost, _ = self._left
            vars(self.cost).update(vars(cost))
            self._left, self._whole = None, True

    def block_done(self, nbytes: int, blocks: int = 1) -> None:
        """Report processed blocks."""
        with self._progress:
            if self._closed:
                raise Stopped
            self._done_blocks += blocks
            self._done_nbytes += nbytes
            self.execution.memory.sample()
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
            self.go_back()
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
        if self.execution.keeps and self.execution.pass_number < self.execution.n_passes:
            if self.checkpoint is not None:
                self.checkpoint.save(len(self.spans), self.total)
            return
        self.execution.finished()
