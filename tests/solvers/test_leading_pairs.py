"""The band of a symmetric matrix, and its leading eigenpairs beside LAPACK's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from streampca.kernels import Team
from streampca.kernels import band as banded
from streampca.kernels.band import WIDTH, band_of
from streampca.solvers import eigh_lower, spectrum
from tests.each import each

EPS = float(np.finfo(np.float64).eps)


def symmetric(values: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """With these eigenvalues."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    return np.asarray((q * values) @ q.T)


@pytest.mark.parametrize("m", [1, 2, WIDTH, WIDTH + 1, WIDTH + 2, 2 * WIDTH, 2 * WIDTH + 1, 700])
def test_a_band_is_the_matrix_turned(m: int) -> None:
    a = symmetric(np.linspace(-1, 2, m))
    below = np.tril(a, -1)
    band = band_of(work := a.copy())
    assert band is not None
    assert np.array_equal(np.tril(work, -1), below)  # it is not touched
    q = band.turned(np.eye(m))
    stored = band.stored()
    b = sum(
        (np.diag(stored[d, : m - d], -d) for d in range(1, min(WIDTH + 1, m))), np.zeros((m, m))
    )
    b = b + b.T + np.diag(stored[0])
    assert np.abs(q.T @ q - np.eye(m)).max() < 20 * EPS
    assert np.abs(q @ b @ q.T - a).max() < 50 * EPS
    assert np.allclose(band.times(np.eye(m)), b, atol=1e-15)


SPECTRA = {
    "decaying": 1.0 / np.arange(1, 301),
    "wide range": 10.0 ** np.linspace(8, -12, 300),
    "flat": np.ones(300),
    "one large of many alike": np.r_[5.0, np.ones(299)],
    "a cluster at the cut": np.r_[9.0, np.full(40, 2.0), np.ones(259)],
    "low rank": np.r_[3.0, 2.0, 1.0, np.zeros(297)],
    "nearly alike": 1.0 + 1e-13 * np.arange(300)[::-1],
    "of both signs": np.r_[4.0, 3.0, -np.ones(298)],
    "tiny": 1e-290 / np.arange(1, 301),
    "huge": 1e139 / np.arange(1, 301),
}


@pytest.mark.parametrize("name", SPECTRA)
@each("count", [1, 6, 30])
def test_pairs(name: str, count: int) -> None:
    values = np.asarray(SPECTRA[name])
    a = symmetric(values)
    found = banded.leading_pairs(a.copy(), count)
    assert found is not None
    size = np.abs(values).max()
    assert np.abs(found[0][::-1] - values[:count]).max() < 200 * EPS * size
    vectors = found[1]
    assert np.abs(vectors.T @ vectors - np.eye(count)).max() < 100 * EPS
    assert np.abs(a @ vectors - vectors * found[0]).max() < 100 * EPS * size


def test_what_does_not_pass_goes_to_lapack(monkeypatch: Any) -> None:
    monkeypatch.setattr(spectrum, "LEAST_BANDED", 100)
    assert banded.leading_pairs(np.zeros((120, 120)), 3) is None
    nothing = eigh_lower(np.zeros((120, 120)), 3)
    assert np.array_equal(nothing.values, np.zeros(3))
    a = symmetric(np.arange(120.0))
    monkeypatch.setattr(banded, "ALLOWED", 0.0)
    assert np.allclose(eigh_lower(np.tril(a), 3).values, [119, 118, 117])


@pytest.mark.parametrize("band", [True, False])
@pytest.mark.parametrize("name", ["flat", "steep", "spiked", "one", "huge"])
def test_third_powers_of_the_rest(monkeypatch: Any, band: bool, name: str) -> None:
    """From the reduced matrix; where they are lost in it, nothing, and then an estimate."""
    values = {
        "flat": np.linspace(2.0, 1.0, 120),
        "steep": 0.9 ** np.arange(120.0),
        "spiked": np.append([1e6] * 3, np.ones(117)),
        "one": np.append(1.0, np.zeros(119)),
        "huge": 1e70 / np.arange(1, 121),
    }[name]
    monkeypatch.setattr(spectrum, "LEAST_BANDED", 100 if band else 1000)
    a, unit = np.tril(symmetric(values)), values[0]
    found = eigh_lower(a.copy(), 5)
    cubes = np.sum((values[5:] / unit) ** 3)
    if name in ("spiked", "one"):
        assert np.isnan(found.rest_cubes)
        found = spectrum.with_rest_cubes(a, found)
        assert found.rest_cubes / unit**3 == pytest.approx(cubes, rel=1e-4, abs=1e-25)
    else:
        assert found.rest_cubes / unit**3 == pytest.approx(cubes, rel=1e-9)
        assert spectrum.with_rest_cubes(a, found) is found


@pytest.mark.parametrize("band", [True, False])
def test_the_lower_triangle_stays(monkeypatch: Any, band: bool) -> None:
    monkeypatch.setattr(spectrum, "LEAST_BANDED", 100 if band else 1000)
    a = np.tril(symmetric(np.arange(300.0)))
    before = a.copy()
    found = eigh_lower(a, 4)
    assert np.array_equal(a, before)
    true = scipy.linalg.eigh(a, lower=True, subset_by_index=(296, 299))
    assert np.allclose(found.values, true[0][::-1])
    assert np.allclose(np.abs(np.sum(found.vectors * true[1][:, ::-1], axis=0)), 1.0)


def test_bits_do_not_depend_on_threads() -> None:
    a = symmetric(np.linspace(0, 1, 1100) ** 3)
    found = []
    for helpers in (0, 1, 2, 7, 15):
        team = Team()
        threads = [threading.Thread(target=team.serve, daemon=True) for _ in range(helpers)]
        for thread in threads:
            thread.start()
        with team.member():
            made = eigh_lower(np.tril(a), 5)
        team.end()
        for thread in threads:
            thread.join()
        found.append((made.values.tobytes(), made.vectors.tobytes()))
    assert len(set(found)) == 1
