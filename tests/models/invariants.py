"""What must hold for every fitted model of the tests."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_invariants(model: Any, X: Any, tolerance: float = 1e-10) -> None:
    """V'V = I, cov(Z) = Lambda, error = sum of the dropped eigenvalues, to rounding.

    X : the training matrix in memory, float64, already standardised as the model does.
    """
    v, variance = model.components_, model.explained_variance_
    k, n, ddof = len(v), len(X), model.result_.ddof
    np.testing.assert_allclose(v @ v.T, np.eye(k), atol=tolerance)
    centred = X - X.mean(axis=0) if model.result_.settings.get("center", True) else X
    z = centred @ v.T
    scale = variance.max()
    np.testing.assert_allclose(z.T @ z / (n - ddof), np.diag(variance), atol=tolerance * scale)
    left = np.sum((centred - z @ v) ** 2) / (n - ddof)
    dropped = model.result_.total_variance - variance.sum()
    np.testing.assert_allclose(left, dropped, atol=tolerance * model.result_.total_variance * k)
    assert np.all(np.diff(variance) <= 1e-12 * scale)


def same(found: Any, expected: np.ndarray, atol: float = 1e-8) -> None:
    """Up to the signs of the columns."""
    found = np.asarray(found)
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=atol * np.abs(expected).max())
