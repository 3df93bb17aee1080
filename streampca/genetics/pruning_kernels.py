"""Compiled kernels of LD pruning: calls as bits, exact r^2 of a pair, and the greedy walk.

A biallelic call takes two bits, "carries the counted allele" and "carries the other allele":
2 -> (1, 0), 1 -> (1, 1), 0 -> (0, 1), missing -> (0, 0). Every sum that r^2 needs is then a
count of set bits, exact for any number of samples. Numba takes 50 MB: import this where needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from streampca.kernels.blas import Array
from streampca.kernels.compiled import compiled

WORD = 64  # samples in one word
SLACK = 1.0 + 2.0**-44  # closer frequencies and r^2 are ties, as in PLINK 2

_compile = compiled()


def _count_ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set, by the processor's own instruction."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count: ir.Value = builder.ctpop(arguments[0])
        return count

    return types.uint64(types.uint64), code


set_bits: Any = intrinsic(_count_ones)


@_compile
def _pack_by_feature(x: Array, code: int, bits: Array) -> int:
    """Calls (m, n) to bits (m, 2, words); returns the number of invalid cells."""
    m, n = x.shape
    invalid = 0
    for j in range(m):
        for w in range(bits.shape[2]):
            counted, other = np.uint64(0), np.uint64(0)
            first = WORD * w
            for k in range(min(WORD, n - first)):
                v = np.int32(x[j, first + k])
                seen = v != code
                invalid += seen & ((v < 0) | (v > 2))
                counted |= np.uint64(seen & (v > 0)) << np.uint64(k)
                other |= np.uint64(seen & (v < 2)) << np.uint64(k)
            bits[j, 0, w], bits[j, 1, w] = counted, other
    return invalid


@_compile
def _pack_by_sample(x: Array, code: int, bits: Array) -> int:
    """The same for calls (n, m)."""
    n, m = x.shape
    invalid = 0
    counted, other = np.empty(m, np.uint64), np.empty(m, np.uint64)
    for w in range(bits.shape[2]):
        for j in range(m):
            counted[j] = other[j] = 0
        first = WORD * w
        for k in range(min(WORD, n - first)):
            for j in range(m):
                v = np.int32(x[first + k, j])
                seen = v != code
                invalid += seen & ((v < 0) | (v > 2))
                counted[j] |= np.uint64(seen & (v > 0)) << np.uint64(k)
                other[j] |= np.uint64(seen & (v < 2)) << np.uint64(k)
        for j in range(m):  # Numba takes seconds to compile an assignment of whole arrays
            bits[j, 0, w], bits[j, 1, w] = counted[j], other[j]
    return invalid


def pack_calls(values: Array, code: int) -> tuple[Array, int]:
    """(bits (m, 2, words) uint64, cells that are neither 0, 1, 2 nor missing).

    values : (n, m) integers in either layout.  code : of a missing call.
    """
    n, m = values.shape
    bits = np.empty((m, 2, -(-n // WORD)), np.uint64)
    if values.flags.c_contiguous:
        return bits, int(_pack_by_sample(values, code, bits))
    return bits, int(_pack_by_feature(np.ascontiguousarray(values.T), code, bits))


@_compile
def count_calls(bits: Array, counts: Array) -> None:
    """counts (m, 3) int64 of each variant: observed, sum and sum of squares of call - 1."""
    for j in range(bits.shape[0]):
        observed, total, same = np.uint64(0), np.uint64(0), np.uint64(0)
        for w in range(bits.shape[2]):
            counted, other = bits[j, 0, w], bits[j, 1, w]
            observed += set_bits(counted | other)
            total += set_bits(counted & ~other)
            same += set_bits(counted ^ other)
        counts[j, 0], counts[j, 1] = np.int64(observed), 2 * np.int64(total) - np.int64(same)
        counts[j, 2] = np.int64(same)


@_compile
def _product(a: Array, b: Array) -> Any:
    """Sum of (x - 1)(y - 1) over the samples observed in both."""
    both, unlike = np.uint64(0), np.uint64(0)
    for w in range(a.shape[1]):
        homozygous = (a[0, w] ^ a[1, w]) & (b[0, w] ^ b[1, w])
        both += set_bits(homozygous)
        unlike += set_bits(homozygous & (a[0, w] ^ b[0, w]))
    return np.int64(both) - 2 * np.int64(unlike)


@_compile
def _within(a: Array, b: Array) -> Any:
    """Sum of x - 1 and of its square over the samples that b observes too."""
    total, same = np.uint64(0), np.uint64(0)
    for w in range(a.shape[1]):
        homozygous = (a[0, w] ^ a[1, w]) & (b[0, w] | b[1, w])
        same += set_bits(homozygous)
        total += set_bits(homozygous & a[0, w])
    return 2 * np.int64(total) - np.int64(same), np.int64(same)


@_compile
def _shared(a: Array, b: Array) -> Any:
    """Samples observed in both."""
    count = np.uint64(0)
    for w in range(a.shape[1]):
        count += set_bits((a[0, w] | a[1, w]) & (b[0, w] | b[1, w]))
    return np.int64(count)


@_compile
def _linked(a: Array, b: Array, of_a: Array, of_b: Array, n: int, bound: float) -> Any:
    """Whether r^2 over the samples observed in both is above the bound.

    Integers up to the last line. False, not NaN, where a variance is 0.
    """
    count, sum_a, square_a = of_a[0], of_a[1], of_a[2]
    sum_b, square_b = of_b[1], of_b[2]
    if of_b[0] != n:
        sum_a, square_a = _within(a, b)
        count = _shared(a, b) if of_a[0] != n else of_b[0]
    if of_a[0] != n:
        sum_b, square_b = _within(b, a)
    covariance = np.float64(_product(a, b) * count - sum_a * sum_b)
    variance_a = np.float64(square_a * count - sum_a * sum_a)
    variance_b = np.float64(square_b * count - sum_b * sum_b)
    return covariance * covariance > bound * variance_a * variance_b


@_compile
def _walk_forward(
    rows: Array,
    split: int,
    bits: Array,
    counts: Array,
    major: Array,
    n: int,
    bound: float,
    alive: Array,
) -> None:
    """Sweep the pairs from the first variant on; each sweep acts on one pair per first variant."""
    size = len(rows)
    checked = np.empty(size, np.int64)  # the pairs of the previous window are decided
    for i in range(size):
        checked[i] = max(i + 1, split)
    changed = True
    while changed:
        changed = False
        for i in range(size):
            a = rows[i]
            j = checked[i]
            while alive[a] and j < size:
                b = rows[j]
                j += 1
                if alive[b] and _linked(bits[a], bits[b], counts[a], counts[b], n, bound):
                    alive[a if major[a] > major[b] * SLACK else b] = False
                    changed = True
                    break
            checked[i] = j


@_compile
def _walk_backward(
    rows: Array,
    split: int,
    bits: Array,
    counts: Array,
    major: Array,
    n: int,
    bound: float,
    alive: Array,
) -> None:
    """Take the new variants from the last to the first, each against all before it, nearest first.

    A variant that was removed in this window still removes others: so does PLINK 2.
    """
    for j in range(len(rows) - 1, max(split, 1) - 1, -1):
        b = rows[j]
        for i in range(j - 1, -1, -1):
            a = rows[i]
            if alive[a] and _linked(bits[a], bits[b], counts[a], counts[b], n, bound):
                if major[a] <= major[b] * SLACK:
                    alive[b] = False
                    break
                alive[a] = False


@_compile
def prune_windows(
    starts: Array,
    stops: Array,
    first: int,
    entered: int,
    rows: Array,
    bits: Array,
    counts: Array,
    major: Array,
    n: int,
    bound: float,
    backward: bool,
    alive: Array,
) -> tuple[Array, int]:
    """Prune consecutive windows; ``alive`` becomes False for removed variants.

    starts, stops : of the windows, as variant numbers.  entered : the first variant that no
    window has had yet.  rows : the survivors of the last window.  bits, counts, major, alive :
    by row; row 0 is variant ``first``. Returns the survivors and the new ``entered``.
    """
    for k in range(len(starts)):
        kept = rows[(rows >= starts[k] - first) & alive[rows]]
        for v in range(max(entered, starts[k]) - first, stops[k] - first):
            alive[v] = counts[v, 2] * counts[v, 0] > counts[v, 1] * counts[v, 1]
        fresh = np.arange(max(entered, starts[k]) - first, stops[k] - first)
        rows = np.concatenate((kept, fresh[alive[fresh]]))
        if backward:
            _walk_backward(rows, len(kept), bits, counts, major, n, bound, alive)
        else:
            _walk_forward(rows, len(kept), bits, counts, major, n, bound, alive)
        entered = stops[k]
    return rows, entered
