"""Compiled kernels for sparse blocks: products with a few dense columns, column statistics.

Compiled by Numba on first use, cached on disk, run without the GIL, and imported where needed
(see ``calls``). A block is given as the arrays of a compressed matrix with r lines of length m:
data, indices, indptr of a CSR block (lines are its rows), or of a CSC block (lines are its
columns, so that everything here holds of its transpose). Indices increase within a line.

A line of 1000 entries touches 1000 rows of the dense operand all over memory. So lines are taken
GROUP at a time and the operands in tiles that stay in the second-level cache; a cursor per line
remembers how far it is. (5 % of 20,000 columns, 40 of them dense, one thread: 2.4 s for 1e8
entries and both products, 1.7 s in float32; 6.7 s line by line.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streampca.kernels.blas import Array

GROUP = 512  # lines that are walked together
FOLD = 4  # groups whose products are summed in float32 before float64 takes them
TILE_NBYTES = 640 * 1024  # of both dense operands together
ENTRIES = 16  # fewer entries of one line in a tile cost more in loops than the cache saves

_compile: Any = njit(nogil=True, cache=True, error_model="numpy",
                     fastmath={"contract", "reassoc", "nsz"})  # fmt: skip


@_compile
def _gather_tile(data, indices, first, end, stop, q, y):  # type: ignore[no-untyped-def]
    """y += the entries from ``first`` to where indices reach ``end``; returns where that is."""
    last = first
    while last < stop and indices[last] < end:
        last += 1
    j = first
    while j + 4 <= last:  # four rows of q for one load and store of y
        v0, v1 = y.dtype.type(data[j]), y.dtype.type(data[j + 1])
        v2, v3 = y.dtype.type(data[j + 2]), y.dtype.type(data[j + 3])
        q0, q1 = q[np.uint32(indices[j])], q[np.uint32(indices[j + 1])]
        q2, q3 = q[np.uint32(indices[j + 2])], q[np.uint32(indices[j + 3])]
        for c in range(len(y)):
            y[c] += (v0 * q0[c] + v1 * q1[c]) + (v2 * q2[c] + v3 * q3[c])
        j += 4
    while j < last:
        v, row = y.dtype.type(data[j]), q[np.uint32(indices[j])]
        for c in range(len(y)):
            y[c] += v * row[c]
        j += 1
    return last


@_compile
def _scatter_tile(data, indices, first, end, stop, y, into):  # type: ignore[no-untyped-def]
    j = first
    while j < stop and indices[j] < end:
        v, row = y.dtype.type(data[j]), into[np.uint32(indices[j])]
        for c in range(len(y)):
            row[c] += v * y[c]
        j += 1
    return j


@_compile
def _gather(data, indices, indptr, start, stop, q, width, cursor, y):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        cursor[i - start] = indptr[i]
        for c in range(y.shape[1]):
            y[i, c] = 0.0
    for tile in range(0, len(q), width):
        for i in range(start, stop):
            cursor[i - start] = _gather_tile(
                data, indices, cursor[i - start], tile + width, indptr[i + 1], q, y[i]
            )


@_compile
def _scatter(data, indices, indptr, start, stop, y, first, width, cursor, into):  # type: ignore[no-untyped-def]
    """into += lines' entries times their rows of y; line i has row i - first."""
    for i in range(start, stop):
        cursor[i - start] = indptr[i]
    for tile in range(0, len(into), width):
        for i in range(start, stop):
            cursor[i - start] = _scatter_tile(
                data, indices, cursor[i - start], tile + width, indptr[i + 1], y[i - first], into
            )


@_compile
def _product(data, indices, indptr, q, width, group, y):  # type: ignore[no-untyped-def]
    cursor = np.empty(group, np.int64)
    for start in range(0, len(y), group):
        stop = min(start + group, len(y))
        _gather(data, indices, indptr, start, stop, q, width, cursor, y)


