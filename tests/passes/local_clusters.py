"""Worker processes on this machine that listen on loopback alone."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from tests.forks import IMPORTED

METHOD = "distributed.worker.multiprocessing-method"
# what the process imports that workers are forked from: two seconds, in each that would do it
OF_WORKERS = ("distributed.nanny", "distributed.http", "dask.array", *IMPORTED)


@functools.cache
def forks_of_one() -> Any:
    """Workers are forks of one process that has imported what they need, and started no thread.

    Returns their context of multiprocessing.
    """
    import dask
    from distributed.utils import get_mp_context

    dask.config.set({METHOD: "forkserver"})
    context = get_mp_context()
    context.set_forkserver_preload([*OF_WORKERS])
    return context


def start_client(
    n_workers: int,
    *,
    processes: bool = True,
    forked: bool = True,
    threads_per_worker: int = 1,
    **more: Any,
) -> Any:
    """A client of a new LocalCluster that is not the ambient one.

    processes : False for threads of this process, where thousands of blocks or hundreds of workers
    are counted, and not what a worker can reach.
    forked : False where it matters what a worker holds: a fork holds all that was imported.
    """
    import dask
    from distributed import Client, LocalCluster

    forks_of_one()
    where = {"host": "127.0.0.1"} if processes else {}
    with contextlib.nullcontext() if forked else dask.config.set({METHOD: "spawn"}):
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=processes,
            **where,
            dashboard_address="127.0.0.1:0",
            **more,
        )
    return Client(cluster, set_as_default=False)


def stop_client(client: Any, timeout: float | None = None) -> None:
    """With its cluster.  timeout : seconds to wait for it; raises TimeoutError."""
    cluster = client.cluster
    client.close()
    cluster.close(timeout)
