"""What is filled in keeps within what was observed, unless it is asked not to."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca import PCA, HardImpute
from streampca.errors import InvalidInputError
from streampca.models.completion.trace import Sweep, settled
from tests.models.completion.ratings import movielens_like
from tests.models.completions import estimate_of, with_holes

pytestmark = pytest.mark.filterwarnings(
    "ignore::streampca.errors.ConvergenceWarning", "ignore::streampca.errors.AccuracyWarning"
)


@pytest.mark.parametrize(
    ("center", "solver"),
    [(True, "als"), ("biases", "als"), ("both", "als"), ("fitted", "als"), (True, "exact")],
)
def test_predictions_are_those_of_the_model_within_bounds(center: Any, solver: str) -> None:
    x, _ = with_holes(60, 20, 2, share=0.7, noise=0.1)
    model = HardImpute(3, center=center, solver=solver, max_passes=8).fit(x)
    low, high = float(np.nanmin(x)), float(np.nanmax(x))
    assert model.bounds_ == (low, high)
    rows, columns = np.indices(x.shape).reshape(2, -1)
    hole, kept = np.isnan(x), (model.predict(rows, columns), model.impute(x), model.predict(x))
    model.set_params(bounds=None)
    free = (model.predict(rows, columns), model.impute(x), model.predict(x))
    assert model.bounds_ is None
    assert max(one.max() for one in free) > high
    for one, other in zip(kept, free, strict=True):
        np.testing.assert_array_equal(one, np.clip(other, low, high))
    np.testing.assert_array_equal(kept[1][~hole], x[~hole])
    model.set_params(bounds=(-1, 4.5))
    filled = model.impute(x)
    np.testing.assert_array_equal(filled[hole], np.clip(free[1][hole], -1.0, 4.5))
    np.testing.assert_array_equal(filled[~hole], x[~hole])


def test_bounds_do_not_change_the_iteration() -> None:
    x, _ = with_holes(50, 14, 2, share=0.6)
    fits = [
        HardImpute(2, solver="exact", bounds=one, tol=0, max_passes=9).fit(x)
        for one in ("observed", None, (1.9, 2.1))
    ]
    for other in fits[1:]:
        np.testing.assert_array_equal(estimate_of(other), estimate_of(fits[0]))
        np.testing.assert_array_equal(other.transform(x), fits[0].transform(x))


def test_held_out_errors_are_those_of_what_is_filled_in() -> None:
    x, _ = with_holes(60, 20, 2, share=0.6, noise=0.5)
    held = (np.random.default_rng(1).random(x.shape) < 0.1) & ~np.isnan(x)
    for bounds in ("observed", None, (0.0, 3.0)):
        more: Any = {"solver": "exact", "bounds": bounds, "tol": 0, "max_passes": 9}
        model = HardImpute(4, validation=held, **more).fit(x)
        alone = HardImpute(4, **more).fit(np.where(held, np.nan, x))
        error = alone.predict(*np.nonzero(held)) - x[held]
        found = model.validation_[-1]["held_out"]
        assert found == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)


def test_a_row_may_be_filled_with_as_much_as_it_observes() -> None:
    x, _ = with_holes(100, 12, 1, noise=0.05)
    model = HardImpute(1).fit(x)
    fresh = np.tile(model.mean_ + 40.0 * model.components_[0], (2, 1))
    fresh[0, ::2], fresh[1] = np.nan, np.where(np.arange(12) % 5, np.nan, model.mean_)
    completed, (low, high) = model.impute(fresh), model.bounds_
    least, most = np.nanmin(fresh[0]), np.nanmax(fresh[0])
    assert most > high + 5
    assert completed[0].min() == min(low, least)
    assert completed[0].max() == max(high, most)
    given = HardImpute(1, bounds=(low, high)).fit(x).impute(fresh)
    assert given[0, ::2].max() == high


def test_lazy_rows_and_other_kinds_of_rows() -> None:
    x, _ = with_holes(60, 20, 2, share=0.7, noise=0.1)
    model = HardImpute(3, max_passes=8).fit(x)
    expected = model.predict(x)
    lazy = model.predict(da.from_array(x, chunks=(20, 20)))
    np.testing.assert_allclose(np.asarray(lazy), expected, atol=1e-10)
    seen = ~np.isnan(x)
    stored = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape).tocsr()
    np.testing.assert_allclose(model.predict(stored), expected, atol=1e-8)


def test_a_pca_of_a_completed_matrix_fills_within_bounds() -> None:
    x, _ = with_holes(60, 20, 2, share=0.6, noise=0.1)
    filled = PCA(3, missing="impute").fit(x).impute(x)
    assert filled.min() == np.nanmin(x)
    assert filled.max() == np.nanmax(x)


def test_bounds_are_saved(tmp_path: Any) -> None:
    x, _ = with_holes(60, 20, 2, share=0.7)
    for i, bounds in enumerate(("observed", None, (1, 5))):
        model = HardImpute(3, bounds=bounds, max_passes=8).fit(x)
        model.save(tmp_path / str(i))
        again: Any = streampca.load(tmp_path / str(i))
        assert again.bounds_ == model.bounds_
        np.testing.assert_array_equal(again.impute(x), model.impute(x))
        np.testing.assert_array_equal(again.predict([0, 1], [2, 3]), model.predict([0, 1], [2, 3]))


def test_integers_stay_on_their_scale() -> None:
    given = movielens_like(2, n=80, p=60, cells=1500)
    completed = HardImpute([2, 4], validation=0.1).fit(given).impute(given)
    assert completed.min() >= 1.0
    assert completed.max() <= 5.0


@pytest.mark.parametrize("wrong", ["data", (1,), (5, 1), (1, np.nan), ("a", "b"), 5.0])
def test_bounds_that_are_accepted_and_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected 'observed', None, or"):
        HardImpute(1, bounds=wrong).fit(np.eye(4))


def sweep(held: tuple[float, ...], change: tuple[float, ...]) -> Sweep:
    ones = (1.0,) * len(held)
    return Sweep(1, 2, ones, ones, change, held, (0,) * len(held), 0.1)


def test_a_fit_does_not_wait_for_candidates_that_cannot_win() -> None:
    """The best has converged; one is too far behind, one may still win, one no longer moves."""
    before, last = (1.0, 1.5, 1.2, 1.1), (1.0, 1.49, 1.1, 1.1 - 1e-7)
    change = (1e-9, 0.1, 0.1, 0.1)
    trace = [sweep(before, change), sweep(last, change)]
    np.testing.assert_array_equal(settled(trace, 1e-5, 0.0, left=10), [True, True, False, True])
    np.testing.assert_array_equal(settled(trace, 1e-5, 0.0, left=60), [True, False, False, True])
    still = [trace[-1]] * 3
    np.testing.assert_array_equal(settled(still, 1e-5, 0.0, left=60), [True] * 4)
    unjudged = [sweep((np.nan,) * 4, change)] * 3
    np.testing.assert_array_equal(settled(unjudged, 1e-5, 0.0), [True, False, False, False])
