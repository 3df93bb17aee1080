"""New samples on a genotype model: a NumPy least squares per sample, and real data."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca import PCA
from streampca.errors import DroppedFeaturesWarning, InvalidInputError, MemoryLimitError
from streampca.genetics.projection import project_samples, used_features
from streampca.genetics.sample_scores import LowCoverageWarning, oadp_scores
from streampca.matrix import AxisLabels, Labels
from streampca.models.results.decomposition import PrincipalComponents
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.stacked import StackedMatrix

TEXT = np.dtypes.StringDType()
COMPLEMENT = np.array([3, 2, 1, 0])
BASES = np.array(list("ACGT"), TEXT)
N, P, K = 60, 400, 4


class ChunkedReader(ArrayReader):
    """An array in memory, said to be stored in chunks."""

    chunks = (1, 1)

    def edges(self, dim):
        return np.append(np.arange(0, self.shape[dim], self.chunks[dim]), self.shape[dim])


def genotypes(calls, features, names=None, chunks=None):
    """A matrix of samples x variants with the labels that a PLINK fileset has."""
    reader = ArrayReader(np.ascontiguousarray(calls))
    if chunks is not None:
        reader = ChunkedReader(np.ascontiguousarray(calls))
        reader.chunks = chunks
    names = [f"s{i}" for i in range(len(calls))] if names is None else names
    labels = Labels(AxisLabels.plain("sample", len(calls), names), features)
    return StackedMatrix(reader, labels=labels, missing_value=-1)


def variant_axis(counted, other):
    p = len(counted)
    extra = {
        "chromosome": np.full(p, "1", TEXT),
        "position": np.arange(1, p + 1) * 100,
        "counted_allele": BASES[counted],
        "other_allele": BASES[other],
    }
    ids = np.array([f"rs{i}" for i in range(p)], TEXT)
    return AxisLabels(("variant",), (p,), {"variant": ids}, extra=extra)


def drawn(rng, n, p, populations=3):
    """Calls of a few populations."""
    ancestral = rng.uniform(0.1, 0.9, p)
    frequency = np.clip(ancestral + rng.normal(0, 0.15, (populations, p)), 0.02, 0.98)
    return rng.binomial(2, frequency[rng.integers(0, populations, n)]).astype(np.int8)


@pytest.fixture(scope="module")
def study():
    """A model, and new samples of the same populations."""
    rng = np.random.default_rng(11)
    calls = drawn(rng, 2 * N, P)
    calls[rng.random(calls.shape) < 0.02] = -1
    calls[:N, 7] = 2  # constant in the fit
    calls[:N, 8] = -1  # without any observation in the fit
    counted = rng.integers(0, 4, P)
    other = np.where(rng.random(P) < 0.5, (counted + 1) % 4, (counted + 3) % 4)
    unsure = counted == COMPLEMENT[other]
    other[unsure] = (counted[unsure] + 2) % 4
    features = variant_axis(counted, other)
    fitted = genotypes(calls[:N], features, [f"fitted {i}" for i in range(N)])
    with pytest.warns(DroppedFeaturesWarning):
        model = PCA(K, scale="hwe", missing="mean").fit(fitted)
    return SimpleNamespace(
        result=model.result_,
        old=calls[:N],
        new=calls[N:],
        features=features,
        counted=counted,
        other=other,
    )


def least_squares(result, calls, columns):
    """Scores of each sample by a least squares of its own. columns : model variants of calls."""
    used = np.isin(columns, used_features(result))
    columns, calls = columns[used], calls[:, used]
    z = (calls - result.mean[columns]) / result.scale[columns]
    v = result.components[:, columns].T
    rows = [np.linalg.lstsq(v[seen], one[seen])[0] for one, seen in zip(z, calls >= 0, strict=True)]
    coverage = (calls >= 0).sum(axis=1) / len(used_features(result))
    return np.array(rows), coverage


# -- against NumPy ------------------------------------------------------------------------------


def test_missing_calls_by_least_squares(study):
    done = project_samples(study.result, genotypes(study.new, study.features))
    scores, coverage = least_squares(study.result, study.new, np.arange(P))
    np.testing.assert_allclose(done.scores, scores, atol=1e-11)
    np.testing.assert_allclose(done.coverage, coverage, rtol=1e-13)
    assert done.match.n_matched == len(used_features(study.result)) == P - 2
    assert np.all(done.loading_coverage < 1)
    assert np.all(done.loading_coverage > 0.9)
    assert done.scores.shape == (N, K)
    assert not done.refused.any()
    assert done.cost.reads > 0


def test_with_everything_observed_it_is_the_plain_projection(study):
    calls = np.where(study.new < 0, 1, study.new).astype(np.int8)
    matrix = genotypes(calls, study.features)
    for missing in ("least_squares", "mean"):
        done = project_samples(study.result, matrix, missing=missing)
        z = (calls - study.result.mean) / np.where(study.result.scale > 0, study.result.scale, 1)
        np.testing.assert_allclose(done.scores, z @ study.result.components.T, atol=1e-11)
        np.testing.assert_array_equal(done.coverage, 1.0)


def test_missing_calls_may_hold_the_mean(study):
    done = project_samples(study.result, genotypes(study.new, study.features), missing="mean")
    scale = np.where(study.result.scale > 0, study.result.scale, np.inf)
    z = np.where(study.new < 0, 0, (study.new - study.result.mean) / scale)
    np.testing.assert_allclose(done.scores, z @ study.result.components.T, atol=1e-11)
    assert done.loading_coverage is None


def rewritten(study, rng):
    """The new samples with a third of the alleles swapped, strands, order and absences changed."""
    swapped, flipped = rng.random(P) < 1 / 3, rng.random(P) < 0.2
    counted = np.where(swapped, study.other, study.counted)
    other = np.where(swapped, study.counted, study.other)
    counted = np.where(flipped, COMPLEMENT[counted], counted)
    other = np.where(flipped, COMPLEMENT[other], other)
    calls = np.where(swapped & (study.new >= 0), 2 - study.new, study.new).astype(np.int8)
    order = rng.permutation(P)[: round(0.95 * P)]
    return calls[:, order], variant_axis(counted, other).pick(order), order


def test_alleles_strands_order_and_absent_variants(study):
    calls, features, order = rewritten(study, np.random.default_rng(0))
    done = project_samples(study.result, genotypes(calls, features))
    scores, coverage = least_squares(study.result, study.new[:, order], order)
    np.testing.assert_allclose(done.scores, scores, atol=1e-11)
    np.testing.assert_allclose(done.coverage, coverage, rtol=1e-13)
    assert done.match.n_swapped > P / 4
    assert done.match.n_flipped > P / 8
    np.testing.assert_array_equal(order[done.match.new], done.match.model)


def test_one_sample_gets_the_scores_that_it_gets_among_others(study):
    together = project_samples(study.result, genotypes(study.new, study.features)).scores
    for i in (0, N - 1):
        alone = project_samples(study.result, genotypes(study.new[i : i + 1], study.features))
        np.testing.assert_allclose(alone.scores[0], together[i], atol=1e-11)


def test_samples_of_the_fit_keep_their_scores(study):
    calls = np.where(study.old < 0, 1, study.old).astype(np.int8)
    model = PCA(K, scale="hwe").fit(genotypes(calls, study.features))
    matrix = genotypes(calls, study.features)
    done = project_samples(model, matrix)
    np.testing.assert_allclose(done.scores, model.result_.scores, atol=2e-5)  # a float32 fit
    assert done.match.n_matched == P - 1  # constant: 2 in all samples
    with pytest.warns(UserWarning, match=f"{N} of {N} samples have the name of a sample of the"):
        project_samples(model, matrix, shrinkage="oadp")


@given(data=st.data())
def test_blocks_do_not_matter(study, data):
    """Any chunks, blocks, tiles, lanes and streamed axis."""
    chunk = st.integers(1, 70), st.integers(1, 500)
    chunks = data.draw(st.none() | st.tuples(*chunk))
    block, tile = data.draw(st.integers(200, 200_000)), data.draw(st.integers(200, 200_000))
    limit = data.draw(st.sampled_from([None, "300MiB"]))
    dtype = data.draw(st.sampled_from([np.int8, np.float32, np.float64]))
    calls = study.new.astype(dtype)
    expected, _ = least_squares(study.result, study.new, np.arange(P))
    matrix = genotypes(calls, study.features, chunks=chunks)
    with (
        patch("streampca.passes.blocks.BLOCK_NBYTES", block),
        patch("streampca.matrix.tiles.TILE_NBYTES", tile),
    ):
        done = project_samples(study.result, matrix, memory_limit=limit)
    np.testing.assert_allclose(done.scores, expected, atol=1e-11)
    if chunks is not None:
        stored = -(-N // chunks[0]) * -(-P // chunks[1])
        assert done.plan.reads == stored


def test_a_store_of_whole_samples_streams_samples(study):
    many = np.tile(study.new, (200, 1))
    expected, coverage = least_squares(study.result, study.new, np.arange(P))
    with patch("streampca.passes.blocks.BLOCK_NBYTES", 1 << 20):
        matrix = genotypes(many, study.features, chunks=(100, P))
        with patch("streampca.genetics.projection.easier_axis", lambda *_, **__: 0):
            done = project_samples(study.result, matrix, shrinkage="oadp")
    assert done.plan.solver == "samples"
    wanted = project_samples(study.result, genotypes(study.new, study.features), shrinkage="oadp")
    np.testing.assert_allclose(done.scores[-N:], wanted.scores, atol=1e-10)
    np.testing.assert_allclose(done.coverage[:N], coverage, rtol=1e-13)
    assert np.abs(wanted.scores - expected).max() > 0.1


# -- what is refused ----------------------------------------------------------------------------


def test_samples_that_show_too_little_get_no_scores(study):
    calls = study.new.copy()
    calls[3, : P // 2 + 20] = -1
    calls[5] = -1
    matrix = genotypes(calls, study.features)
    with pytest.warns(LowCoverageWarning, match=r"2 of 60 samples .*s3: 4[0-9.]+%; s5: 0.0%"):
        done = project_samples(study.result, matrix)
    np.testing.assert_array_equal(np.flatnonzero(done.refused), [3, 5])
    assert np.isnan(done.scores[[3, 5]]).all()
    expected, _ = least_squares(study.result, study.new, np.arange(P))
    np.testing.assert_allclose(done.scores[6:], expected[6:], atol=1e-11)
    with pytest.warns(LowCoverageWarning, match="1 of 60"):
        lower = project_samples(study.result, matrix, min_coverage=0.3, shrinkage="oadp")
    assert np.isfinite(lower.scores[3]).all()
    with pytest.raises(InvalidInputError, match="2 of 2 samples show too few"):
        project_samples(study.result, genotypes(calls[[3, 5]], study.features))


def test_a_direction_that_nobody_observes_is_not_invented(study):
    """Half the variants are there, and all of the others carry one component alone."""
    v = np.zeros((2, P))
    v[0, : P // 2], v[1, P // 2 :] = (P // 2) ** -0.5, (P // 2) ** -0.5
    result = PrincipalComponents(
        method="PCA",
        explained_variance=np.ones(2),
        total_variance=2.0,
        mean=np.ones(P),
        n_samples=10,
        ddof=1,
        rank=2,
        components=v,
        weight=10.0,
        labels=Labels(AxisLabels.plain("sample", 10), study.features),
    )
    half = genotypes(study.new[:, : P // 2], study.features.take(0, P // 2))
    with pytest.raises(InvalidInputError, match="60 of 60 samples"):
        project_samples(result, half, min_coverage=0.1)


def test_too_few_variants_are_refused_before_reading(study):
    few = genotypes(study.new[:, :150], study.features.take(0, 150))
    with pytest.raises(InvalidInputError, match=r"148 of 398 .*needs at least 199"):
        project_samples(study.result, few)
    assert few.reads().chunks == 0
    done = project_samples(study.result, few, min_coverage=0.3)
    expected, coverage = least_squares(study.result, study.new[:, :150], np.arange(150))
    np.testing.assert_allclose(done.scores, expected, atol=1e-10)
    np.testing.assert_allclose(done.coverage, coverage)


def test_settings_and_values_that_cannot_be_used(study):
    matrix = genotypes(study.new, study.features)
    for bad, words in [
        ({"missing": "zero"}, "missing='zero'"),
        ({"shrinkage": "ap"}, "shrinkage='ap'"),
        ({"min_coverage": 50}, "min_coverage=50"),
        ({"n_components": 5}, "n_components=5; the model has 1 to 4"),
        ({"match": "name"}, "match='name'"),
        ({"ploidy": 1}, "from 0 to 1"),
    ]:
        with pytest.raises(InvalidInputError, match=words):
            project_samples(study.result, matrix, **bad)
    nine = np.where(study.new < 0, 9, study.new).astype(np.int8)
    with pytest.raises(InvalidInputError, match=r"rs\d+.* \(such as 9\).*missing_value=9"):
        project_samples(study.result, genotypes(nine, study.features))
    with pytest.raises(InvalidInputError, match="no counted_allele"):
        project_samples(study.result, study.new)
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        project_samples(study.result, matrix, memory_limit="1MiB")


# -- what comes out -----------------------------------------------------------------------------


def test_labels_and_table(study):
    done = project_samples(study.result, genotypes(study.new, study.features), n_components=2)
    assert done.scores.shape == done.loading_coverage.shape == (N, 2)
    table = done.columns()
    assert list(table) == ["sample", "PC1", "PC2", "coverage"]
    assert table["sample"][3] == "s3"
    dataset = done.to_xarray()
    np.testing.assert_array_equal(dataset["scores"].sel(component=2), done.scores[:, 1])
    assert dataset.attrs["n_matched"] == P - 2
    with pytest.raises(ValueError, match="read-only"):
        done.scores[0] = 0
    assert "398 of 398 variants matched" in repr(done)


def test_a_saved_model_projects_alike(study, tmp_path):
    study.result.save(tmp_path / "model")
    loaded = PrincipalComponents.load(tmp_path / "model")
    matrix = genotypes(study.new, study.features)
    np.testing.assert_array_equal(
        project_samples(loaded, matrix).scores, project_samples(study.result, matrix).scores
    )


# -- shrinkage ----------------------------------------------------------------------------------


def test_oadp_is_the_decomposition_with_the_sample_put_below():
    """Against the definition: augment a matrix of full rank, decompose, turn back, all of it."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((30, 5)) * [5, 4, 3, 2, 1]
    u, s, vt = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)
    new = rng.standard_normal((7, 5)) * 3
    k = 3
    truncated = (u[:, :k] * s[:k]) @ vt[:k]
    expected = []
    for one in new:
        a, b, _ = np.linalg.svd(np.vstack([truncated, one]), full_matrices=False)
        joint = (a * b)[:, :k]
        reference = u[:, :k] * s[:k]
        left, values, right = np.linalg.svd(joint[:-1].T @ reference)
        scale = values.sum() / np.sum(joint[:-1] ** 2)
        expected.append(scale * joint[-1] @ left @ right)
    projected = new @ vt[:k].T
    residual = np.linalg.norm(new - projected @ vt[:k], axis=1)
    np.testing.assert_allclose(oadp_scores(s[:k], projected, residual), expected, atol=1e-12)
    # nothing beside the components, a direction without variance, nobody at all
    inside = oadp_scores(np.array([5.0, 2.0, 0.0]), projected, np.zeros(7))
    np.testing.assert_array_equal(inside[:, 2], projected[:, 2])
    assert oadp_scores(s[:k], projected[:0], residual[:0]).shape == (0, k)


