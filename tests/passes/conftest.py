"""Clusters of worker processes on this machine, started once and ended with this room."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # worker processes are started with this path too

from local_clusters import start_client, stop_client  # noqa: E402
from pass_matrices import by_hand, same_bits  # noqa: E402

from streampca.passes import Execution  # noqa: E402
from streampca.passes.cluster import calls, clients, placement, worker_memory  # noqa: E402


@pytest.fixture
def no_kept_clients() -> Iterator[None]:
    """Connections that a test makes by address end with it."""
    yield
    for client in clients._clients.values():
        client.close()
    clients._clients.clear()


running: dict[int, Any] = {}  # clients of the clusters that this room shares


def shared(request: pytest.FixtureRequest, n_workers: int, **more: Any) -> Any:
    """Started once, and stopped where the room ends: an idle worker takes time from later tests."""
    if n_workers not in running:
        running[n_workers] = start_client(n_workers, **more)
        room = request.node.getparent(pytest.Dir)
        room.addfinalizer(lambda: stop_client(running.pop(n_workers)))
    return running[n_workers]


@pytest.fixture(scope="module")
def one_process(request: pytest.FixtureRequest) -> Any:
    return shared(request, 1, threads_per_worker=3)


@pytest.fixture(scope="module")
def two_processes(request: pytest.FixtureRequest) -> Any:
    return shared(request, 2)


@pytest.fixture
def new_client() -> Iterator[Callable[..., Any]]:
    """Starts clusters that a test may break."""
    clients: list[Any] = []

    def start(n_workers: int, **more: Any) -> Any:
        clients.append(start_client(n_workers, **more))
        return clients[-1]

    yield start
    for client in clients:
        stop_client(client)


@pytest.fixture
def two_threads() -> Iterator[Any]:
    """A client of two workers of one thread each.

    In this process: tests patch what workers run, set their status, and read what they keep.
    """
    from distributed import Client, LocalCluster

    with (
        LocalCluster(  # without a limit of memory: nothing ends a pause
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
        ) as inside,
        Client(inside, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data in many blocks. The plan is made here, so that workers need not know."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 64 * 1024)


@pytest.fixture
def everywhere(two_processes: Any) -> Callable[..., dict[str, Any]]:
    """Runs a program on one lane, two lanes and two processes, and demands the same bits."""
    places = {
        "one lane": {"lanes": 1, "scheduler": "threads"},
        "no read ahead": {"lanes": 1, "blocks_ahead": 0, "scheduler": "threads"},
        "two lanes": {"lanes": 2, "scheduler": "threads"},
        "two processes": {"scheduler": two_processes},
    }

    def go(program: Callable[[Callable[[], Execution]], dict[str, Any]]) -> dict[str, Any]:
        results = {
            place: program(lambda settings=settings: by_hand(**settings))
            for place, settings in places.items()
        }
        first = results["one lane"]
        for place, other in results.items():
            assert same_bits(first, other), f"{place} gave other bits than one lane"
        return first

    return go


class Told:
    """The scheduler of a client that is none: the methods of the client, awaited."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def identity(self, n_workers: int) -> Any:
        return self.client.scheduler_info(n_workers=n_workers)

    async def ncores(self, workers: Any) -> Any:
        return self.client.nthreads()

    async def who_has(self, keys: Any) -> Any:
        return self.client.who_has(keys)

    async def nbytes(self, keys: Any, summary: bool) -> Any:
        return self.client.nbytes(keys, summary)

    async def get_task_status(self, keys: Any) -> Any:
        return self.client.scheduler.get_task_status(keys)


@pytest.fixture(autouse=True)
def clients_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no event loop, and their workers any version."""
    reply, refuse = calls.reply, worker_memory.refuse_other_versions

    def replied(client: Any, call: Any, seconds: float | None = None) -> Any:
        if hasattr(client, "loop"):
            return reply(client, call, seconds)
        return asyncio.run(call(Told(client)))

    monkeypatch.setattr(calls, "reply", replied)
    monkeypatch.setattr(placement, "reply", replied)
    monkeypatch.setattr(
        worker_memory, "refuse_other_versions", lambda c: refuse(c) if hasattr(c, "loop") else None
    )


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No test of this room may leave a lane or a reader behind."""
    import threading

    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("streampca")]
    assert not left, left


@pytest.fixture
def pid() -> int:
    return os.getpid()
