"""The rank of a view whose columns depend on each other: by SVD, whatever the coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

import streampca
from streampca import CCA
from streampca.solvers.canonical import independent


def views(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """103 x 7 of rank 3, and 4 features that follow from it in part."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((103, 3)) @ rng.standard_normal((3, 7))
    return x, rng.standard_normal((103, 4)) + 0.3 * x[:, :4]


def wilks(x: np.ndarray, y: np.ndarray) -> tuple[int, np.ndarray, float]:
    """(rank of x, canonical correlations, Bartlett's p-value), by SVD."""
    bases = [scipy.linalg.orth(one - one.mean(axis=0), rcond=1e-10) for one in (x, y)]
    p, q = (one.shape[1] for one in bases)
    values = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    statistic = -(len(x) - 1 - (p + q + 1) / 2) * np.sum(np.log(1 - values**2))
    return p, values, float(scipy.stats.chi2.sf(statistic, p * q))


HARD = (
    14,
    28,
    39,
)  # of 300, seeds in which rounding alone left more than R's tolerance of a column


@pytest.mark.parametrize("solver", ["auto", "scatter", "tsqr"])
def test_dependent_columns_do_not_count(solver: str) -> None:
    for seed in (*range(5), *HARD):
        x, y = views(seed)
        rank, values, p_value = wilks(x, y)
        if solver == "scatter" and seed in HARD:
            with pytest.warns(streampca.errors.AccuracyWarning, match="which were left out"):
                model = CCA(3, solver=solver).fit(x, y)
        else:
            model = CCA(3, solver=solver).fit(x, y)
        assert model.result_.x_rank == rank == 3
        np.testing.assert_allclose(model.correlations_, values, atol=1e-8)
        assert model.test_.chi2_p_value[0] == pytest.approx(p_value, rel=1e-6)


@pytest.mark.parametrize("model", [CCA(2, scale="std"), CCA(2, alpha=1e-3)])
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
def test_solvers_agree_where_columns_depend(model: Any) -> None:
    for seed in (0, HARD[0]):
        x, y = views(seed)
        found = [model.set_params(solver=one).fit(x, y).correlations_ for one in ("auto", "tsqr")]
        np.testing.assert_allclose(*found, atol=1e-8)


def test_rounding_of_a_column_grows_with_its_coefficients() -> None:
    """Of x3 = 1000 (x1 - x2) with x1 near x2: what is left is rounding, and much of it."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 2))
    x[:, 1] = x[:, 0] + 1e-4 * x[:, 1]
    x = np.column_stack([x, 1e4 * (x[:, 0] - x[:, 1])])
    error = 1e-15 * rng.standard_normal((3, 3))
    scatter = x.T @ x
    deviations = np.sqrt(np.diagonal(scatter))
    scatter += (error + error.T) * np.outer(deviations, deviations)
    found = independent(np.tril(scatter), np.full(3, 1e-14))
    assert found.kept.tolist() == [0, 1]
    assert found.left[2] <= found.rounding[2]
    assert found.rounding[2] > 1e-10
    apart = independent(np.tril(scatter[:2, :2]), np.full(2, 1e-14))
    np.testing.assert_allclose(
        apart.inverse @ scatter[:2, :2] @ apart.inverse.T, np.eye(2), atol=1e-6
    )
