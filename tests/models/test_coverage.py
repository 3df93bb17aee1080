"""Every published interval, standard error and p-value, on data sets whose truth is known.

Each test draws 200 data sets or more. Intervals of 95 % must hold the truth in 91 to 99 % of them:
the share of 200 independent intervals varies by 3 percentage points (two standard errors). Tests at
5 % must reject what is true in at most 9 %. Statistics in use that are not here: see
``tests/seeds`` for Lawley's and Bartlett's statistics beside R.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial import KDTree
from scipy.stats import pearsonr

from streampca import CCA, PCA, FactorAnalysis, TotalLeastSquares
from streampca.models.explore.intrinsic_dimension import two_nn
from streampca.solvers.canonical import canonical_tests
from streampca.solvers.tracy_widom import tracy_widom_test

SETS = 200
HELD = (0.91, 0.99)
REJECTED = 0.09


@pytest.mark.slow
@pytest.mark.parametrize(("n", "noise"), [(12, 0.4), pytest.param(20, 0.2, marks=pytest.mark.soak)])
def test_intervals_of_total_least_squares(n: int, noise: float) -> None:
    """Also where x and y are fitted the other way round."""
    rng, held = np.random.default_rng(n), []
    for _ in range(SETS):
        true = rng.standard_normal(n)
        x, y = (a * true + noise * rng.standard_normal(n) for a in (1.0, 0.7))
        for one, other, slope in ((x, y, 0.7), (y, x, 1 / 0.7)):
            fitted = TotalLeastSquares(progress=False).fit(one[:, None], other)
            low, high = fitted.confidence_interval()[0]
            held.append(low <= slope <= high)
    assert HELD[0] <= np.mean(held) <= HELD[1]


@pytest.mark.slow
def test_noise_of_total_least_squares_has_one_meaning() -> None:
    """Its square is unbiased, for one response and for two, and is the one behind the errors."""
    rng = np.random.default_rng(0)
    for responses in (1, 2):
        squares = []
        for _ in range(SETS):
            true = rng.standard_normal((14, 2))
            y = true @ np.ones((2, responses)) + 0.1 * rng.standard_normal((14, responses))
            x = true + 0.1 * rng.standard_normal((14, 2))
            squares.append(TotalLeastSquares(progress=False).fit(x, y).noise_ ** 2)
        assert np.mean(squares) == pytest.approx(0.01, rel=0.06)


def sphere(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    x = rng.standard_normal((n, d + 1))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, d))


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("draw", [sphere, normal])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_spread_of_two_nn(
    d: int, draw: Callable[[np.random.Generator, int, int], np.ndarray], share: float
) -> None:
    """The standard error is the spread of the estimate, and intervals hold where edges are few."""
    rng, found = np.random.default_rng(d), []
    for _ in range(SETS):
        x = draw(rng, 500, d)
        near = KDTree(x).query(x[: int(share * len(x))], k=3)[0]
        found.append(two_nn(near[:, 2] / near[:, 1], len(x)))
    dimensions = np.array([one.dimension for one in found])
    errors = np.array([one.standard_error for one in found])
    assert errors.mean() == pytest.approx(dimensions.std(ddof=1), rel=0.15)
    assert np.mean(np.abs(dimensions - d) <= 1.96 * errors) >= 0.89


def correlations(rng: np.random.Generator, n: int, p: int, q: int, true: int) -> np.ndarray:
    """Canonical correlations of views that share ``true`` directions."""
    shared = rng.standard_normal((n, true))
    x, y = (rng.standard_normal((n, width)) for width in (p, q))
    x[:, :true] += 3 * shared
    y[:, :true] += 3 * shared
    bases = [np.linalg.qr(one - one.mean(axis=0))[0] for one in (x, y)]
    return np.asarray(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False))


@pytest.mark.parametrize("true", [0, 1])
@pytest.mark.parametrize(("n", "p", "q"), [(30, 3, 4), (100, 5, 2)])
def test_tests_of_canonical_correlations(n: int, p: int, q: int, true: int) -> None:
    rng = np.random.default_rng(n + true)
    sets = [canonical_tests(correlations(rng, n, p, q, true), n, p, q) for _ in range(SETS)]
    assert np.mean([one.f_p_value[true] < 0.05 for one in sets]) <= REJECTED
    assert np.mean([one.chi2_p_value[true] < 0.05 for one in sets]) <= REJECTED
    if true:
        assert np.mean([one.f_p_value[0] < 0.05 for one in sets]) > 0.95


@pytest.mark.slow
def test_cross_loadings_have_p_values_on_other_rows_alone() -> None:
    """Of a feature without any relation: on the rows of the fit the test rejects too often."""
    rng, inside, outside = np.random.default_rng(0), [], []
    for _ in range(SETS):
        x, y = rng.standard_normal((80, 4)), rng.standard_normal((80, 4))
        model = CCA(1, progress=False).fit(x[:40], y[:40])
        _, scores = model.transform(x, y)
        inside.append(pearsonr(x[:40, 0], scores[:40, 0])[1] < 0.05)
        outside.append(pearsonr(x[40:, 0], scores[40:, 0])[1] < 0.05)
    assert np.mean(inside) > 3 * 0.05
    assert np.mean(outside) <= REJECTED
    assert not [name for name in model.result_.to_xarray() if "p_value" in str(name)]


@pytest.mark.parametrize(("n", "p"), [(60, 40), (40, 150)])
def test_tracy_widom_of_noise(n: int, p: int) -> None:
    rng, rejected = np.random.default_rng(n), []
    for _ in range(SETS):
        x = rng.standard_normal((n, p))
        x -= x.mean(axis=0)
        values = np.linalg.eigvalsh(x @ x.T if n < p else x.T @ x)[::-1][: min(n - 1, p)]
        of_all = {"total": values.sum(), "squares": (values**2).sum(), "count": len(values)}
        rejected.append(tracy_widom_test(values[:1], **of_all).p_value[0] < 0.05)
    assert np.mean(rejected) <= REJECTED


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_north_errors() -> None:
    """Of well separated modes: the rule knows nothing of neighbours that mix."""
    rng, true = np.random.default_rng(0), 4.0 ** np.arange(3, -1, -1)
    held = []
    for _ in range(SETS):
        x = rng.standard_normal((200, 4)) * np.sqrt(true)
        model = PCA(4, progress=False).fit(x)
        errors = np.asarray(model.eof_.north_errors())
        held.append(np.abs(model.explained_variance_ - true) <= 1.96 * errors)
    assert HELD[0] <= np.mean(held) <= HELD[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_the_test_that_the_factors_are_enough() -> None:
    rng, rejected, seen = np.random.default_rng(0), [], []
    loadings = np.random.default_rng(5).standard_normal((2, 8))
    for _ in range(SETS):
        noise = rng.standard_normal((150, 8)) * np.linspace(0.7, 1.5, 8)
        x = rng.standard_normal((150, 2)) @ loadings + noise
        rejected.append(FactorAnalysis(2, progress=False).fit(x).p_value_ < 0.05)
        seen.append(FactorAnalysis(1, progress=False).fit(x).p_value_ < 0.05)
    assert np.mean(rejected) <= REJECTED
    assert np.mean(seen) > 0.9
