"""Default fits of ratings: candidates that cannot win leave; all cells are fitted in the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca import HardImpute
from streampca.errors import ConvergenceWarning
from streampca.models.completion.trace import Sweep, hopeless, judged
from tests.models.completion.ratings import movielens_like


def ratings() -> Any:
    every = movielens_like(2, 0, 150, 100, 4000).tocoo()
    return streampca.open_ratings(
        pd.DataFrame({"user": every.row, "item": every.col, "rating": every.data})
    )


def sweep(held: tuple[float, ...]) -> Sweep:
    ones = (1.0,) * len(held)
    return Sweep(1, 2, ones, ones, ones, held, (0,) * len(held), 0.1)


def test_candidates_that_improve_too_slowly_leave_the_sweeps() -> None:
    trace = [sweep((1.2, 1.3, 1.5, 1.01)), sweep((1.0, 1.25, 1.4, 1.05))]
    assert not hopeless(trace).any()  # nobody knows yet how fast they fall
    trace.append(sweep((0.9, 1.2, 1.39, 1.06)))
    np.testing.assert_array_equal(hopeless(trace), [False, False, False, True])
    trace += [sweep((0.9, 1.2, 1.38, 0.9))] * 2
    np.testing.assert_array_equal(hopeless(trace), [False, True, True, False])
    assert not hopeless([sweep((np.nan,) * 2)] * 3).any()
    two = [sweep((1.2, 1.3, 1.5, 1.01)), sweep((1.0, 1.08, 1.21, 1.05))]
    np.testing.assert_array_equal(hopeless(two, balanced=True), [False, False, False, True])


@pytest.fixture(scope="module")
def fitted() -> Any:
    return HardImpute().fit(ratings())


def test_candidates_leave_and_keep_their_last_numbers(fitted: Any) -> None:
    sweeps = judged(fitted.trace_)
    took_part = np.array([one.fitted for one in sweeps])
    assert took_part[:2].all()
    assert not took_part[-1].all()
    assert (np.diff(took_part.astype(int), axis=0) <= 0).all()
    assert took_part[:, 0].all()
    for before, after in pairwise(sweeps):
        gone = ~np.array(after.fitted)
        for name in ("held_out", "objective", "penalised", "change"):
            numbers = (np.array(getattr(one, name))[gone] for one in (before, after))
            np.testing.assert_array_equal(*numbers)
    found = [one["held_out"] for one in fitted.validation_]
    assert len(found) == 18
    chosen = sweeps[-1].chosen
    assert found[chosen] == min(found[1:])
    assert (fitted.best_rank_, fitted.best_penalty_) == tuple(
        fitted.validation_[chosen][name] for name in ("rank", "penalty")
    )


def test_the_final_model_is_fitted_to_all_cells(fitted: Any) -> None:
    """Of the same rank and ridge, as near as both have come to the minimum."""
    given = ratings()
    alone = HardImpute(
        fitted.best_rank_, alpha=fitted.best_penalty_, center="biases", tol=1e-5
    ).fit(given)
    chosen, end = fitted.trace_[-1].chosen, fitted.trace_[-1]
    assert end.fitted == tuple(np.arange(18) == chosen)
    assert end.penalised[chosen] == pytest.approx(alone.trace_[-1].penalised[0], rel=5e-3)
    one, other = fitted.result_, alone.result_
    np.testing.assert_array_equal(one.missing, other.missing)
    np.testing.assert_allclose(one.provenance["bias_ridges"], other.provenance["bias_ridges"])
    users, items = np.repeat(np.arange(150), 100), np.tile(np.arange(100), 150)
    found, expected = fitted.predict(users, items), alone.predict(users, items)
    assert np.std(found - expected) < 0.05 < 0.2 < np.std(expected)
    assert len(fitted.cost_) == end.passes == len(fitted.trace_) + 2
    told = HardImpute(validation=0.05).fit(given)  # cells that the user holds out stay so
    assert told.validation_ == fitted.validation_
    assert (told.result_.missing >= one.missing).all()
    assert told.result_.missing.sum() > one.missing.sum()


def test_to_stop_early_is_about_the_cells_that_are_held_out() -> None:
    """The fit to all cells goes on until it has settled, or to the last pass."""
    model = HardImpute(early_stop=True).fit(ratings())
    chosen, end = model.trace_[-1].chosen, model.trace_[-1]
    assert len(model.trace_) >= len(judged(model.trace_)) + 2
    assert end.change[chosen] <= 1e-3


@pytest.mark.parametrize("most", [3, 4, 5])
def test_the_second_look_is_one_of_the_passes(most: int) -> None:
    model = HardImpute(max_passes=most)
    with pytest.warns(ConvergenceWarning, match=f"max_passes={most}"):
        model.fit(ratings())
    assert len(model.cost_) == model.plan_.n_passes == most
    assert ("look 2" in [one.name for one in model.cost_]) == (most > 3)


@pytest.mark.parametrize("where", ["look 2", "sweep 5", "last"])
def test_an_interrupted_fit_resumes(where: str, fitted: Any, tmp_path: Any, resumed: Any) -> None:
    where = f"sweep {fitted.n_iter_}" if where == "last" else where
    model = resumed(where, lambda: HardImpute(checkpoint=str(tmp_path)).fit(ratings()))
    assert model.validation_ == fitted.validation_
    for name in ("components", "scores", "mean", "row_mean"):
        np.testing.assert_array_equal(
            getattr(model.result_, name), getattr(fitted.result_, name), name
        )
