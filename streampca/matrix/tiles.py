"""Tiles: cache-sized dense pieces of a block, centred and scaled, missing cells 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, Self

import numpy as np

from streampca.kernels import (
    SUM_LENGTH,
    Array,
    ColumnStats,
    added_in_order,
    by_piece,
    each,
    groups,
    pieces,
    reciprocal,
    row_pieces,
    set_zero,
)

TILE_NBYTES = 4 * 1024 * 1024  # of a tile: large enough for BLAS, small in the memory plan
# least streamed rows of a tile: with fewer, updating a large symmetric accumulator costs more in
# memory traffic than in arithmetic
TILE_LENGTH = 512
LONG_ROW = 64  # columns from which a BLAS call for each few rows costs less than NumPy's loops
LINE = 2048  # entries of several shorter rows that one loop of NumPy takes
# of a piece of whole columns: calls for fewer cost more than they save
COLUMNS_NBYTES = 1024 * 1024
THIN_LENGTH = 64  # the same for products with a few columns, which are read once per tile


def tile_length(streamed: int, across: int, itemsize: int, thin: bool = False) -> int:
    """How many streamed rows one tile holds.

    thin : only products with a few columns are computed. A tile may then be thin enough to stay in
    cache, as long as the columns are not larger than it.
    """
    stride = max(1, across * itemsize)
    least = THIN_LENGTH if thin else TILE_LENGTH
    wanted = max(TILE_NBYTES // stride, min(least, 16 * TILE_NBYTES // stride))
    return max(1, min(streamed, wanted))


class Raw(Protocol):
    """The attributes of a block from which tiles are computed."""

    axis: int
    start: int
    missing_value: float | int | None
    weights: Array | None
    values: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""

    @property
    def length(self) -> int:
        """Rows, or columns, that were streamed."""

    @property
    def coded(self) -> bool:
        """Whether cells that hold a number may be missing."""

    @property
    def stats(self) -> ColumnStats:
        """Of all columns."""

    def borrow(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A buffer of the thread."""

    def expanded(self, values: Any) -> Array:
        """A part of the values, dense."""

    def holes_in(self, x: Array, where: tuple[slice, slice]) -> Array | None:
        """(rows, columns) True = missing in a part of the values; None if there is none."""


@dataclass(slots=True)
class Tile:
    """A dense piece of a block, centred and scaled, missing cells 0. Valid until the next one.

    values : (rows, columns) in the working dtype; rows are multiplied by sqrt(weight). C order, or
        F order where the block holds its features one after another.
    start, stop : its position along the streamed axis (absolute).
    find_sums : gives (columns,) float64, weighted column sums of the centred values.
    root_weights : (rows,) square roots of the weights, or None.
    """

    values: Array
    start: int
    stop: int
    find_sums: Callable[[], Array]
    root_weights: Array | None
    find_mask: Callable[[], Array | None]

    @property
    def sums(self) -> Array:
        """(columns,) float64, weighted column sums of the centred values."""
        return self.find_sums()

    @property
    def mask(self) -> Array | None:
        """(rows, columns) True = missing; None if there is none."""
        return self.find_mask()


def plain_tiles(
    block: Raw, dtype: np.dtype[Any], length: int, center: Array | None, scale: Array | None
) -> Iterator[Tile]:
    """Tiles of any block, with ``length`` streamed rows in each."""
    rows, cols = block.shape
    buffer = block.borrow("tile", (length * (rows if block.axis == 1 else cols),), dtype)
    standard, look = _Standard.of(center, scale, dtype), block.coded
    for begin in range(0, block.length, length):
        lines = slice(begin, min(begin + length, block.length))
        part = (slice(0, rows), lines) if block.axis == 1 else (lines, slice(0, cols))
        filling = _Filling.of(block, part, buffer, standard)
        look = filling.fill(block.expanded(block.values[part]), look)
        yield filling.tile()


@dataclass(frozen=True)
class _Standard:
    """Shift and factor of columns, in the working dtype.

    rest : rounding error of the shift, or None. A float32 center of 1e4 is off by 1e-3, and without
    the rest no column would sum to zero.
    repeated : the shift of several short rows, one after another; None where rows are long.
    """

    shift: Array | None
    rest: Array | None
    factor: Array | None
    repeated: Array | None = None

    @classmethod
    def of(cls, center: Array | None, scale: Array | None, dtype: np.dtype[Any]) -> _Standard:
        """From center and scale of the columns. A scale of 0 gives 0."""
        factor = None if scale is None else reciprocal(scale).astype(dtype)
        if center is None:
            return cls(None, None, factor)
        shift = np.asarray(center, dtype=dtype)
        rest = (center - shift).astype(dtype)
        repeats = LINE // len(shift) if 0 < len(shift) < LONG_ROW else 0
        repeated = np.tile(shift, repeats) if repeats else None
        return cls(shift, rest if rest.any() else None, factor, repeated)

    def put(self, x: Array, columns: slice, out: Array) -> None:
        """Centre and scale a piece of those columns."""
        with np.errstate(invalid="ignore", over="ignore"):
            if self.shift is None:
                np.copyto(out, x, casting="unsafe")
            else:
                _subtract(x, self.shift[columns], self.repeated, out)
            if self.rest is not None:
                out -= self.rest[columns]
            if self.factor is not None:
                out *= self.factor[columns]