def test_oadp_needs_to_know_the_spread(study):
    unknown = PrincipalComponents(
        method="PCA",
        explained_variance=np.ones(1),
        total_variance=1.0,
        n_samples=0,
        ddof=1,
        rank=1,
        mean=study.result.mean,
        labels=study.result.labels,
        components=np.eye(1, P),
        scale=study.result.scale,
        weight=np.nan,
    )
    with pytest.raises(InvalidInputError, match="singular values"):
        project_samples(unknown, genotypes(study.new, study.features), shrinkage="oadp")


# -- real data ----------------------------------------------------------------------------------

HAPMAP = "HM3_thinned_autosomal_overlap.bed"
KILO = "1kg.ref.phase1_release_v3.20101123_thinned_autosomal_overlap.bed"


@pytest.fixture(scope="module")
def real(shared_data):
    """HapMap3's calls and 1000G's, with the places of 1000G's variants among HapMap3's."""
    reference = streampca.open(str(shared_data / "hapmap3" / HAPMAP))
    target = streampca.open(str(shared_data / "hapmap3" / KILO))
    p = reference.shape[1]
    names = [m.labels.features.coords["variant"].tolist() for m in (reference, target)]
    place = {name: i for i, name in enumerate(names[0])}
    return SimpleNamespace(
        reference=reference,
        target=target,
        calls=target.read(1, 0, p),
        order=np.array([place[name] for name in names[1]]),
        result=PCA(6, scale="hwe", missing="mean").fit(reference).result_,
    )


