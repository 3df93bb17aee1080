"""LD pruning against a plain NumPy reading of PLINK's rules, and against PLINK 2 itself."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.genetics.filters import REGIONS, in_long_range_ld
from streampca.genetics.ld_pruning import prune_ld, windows
from streampca.genetics.pruning_scan import LDScan
from streampca.matrix import AxisLabels, Labels
from streampca.sources import as_matrix

# -- the rules, said as plainly as possible -----------------------------------------------------


def oracle_windows(chromosome, position, length, step):
    """[start, stop) of each window, by walking."""
    out = []
    borders = [j for j in range(1, len(chromosome)) if chromosome[j] != chromosome[j - 1]]
    for a, b in pairwise([0, *borders, len(chromosome)]):
        if chromosome[a] == "0":
            continue
        start, reached = a, -1
        while reached < b:
            stop = min(start + length, b)
            if position is not None:
                stop = next((j for j in range(a, b) if position[j] > position[start] + length), b)
            if stop > reached and stop - start > 1:
                out.append((start, stop))
            reached = max(reached, stop)
            start += step
    return out


def squared_correlation(a, b):
    """r^2 over the samples observed in both, as (numerator, denominator) of whole numbers."""
    seen = (a >= 0) & (b >= 0)
    x, y = a[seen].astype(int), b[seen].astype(int)
    n = int(seen.sum())
    covariance = n * int(x @ y) - int(x.sum()) * int(y.sum())
    of_x, of_y = (n * int(v @ v) - int(v.sum()) ** 2 for v in (x, y))
    return covariance**2, of_x * of_y


def oracle(calls, r2, length, step=1, order=1, chromosome=None, position=None):
    """Kept variants of calls (n, p), -1 missing. Slow: every pair, in every sweep, anew."""
    p = calls.shape[1]
    chromosome = ["1"] * p if chromosome is None else list(chromosome)
    kept = [name != "0" for name in chromosome]
    major, constant = [], []
    for column in calls.T:
        seen = column[column >= 0].astype(int)
        share = seen.sum() / (2 * max(len(seen), 1))
        major.append(max(share, 1 - share))
        constant.append(len(set(seen.tolist())) < 2)

    def linked(i, j):
        above, below = squared_correlation(calls[:, i], calls[:, j])
        return above > r2 * (1 + 2.0**-44) * below

    entered = set()
    for start, stop in oracle_windows(chromosome, position, length, step):
        fresh = [v for v in range(start, stop) if v not in entered]
        entered |= set(fresh)
        for v in fresh:
            kept[v] = not constant[v]
        members = [v for v in range(start, stop) if kept[v]]
        if order == 1:
            changed = True
            while changed:
                changed = False
                for i in members:
                    later = [j for j in members if j > i and kept[i] and kept[j]]
                    hit = next((j for j in later if linked(i, j)), None)
                    if hit is not None:
                        kept[i if major[i] > major[hit] * (1 + 2.0**-44) else hit] = False
                        changed = True
        else:
            for j in reversed([v for v in members if v in fresh]):
                for i in reversed([v for v in members if v < j]):
                    if kept[i] and linked(i, j):
                        if major[i] <= major[j] * (1 + 2.0**-44):
                            kept[j] = False
                            break
                        kept[i] = False
    return np.flatnonzero(kept)


# -- data ---------------------------------------------------------------------------------------


def copied_haplotypes(rng, n, p, founders=8, switch=0.1, missing=0.0):
    """(n, p) int8 calls of people whose chromosomes are mosaics of a few founders'."""
    pool = (rng.random((founders, p)) < rng.beta(0.8, 0.8, p)).astype(np.int8)
    calls = np.zeros((n, p), np.int8)
    for _ in range(2):
        who = rng.integers(0, founders, n)
        for j in range(p):
            who = np.where(rng.random(n) < switch, rng.integers(0, founders, n), who)
            calls[:, j] += pool[who, j] ^ (rng.random(n) < 0.01)
    calls[:, rng.random(p) < 0.03] = 1  # variants that do not vary
    calls[rng.random(calls.shape) < missing] = -1
    calls[:, rng.random(p) < 0.01] = -1
    return calls


def genome(rng, p, chromosomes=5, bases=200_000):
    """Chromosome names and increasing positions."""
    names = np.sort(rng.integers(1, chromosomes + 1, p))
    return names.astype(str), np.concatenate(
        [np.sort(rng.integers(1, bases, np.sum(names == c))) for c in np.unique(names)]
    )


