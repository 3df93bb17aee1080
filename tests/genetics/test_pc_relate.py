"""PC-Relate against its formula in NumPy, and against pedigrees where KING is biased."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca import GenotypePCA, pc_relate
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from tests.genotypes import random_calls, sample_names, write_plink
from tests.relatives import Families

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")


def by_the_formula(calls, scores, fitted, least=0.01):
    """(phi, nsnp): the regression by least squares, and both sums as they are written."""
    g = np.where(calls < 0, np.nan, calls).astype(float)
    filled = np.where(np.isnan(g), np.nanmean(g, axis=0), g)
    design = np.column_stack([np.ones(len(g)), scores])
    beta = np.linalg.lstsq(design[fitted], filled[fitted], rcond=None)[0]
    mu = design @ beta / 2
    have = (mu >= least) & (mu <= 1 - least) & ~np.isnan(g)
    r = np.where(have, g - 2 * mu, 0.0)
    d = np.sqrt(np.where(have, mu * (1 - mu), 0.0))
    with np.errstate(invalid="ignore"):
        return r @ r.T / (4 * d @ d.T), have.astype(int) @ have.T


def without_bias(phi, model, k, rounds=3):
    """The correction as dense matrices: phi estimates A Phi A'."""
    n = len(phi)
    fitted = np.ones(n, bool) if model.result_.fitted is None else model.result_.fitted
    design = np.column_stack([np.ones(n), model.scores_[:, :k]])
    a = np.eye(n)
    a[:, fitted] -= design @ np.linalg.pinv(design[fitted])
    known = np.eye(n) / 2
    for _ in range(rounds):
        found = phi + known - a @ known @ a.T
        known = np.where(found > 2**-5.5, found, 0.0)
        np.fill_diagonal(known, 0.5)
    return phi + known - a @ known @ a.T


def mixed(n: int = 30, p: int = 700, missing: float = 0.03) -> np.ndarray:
    """Calls with a duplicate, a variant of one allele, and a rare one."""
    calls = random_calls(n, p, missing=missing)
    calls[n - 3] = calls[0]
    calls[:, 5] = 0
    calls[:, 7] = np.arange(n) == 2
    return calls


plain = partial(pc_relate, small_sample_correction=False)


def same(found, wanted) -> None:
    np.testing.assert_allclose(found.kinship, wanted[0], atol=1e-10, rtol=0)
    np.testing.assert_array_equal(found.nsnp, wanted[1])


def test_the_sums_are_those_of_the_formula_in_every_layout(tmp_path):
    calls = mixed()
    path = write_plink(tmp_path / "x", calls)
    model = GenotypePCA(3, fit_samples=sample_names(30)[3:]).fit(path)
    scores, fitted = model.scores_, np.arange(30) >= 3
    for k in (0, 2):
        same(plain(path, model, n_components=k), by_the_formula(calls, scores[:, :k], fitted))
    wanted = by_the_formula(calls, scores, fitted)
    numbers = np.where(calls < 0, np.nan, calls)
    for X in (path, calls, np.asfortranarray(calls), numbers, numbers.astype("f4")):
        same(found := plain(X, model.result_), wanted)
    np.testing.assert_array_equal(found.inbreeding, 2 * np.diagonal(found.kinship) - 1)
    found = pc_relate(path, model)
    assert found.related("duplicate").columns()["IID1"].tolist() == ["s27"]
    none = mixed(missing=0.0)
    model = GenotypePCA(2).fit(none)
    for X in (none, scipy.sparse.csc_matrix(none)):
        found = plain(X, model, least_frequency=0.0)
        same(found, by_the_formula(none, model.scores_, slice(None), 0.0))
    dosages = np.clip(none + np.random.default_rng(0).normal(0, 0.1, none.shape), 0, 2)
    same(plain(dosages, model), by_the_formula(dosages, model.scores_, slice(None)))


