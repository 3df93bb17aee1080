"""Arrays beside the matrix of one fit: weights and designs, bound to its rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.by_name import root_cosine_of_latitude, weights_along
from streampca.models.design import Design
from streampca.models.named_columns import named_column, removable, with_columns


@dataclass(frozen=True)
class SideData:
    """Arrays of one fit, None where there are none.

    weights : (p,) multiply the centred and scaled features.
    sample_weight : (n,) how often each sample counts.
    design : what is projected out of the samples.  basis : (n, r) its columns, of weighted sum 0
        and orthonormal under the sample weights.
    """

    weights: Array | None = None
    sample_weight: Array | None = None
    design: Design | None = None
    basis: Array | None = None

    @property
    def rank(self) -> int:
        """r, what the design takes from the degrees of freedom of the samples."""
        return 0 if self.basis is None else int(self.basis.shape[1])

    def count(self, n: int) -> float:
        """Sum of the weights of n samples."""
        return float(n) if self.sample_weight is None else float(self.sample_weight.sum())


NOTHING = SideData()


def side_data(
    matrix: ChunkedMatrix, *, weights: Any = None, remove: Any = None, sample_weight: Any = None
) -> SideData:
    """The arrays that these parameters mean for a matrix.

    Text names a column of its samples or features. Cost: those columns are read.
    """
    labels = matrix.labels
    weights = feature_weights(weights, matrix)
    samples = sample_weights(sample_weight, matrix)
    if remove is None:
        return SideData(weights, samples)
    remove = with_columns(remove, removable(matrix), len(labels.samples))
    design, basis = Design.fit(remove, labels.samples, samples)
    if not design.rank:  # one month alone: nothing but the mean
        return SideData(weights, samples)
    n = len(labels.samples) if samples is None else int(np.count_nonzero(samples))
    if n <= 1 + design.rank:
        raise InvalidInputError(
            f"remove= takes {design.rank} independent columns and the mean out of {n} samples, and "
            "nothing would be left; expected more samples, or fewer columns"
        )
    return SideData(weights, samples, design, basis)


def feature_weights(weights: Any, matrix: ChunkedMatrix) -> Array | None:
    """(p,) from "coslat", an array, a DataArray over feature dimensions, or a column's name."""
    if isinstance(weights, str) and weights == "coslat":
        return root_cosine_of_latitude(matrix.labels.features)
    return _along(matrix, 1, "weights", "'coslat' or an array", weights)


def sample_weights(weights: Any, matrix: ChunkedMatrix) -> Array | None:
    """(n,) from an array, a DataArray over sample dimensions, or the name of a column."""
    return _along(matrix, 0, "sample_weight", "an array of (n_samples,)", weights)


def _along(
    matrix: ChunkedMatrix, axis: int, name: str, expected: str, weights: Any
) -> Array | None:
    """Weights of one axis; None where there are none.  name, expected : for messages."""
    if weights is None:
        return None
    labels = matrix.labels.features if axis else matrix.labels.samples
    if not isinstance(weights, str):
        return weights_along(weights, labels, name)
    values = named_column(matrix, axis, name, expected, weights)
    return weights_along(values, labels, f"{name}={weights!r}")
