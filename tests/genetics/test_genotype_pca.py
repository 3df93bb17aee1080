"""GenotypePCA against NumPy: scalings, filters, counts, cohorts, warnings, published digits."""

from __future__ import annotations

import gc
import warnings

import dask.array as da
import numpy as np
import pytest
from genotypes import write_plink

import streampca
from streampca import GenotypePCA, VariantFilter
from streampca.errors import (
    AbsentNamesWarning,
    InvalidInputError,
    LocalComponentWarning,
    NonFounderWarning,
    RelatedSamplesWarning,
    UnknownChromosomeWarning,
)
from streampca.genetics.filters import expand_chromosomes, in_regions
from streampca.genetics.id_lists import sample_mask
from streampca.genetics.local_loadings import local_components
from streampca.kernels import ColumnStats
from streampca.matrix import AxisLabels, Labels, select
from streampca.matrix.standardize import Standardize
from streampca.models.decompose import routes
from streampca.models.decompose.panels import panel_candidates
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.stacked import StackedMatrix

TEXT = np.dtypes.StringDType()


def genotypes(
    calls: np.ndarray, chromosome: object = None, position: object = None
) -> StackedMatrix:
    """(n, p) int8 calls, -1 = missing, with labels as a .bed has them."""
    n, p = calls.shape
    extra = {
        "chromosome": np.array(["1"] * p if chromosome is None else chromosome, TEXT),
        "position": np.arange(p) * 1000 if position is None else np.asarray(position),
        "counted_allele": np.array(["A"] * p, TEXT),
        "other_allele": np.array(["G"] * p, TEXT),
    }
    names = np.array([f"v{j}" for j in range(p)], TEXT)
    samples = AxisLabels(
        ("sample",),
        (n,),
        {"sample": np.array([f"s{i}" for i in range(n)], TEXT)},
        extra={
            "family": np.array([f"f{i}" for i in range(n)], TEXT),
            "individual": np.array([f"s{i}" for i in range(n)], TEXT),
        },
    )
    variants = AxisLabels(("variant",), (p,), {"variant": names}, extra=extra)
    return StackedMatrix(ArrayReader(calls), (0,), (1,), Labels(samples, variants), -1)


def simulated(n: int = 60, p: int = 900, missing: float = 0.1, seed: int = 0) -> np.ndarray:
    """Three populations, ``missing`` at random, 2 % monomorphic, one column all missing."""
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 3
    frequency = np.clip(rng.uniform(0.1, 0.9, p) + rng.normal(0, 0.12, (3, p)), 0.02, 0.98)
    calls = rng.binomial(2, frequency[group]).astype(np.int8)
    calls[:, rng.random(p) < 0.02] = 2
    calls[rng.random(calls.shape) < missing] = -1
    calls[:, 5] = -1
    return calls


def oracle(calls: np.ndarray, scale: str, keep: np.ndarray | None = None) -> tuple:
    """(eigenvalues of ZZ'/M, Z, used) by the textbook in float64."""
    x = np.where(calls < 0, np.nan, calls.astype(float))
    count = (~np.isnan(x)).sum(axis=0)
    total = np.nansum(x, axis=0)
    f = total / np.maximum(count, 1) / 2
    used = (f > 0) & (f < 1) & (count > 0)
    used &= True if keep is None else keep
    prior = (1 + total) / (2 + 2 * count)
    divisor = {
        "hwe": np.sqrt(2 * f * (1 - f)),
        "eigensoft": np.sqrt(prior * (1 - prior)),
        "std": np.sqrt(np.nansum((x - 2 * f) ** 2, axis=0) / np.maximum(count - 1, 1)),
    }[scale]
    z = np.zeros(x.shape)
    z[:, used] = np.nan_to_num((x[:, used] - 2 * f[used]) / divisor[used])
    return np.linalg.eigvalsh(z @ z.T / used.sum())[::-1], z, used


