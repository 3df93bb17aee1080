"""What travels between a pass and its workers, and what they do: fold spans, hold the total."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.matrix import ChunkedMatrix
from streampca.passes.placement import Lay, unpacked
from streampca.passes.read_ahead import SpanResult, fold_span
from streampca.passes.threads import single_threaded_blas
from streampca.passes.work import Work, confirm
from streampca.passes.workers import other_version, our_version

# --------------------------------------------------------------------------------------------------
# What travels between a pass and its workers, and the task that they do.


class Parcel:
    """What travels, pickled in one piece.

    Distributed sends arrays beside the pickle, and they arrive wherever they lie in the message,
    often at odd addresses. NumPy then leaves BLAS aside and rounds otherwise.

    It is unpickled where its content is asked for: in a task, whose errors reach the client. Where
    messages are read, a module that is not there would end the worker's connection.
    """

    def __init__(self, content: Any) -> None:
        self._content, self._packed = content, b""

    @classmethod
    def sealed(cls, content: Any) -> Parcel:
        """Pickled now. Raises ClusterError for what cannot be."""
        try:
            return cls.received(dumps(content))
        except Exception as error:  # every library has errors of its own
            raise ClusterError(
                f"the source, or a function that is applied to it, cannot be sent to workers: "
                f"{type(error).__name__}: {error}. Give a path in place of an open file or a "
                "connection; or use scheduler='threads'."
            ) from error

    @classmethod
    def received(cls, packed: bytes) -> Parcel:
        """One that is still pickled."""
        parcel = cls(None)
        parcel._packed = packed
        return parcel

    @property
    def content(self) -> Any:
        """What is in it, unpickled once."""
        if packed := self._packed:  # threads may both unpickle it, and either result will do
            self._content, self._packed = pickle.loads(packed), b""
        return self._content

    @content.setter
    def content(self, content: Any) -> None:
        self._content, self._packed = content, b""

    def __reduce__(self) -> Any:
        return Parcel.received, (self._packed or dumps(self._content),)


async def placed(client: Any, parcel: Parcel, workers: list[str] | None, broadcast: bool) -> Any:
    """The future of a parcel that lies on workers, named by nothing but itself.

    A bare dictionary would name the data on the scheduler by its keys, where another pass, or
    another client, has a "v" of its own. Given up on its way, it becomes a future nevertheless: or
    nobody would ever release the data.
    """
    found = client.scatter([parcel], workers=workers, broadcast=broadcast, hash=False)
    (future,) = await asyncio.shield(found)
    return future


def dumps(content: Any) -> bytes:
    """Pickled in one piece, by cloudpickle where it must be or modules are to be sent by value."""
    import cloudpickle
    from distributed.protocol import pickle as theirs

    if cloudpickle.list_registry_pickle_by_value():  # plain pickle would name them all the same
        return bytes(cloudpickle.dumps(content))
    return bytes(theirs.dumps(content))


@dataclass(frozen=True)
class Terms:
    """How spans are read: by which version, blocks ahead, seconds that one is waited for."""

    version: str
    ahead: int
    patience: float


def fold_on_worker(work: Parcel, span: range, terms: Terms, common: Parcel,
                   values: Sequence[Any] = (), lay: Lay | None = None,
                   part: Parcel | None = None) -> Parcel:  # fmt: skip
    """The task: read and fold one span on a worker, on one BLAS thread.

    values : those on the cluster that the work needs, which is then packed without them.  lay :
    where they lay when the task was sent.  part : of an X in memory, which then is not in the work.

    Errors of our own are returned: they are the same at every trial, and what a task raises is
    tried again (a store may fail for a moment). They know which worker it was.
    """
    try:
        if terms.version != our_version():  # a worker that came later
            raise other_version(f"worker {_here()} has streampca {our_version()}")
        with _unpickling():
            mine = work.content if lay is None else unpacked(work.content, values, lay, _here())
            mine = replace(mine, **common.content)
            mine = mine if part is None else replace(mine, matrix=part.content)
        confirm(mine.checks.values(), _here())
        mine.matrix.restart_counts()
        with single_threaded_blas():
            result = fold_span(mine, span, terms.ahead, patience=terms.patience)
        result.checksums = mine.matrix.checksums()
        return Parcel(result)
    except StreamPCAError as error:
        error.worker = _here()  # type: ignore[attr-defined]
        return Parcel(error)


@contextlib.contextmanager
def _unpickling() -> Iterator[None]:
    """Raise ClusterError where this worker lacks what a parcel is made of."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"worker {_here()} has no module {error.name!r}, which a function or a source of this "
            "fit comes from. Install it on the workers; or send it: client.upload_file(its .py "
            "file), or cloudpickle.register_pickle_by_value(the module) before the fit."
        ) from error
    except Exception as error:  # what libraries of another version raise
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


# --------------------------------------------------------------------------------------------------
# What a worker does that holds the total of a pass: takes in spans, and gives it.

