"""Matrices with holes, and plain NumPy completions of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca import HardImpute


def with_holes(
    n: int, p: int, rank: int, share: float = 0.3, noise: float = 0.3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(X with NaN in the holes, the whole matrix)."""
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p))
    whole += noise * rng.standard_normal((n, p)) + 2.0
    return np.where(rng.random((n, p)) < share, np.nan, whole), whole


def centred(x: np.ndarray, center: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(z with 0 in the holes, observed, column means)."""
    seen = ~np.isnan(x)
    mean = np.where(seen, x, 0.0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1) * center
    return np.where(seen, x - mean, 0.0), seen, mean


def classic(
    z: np.ndarray,
    seen: np.ndarray,
    rank: int,
    steps: int,
    penalty: float | None = None,
    start: Any = 0.0,
) -> list[np.ndarray]:
    """Iterates of Hard-Impute, or Soft-Impute with a penalty: fill, SVD, cut off or lower."""
    estimate, found = start * np.ones_like(z), []
    for _ in range(steps):
        u, s, vt = np.linalg.svd(np.where(seen, z, estimate), full_matrices=False)
        s = s if penalty is None else np.maximum(s - penalty, 0.0)
        estimate = (u[:, :rank] * s[:rank]) @ vt[:rank]
        found.append(estimate)
    return found


def estimate_of(model: Any) -> np.ndarray:
    """Xhat of a fitted completion, in centred and scaled units."""
    return np.asarray(model.result_.scores @ model.result_.components)


def squares(z: np.ndarray, seen: np.ndarray, estimate: np.ndarray) -> float:
    """The objective."""
    return float(np.sum((z - estimate)[seen] ** 2))


def only_in_scratch(monkeypatch: Any) -> None:
    """Completions keep the factors of their rows in a scratch store."""
    every = HardImpute._candidates
    in_scratch = lambda *arguments: every(*arguments)[-1:]  # noqa: E731
    monkeypatch.setattr(HardImpute, "_candidates", in_scratch)
