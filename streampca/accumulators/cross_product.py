"""X'Y for a few columns Y that lie beside the streamed samples: loadings, Krylov steps."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.errors import InvalidInputError
from streampca.kernels import Array


class CrossProduct(Accumulator):
    """sum over rows of w z y', p x k, with z = (x - center) / scale.

    y is read from the block by name: a side input (scores) or a map's output (X Q). ``center``
    and ``scale`` are operands, also by name; None leaves that step out. Y should sum to zero
    over all rows, or center should be the mean: then the result does not depend on the center.
    ``width`` is the number of columns of Y, for the projection of memory only.
    """

    settings = ("y", "center", "scale", "width")
    fields = ("product",)

    def __init__(
        self, *, y: str, center: str | None = None, scale: str | None = None, width: int = 64
    ) -> None:
        self.y, self.center, self.scale, self.width = y, center, scale, width
        self.product: Any = None  # (p, k) float64

    def update(self, block: Any) -> None:
        self._check(block)
        y = np.asarray(block[self.y])
        if self.product is not None:
            self._check_width(self.product, block.shape[1])
            self._check_width(self.product.T, y.shape[1])
        if self.product is None:
            self.product = np.zeros((block.shape[1], y.shape[1]))
        center = None if self.center is None else block[self.center]
        scale = None if self.scale is None else block[self.scale]
        if block.sparse:
            y = y if block.weights is None else y * block.weights[:, None]
            self.product += block.entries.cross(y, center, scale)
            return
        for tile in block.tiles(block.work_dtype, center=center, scale=scale):
            part = y[tile.start - block.start : tile.stop - block.start].astype(tile.values.dtype)
            if tile.root_weights is not None:
                part = part * tile.root_weights[:, None]
            self.product += tile.values.T @ part

    def merge(self, other: Self) -> None:
        if other.product is not None:
            mine = self.product
            if mine is not None:
                self._check_width(mine, len(other.product))
                self._check_width(mine.T, other.product.shape[1])
            self.product = other.product.copy() if mine is None else mine + other.product

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 2 * shape[1] * self.width * 8  # the sum, and one tile's contribution

    def cross_product(self) -> Array:
        """(p, k) float64, a fresh array."""
        if self.product is None:
            raise InvalidInputError("CrossProduct has seen no block")
        return np.array(self.product)
