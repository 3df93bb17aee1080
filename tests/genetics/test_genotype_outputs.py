"""What a genotype fit leaves on disk and in xarray, with its labels."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
import xarray
import zarr
from genotypes import random_calls, write_plink
from test_genotype_pca import genotypes, oracle, simulated

import streampca
from streampca import GenotypePCA
from streampca.errors import AccuracyWarning, InvalidInputError, LocalComponentWarning, SourceError


def opened(path) -> xarray.Dataset:
    return xarray.open_zarr(str(path), consolidated=False).load()


def test_the_relationship_matrix_opens_with_its_samples(tmp_path) -> None:
    calls = simulated(n=20, p=200, missing=0.02)
    calls[:, 5] = 1
    keep = [f"s{i}" for i in range(3, 20)]
    GenotypePCA(2, keep=keep, relationship=tmp_path / "r.zarr").fit(genotypes(calls))
    _, z, used = oracle(calls[3:], "hwe")
    data = opened(tmp_path / "r.zarr").relationship
    assert data.dims == ("sample", "sample_2")
    assert data.family.sel(sample="s7").item() == "f7"
    one = data.sel(sample="s7", sample_2="s11").item()
    assert one == pytest.approx((z @ z.T)[4, 8] / used.sum(), abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.zarr"]


def test_streamed_components_are_those_in_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 1 << 18)
    path = write_plink(tmp_path / "x", random_calls(60, 9000))
    settings = {"solver": "gram", "maf": 0.2}
    held = GenotypePCA(5, **settings).fit(path)
    streamed = GenotypePCA(5, loadings=tmp_path / "v.zarr", **settings).fit(path)
    assert streamed.plan_.named("loadings").n_blocks > 1
    np.testing.assert_array_equal(streamed.scores_, held.scores_)
    data = opened(tmp_path / "v.zarr")
    v = data.components.values
    np.testing.assert_allclose(v.T, held.components_, atol=2e-6)
    np.testing.assert_allclose(v.T @ v, np.eye(5), atol=1e-5)
    assert not v[held.scale_ == 0].any()
    assert (held.scale_ == 0).sum() > 100
    np.testing.assert_array_equal(data["mean"], held.mean_)
    np.testing.assert_array_equal(data.scale, held.scale_)
    np.testing.assert_array_equal(data.explained_variance, held.explained_variance_)
    assert data.component.values.tolist() == [1, 2, 3, 4, 5]
    assert data.components.counted_allele.sel(variant="rs11").item() == "G"
    assert data.position.sel(variant="rs11").item() == 111
    np.testing.assert_allclose(streamed.components_, held.components_, rtol=0, atol=1e-7)
    streamed.save(tmp_path / "model")
    result = streampca.load(tmp_path / "model").result_.with_components(tmp_path / "v.zarr")
    np.testing.assert_allclose(result.components, held.components_, rtol=0, atol=1e-7)
    np.testing.assert_allclose(result.components @ result.components.T, np.eye(5), atol=1e-13)
    other = GenotypePCA(5, **{**settings, "maf": 0.1}).fit(path)
    with pytest.raises(InvalidInputError, match="another fit wrote"):
        other.result_.with_components(tmp_path / "v.zarr")
    with pytest.raises(SourceError, match="no components there"):
        result.with_components(tmp_path / "nowhere.zarr")


def test_streaming_the_components_takes_them_out_of_the_plan(tmp_path) -> None:
    path = write_plink(tmp_path / "x", random_calls(20, 60_000))
    held, streamed = (
        GenotypePCA(10, solver="gram", loadings=one).plan(path).memory["loadings"]
        for one in (None, tmp_path / "v.zarr")
    )
    assert held["components"] == 10 * 60_000 * 8
    assert not {"components", "statistics of features"} & set(streamed)
    assert not (tmp_path / "v.zarr").exists()


def test_a_cohort_is_scored_beside_streamed_components(tmp_path) -> None:
    path = write_plink(tmp_path / "x", random_calls(60, 9000))
    some = [f"s{i}" for i in range(0, 60, 2)]
    settings = {"solver": "gram", "fit_samples": some}
    held = GenotypePCA(3, **settings).fit(path)
    streamed = GenotypePCA(3, loadings=tmp_path / "v.zarr", **settings).fit(path)
    np.testing.assert_array_equal(streamed.scores_, held.scores_)
    np.testing.assert_allclose(
        opened(tmp_path / "v.zarr").components.T, held.components_, atol=2e-6
    )
    np.testing.assert_array_equal(streamed.result_.fitted, np.arange(60) % 2 == 0)
    again = streamed.result_.with_components(tmp_path / "v.zarr").components
    np.testing.assert_allclose(again, held.components_, atol=1e-7)
    assert GenotypePCA(3).fit(path).result_.fitted is None


def test_components_of_rounding_are_zero(tmp_path) -> None:
    """Neither noise in the store nor, for those who were not fitted, in the scores."""
    path = write_plink(tmp_path / "x", random_calls(40, 3000))
    settings = {"fit_samples": [f"s{i}" for i in range(6)], "solver": "gram"}
    with pytest.warns(AccuracyWarning, match="rank 5: .* and 0 in loadings="):
        model = GenotypePCA(6, loadings=tmp_path / "v.zarr", **settings).fit(path)
    v = opened(tmp_path / "v.zarr").components.values
    assert not v[:, 5].any()
    np.testing.assert_allclose(v[:, :5].T @ v[:, :5], np.eye(5), atol=1e-5)
    assert not model.scores_[6:, 5].any()
    assert np.abs(model.scores_[6:, :5]).max() > 1
    with pytest.warns(AccuracyWarning, match="rank 5"):
        held = GenotypePCA(6, relationship=tmp_path / "r.zarr", **settings).fit(path)
    np.testing.assert_allclose(held.components_ @ held.components_.T, np.eye(6), atol=1e-10)
    np.testing.assert_array_equal(held.scores_, model.scores_)
    again = model.result_.with_components(tmp_path / "v.zarr").components
    np.testing.assert_allclose(again, held.components_, atol=1e-6)


def test_streamed_components_are_looked_at_for_local_ones(tmp_path) -> None:
    rng = np.random.default_rng(3)
    calls = rng.binomial(2, rng.uniform(0.2, 0.8, 6000), (100, 6000)).astype(np.int8)
    calls[:, 3000:3400] = rng.binomial(2, 0.4, 100)[:, None]
    matrix = genotypes(calls, ["8"] * 6000, np.arange(6000) * 10_000)
    with pytest.warns(LocalComponentWarning, match=r"PC1: 8\d% in chr8:30-34 Mb"):
        GenotypePCA(2, loadings=tmp_path / "v.zarr").fit(matrix)


def test_outputs_that_cannot_be_are_refused_before_reading(tmp_path) -> None:
    matrix = genotypes(simulated(20, 200, 0.0))
    path = tmp_path / "v.zarr"
    refused = [
        ({"loadings": path, "relationship": path}, "are one path"),
        ({"loadings": path, "components": False}, "components=False saves"),
        ({"loadings": path, "solver": "scatter"}, "use solver='gram'"),
        ({"loadings": tmp_path}, "loadings: .* exists already"),
    ]
    (tmp_path / "there").touch()
    for settings, words in refused:
        with pytest.raises(InvalidInputError, match=words):
            GenotypePCA(2, **settings).fit(matrix)
    assert matrix.reads().chunks == 0


@pytest.mark.slow
@pytest.mark.parametrize("output", ["loadings", "relationship"])
def test_a_fit_that_breaks_off_leaves_nothing(output, tmp_path, monkeypatch) -> None:
    path = write_plink(tmp_path / "x", random_calls(60, 3000))
    before = sorted(one.name for one in tmp_path.iterdir())

    def broken(self, block):
        raise OSError("the disk is gone")

    monkeypatch.setattr("streampca.models.results.projection.FeatureLoadings.__call__", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        GenotypePCA(3, scheduler="threads", **{output: tmp_path / "v.zarr"}).fit(path)
    gc.collect()
    assert sorted(one.name for one in tmp_path.iterdir()) == before


def test_xarray_holds_the_numbers_of_geneticists(tmp_path) -> None:
    calls = simulated(missing=0.05)
    some = [f"s{i}" for i in range(0, 60, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GenotypePCA(3, maf=0.117, fit_samples=some).fit(genotypes(calls))
    data = model.result_.to_xarray()
    fitted = calls[::2]
    values, z, used = oracle(fitted, "hwe")
    x = np.where(fitted < 0, np.nan, fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        frequency = np.nanmean(x, axis=0) / 2
    used &= np.minimum(frequency, 1 - frequency) >= 0.117
    z = z[:, used]
    values = np.linalg.eigvalsh(z @ z.T / used.sum())[::-1]
    np.testing.assert_allclose(data.eigenvalues, values[:3], rtol=1e-5)
    np.testing.assert_allclose(data.frequency, frequency, rtol=1e-12)
    assert np.isnan(data.frequency[5])
    np.testing.assert_array_equal(data.observed_alleles, 2 * (fitted >= 0).sum(axis=0))
    np.testing.assert_array_equal(data.used, used)
    assert data.attrs["n_features_used"] == used.sum()
    unit = data.eigenvectors.values[data.fitted.values]
    np.testing.assert_allclose(unit.T @ unit, np.eye(3), atol=1e-5)
    np.testing.assert_array_equal(data.fitted, np.arange(60) % 2 == 0)
    np.testing.assert_array_equal(data.missing_by_sample, (calls < 0).sum(axis=1))
    np.testing.assert_array_equal(data.tracy_widom_p, model.tracy_widom_.p_value[:3])
    assert data.frequency.counted_allele.sel(variant="v3").item() == "A"
    model.save(tmp_path / "model")
    again = streampca.load(tmp_path / "model").result_.to_xarray()
    xarray.testing.assert_equal(again, data)
    assert "eigenvalues" not in streampca.PCA(2).fit(np.eye(9)).result_.to_xarray()


def test_an_unfinished_store_is_not_taken_for_a_whole_one(tmp_path) -> None:
    path = write_plink(tmp_path / "x", random_calls(60, 900))
    model = GenotypePCA(3, loadings=tmp_path / "v.zarr").fit(path)
    group = zarr.open_group(str(tmp_path / "v.zarr"), mode="r+")
    group["components"].attrs["streampca_complete"] = False
    with pytest.raises(SourceError, match="unfinished"):
        model.result_.with_components(tmp_path / "v.zarr")