@_compile
def _cross(data, indices, indptr, y, width, group, into):  # type: ignore[no-untyped-def]
    cursor = np.empty(group, np.int64)
    for start in range(0, len(y), group):
        stop = min(start + group, len(y))
        _scatter(data, indices, indptr, start, stop, y, 0, width, cursor, into)


@_compile
def _two(data, indices, indptr, q, shift, lines, width, group, y, into, partial, sums):  # type: ignore[no-untyped-def]
    """lines : offset, factor and weight of each.

    partial : in the dtype of q, added to ``into`` every FOLD groups; or ``into`` itself.
    """
    offset, factor, weight = lines
    cursor = np.empty(group, np.int64)
    g = np.empty((group, y.shape[1]), y.dtype)
    for start in range(0, len(y), group):
        stop = min(start + group, len(y))
        _gather(data, indices, indptr, start, stop, q, width, cursor, y)
        for i in range(start, stop):
            for c in range(y.shape[1]):
                y[i, c] = factor[i] * (y[i, c] - offset[i] * shift[c])
                g[i - start, c] = weight[i] * y[i, c]
                sums[c] += offset[i] * g[i - start, c]
        _scatter(data, indices, indptr, start, stop, g, start, width, cursor, partial)
        if partial.itemsize < into.itemsize and (stop % (FOLD * group) == 0 or stop == len(y)):
            into += partial
            partial[:] = 0


def _width(m: int, entries: int, lines: int, row_nbytes: int) -> int:
    """Columns of a tile: what the cache holds, but a few entries of every line at least."""
    fits = TILE_NBYTES // max(row_nbytes, 1)
    return int(max(1, min(m, max(fits, ENTRIES * m * lines // max(entries, 1)))))


def line_products(data: Array, indices: Array, indptr: Array, q: Array) -> Array:
    """(r, l) float64: every line times q (m, l), of float32 or float64."""
    q = np.ascontiguousarray(q)
    y = np.empty((len(indptr) - 1, q.shape[1]))
    width = _width(len(q), len(data), len(y), q.shape[1] * q.itemsize)
    _product(data, indices, indptr, q, width, GROUP, y)
    return y


def add_cross_product(data: Array, indices: Array, indptr: Array, y: Array, into: Array) -> None:
    """into (m, l) float64 += sum over lines of line' y_line, with y (r, l)."""
    width = _width(len(into), len(data), len(y), into.shape[1] * 8)
    _cross(data, indices, indptr, np.ascontiguousarray(y, np.float64), width, GROUP, into)


def two_products(
    data: Array, indices: Array, indptr: Array, q: Array, shift: Array,
    offset: Array, factor: Array, weight: Array, into: Array, sums: Array,
) -> Array:  # fmt: skip
    """y = factor (X q - offset shift'), into += X' (weight y), sums += offset' (weight y).

    q : (m, l) float32 or float64, and so is the arithmetic.  shift : (l,).
    offset, factor, weight : one per line.  into : (m, l), sums : (l,), both float64.
    Returns y (r, l) in the dtype of q.
    """
    q = np.ascontiguousarray(q)
    y = np.empty((len(indptr) - 1, q.shape[1]), q.dtype)
    partial = np.zeros_like(q) if q.dtype == np.float32 else into
    width = _width(len(q), len(data), len(y), q.shape[1] * (q.itemsize + partial.itemsize))
    lines = np.stack([offset, factor, weight])
    _two(data, indices, indptr, q, shift, lines, width, GROUP, y, into, partial, sums)
    return y


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
    data: Array, indices: Array, indptr: Array, by_feature: bool,
    center: Array, factor: Array, out: Array,
) -> None:  # fmt: skip
    """out (rows,) += sum of ((x - center)^2 - center^2) factor^2 over the stored entries."""
    norms = _norms_by_feature if by_feature else _norms_by_sample
    norms(data, indices, indptr, center, factor, out)
