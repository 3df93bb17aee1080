"""KING-robust kinship against a plain NumPy reading of its definition, and against PLINK 2."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca.cli.commands import main
from streampca.errors import DamagedSourceError, InvalidInputError, MemoryLimitError, SourceError
from streampca.genetics.kinship_counts import KinshipCounts
from streampca.genetics.kinship_result import without_relatives
from streampca.genetics.tables import six_digits
from streampca.matrix import Block
from tests.genotypes import random_calls, write_plink, write_vcf_zarr

SETS = ("king.cutoff.in.id", "king.cutoff.out.id")


def families(n: int, p: int, seed: int, missing: float) -> np.ndarray:
    """(n, p) calls with duplicates and children, and at times a sample without calls, one that is
    heterozygous everywhere, and a variant of one allele."""
    rng = np.random.default_rng(seed)
    calls = rng.binomial(2, rng.uniform(0.02, 0.98, p), (n, p)).astype(np.int8)
    for _ in range(int(rng.integers(0, n))):
        i, j, k = rng.integers(0, n, 3)
        child = (rng.random(p) < calls[j] / 2).astype(np.int8) + (rng.random(p) < calls[k] / 2)
        calls[i] = calls[j] if rng.random() < 0.3 else child
    calls[rng.random((n, p)) < missing] = -1
    if seed % 4 == 0:
        calls[rng.integers(n)] = 1
    if seed % 5 == 0:
        calls[:, rng.integers(p)] = 2
    if seed % 7 == 0:
        calls[rng.integers(n)] = -1
    return calls


def oracle(calls: np.ndarray) -> dict[str, np.ndarray]:
    """(n, n) counts and kinship by the definition, from products of indicators."""
    het, seen = (calls == 1).astype(float), (calls >= 0).astype(float)
    hom = seen - het
    none, both = (calls == 0).astype(float), (calls == 2).astype(float)
    hethet, ibs0, mine = het @ het.T, none @ both.T + both @ none.T, het @ hom.T
    with np.errstate(invalid="ignore", divide="ignore"):
        phi = 0.5 - (4 * ibs0 + mine + mine.T) / (4 * (hethet + np.minimum(mine, mine.T)))
    return {"nsnp": seen @ seen.T, "hethet": hethet, "ibs0": ibs0, "kinship": phi}


def check(found: Any, calls: np.ndarray) -> None:
    """Compare all pairs with the oracle, to the last bit."""
    wanted = oracle(calls)
    for i in range(len(calls)):
        pairs = found.pairs_of(i)
        for name, value in wanted.items():
            np.testing.assert_array_equal(getattr(pairs, name), value[i, :i], name)
    lower = np.tril_indices(len(calls), -1)
    np.testing.assert_array_equal(found.kinship[lower], wanted["kinship"][lower])
    np.testing.assert_array_equal(found.kinship, found.kinship.T)


# -- counts ----------------------------------------------------------------------------------------


def test_counts_are_those_of_the_definition_in_every_layout(tmp_path):
    calls = families(70, 200, 3, 0.1)
    numbers = np.where(calls < 0, np.nan, calls)
    nine = np.where(calls < 0, 9, calls).astype(np.uint8)
    whole = families(70, 200, 3, 0.0)
    check(streampca.kinship(calls), calls)
    check(streampca.kinship(np.asfortranarray(calls)), calls)
    check(streampca.kinship(calls.astype(np.int64)), calls)
    check(streampca.kinship(numbers), calls)
    check(streampca.kinship(numbers.astype("f4")), calls)
    check(streampca.kinship(nine, missing_value=9), calls)
    check(streampca.kinship(np.asfortranarray(nine), missing_value=9), calls)
    check(streampca.kinship(scipy.sparse.csc_matrix(whole)), whole)
    check(streampca.kinship(write_plink(tmp_path / "x", calls)), calls)
    check(streampca.kinship(write_vcf_zarr(tmp_path / "x.zarr", calls)), calls)
    found = streampca.kinship(np.asfortranarray(whole))
    assert found.lost_het is None  # nothing is counted that is not there
    check(found, whole)


def test_counts_beyond_a_piece_and_beyond_a_byte():
    """More variants than are counted at a time, and more missing calls than a uint8 holds."""
    calls = random_calls(5, 9001, missing=0.3)
    calls[0, :600] = calls[1, 10:600] = -1
    check(streampca.kinship(calls), calls)


def test_the_sums_do_not_depend_on_how_blocks_are_cut_merged_and_stored():
    calls = families(30, 400, 1, 0.05)
    calls[:, :150] = families(30, 150, 2, 0.0)

    def counted(first: int, last: int) -> KinshipCounts:
        sums = KinshipCounts()
        block = Block(np.asfortranarray(calls[:, first:last]), 1, first, last, missing_value=-1)
        sums.update(block)
        return sums

    whole = counted(0, 400).state()
    rng = np.random.default_rng(0)
    for _ in range(5):
        edges = [0, *sorted(rng.choice(np.arange(1, 400), 4, replace=False).tolist()), 400]
        parts = [counted(a, b) for a, b in itertools.pairwise(edges)]
        rng.shuffle(parts)
        total = KinshipCounts()
        for part in parts:
            before = part.state()
            total.merge(part.from_state(before))
            total.merge(KinshipCounts())
        for name, value in total.state().items():
            np.testing.assert_array_equal(value, whole[name], name)
    with pytest.raises(InvalidInputError, match="width"):
        total.merge(KinshipCounts().from_state({"shared": np.zeros((3, 3), np.int32)}))
    with pytest.raises(InvalidInputError, match="features"):
        total.update(Block(calls, 0, 0, 30))


def test_what_is_no_number_where_no_call_is_heterozygous():
    calls = np.array([[0, 0, 2, 2], [2, 2, 0, 0], [0, 0, 2, 2], [1, 1, 1, 1], [-1] * 4], np.int8)
    found = streampca.kinship(calls)
    check(found, calls)
    assert found.kinship[1, 0] == -np.inf  # PLINK prints -inf
    assert np.isnan(found.kinship[2, 0])
    assert np.isnan(found.kinship[4, 3])
    assert np.isneginf(found.related(-np.inf).kinship).all()
    assert not len(found.related(-9))
    assert found.unrelated(0).all()


# -- filters and refusals --------------------------------------------------------------------------


def test_filters_are_those_of_a_fit_in_the_same_pass(tmp_path):
    calls = random_calls(40, 300, missing=0.05)
    calls[7, :60] = calls[:25, 11] = -1
    calls[:, 20], calls[:, 21] = 0, 1
    path = write_plink(tmp_path / "x", calls, chromosomes=["X"] * 5 + ["2"] * 295)
    kept = np.arange(40) != 7
    kept[3] = False
    with pytest.warns(UserWarning, match="s7"):
        found = streampca.kinship(
            path, maf=0.1, max_missing=0.3, max_sample_missing=0.2, exclude=["s3"]
        )
    some = calls[kept][:, 5:]
    copies, seen = np.maximum(some, 0).sum(axis=0), (some >= 0).sum(axis=0)
    share = copies / (2 * seen)
    wanted = (np.minimum(share, 1 - share) >= 0.1) & (seen >= 0.7 * len(some))
    assert 0 < found.n_variants == wanted.sum() < 295
    check(found, some[:, wanted])
    assert len(found.provenance["passes"]) == len(found.plan["passes"]) == 2
    every = streampca.VariantFilter(chromosomes="all")
    check(streampca.kinship(path, variants=every), calls)


@pytest.mark.parametrize(
    ("calls", "more", "message"),
    [
        (np.zeros((1, 9), np.int8), {}, "at least 2 samples"),
        (np.full((3, 4), 3, np.int8), {}, r"hold 3; kinship needs calls 0, 1 or 2"),
        (np.full((3, 4), 0.5), {}, "kinship needs calls"),
        (np.zeros((3, 4), np.int8), {"maf": 0.1}, "leave none of 4 variants"),
        (np.zeros((3, 4), np.int8), {"maf": 0.7}, "maf"),
        (np.zeros((3, 4), np.int8), {"max_sample_missing": 2}, "share"),
    ],
)
def test_what_has_no_kinship_is_refused(calls, more, message):
    with pytest.raises(InvalidInputError, match=message):
        streampca.kinship(calls, **more)


def test_other_ploidies_are_refused(tmp_path):
    four = np.zeros((6, 3, 4), np.int8)
    path = write_vcf_zarr(tmp_path / "x.zarr", np.zeros((3, 6), np.int8), alleles=four)
    with pytest.raises(InvalidInputError, match="diploid calls; these have up to 4 copies"):
        streampca.kinship(path)


def test_the_smallest_limit_does(tmp_path):
    path = write_plink(tmp_path / "x", random_calls(900, 50))
    with pytest.raises(MemoryLimitError, match="too small for kinship of 900 x 50") as refused:
        streampca.kinship(path, memory_limit="1MiB")
    found = streampca.kinship(path, memory_limit=refused.value.smallest)
    assert found.plan["memory"]["solver"]["counts of pairs"] == 12 * 900**2 + 16 * 900


# -- the result ------------------------------------------------------------------------------------


def test_relatives_by_degree():
    calls = families(30, 2000, 6, 0.02)
    found = streampca.kinship(calls)
    close = found.related()
    lower = np.tril_indices(30, -1)
    phi = found.kinship[lower]
    assert len(close) == np.count_nonzero(phi >= 0.0442) > 0
    for name, least, most in (
        ("duplicate", 0.354, 1.0),
        ("first", 0.177, 0.354),
        ("second", 0.0884, 0.177),
        ("third", 0.0442, 0.0884),
    ):
        count = np.count_nonzero((phi >= least) & (phi < most))
        assert np.count_nonzero(close.degree == name) == count == found.to_dict()["pairs"][name]
        assert len(found.related(name)) == np.count_nonzero(phi >= least)
    columns = close.columns()
    assert list(columns) == ["IID1", "IID2", "NSNP", "HETHET", "IBS0", "KINSHIP"]
    np.testing.assert_array_equal(columns["HETHET"], close.hethet / close.nsnp)
    kept = found.unrelated("first")
    assert (found.kinship[np.ix_(kept, kept)] - np.diag([1.0] * kept.sum()) <= 0.177).all()
    assert "30 samples by 2000 variants" in str(found)
    assert "30 samples" in repr(found)
    for wrong in (0.6, "cousin", np.nan, True):
        with pytest.raises(InvalidInputError, match="duplicate, first, second, third"):
            found.related(wrong)
    with pytest.raises(InvalidInputError, match=r"cutoff=-0.1; expected a kinship from 0 to 0.5"):
        found.unrelated(-0.1)


@pytest.mark.parametrize(
    ("pairs", "dropped"),
    [
        ([], []),
        ([(1, 0)], [1]),  # the partner of the first with a single relative
        ([(1, 0), (2, 1), (3, 2)], [1, 3]),  # a chain: then 2 has a single relative
        ([(1, 0), (2, 0), (2, 1)], [0, 2]),  # a triangle: the first of most relatives
        ([(3, 0), (3, 1), (3, 2), (2, 1)], [3, 2]),
    ],
)
def test_the_greedy_rule(pairs, dropped):
    first, second = np.array(pairs, int).reshape(-1, 2).T
    kept = without_relatives(first, second, 5)
    assert np.flatnonzero(~kept).tolist() == sorted(dropped)


def test_saved_and_labelled(tmp_path):
    calls = families(8, 50, 4, 0.1)
    found = streampca.kinship(write_plink(tmp_path / "x", calls))
    folder = found.save(tmp_path / "k")
    again = streampca.Kinship.load(folder)
    np.testing.assert_array_equal(again.kinship, found.kinship)
    assert again.plan["passes"]
    assert again.samples.names() == found.samples.names()
    assert again.related(-1).columns().keys() == found.related(-1).columns().keys()
    labelled = found.to_xarray()
    row = labelled.kinship.sel(sample=found.samples.names()[1]).values
    np.testing.assert_array_equal(row, found.kinship[1])
    model = streampca.PCA(2, progress=False).fit(np.random.default_rng(0).normal(size=(9, 4)))
    with pytest.raises(SourceError, match="is no kinship"):
        streampca.Kinship.load(model.save(tmp_path / "m"))
    with pytest.raises(SourceError, match="is not a model"):
        streampca.load(folder)
    short = streampca.kinship(calls[:5])
    np.testing.assert_array_equal(short.kinship, found.kinship[:5, :5])
    object.__setattr__(short, "het", short.het[:3])
    with pytest.raises(DamagedSourceError, match="het has the shape"):
        streampca.Kinship.load(short.save(tmp_path / "d"))


# -- PLINK -----------------------------------------------------------------------------------------


def plink2(path: str, out: Path, *options: str) -> list[str]:
    """PLINK's files: the table, and the lists of kept and excluded samples; none if it refuses."""
    if (program := shutil.which("plink2")) is None:
        pytest.skip("needs plink2")
    stem = path.removesuffix(".bed")
    words = [program, "--bfile", stem, "--make-king-table", "--threads", "1", "--out", str(out)]
    done = subprocess.run([*words, *options], capture_output=True, text=True, check=False)
    if "No variants remaining" in done.stderr:
        return []
    assert not done.returncode, done.stdout + done.stderr
    return [Path(f"{out}.{end}").read_text() for end in ("kin0", *SETS)]


