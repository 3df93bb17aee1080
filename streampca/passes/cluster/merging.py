"""Where the spans of a pass on a cluster are merged: on a worker while many are left, else here.

Merging on a worker keeps partial sums off the network to the client. The total starts as a copy
of the client's, takes spans in the order of the plan, and is fetched from time to time. Merges
are not tasks: they wait for no thread, and the scheduler keeps no chain of them. A failure loses
only what was merged since the last fetch.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.cluster.calls import SchedulerGoneError, answer_of, lost, running
from streampca.passes.cluster.flight import COUNT_SECONDS, Flight, Merge
from streampca.passes.cluster.parcel import LostError, Parcel, dumps, give_total, merge_span, placed
from streampca.passes.cluster.versions import our_versions
from streampca.passes.cluster.worker_memory import memory_used_where_room
from streampca.passes.execution import Execution, Fold
from streampca.passes.lanes import SpanResult
from streampca.passes.settings import setting

LAST_SECONDS = 10.0  # how long a pass that failed waits for its total
TOTAL_LOOK_SECONDS = 5.0  # between checks that the worker with the total is alive


class HeldUpError(ClusterError):
    """The workers that have a span are silent."""


class RemoteTotal:
    """The client's handle of a total that lies on a worker.

    keeper : address of the worker.  number : the first span that is not in ``total``.
    patience : seconds that the worker waits for a span to arrive.
    All methods raise LostError if the total itself fails.
    """

    def __init__(
        self,
        client: Any,
        keeper: str,
        total: Mapping[str, Accumulator],
        number: int,
        patience: float,
    ) -> None:
        self.client, self.keeper, self.patience = client, keeper, patience
        first = Parcel((our_versions(), number, dumps(dict(total))))
        self._future = self._reached(placed(client, first, [keeper]), patience)

    def merge(self, number: int, span: Any) -> SpanResult | None:
        """Merge a finished span on the worker. Returns its result without the accumulators.

        Returns None if the span did not reach the worker. Raises what the span or the merge raised.
        """

        there: list[str] = []  # the workers that have the span

        async def merged() -> Any:
            there[:] = (await self.client.who_has([span])).get(span.key, ())
            return await self._run(merge_span, number, span.key, there, self.patience)

        try:
            content = self._reached(merged(), 2 * self.patience, there).content
        except HeldUpError:
            return None
        if isinstance(content, StreamPCAError):
            raise content
        result: SpanResult | None = content
        return result

    def fetched(
        self, number: int, last: bool = False, patience: float | None = None
    ) -> tuple[dict[str, Accumulator], SpanResult | None]:
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

    def _reached(
        self, call: Coroutine[Any, Any, Any], seconds: float, needed: Sequence[str] = ()
    ) -> Any:
        """The result of a call, while the scheduler hears from the keeper.

        Raises HeldUpError if all of the other workers that are needed are silent.
        """

        def silent() -> bool:
            states = running(self.client)
            if states.get(self.keeper, "gone") in ("gone", "silent"):
                return True
            if needed and all(states.get(one) == "silent" for one in needed):
                raise HeldUpError
            return False

        look = min(TOTAL_LOOK_SECONDS, setting("pause-timeout") / 4)
        try:
            return answer_of(self.client, call, seconds, silent, look)
        except (HeldUpError, SchedulerGoneError):
            raise
        except Exception as error:
            raise LostError(f"the total on worker {self.keeper}: {error!r}") from error


class Merging:
    """Keeps the total of a pass on a worker, and fetches it when it is needed here.

    While spans remain beyond those in flight, they are merged on a worker with enough memory, so
    the traffic to the client does not grow with the number of spans. The total is fetched once per
    checkpoint interval, and before the last spans, which are merged here. If the total is lost, the
    spans merged or in flight at that time are merged here as well, because one of them may be what
    kills workers. The worker that lost it does not get a total again.
    """

    def __init__(self, client: Any, fold: Fold, execution: Execution, can_leave: bool) -> None:
        self.client, self.fold, self.execution = client, fold, execution
        self.can_leave = can_leave
        self.total: RemoteTotal | None = None
        self._keeper = ""  # the worker that has the total, or had it last
        self._failed: set[str] = set()  # workers that lost a total
        self._sent_until = 0  # spans below this number were sent to workers
        self._here_until = 0  # spans below this number are merged here
        self._ask_again = -COUNT_SECONDS  # when to look for a worker with room again

    def place(self, flight: Flight, more: bool) -> Merge | None:
        """What merges the next span on a worker; None if it is merged here.

        more : spans remain beyond those in flight.
        """
        self._sent_until = max(self._sent_until, flight.spans[-1].number + 1)
        if not (self.can_leave and more and self.fold.next >= self._here_until):
            self._fetch()
        elif self.total is None and (keeper := self._choose_keeper(flight)):
            self._keeper = keeper
            self.fold.leave()
            self.total = RemoteTotal(
                self.client, keeper, self.fold.total, self.fold.next, 4 * setting("pause-timeout")
            )
        return None if self.total is None else self.total.merge

    def fetch_if_due(self) -> None:
        """Copy the total from its worker, once per checkpoint interval."""
        if self.total is not None and self.fold.overdue():
            found, _ = self.total.fetched(self.fold.next)
            self.fold.bring(found)
            self.fold.leave()

    def lost(self) -> None:
        """The total is lost: go back to the state that was fetched last."""
        self._failed.add(self._keeper)
        self._let_go()
        self.fold.go_back()
        self._here_until = self._sent_until

    def rescue(self, error: BaseException) -> None:
        """Fetch the total if possible, after an error that stops or restarts the pass."""
        if self.total is not None and (isinstance(error, SchedulerGoneError) or lost(self.client)):
            return self.lost()
        try:
            self._fetch(LAST_SECONDS)
        except LostError:
            self.lost()
        except Exception as failure:  # the first error is the one to report
            error.add_note(f"and no checkpoint could be written: {failure}")

    def _fetch(self, patience: float | None = None) -> None:
        if self.total is None:
            return
        number = self.fold.next
        found, ahead = self.total.fetched(number, last=True, patience=patience)
        self._let_go()
        if ahead is not None:  # the worker merged this span, but its answer did not arrive in time
            self.fold.take_remote(number, ahead)
        self.fold.bring(found)

    def _let_go(self) -> None:
        if self.total is not None:
            self.total.release()
            self.total = None

    def _choose_keeper(self, flight: Flight) -> str | None:
        """The usable worker with enough room that uses the least memory; None if there is none."""
        if time.monotonic() < self._ask_again:
            return None
        used = memory_used_where_room(self.client, self.execution.plan, self.fold.work.spec.name)
        candidates = used.keys() & set(flight.usable()) - self._failed
        if not candidates:  # do not ask again for every span
            self._ask_again = time.monotonic() + COUNT_SECONDS
        return min(candidates, key=lambda one: (used[one], one), default=None)
