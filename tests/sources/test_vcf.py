"""VCF and BCF: parsed once into calls or dosages; what is damaged, or large, is refused."""

from __future__ import annotations

import gc
import gzip
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import (
    DamagedSourceError,
    IncompleteSourceWarning,
    InvalidInputError,
    MissingDependencyError,
    OccupiedError,
    SourceError,
)
from streampca.operations.convert import convert
from streampca.operations.convert_vcf import vcf_cost
from streampca.sources.genotypes import vcf
from tests.genotypes import (
    random_calls,
    sample_names,
    variant_names,
    write_plink,
    write_vcf,
    write_vcf_lines,
    write_vcf_zarr,
)

ENDS = (".vcf", ".vcf.gz", ".vcf.bgz", ".bcf")
FITTED = ("scores_", "eigenvalues_", "components_", "frequencies_")
PLINK2 = shutil.which("plink2")
# calls of every kind, of four samples; and the copies of ALT that they are
ROWS = [
    (("X", "1", "r1", "A", "G", ".", ".", ".", "GT"), "0/1 1 0|1 ./.", [1, 2, 1, -1]),
    (("X", "2", ".", "A", ".", ".", ".", ".", "GT"), "0/0 0 0 .", [0, 0, 0, -1]),
    (("X", "3", "r3", "A", "<DEL>", ".", ".", ".", "GT"), "0 1 0 .", [0, 2, 0, -1]),
    (("chrY", "4", "r4", "AT", "A", ".", ".", ".", "GT"), "1/1 1|1 1 0", [2, 2, 2, 0]),
]


def values_of(matrix):
    return matrix.read(1, 0, matrix.shape[1])


def lines_of(rows):
    return [(*head, *cells.split()) for head, cells, *_ in rows]


@pytest.mark.parametrize("end", ENDS)
def test_calls_are_those_of_the_bed(tmp_path, end):
    calls = random_calls(21, 30)
    bed = streampca.open(write_plink(tmp_path / "x", calls))
    matrix = streampca.open(write_vcf(tmp_path / f"x{end}", calls))
    assert (matrix.dtype, matrix.missing_value) == (np.int8, -1)
    np.testing.assert_array_equal(values_of(matrix), calls)
    assert matrix.labels.features.names() == bed.labels.features.names()
    assert matrix.labels.samples.names() == bed.labels.samples.names()
    for name, values in bed.labels.features.extra.items():
        np.testing.assert_array_equal(matrix.labels.features.extra[name], values)
    again = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(again.read(1, 7, 19), calls[:, 7:19])
    assert again.fingerprint() == streampca.open(tmp_path / f"x{end}").fingerprint()
    folder = Path(matrix.reader.path).parent
    assert str(folder) in matrix.note
    del matrix
    gc.collect()
    assert not folder.exists()


def test_components_and_kinship_are_those_of_the_bed(tmp_path):
    calls = random_calls(30, 80)
    bed = write_plink(tmp_path / "x", calls)
    sources = [bed, write_vcf(tmp_path / "x.vcf", calls)]
    variants = streampca.VariantFilter(exclude=variant_names(9))
    options = {"maf": 0.1, "variants": variants, "progress": False}
    models = [streampca.GenotypePCA(2, **options).fit(one) for one in sources]
    for name in FITTED:
        np.testing.assert_array_equal(*(getattr(model, name) for model in models), name)
    related = [streampca.kinship(one, progress=False).kinship for one in sources]
    np.testing.assert_array_equal(*related)


def test_calls_of_every_kind(tmp_path):
    path = write_vcf_lines(tmp_path / "x.vcf", sample_names(4), lines_of(ROWS))
    matrix = streampca.open(path)
    np.testing.assert_array_equal(values_of(matrix).T, [wanted for *_, wanted in ROWS])
    assert matrix.labels.features.names() == ["r1", "X:2:.:A", "r3", "r4"]
    assert matrix.labels.features.extra["chromosome"].tolist() == ["X", "X", "X", "Y"]
    assert matrix.labels.features.extra["counted_allele"].tolist() == ["G", ".", "<DEL>", "A"]
    half = [(ROWS[0][0], "./1 0/. 0/0 1/1"), *ROWS[1:]]
    path = write_vcf_lines(tmp_path / "half.vcf", sample_names(4), lines_of(half))
    with pytest.warns(IncompleteSourceWarning, match=r"half calls, such as \./1, .*2 of them"):
        matrix = streampca.open(path)
    assert values_of(matrix)[:, 0].tolist() == [-1, -1, 0, 2]
    more = [*ROWS, (ROWS[0][0], "0/0/1 0 0 0")]
    path = write_vcf_lines(tmp_path / "more.vcf", sample_names(4), lines_of(more))
    with pytest.raises(InvalidInputError, match=r"X:1 has calls of 3 copies.*streampca convert"):
        streampca.open(path)


