"""Compiled kernels for sparse blocks: products with a few dense columns, column statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.columns import VARIES, ColumnStats, add_exactly
from streampca.kernels.compiled import compiled
from streampca.kernels.registers import (
    VECTOR_NBYTES,
    add_gathered,
    add_scattered,
    columns_per_vector,
)

# Compiled by Numba on first use, cached on disk, run without the GIL, and imported where needed
# (see ``calls``). A block is given as the arrays of a compressed matrix with r lines of length m:
# data, indices, indptr of a CSR block (lines are its rows), or of a CSC block (lines are its
# columns, so that everything here holds of its transpose). Indices increase within a line.
#
# A line of 1000 entries accesses 1000 scattered rows of the dense operand. So GROUP lines are
# processed together, and the operands in tiles that stay in the second-level cache; a cursor per
# line holds its position. (5 % of 20,000 columns, 64 dense columns, one thread: 2.8 s for 1e8
# entries and both products, 1.5 s in float32.)

GROUP = 512  # lines that are processed together
TILE_NBYTES = 256 * 1024  # of a dense operand; the rows of the lines take as much again
ENTRIES = 16  # least mean entries of a line in a tile: fewer cost more in loops than they save

_compile = compiled(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


@_compile
def _tile_end(indices, first, stop, end):  # type: ignore[no-untyped-def]
    """The position at which the indices of a line reach ``end``."""
    while first < stop and indices[first] < end:
        first += 1
    return first


@_compile
def _gather(data, indices, indptr, start, stop, q, width, cursor, y):  # type: ignore[no-untyped-def]
    """y[i] = line i times q, for start <= i < stop."""
    columns, vector = y.shape[1], VECTOR_NBYTES // y.itemsize
    for i in range(start, stop):
        cursor[i - start] = indptr[i]
        for c in range(columns):
            y[i, c] = 0.0
    for tile in range(0, len(q), width):
        for i in range(start, stop):
            first = cursor[i - start]
            last = _tile_end(indices, first, indptr[i + 1], tile + width)
            cursor[i - start] = last
            c = 0
            while c + 4 * vector <= columns:
                add_gathered(data, indices, first, last, q, y, i, c, 4)
                c += 4 * vector
            if c + 2 * vector <= columns:
                add_gathered(data, indices, first, last, q, y, i, c, 2)
                c += 2 * vector
            if c < columns:
                add_gathered(data, indices, first, last, q, y, i, c, 1)


@_compile
def _scatter(data, indices, indptr, start, stop, y, width, cursor, into):  # type: ignore[no-untyped-def]
    """into += lines' entries times their rows of y; line i has row i - start."""
    columns, vector = y.shape[1], VECTOR_NBYTES // y.itemsize
    for i in range(start, stop):
        cursor[i - start] = indptr[i]
    for tile in range(0, len(into), width):
        for i in range(start, stop):
            first = cursor[i - start]
            last = _tile_end(indices, first, indptr[i + 1], tile + width)
            cursor[i - start] = last
            row, c = i - start, 0
            while c + 4 * vector <= columns:
                add_scattered(data, indices, first, last, into, y, row, c, 4)
                c += 4 * vector
            if c + 2 * vector <= columns:
                add_scattered(data, indices, first, last, into, y, row, c, 2)
                c += 2 * vector
            if c < columns:
                add_scattered(data, indices, first, last, into, y, row, c, 1)


@_compile
def _product(data, indices, indptr, q, width, y):  # type: ignore[no-untyped-def]
    cursor = np.empty(GROUP, np.int64)
    for start in range(0, len(y), GROUP):
        stop = min(start + GROUP, len(y))
        _gather(data, indices, indptr, start, stop, q, width, cursor, y)


@_compile
def _cross(data, indices, indptr, y, width, into):  # type: ignore[no-untyped-def]
    cursor = np.empty(GROUP, np.int64)
    for start in range(0, len(y), GROUP):
        stop = min(start + GROUP, len(y))
        _scatter(data, indices, indptr, start, stop, y[start:stop], width, cursor, into)


