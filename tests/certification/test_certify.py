"""``streampca.certify``: correct components are accepted, whoever computed them; others are not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.decomposition
import zarr

import streampca
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, InvalidTypeError, NonFiniteError, SourceError
from streampca.sources.genotypes.simulate import GenotypeRecipe
from tests.genotypes import write_plink

K = 4


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """(120, 40) with four components above noise, and an offset."""
    rng = np.random.default_rng(0)
    low = (rng.normal(size=(120, K)) * [8, 6, 4, 3]) @ np.linalg.qr(rng.normal(size=(40, K)))[0].T
    return low + 0.5 * rng.normal(size=(120, 40)) + 10 * rng.normal(size=40)


@pytest.fixture(scope="module")
def calls() -> np.ndarray:
    """(100, 1000) of five populations: after four components the spectrum is flat."""
    return GenotypeRecipe(100, 1000, populations=5, fst=0.1, missing=0, seed=1).block(0, 1500)


def standardised(calls: np.ndarray, scale: str | None) -> np.ndarray:
    """(n, p) by the definition of each scale; -1 is missing, and holds the mean."""
    seen = calls >= 0
    total, n = np.where(seen, calls, 0).sum(axis=0), seen.sum(axis=0)
    z = np.where(seen, calls - total / n, 0.0)
    f = total / (2 * n)
    prior = (1 + total) / (2 + 2 * n)
    divisors = {
        None: np.ones(len(n)),
        "std": np.sqrt((z**2).sum(axis=0)),
        "hwe": np.sqrt(2 * f * (1 - f)),
        "eigensoft": np.sqrt(prior * (1 - prior)),
    }
    return np.divide(z, divisors[scale], out=np.zeros_like(z), where=divisors[scale] > 0)


def scores_of(z: np.ndarray, k: int = K) -> np.ndarray:
    return np.linalg.svd(z, full_matrices=False)[0][:, :k]


def components_of(z: np.ndarray, k: int = K) -> np.ndarray:
    return np.linalg.svd(z, full_matrices=False)[2][:k]


def printed(values: np.ndarray, digits: int = 6) -> np.ndarray:
    return np.vectorize(lambda one: float(f"{one:.{digits}g}"))(values)


def altered(values: np.ndarray, how: str) -> np.ndarray:
    """Columns (d, k), one of which is no longer right."""
    values = np.array(values)
    unit = 10 ** (np.floor(np.log10(abs(values[7, 2]))) - 2)
    if how == "sign":
        values[7, 2] *= -1
    elif how == "third digit":
        values[7, 2] += unit
    elif how == "swapped":
        values[:, [1, 2]] = values[:, [2, 1]]
    elif how == "repeated":
        values[:, 2] = values[:, 1]
    elif how == "two samples exchanged":
        values[[3, 7]] = values[[7, 3]]
    return values


HARMLESS = np.array([-3.0, 1, 1, -1])  # signs and lengths
WAYS = ("sign", "third digit", "swapped", "repeated", "two samples exchanged")


@pytest.mark.parametrize("of", ["loadings", "scores", "printed scores"])
def test_what_is_wrong_is_caught_and_named(x, of):
    z = x - x.mean(axis=0)
    right = components_of(z).T if of == "loadings" else scores_of(z)
    right = printed(right) if "printed" in of else right

    def certified(values: np.ndarray) -> streampca.Certification:
        return streampca.certify(values.T if of == "loadings" else values, x)

    assert certified(right).certified
    assert certified(right * HARMLESS).certified
    for how in WAYS:
        found = certified(altered(right, how))
        assert not found.certified, how
        assert found.accepted[0] == (how != "two samples exchanged"), how
    name = ("feature 7", "sample 7")[of != "loadings"]
    assert f"{name} has the other sign" in certified(altered(right, "sign")).words[2]
    assert f"{name} should be about" in certified(altered(right, "third digit")).words[2]
    assert certified(altered(right, "swapped")).words[1] == "out of order: it is component 3"
    assert certified(altered(right, "repeated")).words[2] == "repeats those before it"
    behind = certified(right[:, 1:])
    assert not behind.certified
    assert "component 2 at best: at least 1 with more variance is missing" in behind.words[0]


def test_components_of_the_uncentred_matrix_are_not_taken_for_principal_ones(x):
    wrong = components_of(x)
    found = streampca.certify(wrong, x)
    assert not found.certified
    assert "If that is meant: center=False" in found.verdict
    assert streampca.certify(wrong, x, center=False).certified
    assert not streampca.certify(wrong, x, center=True).certified
    truncated = sklearn.decomposition.TruncatedSVD(K, algorithm="arpack").fit(x)
    assert streampca.certify(truncated, x).certified  # it says that it does not centre


@pytest.mark.parametrize("scale", [None, "hwe", "eigensoft"])
def test_the_convention_that_fits_is_named(calls, scale):
    calls = np.array(calls)
    calls[np.random.default_rng(0).random(calls.shape) < 0.01] = -1
    found = streampca.certify(scores_of(standardised(calls, scale)), calls, missing_value=-1)
    assert found.certified
    assert found.missing == np.count_nonzero(calls < 0)
    best = min(found.fits, key=found.fits.__getitem__)
    assert found.convention == best
    marks = {None: "not scaled", "std": "deviations", "hwe": "plink2", "eigensoft": "smartpca"}
    assert marks[scale] in best
    other = "std" if scale is None else None
    assert not streampca.certify(
        scores_of(standardised(calls, scale)), calls, missing_value=-1, scale=other, center=True
    ).certified


@pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
def test_models_of_genotypes_say_how_they_treated_them(tmp_path, calls):
    calls = np.array(calls)
    calls[np.random.default_rng(0).random(calls.shape) < 0.02] = -1
    bed, quiet = write_plink(tmp_path / "x", calls), {"progress": False}
    half = [f"s{i}" for i in range(0, 100, 2)]
    for model in (
        streampca.GenotypePCA(K, maf=0.1, keep=half, **quiet),
        streampca.GenotypePCA(K, scale="eigensoft", fit_samples=half, **quiet),
        streampca.GenotypePCA(K, missing="pairwise", **quiet),
    ):
        assert streampca.certify(model.fit(bed), bed, **quiet).certified, model
        saved = streampca.load(model.save(tmp_path / f"{model.missing} {model.scale}"))
        assert streampca.certify(saved, bed, **quiet).certified, model  # by the ids of its samples
    kept = streampca.GenotypePCA(K, keep=half, **quiet).fit(bed)
    kept = streampca.load(kept.save(tmp_path / "kept"))
    assert len(streampca.monitor(kept, bed, rows="fit").t2) == 50
    assert "of 50 rows" in streampca.bootstrap(kept, bed, n_resamples=20).drawn
    # the last one, by its loadings alone, is not of the filled matrix
    assert not streampca.certify(model.components_, bed, scale="hwe", tol=1e-5, **quiet).certified


def test_the_numbers_are_those_of_numpy(x):
    z = x - x.mean(axis=0)
    values = np.linalg.svd(z, compute_uv=False) ** 2 / (len(x) - 1)
    found = streampca.certify(components_of(z), x)
    np.testing.assert_allclose(found.variance, values[:K], rtol=1e-12)
    np.testing.assert_allclose(found.total_variance, values.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.beyond, values[K], rtol=1e-6)
    assert found.sure.all()
    assert found.angle_bound.max() < 1e-12
    off = components_of(z) + 1e-4 * np.random.default_rng(1).normal(size=(K, 40))
    near = streampca.certify(off, x)
    assert near.certified
    assert (near.angle_bound > 1e-4).all()
    assert "approximate: within" in near.words[0]
    assert json.loads(json.dumps(near.to_dict()))["certified"] is True
    assert "certified" in repr(near)
    assert "<table" in near._repr_html_()


def test_blocks_of_a_store_add_up_to_the_matrix(tmp_path, x):
    """Streamed along either axis, in many blocks, and where the claim is about the other side."""
    z = x - x.mean(axis=0)
    for i, chunks in enumerate([(15, 40), (120, 4)]):
        path = str(tmp_path / f"{i}.zarr")
        zarr.create_array(path, data=x, chunks=chunks)
        for components in (components_of(z), scores_of(z)):
            found = streampca.certify(components, path, progress=False)
            whole = streampca.certify(components, x)
            assert found.certified
            np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-12)


def test_models_are_read_by_what_they_are(x):
    weights = np.random.default_rng(2).uniform(0.5, 2, len(x))
    quiet = {"progress": False}
    holes = np.where(np.random.default_rng(3).random(x.shape) < 0.02, np.nan, x)
    models = [
        sklearn.decomposition.PCA(K).fit(x),
        sklearn.decomposition.PCA(K).fit(x.astype("f4")),
        sklearn.decomposition.IncrementalPCA(K).fit(x),
        streampca.PCA(K, **quiet).fit(x),
        streampca.PCA(K, scale="std", weights=np.linspace(1, 2, 40), **quiet).fit(x),
        streampca.TruncatedSVD(K, **quiet).fit(x),
    ]
    for model in models[:-2] + models[-1:]:
        assert streampca.certify(model, x).certified, model
    assert streampca.certify(models[-2], x).certified
    model = streampca.PCA(K, **quiet).fit(x, sample_weight=weights)
    assert streampca.certify(model, x, sample_weight=weights).certified
    with pytest.raises(InvalidInputError, match="give sample_weight="):
        streampca.certify(model, x)
    with pytest.raises(InvalidInputError, match="leave out weights="):
        streampca.certify(models[-2], x, weights=np.linspace(1, 2, 40))
    assert streampca.certify(streampca.PCA(K, missing="mean", **quiet).fit(holes), holes).certified
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        streampca.certify(models[0], holes, missing="raise")
    pca = sklearn.decomposition.PCA(K).fit(x[:, :30])
    loadings = np.zeros((40, K))
    loadings[:30] = pca.components_.T
    cells = SimpleNamespace(
        obsm={"X_pca": pca.transform(x[:, :30])},
        varm={"PCs": loadings},
        var={"highly_variable": np.arange(40) < 30},
        obs_names=list(map(str, range(120))),
        var_names=[f"gene{i}" for i in range(40)],
    )
    assert streampca.certify(cells, x).certified


def test_variances_are_those_of_the_model(x):
    mirrored = np.vstack([np.rint(x), -np.rint(x)])  # whose mean is 0 to the last bit
    for settings, data in (({}, mirrored), ({"ddof": 0}, x), ({"center": False}, x)):
        model = streampca.PCA(K, progress=False, **settings).fit(data)
        found = streampca.certify(model, data)
        np.testing.assert_allclose(found.variance, model.explained_variance_, rtol=1e-10)
        assert found.convention.startswith("not") == (settings == {"center": False})


def test_missing_cells_and_steps_are_those_of_the_model(x):
    holes = np.where(np.random.default_rng(3).random(x.shape) < 0.02, np.nan, x)
    coded = np.where(np.isnan(holes), -99.0, holes)
    model = streampca.PCA(K, missing="mean", missing_value=-99, progress=False).fit(coded)
    assert streampca.certify(model, coded).certified
    logs = streampca.preprocess.log1p(streampca.open(np.abs(x)))
    model = streampca.PCA(K, progress=False).fit(logs)
    assert streampca.certify(model, logs).certified
    with pytest.raises(InvalidInputError, match="steps before the fit were: log1p"):
        streampca.certify(model, np.abs(x))
    model = streampca.PCA(K, missing="impute", progress=False).fit(holes)
    assert not streampca.certify(model.result_, holes).certified
    with pytest.raises(InvalidInputError, match=r"as X model.impute\(X\)"):
        streampca.certify(model, holes)
    assert streampca.certify(model.components_, model.impute(holes), tol=0.1).certified


def test_variants_are_those_of_the_model(tmp_path, calls):
    bed = write_plink(tmp_path / "x", calls[:, :90], chromosomes=["1"] * 60 + ["X"] * 30)
    on_x = streampca.GenotypePCA(2, variants=streampca.VariantFilter(chromosomes=["X"]))
    on_x.fit(bed).save(tmp_path / "saved")
    for model in (on_x.result_, streampca.load(tmp_path / "saved"), streampca.PCA(2).fit(bed)):
        assert streampca.certify(model, bed).certified


def test_rows_and_columns_go_by_their_names(x):
    pandas = pytest.importorskip("pandas")
    names = [f"r{i}" for i in range(120)], [f"f{i}" for i in range(40)]
    frame, rng = pandas.DataFrame(x, *names), np.random.default_rng(4)
    mixed = frame.iloc[rng.permutation(120), rng.permutation(40)]
    some, weights = frame.iloc[::-2], np.linspace(1, 2, 40)
    z, part = x - x.mean(axis=0), x[::-2] - x[::-2].mean(axis=0)
    scores, few = (
        pandas.DataFrame(scores_of(one), at.index) for one, at in ((z, frame), (part, some))
    )
    loadings = pandas.DataFrame(components_of(z), columns=names[1])
    ours = streampca.PCA(K, weights=weights, progress=False)
    for claim in (
        scores,
        loadings,
        few,  # of a part of the samples
        sklearn.decomposition.PCA(K).fit(frame),
        ours.fit(frame),
        streampca.PCA(K, progress=False).fit(some),
        SimpleNamespace(
            obsm={"X_pca": scores_of(part)},
            varm={},
            var={},
            obs_names=some.index,
            var_names=names[1],
        ),
    ):
        assert streampca.certify(claim, mixed).certified, claim
    assert not streampca.certify(scores.to_numpy(), mixed).certified
    flat, two = frame.iloc[:, :2], part[:, :2]  # as many features as scores
    narrow = pandas.DataFrame(scores_of(two, 2), some.index)
    assert streampca.certify(narrow, flat, kind="scores").certified
    for claim, of in ((scores.rename("q{}".format), "samples"), (loadings.add_suffix("!"), "feat")):
        with pytest.raises(InvalidInputError, match=f"{of}.* of the components are not in X"):
            streampca.certify(claim, mixed)
    with pytest.raises(
        InvalidInputError, match=r"not of 10 of the 40 features of X: .*leave these"
    ):
        streampca.certify(ours.set_params(weights=None).fit(frame.iloc[:, :30]), mixed)


def test_grids_in_another_order_are_refused(x):
    xarray = pytest.importorskip("xarray")
    grid = xarray.DataArray(x.reshape(120, 5, 8), dims=("time", "lat", "lon"))
    grid = grid.assign_coords(lat=np.arange(5.0), lon=np.arange(8.0))
    model = streampca.PCA(K, progress=False).fit(grid)
    assert streampca.certify(model, grid.transpose("lon", "lat", "time")).certified
    with pytest.raises(InvalidInputError, match="another order: lat"):
        streampca.certify(model, grid[:, ::-1])


def test_nothing_is_certified_where_nothing_varies(x):
    for data, settings in ((np.ones((9, 40)), {}), (np.abs(x) + 2, {"scale": "hwe"})):
        found = streampca.certify(np.eye(40)[:2], data, **settings)
        assert not found.certified
        assert "has no variance" in found.verdict


@pytest.mark.filterwarnings("ignore:.*MultiIndex:FutureWarning")  # of xeofs, in its own fit
@pytest.mark.parametrize("package", ["dask_ml", "xeofs", "anndata"])
def test_models_of_other_packages(package, x):
    pytest.importorskip(package)
    if package == "dask_ml":
        import dask.array
        from dask_ml.decomposition import PCA

        array = dask.array.from_array(x, chunks=(50, 40))
        assert streampca.certify(PCA(K, svd_solver="full").fit(array), array).certified
    elif package == "xeofs":
        import xarray
        import xeofs

        sizes = {"time": np.arange(120), "lat": np.linspace(-60, 60, 5), "lon": np.arange(8.0)}
        field = xarray.DataArray(x.reshape(120, 5, 8), sizes, list(sizes))
        model = xeofs.single.EOF(n_modes=K, use_coslat=True, solver="full").fit(field, dim="time")
        assert streampca.certify(model, field, dim="time", weights="coslat").certified
    else:
        import anndata

        cells = anndata.AnnData(x)
        cells.obsm["X_pca"] = sklearn.decomposition.PCA(K).fit_transform(x)
        assert streampca.certify(cells, cells).certified


def write_evec(path: Path, values: np.ndarray) -> str:
    """As smartpca writes it: four decimals, ids, a population."""
    rows = (" ".join([f"s{i}", *(f"{v:.4f}" for v in row), "pop"]) for i, row in enumerate(values))
    path.write_text("#eigvals: 4 3 2 1\n" + "\n".join(rows))
    return str(path)


def test_tables_are_matched_by_ids_and_judged_by_their_digits(tmp_path, calls, capsys):
    bed = write_plink(tmp_path / "x", calls)
    used = np.random.default_rng(0).permutation(100)[:80]
    scores = printed(scores_of(standardised(calls[used], "hwe")))
    rows = (
        ["#IID", *(f"PC{i}" for i in range(1, K + 1))],
        *([f"s{i}", *map(str, row)] for i, row in zip(used, scores.tolist(), strict=True)),
    )
    path = tmp_path / "x.eigenvec"
    path.write_text("\n".join("\t".join(row) for row in rows))
    found = streampca.certify(path, bed)
    assert found.certified
    assert "plink2" in found.convention
    assert (found.angle_bound < 1e-4).all()
    assert main(["certify", bed, "--eigenvec", str(path)]) == 0
    evec = write_evec(tmp_path / "x.evec", scores_of(standardised(calls, "eigensoft")))
    assert main(["certify", bed, "--eigenvec", evec, "--scale", "eigensoft"]) == 0
    coarse = streampca.certify(evec, bed)
    assert coarse.certified
    assert 1e-4 < coarse.digits.max() < 1e-3
    npy = str(tmp_path / "wrong.npy")
    np.save(npy, scores_of(standardised(calls, "hwe"))[:, ::-1])
    capsys.readouterr()
    assert main(["certify", "--bfile", bed[:-4], "--components", npy, "--json"]) == 65
    assert json.loads(capsys.readouterr().out)["certified"] is False
    path.write_text(path.read_text().replace("s3\t", "nobody\t"))
    with pytest.raises(InvalidInputError, match=r"1 of 80 samples of the components .* nobody"):
        streampca.certify(path, bed)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("plink2") is None, reason="PLINK 2 is not installed")
def test_plink_exact_is_accepted_and_approximate_components_of_a_flat_tail_are_not(tmp_path):
    calls = GenotypeRecipe(600, 8000, populations=5, fst=0.03, missing=0.01, seed=1).block(0, 8000)
    bed = write_plink(tmp_path / "x", calls)
    for name, words in (("pairwise", []), ("exact", ["meanimpute"]), ("approx", ["approx"])):
        command = ["plink2", "--bfile", bed[:-4], "--pca", "10", *words, "--threads", "1"]
        out = str(tmp_path / name)
        subprocess.run([*command, "--seed", "1", "--out", out], check=True, capture_output=True)
        found = streampca.certify(f"{out}.eigenvec", bed, progress=False)
        assert "plink2" in found.convention
        assert ("both have" in found.convention) == (name == "pairwise")
        if name == "approx":
            assert found.accepted.tolist() == [True] * 4 + [False] * 6
            assert "not shown to be a component" in found.words[4]
        else:
            assert found.certified, found


@pytest.mark.slow
def test_missed_directions_are_bounded_more_narrowly_by_more_reads():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(600, 3)) * [9, 6, 5]) @ rng.normal(size=(3, 650)) / 30
    x += 0.05 * rng.normal(size=(600, 650))
    z = x - x.mean(axis=0)
    values = np.linalg.svd(z, compute_uv=False) ** 2 / 599
    bounds = [streampca.certify(scores_of(z, 3), x, passes=q).beyond for q in (1, 2, 3)]
    assert bounds == sorted(bounds, reverse=True)
    assert values[3] <= bounds[-1] < 3 * values[3]


def test_what_cannot_be_certified_says_what_was_expected(x):
    for components, message in (
        (np.ones((K, 39)), r"expected loadings \(k, 40\) or scores \(120, k\)"),
        (np.ones(40), "expected real numbers, loadings"),
        (np.zeros((K, 40)), "0 everywhere"),
        (np.full((K, 40), np.nan), "NaN or infinity"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            streampca.certify(components, x)
    with pytest.raises(InvalidInputError, match="kind='scores'"):
        streampca.certify(np.eye(40), x[:40])
    with pytest.raises(InvalidTypeError, match="expected loadings"):
        streampca.certify(7, x)
    for wrong in ({"kind": "vectors"}, {"missing": "no"}, {"center": 3}, {"scale": "max"}):
        with pytest.raises(InvalidInputError, match="expected"):
            streampca.certify(np.eye(40)[:2], x, **wrong)
    with pytest.raises(SourceError):
        streampca.certify("nowhere.eigenvec", x)
