"""The workers of a cluster: waiting for them, their versions, and whether they take tasks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import (
    ClusterError,
    NoWorkerWarning,
    OtherVersionWarning,
    StreamPCAError,
    shorten,
    warn_caller,
)
from streampca.passes.memory import size
from streampca.passes.settings import setting

VERSION_SECONDS = 5.0  # that a worker has to report its version
THEIRS = "__import__('streampca').__version__"  # evaluated on workers, which may lack streampca

# client -> worker -> "" for our version, else a sentence about the version it has
_known: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def our_version() -> str:
    """The version of streampca in this process."""
    return str(sys.modules["streampca"].__version__)


def await_worker(client: Any) -> None:
    """Wait until a cluster has a worker; warn after ``pause-timeout``.

    Raises ClusterError after ``worker-timeout``.
    """
    if client.nthreads():
        return
    # adaptive clusters start workers only if there is a task
    future = client.submit(int, key=f"streampca-first-{uuid.uuid4().hex}", pure=False)
    most = setting("worker-timeout")
    quiet = min(most, setting("pause-timeout"))
    try:
        if finished(future, quiet):
            return
        if most > quiet:
            warn_of_waiting()
            if finished(future, most - quiet):
                return
        raise no_worker()
    finally:
        future.cancel()


def finished(future: Any, seconds: float) -> bool:
    """Whether a task ends, fails or is cancelled within so many seconds."""
    from distributed import CancelledError, wait

    try:
        with future.client.as_current():
            wait(future, timeout=seconds)
    except TimeoutError:
        return False
    except CancelledError:  # ``future.result()`` raises it again
        return True
    return True


def answer_of(client: Any, call: Coroutine[Any, Any, Any], seconds: float,
              hopeless: Callable[[], bool], look: float) -> Any:  # fmt: skip
    """The result of a call to the cluster.

    hopeless : whether to give up; asked every ``look`` seconds. Raises TimeoutError then, and after
    ``seconds``.
    """
    answer = asyncio.run_coroutine_threadsafe(call, client.loop.asyncio_loop)
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


def computes(client: Any, key: str) -> bool:
    """Whether a worker computes this task, or what it needs; True if that is not known."""
    asked = client.scheduler.call_stack
    try:
        return bool(client.sync(asked, keys=[key], callback_timeout=VERSION_SECONDS))
    except (TimeoutError, KeyError):
        return True


def warn_of_waiting() -> None:
    """Warn that the pass waits for a worker."""
    warn_caller(
        f"the cluster has no worker; waiting for one, up to {setting('worker-timeout'):g} s "
        "(streampca.worker-timeout)", NoWorkerWarning,
    )  # fmt: skip


def no_worker() -> ClusterError:
    """The error if no worker comes in time."""
    return ClusterError(
        f"the cluster has had no worker for {setting('worker-timeout'):g} s. Start some; or wait "
        "longer: worker_timeout in a job's cluster section, streampca.worker-timeout in Dask's "
        "configuration."
    )


def refuse_other_versions(client: Any) -> None:
    """Refuse a cluster with workers of another version of streampca, or without it.

    Once a cluster was accepted, such workers only get no work: :func:`other_versions`.
    Raises ClusterError.
    """
    if "" in _known.get(client, {}).values():
        other_versions(client)
    elif wrong := _asked(client, again=True):
        del _known[client]  # the cluster was not accepted
        raise other_version(shorten(list(wrong.values())))


def other_versions(client: Any, again: bool = False) -> set[str]:
    """The workers with another version of streampca, or without it. Warns of new ones.

    again : ask all workers, known ones too. Raises ClusterError if no other workers are left.
    """
    before = dict(_known.get(client, {}))
    wrong = _asked(client, again)
    if not wrong:
        return set()
    if not set(client.nthreads()) - set(wrong):
        raise other_version(shorten(list(wrong.values())))
    if new := [what for address, what in wrong.items() if not before.get(address)]:
        warn_caller(
            f"this process has streampca {our_version()}; {shorten(new)}: left out of this work",
            OtherVersionWarning,
        )  # fmt: skip
    return set(wrong)


@contextlib.contextmanager
def scheduler_answers() -> Iterator[None]:
    """Turn what Dask raises when the scheduler is gone into a ClusterError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamPCAError):
            raise
        raise ClusterError(f"the connection to the scheduler is lost: {error}") from error


@scheduler_answers()
def _asked(client: Any, again: bool) -> dict[str, str]:
    """Worker -> a sentence about its version, for workers that do not have ours.

    Each is asked once. One that does not answer within VERSION_SECONDS is asked again next time;
    every task compares versions too.
    """
    known = _known.setdefault(client, {})
    there = client.nthreads()
    new = [address for address in there if again or address not in known]
    if new:
        answers = client.sync(ask_each, client, new, VERSION_SECONDS, eval, THEIRS)
        for address, answer in answers.items():
            if isinstance(answer, str):
                ours = answer == our_version()
                known[address] = "" if ours else f"worker {address} has streampca {answer}"
            elif isinstance(answer, ImportError):
                known[address] = f"worker {address} has none ({answer})"
    return {address: known[address] for address in there if known.get(address)}


def other_version(who: str) -> ClusterError:
    """The error for other versions.  who : which worker has which version, as text."""
    ours = our_version()
    return ClusterError(
        f"this process has streampca {ours}; {who}. Install the same everywhere "
        f"(pip install streampca=={ours}), or leave these workers out."
    )


async def ask_each(client: Any, addresses: Sequence[str], seconds: float,
                   function: Callable[..., Any], *args: Any) -> dict[str, Any]:  # fmt: skip
    """Worker -> what the function returned there, or the exception if it did not within seconds."""

    async def one(address: str) -> Any:
        asked = client.run(function, *args, workers=[address], on_error="return")
        try:
            return (await asyncio.wait_for(asked, seconds)).get(address)
        except Exception as error:
            return error

    return dict(zip(addresses, await asyncio.gather(*map(one, addresses)), strict=True))


@scheduler_answers()
def running(client: Any) -> dict[str, str]:
    """Address -> "" for workers that take tasks, else why not: "paused", "silent", ..."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    newest = max((one["last_seen"] for one in workers.values()), default=0.0)
    patience = setting("pause-timeout")
    found = {}
    for address, one in workers.items():
        status = one.get("status", "running")
        silent = newest - one["last_seen"] > patience
        found[address] = "silent" if silent else "" if status == "running" else str(status)
        if found[address] == "paused":
            found[address] += _memory_of(one)
    return found


def _memory_of(worker: Mapping[str, Any]) -> str:
    """The memory use of a paused worker, as text: Dask pauses workers for lack of memory."""
    limit, used = worker.get("memory_limit"), worker.get("metrics", {}).get("memory")
    if not limit or not used:
        return ""
    return f": {size(int(used))} of its {size(int(limit))} of memory are in use"
