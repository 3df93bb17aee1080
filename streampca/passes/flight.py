"""The total of a pass on one of the workers: partial sums need not all come to the client.

It begins there with what the client has, takes in spans in the order of the plan, and is fetched
now and then. None of this is a task: it waits for no lane, and the scheduler has no chain of
merges to remember. What goes wrong there costs no more than what was merged since it was fetched.
"""

from __future__ import annotations

import asyncio
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, NoAnswerError, StreamPCAError, StuckWorkerWarning
from streampca.passes.parcel import LostError, Parcel, dumps, give_total, merge_span, placed
from streampca.passes.placement import Placement
from streampca.passes.read_ahead import SpanResult
from streampca.passes.settings import setting
from streampca.passes.workers import (
    finished,
    no_worker,
    our_version,
    running,
    say_waiting,
    scheduler_answers,
    strangers,
)

TOTAL_LOOK_SECONDS = 5.0  # between looks whether its worker is heard of


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
                    return answer.result(min(TOTAL_LOOK_SECONDS, max(seconds - waited, 0.0)))
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


# --------------------------------------------------------------------------------------------------
# Spans in flight on a cluster: a bounded number, taken in order, none waited for in vain.

COUNT_SECONDS = 2.0  # how often the cluster is asked for its lanes: they come and go
SLOWER = 8.0  # times the longest span so far that another may take
LOOK_SECONDS = 1.0  # between looks at the only worker that a span may go to
RETRY_SECONDS = 0.2  # between trials to bring a span to the worker that merges


@dataclass
class Span:
    """One that was sent.

    trial : how often it was given to another worker.  moves : those of them that count.
    without : the workers of other versions that were known then.
    """

    number: int
    blocks: range
    future: Any
    without: set[str]
    trial: int = 0
    moves: int = 0

    def __str__(self) -> str:
        return f"blocks {self.blocks[0]} to {self.blocks[-1]}"


Send = Callable[[int, range, int, "list[str] | None"], Any]  # number, blocks, trial, workers


