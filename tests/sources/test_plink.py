"""PLINK 1 filesets: what is read, how, and what is refused."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from genotypes import random_calls, sample_names, variant_names, write_plink
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError
from streampca.matrix import regular_edges
from streampca.passes import Candidate, PassSpec, choose
from streampca.store import MemorySink
from tests.passes.pass_matrices import by_hand, run


def values_of(matrix):
    return matrix.read(1, 0, matrix.shape[1])


@given(
    n=st.integers(1, 41),
    p=st.integers(1, 30),
    cuts=st.sets(st.integers(1, 29)),
    seed=st.integers(0, 9),
    axis=st.sampled_from([0, 1]),
)
def test_any_shape_in_pieces_is_the_whole(tmp_path_factory, n, p, cuts, seed, axis):
    """Also where n is not a multiple of 4."""
    calls = random_calls(n, p, seed, missing=0.2)
    matrix = streampca.open(write_plink(tmp_path_factory.mktemp("b") / "b", calls))
    assert (matrix.shape, matrix.dtype, matrix.missing_value) == ((n, p), np.int8, -1)
    edges = [0, *sorted(c for c in cuts if c < calls.shape[axis]), calls.shape[axis]]
    buffer = np.empty(n * p, np.uint8)
    pieces = [np.array(matrix.read(axis, *cut, buffer)) for cut in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=axis), calls)


def test_the_first_allele_is_counted(tmp_path):
    """PLINK 1.9's two bits: 00 homozygous A1, 01 missing, 10 heterozygous, 11 homozygous A2."""
    write_plink(tmp_path / "b", np.zeros((5, 1), np.int8), alleles=[("G", "A")])
    packed = bytes([0b11_10_01_00, 0b10])
    (tmp_path / "b.bed").write_bytes(b"\x6c\x1b\x01" + packed)
    matrix = streampca.open(tmp_path / "b.bed")
    assert values_of(matrix)[:, 0].tolist() == [2, -1, 1, 0, 1]
    assert matrix.labels.features.extra["counted_allele"].tolist() == ["G"]
    assert matrix.labels.features.extra["other_allele"].tolist() == ["A"]


def test_labels(tmp_path):
    calls = random_calls(3, 4)
    ids = ["rs1", ".", "rs3", "rs4"]
    chromosomes = ["chr1", "23", "26", "22"]
    matrix = streampca.open(
        write_plink(
            tmp_path / "b", calls, ids=ids, chromosomes=chromosomes, families=["f", "f", "g"]
        )
    )
    assert matrix.labels.samples.names() == ["s0", "s1", "s2"]
    assert matrix.labels.samples.extra["family"].tolist() == ["f", "f", "g"]
    assert matrix.labels.features.names() == ["rs1", "23:101:G:A", "rs3", "rs4"]
    extra = matrix.labels.features.extra
    assert extra["chromosome"].tolist() == ["1", "23", "26", "22"]
    assert extra["position"].tolist() == [100, 101, 102, 103]
    repeated = streampca.open(
        write_plink(tmp_path / "c", calls, samples=["1", "1", "2"], families=["f", "g", "g"])
    )
    assert repeated.labels.samples.names() == ["f:1", "g:1", "g:2"]


def test_blocks_lie_by_feature_in_the_buffer(tmp_path):
    calls = random_calls(13, 30)
    matrix = streampca.open(write_plink(tmp_path / "b", calls))
    assert matrix.chunk_edges(1) is None
    buffer = np.zeros(13 * 30, np.uint8)
    values = matrix.read(1, 3, 20, buffer)
    assert values.flags.f_contiguous
    assert np.shares_memory(values, buffer)
    np.testing.assert_array_equal(matrix.read(1, 3, 20, np.empty(3, np.uint8)), calls[:, 3:20])


def test_counts(tmp_path):
    matrix = streampca.open(write_plink(tmp_path / "b", random_calls(13, 30)))
    matrix.read(1, 0, 10)
    matrix.read(1, 10, 30)
    count = matrix.reads()
    assert (count.chunks, count.nbytes, count.stored) == (2, 13 * 30, 4 * 30)
    matrix.restart_counts()
    assert matrix.reads().chunks == 0
    assert matrix.read_scratch_nbytes(1, 10) == 40
    assert matrix.count_chunks(1, 0, 10) == 1


