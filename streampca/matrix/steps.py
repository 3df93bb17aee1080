"""Steps of preprocessing that change values: logarithms, weights of features, scales of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.kernels import Array
from streampca.matrix.chunked_matrix import ChunkedMatrix
from streampca.matrix.derived import Derivation, DerivedMatrix, Function, Scale
from streampca.matrix.preprocessing import RowSums, Step


@dataclass(frozen=True)
class Logarithm(Step, kind="log1p"):
    """log(1 + x) times ``factor`` (1 / log(base) for another base than e)."""

    factor: float = 1.0

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return _after(self, matrix, Function("log1p", self.factor))


@dataclass(frozen=True)
class FeatureWeights(Step, kind="feature weights"):
    """Every feature times its weight.

    weights : (p,) found in the rows of the fit.  name : of the method.
    """

    weights: Array
    name: str

    @property
    def width(self) -> int:
        return len(self.weights)

    @property
    def fitted(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.name} weights of {self.width} features"

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        return _after(self, matrix, Scale(self.weights, 1))


@dataclass(frozen=True)
class RowTotals(Step, kind="row totals"):
    """Every row times target / its sum; a row of zeros stays.

    from_rows : the target is the median of the sums of the fit.
    """

    target: float
    from_rows: bool = False

    @property
    def fitted(self) -> bool:
        return self.from_rows

    def __str__(self) -> str:
        return f"rows of total {self.target:g}"

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        sums = row_sums(matrix, False)
        return _after(self, matrix, Scale(self.target / np.where(sums == 0, self.target, sums), 0))


@dataclass(frozen=True)
class RowLengths(Step, kind="rows of length 1"):
    """Every row divided by its Euclidean length; a row of zeros stays."""

    def apply(self, matrix: ChunkedMatrix, row_sums: RowSums) -> ChunkedMatrix:
        lengths = np.sqrt(row_sums(matrix, True))
        return _after(self, matrix, Scale(1.0 / np.where(lengths > 0, lengths, 1.0), 0))


def _after(step: Step, matrix: ChunkedMatrix, derivation: Derivation) -> ChunkedMatrix:
    """The matrix after a step, which its labels remember."""
    made = DerivedMatrix(matrix, derivation)
    made.labels = replace(made.labels, preprocessing=made.preprocessing.then(step))
    return made
