"""Beside PLINK 2 and EIGENSOFT: components, projections, kinship, relationship, LD pruning."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import streampca
from tests.validation.comparing import Pairs, compared, program, turned, unit

THOUSAND = "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap"
HAPMAP = "HapMap3, 957 x 14,079"
PRINTED = "printed with 6 digits"
EVERYTHING = streampca.VariantFilter(chromosomes="all")


def fileset(folder: Path, name: str = "HM3_thinned_autosomal_overlap") -> Path:
    return folder / "hapmap3" / name


@contextmanager
def plink2(source: Path, *words: str) -> Iterator[Path]:
    """What PLINK 2 writes, as the beginning of its names."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "x"
        base = ["plink2", "--bfile", str(source), "--out", str(out), "--threads", "1"]
        subprocess.run([*base, *words], check=True, capture_output=True)
        yield out


def rows(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


def eigenvectors(path: Path) -> np.ndarray:
    """Without a head line and two columns of ids."""
    return np.array([row[2:] for row in rows(path)[1:]], dtype=float)


@compared(
    "plink2",
    "--pca 10 meanimpute",
    HAPMAP,
    "GenotypePCA(10)",
    "eigenvalues, eigenvectors",
    1e-4,
    f"single precision; {PRINTED}",
)
def plink_pca(folder: Path) -> Pairs:
    with plink2(fileset(folder), "--pca", "10", "meanimpute") as out:
        values, vectors = np.loadtxt(f"{out}.eigenval"), eigenvectors(Path(f"{out}.eigenvec"))
    model = streampca.GenotypePCA(10).fit(f"{fileset(folder)}.bed")
    yield model.eigenvalues_, values
    yield turned(model.eigenvectors_, vectors)


@compared(
    "plink2",
    "--pca 10",
    HAPMAP,
    'GenotypePCA(10, missing="pairwise")',
    "eigenvalues, eigenvectors",
    1e-4,
    f"single precision; {PRINTED}",
)
def plink_pairwise(folder: Path) -> Pairs:
    with plink2(fileset(folder), "--pca", "10") as out:
        values, vectors = np.loadtxt(f"{out}.eigenval"), eigenvectors(Path(f"{out}.eigenvec"))
    model = streampca.GenotypePCA(10, missing="pairwise").fit(f"{fileset(folder)}.bed")
    yield model.eigenvalues_, values
    yield turned(model.eigenvectors_, vectors)


@compared("plink2", "--make-king-table", HAPMAP, "kinship", "kinship of all pairs", 1e-5, PRINTED)
def king(folder: Path) -> Pairs:
    with plink2(fileset(folder), "--make-king-table") as out:
        found = rows(Path(f"{out}.kin0"))
    head = found[0]
    theirs = np.array([row[head.index("KINSHIP")] for row in found[1:]], dtype=float)
    ids = [row[1] for row in rows(Path(f"{fileset(folder)}.fam"))]
    place = {name: i for i, name in enumerate(ids)}
    one, other = ([place[row[head.index(name)]] for row in found[1:]] for name in ("IID1", "IID2"))
    yield streampca.kinship(f"{fileset(folder)}.bed").kinship[one, other], theirs


@compared(
    "plink2",
    "--make-rel square",
    HAPMAP,
    "grm",
    "relationship of all pairs",
    1e-5,
    f"single precision; {PRINTED}",
)
def relationship(folder: Path) -> Pairs:
    with plink2(fileset(folder), "--make-rel", "square") as out:
        theirs = np.loadtxt(f"{out}.rel")
    yield streampca.grm(f"{fileset(folder)}.bed").relationship, theirs


@compared(
    "plink2",
    "--indep-pairwise 50 5 0.03",
    HAPMAP,
    "prune_ld(window=50, step=5, r2=0.03)",
    "variants that stay",
    0.0,
)
def pruning(folder: Path) -> Pairs:
    source = fileset(folder)
    with plink2(source, "--indep-pairwise", "50", "5", "0.03") as out:
        kept = {row[0] for row in rows(Path(f"{out}.prune.in"))}
    variants = [row[1] for row in rows(Path(f"{source}.bim"))]
    theirs = [float(name in kept) for name in variants]
    ours = np.zeros(len(variants))
    ours[streampca.prune_ld(f"{source}.bed", window=50, step=5, r2=0.03, order=1).kept] = 1
    yield ours, theirs


def projected_by_plink2(folder: Path, new: Path) -> np.ndarray:
    """Scores of other samples by ``--pca allele-wts``, ``--freq counts`` and ``--score``."""
    words = ("--pca", "4", "allele-wts", "meanimpute", "--freq", "counts")
    with plink2(fileset(folder), *words) as fit:
        table = Path(f"{fit}.eigenvec.allele")
        head = rows(table)[0]
        first = head.index("PC1") + 1
        scored = [
            *("--read-freq", f"{fit}.acount", "--score", str(table)),
            *(str(head.index(name) + 1) for name in ("ID", "A1")),
            *("header-read", "no-mean-imputation", "variance-standardize"),
            *("--score-col-nums", f"{first}-{first + 3}"),
        ]
        with plink2(new, *scored) as out:
            found = rows(Path(f"{out}.sscore"))
        values = np.loadtxt(f"{fit}.eigenval")
    at = [i for i, name in enumerate(found[0]) if name.endswith("_AVG")]
    scores = np.array([[row[i] for i in at] for row in found[1:]], dtype=float)
    return scores / np.sqrt(values)


@compared(
    "plink2",
    "--pca allele-wts, --score",
    "1000 Genomes onto HapMap3, 1,092 x 14,079",
    "project_samples",
    "scores of new samples, each component in its own unit",
    1e-4,
    f"single precision; {PRINTED}",
)
def projection(folder: Path) -> Pairs:
    new = fileset(folder, THOUSAND)
    model = streampca.GenotypePCA(4).fit(f"{fileset(folder)}.bed")
    ours = streampca.project_samples(model, f"{new}.bed").scores
    yield turned(unit(ours), unit(projected_by_plink2(folder, new)))


PARAMETERS = """genotypename: {source}.bed
snpname: {source}.bim
indivname: {folder}/x.fam
evecoutname: {folder}/x.evec
evaloutname: {folder}/x.eval
numoutevec: 6
numoutlieriter: 0
altnormstyle: NO
"""


@compared(
    "smartpca",
    "smartpca",
    "1000 Genomes, 1,092 x 14,079",
    'GenotypePCA(6, scale="eigensoft")',
    "eigenvalues over their sum, eigenvectors",
    1e-3,
    "eigenvectors are printed with 4 decimals",
)
def smartpca(folder: Path) -> Pairs:
    source = fileset(folder, THOUSAND)
    with tempfile.TemporaryDirectory() as place:
        fam = [[*row[:5], "1"] for row in rows(Path(f"{source}.fam"))]
        Path(place, "x.fam").write_text("".join(f"{' '.join(row)}\n" for row in fam))
        Path(place, "x.par").write_text(PARAMETERS.format(source=source, folder=place))
        words = [str(program("smartpca")), "-p", f"{place}/x.par"]
        subprocess.run(words, check=True, capture_output=True)
        values = np.loadtxt(f"{place}/x.eval")
        vectors = np.array([row[1:7] for row in rows(Path(place, "x.evec"))[1:]], dtype=float)
    bed: Any = f"{source}.bed"
    model = streampca.GenotypePCA(6, scale="eigensoft").fit(bed)
    total = model.result_.total_variance * (len(vectors) - 1) / model.n_features_used_
    yield model.eigenvalues_ / total, values[:6] / values.sum()
    yield turned(model.eigenvectors_, vectors)
