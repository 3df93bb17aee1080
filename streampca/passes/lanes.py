"""Lanes: threads of this process that fold whole spans, each with a reader ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from streampca.passes.execution import Execution
from streampca.passes.fold import Fold
from streampca.passes.read_ahead import ReadAhead, Stopped
from streampca.passes.readers import PATIENCE, join
from streampca.passes.span import SpanResult, fold_span, values_nbytes
from streampca.passes.work import Work


def run_on_lanes(work: Work, todo: list[tuple[int, range]], execution: Execution,
              fold: Fold) -> None:  # fmt: skip
    """Lanes as threads of this process; an ordered pass is one span, and takes one."""
    n_lanes = max(1, min(execution.lanes, len(todo)))
    if n_lanes > 1:
        work.hold = tuple(
            name for name, sink in work.sinks.items()
            if not sink.concurrent_threads(work.matrix.edges)
        )  # fmt: skip
    stop = threading.Event()
    if len(todo) == 1:
        number, span = todo[0]
        ahead = execution.blocks_ahead if len(span) > 1 else 0
        ready = lambda block: fold.block_done(values_nbytes(block))  # noqa: E731
        try:
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
                 fold: Fold, stop: threading.Event) -> None:  # fmt: skip
        self.work, self.todo, self.n_lanes, self.ahead = work, todo, n_lanes, ahead
        self.fold, self.stop = fold, stop
        self.turn = threading.Condition()
        self.claimed = 0
        self.error: BaseException | None = None
        self.alive = n_lanes

    def run(self) -> None:
        """Fold all spans. One lane is the thread that asks: malloc keeps nothing apart for it."""
        before = self.work.matrix.reads()
        if self.n_lanes == 1:
            try:
                self._fold_spans()
            except BaseException:
                self.stop.set()
                raise
        else:
            self._run_threads()
        read = self.work.matrix.reads() - before
        self.fold.cost.reads += read.chunks
        self.fold.cost.stored += read.stored
        self.fold.cost.moved += read.moved

    def _run_threads(self) -> None:
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
        with reader.blocks() as blocks:
            for block in blocks:
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
                    self._until_merged(number)
                    merged = result.accumulators.items()
                    result = SpanResult({name: one.emptied() for name, one in merged}, [])
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

    def begins_span(self, block: int) -> bool:
        return block == self.spans[-1][1][0]