def test_the_correction_is_that_of_dense_matrices(tmp_path):
    calls = mixed()
    path = write_plink(tmp_path / "x", calls)
    model = GenotypePCA(3, fit_samples=sample_names(30)[3:]).fit(path)
    for k in (0, 3):
        raw = plain(path, model, n_components=k)
        found = pc_relate(path, model, n_components=k)
        wanted = without_bias(raw.kinship, model, k)
        np.testing.assert_allclose(found.kinship, wanted, atol=1e-10, rtol=0)
        np.testing.assert_array_equal(found.kinship, found.kinship.T)
        np.testing.assert_array_equal(found.nsnp, raw.nsnp)


def test_filters_and_samples_in_another_order(tmp_path):
    calls = mixed()
    calls[:, 6] = -1
    path = write_plink(tmp_path / "x", calls, chromosomes=["X"] * 100 + ["2"] * 600)
    model = GenotypePCA(2).fit(path)
    found = plain(path, model, maf=0.2, max_missing=0.05, exclude=["s0", "s1", "s3"])
    rest = np.delete(calls, [0, 1, 3], axis=0)[:, 100:]
    f = np.nanmean(np.where(rest < 0, np.nan, rest), axis=0) / 2
    kept = (np.minimum(f, 1 - f) >= 0.2) & ((rest < 0).mean(axis=0) <= 0.05)
    scores = np.delete(model.scores_, [0, 1, 3], axis=0)
    same(found, by_the_formula(rest[:, kept], scores, slice(None)))
    assert (found.n_variants, len(found.samples)) == (kept.sum(), 27)
    turned = np.arange(30)[::-1]
    other = write_plink(tmp_path / "y", calls[turned, 100:], samples=sample_names(30)[::-1])
    same(
        plain(other, model), by_the_formula(calls[turned, 100:], model.scores_[turned], slice(None))
    )


def test_bits_do_not_depend_on_threads_and_a_saved_result_is_the_same(tmp_path):
    import dask

    calls = random_calls(40, 40000, missing=0.01)
    model = GenotypePCA(2).fit(calls)
    path = write_plink(tmp_path / "x", calls)
    found = []
    for threads in (1, 2):
        with dask.config.set({"streampca.threads": threads}):
            found.append(pc_relate(path, model, memory_limit="400MB"))
    np.testing.assert_array_equal(found[0].kinship, found[1].kinship)
    assert found[0].plan["passes"][0]["name"] == "adjusted kinship"
    saved = type(found[0]).load(found[0].save(tmp_path / "saved"))
    np.testing.assert_array_equal(saved.kinship, found[0].kinship)
    np.testing.assert_array_equal(saved.nsnp, found[0].nsnp)
    assert str(saved) == str(found[0])
    with pytest.raises(SourceError, match="is no kinship"):
        streampca.Kinship.load(tmp_path / "saved")
    with pytest.raises(MemoryLimitError, match="adjusted kinship of 40 x 40000"):
        pc_relate(path, model, memory_limit="10MB")


def test_what_pc_relate_refuses(tmp_path):
    calls = mixed(12, 90)
    path = write_plink(tmp_path / "x", calls)
    model = GenotypePCA(3, fit_samples=sample_names(12)[:6]).fit(path)
    other = write_plink(tmp_path / "y", calls, samples=sample_names(14)[2:])
    with pytest.raises(InvalidInputError, match="2 of 12 samples have no scores"):
        pc_relate(other, model)
    with pytest.raises(InvalidInputError, match="a model of 12 samples and data of 11"):
        pc_relate(calls[1:], model)
    with pytest.raises(InvalidInputError, match="3 samples of the fit are in the data"):
        pc_relate(path, model, exclude=["s0", "s1", "s2"])
    with pytest.raises(InvalidInputError, match="the model has 3"):
        pc_relate(path, model, n_components=4)
    with pytest.raises(InvalidInputError, match="least_frequency"):
        pc_relate(path, model, least_frequency=0.5)
    with pytest.raises(InvalidInputError, match="from 0 to 2"):
        pc_relate(np.where(calls < 0, 3, calls).astype("u1"), model)
    calls[0] = -1
    with pytest.raises(InvalidInputError, match="leave none of 90"):
        pc_relate(calls, model, max_missing=0.0)
    with pytest.raises(InvalidInputError, match="divergence="):
        streampca.pcair_partition(pc_relate(path, model))


