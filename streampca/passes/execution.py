"""How far a fit is: its execution, the spans merged of the pass that runs, and its progress."""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.passes.checkpoint import Checkpoint
from streampca.passes.cluster.calls import cluster_id
from streampca.passes.cluster.clients import ambient_client, find_client
from streampca.passes.cluster.parcel import Scattered
from streampca.passes.cluster.worker_memory import check_workers
from streampca.passes.lanes import PATIENCE, SpanResult, Stopped
from streampca.passes.memory import MemoryUse, in_memory
from streampca.passes.plan import Plan, check_room
from streampca.passes.records import Pass, PassCost, PassPlan
from streampca.passes.settings import Crew, in_task, read_by_a_core, setting, thread_count

logger = logging.getLogger(__name__)

# Where the passes of a fit run, and how far they are.

SMALL_NBYTES = 4 << 20  # of an array in memory whose passes need no lanes


@dataclass(frozen=True)
class Running:
    """How passes run; it never changes a result.

    memory_limit : bytes, or text such as "2GiB", that the plan keeps to; None: no limit.
    scheduler : None (the ambient ``distributed.Client`` if there is one, else threads),
        "threads", an address, or a Client.
    progress : True, False, a callable of an :class:`Advance`, or None (a bar in a terminal).
    checkpoint : directory for span checkpoints, or None.
    threads : of passes and solvers; None: as many as this process may use.
    """

    memory_limit: int | str | None = None
    scheduler: Any = None
    progress: Any = None
    checkpoint: str | None = None
    threads: int | None = None


@dataclass
class Execution:
    """How far the passes of a fit are.

    running : how they run.  plan : of the passes that run now.
    threads : that compute, in all.
    report : what is called after each block, or None.
    first_pass : passes finished before, by another candidate.
    pass_number, n_passes : set before each pass. After the last one all checkpoints are removed.
    keeps : False if the fit saves the results of its passes itself: then a finished pass leaves
        no checkpoint.
    at_once : passes of one block in memory are folded by the calling thread.
    every : seconds between checkpoints.
    scattered : the parts of an X in memory that lie on workers.
    memory : memory use of this process since the fit began.
    costs, checkpoints : of each finished pass.
    """

    running: Running
    plan: Plan
    threads: int
    report: Progress | None = None
    first_pass: int = 0
    pass_number: int = 1
    n_passes: int = 1
    keeps: bool = True
    at_once: bool = False
    every: float = field(default_factory=lambda: float(setting("checkpoint-interval")))
    scattered: Scattered = field(default_factory=Scattered)
    memory: MemoryUse = field(default_factory=MemoryUse.begun)
    costs: list[PassCost] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @classmethod
    def begun(cls, plan: Plan, matrix: ChunkedMatrix, running: Running) -> Self:
        """The execution of a plan, before anything is read.

        That of a small array in memory needs no more room than the array took, and no lanes.

        Raises MemoryLimitError if the plan does not fit into this machine or a worker, ClusterError
        and InvalidInputError if the scheduler cannot be used.
        """
        if not plan.frees_much and is_small(matrix, running):
            return cls(running, plan, 1, at_once=True)
        client = client_for(running.scheduler, matrix)
        room = check_room(plan)
        if client is not None:
            check_workers(client, plan)
        threads = plan.affordable(thread_count(), room)
        execution = cls(running, plan, threads, resolve(running.progress))
        execution.memory.more = plan.peak_with(threads) - plan.peak_nbytes
        return execution

    def crew(self, work: Pass, n_spans: int) -> Crew:
        """Who folds so many spans of a pass here."""
        alone = self.threads == 1 and read_by_a_core(work.matrix)
        ahead = 0 if alone else self.plan.blocks_ahead
        return Crew.of(work.spec.partial_nbytes, self.plan.lanes, ahead, self.threads, n_spans)

    def finished(self) -> None:
        """The fit is done, perhaps in fewer passes than planned: remove its checkpoints."""
        for one in self.checkpoints:
            one.clear()
        self.checkpoints.clear()


