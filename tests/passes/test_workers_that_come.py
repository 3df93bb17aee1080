"""No worker is there: it is waited for where one may come, and where none will it ends at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from pass_matrices import Sum, ToyMatrix, by_hand, run, same_bits, toy_plan, wild

from streampca.errors import ClusterError, NoWorkerWarning
from streampca.passes.cluster import cluster, versions, workers
from streampca.passes.cluster.workers import await_worker, nobody_comes
from tests.passes.local_clusters import start_client, stop_client

QUICK = {"streampca.pause-timeout": 0.2, "streampca.worker-timeout": 60.0}


@pytest.fixture
def empty(monkeypatch: Any) -> Iterator[Any]:
    """A client of a cluster of this process, with so many workers of one thread."""
    monkeypatch.setattr(workers, "SURE_SECONDS", 0.1)
    client = start_client(0, processes=False, memory_limit=0)
    yield client
    stop_client(client)


def end_all(client: Any) -> None:
    """Its workers end, as they do at the end of their time in a queue."""
    for one in list(client.cluster.workers.values()):
        client.cluster.sync(one.close)
    while client.nthreads():
        time.sleep(0.01)


def summed(scheduler: Any, number: int = 1) -> Any:
    matrix = ToyMatrix(wild(200, 3))
    plan = toy_plan(matrix, step=10, span=2)
    execution = by_hand(scheduler=scheduler)
    execution.pass_number = number
    return run(plan, matrix, accumulators={"s": Sum()}, execution=execution)["s"].state()


@pytest.mark.filterwarnings("ignore::streampca.errors.NoWorkerWarning")
def test_a_wait_for_nobody_ends_at_once(empty: Any) -> None:
    with dask.config.set(QUICK):
        with pytest.raises(ClusterError, match=r"no worker is requested.* cluster.scale\(2\)"):
            await_worker(empty)
        empty.cluster.adapt(maximum=0)
        with pytest.raises(ClusterError, match="adaptive, with 0 workers at most"):
            summed(empty)


def test_workers_that_ended_are_started_again_once(empty: Any) -> None:
    here = summed("threads")
    empty.cluster.scale(2)
    empty.wait_for_workers(2)
    end_all(empty)
    with dask.config.set(QUICK):
        with pytest.warns(NoWorkerWarning, match="all 2 workers .* ended; starting them again"):
            there = summed(empty)
        assert same_bits(here, there)
        empty.wait_for_workers(2)
        end_all(empty)
        for spec in empty.cluster.worker_spec.values():
            spec["cls"] = Stillborn
        with (
            pytest.warns(NoWorkerWarning, match="starting them again"),
            pytest.raises(ClusterError, match=r"none will come: all 2 .* ended\..* logs"),
        ):
            await_worker(empty)


class Stillborn:
    """A job that ends as soon as it starts."""

    status = SimpleNamespace(name="failed")

    def __init__(self, *args: Any, **more: Any) -> None: ...

    def __await__(self) -> Any:
        yield from ()
        return self

    async def close(self) -> None: ...


STATES: dict[str, tuple[dict[str, Any], str]] = {
    "an address": ({}, ""),
    "closed": ({"status": "closed"}, "the cluster is closed"),
    "another kind": ({"status": "running"}, ""),
    "adaptive": ({"worker_spec": {}, "_adaptive": (4, "running")}, ""),
    "adaptive to none": ({"worker_spec": {}, "_adaptive": (0, "running")}, "with 0 workers at"),
    "adaptive no more": ({"worker_spec": {}, "_adaptive": (4, "stopped")}, "no worker is req"),
    "in a queue": ({"worker_spec": {"j": 1}, "workers": {"j": "running"}}, ""),
    "starts": ({"worker_spec": {"j": 1}, "workers": {}, "locked": True}, ""),
    "went": (
        {"worker_spec": {"j": 1, "k": 1}, "workers": {"j": "closed"}, "plan": [*"abcd"]},
        "all 2 workers or jobs",
    ),
    "half went": ({"worker_spec": {"j": 1, "k": 1}, "workers": {"j": "running"}}, ""),
}


@pytest.mark.parametrize("name", STATES)
def test_what_a_cluster_object_says(name: str) -> None:
    said, words = STATES[name]
    status = lambda one: SimpleNamespace(status=SimpleNamespace(name=one))  # noqa: E731
    cluster = SimpleNamespace(**said, _lock=SimpleNamespace(locked=lambda: "locked" in said))
    cluster.status = SimpleNamespace(name=said.get("status", "running"))
    if "workers" in said:
        cluster.workers = {one: status(state) for one, state in said["workers"].items()}
    if "_adaptive" in said:
        maximum, state = said["_adaptive"]
        cluster._adaptive = SimpleNamespace(maximum=maximum, state=state)
    found, n_ended = nobody_comes(SimpleNamespace(cluster=cluster if said else None))
    assert words in found if words else found == ""
    assert n_ended == len(said.get("plan", ""))


@pytest.mark.parametrize("name", ["numpy", "Python"])
def test_what_computes_is_of_one_version(empty: Any, monkeypatch: Any, name: str) -> None:
    """Same bits on any number of workers."""
    empty.cluster.scale(1)
    theirs = f"{{**{versions.THEIRS}, '{name}': '1.0'}}"
    ours = versions.our_versions()[name]
    monkeypatch.setattr(versions, "THEIRS", theirs)
    line = f"Python {ours}" if name == "Python" else f"pip install {name}=={ours}"
    with pytest.raises(ClusterError) as caught:
        summed(empty)
    assert f"this process has {name} {ours}; worker inproc://" in str(caught.value)
    assert f"has {name} 1.0. " in str(caught.value)
    assert f"({line})" in str(caught.value)


def test_the_dashboard_names_passes(empty: Any) -> None:
    empty.cluster.scale(1)
    summed(empty)
    summed(empty, 2)
    assert {"toy_pass_1", "toy_pass_2"} <= set(empty.cluster.scheduler.task_prefixes)
    assert cluster.dashboard_name(by_hand(), "x - 2") == "x_2_pass_1"
