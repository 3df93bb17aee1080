"""Tiles: cache-sized dense pieces of a block, centred and scaled, missing cells 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from streampca.kernels import (
    SUM_LENGTH,
    Array,
    ColumnStats,
    each,
    pieces,
    reciprocal,
    row_pieces,
    set_zero,
)

TILE_NBYTES = 4 * 1024 * 1024  # of a tile: large enough for BLAS, small in the memory plan
# least streamed rows of a tile: with fewer, updating a large symmetric accumulator costs more in
# memory traffic than in arithmetic
TILE_LENGTH = 512
COLUMNS_NBYTES = (
    1024 * 1024
)  # of a piece of whole columns: calls for fewer cost more than they save
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
    standard = _Standard.of(center, scale, dtype)
    for begin in range(0, block.length, length):
        lines = slice(begin, min(begin + length, block.length))
        part = (slice(0, rows), lines) if block.axis == 1 else (lines, slice(0, cols))
        yield _tile(block, part, buffer, standard)


@dataclass(frozen=True)
class _Standard:
    """Shift and factor of columns, in the working dtype.

    rest : rounding error of the shift, or None. A float32 center of 1e4 is off by 1e-3, and without
    the rest no column would sum to zero.
    """

    shift: Array | None
    rest: Array | None
    factor: Array | None

    @classmethod
    def of(cls, center: Array | None, scale: Array | None, dtype: np.dtype[Any]) -> _Standard:
        """From center and scale of the columns. A scale of 0 gives 0."""
        factor = None if scale is None else reciprocal(scale).astype(dtype)
        if center is None:
            return cls(None, None, factor)
        shift = np.asarray(center, dtype=dtype)
        rest = (center - shift).astype(dtype)
        return cls(shift, rest if rest.any() else None, factor)

    def put(self, x: Array, columns: slice, out: Array) -> None:
        """Centre and scale a piece of those columns."""
        with np.errstate(invalid="ignore", over="ignore"):
            if self.shift is None:
                np.copyto(out, x, casting="unsafe")
            else:
                shift = self.shift[columns]
                np.subtract(x, shift, out=out, dtype=out.dtype, casting="unsafe")
            if self.rest is not None:
                out -= self.rest[columns]
            if self.factor is not None:
                out *= self.factor[columns]


def _tile(block: Raw, part: tuple[slice, slice], buffer: Array, standard: _Standard) -> Tile:
    """Fill one tile, in pieces that stay in cache. part : its rows and columns of the block."""
    raw = block.expanded(block.values[part])
    rows, cols = raw.shape
    flat = buffer[: rows * cols]  # contiguous even where it is narrower
    by_feature = block.axis == 0 and _by_feature(block.values)
    out = flat.reshape(cols, rows).T if by_feature else flat.reshape(rows, cols)
    weights = None if block.weights is None else block.weights[part[0]]
    root = None if weights is None else np.sqrt(weights).astype(out.dtype)
    parts = _pieces(rows, cols, out.itemsize, by_feature)
    totals: list[Array] = [np.empty(0)] * len(parts)
    holes: dict[int, Array] = {}

    def fill(number: int) -> None:
        lines, columns = parts[number]
        x, z = raw[lines, columns], out[lines, columns]
        inside = (_shifted(lines, part[0].start), _shifted(columns, part[1].start))
        w = None if weights is None else weights[lines]
        standard.put(x, inside[1], z)
        total: Array | None = None
        if not (block.coded or holes):  # where one piece has holes, look for them in the others
            total = _column_sums(z, w)
        suspect = total is None or not np.isfinite(total).all()
        if suspect and (hole := block.holes_in(x, inside)) is not None:
            holes[number] = hole
            set_zero(z, hole)
            total = None
        if total is None:
            total = _column_sums(z, w)
        if root is not None:
            z *= root[lines, None]
        totals[number] = total

    each(fill, range(len(parts)))
    sums, mask = np.zeros(cols), np.zeros((rows, cols), dtype=bool) if holes else None
    for number, (lines, columns) in enumerate(parts):
        sums[columns] += totals[number]
        if mask is not None and number in holes:
            mask[lines, columns] = holes.pop(number)
    streamed = _shifted(part[block.axis], block.start)
    return Tile(out, streamed.start, streamed.stop, lambda: sums, root, lambda: mask)


def _by_feature(values: Any) -> bool:
    """Whether the columns of a block lie one after another."""
    return isinstance(values, np.ndarray) and values.flags.fnc


def _pieces(rows: int, cols: int, itemsize: int, by_feature: bool) -> list[tuple[slice, slice]]:
    """Pieces of a tile that stay in cache; of whole columns where these lie one after another."""
    if not by_feature:
        return pieces(rows, cols, itemsize)
    some = row_pieces(cols, rows * itemsize, COLUMNS_NBYTES)
    return [(slice(0, rows), columns) for columns in some]


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
def _column_sums(z: Array, weights: Array | None) -> Array:
    """Column sums of a piece, in float32 over at most SUM_LENGTH rows, then pairwise in float64.

    (A narrow piece has up to 65,536 rows; one float32 sum over them was off by 1e-4.)
    """
    if weights is not None:
        return weights @ z
    rows, cols = z.shape
    runs = rows // SUM_LENGTH
    if runs < 2:
        return np.asarray(np.add.reduce(z, axis=0))
    whole = SUM_LENGTH * runs
    if z.strides[0] == z.itemsize < z.strides[1]:
        lines = np.add.reduce(z[:whole].T.reshape(cols, SUM_LENGTH, runs), axis=1)
        return np.asarray(
            np.add.reduce(lines, axis=1, dtype=np.float64) + np.add.reduce(z[whole:], axis=0)
        )
    partial = np.add.reduce(z[:whole].reshape(SUM_LENGTH, runs * cols), axis=0)
    lines = np.ascontiguousarray(partial.reshape(runs, cols).T)
    return np.asarray(
        np.add.reduce(lines, axis=1, dtype=np.float64) + np.add.reduce(z[whole:], axis=0)
    )


def _shifted(piece: slice, begin: int) -> slice:
    return slice(piece.start + begin, piece.stop + begin)
