"""Scores of all samples by a pass of their own, where the solver does not give them on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streampca.accumulators import FeatureProjection, RowMissing
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.projection import Projection
from streampca.models.results.row_maps import RowOptions, RowPasses
from streampca.passes import Running, easier_axis


def project_all(
    result: PrincipalComponents, everyone: ChunkedMatrix, options: RowOptions, running: Running
) -> tuple[Array, Array]:
    """(scores (n, k), missing calls (n,)) of all samples.  options : for such rows."""
    projection = Projection.of(result, RowOptions(missing="mean"))
    if result.n_samples == everyone.shape[0]:
        projection = replace(projection, counts=None)  # the fit has looked at these calls
    passes = RowPasses(everyone, options, running, result.kept_nbytes)
    if easier_axis(everyone) == 1:
        operands, settings = projection.operands()
        parts = {"scores": FeatureProjection(**settings), "rows": RowMissing()}
        done = passes.fold("transform", 1, parts, operands)
        return done["scores"].projected(), done["rows"].counts()
    both = ScoresAndHoles(projection)
    values = passes.mapped("transform", both).in_memory(both.width)
    return values[:, :-1].copy(), values[:, -1].astype(np.int64)


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
        """Scratch of the projection and of the joined columns."""
        beside = self.projection.scratch_nbytes(matrix)
        return lambda length: beside(length) + 8 * self.width * length