def _subtract(x: Array, shift: Array, repeated: Array | None, out: Array) -> None:
    """out = x - shift.  repeated : the shift of several rows: NumPy's loops over them are long."""
    done = 0
    if repeated is not None and x.flags.c_contiguous and out.flags.c_contiguous:
        wide = len(x) * len(shift) // len(repeated), len(repeated)
        done = wide[0] * wide[1] // len(shift)
        lines, room = x[:done].reshape(wide), out[:done].reshape(wide)
        np.subtract(lines, repeated, out=room, dtype=out.dtype, casting="unsafe")
    np.subtract(x[done:], shift, out=out[done:], dtype=out.dtype, casting="unsafe")


@dataclass
class _Filling:
    """One tile while it is filled: a call standardises several pieces, which are summed apart.

    part : rows and columns of the block.  out : their standardised values.
    groups : (rows of the tile, its columns, rows of a piece) that are standardised together.
    totals : (pieces, columns) float64 sums of the columns of each group, where they are known.
    """

    block: Raw
    part: tuple[slice, slice]
    standard: _Standard
    out: Array
    groups: list[tuple[slice, slice, int]]
    weights: Array | None
    root: Array | None
    holes: dict[int, Array] = field(default_factory=dict)
    totals: dict[int, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Raw, part: tuple[slice, slice], buffer: Array, standard: _Standard) -> Self:
        """A tile of some rows and columns of the block, laid into the buffer."""
        rows, cols = (one.stop - one.start for one in part)
        flat = buffer[: rows * cols]  # contiguous even where it is narrower
        by_feature = block.axis == 0 and _by_feature(block.values)
        out = flat.reshape(cols, rows).T if by_feature else flat.reshape(rows, cols)
        weights = None if block.weights is None else block.weights[part[0]]
        root = None if weights is None else np.sqrt(weights).astype(out.dtype)
        some = _groups(rows, cols, out.itemsize, by_feature)
        return cls(block, part, standard, out, some, weights, root)

    def fill(self, raw: Array, look: bool) -> bool:
        """Standardise the raw values; returns whether to look for holes in the next tile.

        look : for holes at once. Else only where the sum of a column is not finite.
        """
        numbers = range(len(self.groups))
        if not look:
            each(lambda number: self._add_up(number, self._put(raw, number)), numbers)
            if all(np.isfinite(total).all() for total in self.totals.values()):
                return False
            self.totals.clear()
        each(lambda number: self._look_through(raw, number), numbers)
        return bool(self.holes) or self.block.coded

    def _put(self, raw: Array, number: int) -> Array:
        """The standardised values of a group."""
        lines, columns, _ = self.groups[number]
        z = self.out[lines, columns]
        self.standard.put(raw[lines, columns], _shifted(columns, self.part[1].start), z)
        return z

    def _look_through(self, raw: Array, number: int) -> None:
        """As :meth:`_put`, with holes as 0. Sums are left to those who ask for them."""
        z, (lines, columns, _) = self._put(raw, number), self.groups[number]
        inside = (_shifted(lines, self.part[0].start), _shifted(columns, self.part[1].start))
        if (hole := self.block.holes_in(raw[lines, columns], inside)) is not None:
            self.holes[number] = hole
            set_zero(z, hole)
        if self.root is not None:
            self._add_up(number, z)

    def _add_up(self, number: int, z: Array) -> None:
        """Sum the columns of a group; then multiply its rows by the roots of their weights."""
        lines, _, step = self.groups[number]
        weights = None if self.weights is None else self.weights[lines]
        self.totals[number] = total = _sums_of_pieces(z, step, weights)
        if self.root is not None and np.isfinite(total).all():
            z *= self.root[lines, None]

    def sums(self) -> Array:
        """(columns,) float64 sums of the columns."""
        if not self.totals:
            numbers = range(len(self.groups))
            each(lambda number: self._add_up(number, self.out[self.groups[number][:2]]), numbers)
        sums = np.zeros(self.out.shape[1])
        for number, (_, columns, _) in enumerate(self.groups):
            sums[columns] = added_in_order(sums[columns], self.totals[number])
        return sums

    def tile(self) -> Tile:
        """The tile, filled."""
        mask = np.zeros(self.out.shape, dtype=bool) if self.holes else None
        for number in sorted(self.holes):
            mask[self.groups[number][:2]] = self.holes.pop(number)  # type: ignore[index]
        streamed = _shifted(self.part[self.block.axis], self.block.start)
        return Tile(self.out, streamed.start, streamed.stop, self.sums, self.root, lambda: mask)


