"""Every picture of every kind of model: drawn, or an error of ours that says what to draw."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pictures import saved

import streampca
from streampca import plots
from streampca.errors import InvalidInputError, InvalidTypeError, StreamPCAError
from streampca.models.contract.registry import all_kinds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 8)) * np.linspace(3, 1, 8)
Y = X[:, :3] @ RNG.normal(size=(3, 5)) + RNG.normal(size=(60, 5))
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
FIELD = xr.DataArray(
    RNG.normal(size=(60, 3, 4)),
    {"lat": [0.0, 10, 20], "lon": [0.0, 5, 10, 15]},
    ("time", "lat", "lon"),
    "sst",
)
TEXTS = [" ".join(RNG.choice(list("abcdefgh"), 6)) + f" w{i % 7}" for i in range(40)]


CALLS = RNG.integers(0, 3, (60, 40)).astype("i1")


def modes() -> Any:
    field = streampca.analytic(FIELD, dim="time")
    return streampca.ComplexEOF(2, solver="gram").fit(field)


def eofs() -> Any:
    return streampca.PCA(4, svd_solver="gram").fit(FIELD, dim="time")


FITS: dict[str, Any] = {
    "PCA": lambda: streampca.PCA(3).fit(X),
    "IncrementalPCA": lambda: streampca.IncrementalPCA(3).fit(X),
    "TruncatedSVD": lambda: streampca.TruncatedSVD(3).fit(X),
    "KernelPCA": lambda: streampca.KernelPCA(3).fit(X),
    "NystroemPCA": lambda: streampca.NystroemPCA(3, n_landmarks=20).fit(X),
    "SparsePCA": lambda: streampca.SparsePCA(3).fit(X),
    "PPCA": lambda: streampca.PPCA(3).fit(X),
    "FactorAnalysis": lambda: streampca.FactorAnalysis(2).fit(X),
    "RandomProjection": lambda: streampca.RandomProjection(3).fit(X),
    "RotatedPCA": lambda: streampca.rotate(streampca.PCA(3).fit(X)),
    "HardImpute": lambda: streampca.HardImpute(2).fit(HOLES),
    "SoftImpute": lambda: streampca.SoftImpute(2).fit(HOLES),
    "CCA": lambda: streampca.CCA(2).fit(X, Y),
    "MCA": lambda: streampca.MCA(2).fit(X, Y),
    "CPCCA": lambda: streampca.CPCCA(2).fit(X, Y),
    "GenotypePCA": lambda: streampca.GenotypePCA(3).fit(CALLS),
    "LSA": lambda: streampca.LSA(3, progress=False).fit(TEXTS),
    "TotalLeastSquares": lambda: streampca.TotalLeastSquares().fit(X, Y[:, 0]),
    "PrincipalComponentRegression": lambda: streampca.PrincipalComponentRegression(3).fit(
        X, Y[:, 0]
    ),
    "ComplexEOF": modes,
    "OscillationPatterns": lambda: streampca.oscillation_patterns(eofs()),
    "PersistentPatterns": lambda: streampca.persistent_patterns(eofs(), 3),
    "IntrinsicDimension": lambda: streampca.intrinsic_dimension(X),
    "R2Baselines": lambda: streampca.r2_baselines(X, 3),
}


@cache
def fitted(name: str) -> tuple[Any, Any]:
    """(a fitted model, its scores where these are real and of X)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FITS[name]()
        if name in ("CCA", "MCA", "CPCCA"):
            return model, model.transform(X, Y)
        if hasattr(model, "transform") and name not in ("LSA", "GenotypePCA", "ComplexEOF"):
            return model, model.transform(HOLES if name.endswith("Impute") else X)
        return model, None


def test_every_kind_of_model_is_here() -> None:
    ours = {name for name, kind in all_kinds().items() if kind.__module__[:10] == "streampca."}
    assert ours <= set(FITS)


SAYS = (
    r"plots\.\w+|expected what \w+\(X\)|scores=model|what .*\(X\) returns|HardImpute\(|LSA\(\)"
    r"|shape=\(|components=|--scores|component=\d|pca\.reconstruct\("
)


def options_of(picture: str, model: Any, scores: Any) -> dict[str, Any]:
    several = scores[0] if isinstance(scores, tuple) else scores
    if picture in ("scores", "pcs"):
        return {"scores": scores}
    if picture in ("pairs", "biplot"):
        return {"scores": several}
    if picture == "projected":
        new = np.zeros((4, getattr(model, "n_components", 3) or 3))
        return {"new_scores": new if several is None else several, "scores": several}
    return {}


