"""Loadings: the largest by name, as bars and as a table."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.colors import to_hex
from pictures import NAMES, K, P, saved

from streampca import PCA, plots
from streampca.errors import InvalidInputError


@pytest.mark.parametrize("component", [1, 3])
def test_loadings_are_the_largest_by_name(source: Any, pca: PCA, component: int) -> None:
    ax = plots.loadings(source, component=component, n=7)
    expected = pca.result_.top_features(component - 1, 7)
    assert [t.get_text() for t in ax.get_yticklabels()] == [name for name, _ in expected]
    np.testing.assert_allclose([b.get_width() for b in ax.patches], [v for _, v in expected])
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the largest on top
    share = 100 * pca.explained_variance_ratio_[component - 1]
    assert ax.get_xlabel() == f"Loading on PC{component} ({share:.1f} %)"
    colours = {np.sign(b.get_width()): to_hex(b.get_facecolor()) for b in ax.patches}
    assert len(set(colours.values())) == len(colours)
    assert saved(ax) > 2000


def test_loadings_of_fewer_features_than_asked(pca: PCA) -> None:
    assert len(plots.loadings(pca, n=500).patches) == P


def test_long_names_keep_both_ends(frame: pd.DataFrame) -> None:
    long = frame.rename(
        columns={n: f"a description longer than a picture is wide, {n}" for n in NAMES}
    )
    ax = plots.loadings(PCA(2).fit(long))
    texts = [t.get_text() for t in ax.get_yticklabels()]
    assert len(set(texts)) == P
    assert all(len(t) == 40 and t.startswith("a description") for t in texts)


def test_names_of_stacked_dimensions() -> None:
    values = np.random.default_rng(1).normal(size=(20, 2, 3))
    field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": [10.0, 20.0]})
    ax = plots.loadings(PCA(2).fit(field, dim="time"))
    texts = {t.get_text() for t in ax.get_yticklabels()}
    assert texts == {f"lat={lat}, lon={lon}" for lat in (10.0, 20.0) for lon in range(3)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"component": 0}, "numbered from 1, and the result has components 1 to 5"),
        ({"component": 6}, "component=6 is not there.*n_components=6"),
        ({"component": 1.0}, "whole number"),
        ({"n": 0}, "how many features"),
    ],
)
def test_loadings_refuse_what_is_not_there(pca: PCA, wrong: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plots.loadings(pca, **wrong)
    assert not plt.get_fignums()


def test_loadings_need_components(frame: pd.DataFrame) -> None:
    wide = PCA(2, svd_solver="gram", components=False).fit(frame.to_numpy().T)
    for draw in (plots.loadings, plots.loadings_table):
        with pytest.raises(InvalidInputError, match="components=True"):
            draw(wide)
    assert not plt.get_fignums()


def test_table_of_loadings(source: Any, pca: PCA) -> None:
    table = plots.loadings_table(source, n=3)
    assert table.dtype.names == ("component", "rank", "feature", "loading")
    assert table.shape == (3 * K,)
    np.testing.assert_array_equal(table["component"], np.repeat(np.arange(1, K + 1), 3))
    np.testing.assert_array_equal(table["rank"], np.tile([1, 2, 3], K))
    for k in range(K):
        expected = pca.result_.top_features(k, 3)
        rows = table[table["component"] == k + 1]
        assert rows["feature"].tolist() == [name for name, _ in expected]
        np.testing.assert_allclose(rows["loading"], [value for _, value in expected])
    assert list(pd.DataFrame(table).columns) == list(table.dtype.names)
    assert plots.loadings_table(source, n=99).shape == (P * K,)
    with pytest.raises(InvalidInputError, match="how many features"):
        plots.loadings_table(source, n=0)
