"""How columns are centred and scaled: one record, resolved where the column statistics are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array, ColumnStats

SCALES = (None, "std", "hwe", "eigensoft")
ALLELE_SCALES = ("hwe", "eigensoft")
SLACK = 2.0**-40  # relative; a share such as 0.29 of 100 is the integer 29, not 28.999999999999996


@dataclass(frozen=True)
class Scaling:
    """What was decided about a set of columns, each (columns,).

    center : subtracted.  scale : divisors, 0 = "this column is 0"; None where nothing is divided.
    constant : True where a column does not vary.  filtered : True where it varies and was left
    out because it is too rare, too often missing, or has a weight of 0.
    deviation : the divisors before weights entered them; None where there are no others.
    """

    center: Array
    scale: Array | None
    constant: Array
    filtered: Array
    deviation: Array | None = None

    @property
    def still(self) -> Array:
        """(columns,) True where the centred and scaled column is 0 everywhere."""
        return self.constant if self.scale is None else self.constant | (self.scale == 0.0)


@dataclass(frozen=True)
class Standardize:
    """z = (x - mean) / scale, missing cells 0.

    center : subtract the mean.
    scale : None; "std" (the standard deviation with ``ddof``); for allele counts from 0 to
        ``ploidy`` with frequency f = mean / ploidy, "hwe": sqrt(ploidy f (1 - f)), the deviation
        under Hardy-Weinberg equilibrium; "eigensoft": sqrt(f (1 - f)) with the frequency
        f = (1 + sum) / (2 + ploidy n) (Patterson, Price and Reich 2006, "Population structure
        and eigenanalysis", eq. 3, and smartpca).
    maf : columns whose rarer allele is less frequent than this are left out.
    max_missing : columns with a larger share of missing cells are left out.
    """

    center: bool = True
    scale: str | None = None
    ddof: int = 1
    ploidy: int = 2
    maf: float = 0.0
    max_missing: float = 1.0

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise InvalidInputError(f"scale={self.scale!r}; expected one of {SCALES}")
        if not self.center and self.scale is not None:
            raise InvalidInputError(f"scale={self.scale!r} needs center=True: it is about the mean")
        if isinstance(self.ploidy, bool) or self.ploidy != int(self.ploidy) or self.ploidy < 1:
            raise InvalidInputError(f"ploidy={self.ploidy!r}; expected 1, 2 or another count")
        if not 0.0 <= self.maf < 0.5:
            raise InvalidInputError(f"maf={self.maf!r}; expected a frequency in [0, 0.5)")
        if not 0.0 <= self.max_missing <= 1.0:
            raise InvalidInputError(f"max_missing={self.max_missing!r}; expected a share in [0, 1]")

    @property
    def filters(self) -> bool:
        """Whether columns may be left out for what they hold."""
        return self.maf > 0.0 or self.max_missing < 1.0

    def resolve(self, stats: ColumnStats, eps: float, weights: Array | None = None) -> Scaling:
        """The scaling of columns with these statistics.

        eps : resolution of the stored values.  weights : (columns,) finite, not negative; they
        multiply the centred and scaled columns, 0 leaves a column out.
        Raises InvalidInputError where "hwe" or "eigensoft" meets values that are no allele counts.
        """
        constant = self._constant(stats, eps)
        center = stats.mean if self.center else np.zeros_like(stats.mean)
        scale = self._divisors(stats, constant)
        filtered = np.zeros_like(constant)
        if self.filters:
            filtered = self._rare(stats) | exceeds(
                stats.missing, self.max_missing, stats.count + stats.missing
            )
            filtered &= ~constant & (stats.count > 0)
            scale = np.where(filtered, 0.0, np.ones_like(center) if scale is None else scale)
        deviation = scale
        if scale is None and self.center and np.any(rounded := constant & (stats.m2 > 0.0)):
            scale = np.where(rounded, 0.0, 1.0)  # values of rounding alone
        if weights is not None:
            filtered |= (weights == 0.0) & ~constant & (stats.count > 0)
            scale = weighted_divisors(scale, weights)
        return Scaling(center, scale, constant, filtered, deviation)

    def _rare(self, stats: ColumnStats) -> Array:
        """Columns whose rarer allele has less copies than maf asks, the same for both alleles."""
        copies, most = stats.mean * stats.weight, self.ploidy * stats.weight
        whole = np.rint(copies)  # counts, but for the rounding of the mean; dosages stay
        copies = np.where(np.abs(copies - whole) <= SLACK * most, whole, copies)
        return np.asarray(np.minimum(copies, most - copies) < self.maf * most * (1.0 - SLACK))

    def _constant(self, stats: ColumnStats, eps: float) -> Array:
        """Columns that do not vary; under the allele scalings those of one allele alone, since a
        column of heterozygotes counts among the variants (and adds nothing)."""
        if self.scale not in ALLELE_SCALES:
            return constant_columns(stats, eps)
        return (stats.mean <= 0.0) | (stats.mean >= self.ploidy)

    def _divisors(self, stats: ColumnStats, constant: Array) -> Array | None:
        if self.scale is None:
            return None
        if self.scale == "std":
            freedom = stats.weight - self.ddof
            variance = stats.m2 / np.where(freedom > 0, freedom, 1.0)
            return np.where(constant | (freedom <= 0), 0.0, np.sqrt(variance))
        self._refuse_other_than_counts(stats)
        frequency = stats.mean / self.ploidy
        spread = self.ploidy * frequency * (1.0 - frequency)
        if self.scale == "eigensoft":
            prior = (1.0 + stats.mean * stats.weight) / (2.0 + self.ploidy * stats.weight)
            spread = prior * (1.0 - prior)
        return np.where(constant, 0.0, np.sqrt(np.maximum(spread, 0.0)))

    def _refuse_other_than_counts(self, stats: ColumnStats) -> None:
        seen = stats.count > 0
        low = np.where(np.isnan(stats.minimum), stats.mean, stats.minimum)
        high = np.where(np.isnan(stats.maximum), stats.mean, stats.maximum)
        bad = np.flatnonzero(seen & ((low < 0) | (high > self.ploidy)))
        if bad.size:
            first = int(bad[0])
            value = low[first] if low[first] < 0 else high[first]
            raise InvalidInputError(
                f"scale={self.scale!r} expects allele counts from 0 to {self.ploidy}; "
                f"{shorten([f'column {j} of the block' for j in bad[:3]], len(bad))} hold others "
                f"(such as {value:g}). If that means missing, say missing_value={value:g}; for "
                "another ploidy, ploidy=; for other data, scale='std'."
            )


def weighted_divisors(scale: Array | None, weights: Array) -> Array:
    """(columns,) divisors that also multiply by the weights; 0 where the weight is 0."""
    divisors = np.ones_like(weights) if scale is None else scale
    return np.divide(divisors, weights, out=np.zeros_like(weights), where=weights > 0)


def exceeds(missing: Array, limit: float, cells: Array | int) -> Array:
    """Whether more than that share of the cells is missing; exactly that share is not more."""
    return np.asarray(missing > limit * cells * (1.0 + SLACK))


def constant_columns(stats: ColumnStats, eps: float) -> Array:
    """(columns,) True where the variance is within rounding of zero.

    Values that are all equal but for a few that were rounded the other way have a root mean
    square deviation below half a unit in the last place, eps |mean| / 2. (Float32 pressures near
    101325 Pa have a resolution of 0.008 Pa: a deviation of 0.04 Pa is real.)
    """
    spread = np.sqrt(stats.m2 / np.where(stats.weight > 0, stats.weight, 1.0))
    return spread <= 0.5 * eps * np.abs(stats.mean)
