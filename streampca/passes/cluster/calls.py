"""Calls to a Dask cluster: each ends in a stated time, and fails with an error of our own.

Left to itself, Dask waits without end for a scheduler or a worker that is stopped: their hosts
still accept connections. Where a connection fails, it tries again for
``distributed.comm.timeouts.connect``, and raises what its network library raises. So every call of
this package to a cluster goes through :func:`reply` (the scheduler, which answers at once) or
:func:`answer_of` (workers, which may have work to do), for ``pause-timeout`` seconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import ClusterError, StreamPCAError
from streampca.passes.memory import size
from streampca.passes.settings import setting

LEAST_SECONDS = 5.0  # that a call may take, however short ``pause-timeout`` is
LOOK_SECONDS = 0.5  # between looks at the connection while a call is waited for
BEATS = 3.0  # seconds: workers report every half a second, and less often where there are many
BEATS_PER_WORKER = 0.02  # seconds more
SHOWN = 4  # workers that a message names

LONGER = (
    "wait longer: pause_timeout in a job's cluster section, streampca.pause-timeout in Dask's "
    "configuration."
)


class SchedulerGoneError(ClusterError):
    """The scheduler does not answer, or the connection to it is lost."""


class ConnectionLostError(SchedulerGoneError):
    """The connection to the scheduler is lost; there may be another one already."""


def call_seconds() -> float:
    """Seconds that one call to a cluster may take."""
    return float(max(LEAST_SECONDS, setting("pause-timeout")))


def address_of(client: Any) -> str:
    """The address of a client's scheduler, for messages."""
    scheduler = client.scheduler
    return str(scheduler.address if scheduler is not None else client._start_arg or "its address")


def reply(client: Any, call: Callable[[Any], Any], seconds: float | None = None) -> Any:
    """What the scheduler answers.

    call : takes the client's connection to the scheduler, and returns what is awaited.
    Raises SchedulerGoneError after ``seconds``, and where the connection is lost. What the
    scheduler itself raises (KeyError) is raised.
    """
    seconds = call_seconds() if seconds is None else seconds

    async def wanted() -> Any:
        return await call(client.scheduler)

    try:
        return answer_of(client, wanted(), seconds, lambda: lost(client), LOOK_SECONDS)
    except Exception as error:
        if isinstance(error, StreamPCAError) or not (lost(client) or isinstance(error, OSError)):
            raise
        if isinstance(error, TimeoutError) and not lost(client):
            raise silent_scheduler(client, seconds) from None
        raise lost_scheduler(client) from error


def lost(client: Any) -> bool:
    """Whether a client is not connected to its scheduler, or not any more."""
    return bool(client.status != "running")


def silent_scheduler(client: Any, seconds: float) -> SchedulerGoneError:
    """The error for a scheduler that is connected, and does not answer."""
    return SchedulerGoneError(
        f"the scheduler at {address_of(client)} has not answered for {seconds:g} s: it is stopped, "
        f"or its host is out of reach. Start it again, or name another cluster; or {LONGER}"
    )


def lost_scheduler(client: Any) -> ConnectionLostError:
    """The error for a scheduler whose connection is closed."""
    return ConnectionLostError(
        f"the connection to the scheduler is lost: {address_of(client)} does not answer any more. "
        "Start the cluster again, or name another one; or use scheduler='threads'."
    )


def answer_of(
    client: Any,
    call: Coroutine[Any, Any, Any],
    seconds: float,
    hopeless: Callable[[], bool],
    look: float,
) -> Any:
    """The result of a call to the cluster.

    hopeless : whether to give up; called every ``look`` seconds. Raises TimeoutError then, and
        after ``seconds``.
    """
    try:
        answer = asyncio.run_coroutine_threadsafe(call, client.loop.asyncio_loop)
    except RuntimeError:  # the client was closed meanwhile, and its loop with it
        call.close()
        raise
    begun = time.monotonic()
    try:
        while True:
            waited = time.monotonic() - begun
            try:
                return answer.result(min(look, max(seconds - waited, 0.0)))
            except TimeoutError:
                if answer.done():
                    return answer.result()  # the TimeoutError is its own, or it just finished
                if waited >= seconds:
                    raise
            if hopeless():
                raise TimeoutError("it is not heard of")
    finally:
        answer.cancel()


