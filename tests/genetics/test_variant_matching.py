"""Variants matched between files: a plain reading of the rules, and each rule by itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.errors import InvalidInputError
from streampca.genetics.variant_matching import match_variants
from streampca.matrix import AxisLabels

TEXT = np.dtypes.StringDType()
COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "0": "0"}


def variants(rows):
    """Labels from (id, chromosome, position, counted allele, other allele) of each variant."""
    ids, chromosome, position, counted, other = zip(*rows, strict=True)
    extra = {
        "chromosome": np.array(chromosome, TEXT),
        "position": np.array(position, np.int64),
        "counted_allele": np.array(counted, TEXT),
        "other_allele": np.array(other, TEXT),
    }
    return AxisLabels(("variant",), (len(rows),), {"variant": np.array(ids, TEXT)}, extra=extra)


def panel(n=40, seed=0):
    """Variants whose strand can be told, on one chromosome."""
    pairs = ["AC", "AG", "CA", "CT", "GA", "GT", "TC", "TG"]
    drawn = np.random.default_rng(seed).choice(pairs, n)
    return [(f"rs{i}", "1", 100 + 10 * i, a, b) for i, (a, b) in enumerate(drawn)]


# -- the rules, said as plainly as possible -----------------------------------------------------


def relation(a, b):
    """How the alleles b of the new data stand to those of the model: (swapped, flipped, unsure)."""

    def same(x, y):
        return all(p == q or "0" in (p, q) for p, q in zip(x, y, strict=True))

    def flip(alleles):
        return tuple(COMPLEMENT.get(x, "no complement") for x in alleles)

    written, swapped = same(a, b), same(a, b[::-1])
    turned = same(a, flip(b)), same(a, flip(b)[::-1])
    if written and swapped:
        return None
    if written or swapped:
        return swapped, False, any(turned)
    if turned[0] != turned[1]:
        return turned[1], True, False
    return None


def oracle(model, new, by, keep):
    """({model variant: (new variant, swapped, flipped)}, how often each outcome occurs)."""
    position = by == "position"
    keys = [[(r[1], r[2]) if position else r[0] for r in rows] for rows in (model, new)]
    counts = [Counter(k) for k in keys]
    whole = [list(k) for k in keys]
    if position:
        for rows, mine in zip((model, new), whole, strict=True):
            for i, row in enumerate(rows):
                if max(c[mine[i]] for c in counts) > 1:
                    pair = tuple(sorted(row[3:]))
                    turned = tuple(sorted(COMPLEMENT.get(x, "-") for x in pair))
                    single = all(x in "ACGT" for x in pair)
                    mine[i] = (*mine[i], min(pair, turned) if single else pair)
    often = [Counter(k) for k in whole]
    found, outcome = {}, Counter()
    for i, key in enumerate(whole[0]):
        if often[1][key] == 0:
            other_alleles = position and counts[1][keys[0][i]]
            outcome["mismatched" if other_alleles else "absent"] += 1
        elif often[0][key] > 1 or often[1][key] > 1:
            outcome["duplicated"] += 1
        else:
            j = whole[1].index(key)
            how = relation(model[i][3:], new[j][3:])
            if how is None:
                outcome["mismatched"] += 1
                continue
            outcome["ambiguous"] += how[2]
            if keep or not how[2]:
                found[i] = (j, *how[:2])
    return found, outcome


alleles = st.sampled_from(["A", "C", "G", "T", "0", "AT", "GATT"])
row = st.tuples(
    st.integers(0, 14).map(lambda i: f"rs{i}"),
    st.sampled_from(["1", "X"]),
    st.integers(1, 8),
    alleles,
    alleles,
)
rows = st.lists(row, min_size=1, max_size=25)


@settings(max_examples=200, deadline=None)
@given(rows, rows, st.sampled_from(["id", "position"]), st.booleans())
def test_rules(model, new, by, keep):
    match = match_variants(variants(model), variants(new), by, "keep" if keep else "drop")
    found, outcome = oracle(model, new, by, keep)
    got = zip(match.new.tolist(), match.swapped.tolist(), match.flipped.tolist(), strict=True)
    assert dict(zip(match.model.tolist(), got, strict=True)) == found
    assert match.n_absent == outcome["absent"]
    assert match.n_mismatched == outcome["mismatched"]
    assert match.n_duplicated == outcome["duplicated"]
    assert match.n_ambiguous == outcome["ambiguous"]
    total = match.n_matched + match.n_absent + match.n_mismatched + match.n_duplicated
    assert total + match.n_ambiguous_dropped == match.n_model == len(model)


# -- each by itself -----------------------------------------------------------------------------


def test_order_swaps_and_strands_are_found():
    model = panel(60)
    order = np.random.default_rng(1).permutation(60)
    new = []
    for i in order.tolist():
        name, chromosome, position, a, b = model[i]
        if i % 3 == 0:
            a, b = b, a
        if i % 5 == 0:
            a, b = COMPLEMENT[a], COMPLEMENT[b]
        new.append((name, chromosome, position, a, b))
    for by in ("auto", "id", "position"):
        match = match_variants(variants(model), variants(new), by)
        assert match.n_matched == 60
        np.testing.assert_array_equal(match.model, np.arange(60))
        np.testing.assert_array_equal(order[match.new], np.arange(60))
        np.testing.assert_array_equal(match.swapped, np.arange(60) % 3 == 0)
        np.testing.assert_array_equal(match.flipped, np.arange(60) % 5 == 0)
    assert (match.n_swapped, match.n_flipped) == (20, 12)
    assert match.to_dict()["n_matched"] == 60
    assert "60 of 60 variants matched by position: 20 with alleles swapped" in str(match)


def test_ambiguous_variants_are_kept_only_where_one_strand_is_seen():
    model = [*panel(30), ("at", "1", 5000, "A", "T"), ("cg", "1", 5010, "C", "G")]
    swapped = [*panel(30), ("at", "1", 5000, "T", "A"), ("cg", "1", 5010, "C", "G")]
    match = match_variants(variants(model), variants(swapped))
    assert (match.n_matched, match.n_ambiguous, match.ambiguous_kept) == (32, 2, True)
    np.testing.assert_array_equal(np.flatnonzero(match.swapped), [30])
    assert match_variants(variants(model), variants(swapped), ambiguous="drop").n_matched == 30
    name, chromosome, position, a, b = swapped[4]
    other_strand = list(swapped)
    other_strand[4] = (name, chromosome, position, COMPLEMENT[a], COMPLEMENT[b])
    dropped = match_variants(variants(model), variants(other_strand))
    assert (dropped.n_matched, dropped.n_ambiguous_dropped, dropped.n_flipped) == (30, 2, 1)
    kept = match_variants(variants(model), variants(other_strand), ambiguous="keep")
    assert kept.n_matched == 32
    few = match_variants(variants(model[22:]), variants(swapped[22:]))  # 8 others: no evidence
    assert not few.ambiguous_kept
    assert "2 strand-ambiguous dropped" in str(few)


def test_auto_takes_what_finds_more():
    build37 = [(name, c, p + 7919, a, b) for name, c, p, a, b in panel(20)]
    assert match_variants(variants(panel(20)), variants(build37)).by == "id"
    assert match_variants(variants(panel(20)), variants(panel(20))).by == "id"
    renamed = [(f"1:{p}", c, p, a, b) for _, c, p, a, b in panel(20)]
    match = match_variants(variants(panel(20)), variants(renamed))
    assert (match.by, match.n_matched) == ("position", 20)
    by_id = match_variants(variants(panel(20)), variants(renamed), "id")
    assert (by_id.n_matched, by_id.n_absent) == (0, 20)


@pytest.mark.parametrize(("more", "matched"), [("26", 3), ("38", 1)])
def test_codes_of_human_chromosomes_are_letters(more, matched):
    """A chromosome 38 shows that 23 is an autosome."""
    model = [("a", "X", 5, "A", "G"), ("b", "23", 6, "A", "G"), ("c", more, 7, "A", "G")]
    new = [("d", "chr23", 5, "A", "G"), ("e", "x", 6, "A", "G"), ("f", more, 7, "A", "G")]
    assert match_variants(variants(model), variants(new), "position").n_matched == matched


def test_chromosomes_may_be_written_in_several_ways():
    new = [(f"n{name}", f"chr{c}", p, a, b) for name, c, p, a, b in panel(20)]
    assert match_variants(variants(panel(20)), variants(new), "position").n_matched == 20


def test_several_variants_at_one_position_are_told_apart_by_alleles():
    model = [*panel(20), ("m1", "2", 50, "A", "C"), ("m2", "2", 50, "A", "G")]
    new = [*panel(20), ("n2", "2", 50, "C", "T"), ("n1", "2", 50, "C", "A")]
    match = match_variants(variants(model), variants(new), "position")
    assert match.new[-2:].tolist() == [21, 20]
    assert match.swapped[-2:].tolist() == [True, True]
    assert match.flipped[-2:].tolist() == [False, True]
    # and one that is there twice serves nobody
    twice = match_variants(variants(model), variants([*new, new[-1]]), "position")
    assert (twice.n_matched, twice.n_duplicated) == (21, 1)


def test_an_allele_that_nobody_carries_is_unknown():
    """PLINK writes "0" for it: one sample that is homozygous counts 2 - 0 or 0 of the other."""
    model = [("a", "1", 1, "A", "C"), ("b", "1", 2, "A", "C"), ("c", "1", 3, "A", "C")]
    new = [("a", "1", 1, "0", "A"), ("b", "1", 2, "0", "C"), ("c", "1", 3, "0", "0")]
    match = match_variants(variants(model), variants(new))
    assert match.model.tolist() == [0, 1]
    assert match.swapped.tolist() == [True, False]
    assert match.n_mismatched == 1


def test_small_letters_and_labels_of_a_loaded_model():
    model, new = variants(panel(20)), variants(panel(20))
    lower = {**new.extra, "counted_allele": np.strings.lower(new.extra["counted_allele"])}
    ids = {"variant": np.array(new.coords["variant"].tolist())}  # as the store holds them
    match = match_variants(model, AxisLabels(new.dims, new.sizes, ids, extra=lower))
    assert match.n_matched == 20
    assert not match.swapped.any()


@pytest.mark.parametrize("n", [1000, 14079, 100_000])
def test_two_files_in_the_same_order(n):
    """NumPy 2.4's quicksort crashed on such a list of strings."""
    counted, other = np.full(n, "A", TEXT), np.full(n, "C", TEXT)
    ids = np.array([f"rs{i}" for i in range(n)], TEXT)
    extra = {"counted_allele": counted, "other_allele": other}
    labels = AxisLabels(("variant",), (n,), {"variant": ids}, extra=extra)
    np.testing.assert_array_equal(match_variants(labels, labels).new, np.arange(n))


