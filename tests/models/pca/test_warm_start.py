"""More components asked later: no pass where the accumulators allow it, less where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from streampca import PCA

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")


@pytest.fixture
def path(tmp_path: Any) -> str:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((300, 200)) * 0.85 ** np.arange(200)) @ rng.standard_normal((200, 200))
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(50, 200))
    return str(tmp_path / "x.zarr")


def reads(model: PCA) -> list[str]:
    return [cost.name for cost in model.cost_]


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"svd_solver": "scatter"}, []),
        ({"svd_solver": "tsqr"}, []),
        ({"svd_solver": "scatter", "missing": "mean"}, []),
        ({"svd_solver": "gram"}, ["loadings"]),
        ({"svd_solver": "gram", "components": False}, []),
    ],
    ids=str,
)
def test_exact_solvers_read_nothing_again(path, settings, again):
    model = PCA(3, warm_start=True, **settings).fit(path)
    model.set_params(n_components=20).fit(path)
    fresh = PCA(20, **settings).fit(path)
    assert reads(model) == again
    np.testing.assert_array_equal(model.explained_variance_, fresh.explained_variance_)
    if settings.get("components", True):
        np.testing.assert_array_equal(model.components_, fresh.components_)
    if settings.get("missing"):
        np.testing.assert_array_equal(
            model.result_.missing_by_sample, fresh.result_.missing_by_sample
        )


def test_the_iterative_solver_goes_on_from_what_it_searched(path):
    settings: dict[str, Any] = {"svd_solver": "randomized", "tol": 1e-6, "max_passes": 20}
    model = PCA(5, warm_start=True, **settings).fit(path)
    model.set_params(n_components=15).fit(path)
    fresh = PCA(15, **settings).fit(path)
    assert len(model.cost_) < len(fresh.cost_)
    assert model.certificate_.passes == len(model.cost_)
    assert model.certificate_.angle_bound.max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_, fresh.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.components_, fresh.components_, atol=1e-5)
    model.set_params(n_components=4).fit(path)
    assert reads(model) == []
    np.testing.assert_allclose(model.components_, fresh.components_[:4], atol=1e-5)


def test_a_space_that_is_too_small_grows_also_where_all_of_it_is_certain():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((150, 3)) @ rng.standard_normal((3, 140))
    model = PCA(70, svd_solver="randomized", warm_start=True).fit(x)
    model.set_params(n_components=139).fit(x)
    assert model.components_.shape == (139, 140)
    values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[:3] ** 2 / 149
    np.testing.assert_allclose(model.explained_variance_[:3], values, rtol=1e-9)


def test_other_data_settings_or_weights_are_read(path, tmp_path):
    model = PCA(3, svd_solver="scatter", warm_start=True).fit(path)
    model.set_params(scale="std").fit(path)
    assert reads(model) == ["scatter"]
    model.fit(path, sample_weight=np.arange(1.0, 301.0))
    assert reads(model) == ["scatter"]
    before = model.explained_variance_.copy()
    array = zarr.open_array(path, mode="r+")
    array[:50] = array[:50] * 2
    model.fit(path, sample_weight=np.arange(1.0, 301.0))
    assert reads(model) == ["scatter"]
    assert not np.allclose(before, model.explained_variance_)
    model.set_params(warm_start=False).fit(path)
    model.fit(path)
    assert reads(model) == ["scatter"]


@pytest.mark.parametrize("solver", ["scatter", "gram"])
def test_weights_of_features_are_no_weights_of_samples(solver):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((30, 30)), rng.uniform(0.5, 2.0, 30)
    model = PCA(3, warm_start=True, svd_solver=solver).fit(x, sample_weight=w)
    model.set_params(weights=w).fit(x)
    fresh = PCA(3, svd_solver=solver, weights=w).fit(x)
    np.testing.assert_array_equal(model.explained_variance_, fresh.explained_variance_)
