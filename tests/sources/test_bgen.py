"""BGEN: probabilities become dosages and calls; what does not belong together is refused."""

from __future__ import annotations

import pickle
import shutil
import sqlite3
import struct
import subprocess
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca.cli import main
from streampca.cli.plink_options import as_ours
from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.kernels.probabilities import copies_of
from streampca.sources.genotypes import bgen_index
from streampca.sources.genotypes.bgen import as_they_are
from streampca.sources.genotypes.dosages import hard_calls
from tests.genotypes import (
    certain,
    random_calls,
    sample_names,
    variant_names,
    write_bgen,
    write_plink,
)

PLINK2 = shutil.which("plink2")
needs_plink2 = pytest.mark.skipif(PLINK2 is None, reason="plink2 is not installed")
FITTED = ("scores_", "eigenvalues_", "components_", "frequencies_")


def values_of(matrix):
    return matrix.read(1, 0, matrix.shape[1])


def stored_block(values, ploidy, bits, phased):
    """An uncompressed genotype block of these stored probabilities, by the specification."""
    n = len(ploidy)
    whole = "".join(f"{int(v):0{bits}b}"[::-1] for v in values)
    packed = [int(whole[i : i + 8][::-1], 2) for i in range(0, len(whole), 8)]
    head = struct.pack("<IHBB", n, 2, 1, 2) + bytes(ploidy) + bytes([phased, bits])
    return np.frombuffer(head + bytes(packed), np.uint8)


@given(n=st.integers(1, 9), bits=st.integers(1, 32), phased=st.booleans(), seed=st.integers(0, 99))
def test_any_probabilities_are_copies_of_an_allele(n, bits, phased, seed):
    """Against the specification, sample by sample, in exact integers."""
    rng = np.random.default_rng(seed)
    top, values, copies = (1 << bits) - 1, [], np.zeros(n)
    ploidy = rng.choice([2, 2, 1, 130, 129], n)
    for i in range(n):
        if ploidy[i] & 63 == 1:
            values.append(int(rng.integers(0, top + 1)))
            copies[i] = 2 * values[-1] / top
        else:
            a = int(rng.integers(0, top + 1))
            b = int(rng.integers(0, top + 1 - (0 if phased else a)))
            values += [a, b]
            copies[i] = (a + b if phased else 2 * a + b) / top
    copies[ploidy >= 128] = np.nan
    block = stored_block(values, ploidy.tolist(), bits, phased)
    found, called = np.empty(n, np.float32), np.empty(n, np.int8)
    copies_of(block, n, True, as_they_are, found)
    np.testing.assert_allclose(found, copies, rtol=0, atol=1.2e-7)
    copies_of(block, n, False, as_they_are, found)
    np.testing.assert_allclose(found, 2 - copies, rtol=0, atol=1.2e-7)
    copies_of(block, n, False, hard_calls, called)
    np.testing.assert_array_equal(called, hard_calls(found))


@pytest.mark.parametrize(("bits", "far"), [(8, 26), (16, 6554)])
def test_a_call_is_within_a_tenth(bits, far):
    top = (1 << bits) - 1
    steps = [0, far - 1, far, top - far, top - far + 1, top]
    block = stored_block([x for b in steps for x in (0, b)], [2] * 6, bits, False)
    called = np.empty(6, np.int8)
    copies_of(block, 6, True, hard_calls, called)
    assert called.tolist() == [0, 0, -1, -1, 1, 1]


def test_blocks_that_say_something_else_are_refused():
    out = np.empty(2, np.float32)

    def copies(values, ploidy=(2, 2), bits=8, phased=0):
        copies_of(stored_block(values, ploidy, bits, phased), len(ploidy), False, as_they_are, out)

    for ploidy in [(2, 3), (2, 0)]:
        with pytest.raises(InvalidInputError, match="copies; expected 1 or 2"):
            copies([0] * 5, ploidy)
    with pytest.raises(DamagedSourceError, match="add up to more than 1"):
        copies([0, 0, 200, 100])
    copies([0, 0, 200, 100], phased=1)
    for values in ([0] * 3, [0] * 5):
        for bits in (8, 16, 12):
            with pytest.raises(DamagedSourceError, match="another length"):
                copies(values, bits=bits)
    for wrong in ({"phased": 2}, {"bits": 33}):
        with pytest.raises(DamagedSourceError, match="expected 0 or 1, and 1 to 32"):
            copies([0] * 4, **wrong)
    with pytest.raises(DamagedSourceError, match="not those of all samples"):
        copies_of(stored_block([0] * 6, [2] * 3, 8, 0), 2, False, as_they_are, out)


