"""What the pictures are made of, and what was drawn."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

N, P, K = 60, 12, 5
NAMES = [f"gene_{i}$_x$" for i in range(P)]  # two $ would be set as mathematics
GROUPS = np.array(["_north", "south", "west"])[np.arange(N) % 3]


def points(ax: Any) -> np.ndarray[Any, Any]:
    """Drawn points of all collections of a 2-D scatter, in the order of their first column."""
    drawn = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    return drawn[np.argsort(drawn[:, 0])]


def in_order(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values[np.argsort(values[:, 0])]


def saved(ax: Any, kind: str = "png") -> int:
    held = io.BytesIO()
    ax.figure.savefig(held, format=kind)
    return len(held.getvalue())
