"""Variants of new data matched with those of a model: by name or position, alleles and strand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.columns import Text, as_text, is_among, joined, numbered
from streampca.sources.genotypes.variants import HUMAN, LETTERS, UNNAMED, chromosome_name

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
    # with unknown alleles both orders may fit, and nothing decides
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


# Matching of variants of new data with those of a model, and their counted alleles.
#
# Two files of the same variants may differ in their order, in the allele that is counted
# (swapped: g copies of one are ploidy - g of the other), and in the DNA strand on which alleles
# are written (flipped: A for T, C for G). A/T and C/G read the same on both strands, so that
# there
# a flip looks like a swap: these are called strand-ambiguous.

BY = ("auto", "id", "position")
AMBIGUOUS = ("auto", "drop", "keep")
EVIDENCE = 10  # unambiguous variants that must be matched before ambiguous="auto" keeps any
FLIPPED_SHARE = 1e-3  # of those, the largest share on the other strand at which it does


@dataclass(frozen=True)
class VariantMatch:
    """Which variants of new data are those of a model, in the order of the model.

    by : "id" or "position" (chromosome and position, and alleles where a position repeats).
    model, new : (m,) int64, places of each matched variant in the model and in the new data.
    swapped : (m,) True where the new data count the other allele: x means ploidy - x.
    flipped : (m,) True where the new data write the alleles of the other strand.
    n_ambiguous : variants found whose alleles read the same on both strands;
    ambiguous_kept : whether those are among the matched, read as they are written.
    n_absent, n_mismatched, n_duplicated : of the model's variants, those not found, found with
        other alleles, and named more than once on either side. None of them is used.

    The matched, the absent, the mismatched, the duplicated and the ambiguous that are not kept
    add up to ``n_model``.
    """

    by: str
    n_model: int
    n_new: int
    model: Array
    new: Array
    swapped: Array
    flipped: Array
    n_ambiguous: int
    ambiguous_kept: bool
    n_absent: int
    n_mismatched: int
    n_duplicated: int

    @property
    def n_matched(self) -> int:
        """Variants that can be used."""
        return len(self.model)

    @property
    def n_swapped(self) -> int:
        """Matched variants whose other allele is counted."""
        return int(np.count_nonzero(self.swapped))

    @property
    def n_flipped(self) -> int:
        """Matched variants written on the other strand."""
        return int(np.count_nonzero(self.flipped))

    @property
    def n_ambiguous_dropped(self) -> int:
        """Strand-ambiguous variants that were found and are not used."""
        return 0 if self.ambiguous_kept else self.n_ambiguous

    def to_dict(self) -> dict[str, Any]:
        """The counts, JSON-ready."""
        names = (
            "n_model n_new n_matched n_swapped n_flipped n_ambiguous n_ambiguous_dropped "
            "n_absent n_mismatched n_duplicated"
        )
        return {"by": self.by} | {name: int(getattr(self, name)) for name in names.split()}

    def __str__(self) -> str:
        ambiguous = "kept as written" if self.ambiguous_kept else "dropped"
        return (
            f"{self.n_matched} of {self.n_model} variants matched by {self.by}: "
            f"{self.n_swapped} with alleles swapped, {self.n_flipped} on the other strand; "
            f"{self.n_ambiguous} strand-ambiguous {ambiguous}, {self.n_mismatched} with other "
            f"alleles, {self.n_duplicated} named twice, {self.n_absent} absent"
        )


def match_variants(
    model: AxisLabels, new: AxisLabels, by: str = "auto", ambiguous: str = "auto"
) -> VariantMatch:
    """Find a model's variants in new data.

    model, new : labels of the features, with the extra columns counted_allele and other_allele,
        and chromosome and position where they are matched by those.
    by : "id", "position", or "auto": whichever finds more of the model's variants (ids where
        both find as many). Positions of two genome builds differ, ids do not.
    ambiguous : what becomes of variants whose alleles read the same on both strands, A/T and
        C/G. "drop", the convention of the field (bigsnpr's ``snp_match``); "keep": take them as
        written, right where both files are known to be of one strand; "auto": keep them if the
        unambiguous variants show that this is so, at least 10 being matched and at most one in
        1000 of them flipped, else drop them.

    Alleles are compared without regard to case. One that is unknown ("0") fits any, as long as
    the other one of the two decides. Alleles of several bases are never flipped. Names and
    positions that occur twice on either side are not used.

    Cost: sorting, O((p + m) log(p + m)); about 3 s for two files of 500,000 variants.
    Raises InvalidInputError for unknown settings, and where labels have no alleles.
    Source: the reference page of ``snp_match`` in bigsnpr (Prive, Aschard, Ziyatdinov and Blum
    2018, Bioinformatics 34:2781), whose rules these are but for ambiguous="auto".
    """
    if by not in BY:
        raise InvalidInputError(f"match={by!r}; expected one of {BY}")
    if ambiguous not in AMBIGUOUS:
        raise InvalidInputError(f"ambiguous={ambiguous!r}; expected one of {AMBIGUOUS}")
    codes = allele_codes([*alleles_of(model, "the model's"), *alleles_of(new, "the new")])
    by, found, repeated, mistaken = _find(model, new, by, codes)
    at = np.flatnonzero(found >= 0)
    swapped, flipped, fits, unsure = compare_alleles(
        codes[0][at], codes[1][at], codes[2][found[at]], codes[3][found[at]]
    )
    kept = ambiguous == "keep" or (ambiguous == "auto" and _one_strand(fits & ~unsure, flipped))
    use = fits & (~unsure | kept)
    return VariantMatch(
        by,
        len(model),
        len(new),
        at[use],
        found[at[use]],
        swapped[use],
        flipped[use],
        int(np.count_nonzero(unsure)),
        bool(kept),
        int(np.count_nonzero((found < 0) & ~repeated & ~mistaken)),
        int(np.count_nonzero(~fits)) + int(np.count_nonzero(mistaken)),
        int(np.count_nonzero(repeated)),
    )


def _one_strand(sure: Array, flipped: Array) -> bool:
    """Whether both files appear to write their alleles on the same strand."""
    seen = int(np.count_nonzero(sure))
    return seen >= EVIDENCE and int(np.count_nonzero(flipped)) <= FLIPPED_SHARE * seen


def _find(
    model: AxisLabels, new: AxisLabels, by: str, codes: list[Array]
) -> tuple[str, Array, Array, Array]:
    """(how they matched, place in the new data or -1, duplicated, found with other alleles)."""
    placed = all({"chromosome", "position"} <= set(labels.extra) for labels in (model, new))
    named = model.named and new.named
    if (by == "position" and not placed) or (by == "id" and not named) or not (placed or named):
        lacking = "chromosome and position" if by == "position" else "ids"
        raise InvalidInputError(
            f"match={by!r} needs {lacking} of the model's and of the new variants, and one of "
            "the two has none"
        )
    ways = {}
    if named and by != "position":
        ways["id"] = _join(*_id_keys(model, new))
        if by == "id" or not placed or np.all(ways["id"][0] >= 0):
            return "id", *ways["id"], np.zeros(len(model), np.bool_)
    keys, new_keys, known = _position_keys(model, new, codes)
    found, repeated = _join(keys, new_keys)
    counts = {"position": np.count_nonzero(found >= 0)}
    if "id" in ways:
        counts["id"] = np.count_nonzero(ways["id"][0] >= 0)
        if counts["id"] >= counts["position"]:
            return "id", *ways["id"], np.zeros(len(model), np.bool_)
    return "position", found, repeated, known & (found < 0) & ~repeated


def _join(keys: Array, new_keys: Array) -> tuple[Array, Array]:
    """(place of each key among the new ones or -1, whether it occurs twice on either side).

    keys : (p,) int64, negative = nameless.  new_keys : (m,) likewise.
    """
    if not len(new_keys):
        return np.full(len(keys), -1), np.zeros(len(keys), np.bool_)
    order = np.argsort(new_keys, kind="stable")
    ordered = new_keys[order]
    first = np.searchsorted(ordered, keys, side="left")
    hits = np.searchsorted(ordered, keys, side="right") - first
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    named = keys >= 0
    repeated = named & (hits >= 1) & ((hits > 1) | (counts[inverse] > 1))
    single = named & (hits == 1) & ~repeated
    return np.where(single, order[np.minimum(first, len(order) - 1)], -1), repeated


def _id_keys(model: AxisLabels, new: AxisLabels) -> tuple[Array, Array]:
    text = np.dtypes.StringDType()
    mine, theirs = (np.asarray(next(iter(labels.coords.values())), text) for labels in (model, new))
    both = np.concatenate([mine, theirs])
    _, keys = numbered(both)
    keys[is_among(both, (UNNAMED, ""))] = -1
    return keys[: len(mine)], keys[len(mine) :]


def _position_keys(
    model: AxisLabels, new: AxisLabels, codes: list[Array]
) -> tuple[Array, Array, Array]:
    """(keys, new keys, whether the position is in the new data at all).

    A position with one variant on each side is its own key, whatever the alleles; if it holds
    several, the pair of alleles belongs to the key, the same on both strands and in any order.
    """
    p = len(model)
    position = np.concatenate([np.asarray(labels.extra["position"]) for labels in (model, new)])
    chromosome, nowhere = _chromosome_codes(model, new)
    _, place = np.unique(
        (chromosome.astype(np.int64) << 40) | position.astype(np.int64).clip(0), return_inverse=True
    )
    several = np.zeros(len(place), np.bool_)
    for part in (place[:p], place[p:]):
        several |= (np.bincount(part, minlength=len(place)) > 1)[place]
    pairs = pair_codes(*(np.concatenate([codes[i], codes[i + 2]]) for i in (0, 1)))
    keys = place * (pairs.max(initial=0) + 2) + np.where(several, pairs + 1, 0)
    keys[(position <= 0) | nowhere] = -1
    in_new = np.isin(place[:p], place[p:][keys[p:] >= 0])
    return keys[:p], keys[p:], in_new & (keys[:p] >= 0)


def _chromosome_codes(model: AxisLabels, new: AxisLabels) -> tuple[Array, Array]:
    """(a number for each variant's chromosome, True where that is unknown), of both, joined.

    "chr1" and "1" are one, and, unless a chromosome above 26 shows that these are no humans, so
    are "23" and "X".
    """
    written, codes = numbered(joined([as_text(one.extra["chromosome"]) for one in (model, new)]))
    human = all(int(name) <= HUMAN + len(LETTERS) for name in written if name.isdecimal())
    plain = [chromosome_name(name, HUMAN if human else None) for name in written]
    number = {name: i for i, name in enumerate(plain)}
    place = np.array([number[name] for name in plain], np.int64)
    nowhere = np.array([name in UNKNOWN_NAMES for name in plain], np.bool_)
    return place[codes], nowhere[codes]
