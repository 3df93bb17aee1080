"""Products of blocks of small integer calls (genotypes) with a few columns, panel by panel."""

from __future__ import annotations

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.calls import _code, _compile
from streampca.kernels.registers import VECTOR, add_lines, lay_calls

# A panel of calls is standardised into a buffer that stays in the second-level cache, and
# multiplied there. No standardised value is written to main memory, and the columns are read once
# per panel of features, not once per tile. The panel is recomputed for the second product, which is
# cheaper than keeping it. (20,000 x 1024 calls and 32 columns, one thread: 50 ms for both
# products in either layout, where tiles and BLAS took 75 to 80.) See ``calls`` for the rest.

# Samples and features of a panel: what is contiguous in memory is long
BY_SAMPLE = (48, 1024)
BY_FEATURE = (480, 96)
DEEP = 96  # terms summed at a time, so that both factors stay in the first-level cache


@_compile
def _lay_panel(x, row, column, m, n, stride, code, center, factor, by_feature, out):  # type: ignore[no-untyped-def]
    """out[i stride + j] = the standardised x[row + i, column + j], for i < m and j < n."""
    whole = n - n % VECTOR
    for i in range(m):
        place = i * stride
        if by_feature:
            c, f = center[row + i], factor[row + i]
            for j in range(0, whole, VECTOR):
                lay_calls(x, row + i, column + j, code, center, factor, row + i, out, place + j, 1)
            for j in range(whole, n):
                v = np.int32(x[row + i, column + j])
                out[place + j] = (v - c) * f if v != code else 0.0
        else:
            for j in range(0, whole, VECTOR):
                k = column + j
                lay_calls(x, row + i, k, code, center, factor, k, out, place + j, 0)
            for k in range(column + whole, column + n):
                v = np.int32(x[row + i, k])
                out[place + k - column] = (v - center[k]) * factor[k] if v != code else 0.0


@_compile
def _add_lines(z, place, across, along, deep, table, first, y, line, column, m):  # type: ignore[no-untyped-def]
    """``add_lines`` for m lines: six at a time, and the remaining ones singly."""
    a = 0
    while a + 6 <= m:
        add_lines(z, place + a * across, across, along, deep, table, first, y, line + a, column, 6)
        a += 6
    while a < m:
        add_lines(z, place + a * across, across, along, deep, table, first, y, line + a, column, 1)
        a += 1


@_compile
def _add_panel(z, across, along, m, n, table, first, y, line):  # type: ignore[no-untyped-def]
    """y[line + a] += sum over b < n of z[a across + b along] table[first + b], for a < m."""
    for b in range(0, n, DEEP):
        deep = min(DEEP, n - b)
        for c in range(0, y.shape[1], VECTOR):
            _add_lines(z, b * along, across, along, deep, table, first + b, y, line, c, m)


