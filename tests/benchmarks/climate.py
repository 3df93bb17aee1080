"""EOFs of a gridded field beside the peers, in one run: ``python -m tests.benchmarks.climate``.

Proves the table of EOFs. One simulated field (travelling and standing waves over red
noise, no land) is written twice, chunked by time and by place; every tool computes 5 modes with
sqrt(cos(latitude)) weights, EOFs included, in a fresh process. The reference is the float64
Gram matrix over time. Reads are counted where chunks leave the store: by a wrapper around it,
and in our own case by the guard that every chunk passes.

``--large`` is the 5000 x 720 x 360 field of the xeofs documentation. A tool that is not installed
is skipped with a word, and so is one that needs more than 12 GiB or ``--timeout``;
``--peer-python`` names an interpreter that has the peers (pip install xeofs eofs zarr).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.codecs
import zarr.storage

from tests.benchmarks.measure import measure, peak_mb, record, recordable

K = 5
NAME = "sst"
DIMS = ("time", "lat", "lon")
MOST_NBYTES = 12 << 30  # of memory, for any tool
LAYOUTS = {"by time": "time.zarr", "by place": "place.zarr"}


# -- data ---------------------------------------------------------------------------


def patterns(lat: Any, lon: Any, waves: int, rng: np.random.Generator) -> Any:
    """(waves, lat, lon) float32: smooth bumps that lie anywhere, amplitudes falling as 0.8^i."""
    y, x = np.deg2rad(lat)[:, None], np.deg2rad(lon)[None, :]
    found = [
        0.8**i
        * np.cos(rng.integers(1, 5) * x + rng.uniform(0, 6.3))
        * np.cos(rng.integers(1, 5) * y + rng.uniform(0, 6.3))
        for i in range(waves)
    ]
    return np.asarray(found, dtype=np.float32)


def create(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    """An empty field with its coordinates, as xarray writes them."""
    group = zarr.create_group(str(path))
    for name, size, low, high in (("lat", shape[1], 90, -90), ("lon", shape[2], 0, 360)):
        step = (high - low) / size
        values = low + step * (np.arange(size) + 0.5)
        array = group.create_array(name, shape=(size,), dtype="f8", dimension_names=(name,))
        array[:] = values
    return group.create_array(
        NAME,
        shape=shape,
        chunks=chunks,
        dtype="f4",
        dimension_names=DIMS,
        compressors=[
            zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle"),
            zarr.codecs.Crc32cCodec(),
        ],
    )


def write(folder: Path, shape: tuple[int, int, int]) -> None:
    """The field in both layouts."""
    rng = np.random.default_rng(0)
    times, rows, columns = shape
    by_time = create(folder / LAYOUTS["by time"], shape, (min(50, times), rows, columns))
    by_place = create(folder / LAYOUTS["by place"], shape, (times, min(30, rows), min(30, columns)))
    group = zarr.open_group(str(folder / LAYOUTS["by time"]), mode="r")
    waves = 24
    maps = patterns(group["lat"][:], group["lon"][:], waves, rng)
    series = rng.standard_normal((times, waves), dtype=np.float32)
    for t in range(1, times):
        series[t] += np.float32(0.7) * series[t - 1]
    mean = np.float32(285) + maps[0]
    for start in range(0, times, 50):
        part = np.tensordot(series[start : start + 50], maps, axes=1) + mean
        part += rng.standard_normal(part.shape, dtype=np.float32)
        by_time[start : start + 50] = part
    for row in range(0, rows, 30):
        by_place[:, row : row + 30] = by_time[:, row : row + 30]


def reference(folder: Path) -> dict[str, Any]:
    """(values, EOFs) of the weighted anomalies in float64, from the time x time Gram matrix."""
    path = folder / "reference.npz"
    if not path.exists():
        group = zarr.open_group(str(folder / LAYOUTS["by place"]), mode="r")
        field, lat = group[NAME], group["lat"][:]
        times = field.shape[0]

        def anomalies(row: int) -> Any:
            z = field[:, row : row + 30].astype(np.float64)
            z -= z.mean(axis=0)
            z *= np.sqrt(np.cos(np.deg2rad(lat[row : row + 30])))[:, None]
            return z.reshape(times, -1)

        bands = range(0, field.shape[1], 30)
        gram = np.zeros((times, times))
        for row in bands:
            z = anomalies(row)
            gram += z @ z.T
        values, vectors = np.linalg.eigh(gram)
        values, vectors = values[::-1][: K + 1], vectors[:, ::-1][:, :K]
        eofs = [anomalies(row).T @ vectors / np.sqrt(values[:K]) for row in bands]
        np.savez(path, values=values, eofs=np.concatenate(eofs))
    return dict(np.load(path))


# -- tools --------------------------------------------------------------------------


class CountingStore(zarr.storage.WrapperStore):
    """Counts how often each chunk of the field is fetched."""

    def __init__(self, store: Any, counts: Counter[str] | None = None) -> None:
        super().__init__(store)
        self.counts: Counter[str] = Counter() if counts is None else counts

    def _with_store(self, store: Any) -> CountingStore:
        return CountingStore(store, self.counts)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if key.startswith(f"{NAME}/c"):
            self.counts[key] += 1
        return await self._store.get(key, prototype, byte_range)


def opened(path: str) -> tuple[Any, Counter[str]]:
    """The field as a DataArray over Dask, and the counts of its chunks."""
    import dask.array as da
    import xarray

    store = CountingStore(zarr.storage.LocalStore(path, read_only=True))
    group = zarr.open_group(store, mode="r")
    coords = {name: group[name][:] for name in DIMS[1:]}
    coords["time"] = np.arange(group[NAME].shape[0])  # xeofs needs one
    field = xarray.DataArray(da.from_zarr(group[NAME]), dims=DIMS, coords=coords, name=NAME)
    return field, store.counts


def answer(values: Any, eofs: Any, counts: Counter[str], chunks: int) -> dict[str, Any]:
    """values : (K,) singular values.  eofs : (places, K) of the weighted field, any length."""
    reads = sum(counts.values()) / chunks
    return {"values": values, "eofs": eofs, "reads": reads, "most": max(counts.values())}


def chunks_of(field: Any) -> int:
    return int(field.data.npartitions)


def ours(path: str, **settings: Any) -> dict[str, Any]:
    """streampca.PCA with its defaults."""
    import streampca

    matrix = streampca.open(path, variable=NAME, dim="time")
    chunks = matrix.count_chunks(0, 0, matrix.shape[0])
    model = streampca.PCA(K, weights="coslat", progress=False, **settings).fit(matrix)
    reads = sum(cost.reads for cost in model.cost_) / chunks
    return {
        "values": model.singular_values_,
        "eofs": model.components_.T,
        "reads": reads,
        "most": int(np.ceil(reads)),
        "note": model.plan_.solver,
    }


def xeofs_defaults(path: str, **settings: Any) -> dict[str, Any]:
    """xeofs EOF with its defaults."""
    import xeofs

    field, counts = opened(path)
    model = xeofs.single.EOF(n_modes=K, use_coslat=True, **settings)
    model.fit(field, dim="time")
    maps = model.components().sel(lat=field.lat, lon=field.lon)  # they come sorted
    eofs = maps.transpose("lat", "lon", "mode").values.reshape(-1, K)
    values = model.singular_values().values
    return answer(values, eofs, counts, chunks_of(field))


def xeofs_full(path: str) -> dict[str, Any]:
    """xeofs EOF with its exact solver."""
    return xeofs_defaults(path, solver="full")


def weighted(field: Any) -> Any:
    """(times, places) Dask array of weighted anomalies."""
    weights = np.sqrt(np.cos(np.deg2rad(field.lat))).astype("f4")
    anomalies = (field - field.mean("time")) * weights
    return anomalies.data.reshape(field.shape[0], -1)


def svd_compressed(path: str) -> dict[str, Any]:
    """``dask.array.linalg.svd_compressed`` with two power iterations, computed as it goes."""
    import dask.array as da

    field, counts = opened(path)
    _, s, v = da.linalg.svd_compressed(weighted(field), k=K, n_power_iter=2, compute=True, seed=0)
    s, v = da.compute(s, v)
    return answer(s, v.T, counts, chunks_of(field))


def eofs_package(path: str) -> dict[str, Any]:
    """The eofs package on Dask."""
    from eofs.xarray import Eof

    field, counts = opened(path)
    weights = np.sqrt(np.cos(np.deg2rad(field.lat.values)))[:, None].astype("f4")
    solver = Eof(field, weights=weights)
    eofs = np.asarray(solver.eofs(neofs=K)).reshape(K, -1).T
    values = np.asarray(solver.eigenvalues(neigs=K)) * (field.shape[0] - 1)
    return answer(np.sqrt(values), eofs, counts, chunks_of(field))


TOOLS = {
    "streampca.PCA": ours,
    "streampca.PCA, randomized": lambda path: ours(path, svd_solver="randomized"),
    "streampca.PCA, in 800 MiB": lambda path: ours(path, memory_limit="800MiB"),
    "xeofs EOF, default": xeofs_defaults,
    "xeofs EOF, full": xeofs_full,
    "dask svd_compressed": svd_compressed,
    "eofs Eof on dask": eofs_package,
}


# -- measuring ----------------------------------------------------------------------


def run(name: str, path: str) -> None:
    """In the fresh process: one tool, then its errors against the reference."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_NBYTES, MOST_NBYTES))
    base = peak_mb()
    begun = time.perf_counter()
    found = TOOLS[name](path)
    row = {"seconds": time.perf_counter() - begun, "peak_mb": peak_mb(), "base_mb": base}
    values, eofs = np.asarray(found.pop("values"), "f8"), np.asarray(found.pop("eofs"), "f8")
    row |= found | errors(values, eofs, reference(Path(path).parent))
    print("RESULT " + json.dumps(row))


