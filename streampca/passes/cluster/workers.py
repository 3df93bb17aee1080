"""The workers of a cluster: waiting for them, their versions, and whether they take tasks."""

from __future__ import annotations

import asyncio
import math
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any
from weakref import WeakKeyDictionary

from streampca.errors import (
    ClusterError,
    LocalSourceWarning,
    NoAnswerError,
    NoWorkerWarning,
    OtherVersionWarning,
    StreamPCAError,
    shorten,
    warn_caller,
)
from streampca.matrix import ChunkedMatrix
from streampca.passes.cluster.calls import (
    LONGER,
    address_of,
    all_finished,
    answer_of,
    cancel,
    finished,
    lost,
    lost_scheduler,
    named,
    retrieved,
    running,
    threads,
)
from streampca.passes.settings import setting

PAUSES = 3.0  # times ``pause-timeout`` that no worker may take tasks, before a pass gives up
LOOK_SECONDS = 1.0  # between looks at the workers while none takes tasks
RETRY_SECONDS = 0.2  # between looks at a connection that is lost
VERSION_SECONDS = 5.0  # that a worker has to report its version
THEIRS = "__import__('streampca').__version__"  # evaluated on workers, which may lack streampca

# client -> worker -> "" for our version, else a sentence about the version it has
_known: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
# client -> worker -> the call that asks it
_calls: WeakKeyDictionary[Any, dict[str, futures.Future[Any]]] = WeakKeyDictionary()


def our_version() -> str:
    """The version of streampca in this process."""
    return str(sys.modules["streampca"].__version__)


class Wait:
    """A wait that may have no end: warned of once, and given up in time."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._warned = False

    def over(self) -> None:
        """What was waited for is there."""
        self.since, self._warned = None, False

    def go_on(self, most: float, warning: str, error: str, at_once: bool = False) -> None:
        """Warn after ``pause-timeout``, or at once. Raises ClusterError after ``most`` seconds."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        if now - self.since >= most:
            raise ClusterError(error)
        if not self._warned and (at_once or now - self.since >= setting("pause-timeout")):
            self._warned = True
            warn_caller(warning, NoWorkerWarning)

    def for_worker(self, states: Mapping[str, str]) -> bool:
        """Whether no worker takes tasks.  states : of :func:`running`.

        Warns at once of workers that are silent. Raises ClusterError after ``worker-timeout`` if
        there is no worker, and after three times ``pause-timeout`` if there are some.
        """
        if "" in states.values():
            self.over()
        elif states:
            self.go_on(
                most := patience(),
                f"{named(states)}; no other worker takes tasks. Waiting "
                f"for one, up to {most:g} s ({PAUSES:g} times streampca.pause-timeout)",
                f"no worker of the cluster took tasks for {most:g} s: {named(states)}. Start them "
                f"again, with more memory if they are paused; or {LONGER}",
                at_once="silent" in states.values(),
            )
        else:
            self.go_on(
                most := setting("worker-timeout"),
                "the cluster has no worker; waiting for "
                f"one, up to {most:g} s (streampca.worker-timeout)",
                f"the cluster has had no worker for {most:g} s. Start some; or wait longer: "
                "worker_timeout in a job's cluster section, streampca.worker-timeout in Dask's "
                "configuration.",
            )
        return self.since is not None

    def for_silent(self, states: Mapping[str, str], what: str) -> None:
        """Warn at once of silent workers. Raises ClusterError after three times ``pause-timeout``.

        what : what they may hold up.
        """
        silent = {one: why for one, why in states.items() if why == "silent"}
        if not silent:
            return self.over()
        said = f"{named(silent)}, and {what}"
        return self.go_on(
            most := patience(),
            f"{said}; waiting for that, up to {most:g} s "
            f"({PAUSES:g} times streampca.pause-timeout)",
            f"{said}, for {most:g} s now. Let these workers go on; or end their processes: Dask "
            f"computes elsewhere what they held; or {LONGER}",
            at_once=True,
        )


def patience() -> float:
    """Seconds that workers may stay silent, or paused, where nothing can go on without them."""
    return float(PAUSES * setting("pause-timeout"))


def await_worker(client: Any, seen: Callable[[], None] = lambda: None) -> None:
    """Wait until a worker of a cluster takes tasks.

    seen : called at each look. Warns and raises as :meth:`Wait.for_worker` does.
    """
    wait, future = Wait(), None
    try:
        while wait.for_worker(running(client)):
            seen()
            if future is None:  # adaptive clusters start workers only if there is a task
                key = f"streampca-first-{uuid.uuid4().hex}"
                future = client.submit(int, key=key, pure=False)
            finished(
                future,
                min(LOOK_SECONDS, setting("pause-timeout") / 4, setting("worker-timeout") / 4),
            )
        seen()
    finally:
        if future is not None:
            cancel([future])


