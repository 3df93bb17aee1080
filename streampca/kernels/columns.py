"""Elementwise and per-column work on blocks, in pieces that stay in cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.splitmix import GOLDEN, mixed

CACHE_NBYTES = 256 * 1024  # elementwise work is done in pieces that stay in a core's L2 cache
VARIES = 1e-300  # sum of squares of a column that varies by less than squares can say
SUM_LENGTH = 8  # rows of a tile whose column sums are added in its dtype
PIECE_ROWS = 8  # of an array with long rows


def row_pieces(n_rows: int, row_nbytes: int, nbytes: int = CACHE_NBYTES) -> list[slice]:
    """Slices of consecutive rows of about ``nbytes`` each."""
    step = max(1, nbytes // max(1, row_nbytes))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def pieces(
    n_rows: int, n_columns: int, itemsize: int, nbytes: int = CACHE_NBYTES
) -> list[tuple[slice, slice]]:
    """(rows, columns) of pieces of about ``nbytes``, PIECE_ROWS rows or more of a wide array."""
    widest = max(1, nbytes // (PIECE_ROWS * itemsize))
    return [
        (rows, columns)
        for columns in row_pieces(n_columns, 1, widest)
        for rows in row_pieces(n_rows, itemsize * (columns.stop - columns.start), nbytes)
    ]


def sums_at(places: Array, values: Array, length: int) -> Array:
    """(length,) float64 sums of the values at each place. (``bincount`` of nothing is integers.)"""
    return np.bincount(places, values, minlength=length).astype(np.float64, copy=False)


def side_by_side(lengths: Sequence[int]) -> list[slice]:
    """Where pieces of these lengths lie, one after the other."""
    ends = np.cumsum(lengths)
    return [slice(int(e) - n, int(e)) for e, n in zip(ends, lengths, strict=True)]


def probe(start: int, stop: int) -> Array:
    """Entries start..stop of the fixed pseudo-random vector h that orients components.

    h is uniform on (0, 2), from splitmix64 of the index: it can be made anywhere, for any
    slice, without the rest. Its mean is positive, so components that are one-sided come out
    positive.
    """
    with np.errstate(over="ignore"):
        x = np.arange(start, stop, dtype=np.uint64) + np.uint64(1)
        x = x * GOLDEN
    return (mixed(x) >> np.uint64(11)).astype(np.float64) * (2.0 / 2**53)


@dataclass(frozen=True)
class ColumnStats:
    """Per-column summary of one set of rows; every field is (columns,) float64 or int64."""

    count: Array  # observed cells
    missing: Array
    weight: Array  # sum of the weights of the observed cells
    mean: Array  # 0 where nothing was observed
    m2: Array  # sum of w (x - mean)^2
    minimum: Array  # +inf where nothing was observed
    maximum: Array  # -inf where nothing was observed
    mean_low: Array | float = 0.0  # what rounding took off the mean


def column_stats(values: Array, mask: Array | None, weights: Array | None) -> ColumnStats:
    """Count, mean, M2, min and max of each column in one sweep, shifted before squaring.

    values : (rows, columns); mask : True = missing, or None; weights : (rows,) or None.
    """
    n, p = values.shape
    shift = provisional_mean(values, mask, weights)
    room = np.empty(max(CACHE_NBYTES, 8 * PIECE_ROWS) // 8)  # for a piece
    total, square, weight = np.zeros(p), np.zeros(p), np.zeros(p)
    missing = np.zeros(p, dtype=np.int64)
    low, high = np.full(p, np.inf), np.full(p, -np.inf)
    for rows, cols in pieces(n, p, 8):
        x = values[rows, cols]
        d = room[: x.size].reshape(x.shape)
        np.subtract(x, shift[cols], out=d)
        w = None if weights is None else weights[rows, None]
        lowest, highest = low[cols], high[cols]
        if mask is not None and (hole := mask[rows, cols]).any():
            missing[cols] += np.count_nonzero(hole, axis=0)
            seen = ~hole
            np.minimum(lowest, np.where(seen, x, np.inf).min(axis=0), out=lowest)
            np.maximum(highest, np.where(seen, x, -np.inf).max(axis=0), out=highest)
            d[hole] = 0.0
            if w is not None:
                weight[cols] += np.sum(w * seen, axis=0)
        else:
            np.minimum(lowest, x.min(axis=0), out=lowest)
            np.maximum(highest, x.max(axis=0), out=highest)
            if w is not None:
                weight[cols] += w.sum()
        weighted = d if w is None else w * d
        total[cols] += weighted.sum(axis=0)
        square[cols] += np.einsum("ij,ij->j", weighted, d)
    count = n - missing
    if weights is None:
        weight = count.astype(np.float64)
    safe = np.where(weight > 0, weight, 1.0)
    offset = total / safe
    mean, rest = add_exactly(np.where(weight > 0, shift, 0.0), offset)
    with np.errstate(over="ignore", invalid="ignore"):
        m2 = np.maximum(square - total * offset, 0.0)
    if weights is None:
        m2[(m2 == 0.0) & (high > low)] = VARIES
    return ColumnStats(count, missing, weight, mean, m2, low, high, rest)


def reciprocal(scale: Array) -> Array:
    """1 / scale, 0 where the scale is 0 (a column that is left out)."""
    return np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)


def add_exactly(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as the rounded sum and what rounding took off (Knuth's two-sum).

    A mean is kept as such a pair: of a mean of 1e6, float64 keeps 1e-10, and the scatter of two
    parts needs the difference of their means to all digits.
    """
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def provisional_mean(values: Array, mask: Array | None, weights: Array | None = None) -> Array:
    """A shift near each column's mean: the mean of the observed cells among a few rows.

    Rows of weight 0 do not enter: a column that is constant in all others is shifted to 0.
    """
    head = leading_rows(len(values), weights)
    part = values[head]
    if mask is None or not mask[head].any():
        return part.mean(axis=0, dtype=np.float64) if len(part) else np.zeros(values.shape[1])
    seen = ~mask[head]
    total = np.where(seen, part, 0).sum(axis=0, dtype=np.float64)
    return np.asarray(total / np.maximum(seen.sum(axis=0), 1))


def leading_rows(n: int, weights: Array | None) -> slice | Array:
    """The first rows that count, at most 64."""
    return slice(0, min(n, 64)) if weights is None else np.flatnonzero(weights)[:64]
