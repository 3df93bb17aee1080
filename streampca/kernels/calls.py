"""Compiled kernels for blocks of small integer calls (genotypes): unpack, count, standardise.

Compiled by Numba on first use, cached on disk, and run without the GIL. This module is imported
on demand, not at start-up: Numba takes 50 MB. A block of features has either of two layouts: "by
feature", (features, samples), as in variant-major files, or "by sample", (samples, features).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.columns import ColumnStats, row_pieces
from streampca.kernels.compiled import compiled
from streampca.kernels.team import each

BEYOND = 1 << 15  # larger than any int8 or uint8
LINES = 64  # rows gathered at a time
TASK_NBYTES = 1 << 19  # of a tile that one thread fills at a time
PIECE = 32768  # entries whose squares fit an int32 sum: 32768 x 255^2 < 2^31


_compile = compiled()


def _bed_table() -> Array:
    """(256, 4) int8: the four calls in a byte of a PLINK 1 .bed, as copies of the first allele."""
    copies = np.array([2, -1, 1, 0], dtype=np.int8)  # 00 both, 01 missing, 10 one, 11 none
    byte = np.arange(256)[:, None]
    return np.asarray(copies[(byte >> (2 * np.arange(4))) & 3])


def _geno_table() -> Array:
    """(256, 4) int8: the four calls in a byte of a packed .geno, the first in the highest bits."""
    copies = np.array([0, 1, 2, -1], dtype=np.int8)
    byte = np.arange(256)[:, None]
    return np.asarray(copies[(byte >> (2 * np.arange(4)[::-1])) & 3])


BED_TABLE = _bed_table()
GENO_TABLE = _geno_table()
NO_DIGIT = -2


def _digit_table() -> Array:
    """(256,) int8: the call of a character of EIGENSTRAT's .geno; NO_DIGIT of any other."""
    calls = np.full(256, NO_DIGIT, np.int8)
    for digit, call in ((b"0", 0), (b"1", 1), (b"2", 2), (b"9", -1)):
        calls[digit[0]] = call
    return calls


DIGIT_TABLE = _digit_table()


@_compile
def unpack_bed(packed: Array, table: Array, out: Array) -> None:
    """Two-bit calls to int8: packed (m, ceil(n / 4)) uint8 -> out (m, n)."""
    m, n = out.shape
    whole = n // 4
    for j in range(m):
        for b in range(whole):
            four = table[packed[j, b]]
            out[j, 4 * b] = four[0]
            out[j, 4 * b + 1] = four[1]
            out[j, 4 * b + 2] = four[2]
            out[j, 4 * b + 3] = four[3]
        for i in range(4 * whole, n):
            out[j, i] = table[packed[j, whole], i - 4 * whole]


@_compile
def unpack_digits(text: Array, table: Array, out: Array) -> Any:
    """Characters to int8: text (m, at least n) uint8 -> out (m, n). Whether any is no call."""
    m, n = out.shape
    lowest: Any = np.int8(0)
    for j in range(m):
        row, calls = text[j], out[j]
        for i in range(n):
            call = table[row[i]]
            calls[i] = call
            lowest = np.int8(min(lowest, call))
    return lowest == NO_DIGIT


@_compile
def _sum_pairs(pairs: Array, out: Array) -> Any:
    """Two int8 alleles in each int16 of ``pairs`` (m, n) -> out (m, n) int8.

    Returns the highest allele, and whether any is -2. The loop uses int16 only, so that it compiles
    to vector instructions (15 times faster than loading single alleles). The byte order does not
    matter.
    """
    m, n = pairs.shape
    highest: Any = np.int16(-1)
    mixed: Any = np.int16(0)
    for j in range(m):
        row, copies = pairs[j], out[j]
        for i in range(n):
            v = row[i]
            a, b = np.int16(np.int16(v << 8) >> 8), np.int16(v >> 8)
            s = np.int16(np.int16(a == 1) + np.int16(b == 1))
            copies[i] = np.int8(np.int16(-1) if (a | b) < 0 else s)
            highest = np.int16(max(highest, max(a, b)))
            mixed = np.int16(mixed | np.int16((a == -2) | (b == -2)))
    return highest, mixed