def folded(matrix, step, lanes=2):
    """All values as a pass writes them, from several threads."""
    spec = PassSpec("copy", 1, 0, 0)
    plan = choose(matrix, "copy", [Candidate("copy", "", (spec,))]).plan.passes[0]
    object.__setattr__(plan, "edges", regular_edges(matrix.shape[1], step))
    object.__setattr__(plan, "span", 2)
    sink = MemorySink(matrix.shape[1], matrix.shape[0], np.int8)
    run(
        plan,
        matrix,
        maps={"x": lambda block: block.values.T},
        sinks={"x": sink},
        execution=by_hand(lanes, 1, "threads"),
    )
    return sink.values.T


def test_read_by_several_threads_at_once(tmp_path):
    calls = random_calls(50, 2000)
    matrix = streampca.open(write_plink(tmp_path / "b", calls))
    np.testing.assert_array_equal(folded(matrix, 37), calls)


def test_pickled_it_reads_the_same(tmp_path):
    calls = random_calls(9, 20)
    matrix = streampca.open(write_plink(tmp_path / "b", calls))
    matrix.read(1, 0, 5)
    again = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(values_of(again), calls)
    assert again.fingerprint() == matrix.fingerprint()


def test_fingerprints_know_the_file(tmp_path):
    path = write_plink(tmp_path / "b", random_calls(9, 20))
    before = streampca.open(path).fingerprint()
    assert streampca.open(path).fingerprint() == before
    os.utime(path, (1, 1))
    assert streampca.open(path).fingerprint() != before
    stem = str(tmp_path / "b")
    assert streampca.open(path).paths() == (f"{stem}.bed", f"{stem}.bim", f"{stem}.fam")


# -- several filesets -------------------------------------------------------------------------


def chromosomes(folder, calls, numbers=(1, 2, 10)):
    """Filesets chr1, chr2, chr10 of calls, in near-equal parts."""
    cuts = np.linspace(0, calls.shape[1], len(numbers) + 1).astype(int)
    for number, (a, b) in zip(numbers, pairwise(cuts), strict=True):
        names = variant_names(b - a, a)
        write_plink(
            folder / f"chr{number}", calls[:, a:b], ids=names, chromosomes=[str(number)] * (b - a)
        )
    return [f"{folder}/chr{number}.bed" for number in numbers]


def test_several_filesets_are_one_matrix(tmp_path):
    calls = random_calls(11, 50)
    paths = chromosomes(tmp_path, calls)
    whole = streampca.open(write_plink(tmp_path / "all", calls))
    for source in (paths, str(tmp_path / "chr*.bed"), [p[:-4] + ".bim" for p in paths]):
        matrix = streampca.open(source)
        assert matrix.labels.features.names() == whole.labels.features.names()
        np.testing.assert_array_equal(values_of(matrix), calls)
        for start, stop in ((0, 50), (10, 20), (16, 17), (30, 50)):
            np.testing.assert_array_equal(matrix.read(1, start, stop), calls[:, start:stop])
        np.testing.assert_array_equal(matrix.read(0, 2, 5), calls[2:5])
        np.testing.assert_array_equal(folded(matrix, 7), calls)
    assert matrix.labels.features.extra["chromosome"].tolist() == [
        *["1"] * 16,
        *["2"] * 17,
        *["10"] * 17,
    ]
    backwards = streampca.open(paths[::-1])
    assert backwards.labels.features.name(0) == "rs33", "a list keeps its order"
    fits = [streampca.PCA(3, scale="hwe", missing="mean").fit(m) for m in (whole, paths)]
    np.testing.assert_array_equal(fits[0].components_, fits[1].components_)


