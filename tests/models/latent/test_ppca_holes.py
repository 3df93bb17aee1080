"""Probabilistic PCA with holes: EM pass by pass against plain NumPy, its limits and its edges."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca
from streampca import PPCA, FactorAnalysis
from streampca.errors import (
    AccuracyWarning,
    DroppedFeaturesWarning,
    InvalidInputError,
    NonFiniteError,
)
from tests.data import planted


def holed(n=150, p=10, k=2, seed=0, noise=0.6, holes=0.2):
    """(X with holes, X, loadings)."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(p, k))
    X = planted(n, p, factors=loadings.T, noise=noise, mean=5.0, seed=rng)
    return np.where(rng.random((n, p)) < holes, np.nan, X), X, loadings


def likelihood(Y, mean, sigma):
    """Of the observed cells, row by row, from the plain normal density."""
    total = 0.0
    for row in Y:
        seen = ~np.isnan(row)
        if not seen.any():
            continue
        factor = np.linalg.cholesky(sigma[np.ix_(seen, seen)])
        x = scipy.linalg.solve_triangular(factor, (row - mean)[seen], lower=True)
        total -= 0.5 * (seen.sum() * np.log(2 * np.pi) + x @ x)
        total -= np.log(np.diagonal(factor)).sum()
    return total


def plain_em(Y, k, steps):
    """(mean, covariance) by the textbook's EM, without expanded parameters, many steps."""
    p = Y.shape[1]
    rng = np.random.default_rng(0)
    mean, w, noise = np.nanmean(Y, axis=0), rng.normal(size=(p, k)), 1.0
    seen = ~np.isnan(Y)
    for _ in range(steps):
        left, right = np.zeros((p, k + 1, k + 1)), np.zeros((p, k + 1))
        moments = []
        for row, o in zip(Y, seen, strict=True):
            c = np.linalg.inv(np.eye(k) + w[o].T @ w[o] / noise)
            f = np.append(c @ w[o].T @ (row - mean)[o] / noise, 1.0)
            both = np.outer(f, f)
            both[:k, :k] += c
            left[o] += both
            right[o] += np.outer(row[o], f)
            moments.append((f, both, o, row))
        new = np.linalg.solve(left, right[:, :, None])[:, :, 0]
        rest = 0.0
        for f, both, o, row in moments:
            v = new[o]
            rest += np.sum((row[o]) ** 2 - 2 * row[o] * (v @ f)) + np.sum((v @ both) * v)
        w, mean, noise = new[:, :k], new[:, k], rest / seen.sum()
    return mean, w @ w.T + noise * np.eye(p)


@pytest.mark.parametrize(
    ("n", "p", "k", "holes"),
    [(150, 10, 2, 0.2), (60, 30, 3, 0.4), (200, 8, 1, 0.01), (120, 12, 4, 0.6), (30, 60, 2, 0.3)],
)
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_the_likelihood_never_falls_and_is_that_of_the_rows(n, p, k, holes, scale):
    Y, _, _ = holed(n, p, k, holes=holes)
    Y = Y * np.linspace(1, 9, p)  # the scale must not enter where it does not belong
    model = PPCA(k, tol=1e-5, max_passes=300, scale=scale).fit(Y)
    trace = model.trace_
    assert model.converged_
    assert np.all(np.diff(trace) >= -1e-12 * np.abs(trace[-1]))
    assert trace[-1] == model.log_likelihood_
    direct = likelihood(Y, model.mean_, model.get_covariance())
    assert model.log_likelihood_ == pytest.approx(direct, rel=1e-10)
    assert model.score_samples(Y).sum() == pytest.approx(direct, rel=1e-10)
    assert trace[-1] > trace[0]
    assert len(model.cost_) == model.plan_.n_passes - 300 + len(trace)


@pytest.mark.parametrize(("n", "p", "k", "holes"), [(50, 6, 2, 0.1), (40, 8, 1, 0.4)])
def test_em_converges_to_plain_em(n, p, k, holes):
    Y, _, _ = holed(n, p, k, seed=3, noise=1.0, holes=holes)
    model = PPCA(k, tol=1e-9, max_passes=400).fit(Y)
    mean, sigma = plain_em(Y, k, 100)
    np.testing.assert_allclose(model.get_covariance(), sigma, atol=2e-3)
    np.testing.assert_allclose(model.mean_, mean, atol=1e-3)
    assert model.log_likelihood_ >= likelihood(Y, mean, sigma) - 1e-6
    rng = np.random.default_rng(1)
    inner = model.result_.factor_model
    for size in (1e-3, 1e-2):
        for _ in range(10):
            w = inner.loadings + size * rng.normal(size=inner.loadings.shape)
            near = w @ w.T + inner.noise[0] * np.exp(size * rng.normal()) * np.eye(p)
            moved = model.mean_ + size * rng.normal(size=p)
            assert likelihood(Y, moved, near) < model.log_likelihood_


