"""Linear Gaussian models: posteriors and likelihoods of rows with holes, against the plain normal
distribution of what each row observes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import zarr
from scipy.stats import multivariate_normal

from streampca import PPCA, FactorAnalysis
from streampca.errors import NonFiniteError
from tests.data import planted, simple_factors


def holed(n=120, p=9, k=2, seed=0, holes=0.2):
    rng = np.random.default_rng(seed)
    factors = simple_factors(k, p, rng)
    return planted(n, p, factors=factors, noise=1.0, mean=4.0, holes=holes, seed=rng)


MODELS = {
    "ppca": lambda: PPCA(2),
    "ppca whitened": lambda: PPCA(2, scale="std", whiten=True),
    "factors em": lambda: FactorAnalysis(2, missing="em", rotation="varimax"),
    "factors": lambda: FactorAnalysis(2, missing="mean"),
    "promax": lambda: FactorAnalysis(2, missing="mean", rotation="promax"),
}


def by_hand(model, row):
    """(log-likelihood, posterior mean and covariance) of one row, from what it observes."""
    seen = ~np.isnan(row)
    mean, sigma = model.mean_[seen], model.get_covariance()[np.ix_(seen, seen)]
    k = model.n_components_
    w = (model.inverse_transform(np.eye(k)) - model.mean_).T[seen]
    phi = getattr(model, "correlations_", None)
    if phi is None:
        phi = np.eye(k) if model.whiten else np.diag(model.result_.factor_scale**2)
    gain = phi @ w.T @ np.linalg.inv(sigma)
    covariance = phi - gain @ w @ phi
    if not seen.any():
        return 0.0, np.zeros(k), phi
    likelihood = multivariate_normal(mean, sigma).logpdf(row[seen])
    return likelihood, gain @ (row[seen] - mean), covariance


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_rows_with_holes(name, axis, monkeypatch):
    X = holed()
    X[3] = np.nan  # a row without any observation
    model = MODELS[name]().fit(X)
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: axis)
    likelihoods, scores = model.score_samples(X), model.transform(X)
    means, covariances = model.posterior(X)
    for i in range(12):
        likelihood, mean, covariance = by_hand(model, X[i])
        assert likelihoods[i] == pytest.approx(likelihood, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(scores[i], mean, atol=1e-9)
        np.testing.assert_allclose(means[i], mean, atol=1e-9)
        np.testing.assert_allclose(covariances[i], covariance, atol=1e-9)
    assert np.isfinite(scores).all()
    assert likelihoods[3] == 0.0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_rows_without_holes(name, axis, monkeypatch):
    X = holed(holes=0.0)
    model = MODELS[name]().set_params(missing="raise").fit(X)
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: axis)
    for given in (X, scipy.sparse.csr_array(X), scipy.sparse.csc_array(X)):
        expected = multivariate_normal(model.mean_, model.get_covariance()).logpdf(X)
        np.testing.assert_allclose(model.score_samples(given), expected, rtol=1e-9)
        scores = model.transform(given)
        np.testing.assert_allclose(scores[5], by_hand(model, X[5])[1], atol=1e-9)

    with pytest.raises(NonFiniteError, match="NaN"):
        model.score_samples(holed())


@pytest.mark.parametrize("name", MODELS)
def test_samples_have_the_covariance_of_the_model(name):
    model = MODELS[name]().fit(holed(holes=0.0))
    drawn = model.sample(40000, random_state=3)
    np.testing.assert_array_equal(drawn, model.sample(40000, random_state=3))
    sigma = model.get_covariance()
    allowed = 6.0 * np.sqrt(2.0 / 40000) * np.diagonal(sigma).max()
    np.testing.assert_allclose(np.cov(drawn.T), sigma, atol=allowed)
    np.testing.assert_allclose(drawn.mean(axis=0), model.mean_, atol=allowed)
    identity = model.get_precision() @ sigma
    np.testing.assert_allclose(identity, np.eye(len(sigma)), atol=1e-9)


def test_bartlett_scores_of_rows_with_holes():
    X = holed()
    model = FactorAnalysis(2, missing="mean", scores="bartlett").fit(X)
    X[0, 1:] = np.nan  # less than there are factors: of all solutions the shortest
    scores = model.transform(X)
    Z = (X - model.mean_) / model.scale_
    for i in range(8):
        seen = ~np.isnan(Z[i])
        root = np.sqrt(model.uniquenesses_[seen])
        w = model.loadings_[seen] / root[:, None]
        expected = np.linalg.lstsq(w, Z[i, seen] / root, rcond=None)[0]
        np.testing.assert_allclose(scores[i], expected, atol=1e-8)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("make", [PPCA, lambda k: FactorAnalysis(k, missing="em")])
def test_holes_of_a_sample_of_weight_0_change_nothing(make, axis, tmp_path):
    """Neither the closed form nor its ddof; holes of others count."""
    X = holed(holes=0.0)
    weights = np.ones(len(X))
    weights[[7, 50]] = 0.0
    plain = make(2).fit(np.delete(X, [7, 50], axis=0))
    X[7, 3] = X[50, :] = np.nan
    source = zarr.create_array(
        str(tmp_path / "x"), shape=X.shape, dtype="f8", chunks=(30, 9) if axis == 0 else (120, 3)
    )
    source[:] = X
    model = make(2).fit(source, sample_weight=weights)
    np.testing.assert_allclose(model.get_covariance(), plain.get_covariance(), rtol=1e-8)
    assert model.log_likelihood_ == pytest.approx(plain.log_likelihood_, rel=1e-10)
    assert [cost.name for cost in model.cost_][-1] == "holes"
    X[8, 3] = np.nan
    model = make(2).fit(X, sample_weight=weights)
    assert [cost.name for cost in model.cost_][-1] != "holes"
