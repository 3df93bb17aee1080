"""How columns may have been centred and scaled before the components were computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix import ALLELE_SCALES, SCALES

AUTO = "auto"
IN_WORDS = {
    None: "not scaled",
    "std": "divided by their standard deviations",
    "hwe": "divided by sqrt(2 f (1 - f)), as plink2 --pca",
    "eigensoft": "divided by sqrt(f (1 - f)) with f = (1 + sum) / (2 + 2 n), as smartpca",
}
STILL = 4 * float(np.finfo(np.float64).eps)  # relative deviation of a column that does not vary


@dataclass(frozen=True)
class ColumnSums:
    """Of the columns of a matrix (columns,): weight and mean of the observed cells, and the sum of
    squares about the mean; of calls, alleles per sample."""

    weight: Array
    mean: Array
    squares: Array

    def of(self, part: slice) -> ColumnSums:
        """Of some of the columns."""
        return ColumnSums(self.weight[part], self.mean[part], self.squares[part])

    @property
    def still(self) -> Array:
        """(columns,) True where the values do not vary, but for rounding."""
        return np.asarray(np.sqrt(self.squares) <= STILL * np.sqrt(self.weight) * np.abs(self.mean))


@dataclass(frozen=True)
class Convention:
    """One way to prepare the columns: z = (x - mean) / scale, or x / scale.

    A missing cell holds the mean of its column.
    """

    center: bool
    scale: str | None

    def __str__(self) -> str:
        centred = "centred" if self.center else "not centred"
        joint = "and" if self.center == (self.scale is not None) else "but"
        return f"{centred} {joint} {IN_WORDS[self.scale]}"

    def factors(self, columns: ColumnSums) -> Array:
        """(columns,) by which columns are multiplied, 0 for those that do not vary."""
        still = columns.still if self.center or self.scale else columns.weight <= 0
        return np.where(still, 0.0, reciprocal(self._divisors(columns)))

    def _divisors(self, columns: ColumnSums) -> Array:
        if self.scale is None:
            return np.ones_like(columns.mean)
        if self.scale == "std":
            return np.sqrt(columns.squares / np.maximum(columns.weight - 1.0, 1.0))
        frequency = columns.mean / 2.0
        if self.scale == "eigensoft":
            frequency = (1.0 + columns.mean * columns.weight) / (2.0 + 2.0 * columns.weight)
            return np.sqrt(np.maximum(frequency * (1.0 - frequency), 0.0))
        return np.sqrt(np.maximum(2.0 * frequency * (1.0 - frequency), 0.0))


def conventions(center: bool | str, scale: str | None, calls: bool) -> tuple[Convention, ...]:
    """Those that the statements of a caller leave open, the most usual first.

    center, scale : AUTO where nothing is stated.  calls : the values may be genotype calls.
    Raises InvalidInputError for other values.
    """
    if not (isinstance(center, (bool, np.bool_)) or center == AUTO):
        raise InvalidInputError(f"center={center!r}; expected True, False or 'auto'")
    if scale not in (*SCALES, AUTO):
        raise InvalidInputError(f"scale={scale!r}; expected 'auto' or one of {SCALES}")
    scales = [scale] if scale != AUTO else [*(ALLELE_SCALES if calls else ()), None, "std"]
    centred = [bool(center)] if center != AUTO else [True, False]
    open_ones = (Convention(one, name) for one in centred for name in scales)
    found = [c for c in open_ones if c.center or c.scale not in ALLELE_SCALES]  # those centre
    if not found:
        raise InvalidInputError(f"scale={scale!r} needs center=True: it is about the mean")
    if scale == AUTO and calls:  # nobody divides genotypes that are not centred
        found = [c for c in found if c.center or c.scale is None]
    return tuple(found)
