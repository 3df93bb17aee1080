"""What a cluster costs: weak scaling, bytes over the wire, many blocks on many workers.

    python -m tests.benchmarks.cluster

Weak scaling: a scatter of 768 columns, compute-bound, on one worker process, and of twice as many
rows on two; medians of interleaved runs. Traffic: every byte that crossed the loopback interface,
which is one of its own where network namespaces are allowed. Many: 10,000 blocks on 200 workers of
one thread in one process, without the monitors that Dask gives each worker: 200 of them in one
process look at /proc 400 times and at its stacks 20,000 times a second.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from tornado.iostream import IOStream

from tests.passes.local_clusters import start_client, stop_client

ROWS, COLUMNS, CHUNK = 240_000, 768, 4000
MiB = 2**20
CLONE_NEWNET = 0x40000000


def store(folder: str, rows: int, columns: int = COLUMNS, chunk: int = CHUNK) -> str:
    """A Zarr array of noise, chunk by chunk."""
    path = os.path.join(folder, f"{rows}x{columns}.zarr")
    array = zarr.create_array(
        path, shape=(rows, columns), chunks=(chunk, columns), dtype="float32", compressors=None
    )
    rng = np.random.default_rng(0)
    for start in range(0, rows, chunk):
        array[start : start + chunk] = rng.standard_normal((chunk, columns), "float32")
    return path


def client_of(n_workers: int, **more: Any) -> Any:
    """Workers whose memory nobody watches, and no dashboard."""
    return start_client(n_workers, memory_limit=0, scheduler_kwargs={"dashboard": False}, **more)


def pass_of(path: str, scheduler: Any) -> Any:
    """Cost of the one pass of a PCA."""
    from streampca import PCA

    model = PCA(5, svd_solver="scatter", scheduler=scheduler, progress=False)
    model.fit(path)
    (cost,) = model.cost_
    return cost


def weak_scaling(folder: str, repeats: int = 5) -> None:
    """Seconds of one process and of two with twice the rows, in turns."""
    paths = [store(folder, ROWS), store(folder, 2 * ROWS)]
    clients = [client_of(1), client_of(2)]
    for path, client in zip(paths, clients, strict=True):
        pass_of(path, client)  # imports, files, BLAS
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for i in (0, 1):
            seconds[i].append(pass_of(paths[i], clients[i]).seconds)
    for client in clients:
        stop_client(client)
    one, two = map(statistics.median, seconds)
    best = min(seconds[0]) / min(seconds[1])
    print(
        f"weak scaling: {ROWS} x {COLUMNS} on 1 process {one:.2f} s, twice the rows on 2 "
        f"{two:.2f} s: efficiency {one / two:.2f} (of the best runs: {best:.2f})"
    )


def own_network() -> bool:
    """Give this process a loopback interface that nobody else uses."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        return False
    return subprocess.run(["ip", "link", "set", "lo", "up"], check=False).returncode == 0


def loopback() -> int:
    """Bytes that crossed it so far."""
    (line,) = [x for x in Path("/proc/self/net/dev").read_text().splitlines() if " lo:" in f" {x}"]
    return int(line.split(":")[1].split()[8])


class Received:
    """Bytes that came to this process through Dask's sockets since ``with``."""

    def __enter__(self) -> Received:
        self.nbytes, self.read = 0, IOStream.read_from_fd

        def counted(stream: IOStream, buf: Any) -> int | None:
            got = self.read(stream, buf)
            self.nbytes += got or 0
            return got

        IOStream.read_from_fd = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        IOStream.read_from_fd = self.read  # type: ignore[method-assign]


def traffic(folder: str) -> list[dict[str, float]]:
    """Bytes over the wire of passes of three lengths, in spans of 16 blocks of 128 KiB.

    The scheduler is a process of its own, so that what comes to this one came to the client.
    """
    from distributed import Client, SubprocessCluster

    from streampca.passes import blocks

    blocks.BLOCK_NBYTES = 128 * 1024
    found = []
    with (
        SubprocessCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        pass_of(store(folder, 65_536, 64, 512), client)
        for rows in (131_072, 262_144, 524_288):
            path = store(folder, rows, 64, 512)
            before, begun = loopback(), time.perf_counter()
            with Received() as received:
                cost = pass_of(path, client)
            seconds = time.perf_counter() - begun
            nbytes = loopback() - before
            found.append(
                {
                    "rows": rows,
                    "blocks": cost.blocks,
                    "bytes": nbytes,
                    "data": cost.nbytes,
                    "client": received.nbytes,
                    "per block": nbytes / cost.blocks,
                    "seconds": seconds,
                }
            )
    return found


WITHOUT_MONITORS = {
    "distributed.admin.system-monitor.interval": "1h",
    "distributed.worker.profile.enabled": False,
}


def many(folder: str, blocks: int = 10_000, n_workers: int = 200) -> dict[str, float]:
    """A pass of many blocks on many workers in this process."""
    import dask
    import distributed  # noqa: F401  (its settings, before two of them are changed)

    import streampca
    from streampca.passes import memory as machine
    from streampca.passes.blocks import span_length
    from tests.passes.pass_matrices import Sum, by_hand, run, toy_plan

    with dask.config.set(WITHOUT_MONITORS):
        client = client_of(n_workers, processes=False)
    scheduler = client.cluster.scheduler
    tasks = [0]
    try:
        matrix = streampca.open(store(folder, 2 * blocks, 2, 2))
        here = run(
            toy_plan(matrix, step=2, span=span_length(blocks, matrix.shape[1])),
            matrix,
            accumulators={"s": Sum()},
            execution=by_hand(scheduler="threads"),
        )
        before, begun = machine.resident_nbytes(), time.perf_counter()
        most = [before]

        def watch(advance: Any) -> None:
            tasks.append(len(scheduler.tasks))
            most.append(machine.resident_nbytes())

        there = run(
            toy_plan(matrix, step=2, span=span_length(blocks, matrix.shape[1])),
            matrix,
            accumulators={"s": Sum()},
            execution=by_hand(scheduler=client, progress=watch),
        )
        seconds = time.perf_counter() - begun
    finally:
        stop_client(client)
    assert here["s"].total.tobytes() == there["s"].total.tobytes()
    assert there.cost.blocks == blocks
    return {"seconds": seconds, "tasks": max(tasks), "grown": max(most) - before}


def main() -> None:
    """All three, or the traffic alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["traffic"])
    if parser.parse_args().part:
        own = own_network()
        with tempfile.TemporaryDirectory() as folder:
            for one in traffic(folder):
                print(
                    f"traffic: {one['rows']:.0f} x 64, {one['blocks']:.0f} blocks: "
                    f"{one['bytes'] / MiB:.2f} MiB in all, {one['per block'] / 1024:.1f} KiB per "
                    f"block, {one['bytes'] / one['data']:.2%} of the data, "
                    f"{one['client'] / 1024:.0f} KiB to the client"
                    f"{'' if own else ' (with what others sent)'}"
                )
        return
    with tempfile.TemporaryDirectory() as folder:
        weak_scaling(folder)
        subprocess.run([sys.executable, "-m", "tests.benchmarks.cluster", "traffic"], check=True)
        one = many(folder)
    print(
        f"many: 10,000 blocks on 200 workers {one['seconds']:.1f} s, at most {one['tasks']:.0f} "
        f"tasks known to the scheduler, memory grew by {one['grown'] / MiB:.0f} MiB"
    )


if __name__ == "__main__":
    main()
