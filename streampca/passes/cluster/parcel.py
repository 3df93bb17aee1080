"""What a pass sends to its workers, and what runs there: folding spans, keeping the total."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.matrix import ChunkedMatrix, SpotCheck
from streampca.passes.cluster.calls import answer_of, identities, retrieved, running
from streampca.passes.cluster.placement import Lay, unpacked
from streampca.passes.cluster.versions import Versions, differences, other_version, our_versions
from streampca.passes.cluster.workers import LOOK_SECONDS
from streampca.passes.lanes import SpanResult, fold_span
from streampca.passes.records import Pass
from streampca.passes.settings import read_by_a_core, setting, single_threaded_blas, usable_cores

# What a pass sends to its workers, and the task that folds a span.


class Parcel:
    """A message, pickled in one piece.

    Distributed sends arrays outside the pickle, and they arrive at the address that they have in
    the message, often unaligned. NumPy then does not use BLAS, and rounds differently.

    The content is unpickled on first use: inside a task, whose errors reach the client. Unpickled
    while the message is received, a missing module would end the worker's connection.
    """

    def __init__(self, content: Any) -> None:
        self._content, self._packed = content, b""

    @classmethod
    def sealed(cls, content: Any) -> Parcel:
        """A parcel that is pickled now. Raises ClusterError if the content cannot be pickled."""
        try:
            return cls.received(dumps(content))
        except Exception as error:  # every library raises its own
            raise ClusterError(
                f"the source, or a function that is applied to it, cannot be sent to workers: "
                f"{type(error).__name__}: {error}. Give a path in place of an open file or a "
                "connection; or use scheduler='threads'."
            ) from error

    @classmethod
    def received(cls, packed: bytes) -> Parcel:
        """A parcel from its pickled form."""
        parcel = cls(None)
        parcel._packed = packed
        return parcel

    @property
    def content(self) -> Any:
        """The content, unpickled once."""
        if packed := self._packed:  # two threads may both unpickle it; either result will do
            self._content, self._packed = pickle.loads(packed), b""
        return self._content

    @content.setter
    def content(self, content: Any) -> None:
        self._content, self._packed = content, b""

    def __reduce__(self) -> Any:
        return Parcel.received, (self._packed or dumps(self._content),)


def handed_over(client: Any, parcel: Parcel, workers: list[str], direct: bool | None = None) -> Any:
    """The future of a parcel on one of these workers.

    Raises TimeoutError if one of them is silent meanwhile, or after four times ``pause-timeout``.
    """
    pause = setting("pause-timeout")

    def silent() -> bool:
        states = running(client)
        return any(states.get(one, "gone") in ("gone", "silent") for one in workers)

    call = placed(client, parcel, workers, direct)
    return answer_of(client, call, 4 * pause, silent, min(LOOK_SECONDS, pause / 4))


async def placed(
    client: Any, parcel: Parcel, workers: list[str], direct: bool | None = None
) -> Any:
    """The future of a parcel, scattered to one of these workers under a key of its own.

    A scattered dictionary would use its keys on the scheduler, where another pass or client may
    have the same "v". The scatter is shielded from cancellation: without a future, nothing would
    ever release the data.
    """
    found = asyncio.ensure_future(
        client.scatter([parcel], workers=workers, hash=False, direct=direct)
    )
    found.add_done_callback(retrieved)
    (future,) = await asyncio.shield(found)
    return future


def dumps(content: Any) -> bytes:
    """The content pickled in one piece; by cloudpickle where plain pickle does not do."""
    import cloudpickle
    from distributed.protocol import pickle as theirs

    if cloudpickle.list_registry_pickle_by_value():  # plain pickle would send them by reference
        return bytes(cloudpickle.dumps(content))
    return bytes(theirs.dumps(content))


def as_task(function: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, bytes]:
    """(what a task is to call, its first argument): the function, given these arguments.

    Dask unpickles a task while its message is received. One that needs streampca would end the
    connection of a worker that has none, before anybody learns why; this one fails as a task.
    """

    def call(packed: bytes, **more: Any) -> Any:  # sent by value: it is in no module
        import pickle

        return pickle.loads(packed)(**more)

    return call, dumps(partial(function, *given, **named))


@dataclass(frozen=True)
class Terms:
    """How spans are read.  versions : of the client.  ahead : blocks read in advance.
    patience : seconds to wait for one block.
    """

    versions: Versions
    ahead: int
    patience: float


def fold_on_worker(
    work: Parcel,
    span: range,
    terms: Terms,
    common: Parcel | None = None,
    values: Sequence[Any] = (),
    lay: Lay | None = None,
    part: Parcel | None = None,
) -> Parcel:
    """The task: read and fold one span on a worker, on one BLAS thread.

    common : the operands and maps of the pass, where it has any.
    values : chunks on the cluster that the work needs; the work is then packed without them.
    lay : where they were when the task was sent.
    part : the part of an X in memory, if the work carries no matrix.

    A StreamPCAError is returned, with the worker's address as its ``worker``: it would be the same
    at every attempt. Other errors are raised, and Dask retries the task: a store may fail briefly.
    """
    try:
        if wrong := differences(our_versions(), terms.versions):  # a worker that joined later
            raise other_version({_here(): wrong}, terms.versions)
        with _unpickling():
            mine = work.content if lay is None else unpacked(work.content, values, lay, _here())
            mine = mine if common is None else replace(mine, **common.content)
            mine = mine if part is None else replace(mine, matrix=part.content)
        confirm(mine.checks.values(), _here())
        mine.matrix.restart_counts()
        with single_threaded_blas():
            ahead = 0 if read_by_a_core(mine.matrix) and not _spare_core() else terms.ahead
            result = fold_span(mine, span, ahead, patience=terms.patience)
        result.checksums = mine.matrix.checksums()
        return Parcel(result)
    except StreamPCAError as error:
        error.worker = _here()  # type: ignore[attr-defined]
        return Parcel(error)


REMEMBERED = 10_000

_passed: dict[str, None] = {}  # tokens of checks that passed in this process, oldest first
_lock = threading.Lock()


def confirm(checks: Iterable[SpotCheck], worker: str) -> None:
    """Raise ClusterError if this process sees other data than the client. Each check runs once.

    worker : the address of this process.
    """
    for check in checks:
        if check.token in _passed:
            continue
        if difference := check.difference():
            raise ClusterError(
                f"worker {worker} sees another store at {check.location.name}, or none: "
                f"{difference}. The same files must lie at this path on every worker (a shared "
                "file system, or object storage); or use scheduler='threads'."
            )
        with _lock:
            _passed[check.token] = None
            while len(_passed) > REMEMBERED:
                del _passed[next(iter(_passed))]


def _spare_core() -> bool:
    """Whether this worker has a core to spare for the reader of each thread."""
    from distributed import get_worker

    try:
        return 2 * int(get_worker().state.nthreads) <= usable_cores()
    except ValueError:
        return True


@contextlib.contextmanager
def _unpickling() -> Iterator[None]:
    """Raise ClusterError if this worker cannot unpickle a parcel."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"worker {_here()} has no module {error.name!r}, which a function or a source of this "
            "fit comes from. Install it on the workers; or send it: client.upload_file(its .py "
            "file), or cloudpickle.register_pickle_by_value(the module) before the fit."
        ) from error
    except Exception as error:  # libraries of another version raise anything
        raise ClusterError(
            f"worker {_here()} cannot unpickle what it is to work on: {type(error).__name__}: "
            f"{error}. Install the same libraries everywhere, and give paths that every worker "
            "can open."
        ) from error


