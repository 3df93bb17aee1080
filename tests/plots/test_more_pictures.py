"""Maps, genomes, pairs, density, spectrum, sweeps: what is drawn is what the result says."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pictures import GROUPS, NAMES, K, N, saved

import streampca
from streampca import LSA, PCA, HardImpute, plots
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels, Labels
from streampca.matrix.places import genome_of, grid_of
from streampca.plots.arrows import _draw_arrows
from streampca.plots.canvas import drawing_axes
from streampca.plots.density import CELLS


@pytest.fixture(scope="module")
def field() -> xr.DataArray:
    """Six years of months on a grid whose dimensions are (lon, lat), one cell without data."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(72, 9, 6)) * np.linspace(1, 3, 9)[:, None]
    values[:, 2, 3] = np.nan
    coords = {
        "time": pd.date_range("2001-01-01", periods=72, freq="MS"),
        "lon": np.arange(0.0, 360, 40),
        "lat": np.linspace(-50, 50, 6),
    }
    return xr.DataArray(values, coords, ("time", "lon", "lat"), "sst", {"units": "K"})


@pytest.fixture(scope="module")
def eof(field: xr.DataArray) -> PCA:
    return PCA(4).fit(field, dim="time")


def test_a_map_has_the_field_on_its_coordinates(eof: PCA, field: xr.DataArray) -> None:
    ax = plots.map(eof, 2)
    (mesh,) = ax.collections
    expected = eof.eof_.eofs().sel(component=2).transpose("lat", "lon").to_numpy()
    np.testing.assert_allclose(mesh.get_array().filled(np.nan), expected)
    low, high = mesh.get_clim()
    assert low == -high == -np.nanmax(np.abs(expected))  # centred on 0
    assert ax.get_xlim() == (-20, 340)
    assert "1 cells without observation are grey" in ax.get_title(loc="left").replace("\n", " ")
    assert saved(ax) > 2000


@pytest.mark.parametrize("kind", ["correlation", "covariance"])
def test_other_maps_are_those_of_the_eof_views(eof: PCA, kind: str) -> None:
    ax = plots.map(eof, 1, kind=kind)
    told = getattr(eof.eof_, f"as_{kind}")().sel(component=1).transpose("lat", "lon")
    drawn = ax.collections[0].get_array().filled(np.nan)
    np.testing.assert_allclose(drawn, told.to_numpy(), rtol=1e-12)


