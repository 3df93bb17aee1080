"""Compiled kernels of BGEN: probabilities of genotypes to copies of an allele.

The copies of a biallelic call are a whole number of (2^bits - 1)ths, from 0 to 2 (2^bits - 1); of
up to 16 bits a table says what each of them is. Compiled by Numba on
first use; see ``compiled.py``.
Source: BGEN specification 1.2, "Genotype data block", layout 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError
from streampca.kernels.blas import Array
from streampca.kernels.compiled import compiled

TABLE_BITS = 16  # probabilities of more bits are divided, without a table
MOST_BITS = 32
LOST = 128  # bit of the byte of ploidy: missing
COPIES = 63  # bits of the number of copies

_compile = compiled()

SHORT, OTHER_PLOIDY, BEYOND = 1, 2, 3


@_compile
def _copies(
    values: Array, ploidy: Array, phased: bool, top: int, first: bool, table: Array, out: Array
) -> int:
    """Copies of an allele from stored probabilities; 0, or what is wrong.

    values : stored probabilities, two of a diploid sample, one of a haploid one, which counts
        twice.  first : of the first allele.  table : of the entries of ``out``, by copies * top;
        empty: out takes copies * top, and -1 for a missing call.
    """
    place = 0
    direct = len(table) == 0
    for i in range(len(ploidy)):
        copies = ploidy[i] & COPIES
        if copies > 2 or copies == 0:
            return OTHER_PLOIDY
        if place + copies > len(values):
            return SHORT
        a = np.int64(values[place])
        b = np.int64(values[place + copies - 1])
        place += copies
        if copies == 1:
            k = 2 * a
        elif phased:
            k = a + b
        else:
            if a + b > top:
                return BEYOND
            k = 2 * a + b
        k = k if first else 2 * top - k
        lost = ploidy[i] & LOST != 0
        if direct:
            out[i] = -1 if lost else k
        else:
            out[i] = table[len(table) - 1 if lost else k]
    return SHORT if place < len(values) else 0


@_compile
def _unpack(packed: Array, bits: int, values: Array) -> None:
    """Numbers of ``bits`` bits, the lowest first, to values (m,) int64."""
    mask = (np.int64(1) << bits) - 1
    held, stock, place = 0, np.int64(0), 0
    for i in range(len(values)):
        while held < bits:
            stock |= np.int64(packed[place]) << held
            place += 1
            held += 8
        values[i] = stock & mask
        stock >>= bits
        held -= bits


@cache
def _table(bits: int, stored_as: Callable[[Array], Array]) -> Array:
    """What each number of copies * top is stored as, and at the end a missing call."""
    top = (1 << bits) - 1
    return stored_as(np.append(np.arange(2 * top + 1) / top, np.nan).astype(np.float32))


def copies_of(
    block: Array, n: int, first: bool, stored_as: Callable[[Array], Array], out: Array
) -> None:
    """Copies of one allele of a biallelic variant, of an uncompressed genotype block.

    block : uint8.  n : samples.  first : of the first allele; else of the second.
    stored_as : makes of dosages, float32 with NaN where missing, what ``out`` (n,) takes.
    Raises DamagedSourceError for a block of other length or content; InvalidInputError for samples
    of more than two copies.
    """
    if len(block) < 10 + n or int(block[:4].view("<u4")[0]) != n:
        raise DamagedSourceError("its genotypes are not those of all samples")
    ploidy, (phased, bits) = block[8 : 8 + n], block[8 + n : 10 + n].tolist()
    packed = block[10 + n :]
    if phased > 1 or not 1 <= bits <= MOST_BITS:
        raise DamagedSourceError(f"phase {phased} and {bits} bits; expected 0 or 1, and 1 to 32")
    top = (1 << bits) - 1
    if bits in (8, 16):
        whole = packed[: len(packed) // (bits // 8) * (bits // 8)]
        values = whole if bits == 8 else whole.copy().view("<u2").astype(np.uint16, copy=False)
        short = len(whole) != len(packed)
    else:
        values = np.empty(int((ploidy & COPIES).sum()), np.int64)
        short = len(packed) != -(-len(values) * bits // 8)
        if not short:
            _unpack(packed, bits, values)
    if short:
        raise DamagedSourceError("its genotypes have another length than their ploidy says")
    if bits <= TABLE_BITS:
        wrong = _copies(values, ploidy, phased == 1, top, first, _table(bits, stored_as), out)
    else:
        copies = np.empty(n, np.int64)
        wrong = _copies(values, ploidy, phased == 1, top, first, np.empty(0, np.int64), copies)
        out[:] = stored_as(np.where(copies < 0, np.nan, copies / top).astype(np.float32))
    if wrong == OTHER_PLOIDY:
        most = int((ploidy & COPIES).max())
        raise InvalidInputError(
            f"it has samples of {most if most > 2 else 'no'} copies; expected 1 or 2"
        )
    if wrong:
        raise DamagedSourceError(
            "its genotypes have another length than their ploidy says"
            if wrong == SHORT
            else "its probabilities of a sample add up to more than 1"
        )