@pytest.mark.parametrize("scale", ["hwe", "eigensoft", "std"])
@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_eigenvalues_and_counts(scale: str, solver: str) -> None:
    calls = simulated(p=300 if solver == "scatter" else 900)
    with pytest.warns(UserWarning, match="no observation"):
        model = GenotypePCA(4, scale=scale, solver=solver).fit(genotypes(calls))
    values, z, used = oracle(calls, scale)
    np.testing.assert_allclose(model.eigenvalues_, values[:4], rtol=2e-6)
    assert model.n_features_used_ == used.sum()
    result = model.result_
    assert result.dropped.tolist() == [5]
    assert len(result.constant) == (~used).sum() - 1 > 1
    np.testing.assert_array_equal(result.missing, (calls < 0).sum(axis=0))
    np.testing.assert_array_equal(result.missing_by_sample, (calls < 0).sum(axis=1))
    np.testing.assert_allclose(model.scores_, z @ model.components_.T, atol=2e-4)
    np.testing.assert_allclose(model.eigenvectors_.T @ model.eigenvectors_, np.eye(4), atol=1e-5)
    share = values[:4] / values.sum()
    np.testing.assert_allclose(model.explained_variance_ratio_, share, rtol=1e-5)
    x = np.where(calls < 0, np.nan, calls)[:, used]
    np.testing.assert_allclose(model.frequencies_[used], np.nanmean(x, axis=0) / 2, rtol=1e-12)


def test_filters_leave_out_and_count() -> None:
    calls = simulated(missing=0.0)
    calls[:, 5] = 1
    calls[:20, 7] = -1
    calls[:, 9] = 0
    calls[0, 9] = 1
    model = GenotypePCA(3, maf=0.05, max_missing=0.2).fit(genotypes(calls))
    f = np.where(calls < 0, np.nan, calls)
    f = np.nanmean(f, axis=0) / 2
    keep = (np.minimum(f, 1 - f) >= 0.05) & ((calls < 0).mean(axis=0) <= 0.2)
    values, _, used = oracle(calls, "hwe", keep)
    np.testing.assert_allclose(model.eigenvalues_, values[:3], rtol=2e-6)
    assert {7, 9} <= set(model.result_.filtered.tolist())
    assert model.n_features_used_ == used.sum()
    assert not model.components_[:, model.result_.filtered].any()


def test_limits_are_met_exactly_and_alike_for_both_alleles() -> None:
    """29 of 100 missing is not more than 0.29, and 0.9 is as common as 0.1."""
    rng = np.random.default_rng(1)
    calls = rng.binomial(2, 0.5, (100, 40)).astype(np.int8)
    calls[:, :4] = 0
    calls[:20, 0], calls[:19, 2] = 1, 1  # f = 0.1 and less
    calls[:, 1], calls[:, 3] = 2 - calls[:, 0], 2 - calls[:, 2]
    calls[:29, 4], calls[:30, 5] = -1, -1
    for solver in ("gram", "scatter"):
        model = GenotypePCA(2, maf=0.1, max_missing=0.29, solver=solver)
        assert model.fit(genotypes(calls)).result_.filtered.tolist() == [2, 3, 5]
    for n, p in ((1000, 0.01), (977, 0.05), (3000, 0.001)):
        for share in (p, 1 - p):
            mean = np.array([2 * share, 2 * (round(share * n) / n)])
            stats = ColumnStats(*(np.full(2, v) for v in (n, 0, float(n))), mean, *np.ones((3, 2)))
            rare = Standardize(scale="hwe", maf=round(p * n) / n).resolve(stats, 0.0).filtered
            assert not rare[1]
    calls[:, 4:6] = 1
    calls[7, :29], calls[8, :29] = -1, -1
    calls = np.hstack([calls, np.ones((100, 60), np.int8)])
    calls[8, 50] = -1
    with pytest.warns(UserWarning, match="1 of 100 samples .* s8"):
        GenotypePCA(2, max_sample_missing=0.29).fit(genotypes(calls))


