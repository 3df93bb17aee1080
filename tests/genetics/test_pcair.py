"""PC-AiR's partition against the text of the paper, and fits on the unrelated samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca import GenotypePCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, RelatedSamplesWarning, UncertainKinshipWarning
from streampca.genetics.pcair import THRESHOLD, pcair_partition
from tests.genotypes import random_calls, sample_names, write_plink
from tests.relatives import Families, admixed_families


def by_the_text(
    phi: np.ndarray, apart: np.ndarray, kinship: float = THRESHOLD, divergence: float = -THRESHOLD
) -> list[bool]:
    """The algorithm of Conomos et al. 2015, one sentence a line."""
    n = len(phi)
    everyone = set(range(n))
    related = {i: {j for j in everyone - {i} if phi[i, j] > kinship} for i in everyone}
    gamma = {i: sum(phi[i, j] for j in sorted(related[i])) for i in everyone}
    delta = {
        i: sum(bool(apart[i, j] < divergence) for j in everyone - {i} - related[i])
        for i in everyone
    }
    unrelated = set(everyone)
    while True:
        eta = {i: len(related[i] & unrelated) for i in unrelated}
        most = max(eta.values())
        if most == 0:
            return [i in unrelated for i in range(n)]
        among = [i for i in sorted(unrelated) if eta[i] == most]
        among = [i for i in among if delta[i] == min(delta[j] for j in among)]
        among = [i for i in among if gamma[i] == min(gamma[j] for j in among)]
        unrelated.remove(among[0])


@st.composite
def kinships(draw: st.DrawFn, n: int) -> np.ndarray:
    """(n, n) symmetric, of few different values, so that there are ties of every kind."""
    values = draw(
        st.lists(
            st.sampled_from([-np.inf, -0.25, -0.03125, 0.0, 0.03125, 0.125, 0.25, np.nan]),
            min_size=n * (n - 1) // 2,
            max_size=n * (n - 1) // 2,
        )
    )
    phi = np.full((n, n), 0.5)
    phi[np.tril_indices(n, -1)] = values
    return np.where(np.tri(n, dtype=bool), phi, phi.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(kinships(n), kinships(n))))
def test_the_partition_is_that_of_the_text(both):
    phi, apart = both
    found = pcair_partition(phi)
    assert found.unrelated.tolist() == by_the_text(phi, phi)
    assert not (phi[np.ix_(found.unrelated, found.unrelated)] > THRESHOLD)[
        ~np.eye(found.unrelated.sum(), dtype=bool)
    ].any()
    other = pcair_partition(phi, apart, kinship_threshold=0.125, divergence_threshold=-0.1)
    assert other.unrelated.tolist() == by_the_text(phi, apart, 0.125, -0.1)


def test_the_partition_of_larger_graphs_with_ties_is_that_of_the_text():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n = 60
        phi = rng.choice([-0.125, 0.0, 0.125, 0.25], (n, n), p=[0.3, 0.6, 0.08, 0.02])
        phi = np.tril(phi, -1) + np.tril(phi, -1).T + 0.5 * np.eye(n)
        found = pcair_partition(phi)
        assert found.unrelated.tolist() == by_the_text(phi, phi)
        off = phi - np.eye(n)
        assert found.relatives.tolist() == (off > THRESHOLD).sum(axis=1).tolist()


def test_a_kinship_and_its_matrix_give_the_same_partition():
    calls = np.random.default_rng(0).binomial(2, 0.4, (12, 9000)).astype(np.int8)
    calls[5] = calls[2]
    calls[7, :5000] = calls[2, :5000]
    king = streampca.kinship(calls)
    found, same = pcair_partition(king), pcair_partition(king.kinship)
    assert found.unrelated.tolist() == same.unrelated.tolist()
    assert not found.unrelated.all()
    assert found.to_dict() == {
        "method": "PC-AiR",
        "estimator": "KING-robust",
        "variants": 9000,
        "kinship_threshold": THRESHOLD,
        "divergence_threshold": -THRESHOLD,
        "unrelated": int(found.unrelated.sum()),
        "related": int((~found.unrelated).sum()),
    }
    assert list(found.columns()) == ["IID", "UNRELATED", "RELATIVES", "DIVERGENT"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kinship_threshold": -0.1}, "from 0 to 0.5"),
        ({"divergence_threshold": 0.1}, "up to 0"),
        ({"divergence": np.eye(4)}, "kinship of 3 samples and divergence of 4"),
        ({"divergence": np.arange(9.0).reshape(3, 3)}, "symmetric"),
    ],
)
def test_a_partition_refuses(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        pcair_partition(np.eye(3), **settings)


# -- fits on the unrelated samples -----------------------------------------------------------------


@pytest.fixture(scope="module")
def families() -> Families:
    return admixed_families(12000, 60, 6)


def test_a_fit_on_the_unrelated_samples(families, tmp_path):
    calls, pedigree = families.calls, families.pedigree
    n = len(calls)
    path = write_plink(tmp_path / "x", calls)
    model = GenotypePCA(3, unrelated="auto").fit(path)
    fitted, settings = model.result_.fitted, model.result_.settings["unrelated"]
    among = pedigree[np.ix_(fitted, fitted)]
    assert among[~np.eye(len(among), dtype=bool)].max() < THRESHOLD
    assert fitted.tolist() == by_the_text(*[streampca.kinship(path).kinship] * 2)
    third = np.digitize(families.ancestry[:, 0], [0.33, 0.67])
    assert all((fitted & (third == one)).sum() > 5 for one in range(3))  # groups are kept
    truth = np.array([not (pedigree[i, :i] > 0).any() for i in range(n)])
    ideal = GenotypePCA(3, fit_samples=np.array(sample_names(n))[truth]).fit(path)
    assert abs(np.corrcoef(model.scores_[:, 0], ideal.scores_[:, 0])[0, 1]) > 0.999
    assert (settings["unrelated"], settings["related"]) == (fitted.sum(), (~fitted).sum())
    named = np.array(sample_names(n))[fitted].tolist()
    listed = GenotypePCA(3, unrelated=named).fit(path)
    parts = streampca.pcair_partition(streampca.kinship(path))
    masked = GenotypePCA(3, unrelated=parts.unrelated).fit(path)
    for same in (listed, masked, GenotypePCA(3, unrelated=parts).fit(path)):
        np.testing.assert_array_equal(same.scores_, model.scores_)
        np.testing.assert_array_equal(same.components_, model.components_)
    assert [one.name for one in model.plan_.passes] == ["pairs", "gram", "loadings"]
    assert [one.name for one in model.cost_] == ["pairs", "gram", "loadings"]
    plan = GenotypePCA(3, unrelated="auto").plan(path)
    assert [one.name for one in plan.passes] == ["pairs", "gram", "loadings"]
    saved = streampca.load(model.save(tmp_path / "model")).result_
    assert saved.settings["unrelated"] == settings
    assert saved.fitted.tolist() == fitted.tolist()


def test_relatives_without_names_and_with_few_calls(families):
    calls = families.calls.copy()
    calls[3, :9000] = -1
    with pytest.warns(UserWarning, match="1 of .* samples have more than 50.0%"):
        model = GenotypePCA(2, unrelated="auto", max_sample_missing=0.5).fit(calls)
    rest = np.delete(calls, 3, axis=0)
    same = GenotypePCA(2, unrelated="auto").fit(rest)
    np.testing.assert_array_equal(model.scores_, same.scores_)
    assert [one.name for one in model.cost_] == ["calls by sample", "pairs", "gram", "loadings"]
    parts = streampca.pcair_partition(streampca.kinship(rest))
    np.testing.assert_array_equal(model.result_.fitted, parts.unrelated)
    with pytest.raises(InvalidInputError, match="a partition of 89 samples and data of 90"):
        GenotypePCA(2, unrelated=parts).fit(calls)
    with pytest.raises(InvalidInputError, match="a mask"):
        GenotypePCA(2, fit_samples=parts.unrelated).fit(calls)
    founders = calls[:20]
    with pytest.warns(UserWarning, match="samples have more"):
        none = GenotypePCA(2, unrelated="auto", max_sample_missing=0.5).fit(founders)
    assert none.result_.fitted is None
    assert none.result_.settings["unrelated"]["related"] == 0
    np.testing.assert_array_equal(
        none.scores_, GenotypePCA(2).fit(np.delete(founders, 3, axis=0)).scores_
    )


def planted() -> np.ndarray:
    """(59, 12000) calls of two populations, with an outlier, a sibship and a pair of duplicates."""
    made = Families(12000, 3, 0.15, 3)
    shares = np.repeat(np.eye(3)[:2], 25, axis=0)
    founders = made.founders(np.vstack([shares, [0.6, 0, 0.4]]))
    for _ in range(7):
        made.child(founders[0], founders[1])
    made.twin(founders[30])
    return made.calls


def test_a_sibship_and_duplicates_make_no_component_of_the_unrelated():
    calls = planted()
    siblings, twins = [0, 1, *range(51, 58)], [30, 58]

    def share(model: GenotypePCA, rows: list[int]) -> np.ndarray:
        """(k,) of the squares of each component that these samples hold."""
        return (model.scores_[rows] ** 2).sum(axis=0) / (model.scores_**2).sum(axis=0)

    with pytest.warns(RelatedSamplesWarning, match="pairs of fitted samples have kinship"):
        plain = GenotypePCA(5).fit(calls)
    with pytest.warns(RelatedSamplesWarning, match="PC2: sample 50 alone") as said:
        model = GenotypePCA(5, unrelated="auto").fit(calls)
    assert "kinship 0.177" not in str(said[0].message)
    assert share(plain, siblings)[1] > 0.5  # the second component is the sibship
    assert share(plain, twins).max() > 0.7
    assert share(model, [50])[1] > 0.5  # now the outlier
    assert share(model, siblings)[1:].max() < 0.3
    assert share(model, twins).max() < 0.3
    first = model.scores_[:, 0] > 0
    assert set(first[:25]) == set(first[51:58]) != set(first[25:50])
    assert set(np.flatnonzero(~model.result_.fitted)) == {30, *range(51, 58)}


@pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
def test_scores_of_the_others_without_shrinkage(families, tmp_path):
    calls = families.calls[:, :3000].copy()
    calls[5, 100:110] = -1
    path = write_plink(tmp_path / "x", calls)
    names = sample_names(len(calls))
    some, others = names[:70], names[70:]
    plain = GenotypePCA(4, fit_samples=some).fit(path)
    model = GenotypePCA(4, fit_samples=some, shrinkage="oadp").fit(path)
    new = write_plink(tmp_path / "new", calls[70:], samples=others)
    wanted = streampca.project_samples(plain, new, shrinkage="oadp").scores
    np.testing.assert_allclose(model.scores_[70:], wanted, rtol=0, atol=2e-3)
    np.testing.assert_array_equal(model.scores_[:70], plain.scores_[:70])
    grown = np.linalg.norm(model.scores_[70:], axis=1) / np.linalg.norm(plain.scores_[70:], axis=1)
    assert grown.min() > 1.05
    with pytest.raises(InvalidInputError, match="solver='scatter' does not form"):
        GenotypePCA(2, fit_samples=some, shrinkage="oadp", solver="scatter").fit(path)
    with pytest.raises(InvalidInputError, match="add unrelated='auto'"):
        GenotypePCA(2, shrinkage="oadp").fit(path)
    for setting in ({}, {"loadings": str(tmp_path / "v.zarr")}):
        auto = GenotypePCA(3, unrelated="auto", shrinkage="oadp", **setting)
        with pytest.warns(UncertainKinshipWarning):
            auto.fit(path)
        assert auto.plan_.solver == "gram"


@pytest.mark.parametrize("pruned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_fit_and_plan_on_the_command_line(families, tmp_path, capsys, pruned):
    calls = families.calls[:, :9000]
    path = write_plink(tmp_path / "x", calls)
    common = ["-k", "2", "--unrelated", "auto"]
    assert main(["plan", path, *common]) == 0
    assert "pass 1/3  pairs" in capsys.readouterr().out
    out = tmp_path / "out"
    wanted = ["fit", path, *common, "-o", str(tmp_path / "m"), "--out", str(out)]
    pruning = ["--ld-r2", "0.5"] if pruned else []
    assert main([*wanted, *pruning, "--maf", "0.05", "--mind", "0.9"]) == 0
    said = capsys.readouterr().out
    model = streampca.load(tmp_path / "m")
    fitted = model.result_.fitted
    why = "samples were projected: related (KING-robust kinship above 0.0221,"
    assert f"{(~fitted).sum()} of {len(calls)} {why}" in said
    table = [line.split() for line in Path(f"{out}.eigenvec").read_text().splitlines()]
    assert table[0] == ["#FID", "IID", "FITTED", "PC1", "PC2"]
    assert [row[2] == "1" for row in table[1:]] == fitted.tolist()
    king = streampca.kinship(path, maf=0.05)
    assert fitted.tolist() == streampca.pcair_partition(king).unrelated.tolist()
    passes = [one["name"] for one in model.result_.plan["passes"]]
    assert passes[:2] == ["calls by sample", "pairs"]
    assert passes[-2:] == ["gram", "loadings"]
    assert main(["info", str(tmp_path / "m")]) == 0
    assert why in capsys.readouterr().out
    assert main(["info", str(tmp_path / "m"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["projected"] == (~fitted).sum()
    assert whole["unrelated"]["method"] == "PC-AiR"
    assert main(["plan", path, *common, "--fit-samples", "a.txt"]) != 0
    assert "leave one of them out" in capsys.readouterr().err


def test_unrelated_samples_are_not_found_where_kinship_is_not_defined(tmp_path):
    calls = random_calls(8, 40)
    path = write_plink(tmp_path / "x", calls, chromosomes=["X"] * 40)
    every = streampca.VariantFilter(chromosomes="all")
    with pytest.raises(InvalidInputError, match="autosomes"):
        GenotypePCA(2, unrelated="auto", variants=every).fit(path)
    with pytest.raises(InvalidInputError, match="diploid"):
        GenotypePCA(2, unrelated="auto", ploidy=4).fit(calls)
    with pytest.raises(InvalidInputError, match="unrelated needs components=True"):
        GenotypePCA(2, unrelated="auto", components=False).fit(calls)
    with pytest.raises(InvalidInputError, match="does not give scores of other samples"):
        GenotypePCA(2, unrelated="auto", solver="randomized").fit(random_calls(8, 40))
    with pytest.raises(InvalidInputError, match="both name the samples"):
        GenotypePCA(2, unrelated=["s1"], fit_samples=["s1"], variants=every).fit(path)
    with pytest.raises(InvalidInputError, match="at least 2 samples"):
        GenotypePCA(1, unrelated="auto").fit(calls[:1])
    calls[4:] = calls[0]
    with (
        pytest.warns(UncertainKinshipWarning, match="40 variants"),
        pytest.raises(InvalidInputError, match="n_components"),
    ):
        GenotypePCA(7, unrelated="auto").fit(calls)
