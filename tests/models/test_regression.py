"""Total least squares and regression on principal components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline

import streampca
from streampca import PCA, PrincipalComponentRegression, TotalLeastSquares
from streampca.errors import AbsentNamesWarning, InvalidInputError, MemoryLimitError, NonFiniteError

RNG = np.random.default_rng(0)
TRUE = RNG.normal(size=(400, 3)) @ [[1, 0.3, 0], [0, 1, 0.2], [0, 0, 1]] + [5.0, -3.0, 100.0]
BETA = np.array([1.0, -2.0, 0.5])
X = TRUE + 0.3 * RNG.normal(size=TRUE.shape)
Y = TRUE @ BETA + 7.0 + 0.3 * RNG.normal(size=400)


def total(**parameters: Any) -> TotalLeastSquares:
    return TotalLeastSquares(progress=False, **parameters)


def components(k: int | str = "cv", **parameters: Any) -> PrincipalComponentRegression:
    return PrincipalComponentRegression(k, progress=False, **parameters)


def by_svd(x: np.ndarray, y: np.ndarray, units: Any = 1.0) -> np.ndarray:
    """(p, q) from the singular vectors of the whole centred matrix."""
    z = np.column_stack([x, y])
    z = (z - z.mean(axis=0)) / units
    v = np.linalg.svd(z, full_matrices=True)[2].T
    p = x.shape[1]
    return -v[:p, p:] @ np.linalg.inv(v[p:, p:])


@pytest.mark.parametrize("responses", [1, 2])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_equal_to_the_svd(responses: int, offset: float) -> None:
    y = np.column_stack([Y, X[:, 0] - Y + RNG.normal(size=400)])[:, :responses]
    model = total().fit(X + offset, y - offset)
    expected = by_svd(X, y)
    np.testing.assert_allclose(model.coef_, expected.T.squeeze(), rtol=1e-8 if offset else 1e-10)
    predicted = model.predict(X + offset)
    np.testing.assert_allclose(
        predicted, (X - X.mean(0)) @ expected + y.mean(0) - offset, rtol=1e-8
    )
    slope = np.linalg.lstsq(X - X.mean(0), y - y.mean(0), rcond=None)[0]
    np.testing.assert_allclose(model.ols_coef_, slope.T.squeeze(), rtol=1e-7)


def test_a_line_is_the_same_when_x_and_y_change_places() -> None:
    x, y = X[:, :1], 2.0 * X[:, 0] + RNG.normal(size=400)
    there, back = total().fit(x, y), total().fit(y[:, None], x[:, 0])
    assert there.coef_[0] * back.coef_[0] == pytest.approx(1, abs=1e-10)
    one, other = there.ols_coef_[0], total().fit(y[:, None], x[:, 0]).ols_coef_[0]
    assert one * other < 0.99  # ordinary least squares gives two lines
    axis = PCA(1).fit(np.column_stack([x, y])).components_[0]
    assert there.coef_[0] == pytest.approx(axis[1] / axis[0])


def test_the_noise_is_that_of_the_smallest_singular_values() -> None:
    y = Y.reshape(len(X), -1)
    both = np.column_stack([X, y])
    values = np.linalg.svd(both - both.mean(axis=0), compute_uv=False)[X.shape[1] :]
    cells = (len(X) - 1 - X.shape[1]) * y.shape[1]
    assert total().fit(X, Y).noise_ == pytest.approx(np.sqrt(np.sum(values**2) / cells))


def test_known_noise_of_columns() -> None:
    units = np.array([1.0, 2.0, 0.5, 3.0])
    model = total(noise=units).fit(X, Y)
    expected = by_svd(X, Y, units)[:, 0] * units[3] / units[:3]
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-9)
    scaled = total(noise=units * 10).fit(X, Y)
    np.testing.assert_allclose(scaled.coef_, model.coef_, rtol=1e-12)
    np.testing.assert_allclose(scaled.standard_errors_, model.standard_errors_, rtol=1e-12)
    assert scaled.noise_ == pytest.approx(model.noise_ / 10)


def test_it_has_no_bias_and_its_errors_are_standard_errors() -> None:
    rng, found, said, ordinary = np.random.default_rng(1), [], [], []
    for _ in range(300):
        x, y = (one + 0.4 * rng.normal(size=one.shape) for one in (TRUE, TRUE @ BETA))
        model = total().fit(x, y)
        found.append(model.coef_)
        said.append(model.standard_errors_)
        ordinary.append(model.ols_coef_)
    spread = np.std(found, axis=0)
    assert np.all(abs(np.mean(found, axis=0) - BETA) < 4 * spread / np.sqrt(300))
    assert np.all(abs(np.mean(ordinary, axis=0) - BETA).max() > 0.1)
    np.testing.assert_allclose(np.mean(said, axis=0), spread, rtol=0.15)
    inside = abs(np.array(found) - BETA) < 1.96 * np.array(said)
    assert np.all(abs(inside.mean(axis=0) - 0.95) < 0.04)
    interval = total().fit(X, Y).confidence_interval(0.9)
    assert np.all(interval[:, 0] < BETA)
    assert np.all(interval[:, 1] > BETA)


def test_weights_are_repeated_rows() -> None:
    often = np.random.default_rng(2).integers(0, 4, 400)
    weighted = total().fit(X, Y, sample_weight=often)
    repeated = total().fit(np.repeat(X, often, axis=0), np.repeat(Y, often))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-10)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-10)


def test_through_the_origin() -> None:
    model = total(fit_intercept=False).fit(X, Y)
    v = np.linalg.svd(np.column_stack([X, Y]), full_matrices=False)[2][-1]
    np.testing.assert_allclose(model.coef_, -v[:3] / v[3], rtol=1e-9)
    assert model.intercept_ == 0


def test_several_responses_of_which_one_is_mostly_noise() -> None:
    x = np.random.default_rng(8).normal(size=(60, 5))
    first = x @ np.arange(1.0, 6.0)
    y = np.column_stack([first, first**2])  # sigma_6 of all is above sigma_5 of X
    np.testing.assert_allclose(total().fit(x, y).coef_, by_svd(x, y).T, rtol=1e-9)


def test_scores_are_those_of_scikit_learn() -> None:
    model, weights = total().fit(X, Y), np.arange(400.0)
    expected = r2_score(Y, model.predict(X), sample_weight=weights)
    assert model.score(X, Y, sample_weight=weights) == pytest.approx(expected)
    assert model.score(X, np.ones(400)) == r2_score(np.ones(400), model.predict(X)) == 0
    assert total().fit(X, 0 * Y).score(X, 0 * Y) == 1


def test_what_has_no_solution_is_refused_with_its_reason() -> None:
    n = 60
    a, b = np.linalg.qr(np.random.default_rng(3).normal(size=(n, 3)))[0].T[:2]
    a, b = a - a.mean(), b - b.mean()
    b -= a * (a @ b) / (a @ a)
    with pytest.raises(InvalidInputError, match="non-generic case"):
        total().fit(a[:, None], 10 * b)  # the smallest singular vector is a itself
    with pytest.raises(InvalidInputError, match="depend on each other"):
        total().fit(np.column_stack([X, X[:, 0]]), Y)
    with pytest.raises(InvalidInputError, match="constant, or depend"):
        total().fit(np.ones((9, 2)), np.arange(9.0))
    with pytest.raises(InvalidInputError, match="requires y"):
        total().fit(X)
    with pytest.raises(InvalidInputError, match="n_samples=3, 3 columns"):
        total().fit(X[:3], Y[:3])
    with pytest.raises(InvalidInputError, match=r"expected 4 numbers above 0"):
        total(noise=[1.0, 2.0]).fit(X, Y)
    with pytest.raises(InvalidInputError, match="fit each apart"):
        _ = total().fit(X, np.column_stack([Y, X[:, 0] + Y])).standard_errors_
    holed = X.copy()
    holed[4, 1] = np.nan
    with pytest.raises(NonFiniteError):
        total().fit(holed, Y)
    for x, y, named in ((X, Y * np.nan, "0 of y"), (X * [1, np.nan, 1], Y, "1 of X")):
        for model in (total(), components()):
            with pytest.raises(NonFiniteError, match=f"no observation in column .*{named}"):
                model.fit(x, y)
    with pytest.raises(MemoryLimitError):
        total(memory_limit="1MiB").plan(X, Y)


def test_all_sources_give_the_same_coefficients(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=(37, 3))
    expected = total().fit(X, Y)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for x, y in (
        (str(tmp_path / "x"), Y),
        (da.from_array(X, (50, 2)), da.from_array(Y, 50)),
        (frame, pd.Series(Y)),
        (xr.DataArray(X, dims=("time", "site")), xr.DataArray(Y, dims="time")),
        (X, Y.tolist()),
    ):
        model = total().fit(x, y)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-10)
        assert model.predict(X).shape == (400,)
        assert model.score(X, Y) == pytest.approx(expected.score(X, Y))
        assert len(model.cost_) == 1
    part, named = total(), frame.set_index(pd.Index([f"row{i}" for i in range(400)]))
    with pytest.warns(AbsentNamesWarning):
        part.fit(named, pd.Series(Y[:300], index=named.index[:300]))
    np.testing.assert_allclose(part.coef_, total().fit(X[:300], Y[:300]).coef_, rtol=1e-10)


def test_in_a_pipeline() -> None:
    both = total().fit_transform(X, np.column_stack([Y, X[:, 0] + Y]))
    assert both.shape == (400, 2)
    chain = make_pipeline(PCA(3, progress=False), total())
    assert chain.fit(X, Y).score(X, Y) == pytest.approx(total().fit(X, Y).score(X, Y))


def test_a_saved_regression_predicts_the_same(tmp_path: Path) -> None:
    model = total().fit(X, Y)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    assert loaded.predict(X).shape == (400,)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.standard_errors_, model.standard_errors_)


# -- on principal components ----------------------------------------------------------------------


def test_every_number_of_components() -> None:
    model = components().fit(X, Y)
    z, scores = X - X.mean(0), PCA().fit_transform(X)
    for k in range(1, 4):
        gamma = np.linalg.lstsq(scores[:, :k], Y - Y.mean(), rcond=None)[0]
        expected = gamma @ PCA().fit(X).components_[:k]
        np.testing.assert_allclose(model.all_coef_[k - 1], expected, rtol=1e-9, atol=1e-12)
        fixed = components(k).fit(X, Y)
        np.testing.assert_allclose(fixed.predict(X), z @ expected + Y.mean(), rtol=1e-9)
        assert fixed.n_components_used_ == k
    np.testing.assert_allclose(model.all_coef_[-1], np.linalg.lstsq(z, Y - Y.mean(), rcond=None)[0])
    assert model.shrinkage_[-1] == 1
    assert np.all(np.diff(model.shrinkage_) > 0)
    assert len(model.cost_) == 1


def test_the_held_out_error_is_that_of_refits() -> None:
    from streampca.kernels.columns import line_keys

    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 30)) * np.linspace(3, 0.3, 30)
    y = x[:, 0] - x[:, 1] + 2.0 * rng.normal(size=120)
    model = components().fit(da.from_array(x, (11, 30)), y)
    fold = line_keys(np.arange(120), 0, 0) % np.uint32(5)
    errors = np.zeros(31)
    for i in range(5):
        inside, out = x[fold != i], x[fold == i]
        mean, level = inside.mean(0), y[fold != i].mean()
        v = np.linalg.svd(inside - mean, full_matrices=False)[2]
        for k in range(31):
            scores = (inside - mean) @ v[:k].T
            gamma = np.linalg.lstsq(scores, y[fold != i] - level, rcond=None)[0]
            predicted = level + (out - mean) @ v[:k].T @ gamma
            errors[k] += np.sum((y[fold == i] - predicted) ** 2)
    np.testing.assert_allclose(model.held_out_error_, errors / 120, rtol=1e-7)
    assert model.n_components_used_ == max(1, np.argmin(errors))


def test_more_features_than_rows() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 100))
    y = x[:, :3].sum(axis=1)
    model = components().fit(x, y)
    assert len(model.all_coef_) <= 39
    with pytest.raises(InvalidInputError, match="above rounding"):
        components(60).fit(x, y)
    with pytest.raises(InvalidInputError, match="n_components=0"):
        components(0).fit(x, y)


def test_few_rows_still_have_all_their_components() -> None:
    x, y = X[:8], np.column_stack([Y[:8], X[:8, 0] ** 2])
    model = components().fit(x, y)
    expected = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0]
    np.testing.assert_allclose(model.ols_coef_, expected.T, rtol=1e-8)
    np.testing.assert_allclose(components(3).fit(x, y).coef_, expected.T, rtol=1e-8)
    with pytest.raises(InvalidInputError, match="n_samples=2 are too few"):
        components().fit(X[:2], Y[:2])


def test_the_plan_counts_coefficients_of_every_number() -> None:
    x, y = da.zeros((2000, 1000), chunks=(100, 1000)), da.zeros((2000, 20), chunks=(100, 20))
    one = components().plan(x, y[:, :1]).peak_nbytes  # its peak is in the pass
    assert components().plan(x, y).peak_nbytes > one + 200 * 1000**2