@_compile
def _two(data, indices, indptr, q, shift, lines, width, y, into, sums):  # type: ignore[no-untyped-def]
    """lines : offset, factor and weight of each."""
    offset, factor, weight = lines
    cursor = np.empty(GROUP, np.int64)
    g = np.empty((GROUP, y.shape[1]), y.dtype)
    for start in range(0, len(y), GROUP):
        stop = min(start + GROUP, len(y))
        _gather(data, indices, indptr, start, stop, q, width, cursor, y)
        for i in range(start, stop):
            for c in range(len(shift)):
                y[i, c] = factor[i] * (y[i, c] - offset[i] * shift[c])
                sums[c] += offset[i] * weight[i] * y[i, c]
            for c in range(y.shape[1]):
                g[i - start, c] = weight[i] * y[i, c]
        _scatter(data, indices, indptr, start, stop, g, width, cursor, into)


def _width(m: int, entries: int, lines: int, row_nbytes: int) -> int:
    """Columns of a tile: as the cache allows, but with at least ENTRIES entries of a line."""
    fits = TILE_NBYTES // max(row_nbytes, 1)
    return int(max(1, min(m, max(fits, ENTRIES * m * lines // max(entries, 1)))))


def whole_vectors(columns: int, itemsize: int) -> int:
    """Padded columns of a table in whole vectors."""
    vector = columns_per_vector(itemsize)
    return -(-columns // vector) * vector


def _padded(table: Array, dtype: Any) -> Array:
    """The table in C order with rows of whole vectors, padded with 0; a copy if needed."""
    columns = table.shape[1]
    whole = whole_vectors(columns, np.dtype(dtype).itemsize)
    if whole == columns:
        return np.ascontiguousarray(table, dtype)
    out = np.zeros((len(table), whole), dtype)
    out[:, :columns] = table
    return out


def line_products(data: Array, indices: Array, indptr: Array, q: Array) -> Array:
    """(r, l) float64: every line times q (m, l)."""
    columns = q.shape[1]
    q = _padded(q, np.float64)
    y = np.empty((len(indptr) - 1, q.shape[1]))
    width = _width(len(q), len(data), len(y), q.shape[1] * q.itemsize)
    _product(data, indices, indptr, q, width, y)
    return y[:, :columns]


def add_cross_product(data: Array, indices: Array, indptr: Array, y: Array, into: Array) -> None:
    """into (m, l) float64 += sum over lines of line' y_line, with y (r, l)."""
    y = _padded(y, np.float64)
    width = _width(len(into), len(data), len(y), y.shape[1] * 8)
    total = np.zeros((len(into), y.shape[1]))
    _cross(data, indices, indptr, y, width, total)
    into += total[:, : into.shape[1]]


def two_products(
    data: Array,
    indices: Array,
    indptr: Array,
    q: Array,
    shift: Array,
    offset: Array,
    factor: Array,
    weight: Array,
    into: Array,
    sums: Array,
) -> Array:
    """y = factor (X q - offset shift'), into += X' (weight y), sums += offset' (weight y).

    q : (m, l) float32 or float64, and so is the arithmetic.  shift : (l,).
    offset, factor, weight : one per line.  into : (m, l); in the dtype of q with rows of whole
    vectors it is updated directly, otherwise through a padded table.  sums : (l,) float64.
    Returns y (r, l) in the dtype of q.
    """
    columns = q.shape[1]
    q = _padded(q, q.dtype)
    y = np.empty((len(indptr) - 1, q.shape[1]), q.dtype)
    width = _width(len(q), len(data), len(y), q.shape[1] * q.itemsize)
    lines = np.stack([offset, factor, weight])
    direct = into.dtype == q.dtype and into.shape == q.shape
    total = into if direct else np.zeros_like(q)
    _two(data, indices, indptr, q, shift, lines, width, y, total, sums)
    if not direct:
        into += total[:, : into.shape[1]]
    return y[:, :columns]


@_compile
def _norms_by_sample(data, indices, indptr, center, factor, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        for j in range(indptr[i], indptr[i + 1]):
            k, v = indices[j], np.float64(data[j])
            out[i] += v * (v - 2.0 * center[k]) * factor[k] * factor[k]


@_compile
def _norms_by_feature(data, indices, indptr, center, factor, out):  # type: ignore[no-untyped-def]
    for k in range(len(indptr) - 1):
        for j in range(indptr[k], indptr[k + 1]):
            v = np.float64(data[j])
            out[indices[j]] += v * (v - 2.0 * center[k]) * factor[k] * factor[k]


def add_row_norms(
    data: Array,
    indices: Array,
    indptr: Array,
    by_feature: bool,
    center: Array,
    factor: Array,
    out: Array,
) -> None:
    """out (rows,) += sum of ((x - center)^2 - center^2) factor^2 over the stored entries."""
    norms = _norms_by_feature if by_feature else _norms_by_sample
    norms(data, indices, indptr, center, factor, out)


# Compiled column statistics of sparse blocks, including implicit zeros.
#
# Compiled and imported as ``calls``.

_compile_statistics = compiled()


SEEN, HOLES, WEIGHT, LOST, TOTAL, LOW, HIGH, PAD = range(8)  # of a column: one cache line


@_compile_statistics
def _first(data, indices, by_feature, indptr, code, weights, sums):  # type: ignore[no-untyped-def]
    """Fill sums (columns, 8): the statistics of a column are contiguous."""
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            v, other = np.float64(data[j]), indices[j]
            w = weights[other if by_feature else line]
            record = sums[line if by_feature else other]
            if math.isnan(v) or v == code:
                record[HOLES] += 1.0
                record[LOST] += w
            else:
                record[SEEN] += 1.0
                record[WEIGHT] += w
                record[TOTAL] += w * v
                record[LOW] = min(record[LOW], v)
                record[HIGH] = max(record[HIGH], v)


@_compile_statistics
def _second(data, indices, by_feature, indptr, code, weights, moments):  # type: ignore[no-untyped-def]
    """moments (columns, 4): the mean, sum w (x - mean), sum w (x - mean)^2 of observed entries."""
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            v, other = np.float64(data[j]), indices[j]
            if not (math.isnan(v) or v == code):
                record = moments[line if by_feature else other]
                d = v - record[0]
                wd = weights[other if by_feature else line] * d
                record[1] += wd
                record[2] += wd * d


def sparse_stats(
    data: Array,
    indices: Array,
    indptr: Array,
    shape: tuple[int, int],
    by_feature: bool,
    missing: float | None,
    weights: Array | None,
) -> ColumnStats:
    """Statistics of the columns of a compressed block (rows, columns) of that shape.

    by_feature : the lines are columns (CSC).  weights : (rows,) or None.
    NaN and the code are missing; a code of 0 makes all implicit zeros missing. Two sweeps over the
    stored entries: sums, then squares about the mean.
    """
    rows, p = shape
    code = np.nan if missing is None else float(missing)
    w = np.ones(rows) if weights is None else np.ascontiguousarray(weights, np.float64)
    sums = np.zeros((p, PAD + 1))
    sums[:, LOW], sums[:, HIGH] = np.inf, -np.inf
    _first(data, indices, by_feature, indptr, code, w, sums)
    stored, holes, weight, lost, total, low, high, _ = sums.T
    zeros = rows - stored - holes
    zero_weight = zeros if weights is None else np.maximum(w.sum() - weight - lost, 0.0)
    if code == 0.0:
        holes, zeros, zero_weight = holes + zeros, np.zeros(p), np.zeros(p)
    zero_weight = np.where(zeros > 0, zero_weight, 0.0)
    weight = weight + zero_weight
    safe = np.where(weight > 0, weight, 1.0)
    mean = total / safe
    moments = np.zeros((p, 4))
    moments[:, 0] = mean
    _second(data, indices, by_feature, indptr, code, w, moments)
    left = moments[:, 1] - zero_weight * mean
    offset = left / safe
    with np.errstate(over="ignore", invalid="ignore"):  # the solver checks for overflow
        m2 = np.maximum(moments[:, 2] + zero_weight * mean**2 - left * offset, 0.0)
    mean, rest = add_exactly(mean, offset)
    low = np.where(zeros > 0, np.minimum(low, 0.0), low)
    high = np.where(zeros > 0, np.maximum(high, 0.0), high)
    if weights is None:
        m2[(m2 == 0.0) & (high > low)] = VARIES
    count = np.rint(stored + zeros).astype(np.int64)
    return ColumnStats(count, np.rint(holes).astype(np.int64), weight, mean, m2, low, high, rest)
