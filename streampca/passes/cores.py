"""How many threads this process uses: decided here alone. It never changes a result, or a plan.

The number is what was asked for: by ``threads=``, ``--threads``, or ``streampca.threads`` in Dask's
configuration, in this order, and even beyond the cores. Otherwise it is the least of

- the cores that the system lets this process run on (``taskset``, ``numactl``, a cpuset);
- the CPU quota of its control groups, rounded up: a container with 1.5 CPUs gets two threads, of
  which one is held back half of the time, and loses less so than one thread would;
- OMP_NUM_THREADS, the first number of a list.

In a task of a Dask worker it is one, since the worker runs as many tasks as it has threads; so
workers that share a host need no more threads together than Dask counts for them.

Hyper-threads count as the system counts them. Two on one core share its arithmetic, and gain a
little where they wait for memory; ``--threads`` with the number of cores avoids the second ones.
Threads are not bound to nodes of memory (NUMA). Products read and write tiles that fit a cache, so
most traffic is local. One process for each node, under ``numactl``, serves several fits better.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import Any

from streampca.errors import InvalidInputError
from streampca.kernels import Team
from streampca.matrix import ChunkedMatrix
from streampca.passes.clients import in_task
from streampca.passes.memory import THREAD_NBYTES, MiB, group_folders
from streampca.passes.settings import setting, single_threaded_blas

PATIENCE = 1.0  # seconds to wait for a piece of work that is being done when its caller fails

_asked: ContextVar[int | None] = ContextVar("threads", default=None)


@contextmanager
def limited_threads(threads: Any) -> Iterator[None]:
    """Use so many threads inside the context; None leaves the number as it is.

    Raises InvalidInputError unless it is a positive integer.
    """
    if threads is None:
        yield
        return
    if isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 1:
        raise InvalidInputError(f"threads={threads!r}; expected a positive integer, or None")
    token = _asked.set(int(threads))
    try:
        yield
    finally:
        _asked.reset(token)


def on_threads(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, on the threads of its model."""

    @wraps(method)
    def inside(self: Any, *args: Any, **named: Any) -> Any:
        with limited_threads(self.threads):
            return method(self, *args, **named)

    return inside


def thread_count() -> int:
    """The number of threads to use here and now."""
    asked = _asked.get()
    if asked is None and (configured := setting("threads")) is not None:
        asked = int(configured)
    if asked is not None:
        return asked
    if "distributed" in sys.modules and in_task():
        return 1
    return min(usable_cores(), _from_environment())


@contextmanager
def helped(helpers: int, name: str = "helper") -> Iterator[Team]:
    """A team with so many threads that serve it."""
    team = Team()
    threads = [
        threading.Thread(target=team.serve, name=f"streampca-{name}-{i}", daemon=True)
        for i in range(helpers)
    ]
    try:
        for thread in threads:
            thread.start()
        yield team
    finally:
        team.end()
        for thread in threads:
            if thread.ident is not None:
                thread.join(PATIENCE)


@contextmanager
def all_threads() -> Iterator[None]:
    """What this thread divides inside the context is done by all threads, each with its own BLAS.

    For solvers, beside which no pass runs.
    """
    with single_threaded_blas(), helped(thread_count() - 1, "solver") as team, team.member():
        yield


def read_by_a_core(matrix: ChunkedMatrix) -> bool:
    """Whether reading takes a core rather than waits: of files here, or of memory."""
    return bool(matrix.paths() or matrix.given_nbytes)


def usable_cores() -> int:
    """Cores that this process may run on, and may keep busy under its CPU quota."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
    return max(1, min([cores, *_quotas()]))


def _quotas() -> Iterator[int]:
    """CPUs that each control group grants, rounded up."""
    for folder, second in group_folders("cpu"):
        if second:
            words = _words(folder / "cpu.max")
        else:
            words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield max(1, -(-int(words[0]) // int(words[1])))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _from_environment() -> int:
    """OMP_NUM_THREADS, or no limit where it is not a positive number."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) else 1 << 30


# --------------------------------------------------------------------------------------------------
# Who folds a pass: lanes, threads that fold whole spans, and helpers that do pieces of their work.
#
# Bits depend on the spans alone, so both may be any number. Memory decides: where the accumulators
# of a span are small, every thread is a lane with its own. Where they are large, the lanes of the
# plan are all that there are, and further threads help them: with squares of a symmetric update,
# with tiles (:func:`streampca.kernels.each`). Each of these adds a share of a block read ahead.

OWN_NBYTES = 16 * MiB  # of the accumulators of a span, up to which every thread has its own
HELPER_NBYTES = 3 * MiB  # of a helper: its stack, arena and BLAS buffers; 2.3 measured
HELPERS_PER_READER = 8  # decoding takes about an eighth of a symmetric update of 2000 rows


@dataclass(frozen=True)
class Crew:
    """lanes : threads that fold spans.  helpers : beside them.  ahead : blocks, of each lane."""

    lanes: int
    helpers: int
    ahead: tuple[int, ...]

    @classmethod
    def of(cls, partial_nbytes: int, lanes: int, ahead: int, threads: int, n_spans: int) -> Crew:
        """For a pass of so many spans.

        partial_nbytes : of the accumulators of a span.
        lanes, ahead : of the whole plan. A single lane stays alone: blocks may be needed in order.
        threads : in all, beside those that wait for storage to read ahead.
        """
        most = threads if lanes > 1 and own_lanes(partial_nbytes) else min(lanes, threads)
        found = max(1, min(most, n_spans))
        helpers = max(0, threads - found)
        more = helpers // HELPERS_PER_READER if ahead else 0
        share = [ahead + (more + i) // found for i in range(found)]
        return cls(found, helpers, tuple(n if i < lanes else 0 for i, n in enumerate(share)))


def own_lanes(partial_nbytes: int) -> bool:
    """Whether every thread has accumulators of its own."""
    return partial_nbytes <= OWN_NBYTES


def thread_nbytes(lanes: int, partial_nbytes: int, of_lane: int, of_reader: int) -> int:
    """Bytes of one thread beyond the lanes of a plan.

    of_lane : that one lane takes with a single block.  of_reader : one block that is read ahead.
    """
    if lanes > 1 and own_lanes(partial_nbytes):
        return THREAD_NBYTES + of_lane
    return HELPER_NBYTES + -(-(of_reader + THREAD_NBYTES) // HELPERS_PER_READER)
