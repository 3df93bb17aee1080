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

from tests.benchmarks.measure import child

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


def ours(path: str, where: list[int]) -> dict[str, Any]:
    """A fit in this process."""
    from streampca import SparsePCA

    begun = time.perf_counter()
    model = SparsePCA(1, n_nonzero=SUPPORT, memory_limit="1GiB", progress=False).fit(path)
    found = np.flatnonzero(model.components_[0])
    return {"seconds": time.perf_counter() - begun, "passes": len(model.cost_),
            "exact": found.tolist() == where, "solver": model.plan_.solver,
            "planned": model.plan_.peak_nbytes >> 20}  # fmt: skip


def theirs(n: int, p: int) -> float:
    """Seconds of scikit-learn's, in memory."""
    from sklearn.decomposition import SparsePCA

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, p))
    x[:, :SUPPORT] += rng.standard_normal((n, 1)) * np.sqrt(SPIKE / SUPPORT)
    begun = time.perf_counter()
    SparsePCA(1, alpha=1.0, max_iter=50, random_state=0).fit(x)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--features", type=int, default=500_000)
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.fit:
        print(json.dumps(ours(words.fit[0], json.loads(Path(words.fit[1]).read_text()))))
        return
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "where.json"
        store = f"{folder}/x.zarr"
        where.write_text(json.dumps(write(store, words.samples, words.features)))
        found = child(["-m", "tests.benchmarks.sparse_components", "--fit", store, str(where)])
        print(f"{words.samples} x {words.features}: {found}")
    print(f"scikit-learn, {words.samples} x 2000: {theirs(words.samples, 2000):.1f} s")


if __name__ == "__main__":
    main()
