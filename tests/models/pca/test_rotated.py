"""Rotated fits: consistent loadings, scores, reconstructions; saved, labelled, drawn."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import PCA, IncrementalPCA, RotatedPCA
from streampca.errors import DroppedFeaturesWarning, InvalidInputError
from tests.data import planted
from tests.solvers.test_rotation import by_singular_vectors, matched, simple_structure

matplotlib.use("agg")
METHODS = ["varimax", "promax"]


def structured(n=200, p=12, k=3, seed=0):
    factors = simple_structure(p, k, seed).T
    return planted(n, p, factors=factors, noise=0.1, mean=5, seed=seed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("solver", ["scatter", "gram"])
@pytest.mark.parametrize("scale", [None, "std"])
def test_loadings_scores_and_reconstruction_agree(method, solver, scale):
    X = structured()
    pca = PCA(3, svd_solver=solver, scale=scale).fit(X)
    model = streampca.rotate(pca, method)
    result = model.result_
    base = pca.result_.loadings
    np.testing.assert_allclose(base @ result.rotation, result.loadings, atol=1e-10)
    simple, _ = by_singular_vectors(base)
    if method == "varimax":
        np.testing.assert_allclose(matched(result.loadings, simple), result.loadings, atol=1e-6)
        assert result.explained_variance.sum() == pytest.approx(pca.explained_variance_.sum())
        np.testing.assert_allclose(result.correlations, np.eye(3), atol=1e-10)
    assert np.all(np.diff(result.explained_variance) <= 0)
    scores = model.transform(X)
    phi = np.corrcoef(scores.T)
    np.testing.assert_allclose(phi, result.correlations, atol=1e-9)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), result.explained_variance, rtol=1e-9)
    if result.scores is not None:
        np.testing.assert_allclose(result.scores, scores, atol=1e-7)
    np.testing.assert_allclose(
        model.inverse_transform(scores), pca.inverse_transform(pca.transform(X)), atol=1e-8
    )
    Z = (X - X.mean(axis=0)) / (1 if scale is None else X.std(axis=0, ddof=1))
    structure = np.cov(Z.T, (scores / scores.std(axis=0, ddof=1)).T)[:12, 12:]
    np.testing.assert_allclose(result.structure, structure, atol=1e-8)
    np.testing.assert_allclose(
        model.eof_.as_correlation(), (structure / Z.std(axis=0, ddof=1)[:, None]).T, atol=1e-8
    )
    one = model.reconstruct([1], scores) + model.reconstruct([2, 3], scores, mean=False)
    np.testing.assert_allclose(one, model.inverse_transform(scores), atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_the_space_is_that_of_the_unrotated(method):
    X = structured(seed=1)
    pca = PCA(4, svd_solver="gram").fit(X)
    model = streampca.rotate(pca, method, k=3)
    three = PCA(3, svd_solver="gram").fit(X)
    back = model.unrotated()
    np.testing.assert_allclose(back.components_, three.components_, atol=1e-8)
    np.testing.assert_allclose(back.result_.scores, three.result_.scores, atol=1e-7)
    for name in ("reconstruction_error", "score"):
        assert getattr(model, name)(X) == pytest.approx(getattr(three, name)(X))
    for name in ("get_covariance", "get_precision"):
        np.testing.assert_allclose(
            getattr(model, name)(), getattr(three, name)(), rtol=1e-6, atol=1e-8
        )
    np.testing.assert_allclose(model.r2_curve(X), three.r2_curve(X))
    assert model.noise_variance_ == pytest.approx(three.noise_variance_)
    with pytest.raises(InvalidInputError, match="unrotated"):
        model.eof_.north_errors()
    with pytest.raises(InvalidInputError, match="unrotated"):
        model.result_.tracy_widom()


@pytest.mark.parametrize("method", METHODS)
def test_saved_labelled_and_drawn(tmp_path, method):
    values = structured(n=9, p=20, seed=2)
    da = xr.DataArray(values.reshape(9, 4, 5), dims=("time", "lat", "lon"))
    da.values[:, 0, 0] = np.nan
    with pytest.warns(DroppedFeaturesWarning):
        pca = PCA(3, svd_solver="gram").fit(da, dim="time")
    model = streampca.rotate(pca, method, normalize=False)
    assert model.result_.to_xarray()["components"].dims == ("component", "lat", "lon")
    model.save(tmp_path / "rotated")
    again = streampca.load(tmp_path / "rotated")
    assert isinstance(again, RotatedPCA)
    assert (again.method, again.result_.sweeps) == (method, model.result_.sweeps)
    assert again.result_.converged
    for name in ("loadings", "rotation", "correlations", "explained_variance", "scores"):
        np.testing.assert_array_equal(getattr(again.result_, name), getattr(model.result_, name))
    xr.testing.assert_identical(again.transform(da), model.transform(da))
    assert model.transform(da).dims == ("time", "component")
    xr.testing.assert_allclose(again.eof_.eofs(2), model.eof_.eofs(2))
    assert np.isnan(model.eof_.eofs().values[:, 0, 0]).all()
    streampca.plots.scree(again)
    streampca.plots.loadings(again, component=2)
    streampca.plots.scores(again)
    assert method in str(model.result_)


def test_an_estimator_that_fits_and_rotates():
    X = structured(seed=3)
    model = RotatedPCA(PCA(3), "promax", power=3.0).fit(X)
    other = PCA(3).fit(X).result_.rotate("promax", power=3.0)
    np.testing.assert_array_equal(model.result_.loadings, other.loadings)
    np.testing.assert_array_equal(
        RotatedPCA(PCA(3), "promax", power=3.0).fit(X).transform(X), model.transform(X)
    )
    whitened = RotatedPCA(PCA(3, whiten=True)).fit(X)
    np.testing.assert_allclose(whitened.transform(X).std(axis=0, ddof=1), 1.0)
    np.testing.assert_allclose(
        whitened.inverse_transform(whitened.transform(X)),
        PCA(3).fit(X).inverse_transform(PCA(3).fit_transform(X)),
    )
    incremental = IncrementalPCA(3).fit(X)
    np.testing.assert_allclose(
        streampca.rotate(incremental).result_.loadings,
        streampca.rotate(PCA(3).fit(X)).result_.loadings,
        atol=1e-8,
    )


def test_what_cannot_be_rotated():
    X = structured(seed=4)
    result = PCA(3).fit(X).result_
    for k in (0, 4, 1.5, True):
        with pytest.raises(InvalidInputError, match=r"k="):
            streampca.rotate(result, k=k)
    with pytest.raises(InvalidInputError, match="rotated already"):
        result.rotate().rotate()
    with pytest.raises(InvalidInputError, match="expected a fitted model"):
        streampca.rotate(X)
    with pytest.raises(streampca.errors.NotFittedError, match="not fitted yet"):
        streampca.rotate(PCA(3))
    flat = np.outer(X[:, 0], np.ones(4))
    with pytest.warns(streampca.errors.AccuracyWarning):
        still = PCA(2).fit(flat)
    with pytest.raises(InvalidInputError, match=r"component 2 has no variance.*expected k=1"):
        streampca.rotate(still, k=2)
    assert streampca.rotate(still).n_components_ == 1


def test_a_rotation_says_how_many_optima_there_are(tmp_path):
    loadings = np.random.default_rng(3).normal(size=(40, 8))
    factors = np.random.default_rng(0).normal(size=(100, 8))
    factors = np.linalg.qr(factors - factors.mean(axis=0))[0]
    pca = PCA(8).fit(factors @ loadings.T)
    rotated = streampca.rotate(pca)
    result = rotated.result_
    assert (result.starts, result.optima > 1) == (9, True)
    assert f"the best of {result.optima} optima, reached from {result.reached} of 9 starts" in (
        "\n".join(result.notes())
    )
    rotated.save(tmp_path / "model")
    again = streampca.load(tmp_path / "model").result_
    assert (again.starts, again.reached, again.optima) == (9, result.reached, result.optima)
    alone = streampca.rotate(pca.result_, restarts=0)
    assert (alone.starts, alone.notes()) == (1, pca.result_.notes())
    with pytest.raises(InvalidInputError, match="restarts"):
        streampca.rotate(pca, restarts=-1)


@pytest.mark.parametrize("k", [2, 3])
def test_scores_of_a_rotated_ppca_are_those_of_transform(k):
    """The posterior means that a wide PPCA keeps are drawn towards 0; projections are not."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(12, 20)) + 4 * rng.normal(size=(12, 3)) @ rng.normal(size=(3, 20))
    base = streampca.PPCA(k, solver="gram").fit(X)
    model = streampca.rotate(base)
    left, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    unit = left[:, :k] * np.sqrt(11)
    np.testing.assert_allclose(s[:k] ** 2 / 11, base.explained_variance_)
    unit = unit * np.sign(np.sum(unit * base.result_.scores, axis=0))
    expected = unit @ model.result_.rotation * np.sqrt(model.explained_variance_)
    np.testing.assert_allclose(model.result_.scores, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(model.transform(X), expected, rtol=1e-9, atol=1e-9)


def test_factors_are_rotated_by_their_fit():
    model = streampca.FactorAnalysis(2).fit(structured())
    for wrong in (model, model.result_):
        with pytest.raises(InvalidInputError, match="factors are rotated by the fit"):
            streampca.rotate(wrong)


def test_its_fit_is_that_of_the_pca():
    """Parameters are checked, holes completed, samples weighted and empty ones left out alike."""
    X = structured(60)
    with pytest.raises(InvalidInputError, match="n_oversamples"):
        RotatedPCA(PCA(2, n_oversamples=-1)).fit(X)
    with pytest.raises(InvalidInputError, match="ddof=None; expected"):
        RotatedPCA(PCA(2, ddof=None)).fit(X)
    holes = X.copy()
    holes[::7, 3] = np.nan
    weight = np.arange(60) % 3 + 1.0
    for pca in (
        PCA(2, missing="impute", tol=1e-6),
        PCA(2, solver="randomized", random_state=3, missing="mean"),
        PCA(2, warm_start=True, missing="mean"),
    ):
        model = RotatedPCA(pca)
        plan = model.plan(holes, sample_weight=weight)
        assert model.fit(holes, sample_weight=weight).plan_.solver == plan.solver
        assert not hasattr(pca, "result_")
        assert not hasattr(pca, "gap_")
        by_hand = streampca.rotate(pca.fit(holes, sample_weight=weight))
        np.testing.assert_array_equal(model.result_.components, by_hand.result_.components)
        assert model.plan_.method == "PCA"
    field = xr.DataArray(X.reshape(60, 4, 3), dims=("time", "lat", "lon"))
    field[5] = np.nan
    with pytest.warns(streampca.errors.EmptySamplesWarning, match="1 of 60"):
        model = RotatedPCA(PCA(2)).fit(field, dim="time")
    scores = model.transform(field)
    assert np.isnan(scores[5]).all()
    assert np.isfinite(scores).sum() == 118
    alone = RotatedPCA(PCA(2)).fit(np.delete(X, 5, axis=0))
    np.testing.assert_allclose(model.components_, alone.components_, atol=1e-12)
