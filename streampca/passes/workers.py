"""The workers of a cluster: whether there are any, which of them may be used, which answer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import (
    ClusterError,
    NoWorkerWarning,
    OtherVersionWarning,
    StreamPCAError,
    shorten,
)
from streampca.passes.memory import size
from streampca.passes.settings import setting

VERSION_SECONDS = 5.0  # that a worker has to say which version it has
THEIRS = "__import__('streampca').__version__"  # evaluated there, where nothing of ours may be

# client -> worker -> "" for one of our version, else what it has
_known: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def our_version() -> str:
    """Of this process."""
    return str(sys.modules["streampca"].__version__)


def await_worker(client: Any) -> None:
    """Wait for the first worker of a cluster, after ``pause-timeout`` with a warning.

    Raises ClusterError after ``worker-timeout``.
    """
    if client.nthreads():
        return
    # adaptive clusters start workers for tasks alone
    future = client.submit(int, key=f"streampca-first-{uuid.uuid4().hex}", pure=False)
    most = setting("worker-timeout")
    quiet = min(most, setting("pause-timeout"))
    try:
        if finished(future, quiet):
            return
        if most > quiet:
            say_waiting()
            if finished(future, most - quiet):
                return
        raise no_worker()
    finally:
        future.cancel()


def finished(future: Any, seconds: float) -> bool:
    """Wait so long for a task to end, well or not, or to be given up."""
    from distributed import CancelledError, wait

    try:
        with future.client.as_current():
            wait(future, timeout=seconds)
    except TimeoutError:
        return False
    except CancelledError:  # its result raises it too, in the words that are known
        return True
    return True


def say_waiting() -> None:
    """Warn of a pass that goes on only when a worker comes."""
    warnings.warn(
        f"the cluster has no worker; one is waited for, up to {setting('worker-timeout'):g} s "
        "(streampca.worker-timeout)", NoWorkerWarning, stacklevel=3,
    )  # fmt: skip


def no_worker() -> ClusterError:
    """The error where none comes."""
    return ClusterError(
        f"the cluster has had no worker for {setting('worker-timeout'):g} s. Start some; or wait "
        "longer: worker_timeout in a job's cluster section, streampca.worker-timeout in Dask's "
        "configuration."
    )


def refuse_strangers(client: Any) -> None:
    """Refuse workers that have another version of streampca, or none, before the first pass.

    Those that come to a cluster that was found good are left out: :func:`strangers`.
    Raises ClusterError.
    """
    if "" in _known.get(client, {}).values():
        strangers(client)
    elif wrong := _asked(client, again=True):
        del _known[client]  # it was not found good
        raise other_version(shorten(list(wrong.values())))


def strangers(client: Any, again: bool = False) -> set[str]:
    """The workers that have another version of streampca, or none; a warning names new ones.

    again : ask all of them. Raises ClusterError where there are no others.
    """
    before = dict(_known.get(client, {}))
    wrong = _asked(client, again)
    if not wrong:
        return set()
    if not set(client.nthreads()) - set(wrong):
        raise other_version(shorten(list(wrong.values())))
    if new := [words for address, words in wrong.items() if not before.get(address)]:
        warnings.warn(
            f"this process has streampca {our_version()}; {shorten(new)}: left out of this work",
            OtherVersionWarning, stacklevel=3,
        )  # fmt: skip
    return set(wrong)


@contextlib.contextmanager
def scheduler_answers() -> Iterator[None]:
    """What Dask raises where the scheduler is gone, as a ClusterError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamPCAError):
            raise
        raise ClusterError(f"the connection to the scheduler is lost: {error}") from error


@scheduler_answers()
def _asked(client: Any, again: bool) -> dict[str, str]:
    """Worker -> what it has, for those that have not our version.

    Each is asked once, for at most VERSION_SECONDS; one that does not answer by then is asked
    again next time, and every task compares versions too.
    """
    known = _known.setdefault(client, {})
    there = client.nthreads()
    new = [address for address in there if again or address not in known]
    if new:
        for address, answer in client.sync(_ask, client, new).items():
            if isinstance(answer, str):
                ours = answer == our_version()
                known[address] = "" if ours else f"worker {address} has streampca {answer}"
            elif isinstance(answer, ImportError):
                known[address] = f"worker {address} has none ({answer})"
    return {address: known[address] for address in there if known.get(address)}


def other_version(who: str) -> ClusterError:
    """The error, in which ``who`` says which worker has what."""
    ours = our_version()
    return ClusterError(
        f"this process has streampca {ours}; {who}. Install the same everywhere "
        f"(pip install streampca=={ours}), or leave these workers out."
    )


async def _ask(client: Any, addresses: list[str]) -> dict[str, Any]:
    """What each worker says, or why it does not."""

    async def one(address: str) -> Any:
        asked = client.run(eval, THEIRS, workers=[address], on_error="return")
        try:
            return (await asyncio.wait_for(asked, VERSION_SECONDS)).get(address)
        except Exception as error:
            return error

    return dict(zip(addresses, await asyncio.gather(*map(one, addresses))))


@scheduler_answers()
def running(client: Any) -> dict[str, str]:
    """Address -> "" for workers that take tasks; else what keeps them: "paused", "silent", ..."""
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
    """What a paused worker uses, in words: memory is why Dask pauses one."""
    limit, used = worker.get("memory_limit"), worker.get("metrics", {}).get("memory")
    if not limit or not used:
        return ""
    return f": {size(int(used))} of its {size(int(limit))} of memory are in use"
