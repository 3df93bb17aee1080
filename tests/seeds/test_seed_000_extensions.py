"""Document 000 beyond PCA: Hard-Impute, feature maps, and where correlations of tables begin."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import streampca
from streampca import CCA, PCA, HardImpute, KernelPCA, TruncatedSVD
from streampca.errors import DominantFeatureWarning
from tests.seeds.documents import SOLVERS, centred, sample, spectrum, up_to_sign

X = sample()
p = X.shape[1]
Z = centred(X)

# -- Hard-Impute -----------------------------------------------------------------------------------

HOLES = np.array([[np.nan, 1.0], [0.0, np.nan], [np.nan, 2.0]])


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
def test_hard_impute_example() -> None:
    """Hard-Impute, the worked iteration: fill, then the best rank 1.

    Slip: the second row has an observed zero, and keeps it: Y = (a 1; 0 d; e 2).
    """
    u, v = np.array([[1.0], [2.0], [3.0]]), np.array([[0.5], [0.25]])
    (a, _), (c, d), (e, _) = u @ v.T
    once = {"solver": "exact", "center": False, "tol": 0, "max_passes": 3}
    model = HardImpute(1, init=(u, v), **once).fit(HOLES)
    found = model.result_.scores @ model.result_.components

    def rank_one(Y: np.ndarray) -> np.ndarray:
        left, s, right = np.linalg.svd(Y)
        return s[0] * np.outer(left[:, 0], right[0])

    np.testing.assert_allclose(found, rank_one(np.array([[a, 1], [0, d], [e, 2]])), atol=1e-12)
    assert np.abs(found - rank_one(np.array([[a, 1], [c, d], [e, 2]]))).max() > 0.1
    filled = model.impute(HOLES)
    np.testing.assert_array_equal(filled[~np.isnan(HOLES)], [1.0, 0.0, 2.0])


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
def test_hard_impute_error_over_observed_cells() -> None:
    """Hard-Impute, 2 and 3: |W * (X - X-hat)|^2 counts observed cells, and never rises."""
    holes = np.where(np.random.default_rng(3).random(X.shape) < 0.2, np.nan, X)
    model = HardImpute(2, solver="exact", center=False, tol=0, max_passes=12).fit(holes)
    estimate = model.result_.scores @ model.result_.components
    W = ~np.isnan(holes)
    error = np.sum((W * (np.nan_to_num(holes) - estimate)) ** 2)
    trace = [sweep.objective[0] for sweep in model.trace_]
    assert trace[-1] == pytest.approx(error)
    assert all(later <= earlier for earlier, later in pairwise(trace))
    np.testing.assert_array_equal(model.impute(holes)[W], X[W])


def test_hard_impute_finds_a_matrix_of_its_rank() -> None:
    """Hard-Impute, 3: where the observed cells determine it, the minimum is the matrix itself."""
    rng = np.random.default_rng(4)
    whole = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 8))
    holes = np.where(rng.random(whole.shape) < 0.2, np.nan, whole)
    model = HardImpute(2, center=False, tol=1e-12).fit(holes)
    np.testing.assert_allclose(model.impute(holes), whole, atol=1e-6)


# -- feature maps ----------------------------------------------------------------------------------


def test_pca_is_linear() -> None:
    """PCA is a linear method: scores of a combination are the combination of scores."""
    model = TruncatedSVD(2).fit(X)
    one, other = X[:5], X[5:10]
    np.testing.assert_allclose(
        model.transform(2 * one - 3 * other),
        2 * model.transform(one) - 3 * model.transform(other),
        atol=1e-11,
    )


def test_circles_in_a_third_dimension() -> None:
    """Feature transformation: (f1, f2, f1^2 + f2^2) parts two circles, f1 and f2 do not."""
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    plane = np.vstack([circle, 3 * circle])
    flat = PCA(1).fit_transform(plane)[:, 0]
    assert np.abs(flat[:40]).max() > np.abs(flat[40:]).min()  # the inner one lies within the other
    with pytest.warns(DominantFeatureWarning):
        model = PCA(1).fit(np.column_stack([plane, np.sum(plane**2, axis=1)]))
    lifted = model.transform(np.column_stack([plane, np.sum(plane**2, axis=1)]))[:, 0]
    np.testing.assert_allclose(np.abs(model.components_[0]), [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(np.abs(lifted), 4.0)
    assert len(set(np.sign(lifted[:40]))) == 1
    assert np.sign(lifted[0]) != np.sign(lifted[40])


def test_quadratic_kernel_is_pca_of_its_features() -> None:
    """Kernel trick and algorithm: scores U sqrt(Lambda) of C K C are those of PCA on Phi.

    Slip: (1 + a.b)^2 = 1 + 2 sum a_i b_i + sum a_i^2 b_i^2 + 2 sum_{i<j} a_i b_i a_j b_j.
    """
    A = np.random.default_rng(5).standard_normal((12, 3))
    pairs = [(i, j) for i in range(3) for j in range(i + 1, 3)]
    products = [A[:, [i]] * A[:, [j]] for i, j in pairs]
    Phi = np.hstack(
        [np.ones((12, 1)), A**2, np.sqrt(2) * A, *(np.sqrt(2) * one for one in products)]
    )
    K = 1 + 2 * A @ A.T + A**2 @ (A**2).T + 2 * sum(one @ one.T for one in products)
    C = np.eye(12) - 1 / 12
    found = PCA(4, svd_solver="gram").fit_transform(Phi)
    for kernel in ((1 + A @ A.T) ** 2, K):
        values, U = spectrum(C @ kernel @ C)
        expected = (U[:, :4] * np.sqrt(values[:4])).T
        np.testing.assert_allclose(up_to_sign(found.T, expected), expected, atol=1e-9)
    model = KernelPCA(4, kernel="poly", degree=2, gamma=1.0, coef0=1.0)
    np.testing.assert_allclose(up_to_sign(model.fit_transform(A).T, expected), expected, atol=1e-9)
    np.testing.assert_allclose(model.eigenvalues_, values[:4], rtol=1e-9)


# -- correlations ----------------------------------------------------------------------------------


def test_correlation_of_lines_and_of_a_parabola() -> None:
    """CCA, from 1D: y = ax + b has r = 1 for a > 0 and r = -1 for a < 0.

    Slips: r = 0 is no linear association only, and r turns its sign with a negative scale.
    """
    x = np.linspace(-2, 2, 9)
    for a, r in ((3.0, 1.0), (-0.5, -1.0)):
        found = streampca.correlation(np.column_stack([x, a * x + 7]))
        np.testing.assert_allclose(found, [[1, r], [r, 1]], atol=1e-15)
    assert streampca.correlation(np.column_stack([x, x**2]))[0, 1] == pytest.approx(0, abs=1e-15)
    pair = np.column_stack([X[:, 0], X[:, 1]])
    plain, turned = (streampca.correlation(pair * [2.0, b])[0, 1] for b in (5.0, -5.0))
    assert turned == pytest.approx(-plain)
    assert plain == pytest.approx(np.corrcoef(pair.T)[0, 1])


def test_cross_correlations_of_two_tables() -> None:
    """CCA, from 1D: R_xy has the correlation of every feature of X with every one of Y."""
    R = streampca.cross_correlation(X[:, :2], X[:, 2:])
    expected = [[np.corrcoef(f, g)[0, 1] for g in X[:, 2:].T] for f in X[:, :2].T]
    np.testing.assert_allclose(R, expected, atol=1e-12)
    both = streampca.concat_features(streampca.open(X[:, :2]), streampca.open(X[:, 2:]))
    np.testing.assert_allclose(R, streampca.correlation(both)[:2, 2:], atol=1e-15)


# -- canonical correlations ------------------------------------------------------------------------


def linnerud(shared_data: Path) -> list[np.ndarray]:
    """Three measures of the body and three of exercise, of twenty people."""
    tables = []
    for name in ("physiological", "exercise"):
        with (shared_data / "cca" / f"linnerud_{name}.csv").open() as file:
            tables.append(np.array([row[1:] for row in list(csv.reader(file))[1:]], dtype=float))
    return tables


def inverse_root(block: np.ndarray) -> np.ndarray:
    values, vectors = spectrum(block)
    return (vectors / np.sqrt(values)) @ vectors.T


def test_canonical_correlations_by_the_four_steps(shared_data: Path) -> None:
    """CCA computations, steps 1 to 4: whiten, decompose, whiten back; Linnerud's three."""
    A, B = linnerud(shared_data)
    joint = streampca.covariance(streampca.concat_features(*map(streampca.open, (A, B))))
    Sx, Sy, Sxy = joint[:3, :3], joint[3:, 3:], joint[:3, 3:]
    U, d, Vt = np.linalg.svd(inverse_root(Sx) @ Sxy @ inverse_root(Sy))
    np.testing.assert_allclose(d, [0.79561, 0.20056, 0.07257], atol=5e-6)
    model = CCA(3).fit(A, B)
    np.testing.assert_allclose(model.correlations_, d, atol=1e-12)
    u, v = inverse_root(Sx) @ U, inverse_root(Sy) @ Vt.T
    for found, expected in ((model.x_weights_, u), (model.y_weights_, v)):
        np.testing.assert_allclose(up_to_sign(found.T, expected.T), expected.T, atol=1e-10)


