"""Files joined along samples or features, and files that hold one array among others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr

import streampca
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, SourceError

X = np.random.default_rng(0).standard_normal((30, 4)) + 5


def year(number: int, seed: int = 0, **more: Any) -> Any:
    """Twelve months of a field of 3 x 4."""
    field = np.random.default_rng(number + seed).standard_normal((12, 3, 4))
    months = np.arange(f"{number}-01", f"{number + 1}-01", dtype="M8[M]").astype("M8[ns]")
    coords = {"time": months, "lat": [0.0, 1.0, 2.0], "lon": [0.0, 90.0, 180.0, 270.0]} | more
    return xarray.DataArray(field, coords, ("time", "lat", "lon"), "sst", {"units": "K"})


def write(folder: Path, *arrays: Any) -> list[str]:
    paths = [str(folder / f"sst_{2000 + i}.nc") for i in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        array.to_netcdf(path, engine="scipy")
    return paths


def test_years_are_joined_along_time(tmp_path: Path, capsys: Any) -> None:
    years = [year(2000), year(2001), year(2002)]
    paths = write(tmp_path, *years)
    whole = xarray.concat(years, "time")
    expected = streampca.PCA(2).fit(whole)
    for source in (paths, str(tmp_path / "sst_*.nc")):
        matrix = streampca.open(source)
        assert matrix.shape == (36, 12)
        np.testing.assert_array_equal(matrix.labels.samples.coords["time"], whole.time)
        model = streampca.PCA(2).fit(matrix)
        np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_)
        assert "3 files joined along their samples" in str(streampca.PCA(2).plan(matrix))
    assert main(["fit", *paths, "-k", "2"]) == 0
    assert "3 files joined along their samples" in capsys.readouterr().out
    assert main(["info", *paths, "--join", "features"]) != 0
    assert "the same samples" in capsys.readouterr().err


def test_files_of_the_same_samples_are_joined_along_features(tmp_path: Path) -> None:
    paths = write(tmp_path, year(2000), year(2000, seed=1))
    matrix = streampca.open(paths)
    assert matrix.shape == (12, 24)
    assert "along their features (join='samples' joins their samples)" in matrix.note
    assert streampca.open(paths, join="samples").shape == (24, 12)
    with pytest.raises(InvalidInputError, match="expected 'samples' or 'features'"):
        streampca.open(paths, join="rows")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"lat": [0.0, 1.0, 3.0]}, "feature 9 is lat=2.0, lon=0.0 in one and lat=3.0"),
        ({"time": year(2000).time.values + np.timedelta64(31, "D")}, "is in two of them"),
    ],
)
def test_what_fits_neither_way_says_why(other: Any, why: str, tmp_path: Path) -> None:
    paths = write(tmp_path, year(2000), year(2001, **other))
    with pytest.raises(SourceError, match=rf"sample 1 is .*{why}.*join='samples'"):
        streampca.open(paths)


def test_units_that_differ_are_no_more_of_the_same(tmp_path: Path) -> None:
    warm = year(2001)
    warm.attrs["units"] = "degC"
    with pytest.raises(InvalidInputError, match=r"units 'K' and .* has 'degC'"):
        streampca.open(write(tmp_path, year(2000), warm), join="samples")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("nc", "name"),
        ("nc", "standard_name"),
        ("zarr", "name"),
        ("hdf5", "name"),
        ("hdf5", "units"),
    ],
)
def test_rows_of_another_field_are_refused_by_name(kind: str, what: str, tmp_path: Path) -> None:
    """A pattern that matches air, uwnd, air; side by side they are features of one matrix."""
    air, wind = {"standard_name": "air_temperature", "units": "K"}, "eastward_wind"
    for i in range(3):
        array = year(2000 + i)
        array.attrs = dict(air)
        if i == 1 and what != "name":
            array.attrs[what] = {"standard_name": wind, "units": "m s-1"}[what]
        there = array.rename("uwnd" if i == 1 and what == "name" else "air").to_dataset()
        path = str(tmp_path / f"{i}.{kind}")
        if kind == "zarr":
            there.to_zarr(path, consolidated=False)
        elif kind == "hdf5":
            with h5py.File(path, "w") as file:
                for name, one in there.data_vars.items():
                    file[name] = one.values
                    file[name].attrs.update(one.attrs)
        else:
            there.to_netcdf(path, engine="h5netcdf")
    paths = [str(tmp_path / f"{i}.{kind}") for i in range(3)]
    dim = {"dim": 0} if kind == "hdf5" else {"dim": "time"}
    shown = {
        "name": "variable 'air' and .* has 'uwnd'",
        "units": "units 'K' and .* has 'm s-1'",
        "standard_name": "air_temperature' and .* has 'eastward_wind'",
    }[what]
    for source in (paths, str(tmp_path / f"*.{kind}")):
        with pytest.raises(InvalidInputError, match=shown):
            streampca.open(source, **dim)
    assert streampca.open([paths[0], paths[2]], **dim).shape == (24, 12)
    if what == "name":  # which a producer may have changed
        assert streampca.open(paths, join="samples", **dim).shape == (36, 12)
    else:
        with pytest.raises(InvalidInputError, match=shown):
            streampca.open(paths, join="samples", **dim)
    if kind == "hdf5":
        assert streampca.open(paths, join="features", **dim).shape == (12, 36)


def test_batches_without_names(tmp_path: Path) -> None:
    paths = []
    for i, (a, b) in enumerate([(0, 10), (10, 20), (20, 30)]):
        np.save(tmp_path / f"{i}.npy", X[a:b])
        array = zarr.create_array(str(tmp_path / f"{i}.zarr"), data=X[a:b])
        assert array.shape == (b - a, 4)
        paths.append(str(tmp_path / f"{i}.npy"))
    for source in (paths, str(tmp_path / "*.npy"), str(tmp_path / "*.zarr")):
        matrix = streampca.open(source)
        np.testing.assert_array_equal(matrix.read(0, 0, 30), X)
        assert "3 files joined along their samples" in matrix.note
    assert streampca.open(paths, join="features").shape == (10, 12)
    np.save(tmp_path / "3.npy", X[:5, :3])
    with pytest.raises(InvalidInputError, match=r"4 and 3 features.*join="):
        streampca.open(str(tmp_path / "*.npy"))


def test_one_dataset_of_hdf5(tmp_path: Path) -> None:
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("inner/data", data=X, chunks=(10, 4))
        file["times"] = np.arange(30.0)
        file["names"] = ["a", "b"]
    np.testing.assert_array_equal(streampca.open(path).read(0, 3, 30), X[3:])
    assert streampca.open(path, dim=1).shape == (4, 30)
    with h5py.File(path, "a") as file:
        file["other"] = X[:, :2]
    with pytest.raises(InvalidInputError, match=r"inner/data \(30, 4\).*variable='inner/data'"):
        streampca.open(path)
    with pytest.raises(InvalidInputError, match="no 'missing'"):
        streampca.open(path, variable="missing")
    assert streampca.open(path, variable="other").shape == (30, 2)
    with h5py.File(tmp_path / "none.hdf5", "w") as file:
        file["names"] = ["a", "b"]
    with pytest.raises(SourceError, match="has no datasets of numbers"):
        streampca.open(tmp_path / "none.hdf5")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_in_npz(save: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "x.npz")
    for x in (X, np.asfortranarray(X)):
        save(path, x)
        matrix = streampca.open(path)
        np.testing.assert_array_equal(matrix.read(0, 3, 30), X[3:])
        assert matrix.resident_nbytes == (0 if save is np.savez else X.nbytes)
    save(path, a=X, b=X[:, :2])
    with pytest.raises(InvalidInputError, match=r"several arrays; it holds a, b.*variable='a'"):
        streampca.open(path)
    assert streampca.open(path, variable="b").shape == (30, 2)
    with pytest.raises(InvalidInputError, match="no array 'c'"):
        streampca.open(path, variable="c")