def test_the_same_calls_as_of_a_vcf_zarr(tmp_path):
    """Half calls, haploid and missing ones: one meaning for both formats."""
    alleles = np.array([[[0, 1], [1, -2], [-1, 1], [-1, -2], [0, -1], [1, 1]]], np.int8)
    store = write_vcf_zarr(tmp_path / "x.vcz", np.zeros((6, 1), np.int8), alleles=alleles)
    row = (ROWS[0][0], "0/1 1 ./1 . 0/. 1/1")
    path = write_vcf_lines(tmp_path / "x.vcf", sample_names(6), lines_of([row]))
    with pytest.warns(IncompleteSourceWarning):
        matrix = streampca.open(path)
    np.testing.assert_array_equal(values_of(matrix), values_of(streampca.open(store)))
    haploid = write_vcf_zarr(
        tmp_path / "h.vcz", np.zeros((2, 1), np.int8), alleles=np.array([[[1], [0]]], np.int8)
    )
    assert values_of(streampca.open(haploid))[:, 0].tolist() == [2, 0]
    with pytest.raises(InvalidInputError, match=r"count twice.*GenotypePCA\(ploidy=2\)"):
        streampca.GenotypePCA(1, ploidy=1, progress=False).fit(haploid)


def test_variants_of_more_than_two_alleles(tmp_path):
    several = (("2", "7", "m", "A", "G,T", ".", ".", ".", "GT"), "0/2 1/2 0/0 1/1")
    path = write_vcf_lines(tmp_path / "x.vcf", sample_names(4), lines_of([several, *ROWS]))
    with pytest.raises(InvalidInputError, match=r"2:7 .*A,G,T.*'drop'.*bcftools norm -m -any"):
        streampca.open(path)
    matrix = streampca.open(path, multiallelic="drop")
    assert (matrix.shape, matrix.multiallelic) == ((4, 4), 1)
    assert "1 of 5 variants have more than two alleles" in matrix.note
    path = write_vcf_lines(tmp_path / "y.vcf", sample_names(4), lines_of([several]))
    with pytest.raises(SourceError, match="no variants: all 1 have more than two alleles"):
        streampca.open(path, multiallelic="drop")


def test_dosages(tmp_path):
    """As plink2 --vcf x dosage=DS: a call where there is no DS; of one copy, twice."""
    rng = np.random.default_rng(0)
    calls = random_calls(12, 40)
    dosages = np.clip(calls + rng.normal(0, 0.1, calls.shape), 0, 2).round(4)
    dosages[rng.random(calls.shape) < 0.1] = np.nan
    path = write_vcf(tmp_path / "x.vcf", calls, dosages=dosages)
    wanted = np.where(np.isnan(dosages), np.where(calls < 0, np.nan, calls), dosages)
    matrix = streampca.open(path, dosages=True)
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(values_of(matrix), wanted, rtol=0, atol=1e-7)
    assert values_of(streampca.open(path)).dtype == np.int8  # PLINK takes GT unless it is told
    np.testing.assert_array_equal(values_of(streampca.open(path)), calls)
    near = np.abs(wanted - np.rint(wanted)) <= 0.1
    np.testing.assert_array_equal(
        values_of(matrix.hard_calls()), np.where(near, np.rint(wanted), -1)
    )
    head = (*ROWS[0][0][:-1], "GT:DS")
    rows = [(head, "0/1:1.25 1:0.75 0/0:. ./.:."), ((*ROWS[0][0][:-1], "DS"), "0.5 1 . 2")]
    path = write_vcf_lines(tmp_path / "y.vcf", sample_names(4), lines_of(rows))
    found = values_of(streampca.open(path, dosages=True)).T
    np.testing.assert_array_equal(found, [[1.25, 1.5, 0, np.nan], [0.5, 1, np.nan, 2]])
    rows = [(head, "0/1:2.25 1:0.75 0/0:. ./.:.")]
    path = write_vcf_lines(tmp_path / "z.vcf", sample_names(4), lines_of(rows))
    with pytest.raises(SourceError, match=r"z\.vcf, X:1: a DS is not between 0"):
        streampca.open(path, dosages=True)
    with pytest.raises(SourceError, match="has no DS"):
        streampca.open(write_vcf(tmp_path / "g.vcf", calls), dosages=True)


