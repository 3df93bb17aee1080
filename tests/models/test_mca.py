"""MCA: the SVD of an explicit cross-covariance, maps, fields, routes, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca import MCA
from streampca.errors import AccuracyWarning, InvalidInputError, MemoryLimitError
from streampca.models.decompose.panels import panel_candidates
from streampca.models.two_views import sample_space as view_samples

RNG = np.random.default_rng(0)
H = RNG.standard_normal((70, 5))
X = H @ RNG.standard_normal((5, 120)) + 0.5 * RNG.standard_normal((70, 120)) + 50.0
Y = H @ RNG.standard_normal((5, 40)) + RNG.standard_normal((70, 40)) - 7.0
SOLVERS = ("scatter", "samples")
LAYOUTS = {"rows": (16, 120), "features": (70, 11), "both": (20, 30)}


def quiet(k: int | None = 4, **parameters: Any) -> MCA:
    return MCA(k, progress=False, **parameters)


def up_to_sign(found: Any, expected: np.ndarray, atol: float = 1e-10) -> None:
    found = np.asarray(found)
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=atol)


def explicit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(left, values, right) of the cross-covariance."""
    u, s, vt = np.linalg.svd((x - x.mean(axis=0)).T @ (y - y.mean(axis=0)) / (len(x) - 1))
    return u, s, vt.T


def standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_svd_of_the_cross_covariance(
    solver: str, scale: str | None, layout: str, tmp_path: Path
) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=LAYOUTS[layout])
    x, y = (X, Y) if scale is None else (standard(X), standard(Y))
    u, s, v = explicit(x, y)
    model = quiet(solver=solver, scale=scale).fit(str(tmp_path / "x"), Y)
    np.testing.assert_allclose(model.singular_values_, s[:4], rtol=1e-10)
    assert np.all(np.abs(model.singular_values_ - s[:4]) <= model.value_bound_)
    assert np.all(model.value_bound_ < 1e-9 * s[0])
    up_to_sign(model.x_patterns_, u[:, :4])
    up_to_sign(model.y_patterns_, v[:, :4])
    share = s[:4] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(model.squared_covariance_fraction_, share, rtol=1e-10)
    a, b = model.transform(X, Y)
    up_to_sign(a, (x - x.mean(axis=0)) @ u[:, :4])
    whole = np.corrcoef(np.hstack([X, a, b]).T)
    np.testing.assert_allclose(model.x_loadings_, whole[:120, 120:124], atol=1e-10)
    np.testing.assert_allclose(model.x_cross_loadings_, whole[:120, 124:], atol=1e-10)
    other = np.corrcoef(np.hstack([Y, b, a]).T)
    np.testing.assert_allclose(model.y_loadings_, other[:40, 40:44], atol=1e-10)
    np.testing.assert_allclose(model.y_cross_loadings_, other[:40, 44:], atol=1e-10)
    if solver == "samples":
        np.testing.assert_allclose(model.result_.x_scores, a, atol=1e-9)
        np.testing.assert_allclose(model.result_.y_scores, b, atol=1e-9)
        assert len(model.cost_) == len(model.plan_.passes)


def test_both_ways_have_the_same_signs() -> None:
    found = [quiet(solver=solver).fit(X, Y) for solver in SOLVERS]
    np.testing.assert_allclose(found[0].x_patterns_, found[1].x_patterns_, atol=1e-10)
    np.testing.assert_allclose(found[0].y_patterns_, found[1].y_patterns_, atol=1e-10)


