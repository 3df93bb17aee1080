"""Directions without variance: whitened scores of 0, and no likelihood where no noise is left."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA as SklearnPCA

from streampca import PCA, PPCA, IncrementalPCA, correlation, cross_correlation
from streampca.errors import AccuracyWarning, InvalidInputError

RNG = np.random.default_rng(0)
WIDE = RNG.standard_normal((20, 50))  # rank 19 about its mean
LOW = RNG.standard_normal((60, 3)) @ RNG.standard_normal((3, 8))
SOLVERS = ("gram", "scatter", "tsqr")


def whitened(X, k):
    """(n, k) by NumPy, 0 beyond the rank."""
    U, s, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    real = s[:k] > 1e-10 * s[0]
    return np.abs(U[:, :k]) * np.sqrt(len(X) - 1) * real


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("X", "k"), [(WIDE, None), (WIDE.astype("f4"), None), (LOW, 8)])
@pytest.mark.filterwarnings("ignore:.*numerical rank")
def test_whitened_scores_of_null_components_are_zero(X, k, solver):
    model = PCA(k, whiten=True, svd_solver=solver).fit(X)
    k = model.result_.n_components
    tol = 1e-3 if X.dtype == np.float32 else 1e-6
    for scores in (model.transform(X), model.fit_transform(X)):
        np.testing.assert_allclose(np.abs(scores), whitened(X.astype("f8"), k), atol=tol)
    scores = model.transform(X)
    assert np.abs(model.inverse_transform(scores) - X).max() <= 1e-5
    assert np.all(np.asarray(model.transform(np.eye(X.shape[1], dtype=X.dtype)))[:, -1] == 0)


@pytest.mark.filterwarnings("ignore:.*numerical rank")
def test_standard_scores_of_null_components_are_zero():
    expected = whitened(LOW, 8)
    model = IncrementalPCA(8, whiten=True).fit(LOW)
    np.testing.assert_allclose(np.abs(model.transform(LOW)), expected, atol=1e-6)
    plain = PCA(8, svd_solver="gram").fit(LOW)
    for scores in (plain.project(LOW, 1), plain.eof_.pcs(1)):
        np.testing.assert_allclose(np.abs(scores), expected, atol=1e-6)
    assert np.all(plain.eof_.eofs(1)[3:] == 0)


def test_project_undoes_whitening_of_a_latent_model():
    X = LOW + 0.1 * RNG.standard_normal(LOW.shape)
    plain, white = PPCA(2).fit(X), PPCA(2, whiten=True).fit(X)
    for scaling in (0, 1, 2):
        np.testing.assert_allclose(white.project(X, scaling), plain.project(X, scaling))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("X", "k"), [(WIDE[:5], 4), (WIDE[:5].astype("f4"), 4), (WIDE[:5], None), (LOW, 3), (LOW, None)]
)
def test_no_likelihood_without_noise(X, k, solver):
    with_rank = len(X) - 1 if len(X) == 5 else 3
    model = PCA(k, svd_solver=solver)
    if k is None and X is LOW:
        with pytest.warns(AccuracyWarning, match="numerical rank 3"):
            model.fit(X)
    else:
        model.fit(X)
    assert model.noise_variance_ == 0.0
    for question in (model.score, lambda X: model.get_precision()):
        with pytest.raises(InvalidInputError, match=rf"example n_components={with_rank - 1}"):
            question(X)
    assert np.isfinite(PCA(with_rank - 1, svd_solver=solver).fit(X).score(X))


def test_closed_form_without_noise_has_an_infinite_likelihood():
    model = PPCA(4).fit(WIDE[:5])
    assert model.noise_variance_ == 0.0
    assert model.log_likelihood_ == np.inf
    assert model.bic_ == -np.inf
    assert np.isfinite(model.transform(WIDE)).all()
    with pytest.raises(InvalidInputError, match="no likelihood"):
        model.score(WIDE)
    curve = model.likelihood_curve()
    assert np.isfinite(curve[:4]).all()
    assert curve[4] == np.inf
    assert model.likelihood_curve(WIDE[5:])[4] == -np.inf
    assert PPCA("bic").fit(WIDE[:5]).log_likelihood_ < np.inf


def test_likelihood_of_all_components_of_full_rank():
    X = LOW + RNG.standard_normal(LOW.shape)
    for k in (3, 7, 8):
        expected = SklearnPCA(k).fit(X).score(X)
        assert PCA(k).fit(X).score(X) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weights", [None, [0.0, 3.0, 0.0]])
def test_a_correlation_needs_two_rows(weights):
    X = LOW[:1] if weights is None else LOW[:3]
    with pytest.raises(InvalidInputError, match=r"1 row.*at least 2"):
        correlation(X, sample_weight=weights)
    if weights is None:
        with pytest.raises(InvalidInputError, match=r"1 row.*at least 2"):
            cross_correlation(X, X)
