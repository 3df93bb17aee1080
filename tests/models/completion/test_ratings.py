"""The recipe of the documentation on ratings: better than biases alone, or these."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import streampca
from streampca import HardImpute, SoftImpute
from streampca.accumulators import HeldOutError
from streampca.matrix import Block
from streampca.models.completion.withheld import HeldCells
from tests.models.completion.ratings import bfi, bias_only, error_of, jester, movielens_like, parted

RECIPES: dict[str, Any] = {
    "hard": lambda: HardImpute([2, 4, 8], validation=0.05),
    "soft": lambda: SoftImpute(20, validation=0.05),
}
SMALL = {"n": 400, "p": 500, "cells": 24_000}
REAL = {"jester": (jester, 0.94), "bfi": (bfi, 0.87)}  # and the share of the error that is left


@pytest.mark.soak
@pytest.mark.parametrize("name", RECIPES)
def test_components_improve_on_biases(name: str) -> None:
    given, unseen = parted(movielens_like())
    model = RECIPES[name]().fit(given)
    assert error_of(model, unseen) < (0.96 if name == "hard" else 0.98) * bias_only(given, unseen)
    assert model.best_rank_ == (4 if name == "hard" else 20)


def test_components_of_a_small_matrix_improve_on_biases() -> None:
    given, unseen = parted(movielens_like(1, **SMALL))
    model = HardImpute([1, 2], validation=0.05).fit(given)
    assert error_of(model, unseen) < 0.96 * bias_only(given, unseen)
    assert model.best_rank_ in (1, 2)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", [SMALL, pytest.param({}, marks=pytest.mark.soak)])
def test_where_no_component_helps_there_is_none(name: str, size: dict[str, int]) -> None:
    given, unseen = parted(movielens_like(0, 2, **size))
    model = RECIPES[name]().fit(given)
    assert (model.best_rank_, model.best_penalty_, len(model.components_)) == (0, 0.0, 0)
    best = min(bias_only(given, unseen, ridge) for ridge in (1.0, 3.0, 5.0))
    assert error_of(model, unseen) == pytest.approx(best, rel=2e-3)


@pytest.mark.parametrize("real", [pytest.param("jester", marks=pytest.mark.slow), "bfi"])
def test_real_ratings(real: str, shared_data: Any) -> None:
    """One fit without a warning, in few passes, and what it knows of itself."""
    read, share = REAL[real]
    given, unseen = parted(read(shared_data))
    model = HardImpute([2, 4, 8], validation=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(given)
    assert len(model.cost_) <= 40
    found = error_of(model, unseen)
    assert found < share * bias_only(given, unseen)
    curve = {(one["rank"], one["penalty"]): one["held_out"] for one in model.validation_}
    assert len(curve) == 15
    assert curve[model.best_rank_, model.best_penalty_] == min(curve.values())
    assert found == pytest.approx(min(curve.values()), rel=0.03)


@pytest.mark.soak
def test_real_ratings_by_the_nuclear_norm(shared_data: Any) -> None:
    given, unseen = parted(jester(shared_data))
    model = SoftImpute(20, validation=0.05).fit(given)
    assert error_of(model, unseen) < 0.94 * bias_only(given, unseen)


def test_the_chosen_candidate_is_in_the_saved_model(tmp_path: Any) -> None:
    given, unseen = parted(movielens_like(0, 2, 200, 150, 6000))
    model = HardImpute([2, 4], validation=0.1).fit(given)
    model.save(tmp_path / "model")
    again: Any = streampca.load(tmp_path / "model")
    assert again.get_params()["center"] == "biases"
    assert (again.best_rank_, again.bounds_, again.validation_) == (
        model.best_rank_,
        model.bounds_,
        model.validation_,
    )
    np.testing.assert_array_equal(again.predict(*unseen[:2]), model.predict(*unseen[:2]))
    np.testing.assert_array_equal(again.impute(given), model.impute(given))
    np.testing.assert_array_equal(model.impute(given), model.fit(given).impute(given))


def test_ridges_to_choose_from_stand_at_the_noise_level() -> None:
    """About the largest singular value of noise alone: a ridge of 1 leaves nothing of it."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random((400, 150)) < 0.5, np.nan, 3.0 * rng.normal(size=(400, 150)))
    model = HardImpute(2, validation=0.05).fit(x)
    ridges = [one["penalty"] for one in model.validation_][1:]
    largest = np.linalg.svd(np.nan_to_num(x), compute_uv=False)[0]
    assert ridges[-1] == pytest.approx(largest, rel=0.05)
    np.testing.assert_allclose(np.array(ridges) / ridges[-1], [1 / 128, 1 / 16, 1 / 4, 1 / 2, 1])
    for more in ({"center": False}, {"scale": "std"}, {"center": "both", "scale": "both"}):
        other = HardImpute(2, validation=0.05, **more).fit(x).validation_[-1]["penalty"]
        size = 1.0 if "scale" in more else 3.0
        assert other == pytest.approx(size / 3.0 * ridges[-1], rel=0.03)


def test_the_simplest_is_kept_within_one_standard_error() -> None:
    rng = np.random.default_rng(0)
    v, u = rng.normal(size=(50, 3)), rng.normal(size=(200, 3))
    rows, columns = np.nonzero(rng.random((200, 50)) < 0.2)
    halves = [HeldOutError(streamed=0, ranks=(0, 1, 2)) for _ in range(2)]
    truth = 0.1 * np.einsum("ij,ij->i", u[rows, 1:], v[columns, 1:]) + rng.normal(size=len(rows))
    for half, part in zip(halves, (rows < 90, rows >= 90), strict=True):
        cells = HeldCells(rows[part], columns[part], truth[part])
        half.update(Block(np.zeros((200, 50)), 0, 0, 200, arrays={"u": u, "v": v, "held": cells}))
    halves[0].merge(halves[1])
    found = halves[0]
    predicted = [
        0.0,
        u[rows, 0] * v[columns, 0],
        np.einsum("ij,ij->i", u[rows, 1:], v[columns, 1:]),
    ]
    squares = np.stack([(truth - one) ** 2 for one in predicted])
    np.testing.assert_allclose(found.rmse(), np.sqrt(squares.mean(axis=1)), rtol=1e-12)
    assert found.best() == 0
    found.squares[2] = found.squares[0] - 1.0
    assert (found.best(), found.best(simplest=0)) == (2, 0)
    error = np.std(squares[0] - squares[2]) / np.sqrt(len(rows))
    for times, kept in ((0.8, 0), (1.3, 2)):
        found.squares[2] = found.squares[0] - times * error * len(rows)
        assert found.best(simplest=0) == kept


def test_held_out_cells_without_an_observation_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(6, 4))
    with pytest.raises(streampca.errors.InvalidInputError, match="holds out no observed cell"):
        HardImpute([1, 2], validation=([], [])).fit(x)
    with pytest.raises(streampca.errors.InvalidInputError, match="'biases' takes solver='als'"):
        HardImpute(1, center="biases", solver="exact").fit(x)
    with pytest.raises(streampca.errors.InvalidInputError, match="scale='std' use center=True"):
        HardImpute(1, center="biases", scale="std").fit(x)
