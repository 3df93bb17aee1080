"""A complex field and a pair of real ones: ``python -m tests.benchmarks.complex_fields``.

``--times`` x ``--cells`` complex64 from Zarr, in chunks of cells. A real matrix of twice as many
rows has the same bytes, and its Gram matrix takes the same flops; one of as many rows has half
of the bytes and a quarter of the flops. MCA relates the real part and the imaginary one. Every
candidate runs in a fresh process; xeofs in that of ``--peer-python``, which has xeofs and zarr.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
import zarr

from tests.benchmarks.measure import child, cpu_seconds, measure, table

K, COLUMNS = 10, 1024


def write(folder: str, n: int, p: int) -> None:
    """Z (n, p) of K waves and noise; its parts one below the other; and either part."""
    rng = np.random.default_rng(0)
    shapes = {"complex": (n, "c8"), "below": (2 * n, "f4"), "real": (n, "f4"), "imag": (n, "f4")}
    stores = {
        name: zarr.create_array(
            f"{folder}/{name}.zarr",
            shape=(rows, p),
            chunks=(rows, COLUMNS),
            dtype=dtype,
            compressors=None,
        )
        for name, (rows, dtype) in shapes.items()
    }
    waves = np.exp(1j * np.outer(np.arange(n), 0.1 * np.arange(1, K + 1))) / np.arange(1, K + 1)
    for first in range(0, p, COLUMNS):
        width = min(COLUMNS, p - first)
        parts = rng.standard_normal((2, K + n, width), dtype=np.float32)
        noise = parts[0] + 1j * parts[1]
        z = (waves @ noise[:K] + noise[K:]).astype(np.complex64)
        cells = slice(first, first + width)
        stores["complex"][:, cells] = z
        stores["below"][:, cells] = np.vstack([z.real, z.imag])
        stores["real"][:, cells], stores["imag"][:, cells] = z.real, z.imag


def fitted(kind: str, folder: str, *names: str) -> dict[str, Any]:
    import streampca

    begun = cpu_seconds()
    solver = "samples" if kind == "MCA" else "gram"
    model = getattr(streampca, kind)(K, solver=solver, progress=False)
    model.fit(*(f"{folder}/{name}.zarr" for name in names))
    return {
        "seconds": cpu_seconds() - begun,
        "passes": len(model.cost_),
        "planned_mb": model.plan_.peak_nbytes / 1e6,
    }


def by_xeofs(kind: str, folder: str, *names: str) -> dict[str, Any]:
    import dask.array
    import xarray
    import xeofs

    begun = cpu_seconds()
    fields = []
    for name in names:
        values = dask.array.from_zarr(f"{folder}/{name}.zarr")
        places = {"time": np.arange(values.shape[0]), f"{name}_cell": np.arange(values.shape[1])}
        fields.append(xarray.DataArray(values, places))
    if kind == "MCA":
        xeofs.cross.MCA(K, use_pca=False).fit(*fields, "time").scores()[0].compute()
    else:
        getattr(xeofs.single, kind)(K).fit(*fields, "time").scores().compute()
    return {"seconds": cpu_seconds() - begun}


PEER = "xeofs "
CANDIDATES = {
    "PCA, parts below each other": lambda folder: fitted("PCA", folder, "below"),
    "ComplexEOF": lambda folder: fitted("ComplexEOF", folder, "complex"),
    "PCA of the real part": lambda folder: fitted("PCA", folder, "real"),
    "MCA of both parts": lambda folder: fitted("MCA", folder, "real", "imag"),
    PEER + "EOF": lambda folder: by_xeofs("EOF", folder, "real"),
    PEER + "ComplexEOF": lambda folder: by_xeofs("ComplexEOF", folder, "complex"),
    PEER + "MCA": lambda folder: by_xeofs("MCA", folder, "real", "imag"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--cells", type=int, default=259_200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scratch", help="folder for the data")
    parser.add_argument("--peer-python", help="interpreter for the rows of xeofs; none: without")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(CANDIDATES[asked.child[0]], asked.child[1])
        return
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        write(folder, asked.times, asked.cells)
        module = "tests.benchmarks.complex_fields"
        rows = []
        for name in CANDIDATES:
            peer = name.startswith(PEER)
            if peer and not asked.peer_python:
                continue
            how = {"python": asked.peer_python, "runs": 1} if peer else {"runs": asked.runs}
            rows.append({"name": name, **measure(module, name, folder, **how)})
    print(f"{asked.times} x {asked.cells} complex64, k = {K}; CPU seconds of the fit")
    print(table(rows))
    planned = {row["name"]: round(row["planned_mb"]) for row in rows if "planned_mb" in row}
    print("planned MB:", planned)


if __name__ == "__main__":
    main()
