"""The threads of a pass: blocks read ahead, and lanes that fold whole spans of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import NoAnswerError
from streampca.kernels import Team, pages
from streampca.matrix import Block, ReadCount, SpanCache, reading_with
from streampca.matrix.entries import sparse_nbytes
from streampca.passes.records import Pass, PassCost
from streampca.passes.settings import Crew, helped

# Threads that read ahead; nothing waits long for them to end.

PATIENCE = 1.0  # seconds that an interrupted pass waits for reads in progress


class Readers:
    """A few daemon threads with one queue.

    A read that hangs must not delay Ctrl-C or the end of the interpreter, both of which join the
    threads of ``concurrent.futures``.
    """

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[Any] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"streampca-reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[int], Any], number: int) -> Future[Any]:
        """Call function(number) on one of the threads."""
        future: Future[Any] = Future()
        self._tasks.put((future, function, number))
        return future

    def close(self) -> None:
        """End the threads; those that are still reading after PATIENCE are abandoned."""
        for _ in self._threads:
            self._tasks.put(None)
        join(self._threads, PATIENCE)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            _do(*task)
            del task  # else the block stays alive until the next task


def _do(future: Future[Any], function: Callable[[int], Any], number: int) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(number)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def join(threads: Iterable[threading.Thread], patience: float) -> None:
    """Wait until all threads have ended, for at most ``patience`` seconds in total."""
    end = time.monotonic() + patience
    for thread in threads:
        if thread.ident is not None:  # was started
            thread.join(max(0.0, end - time.monotonic()))


# Blocks in order, read by other threads in advance.


class Stopped(Exception):
    """The pass was stopped because of something else."""


class InOrder:
    """The numbers of the blocks of some spans, one by one."""

    def __init__(self, spans: Sequence[range]) -> None:
        self._blocks = chain.from_iterable(spans)
        self._first = {span[0] for span in spans}

    def next(self) -> int | None:
        """The next block; None at the end."""
        return next(self._blocks, None)

    def begins_span(self, block: int) -> bool:
        """Whether a block is the first of a span."""
        return block in self._first


class ReadAhead:
    """Blocks in order, read in advance by ``ahead`` threads.

    At most ``ahead + 1`` raw blocks are alive: the current one and those read in advance.
    patience : seconds to wait for a block before NoAnswerError; the thread that reads it is then
        abandoned. None waits for ever.
    """

    def __init__(
        self,
        work: Pass,
        order: InOrder,
        ahead: int,
        stop: threading.Event,
        patience: float | None = None,
    ) -> None:
        self._work, self._order, self._ahead, self._stop = work, order, ahead, stop
        self._patience = patience
        self._lock = threading.Lock()
        self._live = self.most_live = 0
        self._free: list[Any] = []  # block buffers not in use
        self._scratch: dict[Any, Any] = {}  # tile buffers of this lane
        self._cache = SpanCache()  # of the latest span
        self._caches = WeakSet([self._cache])  # and of earlier ones that are still referenced

    def blocks(self) -> AbstractContextManager[Iterator[Block]]:
        """The blocks in order; on exit, reading stops and caches are dropped, even after errors."""
        return closing(self._blocks())

    def _blocks(self) -> Generator[Block, None, None]:
        if not self._ahead:
            try:
                while (i := self._order.next()) is not None:
                    cache = self._cache_for(i)
                    apart = self._patience is not None
                    block = self._read_apart(cache, i) if apart else self._read(cache, i)
                    yield block
                    self._release(block)
                    del block
            finally:
                self._end_caches()
            return
        readers = Readers(self._ahead)
        waiting: list[tuple[int, Future[Block]]] = []
        try:
            self._fill(readers, waiting)
            while waiting:
                block = self._result(*waiting.pop(0))
                self._fill(readers, waiting)
                yield block
                self._release(block)
                del block
        finally:
            for _, future in waiting:
                future.cancel()
            readers.close()
            self._end_caches()

    def _cache_for(self, i: int) -> SpanCache:
        """The cache of the span to which block i belongs."""
        if self._order.begins_span(i):
            self._cache = SpanCache()
            self._caches.add(self._cache)
        return self._cache

    def _end_caches(self) -> None:
        """Empty all caches: the traceback of an error may hold one."""
        for cache in self._caches:
            cache.end()

    def _read_apart(self, cache: SpanCache, i: int) -> Block:
        """Read in another thread, which can be abandoned."""
        readers = Readers(1)
        try:
            return self._result(i, readers.submit(partial(self._read, cache), i))
        finally:
            readers.close()

    def _fill(self, readers: Readers, waiting: list[tuple[int, Future[Block]]]) -> None:
        while len(waiting) < self._ahead and (i := self._order.next()) is not None:
            waiting.append((i, readers.submit(partial(self._read, self._cache_for(i)), i)))

    def _result(self, i: int, future: Future[Block]) -> Block:
        """Wait for a block. Raises Stopped, NoAnswerError, and what reading raises."""
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

    def _read(self, cache: SpanCache, i: int) -> Block:
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
            with reading_with(cache):
                block = self._work.read(i, buffer)
        except Exception as error:
            error.add_note(f"while reading {self._which(i)}")
            raise
        block.buffer, block.scratch = buffer, self._scratch
        return block

    def _release(self, block: Block) -> None:
        """The current block is no longer in use: reuse its buffer."""
        with self._lock:
            self._live -= 1
            if block.buffer is not None:
                self._free.append(block.buffer)


# One span: consecutive blocks, read and folded into accumulators of its own.


@dataclass
class SpanResult:
    """The result of one span.  pieces : (sink, start, values) that are not written yet."""

    accumulators: dict[str, Accumulator]
    pieces: list[tuple[str, int, Any]]
    reads: ReadCount = field(default_factory=ReadCount)
    checksums: dict[str, int] = field(default_factory=dict)  # of chunks read on a worker
    nbytes: int = 0
    n_blocks: int = 0
    live: int = 0  # the most raw blocks alive at once in its lane


def fold_span(
    work: Pass,
    span: range,
    ahead: int,
    stop: threading.Event | None = None,
    ready: Callable[[Block], None] | None = None,
    patience: float | None = None,
) -> SpanResult:
    """Read and fold consecutive blocks in order: a task on a cluster, or a single span here."""
    stop = stop or threading.Event()
    accumulators = work.accumulators()
    result = SpanResult(accumulators, [])
    before = work.matrix.reads()
    reader = ReadAhead(work, InOrder([span]), ahead, stop, patience)
    with reader.blocks() as blocks:
        for block in blocks:
            if stop.is_set():
                raise Stopped
            result.pieces += work.process(block, accumulators)
            result.nbytes += values_nbytes(block)
            result.n_blocks += 1
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


# Lanes: threads of this process that fold whole spans, each reading ahead.


class Taker(Protocol):
    """What takes the spans that lanes have folded."""

    cost: PassCost
    next: int  # the first span that is not merged

    def take(self, number: int, result: SpanResult) -> int: ...

    def block_done(self, nbytes: int) -> None: ...


def run_on_lanes(work: Pass, todo: list[tuple[int, range]], crew: Crew, fold: Taker) -> None:
    """Fold spans on lanes of this process. An ordered pass is a single span, on one lane."""
    if crew.lanes > 1:
        edges, sinks = work.matrix.edges, work.sinks.items()
        work = replace(
            work, hold=tuple(n for n, sink in sinks if not sink.concurrent_threads(edges))
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
        work: Pass,
        todo: list[tuple[int, range]],
        crew: Crew,
        fold: Taker,
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
        result = SpanResult(self.work.accumulators(), [])
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