@pytest.mark.parametrize("wide", [True, False])
def test_dosages_of_a_vcf_zarr(tmp_path, wide):
    """DS where there is one, of one copy twice; the call elsewhere; some variants left out."""
    alleles = np.array([[0, 1], [1, -2], [-1, 1], [-1, -1], [1, 1], [-2, -2]], np.int8)
    alleles = np.tile(alleles, (9, 1, 1))
    names = [("A", "G", "T") if j in (0, 4, 8) else ("A", "G") for j in range(9)]
    path = write_vcf_zarr(
        tmp_path / "x.vcz", np.zeros((6, 9), np.int8), alleles=alleles, names=names, chunks=(4, 4)
    )
    ds = np.tile(np.array([0.5, 0.75, 1.25, np.nan, np.nan, 1.5], np.float32), (9, 1))
    ds[:, 5] += np.arange(9) / 64
    group = zarr.open_group(path)
    stored = ds[..., None] if wide else ds
    group.create_array("call_DS", data=stored, chunks=(3, 6, 1)[: stored.ndim])
    matrix = streampca.open(path, dosages=True, multiallelic="drop")
    kept = [1, 2, 3, 5, 6, 7]
    wanted = np.tile([0.5, 1.5, 1.25, np.nan, 2, 0], (6, 1))
    wanted[:, 5] = ds[kept, 5]
    np.testing.assert_array_equal(values_of(matrix).T, wanted)
    np.testing.assert_array_equal(matrix.read(1, 2, 5).T, wanted[2:5])
    again = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(again.read(1, 4, 6).T, wanted[4:])
    calls = streampca.open(path, multiallelic="drop")
    assert (calls.dtype, values_of(calls)[:, 0].tolist()) == (np.int8, [1, 2, -1, -1, 2, -1])
    group["call_DS"][5, 1] = 1.25
    with pytest.raises(SourceError, match=r"call_DS: a DS of stored variant 5 .* not between"):
        values_of(matrix)
    del group["call_DS"]
    with pytest.raises(InvalidInputError, match="has no call_DS"):
        streampca.open(path, dosages=True, multiallelic="drop")


@pytest.mark.parametrize("end", ENDS)
def test_a_file_that_is_cut_off_is_refused(tmp_path, end):
    path = write_vcf(tmp_path / f"x{end}", random_calls(9, 12))
    whole = Path(path).read_bytes()
    for share in (0.0, 0.02, 0.3, 0.6, 0.9, 0.999):
        Path(path).write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(SourceError, match=rf"x{end}"):
            streampca.open(path)


def test_what_is_no_vcf_is_refused(tmp_path, monkeypatch):
    for end in ENDS:
        path = tmp_path / f"no{end}"
        for content in (b"some text\n", gzip.compress(b"some text\n")):
            path.write_bytes(content)
            with pytest.raises(SourceError, match=rf"no{end} is no VCF or BCF"):
                streampca.open(path)
    with pytest.raises(SourceError, match="absent"):
        streampca.open(tmp_path / "absent.vcf")
    path = write_vcf_lines(tmp_path / "x.vcf", sample_names(4), [])
    with pytest.raises(SourceError, match="has no variants"):
        streampca.open(path)
    names = "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    Path(path).write_text("##fileformat=VCFv4.2\n" + names)
    with pytest.raises(SourceError, match="has no samples"):
        streampca.open(path)
    path = write_vcf(tmp_path / "x.vcf.gz", random_calls(9, 12))
    monkeypatch.setattr(vcf, "LARGEST", 100)
    with pytest.raises(SourceError, match=r"streampca convert .*x\.vcf\.gz -o .*x\.zarr"):
        streampca.open(path)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cyvcf2", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[vcf\]'"):
        streampca.open(path)


def test_an_index_that_counts_other_variants_is_refused(tmp_path, monkeypatch):
    """A text that ends between two lines is whole as far as its end tells."""
    path = write_vcf(tmp_path / "x.vcf", random_calls(9, 12))
    Path(f"{path}.csi").touch()
    monkeypatch.setattr(vcf, "_indexed_records", lambda path, file: 13)
    with pytest.raises(DamagedSourceError, match="has 12 variants, and its index counts 13"):
        streampca.open(path)


# -- to Zarr ------------------------------------------------------------------------------------