@pytest.mark.parametrize("compression", [None, "zlib", "zstd"])
@pytest.mark.parametrize("indexed", [True, False])
def test_calls_are_those_of_the_bed(tmp_path, compression, indexed):
    calls = random_calls(23, 70)
    path = write_bgen(tmp_path / "x", certain(calls), compression=compression, index=indexed)
    bed = streampca.open(write_plink(tmp_path / "x", calls))
    dosages, called = streampca.open(path), streampca.open(path, dosages=False)
    assert (dosages.dtype, called.dtype, called.missing_value) == (np.float32, np.int8, -1)
    assert ("its headers were scanned" in dosages.note) == (not indexed)
    np.testing.assert_array_equal(values_of(dosages), np.where(calls < 0, np.nan, calls))
    buffer, cuts = np.empty(calls.size, np.uint8), [0, 1, 40, 70]
    pieces = [np.array(called.read(1, *cut, buffer)) for cut in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), calls)
    part = pickle.loads(pickle.dumps(called.part(1, 30, 60)))
    np.testing.assert_array_equal(part.read(1, 35, 55), calls[:, 35:55])
    assert part.fingerprint() == called.fingerprint() != dosages.fingerprint()
    assert called.labels.features.names() == bed.labels.features.names()
    for name, values in bed.labels.features.extra.items():
        np.testing.assert_array_equal(called.labels.features.extra[name], values)
    assert called.labels.samples.names() == bed.labels.samples.names()
    assert str(tmp_path / "x.bgen") in called.paths()


def test_either_allele_may_be_the_reference(tmp_path):
    calls = random_calls(9, 12)
    path = write_bgen(tmp_path / "x", certain(2 - calls, calls < 0), alleles=("G", "A"))
    matrix = streampca.open(path, dosages=False, reference_allele="last")
    np.testing.assert_array_equal(values_of(matrix), calls)
    assert matrix.labels.features.extra["counted_allele"].tolist() == ["G"] * 12
    assert matrix.labels.features.extra["other_allele"].tolist() == ["A"] * 12
    with pytest.raises(InvalidInputError, match="expected first or last"):
        streampca.open(path, reference_allele="second")
    bed = write_plink(tmp_path / "x", calls)
    with pytest.raises(InvalidInputError, match=r"x\.bed takes none; leave sample_file= out"):
        streampca.open(bed, sample_file="x.sample")


def test_the_words_of_plink_name_the_reference():
    for word, meant in (("ref-first", "first"), ("ref-last", "last"), ("ref-unknown", "last")):
        ours = as_ours(["fit", "--bgen", "x.bgen", word, "-k", "2"])
        assert ours == ["fit", "--bgen", "x.bgen", "--reference-allele", meant, "-k", "2"]
        assert as_ours(["fit", word]) == ["fit", word]
    assert as_ours(["--vcf", "x.vcf", "dosage=DS"]) == ["--vcf", "x.vcf", "--dosages"]


def test_a_table_of_many_variants_is_read_on_demand(tmp_path, monkeypatch):
    calls = random_calls(4, 50)
    chromosomes = ["1"] * 20 + ["chrX"] * 30
    options = {"chromosomes": chromosomes, "ids": [f"r{j}" if j % 3 else "." for j in range(50)]}
    path = write_bgen(tmp_path / "x", certain(calls), **options)
    held = streampca.open(path).labels.features
    monkeypatch.setattr(bgen_index, "HELD", 10)
    lazy = streampca.open(path).labels.features
    assert not isinstance(lazy.extra["position"], np.ndarray)
    assert lazy.names() == held.names()
    assert lazy.names()[:2] == ["1:100:G:A", "r1"]
    for name, values in held.extra.items():
        np.testing.assert_array_equal(np.asarray(lazy.extra[name]), values)
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(SourceError, match=r"x\.bgen has changed since it was opened"):
        pickle.loads(pickle.dumps(lazy)).names()