def test_names_that_are_none_do_not_match():
    model = [(".", "1", 10 * i + 10, "A", "C") for i in range(12)]
    assert match_variants(variants(model), variants(model), "id").n_absent == 12
    assert match_variants(variants(model), variants(model)).n_matched == 12
    nowhere = [(".", "0", 0, "A", "C") for _ in range(12)]
    assert match_variants(variants(nowhere), variants(nowhere)).n_absent == 12


def test_what_cannot_be_matched_is_refused():
    labels = variants(panel(5))
    with pytest.raises(InvalidInputError, match=r"match='rsid'; expected one of"):
        match_variants(labels, labels, "rsid")
    with pytest.raises(InvalidInputError, match=r"ambiguous='flip'; expected one of"):
        match_variants(labels, labels, ambiguous="flip")
    with pytest.raises(InvalidInputError, match=r"the new variants have no counted_allele"):
        match_variants(labels, AxisLabels.plain("variant", 5))
    alleles_alone = {name: labels.extra[name] for name in ("counted_allele", "other_allele")}
    bare = AxisLabels(("variant",), (5,), extra=alleles_alone)
    with pytest.raises(InvalidInputError, match=r"match='position' needs chromosome"):
        match_variants(labels, bare, "position")
    with pytest.raises(InvalidInputError, match=r"match='auto' needs ids"):
        match_variants(labels, bare)