def errors(values: Any, eofs: Any, true: dict[str, Any]) -> dict[str, float]:
    """Largest relative error of an eigenvalue; largest angle between an EOF and its own."""
    eofs = eofs / np.linalg.norm(eofs, axis=0)
    along = np.sum(eofs * true["eofs"], axis=0)
    beside = np.linalg.norm(eofs - true["eofs"] * along, axis=0)
    return {
        "eigenvalue": float(np.max(np.abs(values**2 / true["values"][:K] - 1.0))),
        "angle": float(np.max(np.arctan2(beside, np.abs(along)))),
    }


def report(name: str, row: dict[str, Any], first: float) -> str:
    """One line of the table."""
    if "error" in row:
        return f"{name:<28}  not run: {row['error']}"
    return (
        f"{name:<28}{row['seconds']:>9.1f}{row['seconds'] / first:>8.1f}{row['peak_mb']:>9.0f}"
        f"{row['reads']:>8.2f}{row['most']:>6}{row['eigenvalue']:>12.1e}{row['angle']:>10.1e}"
        f"  {row.get('note', '')}"
    )


def measured(name: str, path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One line of the table, or why there is none."""
    own = name.startswith("streampca")
    try:
        return measure(
            "tests.benchmarks.climate",
            name,
            str(path),
            arguments.runs if own else 1,
            timeout=arguments.timeout,
            python=sys.executable if own else arguments.peer_python,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {arguments.timeout:g} s"}


def main() -> None:
    """Write both layouts once, run every tool on each, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs=3, default=[2000, 360, 720])
    parser.add_argument("--large", action="store_true", help="5000 x 720 x 360")
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--runs", type=int, default=3, help="processes of ours; peers run once")
    parser.add_argument("--only", nargs="*", choices=TOOLS)
    parser.add_argument("--folder", help="keep the data here, and use them again")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one process")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run(*arguments.child)
        return
    shape = (5000, 720, 360) if arguments.large else tuple(arguments.shape)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "reference.npz").exists():
            write(folder, shape)
        values = reference(folder)["values"]
        print("relative gaps below the modes:", np.round(1 - values[1:] / values[:-1], 4))
        rows = []
        for layout in arguments.layouts:
            print(f"\n{' x '.join(map(str, shape))} float32, chunked {layout}, {K} modes")
            print(
                f"{'':<28}{'seconds':>9}{'ratio':>8}{'peak MB':>9}{'reads':>8}{'most':>6}"
                f"{'eigenvalue':>12}{'angle':>10}"
            )
            first = None
            for name in arguments.only or TOOLS:
                row = measured(name, folder / LAYOUTS[layout], arguments)
                first = first or row.get("seconds")
                rows.append({"name": name, "layout": layout, **row})
                print(report(name, row, first or 1.0), flush=True)
        record(arguments.record, rows, "xeofs", "dask")


if __name__ == "__main__":
    main()