def compared(seed: int, folder: Path) -> None:
    """A random file by both commands, with filters and thresholds drawn from the seed."""
    rng = np.random.default_rng(seed)
    n, p = (2, 9) if seed % 11 == 0 else rng.integers((2, 1), (40, 300))
    calls = families(int(n), int(p), seed, rng.choice([0, 0, 0.01, 0.1, 0.5]))
    path = write_plink(folder / "x", calls, families=["0"] * len(calls) if seed % 2 else None)
    words = ["--king-cutoff", str(rng.choice([0.0884, 0.177, 0.25, 0.0442, 0.0]))]
    if seed % 3 == 0:
        words += ["--king-table-filter", str(rng.choice([0.0, 0.125, 0.25]))]
    if seed % 8 == 3:
        words += ["--maf", "0.1", "--geno", "0.2"]
    theirs = plink2(path, folder / "theirs", *words)
    ours = str(folder / "ours")
    code = main(["relate", path, "-o", ours, "--make-king-table", "--overwrite", *words])
    if not theirs:
        assert code == 65, seed
        return
    assert code == 0, seed
    for end, text in zip(("kin0", *SETS), theirs, strict=True):
        assert Path(f"{ours}.{end}").read_text() == text, (seed, end)


def test_tables_and_lists_are_those_of_plink(tmp_path):
    for seed in (0, 3, 6, 11, 12):
        compared(seed, tmp_path)


