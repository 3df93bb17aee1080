"""Correlation maps and their p-values: NumPy's, SciPy's, and the share of false ones on noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import xarray as xr

from streampca import MCA, correlation_maps
from streampca.errors import InvalidInputError, NonFiniteError

RNG, N = np.random.default_rng(0), 240
TIMES = np.arange("2000-01", "2020-01", dtype="M8[M]").astype("M8[ns]")


def red(n: int, p: int, memory: float, rng: np.random.Generator = RNG) -> np.ndarray:
    noise = rng.standard_normal((n + 200, p)) * np.sqrt(1 - memory**2)
    return np.asarray(scipy.signal.lfilter([1], [1, -memory], noise, axis=0)[200:])


MONTH = np.cos(np.pi * np.arange(N) / 6)[:, None]
FIELD = xr.DataArray(
    (red(N, 12, 0.6) + 2 * MONTH).reshape(N, 3, 4),
    {"time": TIMES, "lat": [0.0, 10, 20], "lon": [0.0, 5, 10, 15]},
    ("time", "lat", "lon"),
)
LAND = FIELD.where((FIELD.lat > 0) | (FIELD.lon > 0))
INDEX = xr.DataArray(
    red(N, 2, 0.8) + MONTH + FIELD.values[:, 1, :2], {"time": TIMES}, ("time", "mode")
)


def reference(
    x: np.ndarray, y: np.ndarray, earlier: np.ndarray, later: np.ndarray, left: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(correlations, sizes, p-values), (k, p), of centred columns, feature by feature."""
    r, size, p = (np.full((y.shape[1], x.shape[1]), np.nan) for _ in range(3))

    def memory(v: np.ndarray) -> float:
        return float(np.mean(v[earlier] * v[later]) / np.mean(v**2))

    for i in range(y.shape[1]):
        for j in range(x.shape[1]):
            r[i, j] = scipy.stats.pearsonr(x[:, j], y[:, i])[0]
            both = memory(x[:, j]) * memory(y[:, i])
            size[i, j] = min(left, left * (1 - both) / (1 + both))
            t = abs(r[i, j]) * np.sqrt((size[i, j] - 2) / (1 - r[i, j] ** 2))
            p[i, j] = 2 * scipy.stats.t.sf(t, size[i, j] - 2)
    return r, size, p


def without_months(x: xr.DataArray) -> np.ndarray:
    return (x.groupby("time.month") - x.groupby("time.month").mean()).values.reshape(len(x), -1)


@pytest.mark.parametrize("winter", [False, True])
def test_as_numpy_and_scipy(winter: bool) -> None:
    x, y = LAND, INDEX
    if winter:
        keep = np.flatnonzero(x.time.dt.season.values == "DJF")[2:-1]
        x, y = x.isel(time=keep), y.isel(time=keep)
    n, months = len(x), 3 if winter else 12
    earlier = np.arange(n - 1)
    earlier = earlier[earlier % 3 < 2] if winter else earlier
    z = without_months(x)
    expected = reference(z[:, 1:], without_months(y), earlier, earlier + 1, n - months + 1)
    found = correlation_maps(x, y[::-1].transpose("mode", "time"), dim="time", remove="month")
    tables = (found.correlations, found.effective_sizes, found.p_values)
    for mine, other in zip(tables, expected, strict=True):
        np.testing.assert_allclose(mine[:, 1:], other, rtol=1e-9)
        assert np.isnan(mine[:, 0]).all()
    m = z.shape[1] - 1
    for p, adjusted in zip(expected[2], found.adjusted_p_values[:, 1:], strict=True):
        ranked = np.sort(p) * m / np.arange(1, m + 1)
        for q in (0.01, 0.05, 0.3):
            count = max(np.flatnonzero(ranked <= q) + 1, default=0)
            np.testing.assert_array_equal(adjusted <= q, p <= np.sort(p)[count - 1] * (count > 0))
    assert found.to_xarray().p_values.dims == ("component", "lat", "lon")


def test_heterogeneous_maps_and_members() -> None:
    other = xr.DataArray(red(N, 5, 0.3), {"time": TIMES}, ("time", "place"))
    model = MCA(2, progress=False).fit(FIELD, other, dim="time")
    scores = model.transform(FIELD, other)[1]
    found = correlation_maps(FIELD, scores, dim="time")
    np.testing.assert_allclose(found.correlations.T, model.x_cross_loadings_, rtol=1e-9)
    x = xr.DataArray(red(90, 4, 0.5).reshape(3, 30, 4), dims=("member", "time", "x"))
    y = xr.DataArray(red(90, 1, 0.5).reshape(3, 30), dims=("member", "time"))
    pairs = np.arange(90).reshape(3, 30)
    z, w = (one - one.mean(axis=0) for one in (x.values.reshape(90, 4), y.values.reshape(90, 1)))
    expected = reference(z, w, pairs[:, :-1].ravel(), pairs[:, 1:].ravel(), 90)
    members = correlation_maps(x, y.T, dim=("member", "time"))
    for mine, theirs in zip((members.correlations, members.p_values), expected[::2], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_what_cannot_be_answered_is_refused() -> None:
    x = red(40, 3, 0.0)
    for scores, words in (
        (np.zeros((40, 1)), "does not vary"),
        (x[:7], r"scores of shape \(7, 3\); expected \(40, k\)"),
        (np.where(x > 2, np.nan, x), "missing values"),
        ([["a"]] * 40, "expected numbers"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            correlation_maps(x, scores)
    holes = x.copy()
    holes[3, 1] = np.nan
    with pytest.raises(NonFiniteError):
        correlation_maps(holes, x)
    still: Any = np.column_stack([x, np.ones(40)])
    assert np.isnan(correlation_maps(still, x[:, 0]).p_values[0, 3])


@pytest.mark.parametrize("n", [200, 480, 2000])
@pytest.mark.parametrize("memory", [(0.0, 0.0), (0.5, 0.5), (0.7, 0.7), (0.9, 0.3)])
def test_on_red_noise_five_percent_are_false(n: int, memory: tuple[float, float]) -> None:
    rng = np.random.default_rng(n)
    x, y = red(n, 400, memory[0], rng), red(n, 100, memory[1], rng)
    share = float(np.mean(correlation_maps(x, y).p_values < 0.05))
    assert 0.04 < share < 0.06, share
