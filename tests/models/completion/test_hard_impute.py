"""Hard-Impute beside plain NumPy: the same iterates, the same fixed points, fewer passes."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr
from sklearn.model_selection import GridSearchCV

from streampca import HardImpute, SoftImpute
from streampca.errors import (
    ConvergenceWarning,
    DroppedFeaturesWarning,
    InvalidInputError,
    MemoryLimitError,
    NonFiniteError,
)
from streampca.matrix import Block
from streampca.models.completion.withheld import Withhold
from tests.models.completions import centred, classic, estimate_of, squares, with_holes

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
SHAPES = [
    (60, 20, 3, 0.3),
    (20, 60, 2, 0.3),
    (150, 9, 1, 0.6),
    (80, 40, 10, 0.1),
    (33, 32, 4, 0.01),
]


@pytest.mark.parametrize(("n", "p", "rank", "share"), SHAPES)
def test_exact_iterates_are_those_of_numpy(n: int, p: int, rank: int, share: float) -> None:
    x, _ = with_holes(n, p, rank, share)
    z, seen, _ = centred(x)
    expected = classic(z, seen, rank, 20)
    for steps in (1, 2, 5, 20):
        model = HardImpute(rank, solver="exact", tol=0, max_passes=steps + 2).fit(x)
        assert model.n_iter_ == steps
        assert len(model.cost_) == steps + 2
        np.testing.assert_allclose(estimate_of(model), expected[steps - 1], atol=1e-8)
        assert model.trace_[-1].objective[0] == pytest.approx(
            squares(z, seen, expected[steps - 1]), rel=1e-9
        )


def test_iterates_from_a_given_start(tmp_path: Any) -> None:
    x, _ = with_holes(50, 14, 2, seed=3)
    z, seen, _ = centred(x, center=False)
    rng = np.random.default_rng(1)
    scores, loadings = rng.standard_normal((50, 2)), rng.standard_normal((14, 2))
    expected = classic(z, seen, 2, 5, start=scores @ loadings.T)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(7, 5))
    for source in (x, str(tmp_path / "x.zarr")):
        for steps in (1, 2, 5):
            model = HardImpute(
                2,
                solver="exact",
                center=False,
                tol=0,
                max_passes=steps + 2,
                init=(scores, loadings),
            ).fit(source)
            np.testing.assert_allclose(estimate_of(model), expected[steps - 1], atol=1e-8)


def test_a_start_has_no_loadings_in_columns_outside() -> None:
    """Those without observations, or with one, which is their mean: the fit leaves them at 0."""
    x, _ = with_holes(30, 8, 2, seed=4)
    x[:, 2], x[1:, 5] = np.nan, np.nan
    x[0, 5] = 3.0
    z, seen, _ = centred(x)
    rng = np.random.default_rng(1)
    scores, loadings = rng.standard_normal((30, 2)), rng.standard_normal((8, 2))
    inside = loadings * ~np.isin(np.arange(8), (2, 5))[:, None]
    expected = classic(np.nan_to_num(z), seen, 2, 5, start=scores @ inside.T)[-1]
    with pytest.warns(DroppedFeaturesWarning):
        model = HardImpute(2, solver="exact", tol=0, max_passes=7, init=(scores, loadings)).fit(x)
    np.testing.assert_allclose(estimate_of(model), expected, atol=1e-8)
    assert model.trace_[-1].objective[0] == pytest.approx(
        squares(np.nan_to_num(z), seen, expected), rel=1e-9
    )


@pytest.mark.parametrize("solver", ["impute", "als"])
@pytest.mark.parametrize(("n", "p", "rank"), [(60, 20, 3), (20, 60, 2)])
def test_other_solvers_have_the_same_fixed_point(solver: str, n: int, p: int, rank: int) -> None:
    x, _ = with_holes(n, p, rank)
    z, seen, _ = centred(x)
    expected = classic(z, seen, rank, 2000)[-1]
    model = HardImpute(rank, solver=solver, center=True, tol=0, max_passes=230).fit(x)
    np.testing.assert_allclose(estimate_of(model), expected, atol=1e-6)


def test_us_arrests(shared_data: Any) -> None:
    """Twenty cells left out, rank 1: the laboratory of ISLP, chapter 12, in its eight steps."""
    with (shared_data / "usarrests" / "USArrests.csv").open() as file:
        x = np.array([row[1:] for row in list(csv.reader(file))[1:]], dtype=float)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    old = np.random.RandomState(15)
    rows, columns = old.choice(50, 20, replace=False), old.choice(4, 20, replace=True)
    given = x.copy()
    given[rows, columns] = np.nan
    start = (np.ones((50, 1)), np.nanmean(given, axis=0)[:, None])
    model = HardImpute(1, solver="exact", center=False, tol=0, max_passes=10, init=start).fit(given)
    completed = model.impute(given)
    correlation = np.corrcoef(completed[rows, columns], x[rows, columns])[0, 1]
    assert correlation == pytest.approx(0.71136, abs=1e-4)
    assert model.trace_[-1].objective[0] / 180 == pytest.approx(0.380737, abs=1e-6)
    quick = HardImpute(1, center=False).fit(given)
    predicted = quick.predict(rows, columns)
    assert np.corrcoef(predicted, x[rows, columns])[0, 1] == pytest.approx(0.71136, abs=1e-4)
    assert len(quick.cost_) <= 12


def test_an_observed_zero_is_data() -> None:
    x = np.array([[np.nan, 1.0], [0.0, np.nan], [np.nan, 2.0]])
    u, v = np.array([[1.0], [2.0], [3.0]]), np.array([[0.5], [0.25]])
    (a, _), (_, d), (e, _) = u @ v.T
    filled = np.array([[a, 1.0], [0.0, d], [e, 2.0]])
    left, s, right = np.linalg.svd(filled)
    stored = scipy.sparse.csr_matrix(([1.0, 0.0, 2.0], [1, 0, 1], [0, 1, 2, 3]), (3, 2))
    assert stored.nnz == 3
    for source in (x, stored):
        model = HardImpute(1, solver="exact", center=False, tol=0, max_passes=3, init=(u, v))
        model.fit(source)
        by_hand = s[0] * np.outer(left[:, 0], right[0])
        np.testing.assert_allclose(estimate_of(model), by_hand, atol=1e-12)
        assert HardImpute(1, center=False).fit(source).predict([1], [0]) == pytest.approx(0.0)


CLASSIC_JESTER = [
    6508866.422517389,
    6049343.652577824,
    5703043.127114154,
    5422821.5883348305,
    5202732.266420171,
]  # 200 iterations of NumPy, ranks 1 to 5


def jester(shared_data: Any) -> Any:
    found = np.load(shared_data / "jester5k" / "Jester5k.npz")
    parts = (found["data"], found["indices"], found["indptr"])
    return scipy.sparse.csc_matrix(parts, tuple(found["shape"])).tocsr()


def test_the_chosen_penalty_predicts_better_than_the_classic_iteration(shared_data: Any) -> None:
    """Whose best rank and step, of ranks 1 to 6 and 60 steps of NumPy, leave 4.0915."""
    model = HardImpute([4, 8], alpha=[50.0, 100.0], validation=0.05, max_passes=8)
    model.fit(jester(shared_data))
    assert min(one["held_out"] for one in model.validation_) < 4.0915
    assert (model.best_rank_, model.best_penalty_) == (8, 100.0)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_jester_in_eight_passes(shared_data: Any, kind: str) -> None:
    source: Any = (ratings := jester(shared_data))
    if kind == "dense":
        source = np.full(ratings.shape, np.nan)
        source[ratings.nonzero()] = ratings.data
    for rank, reached in enumerate(CLASSIC_JESTER, 1):
        model = HardImpute(rank, max_passes=8).fit(source)
        assert len(model.cost_) <= 8
        assert model.trace_[-1].objective[0] < 1.005 * reached


def test_ninety_four_percent_missing_in_sixteen_passes() -> None:
    rng = np.random.default_rng(0)
    n, p, rank = 943, 1682, 10
    x = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p)) / np.sqrt(rank)
    x += 0.5 * rng.normal(size=(n, p))
    rows, columns = np.nonzero(rng.random((n, p)) < 0.06)
    source = scipy.sparse.csr_matrix((x[rows, columns], (rows, columns)), (n, p))
    model = HardImpute(rank, center=False, max_passes=9).fit(source)
    reached = 16936.81977234329  # 200 iterations of NumPy
    assert model.trace_[-1].objective[0] < 1.01 * reached
    assert len(model.cost_) <= 9


# -- the same on every path ---------------------------------------------------------------------


def test_sources_and_chunks_do_not_matter(tmp_path: Any) -> None:
    x, _ = with_holes(90, 24, 3, seed=5)
    zarr.create_array(str(tmp_path / "rows.zarr"), data=x, chunks=(13, 24))
    zarr.create_array(str(tmp_path / "columns.zarr"), data=x, chunks=(90, 5))
    coded = np.where(np.isnan(x), -99.0, x)
    seen = ~np.isnan(x)
    stored = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)
    sources: list[tuple[Any, dict[str, Any]]] = [
        (x, {}),
        (str(tmp_path / "rows.zarr"), {}),
        (str(tmp_path / "columns.zarr"), {}),
        (coded, {"missing_value": -99.0}),
        (stored.tocsr(), {}),
        (stored.tocsc(), {}),
    ]
    settings: dict[str, Any] = {"center": True, "tol": 1e-10, "max_passes": 300}
    expected = estimate_of(HardImpute(3, **settings).fit(x))
    for source, more in sources:
        model = HardImpute(3, **settings, **more).fit(source)
        np.testing.assert_allclose(estimate_of(model), expected, atol=1e-6)
        np.testing.assert_allclose(model.mean_, np.nanmean(x, axis=0), rtol=1e-12)


def test_small_integers_with_a_code() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 5, (70, 30)).astype(np.int8)
    hole = rng.random(x.shape) < 0.2
    coded = np.where(hole, -1, x).astype(np.int8)
    expected = HardImpute(2).fit(np.where(hole, np.nan, x))
    for source in (coded, np.asfortranarray(coded), coded.T.copy().T):
        model = HardImpute(2, missing_value=-1).fit(source)
        np.testing.assert_allclose(estimate_of(model), estimate_of(expected), atol=1e-3)


def test_scaled_columns() -> None:
    x, _ = with_holes(80, 15, 2, seed=7)
    x *= np.logspace(-2, 2, 15)
    model = HardImpute(2, center=True, scale="std", tol=1e-9, max_passes=300).fit(x)
    z, seen, mean = centred(x)
    deviation = np.nanstd(x, axis=0, ddof=1)
    expected = classic(z / deviation, seen, 2, 2000)[-1]
    np.testing.assert_allclose(estimate_of(model), expected, atol=1e-5)
    rows, columns = np.nonzero(~seen)
    np.testing.assert_allclose(
        model.predict(rows, columns), (mean + deviation * expected)[~seen], rtol=1e-4, atol=1e-4
    )


# -- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["als", "impute", "exact"])
@pytest.mark.parametrize("sparse", [False, True])
def test_empty_rows_and_columns(solver: str, sparse: bool) -> None:
    x, _ = with_holes(40, 12, 2, seed=9)
    x[:, 3], x[5] = np.nan, np.nan
    source: Any = x
    if sparse:
        seen = ~np.isnan(x)
        source = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape).tocsr()
    with pytest.warns(DroppedFeaturesWarning, match="1 of 12 features"):
        model = HardImpute(2, solver=solver, center=True).fit(source)
    np.testing.assert_array_equal(model.components_[:, 3], 0.0)
    np.testing.assert_allclose(model.result_.scores[5], 0.0, atol=1e-12)
    completed = model.impute(source)
    assert np.isfinite(completed).all()
    np.testing.assert_allclose(completed[5], model.mean_, atol=1e-9)
    np.testing.assert_allclose(completed[:, 3], np.nanmean(x), rtol=1e-12)


@pytest.mark.parametrize("solver", ["als", "impute", "exact"])
def test_a_rank_as_large_as_the_matrix_and_a_matrix_of_lower_rank(solver: str) -> None:
    x, _ = with_holes(12, 6, 2, share=0.2, noise=0.0, seed=4)
    for rank in (4, 6):
        model = HardImpute(rank, solver=solver, center=False, max_passes=40).fit(x)
        assert np.isfinite(estimate_of(model)).all()
        assert model.trace_[-1].objective[0] < 0.02 * np.nansum(x**2)
        np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(rank), atol=1e-8)


@pytest.mark.parametrize("solver", ["als", "impute", "exact"])
def test_blocks_without_an_observed_cell(solver: str, tmp_path: Any) -> None:
    x, _ = with_holes(60, 8, 2, noise=0.0)
    x[20:40] = np.nan
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 8))
    rest = np.delete(x, np.arange(20, 40), axis=0)
    model = HardImpute(2, solver=solver, center=False, tol=0, max_passes=12)
    found = model.fit(str(tmp_path / "x.zarr")).result_
    np.testing.assert_array_equal(found.scores[20:40], 0.0)
    expected = HardImpute(2, solver=solver, center=False, tol=0, max_passes=12).fit(rest)
    estimate = np.delete(estimate_of(model), np.arange(20, 40), axis=0)
    close = 1e-8 if solver == "exact" else 0.3
    np.testing.assert_allclose(estimate, estimate_of(expected), atol=close)


def test_disconnected_observations_are_completed_apart() -> None:
    x = np.full((20, 10), np.nan)
    x[:10, :5], x[10:, 5:] = with_holes(10, 5, 1, 0)[1], with_holes(10, 5, 1, 0, seed=1)[1]
    model = HardImpute(2, max_passes=60).fit(x)
    completed = model.impute(x)
    assert np.isfinite(completed).all()
    np.testing.assert_array_equal(completed[:10, :5], x[:10, :5])


def test_impossible_ranks_and_penalties_are_refused() -> None:
    x, _ = with_holes(20, 8, 2)
    with pytest.raises(InvalidInputError, match="rank=9 for a matrix of 20 x 8"):
        HardImpute(9).fit(x)
    with pytest.raises(InvalidInputError, match=r"rank=-1; expected 'auto', a whole number from 0"):
        HardImpute(-1).fit(x)
    with pytest.raises(InvalidInputError, match=r"alpha='none'; expected 'auto', a number from 0"):
        HardImpute(2, alpha="none").fit(x)
    with pytest.raises(InvalidInputError, match=r"add\s+validation=0.05"):
        HardImpute([1, 2]).fit(x)
    with pytest.raises(InvalidInputError, match="only solver='als' has this penalty"):
        HardImpute(2, alpha=1.0, solver="exact").fit(x)
    with pytest.raises(InvalidInputError, match="max_passes=2"):
        HardImpute(2, max_passes=2).fit(x)
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        HardImpute(2, memory_limit="1MiB").fit(x)
    x[3, 4] = np.inf
    with pytest.raises(NonFiniteError, match="infinity"):
        HardImpute(2).fit(x)


@pytest.mark.filterwarnings("default::streampca.errors.ConvergenceWarning")
def test_a_fit_that_did_not_converge_says_how_far_it_is() -> None:
    x, _ = with_holes(40, 12, 2)
    with pytest.warns(ConvergenceWarning, match="max_passes=4: the last sweep changed"):
        HardImpute(2, tol=1e-12, max_passes=4).fit(x)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
def test_a_search_by_score_finds_the_rank_of_the_data(sparse):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 15)) + 0.3 * rng.normal(size=(200, 15))
    hole = rng.random(X.shape) < 0.2
    data = scipy.sparse.csr_array(np.where(hole, 0.0, X)) if sparse else np.where(hole, np.nan, X)
    if sparse:
        soft = GridSearchCV(SoftImpute(6), {"lambda_": [0.0, 2.0, 100.0]}, cv=3).fit(data)
        assert soft.best_params_ == {"lambda_": 2.0}
        assert not hasattr(soft.best_estimator_, "score_samples")
        return
    search = GridSearchCV(HardImpute(alpha=0.0), {"rank": [1, 3, 5]}, cv=3).fit(data)
    assert search.best_params_ == {"rank": 3}
    assert -0.3 < search.best_score_ < -(0.3**2)


def test_the_score_is_of_hidden_cells_alone():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12))
    model = HardImpute(2, alpha=0.0, bounds=None).fit(X[:40])
    assert model.score(X[40:]) == pytest.approx(0.0, abs=1e-12)  # exact: nothing but the model
    noisy = X[40:] + rng.normal(size=(20, 12))
    holed = noisy.copy()
    held = Withhold(0.2, 0)(Block(holed, 0, 0, 20))
    holed[held.rows, held.columns] = np.nan
    filled = model.impute(holed)
    wrong = filled[held.rows, held.columns] - held.values
    assert model.score(noisy) == pytest.approx(-np.mean(wrong**2), rel=1e-9)
    with pytest.raises(InvalidInputError, match="too few observed cells"):
        model.score(np.full((3, 12), np.nan))
