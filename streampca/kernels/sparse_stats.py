"""Compiled column statistics of sparse blocks, implicit zeros counted and never made.

Compiled and imported as ``calls``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from streampca.kernels.blas import Array
from streampca.kernels.columns import ColumnStats, add_exactly

_compile: Any = njit(nogil=True, cache=True)


@_compile
def _first(data, column, line_is_column, indptr, code, weights, table, low, high):  # type: ignore[no-untyped-def]
    """table rows: observed entries, holes, their weight, weight of holes, sum w x."""
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            k = line if line_is_column else column[j]
            w = weights[column[j] if line_is_column else line]
            v = np.float64(data[j])
            if math.isnan(v) or v == code:
                table[1, k] += 1.0
                table[3, k] += w
            else:
                table[0, k] += 1.0
                table[2, k] += w
                table[4, k] += w * v
                low[k] = min(low[k], v)
                high[k] = max(high[k], v)


@_compile
def _second(data, column, line_is_column, indptr, code, weights, mean, table):  # type: ignore[no-untyped-def]
    """table rows: sum w (x - mean), sum w (x - mean)^2 over the observed entries."""
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            k = line if line_is_column else column[j]
            w = weights[column[j] if line_is_column else line]
            v = np.float64(data[j])
            if not (math.isnan(v) or v == code):
                d = v - mean[k]
                table[0, k] += w * d
                table[1, k] += w * d * d


def sparse_stats(
    data: Array, indices: Array, indptr: Array, shape: tuple[int, int], by_feature: bool,
    missing: float | None, weights: Array | None,
) -> ColumnStats:  # fmt: skip
    """Statistics of the columns of a compressed block (rows, columns) of that shape.

    by_feature : the lines are columns (CSC).  weights : (rows,) or None.  Missing are NaN and the
    code; a code of 0 makes all implicit zeros missing. Two sweeps over the stored entries: sums,
    then squares about the mean.
    """
    rows, p = shape
    code = np.nan if missing is None else float(missing)
    w = np.ones(rows) if weights is None else np.ascontiguousarray(weights, np.float64)
    table, low, high = np.zeros((5, p)), np.full(p, np.inf), np.full(p, -np.inf)
    _first(data, indices, by_feature, indptr, code, w, table, low, high)
    stored, holes, weight, lost, total = table
    zeros = rows - stored - holes
    zero_weight = zeros if weights is None else np.maximum(w.sum() - weight - lost, 0.0)
    if code == 0.0:
        holes, zeros, zero_weight = holes + zeros, np.zeros(p), np.zeros(p)
    zero_weight = np.where(zeros > 0, zero_weight, 0.0)
    weight = weight + zero_weight
    safe = np.where(weight > 0, weight, 1.0)
    mean = total / safe
    about = np.zeros((2, p))
    _second(data, indices, by_feature, indptr, code, w, mean, about)
    left = about[0] - zero_weight * mean
    offset = left / safe
    m2 = np.maximum(about[1] + zero_weight * mean**2 - left * offset, 0.0)
    mean, rest = add_exactly(mean, offset)
    low = np.where(zeros > 0, np.minimum(low, 0.0), low)
    high = np.where(zeros > 0, np.maximum(high, 0.0), high)
    count = np.rint(stored + zeros).astype(np.int64)
    return ColumnStats(count, np.rint(holes).astype(np.int64), weight, mean, m2, low, high, rest)