@_compile
def _two_products(x, by_feature, samples, features, code, center, factor, q, inner, outer):  # type: ignore[no-untyped-def]
    """inner += Z'q, then outer += Z inner, for the standardised Z of the calls x."""
    if by_feature:
        m, n = x.shape
    else:
        n, m = x.shape
    down, right = -(-n // samples), -(-m // features)
    room = np.empty((samples + VECTOR) * (features + VECTOR), np.float32)
    for sweep in range(2):
        for number in range(down * right):
            # the contiguous dimension innermost, where the processor prefetches
            i = number % down if by_feature else number // right
            j = number // down if by_feature else number % right
            i, j = i * samples, j * features
            tall, wide = min(samples, n - i), min(features, m - j)
            stride = (tall if by_feature else wide) + VECTOR  # rows not a power of two apart
            sample, feature = (1, stride) if by_feature else (stride, 1)
            row, column = (j, i) if by_feature else (i, j)
            down_row, down_column = (wide, tall) if by_feature else (tall, wide)
            _lay_panel(
                x,
                row,
                column,
                down_row,
                down_column,
                stride,
                code,
                center,
                factor,
                by_feature,
                room,
            )
            # one call for both products, because the compiler inlines every call
            across, along, count, deep, place, line = (
                (feature, sample, wide, tall, i, j)
                if sweep == 0
                else (sample, feature, tall, wide, j, i)
            )
            table, into = (q, inner) if sweep == 0 else (inner, outer)
            _add_panel(room, across, along, count, deep, table, place, into, line)


def whole_vectors(columns: int) -> int:
    """The least multiple of VECTOR that is not less than ``columns``."""
    return -(-columns // VECTOR) * VECTOR


def two_products(
    values: Array, missing: float | None, center: Array, factor: Array, q: Array, outer: Array
) -> Array:
    """Z'q, and Z (Z'q) added to ``outer``, for Z = (values - center) * factor, missing cells 0.

    values : (n, m) int8 or uint8 in either layout.  center, factor : (m,) float64.
    q : (n, k) float32.  outer : (n, whole_vectors(k)) float32, C order.
    Returns (m, whole_vectors(k)) float32: columns beyond k are 0.
    Cost: 4 n m k flops.
    """
    by_feature = not values.flags.c_contiguous
    x = values.T if by_feature else values
    x = x if x.strides[1] == x.itemsize else np.ascontiguousarray(x)
    if q.shape[1] != outer.shape[1]:
        q = np.pad(q, ((0, 0), (0, outer.shape[1] - q.shape[1])))
    inner = np.zeros((values.shape[1], outer.shape[1]), np.float32)
    samples, features = BY_FEATURE if by_feature else BY_SAMPLE
    center, factor = (np.ascontiguousarray(one, np.float64) for one in (center, factor))
    _two_products(
        x,
        by_feature,
        samples,
        features,
        _code(missing),
        center,
        factor,
        np.ascontiguousarray(q, np.float32),
        inner,
        outer,
    )
    return inner


@_compile
def _add_sums(x, by_feature, code, center, factor, out):  # type: ignore[no-untyped-def]
    """out += the sum over features of (x - center) factor."""
    m, n = x.shape
    for i in range(m):
        for j in range(n):
            v = np.int32(x[i, j])
            sample, k = (j, i) if by_feature else (i, j)
            out[sample] += (v - center[k]) * factor[k] if v != code else 0.0


def add_image(
    values: Array, missing: float | None, center: Array, factor: Array, h: Array, out: Array
) -> None:
    """Add Z h to ``out`` (n,) float64, in float64. h : (m,); the rest as in two_products."""
    by_feature = not values.flags.c_contiguous
    x = values.T if by_feature else values
    _add_sums(x, by_feature, _code(missing), center, factor * h, out)


# Gram matrix and rotation of a few stacked rows, both panel by panel in registers.
#
# The rows are those of a factor F, and new rows R below them. Both are stored transposed:
# ``factor`` (m, whole_vectors(width)) and ``rows`` (m, b), float32 in C order. Such matrices are
# too thin for BLAS, which takes more than twice as long.

PLACES = 96  # positions of a panel


@_compile
def _fill(factor, rows, first, last, place, count, room):  # type: ignore[no-untyped-def]
    """room[i] = the entries of the factor and of the rows at place + i, padded with zeros."""
    width, wide = factor.shape[1], room.shape[1]
    for i in range(count):
        for c in range(width):
            room[i, c] = factor[place + i, c]
        for c in range(last - first):
            room[i, width + c] = rows[place + i, first + c]
        for c in range(width + last - first, wide):
            room[i, c] = 0.0


@_compile
def _add_gram(factor, rows, first, last, room, gram):  # type: ignore[no-untyped-def]
    """Add to the lower triangle of ``gram``, and to the rest of the tiles that cover it."""
    wide, flat = room.shape[1], room.reshape(-1)
    for place in range(0, len(factor), PLACES):
        count = min(PLACES, len(factor) - place)
        _fill(factor, rows, first, last, place, count, room)
        for c in range(0, wide, VECTOR):
            a = max(c - (c - wide) % 6, 0)  # start above the diagonal, for whole groups of six
            _add_lines(flat, a, 1, wide, count, room, 0, gram, a, c, wide - a)


@_compile
def _turn(factor, rows, first, last, room, turn):  # type: ignore[no-untyped-def]
    """factor = [factor, rows] turn."""
    wide, flat = room.shape[1], room.reshape(-1)
    for place in range(0, len(factor), PLACES):
        count = min(PLACES, len(factor) - place)
        _fill(factor, rows, first, last, place, count, room)
        factor[place : place + count] = 0.0
        _add_panel(flat, wide, 1, count, wide, turn, 0, factor, place)


def stacked_gram(factor: Array, rows: Array, part: slice) -> Array:
    """(width + b, width + b) float64 Gram matrix of F and R, its lower triangle valid.

    part : the columns of ``rows`` to use.
    """
    room = _room(factor, part)
    gram = np.zeros((room.shape[1], room.shape[1]), np.float32)
    _add_gram(factor, rows, part.start, part.stop, room, gram)
    total = factor.shape[1] + part.stop - part.start
    return gram[:total, :total].astype(np.float64)


def turn_stacked(factor: Array, rows: Array, part: slice, turn: Array) -> None:
    """Overwrite F with turn @ [F; R].  turn : (at most width, width + b)."""
    room = _room(factor, part)
    into = np.zeros((room.shape[1], factor.shape[1]), np.float32)
    into[: turn.shape[1], : len(turn)] = turn.T
    _turn(factor, rows, part.start, part.stop, room, into)


def _room(factor: Array, part: slice) -> Array:
    wide = factor.shape[1] + whole_vectors(part.stop - part.start)
    return np.empty((PLACES, wide), np.float32)
