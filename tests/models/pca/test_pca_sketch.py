"""One look: every value is bounded, and what needs a second look is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import streampca.passes.blocks as plan_module
from streampca import PCA
from streampca.errors import AccuracyWarning, InvalidInputError


def matrix(n: int, p: int, decay: float, seed: int, shift: float = 3.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    k = min(n, p)
    z = rng.standard_normal((n, k)) * (1 + np.arange(k)) ** -decay
    return np.asarray(z @ np.linalg.qr(rng.standard_normal((p, k)))[0].T + shift * rng.random(p))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("decay", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("shape", [(900, 120), (200, 300), (30, 8)])
def test_every_value_and_angle_is_bounded(shape, decay, dtype, monkeypatch):
    monkeypatch.setattr(plan_module, "BLOCK_NBYTES", 1 << 14)
    for seed in range(2):
        x = matrix(*shape, decay, seed).astype(dtype)
        x[:: 1 + seed] += 2.0  # blocks differ in their means
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = PCA(4, svd_solver="sketch").fit(x)
        _check_told(model, told)
        z = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
        _, s, vt = np.linalg.svd(z, full_matrices=False)
        true = s[:4] ** 2 / (len(x) - 1)
        bound = model.certificate_.variance_bound
        assert np.all(np.abs(model.explained_variance_ - true) <= bound)
        assert np.all(model.explained_variance_ <= true * (1 + 1e-5))
        inside = np.abs(np.sum(model.components_ * vt[:4], axis=1))
        angle = np.arccos(np.minimum(inside, 1.0))
        assert np.all(angle <= model.certificate_.angle_bound + 1e-7)
        np.testing.assert_allclose(
            model.result_.total_variance, np.sum(s**2) / (len(x) - 1), rtol=1e-6
        )
        assert len(model.cost_) == 1


def _check_told(model, told):
    """A warning names the components whose bound says nothing, and no others."""
    free = [str(i + 1) for i in np.flatnonzero(model.certificate_.angle_bound >= 1.5)]
    said = [str(one.message) for one in told if one.category is AccuracyWarning]
    assert len(said) == bool(free)
    if free:
        assert f"{len(free)} of 4 components undetermined: component {'; '.join(free)}." in said[0]
        assert "solver='randomized'" in said[0]


def test_a_flat_tail_is_told_and_what_stands_apart_is_not():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 150))
    x[:, :2] *= [40.0, 25.0]
    x = x @ np.linalg.qr(rng.standard_normal((150, 150)))[0]
    with pytest.warns(AccuracyWarning, match="component 3; 4; 5. .* n_components=2") as told:
        PCA(5, svd_solver="sketch").fit(x)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PCA(2, svd_solver="sketch").fit(x)


def test_low_rank_data_lose_nothing():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 6)) @ rng.standard_normal((6, 200))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PCA(6, svd_solver="sketch").fit(x)
    exact = PCA(6, svd_solver="tsqr").fit(x)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(model.components_, exact.components_, atol=1e-7)
    assert model.certificate_.angle_bound.max() < 1e-4


def test_sample_weights_are_repeated_rows():
    x = matrix(120, 30, 1.0, 1)
    counts = np.random.default_rng(2).integers(1, 4, 120)
    weighted = PCA(3, svd_solver="sketch").fit(x, sample_weight=counts)
    repeated = PCA(3, svd_solver="tsqr").fit(np.repeat(x, counts, axis=0))
    np.testing.assert_allclose(
        weighted.explained_variance_, repeated.explained_variance_, rtol=1e-10
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"scale": "std"},
        {"missing": "mean"},
        {"weights": np.ones(30)},
        {"remove": np.arange(60.0)[:, None]},
        {"n_components": 0.9},
    ],
    ids=str,
)
def test_what_needs_a_second_look_is_refused(settings):
    with pytest.raises(InvalidInputError, match="sketch"):
        PCA(**{"n_components": 3, "svd_solver": "sketch", **settings}).fit(matrix(60, 30, 1.0, 0))
