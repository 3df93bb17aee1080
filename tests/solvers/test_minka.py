"""The most probable number of components, against a direct evaluation and scikit-learn."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln
from sklearn.decomposition import PCA as Peer

from streampca import PCA, IncrementalPCA
from streampca.errors import InvalidInputError
from streampca.solvers.minka import log_evidence


def sample(n, p, k, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, k)) @ rng.standard_normal((k, p)) + noise * rng.standard_normal(
        (n, p)
    )


def direct(values, n, k):
    """Equation 80, term by term."""
    p = len(values)
    noise = np.mean(values[k:])
    hat = np.where(np.arange(p) < k, values, noise)
    hessian = sum(
        math.log((1 / hat[j] - 1 / hat[i]) * (values[i] - values[j]) * n)
        for i, j in product(range(k), range(p))
        if i < j
    )
    d = p - np.arange(k)
    prior = -k * math.log(2) + np.sum(gammaln(d / 2) - math.log(math.pi) * d / 2)
    fit = -n / 2 * (np.sum(np.log(values[:k])) + (p - k) * math.log(noise))
    m = p * k - k * (k + 1) / 2
    return prior + fit + (m + k) / 2 * math.log(2 * math.pi) - hessian / 2 - k / 2 * math.log(n)


def test_evidence_is_the_equation():
    values = np.sort(np.random.default_rng(2).random(9))[::-1] * 5
    wanted = [direct(values, 200, k) for k in range(1, 9)]
    np.testing.assert_allclose(log_evidence(values, 200), wanted, rtol=1e-12)


@pytest.mark.parametrize("solver", ["scatter", "tsqr", "gram"])
@pytest.mark.parametrize(("n", "p", "k"), [(100, 5, 1), (300, 20, 6), (60, 40, 3)])
def test_number_is_the_planted_one_and_scikit_learns(solver, n, p, k):
    X = sample(n, p, k)
    model = PCA("mle", svd_solver=solver).fit(X)
    assert model.n_components_ == k == Peer("mle", svd_solver="full").fit(X).n_components_
    assert model.noise_variance_ == pytest.approx(0.01, rel=0.3)
    assert IncrementalPCA("mle").fit(X).n_components_ == k


def test_constant_and_dependent_features():
    X = sample(80, 6, 2)
    X = np.column_stack([X, np.full(80, 7.0)])
    assert PCA("mle").fit(X).n_components_ == 2
    twice = np.column_stack([X[:, :6], X[:, 0] + X[:, 1]])  # an eigenvalue of 0
    assert PCA("mle", svd_solver="tsqr").fit(twice).n_components_ in range(1, 7)


def test_refused_where_the_spectrum_is_not_known():
    wide = sample(30, 50, 3)
    for X, model in (
        (wide, PCA("mle")),
        (wide, IncrementalPCA("mle")),
        (sample(300, 30, 3), IncrementalPCA("mle", state="truncated", max_rows=10)),
    ):
        with pytest.raises(InvalidInputError, match=r"n_components='mle' needs the whole spectrum"):
            model.fit(X)
    with pytest.raises(InvalidInputError, match="needs a number of components"):
        PCA("mle", svd_solver="randomized").fit(sample(300, 30, 3))
    S = np.cov(sample(300, 8, 3), rowvar=False)
    assert PCA.from_covariance(S, n_samples=300, n_components="mle").n_components_ == 3
    with pytest.raises(InvalidInputError, match="n_samples=None"):
        PCA.from_covariance(S, n_components="mle")


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [1, 2, 5, 7])
def test_noise_of_zero_is_the_most_likely(rank, dtype):
    """scikit-learn#16730: a rank-deficient matrix has as many components as its rank."""
    rng = np.random.default_rng(rank)
    x = (rng.standard_normal((300, rank)) @ rng.standard_normal((rank, 8))).astype(dtype)
    for solver in ("scatter", "tsqr"):
        assert PCA("mle", svd_solver=solver).fit(x).n_components_ == rank
