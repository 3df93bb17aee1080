"""Worker processes on this machine that listen on loopback alone."""

from __future__ import annotations

from typing import Any


def start_client(
    n_workers: int, *, processes: bool = True, threads_per_worker: int = 1, **more: Any
) -> Any:
    """A client of a new LocalCluster that is not the ambient one.

    processes : False for threads of this process, where thousands of blocks or hundreds of workers
    are counted, and not what a worker can reach.
    """
    from distributed import Client, LocalCluster

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
