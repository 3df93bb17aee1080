"""Compiled kernels for matrices with few observed cells: normal equations from the entries.

Compiled by Numba on first use (see ``sparse``). A block is given as data, indices, indptr of its
compressed form. Equations are packed as in ``least_squares``.

The entries of a line are taken ROOM at a time: the factors that belong to them are laid side by
side, in whole vectors, and multiplied in registers (``add_lines``). Entry by entry a sum of a few
columns is loaded and stored again each time, and costs three times as much.

A last unknown, which multiplies 1, or a number of each line, is a bias or a mean. It is summed
apart, so that it takes no vector of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.compiled import compiled
from streampca.kernels.least_squares import COLUMNS, solve_packed
from streampca.kernels.registers import add_lines
from streampca.kernels.team import each

ROOM = 128  # entries whose factors are multiplied together: they stay in the first-level cache
ROWS = 4  # of a tile of sums in registers
PIECE = 1024  # lines, or columns, that one thread takes at a time

_compile = compiled(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


# Sums over the entries of one line.


@_compile
def _add_products(rows, flat, sides, count, r, a, b):  # type: ignore[no-untyped-def]
    """a += rows'rows in tiles that cover its upper triangle, b += sides'rows, of ``count`` rows."""
    wide = rows.shape[1]
    for i in range(0, r, ROWS):
        for k in range(i // COLUMNS * COLUMNS, wide, COLUMNS):
            add_lines(flat, i, 1, wide, count, rows, 0, a, i, k, 4)
    for k in range(0, wide, COLUMNS):
        add_lines(sides, 0, 1, 2, count, rows, 0, b, 0, k, 2)


@_compile
def _sum_line(z, indices, first, stop, v, r, fixed, scale, rows, flat, sides, a, b):  # type: ignore[no-untyped-def]
    """a = sum of v_j v_j', b = sums of y_j v_j and of v_j, for y_j = z_j - scale fixed_j.

    Returns the sum of y_j.
    """
    a[:] = 0.0
    b[:] = 0.0
    total, taken = 0.0, len(fixed) > 0
    for start in range(first, stop, ROOM):
        count = min(ROOM, stop - start)
        for c in range(count):
            j = np.uint32(indices[start + c])
            y = z[start + c]
            if taken:
                y -= scale * fixed[j]
            total += y
            sides[2 * c], sides[2 * c + 1] = y, 1.0
            row, room = v[j], rows[c]
            for k in range(len(room)):
                room[k] = row[k]
        _add_products(rows, flat, sides, count, r, a, b)
    return total


@_compile
def _pack(left, right, at, a, b, r, size, total, count):  # type: ignore[no-untyped-def]
    """Lay the sums of a line into column ``at`` of packed equations, a bias last (size > r)."""
    t = 0
    for i in range(r):
        right[i, at] = b[0, i]
        for k in range(i + 1):
            left[t, at] = a[k, i]
            t += 1
    if size > r:
        right[r, at], left[t + r, at] = total, count
        for k in range(r):
            left[t + k, at] = b[1, k]


@_compile
def _solved(u, x, inverse, f):  # type: ignore[no-untyped-def]
    """Overwrite x (r,) by the solution of u x, of which the upper triangle counts.

    u : (whole tiles, whole vectors), 0 beyond r; overwritten.  inverse : what pivots must exceed;
    overwritten.  f : room for as many.  Returns False where a pivot does not.
    """
    r, wide, whole = len(x), u.shape[1], True
    for j in range(r):
        if u[j, j] > inverse[j]:
            inverse[j] = 1.0 / u[j, j]
        else:
            whole, inverse[j] = False, 1.0
        first = (j + 1) // ROWS * ROWS
        for i in range(first, j + 1):
            f[i] = 0.0
        for i in range(j + 1, wide):
            f[i] = -u[j, i] * inverse[j]
        for i in range(j + 1, r):
            x[i] += f[i] * x[j]
        for i in range(first, r, ROWS):
            for k in range(i // COLUMNS * COLUMNS, wide, COLUMNS):
                add_lines(f, i, 1, 0, 1, u, j, u, i, k, 4)
    for j in range(r - 1, -1, -1):
        s = x[j]
        for k in range(j + 1, r):
            s -= u[j, k] * x[k]
        x[j] = s * inverse[j]
    return whole


@_compile
def cholesky_solve(a, b, floor):  # type: ignore[no-untyped-def]
    """Overwrite b (r, lines) with the solutions for a, packed; (lines,) True where singular."""
    r, lines = b.shape
    wide = -(-r // COLUMNS) * COLUMNS
    bad = np.zeros(lines, np.bool_)
    u, x, inverse, f = np.zeros((wide, wide)), np.zeros(r), np.zeros(wide), np.zeros(wide)
    for line in range(lines):
        t = 0
        for i in range(r):
            x[i] = b[i, line]
            for j in range(i + 1):
                u[j, i] = a[t, line]
                t += 1
            inverse[i] = floor * u[i, i]
        bad[line] = not _solved(u, x, inverse, f)
        for i in range(r):
            b[i, line] = x[i]
    return bad


# The factors of lines, given those across.


@_compile
def _solve_lines(z, indices, indptr, start, stop, v, r, fixed, scale, ridges, floor, x, bad):  # type: ignore[no-untyped-def]
    """A bias is eliminated first: what is left is a system of r unknowns, in whole tiles."""
    wide, bias = v.shape[1], len(ridges) > r
    flat, sides = np.empty(ROOM * wide), np.empty(2 * ROOM)
    rows = flat.reshape(ROOM, wide)
    a, b = np.zeros((wide, wide)), np.zeros((2, wide))
    inverse, f = np.zeros(wide), np.zeros(wide)
    for line in range(start, stop):
        first, last, out = indptr[line], indptr[line + 1], x[line]
        if first == last:
            out[:] = 0.0
            bad[line] = not ridges.all()
            continue
        total = _sum_line(
            z, indices, first, last, v, r, fixed, scale[line], rows, flat, sides, a, b
        )
        count = float(last - first)
        for i in range(r):
            out[i] = b[0, i]
            a[i, i] += ridges[i]
            inverse[i] = floor * a[i, i]  # before the bias, whose elimination may leave rounding
        if bias:
            count += ridges[r]
            for i in range(r):
                share = b[1, i] / count
                out[i] -= share * total
                for k in range(i, r):
                    a[i, k] -= share * b[1, k]
        bad[line] = not _solved(a, out[:r], inverse, f)
        if bias:
            for i in range(r):
                total -= b[1, i] * out[i]
            out[r] = total / count


@_compile
def _equations(z, indices, indptr, which, v, r, fixed, scale, left, right):  # type: ignore[no-untyped-def]
    wide, size = v.shape[1], len(right)
    flat, sides = np.empty(ROOM * wide), np.empty(2 * ROOM)
    rows = flat.reshape(ROOM, wide)
    a, b = np.zeros((wide, wide)), np.zeros((2, wide))
    for at, line in enumerate(which):
        first, last = indptr[line], indptr[line + 1]
        total = _sum_line(
            z, indices, first, last, v, r, fixed, scale[line], rows, flat, sides, a, b
        )
        _pack(left, right, at, a, b, r, size, total, float(last - first))


@dataclass(frozen=True)
class Lines:
    """The entries of a block, and what its lines have in common with all others.

    z : (entries,) float64.  indices, indptr : their places across the lines.
    v : (m, r) factors across.  bias : whether a last unknown of every line multiplies 1.
    fixed : (m,) what is taken off z, times ``scale`` (lines,); or None.
    """

    z: Array
    indices: Array
    indptr: Array
    v: Array
    bias: bool = False
    fixed: Array | None = None
    scale: Array | None = None

    @property
    def _size(self) -> int:
        return int(self.v.shape[1]) + self.bias

    def _sides(self) -> tuple[Array, Array]:
        scale = np.ones(len(self.indptr) - 1) if self.scale is None else self.scale
        return np.zeros(0) if self.fixed is None else np.ascontiguousarray(self.fixed), scale

    def solved(self, ridges: Array, floor: float = 1e-11) -> tuple[Array, int]:
        """((lines, size) solutions, the number of lines whose equations are singular).

        Singular ones have the solution of least norm, as by :func:`solve_packed`.
        Cost: r (r + 1) flops per entry, size^3 / 3 per line.
        """
        lines, v = len(self.indptr) - 1, in_vectors(self.v)
        x, bad = np.empty((lines, self._size)), np.zeros(lines, np.bool_)
        fixed, scale = self._sides()

        def solve(part: slice) -> None:
            _solve_lines(
                self.z,
                self.indices,
                self.indptr,
                part.start,
                part.stop,
                v,
                self.v.shape[1],
                fixed,
                scale,
                ridges,
                floor,
                x,
                bad,
            )

        each(solve, _pieces(lines))
        singular = np.flatnonzero(bad)
        for start in range(0, len(singular), PIECE):
            some = singular[start : start + PIECE]
            x[some] = solve_packed(*self.equations(some), ridges, floor)[0].T
        return x, len(singular)

    def equations(self, which: Array | None = None) -> tuple[Array, Array]:
        """(left (size (size + 1) / 2, lines), right (size, lines)) of some lines, or of all."""
        which = np.arange(len(self.indptr) - 1) if which is None else which
        size = self._size
        left, right = np.empty((size * (size + 1) // 2, len(which))), np.empty((size, len(which)))
        _equations(
            self.z,
            self.indices,
            self.indptr,
            which,
            in_vectors(self.v),
            self.v.shape[1],
            *self._sides(),
            left,
            right,
        )
        return left, right


def in_vectors(v: Array) -> Array:
    """(m, r) float64 in C order, with columns of zeros to whole vectors."""
    wide = max(-(-v.shape[1] // COLUMNS), 1) * COLUMNS
    out = np.zeros((len(v), wide))
    out[:, : v.shape[1]] = v
    return out


def _pieces(count: int) -> Sequence[slice]:
    return [slice(start, min(start + PIECE, count)) for start in range(0, count, PIECE)]


# The equations across the lines, of the step from v, given the factors of the lines.


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
def _sum_column(z, lines, first, stop, x, r, level, ones, old, fixed, rows, flat, sides, a, b):  # type: ignore[no-untyped-def]
    """a = sum of x_i x_i', b = sums of y_i x_i and of h_i x_i, for the residuals y of one column.

    Returns the sums of y_i^2, h_i y_i and h_i^2, for h = ones.
    """
    a[:] = 0.0
    b[:] = 0.0
    squares = along = weight = 0.0
    for start in range(first, stop, ROOM):
        count = min(ROOM, stop - start)
        for c in range(count):
            i = np.uint32(lines[start + c])
            row, room, h = x[i], rows[c], ones[i]
            y = z[start + c] - level[i] - h * fixed
            for k in range(len(room)):
                room[k] = row[k]
            # apart: a loop that stores, too, would sum in an order that depends on addresses
            for k in range(len(old)):
                y -= row[k] * old[k]
            squares += y * y
            along += h * y
            weight += h * h
            sides[2 * c], sides[2 * c + 1] = y, h
        _add_products(rows, flat, sides, count, r, a, b)
    return squares, along, weight


@_compile
def _add_across(z, lines, ends, start, stop, x, r, level, ones, v, fixed, left, right):  # type: ignore[no-untyped-def]
    """Add to the equations of some columns; returns the squares of their residuals.

    Eight columns of the sums are added at a time: they share lines of the cache.
    """
    wide, size = x.shape[1], len(right)
    flat, sides = np.empty(ROOM * wide), np.empty(2 * ROOM)
    rows = flat.reshape(ROOM, wide)
    a, b = np.zeros((wide, wide)), np.zeros((2, wide))
    out, right_out = np.empty((len(left), COLUMNS)), np.empty((size, COLUMNS))
    total = 0.0
    for place in range(start, stop, COLUMNS):
        group = min(COLUMNS, stop - place)
        for g in range(group):
            j = place + g
            squares, along, weight = _sum_column(
                z,
                lines,
                ends[j],
                ends[j + 1],
                x,
                r,
                level,
                ones,
                v[j],
                fixed[j],
                rows,
                flat,
                sides,
                a,
                b,
            )
            total += squares
            _pack(out, right_out, g, a, b, r, size, along, weight)
        for t in range(len(left)):
            for g in range(group):
                left[t, place + g] += out[t, g]
        for t in range(size):
            for g in range(group):
                right[t, place + g] += right_out[t, g]
    return total


@dataclass(frozen=True)
class Turned:
    """The entries of a block, sorted by their places across the lines."""

    z: Array
    lines: Array
    ends: Array

    @classmethod
    def of(cls, z: Array, indices: Array, indptr: Array, m: int) -> Turned:
        """From those sorted by line; m : places across."""
        return cls(*_turn(z, indices, indptr, m))

    def add_equations(
        self,
        x: Array,
        v: Array,
        left: Array,
        right: Array,
        ones: Array,
        level: Array | None = None,
        fixed: Array | None = None,
    ) -> float:
        """Add the equations of the step from v (m, r), given x (lines, r); squares of residuals.

        The residuals are z_ij - x_i v_j - level_i - ones_i fixed_j.
        left, right : (size (size + 1) / 2, m) and (size, m) float64; where size is r + 1, ``ones``
            (lines,) is the last factor of every line.
        Cost: r (r + 1) flops per entry.
        """
        m, r = v.shape
        rows, old = in_vectors(x), in_vectors(v)
        level = np.zeros(len(x)) if level is None else np.ascontiguousarray(level)
        fixed = np.zeros(m) if fixed is None else np.ascontiguousarray(fixed)
        pieces = _pieces(m)
        squares = np.zeros(len(pieces))

        def add(number: int) -> None:
            part = pieces[number]
            squares[number] = _add_across(
                self.z,
                self.lines,
                self.ends,
                part.start,
                part.stop,
                rows,
                r,
                level,
                ones,
                old,
                fixed,
                left,
                right,
            )

        each(add, range(len(pieces)))
        return float(squares.sum())
