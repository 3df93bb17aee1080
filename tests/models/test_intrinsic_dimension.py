"""Intrinsic dimension: planted ones, each method, and what is refused."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.spatial.distance import cdist

import streampca
from streampca import PCA, intrinsic_dimension
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.models.explore.intrinsic_dimension import METHODS, levina_bickel, two_nn

rng = np.random.default_rng(0)
N = 2500
PLANE = rng.normal(size=(N, 10)) @ np.linalg.qr(rng.normal(size=(1000, 10)))[0].T
TURN = np.linalg.qr(rng.normal(size=(3, 3)))[0]
ANGLE = rng.uniform(0, 2 * np.pi, N)
CURVE = np.column_stack([np.cos(ANGLE), 0.6 * np.sin(ANGLE), 0 * ANGLE]) @ TURN
ROLL = 1.5 * np.pi * (1 + 2 * rng.random(N))
SWISS = np.column_stack([ROLL * np.cos(ROLL), 21 * rng.random(N), ROLL * np.sin(ROLL)])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("name", "x", "dimension", "within", "flat"),
    [("plane", PLANE, 10, 0.7, 10), ("curve", CURVE, 1, 0.1, 2), ("swiss", SWISS, 2, 0.2, 3)],
)
def test_planted(
    name: str, x: np.ndarray, dimension: float, within: float, flat: int, dtype: str
) -> None:
    found = intrinsic_dimension(x.astype(dtype), progress=False)
    assert found.flat == flat
    if dtype == "f8":  # rounding of float32 fills all dimensions
        assert found.rank == flat
    assert abs(found.dimension - dimension) < within
    assert 0 < found.standard_error < within
    assert abs(found.estimates["mle"].dimension - dimension) < 1.5 * within
    assert ("curved" in found.verdict) == (name != "plane")
    assert f"{found.estimates['two-nn']}" in found.verdict


def test_neighbours_are_sought_among_all_rows(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x"), data=SWISS, chunks=(99, 3))
    found = intrinsic_dimension(str(tmp_path / "x"), n_queries=200, random_state=3, progress=False)
    queries = np.sort(np.random.default_rng(3).choice(N, 200, replace=False))
    nearest = np.sort(cdist(SWISS[queries], SWISS), axis=1)[:, 1:]
    assert found.n_queries == 200
    assert found.dimension == pytest.approx(two_nn(nearest[:, 1] / nearest[:, 0], 2000).dimension)
    expected = levina_bickel(nearest[:, :20])
    assert found.estimates["mle"].dimension == pytest.approx(expected.dimension)
    assert found.estimates["mle"].standard_error is None  # its bias would not be in it
    again = intrinsic_dimension(SWISS, "two-nn", n_queries=200, random_state=3, progress=False)
    assert again.dimension == found.dimension
    assert [one.name for one in found.cost][-2:] == ["queries", "neighbours"]


def test_errors_are_standard_errors() -> None:
    """In 200 draws of exact ratios the estimate is unbiased and as spread as it says."""
    ratios = [np.random.default_rng(i).random(400) ** (-1 / 5.0) for i in range(200)]
    draws = [two_nn(one, 10**9) for one in ratios]  # of so many rows that none is two queries'
    found = np.array([one.dimension for one in draws])
    said = np.array([one.standard_error for one in draws])
    assert found.mean() == pytest.approx(5.0, rel=0.02)
    assert found.std() == pytest.approx(said.mean(), rel=0.15)


def test_repeated_rows_are_counted_and_left_out() -> None:
    twice = np.concatenate([SWISS, SWISS[:300]])
    found = intrinsic_dimension(twice, "two-nn", n_queries=len(twice), progress=False)
    assert 600 <= found.n_repeated < 1100
    assert abs(found.dimension - 2) < 0.2
    with pytest.raises(InvalidInputError, match="are repeated"):
        intrinsic_dimension(np.repeat(np.eye(4), 9, axis=0), "two-nn", progress=False)


def test_methods_of_the_flat_space() -> None:
    signal = np.random.default_rng(5).normal(size=(600, 3)) * [9.0, 6.0, 4.0]
    x = signal @ np.linalg.qr(np.random.default_rng(6).normal(size=(40, 3)))[0].T
    x += np.random.default_rng(7).normal(size=x.shape)
    names = ("parallel", "tracy-widom", "gap", "rank", "participation", "share")
    found = intrinsic_dimension(x, names, share=0.5, progress=False)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert found.method == "parallel"
    assert found.dimension == found.estimates["tracy-widom"].dimension == 3
    assert found.rank == 40
    assert found.estimates["participation"].dimension == pytest.approx(
        values.sum() ** 2 / (values**2).sum()
    )
    share = np.searchsorted(np.cumsum(values) / values.sum(), 0.5) + 1
    assert found.estimates["share"].dimension == share
    assert found.estimates["gap"].dimension == PCA("gap").fit(x).gap_ == 3
    assert found.standard_error is None


def test_tracy_widom_of_a_low_rank_is_not_known() -> None:
    found = intrinsic_dimension(SWISS, ("rank", "tracy-widom"), progress=False)
    assert np.isnan(found.estimates["tracy-widom"].dimension)
    assert found.dimension == 3


def test_only_distances_say_that_data_are_curved() -> None:
    draw = np.random.default_rng(9)
    noisy = draw.normal(size=(600, 2)) @ draw.normal(size=(2, 40)) + draw.normal(size=(600, 40))
    found = intrinsic_dimension(noisy, "tracy-widom", progress=False)
    assert found.flat > found.dimension == 2
    assert found.verdict.startswith("The flat space around the data has 2 dimensions")
    unknown = intrinsic_dimension(CURVE, "tracy-widom", progress=False)
    assert "no number of dimensions" in unknown.verdict


@pytest.mark.parametrize("planted", [0, 1, 2, 5])
def test_random_signs_count_as_permutations_do(planted: int) -> None:
    """Horn's parallel analysis with every column permuted in memory, on planted dimensions."""
    for seed in range(3):
        draw = np.random.default_rng([planted, seed])
        strength = np.linspace(2.0, 1.2, planted) * np.sqrt(40)
        basis = np.linalg.qr(draw.normal(size=(40, 5)))[0][:, :planted]
        x = draw.normal(size=(600, planted)) * strength @ basis.T
        x += draw.normal(size=(600, 40)) * np.linspace(0.5, 1.5, 40) + 7.0
        values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
        permuted = np.linalg.eigvalsh(np.cov(draw.permuted(x, axis=0).T))[-1]
        expected = int(np.argmin(values > permuted))
        found = intrinsic_dimension(da.from_array(x, (70, 40)), "parallel", progress=False)
        if planted:
            assert found.dimension == expected == planted
        assert found.dimension <= planted + (not planted)
        assert len(found.cost) == 2  # one read beyond the PCA


