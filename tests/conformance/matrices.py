"""Matrices on which principal components are hard to compute, the same bits everywhere.

Entries are integers of a hash times powers of 2, or quotients that are rounded once: no random
stream of a library, no function of a mathematical library. :mod:`tests.conformance.generate` holds
the exact answers of what is stored, so rounding an entry here is no error of anybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A matrix, the number of components that are asked, and what makes it hard.

    closed : (n, values): its singular values are sqrt(n) times those, centred or not.
    right : (p, p) its right singular vectors, in the order of ``closed``, where nothing else could
        find them in many digits.
    """

    make: Callable[[], Array]
    k: int
    why: str
    closed: tuple[int, Array] | None = None
    right: Callable[[], Array] | None = None


def integers(n: int, p: int, seed: int, most: int = 1000) -> Array:
    """(n, p) int64 between -most and most, about normal: four hashes each (SplitMix64)."""
    z = (np.arange(4 * n * p, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    drawn = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.int64)  # 24 bits
    drawn = drawn.reshape(4, n, p).sum(axis=0) - (1 << 25)
    return drawn * most >> 25


def spread(n: int, p: int, seed: int) -> Array:
    """(n, p) float64 integers whose columns have different sizes, so that values stand apart."""
    return (integers(n, p, seed) * (1 + np.arange(p)[::-1])).astype(np.float64)


def hadamard(n: int) -> Array:
    """(n, n) of 1 and -1, orthogonal, the first column constant; n is a power of 2."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def from_values(n: int, values: Array, first: int = 1) -> Array:
    """(n, p) with singular values sqrt(n) times those (p,), exactly: H diag(values) (I - 2J/p).

    Columns of the Hadamard matrix after the constant one make it centred; the right factor is a
    reflection, with vectors that have no zeros.
    """
    p = len(values)
    turn = np.eye(p) - 2.0 / p
    return hadamard(n)[:, first : first + p] * values @ turn


def powers(p: int, step: int) -> Array:
    return np.ldexp(1.0, -step * np.arange(p))


def as_integers(x: Array) -> tuple[Any, int]:
    """(n, p) Python integers, and what they are divided by."""
    ratios = [[Fraction(value) for value in row] for row in x.tolist()]
    below = max(value.denominator for row in ratios for value in row)
    whole = [[int(value * below) for value in row] for row in ratios]
    return np.array(whole, dtype=object).reshape(x.shape), below


# -- offsets -----------------------------------------------------------------------


def offset(dtype: str, size: float, p: int = 8, n: int = 1000) -> Array:
    """Deviations of about 1,000 from means of about ``size``, of both signs."""
    means = size * (1 + np.arange(p)) / p * np.where(np.arange(p) % 2, -1.0, 1.0)
    return (spread(n, p, 1) + np.rint(means)).astype(dtype)


def drifting() -> Array:
    """The mean of the second half is a million times the deviations of either."""
    x = spread(1024, 6, 2)
    x[512:] += 1e9 * np.array([1, -1, 2, -2, 3, -3])
    return x


def giant_row(place: int, dtype: str, p: int = 8, times: int = 20) -> Array:
    x = spread(601, p, 3).astype(dtype)
    x[place] *= 2.0**times
    return x


def constant_columns() -> Array:
    """A third of the columns is constant at values that binary numbers do not hold."""
    x = spread(500, 9, 4) + 0.1
    x[:, 1::3] = [0.1, 1e6 / 3, -7e-5]
    return x


# -- spectra -----------------------------------------------------------------------


def flat_tail() -> Array:
    """512 x 256: four components, then 252 values that decay by 1 % in all, (H D H') / 16."""
    return hadamard(512)[:, 1:257] * flat_values() @ hadamard(256) / 16.0


def flat_values() -> Array:
    return np.concatenate([[32.0, 24.0, 16.0, 12.0], 8.0 - np.arange(252) / 2048])


def laeuchli() -> Array:
    """A row of ones above 2^-30 times the identity: products lose the identity entirely."""
    return np.vstack([np.ones(8), np.eye(8) * 2.0**-30])


def nearly_parallel() -> Array:
    """Columns that differ in their last 24 bits."""
    x = np.repeat(spread(400, 1, 5) * 2.0**26, 6, axis=1)
    return x + spread(400, 6, 6)


def hilbert() -> Array:
    return 1.0 / (1 + np.arange(12)[:, None] + np.arange(12))


def deficient() -> Array:
    """Rank 3, of integers."""
    return spread(240, 3, 7) @ integers(3, 10, 8, 20).astype(np.float64)


def repeated() -> Array:
    """Each of 5 rows 40 times, each of 4 columns twice."""
    return np.tile(np.repeat(spread(5, 4, 9), 2, axis=1), (40, 1))


def graded_columns() -> Array:
    """Columns of 36 decades."""
    return np.ldexp(spread(300, 8, 10), -17 * np.arange(8))


def graded_rows() -> Array:
    """Rows of 90 decades, the small ones first."""
    return np.ldexp(spread(300, 6, 11), np.arange(300)[:, None] - 299)


# -- counts and other types --------------------------------------------------------


def zero_inflated(n: int, p: int, ordered: bool = False) -> Array:
    """(n, p) float32 counts, nine of ten 0, columns of very different sizes."""
    drawn = integers(n, p, 12)
    counts = np.where(drawn > 300, (drawn - 299) * (1 + np.arange(p)) ** 3 // 100, 0)
    return (np.sort(counts, axis=0) if ordered else counts).astype(np.float32)


def sorted_rows(dtype: str, n: int = 2000, p: int = 6) -> Array:
    """Rows in the order of their sizes: neighbours are nearly equal."""
    x = spread(n, p, 13) + 500.0
    return x[np.lexsort((x[:, 0], np.abs(x).sum(axis=1)))].astype(dtype)


def beyond_float64(size: int) -> Array:
    """Odd integers of about ``size``, which float64 does not hold."""
    return (integers(200, 5, 14) * 2 * (1 + np.arange(5)) + size + 1).astype(np.int64)


def calls(n: int, p: int) -> Array:
    """int8 genotypes 0, 1, 2 of two groups."""
    drawn = integers(n, p, 15) + 250 * ((np.arange(n) % 2)[:, None] * (np.arange(p) % 3 - 1))
    return (np.digitize(drawn, [-150, 350])).astype(np.int8)


def one_cell() -> Array:
    x = np.zeros((50, 6))
    x[17, 3] = 3.0
    return x


def few_bits(dtype: str, least: int, most: int) -> Array:
    """All of a small type's range."""
    drawn = integers(300, 7, 16) * np.linspace(1, 0.4, 7)
    return np.clip(np.rint((drawn + 1000) / 2000 * (most - least) + least), least, most).astype(
        dtype
    )


GRADED = np.ldexp(1.0, [0, 0, -12, -12, -24, -36, -36, -40])
EQUAL = np.array([4.0, 4, 4, 2, 2, 1, 1, 1])
NEAR = np.concatenate([[2.0, 2.0 - 2.0**-30], 1.0 - np.arange(6) * 2.0**-20])

CASES: dict[str, Case] = {
    "plain": Case(lambda: spread(300, 8, 17), 4, "nothing"),
    "plain float32": Case(lambda: spread(300, 8, 17).astype("f4"), 4, "nothing"),
    "plain wide": Case(lambda: spread(12, 200, 18)[:, ::-1].copy(), 4, "nothing"),
    "plain square": Case(lambda: spread(24, 24, 19), 4, "nothing"),
    "offset 1e6": Case(lambda: offset("f8", 1e6), 4, "means of 1,000 deviations"),
    "offset 1e12": Case(lambda: offset("f8", 1e12), 4, "means of a billion deviations"),
    "offset float32": Case(lambda: offset("f4", 1e7), 4, "means of 10,000 deviations"),
    "offset wide": Case(lambda: offset("f8", 1e9, 200, 12), 3, "as before, more columns than rows"),
    "drift": Case(drifting, 3, "the mean jumps half-way by a million deviations"),
    "first row giant": Case(lambda: giant_row(0, "f8"), 3, "a first row a million times as large"),
    "last row giant": Case(lambda: giant_row(-1, "f8"), 3, "a last row a million times as large"),
    "giant row float32": Case(lambda: giant_row(300, "f4"), 3, "a row a million times as large"),
    "constant columns": Case(constant_columns, 4, "a third of the columns is constant"),
    "equal values": Case(
        lambda: from_values(64, EQUAL), 5, "values of multiplicity 3, 2, 3", (64, EQUAL)
    ),
    "nearly equal": Case(
        lambda: from_values(64, NEAR), 4, "values equal to 1e-9 and 1e-6", (64, NEAR)
    ),
    "flat tail": Case(
        flat_tail, 8, "252 values within 2 %", (512, flat_values()), lambda: hadamard(256) / 16.0
    ),
    "graded": Case(
        lambda: from_values(128, GRADED), 7, "values over 12 decades, in pairs", (128, GRADED)
    ),
    "graded columns": Case(graded_columns, 7, "columns over 36 decades"),
    "graded rows": Case(graded_rows, 4, "rows over 90 decades"),
    "Laeuchli": Case(laeuchli, 4, "a row of ones above 1e-9 times the identity"),
    "nearly parallel": Case(nearly_parallel, 4, "columns equal to 1e-8"),
    "Hilbert": Case(hilbert, 10, "condition 2e16"),
    "rank 3": Case(deficient, 5, "more components are asked than there are"),
    "repeated": Case(repeated, 4, "each row 40 times, each column twice"),
    "zero-inflated": Case(lambda: zero_inflated(2000, 10), 4, "float32 counts, nine of ten 0"),
    "zero-inflated, sorted": Case(
        lambda: zero_inflated(2000, 10, True), 4, "the same, columns sorted"
    ),
    "sorted rows": Case(lambda: sorted_rows("f4"), 3, "float32, neighbours are nearly equal"),
    "40 columns, offset": Case(
        lambda: offset("f4", 1e6, 40), 4, "float32, means of 100 deviations"
    ),
    "40 columns, counts": Case(lambda: zero_inflated(1000, 40), 4, "as before, sums in float32"),
    "40 columns, sorted": Case(lambda: sorted_rows("f4", 1000, 40), 4, "as before"),
    "40 columns, giant row": Case(
        lambda: giant_row(-1, "f4", 40, 8), 3, "float32, 256 times as large"
    ),
    "40 rows, offset": Case(
        lambda: offset("f4", 1e6, 240, 40), 3, "float32, means of 10 deviations"
    ),
    "40 rows, counts": Case(lambda: zero_inflated(40, 240), 3, "as before"),
    "one cell": Case(one_cell, 2, "all others are 0"),
    "huge": Case(lambda: np.ldexp(spread(200, 6, 20), 488), 3, "numbers of 1e150"),
    "near overflow": Case(lambda: np.ldexp(spread(200, 6, 20), 1005), 3, "numbers of 1e306"),
    "tiny": Case(lambda: np.ldexp(spread(200, 6, 20), -508), 3, "numbers of 1e-150"),
    "subnormal": Case(lambda: np.ldexp(spread(200, 6, 20), -1070), 3, "numbers of 1e-319"),
    "huge float32": Case(lambda: np.ldexp(spread(200, 6, 20), 100).astype("f4"), 3, "of 1e33"),
    "tiny float32": Case(lambda: np.ldexp(spread(200, 6, 20), -100).astype("f4"), 3, "of 1e-27"),
    "subnormal float32": Case(
        lambda: np.ldexp(spread(200, 6, 20), -147).astype("f4"), 3, "of 1e-41"
    ),
    "past 2^53": Case(lambda: beyond_float64(2**55), 3, "odd int64 of about 2^55"),
    "past 2^62": Case(lambda: beyond_float64(2**62), 3, "odd int64 of about 2^62"),
    "int8 calls": Case(lambda: calls(400, 12), 3, "0, 1, 2"),
    "int8 calls, wide": Case(lambda: calls(16, 240), 3, "0, 1, 2"),
    "int8": Case(lambda: few_bits("i1", -128, 127), 3, "differences exceed the type"),
    "uint8": Case(lambda: few_bits("u1", 0, 255), 3, "differences exceed the type"),
    "uint16": Case(lambda: few_bits("u2", 0, 65535), 3, "differences exceed the type"),
    "int32": Case(lambda: few_bits("i4", -(2**31), 2**31 - 1), 3, "differences exceed the type"),
    "float16": Case(lambda: few_bits("f2", -2000, 2000), 3, "sums exceed the type"),
    "boolean": Case(lambda: calls(300, 7) > 0, 3, "true or false"),
    "one column": Case(lambda: spread(300, 1, 21) + 1e5, 1, "a single column"),
    "one row": Case(lambda: spread(1, 9, 22), 1, "a single row"),
    "two rows": Case(lambda: spread(2, 9, 23) + 1e8, 1, "two rows with a large mean"),
    "all equal": Case(lambda: np.full((40, 5), 0.1), 2, "nothing varies"),
}
