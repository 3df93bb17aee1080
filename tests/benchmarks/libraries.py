"""What is written here although a library has it, beside that library: why it stays.

``python -m tests.benchmarks.libraries`` prints seconds and memory of

- the arrays of a version (``store/plain_arrays``) beside Zarr, and a chunk that swells;
- AnnData on disk (``sources/anndata``, ``store/anndata``) beside the package anndata;
- times (``sources/cf``) beside xarray, and packed values in pieces.

anndata is measured where it is installed (``pip install anndata``).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

RUNS = 5
PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
UNITS = {"units": "hours since 1900-01-01", "calendar": "standard"}
IMPORT = """
import time, zarr
from pathlib import Path
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
held, begun = resident(), time.perf_counter()
import {0}
print(time.perf_counter() - begun, resident() - held)
"""


def median_seconds(run: Callable[[], object]) -> float:
    taken = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def peak_mb(run: Callable[[], object]) -> float:
    """Of what is allocated meanwhile, the result among it."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def report(what: str, seconds: float, mb: float | None = None) -> None:
    print(f"  {what:<44}{1e3 * seconds:9.2f} ms" + ("" if mb is None else f"{mb:9.1f} MB"))


def version_of_a_model() -> dict[str, Any]:
    """Twenty arrays, as a PCA of 512 features keeps them."""
    rng = np.random.default_rng(0)
    shapes = [(20, 512), (20, 512), *[(512,)] * 8, *[(20,)] * 8, (), ()]
    return {f"array{i}": rng.normal(size=shape) for i, shape in enumerate(shapes)}


def arrays() -> None:
    import zarr

    from streampca.store.array_files import decode_array, find_array, write_array

    made, ours, theirs = version_of_a_model(), {}, {}
    codecs = [zarr.codecs.ZstdCodec(level=3), zarr.codecs.Crc32cCodec()]

    def write_ours() -> None:
        for name, values in made.items():
            write_array(ours.__setitem__, name, values)

    def write_theirs() -> None:
        theirs.clear()
        group = zarr.open_group(zarr.storage.MemoryStore(theirs), mode="w")
        for name, values in made.items():
            group.create_array(name, data=values, chunks=values.shape, compressors=codecs)

    def read_ours() -> None:
        for name in made:
            get = lambda path, most: ours[path]  # noqa: E731
            decode_array(get, find_array(get, ours, name))

    def read_theirs() -> None:
        group = zarr.open_group(zarr.storage.MemoryStore(theirs), mode="r")
        for name in made:
            group[name][...]

    print("Twenty arrays of a version")
    report("written here", median_seconds(write_ours))
    report("written by Zarr", median_seconds(write_theirs))
    report("read here", median_seconds(read_ours))
    report("read by Zarr", median_seconds(read_theirs))
    swelling()


def swelling() -> None:
    """A chunk of zeros that decodes to 512 MiB: what its reader takes."""
    import zarr

    store: dict[str, Any] = {}
    shape = (1 << 26,)
    made = zarr.create_array(
        zarr.storage.MemoryStore(store),
        shape=shape,
        chunks=shape,
        dtype="f8",
        config={"write_empty_chunks": True},
    )
    made[...] = 0.0
    seconds = median_seconds(lambda: made[...])
    report(f"a chunk of {len(store['c/0'])} bytes by Zarr", seconds, peak_mb(lambda: made[...]))


def imports() -> None:
    print("Imported beside Zarr")
    for name in ("h5py", "anndata", "xarray"):
        if find_spec(name) is None:
            print(f"  {name} is not installed")
            continue
        found = []
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", IMPORT.format(name)],
                capture_output=True,
                text=True,
                check=True,
            )
            found.append(tuple(map(float, done.stdout.split())))
        report(name, *sorted(found)[1])


def elements() -> None:
    """Scores and a dictionary into an .h5ad, written here and by anndata, which must read both."""
    if find_spec("anndata") is None:
        return
    import anndata
    import h5py

    from streampca.store.anndata import write_elements

    scores = np.random.default_rng(0).normal(size=(500_000, 50)).astype(np.float32)
    made = {"obsm/X_pca": scores, "uns/pca": {"variance": np.arange(50.0), "params": {"k": 50}}}

    def ours(file: Any) -> None:
        write_elements(file, made, overwrite=True)

    def theirs(file: Any) -> None:
        for name, value in made.items():
            anndata.io.write_elem(file, name, value)

    def write(way: Callable[[Any], None], folder: str) -> None:
        with h5py.File(f"{folder}/x.h5ad", "r+") as file:
            way(file)

    print("Scores of 100 MB into an .h5ad")
    for name, way in (("written here", ours), ("written by anndata", theirs)):
        with tempfile.TemporaryDirectory() as folder:
            anndata.AnnData(obs={"i": range(len(scores))}).write_h5ad(f"{folder}/x.h5ad")
            report(name, median_seconds(lambda: write(way, folder)))  # noqa: B023
            read = anndata.read_h5ad(f"{folder}/x.h5ad")
            np.testing.assert_array_equal(read.obsm["X_pca"], scores)
            np.testing.assert_array_equal(read.uns["pca"]["variance"], np.arange(50.0))


def packing() -> None:
    import xarray

    from streampca.sources.cf import Decoding, decode_coordinate

    rng = np.random.default_rng(0)
    stored = rng.integers(-20000, 20000, (64, 361, 720)).astype(np.int16)  # 33 MB
    hours = np.arange(1_000_000, dtype=np.int32)
    packed = Decoding.of(PACKED, stored.dtype)
    assert packed is not None

    def pieces() -> Any:
        return packed.decode(stored)

    def at_once() -> Any:
        variable = xarray.Variable(("time", "lat", "lon"), stored, PACKED)
        return xarray.conventions.decode_cf_variable("t", variable).values

    def times() -> Any:
        return xarray.coders.CFDatetimeCoder().decode(xarray.Variable("time", hours, UNITS)).values

    print("Packed values, 33 MB of int16, and a million times")
    for name, run in (("by xarray, in pieces", pieces), ("by xarray, at once", at_once)):
        report(f"{name}, to {run().dtype}", median_seconds(run), peak_mb(run))
    np.testing.assert_array_equal(pieces(), at_once())
    report("times here", median_seconds(lambda: decode_coordinate(hours, UNITS)))
    report("times by xarray", median_seconds(times))
    np.testing.assert_array_equal(decode_coordinate(hours, UNITS), times())


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    arrays()
    imports()
    elements()
    packing()


if __name__ == "__main__":
    main()