@pytest.mark.slow
def test_hapmap3_to_1000_genomes(real):
    """flashpca's own test, X = (g - 2p) / sqrt(2p(1-p)) / sqrt(#SNP), to 1e-6."""
    p = real.reference.shape[1]
    old = real.reference.read(1, 0, p).astype(float)
    old[old < 0] = np.nan
    mean = np.nanmean(old, axis=0)
    deviation = np.sqrt(mean * (1 - mean / 2))
    z = np.nan_to_num((old - mean) / deviation)
    values, u = np.linalg.eigh(z @ z.T)
    v = z.T @ u[:, :-7:-1] / np.sqrt(values[:-7:-1])
    new = (real.calls - mean[real.order]) / deviation[real.order]
    direct = new @ v[real.order] / np.sqrt(p)
    done = project_samples(real.result, real.target)
    direct *= np.sign(np.sum(direct * done.scores, axis=0))
    np.testing.assert_allclose(done.scores / np.sqrt(p), direct, atol=1e-6)
    assert done.match.to_dict() == {
        "by": "id",
        "n_model": 14079,
        "n_new": 14079,
        "n_matched": 14079,
        "n_swapped": 0,
        "n_flipped": 0,
        "n_ambiguous": 1015,
        "n_ambiguous_dropped": 0,
        "n_absent": 0,
        "n_mismatched": 0,
        "n_duplicated": 0,
    }
    one = genotypes(real.calls[700:701], real.target.labels.features)
    np.testing.assert_allclose(
        project_samples(real.result, one).scores / np.sqrt(p), direct[700:701], atol=1e-6
    )


