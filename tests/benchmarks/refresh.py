"""What a refresh costs beside the full fit: 1 % of rows appended to 2,000,000 x 256 float32.

    python -m tests.benchmarks.refresh --folder /fast/disk [--rows 2000000]

Prints one line for each step, and what the ledger adds to a pass: fits with and without it, in
turn, the median of each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import streampca
from streampca.jobs.config import check_job
from streampca.jobs.refresh import refresh
from streampca.sources.ledger import LedgerSource

P = 256


def write(array: Any, first: int, stop: int) -> None:
    """Rows of a few directions in noise, block by block."""
    loadings = np.random.default_rng(0).standard_normal((10, P)) * np.linspace(3, 1, 10)[:, None]
    for start in range(first, stop, 50_000):
        rng, n = np.random.default_rng(start + 1), min(50_000, stop - start)
        rows = rng.standard_normal((n, 10)) @ loadings + rng.standard_normal((n, P)) + 5
        array[start : start + n] = rows.astype("f4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--trials", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        measure(folder, arguments.rows, arguments.trials)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, rows: int, trials: int) -> None:
    path, more = str(folder / "x.zarr"), rows // 100
    codecs = [zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()]
    array = zarr.create_array(path, shape=(rows, P), chunks=(10_000, P), dtype="f4",
                              compressors=codecs)  # fmt: skip
    write(array, 0, rows)
    job = check_job({"source": {"path": path}, "model": {"n_components": 10}, "settle": 0,
                     "store": str(folder / "models")}, "benchmark")  # fmt: skip
    steps = {"full fit": refresh(job)}
    steps["nothing new"] = refresh(job)
    array.resize((rows + more, P))
    write(array, rows, rows + more)
    steps["1 % appended"] = refresh(job)
    steps["nothing new, full check"] = refresh(job, verify="full")
    first = steps["full fit"]
    for name, one in steps.items():
        read = (one.bytes + one.verified_bytes) / first.bytes
        print(f"{name:24} {one.how:8} {one.seconds:8.2f} s  {one.seconds / first.seconds:6.1%} of "
              f"the full fit's time  {read:7.2%} of its bytes")  # fmt: skip
    stored = streampca.ModelStore(folder / "models").latest().result()
    begun = time.perf_counter()
    full = streampca.IncrementalPCA(10).fit(path).result_
    error = np.abs(stored.explained_variance / full.explained_variance - 1).max()
    cosine = np.abs(np.einsum("kp,kp->k", stored.components, full.components))
    print(f"against a full fit of all rows ({time.perf_counter() - begun:.1f} s): variances "
          f"{error:.1e} relative, components 1 - cosine {1 - cosine.min():.1e}")  # fmt: skip
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(trials):
        for ledger in (False, True):
            matrix = streampca.open(path)
            begun = time.perf_counter()
            if ledger:
                source = LedgerSource.of(matrix)
                assert source is not None
                source.keep_checksums()
                seen = source.look()
            streampca.IncrementalPCA(10).fit(matrix)
            if ledger:
                source.make(rows + more, seen)
            seconds[ledger].append(time.perf_counter() - begun)
    without, with_it = (statistics.median(seconds[one]) for one in (False, True))
    print(json.dumps({"without ledger": without, "with ledger": with_it,
                      "added": with_it / without - 1}))  # fmt: skip


if __name__ == "__main__":
    main()
