"""Weights of features and of samples against NumPy, on every path."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca import PCA, IncrementalPCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError
from tests.data import planted
from tests.each import each
from tests.models.paths import PATHS, fit

IGNORED = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


def oracle(X, weights=None, sample_weight=None, scale=None, ddof=1):
    """(variances, components, total, mean, deviation) from float64 arrays, rows repeated by hand.

    Holes (NaN) hold their column's weighted mean.
    """
    X = np.asarray(X, dtype=np.float64)
    s = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, float)
    seen = np.isfinite(X)
    cells = seen * s[:, None]
    mean = np.sum(np.where(seen, X, 0) * cells, axis=0) / cells.sum(axis=0)
    Z = np.where(seen, X - mean, 0.0)
    deviation = np.ones(X.shape[1])
    if scale is not None:
        deviation = np.sqrt(np.sum(s[:, None] * Z**2, axis=0) / (cells.sum(axis=0) - ddof))
    Z = Z / deviation * (1.0 if weights is None else weights)
    covariance = (Z * s[:, None]).T @ Z / (s.sum() - ddof)
    values, vectors = np.linalg.eigh(covariance)
    return values[::-1], vectors[:, ::-1].T, np.trace(covariance), mean, Z


def same(model, expected, k, tolerance=1e-9):
    values, vectors, total, mean, _ = expected
    np.testing.assert_allclose(model.explained_variance_, values[:k], rtol=tolerance)
    np.testing.assert_allclose(model.result_.total_variance, total, rtol=tolerance)
    np.testing.assert_allclose(model.mean_, mean, rtol=tolerance, atol=tolerance)
    cosines = np.abs(np.sum(model.components_ * vectors[:k], axis=1))
    np.testing.assert_allclose(cosines, 1, atol=tolerance)


HOLES = ("scatter", "gram", "panels")  # tsqr refuses missing="mean"


@pytest.mark.parametrize(
    ("path", "holes"), [(p, False) for p in PATHS] + [(p, True) for p in HOLES]
)
@pytest.mark.parametrize("scale", [None, "std"])
@IGNORED
def test_both_kinds_of_weights_equal_numpy(path, scale, holes, monkeypatch):
    rng = np.random.default_rng(1)
    X = planted(50, 30)
    if holes:
        X[rng.random(X.shape) < 0.1] = np.nan
    weights, sample_weight = rng.uniform(0, 2, 30), rng.uniform(0.5, 3, 50)
    weights[4] = 0
    data = da.from_array(X, chunks=(9, 7 if path != "panels" else 30))
    missing = "mean" if holes else "raise"
    more = {"sample_weight": sample_weight}
    model = fit(
        path, data, monkeypatch, more, n_components=3, scale=scale, weights=weights, missing=missing
    )
    expected = oracle(X, weights, sample_weight, scale)
    same(model, expected, 3)
    assert np.all(model.components_[:, 4] == 0)
    assert model.n_features_used_ == 29
    Z = expected[-1]
    np.testing.assert_allclose(model.transform(X), Z @ model.components_.T, atol=1e-9)
    if path in ("gram", "panels"):
        np.testing.assert_allclose(model.result_.scores, Z @ model.components_.T, atol=1e-9)


@pytest.mark.parametrize("path", PATHS)
@IGNORED
def test_whole_weights_equal_repeated_rows(path, monkeypatch):
    X = planted(40, 60, seed=2)
    counts = np.random.default_rng(3).integers(0, 4, 40)
    counts[:2] = 0
    repeated = PCA(3, svd_solver="scatter", scale="std").fit(np.repeat(X, counts, axis=0))
    data = da.from_array(X, chunks=(9, 60))
    more = {"sample_weight": counts}
    model = fit(path, data, monkeypatch, more, n_components=3, scale="std")
    for name in ("explained_variance_", "mean_", "scale_", "singular_values_"):
        expected = getattr(repeated, name)
        np.testing.assert_allclose(getattr(model, name), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.components_, repeated.components_, atol=1e-11)
    np.testing.assert_allclose(
        model.explained_variance_ratio_, repeated.explained_variance_ratio_, rtol=1e-12
    )
    assert model.result_.scores is None  # two rows have weight 0: components are needed
    np.testing.assert_allclose(
        model.fit_transform(data, sample_weight=counts), repeated.transform(X), atol=1e-9
    )


@given(
    data=st.data(),
    n=st.integers(4, 40),
    p=st.integers(3, 30),
    solver=st.sampled_from(["scatter", "tsqr", "gram"]),
    dtype=st.sampled_from(["f4", "f8", "i1"]),
)
@IGNORED
def test_any_chunking_gives_the_same(data, n, p, solver, dtype):
    X = np.round(planted(n, p, seed=n + p) * 3).astype(dtype)
    rows = data.draw(st.integers(1, n))
    columns = data.draw(st.integers(1, p))
    rng = np.random.default_rng(n * p)
    weights, sample_weight = rng.uniform(0.1, 2, p), rng.uniform(0.3, 3, n)
    model = PCA(1, svd_solver=solver, weights=weights)
    model.fit(da.from_array(X, chunks=(rows, columns)), sample_weight=sample_weight)
    values, _, total, mean, _ = oracle(X, weights, sample_weight)
    tolerance = 1e-10 if dtype == "f8" else 3e-5
    np.testing.assert_allclose(model.explained_variance_[0], values[0], rtol=tolerance)
    np.testing.assert_allclose(model.result_.total_variance, total, rtol=tolerance)
    np.testing.assert_allclose(model.mean_, mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("remove", [False, True])
@IGNORED
def test_sparse(path, remove, monkeypatch):
    rng = np.random.default_rng(6)
    X = rng.poisson(0.3, (90, 70)) + (rng.random((90, 2)) < 0.3) @ rng.poisson(1, (2, 70))
    X = X.astype(float)
    weights, sample_weight = rng.uniform(0.1, 2, 70), rng.uniform(0.2, 3, 90)
    weights[5] = 0
    design = rng.standard_normal((90, 2)) if remove else None
    model = fit(
        path,
        scipy.sparse.csr_array(X),
        monkeypatch,
        {"sample_weight": sample_weight},
        n_components=2,
        scale="std",
        weights=weights,
        remove=design,
    )
    if remove:
        root = np.sqrt(sample_weight)[:, None]
        A = np.column_stack([np.ones(90), design])
        X = X - A @ np.linalg.lstsq(A * root, X * root, rcond=None)[0] + model.mean_
    same(model, oracle(X, weights, sample_weight, "std"), 2)


@pytest.mark.parametrize("path", PATHS)
@IGNORED
def test_the_inverse_divides_by_the_weights(path, monkeypatch):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((30, 3)) @ rng.standard_normal((3, 12)) + 4.0
    weights = rng.uniform(0.2, 2, 12)
    weights[7] = 0
    model = fit(path, X, monkeypatch, n_components=3, weights=weights, scale="std")
    back = model.inverse_transform(model.transform(X))
    np.testing.assert_allclose(np.delete(back, 7, 1), np.delete(X, 7, 1), atol=1e-9)
    np.testing.assert_allclose(back[:, 7], X[:, 7].mean())
    np.testing.assert_allclose(model.r2_curve(X)[-1], 1.0, atol=1e-12)
    np.testing.assert_allclose(model.scale_, X.std(axis=0, ddof=1), rtol=1e-12)


@IGNORED
def test_likelihood_and_covariance_are_in_the_units_of_the_data():
    X = planted(300, 6)
    weights = np.random.default_rng(0).uniform(0.5, 2, 6)
    model = PCA(2, weights=weights).fit(X)
    from scipy.stats import multivariate_normal

    covariance = model.get_covariance()
    inner = PCA(2).fit((X - X.mean(axis=0)) * weights).get_covariance()
    np.testing.assert_allclose(covariance, inner / weights / weights[:, None], rtol=1e-9)
    np.testing.assert_allclose(model.get_precision(), np.linalg.inv(covariance), rtol=1e-7)
    expected = multivariate_normal(X.mean(axis=0), covariance).logpdf(X)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-9)


def grid(lat_name="lat", attrs=None, seed=0):
    rng = np.random.default_rng(seed)
    lat, lon = np.array([-90.0, -30, 0, 45, 90]), np.arange(6) * 60.0
    values = planted(40, 30, seed=seed).reshape(40, 5, 6)
    da_ = xr.DataArray(
        values,
        dims=("time", lat_name, "lon"),
        coords={"time": pd.date_range("2000-01", periods=40, freq="MS"), lat_name: lat, "lon": lon},
    )
    da_[lat_name].attrs.update(attrs or {})
    return da_, rng


@pytest.mark.parametrize("solver", ["scatter", "gram"])
@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("lat", {}),
        ("Latitude", {}),
        ("nav_lat", {}),
        ("y", {"units": "degrees_north"}),
        ("j", {"standard_name": "latitude"}),
    ],
)
@IGNORED
def test_coslat(solver, name, attrs):
    field, _ = grid(name, attrs)
    model = PCA(3, weights="coslat", svd_solver=solver).fit(field)
    by_hand = np.sqrt(np.cos(np.deg2rad(field[name].values)).clip(0))
    flat = np.repeat(by_hand, 6)
    same(model, oracle(field.values.reshape(40, 30), flat), 3)
    np.testing.assert_array_equal(model.result_.weights, flat)
    array = PCA(3, svd_solver=solver, weights=xr.DataArray(by_hand, dims=name)).fit(field)
    np.testing.assert_array_equal(array.components_, model.components_)


def test_a_latitude_in_radians():
    field, _ = grid()
    turned = field.assign_coords(lat=("lat", np.deg2rad(field.lat.values), {"units": "radians"}))
    expected = PCA(3, weights="coslat").fit(field).result_.weights
    found = PCA(3, weights="coslat").fit(turned).result_.weights
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("form", ["DataArray", "NetCDF", "Zarr"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"axis": "Y"},
        {"axis": "Y", "units": "degrees"},
        {"standard_name": "latitude"},
        {"standard_name": "Latitude", "units": "degrees"},
        {"units": "degrees_north"},
        {"units": "degree_N"},
    ],
)
def test_a_latitude_of_any_name(attrs, form, tmp_path):
    y = np.linspace(-80, 80, 5)
    field = xr.DataArray(
        planted(40, 30).reshape(40, 5, 6), {"row": ("row", y, attrs)}, ("time", "row", "col"), "t"
    )
    given = field
    if form == "NetCDF":
        field.to_netcdf(given := tmp_path / "x.nc", engine="h5netcdf")
    elif form == "Zarr":
        field.to_dataset().to_zarr(given := tmp_path / "x.zarr", consolidated=False)
        given = streampca.open(given, variable="t")
    expected = np.repeat(np.sqrt(np.cos(np.deg2rad(y))), 6)
    np.testing.assert_allclose(PCA(2, weights="coslat").fit(given).result_.weights, expected)


@pytest.mark.parametrize(
    "attrs",
    [
        {"axis": "Y", "units": "m"},
        {"axis": "Y", "standard_name": "projection_y_coordinate"},
        {"axis": "Y", "standard_name": "grid_latitude", "units": "degrees"},
        {"axis": "X", "units": "degrees"},
        {},
    ],
)
def test_what_is_no_latitude(attrs):
    y = np.linspace(-80, 80, 5)
    field = xr.DataArray(
        planted(40, 30).reshape(40, 5, 6), {"y": ("y", y, attrs)}, ("time", "y", "x")
    )
    with pytest.raises(InvalidInputError, match="no latitude"):
        PCA(2, weights="coslat").fit(field)
    field.y.attrs = {"units": "degrees_north"}  # as the message says
    assert PCA(2, weights="coslat").fit(field).result_.weights is not None


def test_products_of_weights(tmp_path, capsys):
    """Area times variable: a list of factors, or "coslat" for some of the variables."""
    lat = np.array([-60.0, 0, 45])
    sst = xr.DataArray(planted(40, 12).reshape(40, 3, 4), {"lat": lat}, ("time", "lat", "lon"))
    index = xr.DataArray(100 * planted(40, 2, seed=5), dims=("time", "station"))
    both = xr.Dataset({"sst": sst, "air": 3 * sst[:, :, ::-1]})
    root = np.repeat(np.sqrt(np.cos(np.deg2rad(lat))), 4)
    X = np.hstack([both[name].values.reshape(40, 12) for name in ("sst", "air")])
    area = np.tile(root, 2)
    total = [((X * area)[:, part].var(axis=0, ddof=1)).sum() for part in np.s_[:12, 12:]]
    by_variable = np.repeat(1 / np.sqrt(total), 12)

    equal = streampca.variable_weights(both, weights="coslat", dim="time")
    model = PCA(2, weights=["coslat", equal]).fit(both, dim="time")
    same(model, oracle(X, area * by_variable), 2)
    assert model.result_.total_variance == pytest.approx(2.0)
    same(PCA(2, weights=("coslat", area, area)).fit(both, dim="time"), oracle(X, area**3), 2)
    same(PCA(2, weights=[sst.lat * 0 + 2.0, "coslat"]).fit(sst), oracle(X[:, :12], 2 * root), 2)

    mixed = xr.Dataset({"sst": sst, "index": index})
    weights = {"sst": "coslat", "index": 0.01}
    of_mixed = np.hstack([sst.values.reshape(40, 12), index.values])
    expected = oracle(of_mixed, np.concatenate([root, [0.01, 0.01]]))
    same(PCA(2, weights=weights).fit(mixed, dim="time"), expected, 2)
    with pytest.raises(InvalidInputError, match="no latitude"):
        PCA(2, weights=["coslat", {"sst": 1.0, "index": 2.0}]).fit(mixed, dim="time")

    both.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    np.save(tmp_path / "w.npy", by_variable)
    command = ["fit", str(tmp_path / "x.nc"), "--variable", "sst", "--variable", "air", "-k", "2"]
    command += ["--weights", "coslat", "--weights", str(tmp_path / "w.npy")]
    assert not main([*command, "-o", str(tmp_path / "model")])
    same(streampca.load(tmp_path / "model"), oracle(X, area * by_variable), 2)
    capsys.readouterr()


def test_arrays_are_broadcast_by_name_and_aligned_by_coordinate():
    field, rng = grid()
    along_lon = xr.DataArray(rng.uniform(1, 2, 6), dims="lon", coords={"lon": field.lon})
    both = (along_lon * xr.DataArray(np.arange(1.0, 6), dims="lat", coords={"lat": field.lat})).T
    expected = (np.arange(1.0, 6)[:, None] * along_lon.values).reshape(-1)
    for given_ in (both, both.T, both.isel(lat=[4, 2, 0, 1, 3], lon=slice(None, None, -1))):
        model = PCA(2, weights=given_).fit(field)
        np.testing.assert_array_equal(model.result_.weights, expected)
    wider = xr.concat([both, both.assign_coords(lat=both.lat + 1000)], dim="lat")
    np.testing.assert_array_equal(PCA(2, weights=wider).fit(field).result_.weights, expected)
    shaped = PCA(2, weights=expected.reshape(5, 6)).fit(field)
    np.testing.assert_array_equal(shaped.result_.weights, expected)
    months = xr.DataArray(np.arange(1.0, 41), dims="time", coords={"time": field.time})
    backwards = PCA(2).fit(field, sample_weight=months[::-1])
    np.testing.assert_array_equal(
        backwards.components_, PCA(2).fit(field, sample_weight=np.arange(1.0, 41)).components_
    )


def test_curvilinear_grids_and_several_variables():
    rng = np.random.default_rng(3)
    lat = rng.uniform(-80, 80, (3, 4))
    ocean = xr.DataArray(
        planted(20, 12).reshape(20, 3, 4),
        dims=("time", "y", "x"),
        coords={"nav_lat": (("y", "x"), lat)},
    )
    expected = np.sqrt(np.cos(np.deg2rad(lat))).reshape(-1)
    np.testing.assert_allclose(PCA(2, weights="coslat").fit(ocean).result_.weights, expected)
    field, _ = grid()
    both = xr.Dataset({"a": field, "b": 2 * field.isel(lon=0, drop=True)})
    model = PCA(2, weights="coslat").fit(both, dim="time")
    root = np.sqrt(np.cos(np.deg2rad(field.lat.values)).clip(0))
    np.testing.assert_array_equal(model.result_.weights, [*np.repeat(root, 6), *root])
    each = {"a": field.lat * 0 + 1, "b": np.arange(1.0, 6)}
    model = PCA(2, weights=each).fit(both, dim="time")
    np.testing.assert_array_equal(model.result_.weights, [*np.ones(30), 1, 2, 3, 4, 5])
    with pytest.raises(InvalidInputError, match="nothing for the variable 'b'"):
        PCA(2, weights={"a": 1}).fit(both, dim="time")


def test_saved_and_loaded(tmp_path):
    field, rng = grid()
    for weights in ("coslat", rng.uniform(0.5, 2, 30)):
        model = PCA(2, weights=weights, scale="std").fit(field)
        model.save(tmp_path / str(type(weights).__name__))
        loaded = streampca.load(tmp_path / str(type(weights).__name__))
        np.testing.assert_array_equal(loaded.result_.weights, model.result_.weights)
        np.testing.assert_array_equal(loaded.transform(field), model.transform(field))
        np.testing.assert_array_equal(
            loaded.inverse_transform(loaded.transform(field)),
            model.inverse_transform(model.transform(field)),
        )
        assert loaded.weights == (weights if isinstance(weights, str) else None)


@pytest.mark.parametrize("chunks", [(11, 30), (40, 4)])
@IGNORED
def test_transform_along_either_axis(chunks, tmp_path):
    X = planted(40, 30).astype("f4")
    weights = np.random.default_rng(0).uniform(0, 2, 30)
    model = PCA(3, weights=weights).fit(X)
    expected = (X - X.mean(axis=0, dtype="f8")) * weights @ model.components_.T
    lazy = model.transform(da.from_array(X, chunks=chunks))
    np.testing.assert_allclose(lazy.compute(), expected, atol=1e-4)
    stored = model.transform(X, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(stored[:], expected, atol=1e-4)


def test_the_plan_knows_of_sample_weights():
    X = planted(40, 30)
    with pytest.raises(InvalidInputError, match="sample_weight is -1"):
        PCA(2).plan(X, sample_weight=np.full(40, -1.0))
    weights = np.arange(1.0, 41)
    model = PCA(2).fit(X, sample_weight=weights)
    assert PCA(2).plan(X, sample_weight=weights).to_json() == model.plan_.to_json()


@pytest.mark.parametrize("algorithm", ["scatter", "tsqr", "gram", "randomized"])
@pytest.mark.parametrize("sparse", [False, True])
def test_truncated_svd(algorithm, sparse):
    rng = np.random.default_rng(8)
    X = rng.poisson(0.5, (50, 20)) + 3.0 * (rng.random((50, 1)) < 0.4) * rng.poisson(1, 20)
    counts = rng.integers(1, 4, 50)
    repeated = np.repeat(X, counts, axis=0)
    data = scipy.sparse.csr_array(X) if sparse else X
    model = streampca.TruncatedSVD(3, algorithm=algorithm, tol=1e-8, max_passes=30)
    scores = model.fit_transform(data, sample_weight=counts)
    _, s, vt = np.linalg.svd(repeated, full_matrices=False)
    np.testing.assert_allclose(model.singular_values_, s[:3], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vt[:3], axis=1)), 1, atol=1e-10)
    np.testing.assert_allclose(scores, X @ model.components_.T, atol=1e-9)
    about = repeated @ model.components_.T
    np.testing.assert_allclose(model.explained_variance_, about.var(axis=0), rtol=1e-9)
    ratio = about.var(axis=0) / repeated.var(axis=0).sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, ratio, rtol=1e-9)


@IGNORED
def test_incremental_states_take_sample_weights(tmp_path):
    X = planted(60, 8)
    sample_weight = np.random.default_rng(1).uniform(0.2, 3, 60)
    expected = oracle(X, None, sample_weight)
    for state in ("scatter", "tsqr", "truncated"):
        model = IncrementalPCA(2, state=state)
        for start in range(0, 60, 13):
            part = slice(start, start + 13)
            model.partial_fit(X[part], sample_weight=sample_weight[part])
        same(model, expected, 2)
        model.save_state(tmp_path / state)
        again = IncrementalPCA.load_state(tmp_path / state)
        np.testing.assert_array_equal(again.components_, model.components_)
    once = IncrementalPCA(2).fit(X, sample_weight=sample_weight)
    same(once, expected, 2)


@pytest.mark.parametrize("missing", ["raise", "mean"])
def test_covariance_and_correlation(missing):
    X = planted(50, 7)
    s = np.random.default_rng(2).uniform(0, 3, 50)
    got = streampca.covariance(X, sample_weight=s, missing=missing)
    expected = np.cov(X, rowvar=False, aweights=s, ddof=0) * s.sum() / (s.sum() - 1)
    np.testing.assert_allclose(got, expected, rtol=1e-11)
    deviation = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        streampca.correlation(X, sample_weight=s, missing=missing),
        expected / deviation / deviation[:, None],
        rtol=1e-11,
    )


@pytest.mark.parametrize("solver", ["scatter", "tsqr", "gram"])
@IGNORED
def test_large_means_do_not_cancel(solver):
    X = planted(200, 20) + 1e6
    rng = np.random.default_rng(4)
    weights, s = rng.uniform(0.5, 2, 20), rng.uniform(0, 2, 200)
    model = PCA(3, svd_solver=solver, weights=weights).fit(X, sample_weight=s)
    exact = oracle(X - 1e6, weights, s)
    np.testing.assert_allclose(model.explained_variance_, exact[0][:3], rtol=1e-10)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, -1, 1], "is -1 at feature 1"),
        ([1.0, np.nan, 1], "nan_to_num"),
        ([1.0, np.inf, 1], "is inf at feature 1"),
        ([0.0, 0, 0], "zero everywhere"),
        ([1.0, 1], "shape"),
        (["a", "b", "c"], "or the name of a column"),
        ("area", "no areas of cells"),
        ("coslat", "no latitude"),
        (xr.DataArray(np.ones(3), dims="x"), "dimensions"),
    ],
)
def test_weights_that_cannot_be_used(weights, words):
    X = planted(9, 3)
    with pytest.raises(InvalidInputError, match=words):
        PCA(1, weights=weights).plan(X)
    with pytest.raises(InvalidInputError, match=words):
        PCA(1, weights=weights).fit(X)


@pytest.mark.parametrize(
    ("sample_weight", "words"),
    [
        ([1, 1, -2.0], "is -2 at sample 2"),
        ([1, np.nan, 1], "sample_weight is nan"),
        ([1, 1], "expected one for each of 3"),
        ([0, 0, 0], "zero everywhere"),
        ([0.25, 0.25, 0.25], "degree of freedom"),
    ],
)
def test_sample_weights_that_cannot_be_used(sample_weight, words):
    X = planted(3, 4)
    for call in (
        PCA(1).fit,
        IncrementalPCA(1).fit,
        IncrementalPCA(1).fit if "freedom" in words else IncrementalPCA(1).partial_fit,
        streampca.covariance,
        streampca.correlation if "freedom" not in words else streampca.covariance,
    ):
        with pytest.raises(InvalidInputError, match=words):
            call(X, sample_weight=sample_weight)


def test_coordinates_that_do_not_match():
    field, _ = grid()
    moved = xr.DataArray(np.ones(5), dims="lat", coords={"lat": field.lat + 0.5})
    with pytest.raises(InvalidInputError, match=r"no entry for .*reindex_like"):
        PCA(1, weights=moved).fit(field)
    with pytest.raises(InvalidInputError, match="degrees from -90 to 90"):
        PCA(1, weights="coslat").fit(field.assign_coords(lat=field.lat * 3))


@each("solver", ["scatter", "tsqr", "gram", "randomized"])
@each("form", ["array", "csr", "csc"])
@each("dtype", ["f8", "f4", "i1"])
def test_features_that_vary_only_in_samples_of_weight_0_are_constant(dtype, form, solver):
    rng = np.random.default_rng(0)
    x, counts = rng.integers(0, 5, (40, 12)).astype(float), rng.integers(0, 3, 40)
    x[:, 3:6] = 0.0, 2.0, 2.0 if dtype == "i1" else 0.1
    x[counts == 0, 3:6] = rng.integers(1, 6, (np.count_nonzero(counts == 0), 3))
    x = x.astype(dtype)
    given = x if form == "array" else getattr(scipy.sparse, f"{form}_array")(x)
    model = PCA(2, scale="std", svd_solver=solver).fit(given, sample_weight=counts.astype(float))
    np.testing.assert_array_equal(model.result_.constant, [3, 4, 5])
    repeated = np.repeat(x, counts, axis=0)
    expected = oracle(np.delete(repeated, [3, 4, 5], axis=1), scale="std")
    np.testing.assert_allclose(model.explained_variance_, expected[0][:2], rtol=1e-6)
    np.testing.assert_allclose(model.result_.total_variance, 9, rtol=1e-6)
