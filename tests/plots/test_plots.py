"""Every picture shows the numbers of the result: bars, lines, points, names, legends."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib

matplotlib.use("Agg")

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from matplotlib.colors import to_hex

from streampca import plots
from streampca.errors import (
    InvalidInputError,
    InvalidTypeError,
    MissingDependencyError,
    NotFittedError,
)
from streampca.models import PCA, Decomposition, HardImpute, SoftImpute
from streampca.plots.canvas import PALETTE, counting_ticks
from streampca.plots.colours import MARKERS, MISSING_COLOUR

N, P, K = 60, 12, 5
NAMES = [f"gene_{i}$_x$" for i in range(P)]  # two $ would be set as mathematics
GROUPS = np.array(["_north", "south", "west"])[np.arange(N) % 3]


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(5)
    return pd.DataFrame(random.normal(size=(N, P)) * np.linspace(3, 1, P), columns=NAMES)


@pytest.fixture(scope="module")
def pca(frame: pd.DataFrame) -> PCA:
    return PCA(K).fit(frame)


@pytest.fixture(scope="module")
def projected(pca: PCA, frame: pd.DataFrame) -> np.ndarray[Any, Any]:
    return np.asarray(pca.transform(frame))


@pytest.fixture(scope="module", params=["estimator", "decomposition"])
def source(request: pytest.FixtureRequest, pca: PCA) -> Any:
    return pca if request.param == "estimator" else pca.result_


def points(ax: Any) -> np.ndarray[Any, Any]:
    """Drawn points of all collections of a 2-D scatter, in the order of their first column."""
    drawn = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    return drawn[np.argsort(drawn[:, 0])]


def in_order(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values[np.argsort(values[:, 0])]


def saved(ax: Any, kind: str = "png") -> int:
    held = io.BytesIO()
    ax.figure.savefig(held, format=kind)
    return len(held.getvalue())


# -- scree -----------------------------------------------------------------------------------


def test_scree_shows_shares_of_the_total_and_their_sum(source: Any, pca: PCA) -> None:
    ax = plots.scree(source)
    shares = pca.explained_variance_ratio_
    assert shares.sum() < 0.9  # of the total, not of what was kept
    np.testing.assert_array_equal([bar.get_height() for bar in ax.patches], shares)
    np.testing.assert_allclose(
        [bar.get_x() + bar.get_width() / 2 for bar in ax.patches], range(1, K + 1)
    )
    right = ax.figure.axes[-1]
    np.testing.assert_array_equal(right.lines[0].get_xdata(), np.arange(1, K + 1))
    np.testing.assert_array_equal(right.lines[0].get_ydata(), np.cumsum(shares))
    assert right.get_ylim() == (0, 1)
    assert ax.get_xlabel() == "Component"
    assert ax.get_ylabel() == "Share of total variance"
    assert right.get_ylabel() == "Cumulative share"
    assert [t.get_text() for t in right.texts] == [f"{100 * shares.sum():.1f} %"]
    ax.figure.canvas.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "3", "4", "5"]
    assert right.get_yticklabels()[-1].get_text() == "100 %"
    assert saved(ax) > 2000


def test_scree_gives_small_shares_an_axis_of_their_own() -> None:
    X = np.random.default_rng(0).normal(size=(300, 80))
    ax = plots.scree(PCA().fit(X))
    assert len(ax.patches) == 50
    assert ax.get_xlabel() == "Component (first 50 of 80)"
    assert max(bar.get_height() for bar in ax.patches) > 0.5 * ax.get_ylim()[1]
    left, right = ax.get_yticks() / ax.get_ylim()[1], ax.figure.axes[-1].get_yticks()
    np.testing.assert_allclose(left, right)  # one grid serves both


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


# -- scores ----------------------------------------------------------------------------------


def test_scores_are_the_points(source: Any, projected: Any, pca: PCA) -> None:
    ax = plots.scores(source, projected)
    (cloud,) = ax.collections
    np.testing.assert_array_equal(np.asarray(cloud.get_offsets()), projected[:, :2])
    first, second = 100 * pca.explained_variance_ratio_[:2]
    assert ax.get_xlabel() == f"PC1 ({first:.1f} %)"
    assert ax.get_ylabel() == f"PC2 ({second:.1f} %)"
    assert ax.get_title(loc="left") == ""
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
    with pytest.raises(InvalidInputError, match=r"scores=pca\.transform\(X\)"):
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
        (GROUPS[:-1], r"59 entries; expected one label per sample, \(60,\)"),
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
    assert first.get_title(loc="left") == "1,000 of 5,000 samples drawn"
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


# -- loadings --------------------------------------------------------------------------------


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


# -- R^2 -------------------------------------------------------------------------------------


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


# -- all of them -----------------------------------------------------------------------------

DRAW: dict[str, Any] = {
    "scree": plots.scree,
    "scores": lambda result, ax=None: plots.scores(result, np.zeros((4, K)), ax=ax),
    "loadings": lambda result, ax=None: plots.loadings(result, ax=ax),
    "r2": plots.r2,
}
draws = pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)


@draws
def test_a_picture_goes_where_it_is_told(draw: Any, pca: PCA) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert draw(pca, ax=right) is right
    assert right.has_data()
    assert not left.has_data()
    assert plt.get_fignums() == [figure.number]


@draws
@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_a_picture_can_be_saved_and_settings_stay(draw: Any, kind: str, pca: PCA) -> None:
    before = dict(matplotlib.rcParams)
    assert saved(draw(pca), kind) > 2000
    assert dict(matplotlib.rcParams) == before


@draws
def test_a_picture_needs_one_axes(draw: Any, pca: PCA) -> None:
    figure, several = plt.subplots(1, 2)
    for wrong in (figure, several):
        with pytest.raises(InvalidTypeError, match="expected one Matplotlib Axes"):
            draw(pca, ax=wrong)
    with pytest.raises(InvalidTypeError, match="3 dimensions and the picture has 2"):
        draw(pca, ax=plt.figure().add_subplot(projection="3d"))


def test_space_needs_axes_in_space(pca: PCA, projected: Any) -> None:
    with pytest.raises(InvalidTypeError, match="projection='3d'"):
        plots.scores(pca, projected, components=(1, 2, 3), ax=plt.figure().add_subplot())
    ax = plt.figure().add_subplot(projection="3d")
    assert plots.scores(pca, projected, components=(1, 2, 3), ax=ax) is ax


@draws
def test_an_unfitted_estimator_and_other_things_are_refused(draw: Any) -> None:
    with pytest.raises(NotFittedError, match="This PCA instance is not fitted yet"):
        draw(PCA())
    with pytest.raises(InvalidTypeError, match="expected"):
        draw("model.zarr")
    assert not plt.get_fignums()


def test_a_class_is_no_result() -> None:
    with pytest.raises(InvalidTypeError, match="the class PCA"):
        plots.scree(PCA)


@draws
def test_without_matplotlib_the_message_says_what_to_install(
    draw: Any, pca: PCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[plots\]'") as caught:
        draw(pca)
    assert isinstance(caught.value, ImportError)


def test_dates_without_matplotlib(pca: PCA, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib.pyplot", "matplotlib.dates"):
        monkeypatch.setitem(sys.modules, module, None)
    days = np.arange(4).astype("M8[D]")
    with pytest.raises(MissingDependencyError):
        plots.scores(pca, np.zeros((4, K)), labels=days)


def test_importing_plots_does_not_load_matplotlib() -> None:
    code = "import sys, streampca.plots; sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ticks_of_a_count_are_whole_and_few() -> None:
    assert counting_ticks(0, 5) == [0, 1, 2, 3, 4, 5]
    assert counting_ticks(1, 50) == [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    for last in (17, 99, 100, 3192, 10**6):
        ticks = counting_ticks(1, last)
        assert ticks[0] == 1
        assert ticks[-1] <= last
        assert 3 <= len(ticks) <= 14


def test_a_loaded_result_draws_the_same(pca: PCA, tmp_path: Any) -> None:
    pca.save(tmp_path / "model")
    again = Decomposition.load(tmp_path / "model")
    first, second = plots.loadings(pca), plots.loadings(again)
    assert [t.get_text() for t in first.get_yticklabels()] == [
        t.get_text() for t in second.get_yticklabels()
    ]


# -- validation -------------------------------------------------------------------------------


def test_validation_is_the_held_out_curve_and_its_least(frame: pd.DataFrame) -> None:
    holes = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.2)
    model = HardImpute([1, 2, 4], ridge=[0.0, 5.0], validation=0.2, max_passes=4, tol=0.5)
    ax = plots.validation(model.fit(holes))
    *lines, best = ax.get_lines()
    assert [line.get_label() for line in lines] == ["penalty 0", "penalty 5"]
    expected = {(one["rank"], one["penalty"]): one["held_out"] for one in model.validation_}
    for line, penalty in zip(lines, (0.0, 5.0), strict=True):
        found = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        assert found == {rank: expected[rank, penalty] for rank in (1, 2, 4)}
    assert best.get_xdata()[0] == model.best_rank_
    assert best.get_ydata()[0] == min(expected.values())
    soft = SoftImpute(3, [1.0, 8.0], validation=0.2, max_passes=4, tol=0.5).fit(holes)
    assert plots.validation(soft.result_).get_xlabel() == "Penalty"


def test_validation_of_a_fit_that_held_nothing_out_is_refused(pca: PCA) -> None:
    with pytest.raises(InvalidInputError, match=r"validation=0\.05"):
        plots.validation(pca)
