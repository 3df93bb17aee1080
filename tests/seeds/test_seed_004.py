"""Document 004: loading vectors, projection, reconstruction, probabilistic PCA."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import streampca
from streampca import PCA, PPCA, FactorAnalysis, RandomProjection, TotalLeastSquares, TruncatedSVD
from tests.seeds.documents import SOLVERS, centred, random_bases, sample, spectrum

X = sample(60, 6, seed=4)
n, d = X.shape
Z = centred(X)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_combinations_hold_more_than_features(k: int) -> None:
    """Introduction: k combinations hold at least the variance of any k features."""
    largest = np.sort(X.var(axis=0, ddof=1))[-k:]
    assert PCA(k).fit(X).explained_variance_.sum() > largest.sum()


def test_scalar_projection() -> None:
    """1.1 Projection: x'v = |x| cos(theta) for |v| = 1."""
    model = PCA.from_covariance(np.diag([5.0, 1.0]), n_components=1)
    for theta in (0.0, 0.7, np.pi / 2, 3.0):
        x = 2.5 * np.array([[np.cos(theta), np.sin(theta)]])
        found = model.transform(x)[0, 0] * np.sign(model.components_[0, 0])
        assert found == pytest.approx(2.5 * np.cos(theta), abs=1e-15)


def test_random_projection() -> None:
    """1.1 Projection: an iid Gaussian vector, normalised, is uniform over directions in space."""
    drawn = [RandomProjection(1, random_state=i).fit(X).components_[0] for i in range(500)]
    unit = np.stack([v / np.linalg.norm(v) for v in drawn])
    np.testing.assert_allclose(unit.mean(axis=0), 0, atol=5 / np.sqrt(500 * d))
    np.testing.assert_allclose(unit.T @ unit / 500, np.eye(d) / d, atol=0.05)
    share = (unit @ np.cov(X.T) * unit).sum(axis=1) / np.trace(np.cov(X.T))
    assert share.mean() == pytest.approx(1 / d, rel=0.1)  # it does not adapt to the data:
    assert share.max() <= PCA(1).fit(X).explained_variance_ratio_[0]


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_directions_about_the_mean() -> None:
    """1.2: without centring the first direction points to the mean and not along the data."""
    cloud = np.random.default_rng(0).standard_normal((50, 3)) * [0.1, 2.0, 0.1] + [100, 0, 0]
    about_origin, about_mean = TruncatedSVD(1).fit(cloud), PCA(1).fit(cloud)
    assert abs(about_origin.components_[0, 0]) > 0.999
    assert abs(about_mean.components_[0, 1]) > 0.99


