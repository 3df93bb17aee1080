"""Uniquenesses at their bound, with holes: the model that is returned is the one that was found."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from streampca import FactorAnalysis
from streampca.errors import HeywoodWarning
from tests.models.latent.test_ppca_holes import likelihood

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")


def heywood(n=60, p=6, k=1, seed=1, holes=0.2):
    """The first k features are the factors themselves: their uniqueness wants to be 0."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n, k))
    X = factors @ rng.normal(size=(k, p)) + rng.normal(size=(n, p))
    X[:, :k] = 2.0 * factors
    X[rng.random((n, p)) < holes] = np.nan
    return X


def slopes(Y, model):
    """Derivatives of the plain likelihood by the mean, log of the deviation, direction of the
    loadings, and uniqueness of every feature, the first three in one vector."""
    p, k = model.loadings_.shape
    start = [model.mean_, np.log(model.scale_), model.loadings_.ravel(), model.uniquenesses_]
    parameters = np.concatenate(start)

    def value(theta):
        mean, logs, turned, unique = np.split(theta, [p, 2 * p, 2 * p + p * k])
        w = turned.reshape(p, k)
        w = w * np.sqrt((1 - unique) / np.sum(w**2, axis=1))[:, None]
        spread = np.exp(logs)
        return likelihood(Y, mean, np.outer(spread, spread) * (w @ w.T + np.diag(unique)))

    steps = 1e-5 * np.eye(len(parameters))
    slope = np.array([(value(parameters + h) - value(parameters - h)) / 2e-5 for h in steps])
    return slope[:-p], slope[-p:]


@pytest.mark.parametrize(
    ("k", "lower", "axis"),
    [(1, 0.2, 0), (1, 0.5, 0), (2, 0.1, 0), (2, 0.4, 0), (1, 0.5, 1), (2, 0.1, 1)],
)
def test_the_bound_holds_in_the_step_itself(k, lower, axis, monkeypatch):
    monkeypatch.setattr("streampca.models.latent.em.easier_axis", lambda matrix: axis)
    Y = heywood(p=6 if k == 1 else 8, k=k)
    made = FactorAnalysis(k, missing="em", min_uniqueness=lower, tol=1e-8, max_passes=500)
    model = made.fit(da.from_array(Y, chunks=(25, 8) if axis == 0 else (60, 3)))
    assert model.converged_
    assert len(model.heywood_) >= k
    variances = np.sum(model.loadings_**2, axis=1) + model.uniquenesses_
    np.testing.assert_allclose(variances, 1.0, rtol=1e-12)
    assert model.uniquenesses_.min() >= lower * (1 - 1e-12)
    direct = likelihood(Y, model.mean_, model.get_covariance())
    assert model.log_likelihood_ == pytest.approx(direct, rel=1e-12)
    assert model.log_likelihood_ == pytest.approx(model.score_samples(Y).sum(), rel=1e-12)
    assert np.all(np.diff(model.trace_) >= -1e-12 * abs(direct))
    if axis == 1:
        return
    free, unique = slopes(Y, model)
    np.testing.assert_allclose(free, 0.0, atol=0.02)
    inside = np.setdiff1d(np.arange(len(unique)), model.heywood_)
    np.testing.assert_allclose(unique[inside], 0.0, atol=0.05)
    assert np.all(unique[model.heywood_] < 0.0)


def test_nearly_all_at_the_bound_is_still_a_model():
    Y = heywood(n=40, p=5)
    with pytest.warns(HeywoodWarning, match="lies at its lower bound"):
        model = FactorAnalysis(1, missing="em", min_uniqueness=0.99).fit(Y)
    assert model.uniquenesses_.min() == pytest.approx(0.99, rel=1e-12)
    assert len(model.heywood_) == 4
    assert model.log_likelihood_ == pytest.approx(model.score_samples(Y).sum(), rel=1e-12)
