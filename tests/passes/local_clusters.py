"""Worker processes on this machine that listen on loopback alone."""

from __future__ import annotations

import functools
from typing import Any

from tests.forks import IMPORTED

# what the process imports that workers are forked from: two seconds, in each that would do it
OF_WORKERS = ("distributed.nanny", "distributed.http", "dask.array", "scipy.special", *IMPORTED)


@functools.cache
def fork_workers() -> None:
    """Workers are forks of one process that has imported what they need, and started no thread."""
    import dask
    from distributed.utils import get_mp_context

    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload([*OF_WORKERS])


def start_client(
    n_workers: int, *, processes: bool = True, threads_per_worker: int = 1, **more: Any
) -> Any:
    """A client of a new LocalCluster that is not the ambient one.

    processes : False for threads of this process, where thousands of blocks or hundreds of workers
    are counted, and not what a worker can reach.
    """
    from distributed import Client, LocalCluster

    fork_workers()
    where = {"host": "127.0.0.1"} if processes else {}
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
