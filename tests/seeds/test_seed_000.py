"""Document 000: the workflow and the four views of PCA; the rest is in the extensions."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

import streampca
from streampca import PCA
from streampca.errors import DominantFeatureWarning
from tests.seeds.documents import SOLVERS, centred, random_bases, sample, spectrum, up_to_sign

X = sample()
n, p = X.shape
Z = centred(X)
S = Z.T @ Z / n


# -- workflow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_mean_and_centring(solver: str) -> None:
    """Steps 1.1 and 1.2: the mean is the sum of rows over n; scores of centred rows have mean 0."""
    model = PCA(3, svd_solver=solver).fit(X)
    np.testing.assert_allclose(model.mean_, sum(X) / n, rtol=1e-13)
    np.testing.assert_allclose(model.transform(X).mean(axis=0), 0, atol=1e-13)
    moved = PCA(3, svd_solver=solver).fit(X + 1e3)
    np.testing.assert_allclose(moved.explained_variance_, model.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("ddof", [0, 1])
def test_covariance_is_a_sum_of_outer_products(ddof: int) -> None:
    """Step 1.3 and its note: sum of (x - mean)(x - mean)' over n, or over n - 1."""
    expected = sum(np.outer(row, row) for row in Z) / (n - ddof)
    np.testing.assert_allclose(streampca.covariance(X, ddof=ddof), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
def test_eigenvectors_in_descending_order(solver: str) -> None:
    """Steps 2.1 and 2.2: S v = lambda v, the largest lambda first."""
    model = PCA(svd_solver=solver, ddof=0).fit(X)
    values, vectors = spectrum(S)
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-10)
    np.testing.assert_allclose(
        S @ model.components_.T, model.components_.T * model.explained_variance_, atol=1e-10
    )
    np.testing.assert_allclose(up_to_sign(model.components_, vectors.T), vectors.T, atol=1e-9)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95, 0.99])
def test_share_of_variance_chooses_r(threshold: float) -> None:
    """Step 3.1 and "how to pick r": the smallest r whose share reaches the threshold."""
    values, _ = spectrum(S)
    shares = np.cumsum(values) / values.sum()
    model = PCA(threshold).fit(X)
    assert model.n_components_ == next(r for r in range(1, p + 1) if shares[r - 1] >= threshold)
    np.testing.assert_allclose(
        model.explained_variance_ratio_, (values / values.sum())[: model.n_components_], rtol=1e-10
    )
    assert model.result_.total_variance == pytest.approx(np.trace(S) * n / (n - 1))


def test_scree_draws_the_shares() -> None:
    """Step 3.1: the share of every component as bars, their running sum as a line."""
    shares = spectrum(S)[0] / np.trace(S)
    bars = streampca.plots.scree(PCA().fit(X), Figure().subplots())
    np.testing.assert_allclose([bar.get_height() for bar in bars.patches], shares, rtol=1e-9)
    line = streampca.plots.r2(PCA().fit(X), Figure().subplots()).lines[0]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), [0.0, *np.cumsum(shares)], rtol=1e-9)


def test_a_share_that_is_reached_exactly_is_enough() -> None:
    """Step 3.1: at least 95 %, not more than 95 %."""
    covariance = np.diag([15.0, 4.0, 1.0])
    chosen = PCA.from_covariance(covariance, n_components=0.95)
    assert chosen.n_components_ == 2
    np.testing.assert_allclose(chosen.explained_variance_ratio_, [0.75, 0.2])


@pytest.mark.parametrize("solver", SOLVERS)
def test_projection(solver: str) -> None:
    """Steps 3.2 and 3.3, PC-space: Z = X W, W = (v_1 ... v_r); a score is a sum of v_j f_j."""
    model = PCA(2, svd_solver=solver).fit(X)
    W = np.column_stack([model.components_[0], model.components_[1]])
    found = model.fit_transform(X)
    assert found.shape == (n, 2)
    np.testing.assert_allclose(found, Z @ W, atol=1e-11)
    by_features = sum(W[j, 0] * Z[7, j] for j in range(p))
    assert found[7, 0] == pytest.approx(by_features)


# -- maximum variance ------------------------------------------------------------------------------


