"""Complex pairs: the SVD of the whitened cross-covariance by NumPy, a lag between waves, xeofs'."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import CPCCA, ComplexCPCCA, analytic
from streampca.errors import InvalidInputError
from tests.models.test_cpcca import COORDS, FITTED, SLP, SST, N

RNG, K = np.random.default_rng(2), 3


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


SERIES = noise(N, 4) * [2.0, 1.6, 1.2, 0.8]


def field(name: str) -> xr.DataArray:
    x = SERIES @ np.kron(np.eye(4), noise(3)) + 0.5 * noise(N, 12)
    return xr.DataArray(x.reshape(N, 3, 4), COORDS, ("time", "lat", "lon"), name)


X, Y = field("x"), field("y")
X = X.where((X.lat > 0) | (X.lon > 0))  # land


def centred(one: xr.DataArray) -> np.ndarray:
    z = (one - one.mean("time")) * np.sqrt(np.cos(np.deg2rad(one.lat)))
    return np.nan_to_num(z.transpose("time", "lat", "lon").values.reshape(N, -1))


def power(z: np.ndarray, alpha: float) -> np.ndarray:
    _, s, vh = np.linalg.svd(z, full_matrices=False)
    r = int(np.sum(s > 1e-9 * s[0]))
    return (vh[:r].conj().T * (s[:r] ** 2 / (N - 1.0)) ** ((alpha - 1) / 2)) @ vh[:r]


def same(found: Any, expected: np.ndarray, atol: float = 1e-8) -> None:
    """Columns but for their phase."""
    found = np.asarray(found)
    phase = np.sum(found.conj() * expected, axis=0)
    turned = found * phase / np.abs(phase)
    np.testing.assert_allclose(turned, expected, atol=atol * np.abs(expected).max())


@pytest.mark.parametrize("alpha", [1.0, 0.0, (0.3, 0.8)])
def test_the_svd_of_the_whitened_cross_covariance(alpha: Any, tmp_path: Path) -> None:
    x, y = centred(X), centred(Y)
    a, b = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    to_x, to_y = power(x, a), power(y, b)
    u, s, vh = np.linalg.svd((x @ to_x).conj().T @ (y @ to_y) / (N - 1.0))
    u, v = u[:, :K], vh[:K].conj().T
    model = ComplexCPCCA(K, alpha=alpha, weights="coslat", progress=False).fit(X, Y, dim="time")
    np.testing.assert_allclose(model.singular_values_, s[:K], rtol=1e-10)
    np.testing.assert_allclose(model.squared_covariance_fraction_, s[:K] ** 2 / np.sum(s**2))
    scores = [x @ to_x @ u, y @ to_y @ v]
    made = model.transform(X, Y, dim="time")
    for mine, kept, other in zip(made, (model.result_.x, model.result_.y), scores, strict=True):
        same(mine, other)
        same(kept.scores, other)
    phases = np.sum(np.asarray(made[0]).conj() * np.asarray(made[1]), axis=0)
    np.testing.assert_allclose(np.angle(phases), 0.0, atol=1e-8)  # paired scores are in phase
    both = np.vstack([power(x, 2 - a) @ u, power(y, 2 - b) @ v]).conj()
    same(model.result_.patterns, both)
    for mine, rows, one in (
        (model.result_.loadings[:12], x, scores[0]),
        (model.result_.cross_loadings[:12], x, scores[1]),
        (model.result_.cross_loadings[12:], y, scores[0]),
    ):
        used = np.any(rows, axis=0)
        products = rows[:, used].T @ one.conj()
        lengths = np.linalg.norm(rows[:, used], axis=0)[:, None] * np.linalg.norm(one, axis=0)
        same(mine[used], products / lengths)
    again = streampca.load(model.save(tmp_path / "m"))
    xr.testing.assert_allclose(again.transform(X[:9]), made[0][:9])
    named = again.result_.to_xarray()
    assert named.patterns_x.dims == ("component", "lat", "lon")
    assert np.isnan(named.amplitude_x.values[:, 0, 0]).all()


def test_real_fields_give_what_the_real_method_does() -> None:
    real = CPCCA(2, alpha=0.4, **FITTED).fit(SST, SLP, dim="time")
    model = ComplexCPCCA(2, alpha=0.4, **FITTED).fit(SST, SLP, dim="time")
    np.testing.assert_allclose(model.singular_values_, real.singular_values_, rtol=1e-10)
    same(model.x_patterns_, real.x_patterns_.astype(complex))


@pytest.mark.parametrize("method", ["varimax", "promax"])
def test_a_rotation_keeps_what_the_pairs_describe(method: str) -> None:
    plain, turned = (
        ComplexCPCCA(4, alpha=1, pca=8, rotation=one, progress=False).fit(X, Y, dim="time")
        for one in (None, method)
    )
    before, after = plain.result_, turned.result_
    for a, b in ((before.x, after.x), (before.y, after.y)):
        rows = slice(0, 12) if a is before.x else slice(12, 24)
        described = a.scores @ before.patterns[rows].T
        np.testing.assert_allclose(b.scores @ after.patterns[rows].T, described, atol=1e-9)
    matrix = after.rotation
    values = np.sum(before.values[:, None] * np.abs(matrix) ** 2, axis=0)
    np.testing.assert_allclose(after.values, values, rtol=1e-10)
    across = after.x.scores.conj().T @ after.y.scores / (N - 1.0)
    np.testing.assert_allclose(np.diagonal(across), after.values, rtol=1e-8)
    mode = np.abs(after.loadings).argmax(axis=1).reshape(8, 3)  # four regions of three cells each
    assert (mode[1:] == mode[1:, :1]).all()  # the first has land
    assert sorted(mode[4:, 0]) == [0, 1, 2, 3]
    if method == "varimax":
        np.testing.assert_allclose(matrix.conj().T @ matrix, np.eye(4), atol=1e-10)
        np.testing.assert_allclose(across, np.diag(after.values), atol=1e-8)


def test_the_lag_of_a_travelling_pair() -> None:
    """Y is X three steps later, of period 24: an eighth of a turn in every phase."""
    t, x = np.arange(240.0)[:, None], np.arange(8.0)
    early, late = (
        np.cos(2 * np.pi * (t - lag) / 24 - 0.5 * x) + 0.3 * RNG.standard_normal((240, 8))
        for lag in (0, 3)
    )
    fields = analytic(early, padding=None), analytic(late, padding=None)
    pairs = ComplexCPCCA(1, alpha=1, progress=False).fit(*fields)
    turns = np.angle(pairs.x_patterns_ * pairs.y_patterns_.conj())[:, 0] / (2 * np.pi)
    np.testing.assert_allclose(24 * turns, 3.0, atol=0.3)
    np.testing.assert_allclose(
        np.diff(np.unwrap(np.angle(pairs.x_patterns_[:, 0]))), -0.5, atol=0.1
    )


def test_what_cannot_be_answered_is_refused() -> None:
    x = noise(20, 30)
    with pytest.raises(InvalidInputError, match=r"pca=10"):
        ComplexCPCCA(2, alpha=0, progress=False).fit(x, x[:, :3])
    with pytest.raises(InvalidInputError, match=r"expected fit\(X, Y\)"):
        ComplexCPCCA(2).fit(x)
    with pytest.raises(InvalidInputError, match="rotation='vari'"):
        ComplexCPCCA(2, rotation="vari").fit(x, x)
    with pytest.raises(InvalidInputError, match=r"pca=\(1, 2, 3\)"):
        ComplexCPCCA(2, pca=(1, 2, 3)).fit(x, x)


@pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in ("xeofs", "statsmodels")),
    reason="xeofs or statsmodels is not installed: pip install 'streampca[peers]'",
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hilbert", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 0.4])
def test_as_complex_and_hilbert_cpcca_of_xeofs(alpha: float, hilbert: bool) -> None:
    from xeofs import cross

    options: Any = {"n_modes": K, "use_coslat": True, "use_pca": False, "solver": "full"}
    kind = cross.HilbertCPCCA if hilbert else cross.ComplexCPCCA
    parts = (X.real, Y.real) if hilbert else (X, Y)
    theirs: Any = kind(alpha=alpha, **options).fit(*parts, dim="time")
    ours = [analytic(one, dim="time") for one in parts] if hilbert else list(parts)
    model = ComplexCPCCA(K, alpha=alpha, weights="coslat", progress=False)
    model.fit(*ours, **({} if hilbert else {"dim": "time"}))
    factor = ((N - 1) / N) ** ((1 - alpha) / 2)  # theirs whitens by covariances over n
    values = theirs.data["singular_values"].values * factor**2
    np.testing.assert_allclose(model.singular_values_, values, rtol=1e-6)
    for mine, other in zip((model.result_.x, model.result_.y), theirs.scores(), strict=True):
        same(mine.scores, other.transpose("time", "mode").values * factor, 1e-6)
    if alpha == 1.0 and not hilbert:
        rotated = cross.ComplexCPCCARotator(n_modes=K, power=1, rtol=1e-14, max_iter=5000)
        rotated.fit(theirs)
        model = ComplexCPCCA(K, alpha=1, weights="coslat", rotation="varimax", progress=False)
        model.fit(X, Y, dim="time")
        found = np.sqrt(rotated.data["squared_covariance"].values)
        np.testing.assert_allclose(model.singular_values_, found, rtol=1e-6)
        same(model.result_.x.scores, rotated.scores()[0].transpose("time", "mode").values, 1e-6)
