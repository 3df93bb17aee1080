"""EIGENSTRAT and PACKEDANCESTRYMAP: calls of the .bed, and files that do not belong together."""

from __future__ import annotations

import pickle
import shutil
import subprocess

import numpy as np
import pytest

import streampca
from streampca import GenotypePCA
from streampca.cli.commands import main
from streampca.errors import IncompleteSourceWarning, InvalidInputError, SourceError
from tests.genotypes import random_calls, write_geno, write_plink

KINDS = ("EIGENSTRAT", "PACKEDANCESTRYMAP", "TRANSPOSED")
ALLELES = [("G", "A"), ("C", "T"), ("ACG", "A"), ("T", "C")]
P = 41
MANY = [ALLELES[j % 4] for j in range(P)]


def same_labels(mine, theirs):
    assert mine.samples.names() == theirs.samples.names()
    assert mine.features.names() == theirs.features.names()
    for name, values in theirs.features.extra.items():
        np.testing.assert_array_equal(mine.features.extra[name], values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 8, 37, 195])
def test_calls_are_those_of_the_bed(kind, n, tmp_path):
    calls = random_calls(n, P, seed=n, missing=0.1)
    bed = streampca.open(write_plink(tmp_path / "x", calls, alleles=MANY))
    matrix = streampca.open(write_geno(tmp_path / "x", calls, kind, alleles=MANY))
    assert (matrix.shape, matrix.dtype, matrix.missing_value) == (bed.shape, bed.dtype, -1)
    same_labels(matrix.labels, bed.labels)
    for axis, start, stop in ((1, 0, P), (1, 5, 18), (1, P - 1, P), (1, 7, 8), (0, 0, n)):
        np.testing.assert_array_equal(
            matrix.read(axis, start, stop), calls[:, start:stop] if axis else calls
        )
    worker = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(worker.read(1, 5, 18), calls[:, 5:18])
    assert worker.fingerprint() == matrix.fingerprint() != bed.fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_has_the_bits_of_that_of_the_bed(kind, tmp_path):
    calls = random_calls(30, 200, missing=0.03)
    bed, geno = write_plink(tmp_path / "x", calls), write_geno(tmp_path / "x", calls, kind)
    mine, theirs = (GenotypePCA(3, maf=0.05).fit(path) for path in (geno, bed))
    np.testing.assert_array_equal(mine.scores_, theirs.scores_)
    np.testing.assert_array_equal(mine.components_, theirs.components_)
    one, other = (streampca.kinship(path).kinship for path in (geno, bed))
    np.testing.assert_array_equal(one, other)
    one, other = (streampca.prune_ld(path, r2=0.1).ids for path in (geno, bed))
    np.testing.assert_array_equal(one, other)
    one, other = (streampca.project_samples(theirs, path).scores for path in (geno, bed))
    np.testing.assert_array_equal(one, other)


def test_any_of_the_files_opens_them_and_chromosomes_are_joined(tmp_path, capsys):
    calls = random_calls(9, 12)
    path = write_geno(tmp_path / "x", calls, "EIGENSTRAT")
    for end in (".geno", ".snp", ".ind"):
        np.testing.assert_array_equal(streampca.open(tmp_path / f"x{end}").read(1, 0, 12), calls)
    (tmp_path / "x.ind").rename(tmp_path / "people")
    with pytest.raises(SourceError, match=r"x.ind: no such file.*sample_file='PATH'"):
        streampca.open(path)
    (tmp_path / "x.snp").rename(tmp_path / "places")
    calls_of = write_geno(tmp_path / "z", calls, "PACKEDANCESTRYMAP")
    head = tmp_path / "z.geno"
    words = head.read_bytes()[:48].rstrip(b"\0").split()
    zeros = b" ".join([*words[:3], b"0", b"0"]).ljust(48, b"\0")  # of writers without digests
    (tmp_path / "z.packedancestrymapgeno").write_bytes(zeros + head.read_bytes()[48:])
    for other in (calls_of, tmp_path / "z.packedancestrymapgeno"):
        np.testing.assert_array_equal(streampca.open(other).read(1, 0, 12), calls)
    (tmp_path / "z.geno").unlink()
    (tmp_path / "x.geno.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(SourceError, match=r"x.geno.gz: .*gunzip .*x.geno.gz"):
        streampca.open(tmp_path / "x.geno.gz")
    files = {"sample_file": tmp_path / "people", "variant_file": str(tmp_path / "places")}
    np.testing.assert_array_equal(streampca.open(path, **files).read(1, 0, 12), calls)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in files.items()]
    assert main(["info", path, *words]) == 0
    assert "samples                9" in capsys.readouterr().out
    with pytest.raises(InvalidInputError, match="leave sample_file= out"):
        streampca.open(calls, sample_file="x")
    parts = [
        write_geno(tmp_path / f"chr{c}", calls, kind, ids=[f"r{c}_{j}" for j in range(12)])
        for c, kind in enumerate(KINDS, 1)
    ]
    for source in (parts, str(tmp_path / "chr*.geno")):
        np.testing.assert_array_equal(streampca.open(source).read(1, 0, 36), np.tile(calls, 3))


