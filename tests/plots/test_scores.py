"""Scores: the points are those of the result, in the plane and in space."""

from __future__ import annotations

import sys
from typing import Any

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from pictures import GROUPS, K, N, in_order, saved

from streampca import PCA, plots
from streampca.errors import InvalidInputError, InvalidTypeError


def test_scores_are_the_points(source: Any, projected: Any, pca: PCA) -> None:
    ax = plots.scores(source, projected)
    (cloud,) = ax.collections
    np.testing.assert_array_equal(np.asarray(cloud.get_offsets()), projected[:, :2])
    first, second = 100 * pca.explained_variance_ratio_[:2]
    assert ax.get_xlabel() == f"PC1 ({first:.1f} %)"
    assert ax.get_ylabel() == f"PC2 ({second:.1f} %)"
    share = first + second
    said = f"{N} samples; these components carry {share:.1f} % of the variance"
    assert ax.get_title(loc="left") == said
    assert ax.get_legend() is None
    assert saved(ax) > 2000


def test_scores_of_other_components(pca: PCA, projected: Any) -> None:
    ax = plots.scores(pca, projected, components=(5, 3))
    np.testing.assert_array_equal(np.asarray(ax.collections[0].get_offsets()), projected[:, [4, 2]])
    assert ax.get_xlabel().startswith("PC5 (")


def test_three_components_are_drawn_in_space(source: Any, projected: Any) -> None:
    ax = plots.scores(source, projected, components=(1, 2, 4), labels=GROUPS)
    assert ax.name == "3d"
    assert ax.get_zlabel().startswith("PC4 (")
    drawn = np.stack(ax.collections[0]._offsets3d, axis=1)
    np.testing.assert_array_equal(in_order(np.asarray(drawn)), in_order(projected[:, [0, 1, 3]]))
    assert saved(ax) > 2000
    ax = plots.scores(source, projected, components=(1, 2, 3), labels=np.arange(N) / 7)
    assert saved(ax) > 2000


def test_a_wide_fit_has_its_scores_with_it(frame: pd.DataFrame) -> None:
    wide = PCA(3, svd_solver="gram").fit(frame.to_numpy().T)
    assert wide.result_.scores is not None
    for source in (wide, wide.result_):
        drawn = np.asarray(plots.scores(source).collections[0].get_offsets())
        np.testing.assert_array_equal(drawn, wide.result_.scores[:, :2])


def test_without_scores_the_message_repairs_it(pca: PCA) -> None:
    with pytest.raises(InvalidInputError, match=r"scores=model\.transform\(X\)"):
        plots.scores(pca)
    assert not plt.get_fignums()


def test_scores_in_any_container(pca: PCA, projected: Any) -> None:
    array = zarr.array(projected, chunks=(7, 2))
    stacked = xr.DataArray(projected.reshape(6, 10, K), dims=("run", "day", "component"))
    frame = pd.DataFrame(projected)
    lists = projected.tolist()
    for given in (da.from_array(projected, chunks=(7, 2)), array, stacked, frame, lists):
        drawn = np.asarray(plots.scores(pca, given).collections[0].get_offsets())
        np.testing.assert_array_equal(drawn, projected[:, :2])


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ((0, 1), "numbered from 1"),
        ((1, 6), "component=6 is not there; the result has components 1 to 5"),
        ((-1, 2), "numbered from 1"),
        ((1,), "two or three different numbers"),
        ((1, 1), "two or three different numbers"),
        ((1, 2, 3, 4), "two or three different numbers"),
        ((1, 2.0), "whole number"),
        ((True, 2), "whole number"),
        ("12", "two or three numbers"),
        (2, "two or three numbers"),
    ],
)
def test_components_that_are_not_there_are_refused(
    pca: PCA, projected: Any, components: Any, message: str
) -> None:
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        plots.scores(pca, projected, components=components)
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((N, 2)), r"shape \(60, 2\); expected \(n, 5\)"),
        (np.zeros(K), r"shape \(5,\)"),
        (np.zeros((N, K), dtype="M8[s]"), "expected numbers"),
        (da.zeros((N, K), chunks=(20, K))[da.ones(N, chunks=20) > 0], "compute_chunk_sizes"),
    ],
)
def test_scores_that_do_not_fit_are_refused(pca: PCA, given: Any, message: str) -> None:
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        plots.scores(pca, given)
    assert not plt.get_fignums()


def test_many_points_are_small_and_rasterized(pca: PCA) -> None:
    few = np.random.default_rng(0).normal(size=(100, K))
    many = np.random.default_rng(0).normal(size=(20_000, K))
    (small,), (large,) = (plots.scores(pca, s).collections for s in (many, few))
    assert small.get_sizes()[0] < large.get_sizes()[0]
    assert small.get_alpha() < large.get_alpha()
    assert small.get_rasterized()
    assert not large.get_rasterized()


def test_too_many_points_are_sampled_and_said(pca: PCA, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scores_module_of().MOST_POINTS == 200_000
    monkeypatch.setattr(scores_module_of(), "MOST_POINTS", 1_000)
    many = np.random.default_rng(0).normal(size=(5_000, K))
    first, second = plots.scores(pca, many), plots.scores(pca, many)
    assert first.get_title(loc="left").startswith("1,000 of 5,000 samples drawn")
    drawn = np.asarray(first.collections[0].get_offsets())
    assert len(np.unique(drawn, axis=0)) == 1_000
    assert set(map(tuple, drawn)) <= set(map(tuple, many[:, :2]))
    np.testing.assert_array_equal(drawn, np.asarray(second.collections[0].get_offsets()))
    labelled = plots.scores(pca, many, labels=many[:, 0])
    cloud = labelled.collections[0]
    np.testing.assert_array_equal(cloud.get_array(), np.asarray(cloud.get_offsets())[:, 0])


def scores_module_of() -> Any:
    """The module, which the function of the same name hides in its package."""
    return sys.modules["streampca.plots.scores"]
