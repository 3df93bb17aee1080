"""PLINK 2 filesets: the calls of a .bed, dosages, forms of tables, and what is refused."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import struct
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from genotypes import random_calls, write_pgen, write_plink
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.cli import main
from streampca.errors import (
    IncompleteSourceWarning,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
)
from streampca.sources.genotypes import pgen
from streampca.sources.genotypes.dosages import hard_calls

pytest.importorskip("pgenlib")
PLINK2 = shutil.which("plink2")
needs_plink2 = pytest.mark.skipif(PLINK2 is None, reason="plink2 is not installed")


def values_of(matrix: Any) -> np.ndarray:
    return matrix.read(1, 0, matrix.shape[1])


def random_dosages(n: int, p: int, seed: int = 0, missing: float = 0.05) -> np.ndarray:
    """(n, p) float32 multiples of 1/16384, in part calls; NaN where missing."""
    rng = np.random.default_rng(seed)
    dosages = np.clip(rng.normal(rng.integers(0, 3, (n, p)), 0.1), 0, 2)
    dosages[rng.random((n, p)) < 0.3] = 1
    dosages[rng.random((n, p)) < missing] = np.nan
    return (np.rint(dosages * 16384) / 16384).astype(np.float32)


def plink2(folder: Path, *words: str) -> None:
    command = [str(PLINK2), *words, "--threads", "1", "--memory", "640"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- values ---------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 41),
    p=st.integers(1, 30),
    cuts=st.sets(st.integers(1, 29)),
    seed=st.integers(0, 9),
    axis=st.sampled_from([0, 1]),
    dosages=st.booleans(),
)
def test_any_shape_in_pieces_is_the_whole(tmp_path_factory, n, p, cuts, seed, axis, dosages):
    stem = tmp_path_factory.mktemp("p") / "p"
    expected = (random_dosages if dosages else random_calls)(n, p, seed, missing=0.2)
    path = write_pgen(stem, expected, dosages=expected if dosages else None)
    matrix = streampca.open(path, dosages=dosages)
    assert (matrix.shape, matrix.dtype) == ((n, p), expected.dtype)
    assert matrix.missing_value == (None if dosages else -1)
    edges = [0, *sorted(c for c in cuts if c < expected.shape[axis]), expected.shape[axis]]
    buffer = np.empty(4 * n * p, np.uint8)
    pieces = [np.array(matrix.read(axis, *cut, buffer)) for cut in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=axis), expected)


def test_a_thread_holds_one_reader_of_pgenlib(tmp_path):
    """Whatever the number of files: each holds the places of all its records."""
    calls = random_calls(9, 12)
    paths = [
        write_pgen(tmp_path / f"p{i}", calls, ids=[f"{i}:{j}" for j in range(12)]) for i in (0, 1)
    ]
    matrix = streampca.open(paths)
    for _ in range(2):
        np.testing.assert_array_equal(values_of(matrix), np.hstack([calls, calls]))
        np.testing.assert_array_equal(matrix.read(1, 0, 3), calls[:, :3])
    assert pgen._held.last[0]() is matrix.parts[0].reader
    del matrix
    gc.collect()
    assert not vars(pgen._held)  # and the file is closed


def test_values_lie_by_feature_in_the_buffer(tmp_path):
    calls = random_calls(13, 30)
    matrix = streampca.open(write_pgen(tmp_path / "p", calls))
    buffer = np.zeros(13 * 30, np.uint8)
    values = matrix.read(1, 3, 20, buffer)
    assert values.flags.f_contiguous
    assert np.shares_memory(values, buffer)
    assert matrix.chunk_edges(1) is None
    again = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(values_of(again), calls)
    assert again.fingerprint() == matrix.fingerprint()


def test_a_fit_has_the_bits_of_the_bed(tmp_path):
    calls = random_calls(60, 1500, missing=0.03)
    chromosomes = ["1"] * 700 + ["2"] * 700 + ["X"] * 100
    bed = write_plink(tmp_path / "b", calls, chromosomes=chromosomes)
    twin = write_pgen(tmp_path / "b", calls, chromosomes=chromosomes)
    settings = {"maf": 0.05, "max_missing": 0.05, "memory_limit": "400MiB"}
    one, other = (streampca.GenotypePCA(4, **settings).fit(path) for path in (bed, twin))
    for name in ("scores_", "components_", "eigenvalues_", "frequencies_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    blocks = [[step.edges.tolist() for step in model.plan_.passes] for model in (one, other)]
    assert blocks[0] == blocks[1]
    relatives = [streampca.kinship(path).kinship for path in (bed, twin)]
    np.testing.assert_array_equal(*relatives)
    pruned = [streampca.prune_ld(path, window=50).kept for path in (bed, twin)]
    np.testing.assert_array_equal(*pruned)


def test_dosages_are_standardised_as_numpy_does(tmp_path):
    dosages = random_dosages(40, 300)
    path = write_pgen(tmp_path / "d", dosages, dosages=dosages)
    model = streampca.GenotypePCA(3, maf=0.2, max_missing=0.06).fit(path)
    values = dosages.astype(float)
    frequency = np.nanmean(values, axis=0) / 2
    rare = np.minimum(frequency, 1 - frequency) < 0.2
    lost = np.isnan(values).mean(axis=0) > 0.06
    np.testing.assert_allclose(model.frequencies_, frequency, atol=1e-7)
    assert model.result_.filtered.tolist() == np.flatnonzero(rare | lost).tolist()
    z = (values - 2 * frequency) / np.sqrt(2 * frequency * (1 - frequency))
    z = np.nan_to_num(z[:, ~(rare | lost)])
    expected = np.linalg.eigvalsh(z @ z.T / z.shape[1])[::-1][:3]
    np.testing.assert_allclose(model.eigenvalues_, expected, rtol=1e-6)
    np.testing.assert_array_equal(model.result_.missing_by_sample, np.isnan(dosages).sum(axis=1))


def test_dosages_of_the_other_allele_are_turned(tmp_path):
    """In a projection; and the scores of a fit come back."""
    dosages = random_dosages(30, 200, missing=0)
    path = write_pgen(tmp_path / "d", dosages, dosages=dosages)
    turned = [("A", "G")] * 200
    other = write_pgen(tmp_path / "t", dosages, dosages=2 - dosages, alleles=turned)
    model = streampca.GenotypePCA(2).fit(path)
    for source in (path, other):
        found = streampca.project_samples(model, source)
        np.testing.assert_allclose(found.scores, model.scores_, atol=1e-4)
    np.testing.assert_allclose(model.transform(path), model.scores_, atol=1e-4)


def test_on_the_command_line(tmp_path, capsys):
    dosages = random_dosages(20, 60)
    path = write_pgen(tmp_path / "d", dosages, dosages=dosages)
    for words, kind in ((["--pfile", path[:-5], "vzs"], "float32"), ([path], "float32")):
        assert main(["plan", *words, "-k", "2"]) == 0
        assert f"20 samples x 60 features ({kind}" in capsys.readouterr().out
    assert main(["plan", path, "--no-dosages", "-k", "2"]) == 0
    said = capsys.readouterr().out
    assert "20 samples x 60 features (int8" in said
    assert "the dosages of the file are not read" in said
    calls = write_pgen(tmp_path / "c", random_calls(20, 60))
    assert main(["plan", calls, "--dosages", "-k", "2"]) == 0
    assert main(["plan", write_plink(tmp_path / "c", random_calls(20, 60)), "--dosages"]) != 0
    assert "leave dosages out" in capsys.readouterr().err


def test_kinship_and_pruning_take_the_calls(tmp_path):
    """Those that the file stores, also of a part, and of files that are joined."""
    dosages = random_dosages(20, 400)
    path = write_pgen(tmp_path / "d", dosages, dosages=dosages)
    matrix, calls = streampca.open(path), streampca.open(path, dosages=False)
    assert (matrix.dtype, calls.dtype) == (np.float32, np.int8)
    np.testing.assert_array_equal(values_of(calls), hard_calls(dosages))
    np.testing.assert_array_equal(
        values_of(streampca.open(matrix, dosages=False)), hard_calls(dosages)
    )
    other = write_pgen(tmp_path / "e", random_calls(20, 30), ids=[f"e{j}" for j in range(30)])
    both = streampca.open([path, other])
    assert both.dtype == np.float32
    np.testing.assert_array_equal(values_of(both.hard_calls())[:, 400:], random_calls(20, 30))
    whole = streampca.kinship(calls).kinship
    np.testing.assert_array_equal(streampca.kinship(path).kinship, whole)
    some = streampca.kinship(path, keep=["s1", "s5", "s7"]).kinship
    np.testing.assert_array_equal(some, whole[np.ix_([1, 5, 7], [1, 5, 7])])
    rare = np.nanmean(dosages.astype(float), axis=0) / 2
    common = np.flatnonzero(np.minimum(rare, 1 - rare) >= 0.45)
    found = streampca.kinship(path, maf=0.45)
    assert (found.n_variants, len(found.provenance["passes"])) == (len(common), 2)
    chosen = streampca.kinship(hard_calls(dosages)[:, common], missing_value=-1).kinship
    np.testing.assert_array_equal(found.kinship, chosen)


@needs_plink2
@pytest.mark.parametrize("seed", [0, 1])
def test_pruning_of_dosages_keeps_what_plink_keeps(seed, tmp_path):
    """Correlations are those of the calls, and the rarer of two is told by the dosages."""
    rng = np.random.default_rng(seed)
    copies = rng.binomial(2, rng.uniform(0.1, 0.9, 300), (50, 300)).astype(float)
    for j in np.flatnonzero(rng.random(299) < 0.6) + 1:
        alike = rng.random(50) < 0.85
        copies[alike, j] = copies[alike, j - 1]
    dosages = np.clip(copies + rng.normal(0, 0.06, copies.shape), 0, 2).astype(np.float32)
    dosages[rng.random(copies.shape) < 0.03] = np.nan
    path = write_pgen(tmp_path / "d", dosages, dosages=dosages)
    plink2(tmp_path, "--pfile", "d", "--indep-pairwise", "30", "3", "0.3", "--bad-ld")
    expected = (tmp_path / "plink2.prune.in").read_text().split()
    found = streampca.prune_ld(path, r2=0.3, window=30, step=3)
    assert found.ids.tolist() == expected
    assert len(found.before) == 1


def test_calls_of_dosages_are_those_of_plink():
    """As --hard-call-threshold 0.1: a dosage at the threshold is a call."""
    values = np.array([0, 0.1, 0.1001, 0.5, 0.8999, 0.9, 1.0, 1.5, 1.9, 2.0, np.nan], np.float32)
    assert hard_calls(values).tolist() == [0, 0, -1, -1, -1, 1, 1, -1, 2, 2, -1]


def test_dosages_of_a_source_without_any_are_refused(tmp_path):
    bed = write_plink(tmp_path / "b", random_calls(5, 9))
    for source in (bed, np.ones((3, 4)), streampca.open(bed)):
        with pytest.raises(InvalidInputError, match="leave dosages out"):
            streampca.open(source, dosages=True)
    path = write_pgen(tmp_path / "b", random_calls(5, 9))
    assert streampca.open(path).dtype == np.int8
    np.testing.assert_array_equal(
        np.nan_to_num(values_of(streampca.open(path, dosages=True)), nan=-1), random_calls(5, 9)
    )


# -- tables ---------------------------------------------------------------------------------------

ROWS = [("1", "11", "a", "A", "G"), ("chr2", "22", ".", "C", "T"), ("X", "33", "c", "AT", "A")]


def small(folder: Path, pvar: str = "", psam: str = "", bim: str = "", fam: str = "") -> str:
    """A .pgen of 3 samples x 3 variants with these tables."""
    path = write_pgen(folder / "t", random_calls(3, 3))
    for end, text in (("pvar", pvar), ("psam", psam), ("bim", bim), ("fam", fam)):
        if text:
            (folder / f"t.{end}").write_text(text)
    if bim:
        (folder / "t.pvar").unlink()
    if fam:
        (folder / "t.psam").unlink()
    return path


@pytest.mark.parametrize(
    "columns",
    [
        "CHROM POS ID REF ALT",
        "CHROM POS ID REF ALT QUAL FILTER INFO",
        "CHROM POS ID REF ALT CM",
        "headerless CHROM ID CM POS ALT REF",
        "headerless CHROM ID POS ALT REF",
        "bim CHROM ID CM POS ALT REF",
    ],
)
@pytest.mark.parametrize("held", [True, False])
def test_forms_of_the_pvar(columns, held, tmp_path, monkeypatch):
    if not held:
        monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    form, *names = columns.split() if "CHROM" not in columns.split()[0] else ["", *columns.split()]
    known = {"CHROM": 0, "POS": 1, "ID": 2, "REF": 3, "ALT": 4}
    other = {"QUAL": ".", "FILTER": "PASS", "INFO": "AF=0.1,0.2;DB", "CM": "0"}
    lines = ["\t".join(r[known[n]] if n in known else other[n] for n in names) for r in ROWS]
    if not form:
        head = "##fileformat=VCFv4.3\n##contig=<ID=1>\n#" + "\t".join(names)
        lines = [head, *lines]
    text = "\r\n".join(lines) + "\r\n"
    matrix = streampca.open(small(tmp_path, **{"bim" if form == "bim" else "pvar": text}))
    extra = matrix.labels.features.extra
    assert matrix.labels.features.names() == ["a", "2:22:T:C", "c"]
    found = [np.asarray(extra[n]).tolist() for n in ("chromosome", "position")]
    assert found == [["1", "2", "X"], [11, 22, 33]]
    found = [np.asarray(extra[n]).tolist() for n in ("counted_allele", "other_allele")]
    assert found == [["G", "T", "A"], ["A", "C", "AT"]]


@pytest.mark.parametrize("held", [True, False])
def test_a_compressed_pvar(held, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    if not held:
        monkeypatch.setattr("streampca.sources.genotypes.plink_tables.HELD", 0)
    monkeypatch.setattr("streampca.sources.genotypes.plink_tables.PIECE", 100)
    calls = random_calls(5, 950)
    path = write_pgen(tmp_path / "z", calls, chromosomes=["1"] * 500 + ["2"] * 450)
    plain = streampca.open(path).labels.features
    expected = [np.asarray(one) for one in (plain.names(), *plain.extra.values())]
    text = (tmp_path / "z.pvar").read_bytes()
    (tmp_path / "z.pvar").unlink()
    halves = [text[:5000], text[5000:]]  # PLINK may write several frames
    packed = b"".join(pa.compress(half, "zstd", asbytes=True) for half in halves)
    (tmp_path / "z.pvar.zst").write_bytes(packed)
    for source in (path, tmp_path / "z.pvar.zst"):
        found = streampca.open(source).labels.features
        assert held or found.nbytes > 1000  # the columns are held, compressed
        again = pickle.loads(pickle.dumps(found))
        for one in (found, again):
            for left, right in zip(expected, (one.names(), *one.extra.values()), strict=True):
                np.testing.assert_array_equal(left, np.asarray(right))
    (tmp_path / "z.pvar.zst").write_bytes(packed[:-40])
    with pytest.raises(SourceError, match=r"z\.pvar\.zst"):
        streampca.open(path)


@pytest.mark.parametrize(
    ("psam", "names", "extra"),
    [
        ("#FID\tIID\tSEX\nf\ta\t1\nf\tb\t2\ng\tc\tNA\n", "abc", ["family", "individual", "sex"]),
        ("##x\n#IID\tPHENO\na\t-9\nb\t1\nc\t2\n", "abc", []),
        ("#IID SID PAT MAT SEX\na 0 b c 0\nb 0 0 0 0\nc 0 0 0 0\n", "abc", ["father", "mother"]),
        ("f a 0 0 1 -9\nf b 0 0 2 -9\ng c 0 0 0 -9\n", "abc", ["family", "individual", "sex"]),
        ("f a 0 0 0\nf b 0 0 0\ng c 0 0 0\n", "abc", ["family", "individual"]),
        ("#IID\tSID\na\t1\na\t2\nb\t1\n", ["a:1", "a:2", "b:1"], ["source"]),
        ("#FID\tIID\nf\ta\ng\ta\ng\tb\n", ["f:a", "g:a", "g:b"], ["family", "individual"]),
    ],
)
def test_forms_of_the_psam(psam, names, extra, tmp_path):
    samples = streampca.open(small(tmp_path, psam=psam)).labels.samples
    assert samples.names() == list(names)
    assert sorted(samples.extra) == sorted(extra)
    if "sex" in extra:
        assert samples.extra["sex"].tolist() == ["male", "female", "unknown"]


def test_a_fam_stands_for_an_absent_psam(tmp_path):
    matrix = streampca.open(small(tmp_path, fam="f a 0 0 1 1\nf b 0 0 2 1\nf c 0 0 0 1\n"))
    assert matrix.labels.samples.names() == ["a", "b", "c"]
    assert [os.path.basename(path) for path in matrix.paths()] == ["t.pgen", "t.pvar", "t.fam"]


def test_several_alleles_are_refused_or_left_out(tmp_path):
    path = write_pgen(tmp_path / "m", random_calls(7, 5))
    pvar = (tmp_path / "m.pvar").read_text().replace("rs1\tA\tG", "rs1\tA\tG,T")
    (tmp_path / "m.pvar").write_text(pvar.replace("101\t", "-5\t") and pvar)
    with pytest.raises(InvalidInputError, match=r"1 of 5 .*1:101 A,G,T.*multiallelic='drop'"):
        streampca.open(path)
    matrix = streampca.open(path, multiallelic="drop")
    assert (matrix.shape, matrix.multiallelic) == ((7, 4), 1)
    np.testing.assert_array_equal(values_of(matrix), random_calls(7, 5)[:, [0, 2, 3, 4]])
    assert matrix.labels.features.names() == ["rs0", "rs2", "rs3", "rs4"]
    assert "1 of 5 variants have more than two alleles" in matrix.note


def test_negative_positions_are_left_out(tmp_path):
    dosages = random_dosages(7, 5)
    path = write_pgen(tmp_path / "m", dosages, dosages=dosages)
    pvar = (tmp_path / "m.pvar").read_text().replace("1\t103\t", "1\t-103\t")
    (tmp_path / "m.pvar").write_text(pvar)
    with pytest.warns(IncompleteSourceWarning, match="1 of 5 variants have a negative position"):
        matrix = streampca.open(path)
    np.testing.assert_array_equal(values_of(matrix), dosages[:, [0, 1, 2, 4]])
    np.testing.assert_array_equal(
        values_of(matrix.hard_calls()), hard_calls(dosages)[:, [0, 1, 2, 4]]
    )


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2, 3, 11, 14, 25, 60, -1])
@pytest.mark.parametrize("dosages", [True, False])
def test_truncated_files_are_refused_by_name(kept, dosages, tmp_path):
    values = (random_dosages if dosages else random_calls)(20, 50)
    path = write_pgen(tmp_path / "t", values, dosages=values if dosages else None)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:kept])
    with pytest.raises(SourceError, match=r"t\.pgen (is truncated|does not begin)"):
        streampca.open(path)
    Path(path).write_bytes(whole + b"x")
    with pytest.raises(SourceError, match=r"t\.pgen is longer than its header says"):
        streampca.open(path)


def damaged(whole: bytes, name: str) -> bytes:
    if name == "magic":
        return b"PK" + whole[2:]
    if name == "a .bed":
        return whole[:2] + b"\1" + whole[3:]
    if name == "a mode":
        return whole[:2] + b"\x55" + whole[3:]
    return whole[:12] + struct.pack("<Q", 1 << 60) + whole[20:]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("magic", "does not begin with the two bytes"),
        ("a .bed", r"is a \.bed of PLINK 1"),
        ("a mode", "layout byte 55"),
        ("a place", "is truncated"),
    ],
)
def test_other_files_are_refused(name, message, tmp_path):
    path = write_pgen(tmp_path / "t", random_calls(20, 50))
    Path(path).write_bytes(damaged(Path(path).read_bytes(), name))
    with pytest.raises(SourceError, match=rf"t\.pgen.*{message}"):
        streampca.open(path)


def test_tables_of_another_file_are_refused(tmp_path):
    path = write_pgen(tmp_path / "t", random_calls(9, 12))
    for end, what in (("pvar", "variants"), ("psam", "samples")):
        table = tmp_path / f"t.{end}"
        text = table.read_text()
        table.write_text(text + text.splitlines()[-1].replace("s8", "s9") + "\n")
        with pytest.raises(SourceError, match=rf"t\.pgen holds .* {what} and .*t\.{end} names"):
            streampca.open(path)
        table.write_text("\n".join(text.splitlines()[:-1]) + "\n")
        with pytest.raises(SourceError, match=rf"t\.pgen holds .* {what} and .*t\.{end} names"):
            streampca.open(path)
        table.write_text(text)
    for end in ("pvar", "psam"):
        (tmp_path / f"t.{end}").rename(tmp_path / "away")
        with pytest.raises(SourceError, match=rf"t\.{end}: no such file"):
            streampca.open(path)
        (tmp_path / "away").rename(tmp_path / f"t.{end}")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"pvar": "#CHROM\tPOS\tID\tREF\n1\t1\ta\tA\n"}, "names no ALT"),
        ({"pvar": "#CHROM\tPOS\tID\tREF\tALT\n1\tx\ta\tA\tG\n"}, "position .column 2. is not a"),
        ({"pvar": "#CHROM\tPOS\tID\tREF\tALT\n1\t1\ta\tA\n"}, r"line 1: 4 fields, a \.pvar has 5"),
        ({"pvar": "#CHROM\tPOS\tID\tREF\tALT\n"}, r"t\.pvar is empty"),
        ({"psam": "#FID\tSEX\nf\t1\n"}, "names no IID"),
        ({"psam": "#FID\tIID\nf\ta\nf\n"}, "sample 2: 1 fields"),
        ({"psam": "##x\n"}, r"t\.psam is empty"),
        ({"psam": "#IID\n"}, r"t\.psam names no sample"),
    ],
)
def test_damaged_tables_are_refused(tables, message, tmp_path):
    with pytest.raises(SourceError, match=message):
        streampca.open(small(tmp_path, **tables))


def test_a_damaged_record_is_refused_when_it_is_read(tmp_path):
    calls = random_calls(200, 40)
    calls[:, ::2] = 0
    calls[3, ::2] = 1  # a list of the few that differ
    path = write_pgen(tmp_path / "t", calls)
    raw = bytearray(Path(path).read_bytes())
    first = struct.unpack("<Q", raw[12:20])[0]
    raw[first : first + 3] = b"\xff\xff\xff"
    Path(path).write_bytes(raw)
    with pytest.raises(SourceError, match=r"t\.pgen, variants 0 to 39: damaged"):
        values_of(streampca.open(path))


def test_without_pgenlib_the_extra_is_named(tmp_path, monkeypatch):
    path = write_pgen(tmp_path / "t", random_calls(4, 5))
    monkeypatch.setitem(__import__("sys").modules, "pgenlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[pgen\]'"):
        streampca.open(path)


def test_fingerprints_know_the_file_and_what_is_read(tmp_path):
    dosages = random_dosages(7, 5)
    path = write_pgen(tmp_path / "m", dosages, dosages=dosages)
    matrix = streampca.open(path)
    assert streampca.open(path).fingerprint() == matrix.fingerprint()
    assert matrix.hard_calls().fingerprint() != matrix.fingerprint()
    before, stamp = matrix.fingerprint(), matrix.content_stamp()
    os.utime(tmp_path / "m.psam", (1, 1))
    assert matrix.content_stamp() != stamp
    os.utime(path, (1, 1))
    assert streampca.open(path).fingerprint() != before
