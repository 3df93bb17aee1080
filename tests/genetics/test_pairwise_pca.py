"""missing="pairwise": eigenvectors of the relationship matrix over calls that both have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from streampca.errors import AccuracyWarning, InvalidInputError
from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.genetics.test_relationship import oracle
from tests.genotypes import random_calls, write_plink

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
PAIRWISE = {"missing": "pairwise", "progress": False}


def populations(n: int, p: int, seed: int, missing: float) -> np.ndarray:
    """(n, p) calls of four populations, some of whose samples are called worse than others."""
    calls = GenotypeRecipe(n, p, populations=4, fst=0.05, missing=0, seed=seed).block(0, p)
    rng = np.random.default_rng(seed)
    share = missing * rng.uniform(0, 2, (n, 1))
    calls[rng.random((n, p)) < share] = -1
    return calls


def expected(calls: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(eigenvalues, eigenvectors) of the matrix by its definition."""
    values, vectors = np.linalg.eigh(oracle(calls)[0])
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def same_up_to_sign(found: np.ndarray, wanted: np.ndarray, atol: float) -> None:
    signs = np.sign(np.sum(found * wanted, axis=0))
    np.testing.assert_allclose(found * signs, wanted, atol=atol)


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.2])
def test_eigenpairs_are_those_of_the_matrix(missing):
    calls = populations(80, 1500, 0, missing)
    calls[:, 3] = 0  # counted, as PLINK does
    model = streampca.GenotypePCA(3, **PAIRWISE).fit(calls)
    values, vectors = expected(calls, 3)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-6)
    same_up_to_sign(model.eigenvectors_, vectors, 1e-6)
    matrix = streampca.grm(calls).relationship
    u = model.eigenvectors_
    np.testing.assert_allclose(matrix @ u, u * values, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(model.components_, axis=1), 1.0, rtol=1e-6)
    assert (model.certificate_.angle_bound[:3] < 1e-3).all()
    total = model.result_.total_variance * 79 / model.n_features_used_
    np.testing.assert_allclose(total, np.trace(matrix), rtol=1e-6)


def test_without_missing_calls_it_is_the_mean():
    calls = populations(60, 800, 1, 0.0)
    one = streampca.GenotypePCA(3, maf=0.01, **PAIRWISE).fit(calls)
    other = streampca.GenotypePCA(3, maf=0.01).fit(calls)
    np.testing.assert_allclose(one.scores_, other.scores_, atol=1e-4)
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-6)


def test_samples_that_are_called_worse_are_not_pulled_to_the_centre(tmp_path):
    """Where a call that is missing holds the mean, scores shrink by the share that is missing;
    a projection over the observed calls gives the fit's scores back."""
    whole = populations(80, 4000, 2, 0.0)
    calls = whole.copy()
    rng = np.random.default_rng(0)
    calls[:20][rng.random((20, 4000)) < 0.5] = -1
    true = streampca.GenotypePCA(2).fit(whole).scores_
    path, errors = write_plink(tmp_path / "x", calls), {}
    for missing in ("mean", "pairwise"):
        model = streampca.GenotypePCA(2, missing=missing).fit(path)
        signs = np.sign(np.sum(model.scores_ * true, axis=0))
        ratio = np.sum(model.scores_ * signs * true, axis=1) / np.sum(true**2, axis=1)
        errors[missing] = abs(np.median(ratio[:20]) / np.median(ratio[20:]) - 1)
    assert errors["pairwise"] < 0.05 < 0.4 < errors["mean"]
    solved = streampca.project_samples(model, path, min_coverage=0.2).scores
    assert np.corrcoef(solved[:, 0], model.scores_[:, 0])[0, 1] > 0.999
    slope = np.sum(solved * model.scores_) / np.sum(model.scores_**2)
    assert 0.97 < slope < 1.03


