"""What is put into every accumulator: a matrix, its holes, weights, and arrays beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.matrix import work_dtype

Values = dict[str, tuple[Any, Any]]  # name -> (value, magnitude of what was summed)


@dataclass(frozen=True)
class Data:
    """A matrix, its missing cells and weights, and the arrays that lie beside it."""

    x: np.ndarray
    missing: np.ndarray
    weights: np.ndarray

    @property
    def y(self) -> np.ndarray:
        return np.random.default_rng(1).normal(size=(len(self.x), 3))

    def u(self, axis: int) -> np.ndarray:
        """Factors of the streamed lines, as wide as q."""
        return np.random.default_rng(2).normal(size=(self.x.shape[axis], self.q(axis).shape[1]))

    @property
    def operands(self) -> dict[str, np.ndarray]:
        p = self.x.shape[1]
        rng = np.random.default_rng(p)
        square = np.linalg.qr(rng.normal(size=(p, p)))[0] if p else np.zeros((0, 0))
        scale = 1.0 + rng.random(p)
        scale[p // 2 :][:1] = 0.0  # a constant feature
        return {
            "components": square[: min(2, p)],
            "center": rng.normal(size=p),
            "scale": scale,
            "weighted": square[: min(2, p)].T,
            "loadings": square[: min(2, p)].T + 0.5,
            "noise": np.where(np.arange(p) == 1, 0.0, 0.5 + np.arange(p)),
            "inverse_noise": np.arange(p) / max(p, 1),
            "queries": np.random.default_rng(p + 1).normal(size=(3, p)),
            "numbers": np.full(3, -1),
            "origin": np.full(p, 3.0),
            "table": np.outer(1.0 + np.arange(p), [1.0, -0.5, 0.0]),
        }

    @property
    def columns(self) -> np.ndarray:
        """(p, 6) loadings, centre, noise, what they leave, weight seen: of streamed columns."""
        o = self.operands
        rest = 1.0 + np.arange(self.x.shape[1])
        return np.column_stack([o["loadings"], o["center"], o["noise"], rest, 2.0 * rest])

    def q(self, axis: int) -> np.ndarray:
        """(m, 2) a block of vectors on the axis that is not streamed."""
        return np.random.default_rng(2).normal(size=(self.x.shape[1 - axis], 2))

    def beside(self, axis: int, part: slice) -> dict[str, np.ndarray]:
        """What lies beside a block of these streamed lines."""
        q = self.q(axis).astype(work_dtype(self.x.dtype))
        factors = {"q": q, "v": q, "old": q, "new": q + 0.25, "turn": 0.5 * q}
        sides = {"y": self.y[part]} if axis == 0 else {"columns": self.columns[part]}
        return {**self.operands, **factors, **sides, "u_old": self.u(axis)[part]}

    def filled(self, center: Any = None, scale: Any = None) -> np.ndarray:
        """(x - center) / scale in float64, missing cells 0, rows times sqrt(weight)."""
        z = np.where(self.missing, 0.0, self.x.astype(np.float64))
        if center is not None:
            z = z - center
        if scale is not None:
            z = z * np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)
        return np.where(self.missing, 0.0, z) * np.sqrt(self.weights)[:, None]

    def column_weights(self) -> np.ndarray:
        return (self.weights[:, None] * ~self.missing).sum(axis=0)

    def mean(self) -> np.ndarray:
        seen = self.column_weights()
        x = np.where(self.missing, 0.0, self.x.astype(np.float64))
        return (self.weights @ x) / np.where(seen > 0, seen, 1.0)


def data(seed: int, n: int, p: int, dtype: str = "float64", offset: float = 3.0) -> Data:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, size=(n, p), endpoint=True).astype(dtype)
    else:
        x = (rng.normal(size=(n, p)) + offset).astype(dtype)
    return Data(x, np.zeros((n, p), dtype=bool), np.ones(n))
