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
from streampca.passes.cluster.calls import (
    SchedulerGoneError,
    answer_of,
    cancel,
    computes,
    finished,
    named,
    processing,
    running,
    threads,
    who_has,
)
from streampca.passes.cluster.parcel import LostError, NotStoredError
from streampca.passes.cluster.placement import Placement
from streampca.passes.cluster.versions import other_versions, unheard
from streampca.passes.cluster.workers import Wait
from streampca.passes.lanes import SpanResult
from streampca.passes.settings import setting

COUNT_SECONDS = 2.0  # between counts of the workers' threads: workers come and go
SLOWER = 8.0  # a span may take this many times as long as the longest so far
LOOK_SECONDS = 1.0  # between checks of the only worker that a span may go to, or for a first one
SELDOM_SECONDS = 5.0  # between checks of the others
RETRY_SECONDS = 0.2  # between attempts to bring a span to the worker that merges


@dataclass
class Span:
    """A span that was sent to the cluster.

    workers : those that may fold it; none for any.  home : whether that is the one that holds its
    chunks.  trial : how often it was sent again.  moves : how many of those count as retries.
    excluded : the workers of other versions, or with too little memory, that were known when it was
    sent.
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
    (``span-timeout``). That worker gets no more spans of this pass, and what it had goes to others.
    After ``span-retries`` moves the pass fails with the reason. If no worker takes tasks, or silent
    ones alone hold chunks of X, the pass waits for them, three times ``pause-timeout``. Workers of
    another version get no spans; a span that one received before its version was known is sent
    again. Those that have not reported theirs yet get spans only if no other worker does.
    """

    def __init__(
        self,
        client: Any,
        send: Send,
        placement: Placement | None = None,
        ahead: int = 0,
        operands: Any = None,
        warned: set[str] | None = None,
        too_small: Callable[[], set[str]] = set,
    ) -> None:
        """placement : where the chunks lie, if X is on the cluster.
        ahead : then at least so many spans are in flight: consecutive ones may share a worker.
        operands : their future.  warned : silent workers that the caller was warned of.
        too_small : which workers lack memory.
        """
        self.too_small = too_small
        self.operands, self.warned = operands, set() if warned is None else warned
        self.client, self.send = client, send
        self.placement, self.ahead = placement, ahead if placement is not None else 0
        self.spans: deque[Span] = deque()
        self.avoided: set[str] = set()
        self.longest = 0.0
        self.excluded: set[str] = set()  # workers of other versions, or with too little memory
        self._lanes, self._counted = 1, -COUNT_SECONDS
        self._others: list[str] | None = None
        self._worker, self._chunks = Wait(), Wait()

    def __len__(self) -> int:
        return len(self.spans)

    def has_room(self) -> bool:
        """Whether fewer spans are in flight than twice the workers' threads, or than ``ahead``."""
        if time.monotonic() - self._counted >= COUNT_SECONDS:
            self._exclude()  # workers may join during a pass
            self._leave_silent(running(self.client))
            there = threads(self.client)
            left_out = self.excluded | self.avoided
            self._lanes = sum(n for a, n in there.items() if a not in left_out) or 1
            self._others = self._allowed(there)
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
            except (LostError, SchedulerGoneError):
                raise
            except Exception as error:
                if self._version_to_blame(span, error):
                    self._again(span)
                elif isinstance(error, NoAnswerError):
                    if self._worker.for_worker(running(self.client), self.client):
                        continue
                    self._move(span, {getattr(error, "worker", "")}, error)
                else:
                    raise
                begun = time.monotonic()
                continue
            if self._worker.since is not None:
                begun = time.monotonic()
            elif trouble is not None:
                self._move(span, *trouble)
                begun = time.monotonic()

    def release_first(self) -> None:
        """Drop the first span: it was merged."""
        self.spans.popleft().future.release()

    def cancel(self) -> None:
        """Cancel all spans."""
        cancel(span.future for span in self.spans)

    def _exclude(self, again: bool = False) -> None:
        """Look for workers that must get no spans.  again : ask those for their versions too."""
        self.excluded = other_versions(self.client, again) | self.too_small()

    def _look_after(self, patience: float) -> float:
        """Seconds between checks that the span's worker can still fold it."""
        often = self.placement is not None or self._worker.since is not None
        return min(LOOK_SECONDS if often else SELDOM_SECONDS, patience / 4)

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
            if time.monotonic() - begun >= patience or self._silent_holders(span):
                if self._fetched(span, patience) is None:  # if this fails, its holder is at fault
                    return None
                raise LostError(f"{span} come here, and not to the worker that merges")
            time.sleep(RETRY_SECONDS)
        return None

    def _silent_holders(self, span: Span) -> set[str]:
        """The workers that have the result of a finished span, if all of them are silent."""
        key = span.future.key
        there, states = who_has(self.client, [key]).get(key, ()), running(self.client)
        silent = {one for one in there if states.get(one) == "silent"}
        return silent if len(silent) == len(there) else set()

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
        """What the task of a span returned.

        Raises TimeoutError, also if it was sent again, or its worker is silent.
        """
        trial = span.trial

        def hopeless() -> bool:
            self._move_stranded()
            return span.trial != trial or bool(self._silent_holders(span))

        call = self.client.gather(span.future, asynchronous=True)
        look = self._look_after(setting("pause-timeout"))
        return answer_of(self.client, call, patience, hopeless, look)

    def _late(self, span: Span, patience: float) -> NoAnswerError:
        if silent := self._silent_holders(span):
            late = NoAnswerError(f"{named(dict.fromkeys(silent, 'silent'))}, and has {span}")
        else:
            late = NoAnswerError(f"no result of {span} came within {patience:g} s")
            silent = set(who_has(self.client, [span.future.key]).get(span.future.key, ()))
        late.worker = next(iter(silent), "")  # type: ignore[attr-defined]
        return late

    def _trouble(self, span: Span, waited: float) -> tuple[set[str], Exception] | None:
        """(workers to avoid, reason) if waiting for the span is pointless; None to wait longer."""
        self._exclude()
        states = running(self.client)
        states |= {one: "left out" for one in states if one in self.excluded}
        if self._worker.for_worker(states, self.client) or self._chunks_wait(states):
            return None
        key, patience = span.future.key, setting("pause-timeout")
        where = {one for one, keys in processing(self.client).items() if key in keys}
        allowed = set(span.workers or states) & states.keys()
        unfit = {one: states[one] for one in where or allowed if states.get(one)}
        late = waited >= patience or "silent" in unfit.values()
        if late and unfit and (where or len(unfit) == len(allowed)):
            return set(unfit), ClusterError(f"{span} wait after {waited:.0f} s: {named(unfit)}")
        self._leave_silent(states)
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

    def _chunks_wait(self, states: Mapping[str, str]) -> bool:
        """Whether the pass waits for chunks of X that silent workers alone hold.

        Another worker that asks them for a chunk waits without end. If their processes end, Dask
        computes the chunks elsewhere.
        """
        silent = [one for one, why in states.items() if why == "silent"]
        lonely = self.placement.only_on(silent) if silent and self.placement is not None else 0
        if not lonely:
            self._chunks.over()
            return False
        self._chunks.for_silent(states, f"no other has {lonely} chunks of X that lie there")
        return True

    def _leave_silent(self, states: Mapping[str, str]) -> None:
        """Take what silent workers have to others, with a warning, if any other takes tasks."""
        if self.placement is not None or "" not in states.values():
            return
        found = {
            one: why
            for one, why in states.items()
            if why == "silent" and one not in self.avoided | self.excluded
        }
        if new := {one: why for one, why in found.items() if one not in self.warned}:
            seconds = setting("pause-timeout")
            warn_caller(
                f"{named(new)}: nothing came from there for {seconds:g} s. The other workers go on "
                "without.",
                StuckWorkerWarning,
            )
            self.warned |= set(new)
        if found:
            self._leave(set(found))

    def _leave(self, who: set[str]) -> None:
        """Send no more spans to these workers, and those that they have not done to others.

        Raises NotStoredError if they alone have the operands, and are silent: others that ask for
        them wait without end.
        """
        self.avoided |= who
        if self.operands is not None:
            key, states = self.operands.key, running(self.client)
            there = set(who_has(self.client, [key]).get(key, ()))
            if there & who and all(states.get(one) == "silent" for one in there):
                said = named(dict.fromkeys(there, "silent"))
                raise NotStoredError(f"those that had the operands went ({said})")
        self._counted = -COUNT_SECONDS
        todo = processing(self.client)
        keys = {key for one in who for key in todo.get(one, ())}
        for span in self.spans:
            bound = bool(span.workers) and who.issuperset(span.workers)
            if (bound or span.future.key in keys) and span.future.status != "finished":
                self._again(span)

    def usable(self) -> list[str]:
        """The workers that take tasks and may get spans of this pass."""
        states, out = running(self.client), self.avoided | self.excluded
        found = [one for one, why in states.items() if not (why or one in out)]
        quiet = unheard(self.client)
        return [one for one in found if one not in quiet] or found

    def _allowed(self, workers: Iterable[str]) -> list[str] | None:
        """Those of ``workers`` that may get a span; None for no restriction.

        If none may, all workers of our version.
        """
        quiet = unheard(self.client)
        out = self.avoided | self.excluded
        if not (out or quiet):
            return None
        there = list(workers)
        others = [one for one in there if one not in out | quiet]
        others = others or [one for one in there if one not in out]
        if others or not self.excluded:
            return others or None
        return [one for one in threads(self.client) if one not in self.excluded]

    def _version_to_blame(self, span: Span, error: Exception) -> bool:
        """Whether the error may come from a worker of another version that had not been known.

        Other code may raise any exception when it meets our objects.
        """
        if type(error).__name__ in ("FutureCancelledError", "CancelledError"):
            return False  # nothing failed, and the scheduler may be gone
        self._exclude(again=isinstance(error, ImportError))
        return bool(self.excluded - span.excluded)

    def _move(self, span: Span, who: set[str], why: Exception) -> None:
        """Send a span to a worker not in ``who``. Raises ``why`` when the retries are used up."""
        retries = int(setting("span-retries"))
        if span.moves >= retries:
            why.add_note(f"after it was given to another worker {span.moves} times")
            raise why
        span.moves += 1
        self.warned |= who
        warn_caller(
            f"{why} (given to another worker, {span.moves} of {retries})", StuckWorkerWarning
        )
        trial = span.trial
        self._leave(who - {""})
        if span.trial == trial:
            self._again(span)

    def _again(self, span: Span) -> None:
        """Send a span again, to a usable worker."""
        self._counted = -COUNT_SECONDS
        span.excluded = self.excluded
        self._send_again(span, self.usable() or self._allowed(()))

    def _send_again(self, span: Span, workers: list[str] | None) -> None:
        span.trial += 1
        cancel([span.future])
        self._sent(span, workers)

    def _sent(self, span: Span, workers: list[str] | None) -> None:
        span.future, chosen = self.send(span.number, span.blocks, span.trial, workers)
        span.workers, span.home = chosen or (), chosen != workers
