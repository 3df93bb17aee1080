"""A product of the observed cells with random vectors: where an iteration over ratings begins."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.kernels import Array

PRIOR = 5.0


class ObservedPower(Accumulator):
    """S Q with S = Z'Z (samples streamed) or ZZ' (features), Z 0 in all cells not observed.

    The operand "q" (m, width) has random columns. Nothing is known of the matrix yet: where
    ``center``, columns are centred by their mean in the block, drawn towards that of all columns
    as if PRIOR cells had held it; as the start of an iteration that does no harm.

    Cost: 4 width flops per observed cell.
    Source: Halko, Martinsson and Tropp 2011, SIAM Review 53(2), section 4.5, one power.
    """

    settings = ("streamed", "width", "center")
    fields = ("product",)

    def __init__(self, *, streamed: int, width: int, center: bool) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.width, self.center = width, center
        self.product: Any = None  # (m, width) float64

    def update(self, block: Any) -> None:
        self._check(block)
        q, observed = block["q"], block.observed
        if self.product is None:
            self.product = np.zeros((len(q), self.width))
        z = observed.data.astype(np.float64)
        if self.center and len(z):
            z -= z.mean()
            stats = observed.stats
            share = stats.count / (stats.count + PRIOR)
            z -= (share * (stats.mean - observed.data.mean(dtype=np.float64)))[observed.columns]
        entries = observed.entries(z)
        entries.two_products(q, self.product, np.zeros(self.width))

    def merge(self, other: Self) -> None:
        if other.product is not None:
            self._check_width(self.product, len(other.product))
            mine = self.product
            self.product = other.product.copy() if mine is None else mine + other.product

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[1 - self.streamed] * self.width * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 2 * block_length * self.width * 8

    def directions(self) -> Array:
        """(m, width) orthonormal, leading ones first."""
        return np.asarray(np.linalg.svd(self.product, full_matrices=False)[0])