@_compile
def _sum_one_by_one(calls: Array, masked: Array, out: Array) -> Any:
    """As ``_sum_pairs`` for any ploidy, integer type and mask; (the highest, whether any call has
    copies that do not divide the ploidy)."""
    m, n, ploidy = calls.shape
    highest: Any = np.int32(-1)
    uneven: Any = False
    whole = max(ploidy, 2)
    for j in range(m):
        for i in range(n):
            copies = present = np.int32(0)
            lost: Any = False
            for k in range(ploidy):
                a = np.int32(calls[j, i, k])
                hidden = len(masked) > 0 and masked[j, i, k] != 0
                lost = lost or a == -1 or a < -2 or (hidden and a != -2)
                copies, present = np.int32(copies + (a == 1)), np.int32(present + (a >= 0))
                highest = max(highest, a)
            if lost or present == 0:
                out[j, i] = np.int32(-1)
                continue
            uneven = uneven or whole % present != 0
            out[j, i] = np.int32(copies * (whole // present))
    return highest, uneven


@_compile
def _hides_more(calls: Array, masked: Array) -> bool:
    """Whether a mask (flattened) hides an allele that is not already negative."""
    more = np.int8(0)
    for i in range(len(calls)):
        more = np.int8(more | np.int8((masked[i] != 0) & (calls[i] >= 0)))
    return bool(more != 0)


UNEVEN = 1 << 16


def sum_alleles(calls: Array, masked: Array | None, out: Array) -> int:
    """Copies of allele 1 in every call: calls (m, n, ploidy) integers -> out (m, n) int8.

    -1 in ``calls`` is a missing allele, and makes the call missing (-1); -2 means no allele (mixed
    ploidy). A call of fewer copies counts as one of the same shares of max(ploidy, 2) copies: a
    haploid one counts twice, as in a .bed of PLINK.
    masked : (m, n, ploidy) uint8, not 0 = missing; or None.  calls and masked in C order.
    Returns the highest allele number, or UNEVEN where a call's copies do not divide the ploidy:
    above 1, ``out`` does not hold all the information.
    """
    if masked is not None and not _hides_more(calls.reshape(-1), masked.reshape(-1)):
        masked = None  # writers derive the mask from the calls: it adds nothing
    if masked is None and calls.shape[2] == 2 and calls.dtype == np.int8:
        highest, mixed = _sum_pairs(calls.view(np.int16)[:, :, 0], out)
        if not mixed:
            return int(highest)
    masked = np.zeros((0, 1, 1), np.uint8) if masked is None else masked
    highest, uneven = _sum_one_by_one(calls, masked, out)
    return UNEVEN if uneven else int(highest)


@_compile
def _count_by_feature(x: Array, code: int, sums: Array, lows: Array, highs: Array) -> None:
    """sums (3, m) int64: observed, total, squares of each row of x; lows, highs (m,).

    The loops over i use int32 only, so that they compile to vector instructions.
    """
    m, n = x.shape
    for j in range(m):
        row = x[j]
        observed: Any = 0
        total: Any = 0
        squares: Any = 0
        for start in range(0, n, PIECE):
            seen = one = two = np.int32(0)
            for i in range(start, min(start + PIECE, n)):
                v = np.int32(row[i])
                s = np.int32(v != code)
                k = v * s
                seen, one, two = np.int32(seen + s), np.int32(one + k), np.int32(two + k * k)
            observed, total, squares = observed + seen, total + one, squares + two
        low, high = np.int32(BEYOND), np.int32(-BEYOND)
        for i in range(n):
            v = np.int32(row[i])
            low = np.int32(min(low, v if v != code else np.int32(BEYOND)))
            high = np.int32(max(high, v if v != code else np.int32(-BEYOND)))
        sums[0, j], sums[1, j], sums[2, j] = observed, total, squares
        lows[j], highs[j] = low, high


@_compile
def _count_by_sample(
    x: Array, code: int, work: Array, sums: Array, lows: Array, highs: Array
) -> None:
    """The same for the columns of x; work (5, m) int32.

    No array is assigned to another: that alone compiles a second of text for its error.
    """
    n, m = x.shape
    seen, one, two, low, high = work[0], work[1], work[2], work[3], work[4]
    for j in range(m):
        low[j], high[j] = BEYOND, -BEYOND
        sums[0, j] = sums[1, j] = sums[2, j] = 0
    for start in range(0, n, PIECE):
        for j in range(m):
            seen[j] = one[j] = two[j] = 0
        for i in range(start, min(start + PIECE, n)):
            for j in range(m):
                v = np.int32(x[i, j])
                s = np.int32(v != code)
                k = v * s
                seen[j] += s
                one[j] += k
                two[j] += k * k
                low[j] = min(low[j], v if v != code else np.int32(BEYOND))
                high[j] = max(high[j], v if v != code else np.int32(-BEYOND))
        for j in range(m):
            sums[0, j] += seen[j]
            sums[1, j] += one[j]
            sums[2, j] += two[j]
    for j in range(m):
        lows[j], highs[j] = low[j], high[j]


def _code(missing: float | None) -> Any:
    """The missing code for the kernels; without one, a number that no value equals."""
    if missing is None or abs(missing) > BEYOND or not float(missing).is_integer():
        return np.int32(BEYOND)
    return np.int32(missing)


def call_stats(values: Array, missing: float | None) -> ColumnStats:
    """Column statistics of a block (n, m) of int8 or uint8 in either layout; sums are exact."""
    n, m = values.shape
    code = _code(missing)
    sums = np.empty((3, m), np.int64)
    low, high = np.empty(m, np.int64), np.empty(m, np.int64)
    if values.flags.c_contiguous:
        _count_by_sample(values, code, np.empty((5, m), np.int32), sums, low, high)
    else:
        _count_by_feature(values.T, code, sums, low, high)
    count, total, squares = sums
    safe = np.maximum(count, 1)
    seen = count > 0
    return ColumnStats(
        count.copy(),
        n - count,
        count.astype(np.float64),
        total / safe,
        (squares * safe - total * total) / safe,
        np.where(seen, low, np.inf),
        np.where(seen, high, -np.inf),
        np.zeros(m),
    )


@_compile
def _standardize_by_feature(x: Array, code: int, center: Array, factor: Array, out: Array) -> None:
    m, n = x.shape
    for j in range(m):
        c, f = center[j], factor[j]
        for i in range(n):
            v = np.int32(x[j, i])
            out[j, i] = (v - c) * f if v != code else 0.0


@_compile
def _standardize_by_sample(
    x: Array, first: int, code: int, center: Array, factor: Array, out: Array
) -> None:
    """Gathers a few distant rows first, so that their cache misses overlap."""
    n, m = out.shape
    near = np.empty((LINES, m), x.dtype)
    for start in range(0, n, LINES):
        lines = min(LINES, n - start)
        for i in range(lines):
            row, kept = x[start + i, first : first + m], near[i]
            for j in range(m):
                kept[j] = row[j]
        for i in range(lines):
            row, line = near[i], out[start + i]  # so that the loop compiles to vectors
            for j in range(m):
                v = np.int32(row[j])
                line[j] = (v - center[j]) * factor[j] if v != code else 0.0


def standardize_calls(
    values: Array, part: slice, missing: float | None, center: Array, factor: Array, out: Array
) -> None:
    """out = (values[:, part] - center) * factor, missing cells 0, each rounded once from float64.

    values : (n, m) in either layout.  out : (n, width) in the same.  center, factor : (width,).
    """
    code, by_sample = _code(missing), values.flags.c_contiguous
    x, into = (values, out) if by_sample else (values.T[part], out.T)

    def standardize(lines: slice) -> None:
        if by_sample:
            _standardize_by_sample(x[lines], part.start, code, center, factor, into[lines])
        else:
            _standardize_by_feature(x[lines], code, center[lines], factor[lines], into[lines])

    each(standardize, row_pieces(len(into), into.shape[1] * into.itemsize, TASK_NBYTES))


@_compile
def _row_missing_by_feature(x: Array, code: int, lost: Array) -> None:
    m, n = x.shape
    for j in range(m):
        for i in range(n):
            lost[i] += np.int32(x[j, i] == code)


@_compile
def _row_missing_by_sample(x: Array, code: int, lost: Array) -> None:
    n, m = x.shape
    for i in range(n):
        count = np.int32(0)
        for j in range(m):
            count += np.int32(x[i, j] == code)
        lost[i] += count


def row_missing(values: Array, missing: float | None) -> Array:
    """(n,) int64 missing cells of each row of a block (n, m) in either layout."""
    lost = np.zeros(values.shape[0], np.int32)
    if missing is not None:
        if values.flags.c_contiguous:
            _row_missing_by_sample(values, _code(missing), lost)
        else:
            _row_missing_by_feature(values.T, _code(missing), lost)
    return lost.astype(np.int64)
