"""Labels of scores: what is a category, a number or a date, and how each is coloured."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.colors import to_hex
from pictures import GROUPS, N, in_order, points, saved

from streampca import PCA, plots
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import PALETTE
from streampca.plots.colours import MARKERS, MISSING_COLOUR


def test_categories_have_a_legend_and_one_colour_each(pca: PCA, projected: Any) -> None:
    ax = plots.scores(pca, projected, labels=pd.Series(GROUPS, name="region $1$"))
    np.testing.assert_array_equal(points(ax), in_order(projected[:, :2]))
    legend = ax.get_legend()
    assert [t.get_text() for t in legend.get_texts()] == ["_north", "south", "west"]
    assert legend.get_title().get_text() == "region $1$"
    colour_of = dict(zip(["_north", "south", "west"], PALETTE, strict=False))
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        assert to_hex(handle.get_color()) == colour_of[text.get_text()].lower()
    (cloud,) = ax.collections
    group = dict(zip(projected[:, 0], GROUPS, strict=True))
    for (x, _), colour in zip(cloud.get_offsets(), cloud.get_facecolors(), strict=True):
        assert to_hex(colour) == colour_of[group[x]].lower()
    assert saved(ax) > 2000


def test_more_categories_than_colours_take_other_markers(pca: PCA, projected: Any) -> None:
    labels = np.array([f"P{i % 20:02d}" for i in range(N)])
    ax = plots.scores(pca, projected, labels=labels)
    assert len(ax.collections) == 4  # ceil(20 / 6) markers
    np.testing.assert_array_equal(points(ax), in_order(projected[:, :2]))
    handles = ax.get_legend().legend_handles
    assert len({(h.get_color(), h.get_marker()) for h in handles}) == 20
    assert handles[6].get_marker() == MARKERS[1]
    with pytest.raises(InvalidInputError, match="60 different values; at most 36"):
        plots.scores(pca, projected, labels=[f"S{i}" for i in range(N)])


def test_a_series_goes_by_the_names_of_the_samples(pca: PCA, projected: Any) -> None:
    names = [f"S{i}" for i in range(N)]
    found = pd.DataFrame(projected, index=names)
    group = pd.Series(["a", "b"] * (N // 2 + 1), index=[*names, "S98", "S99"])
    expected = to_rows(plots.scores(pca, found, labels=["a", "b"] * (N // 2)))
    assert to_rows(plots.scores(pca, found, labels=group[::-1])) == expected
    ax = plots.scores(pca, found, labels=group[2:])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b", "missing"]
    with pytest.raises(InvalidInputError, match="'S3' twice"):
        plots.scores(pca, found, labels=pd.concat([group, group[3:4]]))
    with pytest.raises(InvalidInputError, match="labels has no entry for S0"):
        plots.scores(pca, found, labels=group.add_prefix("other "))


def to_rows(ax: Any) -> set[tuple[float, ...]]:
    """Points and their colours, in any order."""
    (cloud,) = ax.collections
    pairs = zip(cloud.get_offsets(), cloud.get_facecolors(), strict=True)
    return {(*map(float, point), *map(float, colour)) for point, colour in pairs}


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.arange(N) % 2 == 0, ["False", "True"]),
        (np.arange(N) % 3, ["0", "1", "2"]),
        ((np.arange(N) % 12).astype(object), [str(i) for i in range(12)]),
        (GROUPS.astype("S"), ["_north", "south", "west"]),
        ([None, "b", "a"] * 20, ["a", "b", "missing"]),
        (pd.array(["a", pd.NA] * 30, dtype="string"), ["a", "missing"]),
        ([float("nan"), "a", pd.NaT] * 20, ["a", "missing"]),
    ],
)
def test_what_counts_as_categories(pca: PCA, projected: Any, labels: Any, names: list[str]) -> None:
    ax = plots.scores(pca, projected, labels=labels)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == names
    if names[-1] == "missing":
        drawn = {to_hex(c) for c in ax.collections[0].get_facecolors()}
        assert MISSING_COLOUR in drawn
        assert len(drawn) == len(names)
    assert len(points(ax)) == N
    assert saved(ax) > 2000


@pytest.mark.parametrize(
    "labels",
    [
        np.linspace(0, 1, N),
        np.arange(N),
        np.arange(N).astype(object),
        [None, 1.5, np.float32(2)] * 20,
        np.where(np.arange(N) % 5, np.arange(N), np.nan),
    ],
)
def test_many_numbers_have_a_colourbar(pca: PCA, projected: Any, labels: Any) -> None:
    kind = labels.dtype if isinstance(labels, np.ndarray) else object
    named = pd.Series(labels, name="mass (kg)", dtype=kind)
    ax = plots.scores(pca, projected, labels=named)
    assert ax.get_legend() is None
    (cloud,) = ax.collections
    np.testing.assert_array_equal(np.asarray(cloud.get_offsets()), projected[:, :2])
    numbers = np.array([np.nan if v is None else v for v in labels], dtype=float)
    np.testing.assert_array_equal(np.ma.filled(cloud.get_array(), np.nan), numbers)
    assert ax.figure.axes[-1].get_ylabel() == "mass (kg)"
    if np.isnan(numbers).any():  # drawn in grey, not left out
        ax.figure.canvas.draw()
        assert MISSING_COLOUR in {to_hex(c) for c in cloud.get_facecolors()}
    assert saved(ax) > 2000


def test_dates_have_a_colourbar_of_dates(pca: PCA, projected: Any) -> None:
    time = xr.DataArray(pd.date_range("2001-01-01", periods=N, freq="MS"), dims="time", name="time")
    ax = plots.scores(pca, projected, labels=time)
    ax.figure.canvas.draw()
    bar = ax.figure.axes[-1]
    assert bar.get_ylabel() == "time"
    assert "2003" in [t.get_text() for t in bar.get_yticklabels()]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (GROUPS[:-1], r"shape \(59,\); expected one for each of 60"),
        ("region", r"shape \(\)"),
        (np.zeros((N, 2)), r"shape \(60, 2\)"),
        (np.zeros(N, dtype=complex), "dtype complex128"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    pca: PCA, projected: Any, labels: Any, message: str
) -> None:
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        plots.scores(pca, projected, labels=labels)
    assert not plt.get_fignums()
