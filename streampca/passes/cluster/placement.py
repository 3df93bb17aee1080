"""Chunks of X that lie on a cluster: dependencies of the spans' tasks, folded where they are.

A future inside the work of a span is of no use on a worker: reader threads belong to no task, and
would fetch data that the scheduler does not know of. So each task names the chunks that it needs as
dependencies. The scheduler then moves what is missing, and recomputes what died with a worker.
"""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from streampca.accumulators import OPEN_BLOCKS
from streampca.errors import ClusterError
from streampca.matrix import work_dtype
from streampca.matrix.location import Brought, Held
from streampca.passes.cluster.calls import reply, running, threads, who_has
from streampca.passes.cluster.workers import await_all
from streampca.passes.memory import MiB
from streampca.passes.records import Pass

AHEAD_NBYTES = 128 * MiB  # of span results that wait on workers to be merged
MOST_AHEAD = 256  # spans
LOOK_SECONDS = 1.0  # between checks whether workers joined or left
CROWDED = 1.75  # times the mean load of a thread: above that, others may fold a worker's spans

REMEMBERED = 8  # passes

# pass -> worker -> keys of the chunks that its spans used; a process may hold several workers
_brought: dict[str, defaultdict[str, set[Any]]] = {}
_brought_lock = threading.Lock()


def packed(work: Pass) -> tuple[bytes, list[Any]]:
    """(the work pickled without its chunks on the cluster, the futures of these)."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(work)
    return file.getvalue(), list(pickler.futures.values())


def unpacked(data: bytes, values: Sequence[Any], lay: Lay, here: str) -> Pass:
    """The work of :func:`packed`, with the chunks in place of their futures."""
    missing = lay.missing(here)
    found: Pass = _Unpickler(data, map(Brought, values, missing)).load()
    return found


@dataclass(frozen=True)
class Lay:
    """Where the chunks of a span were when its task was sent.

    keys, holders : for each chunk, its key and the addresses of the workers that had it.
    """

    pass_id: str
    keys: tuple[Any, ...]
    holders: tuple[tuple[str, ...], ...]

    def missing(self, here: str) -> list[bool]:
        """For each chunk, whether it was moved to this worker for this span, and not earlier."""
        with _brought_lock:
            by_worker = _brought.pop(self.pass_id, None) or defaultdict(set)
            _brought[self.pass_id] = by_worker  # last in the order of use
            while len(_brought) > REMEMBERED:
                del _brought[next(iter(_brought))]
            seen = by_worker[here]
            found = []
            for key, holders in zip(self.keys, self.holders, strict=True):
                found.append(here not in holders and key not in seen)
                seen.add(key)
        return found


def spans_ahead(work: Pass) -> int:
    """How many spans may be in flight; their results wait on workers until they are merged.

    If one worker holds the first half of X and another the second, both should be busy.
    """
    if work.sinks or not work.spec.accumulators:
        return 0
    matrix, axis = work.matrix, work.matrix.streamed_axis
    rows = int(np.diff(matrix.edges).max(initial=0)) * OPEN_BLOCKS
    seen = min(rows, matrix.shape[axis])
    shape = (matrix.shape[0], seen) if axis else (seen, matrix.shape[1])
    itemsize = work_dtype(matrix.dtype).itemsize
    each = sum(one.partial_nbytes(shape, itemsize) for one in work.spec.accumulators.values())
    return min(MOST_AHEAD, AHEAD_NBYTES // max(1, each))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # the library has no annotations
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.futures: dict[Any, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        """The position of a chunk among the task's ``values``."""
        if not isinstance(value, Held) or value.future is None:
            return None
        self.futures.setdefault(value.future.key, value.future)
        return list(self.futures).index(value.future.key)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, brought: Iterable[Brought]) -> None:
        super().__init__(io.BytesIO(data))
        self._brought = list(brought)

    def persistent_load(self, number: Any) -> Any:
        return self._brought[number]


