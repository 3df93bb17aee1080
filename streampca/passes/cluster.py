"""The same pass on ``dask.distributed``: spans are tasks, a bounded number in flight."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.passes.plan import Plan, size
from streampca.passes.threads import single_threaded_blas
from streampca.passes.work import SpanResult, Work, fold_span

ATTEMPTS = 3  # times that lost operands are sent again before the pass gives up


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
        client = _clients[address] = Client(address, set_as_default=False, timeout="10s")
    return client


def check_workers(client: Any, plan: Plan) -> None:
    """Refuse a plan whose lanes do not fit into the workers' memory."""
    phases = [terms for name, terms in plan.memory.items() if name not in ("process", "solver")]
    per_lane = [sum(t.values()) / max(plan.lanes, 1) for t in phases]
    interpreter = plan.memory["process"]["interpreter"]
    for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
        limit = worker.get("memory_limit")
        need = interpreter + max(per_lane, default=0) * worker["nthreads"]
        if limit and need > limit:
            raise MemoryLimitError(
                f"worker {address} may use {size(limit)}, and the plan needs {size(need)} on its "
                f"{worker['nthreads']} threads. Start workers with fewer threads or more memory, "
                "or set memory_limit to look for a smaller plan."
            )


def run_on_cluster(client: Any, work: Work, todo: list[tuple[int, range]], ahead: int,
                   take: Callable[[int, SpanResult], int]) -> None:  # fmt: skip
    """Submit spans in order, keep a few in flight, hand results over in order.

    Operands are stored on the workers once and named by their future. A worker that dies loses
    its spans, which the scheduler runs again; where operands died with it they are sent again.
    """
    edges = work.matrix.edges
    work.hold = tuple(name for name, sink in work.sinks.items() if not sink.concurrent(edges))
    pending = deque(todo)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _submit(client, work, pending, ahead, take)
            return
        except Exception as error:
            lost = type(error).__name__ in ("FutureCancelledError", "CancelledError")
            if not lost or attempt == ATTEMPTS or not work.operands:
                raise


def _submit(client: Any, work: Work, pending: deque[tuple[int, range]], ahead: int,
            take: Callable[[int, SpanResult], int]) -> None:  # fmt: skip
    operands = dict(work.operands)
    shared = client.scatter(operands, broadcast=True, hash=False) if operands else {}
    bare = replace(work, operands={})
    lanes = sum(client.nthreads().values()) or 1
    window = 2 * lanes
    flight: deque[tuple[int, range, Any]] = deque()
    todo = deque(pending)
    try:
        while todo or flight:
            while todo and len(flight) < window:
                number, span = todo.popleft()
                future = client.submit(
                    fold_on_worker, bare.cut(span), span, ahead, shared,
                    key=f"streampca-span-{number}-{id(flight):x}", pure=False, retries=2,
                )  # fmt: skip
                flight.append((number, span, future))
            number, span, future = flight[0]
            take(number, future.result())
            flight.popleft()
            pending.popleft()
            future.release()
    finally:
        for _, _, future in flight:
            future.cancel()


def fold_on_worker(work: Work, span: range, ahead: int, operands: dict[str, Any]) -> SpanResult:
    """The task: read and fold one span on a worker, on one BLAS thread."""
    work.operands = operands
    work.matrix.restart_counts()
    with single_threaded_blas():
        return fold_span(work, span, ahead)
