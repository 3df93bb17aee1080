"""What Dask users hand over, beside the path: seconds, and measured beside planned memory.

    python -m tests.benchmarks.dask_arrays            # threads, then 2 worker processes
    python -m tests.benchmarks.dask_arrays overlap    # one row

500,000 x 512 float32 in a Zarr array, chunks of 8,192 rows, 20 components. Each row in a fresh
process. Asked for: at most 1.5 times the seconds of the path, and no more memory than was planned,
beside what the process held before. On worker processes it is that of the largest worker.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure

N, P, CHUNK, K = 500_000, 512, 8192, 20
RATIO = 1.5  # of the seconds to those of the path
WORKERS = 2


def store(folder: str) -> str:
    """Noise with a few strong directions, made chunk by chunk."""
    import zarr

    path = os.path.join(folder, "dask_arrays.zarr")
    array = zarr.create_array(path, shape=(N, P), chunks=(CHUNK, P), dtype="f4")
    rng = np.random.default_rng(0)
    strong = rng.standard_normal((K, P), "f4") / 4
    for start in range(0, N, CHUNK):
        rows = min(CHUNK, N - start)
        noise = rng.standard_normal((rows, P), "f4")
        array[start : start + rows] = noise + rng.standard_normal((rows, K), "f4") @ strong
    return path


def _rechunked(x: Any, chunks: Any, method: str) -> Any:
    import dask

    with dask.config.set({"array.rechunk.method": method}):
        return x.rechunk(chunks)


def _overlapping(x: Any) -> Any:
    import dask.array

    return dask.array.map_overlap(
        _averaged, x, depth={0: 2, 1: 0}, boundary="reflect", meta=x._meta
    )


def _averaged(x: Any) -> Any:
    out = x.copy()
    out[2:-2] += (x[4:] + x[:-4]) / 2
    return out


def _framed(x: Any) -> Any:
    import dask.dataframe

    return dask.dataframe.from_dask_array(x, columns=[f"c{i}" for i in range(P)])


def _labelled(x: Any) -> Any:
    import xarray

    return xarray.DataArray(x, dims=("time", "place"))


def _masked(x: Any) -> Any:
    import dask.array

    return dask.array.ma.masked_greater(x, 1e6)


def _sparse(x: Any) -> Any:
    import scipy.sparse

    return x.map_blocks(lambda b: scipy.sparse.csr_array(np.where(b > 1.5, b, 0)), dtype=x.dtype)


ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda x, client: x,
    "standardised": lambda x, client: (x - x.mean(0)) / x.std(0),
    "rows by tasks": lambda x, client: _rechunked(x, (20_000, -1), "tasks"),
    "columns by tasks": lambda x, client: _rechunked(x, (-1, 64), "tasks"),
    "both by tasks": lambda x, client: _rechunked(x, (20_000, 100), "tasks"),
    "rows by p2p": lambda x, client: _rechunked(x, (20_000, -1), "p2p"),
    "both by p2p": lambda x, client: _rechunked(x, (20_000, 100), "p2p"),
    "overlap": lambda x, client: _overlapping(x),
    "reshape": lambda x, client: x.reshape((N, 8, P // 8)),
    "data frame": lambda x, client: _framed(x),
    "xarray": lambda x, client: _labelled(x),
    "masked": lambda x, client: _masked(x),
    "sparse": lambda x, client: _sparse(x),
    "persisted": lambda x, client: x.persist() if client is None else client.persist(x),
}


def opened(name: str, path: str, client: Any) -> Any:
    """What the model gets. For the path itself Dask is not loaded."""
    if name == "path":
        return path
    import dask.array

    return ROWS[name](dask.array.from_zarr(path), client)


def fit(name: str, workers: bool) -> Callable[[str], dict[str, Any]]:
    """Fits one row: its seconds, the measured and the planned memory."""

    def run(path: str) -> dict[str, Any]:
        import time

        import streampca
        from streampca.passes.door import other_nbytes
        from streampca.passes.memory import peak_nbytes, resident_nbytes

        client = None
        if workers:
            from tests.passes.local_clusters import start_client, stop_client

            client = start_client(WORKERS, memory_limit=0, scheduler_kwargs={"dashboard": False})
        x = opened(name, path, client)
        if name == "persisted" and client is not None:
            from distributed import wait

            wait(x)
        model = streampca.PCA(
            K, svd_solver="scatter", missing="mean" if name == "masked" else "raise",
            scheduler=client or "threads", progress=False,
        )  # fmt: skip
        held = resident_nbytes() if client is None else max(client.run(resident_nbytes).values())
        begun = time.perf_counter()
        model.fit(x, dim=0 if name == "reshape" else None)
        seconds = time.perf_counter() - begun
        peak = peak_nbytes() if client is None else max(client.run(peak_nbytes).values())
        taken = (peak - other_nbytes(model.plan_, held)) / 1e6
        reads = sum(one.reads for one in model.cost_)
        if client is not None:
            stop_client(client)
        planned = model.plan_.peak_nbytes / 1e6
        return {"seconds": seconds, "reads": reads, "planned_mb": planned, "taken_mb": taken}

    return run


CANDIDATES = {
    f"{name}{where}": fit(name, bool(where))
    for where in ("", " on workers")
    for name in ("path", *ROWS)
}


def main(wanted: list[str]) -> None:
    """Prints the table."""
    names = wanted or [*ROWS]
    with tempfile.TemporaryDirectory() as folder:
        path = store(folder)
        for where in ("", " on workers"):
            print(f"\n{'on 2 worker processes' if where else 'on threads'}")
            print(f"{'':20}{'seconds':>9}{'of path':>9}{'reads':>7}{'MB taken':>9}{'planned':>9}")
            first = None
            for name in ("path", *names):
                found = measure("tests.benchmarks.dask_arrays", f"{name}{where}", path, runs=3)
                if "error" in found:
                    print(f"{name:20} {found['error']}")
                    continue
                first = first or found["seconds"]
                ratio = found["seconds"] / first
                late = "" if ratio <= RATIO else "  slow"
                more = "" if found["taken_mb"] <= found["planned_mb"] else "  beyond its plan"
                print(
                    f"{name:20}{found['seconds']:9.2f}{ratio:9.2f}{found['reads']:7d}"
                    f"{found['taken_mb']:9.0f}{found['planned_mb']:9.0f}{late}{more}", flush=True,
                )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(CANDIDATES[sys.argv[2]], sys.argv[3])
    else:
        main(sys.argv[1:])
