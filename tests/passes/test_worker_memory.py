"""What workers hold before the first block counts, and the share of memory at which they pause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import MemoryLimitError
from streampca.passes import check_workers, parse_nbytes
from streampca.passes.cluster import worker_memory
from streampca.passes.cluster.worker_memory import AtRest, memory_used_where_room

MiB = 2**20
LIMIT = 300 * MiB


@pytest.fixture(scope="module")
def small_worker() -> Any:
    from local_clusters import start_client, stop_client

    client = start_client(1, forked=False, memory_limit=LIMIT)
    yield client
    stop_client(client)


@pytest.fixture
def source(tmp_path: Path) -> str:
    x = np.random.default_rng(0).normal(size=(4000, 64)) * np.linspace(4, 1, 64)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(500, 64))
    return str(tmp_path / "x.zarr")


def hold(nbytes: int, dask_worker: Any) -> None:
    """Bytes that Dask does not know of, as a library keeps them."""
    dask_worker.ballast = np.ones(nbytes, np.uint8)


def test_what_a_worker_holds_already_counts(small_worker: Any, source: str) -> None:
    address = next(iter(small_worker.nthreads()))
    model = streampca.PCA(3, scheduler=small_worker, progress=False)
    for _ in range(2):
        model.fit(source)  # what a fit leaves is no reason to refuse the next
    small_worker.run(hold, 150 * MiB)
    with pytest.raises(MemoryLimitError) as caught:
        model.fit(source)
    small_worker.run(hold, 0)
    said = str(caught.value)
    assert said.startswith(
        f"worker {address} may use 300 MiB, takes no more tasks above 240 MiB of it, holds 2"
    )
    assert "before the first block" in said
    assert "a memory limit of" in said
    model.fit(source)


def test_spillable_data_do_not_count(small_worker: Any, source: str) -> None:
    def held() -> int:
        (rest,) = small_worker.sync(worker_memory._ask, small_worker, list(workers), []).values()
        return int(rest.held)

    workers = small_worker.nthreads()
    before = held()
    data = small_worker.submit(np.ones, 8 * MiB, key="spillable")
    data.result()
    assert abs(held() - before) < 16 * MiB
    small_worker.run(hold, 32 * MiB)
    assert held() - before > 16 * MiB
    small_worker.run(hold, 0)


class Crowd:
    """One worker, and what it says it holds."""

    def __init__(self, limit: int, rest: AtRest) -> None:
        self.limit, self.rest = limit, rest

    def scheduler_info(self, n_workers: int = 5) -> dict[str, Any]:
        return {"workers": {"a": {"memory_limit": self.limit, "nthreads": 1, "last_seen": 0.0}}}

    def sync(self, *args: Any) -> dict[str, AtRest]:
        return {"a": self.rest}


@pytest.mark.slow
def test_the_worker_memory_limit_that_a_refusal_names_works(source: str) -> None:
    plan = streampca.PCA(3).plan(source)
    rest = AtRest(239 * MiB, 0.8)
    crowd = Crowd(LIMIT, rest)
    with pytest.raises(MemoryLimitError, match=r"a memory limit of [\dMiB]+ would do") as caught:
        check_workers(crowd, plan)
    enough = parse_nbytes(str(caught.value).split(" a memory limit of ")[1].split()[0])
    check_workers(Crowd(enough, rest), plan)
    with pytest.raises(MemoryLimitError):
        check_workers(Crowd(enough - 2 * MiB, rest), plan)
    assert not memory_used_where_room(
        crowd, plan, plan.passes[0].name
    )  # what it holds is known now
