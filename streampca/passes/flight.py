"""Spans in flight on a cluster: a bounded number, taken in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from streampca.errors import (
    ClusterError,
    NoAnswerError,
    StreamPCAError,
    StuckWorkerWarning,
    warn_caller,
)
from streampca.passes.parcel import LostError
from streampca.passes.placement import Placement
from streampca.passes.read_ahead import SpanResult
from streampca.passes.settings import setting
from streampca.passes.workers import (
    answer_of,
    computes,
    finished,
    no_worker,
    other_versions,
    running,
    scheduler_answers,
    warn_of_waiting,
)

COUNT_SECONDS = 2.0  # between counts of the workers' threads: workers come and go
SLOWER = 8.0  # a span may take this many times as long as the longest so far
LOOK_SECONDS = 1.0  # between checks of the only worker that a span may go to
RETRY_SECONDS = 0.2  # between attempts to bring a span to the worker that merges


@dataclass
class Span:
    """A span that was sent to the cluster.

    workers : those that may fold it; none for any.  home : whether that is the one that holds its
    chunks.  trial : how often it was sent again.  moves : how many of those count as retries.
    excluded : the workers of other versions that were known when it was sent.
    """

    number: int
    blocks: range
    future: Any = None
    excluded: set[str] = field(default_factory=set)
    workers: Sequence[str] = ()
    home: bool = False
    trial: int = 0
    moves: int = 0

    def stranded(self, states: Mapping[str, str], avoided: Set[str]) -> bool:
        """Whether no worker that may fold it is left, or its home gets no more work.

        Dask keeps the task until a worker of that address comes.
        """
        if not self.workers or self.future.status == "finished":
            return False
        if self.home:
            return any(states.get(one, "gone") or one in avoided for one in self.workers)
        return not states.keys() & set(self.workers)

    def __str__(self) -> str:
        return f"blocks {self.blocks[0]} to {self.blocks[-1]}"


# number, blocks, trial, workers that may fold it -> its future, the workers that it was sent to
Send = Callable[[int, range, int, "list[str] | None"], "tuple[Any, list[str] | None]"]
Merge = Callable[[int, Any], "SpanResult | None"]  # ``RemoteTotal.merge``


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
        span = Span(number, blocks, excluded=self.excluded)
        self._sent(span, self._others)
        self.spans.append(span)

    def first(self, merge: Merge | None = None) -> SpanResult:
        """The result of the first span; :meth:`release_first` drops it afterwards.

        merge : merges its accumulators on a worker, and they do not come here.
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
                elif (result := self._taken(span, merge, 4 * patience)) is not None:
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
        """Send spans again whose workers are gone, perhaps together with the chunks they held."""
        if not any(one.workers for one in self.spans):
            return
        states = running(self.client)
        stranded = [one for one in self.spans if one.stranded(states, self.avoided)]
        if stranded and self.placement is not None:
            self.placement.refuse_lost()
            self.placement.look_again()
        for one in stranded:
            self._send_again(one, self._allowed(states))

    def _taken(self, span: Span, merge: Merge | None, patience: float) -> SpanResult | None:
        """The result; None if it was lost meanwhile and is being computed again."""
        if merge is None or span.future.status in ("error", "cancelled"):
            return self._fetched(span, patience)
        begun = time.monotonic()
        while span.future.status == "finished":
            if (result := merge(span.number, span.future)) is not None:
                return result
            if time.monotonic() - begun >= patience:
                if self._fetched(span, patience) is None:  # if this fails, its holder is at fault
                    return None
                raise LostError(f"{span} come here, and not to the worker that merges")
            time.sleep(RETRY_SECONDS)
        return None

    def _fetched(self, span: Span, patience: float) -> SpanResult | None:
        """The result of a finished span; None if it was lost and is being computed again.

        Raises NoAnswerError if its worker does not send it.
        """
        trial = span.trial
        try:
            result: SpanResult | StreamPCAError = self._parcel(span, patience).content
        except Exception as error:
            if span.trial != trial:
                return None
            if isinstance(error, TimeoutError) and span.future.status != "error":
                raise self._late(span, patience) from None
            if not hasattr(error, "__notes__"):  # not from our code: perhaps the worker died
                error.add_note(f"while {span} were folded on a worker")
            raise
        if isinstance(result, StreamPCAError):
            raise result
        return result

    def _parcel(self, span: Span, patience: float) -> Any:
        """What the task of a span returned. Raises TimeoutError, also if it was sent again."""
        if not span.workers:  # a result that is lost is computed again anywhere
            return span.future.result(timeout=patience)
        trial = span.trial

        def sent_again() -> bool:
            self._move_stranded()
            return span.trial != trial

        call = self.client.gather(span.future, asynchronous=True)
        return answer_of(self.client, call, patience, sent_again, LOOK_SECONDS)

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
        allowed = set(span.workers or states) & states.keys()
        unfit = {one: states[one] for one in where or allowed if states.get(one)}
        if waited >= patience and unfit and (where or len(unfit) == len(allowed)):
            said = ", ".join(f"worker {one} is {state}" for one, state in sorted(unfit.items()))
            return set(unfit), ClusterError(f"{span} wait after {waited:.0f} s: {said}")
        if self.placement is not None and waited >= patience and not where:
            self.placement.refuse_lost()
        if span.home and waited >= patience and where and not computes(self.client, key):
            why = f"worker {min(where)} has other work to do"
            return where, ClusterError(f"{span} wait after {waited:.0f} s: {why}")
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
        self._sent(span, workers)

    def _sent(self, span: Span, workers: list[str] | None) -> None:
        span.future, chosen = self.send(span.number, span.blocks, span.trial, workers)
        span.workers, span.home = chosen or (), chosen != workers
