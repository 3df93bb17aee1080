"""Soft-Impute beside plain NumPy, and the two ways to say its objective."""

from __future__ import annotations

import numpy as np
import pytest

from streampca import HardImpute, SoftImpute
from tests.models.completions import centred, classic, estimate_of, squares, with_holes

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


def objective(z: np.ndarray, seen: np.ndarray, estimate: np.ndarray, penalty: float) -> float:
    nuclear = np.linalg.svd(estimate, compute_uv=False).sum()
    return 0.5 * squares(z, seen, estimate) + penalty * float(nuclear)


def test_exact_iterates_are_those_of_numpy() -> None:
    x, _ = with_holes(40, 15, 3, seed=1)
    z, seen, _ = centred(x)
    expected = classic(z, seen, 6, 5, penalty=4.0)
    for steps in (1, 2, 5):
        model = SoftImpute(6, 4.0, solver="exact", tol=0, max_passes=steps + 2).fit(x)
        np.testing.assert_allclose(estimate_of(model), expected[steps - 1], atol=1e-8)


@pytest.mark.parametrize(("n", "p"), [(40, 15), (15, 40)])
def test_all_solvers_reach_the_minimum(n: int, p: int) -> None:
    x, _ = with_holes(n, p, 3, seed=2)
    z, seen, _ = centred(x)
    least = objective(z, seen, classic(z, seen, 8, 1000, penalty=4.0)[-1], 4.0)
    for solver, passes in (("exact", 80), ("impute", 80), ("als", 80)):
        model = SoftImpute(8, 4.0, solver=solver, tol=0, max_passes=passes).fit(x)
        reached = objective(z, seen, estimate_of(model), 4.0)
        assert least * (1 - 1e-9) < reached < least * (1 + 1e-5)
        penalised = np.array([one.penalised[0] for one in model.trace_])
        assert np.all(np.diff(penalised) <= 1e-9 * penalised[0])  # every sweep lowers it
        assert penalised[-1] == pytest.approx(2.0 * reached, rel=1e-4)


def test_alpha_of_hard_impute_is_lambda_of_soft_impute() -> None:
    x, _ = with_holes(30, 12, 2, seed=3)
    soft = SoftImpute(4, 2.5, tol=1e-9, max_passes=60).fit(x)
    ridge = HardImpute(4, alpha=2.5, tol=1e-9, max_passes=60).fit(x)
    np.testing.assert_array_equal(estimate_of(soft), estimate_of(ridge))


def test_a_penalty_above_the_largest_value_leaves_nothing() -> None:
    x, _ = with_holes(30, 12, 2, seed=4)
    z, _, mean = centred(x)
    largest = np.linalg.svd(z, compute_uv=False)[0]
    model = SoftImpute(3, 1.01 * largest, solver="exact").fit(x)
    np.testing.assert_allclose(estimate_of(model), 0.0, atol=1e-12)
    np.testing.assert_allclose(model.predict([0, 1], [2, 5]), mean[[2, 5]])


@pytest.mark.parametrize("solver", ["als", "exact", "impute"])
def test_an_estimate_of_nothing_predicts_the_mean(solver: str) -> None:
    x = np.random.default_rng(0).standard_normal((60, 10))
    x[::7, 3] = np.nan
    model = SoftImpute(2, lambda_=100.0, solver=solver).fit(x)
    assert np.all(model.singular_values_ <= 1e-8)
    np.testing.assert_allclose(model.transform(x), 0.0, atol=1e-7)
    np.testing.assert_allclose(model.impute(x)[0, 3], model.mean_[3], atol=1e-7)
    np.testing.assert_allclose(model.predict([0], [3]), model.mean_[3], atol=1e-7)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_the_largest_penalty_is_that_of_the_first_singular_value(penalty: float) -> None:
    """Nothing is missing, so one step of thresholding is the minimum, whatever the penalty."""
    _, x = with_holes(30, 12, 2, seed=4)
    largest = np.linalg.svd(centred(x)[0], compute_uv=False)[0]
    assert SoftImpute(3, penalty, solver="exact").fit(x).lambda_max_ == pytest.approx(largest)
    assert HardImpute(3, solver="exact").fit(x).lambda_max_ == pytest.approx(largest)
