"""The same pass on ``dask.distributed``: spans are tasks, a bounded number in flight."""

from __future__ import annotations

import pickle
import sys
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streampca.errors import InvalidInputError, MemoryLimitError, SourceError, StreamPCAError
from streampca.passes.nbytes import size
from streampca.passes.plan import LIBRARY_NBYTES
from streampca.passes.records import PassPlan, Plan
from streampca.passes.threads import single_threaded_blas
from streampca.passes.work import SpanResult, Work, fold_span

CONNECT_SECONDS = 10
ATTEMPTS = 3  # times that lost operands are sent again, in a row, before the pass gives up


def find_client(scheduler: Any) -> Any | None:
    """The distributed client to use, or None for threads of this process.

    scheduler : None (the ambient client, if distributed is loaded and has one), "threads",
        an address such as "tcp://127.0.0.1:8786", or a Client.
    """
    if scheduler == "threads":
        return None
    if scheduler is None:
        if "distributed" not in sys.modules:
            return None
        from distributed import default_client, get_worker

        try:
            get_worker()
        except ValueError:
            pass
        else:
            return None  # inside a task: this worker is the machine
        try:
            return default_client()
        except ValueError:
            return None
    from distributed import Client

    if isinstance(scheduler, Client):
        return scheduler
    if isinstance(scheduler, str) and "://" in scheduler:
        return _connect(scheduler)
    raise InvalidInputError(
        f"scheduler={scheduler!r}; expected None, 'threads', an address such as "
        "'tcp://127.0.0.1:8786', or a distributed.Client"
    )


_clients: dict[str, Any] = {}


def _connect(address: str) -> Any:
    from distributed import Client

    client = _clients.get(address)
    if client is None or client.status != "running":
        try:
            client = Client(address, set_as_default=False, timeout=f"{CONNECT_SECONDS}s")
        except (OSError, ValueError) as error:
            raise SourceError(
                f"no Dask scheduler answers at {address} within {CONNECT_SECONDS} s ({error}). "
                "Start one (dask scheduler), or use scheduler='threads'."
            ) from error
        _clients[address] = client
    return client


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes do not fit into the workers' memory."""
    process = plan.memory["process"]
    interpreter = process["interpreter"] + process["libraries"] + LIBRARY_NBYTES["dask"]
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        limit, lanes = worker.get("memory_limit"), worker["nthreads"]
        need = interpreter + max((_on_worker(plan, one, lanes) for one in plan.passes), default=0)
        if limit and need > limit:
            raise MemoryLimitError(
                f"worker {address} may use {size(limit)}, and the plan needs {size(need)} on its "
                f"{lanes} threads. Start workers with fewer threads or more memory, "
                "or set memory_limit to look for a smaller plan."
            )


def _on_worker(plan: Plan, one: PassPlan, lanes: int) -> int:
    """Bytes of one pass on a worker of so many lanes: no folded accumulators, all operands."""
    terms = dict(plan.memory[one.name])
    planned = max(1, min(plan.lanes, len(one.spans)))
    partial = terms.pop("partial accumulators") // planned
    kept = terms.pop("kept arrays")
    del terms["folded accumulators"]
    # per lane: its blocks, the span that it folds, and one that waits to be fetched
    return kept + lanes * (sum(terms.values()) // planned + 2 * partial)


def run_on_cluster(client: Any, work: Work, todo: list[tuple[int, range]], ahead: int,
                   take: Callable[[int, SpanResult], int]) -> None:  # fmt: skip
    """Submit spans in order, keep a few in flight, hand results over in order.

    Operands and maps are stored on the workers once and named by their future. A worker that
    dies loses its spans, which the scheduler runs again; where operands died with it they are
    sent again.
    """
    edges = work.matrix.edges
    work.hold = tuple(name for name, sink in work.sinks.items() if not sink.concurrent(edges))
    pending = deque(todo)
    attempts, left = 0, len(pending)
    while pending:
        try:
            _submit(client, work, pending, ahead, take)
        except Exception as error:
            attempts = attempts + 1 if len(pending) == left else 1  # in a row, without progress
            left = len(pending)
            lost = type(error).__name__ in ("FutureCancelledError", "CancelledError")
            if not lost or not (work.operands or work.maps):
                raise
            if attempts == ATTEMPTS:
                error.add_note(f"{ATTEMPTS} times in a row the workers died; see their logs")
                raise


def _submit(client: Any, work: Work, pending: deque[tuple[int, range]], ahead: int,
            take: Callable[[int, SpanResult], int]) -> None:  # fmt: skip
    import dask

    common: Any = Parcel({"operands": dict(work.operands), "maps": dict(work.maps)})
    if work.operands or work.maps:
        # a bare dictionary would name the data on the scheduler by its keys, where another
        # pass, or another client, has a "v" of its own
        (common,) = client.scatter([common], broadcast=True, hash=False)
    bare = replace(work, operands={}, maps={})
    window = 2 * (sum(client.nthreads().values()) or 1)
    run_id = uuid.uuid4().hex  # keys are the scheduler's: other passes, other clients use it too
    flight: deque[tuple[int, range, Any]] = deque()
    todo = deque(pending)
    # a matrix in memory travels in its tasks, which is meant and not worth a warning
    quiet = {"distributed.admin.large-graph-warning-threshold": "1 TB"}
    try:
        while todo or flight:
            while todo and len(flight) < window:
                number, span = todo.popleft()
                with dask.config.set(quiet):
                    future = client.submit(
                        fold_on_worker, Parcel(bare.cut(span)), span, ahead, common,
                        key=f"streampca-span-{number}-{run_id}", pure=False, retries=2,
                    )  # fmt: skip
                flight.append((number, span, future))
            number, span, future = flight[0]
            result = _result(future, span)
            take(number, result)
            del result  # or it lives beside the next one
            flight.popleft()
            pending.popleft()
            future.release()
    finally:
        for _, _, future in flight:
            future.cancel()


def _result(future: Any, span: range) -> SpanResult:
    try:
        result: SpanResult | StreamPCAError = future.result().content
    except Exception as error:
        if not hasattr(error, "__notes__"):  # not from our code: the worker died of it, perhaps
            error.add_note(f"while blocks {span[0]} to {span[-1]} were folded on a worker")
        raise
    if isinstance(result, StreamPCAError):
        raise result
    return result


class Parcel:
    """What travels, pickled in one piece.

    Distributed sends arrays beside the pickle, and they arrive wherever they lie in the message,
    often at odd addresses. NumPy then leaves BLAS aside and rounds otherwise.
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        from distributed.protocol.pickle import dumps  # cloudpickle where it must be

        return _unpack, (dumps(self.content),)


def _unpack(data: bytes) -> Parcel:
    return Parcel(pickle.loads(data))


def fold_on_worker(work: Parcel, span: range, ahead: int, common: Parcel) -> Parcel:
    """The task: read and fold one span on a worker, on one BLAS thread.

    Errors of our own are returned: they are the same at every trial, and what a task raises is
    tried again (a store may fail for a moment).
    """
    mine = replace(work.content, **common.content)
    mine.matrix.restart_counts()
    try:
        with single_threaded_blas():
            result = fold_span(mine, span, ahead)
        result.checksums = mine.matrix.checksums()
        return Parcel(result)
    except StreamPCAError as error:
        return Parcel(error)
