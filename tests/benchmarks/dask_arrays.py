"""What Dask users hand over, beside the path: processor seconds, and memory beside the plan.

    python -m tests.benchmarks.dask_arrays                              # every row, everywhere
    python -m tests.benchmarks.dask_arrays overlap --on threads ambient --runs 3

500,000 x 512 float32 in a Zarr array, chunks of 8,192 rows, 20 components. Each row in a fresh
process. Asked for: at most 1.5 times the processor seconds of the path, of all processes together;
no more memory than was planned, beside what the process held before, on the largest worker; and at
most 1.5 times the plan of the path. Libraries are left out of both plans there: whoever has a Dask
array has imported Dask. For a row that is slower on threads, the processor seconds are told that
Dask takes to compute the array, and the plain one, once: what is above the plain one is the user's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure

N, P, CHUNK, K = 500_000, 512, 8192, 20
RATIO = 1.5  # of the seconds, and of the planned memory, to those of the path
COLUMNS = {  # (processes, threads of each), and whether the client is ambient
    "threads": None,
    "1x2": (1, 2, False),
    "2x1": (2, 1, False),
    "ambient": (2, 1, True),
}


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


def _persisted(x: Any, client: Any) -> Any:
    from distributed import wait

    x = x.persist() if client is None else client.persist(x)
    if client is not None:
        wait(x)
    return x


def _scattered(x: Any, client: Any) -> Any:
    """Futures of arrays that the client sent; on threads, the arrays themselves."""
    import dask
    import dask.array as da

    blocks = (x.blocks[i].compute(scheduler="sync") for i in range(x.numblocks[0]))
    if client is not None:
        blocks = (client.scatter(block, hash=False) for block in blocks)
    parts = [dask.delayed(block) for block in blocks]
    sizes = [(rows, P) for rows in x.chunks[0]]
    return da.concatenate(
        [da.from_delayed(part, size, x.dtype) for part, size in zip(parts, sizes, strict=True)]
    )


ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "plain": lambda x, client: x,
    "standardised": lambda x, client: _standardised(x),
    "rows by tasks": lambda x, client: _rechunked(x, (20_000, -1), "tasks"),
    "columns by tasks": lambda x, client: _rechunked(x, (-1, 64), "tasks"),
    "both by tasks": lambda x, client: _rechunked(x, (20_000, 100), "tasks"),
    "rows by p2p": lambda x, client: _rechunked(x, (20_000, -1), "p2p"),
    "columns by p2p": lambda x, client: _rechunked(x, (-1, 64), "p2p"),
    "both by p2p": lambda x, client: _rechunked(x, (20_000, 100), "p2p"),
    "overlap": lambda x, client: _overlapping(x),
    "reshape": lambda x, client: x.reshape((N, 8, P // 8)),
    "data frame": lambda x, client: _framed(x),
    "xarray": lambda x, client: _labelled(x),
    "masked": lambda x, client: _masked(x),
    "sparse": lambda x, client: _sparse(x),
    "persisted": _persisted,
    "persisted, standardised": lambda x, client: _standardised(_persisted(x, client)),
    "scattered": _scattered,
}


def _standardised(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


PATHS = ("path", "path, imputed")
LIKE = {"masked": "path, imputed"}  # row -> the path that it is compared with, if not the first


def opened(name: str, path: str, client: Any) -> Any:
    """What the model gets. For the path itself Dask is not loaded."""
    if name in PATHS:
        return path
    import dask.array

    return ROWS[name](dask.array.from_zarr(path), client)


def fit(name: str, column: str) -> Callable[[str], dict[str, Any]]:
    """Fits one row: its seconds, the measured and the planned memory."""

    def run(path: str) -> dict[str, Any]:
        import time

        import streampca
        from streampca.imported import HEAVY
        from streampca.passes.memory import load, other_nbytes, peak_nbytes, resident_nbytes

        client, scheduler = None, "threads"
        if COLUMNS[column] is not None:
            import dask

            from tests.passes.local_clusters import start_client, stop_client

            # a machine that stands still for minutes must not have its workers replaced
            dask.config.set({"distributed.scheduler.worker-ttl": None})
            processes, threads, ambient = COLUMNS[column]
            client = start_client(
                processes,
                threads_per_worker=threads,
                memory_limit=0,
                scheduler_kwargs={"dashboard": False},
            )
            scheduler = None if ambient else client

        def everywhere(measured: Callable[[], float]) -> list[float]:
            return [measured()] if client is None else [*client.run(measured).values()]

        with nullcontext() if client is None else client.as_current():
            x = opened(name, path, client)
            imputed = PATHS[1] in (name, LIKE.get(name))
            model = streampca.PCA(
                K,
                svd_solver="scatter",
                missing="mean" if imputed else "raise",
                scheduler=scheduler,
                progress=False,
            )
            if client is not None:  # a worker that only holds data has not loaded them
                client.run(load, dict.fromkeys(("dask", "pandas", "xarray", "sparse"), 0))
            workers = everywhere(os.getpid)
            held, high = max(everywhere(resident_nbytes)), max(everywhere(peak_nbytes))
            begun, used = time.perf_counter(), time.process_time()
            used += sum(everywhere(time.process_time)) if client else 0.0
            model.fit(x, dim=0 if name == "reshape" else None)
            seconds = time.perf_counter() - begun
            used = time.process_time() - used
            used += sum(everywhere(time.process_time)) if client else 0.0
            peak = max(everywhere(peak_nbytes))
            if everywhere(os.getpid) != workers:
                raise RuntimeError("a worker was replaced, and what it used is not known")
        if client is not None:
            with suppress(TimeoutError):  # Dask may wait for ever for a worker that was slow to end
                stop_client(client, timeout=60)
        libraries = sum(n for k, n in model.plan_.memory["process"].items() if k in HEAVY)
        return {
            "seconds": seconds,
            "cpu_seconds": used,
            "reads": sum(one.reads for one in model.cost_),
            "planned_mb": model.plan_.peak_nbytes / 1e6,
            "own_mb": (model.plan_.peak_nbytes - libraries) / 1e6,
            "taken_mb": (peak - other_nbytes(model.plan_.memory["process"], held)) / 1e6,
            "before": peak == high,  # the peak is older than the fit
        }

    return run


def alone(name: str) -> Callable[[str], dict[str, Any]]:
    """Dask computes each chunk of a row once, on threads."""

    def run(path: str) -> dict[str, Any]:
        import time

        import dask

        x = opened(name, path, None)
        parts = getattr(x, "data", x).to_delayed()
        begun = time.process_time()
        dask.compute(*map(dask.delayed(_let_go), np.ravel(parts)), scheduler="threads")
        return {"cpu": time.process_time() - begun}

    return run


def _let_go(chunk: Any) -> None:
    pass


CANDIDATES = {
    **{f"{name} on {column}": fit(name, column) for column in COLUMNS for name in (*PATHS, *ROWS)},
    **{f"{name} alone": alone(name) for name in ROWS},
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], default=[])
    parser.add_argument("--on", nargs="+", choices=COLUMNS, default=[*COLUMNS])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    rows, columns, runs = arguments.rows or [*ROWS], arguments.on, arguments.runs
    with tempfile.TemporaryDirectory() as folder:
        path = store(folder)
        for column in columns:
            print(f"\non {column}")
            print(
                f"{'':24}{'seconds':>9}{'cpu':>7}{'of path':>9}{'reads':>7}{'MB taken':>9}"
                f"{'planned':>9}{'of path':>9}"
            )
            paths: dict[str, Any] = {}
            needed = {"path", *(LIKE[name] for name in rows if name in LIKE)}
            for name in (*(one for one in PATHS if one in needed), *rows):
                found = measure("tests.benchmarks.dask_arrays", f"{name} on {column}", path, runs)
                if "error" in found:
                    print(f"{name:24} {found['error']}")
                    continue
                if name in PATHS:
                    paths[name] = found
                base = paths.get(name if name in PATHS else LIKE.get(name, "path"), found)
                print(line(name, found, base), flush=True)
                if column == "threads" and found["cpu_seconds"] > RATIO * base["cpu_seconds"]:
                    print(f"{'':24}{of_dask(name, path)}", flush=True)


def of_dask(name: str, path: str) -> str:
    """What a row and the plain array take without a model, as text."""
    own, plain = (
        measure("tests.benchmarks.dask_arrays", f"{one} alone", path).get("cpu", float("nan"))
        for one in (name, "plain")
    )
    return f"Dask alone: {own:.2f} s, plain {plain:.2f}"


def line(name: str, found: dict[str, Any], path: dict[str, Any]) -> str:
    """One row, and what it misses of what is asked for."""
    cpu, planned = (found[key] / path[key] for key in ("cpu_seconds", "own_mb"))
    misses = {
        "slow": cpu > RATIO,
        "planned for too much": planned > RATIO,
        "beyond its plan": found["taken_mb"] > found["planned_mb"] and not found["before"],
    }
    taken = "-" if found["before"] else f"{found['taken_mb']:.0f}"
    return (
        f"{name:24}{found['seconds']:9.2f}{found['cpu_seconds']:7.2f}{cpu:9.2f}{found['reads']:7d}"
        f"{taken:>9}{found['planned_mb']:9.0f}{planned:9.2f}"
        + "".join(f"  {what}" for what, missed in misses.items() if missed)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(CANDIDATES[sys.argv[2]], sys.argv[3])
    else:
        main()