def test_a_fifth_of_the_cells_removed_recovers_the_subspace():
    """Within 1 degree of that of the complete data, and as near the truth within a tenth."""
    for seed in range(3):
        Y, X, loadings = holed(1000, 50, 3, seed=seed, noise=0.5)
        ours, complete = PPCA(3).fit(Y), PPCA(3).fit(X)

        def angle(a, b):
            return np.degrees(scipy.linalg.subspace_angles(a, b).max())

        assert angle(ours.components_.T, complete.components_.T) < 1.0
        truth = angle(complete.components_.T, loadings)
        assert angle(ours.components_.T, loadings) < 1.3 * truth
        assert ours.noise_variance_ == pytest.approx(0.25, rel=0.03)
        assert len(ours.trace_) <= 8
        filled = streampca.PCA(3, missing="mean").fit(Y)
        assert angle(filled.components_.T, complete.components_.T) > 1.0  # what means would give


def test_few_holes_are_near_the_closed_form():
    Y, X, _ = holed(300, 9, 2, seed=5, holes=0.0)
    Y[0, 0] = np.nan
    with_hole, closed = PPCA(2, tol=1e-9).fit(Y), PPCA(2, ddof=0).fit(X)
    assert len(closed.trace_) == 0
    np.testing.assert_allclose(with_hole.get_covariance(), closed.get_covariance(), atol=0.02)
    np.testing.assert_allclose(with_hole.transform(X), closed.transform(X), atol=0.05)


# -- sources, blocks, weights ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dask", "sparse", "xarray", "int8", "zarr", "float32"])
def test_every_source_gives_the_same(kind, tmp_path):
    Y, _, _ = holed(120, 7, 2, seed=6)
    Y = np.rint(8 * Y)
    expected = PPCA(2, tol=1e-6).fit(Y)

    def stored():
        array = zarr.create_array(str(tmp_path / "x"), shape=Y.shape, chunks=(17, 3), dtype="f8")
        array[...] = Y
        return str(tmp_path / "x")

    source = {
        "dask": lambda: da.from_array(Y, chunks=(40, 7)),
        "sparse": lambda: scipy.sparse.csr_array(Y),
        "xarray": lambda: xr.DataArray(Y, dims=("time", "cell")),
        "int8": lambda: np.where(np.isnan(Y), -128, Y).astype(np.int8),
        "zarr": stored,
        "float32": lambda: Y.astype(np.float32),
    }[kind]()
    model = PPCA(2, tol=1e-6, missing_value=-128 if kind == "int8" else None).fit(source)
    np.testing.assert_allclose(model.trace_, expected.trace_, rtol=1e-6)
    np.testing.assert_allclose(model.get_covariance(), expected.get_covariance(), rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(model.transform(source)), expected.transform(Y), atol=1e-3
    )


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 7), st.booleans())
def test_no_chunking_changes_the_answer(rows, columns, single):
    Y, _, _ = holed(90, 7, 2, seed=7)
    Y = Y.astype(np.float32) if single else Y
    whole = PPCA(2).fit(Y)
    model = PPCA(2).fit(da.from_array(Y, chunks=(rows, columns)))
    np.testing.assert_allclose(model.trace_, whole.trace_, rtol=1e-9)
    np.testing.assert_allclose(model.get_covariance(), whole.get_covariance(), rtol=1e-6)