def is_small(matrix: ChunkedMatrix, running: Running) -> bool:
    """Whether a matrix lies in this process, takes little, and nothing says where its passes run,
    within which limit, and who hears of them."""
    if matrix.nbytes > SMALL_NBYTES or not in_memory(matrix) or matrix.futures():
        return False
    said = (running.memory_limit, running.scheduler, running.checkpoint, running.progress or None)
    return all(one is None for one in (*said, setting("memory-limit"), setting("scheduler")))


def client_for(scheduler: Any, matrix: ChunkedMatrix) -> Any | None:
    """The client for a matrix, or None for threads of this process.

    scheduler : as :func:`find_client` takes it. With None, chunks on a cluster are folded there, by
        the client that holds their futures; arrays in memory are folded here, even if there is an
        ambient client.
    Raises InvalidInputError if X is on another cluster than ``scheduler`` names. "threads" fetches
    it block by block.
    """
    futures = matrix.futures()
    named = setting("scheduler") if scheduler is None else scheduler
    threads = named is None or (isinstance(named, str) and named == "threads")
    client = None if threads and "distributed" not in sys.modules else find_client(scheduler)
    if not futures:
        ambient = client is not None and scheduler is None and client is ambient_client()
        return None if ambient and in_memory(matrix) else client
    own = futures[0].client
    if client is None:
        return None if named == "threads" or in_task() else _open(own)
    if scheduler is not None and cluster_id(client) != cluster_id(_open(own)):
        raise InvalidInputError(
            f"X lies on the cluster at {own.scheduler.address}, and scheduler= names the one at "
            f"{client.scheduler.address}. Leave scheduler= out; or say scheduler='threads', and X "
            "is fetched block by block."
        )
    return _open(own)


def _open(client: Any) -> Any:
    if client is None or client.status != "running":
        raise ClusterError(
            "the client that holds the chunks of X is closed; they are gone with it. Open a client "
            "and persist X again."
        )
    return client


LOG_SECONDS = 60.0  # between two lines of the log within a pass

# Spans arrive in any order and are merged in the order of the plan.


class Fold:
    """Takes span results in any order, merges them in plan order, writes checkpoints.

    After :meth:`leave` the total is kept on a worker: spans that are taken have been merged there,
    and the total here does not change until :meth:`bring`.
    """

    def __init__(
        self, plan: PassPlan, work: Pass, cost: PassCost, execution: Execution, begun: float
    ) -> None:
        self.plan, self.spans, self.work = plan, plan.spans, work
        self.cost, self.execution = cost, execution
        self.total = work.accumulators()
        self.next = 0
        self._whole = True  # False while a span is being merged, and after that failed
        self._closed = False  # no more spans are accepted
        self.begun = begun
        self._left: tuple[int, PassCost, float] | None = None  # next, cost and time at ``leave``
        self._waiting: dict[int, SpanResult] = {}
        self._lock = threading.Lock()
        self._progress = threading.Lock()
        self._done_blocks = self._done_nbytes = 0
        self._due = LOG_SECONDS  # seconds of this pass at which its progress is logged
        self.checkpoint: Checkpoint | None = None
        if execution.running.checkpoint is not None and Checkpoint.can_keep(work):
            self.checkpoint = Checkpoint.open(
                execution.running.checkpoint, plan.to_dict(), work, execution.every
            )
            self.next, self.total = self.checkpoint.resume(self.total)
            cost.resumed_blocks = sum(len(s) for s in self.spans[: self.next])
            if self.next:
                logger.info("%s goes on from span %d of %d", plan.name, self.next, len(self.spans))
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
            seconds = time.perf_counter() - self.begun
            if (due := seconds >= self._due) or self.execution.report is not None:
                advance = Advance(
                    self.plan.name,
                    self.execution.pass_number,
                    self.execution.n_passes,
                    self._done_blocks,
                    self.plan.n_blocks,
                    self._done_nbytes,
                    seconds,
                    self.cost.resumed_blocks,
                )
                if self.execution.report is not None:
                    self.execution.report(advance)
                if due:
                    self._due = seconds + LOG_SECONDS
                    logger.info("%s", advance, extra=advance.fields())

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
        folder = self.execution.running.checkpoint
        if folder is None:
            return "nothing of this fit is kept; with a checkpoint, the same call would go on"
        if self.checkpoint is None:
            return f"the passes before this one are kept in {folder}: the same call makes it again"
        return (
            f"what was folded is kept in {folder}: the same call goes on from there, on any "
            "cluster or in threads"
        )

    def finish(self) -> None:
        """End the pass: finish accumulators and sinks; save the checkpoint, or remove all of them.

        They are removed after the last pass.
        """
        for accumulator in self.total.values():
            accumulator.settle()
        for sink in self.work.sinks.values():
            sink.finish()
        last = self.execution.pass_number >= self.execution.n_passes
        last = not self.execution.keeps or (last and self.execution.plan.then is None)
        if self.checkpoint is not None:
            self.execution.checkpoints.append(self.checkpoint)
            if not last:
                self.checkpoint.save(len(self.spans), self.total)
        if last:
            self.execution.finished()


