"""What a worker does that holds the total of a pass: takes in spans, and gives it."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.parcel import Parcel, dumps
from streampca.passes.span import SpanResult
from streampca.passes.threads import single_threaded_blas
from streampca.passes.workers import our_version

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
