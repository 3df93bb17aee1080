"""Pre-images of kernel PCA, and what its components tell apart that those of PCA do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from sklearn.datasets import make_circles, make_moons
from sklearn.decomposition import KernelPCA as Reference
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import KernelCenterer

import streampca
from streampca import PCA, KernelPCA
from streampca.errors import InvalidInputError, MemoryLimitError, SourceError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 7)) @ RNG.standard_normal((7, 7))
NEW = RNG.standard_normal((11, 7))
SHAPE = {"gamma": 0.05, "degree": 2, "coef0": 0.5, "alpha": 0.3}


def quiet(k: int = 4, **parameters: Any) -> KernelPCA:
    return KernelPCA(k, progress=False, **parameters)


def laplace(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.exp(-0.05 * np.abs(a - b).sum()))


@pytest.mark.parametrize("chunks", [(16, 7), (60, 2)])
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "laplacian", "sigmoid", "cosine"])
def test_ridge_gives_scikit_learns_numbers(
    kernel: str, chunks: tuple[int, int], tmp_path: Path
) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=chunks)
    known = laplace if kernel == "laplacian" else kernel
    reference = Reference(4, kernel=known, fit_inverse_transform=True, **SHAPE).fit(X)
    expected = reference.inverse_transform(reference.transform(NEW))
    model = quiet(kernel=kernel, **SHAPE).fit(str(tmp_path / "x.zarr"))
    found = model.inverse_transform(model.transform(NEW))
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.inverse_transform(model.transform(NEW)), found)


def test_a_function_as_kernel() -> None:
    scores = quiet(kernel="laplacian", **SHAPE).fit(X).transform(NEW)
    expected = quiet(kernel="laplacian", **SHAPE).fit(X).inverse_transform(scores)
    found = quiet(kernel=laplace, **SHAPE).fit(X).inverse_transform(scores)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def noisy_moons(seed: int, n: int = 300) -> np.ndarray:
    return make_moons(n, noise=0.1, random_state=seed)[0]


def test_a_fixed_point_is_stationary_and_removes_noise() -> None:
    rows, new, offset = noisy_moons(0), noisy_moons(1, 100), 1e3
    model = quiet(8, kernel="rbf", gamma=4.0, alpha=0.1).fit(rows + offset)
    scores = model.transform(new + offset)
    found = model.inverse_transform(scores, method="fixed point") - offset
    # P phi(x) = sum_i c_i phi(x_i)
    c = model.eigenvectors_ / np.sqrt(model.eigenvalues_) @ scores.T
    c += (1.0 - c.sum(axis=0)) / len(rows)

    def kernel(z: np.ndarray) -> np.ndarray:
        return np.exp(-4.0 * ((z[:, None] - rows) ** 2).sum(axis=2)) * c.T

    weights = kernel(found)
    step = weights @ rows / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(step, found, atol=1e-6)
    ridge = model.inverse_transform(scores)
    assert (weights.sum(axis=1) >= kernel(ridge - offset).sum(axis=1) - 1e-9).all()
    curve = make_moons(4000, noise=0.0)[0]

    def distance(z: np.ndarray) -> float:
        return float(np.sqrt(((z[:, None] - curve) ** 2).sum(axis=2)).min(axis=1).mean())

    assert distance(found) < 0.5 * distance(new)


def test_pre_images_are_of_the_kind_of_the_scores(tmp_path: Path) -> None:
    frame = xr.DataArray(X, dims=("time", "site"), coords={"site": [f"s{i}" for i in range(7)]})
    model = quiet(kernel="rbf", gamma=0.05).fit(frame)
    scores = model.transform(frame)
    rows = model.inverse_transform(scores)
    assert rows.dims == ("time", "site")
    np.testing.assert_array_equal(rows.site, frame.site)
    lazy = model.inverse_transform(da.from_array(scores.values, chunks=(20, 4)))
    np.testing.assert_allclose(lazy.compute(), rows, atol=1e-12)
    written = model.inverse_transform(scores.values, out=tmp_path / "rows.zarr")
    np.testing.assert_allclose(written[:], rows, atol=1e-12)


def test_what_has_no_rows_is_refused(tmp_path: Path) -> None:
    model = quiet(kernel="poly", degree=2).fit(X)
    scores = model.transform(NEW)
    for method, message in (
        ("fixed point", "for kernel='rbf', and this is 'poly'"),
        ("best", "method='best'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            model.inverse_transform(scores, method=method)
    with pytest.raises(InvalidInputError, match="scores have 3 columns, the model 4"):
        model.inverse_transform(scores[:, :3])
    with pytest.raises(InvalidInputError, match="give a larger alpha"):
        quiet(kernel="sigmoid", gamma=0.5, alpha=-5.0).fit(X).inverse_transform(scores)
    with pytest.raises(InvalidInputError, match="needs the training rows"):
        quiet(kernel="precomputed").fit(X @ X.T).inverse_transform(scores)
    model.memory_limit = "1MiB"
    with pytest.raises(MemoryLimitError):
        model.inverse_transform(scores)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=X, chunks=(16, 7))
    stored = quiet(kernel="rbf").fit(path)
    zarr.open_array(path)[3, 2] = 5.0
    with pytest.raises(SourceError, match="have changed since the fit"):
        stored.inverse_transform(scores)


# -- what components tell apart --------------------------------------------------------------------


def told_apart(scores: np.ndarray, classes: np.ndarray) -> float:
    """The share that a line through the scores tells apart."""
    return float(LinearDiscriminantAnalysis().fit(scores, classes).score(scores, classes))


def test_concentric_circles() -> None:
    rows, ring = make_circles(400, factor=0.3, noise=0.05, random_state=0)
    scores = quiet(2, kernel="rbf", gamma=10.0).fit_transform(rows)
    assert told_apart(scores, ring) == 1.0
    assert told_apart(PCA(2, progress=False).fit_transform(rows), ring) < 0.65
    quadratic = quiet(5, kernel="poly", degree=2, gamma=1.0).fit_transform(rows)
    assert told_apart(quadratic, ring) == 1.0


def test_two_moons() -> None:
    rows, moon = make_moons(400, noise=0.02, random_state=0)
    scores = quiet(2, kernel="rbf", gamma=15.0).fit_transform(rows)
    assert told_apart(scores[:, :1], moon) == 1.0
    assert told_apart(PCA(2, progress=False).fit_transform(rows), moon) < 0.9


def test_centring_of_training_and_test_rows() -> None:
    """K - 1K - K1 + 1K1, and for new rows K' - 1'K - K'1 + 1'K1; 1' has as many rows as are new."""
    kernel, new = X @ X.T + 3.0, NEW @ X.T + 3.0
    ones, others = np.full((60, 60), 1 / 60), np.full((11, 60), 1 / 60)
    centred = kernel - ones @ kernel - kernel @ ones + ones @ kernel @ ones
    centred_new = new - others @ kernel - new @ ones + others @ kernel @ ones
    np.testing.assert_allclose(centred_new, KernelCenterer().fit(kernel).transform(new), atol=1e-9)
    model = quiet(kernel="precomputed").fit(kernel)
    directions = model.eigenvectors_ / np.sqrt(model.eigenvalues_)
    np.testing.assert_allclose(
        centred @ model.eigenvectors_, model.eigenvectors_ * model.eigenvalues_, atol=1e-8
    )
    np.testing.assert_allclose(model.transform(new), centred_new @ directions, atol=1e-9)
    np.testing.assert_allclose(model.transform(kernel).sum(axis=0), 0.0, atol=1e-9)