# Progress: a callable of an Advance after each block.

LINE_SECONDS = 10.0


@dataclass(frozen=True)
class Advance:
    """Where a fit stands, handed to the progress callback after each block.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> seen = []
    >>> model = PCA(1, progress=seen.append).fit(np.eye(6, 3))
    >>> seen[-1].blocks_done == seen[-1].n_blocks
    True
    """

    pass_name: str
    pass_number: int
    n_passes: int
    blocks_done: int
    n_blocks: int
    nbytes: int  # decoded, in this pass
    seconds: float  # since this pass began
    blocks_resumed: int = 0  # of those done, taken from a checkpoint

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Of this pass, at the speed so far."""
        read = max(self.blocks_done - self.blocks_resumed, 1)
        return self.seconds * (self.n_blocks - self.blocks_done) / read

    def fields(self) -> dict[str, Any]:
        """The same for programs: the fields of a line of the log."""
        return {
            "pass": self.pass_number,
            "passes": self.n_passes,
            "pass_name": self.pass_name,
            "block": self.blocks_done,
            "blocks": self.n_blocks,
            "mb_per_s": round(self.rate / 1e6, 1),
            "seconds_left": round(self.seconds_left, 1),
        }

    def __str__(self) -> str:
        return (
            f"pass {self.pass_number}/{self.n_passes} {self.pass_name}  block "
            f"{self.blocks_done}/{self.n_blocks}  {self.rate / 1e6:.0f} MB/s  "
            f"{self.seconds_left:.0f} s left"
        )


class Progress(Protocol):
    """Anything that can be called with an :class:`Advance`."""

    def __call__(self, advance: Advance) -> None: ...


class TerminalProgress:
    """Lines on stderr.

    In a terminal one line, rewritten at most ten times a second and gone when its pass is done; in
    a log a line of its own at most every LINE_SECONDS, and one at the end of a pass.
    """

    _last = 0.0

    def __call__(self, advance: Advance) -> None:
        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        terminal = sys.stderr.isatty()
        if not done and now - self._last < (0.1 if terminal else LINE_SECONDS):
            return
        self._last = now
        line = "\r\x1b[K" + ("" if done else str(advance)) if terminal else f"{advance}\n"
        sys.stderr.write(line)
        sys.stderr.flush()


class NotebookProgress:
    """A bar in Jupyter, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    def __call__(self, advance: Advance) -> None:
        from IPython.display import HTML, display

        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        if not done and now - self._last < 0.2:
            return
        if self._handle is None:  # no bar for passes that end at once
            if advance.seconds < 0.5:
                return
            self._handle = display("", display_id=True)
        self._last = now
        bar = f'<progress value="{advance.blocks_done}" max="{advance.n_blocks}"></progress>'
        self._handle.update(HTML(f"{bar} {advance}"))


def resolve(progress: bool | Progress | None) -> Progress | None:
    """The callback for ``progress=``: None follows the surroundings, True and False decide."""
    if callable(progress):
        return progress
    if progress is False:
        return None
    shell = type(sys.modules["IPython"].get_ipython()).__name__ if "IPython" in sys.modules else ""
    if shell == "ZMQInteractiveShell":
        return NotebookProgress()
    if progress or (progress is None and sys.stderr.isatty()):
        return TerminalProgress()
    return None
