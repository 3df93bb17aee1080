"""Biases of rows and columns beside the factors, and their ridges, beside plain NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca import HardImpute, SoftImpute
from streampca.errors import DroppedFeaturesWarning, InvalidInputError
from tests.models.completion.ratings import biases_of, movielens_like
from tests.models.completions import estimate_of, only_in_scratch, with_holes

run_module = sys.modules["streampca.passes.execute"]

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


def levelled(n: int = 60, p: int = 22, share: float = 0.4, seed: int = 0) -> np.ndarray:
    """Rank 2, rows and columns on levels of their own, with holes."""
    x, _ = with_holes(n, p, 2, share, seed=seed)
    rng = np.random.default_rng(seed + 1)
    return x + 3.0 * rng.standard_normal((n, 1)) + rng.standard_normal(p)


def sparse(x: np.ndarray) -> Any:
    seen = ~np.isnan(x)
    return scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)


def ridges_of(model: Any) -> tuple[float, float]:
    of_rows, of_columns = model.result_.provenance["bias_ridges"]
    return of_rows, of_columns


def biased(rank: Any, **more: Any) -> HardImpute:
    return HardImpute(rank, **{"center": "biases", "tol": 1e-9, "max_passes": 300, **more})


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "rows", "columns", "complete"])
def test_without_components_it_is_least_squares(kind: str, tmp_path: Any) -> None:
    x = levelled(share=0.0 if kind == "complete" else 0.4)
    source: Any = x
    if kind in ("rows", "columns"):
        source = str(tmp_path / "x.zarr")
        zarr.create_array(source, data=x, chunks=(13, 22) if kind == "rows" else (60, 5))
    elif kind in ("csr", "csc"):
        source = sparse(x).asformat(kind)
    model = biased(0, bounds=None).fit(source)
    mean, a, b = biases_of(sparse(x).tocsr(), ridges_of(model), 2000)
    np.testing.assert_allclose(model.result_.row_mean, a, atol=1e-7)
    np.testing.assert_allclose(model.mean_, mean + b, atol=1e-7)
    rows, columns = np.indices(x.shape).reshape(2, -1)
    whole = mean + a[:, None] + b
    np.testing.assert_allclose(model.predict(rows, columns), whole.ravel(), atol=1e-7)
    np.testing.assert_allclose(model.predict(x), whole, atol=1e-6)
    np.testing.assert_array_equal(model.transform(x), np.zeros((60, 0)))


@pytest.mark.parametrize("ridge", [0.0, 2.0])
def test_the_minimum_with_components(ridge: float) -> None:
    """Nothing near it has less, and the trace knows how much it is."""
    x = levelled(share=0.2)
    model = biased(2, alpha=ridge).fit(x)
    of_rows, of_columns = ridges_of(model)
    a, estimate = model.result_.row_mean, estimate_of(model)
    mean = float(model.mean_.mean())

    def objective(a: np.ndarray, means: np.ndarray, estimate: np.ndarray) -> float:
        rest = np.nansum((x - a[:, None] - means - estimate) ** 2)
        nuclear = np.linalg.svd(estimate, compute_uv=False).sum()
        biases = of_rows * np.sum(a**2) + of_columns * np.sum((means - means.mean()) ** 2)
        return float(rest + 2.0 * ridge * nuclear + biases)

    least = objective(a, model.mean_, estimate)
    assert model.trace_[-1].penalised[0] == pytest.approx(least, rel=1e-9)
    rest = float(np.nansum((x - a[:, None] - model.mean_ - estimate) ** 2))
    assert model.trace_[-1].objective[0] == pytest.approx(rest, rel=1e-9)
    penalised = np.array([one.penalised[0] for one in model.trace_])
    assert np.all(np.diff(penalised) <= 1e-9 * penalised[0])
    rng = np.random.default_rng(0)
    u, v = model.result_.scores, model.components_
    for size in (1e-3, 1e-2):
        for _ in range(20):
            moved = (u + size * rng.standard_normal(u.shape)) @ (
                v + size / 3 * rng.standard_normal(v.shape)
            )
            other = objective(
                a + size * rng.standard_normal(60),
                model.mean_ + size * rng.standard_normal(22),
                moved,
            )
            assert other > least
    assert abs(a.mean()) < 1e-6 * np.abs(a).max()
    assert mean == pytest.approx(float(np.mean(model.mean_)))


def test_ridges_are_the_noise_over_the_variance_of_biases() -> None:
    """With and without holes, whatever the level; a large one for rows that do not differ."""
    rng = np.random.default_rng(5)
    noise, rows, columns = 2.0, 1.0, 0.5
    x = noise * rng.normal(size=(3000, 400))
    x += rows * rng.normal(size=(3000, 1)) + columns * rng.normal(size=400)
    expected = [noise**2 / rows**2, noise**2 / columns**2]
    for given in (x, np.where(rng.random(x.shape) < 0.7, np.nan, x), x + 1e6):
        model = HardImpute(0, center="biases", max_passes=4, tol=0.5).fit(given)
        np.testing.assert_allclose(ridges_of(model), expected, rtol=0.15)
    alike = HardImpute(0, center="biases", max_passes=4, tol=0.5).fit(rng.normal(size=(300, 40)))
    assert min(ridges_of(alike)) > 50.0


@pytest.mark.slow
def test_whole_weights_are_rows_that_are_repeated(tmp_path: Any) -> None:
    x = levelled(40, 14)
    weights = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    counted = np.flatnonzero(weights)
    alone = biased(2, alpha=0.4).fit(np.repeat(x, weights.astype(int), axis=0))
    first = np.searchsorted(np.repeat(np.arange(40), weights.astype(int)), counted)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(9, 5))
    for source in (x, sparse(x).tocsr(), str(tmp_path / "x.zarr")):
        model = biased(2, alpha=0.4).fit(source, sample_weight=weights)
        np.testing.assert_allclose(ridges_of(model), ridges_of(alone), rtol=1e-10)
        np.testing.assert_allclose(model.mean_, alone.mean_, atol=1e-6)
        np.testing.assert_allclose(model.singular_values_, alone.singular_values_, rtol=1e-6)
        for name in ("row_mean", "scores"):
            found = getattr(model.result_, name)
            expected = getattr(alone.result_, name)[first]
            np.testing.assert_allclose(found[counted], expected, atol=1e-4)
            np.testing.assert_array_equal(found[weights == 0], 0.0)


def test_new_rows_have_a_level_of_their_own(tmp_path: Any) -> None:
    x = levelled(200, 22)
    model = biased(2, alpha=0.5, bounds=None).fit(x)
    result, (pull, _) = model.result_, ridges_of(model)
    again = model.transform(x)
    np.testing.assert_allclose(again, result.scores, atol=1e-4)
    fresh = levelled(30, 22, seed=4)
    scores, whole = model.transform(fresh), model.predict(fresh)
    roots = np.sqrt(model.singular_values_)
    wide = np.hstack([model.components_.T * roots, np.ones((22, 1))])
    for i in range(30):
        seen = ~np.isnan(fresh[i])
        left = wide[seen].T @ wide[seen] + np.diag([0.5, 0.5, pull])
        found = np.linalg.solve(left, wide[seen].T @ (fresh[i] - model.mean_)[seen])
        np.testing.assert_allclose(scores[i], found[:2] * roots, atol=1e-8)
        np.testing.assert_allclose(whole[i], wide @ found + model.mean_, atol=1e-8)
    hole = np.isnan(fresh)
    np.testing.assert_allclose(model.impute(fresh), np.where(hole, whole, fresh), atol=1e-8)
    np.testing.assert_allclose(model.impute(sparse(fresh).tocsr()), model.impute(fresh), atol=1e-8)
    seen = np.where(hole, 0.0, fresh - whole)
    assert model.reconstruction_error(fresh) == pytest.approx(np.mean(np.sum(seen**2, axis=1)))
    zarr.create_array(str(tmp_path / "fresh.zarr"), data=fresh, chunks=(7, 6))
    written = model.impute(str(tmp_path / "fresh.zarr"), out=str(tmp_path / "full.zarr"))
    np.testing.assert_allclose(written[...], model.impute(fresh), atol=1e-10)
    model.save(tmp_path / "model")
    loaded: Any = streampca.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.impute(fresh), model.impute(fresh))
    with pytest.raises(InvalidInputError, match="after center='biases' use predict"):
        model.inverse_transform(scores)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_rows_and_columns_of_few_cells(kind: str, ridge: float) -> None:
    x = levelled(80, 12)
    x[5], x[:, 3] = np.nan, np.nan
    x[7, 1:], x[9], x[1:, 4] = np.nan, 2.5, np.nan
    x[9, 3:5] = np.nan
    source = x if kind == "dense" else sparse(x).tocsr()
    with pytest.warns(DroppedFeaturesWarning, match="predicted by the mean of all cells"):
        model = biased(2, alpha=ridge, max_passes=60).fit(source)
    result, completed = model.result_, model.impute(source)
    for values in (result.row_mean, result.scores, result.components, completed):
        assert np.isfinite(values).all()
    assert result.row_mean[5] == 0.0
    np.testing.assert_allclose(completed[5], np.clip(model.mean_, *model.bounds_), atol=1e-12)
    seen = np.setdiff1d(np.arange(12), [3])
    level = float(model.mean_[seen].mean())  # what all columns have in common
    assert model.mean_[3] == pytest.approx(level, abs=1e-6)
    rows = np.setdiff1d(np.arange(80), [5])
    np.testing.assert_allclose(
        completed[rows, 3],
        np.clip(model.mean_[3] + result.row_mean[rows], *model.bounds_),
        atol=2e-2,
    )


def test_a_constant_matrix_and_one_without_a_cell() -> None:
    constant = np.where(np.eye(8, 6) > 0, np.nan, 3.0)
    model = HardImpute([1, 2], validation=0.2).fit(constant)
    assert model.best_rank_ == 0
    np.testing.assert_array_equal(model.impute(constant), np.full((8, 6), 3.0))
    with pytest.warns(DroppedFeaturesWarning):
        empty = HardImpute(0, center="biases").fit(np.full((5, 4), np.nan))
    np.testing.assert_array_equal(empty.impute(np.full((5, 4), np.nan)), np.zeros((5, 4)))
    assert empty.bounds_ is None


def test_single_precision_at_a_large_level() -> None:
    x = levelled(300, 30).astype(np.float32)
    far = biased(2, alpha=0.5, tol=1e-6, max_passes=200).fit(x + np.float32(4096.0))
    near = biased(2, alpha=0.5, tol=1e-6, max_passes=200).fit(x.astype(np.float64))
    np.testing.assert_allclose(far.mean_ - 4096.0, near.mean_, atol=2e-3)
    np.testing.assert_allclose(far.result_.row_mean, near.result_.row_mean, atol=5e-3)
    np.testing.assert_allclose(far.singular_values_, near.singular_values_, rtol=1e-3)


@pytest.mark.parametrize("scratch", [False, True])
def test_an_interrupted_fit_with_biases_resumes(
    scratch: bool, tmp_path: Any, monkeypatch: Any
) -> None:
    if scratch:
        only_in_scratch(monkeypatch)
    source = movielens_like(1, n=120, p=80, cells=2500)
    make = lambda **more: HardImpute([1, 2], validation=0.1, tol=0, max_passes=6, **more)  # noqa: E731
    whole = make().fit(source)
    run = run_module.run

    def failing(plan: Any, *args: Any, **more: Any) -> Any:
        if plan.name == "sweep 3":
            raise RuntimeError("power failure")
        return run(plan, *args, **more)

    monkeypatch.setattr(run_module, "run", failing)
    with pytest.raises(RuntimeError, match="power failure"):
        make(checkpoint=str(tmp_path / "state")).fit(source)
    monkeypatch.setattr(run_module, "run", run)
    model = make(checkpoint=str(tmp_path / "state")).fit(source)
    assert len(model.cost_) == 3  # of sweeps 3 to 5
    assert model.validation_ == whole.validation_
    assert (model.best_rank_, model.best_penalty_) == (whole.best_rank_, whole.best_penalty_)
    np.testing.assert_array_equal(model.result_.row_mean, whole.result_.row_mean)
    rows, columns = np.arange(80), np.arange(80)[::-1]
    np.testing.assert_array_equal(model.predict(rows, columns), whole.predict(rows, columns))


def test_the_classic_iterations_choose_with_means_of_columns() -> None:
    x, _ = with_holes(60, 20, 2)
    model = HardImpute([1, 2], solver="exact", validation=0.1, tol=0, max_passes=8).fit(x)
    assert [one["rank"] for one in model.validation_] == [0, 1, 2]
    assert model.result_.row_mean is None
    given = SoftImpute([1, 2], solver="exact", validation=0.1, tol=0, max_passes=8).fit(x)
    assert len(given.validation_) == 11
    rows, columns = np.nonzero(np.isnan(x))
    means = HardImpute(0).fit(x)
    expected = np.nanmean(x, axis=0)[columns]
    np.testing.assert_allclose(means.predict(rows, columns), expected, rtol=1e-12)
