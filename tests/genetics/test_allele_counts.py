"""What allele counts mean: ploidies that sources state, and codings that are not counts."""

import dask.array
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray
import xarray as xr
import zarr

import streampca
from streampca import GenotypePCA
from streampca.cli.commands import main
from streampca.embedding.filters import filtered, parse_filters
from streampca.errors import CallCodingWarning, InvalidInputError, SourceError
from streampca.operations.convert import convert
from tests.genotypes import random_calls, write_plink, write_vcf_zarr


def of_copies(copies, ploidy, fill=0):
    """(p, n, ploidy + fill) alleles of (n, p) copies; -1 is a missing call, -2 fills."""
    alleles = (np.arange(ploidy) < copies.T[:, :, None]).astype(np.int8)
    alleles[copies.T < 0] = -1
    filled = np.full((*alleles.shape[:2], fill), -2, np.int8)
    return np.concatenate([alleles, filled], axis=2)


def eigenvalues(copies, ploidy, k):
    seen = copies >= 0
    f = np.where(seen, copies, 0).sum(0) / (ploidy * seen.sum(0))
    used = (f > 0) & (f < 1)
    z = np.where(seen, copies - ploidy * f, 0)[:, used] / np.sqrt(ploidy * f * (1 - f))[used]
    return f, np.linalg.eigvalsh(z @ z.T / used.sum())[::-1][:k]