def test_filesets_that_do_not_belong_together(tmp_path):
    calls = random_calls(6, 9)
    paths = chromosomes(tmp_path, calls)
    with pytest.raises(SourceError, match=r"chr3\.fam: no such file"):
        streampca.open([*paths, f"{tmp_path}/chr3.bed"])
    Path(tmp_path / "chr2.bim").unlink()
    with pytest.raises(SourceError, match=r"chr2\.bim: no such file; a PLINK fileset is"):
        streampca.open(str(tmp_path / "chr*.bed"))
    chromosomes(tmp_path, calls)
    Path(paths[1]).unlink()
    with pytest.raises(SourceError, match=r"chr2\.bed: no such file"):
        streampca.open(paths)
    with pytest.raises(SourceError, match="no file matches"):
        streampca.open(str(tmp_path / "x*.bed"))
    with pytest.raises(InvalidInputError, match="named twice"):
        streampca.open([paths[0], paths[0]])
    write_plink(tmp_path / "other", calls[:5], ids=variant_names(9, 100))
    with pytest.raises(SourceError, match="6 and 5 samples"):
        streampca.open([paths[0], f"{tmp_path}/other.bed"])
    people = [*sample_names(6)[:5], "z"]
    write_plink(tmp_path / "other", calls, ids=variant_names(9, 100), samples=people)
    with pytest.raises(SourceError, match="sample 6 is s5:s5 in one and z:z in the other"):
        streampca.open([paths[0], f"{tmp_path}/other.bed"])
    write_plink(tmp_path / "same", calls)
    with pytest.raises(InvalidInputError, match="3 variants lie in two of the files"):
        streampca.open([paths[0], f"{tmp_path}/same.bed"])


def test_a_number_left_out_of_a_pattern_is_named(tmp_path):
    calls = random_calls(6, 9)
    chromosomes(tmp_path, calls, (1, 2, 4))
    with pytest.warns(IncompleteSourceWarning, match=r"3 files from 1 to 4 .*chr\*.bed, without 3"):
        streampca.open(str(tmp_path / "chr*.bed"))
    streampca.open([f"{tmp_path}/chr{i}.bed" for i in (1, 2, 4)])
    for numbers in ((1, 3, 5), (1, 22), (1990, 2000, 2001)):  # steps, and too far apart to tell
        (tmp_path / str(numbers)).mkdir()
        chromosomes(tmp_path / str(numbers), calls, numbers)
        streampca.open(str(tmp_path / str(numbers) / "chr*.bed"))


# -- what is refused --------------------------------------------------------------------------


@pytest.fixture
def bed(tmp_path):
    """A fileset of 7 samples and 5 variants: 2 bytes a variant."""
    return Path(write_plink(tmp_path / "b", random_calls(7, 5)))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\x6c\x1b\x01" + bytes(9), "truncated: 12 bytes, expected 13"),
        (b"\x6c\x1b\x01" + bytes(11), r"longer than its .bim and .fam say: 14 bytes"),
        (b"\x6c\x1c\x01" + bytes(10), "does not begin with the two bytes .* got 6c 1c"),
        (b"", "got nothing"),
        (b"\x6c\x1b\x00" + bytes(10), "sample-major, .* plink1.9 --bfile .*b --make-bed"),
        (b"\x6c\x1b\x02" + bytes(10), "layout byte 02; expected 01"),
        (b"\x6c\x1b", "layout byte absent"),
    ],
)
def test_a_damaged_bed(bed, content, match):
    bed.write_bytes(content)
    with pytest.raises(SourceError, match=match):
        streampca.open(bed)


def test_a_bed_that_is_cut_after_it_was_opened(bed):
    matrix = streampca.open(bed)
    os.truncate(bed, 9)
    np.testing.assert_array_equal(matrix.read(1, 0, 3).shape, (7, 3))
    with pytest.raises(SourceError, match="ends 2 bytes before variant 3 does"):
        matrix.read(1, 2, 4)
    bed.unlink()
    with pytest.raises(SourceError, match="No such file"):
        matrix.read(1, 0, 1)


def test_tables_of_another_length(bed):
    bim, fam = bed.with_suffix(".bim"), bed.with_suffix(".fam")
    rows, people = bim.read_text(), fam.read_text()
    bim.write_text(rows + "1\trs9\t0\t9\tA\tG\n")
    with pytest.raises(SourceError, match=r"truncated: 13 bytes, expected 15 \(3 \+ 6 variants"):
        streampca.open(bed)
    bim.write_text(rows)
    fam.write_text(people + "f a 0 0 0 -9\nf b 0 0 0 -9\n")
    with pytest.raises(SourceError, match="5 variants x 3 bytes"):
        streampca.open(bed)
    for path, text in ((bim, rows), (fam, people)):
        fam.write_text(people)
        path.write_text("")
        with pytest.raises(SourceError, match="is empty"):
            streampca.open(bed)
        path.write_text(text)


@pytest.mark.parametrize("n", [57, 58, 59, 60])
def test_a_fam_with_fewer_lines_in_the_same_bytes(tmp_path, n):
    path = Path(write_plink(tmp_path / "b", random_calls(60, 300)))
    fam = path.with_suffix(".fam")
    fam.write_text("".join(f"f s{i} 0 0 0 -9\n" for i in range(n)))
    if n == 60:
        assert streampca.open(path).shape == (60, 300)
        return
    with pytest.raises(SourceError, match=rf"behind the last of {n} samples .*b\.fam names"):
        streampca.open(path)