def labelled(calls, chromosome=None, position=None, missing_value=-1):
    """A matrix whose variants have names, and a chromosome and position where they are given."""
    matrix = as_matrix(calls, missing_value=missing_value)
    extra = {} if chromosome is None else {"chromosome": np.asarray(chromosome)}
    extra |= {} if position is None else {"position": np.asarray(position, np.int64)}
    ids = np.array([f"rs{j}" for j in range(calls.shape[1])])
    variants = AxisLabels(("variant",), (len(ids),), {"variant": ids}, extra=extra)
    matrix.labels = Labels(matrix.labels.samples, variants)
    return matrix


def scanned(calls, edges, r2, table, order):
    """What a scan over these blocks keeps."""
    scan = LDScan(r2=r2, order=order, starts=table[0], stops=table[1], missing=-1)
    matrix = labelled(calls).streamed(1, np.asarray(edges))
    for i in range(matrix.n_blocks):
        scan.update(matrix.read_block(i))
    return scan


@st.composite
def cases(draw):
    n, p = draw(st.integers(2, 9)), draw(st.integers(1, 24))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    calls = rng.integers(-1, 3, (n, p)).astype(np.int8)
    copies = rng.integers(0, p, p)
    calls = np.where(rng.random(p) < draw(st.sampled_from([0.0, 0.7])), calls[:, copies], calls)
    length = draw(st.integers(2, 9))
    chromosome, position = genome(rng, p, draw(st.integers(1, 4)), 40)
    if draw(st.booleans()):
        position = None
    step = 1 if position is not None else draw(st.integers(1, length))
    cuts = draw(st.lists(st.integers(0, p), max_size=6))
    return SimpleNamespace(
        calls=np.asfortranarray(calls) if draw(st.booleans()) else np.ascontiguousarray(calls),
        edges=np.unique([0, *cuts, p]),
        length=length,
        step=step,
        chromosome=chromosome,
        position=position,
        r2=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])),
        order=draw(st.sampled_from([1, 2])),
    )


@given(cases())
def test_any_blocks_keep_what_the_rules_keep(case):
    expected = oracle(
        case.calls, case.r2, case.length, case.step, case.order, case.chromosome, case.position
    )
    table = windows(case.chromosome, case.position, case.length, case.step)
    walked = oracle_windows(case.chromosome, case.position, case.length, case.step)
    assert list(zip(*[t.tolist() for t in table])) == walked
    scan = scanned(case.calls, case.edges, case.r2, table, case.order)
    np.testing.assert_array_equal(np.flatnonzero(scan.keep), expected)


# -- the public function ------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("window", "length", "step"), [(20, 20, 1), (12, 12, 5), ("3kb", 3000, 1), ("0.5KB", 500, 1)]
)
@pytest.mark.parametrize("order", [1, 2])
def test_kept_variants(missing, window, length, step, order):
    rng = np.random.default_rng(3)
    calls = copied_haplotypes(rng, 70, 150, missing=missing)
    chromosome, position = genome(rng, 150, bases=20_000)
    found = prune_ld(
        labelled(calls, chromosome, position), r2=0.3, window=window, step=step, order=order
    )
    placed = position if isinstance(window, str) else None
    expected = oracle(calls, 0.3, length, step, order, chromosome, placed)
    np.testing.assert_array_equal(found.kept, expected)
    assert found.ids.tolist() == [f"rs{j}" for j in expected]
    np.testing.assert_array_equal(np.flatnonzero(found.mask), found.kept)
    assert found.n_features == 150
    assert found.n_constant > 0
    assert 0 < len(found.kept) < 150
    for name, (kept, all_) in found.by_chromosome.items():
        assert all_ == np.sum(chromosome == name)
        assert kept == np.sum(chromosome[found.kept] == name)
    assert found.cost.blocks == found.plan.passes[0].n_blocks
    assert f"{len(found.kept)} of 150 variants" in repr(found)
    assert found.to_dict()["settings"]["window"] == window


def test_planted_copies_leave_one_of_each():
    rng = np.random.default_rng(0)
    founders = rng.integers(0, 3, (200, 12)).astype(np.int8)
    calls = np.repeat(founders, 10, axis=1)
    flipped = rng.random(calls.shape[1]) < 0.5
    calls[:, flipped] = 2 - calls[:, flipped]  # the other allele counted: r^2 is the same
    found = prune_ld(calls, window=30, step=1)
    np.testing.assert_array_equal(found.kept, np.arange(0, 120, 10))  # of equals, the first