@pytest.mark.parametrize("solver", ["gram", "scatter", "panels"])
def test_no_variant_left_is_refused(solver, tmp_path, monkeypatch) -> None:
    """And not a component of nothing, with an eigenvalue of 0."""
    calls = simulated(20, 60, 0.3)
    calls[:2] = -1
    settings: dict = {"max_missing": 0.01, "maf": 0.1, "solver": solver}
    if solver == "panels":
        settings["solver"] = "gram"
        panels = [way for way in routes.WAYS if way.candidates is panel_candidates]
        monkeypatch.setattr(routes, "WAYS", panels)
    elif solver == "gram":
        settings["relationship"] = tmp_path / "r.zarr"
    with pytest.raises(InvalidInputError, match=r"none of 60 variants is left: .*maf=0.1, .*=0.01"):
        GenotypePCA(2, **settings).fit(genotypes(calls))
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_ill_called_samples_are_left_out_first() -> None:
    calls = simulated(missing=0.0)
    calls[:, 5] = 1
    calls[3, :400] = -1
    with pytest.warns(UserWarning, match="1 of 60 samples"):
        model = GenotypePCA(3, max_sample_missing=0.1).fit(genotypes(calls))
    same = GenotypePCA(3).fit(genotypes(np.delete(calls, 3, axis=0)))
    np.testing.assert_array_equal(model.eigenvalues_, same.eigenvalues_)
    assert model.scores_.shape == (59, 3)
    assert [one.name for one in model.plan_.passes] == [c.name for c in model.cost_]
    with pytest.raises(InvalidInputError, match="leaves no sample"):
        GenotypePCA(3, max_sample_missing=0.0).fit(genotypes(np.where(calls < 3, -1, calls)))


@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_fit_on_some_score_all(solver: str) -> None:
    calls = simulated(p=300, missing=0.02)
    calls[:, 5] = 1
    chosen = [f"s{i}" for i in range(0, 60, 2)]
    model = GenotypePCA(3, fit_samples=chosen, solver=solver).fit(genotypes(calls))
    alone = GenotypePCA(3, solver=solver).fit(select(genotypes(calls), samples=np.arange(0, 60, 2)))
    np.testing.assert_allclose(model.eigenvalues_, alone.eigenvalues_, rtol=1e-12)
    np.testing.assert_allclose(model.components_, alone.components_, atol=1e-12)
    assert model.scores_.shape == (60, 3)
    np.testing.assert_allclose(model.scores_[::2], alone.scores_, atol=1e-4)
    x = np.where(calls < 0, np.nan, calls) - model.mean_
    z = np.nan_to_num(
        np.where(model.scale_ > 0, x / np.where(model.scale_ > 0, model.scale_, 1), 0)
    )
    np.testing.assert_allclose(model.scores_[1::2], (z @ model.components_.T)[1::2], atol=1e-3)
    if solver == "gram":
        assert len(model.cost_) == 2  # the others are scored in the pass for the loadings
    np.testing.assert_array_equal(model.result_.missing_by_sample, (calls < 0).sum(axis=1))


@pytest.mark.parametrize("axis", [0, 1])
def test_all_are_scored_by_a_pass_of_samples_or_of_features(axis, monkeypatch) -> None:
    monkeypatch.setattr("streampca.genetics.all_scores.easier_axis", lambda matrix: axis)
    calls = simulated(p=300, missing=0.02)
    calls[:, 5] = 1
    chosen = [f"s{i}" for i in range(40)]
    model = GenotypePCA(3, fit_samples=chosen, solver="scatter").fit(genotypes(calls))
    np.testing.assert_array_equal(model.result_.missing_by_sample, (calls < 0).sum(axis=1))
    np.testing.assert_allclose(model.scores_, model.transform(genotypes(calls)), atol=1e-4)


def test_missing_calls_by_sample_where_samples_are_streamed(tmp_path) -> None:
    import zarr

    calls = simulated(120, 30_000, 0.02)
    calls[:, 5] = 1
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=calls.shape, chunks=(20, 30_000), dtype="i1")[:] = calls
    model = GenotypePCA(2, solver="gram", memory_limit="140MiB").fit(path)
    assert model.plan_.solver == "gram by panels"
    np.testing.assert_array_equal(model.result_.missing_by_sample, (calls < 0).sum(axis=1))


