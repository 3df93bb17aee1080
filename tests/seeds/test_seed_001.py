"""Document 001: projection, covariance, the objective and its solution, encoding and decoding."""

from __future__ import annotations

import numpy as np
import pytest

import streampca
from streampca import PCA
from tests.seeds.documents import SOLVERS, centred, random_bases, sample, spectrum

X = sample(seed=1)
m, n = X.shape  # m rows of n features, as the document has them
Z = centred(X)


def test_projection_onto_a_vector() -> None:
    """1 Projection: p = (x.v / |v|^2) v. Slip: x.v / |v| has a sign, a length has none."""
    v, x = np.array([3.0, 4.0]), np.array([2.0, 1.0])
    model = PCA.from_covariance(np.outer(v, v), n_components=1)
    v_unit = model.components_[0]
    np.testing.assert_allclose(np.abs(v_unit), [0.6, 0.8])
    scores = model.transform(np.vstack([x, -x]))
    np.testing.assert_allclose(np.abs(scores[:, 0]), 2.0)  # 10 / 5
    assert scores[0, 0] == pytest.approx(-scores[1, 0])
    np.testing.assert_allclose(model.inverse_transform(scores), [[1.2, 1.6], [-1.2, -1.6]])


def test_covariance_matrix() -> None:
    """2 Covariance: deviations multiplied, over m - 1; variances on the diagonal."""
    found = streampca.covariance(X)
    assert found.shape == (n, n)
    for i, j in ((0, 0), (3, 3), (0, 4), (4, 0)):
        products = (X[:, i] - X[:, i].mean()) * (X[:, j] - X[:, j].mean())
        assert found[i, j] == pytest.approx(products.sum() / (m - 1), abs=1e-13)
    np.testing.assert_allclose(np.diagonal(found), X.var(axis=0, ddof=1), rtol=1e-12)


def test_centring_leaves_the_covariance() -> None:
    """2 Effect of centring: Cov(X) = X_c'X_c / (m - 1), whether X was centred before or not."""
    np.testing.assert_allclose(streampca.covariance(X), Z.T @ Z / (m - 1), atol=1e-12)
    np.testing.assert_allclose(streampca.covariance(Z), streampca.covariance(X), atol=1e-12)
    np.testing.assert_allclose(PCA(2).fit(Z).mean_, 0, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
def test_divisor_does_not_turn_directions(solver: str) -> None:
    """2, last paragraph: 1 / m or 1 / (m - 1) scales eigenvalues and leaves eigenvectors."""
    one, other = (PCA(svd_solver=solver, ddof=ddof).fit(X) for ddof in (0, 1))
    np.testing.assert_array_equal(one.components_, other.components_)
    np.testing.assert_allclose(
        one.explained_variance_ * m, other.explained_variance_ * (m - 1), rtol=1e-12
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_are_exact_projections(solver: str) -> None:
    """3 Data projection: z = Xw, one number a row. Slip: not approximately, for |w| = 1."""
    model = PCA(1, svd_solver=solver).fit(X)
    w = model.components_[0]
    assert np.linalg.norm(w) == pytest.approx(1, abs=1e-14)
    z = model.fit_transform(X)
    assert z.shape == (m, 1)
    np.testing.assert_allclose(z[:, 0], [row @ w for row in Z], atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_largest_norm_of_xw(solver: str) -> None:
    """3 and 4: |Xw|^2 = w'X'Xw is largest at the first component, and Var(z) goes with it."""
    model = PCA(1, svd_solver=solver).fit(X)
    largest = model.singular_values_[0] ** 2
    assert np.sum((Z @ model.components_[0]) ** 2) == pytest.approx(largest)
    assert model.explained_variance_[0] == pytest.approx(largest / (m - 1))
    for w in random_bases(n, 1, 50):
        assert np.sum((Z @ w) ** 2) < largest


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradient_of_the_lagrangian(solver: str) -> None:
    """5: 2Cw - 2 lambda w = 0 at every component; the certificate holds that residual."""
    model = PCA(svd_solver=solver).fit(X)
    C = Z.T @ Z / (m - 1)
    for w, value in zip(model.components_, model.explained_variance_, strict=True):
        assert np.abs(2 * C @ w - 2 * value * w).max() < 1e-12
    assert model.certificate_.residual.max() < 1e-12
    assert np.abs(model.explained_variance_ - spectrum(C)[0]).max() < 1e-12


@pytest.mark.parametrize("solver", SOLVERS)
def test_svd_of_the_centred_matrix(solver: str) -> None:
    """6: X'X = V s^2 V'. Slip: the covariance has s^2 / (m - 1)."""
    model = PCA(svd_solver=solver).fit(X)
    V, s = model.components_.T, model.singular_values_
    np.testing.assert_allclose((V * s**2) @ V.T, Z.T @ Z, atol=1e-10)
    np.testing.assert_allclose(s, np.linalg.svd(Z, compute_uv=False), rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, s**2 / (m - 1), rtol=1e-12)


def test_next_component_is_the_first_of_what_is_left() -> None:
    """Conclusion: later components hold the most of the variance that earlier ones leave."""
    model = PCA(3).fit(X)
    left = X - model.reconstruct(1, model.transform(X))
    second = PCA(1).fit(left)
    assert abs(second.components_[0] @ model.components_[1]) == pytest.approx(1)
    assert second.explained_variance_[0] == pytest.approx(model.explained_variance_[1])


@pytest.mark.parametrize("solver", SOLVERS)
def test_encoding_and_decoding(solver: str) -> None:
    """In practice, 2 and 3: Z = X V_k is (m, k), Z V_k' is (m, n), its distance the loss."""
    model = PCA(2, svd_solver=solver).fit(X)
    V = model.components_.T
    code = model.transform(X)
    decoded = model.inverse_transform(code)
    assert (V.shape, code.shape, decoded.shape) == ((n, 2), (m, 2), (m, n))
    np.testing.assert_allclose(decoded - X.mean(axis=0), (Z @ V) @ V.T, atol=1e-11)
    lost = np.sum((X - decoded) ** 2)
    assert m * model.reconstruction_error(X) == pytest.approx(lost)
    assert lost == pytest.approx(np.sum(np.linalg.svd(Z, compute_uv=False)[2:] ** 2))


@pytest.mark.parametrize("solver", SOLVERS)
def test_lossy_unless_the_rank_is_small(solver: str) -> None:
    """In practice, 3. Slip: nothing is lost where the centred X has rank k or less."""
    flat = PCA(2).fit(X).inverse_transform(PCA(2).fit_transform(X))
    model = PCA(2, svd_solver=solver).fit(flat)
    np.testing.assert_allclose(model.inverse_transform(model.transform(flat)), flat, atol=1e-10)
    assert PCA(2, svd_solver=solver).fit(X).reconstruction_error(X) > 0.1
    whole = PCA(svd_solver=solver).fit(X)
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(X)), X, atol=1e-10)
