"""Document 003: the spectrum of the covariance, gaps, truncation, rank and intrinsic dimension."""

from __future__ import annotations

import numpy as np
import pytest

import streampca
from streampca import PCA
from streampca.errors import AccuracyWarning, NoGapWarning
from tests.seeds.documents import SOLVERS, centred, random_bases, sample, spectrum

X = sample(seed=3)
N, D = X.shape  # N samples in D dimensions, reduced to d
C = np.array([[1.0, 0.9], [0.9, 1.05]])


def test_covariance_as_averages() -> None:
    """Covariance: C_kl = <x_k x_l> - <x_k><x_l>, which is <x_k x_l> for centred data."""
    averages = np.einsum("ik,il->kl", X, X) / N - np.outer(X.mean(axis=0), X.mean(axis=0))
    np.testing.assert_allclose(streampca.covariance(X, ddof=0), averages, atol=1e-11)
    Z = centred(X)
    found = streampca.covariance(Z, ddof=0)
    np.testing.assert_allclose(found, np.einsum("ik,il->kl", Z, Z) / N, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)


def test_the_two_by_two_example() -> None:
    """Worked example, two features to one: y = a x_1 + b x_2 with a^2 + b^2 = 1.

    Slips: the eigenvalues are 1.92535 and .12465, which add up to the trace of 2.05; the
    eigenvectors have length 1 and are orthogonal; the first is the one to keep.
    """
    model = PCA.from_covariance(C)
    np.testing.assert_allclose(model.explained_variance_, [1.92535, 0.12465], atol=5e-6)
    assert model.explained_variance_.sum() == pytest.approx(2.05)
    root = np.sqrt(1.05**2 + 1 - 2 * 1.05 + 4 * 0.81)
    np.testing.assert_allclose(model.explained_variance_, [(2.05 + root) / 2, (2.05 - root) / 2])
    np.testing.assert_allclose(
        np.abs(model.components_), [[0.69722, 0.71686], [0.71686, 0.69722]], atol=5e-6
    )
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-15)
    kept = PCA.from_covariance(C, n_components=1)
    a, b = kept.components_[0]
    assert a * b > 0
    assert kept.explained_variance_ratio_[0] == pytest.approx(1.92535 / 2.05, abs=5e-6)
    np.testing.assert_allclose(kept.transform([[2.0, -1.0]]), [[2 * a - b]])


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_of_a_are_eigenvectors(solver: str) -> None:
    """Derivation: Y = AX with AC = Lambda A, AA' = I and cov(Y) = ACA' = Lambda."""
    model = PCA(3, svd_solver=solver, ddof=0).fit(X)
    A, cov = model.components_, streampca.covariance(X, ddof=0)
    assert A.shape == (3, D)
    np.testing.assert_allclose(A @ cov, model.explained_variance_[:, None] * A, atol=1e-11)
    np.testing.assert_allclose(A @ A.T, np.eye(3), atol=1e-12)
    of_scores = streampca.covariance(model.transform(X), ddof=0)
    np.testing.assert_allclose(of_scores, A @ cov @ A.T, atol=1e-12)
    np.testing.assert_allclose(of_scores, np.diag(model.explained_variance_), atol=1e-11)


def test_largest_trace() -> None:
    """Derivation, conditions 2 and 3: no other orthonormal A gives cov(Y) a larger trace."""
    model = PCA(2, ddof=0).fit(X)
    cov = streampca.covariance(X, ddof=0)
    most = model.explained_variance_.sum()
    assert most == pytest.approx(spectrum(cov)[0][:2].sum())
    for V in random_bases(D, 2, 100):
        assert np.trace(V.T @ cov @ V) < most


def test_trace_is_stationary_at_eigenvectors() -> None:
    """Loss and its derivative AC - Lambda A = 0.

    Slips: it is to be maximised; every set of eigenvectors is stationary, the least ones too, and
    -A is as good as A.
    """
    model = PCA(ddof=0).fit(X)
    cov = streampca.covariance(X, ddof=0)
    for rows in ([0, 1], [2, 4], [D - 2, D - 1]):
        A, values = model.components_[rows], model.explained_variance_[rows]
        for signed in (A, -A):
            np.testing.assert_allclose(signed @ cov - values[:, None] * signed, 0, atol=1e-11)
            assert np.trace(signed @ cov @ signed.T) == pytest.approx(values.sum())
    assert model.explained_variance_[:2].sum() > model.explained_variance_[2:4].sum()


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_points_on_a_hyperplane(solver: str) -> None:
    """Specific case: 1000 features, points on 10 dimensions. Slip: 990 eigenvalues are 0."""
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.standard_normal((1000, 10)))[0].T
    along = rng.standard_normal((200, 10))
    with pytest.warns(AccuracyWarning, match="numerical rank 10"):
        found = PCA(20, svd_solver=solver).fit(along @ plane + 3.0)
    assert found.rank_ == 10
    assert 1000 - found.rank_ == 990
    assert found.explained_variance_[9] > 0.1
    assert np.abs(found.explained_variance_[10:]).max() < 1e-10
    assert found.explained_variance_ratio_[:10].sum() == pytest.approx(1)
    assert PCA("gap", svd_solver=solver).fit(along @ plane).n_components_ == 10
    # slip: the rank is at most the dimension of the plane; these points lie on a line in it
    line = np.outer(np.arange(200.0), plane[0])
    assert PCA(1, svd_solver=solver).fit(line).rank_ == 1


@pytest.mark.parametrize("solver", SOLVERS)
def test_curve_in_a_plane(solver: str) -> None:
    """Rank against intrinsic dimension: a curve (ID 1) in a plane of 3-D has rank 2 >= 1."""
    t = np.linspace(0, 3, 50)
    plane = np.array([[1, 1, 0.5], [-0.5, 1, -1]]) / 1.5
    curve = np.column_stack([t, np.sin(2 * t)]) @ plane + 5.0
    with pytest.warns(AccuracyWarning, match="numerical rank 2"):
        model = PCA(svd_solver=solver).fit(curve)
    assert model.rank_ == 2
    assert model.explained_variance_[1] > 0.1
    assert abs(model.explained_variance_[2]) < 1e-13
    normal = np.cross(*plane)
    assert abs(model.components_[2] @ normal) == pytest.approx(1, abs=1e-9)


def test_gap_in_the_spectrum() -> None:
    """Real-world scenarios: cut at the gap; without one nothing says where to cut."""
    model = PCA.from_covariance(
        np.diag([9.0, 8.5, 8.0, 0.4, 0.3, 0.2]), n_components="gap", n_samples=500
    )
    assert model.n_components_ == 3
    with pytest.warns(NoGapWarning):
        PCA.from_covariance(
            np.diag([6.0, 5.5, 5.0, 4.5, 4.0, 3.5]), n_components="gap", n_samples=500
        )


@pytest.mark.parametrize("share", [0.45, 0.95])
def test_share_of_a_truncation(share: float) -> None:
    """Tr C is the sum of eigenvalues; eta(d) = first d over all, d the first to reach a share."""
    cov = streampca.covariance(X)
    values = PCA().fit(X).explained_variance_
    assert values.sum() == pytest.approx(np.trace(cov))
    eta = np.cumsum(values) / np.trace(cov)
    model = PCA(share).fit(X)
    assert model.n_components_ == int(np.argmax(eta >= share)) + 1
    np.testing.assert_allclose(model.r2_curve()[1:], eta[: model.n_components_], rtol=1e-12)