def await_all(client: Any, tasks: Sequence[Any], what: str, seconds: float = math.inf) -> None:
    """Wait until these futures are computed, cancelled or have failed.

    what : they are, for messages.  seconds : that may pass without any of them.
    Raises NoAnswerError after that, and as :meth:`Wait.for_worker` and :meth:`Wait.for_silent` do.
    """
    worker, silent, left, since = Wait(), Wait(), len(tasks), time.monotonic()
    while True:
        if all_finished(tasks, min(LOOK_SECONDS, setting("pause-timeout") / 4)):
            return
        todo = sum(one.status == "pending" for one in tasks)
        if lost(client):
            raise lost_scheduler(client)
        states = running(client)
        if todo < left or worker.for_worker(states):
            left, since = todo, time.monotonic()
            silent.over()
        else:
            silent.for_silent(states, f"{todo} of {len(tasks)} {what} are not computed")
        if time.monotonic() - since >= seconds:
            raise NoAnswerError(
                f"{what} were not computed within {seconds:g} s on the cluster that holds X "
                f"({address_of(client)}). Wait longer: "
                'dask.config.set({"streampca.read-timeout": seconds})'
            )


def gathered(client: Any, tasks: Any, what: str) -> Any:
    """The results of futures that are computed.

    Raises NoAnswerError after ``read-timeout``, and as :meth:`Wait.for_silent` does.
    """
    silent = Wait()

    def hopeless() -> bool:
        silent.for_silent(running(client), f"{what} do not come")
        return False

    try:
        call = client.gather(tasks, asynchronous=True)
        look = min(LOOK_SECONDS, setting("pause-timeout") / 4)
        return answer_of(client, call, setting("read-timeout"), hopeless, look)
    except TimeoutError:
        raise NoAnswerError(
            f"{what} did not come from the cluster at {address_of(client)} within "
            f"{setting('read-timeout'):g} s (streampca.read-timeout)"
        ) from None
    except (OSError, AttributeError) as error:
        if isinstance(error, StreamPCAError) or not lost(client):
            raise
        raise lost_scheduler(client) from error


def await_scheduler(client: Any, gone: Exception) -> None:
    """Wait until a client is connected again: a scheduler may be started anew at its address.

    gone : why it is not; raised after ``pause-timeout``, or earlier, when the client gives up.
    """
    most = setting("pause-timeout")
    if client.status == "connecting":
        warn_caller(
            f"the connection to the scheduler at {address_of(client)} is lost; waiting for one "
            f"there, up to {most:g} s (streampca.pause-timeout)",
            NoWorkerWarning,
        )
    end = time.monotonic() + most
    while client.status == "connecting" and time.monotonic() < end:
        time.sleep(RETRY_SECONDS)
    if lost(client):
        raise gone


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
    if not set(threads(client)) - set(wrong):
        raise other_version(shorten(list(wrong.values())))
    if new := [what for address, what in wrong.items() if not before.get(address)]:
        warn_caller(
            f"this process has streampca {our_version()}; {shorten(new)}: left out of this work",
            OtherVersionWarning,
        )
    return set(wrong)


def _asked(client: Any, again: bool) -> dict[str, str]:
    """Worker -> a sentence about its version, for workers that do not have ours.

    New workers have VERSION_SECONDS to answer. One that takes longer is not waited for again: its
    answer is taken when it comes, and every task compares versions too.
    """
    known, calls = _known.setdefault(client, {}), _calls.setdefault(client, {})
    there = threads(client)
    new = [one for one in there if (again or one not in known) and one not in calls]
    for address in new:
        calls[address] = asyncio.run_coroutine_threadsafe(
            _run(client, address, eval, THEIRS), client.loop.asyncio_loop
        )
        calls[address].add_done_callback(retrieved)
    futures.wait([calls[one] for one in new], min(VERSION_SECONDS, setting("pause-timeout")))
    for address in [one for one, call in calls.items() if call.done() or one not in there]:
        call = calls.pop(address)
        failed = not call.done() or call.cancelled() or call.exception()
        answer = None if failed else call.result()
        if isinstance(answer, str):
            ours = answer == our_version()
            known[address] = "" if ours else f"worker {address} has streampca {answer}"
        elif isinstance(answer, ImportError):
            known[address] = f"worker {address} has none ({answer})"
        call.cancel()
    return {address: known[address] for address in there if known.get(address)}


def unheard(client: Any) -> set[str]:
    """The workers that have not reported their version yet: they may be stopped."""
    return set(_calls.get(client, {}))


def other_version(who: str) -> ClusterError:
    """The error for other versions.  who : which worker has which version, as text."""
    ours = our_version()
    return ClusterError(
        f"this process has streampca {ours}; {who}. Install the same everywhere "
        f"(pip install streampca=={ours}), or leave these workers out."
    )


async def ask_each(
    client: Any, addresses: Sequence[str], seconds: float, function: Callable[..., Any], *args: Any
) -> dict[str, Any]:
    """Worker -> what the function returned there, or the exception if it did not within seconds."""

    async def one(address: str) -> Any:
        try:
            return await asyncio.wait_for(_run(client, address, function, *args), seconds)
        except Exception as error:
            return error

    return dict(zip(addresses, await asyncio.gather(*map(one, addresses)), strict=True))


async def _run(client: Any, address: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function returned on a worker, or the exception that it raised there."""
    answers = await client.run(function, *args, workers=[address], on_error="return")
    return answers.get(address)


def workers_can_read(matrix: ChunkedMatrix) -> bool:
    """Whether workers can read a matrix; warns if parts of it are only in this process."""
    for one in matrix.locations():
        if one.in_process:
            warn_caller(
                f"{one.name} is {one.in_process}, which only this process can read: it is read "
                "here, not on the workers. Write it to a path that the workers share, or use "
                "scheduler='threads'.",
                LocalSourceWarning,
            )
            return False
    return True
