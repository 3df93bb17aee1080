"""R2: the curves are those of the results, or those given."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from pictures import K, saved

from streampca import PCA, plots
from streampca.errors import InvalidInputError, InvalidTypeError


def test_r2_of_a_result_is_its_running_share(source: Any, pca: PCA) -> None:
    ax = plots.r2(source)
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(K + 1))
    np.testing.assert_allclose(line.get_ydata(), pca.r2_curve())
    assert ax.get_xlabel() == "Number of components"
    assert ax.get_ylabel().startswith("R²")
    assert ax.get_ylim() == (0, 1)
    assert ax.get_legend() is None
    assert saved(ax) > 2000


def test_r2_of_several_curves(pca: PCA, frame: pd.DataFrame) -> None:
    new = pca.r2_curve(frame.iloc[:20])
    ax = plots.r2({"training": pca, "_new": new, "short": [0.0, 0.1, -0.3]})
    for line, expected in zip(ax.lines, [pca.r2_curve(), new, [0.0, 0.1, -0.3]], strict=False):
        np.testing.assert_allclose(line.get_ydata(), expected)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["training", "_new", "short"]
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines[:3]}) == 3
    assert ax.get_ylim()[0] < -0.3
    assert saved(ax) > 2000


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        ({}, "no curve"),
        ([0.0], r"shape \(1,\)"),
        (np.zeros((3, 2)), r"shape \(3, 2\)"),
        ([0.0, np.nan], "NaN"),
        ([0.4, 0.6], "begins with 0"),
        ([0.0, 1.5], "stays under 1"),
        ({"night": [0.0, 3.0]}, "curve 'night'"),
        (["a", "b"], "expected the numbers"),
        (None, "expected the numbers"),
    ],
)
def test_r2_refuses_other_things(curve: Any, message: str) -> None:
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        plots.r2(curve)
    assert not plt.get_fignums()