def test_the_more_frequent_of_a_pair_is_kept():
    common = np.array([0, 0, 0, 1, 1, 2, 2, 1] * 20, np.int8)
    rare = common.copy()
    rare[::8] = 0
    rare[5::16] = 1
    for first, second, kept in ((common, rare, 0), (rare, common, 1)):
        assert prune_ld(np.stack([first, second], axis=1)).kept.tolist() == [kept]


def test_windows_end_at_chromosomes():
    column = np.tile(np.array([0, 1, 2, 1], np.int8), 10)
    calls = np.stack([column] * 6, axis=1)
    found = prune_ld(labelled(calls, ["1", "1", "2", "2", "2", "X"]))
    assert found.kept.tolist() == [0, 2, 5]
    assert list(found.by_chromosome.items()) == [("1", (1, 2)), ("2", (1, 3)), ("X", (1, 1))]
    unplaced = prune_ld(labelled(calls, ["0", "0", "1", "1", "2", "2"]))
    assert unplaced.kept.tolist() == [2, 4]
    assert unplaced.n_unplaced == 2


def test_variants_that_do_not_vary():
    calls = np.random.default_rng(0).integers(0, 3, (60, 6)).astype(np.int8)
    calls[:, 1], calls[:, 2], calls[:, 4] = 1, -1, 2
    calls[7:, 4] = -1
    found = prune_ld(calls, missing_value=-1, r2=0.9)
    assert found.kept.tolist() == [0, 3, 5]
    assert found.n_constant == 3
    alone = prune_ld(labelled(calls, ["1", "2", "3", "4", "4", "4"]), r2=0.9)
    assert alone.kept.tolist() == [0, 1, 2, 3, 5]  # alone on their chromosomes: never looked at


def test_nothing_observed_in_common_is_no_correlation():
    calls = np.full((8, 2), -1, np.int8)
    calls[:4, 0] = calls[4:, 1] = [0, 1, 2, 0]
    assert prune_ld(calls, missing_value=-1, r2=0.0).kept.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "float32", "float64"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_every_dtype_and_layout(dtype, layout):
    calls = copied_haplotypes(np.random.default_rng(1), 130, 80, missing=0.05)
    expected = oracle(calls, 0.2, 20)
    code = {"u": 9.0, "i": -1.0, "f": np.nan}[np.dtype(dtype).kind]
    coded = np.where(calls < 0, code, calls).astype(dtype, order=layout)
    missing = None if np.isnan(code) else code
    found = prune_ld(coded, window=20, step=1, missing_value=missing)
    np.testing.assert_array_equal(found.kept, expected)


def test_more_samples_than_a_float32_can_count():
    """Sums of squares times counts pass 2^53 nowhere, but pass 2^24 soon."""
    rng = np.random.default_rng(5)
    calls = copied_haplotypes(rng, 70_000, 6, founders=3, missing=0.001)
    np.testing.assert_array_equal(
        prune_ld(calls, missing_value=-1, window=3).kept, oracle(calls, 0.2, 3)
    )


def test_the_written_list(tmp_path):
    calls = copied_haplotypes(np.random.default_rng(2), 60, 40)
    found = prune_ld(labelled(calls))
    path = found.write(tmp_path / "kept.prune.in")
    assert path.read_text().split("\n") == [*found.ids.tolist(), ""]
    found.write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept.prune.in"]
    inside = found.write(tmp_path / "new" / "folder" / "kept.prune.in")
    assert inside.read_text() == path.read_text()


def test_the_step_is_a_tenth_of_the_window():
    calls = copied_haplotypes(np.random.default_rng(2), 60, 40)
    matrix = labelled(calls, np.full(40, "1"), np.arange(40) * 500)
    for window, step in ((500, 50), ("500", 50), (9, 1), ("3kb", 1)):
        found = prune_ld(matrix, window=window)
        assert found.settings["step"] == step
        np.testing.assert_array_equal(found.kept, prune_ld(matrix, window=window, step=step).kept)
    assert prune_ld(matrix).settings["window"] == 500


