"""Sheets of lags and levels, projections, significance in maps, and fields in time."""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import PCA, plots
from streampca.errors import InvalidInputError, InvalidTypeError, MissingDependencyError

LAT, LON = np.array([-40.0, 0, 40]), np.arange(0.0, 360, 60)


@pytest.fixture(scope="module")
def field() -> xr.DataArray:
    time = xr.date_range("2000-01-01", periods=48, freq="MS", calendar="noleap", use_cftime=True)
    values = np.random.default_rng(0).normal(size=(48, 2, 3, 6))
    values[:, :, 0, 0] = np.nan
    coords = {"time": time, "plev": [500.0, 850.0], "lat": LAT, "lon": LON}
    attrs = {"units": "K", "long_name": "temperature"}
    return xr.DataArray(values, coords, ("time", "plev", "lat", "lon"), "ta", attrs)


@pytest.fixture(scope="module")
def model(field: xr.DataArray) -> PCA:
    return PCA(3, solver="gram", weights="coslat", progress=False).fit(field)


def titles(frame: plt.Axes) -> list[str]:
    return [one.get_title(loc="left") for one in frame.child_axes if one.get_title(loc="left")]


def test_levels_are_a_sheet_with_a_map_each(model: PCA) -> None:
    frame = plots.map(model, 2, level=[500.0, 850.0])
    assert titles(frame) == ["plev 500.0", "plev 850.0"]
    assert frame.get_title(loc="left").startswith("EOF2")
    eofs = model.eof_.eofs().sel(component=2)
    for panel, level in zip(frame.child_axes, (500.0, 850.0), strict=False):
        drawn = panel.collections[0].get_array().filled(np.nan)
        np.testing.assert_array_equal(drawn, eofs.sel(plev=level))
    both = plots.map(model, [1, 3], level=[850.0, 500.0])
    assert [one.split(",")[1:] for one in titles(both)] == [[" plev 850.0"], [" plev 500.0"]] * 2
    assert plots.map(model, 1, level=850.0).get_title(loc="left").startswith("EOF1")
    with pytest.raises(InvalidInputError, match=r"level=700; plev has 500.0, 850.0"):
        plots.map(model, 1, level=[500.0, 700])


def test_lags_are_a_sheet(field: xr.DataArray) -> None:
    films = streampca.lagged(field.sel(plev=500.0, drop=True), (0, 6), dim="time")
    frame = plots.map(PCA(2, solver="gram", progress=False).fit(films), 1, lag=(0, 6))
    assert titles(frame) == ["lag 0", "lag 6"]


def test_bars_below_noise_are_pale(model: PCA) -> None:
    noise = streampca.noise_test(model, n_surrogates=50)
    ax = plots.scree(model, noise=noise)
    above = model.explained_variance_ratio_ > noise.quantile()
    assert [bar.get_alpha() == 1.0 for bar in ax.patches] == above.tolist()
    with pytest.raises(InvalidTypeError, match=r"streampca\.noise_test\(model\)"):
        plots.scree(model, noise=3)
    with pytest.raises(InvalidInputError, match="of another model"):
        plots.scree(PCA(3).fit(np.eye(9)), noise=noise)


def test_correlations_that_are_not_significant_are_pale(field: xr.DataArray) -> None:
    one = field.sel(plev=500.0, drop=True).fillna(0.0)
    found = streampca.correlation_maps(one, one.isel(lat=1, lon=2))
    ax = plots.map(found)
    veil = ax.collections[1].get_array()
    pale = (found.adjusted_p_values >= 0.1).reshape(3, 6)  # not where nothing varies
    np.testing.assert_array_equal(~np.ma.getmaskarray(veil), pale)
    assert not pale[1, 2]
    assert "pale: not significant" in ax.get_title(loc="left")


def test_a_field_in_time(field: xr.DataArray, model: PCA) -> None:
    made = model.reconstruct([1, 2], mean=False).sel(plev=850.0)
    ax = plots.hovmoeller(made.transpose("lon", "time", "lat"), between=(-10, 50))
    weights = np.cos(np.deg2rad(LAT[1:]))
    told = (made.values[:, 1:] * weights[:, None]).sum(axis=1) / weights.sum()
    np.testing.assert_allclose(ax.collections[0].get_array(), told, atol=1e-12)
    assert ax.get_title(loc="left") == "Mean from 10°S to 50°N"
    upright = plots.hovmoeller(made, "latitude").collections[0].get_array()
    np.testing.assert_allclose(upright, np.nanmean(made.values, axis=2).T, atol=1e-12)
    for wrong, message in (
        ({"along": "time"}, "along='time'; expected"),
        ({"between": (60, 70)}, r"lat runs from -40 to 40"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            plots.hovmoeller(made, **wrong)
    with pytest.raises(InvalidInputError, match=r"field\.sel\(time=|field\.sel\(plev="):
        plots.hovmoeller(field)
    with pytest.raises(InvalidTypeError, match="got a ndarray"):
        plots.hovmoeller(field.values)


def test_projections_are_those_of_cartopy(model: PCA) -> None:
    crs = pytest.importorskip("cartopy.crs", reason="cartopy is not installed")
    ax = plots.map(model, 1, level=500.0, projection="Robinson", coastlines=False)
    assert isinstance(ax.projection, crs.Robinson)
    frame = plots.map(model, [1, 2], level=500.0, projection=crs.PlateCarree(), coastlines=False)
    assert sum(hasattr(one, "projection") for one in frame.figure.axes) == 2
    with pytest.raises(InvalidInputError, match="projection='Flat'; expected the name"):
        plots.map(model, 1, level=500.0, projection="Flat")
    with pytest.raises(InvalidTypeError, match="subplot_kw"):
        plots.map(model, 1, level=500.0, projection="Robinson", ax=plt.figure().add_subplot())


def test_nothing_is_downloaded(model: PCA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.plots.fields._coastline_files", list)
    with pytest.raises(MissingDependencyError, match="cartopy_feature_download physical"):
        plots.map(model, 1, level=500.0, coastlines=True)
    monkeypatch.setitem(sys.modules, "cartopy", None)
    with pytest.raises(MissingDependencyError, match="pip install cartopy"):
        plots.map(model, 1, level=500.0, projection="Robinson")
