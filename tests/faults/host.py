"""One process of a host: ``worker ADDRESS SCHEDULER``, or ``client ADDRESS`` with the scheduler.

The client makes a pass for each line of its stdin, "threads" or "cluster", and prints its blocks
as they are done, and then a digest of the result.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import warnings
from typing import Any

import numpy as np
from pass_matrices import Sum, ToyMatrix, by_hand, run, toy_plan, wild

from streampca.accumulators import CrossProduct, Scatter


def image(block: Any) -> np.ndarray:
    return block.dense() @ block["q"]


def digest(scheduler: Any) -> str:
    """Of everything that a pass over 60 blocks gives; about 10 s of reading."""
    matrix = ToyMatrix(wild(600, 6), sleep=0.3 if scheduler != "threads" else 0.0)
    q = np.random.default_rng(0).normal(size=(6, 2))
    done = run(
        toy_plan(matrix, step=10, span=2),
        matrix,
        operands={"q": q},
        maps={"xq": image},
        accumulators={"sum": Sum(), "s": Scatter(), "z": CrossProduct(y="xq")},
        execution=by_hand(
            scheduler=scheduler,
            progress=lambda advance: print("blocks", advance.blocks_done, flush=True),
        ),
    )
    assert done.cost.blocks == 60
    found = hashlib.sha256()
    for accumulator in done.accumulators.values():
        for name, values in sorted(accumulator.state().items()):
            found.update(name.encode() + np.asarray(values).tobytes())
    return found.hexdigest()


def client(address: str) -> None:
    """Until stdin ends."""
    from distributed import Client, LocalCluster

    warnings.simplefilter("default")
    with (
        LocalCluster(
            n_workers=0,
            host=address,
            dashboard_address=f"{address}:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as one,
    ):
        print("scheduler", cluster.scheduler_address, flush=True)
        for line in sys.stdin:
            what, wanted = line.split()
            if int(wanted):
                one.wait_for_workers(int(wanted), timeout=30)
            print("digest", digest(one if what == "cluster" else "threads"), flush=True)


async def worker(address: str, scheduler: str) -> None:
    """Until it is killed."""
    from distributed import Worker

    async with Worker(scheduler, nthreads=1, host=address, dashboard=False) as one:
        await one.finished()


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client(sys.argv[2])
    else:
        asyncio.run(worker(*sys.argv[2:]))
