"""Is the plan's choice right? ``python -m tests.benchmarks.choice``: 96 fits, then 12 shapes.

Proves the page's sentences on ``svd_solver="auto"``. First the grid (``--grid`` alone): four
shapes, eight kinds of spectrum, 10, 20 and 50 components, by default parameters; each fit beside
the exact solver and the iterative one, in one process a matrix. Counted are warnings, variances
that are off by more than 1e-5 of the largest or than their own bound, and the time beside the
best solver that ends with the right answer.

Then for every shape a matrix of ten factors and
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
GRID = [(2000, 5000), (10_000, 3000), (3000, 3000), (2500, 10_000)]
COUNTS = (10, 20, 50)
SPECTRA = (
    "genotype-like",
    "5 spikes",
    "30 spikes",
    "log-counts",
    "power 0.5",
    "power 1",
    "smooth field",
    "exponential",
)
RIGHT = 1e-5  # of the largest variance
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
    return {
        "seconds": seconds,
        "solver": model.plan_.solver,
        "passes": len(model.cost_),
        "uncertain": uncertain,
    }


def simulated(kind: str, n: int, p: int) -> Any:
    """(n, p) float32 (int8 for genotypes) with this spectrum, seeded."""
    rng = np.random.default_rng([SPECTRA.index(kind), n, p])
    if kind == "genotype-like":
        f = rng.uniform(0.05, 0.5, (5, p))
        return rng.binomial(2, f[rng.integers(0, 5, n)]).astype("i1")
    if kind == "log-counts":
        rate = (
            rng.gamma(0.3, 2.0, p)
            * rng.gamma(2.0, 0.5, (n, 1))
            * np.exp(0.5 * rng.standard_normal((n, 8)) @ rng.standard_normal((8, p)))
        )
        return np.log1p(rng.poisson(np.minimum(rate, 1e6))).astype("f4")
    if kind == "smooth field":
        x = rng.standard_normal((n, p), dtype=np.float32)
        for axis in (0, 1):
            x = np.cumsum(x, axis=axis) * np.float32(0.05)
            x[20:] -= x[:-20] if axis == 0 else 0
        return x
    r = min(n, p, 400)
    strength = {
        "5 spikes": np.concatenate([10.0 * 0.8 ** np.arange(5), np.zeros(r - 5)]),
        "30 spikes": np.concatenate([10.0 * 0.95 ** np.arange(30), np.zeros(r - 30)]),
        "power 0.5": np.arange(1, r + 1) ** -0.5,
        "power 1": np.arange(1, r + 1) ** -1.0,
        "exponential": 0.9 ** np.arange(r),
    }[kind]
    u = rng.standard_normal((n, r), dtype=np.float32) * strength.astype("f4")
    x = u @ rng.standard_normal((r, p), dtype=np.float32)
    noise = 1.0 if "spikes" in kind else 1e-3
    return x + np.float32(noise) * rng.standard_normal((n, p), dtype=np.float32)


def one_cell(kind: str, n: int, p: int) -> list[dict[str, Any]]:
    """The fits of one matrix, judged by float64 products."""
    import streampca

    x = simulated(kind, n, p)
    z = x.astype("f8")
    z -= z.mean(axis=0)
    every = np.linalg.eigvalsh(z @ z.T if n < p else z.T @ z)[::-1] / (n - 1)
    del z
    exact = "gram" if n < p else "scatter"
    rows = []
    for k in COUNTS:
        row: dict[str, Any] = {"kind": kind, "shape": (n, p), "k": k}
        for name in ("auto", exact, "randomized"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                begun = time.perf_counter()
                model = streampca.PCA(k, svd_solver=name, progress=False).fit(x)
                seconds = time.perf_counter() - begun
            error = np.abs(model.explained_variance_ - every[:k])
            accuracy = [one for one in caught if "Accuracy" in one.category.__name__]
            right = bool(np.all(error <= RIGHT * every[0]))
            held = bool(np.all(error <= model.certificate_.variance_bound + 1e-13 * every[0]))
            row[name] = {
                "seconds": round(seconds, 3),
                "warned": bool(accuracy),
                "right": right,
                "held": held,
                "solver": model.plan_.solver,
                "passes": len(model.cost_),
            }
        rows.append(row)
    return rows


def grid() -> None:
    """The 96 default fits, and a line that sums them up."""
    rows = [row for n, p in GRID for kind in SPECTRA for row in one_cell(kind, n, p)]
    ours = best = 0.0
    for row in rows:
        answers = [one for one in row.values() if isinstance(one, dict)]
        right = [one for one in answers if one["right"]]
        sound = [one for one in right if not one["warned"]] or right
        ours, best = ours + row["auto"]["seconds"], best + min(one["seconds"] for one in sound)
        print(json.dumps(row), flush=True)
    counts = {
        what: sum(row["auto"][what] == bad for row in rows)
        for what, bad in (("warned", True), ("right", False), ("held", False))
    }
    print(
        f"{len(rows)} default fits: {counts['warned']} warned, {counts['right']} off by more than "
        f"{RIGHT:g} of the largest variance, {counts['held']} outside of their bound; "
        f"{ours:.1f} s, {ours / best:.2f} x the best sound solver of each"
    )


def main() -> None:
    """Write each matrix, run the solvers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--shapes", type=int, nargs="*", choices=range(len(SHAPES)))
    parser.add_argument("--rates", help="from 'streampca calibrate'")
    parser.add_argument("--grid", action="store_true", help="the 96 fits alone")
    arguments = parser.parse_args()
    if arguments.grid or not (arguments.shapes or arguments.child):
        grid()
    if arguments.grid:
        return
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