def test_variants_are_chosen_by_label() -> None:
    calls = simulated(p=60, missing=0.0)
    calls[:, 5] = 1
    chromosome = ["1"] * 20 + ["2"] * 20 + ["X"] * 20
    matrix = genotypes(calls, chromosome, np.arange(60) % 20 * 100)
    labels = matrix.labels.features
    pick = lambda **more: np.flatnonzero(VariantFilter(**more).mask(labels)).tolist()  # noqa: E731
    assert pick() == list(range(40))
    assert pick(chromosomes="all") == list(range(60))
    assert pick(chromosomes="2,X") == list(range(20, 60))
    assert pick(chromosomes=["chr1"], exclude=["v0", "v3"]) == [1, 2, *range(4, 20)]
    assert pick(extract=["v1", "v45"], chromosomes="all") == [1, 45]
    assert pick(regions=["chr2:100-300"]) == [21, 22, 23]
    assert pick(exclude_regions=["1", "2:0-1,700"]) == [38, 39]
    assert pick(n_autosomes=1) == list(range(20))
    model = GenotypePCA(2, variants=VariantFilter(chromosomes="2")).fit(matrix)
    values, _, _ = oracle(calls[:, 20:40], "hwe")
    np.testing.assert_allclose(model.eigenvalues_, values[:2], rtol=2e-6)
    assert model.result_.labels.features.names([0]) == ["v20"]


@pytest.mark.parametrize(("n", "x", "y", "mt"), [(22, "23", "24", "26"), (38, "39", "40", "42")])
def test_codes_after_the_autosomes_are_letters(n: int, x: str, y: str, mt: str) -> None:
    """Also where 23 is an autosome, as of a dog; either spelling finds either."""
    chromosome = ["1", "22", str(n), x, "X", "chrx", y, "Y", mt, "MT", "chrM", "0"]
    labels = genotypes(np.ones((2, 12), np.int8), chromosome, np.arange(12)).labels.features
    pick = lambda **more: np.flatnonzero(  # noqa: E731
        VariantFilter(n_autosomes=n, **more).mask(labels)
    ).tolist()
    assert pick() == [0, 1, 2]
    for text in ("X", "x", x, "chrX", f"chr{x}", [x, "X"]):
        assert pick(chromosomes=text) == [3, 4, 5]
    assert pick(chromosomes=f"{x}-{y}") == [3, 4, 5, 6, 7]
    assert pick(chromosomes="m") == pick(chromosomes=mt) == [8, 9, 10]
    assert pick(chromosomes="all", regions=["chrX:4-5", f"{y}"]) == [4, 5, 6, 7]


def test_the_autosomes_have_the_pseudo_autosomal_regions_and_unknown_codes_are_named() -> None:
    """As in plink2's --pca, which leaves out X, Y and MT alone."""
    chromosome = ["1", "25", "chrXY", "PAR1", "PAR2", "X", "24", "26", "0"]
    labels = genotypes(np.ones((2, 9), np.int8), chromosome, np.arange(9)).labels.features
    assert np.flatnonzero(VariantFilter().mask(labels)).tolist() == [0, 1, 2, 3, 4]
    chromosome = ["1", "27", "GL000191.1", "27", "X"]
    labels = genotypes(np.ones((2, 5), np.int8), chromosome, np.arange(5)).labels.features
    with pytest.warns(UnknownChromosomeWarning, match=r"3 variants .* on 27; GL000191\.1, no"):
        assert VariantFilter().mask(labels).tolist() == [True, False, False, False, False]
    assert VariantFilter("1,X").mask(labels).tolist() == [True, False, False, False, True]
    assert VariantFilter("all").mask(labels).all()


def test_a_fileset_of_38_autosomes(tmp_path) -> None:
    calls = simulated(n=10, p=42, missing=0.0)
    calls[:, 5] = 1
    path = write_plink(tmp_path / "dog", calls, chromosomes=[str(i + 1) for i in range(42)])
    matrix = streampca.open(path)
    assert matrix.labels.features.extra["chromosome"].tolist() == [str(i + 1) for i in range(42)]
    model = GenotypePCA(2, variants=VariantFilter(n_autosomes=38)).fit(matrix)
    assert model.n_features_in_ == 39  # and XY
    assert VariantFilter("22-26", 38).mask(matrix.labels.features).sum() == 5


