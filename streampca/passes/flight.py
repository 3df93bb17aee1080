"""Spans in flight on a cluster, and the total of a pass kept on one of its workers.

Merging on a worker keeps partial sums off the network to the client. The total starts as a copy of
the client's, takes spans in the order of the plan, and is fetched from time to time. Merges are not
tasks: they wait for no thread, and the scheduler keeps no chain of them. A failure loses only what
was merged since the last fetch.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import (
    ClusterError,
    NoAnswerError,
    StreamPCAError,
    StuckWorkerWarning,
    warn_caller,
)
from streampca.passes.parcel import LostError, Parcel, dumps, give_total, merge_span, placed
from streampca.passes.placement import Placement
from streampca.passes.read_ahead import SpanResult
from streampca.passes.settings import setting
from streampca.passes.workers import (
    finished,
    no_worker,
    other_versions,
    our_version,
    running,
    scheduler_answers,
    warn_of_waiting,
)

TOTAL_LOOK_SECONDS = 5.0  # between checks that the worker with the total is alive


class RemoteTotal:
    """The client's handle of a total that lies on a worker.

    keeper : address of the worker.  number : the first span that is not in ``total``.
    patience : seconds that the worker waits for a span to arrive.
    All methods raise LostError if the total itself fails.
    """

    def __init__(self, client: Any, keeper: str, total: Mapping[str, Accumulator],
                 number: int, patience: float) -> None:  # fmt: skip
        self.client, self.keeper, self.patience = client, keeper, patience
        first = Parcel((our_version(), number, dumps(dict(total))))
        self._future = self._reached(placed(client, first, [keeper], broadcast=False), patience)

    def merge(self, number: int, span: Any) -> SpanResult | None:
        """Merge a finished span on the worker. Returns its result without the accumulators.

        Returns None if the span did not reach the worker. Raises what the span or the merge raised.
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
        """(the total of all spans below ``number``, None).

        If the merge of span ``number`` finished after its wait was given up, the total includes it,
        and its result is returned in place of None.
        last : the worker may drop the total.
        """
        answer = self._reached(self._run(give_total, number, last), patience or self.patience)
        found: tuple[dict[str, Accumulator], SpanResult | None] = pickle.loads(answer)
        return found

    def release(self) -> None:
        """Let the worker drop the total."""
        self._future.release()

    async def _run(self, function: Any, *args: Any) -> Any:
        answers = await self.client.run(
            function, self._future.key, *args, workers=[self.keeper], on_error="return"
        )
        if isinstance(answers[self.keeper], Exception):
            raise answers[self.keeper]
        return answers[self.keeper]

    def _reached(self, call: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """The result of a call, while the scheduler hears from the keeper."""
        answer = asyncio.run_coroutine_threadsafe(call, self.client.loop.asyncio_loop)
        begun = time.monotonic()
        try:
            while True:
                waited = time.monotonic() - begun
                try:
                    return answer.result(min(TOTAL_LOOK_SECONDS, max(seconds - waited, 0.0)))
                except TimeoutError:
                    if answer.done():
                        return answer.result()  # the TimeoutError is its own, or it just finished
                    if waited >= seconds:
                        raise
                if running(self.client).get(self.keeper, "gone") in ("gone", "silent"):
                    raise TimeoutError("it is not heard of")
        except Exception as error:
            raise LostError(f"the total on worker {self.keeper}: {error!r}") from error
        finally:
            answer.cancel()


# --------------------------------------------------------------------------------------------------
# Spans in flight on a cluster: a bounded number, taken in order.

COUNT_SECONDS = 2.0  # between counts of the workers' threads: workers come and go
SLOWER = 8.0  # a span may take this many times as long as the longest so far
LOOK_SECONDS = 1.0  # between checks of the only worker that a span may go to
RETRY_SECONDS = 0.2  # between attempts to bring a span to the worker that merges


@dataclass
class Span:
    """A span that was sent to the cluster.

    trial : how often it was sent again.  moves : how many of those count as retries.
    excluded : the workers of other versions that were known when it was sent.
    """

    number: int
    blocks: range
    future: Any
    excluded: set[str]
    trial: int = 0
    moves: int = 0

    def __str__(self) -> str:
        return f"blocks {self.blocks[0]} to {self.blocks[-1]}"


Send = Callable[[int, range, int, "list[str] | None"], Any]  # number, blocks, trial, workers


class Flight:
    """The spans that were sent and not yet merged, in order.

    A span moves to another worker if its worker is paused or silent (``pause-timeout``), cannot
    read a block (``read-timeout``), or takes much longer than for any span so far
    (``span-timeout``). That worker gets no more spans of this pass. After ``span-retries`` moves
    the pass fails with the reason. Workers of another version get no spans; a span that one
    received before its version was known is sent again.
    """

    def __init__(self, client: Any, send: Send, placement: Placement | None = None,
                 ahead: int = 0) -> None:  # fmt: skip
        """placement : where the chunks lie, if X is on the cluster.
        ahead : then at least so many spans are in flight: consecutive ones may share a worker."""
        self.client, self.send = client, send
        self.placement, self.ahead = placement, ahead if placement is not None else 0
        self.spans: deque[Span] = deque()
        self.avoided: set[str] = set()
        self.longest = 0.0
        self.excluded: set[str] = set()  # workers of other versions
        self._lanes, self._counted = 1, -COUNT_SECONDS
        self._others: list[str] | None = None
        self._alone: float | None = None  # since when there has been no worker
        self._warned = False  # that the pass waits for a worker

    def __len__(self) -> int:
        return len(self.spans)

    @scheduler_answers()
    def has_room(self) -> bool:
        """Whether fewer spans are in flight than twice the workers' threads, or than ``ahead``."""
        if time.monotonic() - self._counted >= COUNT_SECONDS:
            self.excluded = other_versions(self.client)  # workers may join during a pass
            threads = self.client.nthreads()
            self._lanes = sum(n for a, n in threads.items() if a not in self.excluded) or 1
            self._others = self._allowed(threads)
            self._counted = time.monotonic()
        return len(self.spans) < max(2 * self._lanes, self.ahead)

    def add(self, number: int, blocks: range) -> None:
        """Send a span."""
        future = self.send(number, blocks, 0, self._others)
        self.spans.append(Span(number, blocks, future, self.excluded))

    def first(self, total: RemoteTotal | None = None) -> SpanResult:
        """The result of the first span; :meth:`release_first` drops it afterwards.

        total : merges its accumulators, which then do not come here.
        Raises what the task raised, and ClusterError.
        """
        span, begun = self.spans[0], time.monotonic()
        patience = setting("pause-timeout")
        while True:
            try:
                trouble = None
                if not finished(span.future, self._look_after(patience)):
                    self._move_stranded()
                    trouble = self._trouble(span, time.monotonic() - begun)
                elif (result := self._taken(span, total, 4 * patience)) is not None:
                    self.longest = max(self.longest, time.monotonic() - begun)
                    return result
            except LostError:
                raise
            except Exception as error:
                if self._version_to_blame(span, error):
                    self._again(span)
                elif isinstance(error, NoAnswerError):
                    self._move(span, {getattr(error, "worker", "")}, error)
                else:
                    raise
                begun = time.monotonic()
                continue
            if self._alone is not None:
                begun = time.monotonic()
            elif trouble is not None:
                self._move(span, *trouble)
                begun = time.monotonic()

    def release_first(self) -> None:
        """Drop the first span: it was merged."""
        self.spans.popleft().future.release()

    def cancel(self) -> None:
        """Cancel all spans."""
        for span in self.spans:
            span.future.cancel()

    def _look_after(self, patience: float) -> float:
        """Seconds between checks that the span's worker can still fold it."""
        return patience / 4 if self.placement is None else min(LOOK_SECONDS, patience / 4)

    def _move_stranded(self) -> None:
        """Send spans again whose only worker is gone, together with the chunks it held."""
        if self.placement is None:
            return
        stranded = self.placement.stranded(one.number for one in self.spans)
        for one in self.spans:
            if one.number in stranded:
                self._send_again(one, self._others)

    def _taken(self, span: Span, total: RemoteTotal | None, patience: float) -> SpanResult | None:
        """The result; None if it was lost meanwhile and is being computed again."""
        if total is None or span.future.status in ("error", "cancelled"):
            return self._fetched(span, patience)
        begun = time.monotonic()
        while span.future.status == "finished":
            if (result := total.merge(span.number, span.future)) is not None:
                return result
            if time.monotonic() - begun >= patience:
                self._fetched(span, patience)  # if this fails, its holder is at fault
                raise LostError(f"{span} come here, and not to worker {total.keeper}")
            time.sleep(RETRY_SECONDS)
        return None

    def _fetched(self, span: Span, patience: float) -> SpanResult:
        """The result of a finished span. Raises NoAnswerError if its worker does not send it."""
        try:
            result: SpanResult | StreamPCAError = span.future.result(timeout=patience).content
        except Exception as error:
            if isinstance(error, TimeoutError) and span.future.status != "error":
                raise self._late(span, patience) from None
            if not hasattr(error, "__notes__"):  # not from our code: perhaps the worker died
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
        """(workers to avoid, reason) if waiting for the span is pointless; None to wait longer."""
        self.excluded = other_versions(self.client)
        states = running(self.client)
        states |= {one: "of another version" for one in states if one in self.excluded}
        if not states:
            now = time.monotonic()
            self._alone = self._alone or now
            if now - self._alone > setting("worker-timeout"):
                raise no_worker()
            if now - self._alone >= setting("pause-timeout") and not self._warned:
                self._warned = True
                warn_of_waiting()
            return None
        self._alone, self._warned = None, False
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

    def usable(self) -> list[str]:
        """The workers that take tasks and may get spans of this pass."""
        excluded = self.avoided | self.excluded
        return [one for one, why in running(self.client).items() if not (why or one in excluded)]

    def _allowed(self, workers: Iterable[str]) -> list[str] | None:
        """Those of ``workers`` that may get a span; None for no restriction.

        If none may, all workers of our version.
        """
        if not (self.avoided or self.excluded):
            return None
        others = [one for one in workers if one not in self.avoided | self.excluded]
        if others or not self.excluded:
            return others or None
        return [one for one in self.client.nthreads() if one not in self.excluded]

    def _version_to_blame(self, span: Span, error: Exception) -> bool:
        """Whether the error may come from a worker of another version that had not been known.

        Other code may raise any exception when it meets our objects.
        """
        if type(error).__name__ in ("FutureCancelledError", "CancelledError"):
            return False  # nothing failed, and the scheduler may be gone
        self.excluded = other_versions(self.client, again=isinstance(error, ImportError))
        return bool(self.excluded - span.excluded)

    def _move(self, span: Span, who: set[str], why: Exception) -> None:
        """Send a span to a worker not in ``who``. Raises ``why`` when the retries are used up."""
        self.avoided |= who - {""}
        retries = int(setting("span-retries"))
        if span.moves >= retries:
            why.add_note(f"after it was given to another worker {span.moves} times")
            raise why
        span.moves += 1
        warn_caller(
            f"{why} (given to another worker, {span.moves} of {retries})",
            StuckWorkerWarning,
        )  # fmt: skip
        self._again(span)

    def _again(self, span: Span) -> None:
        """Send a span again, to a usable worker."""
        self._counted = -COUNT_SECONDS
        span.excluded = self.excluded
        self._send_again(span, self.usable() or self._allowed(()))

    def _send_again(self, span: Span, workers: list[str] | None) -> None:
        span.trial += 1
        span.future.cancel()
        span.future = self.send(span.number, span.blocks, span.trial, workers)
