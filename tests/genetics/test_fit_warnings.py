"""What a genotype fit says of relatives, copies and outliers: planted ones, and ordinary data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import zarr
from genotypes import write_plink

import streampca
from streampca import PCA, GenotypePCA
from streampca.cli import main
from streampca.errors import DamagedSourceError, RelatedSamplesWarning
from streampca.genetics.fit_warnings import relatives_in
from streampca.models.decompose import routes
from streampca.models.decompose.panels import panel_candidates
from streampca.solvers import concentrations, eigh_lower

SIBLINGS = [f"sib{i}" for i in range(6)]
SEGMENT = 10  # variants between two crossings over


def populations(p: int, fst: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, p) allele frequencies of populations from one ancestor (Balding and Nichols)."""
    ancestral, spread = rng.uniform(0.05, 0.95, p), (1 - fst) / fst
    return rng.beta(ancestral * spread, (1 - ancestral) * spread, (count, p))


def people(frequency: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, 2, p) haplotypes."""
    return rng.random((n, 2, frequency.shape[-1])) < frequency


def child(parents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(2, p) one recombined haplotype of each of two parents (2, 2, p)."""
    p = parents.shape[2]
    side = np.repeat(rng.integers(0, 2, (2, -(-p // SEGMENT))), SEGMENT, axis=1)[:, :p]
    return np.where(side, parents[:, 1], parents[:, 0])


@cache
def planted(*parts: str, n: int = 40, p: int = 2000) -> tuple[np.ndarray, list[str]]:
    """Calls and names of two populations, and of the parts "siblings", "copy" and "outlier"."""
    rng = np.random.default_rng(0)
    f = populations(p, 0.05, 2, rng)
    haplotypes = [people(f[0], n, rng), people(f[1], n, rng)]
    names = [f"{group}{i}" for group in "ab" for i in range(n)]
    parents = people(f[0], 2, rng)
    family = np.stack([child(parents, rng) for _ in SIBLINGS])
    stranger = people(rng.uniform(0.05, 0.95, p), 1, rng)
    if "siblings" in parts:
        haplotypes.append(family)
        names += SIBLINGS
    if "copy" in parts:
        haplotypes.append(haplotypes[0][3:4])
        names.append("copy of a3")
    if "outlier" in parts:
        haplotypes.append(stranger)
        names.append("outlier")
    return np.concatenate(haplotypes).sum(axis=1).astype(np.int8), names


ALL = ("siblings", "copy", "outlier")


@pytest.fixture
def bed(tmp_path):
    def written(calls, names):
        ids = [name.replace(" ", "_") for name in names]
        return write_plink(tmp_path / "x", calls, samples=ids, families=["f"] * len(ids))

    return written


def warned(source, *args, **settings):
    with pytest.warns(RelatedSamplesWarning) as caught:
        model = GenotypePCA(*args, **settings).fit(source)
    assert len(caught) == 1
    return model, str(caught[0].message)


def gram_of(calls: np.ndarray, scale: bool = True) -> np.ndarray:
    """Z Z'/M of calls, -1 = missing, by NumPy."""
    seen = calls >= 0
    mean = np.where(seen, calls, 0).sum(axis=0) / np.maximum(seen.sum(axis=0), 1)
    z, variance = np.where(seen, calls - mean, 0.0), mean * (1 - mean / 2)
    z = z[:, variance > 0] / (np.sqrt(variance[variance > 0]) if scale else 1.0)
    z -= z.mean(axis=0)
    return z @ z.T / z.shape[1]


def found_in(gram: np.ndarray, k: int = 10) -> dict[tuple[int, int], float]:
    lower = np.tril(gram)
    before = lower.copy()
    spectrum = eigh_lower(lower.copy(), min(k, len(gram) - 1))
    found = relatives_in(lower, spectrum)
    np.testing.assert_array_equal(lower, before)
    return {(i, j): phi for (i, j), phi in zip(found.pairs.tolist(), found.kinship, strict=True)}


def test_planted_relatives_a_copy_and_an_outlier_are_named(bed) -> None:
    path = bed(*planted(*ALL))
    model, message = warned(path)
    assert "outlier alone holds 9" in message
    assert "6 relatives (sib0; sib1; sib2; sib3 and 2 more) hold" in message
    assert "2 near-identical samples (a3; copy_of_a3) hold" in message
    assert (
        "16 pairs of fitted samples have kinship 0.177 or more: copy_of_a3 and a3 0.50" in message
    )
    assert "unrelated='auto'" in message
    assert "exclude='samples.txt'" in message
    king = streampca.kinship(path)
    close = king.related("first")
    expected = set(zip(close.first.tolist(), close.second.tolist(), strict=True))
    relatives, kinship = model.result_.relatives, model.result_.relatives_kinship
    assert {tuple(pair) for pair in relatives.tolist()} == expected
    assert np.all(np.diff(kinship) <= 0)
    np.testing.assert_allclose(kinship, king.kinship[tuple(relatives.T)], atol=0.03)


@pytest.mark.parametrize("part", ALL)
def test_each_of_them_is_named_alone(part) -> None:
    calls, _ = planted(part)
    model, message = warned(calls, 5)
    said, count = {
        "siblings": ("6 relatives (sample 80", 15),
        "copy": ("2 near-identical samples (sample 3; sample 80)", 1),
        "outlier": ("sample 80 alone", 0),
    }[part]
    assert said in message
    assert len(model.result_.relatives) == count
    assert message.count("PC") == 1


@pytest.mark.parametrize("k", [1, 2, 10])
def test_two_populations_without_them_are_silent(k) -> None:
    model = GenotypePCA(k).fit(planted()[0])
    assert model.result_.findings() == []
    assert model.result_.relatives.shape == (0, 2)


@pytest.mark.parametrize("scale", ["hwe", "eigensoft", "std", None])
def test_relatives_do_not_depend_on_scale_holes_or_the_number_of_components(scale) -> None:
    calls = planted(*ALL)[0].copy()
    calls[np.random.default_rng(1).random(calls.shape) < 0.05] = -1
    expected = {(i, j) for i in range(80, 86) for j in range(80, i)} | {(86, 3)}
    for k in (1, 6):
        model, _ = warned(calls, k, scale=scale, components=False)
        assert {tuple(pair) for pair in model.result_.relatives.tolist()} == expected


def test_panels_of_samples_find_the_same(tmp_path, monkeypatch) -> None:
    calls, _ = planted("siblings", "copy")
    stored = zarr.create_array(tmp_path / "x.zarr", data=calls, chunks=(20, calls.shape[1]))
    whole, _ = warned(calls, 3)
    panels = [way for way in routes.WAYS if way.candidates is panel_candidates]
    monkeypatch.setattr(routes, "WAYS", panels)
    by_panels, _ = warned(stored, 3)
    assert "panel" in by_panels.plan_.solver
    np.testing.assert_array_equal(
        np.sort(by_panels.result_.relatives, axis=0), np.sort(whole.result_.relatives, axis=0)
    )


def test_relatives_that_are_scored_only_do_not_count(bed) -> None:
    calls, names = planted("siblings", "copy")
    path = bed(calls, names)
    unrelated = [name for name in names if name not in (*SIBLINGS[1:], "copy of a3")]
    model = GenotypePCA(4, fit_samples=unrelated).fit(path)
    assert model.result_.findings() == []
    model, message = warned(path, 4, fit_samples=[*unrelated[20:], "sib4"])
    assert model.result_.relatives.tolist() == [[names.index("sib4"), names.index("sib0")]]
    assert "sib4 and sib0" in message


def test_a_tall_fit_knows_outliers_and_copies_by_its_scores() -> None:
    calls, _ = planted("outlier", n=200, p=300)
    model, message = warned(np.concatenate([calls, np.tile(calls[3], (9, 1))]), 8)
    assert model.plan_.solver == "scatter"
    assert model.result_.relatives is None
    assert "sample 400 alone holds" in message
    assert "10 near-identical samples (sample 3; sample 401; sample 402; sample 403 and" in message
    assert "kinship 0.177" not in message
    assert GenotypePCA(8).fit(planted(n=200, p=300)[0]).result_.findings() == []


def test_families_of_any_number_are_found_completely() -> None:
    rng = np.random.default_rng(2)
    f, expected, everyone = populations(2000, 0.05, 2, rng), set(), []
    for family in range(40):
        parents = people(f[family % 2], 2, rng)
        everyone += [*parents, *(child(parents, rng) for _ in range(1 + family % 3))]
        m, last = 3 + family % 3, len(everyone)
        pairs = [(i, j) for i in range(last - m, last) for j in range(last - m, i)]
        expected |= {*pairs} - {(last - m + 1, last - m)}  # the parents
    assert found_in(gram_of(np.sum(everyone, axis=1))).keys() == expected


@pytest.mark.parametrize("fst", [0.01, 0.1, 0.3])
def test_small_populations_and_admixture_are_no_relatives(fst) -> None:
    rng = np.random.default_rng(3)
    f = populations(2000, fst, 3, rng)
    groups = [people(one, n, rng) for one, n in zip(f, (60, 40, 20), strict=True)]
    assert found_in(gram_of(np.concatenate(groups).sum(axis=1))) == {}
    share = rng.dirichlet([0.5] * 3, 100)
    assert found_in(gram_of(people((share @ f)[:, None, :], 100, rng).sum(axis=1))) == {}


def test_poorly_called_samples_are_no_relatives_and_their_copies_are() -> None:
    rng = np.random.default_rng(4)
    calls = people(populations(3000, 0.1, 1, rng)[0], 80, rng).sum(axis=1)
    calls[70:][rng.random((10, 3000)) < 0.8] = -1
    assert found_in(gram_of(calls)) == {}
    calls[79] = np.where(rng.random(3000) < 0.8, -1, calls[5])
    assert list(found_in(gram_of(calls))) == [(79, 5)]


def test_a_control_in_forty_copies_is_no_population() -> None:
    rng = np.random.default_rng(5)
    calls = people(rng.uniform(0.1, 0.9, 2000), 160, rng).sum(axis=1)
    calls[120:] = calls[0]
    calls[120:][rng.random((40, 2000)) < 0.005] = 1
    found = found_in(gram_of(calls))
    assert len(found) == 41 * 40 // 2
    assert min(found.values()) > 0.354


@pytest.mark.parametrize("p", [60, 1000])
def test_few_samples_or_variants_are_silent(p) -> None:
    """No false one in 60 fits, of one population and of two that have F_ST = .2."""
    for seed in range(6):
        rng = np.random.default_rng([seed, p])
        for n in (2, 3, 5, 10, 30):
            for groups in (1, 2):
                f = rng.uniform(0.1, 0.9, (groups, p))[np.arange(n) % groups]
                calls = rng.binomial(2, f)
                gram = gram_of(calls)
                assert found_in(gram, 2) == {}
                values, vectors = np.linalg.eigh(gram)
                leading = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, : min(10, n - 1)]
                assert concentrations(leading) == []


def test_concentrations_are_shares_of_sums_of_squares() -> None:
    rng = np.random.default_rng(6)
    v = rng.normal(size=(100, 4))
    v[7, 1] = 3 * np.linalg.norm(v[:, 1])
    v[[20, 21], 2] = 20.0
    one, *others = concentrations(v)
    assert (one.component, one.rows.tolist()) == (1, [7])
    assert one.share == pytest.approx(v[7, 1] ** 2 / np.sum(v[:, 1] ** 2))
    assert others == []  # 20 and 21 differ elsewhere
    v[21] = v[20]
    assert [one.rows.tolist() for one in concentrations(v)] == [[7], [20, 21]]
    assert [one.rows.tolist() for one in concentrations(v[:, 2:3])] == []  # nothing to compare
    family = np.arange(100)
    family[40:50] = 40
    v[40:50, 3] = 10.0
    assert [one.rows.tolist() for one in concentrations(v, family)] == [[7], [*range(40, 50)]]
    family[10:80] = 10  # most samples: no wonder that they hold most
    assert [one.component for one in concentrations(v, family)] == [1]


def test_what_is_said_is_kept_with_the_model(tmp_path) -> None:
    model, message = warned(planted(*ALL)[0], 6)
    loaded = streampca.load(model.save(tmp_path / "model"))
    assert loaded.result_.findings() == model.result_.findings()
    assert all(one in message for one in loaded.result_.findings())
    assert all(one in loaded.report().html for one in loaded.result_.findings())
    for wrong in (model.result_.relatives + 80, model.result_.relatives[:, :1], None):
        with pytest.raises(DamagedSourceError, match="no pairs of its samples"):
            replace(model.result_, relatives=wrong).check("here")


def test_the_command_says_it_in_its_own_words(bed, tmp_path, capsys) -> None:
    path, model = bed(*planted(*ALL)), str(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["fit", path, "-k", "4", "-o", model]) == 0
    said = capsys.readouterr().err
    assert "RelatedSamplesWarning" in said
    assert "score all, --unrelated auto, or leave some out" in said
    assert "--remove samples.txt; streampca relate lists the kinship of all pairs" in said
    assert "exclude" not in said
    (tmp_path / "samples.txt").write_text(
        "f copy_of_a3\nf outlier\n" + "".join(f"f {name}\n" for name in SIBLINGS[1:])
    )
    again = ["fit", path, "-k", "4", "--remove", str(tmp_path / "samples.txt")]
    assert main(again) == 0
    assert main(["info", model]) == 0
    assert "2 near-identical samples (a3; copy_of_a3) hold" in capsys.readouterr().out


def test_other_components_have_a_note_and_no_warning() -> None:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(60, 200))
    X[9, :] *= 9.0
    model = PCA(3).fit(X)
    (note,) = model.result_.notes()
    assert note.startswith("samples    PC1: sample 9 alone holds 9")
    assert PCA(3).fit(np.delete(X, 9, axis=0)).result_.notes() == []


@pytest.mark.slow
def test_unrelated_samples_are_found_by_the_option_that_is_named() -> None:
    calls, _ = planted(*ALL, p=10_000)
    warned(calls, 3)
    model, message = warned(calls, 3, unrelated="auto")
    assert "PC2: sample 87 alone" in message
    assert "relatives (" not in message
    assert len(model.result_.relatives) == 0
    assert np.count_nonzero(model.result_.fitted) == 80 + 1 + 1


@pytest.mark.slow
def test_relatives_of_real_samples_are_those_of_king(shared_data) -> None:
    for name, count in (
        ("data.bed", 47),
        ("1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap.bed", 27),
    ):
        path = shared_data / "hapmap3" / name
        king = streampca.kinship(path).kinship
        model, _ = warned(path, 2, components=False)
        expected = {*zip(*np.nonzero(np.tril(king >= 0.177, -1)), strict=True)}
        assert {tuple(pair) for pair in model.result_.relatives.tolist()} == expected
        assert len(expected) == count
        found = king[tuple(model.result_.relatives.T)]
        np.testing.assert_allclose(model.result_.relatives_kinship, found, atol=0.025)