@pytest.mark.parametrize(
    ("ploidy", "fill"), [(1, 0), (4, 0), pytest.param(1, 2, marks=pytest.mark.slow)]
)
def test_frequencies_are_those_of_the_calls_whatever_the_ploidy_dimension(tmp_path, ploidy, fill):
    rng = np.random.default_rng(ploidy)
    f = rng.uniform(0.1, 0.9, (2, 120))[rng.integers(0, 2, 30)]
    copies = rng.binomial(ploidy, f).astype(np.int8)
    copies[rng.random(copies.shape) < 0.02] = -1
    path = write_vcf_zarr(tmp_path / "v", copies, alleles=of_copies(copies, ploidy, fill))
    stated = max(ploidy + fill, 2)
    expected, values = eigenvalues(np.where(copies < 0, -1, copies * (stated // ploidy)), stated, 3)
    model = GenotypePCA(3, ploidy=stated).fit(path)
    np.testing.assert_allclose(model.frequencies_, expected, rtol=1e-6)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=2e-6)
    convert(path, tmp_path / "z")
    for source in (path, str(tmp_path / "z")):  # the ploidy is a part of what was converted
        with pytest.raises(InvalidInputError, match=rf"GenotypePCA\(ploidy={stated}\)"):
            GenotypePCA(3, ploidy=stated + 1).fit(source)
        if stated > 2:
            with pytest.raises(InvalidInputError, match=rf"\(ploidy={stated}\)"):
                streampca.PCA(3, scale="hwe", missing="mean").fit(source)


def test_the_ploidy_of_a_source_is_kept_by_selections_and_asked_for_by_projections(tmp_path):
    calls = random_calls(n=40, p=80)
    bed = write_plink(tmp_path / "x", calls)
    with pytest.raises(InvalidInputError, match=r"ploidy=4.*up to 2 copies"):
        GenotypePCA(2, ploidy=4, keep=[f"s{i}" for i in range(9)]).plan(bed)
    with pytest.raises(InvalidInputError, match=r"haploid calls count twice"):
        GenotypePCA(2, ploidy=1).plan(bed)
    model = GenotypePCA(2).fit(bed)
    with pytest.raises(InvalidInputError, match=r"project_samples\(ploidy=2\)"):
        streampca.project_samples(model, bed, ploidy=4)
    with pytest.raises(InvalidInputError, match=r"up to 2 copies"):
        filtered(streampca.open(bed), parse_filters("maf:0.01"), ploidy=4)


def test_copies_that_do_not_divide_the_ploidy_are_refused(tmp_path):
    alleles = np.ones((6, 5, 4), np.int8)
    alleles[2, 3, 3] = -2
    path = write_vcf_zarr(tmp_path / "v", np.zeros((5, 6), np.int8), alleles=alleles)
    with pytest.raises(SourceError, match="do not divide the 4"):
        GenotypePCA(1, ploidy=4).fit(path)


@pytest.mark.parametrize(
    ("scale", "dtype"), [("hwe", np.int8), ("eigensoft", np.int16), ("std", np.int64), (None, "i1")]
)
def test_calls_coded_minus_one_to_one_are_refused(scale, dtype):
    calls = random_calls(n=40, p=60, missing=0.0)
    with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
        GenotypePCA(2, scale=scale).fit((calls - 1).astype(dtype))
    with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
        GenotypePCA(2).fit((calls - 1).astype(float))
    for wrong in (9, -9):
        nines = np.where(np.arange(60) == np.arange(40)[:, None], wrong, calls)
        with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
            GenotypePCA(2, scale="hwe", solver="scatter").fit(nines.astype(dtype))
    right = GenotypePCA(2, scale=scale).fit(calls.astype(dtype))
    assert right.result_.missing.sum() == 0  # the line that the message gives
    with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
        right.transform((calls - 1).astype(dtype))
    np.testing.assert_allclose(
        right.transform(calls[:1].astype(dtype)), right.scores_[:1], atol=1e-4
    )


@pytest.mark.parametrize("solver", ["gram", "scatter", "randomized"])
def test_haploid_calls_in_an_array_are_refused_unless_that_is_said(solver):
    calls = (random_calls(n=60, p=40, missing=0.03) > 0).astype(np.int8)
    with pytest.raises(InvalidInputError, match=r"GenotypePCA\(ploidy=1\)"):
        GenotypePCA(2, solver=solver).fit(calls)
    f, _ = eigenvalues(calls, 1, 2)
    np.testing.assert_allclose(GenotypePCA(2, ploidy=1).fit(calls).frequencies_, f, rtol=1e-6)
    stated = streampca.open(calls, missing_value=-1)  # rare alleles of diploids, says the user
    np.testing.assert_allclose(GenotypePCA(2).fit(stated).frequencies_, f / 2, rtol=1e-6)


def test_pruning_refuses_the_other_coding_and_takes_haploid_calls(tmp_path, capsys):
    calls, to = random_calls(40, 60, missing=0.0), str(tmp_path / "p")
    for name, values, code in (("x", calls - 1, 65), ("y", (calls > 0).astype(np.int8), 0)):
        np.save(tmp_path / f"{name}.npy", values)
        assert main(["prune", str(tmp_path / f"{name}.npy"), "-o", to]) == code
    assert "If -1 is missing: --missing-value=-1" in capsys.readouterr().err


def test_rare_alleles_without_a_homozygote_are_no_other_coding():
    rng = np.random.default_rng(3)
    calls = (rng.random((80, 50)) < 0.05).astype(np.int8)
    calls[rng.random(calls.shape) < 0.01] = -1
    assert GenotypePCA(2).fit(calls).result_.missing.sum() > 0


@pytest.mark.parametrize(
    "kind",
    ["float", "bool", "uint8", "dask", "sparse", "zarr", "path", "variants", "xarray", "frame"],
)
def test_haploid_calls_of_any_kind_are_refused_unless_that_is_said(kind, tmp_path):
    calls = random_calls(n=60, p=40, missing=0.0) > 0
    made = {
        "float": lambda: np.where(np.arange(40) == np.arange(60)[:, None], np.nan, calls),
        "bool": lambda: calls,
        "uint8": lambda: calls.astype(np.uint8),
        "dask": lambda: dask.array.from_array(calls.astype(float), chunks=(20, 15)),
        "sparse": lambda: scipy.sparse.csr_array(calls.astype(float)),
        "zarr": lambda: zarr.create_array(str(tmp_path / "z"), data=calls.astype("i1")),
        "variants": lambda: zarr.create_array(
            str(tmp_path / "z"), data=calls.astype("i1"), chunks=(60, 10)
        ),
        "path": lambda: np.save(tmp_path / "x.npy", calls.astype("i1")) or tmp_path / "x.npy",
        "xarray": lambda: xr.DataArray(calls.astype("i1"), dims=("s", "v")).chunk(s=30),
        "frame": lambda: pd.DataFrame(calls.astype("i1")),
    }[kind]()
    with pytest.raises(InvalidInputError, match=r"GenotypePCA\(ploidy=1\)"):
        GenotypePCA(2).fit(made)
    diploid = GenotypePCA(2).fit(random_calls(n=60, p=40, missing=0.0))
    for out in ({}, {"out": tmp_path / "out"}):
        with pytest.raises(InvalidInputError, match=r"GenotypePCA\(ploidy=1\)"):
            np.asarray(diploid.transform(made, **out))
    f = np.nanmean(made, axis=0) if kind == "float" else calls.mean(0)
    np.testing.assert_allclose(GenotypePCA(2, ploidy=1).fit(made).frequencies_, f, rtol=1e-6)


@pytest.mark.parametrize("wrong", [9, -9, 3])
def test_new_rows_that_are_no_counts_are_refused_in_every_form(wrong, tmp_path):
    calls = random_calls(n=40, p=60, missing=0.05)
    model = GenotypePCA(2).fit(calls)
    coded = np.where(calls < 0, wrong, calls).astype(np.int16)
    np.save(tmp_path / "x.npy", coded)
    zarr.create_array(str(tmp_path / "x.zarr"), data=coded, chunks=(40, 7))  # by features
    forms = [
        coded,
        coded.astype(float),
        scipy.sparse.csr_array(coded),
        xarray.DataArray(coded, dims=("samples", "variants")),
        str(tmp_path / "x.npy"),
        str(tmp_path / "x.zarr"),
    ]
    for form in forms:
        with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
            model.transform(form)
        right = model.transform(streampca.open(form, missing_value=wrong))  # the line it gives
        np.testing.assert_allclose(right, model.scores_, atol=1e-4)
    with pytest.raises(InvalidInputError, match=rf"others \(such as {wrong}\)"):
        model.transform(dask.array.from_array(coded, chunks=(10, 60))).compute()
    for measure in (model.score_samples, model.r2_curve):
        with pytest.raises(InvalidInputError, match=rf"others \(such as {wrong}\)"):
            measure(coded)


def test_dimensions_whose_names_put_the_samples_second_are_asked_about(tmp_path):
    calls = random_calls(n=40, p=60, missing=0.05)
    want = GenotypePCA(2).fit(calls).eigenvalues_
    field = xarray.DataArray(calls.T, dims=("variants", "samples"), name="call_dosage")
    zarr.create_array(
        str(tmp_path / "x.zarr"), data=calls.T, dimension_names=("variants", "samples")
    )
    forms = field, field.to_dataset(), field.chunk(variants=20), str(tmp_path / "x.zarr")
    for form in forms:
        for call in (GenotypePCA(2).fit, streampca.PCA(2).fit, streampca.prune_ld):
            with pytest.raises(InvalidInputError, match=r"open\(X, dim='samples'\)"):
                call(form)
        fit = GenotypePCA(2).fit(streampca.open(form, dim="samples"))
        np.testing.assert_allclose(fit.eigenvalues_, want, rtol=1e-6)


@pytest.mark.parametrize("scale", ["std", None])
def test_a_code_of_missing_calls_is_refused_under_every_scale(scale):
    calls = random_calls(n=40, p=60, missing=0.05)
    want = GenotypePCA(2, scale=scale).fit(calls)
    for wrong in (9, -9, 3):
        coded = np.where(calls < 0, wrong, calls)
        for values in (coded, coded.astype(float), coded.astype(np.int8)):
            with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
                GenotypePCA(2, scale=scale).fit(values)
            with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
                want.transform(values)
        right = GenotypePCA(2, scale=scale).fit(streampca.open(coded, missing_value=wrong))
        np.testing.assert_allclose(right.eigenvalues_, want.eigenvalues_, rtol=1e-6)
    both = np.where(calls < 0, np.where(np.arange(60) % 2, 9, -1), calls)
    with pytest.raises(InvalidInputError, match=r"np.where\(np.isin\(X, \[-1, 9\]\), np.nan, X\)"):
        GenotypePCA(2, scale=scale).fit(both)
    mended = np.where(np.isin(both, [-1, 9]), np.nan, both)
    found = GenotypePCA(2, scale=scale).fit(mended).eigenvalues_
    np.testing.assert_allclose(found, want.eigenvalues_, rtol=1e-6)
    nines = streampca.open(np.where(calls < 0, -9, calls - 1), missing_value=-9)
    with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
        want.transform(nines)  # -1 lies between the code and the counts


def test_calls_coded_one_to_three_are_refused_with_the_line_that_counts():
    calls = random_calls(n=40, p=60, missing=0.0)
    for use in (GenotypePCA(2).fit, streampca.kinship, streampca.prune_ld):
        with pytest.raises(InvalidInputError, match=r"counts plus 1: X - 1"):
            use(calls + 1)


@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_calls_of_samples_that_are_only_scored_are_judged_too(solver):
    calls = random_calls(n=40, p=60, missing=0.0)
    calls[35, 7] = 9
    samples = [f"s{i}" for i in range(40)]
    table = pd.DataFrame(calls, index=samples)
    with pytest.raises(InvalidInputError, match=r"open\(X, missing_value=9\)"):
        GenotypePCA(2, solver=solver, fit_samples=samples[:30]).fit(table)


@pytest.mark.parametrize("use", [streampca.kinship, streampca.prune_ld])
def test_kinship_and_pruning_read_codings_as_a_fit_does(use):
    calls = random_calls(n=40, p=60, missing=0.05)
    want = use(streampca.open(calls, missing_value=-1))

    def same(found):
        for name in ("kinship", "kept"):
            np.testing.assert_array_equal(getattr(found, name, 0), getattr(want, name, 0))

    same(use(calls))  # -1 among integers, as in a fit
    same(use(np.where(calls < 0, np.nan, calls)))
    for wrong in (9, -9, 3):
        coded = np.where(calls < 0, wrong, calls)
        with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
            use(coded)
        same(use(coded, missing_value=wrong))
    full = np.maximum(calls, 0)
    for dtype in (np.int8, np.int64, float):
        with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
            use((full - 1).astype(dtype))
    with pytest.raises(InvalidInputError, match=r"np.rint\(X\)"):
        use(full / 2)


@pytest.mark.parametrize("solver", ["gram", "scatter"])
def test_haploid_calls_are_refused_by_every_scale_of_counts(solver):
    haploid = random_calls(n=40, p=60, missing=0.0) > 0
    models = [streampca.PCA(2, scale="hwe", solver=solver)]
    models += [GenotypePCA(2, scale=scale, solver=solver) for scale in ("std", None)]
    for values in (haploid.astype(np.int8), haploid.astype(float)):
        for model in models:
            with pytest.raises(InvalidInputError, match=r"GenotypePCA\(ploidy=1\)"):
                model.fit(values)


def test_kinship_refuses_haploid_calls_in_an_array():
    haploid = random_calls(n=40, p=60, missing=0.0) > 0
    for values in (haploid, haploid.astype(np.uint8), haploid.astype(float)):
        with pytest.raises(InvalidInputError, match="if they have 2 copies"):
            streampca.kinship(values)


def test_calls_without_a_heterozygote_are_warned_of_with_the_line_that_scales_them():
    calls = random_calls(n=40, p=60, missing=0.03)
    inbred = np.where(calls > 0, 2, calls)
    for solver in ("gram", "scatter", "randomized"):
        with pytest.warns(CallCodingWarning, match=r"GenotypePCA\(ploidy=1\)"):
            twice = GenotypePCA(2, solver=solver).fit(inbred).eigenvalues_
    _, values = eigenvalues(inbred // 2, 1, 2)
    right = GenotypePCA(2, ploidy=1).fit(inbred // 2).eigenvalues_
    np.testing.assert_allclose(right, values, rtol=1e-5)
    np.testing.assert_allclose(twice, 2 * values, rtol=1e-5)
    with pytest.warns(CallCodingWarning, match="none of the calls is heterozygous"):
        streampca.kinship(inbred)


def test_projections_judge_the_coding_of_new_samples_in_arrays():
    calls = random_calls(n=40, p=80, missing=0.05)
    variants = {"counted_allele": ["G"] * 80, "other_allele": ["A"] * 80}
    coords = {name: ("variant", values) for name, values in variants.items()}
    coords |= {"variant": [f"rs{j}" for j in range(80)], "sample": [f"n{i}" for i in range(40)]}

    def table(values):
        return xarray.DataArray(values, dims=("sample", "variant"), coords=coords)

    model = GenotypePCA(2).fit(table(calls))
    want = streampca.project_samples(model, table(np.where(calls < 0, np.nan, calls))).scores
    for form in (calls, calls.astype(np.int64)):  # -1 among integers, as in a fit
        np.testing.assert_allclose(streampca.project_samples(model, table(form)).scores, want)
    for wrong in (9, -9, 3):
        with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
            streampca.project_samples(model, table(np.where(calls < 0, wrong, calls)))
    full = np.maximum(calls, 0)
    for form in (full - 1, full - 1.0):
        with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
            streampca.project_samples(model, table(form))
    with pytest.raises(InvalidInputError, match="if they have 2 copies"):
        streampca.project_samples(model, table((full > 0).astype(float)))


@pytest.mark.parametrize("scale", ["hwe", None])
def test_a_relationship_matrix_is_of_counts(scale):
    calls = random_calls(n=40, p=60, missing=0.05)
    for wrong in (9, -9, 3):
        with pytest.raises(InvalidInputError, match=rf"open\(X, missing_value={wrong}\)"):
            streampca.grm(np.where(calls < 0, wrong, calls), scale=scale)
    with pytest.raises(InvalidInputError, match=r"counts less 1: X \+ 1"):
        streampca.grm(np.maximum(calls, 0) - 1, scale=scale)
