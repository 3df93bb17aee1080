"""F33: workers that stop, pause or are too small; schedulers that stop, die or start anew.

Work goes on with what is left, bit for bit, or ends with an error that names what is to blame.
"""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr

import streampca
from streampca.accumulators import Moments
from streampca.errors import ClusterError, MemoryLimitError, NoWorkerWarning, StuckWorkerWarning
from streampca.passes import Advance, PassPlan
from streampca.passes.cluster import calls
from streampca.sources import as_matrix
from tests.passes.pass_matrices import by_hand, run

PAUSE = 2.0  # seconds
PASSES, BLOCKS, ROWS, P = 2, 60, 50, 8
END = 120.0  # seconds, when a test gives up: far beyond what is stated
LONGEST = PAUSE + calls.BEATS  # that a worker is silent before it is named
OURS = (StuckWorkerWarning, NoWorkerWarning)


@pytest.fixture
def source(tmp_path: Path) -> str:
    x = np.random.default_rng(33).standard_normal((BLOCKS * ROWS, P)) * np.arange(1, P + 1)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=x.shape, chunks=(ROWS, P), dtype="f8")[...] = x
    return path


def sums(source: str, scheduler: Any, progress: Callable[[Advance], None] | None = None) -> bytes:
    """Two passes, the second with operands."""
    matrix = as_matrix(source)
    edges = np.arange(0, BLOCKS * ROWS + 1, ROWS)
    execution = by_hand(scheduler=scheduler, progress=progress, n_passes=PASSES)
    found = b""
    for number in range(1, PASSES + 1):
        execution.pass_number = number
        plan = PassPlan(f"sums {number}", 0, edges, 2, BLOCKS, matrix.nbytes, 0.0, False)
        given = {"q": np.ones(1000)} if number > 1 else {}
        done = run(plan, matrix, accumulators={"m": Moments()}, operands=given, execution=execution)
        found += b"".join(v.tobytes() for _, v in sorted(done["m"].state().items()))
    return found


def ended(work: Callable[[], Any]) -> tuple[Any, str, list[float]]:
    """(what the work returned, or its error; its warnings; when each came, and the end)."""
    found: list[Any] = []
    said: list[tuple[float, str]] = []

    def show(message: Any, kind: Any, *rest: Any, **more: Any) -> None:
        if issubclass(kind, OURS):
            said.append((time.monotonic(), str(message)))

    def go() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        thread.join(END)
    assert found, f"no end in {END:g} s, after {said}"
    times = [*(when for when, _ in said), time.monotonic()]
    return found[0], "; ".join(what for _, what in said), times


class Faults:
    """What is done to a cluster, and what must come of it: the error, or nothing."""

    def __init__(self, cluster: Any, client: Any) -> None:
        self.cluster, self.client = cluster, client
        self.later: list[threading.Timer] = []

    def _soon(self, seconds: float, number: int, *processes: Any) -> None:
        self.later.append(threading.Timer(seconds, self.cluster.signal, (number, *processes)))
        self.later[-1].start()

    def one_worker_stops(self) -> None:
        self.cluster.signal(signal.SIGSTOP, self.cluster.workers[0])

    def one_worker_stops_for_a_while(self) -> None:
        self.one_worker_stops()
        self._soon(2 * PAUSE, signal.SIGCONT, self.cluster.workers[0])

    def all_workers_stop(self) -> str:
        self.cluster.signal(signal.SIGSTOP, *self.cluster.workers)
        return r"no worker of the cluster took tasks for .* s: worker .* is silent, worker"

    def all_workers_stop_for_a_while(self) -> None:
        self.all_workers_stop()
        self._soon(2.5 * PAUSE, signal.SIGCONT, *self.cluster.workers)

    def all_workers_pause(self) -> str:
        self._pause(1e-6)
        return r"no worker of the cluster took tasks for .* s: worker .* is paused"

    def the_scheduler_stops(self) -> str:
        self.cluster.signal(signal.SIGSTOP, self.cluster.scheduler)
        return r"the scheduler at tcp://127.0.0.1:\d+ has not answered for"

    def the_scheduler_stops_for_a_while(self) -> None:
        self.the_scheduler_stops()
        self._soon(PAUSE / 2, signal.SIGCONT, self.cluster.scheduler)

    def _pause(self, share: float) -> None:
        """Where they hold more than this share of their memory; they look ten times a second."""

        def change(share: float, dask_worker: Any) -> None:
            dask_worker.memory_manager.memory_pause_fraction = share

        self.client.run(change, share)

    def mend(self) -> None:
        """Everything goes on again."""
        for one in self.later:
            one.join()
        self.cluster.signal(signal.SIGCONT, self.cluster.scheduler, *self.cluster.workers)
        self._pause(0.8)


KINDS = [name for name in vars(Faults) if name != "mend" and not name.startswith("_")]
FEW = ["one_worker_stops"]