EXPIRY_SECONDS = 0.2  # between looks whether a total is still wanted


class LostError(ClusterError):
    """The total is not reached, or is not what it should be."""


@dataclass
class Total:
    """What was folded so far.

    next : the first span that is not in it, or None where one is merged in part.  last : what the
    one before gave, without its accumulators.  turn : held by whoever reads or changes it; a merge
    that the client gave up may still be on its way.
    """

    accumulators: dict[str, Accumulator]
    next: int | None
    last: SpanResult | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def merge(self, number: int, result: SpanResult) -> SpanResult:
        """Take in the next span; gives it without its accumulators."""
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


# worker (a process may have several) -> key of what a total began with -> total
_totals: WeakKeyDictionary[Any, dict[str, Total]] = WeakKeyDictionary()


def _total(key: str, worker: Any) -> Total:
    """The one that began with this data, for as long as the client keeps them."""
    totals = _totals.setdefault(worker, {})
    if key not in totals:
        version, number, first = worker.data[key].content
        if version != our_version():
            raise LostError(f"it has streampca {our_version()}, and the client {version}")
        worker.data[key].content = version, None, None  # it is here now
        totals[key] = Total(pickle.loads(first), number)

        def expire() -> None:
            if key in worker.data:
                worker.loop.call_later(EXPIRY_SECONDS, expire)
            else:
                totals.pop(key, None)

        expire()
    return totals[key]


async def merge_span(key: str, number: int, span: str, holders: list[str], patience: float,
                     dask_worker: Any) -> Parcel:  # fmt: skip
    """Fetch what a span gave from those who hold it, and merge it beside the tasks.

    The parcel holds it without its accumulators; or None, where it did not come; or its error.
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
    """What a span gave; None where nobody has it.

    Not by ``worker.gather``: that keeps it, and the scheduler, which is not told, never frees it.
    """
    from distributed.utils_comm import gather_from_workers

    if span in worker.data:
        return await asyncio.to_thread(_content, worker.data[span])
    found = await gather_from_workers({span: holders}, worker.rpc, who=worker.address)
    data: dict[Any, Any] = found[0]
    return await asyncio.to_thread(_content, data[span]) if span in data else None


def _content(parcel: Parcel) -> Any:
    """Unpickled; of many bytes not in the event loop."""
    return parcel.content


async def give_total(key: str, number: int, last: bool, dask_worker: Any) -> bytes:
    """Pickled: the accumulators with all spans before this one, and None.

    Or with this one too, and what it gave, where the client gave up waiting for that.
    last : it is not kept.
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


# --------------------------------------------------------------------------------------------------
# An array in memory on a cluster: each span's part goes to one worker, once for all passes.

SHARE = 0.5  # of the memory of all workers that X may take for all passes


def in_memory(matrix: ChunkedMatrix) -> bool:
    """Whether most of a matrix lies in this process, and would travel with its tasks."""
    carried = matrix.carried_nbytes
    return carried > 0 and (matrix.sparse or 2 * carried >= matrix.nbytes)


class Scattered:
    """The parts of X that were sent to workers.

    They are kept there where a fit makes several passes and they take no more than half of the
    memory of all workers. Else each is sent with its span, and forgotten with it. Parts go straight
    to workers, and through the scheduler where these cannot be reached.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}
        self._direct = True

    def part(self, client: Any, work: Work, span: range, workers: list[str], keep: bool,
             ) -> tuple[Any, int]:  # fmt: skip
        """(the future of a parcel of the matrix of a span, bytes that were sent for it now).

        workers : that may get it; consecutive spans go to different ones.
        """
        matrix, axis = work.matrix, work.matrix.streamed_axis
        edges = matrix.edges[span[0] : span[-1] + 2]
        name = (client.id, matrix.fingerprint(), axis, edges.tobytes())
        if (known := self._parts.get(name)) is not None and known.status == "finished":
            return known, 0
        parcel = Parcel(work.cut(span).matrix)
        future = self._sent(client, parcel, workers[span[0] // len(span) % len(workers)])
        if keep:
            self._parts[name] = future
        return future, int(matrix.spans_nbytes(axis, np.array([edges[0], edges[-1]])).sum())

    def _sent(self, client: Any, parcel: Parcel, worker: str) -> Any:
        try:
            return client.scatter(
                parcel, workers=[worker], hash=False, direct=self._direct, broadcast=False
            )
        except OSError:
            if not self._direct:
                raise
            self._direct = False
            return self._sent(client, parcel, worker)


def worth_keeping(client: Any, matrix: ChunkedMatrix, n_passes: int) -> bool:
    """Whether another pass can use the parts, and the workers have room for them."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [int(one.get("memory_limit") or 0) for one in workers]
    return n_passes > 1 and (not all(limits) or matrix.carried_nbytes <= SHARE * sum(limits))