def _here() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:
        return ""


# What runs on the worker that keeps the total of a pass: merge spans into it, and send it.

EXPIRY_SECONDS = 0.2  # between checks that the client still keeps a total


class NotStoredError(ClusterError):
    """The workers did not receive operands, or a part of X, in time."""


class LostError(ClusterError):
    """The total cannot be reached, or is not in the expected state."""


@dataclass
class Total:
    """The accumulators of all spans merged so far, on a worker.

    next : the first span that is not in it; None during a merge, and after one that failed.
    last : the result of the span before, without its accumulators.
    turn : held while the total is read or changed; a merge that the client gave up may still run.
    """

    accumulators: dict[str, Accumulator]
    next: int | None
    last: SpanResult | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def merge(self, number: int, result: SpanResult) -> SpanResult:
        """Merge the next span. Returns its result without the accumulators."""
        self.next = None
        with single_threaded_blas():
            for name, accumulator in result.accumulators.items():
                self.accumulators[name].merge(accumulator)
        self.next, self.last = number + 1, replace(result, accumulators={})
        return self.last

    def check(self, number: int) -> None:
        """Raises LostError unless this is the next span."""
        if self.next != number:
            raise LostError(f"it waits for span {self.next}, and {number} came")


# worker (a process may have several) -> key of the client's data -> total
_totals: WeakKeyDictionary[Any, dict[str, Total]] = WeakKeyDictionary()