@pytest.mark.parametrize("there", [True, False])
def test_coastlines_are_drawn_where_they_lie_on_this_machine(
    eof: PCA, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """A stand-in for cartopy, which is seldom installed: it downloads nothing, and may not."""
    path = tmp_path / "shapefiles" / "natural_earth" / "physical" / "ne_110m_coastline.shp"
    path.parent.mkdir(parents=True)
    if there:
        path.touch()
    folders = {"pre_existing_data_dir": tmp_path, "data_dir": "/nowhere", "repo_data_dir": ""}
    line = SimpleNamespace(coords=[(-10.0, 0.0), (10.0, 20.0)])

    def read(found: Any) -> Any:
        assert there
        assert found == path
        return SimpleNamespace(geometries=lambda: [line])

    reader = SimpleNamespace(Reader=read)
    monkeypatch.setitem(sys.modules, "cartopy", SimpleNamespace(config=folders))
    monkeypatch.setitem(sys.modules, "cartopy.io", SimpleNamespace(shapereader=reader))
    drawn = [c for c in plots.map(eof, 1).collections if hasattr(c, "get_segments")]
    assert len(drawn) == there
    if there:  # longitudes run from 0 to 360: the line is drawn on both sides of 0
        ends = [segment[0].tolist() for segment in drawn[0].get_segments()]
        assert ends == [[-10.0, 0.0], [350.0, 0.0]]


def test_several_modes_are_a_sheet_with_one_scale(eof: PCA) -> None:
    frame = plots.map(eof, [1, 3, 4], ax=plt.figure().add_subplot())
    maps = [panel for panel in frame.child_axes if panel.get_title(loc="left")]
    assert [panel.get_title(loc="left").split()[0] for panel in maps] == ["EOF1", "EOF3", "EOF4"]
    assert len({panel.collections[0].get_clim() for panel in maps}) == 1
    assert saved(frame) > 2000


def test_grids_are_found_and_other_features_refused(pca: PCA, eof: PCA) -> None:
    grid = grid_of(eof.result_.labels.features)
    assert grid is not None
    assert (grid.globe, grid.transposed, grid.shape) == (True, True, (6, 9))
    with pytest.raises(InvalidInputError, match=r"plots\.loadings"):
        plots.map(pca)
    with pytest.raises(InvalidInputError, match="expected one of"):
        plots.map(eof, kind="eofs")


def test_a_curvilinear_grid_and_a_picture() -> None:
    y, x = np.mgrid[0:4, 0:5] * 2.0
    grids = {"lat": (("j", "i"), y), "lon": (("j", "i"), x)}
    grid = grid_of(AxisLabels(("j", "i"), (4, 5), grids=grids))
    assert grid is not None
    assert grid.globe
    np.testing.assert_array_equal(grid.y, y)
    face = grid_of(AxisLabels(("row", "column"), (4, 5)))
    assert face is not None
    assert not face.globe


def test_time_series_have_unit_variance_and_dates(eof: PCA, field: xr.DataArray) -> None:
    scores = eof.transform(field, dim="time")
    frame = plots.pcs(eof, (1, 2), scores)
    (first, second) = frame.child_axes
    times, values = first.lines[-1].get_data()
    np.testing.assert_array_equal(times, field["time"].to_numpy())
    assert np.std(values, ddof=1) == pytest.approx(1.0)
    np.testing.assert_allclose(second.lines[-1].get_ydata(), eof.eof_.pcs(1, scores)[:, 1])
    one = plots.pcs(eof, 1, np.asarray(scores))
    assert one.get_xlabel() == "Sample"


@pytest.fixture(scope="module")
def variants(frame: pd.DataFrame) -> PCA:
    from streampca.sources import as_matrix

    matrix = as_matrix(frame.to_numpy())
    chromosome = np.array(["X", "10", "2", "1"])[np.arange(len(NAMES)) // 3]
    position = np.tile([5, 100, 50], 4)
    extra = {"chromosome": chromosome, "position": position}
    features = AxisLabels(("variant",), (12,), {"variant": np.array(NAMES)}, extra=extra)
    matrix.labels = Labels(AxisLabels.plain("sample", N), features)
    return PCA(3).fit(matrix)


def test_variants_lie_by_chromosome_and_position(variants: PCA) -> None:
    genome = genome_of(variants.result_.labels.features)
    assert genome is not None
    assert genome.names == ("1", "2", "10", "X")
    assert sorted(np.argsort(genome.place).tolist()[:3]) == [9, 10, 11]  # chromosome 1
    ax = plots.manhattan(variants, component=2)
    drawn = np.asarray(ax.collections[0].get_offsets())
    expected = np.abs(variants.result_.loadings[:, 1])
    np.testing.assert_allclose(np.sort(drawn[:, 1]), np.sort(expected))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "10", "X"]
    assert saved(ax) > 2000


def test_features_without_positions_have_no_manhattan_plot(pca: PCA) -> None:
    with pytest.raises(InvalidInputError, match="no chromosomes and positions"):
        plots.manhattan(pca)


def test_very_many_points_become_a_density(pca: PCA) -> None:
    rng = np.random.default_rng(0)
    many = rng.normal(size=(300_000, K))
    ax = plots.scores(pca, many, labels=np.where(many[:, 0] > 0, "right", "left"), ellipses=True)
    assert saved(ax) > 2000
    (image,) = ax.images
    pixels = np.asarray(image.get_array())
    assert pixels.shape == (CELLS[1], CELLS[0], 4)
    low, high = np.reshape(image.get_extent(), (2, 2)).T
    cells = ((many[:, :2] - low) / (high - low) * CELLS).astype(int)
    assert (pixels[cells[:, 1], cells[:, 0], 3] > 0.3).all()  # no sample is invisible
    assert (pixels[..., 3] > 0).sum() == len(np.unique(cells, axis=0))
    assert [t.get_text() for t in ax.texts] == ["left", "right"]
    assert "Density of 300,000 samples of 2 groups" in ax.get_title(loc="left").replace("\n", " ")


def test_an_ellipse_holds_its_share_of_a_normal_distribution(pca: PCA) -> None:
    points = np.random.default_rng(1).multivariate_normal([1, 2], [[4, 1.5], [1.5, 1]], 4000)
    ax = plots.scores(
        pca, np.hstack([points, np.zeros((4000, K - 2))]), labels=np.full(4000, "a"), ellipses=True
    )
    (ellipse,) = ax.patches
    inside = ellipse.get_path().contains_points(
        ellipse.get_patch_transform().inverted().transform(points)
    )
    assert 0.93 < inside.mean() < 0.97
    with pytest.raises(InvalidInputError, match="category of each sample"):
        plots.scores(pca, np.zeros((9, K)), ellipses=True)


def test_pairs_draw_every_two_components_once(pca: PCA, projected: Any) -> None:
    frame = plots.pairs(pca, projected, components=(1, 3, 5), labels=GROUPS)
    assert len(frame.child_axes) == 6  # the lower triangle
    panel = frame.child_axes[4]  # PC3 across, PC5 upwards
    drawn = np.asarray(panel.collections[0].get_offsets())
    assert set(map(tuple, drawn)) == set(map(tuple, projected[:, [2, 4]]))
    names, counts = np.unique(GROUPS, return_counts=True)
    for i, row in ((0, 0), (2, 2), (5, 4)):  # on the diagonal a line for each group
        lines = [one.get_data() for one in frame.child_axes[i].patches]
        assert sorted(int(line.values.sum()) for line in lines) == sorted(counts)
        for name in names:
            own = np.histogram(projected[name == GROUPS, row], lines[0].edges)[0]
            assert any(np.array_equal(own, line.values) for line in lines)
    assert saved(frame) > 2000


def test_new_samples_lie_over_the_panel(pca: PCA, projected: Any) -> None:
    new = projected[:5] + 1.0
    new[2] = np.nan
    ax = plots.projected(pca, new, scores=projected, labels=GROUPS)
    over = np.asarray(ax.collections[-1].get_offsets())
    np.testing.assert_array_equal(np.ma.filled(over, np.nan)[[0, 1, 3, 4]], new[[0, 1, 3, 4], :2])
    title = ax.get_title(loc="left").replace("\n", " ")
    assert title == "4 new samples over the 60 samples of the fit; 1 without scores left out"


def test_new_samples_have_the_colours_of_their_groups(pca: PCA, projected: Any) -> None:
    new = pd.DataFrame(projected[:5], index=list("abcde"))
    theirs = pd.Series(["west", "east", "west", "", "south"], index=list("edcba"), name="region")
    ax = plots.projected(pca, new, scores=projected, labels=GROUPS, new_labels=theirs[::-1])
    fit, over = ax.collections[0], ax.collections[1:-1]
    place = {tuple(point): i for i, point in enumerate(projected[:, :2])}
    colours = {
        GROUPS[place[tuple(point)]]: tuple(colour)
        for point, colour in zip(fit.get_offsets(), fit.get_facecolors(), strict=True)
    }
    for one in over:
        for point, colour in zip(one.get_offsets(), one.get_facecolors(), strict=True):
            group = theirs["abcde"[place[tuple(point)]]]
            assert group not in colours or tuple(colour)[:3] == colours[group][:3]
    assert sum(len(one.get_offsets()) for one in over) == 5
    with pytest.raises(InvalidInputError, match="expected categories"):
        plots.projected(pca, new, scores=projected, labels=GROUPS, new_labels=np.arange(5) / 3)
    with pytest.raises(InvalidInputError, match="new_scores has shape"):
        plots.projected(pca, new.iloc[:, :2], scores=projected)


def test_the_spectrum_shows_bounds_and_noise(pca: PCA) -> None:
    certificate = replace(
        pca.certificate_,
        angle_bound=np.array([1e-9, 0.1, 1.5, 0.2, 0.3]),
        variance_bound=0.1 * pca.explained_variance_,
    )
    ax = plots.spectrum(replace(pca.result_, certificate=certificate))
    assert "4 of 5 components are determined, to 0.3 radians" in ax.get_title(loc="left")
    (bars,) = (one for one in ax.collections if hasattr(one, "get_segments"))
    lengths = [segment[1, 1] - segment[0, 1] for segment in bars.get_segments()]
    np.testing.assert_allclose(lengths, 0.2 * pca.explained_variance_)
    noise = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert noise[0].get_ydata()[0] == pca.noise_variance_


def test_correlations_with_oblique_factors_are_those_of_the_scores() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 7)) + 0.5 * rng.normal(size=(200, 7))
    model = streampca.rotate(PCA(3).fit(x), "promax")
    assert abs(model.result_.correlations[0, 1]) > 0.01
    scores = np.asarray(model.transform(x))
    expected = np.corrcoef(x.T, scores.T)[:7, 7:9]
    tips = np.asarray(plots.correlation_circle(model).collections[0].get_offsets())
    np.testing.assert_allclose(np.sort(tips, axis=0), np.sort(expected, axis=0), atol=1e-9)


