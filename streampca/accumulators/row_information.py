"""What streamed columns, with their loadings just found, say of the factors of every row."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.posterior import pair_columns

BESIDE = 4  # columns of the table beside the loadings: centre, noise, what is left, weight seen


class RowInformation(Accumulator):
    """The E step of a linear Gaussian model whose columns stream, holes left out.

    ``block["columns"]``, a map, is (columns, width + BESIDE): loadings, centre, noise (0 = left
    out), summed squares that the loadings leave, and the weight of the observed cells. The operand
    "scale" (p,) standardises where it is given. Summed for every row over the columns that it
    observes: w w' / noise, w z / noise, z^2 / noise, log(noise) and 1; rows come times the root of
    their weight, in z and z^2 alone. Arithmetic is float64.
    width : k, for the projection of memory only.
    """

    axis = 1
    settings = ("width",)
    fields = ("information", "b", "squares", "logs", "seen", "rest", "cells")

    def __init__(self, *, width: int = 8) -> None:
        self.width = width
        self.information: Any = None  # (n, k (k + 1) / 2) packed
        self.b: Any = None  # (n, k)
        self.squares: Any = None  # (n,)
        self.logs: Any = None  # (n,)
        self.seen: Any = None  # (n,) columns that the row observes
        self.rest = 0.0  # sum over columns of what their loadings leave
        self.cells = 0.0  # sum of the weights of all observed cells

    def update(self, block: Any) -> None:
        self._check(block)
        self._check_width(self.b, block.shape[0])
        columns = block["columns"]
        n, k = block.shape[0], columns.shape[1] - BESIDE
        if self.b is None:
            self.information, self.b = np.zeros((n, k * (k + 1) // 2)), np.zeros((n, k))
            self.squares, self.logs, self.seen = np.zeros(n), np.zeros(n), np.zeros(n)
        noise, scale = columns[:, k + 1], block.arrays.get("scale")
        used = noise > 0
        inverse = np.divide(1.0, noise, out=np.zeros_like(noise), where=used)
        logs = np.log(noise, out=np.zeros_like(noise), where=used)
        weighted = columns[:, :k] * inverse[:, None]
        pairs = pair_columns(columns[:, :k] * np.sqrt(inverse)[:, None])
        self.rest += float(columns[used, k + 2].sum())
        self.cells += float(columns[used, k + 3].sum())
        scale = None if scale is None else scale[block.columns]
        for tile in block.tiles(np.dtype(np.float64), center=columns[:, k], scale=scale):
            here = slice(tile.start - block.start, tile.stop - block.start)
            z = tile.values
            self.b += z @ weighted[here]
            self.squares += z**2 @ inverse[here]
            if tile.mask is None:
                self.information += pairs[here].sum(axis=0)
                self.logs += logs[here].sum()
                self.seen += np.count_nonzero(used[here])
                continue
            observed = (~tile.mask).astype(np.float64)
            self.information += observed @ pairs[here]
            self.logs += observed @ logs[here]
            self.seen += observed @ used[here]

    def merge(self, other: Self) -> None:
        if other.b is None:
            return
        self._check_width(self.b, len(other.b))
        self.rest += other.rest
        self.cells += other.cells
        for name in self.fields[:5]:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs.copy() if mine is None else mine + theirs)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        k = self.width
        return shape[0] * (k * (k + 1) // 2 + k + 3) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        n, k = shape[0], self.width
        columns = min(block_length, max(4 * 2**20 // (8 * n), min(512, 64 * 2**20 // (8 * n)), 1))
        tables = block_length * (k * (k + 1) + 3 * k + 2 * BESIDE) * 8
        systems = columns * ((k + 1) * (k + 3) + k * (k + 1)) * 8  # of the map before
        return 4 * n * columns * 8 + tables + systems + n * (k * (k + 1) // 2 + k) * 8

    # -- results ----------------------------------------------------------------------------

    def sums(self) -> tuple[Array, Array, Array, Array, Array]:
        """Fresh arrays: information (n, k (k + 1) / 2), b (n, k), squares, logs and seen (n,)."""
        if self.b is None:
            raise InvalidInputError("RowInformation has seen no block")
        first, *rest = (np.array(getattr(self, name)) for name in self.fields[:5])
        return first, rest[0], rest[1], rest[2], rest[3]
