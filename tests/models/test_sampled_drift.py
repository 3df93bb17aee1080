"""Two fits against what their samples make: probabilities that are uniform without a change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampca import PCA
from streampca.errors import AccuracyWarning
from streampca.models.results.sampled_drift import SampledDrift, sampled_drift

K = 3
FAMILIES: dict[str, tuple[Any, int, int, int]] = {  # variances, rows of both, shared
    "apart": (np.r_[[9, 5, 3], np.ones(27)], 400, 400, 0),
    "nested": (np.r_[[9, 5, 3], np.ones(27)], 400, 500, 400),
    "wide": (np.r_[[80, 50, 30], np.ones(197)], 100, 120, 100),
    "unequal": (np.r_[[12, 8, 5], 2 * 0.9 ** np.arange(37)], 150, 1500, 0),
}


def drift_of(X: Any, Y: Any, shared: int = 0) -> SampledDrift:
    old, new = (PCA(K, progress=False).fit(rows).result_ for rows in (X, Y))
    return sampled_drift(old, new, shared)


def probabilities(family: str, times: int) -> Any:
    variances, first, second, shared = FAMILIES[family]
    rng, p = np.random.default_rng(3), len(variances)
    found = []
    for _ in range(times):
        X = rng.normal(size=(first + second - shared, p)) * np.sqrt(variances)
        one = drift_of(X[:first], X[:second] if shared else X[first:], shared)
        found.append(
            [one.span_p, one.spectrum_p, one.rest_p, one.mean_p, one.mean_rest_p, *one.angle_p]
        )
    return np.array(found)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_change_one_in_twenty_is_below_a_twentieth(family: str) -> None:
    found = probabilities(family, 500)
    print(family, (found < 0.05).mean(axis=0).round(3), np.median(found, axis=0).round(2))
    assert np.all((found < 0.05).mean(axis=0) < 0.09)
    kept = np.ones(found.shape[1], bool)
    kept[2] = family != "wide"  # the rest of a wide sample says little, and its test knows that
    assert np.all(np.abs(np.median(found, axis=0) - 0.5)[kept] < 0.18)


@pytest.mark.slow
def test_without_a_change_few_are_small() -> None:
    assert np.all((probabilities("nested", 60) < 0.05).mean(axis=0) < 0.15)


def test_a_change_is_found_and_told_from_others() -> None:
    variances, n, _, _ = FAMILIES["apart"]
    rng, p = np.random.default_rng(0), len(variances)
    X, Y = (rng.normal(size=(n, p)) * np.sqrt(variances) for _ in range(2))
    turned = np.eye(p)
    turned[[0, 0, 9, 9], [0, 9, 0, 9]] = np.cos(0.7), np.sin(0.7), -np.sin(0.7), np.cos(0.7)
    moved = np.zeros(p)
    moved[1], moved[20] = 1.0, 1.0
    larger = np.where(np.arange(p) == 2, 1.5, 1.0)
    same = drift_of(X, Y)
    assert min(same.span_p, same.spectrum_p, same.rest_p, same.mean_p, same.mean_rest_p) > 0.01
    assert drift_of(X, Y @ turned).span_p < 1e-6
    assert drift_of(X, Y @ turned).angle_p[0] < 1e-6
    other = drift_of(X, Y + moved)
    assert max(other.mean_p, other.mean_rest_p) < 1e-6
    assert min(other.span_p, other.spectrum_p) > 0.01
    assert drift_of(X, Y * larger).spectrum_p < 1e-6
    assert drift_of(X, Y * np.where(np.arange(p) > 2, 1.1, 1.0)).rest_p < 1e-6
    assert same.krzanowski == pytest.approx(same.krzanowski_expected, abs=0.1)
    assert np.isnan(drift_of(X, X, shared=n).span_p)  # nothing is left to chance
    plane = rng.normal(size=(2, p))
    with pytest.warns(AccuracyWarning, match="rank 2"):
        assert np.isnan(drift_of(X[:, :2] @ plane, Y[:, :2] @ plane).spectrum_p)