class Flight:
    """What was sent and not yet taken.

    A span is given to another worker where its own one is paused or silent (``pause-timeout``),
    where a block cannot be read there (``read-timeout``), or where it takes longer than all
    others did (``span-timeout``), and that worker gets no more of this pass. After
    ``span-retries`` such moves the pass fails, and says why. Workers of another version get
    nothing, and what one of them got before it was known is sent again.
    """

    def __init__(self, client: Any, send: Send, placement: Placement | None = None,
                 ahead: int = 0) -> None:  # fmt: skip
        """placement : of the values on the cluster that spans need; then so many more spans are in
        flight, as those of one worker may follow each other."""
        self.client, self.send = client, send
        self.placement, self.ahead = placement, ahead if placement is not None else 0
        self.spans: deque[Span] = deque()
        self.avoided: set[str] = set()
        self.longest = 0.0
        self.strange: set[str] = set()
        self._lanes, self._counted = 1, -COUNT_SECONDS
        self._others: list[str] | None = None
        self._alone: float | None = None  # since when there is no worker
        self._said = False  # that it is waited for

    def __len__(self) -> int:
        return len(self.spans)

    @scheduler_answers()
    def has_room(self) -> bool:
        """Whether less is in flight than twice the lanes of all workers, or than ``ahead``."""
        if time.monotonic() - self._counted >= COUNT_SECONDS:
            self.strange = strangers(self.client)  # workers come while a pass runs
            threads = self.client.nthreads()
            self._lanes = sum(n for a, n in threads.items() if a not in self.strange) or 1
            self._others = self._allowed(threads)
            self._counted = time.monotonic()
        return len(self.spans) < max(2 * self._lanes, self.ahead)

    def add(self, number: int, blocks: range) -> None:
        """Send a span."""
        future = self.send(number, blocks, 0, self._others)
        self.spans.append(Span(number, blocks, future, self.strange))

    def first(self, total: RemoteTotal | None = None) -> SpanResult:
        """What the first one gave; :meth:`landed` lets go of it. Raises what the task raised.

        total : takes its accumulators in; they do not come here.
        """
        span, begun = self.spans[0], time.monotonic()
        patience = setting("pause-timeout")
        while True:
            try:
                trouble = None
                if not finished(span.future, self._look_after(patience)):
                    self._bring_home()
                    trouble = self._trouble(span, time.monotonic() - begun)
                elif (result := self._taken(span, total, 4 * patience)) is not None:
                    self.longest = max(self.longest, time.monotonic() - begun)
                    return result
            except LostError:
                raise
            except Exception as error:
                if self._astray(span, error):
                    self._again(span)
                elif isinstance(error, NoAnswerError):
                    self._elsewhere(span, {getattr(error, "worker", "")}, error)
                else:
                    raise
                begun = time.monotonic()
                continue
            if self._alone is not None:
                begun = time.monotonic()
            elif trouble is not None:
                self._elsewhere(span, *trouble)
                begun = time.monotonic()

    def landed(self) -> None:
        """The first one was taken."""
        self.spans.popleft().future.release()

    def cancel(self) -> None:
        """Let go of all."""
        for span in self.spans:
            span.future.cancel()

    def _look_after(self, patience: float) -> float:
        """Seconds after which it is looked whether a span can still be done where it was sent."""
        return patience / 4 if self.placement is None else min(LOOK_SECONDS, patience / 4)

    def _bring_home(self) -> None:
        """Send spans again that wait for a worker that is gone, with the chunks that it had."""
        if self.placement is None:
            return
        stranded = self.placement.stranded(one.number for one in self.spans)
        for one in self.spans:
            if one.number in stranded:
                one.trial += 1
                one.future.cancel()
                one.future = self.send(one.number, one.blocks, one.trial, self._others)

    def _taken(self, span: Span, total: RemoteTotal | None, patience: float) -> SpanResult | None:
        """The result; None where it was lost meanwhile, and is computed again."""
        if total is None or span.future.status in ("error", "cancelled"):
            return self._fetched(span, patience)
        begun = time.monotonic()
        while span.future.status == "finished":
            if (result := total.merge(span.number, span.future)) is not None:
                return result
            if time.monotonic() - begun >= patience:
                self._fetched(span, patience)  # where it comes nowhere, that is its holder's doing
                raise LostError(f"{span} come here, and not to worker {total.keeper}")
            time.sleep(RETRY_SECONDS)
        return None

    def _fetched(self, span: Span, patience: float) -> SpanResult:
        """The result; NoAnswerError where the worker that holds it does not give it."""
        try:
            result: SpanResult | StreamPCAError = span.future.result(timeout=patience).content
        except Exception as error:
            if isinstance(error, TimeoutError) and span.future.status != "error":
                raise self._late(span, patience) from None
            if not hasattr(error, "__notes__"):  # not from our code: the worker died of it, perhaps
                error.add_note(f"while {span} were folded on a worker")
            raise
        if isinstance(result, StreamPCAError):
            raise result
        return result

    def _late(self, span: Span, patience: float) -> NoAnswerError:
        holders = self.client.who_has([span.future]).get(span.future.key, ())
        late = NoAnswerError(f"no result of {span} came within {patience:g} s")
        late.worker = next(iter(holders), "")  # type: ignore[attr-defined]
        return late

    @scheduler_answers()
    def _trouble(self, span: Span, waited: float) -> tuple[set[str], Exception] | None:
        """(workers to leave out, why) where a span is not to be waited for any longer."""
        self.strange = strangers(self.client)
        states = running(self.client)
        states |= {one: "of another version" for one in states if one in self.strange}
        if not states:
            now = time.monotonic()
            self._alone = self._alone or now
            if now - self._alone > setting("worker-timeout"):
                raise no_worker()
            if now - self._alone >= setting("pause-timeout") and not self._said:
                self._said = True
                say_waiting()
            return None
        self._alone, self._said = None, False
        key, patience = span.future.key, setting("pause-timeout")
        where = {one for one, keys in self.client.processing().items() if key in keys}
        ill = {one: states[one] for one in where or states if states.get(one)}
        if waited >= patience and ill and (where or len(ill) == len(states)):
            said = ", ".join(f"worker {one} is {state}" for one, state in sorted(ill.items()))
            return set(ill), ClusterError(f"{span} wait after {waited:.0f} s: {said}")
        if self.placement is not None and waited >= patience and not where:
            self.placement.refuse_lost()
        limit = max(setting("span-timeout"), SLOWER * self.longest)
        if where and waited >= limit:
            return where, ClusterError(
                f"{span} were not done within {limit:.0f} s on worker {min(where)}. Wait longer: "
                "span_timeout in a job's cluster section, streampca.span-timeout in Dask's "
                "configuration."
            )
        return None

    def well(self) -> list[str]:
        """The workers that take tasks, and may get some of this pass."""
        not_these = self.avoided | self.strange
        return [one for one, ill in running(self.client).items() if not (ill or one in not_these)]

    def _allowed(self, workers: Iterable[str]) -> list[str] | None:
        """Those of them that may get a span; any of our version where none may; None for all."""
        if not (self.avoided or self.strange):
            return None
        others = [one for one in workers if one not in self.avoided | self.strange]
        if others or not self.strange:
            return others or None
        return [one for one in self.client.nthreads() if one not in self.strange]

    def _astray(self, span: Span, error: Exception) -> bool:
        """Whether a worker of another version, not known when the span was sent, may have failed.

        Its code may raise anything where it finds other names than ours.
        """
        if type(error).__name__ in ("FutureCancelledError", "CancelledError"):
            return False  # nobody failed, and the scheduler may be gone
        self.strange = strangers(self.client, again=isinstance(error, ImportError))
        return bool(self.strange - span.without)

    def _elsewhere(self, span: Span, who: set[str], why: Exception) -> None:
        """Send it to another worker; raises ``why`` where that was done often enough."""
        self.avoided |= who - {""}
        retries = int(setting("span-retries"))
        if span.moves >= retries:
            why.add_note(f"after it was given to another worker {span.moves} times")
            raise why
        span.moves += 1
        warnings.warn(
            f"{why} (given to another worker, {span.moves} of {retries})",
            StuckWorkerWarning, stacklevel=2,
        )  # fmt: skip
        self._again(span)

    def _again(self, span: Span) -> None:
        """Send it again, to a worker that is well."""
        self._counted = -COUNT_SECONDS
        span.trial += 1
        span.without = self.strange
        span.future.cancel()
        workers = self.well() or self._allowed(())
        span.future = self.send(span.number, span.blocks, span.trial, workers)
