"""Hilbert EOFs: complex EOFs of the analytic signal, and those of xeofs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import scipy.sparse
import xarray as xr
import zarr

import streampca
from streampca import ComplexEOF, analytic
from streampca.errors import DroppedFeaturesWarning, InvalidInputError, NonFiniteError

N, LAT, LON = 50, 3, 4
P = LAT * LON
TIME = np.arange(N)[:, None]
PLACE = np.linspace(0, 3, P)
RNG = np.random.default_rng(0)
X = (
    3 * np.cos(0.5 * TIME - 2 * PLACE)
    + 2 * np.sin(1.1 * TIME + PLACE)
    + 0.05 * TIME
    + 0.3 * RNG.standard_normal((N, P))
    + 7
)
FIELD = xr.DataArray(
    X.reshape(N, LAT, LON),
    dims=("time", "lat", "lon"),
    coords={"time": np.arange(N), "lat": [0.0, 10.0, 20.0]},
    name="sst",
)


def eof(k: int, **more: Any) -> ComplexEOF:
    return ComplexEOF(k, progress=False, **more)


def signal(x: np.ndarray) -> np.ndarray:
    z = scipy.signal.hilbert(x - x.mean(axis=0), axis=0)
    return np.asarray(z - z.mean(axis=0))


def same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    """Columns up to a factor of modulus 1."""
    turn = (expected.conj() * found).sum(axis=0)
    np.testing.assert_allclose(found, expected * (turn / np.abs(turn)), atol=1e-8)


@pytest.mark.parametrize("n", [N, N - 1])
@pytest.mark.parametrize("kind", ["numpy", "zarr", "sparse", "wide"])
def test_the_modes_are_those_of_the_complex_matrix(tmp_path: Path, kind: str, n: int) -> None:
    x: Any = X[:n] if kind != "wide" else np.hstack([X[:n], X[:n] ** 2, np.sin(X[:n])] * 2)
    if kind == "wide":
        x = x + 0.1 * np.random.default_rng(1).standard_normal(x.shape)
    source: Any = scipy.sparse.csc_array(x) if kind == "sparse" else x
    if kind == "zarr":
        source = str(tmp_path / "x.zarr")
        zarr.create_array(source, data=x, chunks=(n, 5))
    matrix = analytic(source, padding=None)
    z = signal(x)
    np.testing.assert_allclose(matrix.read(0, 3, n - 1), z[3:-1], atol=1e-12)
    np.testing.assert_allclose(matrix.read(1, 1, 7), z[:, 1:7], atol=1e-12)
    model = eof(3).fit(matrix)
    u, s, vh = np.linalg.svd(z, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, s[:3] ** 2 / (n - 1))
    np.testing.assert_allclose(model.explained_variance_ratio_, s[:3] ** 2 / (s**2).sum())
    same_vectors(model.components_.T, vh[:3].T)
    scores = model.transform(matrix)
    np.testing.assert_allclose(scores, z @ model.components_.conj().T, atol=1e-8)
    same_vectors(scores, u[:, :3] * s[:3])
    with pytest.raises(InvalidInputError, match=r"streampca\.analytic\(X\)"):
        model.transform(source)


def test_two_modes_of_one_variance_are_split_into_two() -> None:
    x = np.zeros((32, 4))
    for j in range(2):  # two waves of one size at places of their own
        x[:, 2 * j] = np.cos((j + 2) * 2 * np.pi * np.arange(32) / 32)
        x[:, 2 * j + 1] = np.sin((j + 2) * 2 * np.pi * np.arange(32) / 32)
    model = eof(2).fit(analytic(x, padding=None))
    c = model.components_
    np.testing.assert_allclose(c @ c.conj().T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, model.explained_variance_[0])
    z = signal(x)
    np.testing.assert_allclose((z @ c.conj().T) @ c, z, atol=1e-12)


@pytest.mark.skipif(
    importlib.util.find_spec("xeofs") is None,
    reason="xeofs is not installed: pip install 'streampca[peers]'",
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", [None, "exp"])
@pytest.mark.parametrize("coslat", [False, True])
def test_as_hilbert_eofs_of_xeofs(padding: str | None, coslat: bool) -> None:
    from xeofs.single import HilbertEOF

    theirs = HilbertEOF(n_modes=2, padding=padding, use_coslat=coslat, solver="full")  # type: ignore[arg-type]
    theirs.fit(FIELD, dim="time")
    matrix = analytic(FIELD, padding=padding, dim="time")
    weights = "coslat" if coslat else None
    found = eof(2, weights=weights, solver="gram").fit(matrix).result_.to_xarray()
    np.testing.assert_allclose(
        found.explained_variance, theirs.explained_variance().values, rtol=1e-8
    )
    shares = theirs.explained_variance_ratio().values
    np.testing.assert_allclose(found.explained_variance_ratio, shares, rtol=1e-8)
    amplitude = theirs.components_amplitude().transpose("mode", "lat", "lon").values
    np.testing.assert_allclose(found.amplitude.values, amplitude, atol=1e-8)
    phase = theirs.components_phase().transpose("mode", "lat", "lon").values
    apart = np.exp(1j * (found.phase.values + phase)).reshape(2, -1)
    np.testing.assert_allclose(apart, np.repeat(apart[:, :1], P, axis=1), atol=1e-8)
    series = theirs.scores_amplitude(normalized=False).transpose("time", "mode").values
    np.testing.assert_allclose(found.score_amplitude.values, series, atol=1e-7)


def test_maps_have_the_dimensions_of_the_field() -> None:
    land = FIELD.where(FIELD.lat > 0)
    with pytest.warns(DroppedFeaturesWarning):
        found = eof(2).fit(analytic(land, dim="time")).result_.to_xarray()
    assert found.amplitude.dims == found.phase.dims == ("component", "lat", "lon")
    np.testing.assert_array_equal(np.isnan(found.amplitude).values[:, 0], True)
    assert not np.isnan(found.amplitude.values[:, 1:]).any()
    whole = eof(2).fit(analytic(FIELD[:, 1:], dim="time")).result_.to_xarray()
    np.testing.assert_allclose(found.amplitude[:, 1:], whole.amplitude, atol=1e-8)


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="padding='reflect'"):
        analytic(X, padding="reflect")
    with pytest.raises(NonFiniteError, match=r"1 missing cells in feature lat=10.0.*interpolate"):
        eof(1).fit(analytic(FIELD.where((FIELD.time != 4) | (FIELD.lat != 10)), dim="time"))
    model = eof(2).fit(analytic(FIELD, dim="time"))
    again = streampca.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(again.components_, model.components_)


def test_one_row_has_no_phase():
    with pytest.raises(InvalidInputError, match="1 row has no phase; expected at least 2"):
        streampca.analytic(np.ones((1, 4)))


@pytest.mark.parametrize("kind", ["currents", "a real field"])
def test_a_travelling_wave_of_known_period_and_length_is_recovered(kind: str) -> None:
    time, place = np.arange(240.0)[:, None], np.arange(40.0)
    turning = np.exp(2j * np.pi * (time / 24 - place / 10))
    noise = 0.1 * np.random.default_rng(3).standard_normal((240, 40, 2)) @ [1, 1j]
    x: Any = turning + noise if kind == "currents" else analytic((turning + noise).real)
    model = eof(1).fit(x)
    turned = np.unwrap(np.angle(model.transform(x)[:, 0]))
    assert 2 * np.pi / np.polyfit(time[:, 0], turned, 1)[0] == pytest.approx(24, rel=3e-3)
    along = np.polyfit(place, np.unwrap(model.phase_[0]), 1)[0]  # later from place to place
    assert -2 * np.pi / along == pytest.approx(10, rel=3e-3)
    assert model.explained_variance_ratio_[0] > 0.9
