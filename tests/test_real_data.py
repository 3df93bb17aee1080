"""Published answers on real data (see the directory's own README for sources)."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import xarray

import streampca
from streampca import PCA
from streampca.errors import DominantFeatureWarning


def csv_table(path):
    """(row names, column names, values) of a CSV file with both."""
    with path.open() as file:
        rows = list(csv.reader(file))
    return [r[0] for r in rows[1:]], rows[0][1:], np.array([r[1:] for r in rows[1:]], dtype=float)


def test_usarrests(shared_data):
    _, names, X = csv_table(shared_data / "usarrests" / "USArrests.csv")
    model = PCA(scale="std").fit(X)
    np.testing.assert_allclose(
        model.explained_variance_ratio_, [0.62006039, 0.24744129, 0.0891408, 0.04335752], atol=5e-9
    )
    np.testing.assert_allclose(
        model.components_[0], [0.53589947, 0.58318363, 0.27819087, 0.54343209], atol=5e-9
    )
    np.testing.assert_allclose(
        np.sqrt(model.explained_variance_),
        [
            1.5908673 * np.sqrt(49 / 50),
            1.00496987 * np.sqrt(49 / 50),
            0.6031915 * np.sqrt(49 / 50),
            0.4206774 * np.sqrt(49 / 50),
        ],
        atol=5e-7,
    )
    with pytest.warns(DominantFeatureWarning):
        PCA(2).fit(X)
    assert names == ["Murder", "Assault", "UrbanPop", "Rape"]


def test_nci60(shared_data):
    X = np.load(shared_data / "nci60" / "NCI60data.npy")
    model = PCA(7, scale="std", ddof=0).fit(str(shared_data / "nci60" / "NCI60data.npy"))
    assert model.plan_.solver == "gram"
    np.testing.assert_allclose(
        model.explained_variance_ratio_[:5],
        [0.113589, 0.067562, 0.057518, 0.042476, 0.037350],
        atol=5e-7,
    )
    np.testing.assert_allclose(
        np.sqrt(model.explained_variance_[:5]),
        [27.853469, 21.481355, 19.820465, 17.032556, 15.971807],
        atol=5e-6,
    )
    assert model.explained_variance_ratio_.sum() == pytest.approx(0.3853, abs=5e-5)
    np.testing.assert_allclose(model.transform(X), model.result_.scores, atol=1e-10)


def test_scanpy_counts_in_zarr_v2(shared_data):
    path = str(shared_data / "scanpy_10x10k" / "10x-10k-subset.zarr")
    matrix = streampca.open(path, variable="X")
    with pytest.warns(UserWarning, match="these cells have raw counts"):
        model = PCA(10).fit(matrix)
    X = matrix.read(0, 0, 10_000).astype("f8")
    variance = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    np.testing.assert_allclose(model.explained_variance_, variance[:10], rtol=1e-5)
    np.testing.assert_allclose(model.result_.total_variance, variance.sum(), rtol=1e-6)
    assert sum(c.reads for c in model.cost_) == model.plan_.reads == 5


def test_sea_surface_temperature_leaves_land_out_by_name(shared_data):
    path = shared_data / "climate" / "sst.mnmean.nc"
    matrix = streampca.open(path, variable="sst", dim="time")
    model = PCA(5).fit(matrix)
    assert "5032 without observation (land?)" in model.result_.notes()[0]
    X = matrix.read(0, 0, 128).astype("f8")
    land = np.isnan(X).all(axis=0)
    assert np.array_equal(np.flatnonzero(land), model.result_.dropped)
    sea = X[:, ~land]
    s = np.linalg.svd(sea - sea.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(model.explained_variance_, s[:5] ** 2 / 127, rtol=1e-5)
    np.testing.assert_allclose(model.result_.total_variance, np.sum(s**2) / 127, rtol=1e-5)
    assert np.all(model.components_[:, land] == 0)


@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
def test_el_nino_without_the_seasonal_cycle(shared_data):
    with xarray.open_dataset(shared_data / "climate" / "sst.mnmean.nc") as dataset:
        sst = dataset.sst.sel(time=slice("2010", "2019")).load()
    pacific = sst.sel(lat=slice(20, -20), lon=slice(120, 290))
    box = sst.sel(lat=slice(5, -5), lon=slice(190, 240)).mean(("lat", "lon"))
    anomaly = box.groupby("time.month") - box.groupby("time.month").mean()
    for solver, passes in (("auto", 2), ("scatter", 1)):
        part = pacific if solver == "auto" else pacific.isel(lon=slice(None, None, 4))
        plain = PCA(2, weights="coslat", svd_solver=solver).fit(part, dim="time")
        model = PCA(2, weights="coslat", remove="month", svd_solver=solver).fit(part, dim="time")
        assert len(model.plan_.passes) == passes  # of which one is for the components
        first = model.transform(part)[:, 0]
        if solver == "auto":
            assert 100 * model.explained_variance_ratio_[0] == pytest.approx(58.2, abs=0.05)
            assert abs(np.corrcoef(first, anomaly)[0, 1]) == pytest.approx(0.964, abs=5e-4)
            assert 100 * plain.explained_variance_ratio_[0] == pytest.approx(62.5, abs=0.05)
            correlation = np.corrcoef(plain.transform(part)[:, 0], box)[0, 1]
            assert abs(correlation) == pytest.approx(0.320, abs=5e-4)
        else:
            assert abs(np.corrcoef(first, anomaly)[0, 1]) > 0.95
        X = part.values.reshape(120, -1).astype("f8").reshape(10, 12, -1)
        weights = np.sqrt(np.cos(np.deg2rad(part.lat.values)))
        X = ((X - X.mean(axis=0)).reshape(120, len(weights), -1) * weights[:, None]).reshape(
            120, -1
        )
        sea = X[:, ~np.isnan(X).any(axis=0)]
        variance = np.linalg.svd(sea, compute_uv=False) ** 2 / 119
        np.testing.assert_allclose(model.explained_variance_, variance[:2], rtol=1e-5)
        np.testing.assert_allclose(model.result_.total_variance, variance.sum(), rtol=1e-5)


def test_deerwester(shared_data):
    _, names, X = csv_table(shared_data / "deerwester9" / "counts.csv")
    published = [3.3409, 2.5417, 2.3539, 1.6445, 1.5048, 1.3064, 0.8459, 0.5601, 0.3637]
    for matrix in (X, X.T):
        for solver in ("scatter", "tsqr", "gram"):
            model = PCA(None, center=False, ddof=0, svd_solver=solver).fit(matrix)
            np.testing.assert_allclose(model.singular_values_[:9], published, atol=5e-5)
    assert len(names) == 9
