"""Pictures with the certainty that the sample gives: bars, ellipses, pale maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from pictures import N, P, saved

from streampca import PCA, bootstrap, plots, sampling_errors
from streampca.errors import InvalidInputError, InvalidTypeError


@pytest.fixture(scope="module")
def sure(pca: PCA, frame: Any) -> Any:
    return bootstrap(pca, frame, n_resamples=50, n_components=3)


def bars(ax: Any) -> Any:
    """(count, 2) ends of the lines of the error bars."""
    (drawn,) = (one for one in ax.containers if hasattr(one, "has_yerr"))
    segments = np.array(drawn.lines[2][0].get_segments())
    return segments[:, :, 1] if drawn.has_yerr else segments[:, :, 0]


def test_bars_are_intervals_of_the_sample(pca: PCA, sure: Any) -> None:
    ax = plots.scree(pca, certainty=sure)
    np.testing.assert_allclose(bars(ax), sure.shares.interval())
    assert ax.get_ylim()[1] >= sure.shares.interval().max()
    ax = plots.spectrum(pca, certainty=sure)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"95 % interval of the sample", "bound on its error"} <= set(names)
    assert saved(ax) > 2000


def test_bars_of_loadings_are_two_errors_long(pca: PCA, sure: Any) -> None:
    ends = bars(plots.loadings(pca, component=2, n=4, certainty=sure))
    order = np.argsort(-np.abs(pca.components_[1]))[:4]
    deviation = np.sqrt(pca.explained_variance_[1])
    expected = 1.96 * sure.component_errors()[1, order] * deviation
    np.testing.assert_allclose(np.ptp(ends, axis=1) / 2, expected, rtol=1e-3)


def test_ellipses_are_covariances_of_scores(pca: PCA, frame: Any, sure: Any) -> None:
    ax = plots.scores(pca, pca.transform(frame), components=(3, 1), certainty=sure)
    drawn = ax.collections[-1]
    assert len(drawn.get_offsets()) == N
    widths, heights, turns = drawn.get_widths(), drawn.get_heights(), np.deg2rad(drawn.get_angles())
    covariance = sure.score_covariances((2, 0))[7]
    along = np.array([np.cos(turns[7]), np.sin(turns[7])])
    np.testing.assert_allclose(along @ covariance @ along, (widths[7] / 2) ** 2 / 5.9915, rtol=1e-4)
    np.testing.assert_allclose(
        np.linalg.det(covariance), (widths[7] * heights[7] / 4 / 5.9915) ** 2, rtol=1e-4
    )
    assert saved(ax) > 2000


@pytest.mark.slow
def test_maps_are_pale_where_nothing_differs_from_zero() -> None:
    rng = np.random.default_rng(0)
    wave = np.repeat([0.0, 3.0], 6).reshape(3, 4)
    values = rng.normal(size=(60, 1, 1)) * wave + rng.normal(size=(60, 3, 4))
    coords = {"lat": [0.0, 10, 20], "lon": [0.0, 5, 10, 15]}
    field = xr.DataArray(values, coords, ("time", "lat", "lon"), "sst")
    model = PCA(2).fit(field, dim="time")
    sure = bootstrap(model, field, n_resamples=100)
    ax = plots.map(model, 1, certainty=sure)
    pale = ~np.ma.getmaskarray(ax.collections[1].get_array())
    differs = np.abs(model.components_[0]) > 1.96 * sure.component_errors()[0]
    np.testing.assert_array_equal(pale.ravel(), ~differs)
    assert differs[wave.ravel() > 0].all()
    assert not differs[wave.ravel() == 0].all()
    assert "pale" in ax.get_title("left")


def test_certainty_of_something_else_is_refused(pca: PCA, frame: Any, sure: Any) -> None:
    with pytest.raises(InvalidTypeError, match="expected what"):
        plots.scree(pca, certainty=0.95)
    with pytest.raises(InvalidInputError, match="another model"):
        plots.spectrum(PCA(2).fit(frame * 2), certainty=sure)
    with pytest.raises(InvalidInputError, match="n_components=5"):
        plots.loadings(pca, component=5, certainty=sure)
    scores = pca.transform(frame)
    with pytest.raises(InvalidInputError, match="of others"):
        plots.scores(pca, scores[: N // 2], certainty=sure)
    with pytest.raises(InvalidInputError, match="of others"):
        plots.scores(pca, scores, certainty=sampling_errors(pca))
    assert sure.component_errors().shape == (3, P)
