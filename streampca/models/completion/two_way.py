"""Alternating centring and scaling of rows and columns with holes: means 0, mean squares 1.

x_ij = a_i + b_j + t_i g_j z_ij. In one pass the effects of the lines are found given those across,
and with them new ones across, until these stay what they are. What can be moved between rows and
columns lies with the columns: the a_i have mean 0, and the t_i geometric mean 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import TwoWayStep
from streampca.kernels import Array
from streampca.store import MemorySink

ROWS = ("row_center", "row_scale")
COLUMNS = ("center", "scale")
SAVED = (*COLUMNS, *ROWS, "still", "changes", "largest")


class TwoWay:
    """The effects of rows and columns, updated by every turn.

    center, scale : (p,) b and g.  row_center, row_scale : (n,) a and t.
    changes : of each turn, relative to what the effects leave of the data.
    still : (p,) True for columns of which nothing is left.  largest : |z| of the last turn.
    """

    def __init__(self, shape: tuple[int, int], axis: int, scaled: bool) -> None:
        n, p = shape
        self.axis, self.scaled = axis, scaled
        self.center, self.scale = np.zeros(p), np.ones(p)
        self.row_center, self.row_scale = np.zeros(n), np.ones(n)
        self.still = np.zeros(p, bool)
        self.largest: Any = 0.0
        self.changes: Any = np.zeros(0)

    def sink(self) -> MemorySink:
        """The sink of a turn, for the effects of its lines."""
        return MemorySink(len(self.center if self.axis else self.row_center), 3)

    def standardisation(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """(operands, side inputs) by which blocks are standardised."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        rows = {name: getattr(self, name) for name in ROWS}
        return (columns | rows, {}) if self.axis else (columns, rows)

    def take(
        self, step: TwoWayStep, lines: Array, eps: float, weights: Array | None = None
    ) -> None:
        """Update the effects with the result of a turn.

        lines : (lines, 3) as its sink has them.  weights : (n,) of the samples, or None.
        """
        here, across = (COLUMNS, ROWS) if self.axis else (ROWS, COLUMNS)
        center, scale = (getattr(self, name) for name in across)
        found = step.across(center, scale, eps)
        still = found.still
        if self.axis:
            still = (lines[:, 2] < 2) | (self.scaled & (lines[:, 1] == 1.0))
        for name, value in zip(here, lines.T, strict=False):
            setattr(self, name, np.array(value))
        for name, value in zip(across, (found.center, found.scale), strict=True):
            setattr(self, name, value)
        seen = (step.table[6] if self.axis else lines[:, 2]) > 0
        self._move_to_columns(seen, seen * (1.0 if weights is None else weights))
        self.still, self.largest = still, step.largest
        self.changes = np.append(self.changes, found.change)

    def _move_to_columns(self, seen: Array, weights: Array) -> None:
        """Normalise the effects: row centers of mean 0, row scales of geometric mean 1."""
        mean = float(np.average(self.row_center, weights=weights)) if weights.any() else 0.0
        self.row_center[seen] -= mean
        self.center = self.center + mean
        spread = weights * (self.row_scale != 1.0)
        logs = np.log(self.row_scale)
        factor = float(np.exp(np.average(logs, weights=spread))) if spread.any() else 1.0
        self.row_scale = self.row_scale / factor
        self.scale = self.scale * factor

    def state(self) -> dict[str, Array]:
        """The state that the next turn needs."""
        return {name: np.asarray(getattr(self, name)) for name in SAVED}

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from such a state."""
        for name in SAVED:
            setattr(self, name, np.array(state[name]))

    def directions(self, found: Array) -> Array:
        """(m, width) directions of the original data, turned into directions of the residuals.

        Their part along a pattern that is common to all lines is removed.
        """
        over = 1.0 / (self.row_scale if self.axis else self.scale)
        alike = over * (self.row_center if self.axis else 1.0)
        turned = found * over[:, None]
        size = float(alike @ alike)
        if size > 0:
            turned = turned - np.outer(alike, alike @ turned / size)
        q, upper = np.linalg.qr(turned)
        left = np.abs(np.diagonal(upper))
        return np.asarray(q[:, left > 1e-6 * float(left.max(initial=1e-300))])