def finished(future: Any, seconds: float) -> bool:
    """Whether a task ends, fails or is cancelled within so many seconds.

    ``distributed.wait`` would set Dask's configuration meanwhile, for all threads of this process.
    """
    from distributed import CancelledError

    if future.done():
        return True
    try:
        future.exception(timeout=seconds)
    except TimeoutError:
        return False
    except CancelledError:  # ``future.result()`` raises it again
        return True
    return True


def all_finished(futures: Iterable[Any], seconds: float) -> bool:
    """Whether all of these tasks end, fail or are cancelled within so many seconds."""
    end = time.monotonic() + seconds
    return all(finished(one, max(0.0, end - time.monotonic())) for one in futures)


def cancel(futures: Iterable[Any]) -> None:
    """Cancel tasks, unless their client is closed: then they are already."""
    for one in futures:
        if one.client.status in ("running", "connecting"):
            one.cancel()


# What the scheduler knows.


def identities(client: Any) -> dict[str, Any]:
    """Address -> what the scheduler knows of each worker.

    ``Client.scheduler_info`` would return what it knew before if the scheduler does not answer.
    """
    found: dict[str, Any] = reply(client, lambda s: s.identity(n_workers=-1))["workers"]
    return found


def cluster_id(client: Any) -> str:
    """The scheduler's id, which is the same for all its addresses."""
    return str(reply(client, lambda s: s.identity(n_workers=0))["id"])


def threads(client: Any) -> dict[str, int]:
    """Address -> threads, of all workers."""
    found: dict[str, int] = reply(client, lambda s: s.ncores(workers=None))
    return found


def processing(client: Any) -> dict[str, list[Any]]:
    """Address -> keys of the tasks that a worker has."""
    found: dict[str, list[Any]] = reply(client, lambda s: s.processing(workers=None))
    return found


def who_has(client: Any, keys: Iterable[Any]) -> dict[Any, tuple[str, ...]]:
    """Key -> the workers that have its result."""
    wanted = list(keys)
    return {key: tuple(who) for key, who in reply(client, lambda s: s.who_has(keys=wanted)).items()}


def computes(client: Any, key: str) -> bool:
    """Whether a worker computes this task, or what it needs; True if that is not known."""
    try:
        return bool(reply(client, lambda s: s.call_stack(keys=[key]), LEAST_SECONDS))
    except (ClusterError, KeyError):  # a worker may be the one that does not answer
        return True


# client -> worker -> (when the scheduler heard of it last, by its clock; when we saw that first)
_heard: WeakKeyDictionary[Any, dict[str, tuple[float, float]]] = WeakKeyDictionary()


def running(client: Any) -> dict[str, str]:
    """Address -> "" for workers that take tasks, else why not: "paused", "silent", ...

    A worker is silent if the scheduler has not heard of it for ``pause-timeout`` seconds: longer
    than of another worker, or since an earlier call of this function.
    """
    workers = identities(client)
    now, newest = time.monotonic(), max((one["last_seen"] for one in workers.values()), default=0.0)
    patience = max(setting("pause-timeout"), BEATS + BEATS_PER_WORKER * len(workers))
    before = _heard.get(client, {})
    heard, found = {}, {}
    for address, one in workers.items():
        known = before.get(address)
        heard[address] = (
            known if known and known[0] == one["last_seen"] else (one["last_seen"], now)
        )
        status, seen = one.get("status", "running"), heard[address]
        silent = max(newest - seen[0], now - seen[1]) > patience
        found[address] = "silent" if silent else "" if status == "running" else str(status)
        if found[address] == "paused":
            found[address] += _memory_of(one)
    _heard[client] = heard
    return found


def _memory_of(worker: Mapping[str, Any]) -> str:
    """The memory use of a paused worker, as text: Dask pauses workers for lack of memory."""
    limit, used = worker.get("memory_limit"), worker.get("metrics", {}).get("memory")
    if not limit or not used:
        return ""
    return f": {size(int(used))} of its {size(int(limit))} of memory are in use"


def named(states: Mapping[str, str]) -> str:
    """``worker a is silent, worker b is paused``: those that take no tasks."""
    found = [f"worker {one} is {state}" for one, state in sorted(states.items()) if state]
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if found[SHOWN:] else "")


def retrieved(call: concurrent.futures.Future[Any] | asyncio.Future[Any]) -> None:
    """A callback for calls that nobody waits for any more: their errors are not logged."""
    if not call.cancelled():
        call.exception()
