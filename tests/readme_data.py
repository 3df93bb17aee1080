"""Small sources under the names that the documentation uses."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse
import xarray as xr
import zarr
from PIL import Image

from tests.genotypes import random_calls, sample_names, write_plink, write_vcf


def write_all(folder: Path) -> None:
    """Every file that a command or snippet reads."""
    rng = np.random.default_rng(0)
    shapes = {"matrix": (400, 60), "new": (50, 60), "large": (400, 300)}
    shapes |= {"genes": (60, 12), "lipids": (60, 8)}
    for name, (n, p) in shapes.items():
        write_zarr(folder / f"{name}.zarr", rng.normal(size=(n, p)) * np.linspace(3, 1, p))
    shutil.copytree(folder / "matrix.zarr", folder / "data" / "matrix.zarr")
    (folder / "faces").mkdir()
    for i, face in enumerate(rng.integers(0, 256, (80, 8, 8), dtype=np.uint8)):
        Image.fromarray(face).save(folder / "faces" / f"{i}.png")
    write_articles(folder / "articles", rng)
    write_climate(folder, rng)
    write_genotypes(folder)
    write_cells(folder / "cells.h5ad", rng)
    low = rng.normal(size=(90, 2)) @ rng.normal(size=(2, 40)) + 0.1 * rng.normal(size=(90, 40))
    write_zarr(folder / "holes.zarr", np.where(rng.random(low.shape) < 0.2, np.nan, low))
    stars = scipy.sparse.random_array((120, 40), density=0.5, rng=rng, format="csr")
    stars.data = rng.integers(1, 6, stars.nnz).astype(np.float64)
    stars.sort_indices()
    scipy.io.mmwrite(folder / "ratings.mtx", stars)
    rows, columns = stars.nonzero()
    lines = zip(rows, columns, stars.data, strict=True)
    text = "".join(f"{i},{j},{x:g}\n" for i, j, x in lines)
    (folder / "ratings.csv").write_text(f"user,item,rating\n{text}")
    scipy.io.mmwrite(folder / "matrix.mtx", stars.T)
    packed = (folder / "matrix.mtx").read_bytes()
    (folder / "matrix.mtx.gz").write_bytes(gzip.compress(packed))
    scipy.sparse.save_npz(folder / "x.npz", stars)


def write_zarr(path: Path, values: np.ndarray) -> None:
    array = zarr.create_array(path, shape=values.shape, chunks=(50, values.shape[1]), dtype="f8")
    array[:] = values


def write_articles(folder: Path, rng: np.random.Generator) -> None:
    """130 short texts of 200 words, in files and in a column of a table."""
    folder.mkdir()
    lines = []
    for i in range(130):
        words = [f"word{j}" for j in rng.integers(0, 200, 60)]
        (folder / f"{i}.txt").write_text(" ".join(words))
        lines.append(f"{2000 + i % 20},{' '.join(words)}\n")
    folder.with_suffix(".csv").write_text("year,text\n" + "".join(lines))


def write_climate(folder: Path, rng: np.random.Generator) -> None:
    """Two variables of 48 months on a small grid, and weights of the months."""
    months = pd.date_range("2000-01-01", periods=48, freq="MS")
    fields = {
        name: (("time", "lat", "lon"), rng.normal(size=(48, 5, 6))) for name in ("sst", "slp")
    }
    coords = {"time": months, "lat": np.linspace(-60, 60, 5), "lon": np.arange(6.0)}
    whole = xr.Dataset(fields, coords)
    whole.to_netcdf(folder / "climate.nc", engine="h5netcdf")
    for name, part in (("sst_1", slice(24)), ("sst_2", slice(24, None))):
        whole.isel(time=part).to_netcdf(folder / f"{name}.nc", engine="h5netcdf")
    rows = "".join(f"{month:%Y-%m-%d},{1 + i % 2}\n" for i, month in enumerate(months))
    (folder / "weights.csv").write_text("time,weight\n" + rows)


def write_genotypes(folder: Path) -> None:
    calls = random_calls(80, 600, missing=0.02)
    for number, part in enumerate(np.split(calls, 2, axis=1), 1):
        ids = [f"rs{number}_{i}" for i in range(300)]
        write_plink(folder / f"chr{number}", part, ids=ids, chromosomes=[str(number)] * 300)
    chromosomes = ["1"] * 300 + ["2"] * 300
    ids = [f"rs{1 + i // 300}_{i % 300}" for i in range(600)]
    write_plink(folder / "x", calls, ids=ids, chromosomes=chromosomes)
    write_vcf(folder / "x.vcf.gz", calls)
    new = random_calls(20, 600, seed=1)
    named = [f"new{i}" for i in range(20)]
    write_plink(folder / "new", new, ids=ids, chromosomes=chromosomes, samples=named)
    people = sample_names(80)
    (folder / "unrelated.txt").write_text("".join(f"{s} {s}\n" for s in people[:70]))
    groups = "".join(f"{s}\t{'AB'[i % 2]}\n" for i, s in enumerate(people))
    (folder / "populations.txt").write_text("sample\tpop\n" + groups)


def write_cells(path: Path, rng: np.random.Generator) -> None:
    """Counts of 120 cells x 2100 genes as AnnData, with a batch for each cell."""
    counts = scipy.sparse.csr_array(rng.poisson(0.2, (120, 2100)).astype(np.float32))
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        x = file.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "shape": counts.shape})
        for name in ("data", "indices", "indptr"):
            x.create_dataset(name, data=getattr(counts, name))
        for name, size in {"obs": 120, "var": 2100}.items():
            table = file.create_group(name)
            table.attrs.update({"encoding-type": "dataframe", "_index": "names"})
            table.create_dataset("names", data=np.array([f"{name}{i}" for i in range(size)], "S"))
        file.create_dataset("obs/batch", data=np.arange(120) % 3)
