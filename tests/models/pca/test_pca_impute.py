"""``PCA(missing="impute")``: the components of the matrix that they complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import xarray as xr

import streampca
from streampca import PCA, HardImpute, SoftImpute
from streampca.errors import InvalidInputError
from tests.models.completions import with_holes

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


def aligned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * np.sign(np.sum(a * b, axis=1))[:, None]


@pytest.mark.parametrize("scale", [None, "std"])
def test_components_are_those_of_the_completed_matrix(scale: Any) -> None:
    x, _ = with_holes(120, 15, 3, share=0.3)
    model = PCA(3, missing="impute", scale=scale, tol=1e-9, max_passes=300).fit(x)
    completed = model.impute(x)
    np.testing.assert_allclose(completed.mean(axis=0), model.mean_, atol=1e-5)
    z = completed - completed.mean(axis=0)
    z = z if model.scale_ is None else z / model.scale_
    _, s, vt = np.linalg.svd(z, full_matrices=False)
    np.testing.assert_allclose(aligned(vt[:3], model.components_), model.components_, atol=1e-5)
    np.testing.assert_allclose(model.explained_variance_, s[:3] ** 2 / 119, rtol=1e-5)
    ratio = s[:3] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(model.explained_variance_ratio_, ratio, rtol=1e-5)
    np.testing.assert_allclose(model.fit_transform(x), model.transform(x), atol=1e-5)


def test_without_holes_it_is_a_pca(tmp_path: Any) -> None:
    _, x = with_holes(60, 12, 2)
    expected = PCA(2).fit(x)
    model = PCA(2, missing="impute", tol=1e-10, max_passes=200).fit(x)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-6)
    np.testing.assert_allclose(model.mean_, expected.mean_, atol=1e-10)
    np.testing.assert_allclose(model.transform(x), expected.transform(x), atol=1e-5)
    ratio = expected.explained_variance_ratio_
    np.testing.assert_allclose(model.explained_variance_ratio_, ratio, rtol=1e-8)
    model.save(tmp_path / "model")
    again: Any = streampca.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(x), model.transform(x))


@pytest.mark.parametrize("scale", [None, "std"])
def test_whole_weights_are_rows_that_are_repeated(scale: Any) -> None:
    x, _ = with_holes(50, 9, 2, share=0.2)
    weights = np.random.default_rng(1).integers(0, 4, 50).astype(float)
    settings: Any = {"missing": "impute", "scale": scale, "tol": 1e-10, "max_passes": 300}
    model = PCA(2, **settings).fit(x, sample_weight=weights)
    alone = PCA(2, **settings).fit(np.repeat(x, weights.astype(int), axis=0))
    np.testing.assert_allclose(model.mean_, alone.mean_, atol=1e-7)
    np.testing.assert_allclose(model.explained_variance_, alone.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(
        model.explained_variance_ratio_, alone.explained_variance_ratio_, rtol=1e-6
    )
    np.testing.assert_allclose(model.components_, alone.components_, atol=1e-5)
    np.testing.assert_allclose(model.transform(x), alone.transform(x), atol=1e-4)
    counted = np.average(model.result_.scores, axis=0, weights=weights)
    np.testing.assert_allclose(counted, 0.0, atol=1e-6)  # the means are those of the counted rows


def test_what_does_not_go_together_is_refused() -> None:
    x, _ = with_holes(30, 8, 2)
    assert PCA(2, missing="impute").plan(x).method == "PCA"
    for wrong in (
        {"n_components": 0.9},
        {"remove": np.ones(30)},
        {"center": False},
        {"svd_solver": "tsqr"},
    ):
        with pytest.raises(InvalidInputError, match="impute"):
            PCA(**{"n_components": 2, "missing": "impute", **wrong}).fit(x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="fit with PCA"):
        PCA(2, missing="mean").fit(x).impute(x)


@pytest.mark.soak
def test_errors_are_those_of_the_observed_cells() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 12)) + 3
    x += 0.2 * rng.standard_normal(x.shape)
    hole = rng.random(x.shape) < 0.4
    cells = scipy.sparse.csr_array((x[~hole], np.nonzero(~hole)), shape=x.shape)
    x[hole] = np.nan
    for model in (
        streampca.PCA(2, missing="impute").fit(x),
        streampca.HardImpute(2).fit(x),
        streampca.SoftImpute(2, lambda_=1.0, scale="std").fit(x),
    ):
        result = model.result_
        rest = x - result.mean
        rest = rest if result.scale is None else rest / result.scale
        rest -= model.transform(x) @ model.components_
        expected = np.nansum(rest**2) / len(x)
        assert model.reconstruction_error(x) == pytest.approx(expected, rel=1e-9)
        assert model.reconstruction_error(cells) == pytest.approx(expected, rel=1e-9)
        assert len(model.r2_curve()) == 3
        with pytest.raises(InvalidInputError):
            model.r2_curve(x)
        with pytest.raises((InvalidInputError, AttributeError), match="likelihood; fit str"):
            model.score_samples(x)
    with pytest.raises(InvalidInputError, match=r"likelihood; fit streampca\.PPCA"):
        streampca.PCA(2, missing="impute").fit(x).score(x)


def test_whitening_is_refused_before_reading() -> None:
    with pytest.raises(InvalidInputError, match="whiten"):
        streampca.PCA(2, missing="impute", whiten=True).fit(np.eye(5))


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("without", [False, True])
def test_weights_of_features(scale: Any, without: bool, tmp_path: Any) -> None:
    """As the same fit of columns that were multiplied beforehand."""
    x, _ = with_holes(90, 12, 3, share=0.25, noise=0.1)
    weights = np.random.default_rng(2).uniform(0.3, 2.0, 12)
    used = np.full(12, True)
    if without:
        weights[4], used[4] = 0.0, False  # left out; its reconstruction is its mean
    options: Any = {"missing": "impute", "tol": 1e-8, "max_passes": 200}
    model = PCA(2, weights=weights, scale=scale, **options).fit(x)
    deviation = np.ones(12) if model.scale_ is None else model.scale_
    by_hand = weights[used] / deviation[used]
    alone = PCA(2, **options).fit(x[:, used] * by_hand)
    np.testing.assert_allclose(model.explained_variance_, alone.explained_variance_, rtol=1e-5)
    components = model.components_[:, used]
    np.testing.assert_allclose(aligned(alone.components_, components), components, atol=1e-4)
    scores = model.transform(x)
    expected = aligned(alone.transform(x[:, used] * by_hand).T, scores.T)
    np.testing.assert_allclose(scores.T, expected, atol=2e-3)
    np.testing.assert_allclose(scores, model.result_.scores, atol=2e-3)
    if without:
        holes = np.isnan(x[:, 4])
        assert not model.components_[:, 4].any()
        np.testing.assert_allclose(model.impute(x)[holes, 4], np.nanmean(x[:, 4]), atol=1e-9)
    unbounded: Any = model._completing()
    unbounded.bounds = None
    z = (unbounded.impute(x) - model.mean_)[:, used] * by_hand
    vt = np.linalg.svd(z, full_matrices=False)[2]
    np.testing.assert_allclose(aligned(vt[:2], components), components, atol=1e-4)
    model.save(tmp_path / "model")
    again: Any = streampca.load(tmp_path / "model")
    np.testing.assert_array_equal(again.impute(x), model.impute(x))


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
def test_weights_of_a_field_and_of_other_completions() -> None:
    x, _ = with_holes(40, 12, 2, share=0.1, noise=0.1)
    lat = np.array([-70.0, -20, 40, 80])
    grid = xr.DataArray(x.reshape(40, 4, 3), {"lat": lat}, ("time", "lat", "lon"))
    root = np.repeat(np.sqrt(np.cos(np.deg2rad(lat))), 3)
    options: Any = {"missing": "impute", "tol": 1e-7, "max_passes": 100}
    model = PCA(2, weights="coslat", **options).fit(grid)
    alone = PCA(2, **options).fit(x * root)
    np.testing.assert_allclose(model.explained_variance_, alone.explained_variance_, rtol=1e-5)
    for kind, solver, more in (
        (HardImpute, "als", {}),
        (HardImpute, "exact", {}),
        (SoftImpute, "als", {"lambda_": 0.5}),
    ):
        fixed: Any = {"solver": solver, "tol": 1e-7, "max_passes": 100, **more}
        weighted = kind(2, weights=root, **fixed).fit(x)
        plain = kind(2, **fixed).fit(x * root)
        np.testing.assert_allclose(weighted.singular_values_, plain.singular_values_, rtol=1e-4)
    with pytest.raises(InvalidInputError, match="center=True"):
        HardImpute(2, weights=root, center="both").fit(x)


def test_the_bound_and_the_seed_of_a_completion_are_those_of_the_user() -> None:
    _, x = with_holes(60, 12, 2)
    assert PCA(2, missing="impute").plan(x).passes[-1].times > 50
    assert sum(one.times for one in PCA(2, missing="impute", max_passes=7).plan(x).passes) <= 7
    for settings in ({"components": False}, {"warm_start": True}, {"whiten": True}):
        with pytest.raises(InvalidInputError, match="does not go with missing='impute'"):
            PCA(2, missing="impute", **settings).plan(x)
    model = PCA(2, missing="impute", random_state=np.random.RandomState(5)).fit(x)
    seed = model.result_.settings["random_state"]
    again = PCA(2, missing="impute", random_state=seed).fit(x)
    np.testing.assert_array_equal(model.components_, again.components_)
    model.set_params(missing="mean").fit(x)
    assert not hasattr(model, "trace_")


@pytest.mark.parametrize("wrong", [{"n_oversamples": -1}, {"rates": {"speed": 1.0}}, {"ddof": -1}])
@pytest.mark.parametrize("more", [{"missing": "impute"}, {"solver": "scatter"}, {}])
def test_parameters_that_another_solver_takes_are_checked(wrong: Any, more: Any) -> None:
    x = np.random.default_rng(0).standard_normal((40, 6))
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        PCA(2, **wrong, **more).plan(x)
