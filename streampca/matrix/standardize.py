"""Centring and scaling of columns, and projection of a design out of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array, ColumnStats, add_product, provisional_mean, set_nan, set_zero
from streampca.matrix.block import Block

# Centring and scaling of columns: one record, resolved with the column statistics.

SCALES = (None, "std", "hwe", "eigensoft")
ALLELE_SCALES = ("hwe", "eigensoft")
SLACK = 2.0**-40  # relative; a share such as 0.29 of 100 is the integer 29, not 28.999999999999996


@dataclass(frozen=True)
class Scaling:
    """The scaling of a set of columns; all arrays are (columns,).

    center : subtracted.  scale : divisors, 0 sets the column to 0; None for no scaling.
    constant : True where a column does not vary.  filtered : True where it varies but is excluded
        because it is too rare, too often missing, or has a weight of 0.
    deviation : the divisors without weights; None where ``scale`` has no weights.
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
    maf : columns whose rarer allele is less frequent than this are excluded.
    max_missing : columns with a larger share of missing cells are excluded.
    code_assumed : nobody said which number is missing, or how many copies a call has; counts that
        the assumption contradicts are refused.
    counts : the values have to be allele counts, whatever the scale.
    method : what expects them, for messages; "" = the scale of a fit.
    """

    center: bool = True
    scale: str | None = None
    ddof: int = 1
    ploidy: int = 2
    maf: float = 0.0
    max_missing: float = 1.0
    code_assumed: bool = False
    counts: bool = False
    method: str = ""

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
        """Whether columns may be excluded because of their values."""
        return self.maf > 0.0 or self.max_missing < 1.0

    def resolve(self, stats: ColumnStats, eps: float, weights: Array | None = None) -> Scaling:
        """The scaling of columns with these statistics.

        eps : resolution of the stored values.  weights : (columns,) finite, not negative; they
        multiply the centred and scaled columns, and 0 excludes a column.
        Raises InvalidInputError where "hwe" or "eigensoft" is used on values other than allele
        counts.
        """
        self.refuse_other_counts(stats)
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
            scale = np.where(rounded, 0.0, 1.0)  # columns of rounding only
        if weights is not None:
            filtered |= (weights == 0.0) & ~constant & (stats.count > 0)
            scale = weighted_divisors(scale, weights)
        return Scaling(center, scale, constant, filtered, deviation)

    def _rare(self, stats: ColumnStats) -> Array:
        """Columns whose rarer allele has fewer copies than maf requires, for either allele."""
        copies, most = stats.mean * stats.weight, self.ploidy * stats.weight
        whole = np.rint(copies)  # counts, up to the rounding of the mean; dosages are not rounded
        copies = np.where(np.abs(copies - whole) <= SLACK * most, whole, copies)
        return np.asarray(np.minimum(copies, most - copies) < self.maf * most * (1.0 - SLACK))

    def _constant(self, stats: ColumnStats, eps: float) -> Array:
        """Columns that do not vary; under the allele scalings, columns with a single allele, since
        a column of heterozygotes counts as a variant (and contributes nothing)."""
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
        frequency = stats.mean / self.ploidy
        spread = self.ploidy * frequency * (1.0 - frequency)
        if self.scale == "eigensoft":
            prior = (1.0 + stats.mean * stats.weight) / (2.0 + self.ploidy * stats.weight)
            spread = prior * (1.0 - prior)
        return np.where(constant, 0.0, np.sqrt(np.maximum(spread, 0.0)))

    @property
    def of_counts(self) -> bool:
        """Whether the values have to be allele counts."""
        return self.counts or self.scale in ALLELE_SCALES or self.code_assumed

    @classmethod
    def of_new_counts(
        cls, unstated: bool, scale: str | None = None, ploidy: int | None = None, **others: Any
    ) -> Standardize | None:
        """For ``refuse_block`` of new rows, from the settings of a fit; None of other data.

        unstated : nothing says how many copies their calls have, or which number is missing.
        """
        counts = ploidy is not None  # only fits of genotypes have one
        if not (unstated or counts or scale in ALLELE_SCALES):
            return None
        return cls(
            scale=scale, ploidy=ploidy or 2, code_assumed=unstated, counts=counts, method="the fit"
        )

    def refuse_block(self, block: Block, mean: Array | None = None) -> None:
        """As ``refuse_other_counts``; makes statistics only where the extremes are others.

        mean : (columns,) of the fit, by which some calls of new rows have all copies.
        """
        values = block.values if isinstance(block.values, np.ndarray) else block.values.data
        if values.size:
            low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
            unlike = low < 0 and not low == block.missing_value == -1  # others may lie above -9
            if unlike or high > self.ploidy:
                self.refuse_other_counts(block.stats)
            elif self.code_assumed and high < self.ploidy and mean is not None:
                self._refuse_other_coding(replace(block.stats, mean=mean))

    def refuse_other_counts(self, stats: ColumnStats) -> None:
        """Raise InvalidInputError for columns that hold no allele counts where those are needed.

        Without extremes (NaN) the means are judged.
        """
        if self.code_assumed:
            self._refuse_other_coding(stats)
        if self.counts or self.scale in ALLELE_SCALES:
            self._refuse_other_than_counts(stats)

    def _refuse_other_than_counts(self, stats: ColumnStats) -> None:
        seen = stats.count > 0
        low = np.where(np.isnan(stats.minimum), stats.mean, stats.minimum)
        high = np.where(np.isnan(stats.maximum), stats.mean, stats.maximum)
        bad = np.flatnonzero(seen & ((low < 0) | (high > self.ploidy)))
        if bad.size:
            first = int(bad[0])
            value = low[first] if low[first] < 0 else high[first]
            lost = self.code_assumed and bool(np.any(stats.missing))
            repair = coding_repair(np.min(low[seen]), np.max(high[seen]), self.ploidy, lost)
            if not self.method:
                if self.ploidy < value <= 8 and value == int(value):
                    repair += f" For another ploidy: GenotypePCA(ploidy={value:g})."
                repair += " For other data: PCA(scale='std')."
            raise InvalidInputError(
                f"{self.method or self._fit} expects allele counts from 0 to {self.ploidy}; "
                f"{shorten([f'column {j} of the block' for j in bad[:3]], len(bad))} hold others "
                f"(such as {value:g}). {repair}"
            )

    @property
    def _fit(self) -> str:
        return f"scale={self.scale!r}" if self.scale in ALLELE_SCALES else "GenotypePCA"

    def _refuse_other_coding(self, stats: ColumnStats) -> None:
        """Refuse calls none of which has all copies, where chance would have given some.

        Calls coded -1, 0, 1 look so if -1 is taken for missing, and so do haploid ones.
        """
        seen = stats.count > 0
        if self.ploidy < 2 or not np.all(stats.maximum[seen] <= self.ploidy - 1):
            return
        frequency = np.clip(stats.mean[seen] / self.ploidy, 0.0, 1.0)
        expected = float(stats.count[seen] @ frequency**self.ploidy)
        calls, lost = float(stats.count.sum()), float(stats.missing.sum())
        if expected < (3.0 if lost > 0.1 * (calls + lost) else 15.0):  # exp(-15) = 3e-7
            return
        minus = lost > 0 or np.any(stats.minimum[seen] < 0)
        fit = self.method in ("", "the fit")
        haploid = " Haploid calls: GenotypePCA(ploidy=1)." if fit else ""
        raise InvalidInputError(
            f"none of {calls:.0f} calls is {self.ploidy}, where about {expected:.0f} are expected "
            f"if they have {self.ploidy} copies of an allele"
            + (f", and {lost:.0f} are missing. {MINUS_ONE}" if minus else ".")
            + f"{haploid} If {'-1 is missing' if minus else 'they have'}: "
            "streampca.open(X, missing_value=-1)"
        )


MINUS_ONE = "Calls coded -1, 0, 1 are counts less 1: X + 1."


def coding_repair(low: float, high: float, ploidy: int, assumed: bool = False) -> str:
    """What to do about calls from ``low`` to ``high`` that are no counts from 0 to ``ploidy``.

    assumed : some calls are -1, which was taken for missing.
    """
    if low == -1 and high <= 1:
        return f"{MINUS_ONE} If -1 means missing: streampca.open(X, missing_value=-1)."
    if low >= 1 and high == ploidy + 1:
        return f"Calls coded 1 to {high:g} are counts plus 1: X - 1."
    codes = [value for value in (low, high) if not 0 <= value <= ploidy]
    if assumed:
        codes.insert(0, -1.0)
    if len(codes) == 1:
        return f"If that means missing: streampca.open(X, missing_value={codes[0]:g})."
    several = f"[{', '.join(f'{code:g}' for code in codes)}]"
    return f"If all of these mean missing: X = np.where(np.isin(X, {several}), np.nan, X)."


def weighted_divisors(scale: Array | None, weights: Array) -> Array:
    """(columns,) divisors that also multiply by the weights; 0 where the weight is 0."""
    divisors = np.ones_like(weights) if scale is None else scale
    return np.divide(divisors, weights, out=np.zeros_like(weights), where=weights > 0)


def exceeds(missing: Array, limit: float, cells: Array | int) -> Array:
    """Whether more than ``limit``, a share of the cells, is missing (strictly)."""
    return np.asarray(missing > limit * cells * (1.0 + SLACK))


def constant_columns(stats: ColumnStats, eps: float) -> Array:
    """(columns,) True where the variance is within rounding of zero.

    Equal values, a few of which were rounded the other way, have a root mean square deviation
    below half a unit in the last place, eps |mean| / 2. (Float32 pressures near 101325 Pa have a
    resolution of 0.008 Pa: a deviation of 0.04 Pa is real.)
    """
    spread = np.sqrt(stats.m2 / np.where(stats.weight > 0, stats.weight, 1.0))
    return spread <= 0.5 * eps * np.abs(stats.mean)


# Projection of a design out of the samples of a block.

PIECE_NBYTES = 1 << 20  # float64 values that are processed at a time: they stay in cache
PIECE_COLUMNS = 1024
EXPLAINED = 64 * float(np.finfo(np.float64).eps)  # of a sum of squares: a smaller rest is rounding


def residual_block(block: Block, design: Array, removed: Array | None) -> Block:
    """The block with x - mean - design C in place of x, in the working dtype; holes become NaN.

    design : (rows of this block, r) with weighted columns that sum to 0 and are orthonormal over
        all samples.
    removed : (1 + r, columns of this block), the mean and C; None where features are streamed.
        Every column is then regressed on the design here, over its observed samples, and
        ``block["removed"]`` of the result has the mean and C.

    A column that the design explains up to rounding becomes 0. The arithmetic is float64.
    Cost: 4 r flops for each cell; a column with holes has normal equations of its own, 2 r^2.
    Source: Frisch and Waugh 1933, "Partial time regressions ...", Econometrica 1, 387-401.
    """
    rows, columns = block.shape
    out = np.empty((rows, columns), block.work_dtype)
    arrays = dict(block.arrays)
    if removed is None:
        arrays["removed"] = removed = np.empty((1 + design.shape[1], columns))
        w = np.ones(rows) if block.weights is None else block.weights
        basis = np.column_stack([np.full(rows, 1.0 / np.sqrt(max(w.sum(), 1e-300))), design])
        weighted = np.ascontiguousarray((basis * w[:, None]).T)
        step = max(1, PIECE_NBYTES // (8 * max(rows, 1)))
        for start in range(0, columns, step):
            part = (slice(None), slice(start, start + step))
            out[part], removed[part] = _regress(block, basis, weighted, part)
    else:
        for part in _pieces(rows, columns):
            x, hole = _piece(block, part)
            x -= removed[0, part[1]]
            add_product(x, design[part[0]], -removed[1:, part[1]])
            if hole is not None:
                set_nan(x, hole)
            out[part] = x
    return replace(block, values=out, missing_value=None, hidden=None, arrays=arrays)


def found(block: Block) -> Array:
    """(features of this block, 1 + r) the removed mean and coefficients: a map."""
    return np.asarray(block["removed"].T)


def _pieces(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a block that stay in cache with the coefficients of their columns."""
    step = max(1, PIECE_NBYTES // (8 * PIECE_COLUMNS))
    for first in range(0, columns, PIECE_COLUMNS):
        for start in range(0, rows, step):
            yield slice(start, start + step), slice(first, first + PIECE_COLUMNS)


def _dense(block: Block, part: tuple[slice, slice]) -> Array:
    raw = block.values[part]
    return raw if isinstance(raw, np.ndarray) else np.asarray(raw.toarray())


def _piece(block: Block, part: tuple[slice, slice]) -> tuple[Array, Array | None]:
    """(float64 values, missing cells) of a part of the block."""
    raw = _dense(block, part)
    hole = block.holes_in(raw, part)
    x = raw.astype(np.float64, order="C")
    if hole is not None:
        set_zero(x, hole)
    return x, hole


def _regress(
    block: Block, basis: Array, weighted: Array, part: tuple[slice, slice]
) -> tuple[Array, Array]:
    """(residuals, (1 + r, columns) mean and coefficients) of some whole columns.

    basis : (rows, 1 + r), orthonormal, the constant first.  weighted : its transpose times the
        sample weights.
    """
    raw = _dense(block, part)
    hole: Array | None = None
    with np.errstate(invalid="ignore", over="ignore"):
        shift = provisional_mean(raw, None, block.weights)
        x = np.subtract(raw, shift, dtype=np.float64, order="C")
        coefficients = weighted @ x
    if block.coded or not np.isfinite(coefficients).all():
        hole = block.holes_in(raw, part)
    if hole is None:
        add_product(x, basis, -coefficients)
        after = np.einsum("ij,ij->j", x, x if block.weights is None else block.weights[:, None] * x)
        before = after + np.sum(coefficients[1:] ** 2, axis=0)
    else:
        raw = np.where(hole, 0.0, raw)
        shift = np.sum(raw * ~hole, axis=0) / np.maximum(np.sum(~hole, axis=0), 1)
        w = np.ones(len(raw)) if block.weights is None else block.weights
        x, coefficients, before, after = _regress_observed(raw - shift, ~hole, basis, w)
    root = float(basis[0, 0])  # 1 / sqrt(sum of the weights)
    coefficients[0] = coefficients[0] * root + shift
    stored = (0.5 * block.eps) ** 2 * (before + (coefficients[0] / root) ** 2)
    x[:, after <= np.maximum(stored, EXPLAINED * before)] = 0.0
    if hole is not None:
        set_nan(x, hole)
    return x, coefficients


def _regress_observed(
    x: Array, seen: Array, basis: Array, w: Array
) -> tuple[Array, Array, Array, Array]:
    """(residuals, coefficients, squares before and after) of columns with missing cells.

    Least squares over the observed samples of each column, of minimum norm where these do not
    determine the coefficients.
    """
    size = basis.shape[1]
    cells = seen * w[:, None]
    pairs = (basis[:, :, None] * basis[:, None, :]).reshape(len(w), -1)
    inverse = np.linalg.pinv((cells.T @ pairs).reshape(-1, size, size), 1e-10, hermitian=True)
    x = np.where(seen, x, 0.0)
    mean = np.sum(cells * x, axis=0) / np.maximum(cells.sum(axis=0), 1e-300)
    before = np.sum(cells * (x - mean) ** 2, axis=0)
    coefficients = np.zeros((size, x.shape[1]))
    for _ in range(2):
        slope = np.einsum("jab,jb->aj", inverse, (cells * x).T @ basis)
        x = np.where(seen, x - basis @ slope, 0.0)
        coefficients += slope
    return x, coefficients, before, np.sum(cells * x**2, axis=0)