@pytest.mark.slow
def test_tables_and_lists_are_those_of_plink_in_more_files(tmp_path):
    for seed in range(100, 115):
        compared(seed, tmp_path)


@pytest.mark.soak
def test_tables_and_lists_are_those_of_plink_in_many_files(tmp_path):
    for seed in range(1000, 1300):
        compared(seed, tmp_path)


@pytest.mark.slow
def test_1000_genomes_to_all_printed_digits(shared_data, tmp_path):
    """Without missing calls."""
    stem = "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap.bed"
    path = str(shared_data / "hapmap3" / stem)
    table, kept, out = plink2(path, tmp_path / "theirs", "--king-cutoff", "0.0442")
    found = streampca.kinship(path)
    assert found.write_table(tmp_path / "x").read_text() == table
    lists = found.write_cutoff(tmp_path / "x", "third")
    assert [one.read_text() for one in lists] == [kept, out]


@pytest.mark.slow
def test_hapmap3_with_missing_calls(shared_data, tmp_path):
    """PLINK 2 alpha 3.5 counts a variant too many in NSNP where one of the two is homozygous for
    the allele of the few (here of at most 29 samples), and the other is missing: in 46 pairs."""
    path = str(shared_data / "hapmap3" / "data.bed")
    table, kept, out = plink2(path, tmp_path / "theirs", "--king-cutoff", "0.0442")
    found = streampca.kinship(path)
    lists = found.write_cutoff(tmp_path / "x", "third")
    assert [one.read_text() for one in lists] == [kept, out]
    ours = found.write_table(tmp_path / "x").read_text().splitlines()
    theirs = table.splitlines()
    rows = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert len(rows) <= 46
    for i in rows:
        mine, plinks = ours[i].split("\t"), theirs[i].split("\t")
        assert mine[:4] == plinks[:4]
        assert mine[7] == plinks[7]
        assert int(plinks[4]) == int(mine[4]) + 1


