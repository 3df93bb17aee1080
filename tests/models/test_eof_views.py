"""EOFs, PCs and maps with labels: against NumPy, for any order of dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca import PCA
from streampca.errors import DroppedFeaturesWarning, InvalidInputError

SIZES = {"time": 7, "member": 3, "lat": 4, "lon": 5}


def field(seed=0, dims=("time", "lat", "lon")):
    values = np.random.default_rng(seed).normal(size=[SIZES[d] for d in dims])
    coords = {
        "time": pd.date_range("2001-01-31", periods=7, freq="ME"),
        "member": ["a", "b", "c"],
        "lat": ("lat", [30.0, 20.0, 10.0, 0.0], {"units": "degrees_north"}),
        "lon": np.arange(5) * 10.0,
    }
    kept = {d: coords[d] for d in dims}
    return xr.DataArray(values, dims=dims, coords=kept, name="sst", attrs={"units": "K"})


def numpy_solution(values, ddof=1):
    """(mean, scores, variances, components) of samples x features."""
    mean = values.mean(axis=0)
    u, s, v = np.linalg.svd(values - mean, full_matrices=False)
    return mean, u * s, s**2 / (len(values) - ddof), v


def flat(maps, features):
    return maps.transpose("component", *features).values.reshape(len(maps), -1)


@settings(max_examples=12, deadline=None)
@given(
    order=st.permutations(["time", "member", "lat", "lon"]),
    samples=st.sampled_from([["time"], ["time", "member"], ["member", "time"], ["lon", "time"]]),
    chunked=st.booleans(),
)
def test_any_order_of_any_dimensions(order, samples, chunked):
    da = field(1, ("time", "member", "lat", "lon")).transpose(*order)
    features = [d for d in order if d not in samples]
    X = da.transpose(*samples, *features).values.reshape(np.prod([SIZES[d] for d in samples]), -1)
    mean, scores, variance, components = numpy_solution(X)
    model = PCA(2, svd_solver="gram").fit(
        da.chunk({"lat": 2, "time": 3}) if chunked else da, dim=samples
    )
    eofs = model.eof_.eofs()
    assert eofs.dims == ("component", *features)
    signs = np.sign(np.sum(flat(eofs, features) * components[:2], axis=1))
    np.testing.assert_allclose(flat(eofs, features), components[:2] * signs[:, None], atol=1e-9)
    np.testing.assert_allclose(model.eof_.eigenvalues(), variance[:2], rtol=1e-9)
    pcs = model.eof_.pcs()
    assert pcs.dims == (*samples, "component")
    np.testing.assert_allclose(pcs.values.reshape(-1, 2), scores[:, :2] * signs, atol=1e-8)
    back = model.reconstruct(1)
    assert back.dims == (*samples, *features)
    expected = mean + np.outer(scores[:, 0], components[0])
    np.testing.assert_allclose(back.values.reshape(X.shape), expected, atol=1e-8)
    for name in order:
        xr.testing.assert_identical((pcs if name in samples else eofs)[name], da[name])
    xr.testing.assert_allclose(model.transform(da), pcs.rename("scores").drop_attrs())


def test_maps_are_correlations_and_covariances_with_the_data():
    da = field(2)
    da.values[:, 1, 2] = 5.0  # never varies
    da.values[:, 0, 0] *= 3
    for scale in (None, "std"):
        with np.errstate(all="raise"):
            model = PCA(3, svd_solver="gram", scale=scale).fit(da, dim="time")
            correlation, covariance = model.eof_.as_correlation(), model.eof_.as_covariance()
        pcs = model.eof_.pcs(1).values
        X = da.values.reshape(7, -1)
        both = np.cov(pcs.T, X.T)[:3, 3:]
        np.testing.assert_allclose(flat(covariance, ["lat", "lon"]), both, atol=1e-9)
        np.testing.assert_allclose(
            flat(model.eof_.as_covariance(0), ["lat", "lon"]),
            both * np.sqrt(model.explained_variance_)[:, None],
            atol=1e-8,
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = both / X.std(axis=0, ddof=1)
        expected[:, 1 * 5 + 2] = np.nan
        np.testing.assert_allclose(flat(correlation, ["lat", "lon"]), expected, atol=1e-9)


def test_numpy_in_numpy_out():
    X = np.random.default_rng(0).normal(size=(9, 20))
    model = PCA(2, svd_solver="gram").fit(X)
    for made in (model.eof_.eofs(2), model.eof_.pcs(1), model.eof_.north_errors()):
        assert isinstance(made, np.ndarray)
    np.testing.assert_allclose(model.eof_.pcs(1).std(axis=0, ddof=1), 1.0)
    np.testing.assert_allclose(model.eof_.eofs(2).T, model.result_.loadings)
    np.testing.assert_allclose(
        model.eof_.north_errors(), model.explained_variance_ * np.sqrt(2 / 9)
    )


def test_land_is_nan_everywhere_and_isolated_holes_follow_the_policy():
    da = field(3)
    da.values[:, 2, 3] = np.nan
    model = PCA(2, svd_solver="gram").fit(da, dim="time")
    assert "1 without observation (land?)" in model.result_.notes()[0]
    land = np.isnan(da.values[0])
    for made in (model.eof_.eofs(), model.eof_.as_correlation(), model.eof_.as_covariance()):
        np.testing.assert_array_equal(np.isnan(made.values), np.stack([land, land]))
    for made in (model.reconstruct(1), model.reconstruct([2], mean=False)):
        np.testing.assert_array_equal(np.isnan(made.values), np.isnan(da.values))
    np.testing.assert_array_equal(np.isnan(model.result_.to_xarray()["mean"]), land)
    da.values[4, 0, 0] = np.nan
    with pytest.raises(InvalidInputError, match="missing='mean'"):
        PCA(2).fit(da, dim="time")
    with pytest.warns(DroppedFeaturesWarning, match="lat=10.0, lon=30.0; others with holes.*: 1"):
        holed = PCA(2, missing="mean", svd_solver="gram").fit(da, dim="time")
    filled = da.values.reshape(7, -1)[:, ~land.ravel()]
    filled = np.where(np.isnan(filled), np.nanmean(filled, axis=0), filled)
    _, _, variance, _ = numpy_solution(filled)
    np.testing.assert_allclose(holed.explained_variance_, variance[:2], rtol=1e-9)


@pytest.mark.parametrize("whiten", [False, True])
def test_modes_in_memory_lazily_and_written(tmp_path, whiten):
    da = field(4, ("time", "lat", "lon"))
    model = PCA(4, svd_solver="gram", whiten=whiten).fit(da, dim="time")
    mean, scores, _, components = numpy_solution(da.values.reshape(7, -1))
    expected = scores[:, [0, 2]] @ components[[0, 2]]
    shape = da.shape
    made = model.reconstruct([3, 1], mean=False)
    np.testing.assert_allclose(made.values, expected.reshape(shape), atol=1e-9)
    assert made.attrs["units"] == "K"
    given = model.reconstruct([1, 3], model.transform(da))
    np.testing.assert_allclose(given.values, (expected + mean).reshape(shape), atol=1e-9)
    lazy = model.reconstruct([1, 3], mean=False, lazy=True)
    assert lazy.chunks is not None
    xr.testing.assert_allclose(lazy.compute(), made)
    written = model.reconstruct([1, 3], mean=False, out=tmp_path / "modes.zarr")
    np.testing.assert_allclose(written[...], expected, atol=1e-9)
    np.testing.assert_allclose(
        model.reconstruct(2, np.asarray(model.transform(da))[:3]),
        (mean + scores[:3, :2] @ components[:2]),
        atol=1e-9,
    )
    for scaling in (0, 1, 2):  # never whitened twice
        xr.testing.assert_allclose(
            model.project(da, scaling), model.eof_.pcs(scaling).drop_attrs().rename("scores")
        )


def test_what_was_removed_comes_back_lazily_too():
    da = xr.concat([field(seed) for seed in range(4)], "time")
    da["time"] = pd.date_range("2001-01-31", periods=28, freq="ME")
    model = PCA(3, svd_solver="gram", remove=["month", "trend"]).fit(da, dim="time")
    for mean in (True, False):
        eager = model.reconstruct([1, 2], mean=mean)
        lazy = model.reconstruct([1, 2], mean=mean, lazy=True)
        assert lazy.chunks is not None
        xr.testing.assert_allclose(lazy.compute(), eager)
    again = model.transform(da.isel(time=slice(5, 9)))
    lazy = model.reconstruct(3, again.chunk(), lazy=True)
    xr.testing.assert_allclose(lazy.compute(), model.inverse_transform(again))


@pytest.mark.parametrize("solver", ["gram", "scatter", "tsqr", "randomized"])
def test_maps_of_weighted_residuals(solver):
    rng = np.random.default_rng(11)
    da = xr.concat([field(seed) for seed in range(4)], "time")
    da["time"] = pd.date_range("2001-01-31", periods=28, freq="ME")
    waves = rng.normal(size=(28, 2)) @ rng.normal(size=(2, 20))
    da.values += 4 * waves.reshape(da.shape)
    covariate = rng.normal(size=28)
    asked = {"n_components": 2, "weights": "coslat", "svd_solver": solver, "remove": covariate}
    found = da.streampca.eof(pc_scaling=1, **asked)
    model = PCA(**asked).fit(da, dim="time")
    X = da.values.reshape(28, -1)
    design = np.column_stack([np.ones(28), covariate])
    X = X - design @ np.linalg.lstsq(design, X, rcond=None)[0]
    weights = np.sqrt(np.cos(np.deg2rad(da.lat.values))).repeat(5)
    u, s, _ = np.linalg.svd(X * weights, full_matrices=False)
    np.testing.assert_allclose(found.eigenvalues, s[:2] ** 2 / 27, rtol=1e-6)
    signs = np.sign(np.sum(found.pcs.values * u[:, :2], axis=0))
    np.testing.assert_allclose(found.pcs.values, u[:, :2] * signs * np.sqrt(27), atol=1e-5)
    both = np.cov(u[:, :2].T * signs[:, None] * np.sqrt(27), X.T)[:2, 2:]
    np.testing.assert_allclose(flat(model.eof_.as_covariance(), ["lat", "lon"]), both, atol=1e-4)
    np.testing.assert_allclose(
        flat(model.eof_.as_correlation(), ["lat", "lon"]), both / X.std(axis=0, ddof=1), atol=1e-5
    )
    turned = streampca.rotate(model, "promax")
    scores = turned.project(da, 1, remove=covariate).values
    np.testing.assert_allclose(np.corrcoef(scores.T), turned.result_.correlations, atol=1e-5)


def test_what_cannot_be_asked():
    da = field(5)
    model = PCA(2, svd_solver="scatter").fit(da, dim="time")
    with pytest.raises(InvalidInputError, match=r"pca\.project\(X"):
        model.eof_.pcs()
    with pytest.raises(InvalidInputError, match=r"scaling=3; expected 0"):
        model.eof_.eofs(3)
    for modes in (0, 3, [], [0], [3], [1, 1], [1.5], "all", True):
        with pytest.raises(InvalidInputError, match=r"from 1 to 2|whole"):
            model.reconstruct(modes, model.transform(da))
    with pytest.raises(InvalidInputError, match="1 columns, the model 2"):
        model.reconstruct(1, np.zeros((3, 1)))
    from_matrix = PCA.from_covariance(np.eye(3))
    with pytest.raises(InvalidInputError, match=r"n_samples=\.\.\."):
        from_matrix.eof_.north_errors()


def test_names_of_the_data_keep_theirs():
    da = field(6).rename(lat="component", lon="mode")
    model = PCA(2, svd_solver="gram").fit(da, dim="time")
    assert model.eof_.eofs().dims == ("component_", "component", "mode")
    assert model.transform(da).dims == ("time", "component_")
    xr.testing.assert_allclose(model.inverse_transform(model.transform(da)), model.reconstruct(2))
    plain = field(6).rename(time="sample", lat="feature", lon="component")
    model = PCA(2, svd_solver="gram").fit(plain, dim="sample")
    assert model.result_.to_xarray()["components"].dims == ("mode", "feature", "component")


def test_components_are_called_modes_where_that_is_asked_for():
    da = field(7)
    model = PCA(2, svd_solver="gram").fit(da, dim="time")
    before = model.transform(da)
    with streampca.set_options(component_dim="mode"):
        pcs = model.transform(da)
        assert pcs.dims == ("time", "mode")
        assert model.eof_.dataset().eofs.dims == ("mode", "lat", "lon")
        rows = model.inverse_transform(before)  # of either name
    xr.testing.assert_identical(rows, model.inverse_transform(pcs))
    assert model.eof_.pcs().dims == ("time", "component")
    xr.testing.assert_allclose(model.eof_.dataset(scores=pcs).pcs, before)
    with pytest.raises(InvalidInputError, match="component_dim='pc'; expected one of"):
        streampca.set_options(component_dim="pc")


def coordinates():
    """A field with a coordinate of every kind."""
    da = field(7)
    months = da.time.dt.month.values
    return da.assign_coords(
        month=("time", months),
        height=2.0,
        area=(("lat", "lon"), np.arange(20.0).reshape(4, 5), {"units": "m2"}),
        zone=("lat", ["n", "n", "t", "t"]),
        step=("time", (np.arange(7) * 3600).astype("m8[s]")),
    )


def test_every_coordinate_comes_back_also_from_a_saved_model(tmp_path):
    da = coordinates()
    model = PCA(2, svd_solver="gram").fit(da, dim="time")
    model.save(tmp_path / "model")
    for one in (model, streampca.load(tmp_path / "model")):
        rows = one.reconstruct(2)
        assert set(rows.coords) == set(da.coords)
        for name in da.coords:
            xr.testing.assert_identical(
                rows[name].drop_vars("height"), da[name].drop_vars("height")
            )
        assert set(one.eof_.eofs().coords) == {"component", "lat", "lon", "area", "zone", "height"}
        assert set(one.eof_.pcs().coords) == {"component", "time", "month", "step"}
        assert one.eof_.eofs().area.attrs == {"units": "m2"}
        assert one.result_.to_xarray()["mean"].attrs["units"] == "K"
        assert one.transform(da).time.dtype.kind == "M"


def test_a_stacked_dimension_stays_stacked(tmp_path):
    da = coordinates().drop_vars("zone")
    stacked = da.stack(place=("lat", "lon"))
    model = PCA(2, svd_solver="gram").fit(stacked, dim="time")
    whole = PCA(2, svd_solver="gram").fit(da, dim="time").eof_.eofs()
    model.save(tmp_path / "model")
    for one in (model, streampca.load(tmp_path / "model")):
        maps = one.eof_.eofs()
        assert maps.indexes["place"].names == ["lat", "lon"]
        xr.testing.assert_allclose(
            maps.unstack("place").reindex_like(whole).drop_vars("area"), whole.drop_vars("area")
        )


def test_coordinates_with_the_names_of_results():
    da = field(8).assign_coords(
        mean=("lat", np.arange(4.0)), eofs=(("lat", "lon"), np.ones((4, 5))), components=3.0
    )
    whole = PCA(2, svd_solver="gram").fit(da, dim="time").result_.to_xarray()
    assert {"mean_", "components_", "scores", "explained_variance"} <= set(whole.data_vars)
    assert {"mean", "eofs", "components"} <= set(whole.coords)
    assert (whole["mean"].attrs, whole["mean_"].attrs) == ({}, {"units": "K"})
    assert "eofs_" in da.streampca.eof(2)


@pytest.mark.parametrize("calendar", ["360_day", "noleap"])
def test_dates_of_other_calendars(tmp_path, calendar):
    dates = xr.date_range("1999-02-27", periods=7, freq="D", calendar=calendar, use_cftime=True)
    da = field(9).assign_coords(time=dates)
    model = PCA(2, svd_solver="gram").fit(da, dim="time")
    model.save(tmp_path / "model")
    for one in (model, streampca.load(tmp_path / "model")):
        xr.testing.assert_identical(one.eof_.pcs().time, da.time)
    path = str(tmp_path / "field.zarr")
    da.to_dataset().to_zarr(path, consolidated=False)
    stored = PCA(2, svd_solver="gram").fit(streampca.open(path, variable="sst", dim="time"))
    times = xr.decode_cf(stored.eof_.pcs().to_dataset(name="pcs")).time
    np.testing.assert_array_equal(times, da.time)  # numbers, with the units that say what they are


@pytest.mark.parametrize("solver", ["gram", "scatter", "randomized"])
def test_the_same_from_memory_dask_zarr_and_netcdf(tmp_path, solver):
    da = field(10, ("member", "lat", "time", "lon")).assign_coords(member=[3, 1, 2])
    da.values[:, 1, :, 2] = np.nan
    da.to_dataset().to_zarr(
        tmp_path / "x.zarr", encoding={"sst": {"chunks": (2, 3, 4, 5)}}, consolidated=False
    )
    da.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    lazily = xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False)
    sources = {
        "memory": da,
        "dask": da.chunk({"time": 3, "lat": 3}),
        "dask graph": (da.chunk({"time": 3}) * 2.0) / 2.0,
        "lazy zarr": lazily.sst,
        "dataset": lazily[["sst"]],
        "zarr": str(tmp_path / "x.zarr"),
        "netcdf": str(tmp_path / "x.nc"),
        "lazy netcdf": xr.open_dataset(tmp_path / "x.nc", engine="h5netcdf").sst,
    }
    wanted = None
    for name, source in sources.items():
        model = PCA(2, svd_solver=solver, weights="coslat").fit(source, dim=["time", "member"])
        found = model.result_.to_xarray()
        scores = model.transform(source, dim=["time", "member"])
        wanted = wanted if name != "memory" else (found, scores)
        xr.testing.assert_allclose(found, wanted[0], atol=1e-9)
        np.testing.assert_allclose(
            np.asarray(scores).reshape(21, 2), wanted[1].values.reshape(21, 2), atol=1e-9
        )
        assert found.components.dims == ("component", "lat", "lon")
        for coordinate in found.coords.keys() - {"component"}:
            xr.testing.assert_identical(found[coordinate], da[coordinate])
        if not isinstance(source, str):
            assert scores.dims == ("time", "member", "component")
            assert set(scores.coords) == {"time", "member", "component"}