@pytest.mark.filterwarnings("ignore")  # of distributed, whose connections break
@pytest.mark.parametrize(
    ("kinds", "rounds"),
    [pytest.param(FEW, 1, marks=pytest.mark.slow), pytest.param(KINDS, 20, marks=pytest.mark.soak)],
)
def test_it_goes_on_or_says_why(
    kinds: list[str], rounds: int, new_cluster: Any, source: str
) -> None:
    cluster = new_cluster(2)
    client = cluster.client()
    client.wait_for_workers(2, timeout=60)
    whole, draw = sums(source, "threads"), random.Random(33)
    counts: Counter[str] = Counter()
    slowest = 0.0
    with dask.config.set({"streampca.pause-timeout": PAUSE}):
        for kind in kinds * rounds:
            at = draw.randrange(1, PASSES + 1), draw.randrange(1, BLOCKS - 20)
            faults, begun = Faults(cluster, client), [0.0]
            what: list[str | None] = []

            def hook(
                advance: Advance,
                at: Any = at,
                faults: Any = faults,
                kind: str = kind,
                begun: list[float] = begun,
                what: list[Any] = what,
            ) -> None:
                if not what and (advance.pass_number, advance.blocks_done) >= at:
                    what.append(getattr(faults, kind)())
                    begun[0] = time.monotonic()

            found, said, times = ended(lambda hook=hook: sums(source, client, hook))
            if what[0] is None:
                assert found == whole, (kind, at, found)
            else:
                assert isinstance(found, ClusterError), (kind, at, found)
                assert re.search(what[0], str(found)), (kind, at, found)
            if kind == "one_worker_stops" and times[-1] - begun[0] > 2 * LONGEST:
                assert "tcp://127.0.0.1:" in said, (kind, at, said)  # else nothing was needed of it
            first = min(when for when in times if when > begun[0]) - begun[0]
            slowest = max(slowest, first)
            counts[kind] += 1
            print(f"{counts[kind]} {kind} at {at}: first word or end after {first:.1f} s")
            faults.mend()
            client.wait_for_workers(2, timeout=60)
    client.close()
    print(f"{dict(counts)}; the slowest first word came after {slowest:.1f} s")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.soak)]
)
def test_a_scheduler_that_starts_anew(rounds: int, new_cluster: Any, source: str) -> None:
    """At the same address, with new workers: the pass goes on."""
    whole, draw = sums(source, "threads"), random.Random(33)
    for _ in range(rounds):
        cluster = new_cluster(1)
        client = cluster.client()
        at, done = (draw.randrange(1, PASSES + 1), draw.randrange(1, BLOCKS - 20)), []

        def hook(advance: Advance, at: Any = at, done: Any = done, one: Any = cluster) -> None:
            if not done and (advance.pass_number, advance.blocks_done) >= at:
                done.append(True)
                one.restart_scheduler()

        found, said, _ = ended(lambda c=client, hook=hook: sums(source, c, hook))
        assert found == whole, (at, found)
        assert "the connection to the scheduler at tcp://127.0.0.1:" in said
        client.close()
        cluster.kill()


@pytest.mark.parametrize(
    ("limit", "rounds"),
    [
        pytest.param("150MiB", 1, marks=pytest.mark.slow),
        *(pytest.param(n, 7, marks=pytest.mark.soak) for n in ("100MiB", "150MiB", "200MiB")),
    ],
)
def test_workers_that_are_too_small(limit: str, rounds: int, new_cluster: Any, source: str) -> None:
    """Refused; those of 200 MiB hold this small fit, or are too small for what they hold before."""
    cluster = new_cluster(1, limit)
    client = cluster.client()
    here = streampca.PCA(2, scheduler="threads").fit(source)
    for _ in range(rounds):
        try:
            there = streampca.PCA(2, scheduler=client).fit(source)
        except MemoryLimitError as error:
            said = str(error)
        else:
            assert there.components_.tobytes() == here.components_.tobytes()
            said = "" if limit == "200MiB" else "nothing"
        assert not said or re.search("worker .* may use .* a memory limit of", said)
    client.close()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_does_not_answer(
    new_cluster: Any, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first pass: stopped, without workers, and killed."""
    monkeypatch.setattr(calls, "LEAST_SECONDS", 0.5)
    cluster = new_cluster(0)
    client = cluster.client()
    model = streampca.PCA(2, scheduler=client)
    address = json.loads(cluster.file.read_text())["address"]
    short = {"streampca.pause-timeout": 0.5, "streampca.worker-timeout": 0.5}
    with dask.config.set(short):
        cluster.signal(signal.SIGSTOP, cluster.scheduler)
        with pytest.raises(ClusterError, match=f"the scheduler at {address} has not answered for"):
            model.fit(source)
        cluster.signal(signal.SIGCONT, cluster.scheduler)
        with pytest.raises(ClusterError, match="has had no worker for"):
            model.fit(source)
        cluster.signal(signal.SIGKILL, cluster.scheduler)
        with pytest.raises(ClusterError, match=f"scheduler is lost: {address} does not answer"):
            model.fit(source)
    client.close()