@pytest.mark.slow
def test_a_cluster_keeps_the_same(two_workers):
    calls = copied_haplotypes(np.random.default_rng(7), 100, 400, missing=0.01)
    here = prune_ld(labelled(calls), scheduler="threads")
    there = prune_ld(labelled(calls), scheduler=two_workers)
    np.testing.assert_array_equal(here.kept, there.kept)
    assert here.to_dict() == there.to_dict()


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"r2": 1.0}, "r2=1.0"),
        ({"r2": "0.2"}, "r2='0.2'"),
        ({"window": 1}, "window=1"),
        ({"window": "wide"}, "expected at least 2 variants"),
        ({"window": "50 kb"}, "needs the positions"),
        ({"window": 10, "step": 11}, "larger than window"),
        ({"step": 0}, "step=0"),
        ({"window": "1000kb", "step": 5}, "expected step=1"),
        ({"order": 3}, "order=3"),
    ],
)
def test_settings_that_cannot_be_met(more, words):
    with pytest.raises(InvalidInputError, match=words):
        prune_ld(np.zeros((4, 6), np.int8), **more)


def test_input_that_cannot_be_pruned():
    calls = np.random.default_rng(0).integers(0, 3, (10, 5)).astype(np.int8)
    with pytest.raises(InvalidInputError, match="do not lie together"):
        prune_ld(labelled(calls, ["1", "1", "2", "1", "1"]))
    with pytest.raises(InvalidInputError, match="do not increase"):
        prune_ld(labelled(calls, ["1"] * 5, [1, 5, 3, 7, 9]), window="1kb")
    with pytest.raises(InvalidInputError, match="at least 2 samples"):
        prune_ld(calls[:1])
    calls[3, 2] = 9
    with pytest.raises(InvalidInputError, match=r"feature 2 hold 9.*open\(X, missing_value=9\)"):
        prune_ld(calls)
    for odd in (calls / 2.0, calls.astype("i4") * 3):
        with pytest.raises(InvalidInputError, match="needs calls 0, 1 or 2"):
            prune_ld(odd, missing_value=-1)


def test_memory_is_planned():
    calls = np.zeros((50, 400), np.int8)
    plan = prune_ld(calls).plan
    assert plan.solver == "greedy scan"
    assert plan.passes[0].ordered
    assert plan.reads == prune_ld(calls).cost.reads
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        prune_ld(calls, memory_limit="100MiB")


def test_scans_neither_merge_nor_skip():
    calls = copied_haplotypes(np.random.default_rng(0), 20, 30)
    table = windows(np.full(30, "1"), None, 5, 1)
    scan = scanned(calls, [0, 10, 30], 0.2, table, 1)
    empty = scan.blank()
    empty.merge(scan)
    np.testing.assert_array_equal(empty.keep, scan.keep)
    assert not np.shares_memory(empty.keep, scan.keep)
    scan.merge(scan.blank())
    with pytest.raises(InvalidInputError, match="cannot be merged"):
        scan.merge(empty)
    matrix = labelled(calls).streamed(1, np.array([0, 10, 30]))
    with pytest.raises(InvalidInputError, match="blocks in order"):
        scan.blank().update(matrix.read_block(1))


# -- PLINK itself -------------------------------------------------------------------------------


def write_bed(path, calls, chromosome, position):
    """A PLINK 1 fileset: variant-major, two bits per call."""
    codes = np.array([3, 2, 0, 1], np.uint8)[calls.T]  # -1 picks the last
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4))).reshape(len(codes), -1, 4)
    packed = (padded << np.array([0, 2, 4, 6], np.uint8)).sum(axis=2).astype(np.uint8)
    path.with_suffix(".bed").write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
    rows = (f"{c}\trs{j}\t0\t{b}\tA\tC\n" for j, (c, b) in enumerate(zip(chromosome, position)))
    path.with_suffix(".bim").write_text("".join(rows))
    path.with_suffix(".fam").write_text("".join(f"f{i} s{i} 0 0 1 -9\n" for i in range(len(calls))))


