"""Rule N against noise that is simulated row by row."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter

import streampca
from streampca.errors import InvalidInputError
from streampca.models.eof.noise import red_shares, white_shares


def simulated(number: int, runs: int, steps: int, p: int, memory: float) -> np.ndarray:
    """(runs * steps, p) of AR(1) noise, one step after the other."""
    rng = np.random.default_rng([7, number])
    rows = np.empty((runs, steps, p))
    rows[:, 0] = rng.normal(size=(runs, p))
    for t in range(1, steps):
        fresh = rng.normal(size=(runs, p))
        rows[:, t] = memory * rows[:, t - 1] + np.sqrt(1 - memory**2) * fresh
    return rows.reshape(-1, p)


@pytest.mark.parametrize(
    ("n", "p", "memory"), [(40, 12, 0.0), (12, 40, 0.0), (30, 8, 0.7), (8, 30, 0.7)]
)
def test_surrogates_have_the_spectrum_of_noise(n: int, p: int, memory: float) -> None:
    made, told = [], []
    for i in range(600):
        rng = np.random.default_rng([1, i])
        if memory:
            made.append(red_shares(rng, (2, n // 2), p, memory, 4))
        else:
            made.append(white_shares(rng, n, p, 4))
        rows = simulated(i, 2, n // 2, p, memory)
        squares = np.linalg.svd(rows - (rows.mean(axis=0) if memory else 0), compute_uv=False) ** 2
        told.append((squares / squares.sum())[:4])
    levels = [0.1, 0.5, 0.95]
    np.testing.assert_allclose(
        np.quantile(made, levels, axis=0), np.quantile(told, levels, axis=0), rtol=0.05
    )


def test_a_signal_stands_out_and_memory_explains_what_white_noise_does_not() -> None:
    noise = simulated(0, 1, 120, 30, 0.8)
    signal = np.outer(lfilter([1], [1, -0.8], np.random.default_rng(3).normal(size=120)), [1] * 30)
    coords = {"time": np.arange(120)}
    for rows, significant in ((noise, 0), (noise + 2 * signal, 1)):
        field = xr.DataArray(rows.reshape(120, 5, 6), coords, ("time", "y", "x"), "sst")
        pca = streampca.PCA(4, progress=False).fit(field)
        red = streampca.noise_test(pca, "red", field, n_surrogates=200)
        assert red.n_significant() == significant
        assert 0.7 < red.memory < 0.9 or significant
        assert streampca.noise_test(pca, n_surrogates=200).n_significant() >= 1
        assert red.to_xarray().p_values.dims == ("component",)
        assert f"120 x 30 that keeps {red.memory:.2f}" in repr(red)


@pytest.mark.soak
def test_five_in_a_hundred_fields_of_red_noise_are_found() -> None:
    found = 0
    for i in range(1000):
        rows = simulated(i, 1, 150, 40, 0.6)
        pca = streampca.PCA(2, solver="gram", progress=False).fit(rows)
        test = streampca.noise_test(pca, "red", rows, n_surrogates=99, random_state=i)
        found += test.p_values[0] <= 0.05
    assert 35 <= found <= 65


def test_what_cannot_be_asked() -> None:
    pca = streampca.PCA(3, progress=False).fit(np.random.default_rng(0).normal(size=(40, 9)))
    for wrong, message in (
        ({"kind": "pink"}, "kind='pink'; expected one of"),
        ({"kind": np.ones((40, 9))}, "kind is a ndarray; expected one of"),
        ({"kind": "red"}, r"needs the memory of the data.*'red', X\)"),
        ({"kind": "red", "memory": 1.0}, "memory=1.0; expected"),
        ({"n_features": 10}, "n_features=10"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            streampca.noise_test(pca, **wrong)
    with pytest.raises(InvalidInputError, match="expected EOFs"):
        streampca.noise_test(pca.result_.rotate("varimax", 2))