def test_sample_weights_are_repeated_rows():
    Y, _, _ = holed(60, 6, 2, seed=8)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    weighted = PPCA(2, tol=1e-6).fit(Y, sample_weight=weights)
    repeated = PPCA(2, tol=1e-6).fit(np.repeat(Y, weights, axis=0))
    np.testing.assert_allclose(weighted.trace_, repeated.trace_, rtol=1e-10)
    np.testing.assert_allclose(weighted.get_covariance(), repeated.get_covariance(), rtol=1e-6)
    assert weighted.bic_ == pytest.approx(repeated.bic_)


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_feature_weights_multiply_the_features():
    Y, _, _ = holed(80, 6, 2, seed=9)
    weights = np.array([1.0, 2.0, 0.5, 1.0, 0.0, 3.0])
    model = PPCA(2, weights=weights, tol=1e-6).fit(Y)
    used = weights > 0
    plain = PPCA(2, tol=1e-6).fit(Y[:, used] * weights[used])
    np.testing.assert_allclose(model.components_[:, used] ** 2, plain.components_**2, atol=1e-6)
    assert np.all(model.components_[:, 4] == 0)
    assert model.noise_variance_ == pytest.approx(plain.noise_variance_, rel=1e-6)


def test_an_interrupted_em_resumes_with_its_last_step(tmp_path, monkeypatch):
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 2000)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 20)
    Y, _, _ = holed(200, 12, 3, seed=10)
    source = da.from_array(Y, chunks=(20, 12))
    folder = str(tmp_path / "checkpoint")
    whole = PPCA(3).fit(source)

    def stop(advance: Any) -> None:
        if advance.pass_name == "em 3" and advance.blocks_done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PPCA(3, checkpoint=folder, progress=stop).fit(source)
    resumed = PPCA(3, checkpoint=folder).fit(source)
    np.testing.assert_array_equal(resumed.trace_, whole.trace_)
    blocks = [cost.resumed_blocks for cost in resumed.cost_]
    assert blocks[0] == blocks[1] == blocks[2] == whole.cost_[1].blocks > 0
    assert blocks[4] == 0
    assert not list((tmp_path / "checkpoint").glob("pass-*"))


# -- features streamed -------------------------------------------------------------------------


def both_ways(make, Y, monkeypatch, **more):
    models = []
    for axis in (0, 1):
        monkeypatch.setattr("streampca.models.latent.em.easier_axis", lambda m, a=axis: a)
        models.append(make().fit(Y, **more))
        assert (("samples", "features")[axis] + " streamed") in models[-1].plan_.reason
    return models


@pytest.mark.parametrize(
    "make",
    [
        lambda: PPCA(2, tol=1e-6),
        lambda: PPCA(2, scale="std", tol=1e-6),
        lambda: FactorAnalysis(2, missing="em", tol=1e-6),
    ],
    ids=["plain", "scaled", "factors"],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
def test_streamed_features_take_the_same_steps(make, weighted, monkeypatch):
    Y, _, _ = holed(90, 25, 2, seed=13)
    Y[4], Y[:, 7], Y[:, 9] = np.nan, np.nan, 2.5
    Y[:, 1] = np.where(np.isnan(Y[:, 1]), 5.0, Y[:, 1])
    weights = np.random.default_rng(0).integers(0, 4, 90) if weighted else None
    source = da.from_array(Y, chunks=(90, 4))
    rows, columns = both_ways(make, source, monkeypatch, sample_weight=weights)
    np.testing.assert_allclose(columns.trace_, rows.trace_, rtol=1e-10)
    np.testing.assert_allclose(columns.get_covariance(), rows.get_covariance(), atol=1e-8)
    np.testing.assert_allclose(columns.mean_, rows.mean_, atol=1e-10)
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: 1)
    for mine, theirs in zip(columns.posterior(Y), rows.posterior(Y), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-8)


def test_wide_sources_stream_features():
    wide = da.zeros((3192, 200_000), chunks=(3192, 500), dtype=np.float32)
    plan = PPCA(10, solver="gram", memory_limit="1GiB").plan(wide)
    assert "at most 100, features streamed" in plan.reason
    assert plan.named("em").reads == 400


# -- edges -------------------------------------------------------------------------------------


def test_rows_and_columns_without_observations(tmp_path):
    Y, _, _ = holed(90, 8, 2, seed=11)
    Y[5], Y[7, 1:] = np.nan, np.nan
    Y[:, 3] = np.nan
    with pytest.warns(DroppedFeaturesWarning, match="1 of 8 features"):
        model = PPCA(2, tol=1e-6).fit(Y)
    plain = PPCA(2, tol=1e-6).fit(np.delete(Y, 3, axis=1))
    np.testing.assert_allclose(model.trace_, plain.trace_, rtol=1e-10)
    scores = model.transform(Y)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores[5], 0.0)
    assert model.score_samples(Y)[5] == 0.0
    covariances = model.posterior(Y)[1]
    np.testing.assert_allclose(covariances[5], np.diag(model.result_.factor_scale**2))
    assert np.isnan(model.inverse_transform(scores)[:, 3]).all()
    assert np.isfinite(np.delete(model.inverse_transform(scores), 3, axis=1)).all()
    model.save(tmp_path / "m")
    again = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(again.trace_, model.trace_)
    np.testing.assert_array_equal(again.transform(Y), scores)


