"""The contract of every accumulator, open sums, and checks before rows are removed."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import FILL, InvalidInputError, NonFiniteError
from streampca.kernels import Array, add_in_place, zeros

# An accumulator is a summary of the rows seen so far that is far smaller than they are:
# ``update`` takes in a block, ``merge`` another accumulator of the same settings, and named
# results are computed when read. To add one, write a class with ``settings`` and ``fields``,
# put it into ``tests/accumulators/law_cases.py``, and every law is checked for it.

OPEN_BLOCKS = 16  # float32 sums are folded into float64 after at most this many blocks


class Accumulator(ABC):
    """Base class. State is plain attributes named in ``fields``: arrays, numbers or None.

    Results raise InvalidInputError where no block has been seen.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import Accumulator, Block
    >>> class Cells(Accumulator):
    ...     fields = ("cells",)
    ...     cells = 0
    ...     merge = Accumulator.merge_sums
    ...     def update(self, block):
    ...         self.cells += block.length * block.shape[1]
    ...     def projected_nbytes(self, shape, itemsize):
    ...         return 8
    >>> first, second = Cells(), Cells()
    >>> for cells, start in ((first, 0), (second, 3)):
    ...     cells.update(Block(np.ones((3, 2)), axis=0, start=start, stop=start + 3))
    >>> first.merge(second)
    >>> first.cells
    12
    """

    settings: ClassVar[tuple[str, ...]] = ()  # constructor arguments
    fields: ClassVar[tuple[str, ...]] = ()  # what ``state`` saves
    axis: ClassVar[int | None] = 0  # the streamed axis that it needs; None: either
    makes: ClassVar[tuple[str, ...]] = ()  # arrays that ``update`` adds to the block, for sinks
    reuses: ClassVar[str | None] = None  # name of the large array that ``emptied`` passes on
    _spare: Any = None  # a large array to overwrite

    @abstractmethod
    def update(self, block: Any) -> None:
        """Add one block. The block is not kept."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the rows that ``other`` has seen. ``other`` is not changed."""

    @abstractmethod
    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        """Upper bound of the bytes of one instance for a matrix of this shape.

        itemsize : of the working dtype.
        """

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        """Upper bound of the bytes of an instance that holds one span only."""
        return self.projected_nbytes(shape, itemsize)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Bytes that ``update`` needs in addition to the state and one tile."""
        return 0

    def settle(self) -> None:  # noqa: B027  (most accumulators have nothing open)
        """Fold the open float32 sums of the current span into the float64 state."""

    def blank(self, **changed: Any) -> Self:
        """An empty accumulator of the same settings, but for those that are changed."""
        return type(self)(**{name: getattr(self, name) for name in self.settings} | changed)

    def emptied(self) -> Self:
        """An empty accumulator that may reuse the large array of this one, which is discarded."""
        fresh = self.blank()
        if self.reuses is not None:
            fresh._spare = getattr(self, self.reuses)
        return fresh

    def copied(self) -> Self:
        """A copy that shares no array."""
        return copy.deepcopy(self)

    def state(self) -> dict[str, Array]:
        """The settled state as named arrays, in the shapes of its fields; None is left out."""
        settled = self.copied()
        settled.settle()
        pairs = ((name, getattr(settled, name)) for name in self.fields)
        return {name: np.asarray(value) for name, value in pairs if value is not None}

    def from_state(self, state: Mapping[str, Array]) -> Self:
        """An accumulator with these settings and that state. Raises InvalidInputError: shapes."""
        restored = self.blank()
        self._check_state(state)
        for name, value in state.items():
            array = np.array(value)
            setattr(restored, name, array[()].item() if array.ndim == 0 else array)
        return restored

    def _check(self, block: Any) -> None:
        if self.axis is not None and block.axis != self.axis:
            wanted = ("samples", "features")[self.axis]
            raise InvalidInputError(f"{type(self).__name__} needs blocks of {wanted}")

    def _check_state(self, state: Mapping[str, Array]) -> None:
        if unknown := set(state) - set(self.fields):
            raise InvalidInputError(f"{type(self).__name__} has no fields {sorted(unknown)}")

    def merge_sums(self, other: Self) -> None:
        """The ``merge`` of an accumulator whose fields are sums, each of one shape."""
        self._join(other, *self.fields)

    def _join(self, other: Self, *names: str) -> None:
        """Add the sums of these names that ``other`` has; None stands for no sum yet."""
        sums = [(name, getattr(self, name), getattr(other, name)) for name in names]
        for _, mine, theirs in sums:
            if not (mine is None or theirs is None or np.shape(mine) == np.shape(theirs)):
                raise InvalidInputError(
                    f"{type(self).__name__} has seen width {np.shape(mine)}, and the other "
                    f"{np.shape(theirs)}"
                )
        for name, mine, theirs in sums:
            if theirs is not None:
                setattr(self, name, copy.copy(theirs) if mine is None else mine + theirs)

    def _nothing_seen(self) -> InvalidInputError:
        return InvalidInputError(
            f"{type(self).__name__} has seen no block; call update() with one first"
        )

    def _check_width(self, mine: Array | None, width: int) -> None:
        if mine is not None and len(mine) != width:
            raise InvalidInputError(
                f"{type(self).__name__} has seen width {len(mine)}, and this block has {width}"
            )


def divisor_of(weight: float, ddof: int) -> float:
    """Sum of weights - ddof. Raises InvalidInputError where a covariance has no divisor."""
    if weight - ddof <= 0:
        raise InvalidInputError(
            f"covariance of rows of total weight {weight:g} with ddof={ddof}; expected more rows, "
            "or a smaller ddof"
        )
    return weight - ddof


def joint_missing(mine: Array | None, theirs: Array | None, count: int) -> Array | None:
    """Missing cells of both, of ``count`` rows together; raises before a merge changes anything."""
    if mine is None or theirs is None:
        joint = mine if theirs is None else theirs.copy()
    else:
        joint = mine + theirs
    if joint is not None:
        refuse_partly_missing(joint, count)
    return joint


def squares_vanish(product: Array, deviations: Array) -> bool:
    """Whether deviations are not 0, but their squares are.  product : (p, p) sums of all so far."""
    return not np.diagonal(product).any() and bool(deviations.any())


def refuse_partly_missing(missing: Array, count: int, block: Any = None) -> None:
    """Raise where a column has both missing and observed cells among the ``count`` rows so far.

    A column without any observation is allowed: the fit drops it and reports its name.
    """
    partly = np.flatnonzero((missing > 0) & (missing < count))
    if not partly.size:
        return
    lost = int(missing[partly].sum())
    if block is not None:
        raise block.refuse_missing(partly, lost, count * partly.size - lost)
    raise NonFiniteError(
        f"Input X contains NaN: {partly.size} columns (first: column {int(partly[0])}) have {lost} "
        f"missing cells among {count} rows so far. {FILL}"
    )


def refuse_incomplete(block: Any) -> None:
    """Raise where a column of this block has both missing and observed cells."""
    stats = block.stats
    partly = np.flatnonzero((stats.missing > 0) & (stats.count > 0))
    if partly.size:
        lost = int(stats.missing[partly].sum())
        raise block.refuse_missing(partly, lost, int(stats.count[partly].sum()))


def refuse_sparse_holes(block: Any, absent: Sequence[int] = ()) -> None:
    """:func:`refuse_holes` for a sparse block, without making it dense."""
    lost = block.entries.hole_counts
    if lost.any():
        lost = lost.copy()
        known = np.asarray(absent, dtype=np.int64) - (block.start if block.axis == 1 else 0)
        lost[known[(known >= 0) & (known < len(lost))]] = 0
        columns = np.flatnonzero(lost)
        if columns.size:
            missing = int(lost.sum())
            raise block.refuse_missing(columns, missing, block.shape[0] * columns.size - missing)


def refuse_holes(block: Any, tile: Any, absent: Sequence[int] = ()) -> None:
    """Raise where a tile has missing cells, except in the features ``absent`` (by number)."""
    mask = tile.mask
    if mask is None:
        return
    bad: Array = np.any(mask, axis=0)
    first = tile.start if block.axis == 1 else 0
    known = np.asarray(absent, dtype=np.int64) - first
    bad[known[(known >= 0) & (known < len(bad))]] = False
    columns = np.flatnonzero(bad)
    if columns.size:
        lost = int(np.count_nonzero(mask[:, columns]))
        offset = first - block.start if block.axis == 1 else 0
        raise block.refuse_missing(columns + offset, lost, len(mask) * columns.size - lost)


# Sums in the working dtype within a span, and in float64 between spans.

TILE_NBYTES = 4 << 20  # of a tile, or of its mask (matrix.tiles)


@dataclass(eq=False)
class OpenSum:
    """An array of sums. Add to ``open(...)`` in place; ``closed`` is the float64 part."""

    closed: Any = None
    _open: Any = None
    _blocks: int = 0
    _spare: Any = None  # an array to overwrite

    def emptied(self) -> OpenSum:
        """An empty sum that reuses the memory of this one."""
        return OpenSum(_spare=self.closed if self._open is None else self._open)

    def open(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """The open part, for this block: zeros at first, and again after OPEN_BLOCKS blocks."""
        self._check(shape)
        if self._blocks >= OPEN_BLOCKS or (self._open is not None and self._open.dtype != dtype):
            self.settle()
        if self._open is None:
            self._open, self._spare = zeros(shape, dtype, self._spare), None
        self._blocks += 1
        return np.asarray(self._open)

    def kept(self, shape: tuple[int, ...]) -> Array:
        """The float64 sums themselves, to add to in place; zeros at first."""
        self._check(shape)
        self.settle()
        if self.closed is None:
            self.closed, self._spare = zeros(shape, spare=self._spare), None
        return np.asarray(self.closed)

    def _check(self, shape: tuple[int, ...]) -> None:
        """Raise for sums of another shape, before BLAS writes out of bounds."""
        for part in (self.closed, self._open):
            if part is not None and part.shape != shape:
                raise InvalidInputError(
                    f"sums have seen width {part.shape[-1]}, and this block has {shape[-1]}"
                )

    def settle(self) -> None:
        """Fold the open part into the float64 sums."""
        if self._open is not None:
            self.add(self._open)
        self._open, self._blocks = None, 0

    def add(self, part: Array) -> None:
        """Add other sums, which are not changed."""
        if self.closed is None:
            self.closed = zeros(part.shape)
        add_in_place(self.closed, part)

    def total(self, rows: slice = slice(None)) -> Array | None:
        """The whole sum, or some rows, in float64, a fresh array; None where nothing was summed."""
        parts = [part[rows] for part in (self.closed, self._open) if part is not None]
        return sum(parts[1:], np.array(parts[0], np.float64)) if parts else None

    def merge(self, other: OpenSum) -> None:
        """Add other sums, including their open part."""
        for part in (other.closed, other._open):
            if part is not None:
                self._check(part.shape)
        for part in (other.closed, other._open):
            if part is not None:
                self.add(part)


# Checks that sums are still those of some rows after rows have been removed.

EIGENVALUES = 2048  # features up to which the rank of the remainder is checked: 4/3 p^3 flops
DEFINITE = 4096  # features up to which all directions are checked: p^3 / 3 flops
BEYOND = 4.0  # tolerance in estimated errors, so that valid rows are not refused


def refuse_impossible_missing(missing: Array, rows: int) -> None:
    """Raise where a column of the remainder is neither entirely observed nor entirely missing.

    missing : (p,) missing cells of each column that would remain.  rows : that would remain.
    """
    odd = np.flatnonzero((missing != 0) & (missing != rows))
    if odd.size:
        raise never_taken_in(
            f"column {int(odd[0])} would have {int(missing[odd[0]])} missing cells in {rows} rows"
        )


def refuse_impossible_scatter(scatter: Array, rows: int, error: float) -> None:
    """Raise where no rows have this scatter about their mean.

    scatter : (p, p), the lower triangle valid; overwritten.  rows : their number; they span
        rows - 1 directions.  error : estimated error of every entry, so that p times it bounds
        the error of every eigenvalue (Weyl). Checks only variances beyond DEFINITE features.
    """
    p, diagonal = len(scatter), np.diagonal(scatter)
    own = p * float(np.finfo(np.float64).eps) * float(np.max(np.abs(diagonal), initial=0.0))
    error = BEYOND * error
    slack = p * (error + own)  # with the rounding of LAPACK
    if np.min(diagonal, initial=0.0) < -error:
        raise never_taken_in("a variance would become negative")
    if rows == 1 and np.max(diagonal, initial=0.0) > error:
        raise never_taken_in("the one row that would remain would vary")
    if rows <= p <= EIGENVALUES:
        values = np.linalg.eigvalsh(scatter)  # increasing
        if values[0] < -slack:
            raise never_taken_in("the variance of a direction would become negative")
        if values[p - rows] > slack:
            raise never_taken_in(f"{rows} rows would span more than {rows - 1} directions")
    elif 0 < p <= DEFINITE:
        np.fill_diagonal(scatter, diagonal + slack)
        try:
            if slack > 0:
                np.linalg.cholesky(scatter)
        except np.linalg.LinAlgError:
            raise never_taken_in("the variance of a direction would become negative") from None


def refuse_other_rows(difference: Array, delta: Array, weight: float, error: float) -> None:
    """Raise where two sums over equally many rows are not those of the same rows.

    difference : (p, p) of the sums, the lower triangle valid.  delta : (p,) of the means, less
        their rounding.  weight : of the rows.  error : as for :func:`refuse_impossible_scatter`.
    """
    lower, error = np.tril(difference), BEYOND * error
    apart = max(float(lower.max(initial=0.0)), -float(lower.min(initial=0.0)))
    if apart > error or np.max(weight * delta**2, initial=0.0) > error:
        raise never_taken_in("they are as many as there are, and have another mean or variance")


def never_taken_in(why: str) -> InvalidInputError:
    """The error for removing rows that cannot be among those that were added."""
    return InvalidInputError(
        f"these rows were never taken in, or were forgotten before: {why}. Expected rows that are "
        "among those of this state, each of them forgotten once"
    )