def test_components_and_kinship_are_those_of_the_bed(tmp_path):
    calls = random_calls(30, 90)
    bed = streampca.open(write_plink(tmp_path / "x", calls))
    bgen = streampca.open(write_bgen(tmp_path / "x", certain(calls)))
    variants = streampca.VariantFilter(extract=variant_names(80, 5))
    options = {"maf": 0.1, "keep": sample_names(29), "variants": variants, "progress": False}
    models = [
        streampca.GenotypePCA(2, **options).fit(one) for one in (bed, bgen.hard_calls(), bgen)
    ]
    for name in FITTED:
        one, same, close = (getattr(model, name) for model in models)
        np.testing.assert_array_equal(one, same, name)
        np.testing.assert_allclose(close, one, atol=1e-4, err_msg=name)
    related = [streampca.kinship(one, progress=False).kinship for one in (bed, bgen)]
    np.testing.assert_array_equal(*related)
    pruned = [streampca.prune_ld(one, r2=0.3, progress=False).kept for one in (bed, bgen)]
    np.testing.assert_array_equal(*pruned)


@pytest.mark.slow
def test_everything_done_with_a_bed_is_done_with_a_bgen(tmp_path, capsys):
    """Filters, pruning, kinship, fit, projection and a plan: bit for bit the same."""
    calls = random_calls(40, 300, missing=0.03)
    calls[:, 250:] = calls[:, 200:250]  # in linkage
    bed = write_plink(tmp_path / "x", calls)
    bgen = write_bgen(tmp_path / "x", certain(calls))
    write_samples(tmp_path / "x.sample", [(s, s, 0, "NA") for s in sample_names(40)])
    (tmp_path / "keep").write_text("\n".join(sample_names(40)[3:]))
    (tmp_path / "extract").write_text("\n".join(variant_names(290)))
    found = {}
    for name, source in (("bed", [bed]), ("bgen", [bgen, "--no-dosages"])):
        folder = tmp_path / name
        folder.mkdir()
        filters = ["--keep", str(tmp_path / "keep"), "--extract", str(tmp_path / "extract")]
        model, out = str(folder / "model"), str(folder / "x")
        words = [*source, "-k", "2", *filters, "--maf", "0.05", "--ld-r2", "0.3", "--geno", "0.1"]
        assert main(["fit", *words, "-o", model, "--out", out, "-q"]) == 0
        assert main(["relate", *source, "-o", out, "--make-king-table", "--mind", "0.5"]) == 0
        assert main(["project", model, *source, "-o", f"{out}.tsv"]) == 0
        assert main(["plan", *source, "-k", "2", "--scale", "hwe"]) == 0
        capsys.readouterr()
        files = sorted(path for path in folder.iterdir() if path.is_file())
        found[name] = {path.name: path.read_text() for path in files}
        fitted = streampca.load(model)
        found[name] |= {one: getattr(fitted, one) for one in FITTED}
    assert len(found["bed"]) > 8
    assert found["bed"].keys() == found["bgen"].keys()
    for name, value in found["bed"].items():
        np.testing.assert_array_equal(value, found["bgen"][name], name)


def test_dosages_are_fitted(tmp_path):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.3, 0.3, 0.3], (60, 25))
    path = write_bgen(tmp_path / "x", probabilities, bits=16)
    stored = np.round(probabilities * 65535) / 65535
    copies = stored[..., 1] + 2 * (1 - stored[..., 0] - stored[..., 1])
    dosages = values_of(streampca.open(path))
    np.testing.assert_allclose(dosages, copies.T, atol=4e-5)
    model = streampca.GenotypePCA(2, progress=False).fit(path)
    x = dosages.astype(np.float64)
    f = x.mean(axis=0) / 2
    z = (x - 2 * f) / np.sqrt(2 * f * (1 - f))
    values, vectors = np.linalg.eigh(z @ z.T / x.shape[1])
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:2], rtol=1e-6)
    assert np.abs(np.sum(model.eigenvectors_ * vectors[:, ::-1][:, :2], axis=0)).min() > 1 - 1e-9