def test_long_range_ld_regions_by_build() -> None:
    labels = genotypes(np.ones((2, 2), np.int8), ["6", "6"], [30_000_000, 100_000_000])
    mask = VariantFilter(exclude_long_range_ld=37).mask(labels.labels.features)
    assert mask.tolist() == [False, True]


def test_samples_by_name_or_family(tmp_path) -> None:
    labels = genotypes(np.ones((4, 2), np.int8)).labels.samples
    assert np.flatnonzero(sample_mask(labels, ["s1", "f2 s2", "f3:s3"])).tolist() == [1, 2, 3]
    (tmp_path / "keep").write_text("# comment\nf1 s1\ns3\n\n")
    assert np.flatnonzero(sample_mask(labels, tmp_path / "keep")).tolist() == [1, 3]
    with pytest.raises(InvalidInputError, match="none of nobody"):
        sample_mask(labels, ["nobody"])
    with pytest.warns(AbsentNamesWarning, match="keep: 2 of 4 names .*: f1:s2; x"):
        found = sample_mask(labels, ["f1 s2", "s3", "x", "f0 s0"], "keep")
    assert np.flatnonzero(found).tolist() == [0, 3]


def test_a_sample_whose_name_has_a_blank_goes_by_it(tmp_path) -> None:
    names = np.array(["a 1", "b", "a 2", "a:1", "f 3"], TEXT)
    labels = AxisLabels(("sample",), (5,), {"sample": names})
    assert np.flatnonzero(sample_mask(labels, ["a 1", "b"])).tolist() == [0, 1]
    (tmp_path / "keep").write_text("a 2 more\nf\t3\na:1\n")
    assert np.flatnonzero(sample_mask(labels, tmp_path / "keep")).tolist() == [2, 3, 4]


def test_a_pair_of_ids_is_no_individual_of_that_name(tmp_path) -> None:
    """FID a and IID b is not the individual a:b of another family."""
    path = write_plink(
        tmp_path / "x",
        np.ones((4, 2), np.int8),
        samples=["b", "a:b", "b", "c"],
        families=["a", "f", "g", "a:b"],
    )
    labels = streampca.open(path).labels.samples
    pick = lambda *names: np.flatnonzero(sample_mask(labels, names)).tolist()  # noqa: E731
    assert pick("a b") == [0]
    assert pick("f a:b") == [1]
    assert pick("a:b c") == pick("a:b:c") == pick("c") == [3]
    for name, whom in (("b", "a:b; g:b"), ("a:b", "a:b; f:a:b")):
        with pytest.raises(InvalidInputError, match=f"{name} is {whom}"):
            pick(name)


def test_lists_of_variants_are_words_and_absent_ones_are_counted(tmp_path) -> None:
    labels = genotypes(np.ones((2, 9), np.int8)).labels.features
    (tmp_path / "list").write_text("v1 v3\tv4\nv8\n")
    assert np.flatnonzero(VariantFilter(extract=tmp_path / "list").mask(labels)).tolist() == [
        1,
        3,
        4,
        8,
    ]
    assert VariantFilter(exclude=tmp_path / "list").mask(labels).sum() == 5
    with pytest.warns(AbsentNamesWarning, match="exclude: 1 of 2 names .*: rs5"):
        assert VariantFilter(exclude=["rs5", "v1"]).mask(labels).sum() == 8


def test_bad_words_are_refused() -> None:
    matrix = genotypes(np.ones((3, 3), np.int8))
    assert expand_chromosomes("chr1,3-5, X") == ["1", "3", "4", "5", "X"]
    for text in ("1-X", "", "3-", "22-1"):
        with pytest.raises(InvalidInputError, match="expected such as"):
            expand_chromosomes(text)
    with pytest.raises(InvalidInputError, match="expected such as"):
        in_regions(matrix.labels.features, ["6:here-there"])
    with pytest.raises(InvalidInputError, match="needs the chromosome"):
        GenotypePCA(1, variants=VariantFilter(chromosomes="1")).fit(np.ones((4, 4), np.int8))
    with pytest.raises(
        InvalidInputError,
        match=r"no features .* of 3 after chromosomes='7'; .*"
        r"present are 1 \(chromosomes='all' takes all\)",
    ):
        GenotypePCA(1, variants=VariantFilter(chromosomes="7")).fit(matrix)
    with pytest.raises(InvalidInputError, match="no features are left of 3 after exclude;"):
        VariantFilter(exclude=["v0", "v1", "v2"]).mask(matrix.labels.features)
    with pytest.raises(InvalidInputError, match="no samples are left of 3 after exclude"):
        GenotypePCA(1, exclude=["s0", "s1", "s2"]).fit(matrix)
    for bad in ({"maf": 0.6}, {"max_missing": 2}, {"ploidy": 0}, {"max_sample_missing": -1}):
        with pytest.raises(InvalidInputError, match="expected"):
            GenotypePCA(1, **bad).fit(matrix)