def test_codes_of_eigensoft_are_read_as_ours(tmp_path):
    chromosomes = ["1", "23", "24", "90", "91", "chr2"]
    alleles = [("G", "X"), *[("A", "C")] * 5]
    calls = random_calls(9, 6)
    path = write_geno(tmp_path / "x", calls, "EIGENSTRAT", chromosomes=chromosomes, alleles=alleles)
    features = streampca.open(path).labels.features
    assert features.extra["chromosome"].tolist() == ["1", "23", "24", "MT", "XY", "2"]
    assert features.extra["other_allele"].tolist() == ["0", *"CCCCC"]
    kept = streampca.VariantFilter().mask(features)
    assert kept.tolist() == [True, False, False, False, True, True]
    lines = (tmp_path / "x.snp").read_text().splitlines()
    (tmp_path / "x.snp").write_text("".join(" ".join(line.split()[:4]) + "\n" for line in lines))
    features = streampca.open(path).labels.features  # alleles are optional
    assert features.extra["counted_allele"].tolist() == ["0"] * 6


def test_populations_are_labels_and_ignored_individuals_are_left_out(tmp_path):
    calls = random_calls(9, 12)
    populations = ["A", "B", "Ignore"] * 3
    for kind in KINDS:
        path = write_geno(tmp_path / "x", calls, kind, populations=populations, sexes="MFU" * 3)
        with pytest.warns(IncompleteSourceWarning, match=r"3 of 9 individuals .*: s2; s5; s8"):
            matrix = streampca.open(path)
        assert matrix.labels.samples.extra["population"].tolist() == ["A", "B"] * 3
        assert matrix.labels.samples.extra["sex"].tolist() == ["male", "female"] * 3
        kept = [i for i in range(9) if i % 3 < 2]
        np.testing.assert_array_equal(matrix.read(1, 0, 12), calls[kept])
    write_geno(tmp_path / "x", calls, "EIGENSTRAT", populations=["Ignore"] * 9)
    with pytest.raises(SourceError, match="all 9 individuals are of population Ignore"):
        streampca.open(path)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_do_not_belong_together_are_refused_by_name(kind, tmp_path):
    calls = random_calls(9, 12)
    path = write_geno(tmp_path / "x", calls, kind)
    for end in (".ind", ".snp"):
        table = tmp_path / f"x{end}"
        text = table.read_text()
        lines = text.splitlines(keepends=True)
        for other in (lines[:-1], [*lines, lines[-1].replace("s", "t")]):
            table.write_text("".join(other))
            with pytest.raises(SourceError, match=rf"x.geno (has|holds) .*x{end} names \d+"):
                streampca.open(path)
        if kind != "EIGENSTRAT":  # whose text has no digests
            renamed = text.replace("s3", "s33").replace("rs3", "rs33")
            for other in ("".join(lines[::-1]), renamed):
                table.write_text(other)
                with pytest.raises(SourceError, match=rf"x.geno was written for other .*x{end}"):
                    streampca.open(path)
        table.write_text(text)
    data = (tmp_path / "x.geno").read_bytes()
    for other in (data[:-5], data[: len(data) // 2], data + data[-30:]):
        (tmp_path / "x.geno").write_bytes(other)
        with pytest.raises(SourceError, match=r"x.geno .*(truncated|longer)"):
            streampca.open(path)
    (tmp_path / "x.geno").write_bytes(data)
    matrix = streampca.open(path)
    (tmp_path / "x.geno").write_bytes(data[:-5])
    with pytest.raises(SourceError, match=r"x.geno ends"):
        matrix.read(1, 0, 12)


def test_text_that_is_no_line_of_digits_is_refused_by_line(tmp_path):
    calls = random_calls(9, 12)
    path = tmp_path / "x.geno"
    write_geno(tmp_path / "x", calls, "EIGENSTRAT")
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    for form in (text.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + text, text.rstrip(), text + b"\n"):
        path.write_bytes(form)
        np.testing.assert_array_equal(streampca.open(path).read(1, 0, 12), calls)
    wrong = [lines[4][:3] + b"N" + lines[4][4:], lines[4][:8] + b"\n0", b"3" + lines[4][1:]]
    for line, what in zip(wrong, ("b'N' among", r"b'\\n' among", "b'3' among"), strict=True):
        path.write_bytes(b"".join([*lines[:4], line, *lines[5:]]))
        with pytest.raises(SourceError, match=rf"x.geno, line 5: {what}"):
            streampca.open(path).read(1, 2, 9)
    for other in (b"rs1 s1 2\n", b"", b"\x00\x01", text.replace(b"\n", b"")):
        path.write_bytes(other)
        with pytest.raises(SourceError, match=r"x.geno (begins with|has more than)"):
            streampca.open(path)
    path.write_bytes(b"GENO many 12 a b".ljust(48, b"\0"))
    with pytest.raises(SourceError, match=r"the header is .*; expected GENO, the numbers"):
        streampca.open(path)


@pytest.mark.skipif(shutil.which("convertf") is None, reason="EIGENSOFT is not installed")
@pytest.mark.parametrize("kind", KINDS[:2])
def test_what_convertf_writes_of_a_bed_is_read_as_the_bed(kind, tmp_path):
    """Digests too: ours are those of its header."""
    calls = random_calls(37, P, seed=5)
    bed = write_plink(tmp_path / "x", calls, alleles=[ALLELES[j % 2] for j in range(P)])
    fam = (tmp_path / "x.fam").read_text()
    (tmp_path / "x.fam").write_text(fam.replace(" -9", " 1"))
    names = {"genotype": ("bed", "geno"), "snp": ("bim", "snp"), "indiv": ("fam", "ind")}
    lines = [f"outputformat: {kind}", "familynames: NO"]
    for name, (old, new) in names.items():
        lines.append(f"{name}name: {tmp_path / 'x'}.{old}")
        lines.append(f"{name}outname: {tmp_path / 'y'}.{new}")
    (tmp_path / "par").write_text("\n".join(lines) + "\n")
    subprocess.run(["convertf", "-p", str(tmp_path / "par")], check=True, capture_output=True)
    mine, theirs = streampca.open(tmp_path / "y.geno"), streampca.open(bed)
    same_labels(mine.labels, theirs.labels)
    np.testing.assert_array_equal(mine.read(1, 0, P), theirs.read(1, 0, P))
    ours = write_geno(tmp_path / "z", calls, kind, alleles=[ALLELES[j % 2] for j in range(P)])
    with open(ours, "rb") as one, open(tmp_path / "y.geno", "rb") as other:
        assert one.read(33) == other.read(33)  # the header, or lines


def test_commands_take_a_geno_as_a_bed(tmp_path, capsys, monkeypatch):
    calls = random_calls(40, 60)
    names = [f"f{i}:s{i}" for i in range(40)]
    populations = ["A", "B"] * 20
    stem = tmp_path / "x"
    write_geno(stem, calls, "PACKEDANCESTRYMAP", samples=names, populations=populations)
    (tmp_path / "keep").write_text("".join(f"f{i} s{i}\n" for i in range(30)))
    (tmp_path / "extract").write_text("".join(f"rs{j}\n" for j in range(50)))
    chosen = ["--keep", f"{tmp_path}/keep", "--extract", f"{tmp_path}/extract"]
    to = str(tmp_path / "model")
    words = ["--eigfile", str(stem), *chosen, "--maf", "0.05", "--ld-r2", "0.5", "-k", "2"]
    assert main(["fit", *words, "-o", to, "--out", f"{to}.t", "--quiet"]) == 0
    model = streampca.load(to)
    assert model.result_.labels.samples.names() == names[:30]
    assert model.scores_.shape == (30, 2)
    assert main(["project", to, f"{stem}.geno", "-o", f"{to}.tsv"]) == 0
    assert main(["relate", f"{stem}.ind", *chosen, "-o", to, "--make-king-table"]) == 0
    assert len((tmp_path / "model.kin0").read_text().splitlines()) == 1 + 30 * 29 // 2
    assert main(["plan", f"{stem}.geno", "-k", "2"]) == 0
    assert main(["convert", f"{stem}.geno", "-o", f"{to}.zarr"]) == 0
    np.testing.assert_array_equal(streampca.open(f"{to}.zarr").read(1, 0, 60), calls)
    drawn = {}
    monkeypatch.setattr(
        "streampca.cli.pictures.draw", lambda kind, result, path, **options: drawn.update(options)
    )
    assert main(["plot", to, "--kind", "scores", "-o", f"{to}.png"]) == 0
    assert drawn["labels"] == populations[:30]
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
def test_hapmap3_from_its_geno_is_hapmap3_from_its_bed(shared_data, tmp_path):
    bed = streampca.open(shared_data / "hapmap3" / "data.bed")
    calls, features = bed.read(1, 0, bed.shape[1]), bed.labels.features
    names = {"ids": features.names(), "samples": bed.labels.samples.names()}
    names["chromosomes"] = features.extra["chromosome"].tolist()
    alleles = (features.extra[f"{which}_allele"].tolist() for which in ("counted", "other"))
    names["alleles"] = list(zip(*alleles, strict=True))
    want = GenotypePCA(10, scale="eigensoft").fit(bed)
    for kind in KINDS[:2]:
        path = write_geno(tmp_path / kind, np.asarray(calls), kind, **names)
        found = GenotypePCA(10, scale="eigensoft").fit(path)
        np.testing.assert_array_equal(found.scores_, want.scores_)
        np.testing.assert_array_equal(found.components_, want.components_)