def test_files_of_chromosomes_are_joined(tmp_path):
    calls = random_calls(8, 30)
    for i, part in enumerate((calls[:, :10], calls[:, 10:])):
        ids = variant_names(part.shape[1], 10 * i)
        write_bgen(tmp_path / f"chr{i + 1}", certain(part), ids=ids)
    matrix = streampca.open(str(tmp_path / "chr*.bgen"), dosages=False)
    np.testing.assert_array_equal(values_of(matrix), calls)
    write_bgen(tmp_path / "chr3", certain(calls), samples=["x", *sample_names(8)[1:]])
    with pytest.raises(SourceError, match="sample 1 is s0 in one and x in the other"):
        streampca.open(str(tmp_path / "chr*.bgen"))


# -- samples ----------------------------------------------------------------------------------


def write_samples(path, rows, head="ID_1 ID_2 missing sex", types="0 0 0 D"):
    lines = [head, types, *(" ".join(map(str, row)) for row in rows)]
    Path(path).write_text("\n".join(lines) + "\n")


def test_sample_files(tmp_path):
    calls = random_calls(3, 4)
    path = write_bgen(tmp_path / "x", certain(calls), samples=False)
    with pytest.raises(SourceError, match=r"x\.sample does not exist; name.*sample_file="):
        streampca.open(path)
    other = tmp_path / "ukb.sample"
    write_samples(other, [("f", f"i{j}", 0, 1) for j in range(3)])
    named = streampca.open(path, sample_file=str(other)).labels.samples
    assert named.names() == ["i0", "i1", "i2"]
    assert named.extra["family"].tolist() == ["f"] * 3
    parents = "ID_1 ID_2 missing father mother sex"
    rows = [("f", "i0", 0, "i1", "i2", 1), ("f", "i1", 0, 0, 0, 1), ("f", "i2", 0, 0, 0, 2)]
    write_samples(tmp_path / "x.sample", rows, parents, "0 0 0 D D D")
    assert streampca.open(path).labels.samples.extra["father"].tolist() == ["i1", "0", "0"]
    write_samples(tmp_path / "x.sample", [("a", 1), ("b", 2), ("c", 1)], "ID sex", "0 D")
    assert streampca.open(path).labels.samples.names() == ["a", "b", "c"]
    write_samples(tmp_path / "x.sample", [("0", f"i{j}", 0, 1) for j in range(4)])
    with pytest.raises(SourceError, match=r"x\.sample names 4 samples, and .*x\.bgen has 3"):
        streampca.open(path)
    for text, match in (("", "no sample file"), ("ID_1 ID_2\na b\n", "no sample file")):
        (tmp_path / "x.sample").write_text(text)
        with pytest.raises(SourceError, match=match):
            streampca.open(path)
    write_samples(tmp_path / "x.sample", [("a", "b", 0, 1), ("c", "d")])
    with pytest.raises(SourceError, match="line 4: 2 fields"):
        streampca.open(path)


def test_a_sample_file_of_other_samples_is_refused(tmp_path):
    path = write_bgen(tmp_path / "x", certain(random_calls(3, 4)), samples=["a_a", "b_b", "c_c"])
    right, file = [("a", "a", 0, 1), ("b", "b", 0, 1), ("c", "c", 0, 1)], tmp_path / "x.sample"
    write_samples(file, right)
    assert streampca.open(path).labels.samples.names() == ["a", "b", "c"]
    write_samples(file, [right[0], right[2], right[1]])
    for named in ({}, {"sample_file": str(file)}):
        with pytest.raises(SourceError, match="in another order: sample 2 is b_b in the BGEN"):
            streampca.open(path, **named)
    write_samples(file, [("0", f"i{j}", 0, 1) for j in range(3)])
    with pytest.raises(SourceError, match=r"under other names: sample 1 .*sample_file="):
        streampca.open(path)
    assert streampca.open(path, sample_file=str(file)).labels.samples.names()[0] == "i0"