def drawn(picture: str, model: Any, options: dict[str, Any]) -> StreamPCAError | None:
    """The error where it is not drawn."""
    try:
        getattr(plots, picture)(model, **options)
    except StreamPCAError as error:
        return error
    finally:
        plt.close("all")
    return None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name", [one if one == "CCA" else pytest.param(one, marks=pytest.mark.slow) for one in FITS]
)
def test_every_picture_is_drawn_or_says_what_to_draw(name: str) -> None:
    model, scores = fitted(name)
    pictures = [one for one in plots.__all__ if one != "embedding_page"]
    found = {one: drawn(one, model, options_of(one, model, scores)) for one in pictures}
    assert None in found.values()
    for picture, error in found.items():
        if error is not None:
            assert "not fitted" not in str(error)
            assert re.search(SAYS, str(error)), (picture, str(error))


@pytest.mark.parametrize(
    "name",
    [one if one == "SparsePCA" else pytest.param(one, marks=pytest.mark.slow) for one in FITS],
)
def test_every_kind_of_model_has_a_report_and_a_card(name: str) -> None:
    model = fitted(name)[0]
    if not hasattr(model, "result_"):
        return
    page = model.report().html
    assert model.result_.method in page
    assert ("% of the variance" in page) == (model.result_.presentation().shares is not None)
    assert "fitted" in model.result_._repr_html_()


def test_an_unfitted_model_says_so_and_a_view_of_one_matrix_is_refused() -> None:
    with pytest.raises(StreamPCAError, match="not fitted yet"):
        plots.scree(streampca.CCA(2))
    with pytest.raises(InvalidInputError, match="has one view"):
        plots.loadings(fitted("PCA")[0], view="x")
    with pytest.raises(InvalidInputError, match="expected 'x' or 'y'"):
        plots.loadings(fitted("CCA")[0], view="z")
    with pytest.raises(InvalidTypeError, match=r"plots\.dimension"):
        plots.scree(fitted("IntrinsicDimension")[0])


# -- two views -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CCA", "MCA"])
def test_pictures_of_two_views_have_their_numbers(name: str) -> None:
    model, (x, y) = fitted(name)
    result = model.result_
    points = plots.scores(model, (x, y), components=(2,)).collections[0].get_offsets()
    drawn = np.asarray(points)[np.argsort(np.asarray(points)[:, 0])]
    np.testing.assert_allclose(drawn, np.column_stack([x[:, 1], y[:, 1]])[np.argsort(x[:, 1])])
    alone = np.asarray(plots.scores(model, y, view="y").collections[0].get_offsets())
    np.testing.assert_allclose(alone, y[:, :2])
    with pytest.raises(InvalidInputError, match=r"scores=model\.transform\(X, Y\)"):
        plots.scores(model, x)

    views = {"x": (X, x), "y": (Y, y)}
    for view, (data, scores) in views.items():
        homogeneous = np.corrcoef(data.T, scores.T)[: data.shape[1], data.shape[1] :]
        bars = plots.loadings(model, component=2, view=view).patches
        order = np.argsort(-np.abs(homogeneous[:, 1]))
        np.testing.assert_allclose([one.get_width() for one in bars], homogeneous[order, 1])
        tips = np.asarray(plots.correlation_circle(model, view=view).collections[0].get_offsets())
        np.testing.assert_allclose(np.sort(tips[:, 0]), np.sort(homogeneous[:, 0]), atol=1e-9)
    heights = [one.get_height() for one in plots.scree(model).patches]
    cross = np.linalg.svd(np.cov(X.T, Y.T)[:8, 8:], compute_uv=False)
    expected = result.values if name == "CCA" else cross[:2] ** 2 / np.sum(cross**2)
    np.testing.assert_allclose(heights, expected, rtol=1e-7)
    frame = plots.pcs(model, (1, 2), (x, y))
    lines = [one for one in frame.child_axes[0].get_lines() if len(one.get_ydata()) == 60]
    for line, scores in zip(lines, (x, y), strict=True):
        np.testing.assert_allclose(line.get_ydata(), scores[:, 0] / scores[:, 0].std(ddof=1))
    assert frame.child_axes[0].get_legend() is not None


def test_homogeneous_and_heterogeneous_maps() -> None:
    other = FIELD[:, ::-1, :3] * 2 + 1
    model = streampca.MCA(2).fit(FIELD, other.rename("slp"), dim="time")
    x, y = (np.asarray(one) for one in model.transform(FIELD, other.rename("slp"), dim="time"))
    scores, fields = {"x": x, "y": y}, {"x": FIELD.values, "y": other.values}
    for view in ("x", "y"):
        for kind, of in (("homogeneous", view), ("heterogeneous", "xy".replace(view, ""))):
            ax = plots.map(model, 2, kind=kind, view=view)
            shown = np.asarray(ax.collections[0].get_array())
            data = fields[view].reshape(60, -1)
            expected = [np.corrcoef(one, scores[of][:, 1])[0, 1] for one in data.T]
            np.testing.assert_allclose(shown.ravel(), expected, atol=1e-9)
            assert f"scores of {of.upper()}" in _bar(ax).get_ylabel()
    with pytest.raises(InvalidInputError, match="homogeneous"):
        plots.map(model, kind="eof")
    assert saved(plots.map(model, [1, 2], view="y")) > 4000


