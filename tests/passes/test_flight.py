"""Workers that hang, pause, fall silent, come late or are of another version."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from pass_matrices import Sum, ToyMatrix, by_hand, run, same_bits, toy_plan, wild

from streampca.errors import (
    ClusterError,
    NoAnswerError,
    NoWorkerWarning,
    OtherVersionWarning,
    StuckWorkerWarning,
)
from streampca.passes import Advance, PassResult
from streampca.passes.cluster import calls, flight, versions
from streampca.passes.cluster.calls import SchedulerGoneError
from streampca.passes.cluster.flight import Flight
from streampca.passes.cluster.parcel import Parcel, Terms, fold_on_worker
from streampca.passes.cluster.versions import refuse_other_versions
from streampca.passes.cluster.workers import await_worker

# -- one worker after another, on a cluster that only answers ----------------------------------


class Future:
    status = "pending"

    def __init__(self, key: str) -> None:
        self.key, self.cancelled, self.client = key, False, self

    def cancel(self) -> None:
        self.cancelled = True

    def release(self) -> None:
        pass

    def result(self, timeout: float) -> Parcel:
        return Parcel(self.key)


class Cluster:
    """Workers a and b, and a clock. Spans that were sent to ``b`` in particular are done."""

    def __init__(self, **workers: Any) -> None:
        self.info = {
            name: {"last_seen": 1000.0, "status": "running"} | workers.get(name, {})
            for name in ("a", "b")
        }
        self.where = {"a": ["0"], "b": []}
        self.now = 0.0
        self.sent: list[tuple[int, Any]] = []
        self.strange: set[str] = set()

    def heard(self) -> dict[str, Any]:
        """All workers are heard of as time goes on, at the distances of ``last_seen``."""
        return {
            name: one | {"last_seen": one["last_seen"] + self.now}
            for name, one in self.info.items()
        }

    def scheduler_says(self) -> dict[str, Any]:
        """By the functions of ``calls`` that ask for it."""
        return {
            "threads": lambda client: dict.fromkeys(self.info, 1),
            "processing": lambda client: self.where,
        }

    def send(self, number: int, blocks: range, trial: int, workers: Any) -> tuple[Future, Any]:
        self.sent.append((trial, workers))
        return Future("0"), workers

    def gather(self, future: Future, asynchronous: bool) -> Future:
        return future

    def finished(self, future: Future, seconds: float) -> bool:
        if self.sent[-1][1] == ["b"]:
            return True
        self.now += seconds
        return False


def answering(cluster: Cluster, monkeypatch: Any) -> None:
    monkeypatch.setattr(flight, "answer_of", lambda client, future, *rest: future.result(0.0))
    monkeypatch.setattr(calls, "identities", lambda client: cluster.heard())
    for name, said in cluster.scheduler_says().items():
        monkeypatch.setattr(flight, name, said)


def flown(cluster: Cluster, monkeypatch: Any, **settings: float) -> Flight:
    monkeypatch.setattr(flight, "finished", cluster.finished)
    answering(cluster, monkeypatch)
    monkeypatch.setattr(flight, "other_versions", lambda client, again=False: cluster.strange)
    monkeypatch.setattr(flight.time, "monotonic", lambda: cluster.now)
    named = {f"streampca.{name.replace('_', '-')}": value for name, value in settings.items()}
    one = Flight(cluster, cluster.send)
    one.add(0, range(4, 6))
    with dask.config.set(named):
        one.first()
    return one


@pytest.mark.parametrize(
    ("state", "words", "after"),
    [
        ({"status": "paused"}, "blocks 4 to 5 wait after 60 s: worker a is paused", 60),
        (
            {"status": "paused", "memory_limit": 300 << 20, "metrics": {"memory": 250 << 20}},
            "worker a is paused: 250 MiB of its 300 MiB of memory are in use",
            60,
        ),
        ({"last_seen": 930.0}, "blocks 4 to 5 wait after 5 s: worker a is silent", 5),
        ({}, "blocks 4 to 5 were not done within 3600 s on worker a", 3600),
    ],
)
def test_a_span_goes_to_another_worker(
    monkeypatch: Any, state: dict[str, Any], words: str, after: float
) -> None:
    cluster = Cluster(a=state)
    with pytest.warns(StuckWorkerWarning, match=rf"{words}.*another worker, 1 of 2"):
        one = flown(cluster, monkeypatch)
    assert cluster.sent == [(0, None), (1, ["b"])]
    assert cluster.now == after
    assert one.avoided == {"a"}
    assert one.has_room()
    one.add(1, range(6, 8))
    assert cluster.sent[-1] == (0, ["b"])  # nothing more of this pass goes there


def test_a_worker_that_is_too_small_gets_no_span(monkeypatch: Any) -> None:
    cluster = Cluster()
    answering(cluster, monkeypatch)
    monkeypatch.setattr(flight, "other_versions", lambda client, again=False: set())
    one = Flight(cluster, cluster.send, too_small=lambda: {"a"})
    assert one.has_room()
    one.add(0, range(2))
    assert cluster.sent == [(0, ["b"])]
    assert one.usable() == ["b"]


def test_a_worker_that_was_heard_of_is_left_alone(monkeypatch: Any) -> None:
    """And a span that is queued, or where others took as long, is waited for."""
    cluster = Cluster(a={"last_seen": 950.0})
    cluster.where = {"a": [], "b": []}
    monkeypatch.setattr(
        cluster,
        "finished",
        lambda f, s: cluster.__dict__.update(now=cluster.now + s) or cluster.now > 10_000,
    )
    flown(cluster, monkeypatch)
    cluster.where = {"a": ["0"], "b": []}
    slow = Flight(cluster, cluster.send)
    slow.add(0, range(2))
    slow.longest = 2000.0
    cluster.now = 0.0
    slow.first()
    assert cluster.sent == [(0, None), (0, None)]


@pytest.mark.filterwarnings("ignore::streampca.errors.StuckWorkerWarning")
def test_a_span_does_not_wait_for_the_only_worker_that_was_left(monkeypatch: Any) -> None:
    """It is paused; the other one had been avoided, which is better than nothing."""
    cluster = Cluster(a={"status": "paused"})
    cluster.where = {}
    monkeypatch.setattr(flight, "other_versions", lambda client, again=False: set())
    monkeypatch.setattr(flight.time, "monotonic", lambda: cluster.now)
    monkeypatch.setattr(
        flight,
        "finished",
        lambda f, s: (
            cluster.__dict__.update(now=cluster.now + s)
            or cluster.now > 10_000
            or cluster.sent[-1][1] is None
        ),
    )
    answering(cluster, monkeypatch)
    one = Flight(cluster, cluster.send)
    one.avoided = {"b"}
    assert one.has_room()
    one.add(0, range(2))
    one.first()
    assert cluster.sent == [(0, ["a"]), (1, None)]


@pytest.mark.filterwarnings("ignore::streampca.errors.StuckWorkerWarning")
def test_retries_are_bounded(monkeypatch: Any) -> None:
    cluster = Cluster()
    cluster.where = {"a": ["0"], "b": ["0"]}
    monkeypatch.setattr(
        cluster, "finished", lambda f, s: cluster.__dict__.update(now=cluster.now + s)
    )
    with pytest.raises(ClusterError, match="were not done within 100 s") as caught:
        flown(cluster, monkeypatch, span_retries=3, span_timeout=100)
    assert caught.value.__notes__ == ["after it was given to another worker 3 times"]
    assert [trial for trial, _ in cluster.sent] == [0, 1, 2, 3]
    cluster = Cluster(a={"status": "paused"})
    with pytest.raises(ClusterError, match="worker a is paused"):
        flown(cluster, monkeypatch, span_retries=0)


def test_workers_that_all_pause_are_waited_for_three_times(monkeypatch: Any) -> None:
    cluster = Cluster(a={"status": "paused"}, b={"last_seen": 930.0})
    monkeypatch.setattr(cluster, "heard", lambda: cluster.info)  # nothing comes any more
    with (
        pytest.warns(NoWorkerWarning, match="a is paused, worker b is silent; no other") as said,
        pytest.raises(ClusterError, match="for 180 s: worker a is silent, worker b is silent"),
    ):
        flown(cluster, monkeypatch)
    assert 180 <= cluster.now <= 180 + 2 * 15
    assert len(said) == 1
    assert len(cluster.sent) == 1


def test_a_cluster_that_lost_all_workers(monkeypatch: Any) -> None:
    cluster = Cluster()
    cluster.info.clear()
    with (
        pytest.warns(NoWorkerWarning, match="waiting for one, up to 170 s") as said,
        pytest.raises(ClusterError, match="has had no worker for 170 s"),
    ):
        flown(cluster, monkeypatch, worker_timeout=170)
    assert 170 <= cluster.now <= 170 + 2 * 15  # looks are 15 s apart
    assert len(said) == 1


def test_a_scheduler_that_is_gone_is_asked_no_more(monkeypatch: Any) -> None:
    for question in ("threads", "processing", "identities"):
        cluster = Cluster()
        one = Flight(cluster, cluster.send)
        answering(cluster, monkeypatch)
        monkeypatch.setattr(flight, "finished", cluster.finished)
        monkeypatch.setattr(flight, "other_versions", lambda client, again=False: set())
        asked: list[str] = []

        def gone(client: Any, question: str = question, asked: list[str] = asked) -> None:
            asked.append(question)
            raise SchedulerGoneError(question)

        monkeypatch.setattr(calls if question == "identities" else flight, question, gone)
        one.add(0, range(2))
        with pytest.raises(SchedulerGoneError, match=question):
            (one.first if question == "processing" else one.has_room)()
        assert asked == [question]


def test_every_call_ends_in_an_error_of_ours(two_threads: Any, monkeypatch: Any) -> None:
    """Errors of what was asked stay what they are."""
    monkeypatch.setattr(calls, "LEAST_SECONDS", 0.3)

    async def fails(error: Exception) -> None:
        raise error

    where = re.escape(two_threads.scheduler.address)
    with dask.config.set({"streampca.pause-timeout": 0.3}):
        with pytest.raises(ClusterError, match=f"scheduler is lost: {where} does not answer"):
            calls.reply(two_threads, lambda s: fails(ConnectionResetError(104, "reset by peer")))
        with pytest.raises(ClusterError, match=f"the scheduler at {where} has not answered for 0."):
            calls.reply(two_threads, lambda s: asyncio.sleep(3600))
        with pytest.raises(KeyError):
            calls.reply(two_threads, lambda s: fails(KeyError("chunk")))


@pytest.mark.parametrize(
    ("home", "states", "stranded"),
    [
        (True, {"a": "", "b": ""}, False),
        (True, {"b": ""}, True),
        (True, {"a": "closing_gracefully", "b": ""}, True),
        (False, {"a": "paused", "b": ""}, False),  # waited for, with a word
        (False, {"b": ""}, True),
        (None, {}, False),  # Dask sends it on
    ],
)
def test_spans_whose_workers_are_gone_are_sent_again(
    monkeypatch: Any, home: bool | None, states: dict[str, str], stranded: bool
) -> None:
    """Dask would keep them until a worker of that address comes."""
    cluster = Cluster()
    one = Flight(cluster, cluster.send)
    monkeypatch.setattr(flight, "running", lambda client: states)
    one.add(0, range(2))
    span = one.spans[0]
    span.workers, span.home = () if home is None else ("a",), bool(home)
    one._move_stranded()
    assert span.trial == stranded
    span.workers, span.home, one.avoided = ("a",), True, {"a"}
    one._move_stranded()
    assert span.trial == stranded + 1


def test_a_span_whose_home_has_other_work_goes_to_another_worker(monkeypatch: Any) -> None:
    cluster = Cluster()
    send = cluster.send

    def home(number: int, blocks: range, trial: int, workers: Any) -> tuple[Future, Any]:
        made, sent = send(number, blocks, trial, workers)
        return made, sent if trial else ["a"]

    cluster.send = home  # type: ignore[method-assign]
    monkeypatch.setattr(flight, "computes", lambda client, key: cluster.now < 120)
    with pytest.warns(StuckWorkerWarning, match="wait after 120 s: worker a has other work to do"):
        flown(cluster, monkeypatch)
    assert cluster.sent == [(0, None), (1, ["b"])]


class Astray(Cluster):
    """The first answers come from worker a, make no sense, and only then it is known why."""

    def __init__(self, error: Exception, times: int = 1) -> None:
        super().__init__()
        self.error, self.times = error, times

    def send(self, number: int, blocks: range, trial: int, workers: Any) -> tuple[Future, Any]:
        made, sent = super().send(number, blocks, trial, workers)
        if trial < self.times:
            made.result = self.fails  # type: ignore[method-assign]
        return made, sent

    def fails(self, timeout: float) -> Parcel:
        self.strange = {"a"}
        if isinstance(self.error, ClusterError):
            return Parcel(self.error)
        raise self.error

    def finished(self, future: Future, seconds: float) -> bool:
        return True


@pytest.mark.parametrize("error", [ClusterError("other version"), AttributeError("no such name")])
def test_a_span_that_another_version_got_is_sent_again(monkeypatch: Any, error: Exception) -> None:
    cluster = Astray(error)
    one = flown(cluster, monkeypatch, span_retries=0)
    assert cluster.sent == [(0, None), (1, ["b"])]
    assert one.has_room()
    one.add(1, range(6, 8))
    assert cluster.sent[-1] == (0, ["b"])
    with pytest.raises(type(error), match=str(error)):  # with b it is an error
        flown(Astray(error, times=2), monkeypatch)


# -- workers of this process -------------------------------------------------------------------


answered = threading.Event()  # what hangs goes on when it is set
asked: list[int] = []


class Hangs(ToyMatrix):
    """The first reads of one row get no answer."""

    times = 1

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if start <= 45 < stop:
            asked.append(start)
            if len(asked) <= self.times:
                answered.wait(60)
        return super().read(axis, start, stop, buffer)


class AlwaysHangs(Hangs):
    times = 10**6


@pytest.fixture(autouse=True)
def nothing_hangs_on() -> Iterator[None]:
    answered.clear()
    asked.clear()
    yield
    answered.set()
    while any(t.name.startswith("streampca") for t in threading.enumerate()):
        time.sleep(0.01)


def summed(
    matrix: ToyMatrix, scheduler: Any, ahead: int = 1, operands: Any = None, **more: Any
) -> PassResult:
    return run(
        toy_plan(matrix, step=10, span=2),
        matrix,
        accumulators={"s": Sum()},
        operands=operands,
        execution=by_hand(scheduler=scheduler, blocks_ahead=ahead, **more),
    )


def state(done: PassResult) -> dict[str, Any]:
    return done["s"].state()


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_stuck_read_is_tried_on_another_worker(two_threads: Any, ahead: int) -> None:
    x = wild(200, 3)
    here = summed(ToyMatrix(x), "threads")
    with (
        dask.config.set({"streampca.read-timeout": 0.3}),
        pytest.warns(StuckWorkerWarning, match=r"block 4 \(samples 40 to 49\) was not read within"),
    ):
        there = summed(Hangs(x), two_threads, ahead)
    assert same_bits(state(here), state(there))
    assert there.cost.reads == 200
    assert len(asked) == 2


@pytest.mark.filterwarnings("ignore::streampca.errors.StuckWorkerWarning")
def test_a_read_that_never_returns_fails(two_threads: Any) -> None:
    with (
        dask.config.set({"streampca.read-timeout": 0.2, "streampca.span-retries": 1}),
        pytest.raises(NoAnswerError, match="block 4") as caught,
    ):
        summed(AlwaysHangs(wild(200, 3)), two_threads)
    assert caught.value.__notes__ == ["after it was given to another worker 1 times"]
    assert len(asked) == 2


def test_paused_workers(two_threads: Any) -> None:
    from distributed.core import Status

    x = wild(200, 3)
    here = summed(ToyMatrix(x), "threads")
    first, second = two_threads.cluster.workers.values()

    def pause(advance: Advance) -> None:
        first.status = Status.paused

    with dask.config.set({"streampca.pause-timeout": 0.4}):
        with warnings.catch_warnings():  # if a span waits there
            warnings.simplefilter("ignore", StuckWorkerWarning)
            there = summed(ToyMatrix(x), two_threads, progress=pause)
        assert same_bits(state(here), state(there))
        second.status = Status.paused
        with (
            pytest.warns(NoWorkerWarning, match=r"is paused, worker .* is paused; no other"),
            pytest.raises(ClusterError, match=r"for 1.2 s: worker .*paused, worker .* is paused"),
        ):
            summed(ToyMatrix(x), two_threads)
    first.status = second.status = Status.running


def test_a_cluster_without_workers_is_waited_for() -> None:
    """In this process, where a worker is there at once: what is waited for is tenths of seconds."""
    from distributed import Client, LocalCluster

    x = wild(200, 3)
    with (
        LocalCluster(
            n_workers=0, processes=False, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as empty,
        Client(empty, set_as_default=False) as client,
    ):
        with (
            dask.config.set({"streampca.worker-timeout": 0.2}),
            pytest.raises(ClusterError, match=r"has had no worker for 0.2 s"),
        ):
            await_worker(client)
        with (
            dask.config.set({"streampca.worker-timeout": 0.2, "streampca.pause-timeout": 0.1}),
            pytest.warns(NoWorkerWarning, match="waiting for one, up to 0.2 s"),
            pytest.raises(ClusterError, match=r"has had no worker for 0.2 s"),
        ):
            await_worker(client)
        empty.adapt(minimum=0, maximum=2, interval="20ms")  # workers come for tasks
        here, there = (summed(ToyMatrix(x), s) for s in ("threads", client))
        assert same_bits(state(here), state(there))


# -- versions ----------------------------------------------------------------------------------

WORKER = """
import asyncio, sys
{path}
from distributed import Worker
async def work():
    async with Worker({address!r}, nthreads=1, host="127.0.0.1", dashboard=False) as worker:
        await worker.finished()