# -- damage -----------------------------------------------------------------------------------


def opened_and_read(path):
    matrix = streampca.open(path)
    return values_of(matrix), matrix.labels.features.names()


@pytest.mark.parametrize("indexed", [True, False])
def test_a_file_that_is_cut_off_is_refused(tmp_path, indexed):
    path = write_bgen(tmp_path / "x", certain(random_calls(5, 6)), index=indexed)
    whole = Path(path).read_bytes()
    for size in range(0, len(whole), 7):
        Path(path).write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"x\.bgen"):
            opened_and_read(path)
    Path(path).write_bytes(whole + b"more")
    with pytest.raises(DamagedSourceError, match="longer than its"):
        opened_and_read(path)
    Path(path).write_bytes(whole)
    matrix = streampca.open(path)
    Path(path).write_bytes(whole[:-20])
    with pytest.raises(DamagedSourceError, match="ends before variant 6 does"):
        values_of(matrix)


@settings(max_examples=20)
@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_damage_never_crashes(tmp_path_factory, place, flip):
    path = write_bgen(tmp_path_factory.mktemp("d") / "x", certain(random_calls(5, 6)), index=False)
    whole = bytearray(Path(path).read_bytes())
    whole[place % len(whole)] ^= flip
    Path(path).write_bytes(whole)
    try:
        opened_and_read(path)
    except (SourceError, InvalidInputError) as error:
        assert "x.bgen" in str(error)  # noqa: PT017


def test_other_layouts_and_files(tmp_path):
    (tmp_path / "no.bgen").write_bytes(b"no BGEN at all, but some text")
    with pytest.raises(SourceError, match="is no BGEN: bytes 17 to 20"):
        streampca.open(tmp_path / "no.bgen")
    path = write_bgen(tmp_path / "x", certain(random_calls(5, 6)), layout=1, compression="zlib")
    with pytest.raises(SourceError, match=r"layout 1, of BGEN 1\.1.*--export bgen-1\.2 ref-first"):
        streampca.open(path)
    again = write_bgen(tmp_path / "y", certain(random_calls(5, 6)))
    whole = bytearray(Path(again).read_bytes())
    whole[20] |= 3  # the flags of a header without free data
    Path(again).write_bytes(whole)
    with pytest.raises(SourceError, match="layout 2 and compression 3"):
        streampca.open(again)


def test_an_index_of_another_file_is_refused(tmp_path):
    calls = random_calls(5, 6)
    path = write_bgen(tmp_path / "x", certain(calls))
    other = write_bgen(tmp_path / "y", certain(random_calls(5, 7)))
    own = Path(f"{path}.bgi").read_bytes()
    shutil.copy(f"{other}.bgi", f"{path}.bgi")
    with pytest.raises(SourceError, match=r"x\.bgen\.bgi .*bgenix -g .*x\.bgen -index -clobber"):
        streampca.open(path)
    Path(f"{path}.bgi").write_bytes(b"no database")
    with pytest.raises(SourceError, match="is no bgenix index"):
        streampca.open(path)
    Path(f"{path}.bgi").write_bytes(own)
    with sqlite3.connect(f"{path}.bgi") as db:
        db.execute("DELETE FROM Variant WHERE rsid = 'rs3'")
    db.close()
    with pytest.raises(SourceError, match="places 5 variants, expected 6"):
        streampca.open(path)


def test_variants_of_more_than_two_alleles(tmp_path):
    calls = random_calls(5, 6)
    for indexed in (True, False):
        path = write_bgen(tmp_path / "x", certain(calls), several=[2, 5], index=indexed)
        with pytest.raises(InvalidInputError, match=r"2 of 6 .*1:102 A,G,T.*multiallelic='drop'"):
            streampca.open(path)
        matrix = streampca.open(path, multiallelic="drop", dosages=False)
        np.testing.assert_array_equal(values_of(matrix), calls[:, [0, 1, 3, 4]])
        assert matrix.labels.features.names() == ["rs0", "rs1", "rs3", "rs4"]
        assert (matrix.multiallelic, "2 of 6 variants" in matrix.note) == (2, True)


