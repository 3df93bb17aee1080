"""Clients and clusters of ``dask.distributed``: find, connect, check, or start one for a job."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import (
    ClusterError,
    InvalidInputError,
    MissingDependencyError,
    StuckWorkerWarning,
    hide_secrets,
    warn_caller,
)
from streampca.passes.cluster.calls import call_seconds, identities
from streampca.passes.cluster.workers import patience
from streampca.passes.settings import SETTINGS, setting, task_worker

# Addresses of Dask schedulers: checked and tried before a client is made for one.
#
# A Dask client waits for its whole time-out if nothing listens at the address or the host does not
# exist, and as long again when it is closed.

BY_TCP = ("tcp", "tls", "ws", "wss")
SCHEMES = (*BY_TCP, "ucx", "inproc")
PATIENCE = 2.0  # seconds for a scheduler that is about to listen
PAUSE = 0.1  # seconds between two attempts


def connect(address: Any, seconds: float, security: Any = None, repair: str = "") -> Any:
    """A client of the scheduler at an address, or of a cluster object.

    repair : advice at the end of the error message.
    Raises InvalidInputError for a malformed address, ClusterError if no scheduler answers.
    """
    if isinstance(address, str):
        check_address(address)
    from distributed import Client

    shown = hide_secrets(address) if isinstance(address, str) else "the new cluster"
    client: Any = Client.__new__(Client)
    try:
        if isinstance(address, str):
            _await_listener(address, seconds)
        # if the listener is no scheduler, Dask may wait for its answer without end
        client.start = partial(client.start, callback_timeout=seconds + PATIENCE)
        longer = max(seconds, patience())  # for which it will look for a scheduler that it lost
        client.__init__(address, set_as_default=False, timeout=longer, security=security)
    except Exception as error:  # Dask raises anything if the listener is no scheduler
        client.status = "closed"  # nothing to close; trying to would wait
        raise ClusterError(
            f"no Dask scheduler answers at {shown} within {seconds:g} s "
            f"({hide_secrets(str(error))}). Start one (dask scheduler), or {repair}."
        ) from None
    return client


def check_address(address: str) -> None:
    """Raise InvalidInputError, without showing passwords, unless this is a scheduler's address."""
    try:
        parts = urlsplit(address)
        local = parts.scheme == "inproc"
        good = parts.scheme in SCHEMES and (local or bool(parts.hostname and parts.port))
    except ValueError:  # a port that is no number, or beyond 65535
        good = False
    if "@" in address:
        raise InvalidInputError(
            f"scheduler={hide_secrets(address)!r}: an address takes no user or password; "
            "certificates go into Dask's configuration, or the section cluster.security"
        )
    if not good:
        raise InvalidInputError(
            f"scheduler={hide_secrets(address)!r}; expected an address such as "
            "'tcp://127.0.0.1:8786' or 'tls://host:8786'"
        )


def _await_listener(address: str, seconds: float) -> None:
    """Return once the address accepts connections. Raises OSError.

    Refused connections are tried again for at most PATIENCE; an unknown host fails at once.
    """
    parts = urlsplit(address)
    if parts.scheme not in BY_TCP:
        return
    end = time.monotonic() + min(PATIENCE, seconds)
    while True:
        try:
            socket.create_connection((parts.hostname, parts.port), seconds).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() >= end:
                raise
        time.sleep(PAUSE)


# Which client of ``dask.distributed`` a pass uses, if any, and whether it can be used here.

CONNECT_SECONDS = 10

_clients: dict[str, Any] = {}  # address -> this process's client


def find_client(scheduler: Any) -> Any | None:
    """The distributed client to use, or None for threads of this process.

    scheduler : None (the ambient client, if distributed is loaded and has one, else what Dask's
        configuration says under ``streampca.scheduler``), "threads", an address such as
        "tcp://127.0.0.1:8786", or a Client.

    None inside a task of the same cluster, whichever way it is named: spans would wait for the
    worker that waits for them. Raises InvalidInputError for another value and for an asynchronous
    client, ClusterError if no scheduler answers or the client is closed.
    """
    if scheduler is None:
        if task_worker() is not None:
            return None  # inside a task: this worker is the machine
        scheduler = ambient_client() or setting("scheduler")
    if scheduler is None or (isinstance(scheduler, str) and scheduler == "threads"):
        return None
    if isinstance(scheduler, str) and "://" in scheduler:
        return None if _works_for(scheduler) else _unless_inside(_connect(scheduler))
    if not is_client(scheduler):
        raise InvalidInputError(
            f"scheduler={hide_secrets(repr(scheduler))}; expected None, 'threads', an address such "
            "as 'tcp://127.0.0.1:8786', or a distributed.Client"
        )
    _check_usable(scheduler)
    return _unless_inside(scheduler)


def is_client(value: Any) -> bool:
    """Whether this is a ``distributed.Client``; does not import distributed."""
    if "distributed" not in sys.modules:
        return False
    from distributed import Client

    return isinstance(value, Client)


