"""PCA of one persisted Dask array, by dask-ml and by streampca, on the same two workers.

    python -m tests.benchmarks.persisted [ROWS COLUMNS]

Each method runs in a fresh client and cluster: seconds of ``fit``, peak memory of the client and of
the workers together (with the array itself), what crossed a wire, and the leading variances.
Without dask-ml its line says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait

from tests.benchmarks.measure import peak_mb
from tests.passes.local_clusters import start_client, stop_client

ROWS, COLUMNS, CHUNK, COMPONENTS = 200_000, 256, 5000, 10


def fit_ours(x: Any) -> dict[str, Any]:
    from streampca import PCA

    model = PCA(COMPONENTS, progress=False).fit(x)
    moved = sum(cost.moved for cost in model.cost_)
    return {"moved_mb": moved / 1e6, "variances": model.explained_variance_[:3].tolist()}


def fit_theirs(x: Any) -> dict[str, Any]:
    from dask_ml.decomposition import PCA

    model = PCA(COMPONENTS, svd_solver="tsqr").fit(x)
    return {"variances": np.asarray(model.explained_variance_)[:3].tolist()}


METHODS = {"streampca": fit_ours, "dask-ml": fit_theirs}


def child(name: str, rows: int, columns: int) -> None:
    """One method on a cluster of its own; prints a line of JSON."""
    client = start_client(2, memory_limit=0)
    try:
        with client.as_current():
            x = da.random.default_rng(0).standard_normal((rows, columns), chunks=(CHUNK, columns))
            x = client.persist(x * np.linspace(1.0, 3.0, columns) + 50.0)
            wait(x)
            before = peak_mb()
            begun = time.perf_counter()
            found = METHODS[name](x)
            found["seconds"] = time.perf_counter() - begun
            found |= {"client_mb": peak_mb(), "client_before_mb": before}
            found["workers_mb"] = sum(client.run(peak_mb).values())
        print("RESULT " + json.dumps(found))
    finally:
        stop_client(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("columns", type=int, nargs="?", default=COLUMNS)
    arguments = parser.parse_args()
    rows, columns = arguments.rows, arguments.columns
    print(f"{rows} x {columns} float64, persisted on two workers of one thread")
    for name in METHODS:
        if name == "dask-ml" and importlib.util.find_spec("dask_ml") is None:
            print("dask-ml      not run: it is not installed (pip install 'streampca[bench]')")
            continue
        command = [sys.executable, "-m", "tests.benchmarks.persisted", "--child", name]
        done = subprocess.run(
            [*command, str(rows), str(columns)], capture_output=True, text=True, check=False
        )
        line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
        if line is None:
            print(f"{name:<12} failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:100]}")
            continue
        got = json.loads(line[7:])
        print(
            f"{name:<12} {got['seconds']:.2f} s, client {got['client_mb']:.0f} MB (before "
            f"{got['client_before_mb']:.0f}), workers {got['workers_mb']:.0f} MB, moved "
            f"{got.get('moved_mb', float('nan')):.0f} MB, variances {got['variances']}"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
