"""A block: the slice of the matrix that a pass hands to its accumulators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.errors import FILL, InvalidTypeError, NonFiniteError, shorten
from streampca.kernels import (
    Array,
    ColumnStats,
    column_means,
    column_stats,
    computed_once,
    leading_rows,
    provisional_mean,
)
from streampca.matrix.entries import Entries, Observed
from streampca.matrix.labels import Labels
from streampca.matrix.tiles import Tile, compiled_tiles, plain_tiles, tile_length

THIN_ROWS = 512  # rows of a block from which a shift is computed


# Supported dtypes, and those of the arithmetic.

DAYS = "numpy.timedelta64(1, 'D')"
REPAIRS = {
    "O": "object arrays have no fixed size: convert with X.astype('float64')",
    "M": f"Dates become days with (X - numpy.datetime64('1970-01-01')) / {DAYS}",
    "m": f"Durations become days with X / {DAYS}",
}


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise InvalidTypeError for anything but numbers; see also :func:`refuse_complex`."""
    if dtype.kind in "buifc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return
    repair = REPAIRS.get(
        dtype.kind, "convert with X.astype('float64') or encode categories as numbers"
    )
    if dtype.names:
        repair = (
            f"Take one of its fields, X[{dtype.names[0]!r}], or all of them as features: "
            "numpy.stack([X[name] for name in X.dtype.names], axis=-1)"
        )
    raise InvalidTypeError(f"dtype {dtype} cannot be used; expected real numbers. {repair}.")


def refuse_complex(dtype: Any, what: str = "X", fit: str = "ComplexEOF(2).fit(X)") -> None:
    """Raise InvalidTypeError for complex numbers, which only models made for them take.

    fit : the call that takes them.
    """
    if np.dtype(dtype).kind == "c":
        raise InvalidTypeError(
            f"{what} is {dtype}; expected real numbers. Complex data not supported here; a model "
            f"that takes them: streampca.{fit}"
        )


def work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of block arithmetic: float32 where it holds every input value exactly.

    Of complex numbers, that of their parts.
    """
    if dtype.kind == "c":
        return np.dtype(np.float32 if dtype.itemsize <= 8 else np.float64)
    exact_in_single = dtype.kind in "buif" and dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if exact_in_single else np.float64)


def stored_eps(dtype: np.dtype[Any]) -> float:
    """Relative resolution of stored values; integers are exact and count as float64."""
    return float(np.finfo(dtype if dtype.kind in "fc" else np.float64).eps)


def score_dtype(dtype: Any) -> Any:
    """Of scores and rows made from data of this dtype: float32 stays float32, complex complex."""
    if np.dtype(dtype).kind == "c":
        return np.complex64 if dtype == np.complex64 else np.complex128
    return np.float32 if dtype == np.float32 else np.float64


# 64-bit integers that float64 cannot hold: refused wherever they would be rounded.

LARGEST = 2**53  # up to here float64 holds every integer


def inexact(values: Any, missing_value: float | None = None) -> Array | None:
    """Boolean mask of the values that float64 would round (of the stored entries if sparse).

    None where float64 holds all of them. The missing code may be any number.
    Cost: none, except for 64-bit integers, whose largest and smallest value are computed.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    data = values if isinstance(values, np.ndarray) else values.data
    if not data.size or (data.max() <= LARGEST and data.min() >= -LARGEST):
        return None
    large = (data > LARGEST) | (data < -LARGEST)
    if missing_value is not None:
        large &= data != missing_value
    return large if large.any() else None


def refuse_inexact(values: Any, missing_value: float | None = None, where: str = "X") -> None:
    """Raise InvalidTypeError where float64 would round a value.  where : for the message."""
    if (large := inexact(values, missing_value)) is None:
        return
    data = values if isinstance(values, np.ndarray) else values.data
    example = int(data[large][0])
    raise InvalidTypeError(
        f"{where} holds the {values.dtype} {example}; expected integers up to 2**53 in size, since "
        "float64 rounds larger ones. Subtract the smallest of each column first, "
        "X - X.min(axis=0); or, where rounding does not matter, X.astype('float64')"
    )


# A block.


