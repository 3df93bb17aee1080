"""Tables beside a genotype fit that PLINK 2 and EIGENSOFT read or write: checked by NumPy.

By the programs themselves (PLINK 2 alpha 3.5, EIGENSOFT 8): the same .smiss, .vmiss and .acount to
the byte, scores by ``plink2 --score`` to the 6 digits that it prints, and smartpca's eigenvalues.
"""

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.cli.commands import main
from tests.genotypes import random_calls, write_plink


@pytest.fixture(scope="module")
def beds(tmp_path_factory):
    """Sixty samples to fit and thirty others, one variant the same in all, some calls missing."""
    folder = tmp_path_factory.mktemp("plink")
    calls = random_calls(90, 300, missing=0.03)
    calls[:60, 5] = 0
    others = [f"n{i}" for i in range(30)]
    return (
        (write_plink(folder / "x", calls[:60]), calls[:60]),
        (write_plink(folder / "y", calls[60:], samples=others), calls[60:]),
    )


def table(path):
    found = pd.read_csv(path, sep="\t", dtype={"#CHROM": str})
    return found.rename(columns=lambda name: name.lstrip("#"))


def plink_score(prefix, calls):
    """plink2 --read-freq PREFIX.acount --score PREFIX.eigenvec.allele ... cols=+scoresums."""
    counts, weights = table(f"{prefix}.acount"), table(f"{prefix}.eigenvec.allele")
    frequency = (counts.ALT_CTS / counts.OBS_CT).to_numpy()
    at = counts.set_index("ID").index.get_indexer(weights.ID)
    assert (counts.ALT[at].to_numpy() == weights.A1).all()
    f = frequency[at]
    z = np.where(calls[:, at] < 0, 0, calls[:, at] - 2 * f) / np.sqrt(2 * f * (1 - f))
    return z @ weights.filter(regex="^PC").to_numpy()


@pytest.mark.parametrize(
    ("scale", "more"), [("hwe", ""), ("eigensoft", "--loadings"), ("std", "--maf 0.15 --geno 0.05")]
)
def test_scores_by_plink2_are_ours(tmp_path, beds, scale, more):
    prefix, model = str(tmp_path / "o"), str(tmp_path / "m")
    words = [more, str(tmp_path / "l.zarr")] if more == "--loadings" else more.split()
    command = ["fit", beds[0][0], "-k", "4", "--scale", scale, "--out", prefix, "-o", model, "-q"]
    assert main([*command, "--allele-wts", *words]) == 0
    fitted = streampca.load(model)
    for path, calls in beds:
        ours = fitted.transform(streampca.open(path))
        np.testing.assert_allclose(plink_score(prefix, calls), ours, atol=1e-5 * abs(ours).max())
    weights = table(f"{prefix}.eigenvec.allele")
    assert len(weights) == fitted.n_features_used_
    assert "rs5" not in weights.ID.tolist()


def test_missing_calls_of_samples_and_variants(tmp_path, beds):
    (path, calls), prefix = beds[0], str(tmp_path / "o")
    keep = tmp_path / "keep"
    keep.write_text("\n".join(f"s{i} s{i}" for i in range(40)))
    for words, rows in ([], 60), (["--keep", str(keep)], 40), (["--solver", "randomized"], 60):
        command = ["fit", path, "-k", "2", "--out", prefix, "--missing-counts", "--overwrite", "-q"]
        assert main([*command, *words]) == 0
        lost = calls[:rows] < 0
        samples, variants = table(f"{prefix}.smiss"), table(f"{prefix}.vmiss")
        assert [*samples] == ["FID", "IID", "MISSING_CT", "OBS_CT", "F_MISS"]
        assert [*variants] == ["CHROM", "ID", "MISSING_CT", "OBS_CT", "F_MISS"]
        for found, axis in ((samples, 1), (variants, 0)):
            np.testing.assert_array_equal(found.MISSING_CT, lost.sum(axis))
            assert (lost.shape[axis] == found.OBS_CT).all()
            np.testing.assert_allclose(found.F_MISS, lost.mean(axis), rtol=1e-5)


def test_eigenvalues_in_the_scale_of_smartpca(tmp_path, beds):
    prefix = str(tmp_path / "o")
    command = ["fit", beds[0][0], "-k", "59", "--scale", "eigensoft", "--out", prefix, "-q"]
    assert main([*command, "--eigenval-values", "smartpca"]) == 0
    found = np.loadtxt(f"{prefix}.eigenval")
    assert found.sum() == pytest.approx(59)
    plain = streampca.GenotypePCA(59, scale="eigensoft").fit(beds[0][0]).eigenvalues_
    np.testing.assert_allclose(found, plain / plain.sum() * 59, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("--missing-counts", "--missing-counts writes PREFIX.smiss: add --out PREFIX"),
        ("--allele-wts", "--allele-wts writes PREFIX.eigenvec.allele: add --out PREFIX"),
        ("--allele-wts --out o --no-components", "leave out --no-components"),
        ("--allele-wts --out o --ploidy 4", "leave out --ploidy"),
    ],
)
def test_tables_that_cannot_be_written_are_refused(beds, words, match, capsys):
    assert main(["fit", beds[0][0], *words.split()]) == 65
    assert match in capsys.readouterr().err


def test_loadings_need_an_id_for_each_variant(tmp_path, capsys):
    bed = write_plink(tmp_path / "x", random_calls(20, 40), ids=[f"rs{j % 39}" for j in range(40)])
    out = ["--out", str(tmp_path / "o")]
    assert main(["fit", bed, "-k", "2", "--allele-wts", *out]) == 65
    assert "(--allele-wts) needs an id for each variant" in capsys.readouterr().err
    (tmp_path / "ids").write_text("rs0")
    exclude = ["--exclude", str(tmp_path / "ids")]
    assert main(["fit", bed, "-k", "2", "-q", "--allele-wts", *out, *exclude]) == 0