def test_auto_takes_the_smaller_matrices() -> None:
    wide = np.zeros((50, 30_000), np.float32)
    assert quiet().plan(wide, wide).solver == "samples"
    tall = np.zeros((20_000, 12), np.float32)
    assert quiet().plan(tall, tall[:, :9]).solver == "scatter"
    with pytest.raises(MemoryLimitError, match="too small for MCA"):
        quiet(memory_limit=1000).plan(X, Y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_fields_with_land_and_weights(solver: str, tmp_path: Path) -> None:
    lat, lon = np.linspace(-60, 60, 10), np.arange(0, 360, 30.0)
    coords = {"time": np.arange(70), "lat": lat, "lon": lon}
    field = xr.DataArray(
        X.reshape(70, 10, 12),
        dims=("time", "lat", "lon"),
        coords=coords,
        name="sst",
        attrs={"units": "K", "long_name": "temperature"},
    )
    land = (field.lat > 20) & (field.lon < 60)
    field = field.where(~land)
    other = xr.DataArray(
        Y.reshape(70, 5, 8),
        dims=("time", "lat", "lon"),
        coords={
            "time": np.arange(70),
            "lat": np.linspace(-40, 40, 5),
            "lon": np.arange(0, 360, 45.0),
        },
    )
    model = quiet(3, weights="coslat", solver=solver).fit(field, other[::-1])

    def weighted(one: xr.DataArray) -> np.ndarray:
        z = (one - one.mean("time")) * np.sqrt(np.cos(np.deg2rad(one.lat)))
        return np.nan_to_num(z.transpose("time", "lat", "lon").values.reshape(70, -1))

    u, s, _ = explicit(weighted(field), weighted(other))
    np.testing.assert_allclose(model.singular_values_, s[:3], rtol=1e-10)
    up_to_sign(model.x_patterns_, u[:, :3])
    whole = model.result_.to_xarray()
    assert whole.weights_x.dims == ("component", "lat_x", "lon_x")
    assert whole.loadings_y.sizes == {"component": 3, "lat_y": 5, "lon_y": 8}
    np.testing.assert_array_equal(np.isnan(whole.loadings_x[0]), land)
    assert whole.loadings_x.attrs["long_name"] == "correlations of the PCs with temperature"
    assert whole.weights_x.attrs["variable_units"] == "K"
    shares = s[:3] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(whole.squared_covariance_fraction, shares, rtol=1e-6)
    np.testing.assert_array_equal(whole.variance_fraction_y_by_x, model.redundancy_.y_by_x)
    whole.to_netcdf(tmp_path / "mca.nc", engine="h5netcdf")
    a, b = model.transform(field, other.chunk(time=20))
    assert a.dims == b.dims == ("time", "component")
    assert b.chunks is not None
    up_to_sign(a, weighted(field) @ u[:, :3])
    one = quiet(3, weights=("coslat", None), solver=solver).fit(field, other)
    plain = np.nan_to_num(Y - Y.mean(axis=0))
    expected = explicit(weighted(field), plain)[1][:3]
    np.testing.assert_allclose(one.singular_values_, expected, rtol=1e-10)
    with pytest.raises(InvalidInputError, match=r"weights=\('coslat', None\)"):
        quiet(weights=np.ones(120)).fit(field, other)


@pytest.mark.parametrize("solver", SOLVERS)
def test_float32_within_its_bound(solver: str) -> None:
    x, y = X.astype(np.float32), Y.astype(np.float32)
    s = explicit(x.astype(np.float64), y.astype(np.float64))[1][:4]
    model = quiet(solver=solver).fit(x, y)
    off = np.abs(model.singular_values_ - s)
    assert np.all(off <= model.value_bound_)
    assert np.all(off < 1e-5 * s)
    assert np.all(model.value_bound_ < 1e-2 * s)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_low_rank_gives_fewer_pairs_than_requested(solver: str) -> None:
    assert quiet(None, solver=solver).fit(X[:, :3], Y).singular_values_.shape == (3,)
    with pytest.warns(AccuracyWarning, match="3 pairs were requested; there are 2"):
        model = quiet(3, solver=solver).fit(X[:, [0, 1, 0]], Y)
    np.testing.assert_allclose(model.singular_values_, explicit(X[:, [0, 1, 0]], Y)[1][:2])


@pytest.mark.parametrize("panels", [(True, False), (False, True), (True, True)])
def test_a_view_by_panels_of_its_rows(panels: tuple[bool, bool], monkeypatch: Any) -> None:
    """As of stores whose chunks hold whole rows; the other view may stream its features."""
    ways = view_samples.gram_candidates

    def gram(view: Any, request: Any) -> Any:
        by_panels = dict(zip((X.shape[1], Y.shape[1]), panels, strict=True))
        one = panel_candidates if by_panels[view.shape[1]] else ways
        return one(view, request)

    monkeypatch.setattr(view_samples, "gram_candidates", gram)
    model = quiet(solver="samples").fit(X, Y)
    assert any("panel" in one.name for one in model.plan_.passes)
    np.testing.assert_allclose(model.singular_values_, explicit(X, Y)[1][:4])


def test_maps_are_saved(tmp_path: Path) -> None:
    model = quiet(solver="samples").fit(X, Y)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.x_cross_loadings_, model.x_cross_loadings_)
    np.testing.assert_array_equal(
        loaded.squared_covariance_fraction_, model.squared_covariance_fraction_
    )
    np.testing.assert_array_equal(loaded.result_.y_scores, model.result_.y_scores)
    assert "MCA: 4 components of 70 samples x 160 features" in str(loaded.result_)


