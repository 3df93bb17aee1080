"""Scores of samples that were not fitted, and how many of their calls are missing: one map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.projection import Projection


@dataclass(frozen=True)
class ScoresAndHoles:
    """(rows, k + 1) scores and number of missing calls of a block of samples: a map."""

    projection: Projection

    def __call__(self, block: Block) -> Array:
        return np.hstack([self.projection(block), block.row_missing[:, None]], dtype=np.float64)

    @property
    def width(self) -> int:
        """k + 1."""
        return len(self.projection.components) + 1

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Of the projection, and of the columns that are put together."""
        beside = self.projection.scratch_nbytes(matrix)
        return lambda length: beside(length) + 8 * self.width * length
