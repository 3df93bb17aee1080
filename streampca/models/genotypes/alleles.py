"""The two alleles of variants, compared as they are written, swapped, and on the other strand."""

from __future__ import annotations

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.text import Text, numbered
from streampca.sources.variants import UNNAMED

BASES = "ACGT"  # codes 0 to 3: the complement of c is 3 - c
UNKNOWN = -1  # an allele written "0" or ".": PLINK does so where nobody carries it
NO_ALLELE = -2  # equals no code
UNKNOWN_NAMES = ("0", UNNAMED, "")


def alleles_of(labels: AxisLabels, whose: str) -> tuple[Text, Text]:
    """(counted, other) alleles of every variant."""
    text = np.dtypes.StringDType()
    names = ("counted_allele", "other_allele")
    if missing := [name for name in names if name not in labels.extra]:
        raise InvalidInputError(
            f"{whose} variants have no {' and no '.join(missing)}, so that nothing says which "
            "allele is counted. Open genotypes from a format that has alleles (PLINK, VCF Zarr); "
            "a matrix with the model's own features in their order needs no match: "
            "model.transform(X)"
        )
    counted, other = (np.asarray(labels.extra[name], text) for name in names)
    return counted, other


def allele_codes(columns: list[Text]) -> list[Array]:
    """Each allele as a number, the same in all columns: 0 to 3 for A, C, G, T."""
    codes = [np.full(len(column), NO_ALLELE, np.int64) for column in columns]
    for column, code in zip(columns, codes, strict=True):
        for i, base in enumerate(BASES):
            code[column == base] = i
            code[column == base.lower()] = i
        for name in UNKNOWN_NAMES:
            code[column == name] = UNKNOWN
    rest = [code == NO_ALLELE for code in codes]
    left = np.concatenate([c[r] for c, r in zip(columns, rest, strict=True)])
    _, inverse = numbered(np.strings.upper(left))
    ends = np.cumsum([np.count_nonzero(r) for r in rest])[:-1]
    for code, r, part in zip(codes, rest, np.split(inverse, ends), strict=True):
        code[r] = len(BASES) + part
    return codes


def _complement(code: Array) -> Array:
    single = (code >= 0) & (code < len(BASES))
    return np.where(single, 3 - code, np.where(code == UNKNOWN, UNKNOWN, NO_ALLELE))


def _equal(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (a == UNKNOWN) | (b == UNKNOWN))


def compare_alleles(
    counted: Array, other: Array, new_counted: Array, new_other: Array
) -> tuple[Array, Array, Array, Array]:
    """(swapped, flipped, fits, strand-ambiguous) of pairs of variants, each (m,) boolean."""
    turned_counted, turned_other = _complement(new_counted), _complement(new_other)
    same = _equal(counted, new_counted) & _equal(other, new_other)
    swap = _equal(counted, new_other) & _equal(other, new_counted)
    flip = _equal(counted, turned_counted) & _equal(other, turned_other)
    both = _equal(counted, turned_other) & _equal(other, turned_counted)
    # with unknown alleles both ways may fit: then nothing decides
    as_written, turned = same ^ swap, (flip ^ both) & ~(same | swap)
    unsure = as_written & (flip | both)
    return np.where(as_written, swap, both & turned), turned, as_written | turned, unsure


def pair_codes(a: Array, b: Array) -> Array:
    """A number for each pair of alleles: the same for both orders and on both strands."""
    size = max(a.max(initial=0), b.max(initial=0)) + 2
    pair = np.minimum(a, b) * size + np.maximum(a, b)
    turned_a, turned_b = _complement(a), _complement(b)
    turned = np.minimum(turned_a, turned_b) * size + np.maximum(turned_a, turned_b)
    bases = (a >= 0) & (a < len(BASES)) & (b >= 0) & (b < len(BASES))
    pair = np.where(bases, np.minimum(pair, turned), pair)
    _, inverse = np.unique(pair, return_inverse=True)
    return inverse
