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


SEEN, HOLES, WEIGHT, LOST, TOTAL, LOW, HIGH, PAD = range(8)  # of a column: one cache line


@_compile
def _first(data, indices, by_feature, indptr, code, weights, sums):  # type: ignore[no-untyped-def]
    """sums (columns, 8): all that is said of a column lies together."""
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


@_compile
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
    m2 = np.maximum(moments[:, 2] + zero_weight * mean**2 - left * offset, 0.0)
    mean, rest = add_exactly(mean, offset)
    low = np.where(zeros > 0, np.minimum(low, 0.0), low)
    high = np.where(zeros > 0, np.maximum(high, 0.0), high)
    count = np.rint(stored + zeros).astype(np.int64)
    return ColumnStats(count, np.rint(holes).astype(np.int64), weight, mean, m2, low, high, rest)
