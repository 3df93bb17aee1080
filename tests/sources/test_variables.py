"""A Dataset of several variables as one matrix, and back."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import PCA
from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels
from streampca.sources.labelled.opening import from_xarray
from tests.sources.test_labelled import climate, values_of

STATIONS = np.random.default_rng(8).normal(size=(3, 12))


def mixed():
    """Two variables of other dimensions, in another order, and cell bounds."""
    dataset = climate().copy(deep=True)
    dataset["rain"] = (("station", "time"), STATIONS, {"units": "mm"})
    dataset["lat_bnds"] = (("lat", "two"), np.zeros((5, 2)))
    dataset.lat.attrs["bounds"] = "lat_bnds"
    return dataset.assign_coords(station=["a", "b", "c"])


def joint(dataset):
    return np.concatenate([dataset.sst.values.reshape(12, 30), STATIONS.T], axis=1)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("chunks", [None, {"time": 5, "lat": 3}])
def test_variables_lie_side_by_side(axis, chunks):
    dataset = mixed() if chunks is None else mixed().chunk(chunks)
    matrix = from_xarray(dataset, dim="time")
    assert matrix.shape == (12, 33)
    np.testing.assert_allclose(values_of(matrix, axis), joint(mixed()))
    assert matrix.labels.features.name(7) == "sst: lat=-5.0, lon=60.0"
    assert matrix.labels.features.name(31) == "rain: b"
    chosen = from_xarray(dataset, ["rain", "sst"], "time")
    np.testing.assert_allclose(values_of(chosen, axis)[:, :3], STATIONS.T)
    np.testing.assert_array_equal(from_xarray(dataset, ["rain"], "time").shape, (12, 3))


def test_which_variables_is_not_guessed():
    with pytest.raises(InvalidInputError, match=r"variable='sst'"):
        from_xarray(mixed())
    still = mixed().assign(depth=("lat", np.ones(5)))
    with pytest.raises(InvalidInputError, match=r"'depth' .*'time'; .*X\[\['sst', 'rain'\]\]"):
        from_xarray(still, dim="time")
    with pytest.raises(InvalidInputError, match=r"'index' has no dimension beside \['time'\]"):
        from_xarray(mixed().assign(index=("time", np.ones(12))), dim="time")
    with pytest.raises(InvalidInputError, match="no variable 'ice'"):
        from_xarray(mixed(), ["sst", "ice"], "time")
    with pytest.raises(InvalidInputError, match=r"variable=\[\]"):
        from_xarray(mixed(), [], "time")


@pytest.mark.parametrize("scale", [None, "std"])
def test_a_joint_fit_comes_back_as_a_dataset(tmp_path, scale):
    dataset = mixed()
    dataset.sst.values[:, 0, 0] = np.nan
    X = joint(dataset)[:, 1:]
    Z = X - X.mean(axis=0)
    Z = Z / (1 if scale is None else X.std(axis=0, ddof=1))
    u, s, v = np.linalg.svd(Z, full_matrices=False)
    model = PCA(2, svd_solver="gram", scale=scale)
    model.fit(dataset, dim="time")
    np.testing.assert_allclose(model.singular_values_, s[:2], rtol=1e-6)
    model.save(tmp_path / "model")
    for one in (model, streampca.load(tmp_path / "model")):
        eofs = one.eof_.eofs()
        assert {n: e.dims for n, e in eofs.items()} == {
            "sst": ("component", "lat", "lon"),
            "rain": ("component", "station"),
        }
        signs = np.sign(np.sum(eofs.rain.values * v[:2, -3:], axis=1))
        np.testing.assert_allclose(eofs.rain.values, v[:2, -3:] * signs[:, None], atol=1e-5)
        assert np.isnan(eofs.sst.values[:, 0, 0]).all()
        whole = one.result_.to_xarray()
        assert whole.components_sst.dims == ("component", "lat", "lon")
        assert whole.mean_rain.dims == ("station",)
        scores = one.transform(dataset[["rain", "sst"]])  # by name, in the order of the fit
        np.testing.assert_allclose(scores.values, u[:, :2] * s[:2] * signs, atol=1e-4)
        back = one.inverse_transform(scores)
        low = (u[:, :2] * s[:2]) @ v[:2] * (1 if scale is None else X.std(axis=0, ddof=1))
        np.testing.assert_allclose(back.rain.values, (X.mean(axis=0) + low)[:, -3:], atol=1e-4)
        assert back.sst.dims == ("time", "lat", "lon")
        assert (back.sst.attrs, back.rain.attrs) == ({"units": "K"}, {"units": "mm"})
        assert whole.mean_rain.attrs == {"units": "mm"}
        lazy = one.reconstruct(2, scores, lazy=True)
        assert lazy.sst.chunks is not None
        xr.testing.assert_allclose(lazy.compute(), back)
    with pytest.raises(InvalidInputError, match="3 features"):
        model.transform(dataset[["rain"]])


def test_other_variables_are_not_those_of_the_fit():
    dataset = mixed()
    model = PCA(2).fit(dataset, dim="time")
    with pytest.raises(InvalidInputError, match=r"variables \['sst', 'snow'\].*\['sst', 'rain'\]"):
        model.transform(dataset.rename(rain="snow"))
    moved = dataset.assign_coords(station=["a", "b", "d"])
    with pytest.raises(InvalidInputError, match="station 2 is d and was c"):
        model.transform(moved)


def test_labels_of_variables():
    parts = {"x": AxisLabels.plain("i", 2, ["p", "q"]), "y": AxisLabels.plain("j", 3)}
    axis = AxisLabels.of_variables(parts)
    assert len(axis) == 5
    assert axis.names() == ["x: p", "x: q", "y: j 0", "y: j 1", "y: j 2"]
    assert axis.slices == {"x": slice(0, 2), "y": slice(2, 5)}
    assert axis.pick(np.array([1, 4])).names() == ["x: q", "y: j 2"]
    assert axis.nbytes == parts["x"].nbytes


@pytest.mark.parametrize("chunks", [None, {"time": 5, "lat": 3}])
def test_variables_that_count_the_same(chunks):
    dataset = mixed()
    dataset["rain"] = dataset.rain * 1000
    dataset.sst.values[:, 0, 0] = np.nan
    given = dataset if chunks is None else dataset.chunk(chunks)
    weights = streampca.variable_weights(given, dim="time")
    total = {n: float(np.nansum(dataset[n].var("time", ddof=1))) for n in ("sst", "rain")}
    assert weights == pytest.approx({n: v**-0.5 for n, v in total.items()}, rel=1e-6)
    model = PCA(2, weights=weights).fit(given, dim="time")
    assert model.result_.total_variance == pytest.approx(2.0, rel=1e-6)
    X = joint(dataset)[:, 1:] - joint(dataset)[:, 1:].mean(axis=0)
    X[:, -3:] *= 1000 * weights["rain"]
    X[:, :-3] *= weights["sst"]
    s = np.linalg.svd(X, compute_uv=False)
    np.testing.assert_allclose(model.singular_values_, s[:2], rtol=1e-5)
    with pytest.raises(InvalidInputError, match="without variables"):
        streampca.variable_weights(dataset.sst, dim="time")
    with pytest.raises(InvalidInputError, match="'rain' does not vary"):
        streampca.variable_weights(dataset.assign(rain=dataset.rain * 0), dim="time")


def test_variables_of_a_file_or_a_store_by_name(tmp_path):
    dataset = mixed().assign_coords(station=[1, 2, 3])
    dataset.to_netcdf(tmp_path / "x.nc", engine="scipy")
    dataset.to_zarr(tmp_path / "x.zarr", consolidated=False)
    wanted = PCA(2, solver="gram").fit(dataset[["rain", "sst"]], dim="time").result_.to_xarray()
    for name in ("x.nc", "x.zarr"):
        path = str(tmp_path / name)
        matrix = streampca.open(path, variable=["rain", "sst"], dim="time")
        xr.testing.assert_allclose(
            PCA(2, solver="gram").fit(matrix).result_.to_xarray(), wanted, atol=1e-6
        )
        with pytest.raises(InvalidInputError, match="'ice'"):
            streampca.open(path, variable=["rain", "ice"], dim="time")
        with pytest.raises(InvalidInputError, match="at least one"):
            streampca.open(path, variable=[], dim="time")
