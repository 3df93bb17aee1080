"""The total of a pass on one of the workers: partial sums need not all come to the client.

It begins there with what the client has, takes in spans in the order of the plan, and is fetched
now and then. None of this is a task: it waits for no lane, and the scheduler has no chain of
merges to remember. What goes wrong there costs no more than what was merged since it was fetched.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.parcel import Parcel, dumps
from streampca.passes.span import SpanResult
from streampca.passes.threads import single_threaded_blas
from streampca.passes.workers import running

EXPIRY_SECONDS = 5.0  # between looks whether a total is still wanted
LOOK_SECONDS = 5.0  # between looks whether its worker is heard of

Accumulators = dict[str, Accumulator]


class LostError(ClusterError):
    """The total is not reached, or is not what it should be."""


class RemoteTotal:
    """The client's hand on it.

    keeper : address of the worker.  number : the first span that ``total`` has not.  patience :
    seconds that a span is waited for on its way there. All methods raise LostError where it is
    the total that fails.
    """

    def __init__(self, client: Any, keeper: str, total: Mapping[str, Accumulator],
                 number: int, patience: float) -> None:  # fmt: skip
        self.client, self.keeper, self.patience = client, keeper, patience
        first = Parcel((number, dumps(dict(total))))

        async def scattered() -> Any:
            return await client.scatter([first], workers=[keeper], hash=False)

        (self._future,) = self._reached(scattered(), patience)

    def merge(self, number: int, span: Any) -> SpanResult | None:
        """Merge a finished span; gives it without its accumulators. None: it does not come there.

        Raises what the span raised, and what merging raises.
        """

        async def merged() -> Any:
            holders = (await self.client.who_has([span])).get(span.key, ())
            return await self._run(_merge, number, span.key, list(holders), self.patience)

        content = self._reached(merged(), 2 * self.patience).content
        if isinstance(content, StreamPCAError):
            raise content
        result: SpanResult | None = content
        return result

    def fetched(self, number: int, patience: float | None = None) -> Accumulators:
        """What was folded of the spans before this one."""
        answer = self._reached(self._run(_give, number), patience or self.patience)
        found: Accumulators = pickle.loads(answer)
        return found

    def release(self) -> None:
        """It is not wanted any more."""
        self._future.release()

    async def _run(self, function: Any, *args: Any) -> Any:
        answers = await self.client.run(
            function, self._future.key, *args, workers=[self.keeper], on_error="return"
        )
        if isinstance(answers[self.keeper], Exception):
            raise answers[self.keeper]
        return answers[self.keeper]

    def _reached(self, call: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """What the call gives, as long as the keeper is heard of."""
        answer = asyncio.run_coroutine_threadsafe(call, self.client.loop.asyncio_loop)
        begun = time.monotonic()
        try:
            while True:
                waited = time.monotonic() - begun
                try:
                    return answer.result(min(LOOK_SECONDS, max(seconds - waited, 0.0)))
                except TimeoutError:
                    if answer.done() or waited >= seconds:
                        raise
                if running(self.client).get(self.keeper, "gone") in ("gone", "silent"):
                    raise TimeoutError("it is not heard of")
        except Exception as error:
            raise LostError(f"the total on worker {self.keeper}: {error!r}") from error
        finally:
            answer.cancel()


# -- on the worker -----------------------------------------------------------------------------


@dataclass
class Total:
    """What was folded so far.  next : the first span that is not in it, or None where one is
    half merged."""

    accumulators: Accumulators
    next: int | None

    def merge(self, number: int, result: SpanResult) -> SpanResult:
        """Take in the next span; gives it without its accumulators."""
        self.next = None
        with single_threaded_blas():
            for name, accumulator in result.accumulators.items():
                self.accumulators[name].merge(accumulator)
        self.next = number + 1
        return replace(result, accumulators={})


_totals: dict[str, Total] = {}  # of this process, by the key of what they began with


def _total(key: str, worker: Any) -> Total:
    """The one that began with this data, for as long as the client wants them."""
    if key not in _totals:
        number, first = worker.data[key].content
        worker.data[key].content = None, None  # it is here now
        _totals[key] = Total(pickle.loads(first), number)

        def expire() -> None:
            if key in worker.data:
                worker.loop.call_later(EXPIRY_SECONDS, expire)
            else:
                _totals.pop(key, None)

        expire()
    return _totals[key]


async def _merge(key: str, number: int, span: str, holders: list[str], patience: float,
                 dask_worker: Any) -> Parcel:  # fmt: skip
    """Fetch what a span gave from those who hold it, and merge it beside the tasks."""
    total = _total(key, dask_worker)
    if total.next != number:
        raise LostError(f"it waits for span {total.next}, and {number} came")
    if span not in dask_worker.data:
        try:
            await asyncio.wait_for(dask_worker.gather({span: holders}), patience)
        except TimeoutError:
            return Parcel(None)
    if span not in dask_worker.data:
        return Parcel(None)
    result = dask_worker.data[span].content
    if isinstance(result, StreamPCAError):
        return Parcel(result)
    try:
        return Parcel(await asyncio.to_thread(total.merge, number, result))
    except StreamPCAError as error:
        return Parcel(error)


async def _give(key: str, number: int, dask_worker: Any) -> bytes:
    """The accumulators, pickled: those here go on changing."""
    total = _total(key, dask_worker)
    if total.next != number:
        raise LostError(f"it waits for span {total.next}, and is asked for those before {number}")
    return await asyncio.to_thread(dumps, total.accumulators)
