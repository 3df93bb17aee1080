"""Rotated pairs: Cheng and Dunkerton's definition by NumPy, xeofs', and a planted pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import CCA, CPCCA, MCA
from streampca.errors import InvalidInputError
from tests.models.test_correlation_maps import red
from tests.models.test_cpcca import COORDS, MONTH, N, anomalies, power, same

LAND, RNG = 11, np.random.default_rng(1)  # features of SST that are not land, of 12
SERIES = RNG.standard_normal((N, 4)) * [2.0, 1.7, 1.4, 1.1]


def regions(noise: float, name: str) -> xr.DataArray:
    """Four series, each in three cells: pairs with simple structure."""
    x = SERIES @ np.kron(np.eye(4), RNG.uniform(1, 2, 3)) + noise * RNG.standard_normal((N, 12))
    return xr.DataArray((x + MONTH).reshape(N, 3, 4), COORDS, ("time", "lat", "lon"), name)


SST, SLP = regions(1.0, "sst"), regions(0.7, "slp")
SST = SST.where((SST.lat > 0) | (SST.lon > 0))  # land


def covariance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.T @ y / (N - 1.0)


def simple(loadings: np.ndarray, oblique: bool) -> np.ndarray:
    """Kaiser's varimax, all planes at once, to its end; then R's promax of power 4."""
    used = loadings[np.any(loadings != 0, axis=1)]
    unit = used / np.linalg.norm(used, axis=1, keepdims=True)
    turn = np.eye(unit.shape[1])
    for _ in range(3000):
        turned = unit @ turn
        u, _, v = np.linalg.svd(unit.T @ (turned**3 - turned * np.mean(turned**2, axis=0)))
        turn = u @ v
    if not oblique:
        return turn
    x = used @ turn
    more = np.linalg.lstsq(x, x * np.abs(x) ** 3, rcond=None)[0]
    more = more * np.sqrt(np.diagonal(np.linalg.inv(more.T @ more)))
    return np.asarray(turn @ more)


@pytest.mark.parametrize("method", ["varimax", "promax"])
@pytest.mark.parametrize(
    ("kind", "alpha", "solver"),
    [(MCA, 1.0, "scatter"), (MCA, 1.0, "samples"), (CPCCA, (0.3, 0.8), "samples"), (CCA, 0.0, "")],
)
def test_the_definition(kind: Any, alpha: Any, solver: str, method: str) -> None:
    x, y = anomalies(SST)[:, 1:], anomalies(SLP)
    a, b = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    options: dict[str, Any] = {"weights": "coslat"} if kind is not CCA else {}
    options |= {"solver": solver} if solver else {}
    options |= {"alpha": alpha} if kind is CPCCA else {}
    if kind is CCA:
        root = np.sqrt(np.cos(np.deg2rad([0, 30, 60]))).repeat(4)
        x, y = x / root[1:], y / root
    to_x, to_y = power(x, a, None, N - 1.0), power(y, b, None, N - 1.0)
    u, s, vh = np.linalg.svd(covariance(x @ to_x, y @ to_y))
    k = 4
    from_x, from_y = power(x, 2 - a, None, N - 1.0), power(y, 2 - b, None, N - 1.0)
    stacked = np.vstack([from_x @ u[:, :k], from_y @ vh[:k].T]) * np.sqrt(s[:k])
    turn = simple(stacked, method == "promax")
    back = np.linalg.inv(turn).T / np.sqrt(s[:k])[:, None]
    values = np.sum(s[:k, None] * turn**2, axis=0)  # both lengths of a pair are their root
    scores = [x @ to_x @ u[:, :k] @ back, y @ to_y @ vh[:k].T @ back]
    patterns = stacked @ turn
    if kind is CCA:
        values = 1 / np.var(scores[0], axis=0, ddof=1)
    order = np.argsort(-values)
    values, scores, patterns = (
        values[order],
        [one[:, order] * np.sqrt(values[order]) for one in scores],
        patterns[:, order] / np.sqrt(values[order]),
    )
    fitted = kind(k, rotation=method, remove="month", progress=False, **options)
    fitted.fit(SST, SLP, dim="time")
    result = fitted.result_
    np.testing.assert_allclose(result.values, values, rtol=1e-7)
    made = fitted.transform(SST, SLP, dim="time", remove="month")
    for mine, other in zip(made, scores, strict=True):
        same(mine, other, 1e-7)
    both = np.vstack([fitted.x_patterns_[1:], fitted.y_patterns_])
    same(both, patterns, 1e-7)
    both = np.corrcoef(np.hstack([x, y, *scores]).T)
    m = x.shape[1] + y.shape[1]
    same(fitted.x_loadings_[1:], both[:LAND, m : m + k], 1e-7)
    same(fitted.x_cross_loadings_[1:], both[:LAND, m + k :], 1e-7)
    same(fitted.y_cross_loadings_, both[LAND:m, m : m + k], 1e-7)
    np.testing.assert_allclose(np.diagonal(result.correlations), 1.0)
    for one, mine in zip((result.x_covariance, result.y_covariance), made, strict=True):
        np.testing.assert_allclose(one, np.cov(np.asarray(mine).T), atol=1e-9 * np.abs(one).max())
    if solver == "samples":
        np.testing.assert_allclose(result.x_scores, made[0], atol=1e-8)


@pytest.mark.parametrize("kind", [MCA, CCA])
def test_rotating_later_saving_and_turning_back(kind: Any, tmp_path: Path) -> None:
    x, y = SST[:, 1:], SLP
    plain = kind(5, progress=False).fit(x, y, dim="time")
    before = {name: np.array(getattr(plain.result_, name)) for name in ("vectors", "loadings")}
    later = streampca.rotate(plain, "promax", k=3)
    once = kind(3, rotation="promax", progress=False).fit(x, y, dim="time")
    assert type(later) is kind
    assert later.get_params() == once.get_params()
    for name in ("values", "vectors", "patterns", "cross_loadings", "x_covariance"):
        one, other = getattr(later.result_, name), getattr(once.result_, name)
        np.testing.assert_allclose(one, other, atol=1e-9 * np.abs(other).max())
    again = streampca.load(later.save(tmp_path / "m"))
    xr.testing.assert_allclose(again.transform(x[:9], y[:9])[1], once.transform(x, y)[1][:9])
    assert again.rotation == "promax"
    assert "promax" in " ".join(again.result_.notes())
    back = again.unrotated()
    assert back.rotation is None
    for name, values in before.items():
        same(getattr(back.result_, name), values[:, :3], 1e-10)
    np.testing.assert_allclose(back.result_.values, plain.result_.values[:3], rtol=1e-10)
    with pytest.raises(InvalidInputError, match="unrotated"):
        streampca.rotate(again)
    with pytest.raises(InvalidInputError, match="5 pairs that covary"):
        streampca.rotate(plain, k=6)
    with pytest.raises(InvalidInputError, match=r"rotation='vari'.*varimax"):
        kind(3, rotation="vari").fit(x, y, dim="time")
    if kind is CCA:
        with pytest.raises(AttributeError, match="unrotated"):
            _ = again.test_


def test_a_planted_pair_is_recovered() -> None:
    """Two regional pairs of the same covariance: MCA mixes them, its rotation does not."""
    rng = np.random.default_rng(4)
    n, p, q = 400, 40, 30
    series = np.linalg.qr(rng.standard_normal((n, 2)))[0] * np.sqrt(n)
    x, y = np.zeros((2, p)), np.zeros((2, q))
    x[0, :15], x[1, 20:35], y[0, 3:14], y[1, 16:27] = 1.0, 1.0, 1.0, -1.0
    noise = 0.05
    field = series @ x + noise * rng.standard_normal((n, p))
    other = series @ y + noise * rng.standard_normal((n, q))
    mixed, found = (
        np.abs(MCA(2, rotation=one, progress=False).fit(field, other).x_loadings_)
        for one in (None, "varimax")
    )
    assert mixed[:15].min() > 0.1 > found[:15, 1 - found[:15].mean(axis=0).argmax()].max()
    assert np.sort(found[[5, 25]], axis=1)[:, 1].min() > 0.99


@pytest.mark.slow
def test_maps_of_rows_that_the_fit_has_not_seen_have_honest_p_values() -> None:
    """Of fields that are unrelated 5 % of the cells pass at 5 %; on rows of the fit 14 % would."""
    rng, passed = np.random.default_rng(5), []
    for _ in range(60):
        x, y = red(300, 60, 0.5, rng), red(300, 40, 0.5, rng)
        model = MCA(3, rotation="varimax", progress=False).fit(x[:200], y[:200])
        for rows, scores in zip((y[200:], x[200:]), model.transform(x[200:], y[200:]), strict=True):
            maps = streampca.correlation_maps(rows, scores, progress=False)
            passed.append(np.mean(maps.p_values < 0.05))
    assert 0.04 <= np.mean(passed) <= 0.06
