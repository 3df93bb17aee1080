"""Kernel PCA where rounding of the kernel is large: bounds hold, and the user is told."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from streampca import KernelPCA
from streampca.errors import AccuracyWarning, InvalidInputError, NonFiniteError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6))
FAR = X * 1e-3 + 100.0 * (np.arange(120) >= 60)[:, None]  # two narrow groups, far from each other
HUGE = np.where(np.arange(120)[:, None] == 0, 1e6 * X, X)


def exact_spectrum(K: np.ndarray, k: int) -> np.ndarray:
    wide = K.astype(np.longdouble)
    wide = wide - wide.mean(axis=0) - wide.mean(axis=1)[:, None] + wide.mean()
    return np.linalg.eigvalsh(wide.astype(np.float64))[::-1][:k]


def rbf(rows: np.ndarray, gamma: float) -> np.ndarray:
    return np.asarray(np.exp(-gamma * cdist(rows, rows, "sqeuclidean")))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "gamma"), [(FAR, 1e5), (HUGE, 0.1), (X + 1e4, 0.1)])
def test_rows_that_are_long_compared_with_their_distances(
    rows: np.ndarray, gamma: float, dtype: type
) -> None:
    rows = rows.astype(dtype)
    expected = exact_spectrum(rbf(rows.astype(np.float64), gamma), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        model = KernelPCA(4, kernel="rbf", gamma=gamma, solver="exact").fit(rows)
    error = np.abs(model.eigenvalues_ - expected)
    assert (error <= model.result_.eigenvalue_bound + 1e-12).all()
    np.testing.assert_allclose(model.eigenvalues_, expected, rtol=1e-5)


@pytest.mark.parametrize(("kernel", "offset"), [("cosine", 1e6), ("poly", 1e3)])
def test_bounds_hold_what_centring_takes_off(kernel: str, offset: float) -> None:
    rows = X + offset
    wide = rows.astype(np.longdouble)
    K = wide @ wide.T
    if kernel == "cosine":
        lengths = np.sqrt(np.diagonal(K))
        K = K / lengths / lengths[:, None]
    else:
        K = (K / 6 + 1) ** 3
    wide = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    expected = np.linalg.eigvalsh(wide.astype(np.float64))[::-1][:3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        model = KernelPCA(3, kernel=kernel, solver="exact").fit(rows)
    error = np.abs(model.eigenvalues_ - expected)
    assert (error <= model.result_.eigenvalue_bound).all()


def test_a_warning_names_what_rounding_hides_and_the_remedy() -> None:
    rows = FAR.astype(np.float32)
    with pytest.warns(AccuracyWarning, match=r"float32 rounding .* X.astype\('float64'\)"):
        KernelPCA(3, kernel="rbf", gamma=1e5, solver="matrix-free").fit(rows)


def test_a_kernel_of_rank_one_in_float32_has_an_answer_without_its_matrix() -> None:
    rows = HUGE.astype(np.float32)
    expected = exact_spectrum((rows.astype(float) @ rows.T.astype(float) / 6 + 1) ** 3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        model = KernelPCA(4, kernel="poly", solver="matrix-free").fit(rows)
    np.testing.assert_allclose(model.eigenvalues_[:1], expected, rtol=1e-5)


def test_an_asymmetric_kernel_is_refused_in_memory() -> None:
    K = X @ X.T
    K[0, 1] += 50.0
    with pytest.raises(InvalidInputError, match="not symmetric"):
        KernelPCA(3, kernel="precomputed", solver="exact").fit(K)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "poly", "gamma": np.nan}, "gamma=nan; expected a finite number"),
        ({"kernel": "rbf", "gamma": [1]}, "gamma=.*expected a finite number"),
        ({"kernel": "poly", "degree": None}, "degree=None; expected a finite number"),
        ({"kernel": "poly", "degree": np.nan}, "degree=nan; expected a finite number"),
        ({"kernel": "sigmoid", "coef0": "x"}, "coef0='x'; expected a finite number"),
    ],
)
def test_numbers_of_a_kernel_are_checked(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        KernelPCA(2, **parameters).fit(X)


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NonFiniteError, match=r"poly kernel .* whole degree"):
        KernelPCA(2, kernel="poly", degree=2.5).fit(X)
    with pytest.raises(NonFiniteError, match="function kernel"):
        KernelPCA(2, kernel=lambda a, b: np.nan).fit(X[:10])
    model = KernelPCA(2, kernel="rbf").fit(X)
    with pytest.raises(NonFiniteError, match="scores hold NaN"):
        model.inverse_transform(np.full((2, 2), np.nan))
    with pytest.raises(InvalidInputError, match="alpha=nan"):
        KernelPCA(2, kernel="rbf", alpha=np.nan).fit(X).inverse_transform(np.zeros((2, 2)))


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1.0])
def test_a_bound_holds_where_all_kernel_values_are_near_one(scale: float) -> None:
    """By expm1, which keeps the digits that 1 - k loses; centring takes the 1 away."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        n, gamma = int(rng.integers(60, 200)), (0.1, 0.3, 1.0)[seed % 3]
        rows = scale * rng.standard_normal((n, 6))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            model = KernelPCA(4, solver="matrix-free", kernel="rbf", gamma=gamma).fit(rows)
        apart = cdist(rows, rows, "sqeuclidean")
        centring = np.eye(n) - 1.0 / n
        expected = np.linalg.eigvalsh(centring @ np.expm1(-gamma * apart) @ centring)[::-1][:4]
        off = np.abs(model.eigenvalues_ - expected)
        assert np.all(off <= model.result_.eigenvalue_bound)
        assert np.all(model.result_.eigenvalue_bound <= 1e-2 * expected)
