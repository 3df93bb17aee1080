"""PLINK 2 filesets as plink2 writes them, and what it makes of the same dosages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from genotypes import random_calls, write_plink

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError

pytest.importorskip("pgenlib")
PLINK2 = shutil.which("plink2")
pytestmark = pytest.mark.skipif(PLINK2 is None, reason="plink2 is not installed")
HEAD = """##fileformat=VCFv4.3
##FORMAT=<ID=GT,Number=1,Type=String,Description="Genotype">
##FORMAT=<ID=DS,Number=A,Type=Float,Description="Dosage">
##contig=<ID=1>
##contig=<ID=2>
"""


def plink2(folder: Path, *words: str) -> None:
    command = [str(PLINK2), *words, "--threads", "1", "--memory", "640"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def values_of(matrix: Any) -> np.ndarray:
    return matrix.read(1, 0, matrix.shape[1])


@pytest.mark.parametrize(
    "words",
    [["--make-pgen"], ["--make-pgen", "vzs"], ["--make-bpgen"], ["--make-pgen", "format=2"]],
)
def test_the_calls_and_labels_of_the_bed(words, tmp_path):
    """Also where records are stored as differences from those before: neighbours are alike."""
    calls = random_calls(300, 700)
    alike = np.random.default_rng(1).random(calls.shape) < 0.95
    for j in range(1, 700):
        calls[alike[:, j], j] = calls[alike[:, j], j - 1]
    chromosomes = ["1"] * 400 + ["X"] * 200 + ["MT"] * 100
    alleles = [("G", "A")] * 300 + [("T", "CAA")] * 400
    bed = write_plink(tmp_path / "b", calls, chromosomes=chromosomes, alleles=alleles)
    plink2(tmp_path, "--bfile", "b", *words, "--out", "p")
    expected, matrix = streampca.open(bed), streampca.open(tmp_path / "p.pgen")
    np.testing.assert_array_equal(values_of(matrix), calls)
    np.testing.assert_array_equal(matrix.read(1, 555, 571), calls[:, 555:571])
    for axis in (0, 1):
        one, other = expected.labels.axis(axis), matrix.labels.axis(axis)
        assert one.names() == other.names()
        for name, values in one.extra.items():
            np.testing.assert_array_equal(np.asarray(values), np.asarray(other.extra[name]))


def write_vcf(path: Path, dosages: np.ndarray, several: int = 0) -> None:
    """A VCF with DS; every ``several``-th variant has a second alternate allele, by GT alone."""
    n, p = dosages.shape
    names = "\t".join(f"s{i}" for i in range(n))
    lines = [HEAD, f"#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\t{names}\n"]
    for j in range(p):
        third = several and j % several == 0
        cells = []
        for i in range(n):
            if np.isnan(dosages[i, j]):
                cells.append("./." if third else "./.:.")
            else:
                call = ("0/0", "0/1", "1/1")[round(dosages[i, j])]
                cells.append(f"{i % 3}/2" if third else f"{call}:{dosages[i, j]:.4f}")
        alleles, form = ("G,T", "GT") if third else ("G", "GT:DS")
        place = f"{1 + (j > p // 2)}\t{j + 1}\trs{j}\tA\t{alleles}\t.\tPASS\tAF=0.1"
        lines.append(f"{place}\t{form}\t" + "\t".join(cells) + "\n")
    path.write_text("".join(lines))


@pytest.fixture(scope="module")
def imputed(tmp_path_factory) -> tuple[Path, np.ndarray]:
    """d.pgen, of dosages of 40 samples and 250 variants in two populations."""
    folder = tmp_path_factory.mktemp("imputed")
    rng = np.random.default_rng(3)
    share = rng.uniform(0.1, 0.9, (2, 250))[np.arange(40) % 2]
    dosages = np.clip(rng.binomial(2, share) + rng.normal(0, 0.07, (40, 250)), 0, 2).round(4)
    dosages[rng.random(dosages.shape) < 0.05] = np.nan
    write_vcf(folder / "d.vcf", dosages)
    plink2(folder, "--vcf", "d.vcf", "dosage=DS", "--make-pgen", "--out", "d")
    return folder, dosages


def test_dosages_of_a_vcf(imputed):
    folder, dosages = imputed
    matrix = streampca.open(folder / "d.pgen")
    assert matrix.dtype == np.float32
    np.testing.assert_allclose(values_of(matrix), dosages, atol=0.5 / 16384 + 1e-7)
    stored = np.rint(dosages * 16384) / 16384
    np.testing.assert_allclose(values_of(matrix), stored, atol=1e-7)


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    head, *rows = [line.split() for line in path.read_text().splitlines()]
    return head, rows


@pytest.mark.slow
def test_tables_of_dosages_are_those_of_plink(imputed):
    """Frequencies and components count dosages; kinship, calls."""
    folder, _ = imputed
    source, out = str(folder / "d.pgen"), str(folder / "ours")
    common = ["--bad-freqs", "--nonfounders", "--maf", "0.2", "--out", "theirs"]
    plink2(folder, "--pfile", "d", "--freq", "--pca", "5", "meanimpute", *common)
    plink2(folder, "--pfile", "d", "--make-king-table", *common)
    plink2(folder, "--pfile", "d", "--missing", "--out", "calls")
    words = ["-k", "5", "--maf", "0.2", "--out", out, "--freq", "--missing-counts", "-q"]
    assert main(["fit", source, *words]) == 0
    assert main(["relate", source, "--maf", "0.2", "-o", out, "--make-king-table"]) == 0
    values = [np.loadtxt(folder / f"{name}.eigenval") for name in ("ours", "theirs")]
    np.testing.assert_allclose(*values, rtol=1e-5)
    assert table(folder / "ours.kin0") == table(folder / "theirs.kin0")
    kept = {row[1]: row for row in table(folder / "theirs.afreq")[1]}
    ours = [row for row in table(folder / "ours.afreq")[1] if row[1] in kept]
    assert ours == list(kept.values())
    scores = [table(folder / f"{name}.eigenvec")[1] for name in ("ours", "theirs")]
    one, other = (np.array([row[1:] for row in rows], float) for rows in scores)
    np.testing.assert_allclose(np.abs(np.sum(one * other, axis=0)), 1, atol=1e-5)
    words = ["--no-dosages", "--missing-counts", "--overwrite"]
    assert main(["fit", source, "-k", "2", "--out", out, *words, "-q"]) == 0
    assert table(folder / "ours.smiss") == table(folder / "calls.smiss")


def test_calls_without_dosages_are_those_of_erase_dosage(imputed):
    folder, _ = imputed
    plink2(folder, "--pfile", "d", "--make-pgen", "erase-dosage", "--out", "e")
    erased = streampca.open(folder / "e.pgen")
    assert erased.dtype == np.int8
    stored = streampca.open(folder / "d.pgen", dosages=False)
    np.testing.assert_array_equal(values_of(erased), values_of(stored))
    assert "the dosages of the file are not read" in stored.note


def test_thresholds_of_the_making_are_kept(imputed):
    """Calls are those that plink2 stored, by the threshold that it was told."""
    folder, dosages = imputed
    words = ["--hard-call-threshold", "0.02", "--make-pgen", "--out", "t"]
    plink2(folder, "--vcf", "d.vcf", "dosage=DS", *words)
    calls = values_of(streampca.open(folder / "t.pgen", dosages=False))
    near = np.abs(dosages - np.rint(dosages)) <= 0.0199
    assert np.array_equal(calls[near], np.rint(dosages[near]))
    assert np.all(calls[np.abs(dosages - np.rint(dosages)) > 0.0201] == -1)
    np.testing.assert_allclose(
        values_of(streampca.open(folder / "t.pgen")), dosages, atol=0.5 / 16384 + 1e-7
    )


def test_several_alleles(tmp_path):
    rng = np.random.default_rng(0)
    dosages = rng.binomial(2, 0.4, (12, 30)).astype(float)
    write_vcf(tmp_path / "m.vcf", dosages, several=6)
    plink2(tmp_path, "--vcf", "m.vcf", "--make-pgen", "--out", "m")
    with pytest.raises(InvalidInputError, match=r"5 of 30 variants have more than two alleles"):
        streampca.open(tmp_path / "m.pgen")
    matrix = streampca.open(tmp_path / "m.pgen", multiallelic="drop")
    two = [j for j in range(30) if j % 6]
    np.testing.assert_array_equal(values_of(matrix), dosages[:, two])
    assert matrix.labels.features.names() == [f"rs{j}" for j in two]
    text = (tmp_path / "m.pvar").read_text().replace("G,T", "G")
    (tmp_path / "m.pvar").write_text(text)
    with pytest.raises(streampca.errors.SourceError, match="third allele at 5 variants"):
        streampca.open(tmp_path / "m.pgen")