def test_swapped_alleles_and_absent_variants_of_1000_genomes(real):
    rng = np.random.default_rng(5)
    p = real.reference.shape[1]
    swapped = rng.random(p) < 1 / 3
    features = real.target.labels.features
    counted, other = (features.extra[name] for name in ("counted_allele", "other_allele"))
    extra = {
        **features.extra,
        "counted_allele": np.where(swapped, other, counted),
        "other_allele": np.where(swapped, counted, other),
    }
    renamed = AxisLabels(features.dims, features.sizes, features.coords, extra=extra)
    calls = np.where(swapped, 2 - real.calls, real.calls).astype(np.int8)
    done = project_samples(real.result, genotypes(calls, renamed))
    plain = project_samples(real.result, real.target)
    np.testing.assert_allclose(done.scores, plain.scores, atol=1e-10)
    assert done.match.n_swapped == np.count_nonzero(swapped)
    kept = np.sort(rng.permutation(p)[: round(0.95 * p)])
    part = project_samples(real.result, genotypes(calls[:, kept], renamed.pick(kept)))
    columns = real.order[kept]
    z = (real.calls[:, kept] - real.result.mean[columns]) / real.result.scale[columns]
    direct = np.linalg.lstsq(real.result.components[:, columns].T, z.T)[0].T
    np.testing.assert_allclose(part.scores, direct, atol=1e-10)
    np.testing.assert_allclose(part.coverage, len(kept) / p)


