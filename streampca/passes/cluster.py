"""A pass on ``dask.distributed``: each span is a task, and a bounded number are in flight.

What can fail, and how it is handled. One function sends a span again, ``Flight._send_again``. A
span is given up by raising an exception, which :func:`run_on_cluster` handles.

- No workers: wait up to ``worker-timeout``, warn after ``pause-timeout``, then raise ClusterError.
  ``workers.await_worker``, ``Flight._trouble``.
- A worker without streampca, or with another version: refused before the first pass. One that
  joins later gets no work, and what it was sent is sent again. ``workers.other_versions``,
  ``Flight._version_to_blame``.
- A worker that sees another store at the same path: ClusterError before it reads.
  ``work.confirm``.
- A worker that lacks a module or memory: ClusterError or MemoryLimitError that names it, before
  any read where possible. ``parcel.fold_on_worker``, ``door.check_workers``.
- A worker dies: Dask runs its spans again. If the operands died with it, they are sent again, and
  then one span alone, to find a span that kills workers. The third failure of the same span in a
  row raises ClusterError. ``client.restart()`` counts as a death. ``run_on_cluster``.
- A worker dies, is retired or is busy with other work that holds persisted chunks: Dask computes
  or copies them, and spans that waited for the worker go elsewhere. ``Placement``,
  ``Flight._move_stranded``, ``Flight._trouble``.
- Scattered chunks are lost for good (their worker died, or they were released): ClusterError, at
  the start and while a span waits. ``Placement.refuse_lost``.
- A worker dies that holds the total: the pass goes back to where it last fetched the total.
  ``Merging.lost``, ``RemoteTotal``.
- A worker is paused, silent, slower than all others, or cannot read a block: its span moves to
  another worker, at most ``span-retries`` times, and it gets no more spans of this pass.
  ``Flight._move``.
- The scheduler or the client is gone: ClusterError. The checkpoint stays, and the same fit resumes
  from it on a new cluster. ``workers.scheduler_answers``, ``execution.Checkpoint``.
- Ctrl-C, or an error in the data: spans in flight are cancelled, and the total is fetched for the
  checkpoint. ``Merging.rescue``.

Spans are always merged in order, so failures never change the bits of a result.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from streampca.accumulators import Accumulator
from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.door import memory_used_where_room
from streampca.passes.execution import Execution
from streampca.passes.flight import COUNT_SECONDS, Flight, Merge
from streampca.passes.fold import Fold
from streampca.passes.parcel import (
    LostError,
    Parcel,
    Terms,
    as_task,
    dumps,
    fold_on_worker,
    give_total,
    in_memory,
    merge_span,
    placed,
    worth_keeping,
)
from streampca.passes.placement import Placement, packed, spans_ahead
from streampca.passes.read_ahead import SpanResult
from streampca.passes.settings import setting
from streampca.passes.work import Work
from streampca.passes.workers import (
    answer_of,
    await_worker,
    other_versions,
    our_version,
    running,
)

RESTARTED = "scheduler-restart"  # Dask's reason for spans that ``client.restart()`` cancelled
ATTEMPTS = 3  # at the same span, when operands are lost, before the pass gives up


def run_on_cluster(client: Any, work: Work, fold: Fold, execution: Execution) -> None:
    """Submit spans in order, keep a few in flight, merge them in order.

    Operands and maps are stored on the workers once; tasks refer to their future.
    Raises ClusterError if workers keep dying on a span, or the scheduler is gone.
    """
    edges = work.matrix.edges
    work.hold = tuple(name for name, sink in work.sinks.items() if not sink.concurrent(edges))
    merging = Merging(client, fold, execution, can_leave=bool(work.accumulators) and not work.hold)
    attempts = 0
    while fold.next < len(fold.spans):
        before = fold.next
        try:
            _submit(client, work, fold, merging, execution.blocks_ahead, alone=attempts > 0)
        except LostError:
            merging.lost()
        except Exception as error:
            at, kind = fold.next, type(error).__name__
            merging.rescue(error)
            attempts = attempts + 1 if at == before else 1  # in a row, at the same span
            span = fold.spans[at]
            if isinstance(error, NotStored) and attempts < ATTEMPTS:
                continue
            if kind == "KilledWorker":
                raise _died(error, span, "every worker that folded them died") from error
            if kind not in ("FutureCancelledError", "CancelledError", "NotStored"):
                raise
            restarted = RESTARTED in str(error)  # then the span is not to blame
            if not (work.operands or work.maps or in_memory(work.matrix) or restarted):
                raise _died(error, span, f"the cluster gave them up: {error}") from error
            if attempts == ATTEMPTS:
                why = f"{ATTEMPTS} times in a row the workers died; see their logs"
                why += f" ({error})" if isinstance(error, NotStored) else ""
                raise _died(error, span, why) from error
        except BaseException as error:  # Ctrl-C
            merging.rescue(error)
            raise


class NotStored(ClusterError):
    """The workers did not receive the operands in time."""


def _stored(client: Any, common: Parcel) -> Any:
    """The future of the operands, stored on every worker that takes tasks.

    Other workers fetch them from those. Waits for a worker first: if all have died, the next one
    may take minutes to start. Raises NotStored.
    """
    await_worker(client)
    patience = 4 * setting("pause-timeout")
    excluded = other_versions(client)
    ready = [one for one, why in running(client).items() if not why and one not in excluded]
    try:
        return client.sync(
            placed, client, common, ready or None, broadcast=True, callback_timeout=patience
        )
    except (TimeoutError, OSError, KeyError, ValueError) as error:  # ValueError: a worker died
        raise NotStored(
            f"the workers did not take the operands within {patience:g} s: {error}"
        ) from error


def _died(error: Exception, span: range, why: str) -> ClusterError:
    """A ClusterError that names the span and carries the notes of the original error."""
    made = ClusterError(f"blocks {span[0]} to {span[-1]}: {why}")
    for note in getattr(error, "__notes__", []):
        made.add_note(note)
    return made


def _submit(client: Any, work: Work, fold: Fold, merging: Merging, ahead: int,
            alone: bool) -> None:  # fmt: skip
    """Submit and merge all remaining spans.

    alone : send the first span by itself, and the others once it is merged.
    """
    import dask

    common: dict[str, Any] = {}
    if work.operands or work.maps:
        sealed = Parcel.sealed({"operands": dict(work.operands), "maps": dict(work.maps)})
        common["common"] = _stored(client, sealed)
    bare = replace(work, operands={}, maps={})
    run_id = uuid.uuid4().hex  # other passes and other clients share the scheduler's keys
    terms = Terms(our_version(), ahead, setting("read-timeout"))
    # a matrix in memory is sent inside its tasks on purpose: no warning about large tasks
    quiet = {"distributed.admin.large-graph-warning-threshold": "1 TB"}

    futures = work.matrix.futures()
    placement = Placement(client, futures, run_id) if futures else None
    scattered, travels = fold.execution.scattered, not futures and in_memory(work.matrix)
    keep = travels and worth_keeping(client, work.matrix, fold.execution.n_passes)

    def send(number: int, span: range, trial: int, workers: list[str] | None) -> Any:
        cut, more, lay = bare.cut(span), {**common}, None  # type: Any, dict[str, Any], Any
        if placement is not None:
            cut, needs = packed(cut)
            more["values"], lay = needs, placement.lay(needs)
            # one that is sent again goes anywhere: Dask counts how many workers it kills
            workers = workers if trial else placement.choose(lay, workers)
        elif travels and (there := workers or flight.usable()):
            more["part"], nbytes = scattered.part(client, bare, span, there, keep)
            fold.cost.moved += nbytes
            cut = replace(cut, matrix=None)
        task = as_task(fold_on_worker, Parcel.sealed(cut), span, terms, lay=lay)
        where = {"workers": workers, "allow_other_workers": False} if workers else {}
        with dask.config.set(quiet):
            future = client.submit(
                *task, key=f"streampca-span-{number}-{run_id}-{trial}", pure=False, retries=2,
                priority=trial, **where, **more,
            )  # fmt: skip
        return future, workers

    flight = Flight(client, send, placement, spans_ahead(work))
    todo = deque(range(fold.next, len(fold.spans)))
    try:
        while todo or flight:
            while todo and flight.has_room() and not (alone and flight):
                number = todo.popleft()
                flight.add(number, fold.spans[number])
            result = flight.first(merging.place(flight, more=bool(todo)))
            fold.take_remote(fold.next, result)
            del result  # else it stays alive while the next one is fetched
            flight.release_first()
            merging.fetch_if_due()
            alone = False
    finally:
        flight.cancel()


# --------------------------------------------------------------------------------------------------
# Where the spans of a pass on a cluster are merged: on a worker while many are left, else here.

#
# Merging on a worker keeps partial sums off the network to the client. The total starts as a copy
# of the client's, takes spans in the order of the plan, and is fetched from time to time. Merges
# are not tasks: they wait for no thread, and the scheduler keeps no chain of them. A failure loses
# only what was merged since the last fetch.

LAST_SECONDS = 10.0  # how long a pass that failed waits for its total
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

        def silent() -> bool:
            return running(self.client).get(self.keeper, "gone") in ("gone", "silent")

        try:
            return answer_of(self.client, call, seconds, silent, TOTAL_LOOK_SECONDS)
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
        used = memory_used_where_room(self.client, self.execution.plan, self.fold.plan)
        candidates = used.keys() & set(flight.usable()) - self._failed
        if not candidates:  # do not ask again for every span
            self._ask_again = time.monotonic() + COUNT_SECONDS
        return min(candidates, key=lambda one: (used[one], one), default=None)