def test_correlations_lie_in_the_unit_circle(pca: PCA, frame: pd.DataFrame, projected: Any) -> None:
    ax = plots.correlation_circle(pca, components=(1, 2))
    drawn = np.asarray(ax.collections[0].get_offsets())
    table = np.corrcoef(frame.to_numpy().T, projected[:, :2].T)[:12, 12:]
    np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(table, axis=0), atol=1e-10)


def test_a_biplot_names_the_longest_arrows(pca: PCA, projected: Any) -> None:
    ax = plots.biplot(pca, projected, n=3)
    length = np.linalg.norm(pca.result_.loadings[:, :2], axis=1)
    longest = {NAMES[i] for i in np.argsort(-length)[:3]}
    assert {t.get_text() for t in ax.texts} - {""} == longest


def test_a_biplot_has_room_for_long_names(frame: Any) -> None:
    widths = []
    for ending in ("", "x" * 20):
        named = frame.add_suffix(ending)
        model = PCA(2).fit(named)
        widths.append(np.ptp(plots.biplot(model, model.transform(named), n=3).get_xlim()))
    assert widths[1] > 1.1 * widths[0]


def test_names_of_arrows_do_not_meet_and_keep_their_order() -> None:
    ax = drawing_axes(None, (4, 4))
    ax.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2))
    tips = np.array([[1.0, 0.98, 0.99, 0.97], [0.12, 0.1, 0.11, -0.01]])
    _draw_arrows(ax, tips, ["top", "low", "middle", "below"])
    heights = {t.get_text(): t.get_position()[1] for t in ax.texts if t.get_text()}
    assert sorted(heights, key=heights.__getitem__) == ["below", "low", "middle", "top"]
    assert np.diff(sorted(heights.values())).min() >= 0.035 * 2.4 - 1e-12


