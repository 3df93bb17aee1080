"""The centred scatter matrix S = sum w (x - mean)(x - mean)', p x p."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from streampca.accumulators.base import (
    OPEN_BLOCKS,
    Accumulator,
    divisor_of,
    joint_missing,
    refuse_impossible_missing,
    refuse_impossible_scatter,
    refuse_other_rows,
    refuse_partly_missing,
    squares_vanish,
)
from streampca.errors import InvalidInputError
from streampca.kernels import (
    PROBES,
    SUM_LENGTH,
    Array,
    add_exactly,
    add_in_place,
    lower_product,
    norm_estimate,
    probe_vectors,
    probed_product,
    rank_k_update,
    rank_one_update,
    symmetrize,
    zeros,
)
from streampca.kernels.columns import line_keys

MEAN = 8.0 * float(np.finfo(np.float64).eps)  # rounding of sums of tiles, added pairwise
FOLDING = 4.0 * float(np.finfo(np.float64).eps)  # rounding of an entry when a part is folded in
NARROW = 32  # columns up to which rows are summed in float64: reading them costs more


@dataclass
class _Part:
    """Sums that are folded into the scatter: of a span, or of another settled Scatter.

    product : (p, p) lower, about the mean; of a span about its shift, hence larger by
        total total' / weight.
    probed : (p, PROBES) the same times H.
    mean_error : (p,) bound of the error of the mean.
    total : (p,) of a span, sum w (x - shift).
    """

    weight: float
    mean: Array
    low: Array
    product: Array
    probed: Array
    mean_error: Array
    total: Array | None = None


class Scatter(Accumulator):
    """Scatter of streamed samples about the mean, or X'X with ``center=False``.

    Within a span the rows are shifted by the mean of some evenly spread rows of its first block,
    and summed in the working dtype (float32 for float32 and small integers, float64 for up to
    NARROW columns). Spans are merged in float64 about their means (Chan, Golub and LeVeque 1983).
    A drift of the mean inside a span costs at most a factor OPEN_BLOCKS of the working precision,
    because the first block is part of the span. The rounding error of the sums is measured
    (:mod:`streampca.kernels.columns`): :meth:`rounding`.

    A column must be entirely observed or entirely missing; anything else raises NonFiniteError.
    (:class:`MeanImputedScatter` fills holes with means.)
    """

    reuses = "_product"
    settings: ClassVar[tuple[str, ...]] = ("center",)
    fields = (
        "count",
        "weight",
        "mean",
        "mean_low",
        "missing",
        "s",
        "slack",
        "forgotten",
        "probed",
        "mean_error",
        "drift",
        "varies",
    )

    def __init__(self, *, center: bool = True) -> None:
        self.center = center
        self.count = 0  # rows
        self.weight = 0.0  # sum of their weights
        self.mean: Any = None  # (p,) sum w x / weight
        self.mean_low: Any = None  # (p,) rounding error of the mean, to be added to it
        self.missing: Any = None  # (p,) missing cells
        self.s: Any = None  # (p, p) float64, lower triangle: sum w (x-mean)(x-mean)'
        self.slack = 0.0  # bound of the rounding error in any entry of s
        self.forgotten = 0.0  # the slack when rows were last removed: that of larger sums
        self.probed: Any = None  # (p, PROBES) s H in short sums
        self.mean_error: Any = None  # (p,) bound of the error of the mean
        self.varies: Any = None  # 1 where rows vary so little that squares underflow, or None
        self.drift = 0.0  # bound of the norm of the error in s due to errors of means
        self._reopen()

    def _reopen(self) -> None:
        self._blocks = 0
        self._open_weight = 0.0
        self._shift: Any = None  # (p,) working dtype
        self._fixed: Any = None  # (p,) columns whose shift is chosen
        self._total: Any = None  # (p,) sum w (x - shift)
        self._product: Any = None  # (p, p) lower: sum w (x-shift)(x-shift)'
        self._probed: Any = None  # (p, PROBES) the same times H

    def update(self, block: Any) -> None:
        self._check(block)
        p = block.shape[1]
        self._check_width(self.mean if self.mean is not None else self._shift, p)
        dtype = np.dtype(np.float64) if p <= NARROW else block.work_dtype
        full = self._blocks >= OPEN_BLOCKS  # settled only now: a whole span then stays float32
        if full or (self._product is not None and self._product.dtype != dtype):
            self.settle()
        if self._product is None:
            self._shift, self._total = np.zeros(p, dtype), np.zeros(p)
            self._fixed = np.full(p, not self.center)
            self._product, self._spare = zeros((p, p), dtype, self._spare), None
            self._probed = np.zeros((p, PROBES))
        if self.missing is None:
            self.missing = np.zeros(p, dtype=np.int64)
        if block.length == 0:
            return
        self._choose_shift(block, dtype)
        hole = np.zeros(p, dtype=np.int64)
        h = probe_vectors(p)
        for tile in block.tiles(dtype, center=self._shift):
            rank_k_update(self._product, tile.values, rows=True)
            if squares_vanish(self._product, tile.values):
                self.varies = 1
            self._probed += probed_product(tile.values, h, rows=True)
            self._total += tile.sums
            if tile.mask is not None:
                hole += np.count_nonzero(tile.mask, axis=0)
        self.missing += hole
        self.count += block.length
        self._open_weight += block.total_weight
        self._blocks += 1
        refuse_partly_missing(self.missing, self.count, block)

    def _choose_shift(self, block: Any, dtype: np.dtype[Any]) -> None:
        """Fix the shift of columns seen for the first time in this span: the block's mean."""
        if self._fixed.all():
            return
        mean, seen = block.shift()
        fresh = ~self._fixed & seen
        self._shift[fresh] = mean[fresh].astype(dtype)
        self._fixed |= fresh

    def settle(self) -> None:
        if self._product is not None:
            self._fold(self._open())
        self._reopen()

    def _open(self) -> _Part:
        """The open span, with a bound of the error of its mean.

        Tiles add SUM_LENGTH rows in the dtype of the span, then pairwise in float64. The sum of
        absolute values of a column is bounded by its sum of squares.
        """
        weight = self._open_weight
        mean, low = add_exactly(self._shift.astype(np.float64), self._total / (weight or 1.0))
        unit = SUM_LENGTH * float(np.finfo(self._product.dtype).eps) / 2 + MEAN
        squares = np.diagonal(self._product).astype(np.float64)
        error = unit * np.sqrt(np.where(squares > 0.0, squares, 0.0) / (weight or 1.0))
        return _Part(weight, mean, low, self._product, self._probed, error, self._total)

    def _closed(self) -> _Part:
        """The settled sums."""
        return _Part(self.weight, self.mean, self.mean_low, self.s, self.probed, self.mean_error)

    def merge(self, other: Self) -> None:
        self.settle()
        width = other.mean if other.mean is not None else other._shift
        if width is None:
            return
        self._check_width(self.mean, len(width))
        count = self.count + other.count
        missing = joint_missing(self.missing, other.missing, count)
        if other.mean is not None and other.s is not None:
            self._fold(other._closed())
        self.slack += other.slack
        self.varies = self.varies or other.varies
        self.forgotten += other.forgotten
        self.drift += other.drift
        if other._product is not None:
            self._fold(other._open())
        self.count, self.missing = count, missing

    @np.errstate(over="ignore", invalid="ignore")  # the solver checks for overflow
    def _fold(self, part: _Part) -> None:
        """Add a part, about the mean of all rows."""
        if self.s is None:
            self.s, self.probed = zeros(part.product.shape), np.zeros_like(part.probed)
            self.mean_error = np.zeros(len(part.mean))
        self.probed = self.probed + part.probed
        if self.weight == 0:
            self.mean, self.mean_low = part.mean.copy(), part.low.copy()
        add_in_place(self.s, part.product)
        if part.total is not None:
            self._measure(part)
        if part.weight <= 0:
            return
        delta = (part.mean - self.mean) + (part.low - self.mean_low)
        joint = self.weight + part.weight
        if self.center:
            if part.total is not None:
                self._add_rank_one(part.total, -1.0 / part.weight)
                self._add_drift(part.total / part.weight, part.mean_error, part.weight)
            link = self.weight * part.weight / joint
            self._add_rank_one(delta, link)
            if link and squares_vanish(self.s, delta):
                self.varies = 1
            self._add_drift(delta, self.mean_error + part.mean_error, link)
        self.slack += FOLDING * float(np.diagonal(self.s).max(initial=0.0))
        self.mean_error = (self.weight * self.mean_error + part.weight * part.mean_error) / joint
        step = self.mean_low + delta * (part.weight / joint)
        self.mean, self.mean_low = add_exactly(self.mean, step)
        self.weight = joint

    def _measure(self, span: _Part) -> None:
        """Add the rounding error of a span's sums to the bound for any entry."""
        with np.errstate(invalid="ignore"):
            error = lower_product(span.product, probe_vectors(len(span.product))) - span.probed
        self.slack += float(norm_estimate(error).max(initial=0.0))

    def _add_drift(self, delta: Array, error: Array, weight: float) -> None:
        """Bound the effect of an error of delta when weight delta delta' is added or subtracted."""
        if not np.isfinite(error).all():  # the solver checks for overflow
            return
        self.slack += 2.0 * weight * float(np.abs(delta).max() * error.max(initial=0.0))
        self.drift += 2.0 * weight * float(np.linalg.norm(delta) * np.linalg.norm(error))

    def _add_rank_one(self, x: Array, alpha: float) -> None:
        rank_one_update(self.s, x, alpha)
        self.probed += np.multiply.outer(alpha * x, x @ probe_vectors(len(x)))

    def forget(self, other: Scatter) -> float:
        """Remove rows that were added before; the inverse of ``merge``.

        Returns the loss: an upper estimate of the error of any entry after the subtraction,
        relative to the largest remaining variance. It is the rounding of both sums, which is small
        relative to them but may be large relative to the remainder (inf: nothing remains known).

        Raises InvalidInputError, and changes nothing, where the sums show that these rows are not
        among those that were added: more rows, weight or missing cells than there are; as many
        rows with another mean or scatter; or a remainder that no rows can have, beyond rounding: a
        negative variance, of a feature or (up to 4096 features) of any direction, or (up to 2048)
        more directions than rows. The sums cannot show it where many similar rows remain: a few
        rows that were never added, or were removed before, are then subtracted from the others.
        The caller must keep account of the rows.

        Cost: p^2 flops, and p^3 / 3 for the directions of up to 4096 features (4/3 p^3 for up to
        2048, where no more rows than features remain).
        """
        self.settle()
        gone = other.copied()
        gone.settle()
        if gone.s is None or gone.mean is None or gone.count == 0:
            return 0.0
        left, rows = self.weight - gone.weight, self.count - gone.count
        nothing = 1e-9 * self.weight  # weights were summed in another order
        everything = rows == 0 and abs(left) <= nothing
        self._refuse_more(gone, everything or (rows > 0 and left > nothing))
        delta = (gone.mean - self.mean) + (gone.mean_low - self.mean_low)
        diagonal = np.diagonal(self.s)
        largest = float(diagonal.max(initial=0.0))
        mean_error = self.mean_error + gone.mean_error
        error = self.slack + gone.slack + FOLDING * len(delta) * largest
        if everything:
            apart = np.maximum(np.abs(delta) - mean_error, 0.0)
            refuse_other_rows(self.s - gone.s, apart, self.weight, error)
            self._clear()
            return 0.0
        # the removed mean is at a distance delta weight / left from the remaining mean
        link = gone.weight * self.weight / left if self.center else 0.0
        error += 2.0 * link * float(np.abs(delta).max() * mean_error.max(initial=0.0))
        mean_error *= self.weight / left
        step = self.mean_low - delta * (gone.weight / left)
        mean, mean_low = add_exactly(self.mean, step)
        remaining = self.s - gone.s  # about the remaining mean, whether that is taken off or not
        rank_one_update(remaining, delta, -link)
        removal_error = 0.0
        if not self.center:
            rank_one_update(remaining, mean, -left)
            removal_error = 2.0 * left * float(np.abs(mean).max() * mean_error.max(initial=0.0))
        refuse_impossible_scatter(remaining, rows, error + removal_error)
        self.probed = self.probed - gone.probed
        self.s -= gone.s
        self._add_rank_one(delta, -link)
        np.fill_diagonal(self.s, np.maximum(np.diagonal(self.s), 0.0))
        self.mean, self.mean_low, self.missing = mean, mean_low, self.missing - gone.missing
        self.weight, self.count, self.slack = left, rows, error
        self.forgotten, self.mean_error = error, mean_error
        self.drift += gone.drift
        after = float(np.max(np.diagonal(self.s), initial=0.0))
        return error / (after - error) if after > error else np.inf  # nothing is known of it

    def _refuse_more(self, gone: Scatter, possible: bool) -> None:
        """Raise where rows, weight, columns or missing cells are to go that are not there.

        possible : whether so many rows and so much weight are.
        """
        if self.s is None or self.mean is None or gone.count > self.count:
            raise InvalidInputError(f"cannot forget {gone.count} of {self.count} rows")
        if gone.center != self.center:
            raise InvalidInputError(
                f"cannot forget sums with center={gone.center} from sums with center={self.center}"
            )
        self._check_width(self.mean, len(gone.mean))
        if not possible:
            raise InvalidInputError(
                f"cannot forget {gone.count} rows of weight {gone.weight:.6g}: there are "
                f"{self.count} of weight {self.weight:.6g}"
            )
        refuse_impossible_missing(self.missing - gone.missing, self.count - gone.count)

    def _clear(self) -> None:
        """No rows any more."""
        self.count, self.weight = 0, 0.0
        self.slack = self.forgotten = self.drift = 0.0
        self.mean = self.mean_low = self.missing = self.s = None
        self.probed = self.mean_error = self.varies = None

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        p = shape[1]
        return p * p * 8 + (7 + 2 * PROBES) * p * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        p = shape[1]
        return p * p * (8 if p <= NARROW else itemsize) + (6 + 2 * PROBES) * p * 8

    def state(self) -> dict[str, Array]:
        """As of any accumulator; above the diagonal of ``s`` are zeros, however it was summed."""
        state = super().state()
        for i, row in enumerate(state.get("s", ())):
            row[i + 1 :] = 0.0
        return state

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        summed = {"mean", "mean_low", "missing", "s", "probed", "mean_error"}
        if "s" in state and (absent := summed - state.keys()):
            raise InvalidInputError(f"sums of {type(self).__name__} lack {sorted(absent)}")

    # -- results ----------------------------------------------------------------------------

    def lower(self) -> Array:
        """(p, p) float64 with the lower triangle valid: the state itself, not a copy."""
        self.settle()
        if self.s is None:
            raise self._nothing_seen()
        return np.asarray(self.s)

    def rounding(self) -> Array | None:
        """(p, PROBES) float64 E H: the error E of the sums times the random vectors H.

        None of sums from which a design was eliminated.
        """
        lower = self.lower()
        if self.probed is None:
            return None
        with np.errstate(invalid="ignore"):
            return np.asarray(lower_product(lower, probe_vectors(len(lower))) - self.probed)

    def scatter(self) -> Array:
        """(p, p) float64 symmetric: sum w (x - mean)(x - mean)'."""
        settled = self.copied()
        return symmetrize(settled.lower())

    def covariance(self, ddof: int = 1) -> Array:
        """(p, p) scatter / (sum of weights - ddof)."""
        scatter = self.scatter()
        scatter /= divisor_of(self.weight + self._open_weight, ddof)
        return scatter


class FoldScatter(Scatter):
    """The scatter of one fold: of rows that a hash of their number puts there.

    fold : its number, of ``folds``.  Those of all folds merge into the scatter of all rows.
    """

    settings = ("center", "fold", "folds")

    def __init__(self, *, center: bool = True, fold: int = 0, folds: int = 1) -> None:
        self.fold, self.folds = fold, folds
        super().__init__(center=center)

    def update(self, block: Any) -> None:
        self._check(block)
        keys = line_keys(np.arange(block.start, block.stop), 0, 0)
        rows = np.flatnonzero(keys % np.uint32(self.folds) == self.fold)
        super().update(replace(block.take_rows(rows), start=0, stop=len(rows)))

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 8 * block_length * shape[1]  # a copy of the rows of a fold
