"""Settings of a machine or a site, and the threads of this process: decided here alone.

How many threads there are never changes a result, or a plan. It is, first,
``threads=``, ``--threads``, or ``streampca.threads`` in Dask's configuration, in this order, and
even beyond the cores. Otherwise it is the least of

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

import difflib
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from importlib import import_module
from numbers import Integral
from pathlib import Path
from typing import Any

import threadpoolctl

from streampca.errors import InvalidInputError
from streampca.kernels import Team
from streampca.matrix import ChunkedMatrix
from streampca.passes import memory
from streampca.passes.memory import THREAD_NBYTES, MiB, group_folders

# The one place that sets BLAS thread counts.

_lock = threading.Lock()
_depth = 0
_before: list[tuple[Any, int]] = []
_known: tuple[int, list[Any]] | None = None  # (number of imported modules then, libraries)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """One BLAS thread inside the context, in the whole process. Nests, and is thread-safe.

    Parallelism comes from lanes. Skinny products, QR and eigh differ in their bits between numbers
    of threads, so nothing here uses more than one.
    """
    global _depth, _before
    with _lock:
        if _depth == 0:
            _before = [(library, library.num_threads) for library in _libraries()]
            _set([(library, 1) for library, _ in _before])
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _set(_before)
                _before = []


def _libraries() -> list[Any]:
    """The BLAS libraries of this process.

    Searching takes as long as a small decomposition, so it is repeated only after an import.
    """
    global _known
    if _known is None or _known[0] != len(sys.modules):
        import_module("scipy.linalg.cython_blas")  # else it comes later, with all its threads
        imported = len(sys.modules)  # before the search: another thread may import meanwhile
        found = threadpoolctl.ThreadpoolController().select(user_api="blas")
        _known = (imported, found.lib_controllers)
    return _known[1]


def _set(counts: list[tuple[Any, int]]) -> None:
    """Set thread counts, from any thread.

    Since 3.8 threadpoolctl lets only the first thread that tries change OpenBLAS, and silently
    ignores all others: a task of a Dask worker, or the last lane to finish, would change nothing.
    So the controlling thread is cleared before and after.
    """
    openblas = getattr(threadpoolctl, "OpenBLASController", None)
    release = getattr(openblas, "clear_controlling_thread", lambda force: None)
    release(force=True)
    for library, count in counts:
        library.set_num_threads(count)
    release(force=True)


# Settings of a machine or a site, from Dask's configuration, under ``streampca:``.
#
# They are set in a YAML file of Dask's (``~/.config/dask/*.yaml``, ``DASK_CONFIG``), in the
# environment (``DASK_STREAMPCA__MEMORY_LIMIT=1GiB``), or in a program by
# ``dask.config.set({"streampca.memory-limit": "1GiB"})``. Arguments of a call take precedence.


@dataclass(frozen=True)
class Setting:
    """A setting.  least : the least value of a number; None for other types."""

    default: Any
    meaning: str
    least: float | None = None


SETTINGS = {
    "memory-limit": Setting(None, "of plans, if a call names none: e.g. 512MiB"),
    "scheduler": Setting(None, "'threads' or tcp://host:port, if a call names none"),
    "threads": Setting(None, "of passes and solvers, if a call names no number", 1.0),
    "checkpoint-interval": Setting(60.0, "seconds between the checkpoints of a pass", 0.0),
    "read-timeout": Setting(600.0, "seconds that a worker waits for one block", 0.1),
    "pause-timeout": Setting(
        60.0, "seconds that a worker may be paused or silent (3 at least), or a scheduler (5)", 0.1
    ),
    "span-timeout": Setting(
        3600.0, "seconds for a span, or eight times the longest so far, if that is more", 0.1
    ),
    "span-retries": Setting(2, "times that a span is given to another worker after that", 0.0),
    "worker-timeout": Setting(1800.0, "seconds that a pass waits for a worker if it has none", 0.1),
}


def setting(name: str) -> Any:
    """The value of a setting. Raises InvalidInputError if it is not one that can be used."""
    one = SETTINGS[name]
    if "dask" not in sys.modules and not _configured():
        return one.default
    import dask.config

    _refuse_unknown(dask.config.get("streampca", None) or {})
    value = dask.config.get(f"streampca.{name}", one.default)
    value = one.default if value is None else value
    if one.least is None or value is None:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= one.least:
        raise InvalidInputError(
            f"streampca.{name} in Dask's configuration is {value!r}; expected at least "
            f"{one.least:g}"
        )
    return number


def _refuse_unknown(section: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for unknown names: a misspelt limit would have no effect."""
    for name in section:
        plain = name.replace("_", "-")
        if plain not in SETTINGS:
            like = difflib.get_close_matches(plain, SETTINGS, 1)
            hint = f"; did you mean {like[0]}?" if like else ""
            raise InvalidInputError(
                f"streampca.{name} in Dask's configuration: unknown; expected one of "
                f"{', '.join(SETTINGS)}{hint}"
            )


