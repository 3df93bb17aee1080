"""Scree: bars are shares of the total."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from pictures import K, saved

from streampca import PCA, plots
from streampca.errors import InvalidInputError


def test_scree_shows_shares_of_the_total_and_says_their_sum(source: Any, pca: PCA) -> None:
    ax = plots.scree(source)
    shares = pca.explained_variance_ratio_
    assert shares.sum() < 0.9  # of the total, not of what was kept
    np.testing.assert_array_equal([bar.get_height() for bar in ax.patches], shares)
    np.testing.assert_allclose(
        [bar.get_x() + bar.get_width() / 2 for bar in ax.patches], range(1, K + 1)
    )
    assert len(ax.figure.axes) == 1  # a second scale beside it would clash
    assert ax.get_xlabel() == "Component"
    assert ax.get_ylabel() == "Share of total variance"
    said = f"The first {K} components carry {100 * shares.sum():.1f} % of the variance"
    assert ax.get_title(loc="left") == said
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    assert saved(ax) > 2000


def test_scree_gives_small_shares_an_axis_of_their_own() -> None:
    X = np.random.default_rng(0).normal(size=(300, 80))
    ax = plots.scree(PCA().fit(X))
    assert len(ax.patches) == 50
    assert ax.get_xlabel() == "Component (first 50 of 80)"
    assert max(bar.get_height() for bar in ax.patches) > 0.5 * ax.get_ylim()[1]


@pytest.mark.parametrize(("n", "shown"), [(1, 1), (3, 3), (99, K), (np.int64(2), 2)])
def test_scree_shows_the_first_n(pca: PCA, n: int, shown: int) -> None:
    assert len(plots.scree(pca, n=n).patches) == shown


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "3"])
def test_scree_refuses_other_counts(pca: PCA, n: Any) -> None:
    with pytest.raises(InvalidInputError, match="how many components"):
        plots.scree(pca, n=n)
    assert not plt.get_fignums()


def test_scree_of_a_matrix_without_variance(pca: PCA) -> None:
    flat = replace(pca.result_, explained_variance=np.zeros(K), total_variance=0.0)
    ax = plots.scree(flat)
    assert [bar.get_height() for bar in ax.patches] == [0.0] * K
    assert ax.get_ylim() == (0, 1)
