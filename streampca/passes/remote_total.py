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
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import StreamPCAError
from streampca.passes.kept_total import LostError, give_total, merge_span
from streampca.passes.parcel import Parcel, dumps, placed
from streampca.passes.span import SpanResult
from streampca.passes.workers import our_version, running

LOOK_SECONDS = 5.0  # between looks whether its worker is heard of


class RemoteTotal:
    """The client's hand on it.

    keeper : address of the worker.  number : the first span that ``total`` has not.  patience :
    seconds that a span is waited for on its way there. All methods raise LostError where it is
    the total that fails.
    """

    def __init__(self, client: Any, keeper: str, total: Mapping[str, Accumulator],
                 number: int, patience: float) -> None:  # fmt: skip
        self.client, self.keeper, self.patience = client, keeper, patience
        first = Parcel((our_version(), number, dumps(dict(total))))
        self._future = self._reached(placed(client, first, [keeper], broadcast=False), patience)

    def merge(self, number: int, span: Any) -> SpanResult | None:
        """Merge a finished span; gives it without its accumulators. None: it does not come there.

        Raises what the span raised, and what merging raises.
        """

        async def merged() -> Any:
            holders = (await self.client.who_has([span])).get(span.key, ())
            return await self._run(merge_span, number, span.key, list(holders), self.patience)

        content = self._reached(merged(), 2 * self.patience).content
        if isinstance(content, StreamPCAError):
            raise content
        result: SpanResult | None = content
        return result

    def fetched(self, number: int, last: bool = False, patience: float | None = None,
                ) -> tuple[dict[str, Accumulator], SpanResult | None]:  # fmt: skip
        """What was folded of the spans before this one, and None.

        Or with this one, and what it gave: where the wait for its merge was given up.
        last : it is not kept there.
        """
        answer = self._reached(self._run(give_total, number, last), patience or self.patience)
        found: tuple[dict[str, Accumulator], SpanResult | None] = pickle.loads(answer)
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
                    if answer.done():
                        return answer.result()  # its own error, or it came this moment
                    if waited >= seconds:
                        raise
                if running(self.client).get(self.keeper, "gone") in ("gone", "silent"):
                    raise TimeoutError("it is not heard of")
        except Exception as error:
            raise LostError(f"the total on worker {self.keeper}: {error!r}") from error
        finally:
            answer.cancel()