def read_bed(path):
    """(calls (n, p), chromosome, position) of a fileset."""
    rows = [line.split() for line in path.with_suffix(".bim").read_text().splitlines()]
    n = len(path.with_suffix(".fam").read_text().splitlines())
    packed = np.fromfile(path.with_suffix(".bed"), np.uint8)[3:].reshape(len(rows), -1)
    codes = (packed[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    calls = np.array([2, -1, 1, 0], np.int8)[codes].reshape(len(rows), -1)[:, :n].T
    return calls, np.array([r[0] for r in rows]), np.array([int(r[3]) for r in rows])


@pytest.fixture(scope="module")
def plink2():
    """PLINK's kept variants by number, for each order of comparisons that it knows."""
    program = shutil.which("plink2")
    if program is None:
        pytest.skip("plink2 is not installed (Debian: apt-get install plink2)")
    ask = subprocess.run([program, "--help", "indep-order"], capture_output=True, text=True)
    orders = "--indep-order" in ask.stdout

    def kept(folder, fileset, window, step, r2):
        rows = fileset.with_suffix(".bim").read_text().splitlines()
        number = {row.split()[1]: j for j, row in enumerate(rows)}
        command = [
            program,
            "--bfile",
            str(fileset.with_suffix("")),
            "--autosome",
            "--threads",
            "1",
            "--out",
            str(folder / "plink"),
            "--indep-pairwise",
            str(window),
            str(step),
            str(r2),
        ]
        for order in (1, 2) if orders else (1,):  # Debian 12's knows the order of PLINK 1.9 only
            which = ["--indep-order", str(order)] if orders else []
            subprocess.run(command + which, check=True, capture_output=True)
            ids = (folder / "plink.prune.in").read_text().split()
            yield order, [number[name] for name in ids]

    return kept


@pytest.mark.parametrize("missing", [0.0, 0.08])
@pytest.mark.parametrize(
    ("window", "step", "r2"), [(50, 5, 0.2), (50, 1, 0.5), (7, 7, 0.1), ("20kb", 1, 0.2)]
)
def test_the_set_that_plink2_keeps(tmp_path, plink2, window, step, r2, missing):
    rng = np.random.default_rng(11)
    calls = copied_haplotypes(rng, 120, 1200, founders=20, missing=missing)
    chromosome, position = genome(rng, 1200, 9)
    write_bed(tmp_path / "simulated.bed", calls, chromosome, position)
    matrix = labelled(calls, chromosome, position)
    for order, theirs in plink2(tmp_path, tmp_path / "simulated.bed", window, step, r2):
        ours = prune_ld(matrix, window=window, step=step, r2=r2, order=order)
        np.testing.assert_array_equal(ours.kept, theirs)
        assert 0 < len(theirs) < 1170


THINNED = "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap"


@pytest.mark.parametrize("name", ["data", THINNED])
@pytest.mark.parametrize(("window", "step", "r2"), [(50, 5, 0.03), ("5000kb", 1, 0.02)])
def test_real_genotypes_as_plink2(tmp_path, shared_data, plink2, name, window, step, r2):
    fileset = shared_data / "hapmap3" / f"{name}.bed"
    calls, chromosome, position = read_bed(fileset)
    autosomal = np.char.isdigit(chromosome) & (chromosome.astype(int) <= 22)
    matrix = labelled(calls[:, autosomal], chromosome[autosomal], position[autosomal])
    for order, theirs in plink2(tmp_path, fileset, window, step, r2):
        ours = prune_ld(matrix, window=window, step=step, r2=r2, order=order)
        np.testing.assert_array_equal(np.flatnonzero(autosomal)[ours.kept], theirs)


# -- long-range LD ------------------------------------------------------------------------------


def test_regions_of_long_range_ld():
    chromosome = ["6", "6", "6", "8", "2", "2", "1", "X"]
    position = [24_999_999, 25_000_000, 35_000_000, 13_000_001, 136_608_646, 1, 48_000_000, 30]
    inside = in_long_range_ld(chromosome, position)
    assert inside.tolist() == [False, True, True, False, True, False, True, False]
    lactase = in_long_range_ld(["chr2", "chr2"], [135_851_076, 137_300_000], "GRCh38")
    assert lactase.tolist() == [True, False]
    np.testing.assert_array_equal(in_long_range_ld([6, 8], [3e7, 1e7], "hg19"), [True, True])
    assert in_long_range_ld([], []).shape == (0,)
    with pytest.raises(InvalidInputError, match="build=36"):
        in_long_range_ld(["1"], [5], 36)
    with pytest.raises(InvalidInputError, match="expected one each"):
        in_long_range_ld(["1", "2"], [5])


def test_the_table_of_regions():
    assert len(REGIONS) == 24
    for columns in ((1, 2), (3, 4)):
        rows = [(int(r[0]), r[columns[0]], r[columns[1]]) for r in REGIONS]
        assert rows == sorted(rows)
        assert all(start < stop for _, start, stop in rows)
        assert all(a[0] < b[0] or a[2] < b[1] for a, b in pairwise(rows))  # none overlap
    for _, start, stop, start38, stop38 in REGIONS:
        assert abs((stop38 - start38) - (stop - start)) < 1_200_000
