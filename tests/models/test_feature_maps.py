"""Explicit features as the input of models: kernels without a kernel matrix, raw new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import streampca
from streampca import PCA, KernelPCA, map_features, random_fourier
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.matrix.mapped import code_of
from tests.models.invariants import same

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 3)) @ RNG.standard_normal((3, 3))
NEW = RNG.standard_normal((11, 3))
FIRST, SECOND = np.triu_indices(3, 1)


def quadratic(x: np.ndarray) -> np.ndarray:
    """The feature map of (<x, y> + 1)^2, but for the constant."""
    return np.hstack([x**2, np.sqrt(2) * x[:, FIRST] * x[:, SECOND], np.sqrt(2) * x])


def quiet(k: int = 4, **parameters: Any) -> PCA:
    return PCA(k, progress=False, **parameters)


def test_a_pca_of_a_feature_map_is_its_kernel_pca(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(32, 3))
    model = quiet().fit(map_features(str(tmp_path / "x.zarr"), quadratic, 9))
    kernel = KernelPCA(4, kernel="poly", degree=2, gamma=1.0, progress=False).fit(X)
    same(model.transform(X), kernel.transform(X), 1e-10)
    same(model.transform(NEW), kernel.transform(NEW), 1e-10)  # raw rows are mapped too
    assert model.plan_.reads == model.cost_[0].reads == 13
    assert model.n_features_in_ == 9


def test_the_example_of_the_issue() -> None:
    """(f1, f2) -> (f1, f2, f1^2 + f2^2): rows are whole."""
    mapped = map_features(X[:, :2], lambda x: np.hstack([x, (x**2).sum(1, keepdims=True)]), 3)
    expected = np.column_stack([X[:, :2], (X[:, :2] ** 2).sum(1)])
    found = quiet(2, scale="std").fit(mapped)
    same(found.transform(mapped), quiet(2, scale="std").fit_transform(expected), 1e-12)


def test_new_rows_of_any_kind() -> None:
    model = quiet().fit(map_features(X, quadratic, 9))
    expected = quiet().fit(quadratic(X)).transform(quadratic(NEW))
    same(model.transform(NEW), expected, 1e-10)
    same(model.transform(map_features(NEW, quadratic, 9)), expected, 1e-10)
    lazy = model.transform(da.from_array(NEW, chunks=(4, 3)))
    assert type(lazy).__module__.startswith("dask")
    same(lazy.compute(), expected, 1e-10)
    frame = xr.DataArray(NEW, dims=("time", "site"))
    assert model.transform(frame).dims == ("time", "component")
    same(model.transform(frame), expected, 1e-10)
    with pytest.raises(InvalidInputError, match="X has 4 features; expected raw rows with all 3"):
        model.transform(np.ones((3, 4)))
    with pytest.raises(InvalidInputError, match="preprocessed otherwise"):
        model.transform(map_features(NEW, lambda x: quadratic(x) + 1.0, 9))


def test_columns_in_another_order_are_refused() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for mapped in (map_features(frame, quadratic, 9), random_fourier(frame, 20)):
        model = quiet().fit(mapped)
        model.transform(frame)
        model.transform(X)
        with pytest.raises(InvalidInputError, match="in another order"):
            model.transform(frame[["c", "b", "a"]])


def test_a_saved_model_knows_the_name_of_its_function(tmp_path: Path) -> None:
    model = quiet().fit(map_features(X, quadratic, 9))
    expected = model.transform(NEW)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    with pytest.raises(InvalidInputError, match=r"map_features\(X, quadratic, 9\)"):
        loaded.transform(NEW)
    again = loaded.transform(map_features(NEW, quadratic, 9))
    np.testing.assert_array_equal(again, expected)
    with pytest.raises(InvalidInputError, match="preprocessed otherwise"):
        loaded.transform(map_features(NEW, lambda x: quadratic(x), 9))


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_products_of_fourier_features_are_kernels(kernel: str) -> None:
    apart = X[:50, None] - X[:50]
    distances = (apart**2).sum(2) if kernel == "rbf" else np.abs(apart).sum(2)
    expected, count, errors = np.exp(-0.2 * distances), 200, []
    for seed in range(50):
        mapped = random_fourier(X[:50], count, kernel=kernel, gamma=0.2, random_state=seed)
        z = mapped.read(0, 0, 50)
        np.testing.assert_allclose((z**2).sum(axis=1), 1.0)
        errors.append(z @ z.T - expected)
    stacked = np.array(errors)
    assert np.sqrt((stacked**2).mean(axis=0)).max() < 1.5 / np.sqrt(count)  # over seeds
    assert np.abs(stacked.mean(axis=0)).max() < 5.0 / np.sqrt(count * 50)  # no bias


def test_a_pca_of_fourier_features_nears_the_kernel_pca() -> None:
    kernel = KernelPCA(3, kernel="rbf", gamma=0.2, progress=False).fit(X)
    off = []
    for count in (100, 10_000):
        model = quiet(3).fit(random_fourier(X, count, gamma=0.2))
        off.append(np.abs(model.singular_values_**2 / kernel.eigenvalues_ - 1).max())
    assert off[1] < 0.05
    assert off[1] < off[0] / 3


def test_saved_it_is_a_seed(tmp_path: Path) -> None:
    mapped = random_fourier(X, 60, random_state=np.random.default_rng(5))
    model = quiet(3).fit(mapped)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(NEW), model.transform(NEW))
    assert "60 random Fourier features of 3 features" in str(loaded.result_.preprocessing)


def test_what_cannot_be_used_is_refused() -> None:
    holed = X.copy()
    holed[3, 1] = np.nan
    with pytest.raises(NonFiniteError):
        quiet(2).fit(random_fourier(holed, 20))
    with pytest.raises(MemoryLimitError):
        quiet(2, memory_limit="1MiB").plan(random_fourier(X, 20_000))
    for parameters, message in (
        ({"n_features": 7}, "expected an even number"),
        ({"n_features": 0}, "from 1"),
        ({"kernel": "cosine"}, "kernel='cosine'"),
        ({"gamma": 0.0}, "gamma=0.0"),
        ({"gamma": "wide"}, "gamma='wide'"),
        ({"random_state": -1}, "random_state=-1"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            random_fourier(X, **{"n_features": 20, **parameters})
    with pytest.raises(InvalidInputError, match="expected a function"):
        map_features(X, "square", 3)  # type: ignore[arg-type]


def test_functions_that_differ_in_what_they_hold_are_told_apart() -> None:
    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def rows(self, x: np.ndarray) -> np.ndarray:
            return np.asarray(x * self.factor)

    def with_power(power: int) -> Any:
        def rows(x: np.ndarray, *, power: int = power) -> np.ndarray:
            return np.asarray(x**power)

        return rows

    for one, alike, other in (
        (Scaled(2.0).rows, Scaled(2.0).rows, Scaled(3.0).rows),
        (with_power(2), with_power(2), with_power(3)),
    ):
        assert code_of(one) == code_of(alike) != code_of(other)
