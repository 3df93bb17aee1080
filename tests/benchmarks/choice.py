"""Is the plan's choice right? ``python -m tests.benchmarks.choice``: 12 shapes, every solver.

Proves the README's sentence on ``svd_solver="auto"``. For every shape a matrix of ten factors and
noise is written; "auto" and each solver whose predicted time is within ten times of the best run
in fresh processes (fit alone, median of a few runs). Printed: predicted and measured seconds, and
the measured time of the choice over that of the best. ``--rates`` takes what
``streampca calibrate`` wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure

SHAPES = [
    ((200_000, 256), "f4", (8000, 256)),
    ((50_000, 1000), "f4", (2000, 1000)),
    ((30_000, 2000), "f4", (2000, 2000)),
    ((20_000, 3000), "f8", (1000, 3000)),
    ((10_000, 5000), "f4", (1000, 5000)),
    ((5000, 5000), "f4", (1000, 1000)),
    ((8000, 12_000), "i1", (8000, 1024)),
    ((2000, 20_000), "f4", (2000, 1000)),
    ((3000, 30_000), "f4", (100, 30_000)),
    ((1000, 50_000), "f4", (25, 50_000)),
    ((1000, 100_000), "i1", (1000, 2048)),
    ((500, 200_000), "f4", (500, 4096)),
]
SOLVERS = {"scatter": "scatter", "gram": "gram", "gram by panels": "gram", "krylov": "randomized"}
K = 10


def write(path: str, shape: tuple[int, int], dtype: str, chunks: tuple[int, int]) -> None:
    """Ten factors of falling strength and noise, chunk by chunk."""
    import zarr

    n, p = shape
    rng = np.random.default_rng(0)
    u = rng.standard_normal((n, K), dtype=np.float32) * (0.8 ** np.arange(K, dtype=np.float32))
    v = rng.standard_normal((K, p), dtype=np.float32)
    array = zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype)
    for i in range(0, n, chunks[0]):
        for j in range(0, p, chunks[1]):
            part = u[i : i + chunks[0]] @ v[:, j : j + chunks[1]]
            part += rng.standard_normal(part.shape, dtype=np.float32)
            array[i : i + chunks[0], j : j + chunks[1]] = (
                np.clip(np.rint(8 * part), -128, 127) if dtype == "i1" else part
            ).astype(dtype)


def fit(name: str, path: str) -> dict[str, Any]:
    """One fit; in a fresh process."""
    import streampca

    rates = os.environ.get("STREAMPCA_RATES") or None
    warnings.simplefilter("ignore")
    model = streampca.PCA(K, svd_solver=name, rates=rates, progress=False)
    small = np.random.default_rng(0).standard_normal((60, 50)).astype("f4")
    streampca.PCA(3, svd_solver="randomized").fit(small)  # what is loaded and compiled lazily
    streampca.PCA(3, svd_solver="gram").fit(small.astype("i1"))
    begun = time.perf_counter()
    model.fit(path)
    seconds = time.perf_counter() - begun
    uncertain = int(np.sum(model.certificate_.angle_bound > 1e-4))
    return {"seconds": seconds, "solver": model.plan_.solver, "passes": len(model.cost_),
            "uncertain": uncertain}  # fmt: skip


def main() -> None:
    """Write each matrix, run the solvers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--shapes", type=int, nargs="*", help="numbers from 0 (default: all)")
    parser.add_argument("--rates", help="from 'streampca calibrate'")
    arguments = parser.parse_args()
    if arguments.rates:
        os.environ["STREAMPCA_RATES"] = arguments.rates
    if arguments.child:
        name, path = arguments.child
        child(lambda path: fit(name, path), path)
        return
    import streampca

    for number in arguments.shapes or range(len(SHAPES)):
        shape, dtype, chunks = SHAPES[number]
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "x.zarr")
            write(path, shape, dtype, chunks)
            plan = streampca.PCA(K, rates=arguments.rates).plan(path)
            predicted = dict(plan.considered)
            best = min(predicted.values())
            rows = {"auto": measure(__spec__.name, "auto", path, arguments.runs)}
            for name in dict.fromkeys(SOLVERS[s] for s, t in predicted.items() if t < 10 * best):
                rows[name] = measure(__spec__.name, name, path, arguments.runs)
        finished = {n: r["seconds"] for n, r in rows.items() if "error" not in r}
        ratio = finished["auto"] / min(finished.values())
        taken = rows["auto"]["solver"]
        print(f"{shape} {dtype} {chunks}: auto = {taken}, {ratio:.2f} x the best", flush=True)
        print("   predicted " + ", ".join(f"{s} {t:g}" for s, t in predicted.items()))
        for name, row in rows.items():
            print("   " + json.dumps({"measured": name, **row}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
