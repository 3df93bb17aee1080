"""How columns are centred and scaled: one record, resolved where the column statistics are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, ColumnStats

SCALES = (None, "std")


@dataclass(frozen=True)
class Standardize:
    """z = (x - mean) / scale, missing cells 0.

    center : subtract the mean.  scale : None, or "std" (the standard deviation with ``ddof``).
    """

    center: bool = True
    scale: str | None = None
    ddof: int = 1

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InvalidInputError(f"scale={self.scale!r}; expected one of {SCALES}")

    def resolve(self, stats: ColumnStats, eps: float) -> tuple[Array, Array | None, Array]:
        """(center, scale, constant) for columns with these statistics, each (columns,).

        eps : resolution of the stored values. Constant columns get scale 0, which a block
        reads as "this column is 0"; ``scale`` is None where nothing is scaled.
        """
        constant = constant_columns(stats, eps)
        center = stats.mean if self.center else np.zeros_like(stats.mean)
        if self.scale is None:
            return center, None, constant
        freedom = stats.weight - self.ddof
        variance = stats.m2 / np.where(freedom > 0, freedom, 1.0)
        return center, np.where(constant | (freedom <= 0), 0.0, np.sqrt(variance)), constant


def constant_columns(stats: ColumnStats, eps: float) -> Array:
    """(columns,) True where the variance is within rounding of zero.

    Values of one size |mean| that differ by rounding alone have a root mean square deviation
    of at most a few eps |mean|.
    """
    spread = np.sqrt(stats.m2 / np.where(stats.weight > 0, stats.weight, 1.0))
    return spread <= 4.0 * eps * np.abs(stats.mean)
