"""GWPCA: location by location in NumPy, and xeofs'."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import xarray as xr

from streampca import local_components
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError

RNG = np.random.default_rng(0)
LAT, LON = np.arange(-60.0, 61, 10), np.arange(0.0, 360, 15)
N = len(LAT) * len(LON)
MIXED = RNG.standard_normal((N, 2)) @ RNG.standard_normal((2, 4)) + 0.5 * RNG.standard_normal(
    (N, 4)
)
FIELD = xr.DataArray(
    (MIXED + 100).reshape(len(LAT), len(LON), 4),
    {"lat": LAT, "lon": LON, "variable": list("abcd")},
    ("lat", "lon", "variable"),
)


def weights(d: np.ndarray, b: float, kernel: str) -> np.ndarray:
    if kernel == "bisquare":
        return np.where(d <= b, (1 - (d / b) ** 2) ** 2, 0.0)
    return np.exp(-0.5 * (d / b) ** 2) if kernel == "gaussian" else np.exp(-0.5 * d / b)


def great_circles(places: np.ndarray) -> np.ndarray:
    lon, lat = np.radians(places).T
    sines = np.sin((lat[:, None] - lat) / 2) ** 2
    sines += np.cos(lat[:, None]) * np.cos(lat) * np.sin((lon[:, None] - lon) / 2) ** 2
    return 2 * 6371.0 * np.arcsin(np.sqrt(np.minimum(sines, 1.0)))


def compare(found: Any, x: np.ndarray, d: np.ndarray, b: float, kernel: str, k: int) -> None:
    for i, one in enumerate(weights(d, b, kernel)):
        mean = one @ x / one.sum()
        local = np.linalg.svd((x - mean) * np.sqrt(one)[:, None], full_matrices=False)
        values = local[1] ** 2 / one.sum()
        scale = values.sum()
        np.testing.assert_allclose(found.explained_variance[i], values[:k], atol=1e-10 * scale)
        np.testing.assert_allclose(found.total_variance[i], scale, rtol=1e-10)
        np.testing.assert_allclose(found.mean[i], mean, atol=1e-15 * np.abs(x).max())
        cosines = np.sum(found.components[i] * local[2][:k], axis=1)
        np.testing.assert_allclose(np.abs(cosines), 1.0, rtol=1e-10)
        np.testing.assert_allclose(found.effective_sizes[i], one.sum() ** 2 / np.sum(one**2))


@pytest.mark.parametrize(
    ("kernel", "b"), [("bisquare", 4000.0), ("gaussian", 1500.0), ("exponential", 800.0)]
)
def test_every_location_by_itself(kernel: str, b: float) -> None:
    places = np.column_stack([np.tile(LON, len(LAT)), np.repeat(LAT, len(LON))])
    found = local_components(
        FIELD, 2, bandwidth=b, kernel=kernel, dim=("lat", "lon"), progress=False
    )
    compare(found, MIXED + 100, great_circles(places), b, kernel, 2)
    made = found.to_xarray()
    assert made.components.dims == ("lat", "lon", "component", "variable")
    np.testing.assert_allclose(
        made.explained_variance_ratio.values.reshape(N, 2), found.explained_variance_ratio
    )
    own = np.einsum("ip,ikp->ik", MIXED + 100 - found.mean, found.components)
    np.testing.assert_allclose(found.transform(MIXED + 100, places), own)


def test_a_gradient_far_steeper_than_what_varies_locally() -> None:
    """Means that differ by 1e5 deviations within a tile lose nothing."""
    places = RNG.uniform(0, 1, (150, 2))
    places[:, 0] = np.round(places[:, 0] * 4)  # five clusters
    x = RNG.standard_normal((150, 3)) + 1e5 * places[:, :1] * [1.0, -2.0, 0.5]
    options: dict[str, Any] = {"coordinates": places, "metric": "euclidean", "progress": False}
    found = local_components(x, 2, bandwidth=0.9, **options)
    d = np.sqrt(((places[:, None] - places) ** 2).sum(axis=2))
    compare(found, x, d, 0.9, "bisquare", 2)


def test_land_and_locations_alone_have_none() -> None:
    land = FIELD.copy()
    land[2:4, 5:9] = np.nan
    found = local_components(land, 1, bandwidth=4000, dim=("lat", "lon"), progress=False)
    lost = np.isnan(land.values).all(axis=2).ravel()
    assert np.isnan(found.total_variance[lost]).all()
    assert np.isfinite(found.components[~lost]).all()
    places = found.coordinates[~lost]
    kept = found.explained_variance[~lost][40]
    one = weights(great_circles(places)[40], 4000, "bisquare")
    x = land.values.reshape(N, 4)[~lost]
    local = np.cov(x.T, aweights=one, ddof=0)
    np.testing.assert_allclose(kept, np.linalg.eigvalsh(local)[-1:], rtol=1e-10)
    alone = local_components(FIELD, 1, bandwidth=10, dim=("lat", "lon"), progress=False)
    assert np.isnan(alone.components).all()
    assert (alone.leading_features == -1).all()


def test_what_cannot_be_answered_is_refused() -> None:
    x = RNG.standard_normal((30, 3))
    with pytest.raises(InvalidInputError, match="no coordinates lon and lat"):
        local_components(x, bandwidth=3)
    with pytest.raises(InvalidInputError, match=r"kernel='box'.*bisquare"):
        local_components(x, bandwidth=3, kernel="box", coordinates=x[:, :2])
    with pytest.raises(InvalidInputError, match=r"bandwidth=0.*above 0"):
        local_components(x, bandwidth=0, coordinates=x[:, :2])
    with pytest.raises(InvalidInputError, match=r"coordinates of shape.*\(30, 2\)"):
        local_components(x, bandwidth=1, coordinates=x)
    with pytest.raises(MemoryLimitError):
        local_components(x, bandwidth=1, coordinates=x[:, :2], memory_limit="1MiB")
    alone = np.where(np.arange(30)[:, None] == 4, x, np.nan)
    with pytest.raises(InvalidInputError, match="1 of 30 samples with observations"):
        local_components(alone, bandwidth=1, coordinates=x[:, :2], progress=False)
    holed = np.where(np.arange(90).reshape(30, 3) == 4, np.nan, x)
    with pytest.raises(NonFiniteError, match="some of its 3 variables"):
        local_components(holed, bandwidth=1, coordinates=x[:, :2], progress=False)


@pytest.mark.skipif(
    importlib.util.find_spec("xeofs") is None, reason="xeofs is not installed: 'streampca[peers]'"
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernel", ["bisquare", "gaussian", "exponential"])
def test_as_gwpca_of_xeofs(kernel: str) -> None:
    from xeofs.single import GWPCA

    data = FIELD.rename(lat="y", lon="x")
    theirs = GWPCA(2, bandwidth=60.0, metric="euclidean", kernel=kernel).fit(data, dim=("x", "y"))
    options: dict[str, Any] = {"metric": "euclidean", "dim": ("x", "y"), "progress": False}
    found = local_components(data, 2, bandwidth=60.0, kernel=kernel, **options).to_xarray()
    for name in ("explained_variance", "explained_variance_ratio"):
        other = getattr(theirs, name)().rename(mode="component").transpose("x", "y", "component")
        mine = found[name].transpose("x", "y", "component").sel(x=other.x, y=other.y)
        np.testing.assert_allclose(mine, other, rtol=1e-6)
