"""Products of a kernel matrix, which is never stored, with a few vectors."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.kernels import Array, each, row_pieces, zeros

TILE = 256  # rows of the panel in a tile, which stays in cache
ROWS = 1024  # rows of a block in a tile


class TileKernel(Protocol):
    """What makes tiles of a kernel matrix from rows."""

    def prepared(self, rows: Array) -> Array:
        """Rows as ``tile`` takes them."""

    def tile(self, x: Array, y: Array, left: Array, right: Array) -> Array:
        """(len(x), len(y)) values; left, right : squared lengths of the rows."""


class KernelStep(Accumulator):
    """K V for the kernel matrix K of all rows, tile by tile: computed, multiplied and dropped.

    Operands: ``panel`` (w, p), consecutive rows from ``first`` on, shifted and prepared;
    ``lengths`` (n,) squared lengths of all rows; ``vectors`` V (n, width); ``shift`` (p,).
    Blocks of the rows from ``first`` on give the columns of the panel, and by symmetry its rows: a
    tile of earlier rows of the panel with rows of the block is used twice, with their own once.
    All panels together give K V, (n, width) float64. Sums over a tile are in the dtype of V.
    measure : also the sum of the squares of K.
    n, w : for the projection of memory.
    """

    settings = ("kernel", "first", "width", "n", "w", "measure")
    fields = ("product", "squares")
    reuses = "product"

    def __init__(
        self, *, kernel: TileKernel, first: int, width: int, n: int, w: int, measure: bool = False
    ) -> None:
        self.kernel, self.first, self.width = kernel, first, width
        self.n, self.w, self.measure = n, w, measure
        self.product: Any = None
        self.squares = 0.0

    def update(self, block: Any) -> None:
        self._check(block)
        if self.product is None:
            self.product, self._spare = zeros(block["vectors"].shape, spare=self._spare), None
        panel, shift = block["panel"], block["shift"]
        rows = np.asarray(block.dense(), panel.dtype) - shift.astype(panel.dtype)
        rows, last = self.kernel.prepared(rows), self.first + len(panel)
        within = min(max(last - block.start, 0), len(rows))
        for part in row_pieces(within, 1, ROWS):
            start = block.start + part.start
            self._add(block, rows[part], start, start)
        for part in row_pieces(len(rows) - within, 1, ROWS):
            start = within + part.start
            self._add(block, rows[start : within + part.stop], block.start + start, last)

    def _add(self, block: Any, rows: Array, start: int, last: int) -> None:
        """The tiles of some rows of the block, from ``start`` on, with the panel's before ``last``,
        and with themselves if they are in the panel."""
        panel, vectors, stop = block["panel"], block["vectors"], start + len(rows)
        lengths = block["lengths"].astype(rows.dtype)
        columns = [
            slice(self.first + one.start, self.first + one.stop)
            for one in row_pieces(last - self.first, 1, TILE)
        ]
        twice = len(columns)
        if start < self.first + len(panel):
            columns += [
                slice(start + one.start, start + one.stop) for one in row_pieces(len(rows), 1, TILE)
            ]
        images = np.empty((len(columns), len(rows), vectors.shape[1]), vectors.dtype)
        squares = np.zeros(len(columns))

        def tile(number: int) -> None:
            part = columns[number]
            y = panel[part.start - self.first : part.stop - self.first]
            values = self.kernel.tile(rows, y, lengths[start:stop], lengths[part])
            np.matmul(values, vectors[part], out=images[number])
            if number < twice:
                self.product[part] += values.T @ vectors[start:stop]
            if self.measure:
                own = np.einsum("ij,ij->i", values, values)
                squares[number] = (1 + (number < twice)) * own.sum(dtype=np.float64)

        each(tile, range(len(columns)))
        for image in images:  # in one order, whichever thread computed them
            self.product[start:stop] += image
        self.squares += float(squares.sum())

    def merge(self, other: Self) -> None:
        if other.product is None:
            return
        if self.product is None:
            self.product = zeros(other.product.shape)
        self.product += other.product
        self.squares += other.squares

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 8 * self.n * self.width

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        tiles, rows = -(-self.w // TILE) + 2, min(block_length, ROWS)
        images = 8 * tiles * rows * self.width
        return images + 8 * (2 * block_length * shape[1] + 2 * rows * TILE + self.n)
