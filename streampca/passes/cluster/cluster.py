"""A pass on ``dask.distributed``: each span is a task, and a bounded number are in flight.

What can fail, and how it is handled. One function sends a span again, ``Flight._send_again``. A
span is given up by raising an exception, which :func:`run_on_cluster` handles.

- No workers: wait up to ``worker-timeout``, warn after ``pause-timeout``, then raise ClusterError.
  Where the cluster object says that none will come, those that ended are started again, once, and
  then ClusterError comes at once. ``workers.nobody_comes``, ``workers.Wait``.
  Workers that are all silent or paused: a warning after ``pause-timeout``, ClusterError after three
  times that, both with their names; if one goes on, so does the pass. ``workers.Wait``.
- A worker whose memory limit is less than the plan needs: MemoryLimitError as soon as the scheduler
  knows of it, before it can pause or die. One that joins later gets no work.
  ``worker_memory.check_workers``, ``worker_memory.too_small``.
- The scheduler does not answer for ``pause-timeout`` (at least 5 s): ClusterError. No call to a
  cluster waits longer, whatever Dask's own time-outs are. ``calls.reply``, ``calls.answer_of``.
- The connection to the scheduler is lost: a warning, and ClusterError if none comes within three
  times ``pause-timeout``. If a scheduler starts anew at the address, the pass goes on with its
  workers. The checkpoint stays, and the same fit resumes from it on a new cluster.
  ``workers.await_scheduler``, ``workers.patient``, ``checkpoint.Checkpoint``.
- A worker without streampca, or with another version of it or of what it computes with: refused
  before the first pass. One that joins later gets no work, and what it was sent is sent again.
  ``versions.other_versions``, ``Flight._version_to_blame``.
- A worker that sees another store at the same path: ClusterError before it reads.
  ``parcel.confirm``.
- A worker that lacks a module or memory: ClusterError or MemoryLimitError that names it, before
  any read where possible. ``parcel.fold_on_worker``, ``worker_memory.check_workers``.
- A worker dies: Dask runs its spans again. If the operands died with it, they are sent again, and
  then one span alone, to find a span that kills workers. The third loss of the operands at the
  same span in a row raises ClusterError; Dask's KilledWorker does at once. ``client.restart()``
  counts as a death. Sums of earlier passes are not folded again. ``run_on_cluster``.
- A worker dies, is retired or is busy with other work that holds persisted chunks: Dask computes
  or copies them, and spans that waited for the worker go elsewhere. ``Placement``,
  ``Flight._move_stranded``, ``Flight._trouble``.
- Scattered chunks are lost for good (their worker died, or they were released): ClusterError, at
  the start and while a span waits. ``Placement.refuse_lost``.
- A worker dies that holds the total: the pass goes back to where it last fetched the total.
  ``Merging.lost``, ``RemoteTotal``.
- A worker is paused, silent, slower than all others, or cannot read a block: its spans move to
  other workers, with a warning that names it, the first at most ``span-retries`` times, and it gets
  no more spans of this pass. ``Flight._move``, ``Flight._leave_silent``.
- A silent worker has the operands: they are sent again to others. It has chunks of a persisted X
  that no other has: a warning, and ClusterError after three times ``pause-timeout``.
  ``Flight._leave``, ``Flight._chunks_wait``; when X is opened, ``workers.await_all``.
- Ctrl-C, or an error in the data: spans in flight are cancelled, and the total is fetched for the
  checkpoint. ``Merging.rescue``.

Spans are always merged in order, so failures never change the bits of a result.
"""

from __future__ import annotations

import re
import uuid
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

from streampca.errors import ClusterError
from streampca.passes.cluster.calls import (
    ConnectionLostError,
    SchedulerGoneError,
    lost,
    lost_scheduler,
    running,
)
from streampca.passes.cluster.flight import Flight
from streampca.passes.cluster.merging import Merging
from streampca.passes.cluster.parcel import (
    LostError,
    NotStoredError,
    Parcel,
    Terms,
    as_task,
    fold_on_worker,
    handed_over,
    worth_keeping,
)
from streampca.passes.cluster.placement import Placement, packed, spans_ahead
from streampca.passes.cluster.versions import other_versions, our_versions, unheard
from streampca.passes.cluster.worker_memory import too_small
from streampca.passes.cluster.workers import await_scheduler, await_worker
from streampca.passes.execution import Execution, Fold
from streampca.passes.memory import in_memory
from streampca.passes.records import Pass
from streampca.passes.settings import setting

LOST = "scheduler-connection-lost"  # Dask's reason for spans of a scheduler that went
RESTARTED = "scheduler-restart"  # Dask's reason for spans that ``client.restart()`` cancelled
ATTEMPTS = 3  # at the same span, when operands are lost, before the pass gives up


