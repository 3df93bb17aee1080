"""The same pass on ``dask.distributed``: spans are tasks, a bounded number in flight.

What can fail there, and what answers it. A span is moved or repeated by one function,
``Flight._again``; it is given up by an exception that :func:`run_on_cluster` sees.

- No worker yet, or none any more: it is waited for (``worker-timeout``), with a warning after
  ``pause-timeout``; then ClusterError. ``workers.await_worker``, ``Flight._trouble``.
- A worker with another version of streampca, or none: refused before the first pass; one that comes
  later is left out, and what it was sent is sent again. ``workers.strangers``, ``Flight._astray``.
- A worker that sees another store at the same path: named before it reads. ``spot_checks``.
- A worker that lacks a module, or memory: ClusterError and MemoryLimitError by name, before
  anything is read where that can be known. ``parcel.fold_on_worker``, ``worker_memory``.
- A worker dies: Dask folds its spans again. With it the operands: they are sent again, and then one
  span alone, so that the span that workers die of is known; three times in a row are ClusterError.
  ``client.restart()`` counts as such a death. ``run_on_cluster``.
- A worker dies that holds persisted chunks: Dask computes them again; spans that waited for it are
  sent elsewhere. ``placement``, ``Flight._bring_home``.
- Scattered chunks are gone for good (their worker died, or they were released): ClusterError, at
  the beginning and while a span waits. ``Placement.refuse_lost``.
- A worker dies that holds the total: spans are folded again from where it was fetched last.
  ``merging``, ``kept_total``, ``remote_total``.
- A worker is paused, silent, slower than all others, or cannot read a block: its span goes to
  another, ``span-retries`` times, and it gets no more of this pass. ``Flight._elsewhere``.
- The scheduler is gone, or the client: ClusterError; the checkpoint of the pass stays, and the same
  fit on a new cluster goes on from it. ``workers.scheduler_answers``, ``checkpoint``.
- Ctrl-C and errors of the data: what is in flight is cancelled, the total is fetched for the
  checkpoint. ``Merging.rescue``.

Whatever happens, spans are merged in their order: bits do not depend on it.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from dataclasses import replace
from typing import Any

from streampca.errors import ClusterError
from streampca.passes.door import roomy
from streampca.passes.execution import Execution
from streampca.passes.flight import COUNT_SECONDS, Flight, RemoteTotal
from streampca.passes.fold import Fold
from streampca.passes.parcel import (
    LostError,
    Parcel,
    Terms,
    fold_on_worker,
    in_memory,
    placed,
    worth_keeping,
)
from streampca.passes.placement import Placement, packed, spans_ahead
from streampca.passes.settings import setting
from streampca.passes.work import Work
from streampca.passes.workers import await_worker, our_version, running, strangers

RESTARTED = "scheduler-restart"  # how Dask says that ``client.restart()`` took the spans away
ATTEMPTS = 3  # times that lost operands are sent again, in a row, before the pass gives up


def run_on_cluster(client: Any, work: Work, fold: Fold, execution: Execution) -> None:
    """Submit spans in order, keep a few in flight, merge them in order.

    Operands and maps are stored on the workers once and named by their future. A worker that
    dies loses its spans, which the scheduler runs again; where operands died with it they are
    sent again, and the next span alone, so that the one that workers die of is known;
    ``client.restart()`` counts as such a death. Where the total dies with it, spans are folded
    again from where it was fetched last. Raises ClusterError where workers die of a span, or the
    scheduler is gone.
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
            attempts = attempts + 1 if at == before else 1  # in a row, of the same span
            span = fold.spans[at]
            if isinstance(error, NotStored) and attempts < ATTEMPTS:
                continue
            if kind == "KilledWorker":
                raise _died(error, span, "every worker that folded them died") from error
            if kind not in ("FutureCancelledError", "CancelledError", "NotStored"):
                raise
            restarted = RESTARTED in str(error)  # workers died of it, not of the span
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
    """Operands could not be brought to the workers in time."""


def _stored(client: Any, common: Parcel) -> Any:
    """The operands on every worker that takes tasks; others fetch them from those. Named by it.

    Waits for a worker as long as the pass does: where all died, the next may take minutes to come.
    """
    await_worker(client)
    patience = 4 * setting("pause-timeout")
    strange = strangers(client)
    well = [one for one, ill in running(client).items() if not ill and one not in strange]
    try:
        return client.sync(
            placed, client, common, well or None, broadcast=True, callback_timeout=patience
        )
    except (TimeoutError, OSError, KeyError, ValueError) as error:  # ValueError: one died meanwhile
        raise NotStored(
            f"the workers did not take the operands within {patience:g} s: {error}"
        ) from error


def _died(error: Exception, span: range, why: str) -> ClusterError:
    """In our words, with the notes of what was found."""
    made = ClusterError(f"blocks {span[0]} to {span[-1]}: {why}")
    for note in getattr(error, "__notes__", []):
        made.add_note(note)
    return made