@pytest.mark.parametrize(
    ("suffix", "line", "match"),
    [
        (".bim", "1\trs2\t0\t100\tA", r"b\.bim, line 3: 5 fields, a \.bim has 6"),
        (".bim", "1\trs2\t0\t1e5x\tA\tG", r"b\.bim: a position .* is not a number"),
        (".bim", "1\trs2\t0\t100\tA,T\tG", r"more than two alleles \(rs2\).*--max-alleles 2"),
        (".bim", "1\trs2\t0\t100\tA\tG,C", r"1 variants have more than two alleles"),
        (".fam", "f s2 0 0 0", r"b\.fam, line 3: 5 fields, a \.fam has 6"),
        (".fam", "s0 s0 0 0 0 -9", r"1 sample ids occur more than once \(s0:s0\)"),
    ],
)
def test_lines_that_are_wrong(bed, suffix, line, match):
    path = bed.with_suffix(suffix)
    rows = path.read_text().splitlines()
    rows[2] = line
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises((SourceError, InvalidInputError), match=match):
        streampca.open(bed)


def test_nothing_is_written_where_a_source_is_refused(bed, tmp_path):
    from streampca.operations.convert import convert

    bed.write_bytes(bed.read_bytes()[:-1])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SourceError, match="truncated"):
        convert(bed, tmp_path / "out.zarr", progress=False)
    assert sorted(tmp_path.iterdir()) == before


def test_a_ped_gets_the_command_that_converts_it(tmp_path):
    (tmp_path / "x.ped").touch()
    with pytest.raises(SourceError, match=r"plink1\.9 --file .*x --make-bed"):
        streampca.open(tmp_path / "x.ped")


def test_a_matrix_that_was_opened_takes_a_missing_code_once(tmp_path):
    matrix = streampca.open(np.array([[0, 1], [9, 2], [1, 1]], dtype=np.int8))
    coded = streampca.open(matrix, missing_value=9)
    assert coded.missing_value == 9
    assert matrix.missing_value is None
    assert streampca.open(coded) is coded
    with pytest.raises(InvalidInputError, match="contradicts"):
        streampca.open(coded, missing_value=-1)
    with pytest.raises(InvalidInputError, match="opened already"):
        streampca.open(matrix, dim=1)


@pytest.mark.parametrize("cut", [None, 20])
def test_variants_with_a_negative_position_are_left_out_as_by_plink(tmp_path, cut):
    """Also where their names repeat those of others: that is what the mark is used for."""
    calls = random_calls(13, 40)
    ids = variant_names(40)
    ids[3] = ids[30] = ids[5]
    parts = [slice(None)] if cut is None else [slice(0, cut), slice(cut, None)]
    paths = []
    for i, part in enumerate(parts):
        path = write_plink(tmp_path / f"b{i}", calls[:, part], ids=ids[part])
        bim = [line.split() for line in Path(path[:-3] + "bim").read_text().splitlines()]
        for j, row in zip(range(*part.indices(40)), bim, strict=True):
            row[3] = str(-7 if j in (3, 30) else 0 if j == 8 else j)
        Path(path[:-3] + "bim").write_text("".join("\t".join(row) + "\n" for row in bim))
        paths.append(path)
    with pytest.warns(IncompleteSourceWarning, match="2 of 40 variants have a negative .*: rs5"):
        matrix = streampca.open(paths)
    kept = np.delete(np.arange(40), [3, 30])
    np.testing.assert_array_equal(values_of(matrix), calls[:, kept])
    assert matrix.labels.features.names() == [ids[j] for j in kept]
    assert matrix.missing_value == -1
    assert matrix.labels.features.extra["position"][7] == 0
    with pytest.warns(IncompleteSourceWarning):
        model = streampca.GenotypePCA(3).fit(paths)
    assert model.n_features_in_ == 38
    bim = Path(paths[0][:-3] + "bim")
    bim.write_text("".join(f"1 v{j} 0 -{j + 1} A G\n" for j in range(cut or 40)))
    if cut is None:
        with pytest.raises(SourceError, match="all 40 positions are negative"):
            streampca.open(paths)