@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_values_that_are_no_counts(solver: str) -> None:
    calls = simulated(p=40, missing=0.0)
    calls[:, 5] = 1
    calls[:, 8] = 9
    with pytest.raises(InvalidInputError, match="missing_value=9"):
        GenotypePCA(2, solver=solver).fit(genotypes(calls))


def test_a_haploid_matrix() -> None:
    calls = (simulated(missing=0.05) > 0).astype(np.int8)
    f = calls.mean(axis=0)
    used = (f > 0) & (f < 1)
    z = (calls[:, used] - f[used]) / np.sqrt(f[used] * (1 - f[used]))
    model = GenotypePCA(3, ploidy=1).fit(genotypes(calls))
    values = np.linalg.eigvalsh(z @ z.T / used.sum())[::-1]
    np.testing.assert_allclose(model.eigenvalues_, values[:3], rtol=2e-6)


def test_significant_components() -> None:
    calls = simulated(n=150, p=2000, missing=0.0)
    calls[:, 5] = 1
    model = GenotypePCA("tracy-widom").fit(genotypes(calls))
    assert model.n_components_ == 2  # three populations
    test = GenotypePCA(6).fit(genotypes(calls)).tracy_widom_
    assert (test.p_value[:2] < 1e-6).all()
    assert test.p_value[2] > 0.01
    values, _, _ = oracle(calls, "hwe")
    from streampca.solvers import tracy_widom_test

    whole = tracy_widom_test(values[:-1])
    np.testing.assert_allclose(test.statistic, whole.statistic[:6], rtol=1e-3)


def test_relationship_matrix(tmp_path) -> None:
    import zarr

    calls = simulated(n=20, p=200, missing=0.02)
    calls[:, 5] = 1
    path = tmp_path / "grm.zarr"
    GenotypePCA(2, relationship=path, solver="gram").fit(genotypes(calls))
    _, z, used = oracle(calls, "hwe")
    stored = zarr.open_group(str(path))["relationship"]
    np.testing.assert_allclose(stored[:], z @ z.T / used.sum(), atol=1e-5)
    matrix = genotypes(calls)
    for refused in (GenotypePCA(2, relationship=path).fit, GenotypePCA(2, relationship=path).plan):
        with pytest.raises(InvalidInputError, match="exists already"):
            refused(matrix)
    assert matrix.reads().chunks == 0
    other = tmp_path / "other.zarr"
    with pytest.raises(InvalidInputError, match="use solver='gram'"):
        GenotypePCA(2, relationship=other, solver="scatter").plan(matrix)
    tall = GenotypePCA(2, relationship=other).fit(genotypes(simulated(40, 12, 0.0)[:, 6:]))
    assert tall.plan_.solver == "gram"
    assert other.exists()


def test_the_caller_s_matrix_keeps_its_missing_code() -> None:
    calls = simulated(20, 50, 0.02)
    calls[:, 5] = 1
    matrix = streampca.open(calls)
    GenotypePCA(2).fit(matrix)
    assert matrix.missing_value is None