def _submit(client: Any, work: Work, fold: Fold, merging: Merging, ahead: int,
            alone: bool) -> None:  # fmt: skip
    """Until all spans are taken.  alone : the others wait until the first one is."""
    import dask

    common: Any = Parcel.sealed({"operands": dict(work.operands), "maps": dict(work.maps)})
    if work.operands or work.maps:
        common = _stored(client, common)
    bare = replace(work, operands={}, maps={})
    run_id = uuid.uuid4().hex  # keys are the scheduler's: other passes, other clients use it too
    terms = Terms(our_version(), ahead, setting("read-timeout"))
    # a matrix in memory travels in its tasks, which is meant and not worth a warning
    quiet = {"distributed.admin.large-graph-warning-threshold": "1 TB"}

    futures = work.matrix.futures()
    placement = Placement(client, futures, run_id) if futures else None
    scattered, travels = fold.execution.scattered, not futures and in_memory(work.matrix)
    keep = travels and worth_keeping(client, work.matrix, fold.execution.n_passes)

    def send(number: int, span: range, trial: int, workers: list[str] | None) -> Any:
        cut, more = bare.cut(span), {}  # type: Any, dict[str, Any]
        loose = False  # a home that dies must not keep its spans, what they gave neither
        if placement is not None:
            cut, needs = packed(cut)
            more = {"values": needs, "lay": placement.lay(needs)}
            home = placement.choose(number, needs, workers)
            loose, workers = home != workers, home
        elif travels and (there := workers or flight.well()):
            more["part"], nbytes = scattered.part(client, bare, span, there, keep)
            fold.cost.moved += nbytes
            cut = replace(cut, matrix=None)
        parcel = Parcel.sealed(cut)
        where = {"workers": workers, "allow_other_workers": loose} if workers else {}
        with dask.config.set(quiet):
            return client.submit(
                fold_on_worker, parcel, span, terms, common,
                key=f"streampca-span-{number}-{run_id}-{trial}", pure=False, retries=2,
                priority=trial, **where, **more,
            )  # fmt: skip

    flight = Flight(client, send, placement, spans_ahead(work))
    todo = deque(range(fold.next, len(fold.spans)))
    try:
        while todo or flight:
            while todo and flight.has_room() and not (alone and flight):
                number = todo.popleft()
                flight.add(number, fold.spans[number])
            result = flight.first(merging.place(flight, more=bool(todo)))
            fold.take_remote(fold.next, result)
            del result  # or it lives beside the next one
            flight.landed()
            merging.fetch_if_due()
            alone = False
    finally:
        flight.cancel()


# --------------------------------------------------------------------------------------------------
# Where the spans of a pass on a cluster are merged: on a worker while many come, else here.

LAST_SECONDS = 10.0  # that a pass which failed waits for its total


class Merging:
    """Sends the total of a pass to a worker, and fetches it.

    As long as there are more spans than those in flight, they are merged on one of the workers
    that have room for it, so that what comes to the client does not grow with their number. The
    total is fetched once per checkpoint interval, and before the last spans, which are merged
    here. Where it is lost, those that were merged or in flight are merged here too, as workers may
    be dying of one of them, and the worker that lost it gets none again.
    """

    def __init__(self, client: Any, fold: Fold, execution: Execution, can_leave: bool) -> None:
        self.client, self.fold, self.execution = client, fold, execution
        self.can_leave = can_leave
        self.total: RemoteTotal | None = None
        self._keeper = ""  # that has it, or had it last
        self._failed: set[str] = set()
        self._sent_until = 0  # spans before it were sent to workers
        self._here_until = 0  # those before it are merged here
        self._ask_again = -COUNT_SECONDS  # when workers are asked for room, if none had any

    def place(self, flight: Flight, more: bool) -> RemoteTotal | None:
        """Where the next span is merged; None is here.  more : than those in flight are to come."""
        self._sent_until = max(self._sent_until, flight.spans[-1].number + 1)
        if not (self.can_leave and more and self.fold.next >= self._here_until):
            self._fetch()
        elif self.total is None and (keeper := self._chosen(flight)):
            self._keeper = keeper
            self.fold.leave()
            self.total = RemoteTotal(
                self.client, keeper, self.fold.total, self.fold.next, 4 * setting("pause-timeout")
            )
        return self.total

    def fetch_if_due(self) -> None:
        """Have it here for a moment, once per checkpoint interval."""
        if self.total is not None and self.fold.overdue():
            found, _ = self.total.fetched(self.fold.next)
            self.fold.bring(found)
            self.fold.leave()

    def lost(self) -> None:
        """Go on without it, from what was fetched last."""
        self._failed.add(self._keeper)
        self._let_go()
        self.fold.go_back()
        self._here_until = self._sent_until

    def rescue(self, error: BaseException) -> None:
        """Fetch it if it can be had: the pass was stopped by this, or begins anew."""
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
        if ahead is not None:  # it was merged, and nobody waited for the answer
            self.fold.take_remote(number, ahead)
        self.fold.bring(found)

    def _let_go(self) -> None:
        if self.total is not None:
            self.total.release()
            self.total = None

    def _chosen(self, flight: Flight) -> str | None:
        """Of the workers that are well and have room, the one that uses the least memory."""
        if time.monotonic() < self._ask_again:
            return None
        used = roomy(self.client, self.execution.plan, self.fold.plan)
        well = used.keys() & set(flight.well()) - self._failed
        if not well:  # which is not asked for every span
            self._ask_again = time.monotonic() + COUNT_SECONDS
        return min(well, key=lambda one: (used[one], one), default=None)