@dataclass(frozen=True)
class Resolution:
    """How finely values were stored, and in which dtype blocks of them are summed."""

    eps: float
    work: np.dtype[Any]

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Resolution:
        """Of stored values of this dtype."""
        return cls(stored_eps(dtype), work_dtype(dtype))

    def joined(self, other: Resolution) -> Resolution:
        """That of sums over both: the coarser."""
        work = min(self.work, other.work, key=lambda dtype: dtype.itemsize)
        return Resolution(max(self.eps, other.eps), work)


@dataclass
class Block:
    """One block: raw values over [start, stop) of the streamed axis and all of the other.

    values : ndarray or scipy.sparse (CSR when samples are streamed, CSC when features are).
    arrays : operands, side inputs and map outputs, by name: ``block["scores"]``.
    weights : (rows of this block,) or None.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import Block
    >>> block = Block(np.arange(6.0).reshape(3, 2), axis=0, start=10, stop=13)
    >>> block.shape, block.length
    ((3, 2), 3)
    >>> [tile.values.tolist() for tile in block.tiles(np.dtype(float), center=np.array([2.0, 3.0]))]
    [[[-2.0, -2.0], [0.0, 0.0], [2.0, 2.0]]]
    """

    values: Any
    axis: int
    start: int
    stop: int
    index: int = 0
    labels: Labels | None = None
    missing_value: float | None = None
    hidden: Array | None = None  # mask of further missing cells (held out), True = missing
    weights: Array | None = None
    arrays: Mapping[str, Any] = field(default_factory=dict)
    buffer: Any = None  # memory that holds the values, reused after the block
    scratch: dict[Any, Any] | None = None  # arrays shared by the blocks of one thread
    absent: bool = False  # of a sparse block: cells that are not stored are missing, not 0

    def __post_init__(self) -> None:
        """Move a mask to ``hidden``; refuse integers that float64 cannot hold."""
        if isinstance(self.values, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(self.values)
            self.hidden = mask if self.hidden is None else self.hidden | mask
            self.values = self.values.filled(0)
        if (large := inexact(self.values, self.missing_value)) is not None:
            named = ""
            if large.ndim == 2:
                named = f", {self.name_columns(np.flatnonzero(large.any(axis=0)))},"
            refuse_inexact(self.values, self.missing_value, self.describe() + named)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns in this block."""
        rows, columns = self.values.shape
        return int(rows), int(columns)

    @property
    def length(self) -> int:
        """Extent along the streamed axis."""
        return self.stop - self.start

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """The dtype of the arithmetic on this block."""
        return work_dtype(self.values.dtype)

    @property
    def eps(self) -> float:
        """Relative resolution of the stored values (that of float64 for integers)."""
        return stored_eps(self.values.dtype)

    @property
    def total_weight(self) -> float:
        """Sum of the weights of this block's rows, or their number without weights."""
        return float(self.shape[0]) if self.weights is None else float(np.sum(self.weights))

    @property
    def columns(self) -> slice:
        """The features of the whole matrix that this block holds."""
        return slice(self.start, self.stop) if self.axis == 1 else slice(0, self.shape[1])

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def part(self, name: str | None) -> Block:
        """This block, or the part of it that a map made under this name."""
        return self if name is None else self.arrays[name]

    def take_columns(self, columns: Array, start: int) -> Block:
        """A block of the features with these numbers, (m,), in the layout of this; streamed ones.

        start : the place of the first among those that are taken of all blocks.
        """
        values = self.values
        by_feature = isinstance(values, np.ndarray) and not values.flags.c_contiguous
        if len(columns) < self.length:
            values = np.take(values.T, columns, axis=0).T if by_feature else values[:, columns]
        hidden = None if self.hidden is None else self.hidden[:, columns]
        stop = start + len(columns)
        return replace(
            self, values=values, hidden=hidden, start=start, stop=stop, arrays={}, labels=None
        )

    @property
    def coded(self) -> bool:
        """Whether cells that hold a number may be missing."""
        return self.missing_value is not None or self.hidden is not None

    @property
    def compiled(self) -> bool:
        """Whether the kernels for small integers (genotype calls) serve this block."""
        return isinstance(self.values, np.ndarray) and self.calls

    @property
    def calls(self) -> bool:
        """Whether these kernels serve its tiles; tiles of a sparse block are expanded first."""
        small = self.values.dtype in (np.int8, np.uint8)
        plain = self.hidden is None and self.weights is None and not self.absent
        return self.axis == 1 and small and plain

    @property
    def sparse(self) -> bool:
        """Whether ``entries`` serves this block: not where zeros or hidden cells are missing,
        because cells that are not stored would then be holes."""
        expanded = isinstance(self.values, np.ndarray) or self.absent
        return not expanded and self.hidden is None and self.missing_value != 0

    @computed_once
    def entries(self) -> Entries:
        """The stored entries of a sparse block: its statistics and products."""
        return Entries.of(self.values, self.axis, self.missing_value, self.weights)

    @computed_once
    def observed(self) -> Observed:
        """The observed cells of a block whose unstored cells are missing."""
        found = Observed.of(self.values, self.axis, self.missing_value)
        if np.isinf(found.data).any():
            self._refuse_infinity(np.unique(found.columns[np.isinf(found.data)]))
        return found

    @computed_once
    def row_missing(self) -> Array:
        """(rows,) int64 missing cells of each row of this block."""
        if self.compiled:
            from streampca.kernels.calls import row_missing

            return row_missing(self.values, self.missing_value)
        if self.sparse:
            return self.entries.row_holes
        mask = self.mask
        empty = np.zeros(self.shape[0], np.int64)
        return empty if mask is None else np.count_nonzero(mask, axis=1)

    @computed_once
    def mask(self) -> Array | None:
        """(rows, columns) True = missing, or None if there is none. Refuses infinity."""
        return self.holes_in(self.dense(), slice(None))

    def dense(self) -> Array:
        """(rows, columns) raw values, dense (expands a sparse block: use for small blocks)."""
        return self.expanded(self.values)

    def expanded(self, values: Any) -> Array:
        """A part of the values as an array of its shape; NaN where unstored cells are missing."""
        if not self.absent or isinstance(values, np.ndarray):
            return _expanded(values)
        dense = np.full(values.shape, np.nan, work_dtype(values.dtype))
        stored = values.tocoo()
        dense[stored.row, stored.col] = stored.data
        return dense

    @computed_once
    def stats(self) -> ColumnStats:
        """Column statistics of this block, computed once for all accumulators."""
        if self.absent and self.hidden is None:
            seen = self.observed
            return seen.stats if self.weights is None else seen.weighted_stats(self.weights)
        if not isinstance(self.values, np.ndarray) and not self.absent and self.hidden is None:
            return self._sparse_stats()
        dense = self.dense()
        if self.compiled:
            from streampca.kernels.calls import call_stats

            return call_stats(dense, self.missing_value)
        if self.missing_value is None and self.hidden is None:
            with np.errstate(invalid="ignore", over="ignore"):
                stats = column_stats(dense, None, self.weights)
            if np.isfinite(stats.m2).all() and np.isfinite(stats.mean).all():
                return stats
        return column_stats(dense, self.mask, self.weights)

    def _sparse_stats(self) -> ColumnStats:
        stats = self.entries.stats
        finite = np.isfinite(stats.minimum) & np.isfinite(stats.maximum)
        if np.any(~finite & (stats.count > 0)):
            self._refuse_infinity(np.flatnonzero(~finite & (stats.count > 0)))
        return stats

    def shift(self) -> tuple[Array, Array]:
        """(columns,) means of :meth:`thinned`, and whether it holds an observed cell."""
        few = self.thinned()
        if isinstance(few.values, np.ndarray) and self.missing_value is None and few.hidden is None:
            with np.errstate(invalid="ignore", over="ignore"):
                mean = column_means(few.values)
            if len(few.values) and np.isfinite(mean).all():
                return mean, np.ones(len(mean), dtype=bool)
        return few.stats.mean, few.stats.count > 0

    def thinned(self) -> Block:
        """About THIN_ROWS evenly spread rows of this block: enough for a shift near the mean.

        Rows of weight 0 are omitted; all others count once.
        """
        if self.weights is not None:
            counted = np.flatnonzero(self.weights)
            chosen = counted[:: max(1, len(counted) // THIN_ROWS)]
            return replace(self.take_rows(chosen), weights=None)
        step = max(1, self.shape[0] // THIN_ROWS)
        hidden = None if self.hidden is None else self.hidden[::step]
        return replace(self, values=self.values[::step], hidden=hidden, scratch=None)

    def take_rows(self, rows: Array) -> Block:
        """A block of the samples with these numbers, (m,), in the layout of this (of features)."""
        by_feature = isinstance(self.values, np.ndarray) and not self.values.flags.c_contiguous
        values = np.take(self.values.T, rows, axis=1).T if by_feature else self.values[rows]
        hidden = None if self.hidden is None else self.hidden[rows]
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, values=values, hidden=hidden, weights=weights, scratch=None)

    def head_mean(self) -> Array:
        """(columns,) mean of the observed cells among the first rows: a provisional shift."""
        rows = leading_rows(self.shape[0], self.weights)
        head = self.expanded(self.values[rows])
        mask = self.holes_in(head, (rows, slice(0, self.shape[1])))
        return provisional_mean(head, mask)

    def tiles(
        self,
        dtype: np.dtype[Any],
        center: Array | None = None,
        scale: Array | None = None,
        thin: bool = False,
        multiple: int = 1,
    ) -> Iterator[Tile]:
        """Dense tiles (rows, columns) along the streamed axis: (x - center) / scale, missing 0.

        center, scale : one entry per column of this block, or None. A scale of 0 gives 0.
        thin : as in :func:`streampca.matrix.tiles.tile_length`.
        multiple : of this many entries of the streamed axis each tile consists.
        One buffer serves all tiles: copy what must outlive the loop.
        """
        find = compiled_tiles if self.calls else plain_tiles
        across = self.shape[1 - self.axis]
        length = tile_length(self.length, across, dtype.itemsize, thin)
        length = max(multiple, length - length % multiple)
        return find(self, dtype, length, center, scale)

    def borrow(self, name: str, shape: tuple[int, ...], dtype: Any, order: Any = "C") -> Array:
        """An uninitialised array of this shape, which later blocks of the same thread reuse."""
        key = (name, shape, str(dtype))
        if self.scratch is None:
            return np.empty(shape, dtype, order)
        if key not in self.scratch:
            for old in [k for k in self.scratch if k[0] == name]:
                del self.scratch[old]
            self.scratch[key] = np.empty(shape, dtype, order)
        return np.asarray(self.scratch[key])

    def holes_in(self, x: Array, where: Any) -> Array | None:
        """Missing cells of a dense piece of this block, in its shape, or None.  where : of it."""
        hole: Array | None = None
        if x.dtype.kind == "f":
            finite = np.isfinite(x)
            if not finite.all():
                hole = np.isnan(x)
                if np.count_nonzero(hole) + np.count_nonzero(finite) < x.size:
                    columns = np.flatnonzero(np.isinf(x).any(axis=0))
                    first = (where[1].start or 0) if isinstance(where, tuple) else 0
                    self._refuse_infinity(columns + first)
        if self.missing_value is not None:
            coded = x == self.missing_value
            if coded.any():
                hole = coded if hole is None else hole | coded
        if self.hidden is not None:
            hidden = self.hidden[where]
            if hidden.any():
                hole = hidden if hole is None else hole | hidden
        return hole

    def _refuse_infinity(self, columns: Array) -> None:
        raise NonFiniteError(
            f"infinity in {self.describe()}, {self.name_columns(columns)}; expected finite values. "
            "Replace it, for example by NaN, which missing='mean' allows: "
            "X.where(abs(X) < float('inf'))."
        )

    def refuse_missing(self, columns: Array, missing: int, observed: int) -> NonFiniteError:
        """The error for missing cells that the policy does not allow.  columns : (m,) numbers."""
        return NonFiniteError(
            f"Input X contains NaN: {self.describe()}, {self.name_columns(columns)}; so far "
            f"{missing} missing and {observed} observed cells in those columns. {FILL}"
        )

    def describe(self) -> str:
        """The position of this block, for messages."""
        kind = "features" if self.axis == 1 else "samples"
        return f"block {self.index} ({kind} {self.start} to {self.stop - 1})"

    def name_columns(self, columns: Array) -> str:
        """Names of some of this block's columns, for messages.  columns : (m,) their numbers."""
        offset = self.start if self.axis == 1 else 0
        few = [int(c) + offset for c in columns[:4]]
        named = [str(c) if self.labels is None else self.labels.features.name(c) for c in few]
        return "columns " + shorten(named, len(columns))


def _expanded(values: Any) -> Array:
    return values if isinstance(values, np.ndarray) else np.asarray(values.toarray())