def test_documents_lie_among_their_terms(pca: PCA) -> None:
    said = ["wave tide tide", "tide ship", "wave ship", "star moon", "moon comet", "star comet"]
    names = ["sea/1", "sea/2", "sea/3", "sky/1", "sky/2", "sky/3"]
    model = LSA(2, weighting="raw", progress=False).fit(said, names=names)
    ax = plots.texts(model, n=4)
    points = np.concatenate([np.asarray(one.get_offsets()) for one in ax.collections])
    coordinates = np.asarray(model.document_coordinates_)
    np.testing.assert_allclose(np.sort(points, axis=0), np.sort(coordinates, axis=0), atol=1e-6)
    length = np.linalg.norm(model.term_coordinates_, axis=1)
    longest = {model.vocabulary_[i] for i in np.argsort(-length)[:4]}
    assert {one.get_text() for one in ax.texts} - {"", "1", "2", "3"} == longest
    assert [one.get_text() for one in ax.get_legend().get_texts()] == ["sea", "sky"]
    assert ax.get_xlabel().startswith("Factor 1")
    with pytest.raises(InvalidTypeError, match=r"expected a fitted LSA: streampca.LSA\(\)"):
        plots.texts(pca)


def test_held_out_rows_stand_beside_those_of_the_fit(pca: PCA, frame: pd.DataFrame) -> None:
    ax = plots.r2(pca, held_out=pca.r2_curve(frame.iloc[:9]))
    names = [t.get_text() for t in ax.get_legend().get_texts()]
    assert names == ["rows of the fit", "held-out rows"]


def test_sweeps_lower_the_objective(pca: PCA) -> None:
    rng = np.random.default_rng(2)
    table = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 15))
    table[rng.random(table.shape) < 0.3] = np.nan
    model = HardImpute(3, tol=1e-2, alpha=0.1).fit(table)
    ax = plots.sweeps(model)
    values = ax.lines[0].get_ydata()
    told = [one.penalised[0] for one in model.trace_]
    np.testing.assert_allclose(values, np.array(told) / told[0])
    assert (np.diff(values) <= 1e-12).all()
    ax.set_ylim(0.95, 1.01)  # no round number of a decade but 1
    assert np.count_nonzero((ax.get_yticks() > 0.95) & (ax.get_yticks() < 1.01)) > 1
    with pytest.raises(InvalidInputError, match="made no sweeps"):
        plots.sweeps(pca)