def test_streamed_loadings_filters_and_kinship_go_with_it(tmp_path):
    calls = populations(60, 900, 3, 0.1)
    path = write_plink(tmp_path / "x", calls)
    shares = {"maf": 0.1, "max_missing": 0.12}
    held = streampca.GenotypePCA(3, **PAIRWISE, **shares).fit(path)
    left_out = np.union1d(held.result_.filtered, held.result_.constant)
    values, _ = expected(np.delete(calls, left_out, axis=1), 3)
    np.testing.assert_allclose(held.eigenvalues_, values, rtol=1e-6)
    loadings, grm = str(tmp_path / "v.zarr"), str(tmp_path / "g.zarr")
    third = streampca.VariantFilter(extract=np.arange(900) % 3 == 0)
    more = {"variants": third, "kinship": True, "loadings": loadings, "relationship": grm}
    model = streampca.GenotypePCA(3, **PAIRWISE, **more).fit(path)
    alone = streampca.GenotypePCA(3, **PAIRWISE, variants=third).fit(path)
    np.testing.assert_array_equal(model.scores_, alone.scores_)
    np.testing.assert_allclose(model.components_, alone.components_, atol=1e-6)
    np.testing.assert_array_equal(model.kinship_.kinship, streampca.kinship(path).kinship)
    import zarr

    stored = zarr.open_group(grm, mode="r")["relationship"][:]
    np.testing.assert_allclose(stored, streampca.grm(path, variants=third).relationship, atol=1e-6)
    loaded = streampca.load(held.save(tmp_path / "m"))
    assert loaded.missing == "pairwise"
    np.testing.assert_array_equal(loaded.eigenvalues_, held.eigenvalues_)


def test_all_components_of_a_matrix_that_is_not_definite():
    calls = random_calls(12, 30, missing=0.4)
    model = streampca.GenotypePCA(None, missing="pairwise", components=False)
    with pytest.warns(AccuracyWarning, match="numerical rank"):
        model.fit(calls)
    assert np.isfinite(model.scores_).all()
    assert (model.explained_variance_ >= 0).all()


def test_what_has_no_pairs_is_refused():
    calls = random_calls(10, 40, missing=0.0)
    calls[3, :20] = calls[7, 20:] = -1
    with pytest.raises(InvalidInputError, match="sample 3 and sample 7 have no variant"):
        streampca.GenotypePCA(2, missing="pairwise").fit(calls)
    with pytest.raises(InvalidInputError, match="'mean' or 'pairwise'"):
        streampca.GenotypePCA(2, missing="raise").fit(calls)
    with pytest.raises(InvalidInputError, match="missing='pairwise' need the matrix"):
        streampca.GenotypePCA(2, missing="pairwise", solver="randomized").fit(calls)


def plink_pca(path: str, out: Path, k: int) -> tuple[Any, Any]:
    """(eigenvalues, eigenvectors) as PLINK prints them."""
    if (program := shutil.which("plink2")) is None:
        pytest.skip("needs plink2")
    words = [program, "--bfile", path.removesuffix(".bed"), "--pca", str(k), "--out", str(out)]
    subprocess.run([*words, "--threads", "1", "--bad-freqs"], capture_output=True, check=True)
    return tables(out)


def tables(prefix: Any) -> tuple[Any, Any]:
    """The two tables."""
    lines = Path(f"{prefix}.eigenvec").read_text().splitlines()
    first = lines[0].split().index("PC1")
    rows = [line.split()[first:] for line in lines[1:]]
    return np.loadtxt(f"{prefix}.eigenval"), np.array(rows, float)


def compare_tables(ours: Any, theirs: Any) -> None:
    """To the digits that PLINK prints, six, but for the last one; signs aside."""
    np.testing.assert_allclose(ours[0], theirs[0], rtol=5e-6)
    same_up_to_sign(ours[1], theirs[1], 3e-6)


def test_tables_are_those_of_plinks_default(tmp_path):
    for seed in range(3):
        calls = populations(60, 2000, seed, 0.1 * seed)
        calls[:, 5] = 2
        path = write_plink(tmp_path / "x", calls, families=["0"] * 60)
        theirs = plink_pca(path, tmp_path / "theirs", 3)
        ours = str(tmp_path / "ours")
        words = ["--missing", "pairwise", "-k", "3", "--out", ours, "--overwrite", "-q"]
        assert main(["fit", path, *words]) == 0
        compare_tables(tables(ours), theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["data", "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap"]
)
def test_hapmap3_and_1000_genomes(name, shared_data, tmp_path):
    path = str(shared_data / "hapmap3" / f"{name}.bed")
    theirs = plink_pca(path, tmp_path / "theirs", 10)
    model = streampca.GenotypePCA(10, components=False, **PAIRWISE).fit(path)
    compare_tables((model.eigenvalues_, model.eigenvectors_), theirs)