def test_em_that_has_not_converged_warns():
    Y, _, _ = holed(60, 8, 3, seed=12)
    with pytest.warns(AccuracyWarning, match=r"max_passes=2: the log-likelihood may"):
        model = PPCA(3, max_passes=2).fit(Y)
    assert not model.converged_
    assert [cost.name for cost in model.cost_] == ["scatter", "em 1", "em 2"]
    with pytest.raises(InvalidInputError, match="of its own"):
        model.likelihood_curve()
    with pytest.raises(InvalidInputError, match="max_passes=0"):
        PPCA(2, max_passes=0).fit(Y)


def test_holes_and_infinities_that_are_refused():
    Y, _, _ = holed()
    with pytest.raises(NonFiniteError, match="NaN"):
        PPCA(2, missing="raise").fit(Y)
    Y[3, 3] = np.inf
    with pytest.raises(NonFiniteError, match="inf"):
        PPCA(2).fit(Y)


@pytest.mark.parametrize("k", [1, 4, 5])
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
def test_more_components_than_the_data_hold(k):
    """Data of rank 1 and 6 rows of 5 columns: never a NaN."""
    rng = np.random.default_rng(0)
    Y = np.outer(rng.normal(size=6), rng.normal(size=5))
    Y[0, 1] = Y[3, 3] = np.nan
    model = PPCA(k, max_passes=30).fit(Y)
    for values in (model.transform(Y), model.trace_, model.components_, model.score_samples(Y)):
        assert np.isfinite(values).all()


@pytest.mark.parametrize(("n", "p", "k", "seed"), [(11, 9, 4, 1), (3, 12, 1, 0), (5, 4, 2, 1)])
@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
@pytest.mark.filterwarnings("ignore:EM has not converged")
def test_a_likelihood_without_a_maximum_is_said_and_still_right(n, p, k, seed):
    """So few cells that k components fit them: the noise would fall to 0, the digits with it."""
    Y, _, _ = holed(n, p, k, seed=seed, holes=0.45)
    with pytest.warns(AccuracyWarning, match="the likelihood has no maximum"):
        model = PPCA(k, tol=1e-6, max_passes=200).fit(Y, sample_weight=np.full(n, 2.0))
    used = np.setdiff1d(np.arange(p), model.result_.dropped)
    sigma = model.get_covariance()[np.ix_(used, used)]
    expected = likelihood(Y[:, used], model.mean_[used], sigma)
    assert model.log_likelihood_ == pytest.approx(2.0 * expected, rel=1e-4)
    assert model.score_samples(Y).sum() == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(model.transform(Y)).all()


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
def test_columns_that_two_rows_fit_exactly():
    """Their equations are singular once the noise is rounding."""
    rng = np.random.default_rng([10, 3])
    Y = rng.normal(size=(4, 12))
    Y[rng.random((4, 12)) < 0.3] = np.nan
    model = PPCA(1, tol=1e-6, max_passes=300).fit(Y, sample_weight=[2.0, 0.0, 3.0, 0.0])
    assert np.isfinite(model.score_samples(Y)).all()
    assert np.isfinite(model.log_likelihood_)


@pytest.mark.parametrize("seed", [0, 4])
def test_the_number_of_components_is_not_that_of_the_means(seed):
    """Means in place of holes look like directions of their own; the criterion is of each EM."""
    Y, _, _ = holed(300, 10, 2, seed=seed, noise=0.3, holes=0.3)
    filled = np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)
    assert PPCA("bic").fit(filled).n_components_ > 2
    model = PPCA("bic").fit(Y)
    assert model.n_components_ == 2
    plain = PPCA(2).fit(Y)
    np.testing.assert_allclose(model.trace_, plain.trace_, rtol=1e-12)
    assert all(PPCA(k, tol=0.1, max_passes=300).fit(Y).bic_ > plain.bic_ for k in (1, 3))
    assert len(model.cost_) <= model.plan_.n_passes
