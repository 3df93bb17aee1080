"""Random projection: the matrix that is regenerated, distances, rows from scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr
from scipy.spatial.distance import pdist
from sklearn.random_projection import johnson_lindenstrauss_min_dim

import streampca
from streampca import RandomProjection
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.models.explore.random_projection import (
    DISTRIBUTIONS,
    RandomMatrix,
    RandomScores,
    johnson_lindenstrauss,
)

X = np.random.default_rng(0).normal(size=(90, 700))


def quiet(k: int | str = 50, **parameters: Any) -> RandomProjection:
    return RandomProjection(k, progress=False, **parameters)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_entries_have_mean_zero_and_variance_one_over_k(distribution: str) -> None:
    entries = RandomMatrix(3, 400, 5000, distribution, 0.05)[:, :] * 20  # roots of k
    n = entries.size
    fourth = {"gaussian": 3.0, "sparse": 20.0, "sign": 1.0}[distribution]
    assert abs(entries.mean()) < 5 / np.sqrt(n)
    assert abs((entries**2).mean() - 1) < 5 * np.sqrt(fourth / n)
    assert abs((entries**4).mean() / fourth - 1) < 0.05
    for axis in (0, 1):  # neighbours are not alike
        beside = np.delete(entries, 0, axis) * np.delete(entries, -1, axis)
        assert abs(beside.mean()) < 5 / np.sqrt(n)
    other = RandomMatrix(4, 400, 5000, distribution, 0.05)[:, :] * 20
    assert abs((entries * other).mean()) < 5 / np.sqrt(n)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_any_part_is_that_of_the_whole(distribution: str) -> None:
    matrix = RandomMatrix(1, 30, 500, distribution, 0.1)
    whole = matrix[:, :]
    np.testing.assert_array_equal(matrix[7:9, 100:111], whole[7:9, 100:111])
    np.testing.assert_array_equal(matrix.rows(slice(3, 8), np.dtype("f8")), whole[3:8])
    more = RandomMatrix(1, 60, 500, distribution, 0.1)[:30, :]
    np.testing.assert_allclose(more * np.sqrt(2), whole, rtol=1e-15)


def test_it_is_the_same_for_ever() -> None:
    """A saved model holds the seed alone: these numbers may never change."""
    drawn = RandomMatrix(0, 2, 3, "gaussian", 1.0)[:, :] * np.sqrt(2)
    np.testing.assert_allclose(drawn, EVER, rtol=1e-13)


EVER = [
    [-0.5776171947350293, 0.3919393499913912, 0.527889862899307],
    [0.4602615087181111, -1.0670068559056167, 0.2275782186782012],
]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("streamed", ["samples", "features"])
def test_scores_are_the_product(distribution: str, streamed: str, tmp_path: Path) -> None:
    chunks = (13, 700) if streamed == "samples" else (90, 40)
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=chunks)
    model = quiet(distribution=distribution).fit(tmp_path / "x.zarr")
    expected = X @ model.components_.T
    np.testing.assert_allclose(model.transform(tmp_path / "x.zarr"), expected, atol=1e-12)
    np.testing.assert_allclose(model.transform(X[:7]), expected[:7], atol=1e-12)
    np.testing.assert_allclose(model.transform(da.from_array(X, (20, 99))), expected, atol=1e-12)
    np.testing.assert_allclose(model.transform(scipy.sparse.csr_array(X)), expected, atol=1e-12)
    assert model.transform(X.astype("f4")).dtype == np.float32


def test_part_by_part_is_the_whole() -> None:
    held = RandomScores(RandomMatrix(2, 50, 700, "gaussian", 1.0), 50)
    parts = RandomScores(held.matrix, 12)
    np.testing.assert_allclose(parts.apply(X), held.apply(X), atol=1e-12)


def test_a_limit_makes_it_part_by_part(tmp_path: Path) -> None:
    wide = zarr.create_array(
        str(tmp_path / "x"), shape=(500, 200_000), dtype="f8", chunks=(50, 20_000)
    )
    generous, tight = quiet(200).plan(wide), quiet(200, memory_limit="600MiB").plan(wide)
    assert generous.sizes["at_once"] == 200
    assert tight.sizes["at_once"] in (50, 12)
    with pytest.raises(MemoryLimitError):
        quiet(200, memory_limit="1MiB").plan(wide)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_distances_stay_within_the_bound_that_chose_k(distribution: str) -> None:
    """Each distance is off by more than eps with a probability of at most 2 / n^2."""
    points, eps, n = X[:40], 0.6, 40
    k = johnson_lindenstrauss(n, eps)
    squares, off = pdist(points) ** 2, 0
    for seed in range(100):
        scores = RandomScores(RandomMatrix(seed, k, 700, distribution, 0.04), k).apply(points)
        off += np.count_nonzero(abs(pdist(scores) ** 2 / squares - 1) > eps)
    assert off / (100 * len(squares)) < 2 / n**2


@pytest.mark.parametrize(("n", "eps"), [(100, 0.5), (10_000, 0.1), (10**6, 0.3)])
def test_the_count_is_that_of_scikit_learn(n: int, eps: float) -> None:
    assert johnson_lindenstrauss(n, eps) == johnson_lindenstrauss_min_dim(n, eps=eps)


def test_rows_of_scores() -> None:
    model = quiet(50).fit(X)
    scores = model.transform(X)
    R = model.components_
    np.testing.assert_allclose(
        model.inverse_transform(scores), scores @ np.linalg.pinv(R).T, atol=1e-12
    )
    np.testing.assert_allclose(model.transform(model.inverse_transform(scores)), scores, atol=1e-12)
    np.testing.assert_allclose(
        model.inverse_transform(scores, least_squares=False), scores @ R, atol=1e-12
    )
    with pytest.raises(InvalidInputError, match="least_squares=False"):
        quiet(80).fit(X[:, :20]).inverse_transform(np.ones((3, 80)))
    pairs = RandomProjection(2, distribution="sign", progress=False).fit(X[:, :1])
    with pytest.raises(InvalidInputError, match="least_squares=False"):
        pairs.inverse_transform(np.ones((3, 2)))
    for seed in range(8):  # some of these have two rows that are the same, or opposite
        small = RandomProjection(2, distribution="sign", random_state=seed, progress=False)
        small.fit(X[:, :2])
        if abs(np.linalg.det(small.components_)) < 1e-9:
            with pytest.raises(InvalidInputError, match="another random_state"):
                small.inverse_transform(np.ones((3, 2)))
            break
    else:
        raise AssertionError("none of them is singular")


def test_labels_come_and_go() -> None:
    field = xr.DataArray(X[:, :60].reshape(90, 6, 10), dims=("time", "lat", "lon"))
    field = field.assign_coords(lat=np.arange(6.0), time=np.arange(90))
    model = quiet(5).fit(field)
    scores = model.transform(field)
    assert scores.dims == ("time", "component")
    rows = model.inverse_transform(scores)
    assert rows.dims == ("time", "lat", "lon")
    np.testing.assert_array_equal(rows.lat, field.lat)


def test_saved_it_is_a_seed(tmp_path: Path) -> None:
    model = quiet(20, random_state=np.random.default_rng(5)).fit(X)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    assert not list((tmp_path / "m").rglob("components*"))


def test_what_cannot_be_used_is_refused() -> None:
    holed = X.copy()
    holed[3, 4] = np.nan
    with pytest.raises(NonFiniteError):
        quiet(5).fit(holed).transform(holed)
    with pytest.raises(InvalidInputError, match=r"takes \d+ components for 90 samples, more than"):
        quiet("auto").fit(X)
    for parameters in (
        {"n_components": 0},
        {"n_components": 2.5},
        {"n_components": True},
        {"eps": 1.0},
        {"distribution": "normal"},
        {"distribution": "sparse", "density": 0.0},
        {"random_state": "x"},
    ):
        parameters = {"n_components": "auto", "eps": 0.9, **parameters}
        name = list(parameters)[-1] if len(parameters) > 2 else None
        with pytest.raises(InvalidInputError, match=name and f"{name}="):
            RandomProjection(progress=False, **parameters).fit(X)