def run_on_cluster(client: Any, work: Pass, fold: Fold, execution: Execution) -> None:
    """Submit spans in order, keep a few in flight, merge them in order.

    Operands and maps are stored on the workers once; tasks refer to their future.
    Raises ClusterError if workers keep dying on a span, or the scheduler is gone.
    """
    edges = work.matrix.edges
    hold = tuple(name for name, sink in work.sinks.items() if not sink.concurrent(edges))
    work = replace(work, hold=hold)
    merging = Merging(client, fold, execution, can_leave=bool(work.spec.accumulators) and not hold)
    attempts, warned = 0, set[str]()
    while fold.next < len(fold.spans):
        before = fold.next
        try:
            _submit(client, work, fold, merging, execution.plan.blocks_ahead, attempts > 0, warned)
        except LostError:
            merging.lost()
        except Exception as error:
            at, kind = fold.next, type(error).__name__
            merging.rescue(error)
            attempts = attempts + 1 if at == before else 1  # in a row, at the same span
            if lost(client) or LOST in str(error) or isinstance(error, ConnectionLostError):
                gone = lost_scheduler(client)
                await_scheduler(client, gone)
                if attempts == ATTEMPTS:
                    raise gone from error
                continue
            span = fold.spans[at]
            if isinstance(error, NotStoredError) and attempts < ATTEMPTS:
                continue
            if kind == "KilledWorker":
                raise _died(error, span, "every worker that folded them died") from error
            if kind not in ("FutureCancelledError", "CancelledError", "NotStoredError"):
                raise
            restarted = RESTARTED in str(error)  # then the span is not to blame
            if not (work.operands or work.maps or in_memory(work.matrix) or restarted):
                raise _died(error, span, f"the cluster gave them up: {error}") from error
            if attempts == ATTEMPTS:
                why = f"{ATTEMPTS} times in a row the workers died; see their logs"
                if isinstance(error, NotStoredError):
                    why = f"{ATTEMPTS} times in a row {error}"
                raise _died(error, span, why) from error
        except BaseException as error:  # Ctrl-C
            merging.rescue(error)
            raise


def _stored(client: Any, common: Parcel) -> Any:
    """The future of the operands, stored on a worker that takes tasks.

    Others fetch them from there. Dask would not keep more copies than are in use, and to make some
    it waits for all workers, in a queue that a stopped one blocks for ever. Waits for a worker
    first: if all have died, the next one may take minutes to start. Raises NotStoredError.
    """
    await_worker(client)
    excluded = other_versions(client)
    ready = [one for one, why in running(client).items() if not why and one not in excluded]
    heard = [one for one in ready if one not in unheard(client)]
    try:
        return handed_over(client, common, heard or ready)
    except (OSError, KeyError, ValueError) as error:  # ValueError: a worker died
        if isinstance(error, SchedulerGoneError):
            raise
        raise NotStoredError(f"no worker took the operands ({error})") from error


def dashboard_name(execution: Execution, name: str) -> str:
    """``scatter_pass_1``: what the tasks of a pass are called on Dask's dashboard.

    It shows keys up to the first hyphen that a word of letters does not follow.
    """
    return f"{re.sub('[^A-Za-z0-9]+', '_', name)}_pass_{execution.pass_number}"


def _died(error: Exception, span: range, why: str) -> ClusterError:
    """A ClusterError that names the span and carries the notes of the original error."""
    error_of_span = ClusterError(f"blocks {span[0]} to {span[-1]}: {why}")
    for note in getattr(error, "__notes__", []):
        error_of_span.add_note(note)
    return error_of_span


def _submit(
    client: Any, work: Pass, fold: Fold, merging: Merging, ahead: int, alone: bool, warned: set[str]
) -> None:
    """Submit and merge all remaining spans.

    alone : send the first span by itself, and the others once it is merged.
    warned : silent workers that the caller was warned of.
    """
    import dask

    common: dict[str, Any] = {}
    if work.operands or work.maps:
        sealed = Parcel.sealed({"operands": dict(work.operands), "maps": dict(work.maps)})
        common["common"] = _stored(client, sealed)
    bare = replace(work, operands={}, maps={})
    run_id = uuid.uuid4().hex  # other passes and other clients share the scheduler's keys
    prefix = dashboard_name(fold.execution, work.spec.name)
    terms = Terms(our_versions(), ahead, setting("read-timeout"))
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
                *task,
                key=f"{prefix}-{number}-{run_id}-{trial}",
                pure=False,
                retries=2,
                priority=trial,
                **where,
                **more,
            )
        return future, workers

    small = partial(too_small, client, fold.execution.plan)
    flight = Flight(client, send, placement, spans_ahead(work), common.get("common"), warned, small)
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
