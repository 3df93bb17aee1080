"""Distances from a few points to their nearest rows, among all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array

PIECE_NBYTES = 8 << 20  # of differences that are computed at once
ROUNDING = 1e-9  # of squared lengths: more than products of 10^6 features are off by


class NearestDistances(Accumulator):
    """Squared distances from every query to its ``nearest`` rows, ascending, (m, nearest) float64.

    Operands: ``queries`` (m, p) float64; ``numbers`` (m,) of the rows that they are, which do not
    count as their own neighbours, or -1; ``origin`` (p,) is taken off both: little cancels then.
    Candidates of a block come from |x|^2 + |q|^2 - 2 x'q; distances of those that may be among
    the nearest are then computed again from the differences. inf where there are fewer rows.
    A hole counts as the origin; rows of weight 0 do not count.
    m : queries.  features : p. Both for the projection of memory.
    """

    settings = ("nearest", "m")
    fields = ("squares", "features")

    def __init__(self, *, nearest: int, m: int = 1000) -> None:
        self.nearest, self.m = nearest, m
        self.squares: Any = None
        self.features: Any = None  # p

    def update(self, block: Any) -> None:
        self._check(block)
        queries, numbers, origin = block["queries"], block["numbers"], block["origin"]
        self._check_seen(block.shape[1])
        queries = queries - origin
        lengths = np.einsum("ij,ij->i", queries, queries)
        counts = block.weights is None or block.weights > 0
        for tile in replace(block, weights=None).tiles(np.dtype(np.float64), center=origin):
            rows = tile.values
            apart = queries @ rows.T
            apart *= -2.0
            apart += (squares := np.einsum("ij,ij->i", rows, rows))
            apart += lengths[:, None]
            own = np.flatnonzero((numbers >= tile.start) & (numbers < tile.start + len(rows)))
            apart[own, numbers[own] - tile.start] = np.inf
            if counts is not True:
                apart[:, ~counts[tile.start - block.start : tile.stop - block.start]] = np.inf
            rounding = ROUNDING * (lengths + squares.max(initial=0.0))
            self._take(self._exact(apart, queries, rows, rounding))

    def _exact(self, apart: Array, queries: Array, rows: Array, rounding: Array) -> Array:
        """(m, at most nearest) squared distances of the candidates, from their differences."""
        count = min(self.nearest, apart.shape[1])
        chosen = np.argpartition(apart, count - 1, axis=1)[:, :count]
        found, near = np.full(chosen.shape, np.inf), np.take_along_axis(apart, chosen, 1)
        limit = np.inf if self.squares is None else (self.squares[:, -1] + rounding)[:, None]
        i, j = np.nonzero(np.isfinite(near) & (near <= limit))  # inf: the query itself, or no row
        step = max(1, PIECE_NBYTES // (8 * rows.shape[1]))
        for first in range(0, len(i), step):
            a, b = i[first : first + step], j[first : first + step]
            differences = rows[chosen[a, b]]
            differences -= queries[a]
            found[a, b] = np.einsum("ij,ij->i", differences, differences)
        return found

    def _take(self, found: Array) -> None:
        """Keep the smallest of what is known and what was found."""
        known = (
            np.full((len(found), self.nearest), np.inf) if self.squares is None else self.squares
        )
        both = np.concatenate([known, found], axis=1)
        self.squares = np.sort(both, axis=1)[:, : self.nearest]

    def merge(self, other: Self) -> None:
        if other.squares is not None:
            self._check_seen(other.features)
            self._take(other.squares)

    def _check_seen(self, features: int) -> None:
        if self.features not in (None, features):
            raise InvalidInputError(
                f"NearestDistances has seen {self.features} features, and these rows have "
                f"{features}"
            )
        self.features = features

    def nearest_squares(self) -> Array:
        """(m, nearest) squared distances, a fresh array."""
        if self.squares is None:
            raise self._nothing_seen()
        return np.array(self.squares)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * self.m * self.nearest

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        p, stride = shape[1], 8 * shape[1]
        rows = min(block_length, max(1, (4 << 20) // stride, min(512, (64 << 20) // stride)))
        pairs = 2 * max(PIECE_NBYTES, 8 * p) + 64 * self.m * self.nearest
        return 8 * (self.m * p + rows * (3 * self.m + p)) + pairs