@cache
def _configured() -> bool:
    """Whether the environment or a file of Dask's mentions streampca. Does not import Dask."""
    if any(name.startswith("DASK_STREAMPCA") for name in os.environ):
        return True
    places = [
        os.environ.get("DASK_ROOT_CONFIG", "/etc/dask"),
        os.path.join(sys.prefix, "etc/dask"),
        os.path.expanduser("~/.config/dask"),
        os.environ.get("DASK_CONFIG"),
    ]
    for place in map(Path, filter(None, places)):
        for file in [place] if place.is_file() else place.glob("*.y*ml"):
            try:
                if "streampca" in file.read_text(encoding="utf-8"):
                    return True
            except (OSError, UnicodeDecodeError):
                continue
    return False


# How many threads this process uses.

PATIENCE = 1.0  # seconds to wait for a piece of work that is being done when its caller fails

_requested: ContextVar[int | None] = ContextVar("threads", default=None)


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
    token = _requested.set(int(threads))
    try:
        yield
    finally:
        _requested.reset(token)


def on_threads(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, on the threads of its model."""

    @wraps(method)
    def inside(self: Any, *args: Any, **named: Any) -> Any:
        with limited_threads(self.threads):
            return method(self, *args, **named)

    return inside


def thread_count() -> int:
    """The number of threads to use here and now."""
    requested = _requested.get()
    if requested is None and (configured := setting("threads")) is not None:
        requested = int(configured)
    if requested is not None:
        return requested
    if "distributed" in sys.modules and in_task():
        return 1
    return min(usable_cores(), _from_environment())


def in_task() -> bool:
    """Whether this runs in a task of a worker."""
    return task_worker() is not None


def task_worker() -> Any | None:
    """The worker whose task this is, or whose process: a task may have started this thread.

    A process that also holds the scheduler belongs to a client, and its workers are threads.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import Scheduler, Worker, get_worker

    try:
        return get_worker()
    except ValueError:
        pass
    if any(one.status.name == "running" for one in Scheduler._instances):
        return None
    return next((one for one in Worker._instances if one.status.name != "closed"), None)


@contextmanager
def helped(helpers: int, name: str = "helper") -> Iterator[Team]:
    """A team with so many threads that serve it, from the first work that is divided."""
    threads: list[threading.Thread] = []

    def start() -> None:
        for i in range(helpers):
            thread = threading.Thread(target=team.serve, name=f"streampca-{name}-{i}", daemon=True)
            thread.start()
            threads.append(thread)

    team = Team(start if helpers > 0 else None)
    try:
        yield team
    finally:
        team.end()
        for thread in threads:
            thread.join(PATIENCE)


@contextmanager
def all_threads() -> Iterator[None]:
    """What this thread divides inside the context is done by all threads, each with its own BLAS.

    For solvers, while no pass runs.
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
    return max(1, min([cores, *_quotas(memory.PROC, memory.CGROUP, memory.this_second())]))


@lru_cache(maxsize=1)
def _quotas(proc: Path, cgroup: Path, second_of_clock: int) -> tuple[int, ...]:
    """CPUs that each control group grants, rounded up."""
    return tuple(_granted())


def _granted() -> Iterator[int]:
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
    """lanes : threads that fold spans.  helpers : further ones.  ahead : blocks, of each lane."""

    lanes: int
    helpers: int
    ahead: tuple[int, ...]

    @classmethod
    def of(cls, partial_nbytes: int, lanes: int, ahead: int, threads: int, n_spans: int) -> Crew:
        """For a pass of so many spans.

        partial_nbytes : of the accumulators of a span.
        lanes, ahead : of the whole plan. A single lane stays alone: blocks may be needed in order.
        threads : in all, without those that wait for storage to read ahead.
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