def test_shrinkage_on_1000_genomes(real):
    """Held-out samples: the slope of their scores on those of a fit that has them."""
    features, samples = real.target.labels.features, real.target.labels.samples
    drawn = np.random.default_rng(0).permutation(len(real.calls))
    out, kept = np.sort(drawn[: len(drawn) // 5]), np.sort(drawn[len(drawn) // 5 :])
    held = genotypes(real.calls[out], features, samples.names(out.tolist()))
    joint = PCA(4, scale="hwe", missing="mean").fit(real.target).result_.scores
    fit = PCA(8, scale="hwe", missing="mean").fit(genotypes(real.calls[kept], features)).result_
    sign = np.sign(np.sum(fit.scores[:, :4] * joint[kept], axis=0))

    def slopes(scores, rows):
        return [np.polyfit(joint[rows, j], sign[j] * scores[:, j], 1)[0] for j in range(4)]

    plain = slopes(project_samples(fit, held).scores, out)
    oadp = slopes(project_samples(fit, held, n_components=4, shrinkage="oadp").scores, out)
    np.testing.assert_allclose(plain, [0.970, 0.954, 0.873, 0.699], atol=2e-3)
    assert all(0.95 < slope < 1.05 for slope in oadp), oadp
    # the very scale of the samples of the smaller fit
    np.testing.assert_allclose(oadp, slopes(fit.scores[:, :4], kept), atol=0.01)