asyncio.run(work())
"""


STRANGERS = {
    "no": "sys.modules['streampca'] = None",
    "0.0.9": "",  # in the folder where it starts
    "0.0.8": "sys.path.remove(''); import streampca; streampca.__version__ = '0.0.8'",
}


@pytest.fixture
def strangers(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Gives a cluster workers without streampca, or with other versions."""
    (tmp_path / "streampca").mkdir()
    (tmp_path / "streampca" / "__init__.py").write_text('__version__ = "0.0.9"')
    started = []
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(client: Any, *kinds: str) -> None:
        before = len(client.nthreads())
        for kind in kinds:
            code = WORKER.format(path=STRANGERS[kind], address=client.scheduler.address)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], cwd=tmp_path, env=path, stderr=subprocess.DEVNULL
                )
            )
        client.wait_for_workers(before + len(kinds))

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_other_versions_are_refused_by_name(strangers: Any, monkeypatch: Any) -> None:
    from distributed import Client, LocalCluster

    assert versions.VERSION_SECONDS <= 5
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty,
        Client(empty, set_as_default=False) as client,
    ):
        strangers(client, "no", "0.0.9")
        matrix = ToyMatrix(wild(100, 2))
        for _ in range(2):
            with pytest.raises(ClusterError) as caught:
                summed(matrix, client)
            ours = re.escape(versions.our_versions()["streampca"])
            for words in (
                f"this process has streampca {ours}; worker tcp:",
                "worker tcp://[^ ]* has streampca 0.0.9",
                "worker tcp://[^ ]* has no streampca",
                f"pip install streampca=={ours}",
            ):
                caught.match(words)
        # and those that come when the pass has begun
        monkeypatch.setattr(
            sys.modules["streampca.passes.execute"], "refuse_other_versions", lambda c: None
        )
        with pytest.raises(
            ClusterError, match=r"worker tcp://.* has (no streampca|streampca 0.0.9)"
        ):
            summed(matrix, client)
        assert not matrix.log


