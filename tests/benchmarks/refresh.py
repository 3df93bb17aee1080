"""What a refresh costs beside the full fit: 1 % of rows appended to 2,000,000 x 256.

    python -m tests.benchmarks.refresh --folder /fast/disk [--rows 2000000] [--dtype f4]

Prints one line for each step, the ratio to the full fit, how far the appended model is from a full
fit of all rows, and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import streampca
from streampca.operations.config import check_job
from streampca.operations.outcome import Outcome
from streampca.operations.refresh import refresh

P, BLOCK = 256, 50_000


def write(array: Any, first: int, stop: int) -> None:
    """Rows of a few directions in noise, block by block; every block has a mean of its own."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((10, P)) * np.linspace(3, 1, 10)[:, None]
    rows = rng.standard_normal((BLOCK, 10)) @ loadings + rng.standard_normal((BLOCK, P)) + 5
    for start in range(first, stop, BLOCK):
        n = min(BLOCK, stop - start)
        array[start : start + n] = (rows[:n] + start * 1e-7).astype(array.dtype)


def made(path: str, rows: int, dtype: str) -> Any:
    """A Zarr array of so many rows in chunks of 10,000."""
    codecs = [zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()]
    array = zarr.create_array(
        path, shape=(rows, P), chunks=(10_000, P), dtype=dtype, compressors=codecs
    )
    write(array, 0, rows)
    return array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dtype", default="f4", choices=("f4", "f8"))
    parser.add_argument("--trials", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        measure(folder, arguments.rows, arguments.dtype, arguments.trials)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, rows: int, dtype: str, trials: int) -> None:
    """Full fits and appends in turn, the medians of both."""
    path, more = str(folder / "x.zarr"), rows // 100
    array = made(path, rows, dtype)
    entries = {"source": {"path": path}, "model": {"n_components": 10}, "settle": 0}
    full: list[Outcome] = []
    appended: list[Outcome] = []
    for trial in range(trials):
        job = check_job({**entries, "store": str(folder / f"models-{trial}")}, "benchmark")
        full.append(refresh(job))
        first = array.shape[0]
        array.resize((first + more, P))
        write(array, first, first + more)
        appended.append(refresh(job))
        assert (full[-1].how, appended[-1].how) == ("full", "append")
    steps = {
        "full fit": full,
        "1 % appended": appended,
        "nothing new": [refresh(job)],
        "nothing new, full check": [refresh(job, verify="full")],
    }
    whole = statistics.median(one.seconds for one in full)
    for name, some in steps.items():
        seconds = statistics.median(one.seconds for one in some)
        read = (some[0].bytes + some[0].verified_bytes) / full[0].bytes
        print(
            f"{name:24} {some[0].how:8} {seconds:8.2f} s  {seconds / whole:7.2%} of the full "
            f"fit's time  {read:8.3%} of its bytes"
        )
    stored = streampca.ModelStore(job.store).latest().result()
    other = streampca.IncrementalPCA(10).fit(path).result_
    error = np.abs(stored.explained_variance / other.explained_variance - 1).max()
    cosine = np.abs(np.einsum("kp,kp->k", stored.components, other.components))
    print(
        f"against a full fit of all rows: variances {error:.1e} relative, components "
        f"1 - cosine {1 - cosine.min():.1e}"
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, the writing of the data included: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
