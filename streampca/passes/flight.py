"""Spans in flight on a cluster: a bounded number, taken in order, none waited for in vain."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streampca.errors import ClusterError, NoAnswerError, StreamPCAError, StuckWorkerWarning
from streampca.passes.settings import setting
from streampca.passes.span import SpanResult
from streampca.passes.workers import finished, no_worker, refuse_strangers, running

COUNT_SECONDS = 2.0  # how often the cluster is asked for its lanes: they come and go
SLOWER = 8.0  # times the longest span so far that another may take


@dataclass
class Span:
    """One that was sent.  trial : how often it was given to another worker."""

    number: int
    blocks: range
    future: Any
    trial: int = 0

    def __str__(self) -> str:
        return f"blocks {self.blocks[0]} to {self.blocks[-1]}"


Send = Callable[[int, range, int, "list[str] | None"], Any]  # number, blocks, trial, workers


class Flight:
    """What was sent and not yet taken.

    A span is given to another worker where its own one is paused or silent (``pause-timeout``),
    where a block cannot be read there (``read-timeout``), or where it takes longer than all
    others did (``span-timeout``), and that worker gets no more of this pass. After
    ``span-retries`` such moves the pass fails, and says why.
    """

    def __init__(self, client: Any, send: Send) -> None:
        self.client, self.send = client, send
        self.spans: deque[Span] = deque()
        self.avoided: set[str] = set()
        self.longest = 0.0
        self._lanes, self._counted = 1, -COUNT_SECONDS
        self._others: list[str] | None = None
        self._alone: float | None = None  # since when there is no worker

    def __len__(self) -> int:
        return len(self.spans)

    def has_room(self) -> bool:
        """Whether less is in flight than twice the lanes of all workers."""
        if time.monotonic() - self._counted >= COUNT_SECONDS:
            refuse_strangers(self.client)  # workers come while a pass runs
            threads = self.client.nthreads()
            self._lanes = sum(threads.values()) or 1
            others = [address for address in threads if address not in self.avoided]
            self._others = others if self.avoided and others else None
            self._counted = time.monotonic()
        return len(self.spans) < 2 * self._lanes

    def add(self, number: int, blocks: range) -> None:
        """Send a span."""
        self.spans.append(Span(number, blocks, self.send(number, blocks, 0, self._others)))

    def first(self) -> SpanResult:
        """What the first one gave; :meth:`landed` lets go of it. Raises what the task raised."""
        span, begun = self.spans[0], time.monotonic()
        patience = setting("pause-timeout")
        while True:
            try:
                if finished(span.future, patience / 4):
                    result = self._fetched(span, 4 * patience)
                    self.longest = max(self.longest, time.monotonic() - begun)
                    return result
                trouble = self._trouble(span, time.monotonic() - begun)
            except NoAnswerError as error:
                self._elsewhere(span, {getattr(error, "worker", "")}, error)
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

    def _fetched(self, span: Span, patience: float) -> SpanResult:
        """The result; NoAnswerError where the worker that holds it does not give it."""
        try:
            result: SpanResult | StreamPCAError = span.future.result(timeout=patience).content
        except Exception as error:
            if isinstance(error, TimeoutError) and span.future.status != "error":
                holders = self.client.who_has([span.future]).get(span.future.key, ())
                late = NoAnswerError(f"no result of {span} came within {patience:g} s")
                late.worker = next(iter(holders), "")  # type: ignore[attr-defined]
                raise late from None
            if isinstance(error, ModuleNotFoundError) and "streampca" in str(error.name):
                refuse_strangers(self.client, again=True)  # a worker that came later
            if not hasattr(error, "__notes__"):  # not from our code: the worker died of it, perhaps
                error.add_note(f"while {span} were folded on a worker")
            raise
        if isinstance(result, StreamPCAError):
            raise result
        return result

    def _trouble(self, span: Span, waited: float) -> tuple[set[str], Exception] | None:
        """(workers to leave out, why) where a span is not to be waited for any longer."""
        refuse_strangers(self.client)
        states = running(self.client)
        if not states:
            self._alone = self._alone or time.monotonic()
            if time.monotonic() - self._alone > setting("worker-timeout"):
                raise no_worker()
            return None
        self._alone = None
        key, patience = span.future.key, setting("pause-timeout")
        where = {one for one, keys in self.client.processing().items() if key in keys}
        ill = {one: states[one] for one in where or states if states.get(one)}
        if waited >= patience and ill and (where or len(ill) == len(states)):
            said = ", ".join(f"worker {one} is {state}" for one, state in sorted(ill.items()))
            return set(ill), ClusterError(f"{span} wait after {waited:.0f} s: {said}")
        limit = max(setting("span-timeout"), SLOWER * self.longest)
        if where and waited >= limit:
            return where, ClusterError(
                f"{span} were not done within {limit:.0f} s on worker {min(where)}. Wait longer: "
                "span_timeout in a job's cluster section, streampca.span-timeout in Dask's "
                "configuration."
            )
        return None

    def _elsewhere(self, span: Span, who: set[str], why: Exception) -> None:
        """Send it to another worker; raises ``why`` where that was done often enough."""
        self.avoided |= who - {""}
        self._counted = -COUNT_SECONDS
        retries = int(setting("span-retries"))
        if span.trial >= retries:
            why.add_note(f"after it was given to another worker {span.trial} times")
            raise why
        span.trial += 1
        warnings.warn(
            f"{why} (given to another worker, {span.trial} of {retries})",
            StuckWorkerWarning, stacklevel=2,
        )  # fmt: skip
        span.future.cancel()
        states = running(self.client)
        others = [one for one, ill in states.items() if not ill and one not in self.avoided]
        span.future = self.send(span.number, span.blocks, span.trial, others or None)