def test_variance_of_a_projection_is_a_quadratic_form() -> None:
    """Projection to one dimension, PC1: mean 0, variance v'Sv = lambda, x-hat = z v."""
    model = PCA(1, ddof=0).fit(X)
    v, z = model.components_[0], model.transform(X)[:, 0]
    assert z.mean() == pytest.approx(0, abs=1e-13)
    assert z @ z / n == pytest.approx(v @ S @ v)
    assert model.explained_variance_[0] == pytest.approx(v @ S @ v)
    np.testing.assert_allclose(
        model.reconstruct(1, z[:, None], mean=False), np.outer(z, v), atol=1e-12
    )


def test_no_direction_has_more_variance() -> None:
    """PC1, PC2, PCr: lambda_r is the most that a unit vector orthogonal to v_1 ... v_{r-1} has."""
    model = PCA(ddof=0).fit(X)
    V = model.components_
    np.testing.assert_allclose(V @ V.T, np.eye(p), atol=1e-12)
    for r in range(p):
        for base in random_bases(p, 1, 50, seed=r):
            u = base[:, 0] - V[:r].T @ (V[:r] @ base[:, 0])
            u /= np.linalg.norm(u)
            assert u @ S @ u <= model.explained_variance_[r] * (1 + 1e-12)


def test_a_population_has_components_too() -> None:
    """Probabilistic view: var(X'v) = v' Sigma v, largest at the top eigenvector of Sigma."""
    model = PCA.from_covariance(S)
    np.testing.assert_allclose(
        [v @ S @ v for v in model.components_], model.explained_variance_, rtol=1e-10
    )
    np.testing.assert_allclose(model.get_covariance(), S, atol=1e-12)


# R's ``women``: inches and pounds of fifteen
HEIGHT = 0.0254 * np.arange(58, 73)
WEIGHT = 0.45359237 * np.array(
    [115, 117, 120, 123, 126, 129, 132, 135, 139, 142, 146, 150, 154, 159, 164]
)


