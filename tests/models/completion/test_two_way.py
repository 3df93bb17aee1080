"""Rows and columns centred and scaled by turns, beside plain NumPy run to the fixed point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca import HardImpute, SoftImpute
from streampca.errors import ConvergenceWarning, InvalidInputError
from tests.models.completions import classic, estimate_of

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


def two_way(x: np.ndarray, scaled: bool, turns: int = 2000) -> tuple[np.ndarray, ...]:
    """(z with NaN in the holes, a, b, t, g) at the fixed point, row and column in turn."""
    n, p = x.shape
    a, b, t, g = np.zeros(n), np.zeros(p), np.ones(n), np.ones(p)
    for _ in range(turns):
        over = np.where(np.isnan(x), 0.0, 1.0 / g)
        a = np.nansum((x - b) / g, axis=1) / over.sum(axis=1)
        if scaled:
            t = np.sqrt(np.nanmean(((x - a[:, None] - b) / g) ** 2, axis=1))
        over = np.where(np.isnan(x), 0.0, 1.0 / t[:, None])
        b = np.nansum((x - a[:, None]) / t[:, None], axis=0) / over.sum(axis=0)
        if scaled:
            g = np.sqrt(np.nanmean(((x - a[:, None] - b) / t[:, None]) ** 2, axis=0))
    factor = np.exp(np.log(t).mean())
    mean = a.mean()
    return (x - a[:, None] - b) / (t[:, None] * g), a - mean, b + mean, t / factor, g * factor


def uneven(n: int, p: int, share: float = 0.3, seed: int = 0) -> np.ndarray:
    """Rows and columns on levels and scales of their own, with holes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, p)) + rng.standard_normal((n, p))
    x = x * rng.uniform(0.3, 3.0, (n, 1)) * rng.uniform(0.3, 3.0, p)
    x += 5.0 * rng.standard_normal((n, 1)) + 3.0 * rng.standard_normal(p) + 20.0
    return np.where(rng.random((n, p)) < share, np.nan, x)


def sources(x: np.ndarray, folder: Any) -> list[Any]:
    """The same cells, in every way they may come."""
    seen = ~np.isnan(x)
    stored = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)
    zarr.create_array(f"{folder}/rows.zarr", data=x, chunks=(13, x.shape[1]))
    zarr.create_array(f"{folder}/columns.zarr", data=x, chunks=(len(x), 5))
    return [x, f"{folder}/rows.zarr", f"{folder}/columns.zarr", stored.tocsr(), stored.tocsc()]


def both(rank: Any, scaled: bool = False, kind: Any = HardImpute, **more: Any) -> Any:
    more = {"tol": 1e-9, "max_passes": 120, "bounds": None, **more}  # the model's own values
    return kind(rank, center="both", scale="both" if scaled else None, **more)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shape", [(60, 22), (22, 60)])
def test_effects_are_those_of_numpy(shape: tuple[int, int], scaled: bool, tmp_path: Any) -> None:
    x = uneven(*shape)
    _, a, b, t, g = two_way(x, scaled)
    for source in sources(x, tmp_path):
        model = both(1, scaled, kind=SoftImpute, lambda_=1e6)
        assert [one.name for one in model.plan(source).passes] == ["look", "turn", "sweep"]
        model.fit(source)
        np.testing.assert_allclose(model.result_.row_mean, a, atol=1e-7)
        np.testing.assert_allclose(model.mean_, b, atol=1e-7)
        if scaled:
            np.testing.assert_allclose(model.result_.row_scale, t, rtol=1e-7)
            np.testing.assert_allclose(model.scale_, g, rtol=1e-7)
        assert model.turns_[-1] <= 1e-9 < model.turns_[0]
        names = [one.name for one in model.cost_]
        assert len(model.turns_) == 1 + sum(name.startswith("turn") for name in names)
        assert model.trace_[-1].passes == len(names)