def test_canonical_pairs_meet_their_constraints(shared_data: Path) -> None:
    """CCAr: u_i'S_x u_j and v_i'S_y v_j are 1 or 0; u_i'S_xy v_i is that of the scores."""
    A, B = linnerud(shared_data)
    model = CCA(3).fit(A, B)
    u, v = model.x_weights_, model.y_weights_
    joint = np.cov(np.hstack([A, B]).T)
    np.testing.assert_allclose(u.T @ joint[:3, :3] @ u, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(v.T @ joint[3:, 3:] @ v, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(u.T @ joint[:3, 3:] @ v, np.diag(model.correlations_), atol=1e-12)
    a, b = model.transform(A, B)
    np.testing.assert_allclose(a, (A - A.mean(axis=0)) @ u, atol=1e-12)
    found = [np.corrcoef(a[:, i], b[:, i])[0, 1] for i in range(3)]
    np.testing.assert_allclose(found, model.correlations_, atol=1e-12)


def test_no_pair_of_directions_correlates_more(shared_data: Path) -> None:
    """CCA 1: u and v maximise r_ab, whose size does not change with the scales of u and v."""
    A, B = linnerud(shared_data)
    model, rng = CCA(1).fit(A, B), np.random.default_rng(0)
    best = model.correlations_[0]
    for _ in range(200):
        a, b = A @ rng.standard_normal(3), B @ rng.standard_normal(3)
        assert abs(np.corrcoef(a, b)[0, 1]) <= best
    a, b = model.transform(A, B)
    assert np.corrcoef(3 * a[:, 0], 0.1 * b[:, 0])[0, 1] == pytest.approx(best)
    x, y = X[:, :1], X[:, 1:2]
    assert CCA(1).fit(x, y).correlations_[0] == pytest.approx(abs(np.corrcoef(x.T, y.T)[0, 1]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_whitening(solver: str) -> None:
    """CCA solution, the change of variables: S^-1/2 turns the constraint u'Su = 1 into |u| = 1."""
    model = PCA(whiten=True, svd_solver=solver).fit(X)
    scores = model.transform(X)
    np.testing.assert_allclose(np.cov(scores.T), np.eye(p), atol=1e-10)
    root = model.components_.T / np.sqrt(model.explained_variance_)  # one S^-1/2
    np.testing.assert_allclose(root.T @ np.cov(X.T) @ root, np.eye(p), atol=1e-10)
    np.testing.assert_allclose(scores, Z @ root, atol=1e-10)
    np.testing.assert_allclose(model.inverse_transform(scores), X, atol=1e-10)