def test_copies_other_than_two_are_refused_by_name(tmp_path):
    probabilities = np.tile([1.0, 0, 0, 0], (2, 4, 1))
    path = write_bgen(tmp_path / "x", probabilities, ploidy=3)
    with pytest.raises(InvalidInputError, match=r"x\.bgen, variant 1 \(rs0 at 1:100\).*3 copies"):
        values_of(streampca.open(path))
    haploid = np.array([[[1.0, 0], [0, 1], [0.25, 0.75], [0, 1]]])
    path = write_bgen(tmp_path / "x", haploid, ploidy=1)
    np.testing.assert_allclose(values_of(streampca.open(path))[:, 0], [0, 2, 1.5, 2], atol=0.01)


def test_a_block_that_grows_beyond_two_copies_is_not_decompressed(tmp_path):
    path = write_bgen(tmp_path / "x", certain(random_calls(5, 1)), compression="zlib", index=False)
    whole = Path(path).read_bytes()
    at = whole.index(b"\x78", len(whole) - 60)  # where zlib begins
    bomb = zlib.compress(bytes(1 << 20))
    sizes = struct.pack("<II", 4 + len(bomb), 1 << 20)
    Path(path).write_bytes(whole[: at - 8] + sizes + bomb)
    with pytest.raises(InvalidInputError, match="take 1048576 bytes, expected at most 55"):
        values_of(streampca.open(path))
    Path(path).write_bytes(whole[: at - 8] + struct.pack("<II", 4 + len(bomb), 55) + bomb)
    with pytest.raises(DamagedSourceError, match="stated length"):
        values_of(streampca.open(path))


# -- PLINK 2 ----------------------------------------------------------------------------------


@needs_plink2
@pytest.mark.slow
@pytest.mark.parametrize("bits", [1, 8, 12, 16, 28])
@pytest.mark.parametrize("phased", [False, True])
def test_calls_are_those_of_plink2(tmp_path, bits, phased):
    rng = np.random.default_rng(bits)
    if phased:
        one = np.where(rng.random((60, 101, 2)) < 0.7, rng.random((60, 101, 2)).round(), 0.5)
        one = np.clip(one + rng.normal(0, 0.06, one.shape), 0, 1)
        probabilities = np.stack([one[..., 0], 1 - one[..., 0], one[..., 1], 1 - one[..., 1]], -1)
    else:
        probabilities = rng.dirichlet([0.06] * 3, (60, 101))
    probabilities[rng.random((60, 101)) < 0.04] = np.nan
    path = write_bgen(tmp_path / "x", probabilities, bits=bits, phased=phased)
    words = [PLINK2, "--bgen", path, "ref-first", "--make-bed", "--out", str(tmp_path / "p")]
    subprocess.run(words, check=True, capture_output=True)
    mine, theirs = streampca.open(path, dosages=False), streampca.open(tmp_path / "p.bed")
    np.testing.assert_array_equal(values_of(mine), values_of(theirs))
    assert mine.labels.features.names() == theirs.labels.features.names()


@needs_plink2
@pytest.mark.parametrize("version", ["bgen-1.2", "bgen-1.3"])
def test_a_bgen_of_plink2_gives_the_components_of_the_bed(tmp_path, version):
    bed = write_plink(tmp_path / "x", random_calls(31, 80))
    for more in ([], ["ref-first"]):
        words = [PLINK2, "--bfile", str(tmp_path / "x"), "--export", version, *more]
        subprocess.run([*words, "--out", str(tmp_path / "y")], check=True, capture_output=True)
        last = None if more else "last"
        matrix = streampca.open(tmp_path / "y.bgen", dosages=False, reference_allele=last)
        models = [streampca.GenotypePCA(2, progress=False).fit(x) for x in (bed, matrix)]
        for name in FITTED:
            np.testing.assert_array_equal(getattr(models[0], name), getattr(models[1], name))