def _by_feature(values: Any) -> bool:
    """Whether the columns of a block lie one after another."""
    return isinstance(values, np.ndarray) and values.flags.fnc


def _groups(
    rows: int, cols: int, itemsize: int, by_feature: bool
) -> list[tuple[slice, slice, int]]:
    """The groups of pieces of a tile; of whole columns where these lie one after another."""
    if by_feature:
        some = row_pieces(cols, rows * itemsize, COLUMNS_NBYTES)
        return [(slice(0, rows), columns, rows) for columns in some]
    return groups(pieces(rows, cols, itemsize))


def compiled_tiles(
    block: Raw, dtype: np.dtype[Any], length: int, center: Array | None, scale: Array | None
) -> Iterator[Tile]:
    """The tiles of a block of small integers, in the layout of its values."""
    from streampca.kernels.calls import standardize_calls

    rows, cols = block.shape
    sparse = not isinstance(block.values, np.ndarray)
    by_feature = not (sparse or block.values.flags.c_contiguous)
    buffer = block.borrow("tile", (rows * length,), dtype)
    shift = np.zeros(cols) if center is None else np.asarray(center, dtype=np.float64)
    factor = np.ones(cols) if scale is None else reciprocal(scale)
    for begin in range(0, cols, length):
        part = slice(begin, min(begin + length, cols))
        width = part.stop - begin
        flat = buffer[: rows * width]
        out = flat.reshape(width, rows).T if by_feature else flat.reshape(rows, width)
        values = block.values[:, part].toarray("C") if sparse else block.values
        inside = slice(0, width) if sparse else part
        standardize_calls(values, inside, block.missing_value, shift[part], factor[part], out)
        streamed = _shifted(part, block.start)
        sums = partial(_sums_of_calls, block, part, shift, factor)
        holes = partial(_holes_of_calls, block, part)
        yield Tile(out, streamed.start, streamed.stop, sums, None, holes)


def _sums_of_calls(block: Raw, part: slice, shift: Array, factor: Array) -> Array:
    """Column sums of a tile of small integers, from the statistics of the block."""
    stats = block.stats
    return np.asarray((stats.mean - shift)[part] * factor[part] * stats.count[part])


def _holes_of_calls(block: Raw, part: slice) -> Array | None:
    if not block.stats.missing[part].any():
        return None
    return block.holes_in(block.expanded(block.values[:, part]), (slice(None), part))


@np.errstate(invalid="ignore", over="ignore")
def _sums_of_pieces(z: Array, step: int, weights: Array | None) -> Array:
    """(pieces, columns) float64 column sums of each ``step`` rows, and of the rows that are left.

    In float32 over at most SUM_LENGTH rows, then pairwise in float64. (A narrow piece has up to
    65,536 rows; one float32 sum over them was off by 1e-4.)
    """
    if weights is not None:
        starts = range(0, len(z), step)
        return np.array([weights[i : i + step] @ z[i : i + step] for i in starts])
    if z.strides[0] == z.itemsize < z.strides[1]:
        return _sums_of_columns(z)[None]
    return np.concatenate([_sums_of_rows(one) for one in by_piece(z, step)], dtype=np.float64)


def _sums_of_rows(z: Array) -> Array:
    """(pieces, columns) of pieces of whole rows (pieces, rows, columns)."""
    count, rows, cols = z.shape
    runs = rows // SUM_LENGTH
    if runs < 2:
        return np.asarray(np.add.reduce(z, axis=1))
    whole = SUM_LENGTH * runs
    rest = np.add.reduce(z[:, whole:], axis=1)
    if cols >= LONG_ROW:
        each_run = z[:, :whole].reshape(count, runs, SUM_LENGTH, cols)
        partial = np.matmul(np.ones(SUM_LENGTH, z.dtype), each_run)
        return np.asarray(np.add.reduce(partial, axis=1, dtype=np.float64) + rest)
    partial = np.add.reduce(z[:, :whole].reshape(count, SUM_LENGTH, runs * cols), axis=1)
    lines = np.ascontiguousarray(partial.reshape(count, runs, cols).transpose(0, 2, 1))
    return np.asarray(np.add.reduce(lines, axis=2, dtype=np.float64) + rest)


def _sums_of_columns(z: Array) -> Array:
    """(columns,) where the columns lie one after another."""
    rows, cols = z.shape
    runs = rows // SUM_LENGTH
    if runs < 2:
        return np.asarray(np.add.reduce(z, axis=0), np.float64)
    whole = SUM_LENGTH * runs
    lines = np.add.reduce(z[:whole].T.reshape(cols, SUM_LENGTH, runs), axis=1)
    return np.asarray(
        np.add.reduce(lines, axis=1, dtype=np.float64) + np.add.reduce(z[whole:], axis=0)
    )


def _shifted(piece: slice, begin: int) -> slice:
    return slice(piece.start + begin, piece.stop + begin)