def _total(key: str, worker: Any) -> Total:
    """The total that started from this data. It is dropped when the client drops the data."""
    totals = _totals.setdefault(worker, {})
    if key not in totals:
        versions, number, first = worker.data[key].content
        if wrong := differences(our_versions(), versions):
            raise LostError(f"it has {', '.join(wrong.values())}, and the client {versions}")
        worker.data[key].content = versions, None, None  # no second copy
        totals[key] = Total(pickle.loads(first), number)

        def expire() -> None:
            if key in worker.data:
                worker.loop.call_later(EXPIRY_SECONDS, expire)
            else:
                totals.pop(key, None)

        expire()
    return totals[key]


async def merge_span(
    key: str, number: int, span: str, holders: list[str], patience: float, dask_worker: Any
) -> Parcel:
    """Fetch the result of a span from its holders, and merge it in a thread of its own.

    The parcel holds the result without its accumulators; None if it did not arrive; or its error.
    """
    total = _total(key, dask_worker)
    total.check(number)
    try:
        result = await asyncio.wait_for(_brought(span, holders, dask_worker), patience)
    except TimeoutError:
        result = None
    if result is None or isinstance(result, StreamPCAError):
        return Parcel(result)
    async with total.turn:
        total.check(number)
        try:
            return Parcel(await asyncio.to_thread(total.merge, number, result))
        except StreamPCAError as error:
            return Parcel(error)


async def _brought(span: str, holders: list[str], worker: Any) -> Any:
    """The result of a span; None if no worker has it.

    ``worker.gather`` would keep a copy that the scheduler does not know and never frees.
    """
    from distributed.utils_comm import gather_from_workers

    data: Any = worker.data
    if span not in data:
        found = await gather_from_workers({span: holders}, worker.rpc, who=worker.address)
        data = found[0]
    if span not in data:
        return None
    parcel = data[span]
    return await asyncio.to_thread(lambda: parcel.content)  # unpickled outside the event loop


async def give_total(key: str, number: int, last: bool, dask_worker: Any) -> bytes:
    """Pickled: (the accumulators of all spans below ``number``, None).

    If the client gave up waiting for the merge of span ``number`` and it then finished, the
    accumulators include it, and its result is sent in place of None.
    last : drop the total.
    """
    total = _total(key, dask_worker)
    async with total.turn:
        ahead = total.last if total.next == number + 1 else None
        if ahead is None:
            total.check(number)
        found = await asyncio.to_thread(dumps, (total.accumulators, ahead))
    if last:
        del _totals[dask_worker][key]
    return found


# An array in memory on a cluster: each span's part goes to one worker, once for all passes.

SHARE = 0.5  # of the memory of all workers, that X may occupy between passes


@dataclass
class Scattered:
    """The parts of an X in memory that were sent to workers.

    They stay there if a fit makes several passes and they take at most half of the workers' memory;
    otherwise each is sent with its span and then dropped. Parts go directly to workers, or through
    the scheduler if the client cannot reach them.
    """

    _parts: dict[Any, tuple[Any, str]] = field(default_factory=dict)  # and the worker that took it
    _direct: bool = True

    def part(
        self, client: Any, work: Pass, span: range, workers: list[str], keep: bool
    ) -> tuple[Any, int]:
        """(future of a parcel with the matrix of a span, bytes that this call sent).

        workers : candidates; consecutive spans go to different ones.
        """
        matrix, axis = work.matrix, work.matrix.streamed_axis
        edges = matrix.edges[span[0] : span[-1] + 2]
        name = (client.id, matrix.fingerprint(), axis, edges.tobytes())
        known, there = self._parts.get(name, (None, ""))
        if known is not None and known.status == "finished" and there in workers:
            return known, 0
        parcel = Parcel(work.cut(span).matrix)
        first = span[0] // len(span) % len(workers)
        future, there = self._sent(client, parcel, [*workers[first:], *workers[:first]])
        if keep:
            self._parts[name] = future, there
        return future, int(matrix.spans_nbytes(axis, np.array([edges[0], edges[-1]])).sum())

    def _sent(self, client: Any, parcel: Parcel, workers: list[str]) -> tuple[Any, str]:
        try:
            return handed_over(client, parcel, workers[:1], self._direct), workers[0]
        except TimeoutError as error:  # it is silent
            if workers[1:]:
                return self._sent(client, parcel, workers[1:])
            raise NotStoredError(f"no worker took a part of X: {error}") from error
        except OSError as error:
            if not self._direct:
                raise NotStoredError(f"no worker took a part of X: {error}") from error
            self._direct = False
            return self._sent(client, parcel, workers)


def worth_keeping(client: Any, matrix: ChunkedMatrix, n_passes: int) -> bool:
    """Whether other passes will use the parts, and the workers have room for them."""
    workers = identities(client).values()
    limits = [int(one.get("memory_limit") or 0) for one in workers]
    return n_passes > 1 and (not all(limits) or matrix.carried_nbytes <= SHARE * sum(limits))
