"""PCA of a Parquet file beside reading it with pyarrow: ``python -m tests.benchmarks.tables``.

How much longer a PCA under 512 MiB takes than reading the same file with pyarrow (10,000,000 x 100
with ``--samples 10000000``). The file is written with pyarrow's defaults: row groups of 1,048,576
rows, each larger than the limit, and dictionaries. Values have ``--digits`` decimals, as most
tables hold; with 16, random bits that no encoding makes smaller, reading is copying.
Every candidate runs in a fresh process, in turns; the reference is a float64 eigendecomposition.
``cpu`` is user and system time together, which a busy machine changes less than seconds.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import child, measure, relative_error, table

K, LIMIT, GROUP = 10, "512MiB", 1 << 20


def write(path: str, n: int, p: int, dtype: str, digits: int = 3) -> None:
    """10 factors plus noise, column means near 50; row groups of one pool of rows, each shifted."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    m = min(n, GROUP)
    factors = rng.standard_normal((K, p)) * np.linspace(3, 1, K)[:, None]
    scores = rng.standard_normal((K, m))
    pool = [
        np.round(factors[:, j] @ scores + rng.standard_normal(m) + 50, digits).astype(dtype)
        for j in range(p)
    ]
    writer = None
    for start in range(0, n, m):
        rows = min(m, n - start)
        group = pa.table(
            {f"x{j}": column[:rows] + shift_of(start, dtype) for j, column in enumerate(pool)}
        )
        writer = writer or pq.ParquetWriter(path, group.schema)
        writer.write_table(group, row_group_size=GROUP)
    assert writer is not None
    writer.close()


def shift_of(start: int, dtype: str) -> Any:
    """A small shift of one row group, the same in every column."""
    return np.dtype(dtype).type(start // GROUP * 0.25)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ours(path: str) -> dict[str, Any]:
    """streampca.PCA under the limit."""
    import streampca

    model = streampca.PCA(K, memory_limit=LIMIT, progress=False).fit(path)
    return {"cpu": cpu(), "values": model.explained_variance_.tolist(), "passes": len(model.cost_)}


def defaults(path: str) -> dict[str, Any]:
    """``ParquetFile(path).iter_batches()``."""
    import pyarrow.parquet as pq

    rows = sum(batch.num_rows for batch in pq.ParquetFile(path).iter_batches())
    return {"cpu": cpu(), "passes": 1, "rows": rows}


def lean(path: str) -> dict[str, Any]:
    """The same on one thread and in smaller pieces, as ours reads it."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, buffer_size=64 << 10, pre_buffer=False)
    rows = sum(batch.num_rows for batch in file.iter_batches(1 << 15, use_threads=False))
    return {"cpu": cpu(), "passes": 1, "rows": rows}


def scanned(path: str) -> dict[str, Any]:
    """``pyarrow.dataset.dataset(path).to_batches()``."""
    import pyarrow.dataset as ds

    return {
        "rows": sum(b.num_rows for b in ds.dataset(path).to_batches()),
        "cpu": cpu(),
        "passes": 1,
    }


def reference(path: str) -> dict[str, Any]:
    """Leading variances by NumPy: two passes, centred before squaring."""
    import pyarrow.parquet as pq

    file, total, n = pq.ParquetFile(path), 0.0, 0
    for batch in file.iter_batches():
        x = np.stack([np.asarray(column) for column in batch.columns], axis=1)
        total, n = total + x.sum(axis=0, dtype="f8"), n + len(x)
    scatter: Any = 0.0
    for batch in file.iter_batches():
        x = np.stack([np.asarray(column) for column in batch.columns], axis=1) - total / n
        scatter = scatter + x.T @ x
    return {"values": (np.linalg.eigvalsh(scatter)[::-1][:K] / (n - 1)).tolist()}


CANDIDATES = {
    f"streampca.PCA, {LIMIT}": ours,
    "pyarrow alone, iter_batches": defaults,
    "pyarrow alone, small pieces": lean,
    "pyarrow alone, data set": scanned,
}


def main() -> None:
    """Write the file once, run everything in turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--dtype", default="f8", choices=("f4", "f8"))
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=CANDIDATES)
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--folder", help="where the file is written")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child({**CANDIDATES, "reference": reference}[arguments.child[0]], arguments.child[1])
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = str(Path(folder) / "table.parquet")
        write(path, arguments.samples, arguments.features, arguments.dtype, arguments.digits)
        module = "tests.benchmarks.tables"
        names = [name for name in CANDIDATES if not arguments.only or name in arguments.only]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(arguments.runs):
            for name in names:
                found[name].append(measure(module, name, path))
                shown = {k: v for k, v in found[name][-1].items() if k != "values"}
                print(name, shown, file=sys.stderr)
        rows = [{"name": name, **best(runs)} for name, runs in found.items()]
        if not arguments.no_reference:
            truth = measure(module, "reference", path)["values"]
            rows[0]["relative_error"] = relative_error(rows[0]["values"], truth)
        print(
            f"{arguments.samples} x {arguments.features} {arguments.dtype}, "
            f"{arguments.digits} digits, k = {K}"
        )
        print(table(rows))
        print("cpu, seconds: " + ", ".join(f"{row['name']} {row['cpu']:.2f}" for row in rows))


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of the runs: the others waited for something else."""
    return min(runs, key=lambda run: run.get("seconds", np.inf))


if __name__ == "__main__":
    main()
