"""Compiled kernels for matrices with few observed cells: normal equations from the entries.

Compiled by Numba on first use (see ``sparse``). A block is given as data, indices, indptr of its
compressed form. Equations are packed as in ``least_squares``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streampca.kernels.blas import Array

_compile: Any = njit(nogil=True, cache=True, error_model="numpy",
                     fastmath={"contract", "reassoc", "nsz"})  # fmt: skip


@_compile
def _add_line(z, indices, first, stop, v, a, b):  # type: ignore[no-untyped-def]
    """a (r, r) lower += sum of v_j v_j', b (r,) += sum of z_j v_j over the entries of one line."""
    r = len(b)
    j = first
    while j + 4 <= stop:  # four rows of v for one load and store of a
        v0, v1 = v[np.uint32(indices[j])], v[np.uint32(indices[j + 1])]
        v2, v3 = v[np.uint32(indices[j + 2])], v[np.uint32(indices[j + 3])]
        z0, z1, z2, z3 = z[j], z[j + 1], z[j + 2], z[j + 3]
        for i in range(r):
            s0, s1, s2, s3 = v0[i], v1[i], v2[i], v3[i]
            b[i] += (z0 * s0 + z1 * s1) + (z2 * s2 + z3 * s3)
            row = a[i]
            for k in range(i + 1):
                row[k] += (s0 * v0[k] + s1 * v1[k]) + (s2 * v2[k] + s3 * v3[k])
        j += 4
    while j < stop:
        v0, z0 = v[np.uint32(indices[j])], z[j]
        for i in range(r):
            s0 = v0[i]
            b[i] += z0 * s0
            row = a[i]
            for k in range(i + 1):
                row[k] += s0 * v0[k]
        j += 1


@_compile
def _add_equations(z, indices, indptr, v, left, right):  # type: ignore[no-untyped-def]
    r = v.shape[1]
    a, b = np.zeros((r, r)), np.zeros(r)
    for line in range(len(indptr) - 1):
        if indptr[line] == indptr[line + 1]:
            continue
        a[:] = 0.0
        b[:] = 0.0
        _add_line(z, indices, indptr[line], indptr[line + 1], v, a, b)
        t = 0
        for i in range(r):
            right[i, line] += b[i]
            for k in range(i + 1):
                left[t, line] += a[i, k]
                t += 1


@_compile
def cholesky_solve(a, b, floor):  # type: ignore[no-untyped-def]
    """Overwrite b (r, lines) with the solutions for a, packed; (lines,) True where singular."""
    r, lines = b.shape
    bad = np.zeros(lines, np.bool_)
    low, x = np.zeros((r, r)), np.zeros(r)
    for line in range(lines):
        t = 0
        for i in range(r):
            row = low[i]
            for j in range(i + 1):
                row[j] = a[t, line]
                t += 1
            diagonal = row[i]
            for j in range(i + 1):
                other, s = low[j], row[j]
                for k in range(j):
                    s -= row[k] * other[k]
                if j < i:
                    row[j] = s * other[j]
                elif s > floor * diagonal:
                    row[i] = 1.0 / np.sqrt(s)  # the reciprocal of the diagonal is stored
                else:
                    bad[line], row[i] = True, 1.0
        for i in range(r):
            s = b[i, line]
            for k in range(i):
                s -= low[i, k] * x[k]
            x[i] = s * low[i, i]
        for i in range(r - 1, -1, -1):
            x[i] *= low[i, i]
            for k in range(i):
                x[k] -= low[i, k] * x[i]
            b[i, line] = x[i]
    return bad


@_compile
def _turn(z, indices, indptr, m):  # type: ignore[no-untyped-def]
    """The same entries compressed along the other axis, of length m, in order."""
    ends = np.zeros(m + 1, np.int64)
    for j in range(indptr[0], indptr[-1]):
        ends[indices[j] + 1] += 1
    for k in range(m):
        ends[k + 1] += ends[k]
    place = ends[:-1].copy()
    n = indptr[-1] - indptr[0]
    values, lines = np.empty(n, z.dtype), np.empty(n, np.int32)
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            k = indices[j]
            values[place[k]], lines[place[k]] = z[j], line
            place[k] += 1
    return values, lines, ends


@_compile
def _leave(z, indices, indptr, v, x, out):  # type: ignore[no-untyped-def]
    r = v.shape[1]
    for line in range(len(indptr) - 1):
        for j in range(indptr[line], indptr[line + 1]):
            row, s = v[np.uint32(indices[j])], z[j]
            for i in range(r):
                s -= x[line, i] * row[i]
            out[j] = s


def residuals(z: Array, indices: Array, indptr: Array, v: Array, x: Array) -> Array:
    """(entries,) z - x_line v_j of every entry, for x (r, lines) and v (m, r), float64.

    Cost: 2 r flops per entry.
    """
    out = np.empty_like(z)
    _leave(z, indices, indptr, v, np.ascontiguousarray(x.T, np.float64), out)
    return out


def line_equations(z: Array, indices: Array, indptr: Array, v: Array) -> tuple[Array, Array]:
    """(left (r (r + 1) / 2, lines), right (r, lines)) of every line, float64, for v (m, r).

    Cost: r (r + 1) flops per entry.
    """
    r, lines = v.shape[1], len(indptr) - 1
    left, right = np.zeros((r * (r + 1) // 2, lines)), np.zeros((r, lines))
    _add_equations(z, indices, indptr, v, left, right)
    return left, right


def add_cross_equations(
    z: Array, indices: Array, indptr: Array, x: Array, left: Array, right: Array
) -> None:
    """Add to the equations across the lines, left (r (r + 1) / 2, m) and right (r, m) float64.

    x : (r, lines) the factors of the lines.  Cost: r (r + 1) flops per entry, and a transposition.
    """
    turned = _turn(z, indices, indptr, right.shape[1])
    _add_equations(*turned, np.ascontiguousarray(x.T, np.float64), left, right)