def test_six_digits_are_plinks():
    values = np.array(
        [0.02265625, -0.0757812500000001, 1 / 3, -2.5, 0.0, np.nan, -np.inf, 0.0757813]
    )
    printed = [f"{x:.6g}" for x in six_digits(values).tolist()]
    assert printed == [
        "0.0226562", "-0.0757812", "0.333333", "-2.5", "0", "nan", "-inf", "0.0757813"
    ]  # fmt: skip


# -- the command -----------------------------------------------------------------------------------


def test_relate_writes_what_it_is_asked_for(tmp_path, capsys):
    path = write_plink(tmp_path / "x", families(20, 500, 6, 0.02))
    out = str(tmp_path / "o")
    assert main(["relate", path, "-o", out]) == 0
    said = capsys.readouterr().out
    rows = [line.split("\t") for line in Path(f"{out}.kin0").read_text().splitlines()]
    assert rows[0] == ["#FID1", "IID1", "FID2", "IID2", "NSNP", "HETHET", "IBS0", "KINSHIP"]
    assert len(rows) > 1
    assert all(float(row[-1]) >= 0.0442 for row in rows[1:])
    assert "20 samples by 500 variants" in said
    assert f"written    {out}.kin0" in said
    assert main(["relate", path, "-o", out]) == 73
    assert "add --overwrite" in capsys.readouterr().err
    stem = path.removesuffix(".bed")
    words = ["relate", "--bfile", stem, "--out", out + "2", "--king-cutoff", "second", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    kept = Path(f"{out}2.king.cutoff.in.id").read_text().splitlines()
    assert said["unrelated"] == len(kept) - 1 < 20
    assert said["written"] == [f"{out}2.{end}" for end in SETS]
    assert not Path(f"{out}2.kin0").exists()
    model = str(tmp_path / "m")
    fit = ["fit", path, "-k", "2", "-q", "-o", model, "--fit-samples", said["written"][0]]
    assert main(fit) == 0
    assert streampca.load(model).result_.fitted.sum() == said["unrelated"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--king-cutoff", "0.7"], "--king-cutoff 0.7; expected a kinship from 0 to 0.5"),
        (["--king-table-filter", "0.7"], "--king-table-filter 0.7; expected a kinship to 0.5"),
        (["--memory-limit", "1MiB"], "The smallest limit that would do is --memory-limit"),
        (["--maf", "0.4"], "--maf 0.4 and --geno 1 leave none of 50 variants"),
    ],
)
def test_relate_refuses_in_the_words_of_the_command_line(tmp_path, capsys, words, message):
    path = write_plink(tmp_path / "x", np.zeros((3, 50), np.int8))
    assert main(["relate", path, "-o", str(tmp_path / "o"), *words]) in (65, 69)
    assert message in capsys.readouterr().err
    assert not [*tmp_path.glob("o*")]
