"""Compiled kernels over pairs of samples: what two share, counted over bits of their calls.

Bits lie along variants, 64 to a word, in planes: heterozygous, homozygous, of those the counted
allele's, and missing. All counts are integers, so they do not depend on order. Numba takes 50 MB:
import this where needed. (4096 variants of 3192 samples, one thread: 0.20 s for the pairs and
0.02, 0.05 and 0.21 s more where 0.2, 1 and 5 % of the calls are missing; one float32 product of
BLAS takes 0.51 s, and the counts need five of them, or two without missing calls.)
"""

from __future__ import annotations

import numpy as np

from streampca.genetics.pruning_kernels import pack_calls, set_bits
from streampca.kernels.blas import Array
from streampca.kernels.compiled import compiled

HET, HOM, COUNTED, LOST = range(4)  # planes
ROWS = 64  # samples whose bits stay in cache together
FULL = 255  # what a uint8 can count

_compile = compiled()


@_compile
def _planes(bits: Array, n_variants: int, planes: Array) -> None:
    """bits (n, 2, words) of ``pack_calls`` -> planes (4, n, words)."""
    n, _, words = bits.shape
    for i in range(n):
        for w in range(words):
            counted, other = bits[i, 0, w], bits[i, 1, w]
            planes[HET, i, w] = counted & other
            planes[HOM, i, w] = counted ^ other
            planes[COUNTED, i, w] = counted
            planes[LOST, i, w] = ~(counted | other)
        rest = n_variants % 64
        if rest:  # bits after the last variant
            planes[LOST, i, words - 1] &= (np.uint64(1) << np.uint64(rest)) - np.uint64(1)


@_compile
def lay_calls(x: Array, code: int, out: Array) -> int:
    """Copy calls x (m, n) to int8, -1 = missing; returns the number of invalid cells."""
    m, n = x.shape
    invalid = 0
    for k in range(m):
        for i in range(n):
            v = np.int32(x[k, i])
            seen = v != code
            invalid += seen & ((v < 0) | (v > 2))
            out[k, i] = np.int8(v) if seen else np.int8(-1)
    return invalid


def sample_planes(calls: Array, code: int) -> tuple[Array, int]:
    """(planes (4, n, words) uint64, cells that are neither 0, 1, 2 nor missing).

    calls : (n, m) integers in either layout.  code : of a missing call.
    """
    bits, invalid = pack_calls(calls.T, code)
    planes = np.empty((4, len(bits), bits.shape[2]), np.uint64)
    _planes(bits, calls.shape[1], planes)
    return planes, invalid


@_compile
def count_set(plane: Array, counts: Array) -> None:
    """Add the set bits of each sample, plane (n, words), to counts (n,) int64."""
    for i in range(plane.shape[0]):
        total = np.uint64(0)
        for w in range(plane.shape[1]):
            total += set_bits(plane[i, w])
        counts[i] += np.int64(total)


@_compile
def count_pairs(
    planes: Array, first: int, last: int, begin: int, het_het: Array, unlike: Array
) -> None:
    """Add for samples i in [first, last) and all j < i: variants heterozygous in both, het_het
    int32 at [i - begin, j], and opposite homozygotes, unlike at [i - begin, j]."""
    words = planes.shape[2]
    for left in range(0, last, ROWS):
        for i in range(first, last):
            h, o, c = planes[HET, i], planes[HOM, i], planes[COUNTED, i]
            for j in range(left, min(left + ROWS, i)):
                h2, o2, c2 = planes[HET, j], planes[HOM, j], planes[COUNTED, j]
                both, other = np.uint64(0), np.uint64(0)
                for w in range(words):
                    both += set_bits(h[w] & h2[w])
                    other += set_bits(o[w] & o2[w] & (c[w] ^ c2[w]))
                het_het[i - begin, j] += np.int32(both)
                unlike[i - begin, j] += np.int32(other)


@_compile
def _flush(counts: Array, line: int, sums: Array) -> None:
    for i in range(len(sums)):
        counts[line, i] += np.int32(sums[i])
        sums[i] = 0


@_compile
def count_lost(
    x: Array, code: int, lost: Array, first: int, last: int, lost_het: Array, lost_both: Array
) -> None:
    """Add for samples j in [first, last) and all i: variants missing in j that are heterozygous in
    i, lost_het (n, n) int32 at [j, i], and missing in i too, lost_both.

    x : (m, n) calls, variants one after another.  lost : (n, words) plane. Missing calls are few:
    each costs one line of x.
    """
    n = x.shape[1]
    het, both = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    for j in range(first, last):
        held = 0
        for w in range(lost.shape[1]):
            word = lost[j, w]
            while word:
                row = x[64 * w + np.int64(set_bits(~word & (word - np.uint64(1))))]
                word &= word - np.uint64(1)
                for i in range(n):
                    het[i] += np.uint8(row[i] == 1)
                    both[i] += np.uint8(row[i] == code)
                held += 1
                if held == FULL:
                    _flush(lost_het, j, het)
                    _flush(lost_both, j, both)
                    held = 0
        if held:
            _flush(lost_het, j, het)
            _flush(lost_both, j, both)


@_compile
def count_lost_het(x: Array, lost: Array, first: int, last: int, lost_het: Array) -> None:
    """As ``count_lost``, for samples i of which x (m, h) holds the calls, without ``lost_both``."""
    n = x.shape[1]
    het = np.zeros(n, np.uint8)
    for j in range(first, last):
        held = 0
        for w in range(lost.shape[1]):
            word = lost[j, w]
            while word:
                row = x[64 * w + np.int64(set_bits(~word & (word - np.uint64(1))))]
                word &= word - np.uint64(1)
                for i in range(n):
                    het[i] += np.uint8(row[i] == 1)
                held += 1
                if held == FULL:
                    _flush(lost_het, j, het)
                    held = 0
        if held:
            _flush(lost_het, j, het)


# Calls that both have: the missing ones of each sample, 64 variants to a word, the words of all
# samples side by side. Words without a missing call cost nothing. (4096 variants of 3192 samples,
# one thread: 0.04, 0.06 and 0.1 s where 0.5, 1 and from 5 % of the calls are
# missing; their Gram matrix takes 0.4 s.)


@_compile
def missing_bits(x: Array, code: int, bits: Array) -> None:
    """Calls x (m, n) -> the missing ones, bits (words, n) uint64."""
    m, n = x.shape
    for w in range(bits.shape[0]):
        for i in range(n):
            bits[w, i] = np.uint64(0)
        for k in range(min(64, m - 64 * w)):
            row = x[64 * w + k]
            for i in range(n):
                bits[w, i] |= np.uint64(row[i] == code) << np.uint64(k)


@_compile
def count_common(bits: Array, first: int, last: int, common: Array) -> None:
    """Add to ``common`` (n, n) int32, for samples i in [first, last) and all j <= i: variants
    missing in both."""
    for i in range(first, last):
        into = common[i]
        for w in range(bits.shape[0]):
            word, others = bits[w, i], bits[w]
            if word:
                for j in range(i + 1):
                    into[j] += np.int32(set_bits(word & others[j]))
