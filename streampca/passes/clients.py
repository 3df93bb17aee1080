"""Which client of ``dask.distributed`` a pass uses, if any, and whether it can be used here."""

from __future__ import annotations

import sys
from typing import Any

from streampca.errors import ClusterError, InvalidInputError
from streampca.passes.address import connect
from streampca.passes.settings import setting
from streampca.shown import hide_secrets

CONNECT_SECONDS = 10

_clients: dict[str, Any] = {}  # address -> the connection that this process has made


def find_client(scheduler: Any) -> Any | None:
    """The distributed client to use, or None for threads of this process.

    scheduler : None (the ambient client, if distributed is loaded and has one, else what Dask's
        configuration says under ``streampca.scheduler``), "threads", an address such as
        "tcp://127.0.0.1:8786", or a Client.

    None inside a task of the same cluster, however it is named: spans would wait for the worker
    that waits for them. Raises InvalidInputError for another value and in the event loop of an
    asynchronous client, ClusterError where nobody answers or the client is closed.
    """
    if scheduler is None:
        if _task_worker() is not None:
            return None  # inside a task: this worker is the machine
        scheduler = ambient_client() or setting("scheduler")
    if scheduler is None or (isinstance(scheduler, str) and scheduler == "threads"):
        return None
    if isinstance(scheduler, str) and "://" in scheduler:
        return None if _works_for(scheduler) else _elsewhere(_connect(scheduler))
    if not is_client(scheduler):
        raise InvalidInputError(
            f"scheduler={hide_secrets(repr(scheduler))}; expected None, 'threads', an address such "
            "as 'tcp://127.0.0.1:8786', or a distributed.Client"
        )
    _check_usable(scheduler)
    return _elsewhere(scheduler)


def is_client(value: Any) -> bool:
    """Whether this is a distributed.Client, without loading distributed to find out."""
    if "distributed" not in sys.modules:
        return False
    from distributed import Client

    return isinstance(value, Client)


def ambient_client() -> Any | None:
    """The default client; None where there is none, or ``distributed`` is not loaded."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def _check_usable(client: Any) -> None:
    """Refuse a client that is closed, or whose event loop the caller would block."""
    if client.status in ("closing", "closed"):
        raise ClusterError(
            f"this Client is {client.status}. Use another: scheduler=Client(address), the address "
            "of its scheduler, or scheduler='threads'."
        )
    if client.asynchronous:
        raise InvalidInputError(
            "this Client is asynchronous, and the call would block its event loop. Await it in a "
            "thread, await asyncio.to_thread(model.fit, X); or use scheduler='threads'."
        )


def _connect(address: str) -> Any:
    client = _clients.get(address)
    if client is None or client.status != "running":
        client = connect(address, CONNECT_SECONDS, repair="use scheduler='threads'")
        _clients[address] = client
    return client


# -- inside a task -------------------------------------------------------------------------------


def in_task() -> bool:
    """Whether this runs in a task of a worker."""
    return _task_worker() is not None


def _task_worker() -> Any | None:
    """The worker whose task this is, or whose process: a thread that a task started is in it too.

    A process that holds the scheduler as well is that of a client, and its workers are threads.
    """
    if "distributed" not in sys.modules:
        return None
    from distributed import Scheduler, Worker, get_worker

    try:
        return get_worker()
    except ValueError:
        pass
    if any(one.status.name == "running" for one in Scheduler._instances):
        return None
    return next((one for one in Worker._instances if one.status.name != "closed"), None)


def _works_for(address: str) -> bool:
    """Whether this is a worker of the scheduler at an address."""
    worker = _task_worker()
    return worker is not None and bool(worker.scheduler.address == address)


def _elsewhere(client: Any) -> Any | None:
    """The client; None where the task that asks runs on one of its workers."""
    worker = _task_worker()
    if worker is None:
        return client
    there = client.scheduler_info(n_workers=-1)["workers"]  # a scheduler has several addresses
    return None if worker.address in there else client
