"""Batches, covariates and weights by the name that they have in the source."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import streampca
from streampca import PCA
from streampca.errors import InvalidInputError
from tests.models.test_anndata_results import OBS, VAR, X, write

N, P = X.shape
pytestmark = pytest.mark.filterwarnings("ignore:these cells have raw counts")
BATCH = np.array(list("abcd") * (N // 4))
DEPTH = np.random.default_rng(0).uniform(1, 2, N)
WEIGHT = np.random.default_rng(1).uniform(1, 2, P)


def columns_into(root: Any) -> None:
    """obs: batch (a categorical) and depth; var: weight."""
    write(root)
    categories: Any = np.array(list("abcd"))
    text = np.dtypes.StringDType() if isinstance(root, zarr.Group) else "S"
    arrays = {
        "obs/batch/codes": np.searchsorted(categories, BATCH).astype("i1"),
        "obs/batch/categories": categories.astype(text),
        "obs/depth": DEPTH,
        "var/weight": WEIGHT,
    }
    for path, values in arrays.items():
        make = root.create_array if isinstance(root, zarr.Group) else root.create_dataset
        make(path, shape=values.shape, dtype=values.dtype)[...] = values


class InMemory:
    """What streampca asks of an AnnData, without the package."""

    __module__ = "anndata"
    isbacked, raw = False, None

    def __init__(self, rows: slice = slice(None)) -> None:
        self.X, self.layers = X[rows], {"counts": X[rows]}
        self.obs_names, self.var_names = OBS[rows], VAR
        batch = pd.Categorical(BATCH[rows])
        self.obs = pd.DataFrame({"batch": batch, "depth": DEPTH[rows]}, index=OBS[rows])
        self.var = pd.DataFrame({"weight": WEIGHT}, index=VAR)


@pytest.fixture(params=["h5ad", "zarr", "memory", "opened", "group", "derived", "labelled", "set"])
def cells(request: Any, tmp_path: Path, monkeypatch: Any) -> Any:
    """The same cells with their annotations, as they may come."""
    monkeypatch.setitem(sys.modules, "anndata", types.ModuleType("anndata"))
    dims = ("cell", "gene")
    array = xr.DataArray(
        X,
        dims=dims,
        coords={"batch": ("cell", BATCH), "depth": ("cell", DEPTH), "weight": ("gene", WEIGHT)},
    )
    if request.param == "memory":
        return InMemory()
    if request.param == "labelled":
        return array
    if request.param == "set":
        return xr.Dataset(
            {
                "counts": array.drop_vars(["batch", "depth"]),
                "batch": ("cell", BATCH),
                "depth": ("cell", DEPTH),
            }
        )[["counts", "batch", "depth"]]
    path = str(tmp_path / f"cells.{'zarr' if request.param in ('zarr', 'group') else 'h5ad'}")
    if path.endswith("zarr"):
        columns_into(zarr.create_group(path))
    else:
        with h5py.File(path, "w") as file:
            columns_into(file)
    if request.param == "group":
        return zarr.open_group(path, mode="r")
    if request.param == "derived":
        matrix = streampca.concat_samples(streampca.open(path), streampca.open(path))
        return streampca.matrix.select(matrix, samples=np.arange(N))
    return streampca.open(path) if request.param == "opened" else path


def fit(model: Any, cells: Any, **more: Any) -> Any:
    if isinstance(cells, xr.Dataset):
        cells = streampca.open(cells, variable="counts")
    return model.fit(cells, **more)


def test_what_is_removed_by_name_is_what_the_array_removes(cells: Any) -> None:
    for names, arrays in (
        ("batch", BATCH),
        (["batch", "depth"], [BATCH, DEPTH]),
        (["depth"], DEPTH),
        (["depth", BATCH], [DEPTH, BATCH]),
    ):
        found, expected = fit(PCA(3, remove=names), cells), PCA(3, remove=arrays).fit(X)
        np.testing.assert_allclose(
            found.explained_variance_, expected.explained_variance_, rtol=1e-5
        )
    assert found.result_.design.names == ("depth", "a", "b", "c", "d")


def test_weights_by_name(cells: Any) -> None:
    found = fit(PCA(3, weights="weight"), cells, sample_weight="depth")
    expected = PCA(3, weights=WEIGHT).fit(X, sample_weight=DEPTH)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)


def test_names_that_are_not_there(cells: Any) -> None:
    names = r"remove='bach'.*samples, which(?=.*batch).*depth"
    for remove in ("bach", ["batch", "bach"], ["bach", BATCH]):
        with pytest.raises(InvalidInputError, match=names):
            fit(PCA(2, remove=remove), cells)
    with pytest.raises(InvalidInputError, match=r"weights='wight'.*features, which.*weight"):
        fit(PCA(2, weights="wight"), cells)
    with pytest.raises(InvalidInputError, match=r"sample_weight='dep'.*samples, which.*depth"):
        fit(PCA(2), cells, sample_weight="dep")
    with pytest.raises(InvalidInputError, match=r"sample_weight='batch' holds .*expected numbers"):
        fit(PCA(2), cells, sample_weight="batch")


def test_new_rows_take_the_column_of_the_same_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "anndata", types.ModuleType("anndata"))
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        columns_into(file)
    model = PCA(2, remove=["batch", "depth"]).fit(str(tmp_path / "cells.h5ad"))
    model.save(tmp_path / "model")
    expected = PCA(2, remove=[BATCH, DEPTH]).fit(X)
    some = slice(10, 30)
    scores = expected.transform(X[some], remove=[BATCH[some], DEPTH[some]])
    labelled = xr.DataArray(
        X[some],
        dims=("cell", "gene"),
        coords={"batch": ("cell", BATCH[some]), "depth": ("cell", DEPTH[some])},
    )
    for one in (model, streampca.load(tmp_path / "model")):
        for rows in (InMemory(some), labelled):
            np.testing.assert_allclose(one.transform(rows), scores, atol=1e-4)
        given = {"remove": [BATCH[some], DEPTH[some]]}
        np.testing.assert_allclose(one.transform(X[some], **given), scores, atol=1e-4)
        mixed = one.transform(labelled, remove=["batch", DEPTH[some]])
        np.testing.assert_allclose(mixed, scores, atol=1e-4)
        with pytest.raises(InvalidInputError, match=r"remove='batch'.*which have none"):
            one.transform(X[some])
        back = one.inverse_transform(scores, **given)
        np.testing.assert_allclose(back, expected.inverse_transform(scores, **given), atol=1e-4)
    twice = PCA(2, remove=["batch", "depth"]).fit_transform(str(tmp_path / "cells.h5ad"))
    assert twice.shape == (N, 2)


def test_every_model_takes_weights_by_name() -> None:
    array = xr.DataArray(X + 0.1, dims=("cell", "gene"), coords={"often": ("cell", DEPTH)})
    for model in (
        streampca.TruncatedSVD(2),
        streampca.IncrementalPCA(2),
        streampca.PPCA(2),
        streampca.FactorAnalysis(1),
        streampca.HardImpute(1, max_passes=20, tol=1e-2),
        PCA(1, missing="impute", tol=1e-2),
    ):
        found = model.fit(array, sample_weight="often").result_.explained_variance
        expected = model.fit(array, sample_weight=DEPTH).result_.explained_variance
        np.testing.assert_allclose(found, expected)
    for of in (streampca.covariance, streampca.correlation):
        np.testing.assert_array_equal(
            of(array, sample_weight="often"), of(array, sample_weight=DEPTH)
        )


def test_files_with_dimensions(tmp_path: Path) -> None:
    time = pd.date_range("2000-01-01", periods=N, freq="D")
    data = xr.Dataset(
        {
            "sst": (("time", "lat", "lon"), X.reshape(N, 3, 4)),
            "ship": ("time", BATCH),
            "area": (("lon", "lat"), WEIGHT.reshape(3, 4).T),
        },
        {"time": time, "lat": [0.0, 1.0, 2.0], "lon": [0.0, 1.0, 2.0, 3.0]},
    )
    data.to_netcdf(tmp_path / "c.nc")
    data.to_zarr(tmp_path / "c.zarr", consolidated=False, zarr_format=2)
    expected = PCA(2, remove=[BATCH, "trend"], weights=WEIGHT).fit(data["sst"])
    for path in (tmp_path / "c.nc", tmp_path / "c.zarr"):
        matrix = streampca.open(path, variable="sst", dim="time")
        found = PCA(2, remove=["ship", "trend"], weights="area").fit(matrix)
        np.testing.assert_allclose(
            found.explained_variance_, expected.explained_variance_, rtol=1e-5
        )
        with pytest.raises(InvalidInputError, match=r"'time' holds dates.*'trend'"):
            PCA(2, remove="time").fit(matrix)


def test_texts_for_every_sample_are_levels() -> None:
    expected = PCA(2, remove=BATCH).fit(X)
    found = PCA(2, remove=BATCH.tolist()).fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
    with pytest.raises(InvalidInputError, match="remove='a'"):
        PCA(2, remove=["a", "b"]).fit(X)


def test_columns_stay_behind_when_a_matrix_travels(cells: Any) -> None:
    matrix = streampca.open(cells, variable="counts" if isinstance(cells, xr.Dataset) else None)
    assert {"batch", "depth"} <= set(matrix.column_names(0))
    travelled = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(travelled.read(0, 0, N), matrix.read(0, 0, N))
    assert travelled.annotations is None
