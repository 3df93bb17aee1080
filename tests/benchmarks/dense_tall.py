"""Dense tall PCA beside its peers, in one run: ``python -m tests.benchmarks.dense_tall``.

Proves the table of dense data: float32 samples x features with column means near 50, from a
Zarr store on disk. Every candidate runs in a fresh process, the peers with their usual calls;
the reference is a float64 eigendecomposition. ``bare loop`` is the limit: read + ssyrk alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from tests.benchmarks.measure import child, measure, record, recordable, relative_error, table

K = 20


def write(path: str, n: int, p: int, chunk: int = 8192) -> None:
    """A seeded matrix of 20 factors plus noise, column means near 50."""
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((K, p), dtype=np.float32) * np.linspace(1, 0.2, K)[:, None]
    mean = (50 + rng.standard_normal(p)).astype(np.float32)
    store = zarr.create_array(
        path,
        shape=(n, p),
        chunks=(chunk, p),
        dtype="f4",
        compressors=[
            zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
            zarr.codecs.Crc32cCodec(),
        ],
    )
    for i in range(0, n, chunk):
        m = min(chunk, n - i)
        scores = rng.standard_normal((m, K), dtype=np.float32)
        store[i : i + m] = scores @ factors + rng.standard_normal((m, p), dtype=np.float32) + mean


def reference(path: str) -> dict[str, Any]:
    """Leading variances in float64: two passes, centred before squaring."""
    store = zarr.open_array(path, mode="r")
    n, p = store.shape
    mean = sum(store[i : i + 8192].sum(axis=0, dtype="f8") for i in range(0, n, 8192)) / n
    scatter = np.zeros((p, p))
    for i in range(0, n, 8192):
        centred = store[i : i + 8192].astype("f8") - mean
        scatter += centred.T @ centred
    return {"values": np.linalg.eigvalsh(scatter)[::-1][:K].tolist(), "n": n}


def ours(path: str) -> dict[str, Any]:
    """streampca.PCA with its defaults."""
    import streampca

    begun = time.perf_counter()
    model = streampca.PCA(K, progress=False).fit(path)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "pass_seconds": model.cost_[0].seconds,
        "values": model.explained_variance_.tolist(),
        "passes": len(model.cost_),
    }


def bare(path: str) -> dict[str, Any]:
    """The limit."""
    import streampca
    from tests.benchmarks.bare import best_bare_loop

    matrix = streampca.open(path)
    plan = streampca.PCA(K).plan(matrix)
    seconds, setting = best_bare_loop(matrix, 0, plan.passes[0].edges, matrix.shape[1])
    return {"seconds": seconds, "passes": 1, "note": setting}


def sklearn_incremental(path: str) -> dict[str, Any]:
    """scikit-learn IncrementalPCA, fed chunk by chunk."""
    from sklearn.decomposition import IncrementalPCA

    store = zarr.open_array(path, mode="r")
    begun = time.perf_counter()
    model = IncrementalPCA(K)
    for i in range(0, store.shape[0], 8192):
        model.partial_fit(store[i : i + 8192])
    seconds = time.perf_counter() - begun
    return {"seconds": seconds, "values": model.explained_variance_.tolist(), "passes": 1}


def dask_svd(path: str) -> dict[str, Any]:
    """``da.linalg.svd`` after centring by hand."""
    import dask.array as da

    begun = time.perf_counter()
    x = da.from_zarr(path)
    x = x - x.mean(axis=0)
    _, s, _ = da.linalg.svd(x)
    values = s[:K].compute() ** 2 / (x.shape[0] - 1)
    return {"seconds": time.perf_counter() - begun, "values": values.tolist(), "passes": 2}


def dask_ml(path: str, solver: str = "auto") -> dict[str, Any]:
    """dask-ml PCA; its default is a randomized solver without power iterations."""
    import dask.array as da
    from dask_ml.decomposition import PCA

    begun = time.perf_counter()
    model = PCA(K, svd_solver=solver).fit(da.from_zarr(path))
    return {
        "seconds": time.perf_counter() - begun,
        "values": np.asarray(model.explained_variance_).tolist(),
        "passes": 2,
    }


def dask_ml_full(path: str) -> dict[str, Any]:
    """dask-ml PCA with its exact solver."""
    return dask_ml(path, "full")


def sklearn_in_core(path: str) -> dict[str, Any]:
    """scikit-learn PCA with everything in memory, reading included."""
    from sklearn.decomposition import PCA

    begun = time.perf_counter()
    model = PCA(K).fit(zarr.open_array(path, mode="r")[:])
    return {
        "seconds": time.perf_counter() - begun,
        "values": model.explained_variance_.tolist(),
        "passes": 1,
    }


CANDIDATES = {
    "streampca.PCA": ours,
    "bare loop (read + ssyrk)": bare,
    "sklearn IncrementalPCA": sklearn_incremental,
    "sklearn PCA, in core": sklearn_in_core,
    "da.linalg.svd, centred": dask_svd,
    "dask-ml PCA, full": dask_ml_full,
    "dask-ml PCA, default (randomized)": dask_ml,
}


def main() -> None:
    """Write the matrix once, run everything, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument(
        "--runs", type=int, default=3, help="fresh processes of ours; peers run once"
    )
    parser.add_argument("--only", nargs="*", choices=CANDIDATES)
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child({**CANDIDATES, "reference": reference}[arguments.child[0]], arguments.child[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "tall.zarr")
        write(path, arguments.samples, arguments.features)
        module = "tests.benchmarks.dense_tall"
        truth = measure(module, "reference", path)
        true = np.array(truth["values"]) / (truth["n"] - 1)
        rows = []
        for name in CANDIDATES:
            if arguments.only and name not in arguments.only:
                continue
            quick = name.startswith(("streampca", "bare"))
            row = measure(module, name, path, arguments.runs if quick else 1)
            if "values" in row:
                row["relative_error"] = relative_error(row["values"], true)
            rows.append({"name": name, **row})
            print(name, {k: v for k, v in row.items() if k != "values"}, file=sys.stderr)
        print(f"{arguments.samples} x {arguments.features} float32, k = {K}\n{table(rows)}")
        record(arguments.record, rows, "scikit-learn", "dask", "dask-ml")


if __name__ == "__main__":
    main()
