"""CPCCA: whitening by NumPy's eigenvectors; CCA and MCA at its ends; xeofs'."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import CCA, CPCCA, MCA
from streampca.errors import InvalidInputError

N, LAT, LON, RNG = 240, 3, 4, np.random.default_rng(0)
H = RNG.standard_normal((N, 3))
COORDS: Any = {
    "time": np.arange("2000-01", "2020-01", dtype="M8[M]").astype("M8[ns]"),
    "lat": [0.0, 30.0, 60.0],
    "lon": np.arange(0.0, 40.0, 10.0),
}
MONTH = 3 * np.cos(np.pi * np.arange(N) / 6)[:, None]


def field(weight: float, name: str) -> xr.DataArray:
    x = weight * H @ RNG.standard_normal((3, 12)) + RNG.standard_normal((N, 12)) + MONTH
    return xr.DataArray(x.reshape(N, LAT, LON), COORDS, ("time", "lat", "lon"), name)


SST, SLP = field(1.0, "sst"), field(0.7, "slp")
SST = SST.where((SST.lat > 0) | (SST.lon > 0))  # land
FITTED: dict[str, Any] = {"weights": "coslat", "remove": "month", "progress": False}


def anomalies(one: xr.DataArray) -> np.ndarray:
    months = one.groupby("time.month") - one.groupby("time.month").mean()
    z = (months * np.sqrt(np.cos(np.deg2rad(one.lat)))).transpose("time", "lat", "lon").values
    return np.nan_to_num(z.reshape(N, -1))


def power(z: np.ndarray, alpha: float, count: int | None, freedom: float) -> np.ndarray:
    """C^((alpha - 1) / 2) of the leading components."""
    _, s, vh = np.linalg.svd(z, full_matrices=False)
    r = min(count or len(s), int(np.sum(s > 1e-9 * s[0])))
    return (vh[:r].T * (s[:r] ** 2 / freedom) ** ((alpha - 1) / 2)) @ vh[:r]


def same(found: Any, expected: np.ndarray, atol: float = 1e-8) -> None:
    found = np.asarray(found)
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=atol * np.abs(expected).max())


@pytest.mark.parametrize("solver", ["scatter", "tsqr", "samples"])
@pytest.mark.parametrize("pca", [None, (6, 5)])
@pytest.mark.parametrize("alpha", [0.3, (0.0, 1.0), (0.8, 0.1)])
def test_the_svd_of_the_whitened_cross_covariance(alpha: Any, pca: Any, solver: str) -> None:
    x, y = anomalies(SST), anomalies(SLP)
    freedom = N - 1.0
    a, b = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    to_x, to_y = (
        power(z, degree, pca and pca[i], freedom) for i, (z, degree) in enumerate(((x, a), (y, b)))
    )
    u, s, vh = np.linalg.svd((x @ to_x).T @ (y @ to_y) / freedom)
    model = CPCCA(3, alpha=alpha, pca=pca, solver=solver, **FITTED).fit(SST, SLP, dim="time")
    np.testing.assert_allclose(model.singular_values_, s[:3], rtol=1e-10)
    same(model.x_weights_, to_x @ u[:, :3])
    same(model.y_weights_, to_y @ vh[:3].T)
    same(model.x_patterns_, power(x, 2 - a, pca and pca[0], freedom) @ u[:, :3])
    same(model.y_patterns_, power(y, 2 - b, pca and pca[1], freedom) @ vh[:3].T)
    share = s[:3] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(model.squared_covariance_fraction_, share, rtol=1e-10)
    scores = model.transform(SST, SLP, dim="time", remove="month")
    same(scores[0], x @ to_x @ u[:, :3])
    both = np.corrcoef(np.hstack([x[:, 1:], np.asarray(scores[1])]).T)
    same(model.x_cross_loadings_[1:], both[:11, 11:])


@pytest.mark.parametrize("solver", ["scatter", "samples"])
def test_its_ends_are_cca_and_mca(solver: str) -> None:
    x, y = (one.transpose("time", "lat", "lon") for one in (SST[:, 1:], SLP))
    mca = MCA(3, solver=solver, **FITTED).fit(x, y, dim="time")
    end = CPCCA(3, alpha=1, solver=solver, **FITTED).fit(x, y, dim="time")
    plain = {"remove": "month", "progress": False}
    cca = CCA(3, **plain).fit(x, y, dim="time")
    other = CPCCA(3, alpha=0, solver=solver, **plain).fit(x, y, dim="time")
    for found, expected in ((end, mca), (other, cca)):
        np.testing.assert_allclose(found.result_.values, expected.result_.values, rtol=1e-10)
        for name in ("vectors", "loadings", "cross_loadings"):
            same(getattr(found.result_, name), getattr(expected.result_, name), 1e-10)
    assert other.result_.correlates
    assert not end.result_.correlates


@pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in ("xeofs", "statsmodels")),
    reason="xeofs or statsmodels is not installed: pip install 'streampca[peers]'",
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alpha", [0.4, (0.0, 1.0)])
def test_as_cpcca_and_rda_of_xeofs(alpha: Any) -> None:
    from xeofs import cross

    x, y = (one.groupby("time.month") - one.groupby("time.month").mean() for one in (SST, SLP))
    options: Any = {"n_modes": 3, "use_coslat": True, "use_pca": False, "solver": "full"}
    theirs: Any = (
        cross.RDA(**options) if alpha == (0.0, 1.0) else cross.CPCCA(alpha=alpha, **options)
    )
    theirs.fit(x, y, dim="time")
    model = CPCCA(3, alpha=alpha, **FITTED).fit(SST, SLP, dim="time")
    # Theirs whitens by covariances over n, not n - 1: alpha=0 gives n / (n - 1) times correlations.
    degrees = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    factors = [((N - 1) / N) ** ((1 - one) / 2) for one in degrees]
    values = theirs.data["singular_values"].values * np.prod(factors)
    np.testing.assert_allclose(model.singular_values_, values, rtol=1e-6)
    ours = model.transform(SST, SLP, dim="time", remove="month")
    for mine, other, factor in zip(ours, theirs.scores(), factors, strict=True):
        same(np.asarray(mine), other.transpose("time", "mode").values * factor, 1e-6)
    maps = theirs.heterogeneous_patterns()[0][0].transpose("lat", "lon", "mode").values
    same(model.x_cross_loadings_[1:], maps.reshape(12, 3)[1:], 1e-6)


def test_a_saved_model_scores_new_rows(tmp_path: Path) -> None:
    model = CPCCA(2, alpha=(0.5, 1), weights="coslat", progress=False).fit(SST, SLP, dim="time")
    model.save(tmp_path / "m")
    again = streampca.load(tmp_path / "m")
    assert isinstance(again, CPCCA)
    assert again.alpha == (0.5, 1) or again.alpha == [0.5, 1]
    for one, other in zip(
        again.transform(SST[:9], SLP[:9]), model.transform(SST, SLP), strict=True
    ):
        xr.testing.assert_allclose(one, other[:9])


def test_what_cannot_be_answered_is_refused() -> None:
    x = RNG.standard_normal((20, 30))
    for alpha in (-0.1, 1.5, "x", (0, 1, 0), None):
        with pytest.raises(InvalidInputError, match="expected a number from 0"):
            CPCCA(2, alpha=alpha).fit(x, x)
    with pytest.raises(InvalidInputError, match=r"X has 30 features and 20 rows.*pca=\(10, 10\)"):
        CPCCA(2, alpha=0).fit(x, x[:, :3])
    assert CPCCA(2, alpha=0, pca=(10, 3), progress=False).fit(x, x[:, :3]).result_.correlates
