"""New data with named dimensions may have them in any order."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError

rng = np.random.default_rng(0)
FIELD = xr.DataArray(
    rng.standard_normal((30, 4, 5)),
    dims=("time", "lat", "lon"),
    coords={
        "time": pd.date_range("2000", periods=30),
        "lat": np.arange(4.0),
        "lon": np.arange(5.0),
    },
    name="sst",
)
ORDERS = list(itertools.permutations(FIELD.dims))
TURNED = FIELD.transpose("lon", "lat", "time")


@pytest.fixture(scope="module")
def model() -> Any:
    return streampca.PCA(3).fit(FIELD, dim="time")


@pytest.mark.parametrize("order", ORDERS)
def test_scores_are_the_same_in_any_order(model: Any, order: Any) -> None:
    turned, expected = FIELD.transpose(*order), model.transform(FIELD)
    xr.testing.assert_allclose(model.transform(turned), expected)
    xr.testing.assert_allclose(model.transform(turned.chunk(5)), expected)
    xr.testing.assert_allclose(model.project(turned, 1), model.project(FIELD, 1))
    for name in ("score", "score_samples", "reconstruction_error", "r2_curve"):
        np.testing.assert_allclose(getattr(model, name)(turned), getattr(model, name)(FIELD))
    whole = model.inverse_transform(expected.transpose())
    assert whole.dims == FIELD.dims
    xr.testing.assert_allclose(whole, model.inverse_transform(expected))


def test_one_field_without_samples(model: Any) -> None:
    field = FIELD.isel(time=3)
    xr.testing.assert_allclose(model.project(field.transpose()), model.project(field))


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_every_model() -> None:
    for one in (
        streampca.IncrementalPCA(2),
        streampca.PPCA(2),
        streampca.FactorAnalysis(1),
        streampca.TruncatedSVD(2),
        streampca.PCA(2, remove="trend", weights="coslat", whiten=True),
        streampca.HardImpute(1, max_passes=9, tol=0.1),
    ):
        one.fit(FIELD, dim="time")
        xr.testing.assert_allclose(one.transform(TURNED), one.transform(FIELD))
    holes = FIELD.where(FIELD < 1.5)
    completion = streampca.HardImpute(1, max_passes=50, tol=1e-3).fit(holes, dim="time")
    filled = completion.impute(holes.transpose("lon", "time", "lat"))
    xr.testing.assert_allclose(filled, completion.impute(holes))


def test_later_batches() -> None:
    whole = streampca.IncrementalPCA(2).fit(FIELD, dim="time")
    parts = streampca.IncrementalPCA(2).fit(FIELD[:15], dim="time")
    parts.partial_fit(FIELD[15:].transpose("lon", "lat", "time"))
    np.testing.assert_allclose(parts.explained_variance_, whole.explained_variance_)
    parts = streampca.IncrementalPCA(2).fit(FIELD[:15], dim="time")
    parts.partial_fit(FIELD[15:].stack(space=("lon", "lat")))
    np.testing.assert_allclose(parts.explained_variance_, whole.explained_variance_)


def test_several_sample_dimensions() -> None:
    fitted = streampca.PCA(2).fit(FIELD, dim=("time", "lat"))
    expected = fitted.transform(FIELD)
    xr.testing.assert_allclose(fitted.transform(TURNED).transpose(*expected.dims), expected)


def test_datasets_and_files(model: Any, tmp_path: Path) -> None:
    both = xr.Dataset({"a": FIELD, "b": FIELD**2})
    fitted = streampca.PCA(3).fit(both, dim="time")
    expected = fitted.transform(both)
    mixed = xr.Dataset(
        {"b": both.b.transpose("lon", "time", "lat"), "a": both.a.transpose("lat", "lon", "time")}
    )
    for new in (both.transpose("lon", "lat", "time"), mixed):
        xr.testing.assert_allclose(fitted.transform(new), expected)
    TURNED.to_netcdf(tmp_path / "x.nc")
    TURNED.to_dataset().to_zarr(tmp_path / "x.zarr", consolidated=False, zarr_format=2)
    for path in (tmp_path / "x.nc", tmp_path / "x.zarr"):
        matrix = streampca.open(path, variable="sst", dim="time")
        np.testing.assert_allclose(model.transform(matrix), model.transform(FIELD), atol=1e-12)
        expected_map = model.transform(FIELD)
        later = streampca.open(str(path), variable="sst", dim="time")
        twice = streampca.concat_samples(later, later)
        np.testing.assert_allclose(model.transform(twice)[:30], expected_map, atol=1e-12)


def test_other_names_or_coordinates_are_refused(model: Any) -> None:
    with pytest.raises(InvalidInputError, match="not those of the fit"):
        model.transform(TURNED.assign_coords(lat=np.arange(4.0) + 1))
    with pytest.raises(InvalidInputError):
        model.transform(TURNED.rename(lat="y"))


@pytest.mark.parametrize("chunked", [False, True])
def test_stacked_features_and_grids(model: Any, chunked: bool, tmp_path: Path) -> None:
    new = FIELD.chunk(time=10) if chunked else FIELD
    stacked = FIELD.stack(space=("lat", "lon"))
    flat = streampca.PCA(3).fit(stacked, dim="time")
    expected = flat.transform(stacked)
    flat.save(tmp_path / "flat")
    backwards = new.stack(space=("lat", "lon"))[:, ::-1]
    grids = (new, new.transpose("lon", "time", "lat"), new.stack(space=("lon", "lat")), backwards)
    for one in (flat, streampca.load(tmp_path / "flat")):
        for source in grids:
            np.testing.assert_allclose(one.transform(source), expected)
    for source in (stacked, new.stack(space=("lon", "lat"))):
        np.testing.assert_allclose(model.transform(source), model.transform(FIELD))
    both = xr.Dataset({"a": FIELD, "b": FIELD**2})
    fitted = streampca.PCA(3).fit(both, dim="time")
    np.testing.assert_allclose(
        fitted.transform(both.stack(space=("lon", "lat"))), fitted.transform(both)
    )
    with pytest.raises(InvalidInputError, match="expecting 20 features"):
        flat.transform(new[:, :3])
