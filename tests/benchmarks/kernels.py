"""Kernel PCA of 80,000 points in 1 GiB: ``python -m tests.benchmarks.kernels``.

80,000 x 30 float32 (``--samples`` for fewer) from 11 Gaussian clusters whose sizes are as 1 to 11,
an RBF kernel with the median gamma, 10 components certified to 1e-4 radians. Each line is a fresh
process: the fit under ``memory_limit="1GiB"``; one plain evaluation of all n x n values, tile by
tile on all cores, by the same compiled code and without use of the symmetry, which nothing keeps;
the fit of 300 isotropic normals, whose leading eigenvalues are a cluster; scikit-learn's KernelPCA
of the first 5,000 points (it holds n x n float64), beside ours of the same.
CPU seconds are those of all threads: on a shared machine they are the better measure.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure

FEATURES, CLUSTERS, COMPONENTS, BESIDE = 30, 11, 10, 5000


def write(folder: str, n: int) -> None:
    """The clusters in ``x``, isotropic normals in ``normal``."""
    import zarr

    rng = np.random.default_rng(0)
    sizes = np.arange(1, CLUSTERS + 1) / (CLUSTERS * (CLUSTERS + 1) / 2)
    centres = 3.0 * rng.standard_normal((CLUSTERS, FEATURES))
    x = centres[rng.choice(CLUSTERS, n, p=sizes)] + rng.standard_normal((n, FEATURES))
    zarr.create_array(f"{folder}/x", data=x.astype("f4"), chunks=(8192, FEATURES))
    normal = rng.standard_normal((min(n, 20_000), 300), dtype=np.float32)
    zarr.create_array(f"{folder}/normal", data=normal, chunks=(8192, 300))


def timed(function: Any) -> dict[str, Any]:
    """Wall and CPU seconds of a call, and its answer."""
    begun, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    answer = function()
    now = resource.getrusage(resource.RUSAGE_SELF)
    spent = now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime
    return answer | {"seconds": time.perf_counter() - begun, "cpu": round(spent, 2)}


def fit(path: str, **more: Any) -> dict[str, Any]:
    from streampca import KernelPCA

    model = KernelPCA(
        COMPONENTS, kernel="rbf", gamma="median", progress=False, memory_limit="1GiB", **more
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(path)
    bound = model.result_.angle_bound
    return {
        "solver": model.plan_.solver,
        "steps": sum(one.name.startswith("step") for one in model.cost_),
        "angle_bound": float(bound.max()),
        "eigenvalues": [round(float(one), 2) for one in model.eigenvalues_[[0, -1]]],
        "planned_mb": round(model.plan_.peak_nbytes / 1e6),
        "warning": str(said[0].message)[:160] if said else "",
    }


def ours(folder: str) -> dict[str, Any]:
    return timed(lambda: fit(f"{folder}/x"))


def normal(folder: str) -> dict[str, Any]:
    return timed(lambda: fit(f"{folder}/normal", solver="matrix-free"))


def plain(folder: str) -> dict[str, Any]:
    """Every value of the kernel matrix, once."""
    import zarr
    from threadpoolctl import threadpool_limits

    from streampca.models.kernel.functions import Kernel, squares
    from streampca.passes import thread_count

    x = np.asarray(zarr.open_array(f"{folder}/x", mode="r")[:])
    x -= x.mean(axis=0)
    lengths = squares(x).astype("f4")
    kernel = Kernel("rbf", 1e-3, 3.0, 1.0)
    kernel.tile(x[:2], x[:2], lengths[:2], lengths[:2])  # compiled before

    def rows(i: int) -> None:
        for j in range(0, len(x), 256):
            kernel.tile(
                x[i : i + 1024], x[j : j + 256], lengths[i : i + 1024], lengths[j : j + 256]
            )

    def all_rows() -> dict[str, Any]:
        with threadpool_limits(1), ThreadPoolExecutor(thread_count()) as pool:
            list(pool.map(rows, range(0, len(x), 1024)))
        return {}

    return timed(all_rows)


def first(folder: str, model: Any) -> dict[str, Any]:
    """A model of the first points, in memory."""
    import zarr

    x = np.asarray(zarr.open_array(f"{folder}/x", mode="r")[:BESIDE])
    return timed(lambda: {"eigenvalue": float(model.fit(x).eigenvalues_[-1])})


def ours_first(folder: str) -> dict[str, Any]:
    from streampca import KernelPCA

    return first(folder, KernelPCA(COMPONENTS, kernel="rbf", gamma=1e-3, progress=False))


def scikit_learn_first(folder: str) -> dict[str, Any]:
    from sklearn.decomposition import KernelPCA

    solver = {"eigen_solver": "arpack", "random_state": 0}
    return first(folder, KernelPCA(COMPONENTS, kernel="rbf", gamma=1e-3, **solver))


CHILDREN = {one.__name__: one for one in (plain, ours, normal, ours_first, scikit_learn_first)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=80_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.child:
        child(CHILDREN[words.child[0]], words.child[1])
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write(folder, words.samples)
        for name in CHILDREN:
            found[name] = measure("tests.benchmarks.kernels", name, folder)
            print(name, found[name], flush=True)
    ratio = {one: found["ours"][one] / found["plain"][one] for one in ("seconds", "cpu")}
    print("the fit over one plain evaluation:", {k: round(v, 2) for k, v in ratio.items()})


if __name__ == "__main__":
    main()