@pytest.mark.parametrize("solver", ["als", "exact", "impute"])
def test_residuals_of_row_and_column_effects_are_completed(solver: str) -> None:
    x = uneven(50, 18)
    z, a, b, t, g = two_way(x, True)
    seen = ~np.isnan(x)
    estimate = classic(np.where(seen, z, 0.0), seen, 2, 3000)[-1]
    model = both(2, True, solver=solver, tol=1e-8, max_passes=600).fit(x)
    np.testing.assert_allclose(estimate_of(model), estimate, atol=2e-5)
    whole = a[:, None] + b + t[:, None] * g * estimate
    rows, columns = np.indices(x.shape).reshape(2, -1)
    np.testing.assert_allclose(model.predict(rows, columns), whole.ravel(), atol=2e-3)
    completed = model.impute(x)
    np.testing.assert_array_equal(completed[seen], x[seen])
    np.testing.assert_allclose(completed[~seen], whole[~seen], atol=2e-3)
    np.testing.assert_allclose(model.predict(x), whole, atol=2e-3)
    np.testing.assert_allclose(model.transform(x), model.result_.scores, atol=1e-3)
    residual = np.sum((z - estimate)[seen] ** 2)
    assert model.trace_[-1].objective[0] == pytest.approx(residual, rel=1e-6)
    assert model.reconstruction_error(x) == pytest.approx(residual / 50, rel=1e-6)


def test_complete_data_are_centred_twice() -> None:
    x = uneven(40, 15, share=0.0)
    rows, columns, grand = x.mean(axis=1), x.mean(axis=0), x.mean()
    model = both(3, tol=1e-12).fit(x)
    assert len(model.turns_) == 2
    np.testing.assert_allclose(model.result_.row_mean, rows - grand, atol=1e-12)
    np.testing.assert_allclose(model.mean_, columns, atol=1e-12)
    u, s, vt = np.linalg.svd(x - rows[:, None] - columns + grand)
    np.testing.assert_allclose(model.singular_values_, s[:3], rtol=1e-10)
    np.testing.assert_allclose(estimate_of(model), (u[:, :3] * s[:3]) @ vt[:3], atol=1e-6)


def test_without_components_it_is_the_additive_fit() -> None:
    """By least squares over all cells at once, from dummy variables."""
    x = uneven(30, 12)
    i, j = np.nonzero(~np.isnan(x))
    dummies = np.hstack([i[:, None] == np.arange(30), j[:, None] == np.arange(12)]).astype(float)
    found = np.linalg.lstsq(dummies, x[i, j])[0]
    model = both(2, kind=SoftImpute, lambda_=1e6).fit(x)
    additive = found[:30, None] + found[30:]
    np.testing.assert_allclose(model.predict(x), additive, atol=1e-6)
    np.testing.assert_allclose(model.predict(i, j), additive[i, j], atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_new_rows_are_centred_by_what_they_observe(scaled: bool, tmp_path: Any) -> None:
    x = uneven(80, 16)
    model = both(2, scaled, alpha=0.1).fit(x)
    fresh = uneven(20, 16, seed=5) + 100.0
    b, g = model.mean_, model.scale_ if scaled else np.ones(16)
    over = np.where(np.isnan(fresh), 0.0, 1.0 / g)
    a = np.nansum((fresh - b) / g, axis=1) / over.sum(axis=1)
    z = (fresh - a[:, None] - b) / g
    t = np.sqrt(np.nanmean(z**2, axis=1)) if scaled else np.ones(20)
    z /= t[:, None]
    scores = model.transform(fresh)
    whole = a[:, None] + b + t[:, None] * g * (scores @ model.components_)
    completed = model.impute(fresh)
    np.testing.assert_allclose(completed, np.where(np.isnan(fresh), whole, fresh), rtol=1e-9)
    np.testing.assert_allclose(model.predict(fresh), whole, rtol=1e-9)
    weights = np.sqrt(model.singular_values_)
    v = model.components_.T * weights
    for i in range(20):
        some = ~np.isnan(fresh[i])
        left = v[some].T @ v[some] + 0.1 * np.eye(2)
        found = np.linalg.solve(left, v[some].T @ z[i, some]) * weights
        np.testing.assert_allclose(scores[i], found, atol=1e-8)
    model.save(tmp_path / "model")
    again: Any = streampca.load(tmp_path / "model")
    np.testing.assert_array_equal(again.impute(fresh), completed)
    np.testing.assert_array_equal(again.predict([3], [4]), model.predict([3], [4]))
    assert again.turns_ == model.turns_


def test_a_large_common_level_in_single_precision() -> None:
    x = uneven(200, 30).astype(np.float32)
    far = both(2, tol=1e-5).fit(x + np.float32(4096.0))  # exact, but for the last bits of x
    near = both(2, tol=1e-5).fit(x.astype(np.float64))
    np.testing.assert_allclose(far.mean_ - 4096.0, near.mean_, atol=2e-4)
    np.testing.assert_allclose(far.result_.row_mean, near.result_.row_mean, atol=5e-4)
    rows, columns = np.nonzero(np.isnan(x))
    found = far.predict(rows, columns) - 4096.0
    np.testing.assert_allclose(found, near.predict(rows, columns), atol=0.02)


def test_integers_with_a_code() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 6, (70, 30)).astype(np.int8)
    hole = rng.random(x.shape) < 0.2
    coded = np.where(hole, -1, x).astype(np.int8)
    expected = both(1, tol=1e-6).fit(np.where(hole, np.nan, x))
    for source in (coded, np.asfortranarray(coded)):
        model = both(1, tol=1e-6, missing_value=-1).fit(source)
        np.testing.assert_allclose(model.mean_, expected.mean_, atol=1e-5)
        np.testing.assert_allclose(estimate_of(model), estimate_of(expected), atol=2e-3)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_and_columns_of_few_cells(scaled: bool, sparse: bool) -> None:
    x = uneven(40, 12)
    x[5], x[:, 3] = np.nan, np.nan
    x[7, 1:], x[9], x[:, 4] = np.nan, 2.5, np.nan  # one cell; constant; one cell
    x[7, 0], x[11, 4], x[9, 3] = 30.0, 7.0, np.nan
    source: Any = x
    if sparse:
        seen = ~np.isnan(x)
        source = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape).tocsr()
    with pytest.warns(streampca.errors.DroppedFeaturesWarning):
        model = both(2, scaled, alpha=0.1, tol=1e-5).fit(source)
    result = model.result_
    for values in (result.row_mean, result.components, result.scores, model.impute(source)):
        assert np.isfinite(values).all()
    assert result.row_mean[5] == 0.0
    np.testing.assert_allclose(result.scores[[5, 7]], 0.0, atol=1e-3)
    np.testing.assert_array_equal(result.components[:, 4], 0.0)
    np.testing.assert_allclose(model.impute(source)[5], model.mean_)
    assert model.predict([7], [0]) == pytest.approx(30.0)
    assert model.predict([11], [4]) == pytest.approx(7.0)