def test_parallel_sees_nothing_in_noise() -> None:
    x = np.random.default_rng(8).normal(size=(500, 30)) * np.linspace(1, 5, 30)
    assert intrinsic_dimension(x, "parallel", progress=False).dimension <= 1


def test_what_cannot_be_used_is_refused() -> None:
    holed = SWISS.copy()
    holed[0, 0] = np.nan
    with pytest.raises(NonFiniteError):
        intrinsic_dimension(holed, progress=False)
    with pytest.raises(InvalidInputError, match=r"method=\['pca'\]; expected some of"):
        intrinsic_dimension(SWISS, ("rank", "pca"))
    with pytest.raises(InvalidInputError, match="fewer n_neighbors"):
        intrinsic_dimension(SWISS[:15], "mle", progress=False)
    with pytest.raises(InvalidInputError, match="n_neighbors=1"):
        intrinsic_dimension(SWISS, "mle", n_neighbors=1)
    for wrong in ({"n_neighbors": 3.5}, {"n_queries": 1}, {"n_queries": -5}, {"share": 2}):
        with pytest.raises(InvalidInputError, match=f"{next(iter(wrong))}="):
            intrinsic_dimension(SWISS, **wrong)


def test_its_picture() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = streampca.plots.dimension(intrinsic_dimension(SWISS, progress=False))
    assert "curved" in axes.get_title(loc="left")
    assert axes.lines[1].get_label() == "flat space"
    assert set(METHODS) >= {"two-nn", "parallel"}