def _bar(ax: Any) -> Any:
    return next(one for one in ax.child_axes if one.get_label() != "<unused>" and one.get_ylabel())


# -- fields ----------------------------------------------------------------------------------------


def deep() -> tuple[Any, xr.DataArray]:
    rng = np.random.default_rng(1)
    field = xr.DataArray(
        rng.normal(size=(40, 3, 2, 4, 5)),
        {"plev": [850.0, 500, 200], "number": [1, 2], "lat": np.arange(4.0), "lon": np.arange(5.0)},
        ("time", "plev", "number", "lat", "lon"),
    )
    return streampca.PCA(2).fit(field, dim="time"), field


def test_a_map_of_one_level_and_member() -> None:
    model, _ = deep()
    with pytest.raises(
        InvalidInputError,
        match=r"level=850\.0 \(plev: 850\.0, 500\.0, 200\.0\) "
        r"and member=1",
    ):
        plots.map(model)
    components = model.components_.reshape(2, 3, 2, 4, 5)
    for options in ({"level": 500, "member": 2}, {"at": {"plev": 500.0, "number": 2}}):
        ax = plots.map(model, 2, **options)
        np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()), components[1, 1, 1])
    assert "plev 500" in ax.get_title(loc="left")
    with pytest.raises(InvalidInputError, match=r"level=501; plev has 850\.0, 500\.0"):
        plots.map(model, level=501, member=1)
    with pytest.raises(InvalidInputError, match="leave it out"):
        plots.map(model, level=500, member=1, lag=0)


def test_a_map_of_one_lag_and_variable() -> None:
    both = xr.Dataset({"sst": FIELD, "slp": FIELD[:, ::-1] ** 3})
    model = streampca.PCA(2).fit(streampca.lagged(both, (0, 2), dim="time"))
    with pytest.raises(InvalidInputError, match=r"lag=0 \(lag: 0, 2\)"):
        plots.map(model)
    ax = plots.map(model, 1, variable="slp", lag=2)
    part = model.components_[0][model.result_.labels.features.slices["slp"]].reshape(2, 3, 4)
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()), part[1])


def test_amplitude_and_phase_of_complex_modes() -> None:
    modes = fitted("ComplexEOF")[0]
    for kind, values in (("amplitude", modes.amplitude_), ("phase", np.rad2deg(modes.phase_))):
        ax = plots.map(modes, 2, kind=kind)
        np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()).ravel(), values[1])
    limits = ax.collections[0].get_clim()
    assert limits == (-180.0, 180.0)
    frame = plots.pcs(modes, (1, 2))
    real = next(one for one in frame.child_axes[0].get_lines() if len(one.get_ydata()) == 60)
    expected = modes.result_.scores[:, 0].real / np.sqrt(modes.explained_variance_[0])
    np.testing.assert_allclose(real.get_ydata(), expected)


@pytest.mark.parametrize("dims", [("member", "time"), ("time", "member")])
def test_series_of_members(dims: tuple[str, str]) -> None:
    rng = np.random.default_rng(2)
    time = pd.date_range("2000-01-01", periods=30, freq="MS")
    field = xr.DataArray(
        rng.normal(size=(3, 30, 6)),
        {"member": ["a", "b", "c"], "time": time},
        ("member", "time", "cell"),
    )
    model = streampca.PCA(2).fit(field, dim=dims)
    scores = model.transform(field)
    expected = scores.transpose("component", "member", "time").values[0]
    expected = expected / np.sqrt(model.explained_variance_[0])
    for given in (scores, np.asarray(scores.transpose(*dims, "component"))):
        ax = plots.pcs(model, 1, given)
        lines = [one for one in ax.get_lines() if len(one.get_ydata()) == 30]
        np.testing.assert_allclose([one.get_ydata() for one in lines], expected, atol=1e-12)
        assert [one.get_text() for one in ax.get_legend().get_texts()] == [
            "member a",
            "member b",
            "member c",
        ]
        np.testing.assert_array_equal(lines[0].get_xdata(), time)


def test_long_names_fit_the_picture() -> None:
    name = "Monthly mean of the " + "very " * 30 + "deep sea"
    field = FIELD.rename(name).assign_attrs(units="kg m-2 s-1")
    ax = plots.map(streampca.PCA(2).fit(field, dim="time"), 1, kind="covariance")
    ax.figure.canvas.draw()
    bar = _bar(ax)
    high = bar.yaxis.label.get_window_extent().height
    assert high <= 1.3 * ax.get_window_extent().height
    assert ax.title.get_window_extent().width <= ax.figure.bbox.width