def test_units_decide() -> None:
    """Practical aspects, scaling: metres to centimetres is 10,000 times the variance.

    Slip: by these data kg and centimetres are comparable (ratio 2.6), kg and metres are not.
    """
    metres, centimetres = (np.column_stack([WEIGHT, unit * HEIGHT]) for unit in (1, 100))
    in_metres, in_centimetres = PCA().fit(metres), PCA().fit(centimetres)
    variance = in_metres.result_.feature_variance, in_centimetres.result_.feature_variance
    assert variance[1][1] / variance[0][1] == pytest.approx(10_000)
    assert variance[0][0] / variance[0][1] > 3_000
    assert 1 < variance[1][1] / variance[1][0] < 3
    assert abs(in_metres.components_[0, 0]) > 0.9998
    assert abs(in_centimetres.components_[0, 0]) < 0.6
    with pytest.warns(DominantFeatureWarning, match="feature 1 holds 100%"):
        PCA(2).fit(np.column_stack([HEIGHT, WEIGHT, HEIGHT**2]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_standardised_columns_have_no_units(solver: str) -> None:
    """Practical aspects, scaling: f_j / s_j has variance 1, whatever the unit."""
    units = np.array([1.0, 100.0, 1e-3, 7.0, 0.2, 1e4])
    plain, other = (PCA(scale="std", svd_solver=solver).fit(data) for data in (X, X * units))
    np.testing.assert_allclose(plain.components_, other.components_, atol=1e-9)
    assert plain.result_.total_variance == pytest.approx(p)
    np.testing.assert_allclose(plain.scale_, X.std(axis=0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(plain.explained_variance_, spectrum(np.corrcoef(X.T))[0], rtol=1e-9)


# -- minimum error ---------------------------------------------------------------------------------


def test_plane_through_the_mean() -> None:
    """Minimum error, 1 to 3 and the last formula: x-hat = a + V beta, a the mean."""
    model = PCA(2).fit(X)
    V = model.components_.T
    np.testing.assert_allclose(model.inverse_transform(np.zeros((1, 2)))[0], X.mean(axis=0))
    beta = np.linalg.lstsq(V, Z.T, rcond=None)[0].T  # (V'V)^-1 V'x
    np.testing.assert_allclose(model.transform(X), beta, atol=1e-11)
    np.testing.assert_allclose(model.inverse_transform(beta), X.mean(axis=0) + beta @ V.T)


@pytest.mark.parametrize("solver", SOLVERS)
def test_error_by_traces(solver: str) -> None:
    """Minimum error, 2 and 3: RE = n tr(S) - n tr(V'SV), n times the dropped eigenvalues.

    Slip: tr(S) is the total variance, n tr(S) the total sum of squares.
    """
    for r in range(1, p):
        model = PCA(r, svd_solver=solver, ddof=0).fit(X)
        V = model.components_.T
        RE = n * model.reconstruction_error(X)
        assert pytest.approx(n * (np.trace(S) - np.trace(V.T @ S @ V)), rel=1e-9) == RE
        assert pytest.approx(n * spectrum(S)[0][r:].sum(), rel=1e-9) == RE
    assert model.result_.total_variance == pytest.approx(np.trace(S))
    assert n * model.result_.total_variance == pytest.approx(np.sum(Z**2))


def test_no_plane_is_nearer() -> None:
    """Minimum error, 3: neither another plane nor another point lowers the error.

    Another basis of the same plane leaves it, which depends on VV' alone: rotated components do.
    """
    model = PCA(2).fit(X)
    turned = streampca.rotate(model, "varimax")
    assert abs(turned.components_[0] @ model.components_[0]) < 0.99
    np.testing.assert_allclose(
        turned.inverse_transform(turned.transform(X)), model.inverse_transform(model.transform(X))
    )
    least = n * model.reconstruction_error(X)
    for V in random_bases(p, 2, 50):
        assert np.sum((Z - Z @ V @ V.T) ** 2) > least
    V = model.components_.T
    for shift in np.random.default_rng(2).standard_normal((20, p)):
        about = X - X.mean(axis=0) - shift
        assert np.sum((about - about @ V @ V.T) ** 2) >= least


# -- SVD and low rank ------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_products_of_the_svd(solver: str) -> None:
    """PCA via SVD: lambda = d^2 / n, Z_r = U_r D_r, X-hat = U_r D_r V_r'."""
    U, d, Vt = np.linalg.svd(Z, full_matrices=False)
    model = PCA(3, svd_solver=solver, ddof=0).fit(X)
    np.testing.assert_allclose(model.singular_values_, d[:3], rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, d[:3] ** 2 / n, rtol=1e-10)
    scores = model.fit_transform(X)
    np.testing.assert_allclose(up_to_sign(scores.T, (U * d).T[:3]), (U * d).T[:3], atol=1e-9)
    np.testing.assert_allclose(
        model.inverse_transform(scores) - X.mean(axis=0), (U * d)[:, :3] @ Vt[:3], atol=1e-9
    )


def test_sum_of_rank_one_pieces() -> None:
    """PCA via SVD, interpretation: the d_i u_i v_i' add up to the centred matrix."""
    model = PCA().fit(X)
    scores = model.transform(X)
    pieces = [model.reconstruct([i], scores, mean=False) for i in range(1, p + 1)]
    assert {int(np.linalg.matrix_rank(one)) for one in pieces} == {1}
    np.testing.assert_allclose(sum(pieces), Z, atol=1e-12)
    signal = model.reconstruct(2, scores, mean=False)
    np.testing.assert_allclose(Z - signal, sum(pieces[2:]), atol=1e-12)


def test_rank_of_the_projections() -> None:
    """Low-rank view, 1: X-hat = Z V' has rank <= r; with the mean of this plane r + 1."""
    model = PCA(2).fit(X)
    scores = model.transform(X)
    assert np.linalg.matrix_rank(model.reconstruct(2, scores, mean=False)) == 2
    assert np.linalg.matrix_rank(model.inverse_transform(scores)) == 3


@pytest.mark.parametrize("solver", SOLVERS)
def test_nearest_matrix_of_rank_r(solver: str) -> None:
    """Low-rank view, 2: the Frobenius distance is that of the rows, and Eckart and Young's."""
    model = PCA(3, svd_solver=solver).fit(X)
    rest = X - model.inverse_transform(model.transform(X))
    d = np.linalg.svd(Z, compute_uv=False)
    assert np.linalg.norm(rest) ** 2 == pytest.approx(np.sum(d[3:] ** 2), rel=1e-9)
    assert n * model.reconstruction_error(X) == pytest.approx(np.sum(rest**2), rel=1e-9)