def test_held_out_cells_do_not_enter_the_effects() -> None:
    x = uneven(60, 20)
    held = np.random.default_rng(3).random(x.shape) < 0.1
    model = both([1, 2], True, validation=held, alpha=0.5, tol=1e-6).fit(x)
    alone = both(model.best_rank_, True, alpha=0.5, tol=1e-6).fit(np.where(held, np.nan, x))
    np.testing.assert_allclose(model.mean_, alone.mean_, atol=1e-9)
    rows, columns = np.nonzero(held & ~np.isnan(x))
    error = np.sqrt(np.mean((alone.predict(rows, columns) - x[rows, columns]) ** 2))
    assert min(one["held_out"] for one in model.validation_) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("where", ["turn 3", "sweep 2"])
def test_a_fit_interrupted_in_a_turn_resumes(where: str, tmp_path: Any, resumed: Any) -> None:
    x = uneven(60, 20)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(20, 20))
    make = lambda **more: both(2, True, tol=0, max_passes=9, **more)  # noqa: E731
    whole = make().fit(str(tmp_path / "x.zarr"))
    checkpoint = str(tmp_path / "state")
    model = resumed(where, lambda: make(checkpoint=checkpoint).fit(str(tmp_path / "x.zarr")))
    np.testing.assert_array_equal(model.result_.scores, whole.result_.scores)
    assert model.turns_ == whole.turns_


@pytest.mark.filterwarnings("default::streampca.errors.ConvergenceWarning")
def test_center_and_scale_that_contradict_each_other_are_refused() -> None:
    x = uneven(30, 10)
    for more in ({"center": "both", "scale": "std"}, {"center": True, "scale": "both"}):
        with pytest.raises(InvalidInputError, match="center='both' with scale='both'"):
            HardImpute(1, **more).fit(x)
    with pytest.raises(InvalidInputError, match="expected 6 or more"):
        HardImpute(1, center="both", max_passes=5).fit(x)
    model = both(1).fit(x)
    with pytest.raises(InvalidInputError, match="scores alone do not hold the mean of a row"):
        model.inverse_transform(model.transform(x))
    with pytest.warns(ConvergenceWarning, match="means of rows and columns not converged in 2"):
        both(1, True, kind=SoftImpute, lambda_=1e6, tol=1e-3, max_passes=6).fit(x)