def ambient_client() -> Any | None:
    """The default client; None if there is none, or ``distributed`` is not loaded."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def _check_usable(client: Any) -> None:
    """Refuse a client that is closed, or whose event loop the call would block."""
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


def _works_for(address: str) -> bool:
    """Whether this is a worker of the scheduler at an address."""
    worker = task_worker()
    return worker is not None and bool(worker.scheduler.address == address)


def _unless_inside(client: Any) -> Any | None:
    """The client; None if this is a task on one of its workers."""
    worker = task_worker()
    if worker is None:
        return client
    # a scheduler has several addresses
    return None if worker.address in identities(client) else client


# The cluster of a job: an existing one, or one that runs as long as the job.

EXTRAS = {"dask_jobqueue": "jobqueue", "dask_kubernetes": "kubernetes"}
# defaults of a LocalCluster: not reachable from other machines, no dashboard
LOOPBACK = {
    "host": "127.0.0.1",
    "dashboard_address": "127.0.0.1:0",
    "scheduler_kwargs": {"dashboard": False},
}
METHODS = ("scale", "adapt", "close")  # of every cluster class of Dask


@contextmanager
def started(cluster: Mapping[str, Any] | None, scheduler: Any = None) -> Iterator[Any]:
    """A value for ``scheduler=``: a client of the job's cluster, closed at the end.

    cluster : ``address`` of a running scheduler; or ``class`` (LocalCluster, or a dotted name) with
        its ``arguments``, ``workers`` to start, ``adapt`` with minimum and maximum. ``security``:
        arguments of ``distributed.Security``; default: Dask's configuration. Entries named as in
        :data:`streampca.passes.settings.SETTINGS` apply while it runs.
    scheduler : returned if there is no cluster.

    A LocalCluster listens on 127.0.0.1 and has no dashboard, unless its arguments say otherwise.
    Raises MissingDependencyError, InvalidInputError, ClusterError.
    """
    if not cluster:
        yield scheduler
        return
    import dask.config

    timeouts = {
        f"streampca.{key}": cluster[name]
        for key in SETTINGS
        if (name := key.replace("-", "_")) in cluster
    }
    security = _security(cluster.get("security"))
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(timeouts))
        where = cluster.get("address") or stack.enter_context(_running(cluster, security))
        client = connect(where, CONNECT_SECONDS, security, repair="name a class")
        stack.callback(_closed, client.close, "the client")
        yield client


@contextmanager
def _running(cluster: Mapping[str, Any], security: Any) -> Iterator[Any]:
    """A new cluster, closed at the end."""
    name = cluster.get("class", "LocalCluster")
    kind = cluster_class(name)
    arguments = dict(cluster.get("arguments") or {})
    if security is not None:
        arguments["security"] = security
    if kind is cluster_class("LocalCluster"):
        counted = {"n_workers": 0} if "workers" in cluster or "adapt" in cluster else {}
        arguments = LOOPBACK | counted | arguments
    try:
        one = kind(**arguments)
    except TypeError as error:
        raise InvalidInputError(f"cluster.arguments: {name} does not take them: {error}") from error
    except Exception as error:
        raise ClusterError(f"{name} could not be started: {error}") from error
    try:
        if "workers" in cluster:
            one.scale(cluster["workers"])
        if "adapt" in cluster:
            one.adapt(**cluster["adapt"])
        yield one
    finally:
        _closed(one.close, name)


def _closed(close: Callable[[], Any], name: str) -> None:
    """Close a client or a cluster, in ``pause-timeout`` at most: what is stopped never answers.

    Its thread goes on meanwhile. The work is done, or its error is on the way: this one is a
    warning.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(close())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, name="dask-close", daemon=True).start()
    try:
        done.result(call_seconds())
    except Exception as error:
        why = f": {error}" if str(error) else f" within {call_seconds():g} s"
        warn_caller(f"{name} did not close{why}", StuckWorkerWarning)


def cluster_class(name: str) -> Any:
    """The cluster class of that name; imports its module.

    Raises MissingDependencyError, and InvalidInputError for what is no cluster class.
    """
    if "." not in name:
        name = f"distributed.{name}"
    module, _, attribute = name.rpartition(".")
    try:
        with _without_current_folder():
            found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        package = module.partition(".")[0]
        extra = EXTRAS.get(package)
        line = f"streampca[{extra}]" if extra else package.replace("_", "-")
        raise MissingDependencyError(
            f"cluster.class: {name} cannot be imported ({error}): pip install '{line}'"
        ) from error
    if not (isinstance(found, type) and all(hasattr(found, method) for method in METHODS)):
        raise InvalidInputError(
            f"cluster.class: {name} is not a Dask cluster class; expected one such as "
            "LocalCluster, dask_jobqueue.SLURMCluster or dask_kubernetes.operator.KubeCluster"
        )
    return found


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Modules that a job file names are not looked up in the folder that it is run in."""
    before = sys.path
    sys.path = [one for one in before if one]
    try:
        yield
    finally:
        sys.path = before


def _security(arguments: Mapping[str, Any] | None) -> Any:
    """Certificates for all connections; None leaves them to Dask's configuration."""
    if not arguments:
        return None
    from distributed.security import Security

    return Security(**{"require_encryption": True, **arguments})