@pytest.mark.parametrize("solver", SOLVERS)
def test_first_loading_vector(solver: str) -> None:
    """1.2: the mean of (x'v)^2 is |Xv|^2 / n, and |Xv|^2 is the top eigenvalue of X'X."""
    model = PCA(1, svd_solver=solver, ddof=0).fit(X)
    v = model.components_[0]
    assert model.explained_variance_[0] == pytest.approx(np.mean((Z @ v) ** 2))
    assert n * model.explained_variance_[0] == pytest.approx(spectrum(Z.T @ Z)[0][0])
    np.testing.assert_allclose(Z.T @ Z @ v, n * model.explained_variance_[0] * v, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_loading_vectors_at_once(solver: str) -> None:
    """1.3: orthonormal right singular vectors; v_k is the best beside those before it."""
    model = PCA(svd_solver=solver).fit(X)
    V = model.components_.T
    np.testing.assert_allclose(V.T @ V, np.eye(d), atol=1e-12)
    Vt = np.linalg.svd(Z, full_matrices=False)[2]
    np.testing.assert_allclose(np.abs(np.sum(Vt.T * V, axis=0)), 1, atol=1e-12)
    for k in range(d - 1):
        rest = V[:, k:]  # coordinates in what is orthogonal to the first k
        top = spectrum(rest.T @ Z.T @ Z @ rest)[0][0]
        assert model.singular_values_[k] ** 2 == pytest.approx(top)


@pytest.mark.parametrize("solver", SOLVERS)
def test_new_coordinates(solver: str) -> None:
    """1.4: Z_k = X V_k has uncorrelated columns; Z_k V_k' are projections of the rows."""
    model = PCA(2, svd_solver=solver).fit(X)
    code = model.transform(X)
    np.testing.assert_allclose(streampca.correlation(code), np.eye(2), atol=1e-12)
    projected = model.inverse_transform(code)
    V = model.components_.T
    np.testing.assert_allclose(projected - model.mean_, Z @ V @ V.T, atol=1e-11)
    np.testing.assert_allclose(
        model.inverse_transform(model.transform(projected)), projected, atol=1e-11
    )


def test_bounds_of_a_quadratic_form() -> None:
    """1.6: lambda_min <= v'Av <= lambda_max, reached at eigenvectors, for any symmetric A >= 0."""
    A = Z.T @ Z
    model = PCA.from_covariance(A)
    largest, least = model.explained_variance_[0], model.explained_variance_[-1]
    for base in random_bases(d, 1, 100):
        v = base[:, 0]
        assert least < v @ A @ v < largest
        z = model.components_ @ v  # the change of coordinates keeps lengths
        assert np.sum(z**2) == pytest.approx(1)
        assert v @ A @ v == pytest.approx(np.sum(model.explained_variance_ * z**2))
    for v, value in ((model.components_[0], largest), (model.components_[-1], least)):
        assert v @ A @ v == pytest.approx(value)


def test_pythagoras() -> None:
    """1.7: |x - Px|^2 + |Px|^2 = |x|^2, so that the least error is the most variance."""
    model = PCA(1).fit(X)
    projected = model.inverse_transform(model.transform(X)) - model.mean_
    squares = np.sum((Z - projected) ** 2, axis=1) + np.sum(projected**2, axis=1)
    np.testing.assert_allclose(squares, np.sum(Z**2, axis=1))
    captured = np.sum(model.transform(X) ** 2)
    assert n * model.reconstruction_error(X) == pytest.approx(np.sum(Z**2) - captured)


def test_perpendicular_and_vertical_distances() -> None:
    """1.7: the PCA line is nearest by perpendicular distance, that of least squares vertically."""
    x = np.random.default_rng(1).standard_normal(60)
    points = np.column_stack([x, 0.8 * x + 0.5 * np.random.default_rng(2).standard_normal(60)])
    model, rows = PCA(1).fit(points), centred(points)
    slope = rows[:, 0] @ rows[:, 1] / (rows[:, 0] @ rows[:, 0])
    own = model.components_[0, 1] / model.components_[0, 0]

    def vertical(s: float) -> float:
        return float(np.sum((rows[:, 1] - s * rows[:, 0]) ** 2))

    assert 60 * model.reconstruction_error(points) == pytest.approx(vertical(own) / (1 + own**2))
    assert 60 * model.reconstruction_error(points) < vertical(slope) / (1 + slope**2)
    assert vertical(slope) < vertical(own)


@pytest.mark.parametrize("solver", SOLVERS)
def test_best_approximation_of_rank_k(solver: str) -> None:
    """1.7: X-tilde_k is the sum of the first k sigma_i u_i v_i', and its error that of the rest."""
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    for k in (1, 4):
        model = PCA(k, svd_solver=solver).fit(X)
        found = model.inverse_transform(model.transform(X)) - model.mean_
        np.testing.assert_allclose(found, (U[:, :k] * s[:k]) @ Vt[:k], atol=1e-9)
        assert n * model.reconstruction_error(X) == pytest.approx(np.sum(s[k:] ** 2), rel=1e-9)


# -- probabilistic PCA -----------------------------------------------------------------------------


def posterior_of(W: np.ndarray, psi: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means (n, k), covariance (k, k)) of z given x - mu, from the joint Gaussian of [x; z]."""
    marginal = W @ W.T + np.diag(psi)
    gain = np.linalg.solve(marginal, W).T
    return rows @ gain.T, np.eye(W.shape[1]) - gain @ W


@pytest.mark.parametrize("solver", SOLVERS)
def test_closed_form_and_marginal(solver: str) -> None:
    """1.8, Psi = sigma^2 I: x ~ N(mu, WW' + sigma^2 I), W = V (L - sigma^2 I)^(1/2)."""
    model = PPCA(2, ddof=0, solver=solver, missing="raise").fit(X)
    values, V = spectrum(Z.T @ Z / n)
    noise = values[2:].mean()
    assert model.noise_variance_ == pytest.approx(noise)
    W = V[:, :2] * np.sqrt(values[:2] - noise)
    marginal = W @ W.T + noise * np.eye(d)
    np.testing.assert_allclose(model.get_covariance(), marginal, atol=1e-11)
    density = multivariate_normal(X.mean(axis=0), marginal).logpdf(X)
    np.testing.assert_allclose(model.score_samples(X), density, rtol=1e-9)
    assert model.log_likelihood_ == pytest.approx(density.sum())
    np.testing.assert_allclose(model.get_precision() @ marginal, np.eye(d), atol=1e-9)


def test_maximum_of_the_likelihood() -> None:
    """1.8: no other W and sigma make the data more likely."""
    model = PPCA(2, ddof=0).fit(X)
    rng = np.random.default_rng(5)
    W = model.components_.T * np.sqrt(model.explained_variance_ - model.noise_variance_)
    for size in (0.01, 0.1):
        for _ in range(20):
            other = W + size * rng.standard_normal(W.shape)
            noise = model.noise_variance_ * np.exp(size * rng.standard_normal())
            density = multivariate_normal(model.mean_, other @ other.T + noise * np.eye(d))
            assert density.logpdf(X).sum() < model.log_likelihood_


@pytest.mark.parametrize("solver", SOLVERS)
def test_conditional_and_posterior(solver: str) -> None:
    """1.8: x | z ~ N(Wz + mu, sigma^2 I), and what x says of z by the joint Gaussian."""
    model = PPCA(2, ddof=0, whiten=True, solver=solver, missing="raise")
    of_fit = model.fit_transform(X)
    z = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    W = (model.inverse_transform(z)[1:] - model.mean_).T
    np.testing.assert_allclose(model.inverse_transform(z)[0], model.mean_)
    psi = np.full(d, model.noise_variance_)
    np.testing.assert_allclose(W @ W.T + np.diag(psi), model.get_covariance(), atol=1e-11)
    means, covariance = posterior_of(W, psi, Z)
    found, covariances = model.posterior(X)
    np.testing.assert_allclose(found, means, atol=1e-10)
    np.testing.assert_allclose(model.transform(X), means, atol=1e-10)
    np.testing.assert_allclose(of_fit, means, atol=1e-10)
    np.testing.assert_allclose(covariances, np.broadcast_to(covariance, (n, 2, 2)), atol=1e-11)


def test_generated_rows_have_the_marginal() -> None:
    """1.8, the generative model: draws of z and then of x have mean mu and covariance WW' + Psi."""
    model = PPCA(2, ddof=0).fit(X)
    drawn = model.sample(100_000, random_state=0)
    np.testing.assert_allclose(drawn.mean(axis=0), model.mean_, atol=0.02)
    np.testing.assert_allclose(streampca.covariance(drawn), model.get_covariance(), atol=0.02)


def test_noise_of_every_feature_its_own() -> None:
    """1.8 with a Psi that is not sigma^2 I: diagonal, as factor analysis has it."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((300, 2)) @ rng.standard_normal((2, d))
    rows += rng.standard_normal((300, d)) * np.linspace(0.4, 1.5, d) + np.arange(d)
    model = FactorAnalysis(2, ddof=0).fit(rows)
    W, psi = model.components_.T, model.noise_variance_
    assert psi.max() > 4 * psi.min()
    marginal = W @ W.T + np.diag(psi)
    np.testing.assert_allclose(model.get_covariance(), marginal, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(marginal), rows.var(axis=0), rtol=1e-5)
    density = multivariate_normal(rows.mean(axis=0), marginal).logpdf(rows)
    np.testing.assert_allclose(model.score_samples(rows), density, rtol=1e-9)
    means, covariance = posterior_of(W, psi, centred(rows))
    found, covariances = model.posterior(rows)
    np.testing.assert_allclose(found, means, atol=1e-9)
    np.testing.assert_allclose(covariances[0], covariance, atol=1e-10)
    assert density.sum() > PPCA(2, ddof=0).fit(rows).log_likelihood_


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_limit_of_small_noise() -> None:
    """1.8, last paragraph: PCA is the limit sigma -> 0.

    Slip: the columns of W span the PCA space at every sigma; the posterior means approach scores.
    """
    rng = np.random.default_rng(8)
    signal = rng.standard_normal((80, 2)) @ rng.standard_normal((2, d))
    noise = rng.standard_normal((80, d))
    apart = []
    for sigma in (1.0, 0.1, 0.01):
        rows = signal + sigma * noise
        model, pca = PPCA(2, ddof=0).fit(rows), PCA(2, ddof=0).fit(rows)
        np.testing.assert_allclose(model.components_, pca.components_, atol=1e-10)
        scores = pca.transform(rows)
        apart.append(np.linalg.norm(model.transform(rows) - scores) / np.linalg.norm(scores))
        shrunk = 1 - model.noise_variance_ / pca.explained_variance_
        np.testing.assert_allclose(model.transform(rows), scores * shrunk, atol=1e-9)
    assert apart[0] > 10 * apart[1] > 100 * apart[2]


def test_total_least_squares_is_a_pca_of_all_columns() -> None:
    """1 PCA: ordinary least squares minimises vertical distances, total ones perpendicular."""
    x, y = X[:, :1], X[:, 1] + 2.0 * X[:, 0]
    cloud = centred(np.column_stack([x, y]))
    slope = TotalLeastSquares().fit(x, y).coef_[0]
    ordinary = TotalLeastSquares().fit(x, y).ols_coef_[0]

    def distances(one: float) -> tuple[float, float]:
        vertical = float(np.sum((cloud[:, 1] - one * cloud[:, 0]) ** 2))
        return vertical, vertical / (1.0 + one**2)

    for other in np.linspace(-5, 5, 101):
        assert distances(ordinary)[0] <= distances(other)[0]
        assert distances(slope)[1] <= distances(other)[1]
    v = PCA(1).fit(cloud).components_[0]
    assert slope == pytest.approx(v[1] / v[0])
    left = cloud - np.outer(cloud @ v, v)
    assert distances(slope)[1] == pytest.approx(np.sum(left**2))
