"""Probabilistic PCA: the closed form, EM with holes, the choice of k."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA as Reference

import streampca
from streampca import PPCA
from streampca.errors import InvalidInputError
from tests.data import planted


def spread(n=200, p=12, k=3, seed=0, noise=0.7):
    """Orthogonal factors of falling strength."""
    rng = np.random.default_rng(seed)
    strengths = 3.0 * 0.7 ** np.arange(k) * np.sqrt(p)
    factors = strengths[:, None] * np.linalg.qr(rng.normal(size=(p, k)))[0].T
    return planted(n, p, factors=factors, noise=noise, mean=5.0, seed=rng)


# -- the closed form ---------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 11])
@pytest.mark.parametrize("svd_solver", ["scatter", "tsqr", "gram", "auto"])
def test_score_is_that_of_scikit_learn(k, svd_solver):
    X = spread()
    missing = "raise" if svd_solver == "tsqr" else "em"
    ours = PPCA(k, solver=svd_solver, missing=missing).fit(X)
    theirs = Reference(k, svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), rtol=1e-9)
    assert ours.score(X) == pytest.approx(theirs.score(X), rel=1e-9)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-9)
    assert ours.log_likelihood_ == pytest.approx(200 * theirs.score(X), rel=1e-12)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), atol=1e-7)
    assert len(ours.trace_) == 0
    assert ours.converged_


@pytest.mark.parametrize("scale", [None, "std"])
def test_no_other_noise_or_loadings_are_more_likely(scale):
    X = spread(60, 8, 2, seed=1)
    model = PPCA(2, ddof=0, scale=scale).fit(X)
    Z = (X - X.mean(axis=0)) / (1.0 if scale is None else X.std(axis=0))
    inner = model.result_.factor_model
    best = multivariate_normal(np.zeros(8), inner.covariance()).logpdf(Z).sum()
    jacobian = 0.0 if scale is None else -60 * np.log(X.std(axis=0)).sum()
    assert model.log_likelihood_ == pytest.approx(best + jacobian, rel=1e-12)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2):
        for _ in range(20):
            w = inner.loadings + size * rng.normal(size=inner.loadings.shape)
            sigma = w @ w.T + np.eye(8) * inner.noise[0] * np.exp(size * rng.normal())
            assert multivariate_normal(np.zeros(8), sigma).logpdf(Z).sum() < best


def test_wide_data_have_the_noise_of_all_directions():
    X = spread(30, 80, 2, seed=2)
    model = PPCA(2, ddof=0, solver="gram").fit(X)
    values = np.linalg.eigvalsh(np.cov(X.T, ddof=0))[::-1]
    assert model.noise_variance_ == pytest.approx(values[2:].mean(), rel=1e-10)
    expected = multivariate_normal(X.mean(axis=0), model.get_covariance()).logpdf(X)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-9)
    made = PPCA(2, ddof=0, solver="gram", whiten=True).fit_transform(X)  # read twice, not more
    np.testing.assert_allclose(made, model.set_params(whiten=True).transform(X), atol=1e-9)


def test_scores_are_posterior_means_in_either_unit():
    X = spread()
    plain, white = PPCA(3, ddof=0).fit(X), PPCA(3, ddof=0, whiten=True).fit(X)
    variance, noise = plain.explained_variance_, plain.noise_variance_
    pca = (X - X.mean(axis=0)) @ plain.components_.T
    np.testing.assert_allclose(plain.transform(X), pca * (1 - noise / variance), atol=1e-9)
    w = plain.components_.T * np.sqrt(variance - noise)
    latent = (X - X.mean(axis=0)) @ w @ np.linalg.inv(w.T @ w + noise * np.eye(3))  # eq. A.3
    np.testing.assert_allclose(white.transform(X), latent, atol=1e-9)
    for model in (plain, white):
        rows = model.inverse_transform(model.transform(X))
        np.testing.assert_allclose(rows, X.mean(axis=0) + latent @ w.T, atol=1e-9)
    covariance = white.posterior(X)[1]
    expected = noise * np.linalg.inv(w.T @ w + noise * np.eye(3))
    np.testing.assert_allclose(covariance, np.broadcast_to(expected, (200, 3, 3)), atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"scale": "std"}, {"weights": np.arange(1.0, 13.0)}])
def test_curves_choose_the_number(settings):
    X = spread(400, 12, 3, seed=3)
    new = spread(401, 12, 3, seed=3)[-200:]
    wide = PPCA(8, **settings).fit(X)
    curve, held_out = wide.likelihood_curve(), wide.likelihood_curve(new)
    for k in (1, 3, 5, 8):
        one = PPCA(k, **settings).fit(X)
        assert curve[k] == pytest.approx(one.log_likelihood_ / 400, rel=1e-11)
        assert held_out[k] == pytest.approx(one.score(new), rel=1e-10)
        assert wide.bic_curve()[k] == pytest.approx(one.bic_, rel=1e-11)
    if not settings:
        assert int(np.argmin(wide.bic_curve())) == 3
        chosen = PPCA("bic").fit(X)
        assert chosen.n_components_ == 3
        np.testing.assert_allclose(chosen.components_, PPCA(3).fit(X).components_, atol=1e-9)
    assert len(wide.certificate_.angle_bound) == 8


# -- sources, edges ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dask", "sparse", "xarray", "int16"])
def test_every_source_gives_the_same(kind):
    X = np.rint(8 * spread(150, 7, 2, seed=6))
    expected = PPCA(2).fit(X)
    given = {
        "dask": lambda: da.from_array(X, chunks=(40, 7)),
        "sparse": lambda: scipy.sparse.csr_array(X),
        "xarray": lambda: xr.DataArray(X, dims=("time", "cell")),
        "int16": lambda: X.astype(np.int16),
    }[kind]()
    model = PPCA(2).fit(given)
    tolerance = 1e-5 if kind == "int16" else 1e-10
    assert model.noise_variance_ == pytest.approx(expected.noise_variance_, rel=tolerance)
    scores = model.transform(given)
    assert type(scores) is {"dask": da.Array, "xarray": xr.DataArray}.get(kind, np.ndarray)
    np.testing.assert_allclose(
        np.asarray(scores), expected.transform(X), atol=1e-8 if tolerance < 1e-6 else 1e-3
    )
    np.testing.assert_allclose(
        model.score_samples(given), expected.score_samples(X), rtol=10 * tolerance
    )
    assert len(model.cost_) == 1
    if kind == "int16":  # no hole is possible: no step of EM is planned
        assert model.plan_.n_passes == 1


def test_remove_and_sample_weights_are_those_of_the_pca(tmp_path):
    X = spread(120, 12, 2, seed=7)
    trend = np.linspace(-1, 1, 120)
    X = X + 30 * trend[:, None]
    model = PPCA(2, remove=trend).fit(X)
    left = X - X.mean(axis=0) - np.outer(trend, trend @ (X - X.mean(axis=0))) / (trend @ trend)
    plain = PPCA(2).fit(left)
    assert model.noise_variance_ == pytest.approx(plain.noise_variance_)
    np.testing.assert_allclose(model.score_samples(X, remove=trend), plain.score_samples(left))
    weights = np.random.default_rng(0).integers(0, 4, 120)
    weighted = PPCA(2).fit(X, sample_weight=weights)
    repeated = PPCA(2).fit(np.repeat(X, weights, axis=0))
    assert weighted.log_likelihood_ == pytest.approx(repeated.log_likelihood_)
    assert weighted.bic_ == pytest.approx(repeated.bic_)
    model.save(tmp_path / "m")
    again = streampca.load(tmp_path / "m")
    assert isinstance(again, PPCA)
    assert again.noise_variance_ == model.noise_variance_
    assert again.log_likelihood_ == model.log_likelihood_


def test_nothing_left_for_the_noise():
    X = spread(40, 5, 2, seed=8)
    model = PPCA(5).fit(X)
    assert model.noise_variance_ == 0.0
    assert np.isfinite(model.score(X))
    assert model.score(X) == pytest.approx(Reference(5).fit(X).score(X), rel=1e-6)
    with pytest.raises(InvalidInputError, match="no inverse"):
        model.get_precision()


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"missing": "mean"}, "expected 'raise' or 'em'"), ({"n_components": 99}, "between 0 and")],
)
def test_settings_that_cannot_be_met(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        PPCA(**settings).fit(spread())