def test_wide_fields_stay_within_the_memory(tmp_path: Path) -> None:
    for name, p in (("x", 30_000), ("y", 20_000)):
        zarr.create_array(str(tmp_path / name), shape=(200, p), chunks=(10, p), dtype="f4")
    limit = "300MiB"
    plan = quiet(memory_limit=limit).plan(str(tmp_path / "x"), str(tmp_path / "y"))
    assert plan.solver == "samples"
    assert plan.peak_nbytes < 300 * 2**20


# -- Krylov steps ----------------------------------------------------------------------------------


def long_and_wide(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    h = rng.standard_normal((n, 4)) * [4.0, 3.0, 2.2, 1.5]
    x = h @ rng.standard_normal((4, 200)) + rng.standard_normal((n, 200)) + 30.0
    return x, h @ rng.standard_normal((4, 150)) + rng.standard_normal((n, 150))


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_krylov_steps_within_their_bound(dtype: Any, scale: str | None) -> None:
    x, y = (one.astype(dtype) for one in long_and_wide())
    model = quiet(3, solver="krylov", scale=scale).fit(x, y)
    exact = quiet(3, solver="scatter", scale=scale).fit(x.astype(float), y.astype(float))
    off = np.abs(model.singular_values_ - exact.singular_values_)
    assert np.all(off <= model.value_bound_)
    assert np.all(model.value_bound_ < 1e-3 * exact.singular_values_)
    assert 3 < len(model.cost_) < 8
    for name in ("x_patterns_", "y_patterns_", "x_loadings_", "y_cross_loadings_"):
        np.testing.assert_allclose(getattr(model, name), getattr(exact, name), atol=2e-4)
    share = exact.squared_covariance_fraction_
    np.testing.assert_allclose(model.squared_covariance_fraction_, share, rtol=0.02)
    assert model.result_.estimated
    assert not exact.result_.estimated
    assert model.result_.summary()["squared_covariance_is_estimate"]
    assert any("an estimate of the squared covariance" in one for one in model.result_.notes())
    assert "covary in at least 3 directions" in model.result_.notes()[0]
    assert "estimate" not in "".join(exact.result_.notes())


def test_krylov_steps_where_a_view_is_narrow() -> None:
    x, y = long_and_wide(400)
    x[:, 7] = 5.0
    exact = quiet(2, solver="scatter").fit(x, y[:, :3])
    model = quiet(2, solver="krylov").fit(x, y[:, :3])
    np.testing.assert_allclose(model.singular_values_, exact.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(model.x_patterns_, exact.x_patterns_, atol=1e-8)
    np.testing.assert_allclose(
        model.squared_covariance_fraction_, exact.squared_covariance_fraction_, rtol=1e-10
    )
    assert not model.result_.estimated


def test_krylov_only_where_nothing_exact_is_affordable(tmp_path: Path) -> None:
    for name, p in (("x", 9000), ("y", 7000)):
        zarr.create_array(str(tmp_path / name), shape=(30_000, p), chunks=(500, p), dtype="f4")
    paths = str(tmp_path / "x"), str(tmp_path / "y")
    assert quiet(2, memory_limit="600MiB").plan(*paths).solver == "krylov"
    assert quiet(2, memory_limit="20GiB").plan(*paths).solver == "scatter"


def test_uncertified_pairs_give_a_warning() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 200)), rng.standard_normal((300, 150))
    with pytest.warns(AccuracyWarning, match="radians after 12 steps; ask for fewer pairs"):
        model = quiet(4, solver="krylov").fit(x, y)
    off = np.abs(model.singular_values_ - explicit(x, y)[1][:4])
    assert np.all(off <= model.value_bound_)


def test_an_interrupted_iteration_resumes(tmp_path: Path) -> None:
    x, y = long_and_wide(400)
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=(50, 200))
    paths = str(tmp_path / "x"), y
    expected = quiet(3, solver="krylov").fit(*paths)

    def stop(advance: Any) -> None:
        if advance.pass_name == "step 2":
            raise KeyboardInterrupt

    place = str(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        MCA(3, solver="krylov", progress=stop, checkpoint=place).fit(*paths)
    again = quiet(3, solver="krylov", checkpoint=place).fit(*paths)
    np.testing.assert_array_equal(again.x_patterns_, expected.x_patterns_)
    assert again.cost_[0].resumed_blocks > 0