@pytest.mark.soak
@pytest.mark.parametrize(
    ("answer", "kinds", "operands"), [(False, [*STRANGERS], {}), (True, ["0.0.8"], {"q": [1.0]})]
)
def test_other_versions_that_come_later_get_nothing(
    strangers: Any, monkeypatch: Any, answer: bool, kinds: list[str], operands: dict[str, Any]
) -> None:
    """They are known as soon as they are counted, or else by what comes of a span.

    Ours is in this process: it is there before those that come.
    """
    from distributed import Client, LocalCluster

    if answer:
        monkeypatch.setattr(flight, "COUNT_SECONDS", 1e9)
    x = wild(400, 3)
    here = summed(ToyMatrix(x), "threads")
    coming = list(kinds)

    def come(advance: Advance) -> None:
        if coming:
            strangers(client, *coming)
            coming.clear()

    with (
        LocalCluster(
            n_workers=1,
            processes=False,
            threads_per_worker=1,
            memory_limit=0,
            protocol="tcp://",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as inside,
        Client(inside, set_as_default=False) as client,
    ):
        with pytest.warns(OtherVersionWarning, match="left out") as warned:  # noqa: PT031
            there = summed(ToyMatrix(x, sleep=0.02), client, progress=come, operands=operands)
            again = summed(ToyMatrix(x), client, operands=operands)
        assert same_bits(state(here), state(there))
        assert there.cost.reads == 400
        assert same_bits(state(here), state(again))
        said = " ".join(str(one.message) for one in warned)  # of one that answers late, later
        for kind in kinds:
            assert len(re.findall(rf"has (?:streampca )?{re.escape(kind)}\b", said)) == 1, said
        client.retire_workers([next(iter(inside.workers.values())).address])
        with pytest.raises(ClusterError, match=r"has streampca 0.0.8.*pip install"):
            summed(ToyMatrix(x), client)


def test_a_task_of_another_version_is_refused() -> None:
    work = Parcel(None)
    ours = versions.our_versions()
    for name, line in (("streampca", "pip install streampca==9"), ("Python", "(Python 9)")):
        terms = Terms({**ours, name: "9"}, 1, 1.0)
        (error,) = [fold_on_worker(work, range(1), terms, Parcel({})).content]
        assert isinstance(error, ClusterError)
        assert f"this process has {name} 9; worker  has {name} {ours[name]}." in str(error)
        assert line in str(error)


def test_a_worker_that_does_not_answer_is_not_refused(two_threads: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(versions, "VERSION_SECONDS", 0.05)
    monkeypatch.setattr(versions, "THEIRS", "__import__('time').sleep(0.3)")
    refuse_other_versions(two_threads)
    assert not versions._known[two_threads]  # it is asked again


# -- processes that stop -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_worker_is_not_waited_for(new_client: Any) -> None:
    """SIGSTOP: its connections stand, and nothing comes from it."""
    client = new_client(2)
    x = wild(400, 3)
    here = summed(ToyMatrix(x), "threads")
    victim = next(iter(client.run(os.getpid).values()))

    def stop(advance: Advance) -> None:
        if advance.blocks_done == 4:
            os.kill(victim, signal.SIGSTOP)

    try:
        with (
            dask.config.set({"streampca.pause-timeout": 2.0}),
            pytest.warns(StuckWorkerWarning, match="is silent|no result"),
        ):
            there = summed(ToyMatrix(x, sleep=0.05), client, progress=stop)
    finally:
        os.kill(victim, signal.SIGCONT)
    assert same_bits(state(here), state(there))
    assert np.isfinite(here["s"].total).all()
