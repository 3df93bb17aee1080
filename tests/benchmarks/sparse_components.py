"""A planted support of 200 in many features: ``python -m tests.benchmarks.sparse_components``.

3,000 samples, 500,000 features in float32 (``--features`` for fewer), one spike of variance 100
with equal loadings on 200 of them, unit noise. Printed, of a fresh process: reads, seconds, peak
memory, and whether the support was found exactly. Beside it scikit-learn's ``SparsePCA`` on the
first 2,000 features of such data, which it holds in memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure

SPIKE, SUPPORT = 100.0, 200


def write(path: str, n: int, p: int) -> list[int]:
    """The data by chunks of rows; the numbers of the planted features."""
    import zarr

    rng = np.random.default_rng(0)
    where = np.sort(rng.choice(p, SUPPORT, replace=False))
    rows = max(1, (32 << 20) // (4 * p))
    store = zarr.create_array(path, shape=(n, p), chunks=(rows, p), dtype="f4", compressors=None)
    for i in range(0, n, rows):
        x = rng.standard_normal((min(rows, n - i), p), dtype=np.float32)
        x[:, where] += rng.standard_normal((len(x), 1)).astype("f4") * np.sqrt(SPIKE / SUPPORT)
        store[i : i + len(x)] = x
    return [int(i) for i in where]


def ours(path: str) -> dict[str, Any]:
    """A fit in this process."""
    import streampca
    from streampca import SparsePCA

    where = json.loads(Path(path, "where.json").read_text())
    model = SparsePCA(1, n_nonzero=SUPPORT, memory_limit="1GiB", progress=False).fit(f"{path}/x")
    found = np.flatnonzero(model.components_[0])
    reads = sum(one.reads for one in model.cost_) / streampca.open(f"{path}/x").count_chunks(
        0, 0, model.n_samples_
    )
    return {
        "reads": reads,
        "exact": found.tolist() == where,
        "solver": model.plan_.solver,
        "planned_mb": model.plan_.peak_nbytes / 1e6,
    }


def theirs(path: str) -> dict[str, Any]:
    """scikit-learn's, in memory, on the first features."""
    import zarr
    from sklearn.decomposition import SparsePCA

    x = np.asarray(zarr.open_array(f"{path}/x", mode="r")[:, :2000])
    begun = time.perf_counter()
    SparsePCA(1, alpha=1.0, max_iter=50, random_state=0).fit(x - x.mean(axis=0))
    return {"seconds": time.perf_counter() - begun}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--features", type=int, default=500_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.child:
        child({"ours": ours, "theirs": theirs}[words.child[0]], words.child[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        where = write(f"{folder}/x", words.samples, words.features)
        Path(folder, "where.json").write_text(json.dumps(where))
        for name in ("ours", "theirs"):
            print(name, measure("tests.benchmarks.sparse_components", name, folder))


if __name__ == "__main__":
    main()
