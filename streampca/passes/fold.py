"""Folding spans in the order of the plan, and the lanes: threads that each fold whole spans."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError
from streampca.kernels import Team
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.costs import PassCost
from streampca.passes.execution import Execution
from streampca.passes.progress import Advance
from streampca.passes.read_ahead import (
    PATIENCE,
    InOrder,
    ReadAhead,
    SpanResult,
    Stopped,
    fold_span,
    join,
    values_nbytes,
)
from streampca.passes.records import PassPlan
from streampca.passes.settings import Crew, helped
from streampca.passes.work import Work

# Spans arrive in any order and are merged in the order of the plan.


class Fold:
    """Takes span results in any order, merges them in plan order, writes checkpoints.

    After :meth:`leave` the total is kept on a worker: spans that are taken have been merged there,
    and the total here does not change until :meth:`bring`.
    """

    def __init__(
        self, plan: PassPlan, work: Work, cost: PassCost, execution: Execution, begun: float
    ) -> None:
        self.plan, self.spans, self.work = plan, plan.spans, work
        self.cost, self.execution = cost, execution
        self.total = work.fresh()
        self.next = 0
        self._whole = True  # False while a span is being merged, and after that failed
        self._closed = False  # no more spans are accepted
        self.begun = begun
        self._left: tuple[int, PassCost, float] | None = None  # next, cost and time at ``leave``
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
        self._reported = self.next  # progress was reported for spans below this number

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
                self.cost.add(ready.reads)
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
        if number >= self._reported:
            self._reported = number + 1
            self.block_done(result.nbytes, result.n_blocks)
        return first

    def leave(self) -> None:
        """The total is now kept on a worker."""
        self._left = (self.next, replace(self.cost), time.monotonic())

    def overdue(self) -> bool:
        """Whether the total should be fetched: it left more than a checkpoint interval ago."""
        return self._left is not None and time.monotonic() - self._left[2] >= self.execution.every

    def bring(self, total: dict[str, Accumulator]) -> None:
        """The total is here again, with all spans that were taken."""
        self.total, self._left = total, None
        if self.checkpoint is not None and self.next < len(self.spans):
            self.checkpoint.save_if_due(self.next, self.total)

    def go_back(self) -> None:
        """The total on the worker is lost: spans taken since :meth:`leave` must be folded again."""
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
                    Advance(
                        self.plan.name,
                        self.execution.pass_number,
                        self.execution.n_passes,
                        self._done_blocks,
                        self.plan.n_blocks,
                        self._done_nbytes,
                        time.perf_counter() - self.begun,
                        self.cost.resumed_blocks,
                    )
                )

    def interrupted(self, error: BaseException) -> None:
        """Write a checkpoint of what was folded, after any error or interruption.

        A lane may still hang in a read; from now on it cannot change anything.
        """
        self._closed = True
        if not self._lock.acquire(timeout=PATIENCE):
            return  # a merge or a write does not end
        try:
            self.go_back()
            if self.checkpoint is not None and self._whole:
                self.checkpoint.save(self.next, self.total)
            if isinstance(error, ClusterError) and (self.next or self.execution.checkpoints):
                error.add_note(self._kept())
        except Exception as failure:  # the first error is the one to report
            error.add_note(f"and no checkpoint could be written: {failure}")
        finally:
            self._lock.release()

    def _kept(self) -> str:
        """What is left of the work of this fit, and how to use it."""
        if self.checkpoint is None:
            return "nothing of this fit is kept; with a checkpoint, the same call would go on"
        return (
            f"what was folded is kept in {self.execution.checkpoint}: the same call goes on from "
            "there, on any cluster or in threads"
        )

    def finish(self) -> None:
        """End the pass: finish accumulators and sinks; save the checkpoint, or remove all of them.

        They are removed after the last pass.
        """
        for accumulator in self.total.values():
            accumulator.settle()
        for sink in self.work.sinks.values():
            sink.finish()
        last = not self.execution.keeps or self.execution.pass_number >= self.execution.n_passes
        if self.checkpoint is not None:
            self.execution.checkpoints.append(self.checkpoint)
            if not last:
                self.checkpoint.save(len(self.spans), self.total)
        if last:
            self.execution.finished()


# Lanes: threads of this process that fold whole spans, each reading ahead.


def run_on_lanes(
    work: Work, todo: list[tuple[int, range]], execution: Execution, fold: Fold
) -> None:
    """Fold spans on lanes of this process. An ordered pass is a single span, on one lane."""
    crew = execution.crew(fold.plan, len(todo), work.matrix)
    if crew.lanes > 1:
        work.hold = tuple(
            name
            for name, sink in work.sinks.items()
            if not sink.concurrent_threads(work.matrix.edges)
        )
    stop = threading.Event()
    with helped(crew.helpers) as team:
        if len(todo) > 1:
            _Lanes(work, todo, crew, fold, stop, team).run()
            return
        number, span = todo[0]
        ahead = crew.ahead[0] if len(span) > 1 else 0
        ready = lambda block: fold.block_done(values_nbytes(block))  # noqa: E731
        try:
            with team.member():
                fold.take(number, fold_span(work, span, ahead, stop, ready))
        except BaseException:
            stop.set()
            raise


class _Lanes:
    """A few threads, each of which folds whole spans and reads ahead across their ends.

    The spans go round: a lane folds every ``n_lanes``-th one, and begins when its previous one is
    merged. So at most ``n_lanes`` partial accumulators are alive, and all lanes work on consecutive
    spans: with two in a row, a lane keeps the others waiting. A lane without spans helps them.
    """

    def __init__(
        self,
        work: Work,
        todo: list[tuple[int, range]],
        crew: Crew,
        fold: Fold,
        stop: threading.Event,
        team: Team,
    ) -> None:
        self.work, self.todo, self.crew, self.n_lanes = work, todo, crew, crew.lanes
        self.fold, self.stop, self.team = fold, stop, team
        self.turn = threading.Condition()
        self.error: BaseException | None = None
        self.alive = crew.lanes

    def run(self) -> None:
        """Fold all spans. A single lane is the calling thread, so malloc needs no arena for it."""
        before = self.work.matrix.reads()
        if self.n_lanes == 1:
            try:
                with self.team.member():
                    self._fold_spans(0)
            except BaseException:
                self.stop.set()
                raise
        else:
            self._run_threads()
        self.fold.cost.add(self.work.matrix.reads() - before)

    def _run_threads(self) -> None:
        threads = [
            threading.Thread(target=self._lane, args=(i,), name=f"streampca-lane-{i}", daemon=True)
            for i in range(self.n_lanes)
        ]
        try:
            for thread in threads:
                thread.start()
            with self.turn:
                while self.alive:
                    self.turn.wait(0.2)  # short, to react to Ctrl-C
        except BaseException:
            self._halt()
            join(threads, 2 * PATIENCE)  # a lane waits PATIENCE for its reader
            raise
        finally:
            self.team.end()
        join(threads, 2 * PATIENCE)  # all have ended their work
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else the error, its traceback and their blocks stay alive

    def _halt(self) -> None:
        self.team.end()
        with self.turn:
            self.stop.set()
            self.turn.notify_all()

    def _lane(self, lane: int) -> None:
        try:
            with self.team.member():
                self._fold_spans(lane)
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
        self.team.serve()

    def _fold_spans(self, lane: int) -> None:
        spans = self.todo[lane :: self.n_lanes]
        order = InOrder([span for _, span in spans])
        reader = ReadAhead(self.work, order, self.crew.ahead[lane], self.stop)
        waiting = iter(spans)
        number, span = next(waiting)
        result = SpanResult(self.work.fresh(), [])
        with reader.blocks() as blocks:
            for block in blocks:
                if self.stop.is_set():
                    raise Stopped
                result.pieces += self.work.process(block, result.accumulators)
                result.nbytes += values_nbytes(block)
                result.n_blocks += 1
                self.fold.block_done(values_nbytes(block))
                if block.index == span[-1]:  # merge before waiting for another span
                    result.live = reader.most_live
                    self.fold.take(number, result)
                    self._until_merged(number)
                    number, span = next(waiting, (number, span))
                    # no other name may hold what was merged: it would stay for the next span
                    result = SpanResult(
                        {name: one.emptied() for name, one in result.accumulators.items()}, []
                    )
                del block

    def _until_merged(self, number: int) -> None:
        """Wait until a span is merged, so that no lane has two partial accumulators.

        The lane with the first unmerged span never waits here, so there is no deadlock.
        """
        with self.turn:
            self.turn.notify_all()
            while self.fold.next <= number:
                if self.stop.is_set():
                    raise Stopped
                self.turn.wait(0.5)