class Placement:
    """Where the chunks of X lie on a cluster, and which worker should fold each span.

    A span goes to the worker that holds most of its bytes, and to no other: left to itself, the
    scheduler moves spans with their chunks to whichever worker is idle first. It decides where that
    worker holds more than 1.75 times its share of X. ``Flight`` sends spans again whose worker is
    gone, takes no tasks, or has other work to do.
    """

    def __init__(self, client: Any, futures: Iterable[Any], pass_id: str) -> None:
        self.client, self.pass_id = client, pass_id
        self._futures = {one.key: one for one in futures}
        self._workers: set[str] = set()
        self._ill: dict[str, str] = {}  # worker -> why it takes no tasks, or ""
        self._looked = -LOOK_SECONDS
        self._who: dict[Any, tuple[str, ...]] = {}
        self._nbytes: dict[Any, int] = {}
        self._crowded: set[str] = set()
        self._finished()

    def lay(self, futures: Iterable[Any]) -> Lay:
        """Where these chunks are now."""
        self._look()
        keys = tuple(one.key for one in futures)
        return Lay(self.pass_id, keys, tuple(tuple(self._who.get(key, ())) for key in keys))

    def choose(self, lay: Lay, workers: list[str] | None) -> list[str] | None:
        """The workers that may get a span with these chunks, among ``workers``; None for any."""
        weights: defaultdict[str, int] = defaultdict(int)
        for key, holders in zip(lay.keys, lay.holders, strict=True):
            for address in holders:
                weights[address] += self._nbytes.get(key, 1)
        home = max(weights, key=lambda one: (weights[one], one), default=None)
        if home is None or home in self._crowded or (workers and home not in workers):
            return workers
        return workers if self._ill.get(home) else [home]

    def look_again(self) -> None:
        """A worker went: ask where the chunks are before the next span."""
        self._looked, self._workers = -LOOK_SECONDS, set()

    def only_on(self, workers: Collection[str]) -> int:
        """How many chunks no other worker holds."""
        self._look()
        return sum(bool(who) and set(who).issubset(workers) for who in self._who.values())

    def _look(self) -> None:
        """Ask where the chunks are, if workers joined or left, or some were being computed."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        there, self._ill = threads(self.client), running(self.client)
        self._looked = time.monotonic()
        if there.keys() == self._workers and all(self._who.values()):
            return
        self._workers, keys = set(there), list(self._futures)
        self._who = who_has(self.client, keys)
        try:
            self._nbytes = reply(self.client, lambda s: s.nbytes(keys=keys, summary=False))
        except KeyError:  # the scheduler does not know a chunk
            self.refuse_lost()
            raise
        load: defaultdict[str, float] = defaultdict(float)
        for key, holders in self._who.items():
            for address in holders:
                load[address] += self._nbytes.get(key, 0) / len(holders)
        mean = sum(load.values()) / max(1, sum(there.values()))
        self._crowded = {one for one, n in there.items() if load[one] > CROWDED * n * mean}

    def _finished(self) -> None:
        """Wait until all chunks are computed: only then is it known where they are.

        Raises ClusterError if some are lost for good.
        """
        by_client: defaultdict[Any, list[Any]] = defaultdict(list)
        for one in self._futures.values():
            by_client[one.client].append(one)
        for client, futures in by_client.items():
            await_all(client, futures, "chunks of X")
        self.refuse_lost()

    def refuse_lost(self) -> None:
        """Raise ClusterError if chunks are lost for good: the pass would wait for ever."""
        keys = list(self._futures)
        states = reply(self.client, lambda s: s.get_task_status(keys=keys))
        lost = [
            key
            for key, one in self._futures.items()
            if one.status == "cancelled" or states.get(key) is None
        ]
        if lost:
            raise ClusterError(
                f"{len(lost)} of {len(self._futures)} chunks of X are lost on the cluster (the "
                f"first is {lost[0]!r}). Scattered data died with its worker, or was released: "
                "scatter it again."
            )