def test_tables_on_the_command_line(tmp_path, capsys):
    calls = mixed(30, 700)
    path = write_plink(tmp_path / "x", calls)
    model = GenotypePCA(2, fit_samples=sample_names(30)[3:]).fit(path)
    model.save(tmp_path / "m")
    prefix = tmp_path / "out"
    common = ["relate", path, "--pc-relate", str(tmp_path / "m"), "-o", str(prefix)]
    assert main([*common, "--king-table-filter", "0.2", "--king-cutoff", "0.2"]) == 0
    assert "1 duplicate" in capsys.readouterr().out
    found = pc_relate(path, model)
    table = [line.split("\t") for line in Path(f"{prefix}.pcrelate.kin0").read_text().splitlines()]
    assert table[0] == ["#FID1", "IID1", "FID2", "IID2", "NSNP", "KINSHIP"]
    assert [row[1:4:2] for row in table[1:]] == [["s27", "s0"]]
    assert float(table[1][5]) == pytest.approx(found.kinship[27, 0], rel=1e-5)
    lines = Path(f"{prefix}.pcrelate.inbreeding").read_text().splitlines()
    assert lines[0].split("\t") == ["#FID", "IID", "NSNP", "F"]
    f = [float(line.split("\t")[3]) for line in lines[1:]]
    np.testing.assert_allclose(f, found.inbreeding, rtol=1e-5, atol=1e-7)
    assert len(Path(f"{prefix}.pcrelate.king.cutoff.out.id").read_text().splitlines()) == 2
    assert main([*common, "-k", "1", "--make-king-table", "--json", "--overwrite"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["samples"] == 30
    assert len(Path(f"{prefix}.pcrelate.kin0").read_text().splitlines()) == 1 + 30 * 29 // 2
    assert main([*common, "--overwrite", "-k", "9"]) != 0
    assert "the model has 2" in capsys.readouterr().err


@pytest.mark.slow
def test_kinship_of_admixed_families_is_that_of_the_pedigree_where_king_is_biased():
    """As figures 2 and 3 of the paper: admixed samples, and spouses of unlike ancestry."""
    made = Families(20000, 2, 0.15, 0)
    share = made.rng.beta(0.6, 0.6, 160)
    founders = made.founders(np.stack([share, 1 - share], axis=1))
    for i in range(0, 40, 2):
        made.family(founders[i], founders[i + 1], 2)
    calls, pedigree = made.calls, made.pedigree
    model = GenotypePCA(1, unrelated="auto").fit(calls)
    found, king = pc_relate(calls, model).kinship, streampca.kinship(calls).kinship
    pairs = np.tri(len(calls), k=-1, dtype=bool)
    for degree, bias, spread in ((0.25, 0.003, 0.008), (0.125, 0.004, 0.007), (0.0, 2e-4, 0.005)):
        these = pairs & (pedigree == degree)
        error = found[these] - degree
        assert these.sum() >= 40
        assert abs(error.mean()) < bias, degree
        assert error.std() < spread, degree
    unlike = np.abs(np.subtract.outer(made.ancestry[:, 0], made.ancestry[:, 0])) > 0.5
    apart = pairs & (pedigree == 0) & unlike
    assert king[apart].mean() < -0.05  # KING takes them for anything but unrelated
    assert abs(found[apart].mean()) < 0.003
    parent = pairs & (pedigree == 0.25) & (np.abs(king - 0.25) > 0.03)
    assert parent.any()
    assert np.abs(found[parent] - 0.25).max() < 0.04