def test_transform_refuses_other_alleles() -> None:
    calls = simulated(30, 80, 0.0)
    calls[:, 5] = 1
    model = GenotypePCA(2).fit(genotypes(calls))
    swapped = genotypes(2 - calls)
    extra = swapped.labels.features.extra
    extra["counted_allele"], extra["other_allele"] = extra["other_allele"], extra["counted_allele"]
    with pytest.raises(InvalidInputError, match=r"alleles of 80 .* v0 has G/A .* had A/G.*project"):
        model.transform(swapped)
    extra["counted_allele"] = np.array(["0"] * 79 + ["a"], TEXT)  # unknown, or in lower case
    extra["other_allele"] = np.array(["G"] * 80, TEXT)
    same = genotypes(calls)
    same.labels.features.extra.update(extra)
    np.testing.assert_array_equal(model.transform(same), model.transform(genotypes(calls)))
    with pytest.raises(InvalidInputError, match=r"70 features.*80 features.*streampca project"):
        model.transform(genotypes(calls[:, :70]))


def test_children_of_fitted_parents_are_warned_of(tmp_path) -> None:
    calls = simulated(12, 60, 0.0)
    calls[:, 5] = 1
    path = write_plink(tmp_path / "b", calls, families=["f"] * 12)
    fam = tmp_path / "b.fam"
    rows = [line.split() for line in fam.read_text().splitlines()]
    rows[2][2:4], rows[3][2:4], rows[4][2:4] = ("s0", "s1"), ("s0", "s1"), ("s0", "x")
    fam.write_text("".join(" ".join(row) + "\n" for row in rows))
    assert streampca.open(path).labels.samples.extra["mother"][4] == "x"
    with pytest.warns(NonFounderWarning, match="2 of 12 samples have both parents"):
        GenotypePCA(2).fit(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GenotypePCA(2, exclude=["s0"]).fit(path)
        GenotypePCA(2, fit_samples=["s0", *(f"s{i}" for i in range(2, 12))]).fit(path)


def test_an_inversion_is_warned_of_and_pruning_removes_it() -> None:
    rng = np.random.default_rng(3)
    n, p, at = 150, 20_000, slice(9_000, 11_000)
    calls = rng.binomial(2, rng.uniform(0.1, 0.9, p), (n, p)).astype(np.int8)
    haplotype = rng.binomial(2, 0.4, n)[:, None]
    noise = rng.binomial(2, 0.4, (n, 2000))
    copies = np.where(rng.random((n, 2000)) < 0.04, noise, haplotype)
    calls[:, at] = np.where(rng.random(2000) < 0.5, copies, 2 - copies)
    matrix = genotypes(calls, ["8"] * p, np.arange(p) * 2000)
    with pytest.warns(LocalComponentWarning, match=r"PC1: 9\d% in chr8:18-2[12]"):
        before = GenotypePCA(3).fit(matrix)
    assert np.sum(before.components_[0, at] ** 2) > 0.8
    pruning = streampca.prune_ld(matrix, r2=0.2, window=500, step=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = GenotypePCA(3).fit(select(matrix, features=pruning.kept))
    inside = (pruning.kept >= at.start) & (pruning.kept < at.stop)
    assert np.sum(after.components_[0, inside] ** 2) < 0.05


def test_even_loadings_are_not_local() -> None:
    v = np.full((1, 4000), 1 / np.sqrt(4000))
    chromosome = np.repeat([str(i) for i in range(1, 5)], 1000)
    position = np.tile(np.arange(1000) * 10_000, 4)
    assert local_components(v.T, chromosome, position) == []
    v[0, 2100:2110] = 1.0
    found = local_components((v / np.linalg.norm(v)).T, chromosome, position)
    assert [(one.component, one.chromosome) for one in found] == [(0, "3")]
    assert 1_000_000 <= found[0].start <= found[0].stop <= 1_100_000


def test_save_and_load(tmp_path) -> None:
    calls = simulated(missing=0.01)
    calls[:, 5] = 1
    model = GenotypePCA(3, maf=0.01, keep=[f"s{i}" for i in range(50)]).fit(genotypes(calls))
    model.save(tmp_path / "model")
    loaded = streampca.load(tmp_path / "model")
    assert isinstance(loaded, GenotypePCA)
    np.testing.assert_array_equal(loaded.eigenvalues_, model.eigenvalues_)
    np.testing.assert_array_equal(loaded.scores_, model.scores_)
    features = loaded.result_.labels.features
    assert features.names([3]) == ["v3"]
    assert features.extra["position"][3] == 3000
    assert features.extra["counted_allele"][3] == "A"
    np.testing.assert_array_equal(loaded.result_.missing, model.result_.missing)
    assert loaded.tracy_widom_.p_value.tolist() == model.tracy_widom_.p_value.tolist()
    dataset = loaded.result_.to_xarray()
    assert dataset.components.position[3] == 3000
    assert str(dataset.scores.sample.values[1]) == "s1"


def test_the_plan_reads_nothing_and_names_its_passes() -> None:
    matrix = genotypes(simulated())
    plan = GenotypePCA(3, max_sample_missing=0.5, solver="gram").plan(matrix)
    assert [one.name for one in plan.passes] == ["calls by sample", "gram", "loadings"]
    assert matrix.reads().chunks == 0
    assert plan.method == "GenotypePCA"


HAPMAP = "data.bed"


def test_hapmap3_published_eigenvalues(shared_data) -> None:
    path = shared_data / "hapmap3" / HAPMAP
    with pytest.warns(RelatedSamplesWarning, match="47 pairs of fitted samples have kinship"):
        everything = GenotypePCA(6, variants=VariantFilter(chromosomes="all")).fit(path)
    published = [26.468, 23.514, 6.958, 6.086, 4.426, 2.664]
    np.testing.assert_allclose(everything.eigenvalues_, published, atol=5e-4)
    with pytest.warns(RelatedSamplesWarning, match="47 pairs"):
        autosomes = GenotypePCA(6, variants=VariantFilter("1-22")).fit(path)
    published = [26.2009, 23.3941, 6.9325, 6.0905, 4.3908, 2.6576]
    np.testing.assert_allclose(autosomes.eigenvalues_, published, atol=5e-5)
    assert (everything.n_features_used_, autosomes.n_features_used_) == (14389, 14266)
    matrix = streampca.open(path)
    assert VariantFilter().mask(matrix.labels.features).sum() == 14266 + 39  # XY too
    values, _, _ = oracle(matrix.read(1, 0, matrix.shape[1]), "hwe")
    np.testing.assert_allclose(everything.eigenvalues_, values[:6], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("HM3_thinned_autosomal_overlap.bed", [26.161, 23.394, 6.916, 6.050, 4.403, 2.652]),
        (
            "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap.bed",
            [36.584, 24.650, 8.500, 3.516, 2.949, 2.636],
        ),
    ],
)
def test_thinned_sets_published_eigenvalues(shared_data, name: str, published: list) -> None:
    with pytest.warns(RelatedSamplesWarning, match="pairs of fitted samples"):
        model = GenotypePCA(6).fit(shared_data / "hapmap3" / name)
    np.testing.assert_allclose(model.eigenvalues_, published, atol=6e-4)


def test_1000_genomes_separates_super_populations(shared_data) -> None:
    from streampca.operations.demo import nearest_centroid_share
    from streampca.sources.side_data import UNKNOWN, read_panel

    folder = shared_data / "hapmap3"
    name = "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap.bed"
    with pytest.warns(RelatedSamplesWarning, match="27 pairs of fitted samples"):
        model = GenotypePCA(6).fit(folder / name)
    panel = folder / "integrated_call_samples_v3.20130502.ALL.panel"
    labels = np.array(read_panel(panel, model.result_.labels.samples, "super_pop"))
    known = labels != UNKNOWN
    assert known.sum() == 1047
    assert nearest_centroid_share(model.scores_[known], labels[known]) >= 0.95


@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
def test_bare_arrays_of_calls_have_their_holes_in_transform_too():
    calls = simulated()
    model = GenotypePCA(3).fit(calls)
    assert np.abs(model.scores_).max() > 5
    np.testing.assert_allclose(model.transform(calls), model.scores_, atol=1e-4)
    lazy = model.transform(da.from_array(calls, chunks=(17, 100)))
    np.testing.assert_allclose(lazy.compute(), model.scores_, atol=1e-4)
    assert model.reconstruction_error(calls) == pytest.approx(
        model.reconstruction_error(genotypes(calls))
    )
