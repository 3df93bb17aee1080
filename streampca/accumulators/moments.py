"""Count, mean, second moment, minimum, maximum and missing cells of every column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats, add_exactly

NAMES = ("count", "missing", "weight", "mean", "m2", "minimum", "maximum", "mean_low")


class Moments(Accumulator):
    """Column moments along either axis. NaN and missing codes are counted, not used.

    Merged pairwise about the mean. Source: Chan, Golub and LeVeque 1983, "Algorithms for
    computing the sample variance", eq. 2.1.
    """

    axis = None
    fields = ("starts", "table")

    def __init__(self) -> None:
        self.parts: dict[int, ColumnStats] = {}  # first column -> statistics from there on

    def update(self, block: Any) -> None:
        if block.axis == 0 or block.length:  # no columns: no part of its own
            self._take(block.columns.start, block.stats)

    def merge(self, other: Self) -> None:
        for start, stats in other.parts.items():
            self._take(start, stats)

    def _take(self, start: int, stats: ColumnStats) -> None:
        mine = self.parts.get(start)
        if mine is not None and len(mine.mean) != len(stats.mean):
            raise InvalidInputError(f"Moments of {len(mine.mean)} columns, now {len(stats.mean)}")
        self.parts[start] = stats if mine is None else combine(mine, stats)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * len(NAMES) * 8 * shape[1]

    # -- results ----------------------------------------------------------------------------

    def columns(self) -> ColumnStats:
        """Everything, one entry per column, fresh arrays."""
        ordered = [self.parts[start] for start in sorted(self.parts)]
        if not ordered:
            raise InvalidInputError("Moments has seen no block")
        return ColumnStats(*(np.concatenate([getattr(s, n) for s in ordered]) for n in NAMES))

    def mean(self) -> Array:
        """(p,) mean of the observed cells; 0 where there is none."""
        return self.columns().mean

    def variance(self, ddof: int = 1) -> Array:
        """(p,) variance of the observed cells."""
        seen = self.columns()
        freedom = seen.weight - ddof
        return np.where(freedom > 0, seen.m2 / np.where(freedom > 0, freedom, 1.0), np.nan)

    # -- state: one table instead of a field per segment ---------------------------------------

    @property
    def starts(self) -> Array:
        return np.array([(s, len(self.parts[s].mean)) for s in sorted(self.parts)], dtype=np.int64)

    @property
    def table(self) -> Array | None:
        if not self.parts:
            return None
        seen = self.columns()
        return np.stack([getattr(seen, name).astype(np.float64) for name in NAMES])

    def from_state(self, state: Mapping[str, Array]) -> Self:
        restored = self.blank()
        self._check_state(state)
        offset = 0
        for start, length in np.asarray(state["starts"]).reshape(-1, 2):
            rows = np.array(state["table"])[:, offset : offset + length]
            integers = [rows[i].astype(np.int64) for i in range(2)]
            restored.parts[int(start)] = ColumnStats(*integers, *rows[2:])
            offset += length
        return restored


def combine(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    """Statistics of two disjoint sets of rows (Chan, Golub, LeVeque 1983)."""
    weight = a.weight + b.weight
    safe = np.where(weight > 0, weight, 1.0)
    delta = (b.mean - a.mean) + (b.mean_low - a.mean_low)
    first = a.weight > 0
    mean, low = add_exactly(a.mean, a.mean_low + np.where(first, delta * b.weight / safe, 0.0))
    mean, low = np.where(first, mean, b.mean), np.where(first, low, b.mean_low)
    m2 = a.m2 + b.m2 + delta**2 * a.weight * b.weight / safe
    return ColumnStats(
        a.count + b.count,
        a.missing + b.missing,
        weight,
        mean,
        m2,
        np.minimum(a.minimum, b.minimum),
        np.maximum(a.maximum, b.maximum),
        low,
    )
