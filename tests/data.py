"""Matrices whose factors are known: rows of random scores on planted factors, noise and means."""

from __future__ import annotations

from typing import Any

import numpy as np


def planted(
    n: int,
    p: int,
    k: int = 5,
    *,
    factors: Any = None,
    noise: Any = 0.3,
    mean: Any = None,
    holes: float = 0.0,
    seed: Any = 0,
) -> np.ndarray:
    """n rows of p features; scores are standard normal.

    factors (k, p) : normal by default, the first three times as strong as the last.
    noise : standard deviation, also by feature.  mean : uniform between -9 and 9 by default.
    holes : the share of NaN.  seed : or the generator that the factors were drawn from.
    """
    rng = np.random.default_rng(seed)
    if factors is None:
        factors = rng.standard_normal((k, p)) * np.linspace(3, 1, k)[:, None]
    X = rng.standard_normal((n, len(factors))) @ factors + noise * rng.standard_normal((n, p))
    X += rng.uniform(-9, 9, p) if mean is None else mean
    if holes:
        X[rng.random((n, p)) < holes] = np.nan
    return X


def simple_factors(k: int, p: int, rng: np.random.Generator) -> np.ndarray:
    """(k, p): every feature has one large loading, so that no factor is that of a feature alone."""
    loadings = 0.3 * rng.normal(size=(p, k))
    loadings[np.arange(p), np.arange(p) % k] += 1.5
    return loadings.T