def test_a_conversion_says_what_it_takes(tmp_path):
    calls = random_calls(200, 300)
    costs = [
        vcf_cost([write_vcf(tmp_path / f"x{end}", calls)], str(tmp_path / "x.zarr"))
        for end in (".vcf", ".vcf.gz", ".vcf.bgz")
    ]
    nbytes = Path(tmp_path / "x.vcf").stat().st_size
    for cost in costs:
        assert abs(cost.text_nbytes - nbytes) < 0.02 * nbytes
        assert cost.processes == 0
        assert "of temporary disk in" in str(cost)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_a_vcf_becomes_a_vcf_zarr(tmp_path, capsys, end):
    pytest.importorskip("bio2zarr")
    calls = random_calls(21, 60)
    bed = write_plink(tmp_path / "x", calls)
    path, out = write_vcf(tmp_path / f"x{end}", calls), str(tmp_path / "x.zarr")
    assert main(["convert", path, "-o", out, "--memory-limit", "200MiB"]) == 0
    said = capsys.readouterr()
    assert "VcfZarrMatrix 21 samples x 60 features" in said.out
    assert "vcf2zarr takes about" in said.err
    models = [streampca.GenotypePCA(2, progress=False).fit(one) for one in (bed, out)]
    for name in FITTED:
        np.testing.assert_array_equal(*(getattr(model, name) for model in models), name)
    with pytest.raises(OccupiedError, match="exists already"):
        convert(path, out)
    done = convert(path, out, overwrite=True)
    assert (done.shape, done.array, done.missing_value) == ((21, 60), "call_genotype", -1)
    assert sorted(one.name for one in tmp_path.iterdir() if "zarr" in one.name) == ["x.zarr"]
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="truncated"):
        convert(path, tmp_path / "cut.zarr")
    assert not (tmp_path / "cut.zarr").exists()


@pytest.mark.slow
def test_files_of_chromosomes_become_one_vcf_zarr(tmp_path):
    pytest.importorskip("bio2zarr")
    calls = random_calls(9, 20)
    names = [variant_names(10), variant_names(10, 10)]
    for i, ids in enumerate(names):
        part = calls[:, 10 * i : 10 * i + 10]
        path = write_vcf(tmp_path / f"chr{i + 1}.vcf", part, ids=ids)
        text = Path(path).read_text().replace("\n1\t", f"\n{i + 1}\t")
        Path(path).write_text(text.replace("##contig=<ID=1>", "##contig=<ID=1>\n##contig=<ID=2>"))
    done = convert(str(tmp_path / "chr*.vcf"), tmp_path / "x.zarr")
    np.testing.assert_array_equal(values_of(streampca.open(done.path)), calls)
    joined = streampca.open(str(tmp_path / "chr*.vcf"))
    np.testing.assert_array_equal(values_of(joined), calls)


def test_the_package_of_vcf2zarr_is_named(tmp_path, monkeypatch, capsys):
    path = write_vcf(tmp_path / "x.vcf", random_calls(4, 5))
    words = ["convert", path, "-o", str(tmp_path / "x.zarr")]
    assert main([*words, "--multiallelic", "drop"]) == 65
    assert "streampca: --multiallelic: vcf2zarr keeps all" in capsys.readouterr().err
    with pytest.raises(InvalidInputError, match="a VCF Zarr is variants x samples"):
        convert(path, tmp_path / "x.zarr", samples_major=False)
    monkeypatch.setitem(sys.modules, "bio2zarr.vcf", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[vcf\]'"):
        convert(path, tmp_path / "x.zarr")


@pytest.mark.slow
@pytest.mark.skipif(PLINK2 is None, reason="plink2 is not installed")
def test_a_vcf_of_plink2_and_its_import(tmp_path):
    """Also of chromosome X, of which males have one copy; and dosages as plink2 takes them."""
    calls = random_calls(31, 80)
    calls[:15, 40:] = np.where(calls[:15, 40:] == 1, 0, calls[:15, 40:])
    bed = write_plink(tmp_path / "x", calls, chromosomes=["1"] * 40 + ["X"] * 40)
    fam = "".join(f"s{i} s{i} 0 0 {1 if i < 15 else 2} -9\n" for i in range(31))
    (tmp_path / "x.fam").write_text(fam)
    words = [PLINK2, "--bfile", str(tmp_path / "x"), "--export"]
    for kind in (["vcf", "bgz"], ["bcf"]):
        out = ["--out", str(tmp_path / "y")]
        subprocess.run([*words, *kind, *out], check=True, capture_output=True)
        path = tmp_path / ("y.bcf" if kind == ["bcf"] else "y.vcf.gz")
        np.testing.assert_array_equal(values_of(streampca.open(path)), calls)
    assert streampca.open(bed).shape == (31, 80)
