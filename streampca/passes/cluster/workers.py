"""Waiting for workers and their scheduler: how long, and whether any will come."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from streampca.errors import (
    ClusterError,
    LocalSourceWarning,
    NoAnswerError,
    NoWorkerWarning,
    StreamPCAError,
    warn_caller,
)
from streampca.matrix import ChunkedMatrix
from streampca.passes.cluster.calls import (
    LONGER,
    ConnectionLostError,
    address_of,
    all_finished,
    answer_of,
    cancel,
    finished,
    lost,
    lost_scheduler,
    named,
    running,
)
from streampca.passes.settings import setting

PAUSES = 3.0  # times ``pause-timeout`` that no worker may take tasks, before a pass gives up
LOOK_SECONDS = 1.0  # between looks at the workers while none takes tasks
RETRY_SECONDS = 0.2  # between looks at a connection that is lost
SURE_SECONDS = 1.0  # that a cluster must have no worker on its way: one it was just asked for is


class Wait:
    """A wait that may have no end: warned of once, and given up in time."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._warned = self._started = False

    def over(self) -> None:
        """What was waited for is there."""
        self.since, self._warned, self._started = None, False, False

    def go_on(self, most: float, warning: str, error: str, at_once: bool = False) -> None:
        """Warn after ``pause-timeout``, or at once. Raises ClusterError after ``most`` seconds."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        if now - self.since >= most:
            raise ClusterError(error)
        if not self._warned and (at_once or now - self.since >= setting("pause-timeout")):
            self._warned = True
            warn_caller(warning, NoWorkerWarning)

    def for_worker(self, states: Mapping[str, str], client: Any) -> bool:
        """Whether no worker takes tasks.  states : of :func:`running`.

        Warns at once of workers that are silent. Raises ClusterError after three times
        ``pause-timeout`` if there are workers. If there are none, after ``worker-timeout``; or at
        once if the cluster object says that none will come; those that it says have ended are
        started again first.
        """
        if not states and self.since is not None:
            self._look_for_workers(client, time.monotonic() - self.since)
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

    def _look_for_workers(self, client: Any, waited: float) -> None:
        """Start workers again that have ended, once. Raises ClusterError where none will come."""
        why, n_ended = nobody_comes(client)
        if not why or waited < SURE_SECONDS:
            return
        if self._started or not n_ended:
            raise ClusterError(
                f"the cluster has no worker, and none will come: {why}. Ask for some: workers: 2, "
                "or adapt: {maximum: 2}, in a cluster section; cluster.scale(2) in Python. If "
                "they ended, their logs say why."
            )
        self._started, self.since = True, time.monotonic()
        warn_caller(f"{why}; starting them again", NoWorkerWarning)
        for name, one in list(client.cluster.workers.items()):
            if _status(one) in ENDED:  # Dask does so, lost-worker-timeout (15 s) after the end
                client.cluster.workers.pop(name, None)
        client.cluster.scale(n_ended)

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


ENDED = ("closing", "closed", "failed")


def nobody_comes(client: Any) -> tuple[str, int]:
    """Why no worker will come, as the cluster object says; "" if some may, or if nobody knows.

    And how many workers have ended that may be started again.

    A cluster that is known by its address alone says nothing. Nor does one whose site starts and
    ends workers (Kubernetes); one of Dask (``SpecCluster``: LocalCluster, those of dask-jobqueue)
    keeps an object for each worker, a Nanny or a job, until it ends.
    """
    cluster = getattr(client, "cluster", None)
    if cluster is None:
        return "", 0
    if (status := _status(cluster)) in ENDED:
        return f"the cluster is {status}", 0
    adaptive = getattr(cluster, "_adaptive", None)
    if adaptive is not None and getattr(adaptive, "state", "running") in ("starting", "running"):
        return ("" if adaptive.maximum > 0 else "it is adaptive, with 0 workers at most"), 0
    requested = getattr(cluster, "worker_spec", None)
    if not requested:
        return ("" if requested is None else "no worker is requested"), 0
    there = [cluster.workers.get(name) for name in list(requested)]
    alive = any(one is not None and _status(one) not in ENDED for one in there)
    starting = getattr(cluster, "_lock", None)  # held while workers are started or ended
    if alive or (starting is not None and starting.locked()):
        return "", 0
    why = f"all {len(requested)} workers or jobs that were requested have ended"
    return why, len(cluster.plan)  # a job may start several workers


def _status(one: Any) -> str:
    return str(getattr(getattr(one, "status", None), "name", ""))


def patience() -> float:
    """Seconds that workers may stay silent, or paused, where nothing can go on without them."""
    return float(PAUSES * setting("pause-timeout"))


def await_worker(client: Any, seen: Callable[[], None] = lambda: None) -> None:
    """Wait until a worker of a cluster takes tasks.

    seen : called at each look. Warns and raises as :meth:`Wait.for_worker` does, and as
    :func:`await_scheduler` where the connection is lost meanwhile.
    """
    while True:
        try:
            return _await_worker(client, seen)
        except ConnectionLostError as gone:
            await_scheduler(client, gone)


def _await_worker(client: Any, seen: Callable[[], None]) -> None:
    wait, future = Wait(), None
    try:
        while wait.for_worker(running(client), client):
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
        if todo < left or worker.for_worker(states, client):
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


@contextmanager
def patient(client: Any) -> Iterator[None]:
    """While it lasts, a client looks for a scheduler that it lost for as long as a pass waits.

    Left to itself it gives up, and closes, after the time-out that it was made with (30 s).
    """
    before = getattr(client, "_timeout", 0.0)
    client._timeout = max(before, patience())
    try:
        yield
    finally:
        client._timeout = before


def await_scheduler(client: Any, gone: Exception) -> None:
    """Wait until a client is connected again: a scheduler may be started anew at its address.

    gone : why it is not; raised after three times ``pause-timeout``, or if the client gives up.
    """
    most = patience()
    if client.status == "connecting":
        warn_caller(
            f"the connection to the scheduler at {address_of(client)} is lost; waiting for one "
            f"there, up to {most:g} s ({PAUSES:g} times streampca.pause-timeout)",
            NoWorkerWarning,
        )
    end = time.monotonic() + most
    while client.status == "connecting" and time.monotonic() < end:
        time.sleep(RETRY_SECONDS)
    if lost(client):
        raise gone


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
