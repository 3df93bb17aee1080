"""PCA against NumPy, on every path, shape and kind of input."""

from __future__ import annotations

import pickle
from itertools import pairwise

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca import PCA
from streampca.cli.info import summary
from streampca.errors import (
    AccuracyWarning,
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    InvalidInputError,
    InvalidTypeError,
    MemoryLimitError,
    NoGapWarning,
    NonFiniteError,
    NotFittedError,
    SourceError,
)
from streampca.kernels import probe
from tests.data import planted
from tests.each import each
from tests.models.invariants import check_invariants

EXACT = ("scatter", "tsqr", "gram")
SOLVERS = (*EXACT, "randomized")


def oracle(X: np.ndarray, scale: bool = False, ddof: int = 1, center: bool = True):
    """(variances, components up to sign, total) from a float64 SVD."""
    Z = X.astype(np.float64)
    Z = Z - Z.mean(axis=0) if center else Z
    if scale:
        deviation = Z.std(axis=0, ddof=ddof)
        Z = np.divide(Z, deviation, out=np.zeros_like(Z), where=deviation > 0)
    _, s, vt = np.linalg.svd(Z, full_matrices=False)
    variance = s**2 / (len(X) - ddof)
    return variance, vt, variance.sum(), Z


@pytest.mark.parametrize("solver", SOLVERS)
@each("shape", [(200, 12), (12, 200), (40, 40), (3, 2), (2, 7)])
@each("scale", [None, "std"])
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_equals_numpy(solver, shape, scale):
    X = planted(*shape)
    k = min(3, min(shape) - 1)
    model = PCA(k, svd_solver=solver, scale=scale).fit(X)
    variance, vt, total, Z = oracle(X, scale is not None)
    np.testing.assert_allclose(model.explained_variance_, variance[:k], rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_ratio_, variance[:k] / total, rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vt[:k], axis=1)), 1, atol=1e-9)
    np.testing.assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12, atol=1e-12)
    check_invariants(model, Z, 1e-9)


def test_every_path_gives_the_same_signs():
    X = planted(60, 45, seed=3)
    models = [PCA(4, svd_solver=s).fit(X) for s in SOLVERS]
    bare = PCA(4, svd_solver="gram", components=False).fit(X)
    for model in models[1:]:
        np.testing.assert_allclose(model.components_, models[0].components_, atol=1e-9)
        np.testing.assert_allclose(model.transform(X), models[0].transform(X), atol=1e-8)
    np.testing.assert_allclose(bare.result_.scores, models[0].transform(X), atol=1e-8)
    assert (models[0].components_ @ probe(0, 45) > 0).all()  # in every version


@given(
    data=st.data(),
    n=st.integers(3, 60),
    p=st.integers(2, 40),
    dtype=st.sampled_from(["f4", "f8", "i1", "i2"]),
    solver=st.sampled_from(SOLVERS),
)
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_any_chunking_of_dask_gives_the_same_answer(data, n, p, dtype, solver):
    X = (10 * planted(n, p, seed=n * p)).clip(-100, 100).astype(dtype)
    rows = data.draw(_partition(n))
    columns = data.draw(_partition(p))
    variance, _, total, _ = oracle(X)
    model = PCA(1, svd_solver=solver).fit(da.from_array(X, chunks=(rows, columns)))
    loose = 1e-5 if dtype != "f8" else 1e-10
    np.testing.assert_allclose(model.explained_variance_[0], variance[0], rtol=loose)
    np.testing.assert_allclose(model.result_.total_variance, total, rtol=loose)


@st.composite
def _partition(draw, total: int):
    cuts = draw(st.sets(st.integers(1, max(total - 1, 1)), max_size=6))
    edges = sorted({0, total} | {c for c in cuts if c < total})
    return tuple(b - a for a, b in pairwise(edges))


def test_kinds_of_input_agree(tmp_path):
    X = planted(90, 7)
    X[X < -3] = 0
    expected = PCA(3).fit(X)
    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(20, 3), dtype="f8")
    store[:] = X
    np.save(tmp_path / "x.npy", X)
    array = xr.DataArray(X, dims=("time", "site"))
    for source in (
        str(tmp_path / "x.zarr"),
        store,
        str(tmp_path / "x.npy"),
        X.tolist(),
        np.asfortranarray(X),
        X.astype(">f8"),
        da.from_array(X, chunks=(17, 4)),
        array,
        scipy.sparse.csr_matrix(X),
        scipy.sparse.csc_array(X),
        streampca.open(X),
    ):
        model = PCA(3).fit(source)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-10)
        np.testing.assert_allclose(
            np.asarray(model.transform(source)), expected.transform(X), atol=1e-9
        )


def test_number_of_components():
    X = planted(300, 20)
    variance, _, total, _ = oracle(X)
    share = np.cumsum(variance) / total
    for wanted in (0.5, 0.9, 0.99):
        model = PCA(wanted).fit(X)
        assert (
            share[model.n_components_ - 1]
            >= wanted
            > (share[model.n_components_ - 2] if model.n_components_ > 1 else 0)
        )
    assert PCA(None).fit(X).n_components_ == 20
    equal = np.eye(10)  # ten equal variances about the mean but one
    exact = PCA.from_covariance(equal, n_components=0.3)
    assert exact.n_components_ == 3


def test_gap_and_its_absence():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 10)) * np.array([9, 8, 7] + [1.0] * 7)
    spaced = PCA("gap").fit(X)
    assert spaced.gap_ == spaced.n_components_ == 3
    gap = rng.standard_normal((500, 10)) * np.array([8, 8, 8] + [1.0] * 7)
    assert PCA("gap").fit(gap).n_components_ == 3
    with pytest.warns(NoGapWarning):
        flat = PCA("gap").fit(rng.standard_normal((100_000, 4)))
    assert flat.gap_ is None
    assert flat.n_components_ == 4


@pytest.mark.parametrize(
    ("variances", "n", "k"),
    [
        ([100, 90, 0, 0, 0, 0], 10_000, 2),
        ([10, 9.9, 9.8, 0, 0, 0], 10_000, 3),
        ([100, 90, 0, 0], None, 2),
        ([100, 10, 9, 8, 0, 0], 10_000, 1),
        ([1000, 100, 50, 1, 1, 1], 10_000, 3),  # a ratio: the largest difference is the first
        ([9, 8.5, 8, 1, 0.9, 0.8, 0], 10_000, 3),  # a column that repeats others is no gap
    ],
)
def test_the_drop_to_zero_is_a_gap(variances, n, k):
    model = PCA.from_covariance(np.diag(variances), n_samples=n, n_components="gap")
    assert model.gap_ == model.n_components_ == k
    if n is not None:
        X, _ = low_rank(1000, len(variances), np.sqrt(np.trim_zeros(variances, "b")))
        for solver in EXACT:
            fitted = PCA("gap", svd_solver=solver).fit(X)
            assert fitted.gap_ == fitted.n_components_ == k


def test_the_small_values_of_nearly_as_many_features_as_rows_are_no_gap():
    x = np.random.default_rng(0).standard_normal((202, 200))
    x[:, :3] *= 4
    values = PCA().fit(x).explained_variance_
    assert np.argmax(values[:-1] / values[1:]) > 100
    assert PCA("gap").fit(x).n_components_ == 3


@pytest.mark.parametrize("solver", EXACT)
def test_what_centring_and_constants_take_is_no_gap(solver):
    flat = 5 * np.eye(40)  # all variances about the mean are equal, one is 0
    with pytest.warns(NoGapWarning):
        assert PCA("gap", svd_solver=solver).fit(flat).n_components_ == 39
    rng = np.random.default_rng(0)
    more = np.concatenate([rng.standard_normal((4000, 4)), np.ones((4000, 3))], axis=1)
    with pytest.warns(NoGapWarning):
        assert PCA("gap", svd_solver="scatter").fit(more).n_components_ == 4
    with pytest.warns(NoGapWarning):
        PCA.from_covariance(np.eye(4), n_components="gap")


@pytest.mark.parametrize("solver", SOLVERS)
def test_whitened_scores_have_unit_variance(solver):
    X = planted(150, 9)
    scores = PCA(4, whiten=True, svd_solver=solver).fit_transform(X)
    np.testing.assert_allclose(np.cov(scores.T), np.eye(4), atol=1e-9)


def test_inverse_transform_recovers_the_data():
    X = planted(80, 6)
    for model in (PCA(), PCA(whiten=True), PCA(scale="std"), PCA(scale="std", whiten=True)):
        model.fit(X)
        np.testing.assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-9)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_ddof_and_uncentred(ddof, center, solver):
    X = planted(50, 8)
    model = PCA(3, ddof=ddof, center=center, svd_solver=solver).fit(X)
    variance, *_ = oracle(X, ddof=ddof, center=center)
    np.testing.assert_allclose(model.explained_variance_, variance[:3], rtol=1e-10)
    np.testing.assert_allclose(model.mean_, X.mean(axis=0) if center else 0, atol=1e-12)


@pytest.mark.parametrize("solver", ["scatter", "gram"])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_means_in_place_of_holes(solver, scale, share):
    rng = np.random.default_rng(1)
    X = planted(120, 10)
    X[rng.random(X.shape) < share] = np.nan
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    model = PCA(4, missing="mean", svd_solver=solver, scale=scale).fit(
        da.from_array(X, chunks=(33, 4))
    )
    centred = filled - filled.mean(axis=0)
    if scale:  # the deviation of the observed cells
        centred /= np.nanstd(X, axis=0, ddof=1)
    s = np.linalg.svd(centred, compute_uv=False)
    np.testing.assert_allclose(model.explained_variance_, s[:4] ** 2 / 119, rtol=1e-10)
    np.testing.assert_allclose(model.transform(X), centred @ model.components_.T, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_features_without_observation_are_dropped_by_name(solver):
    X = xr.DataArray(planted(30, 6), dims=("time", "site"), coords={"site": list("abcdef")})
    X[:, 2] = np.nan
    with pytest.warns(DroppedFeaturesWarning, match="1 of 6 features .* c"):
        model = PCA(2, svd_solver=solver).fit(X)
    kept = np.delete(X.values, 2, axis=1)
    np.testing.assert_allclose(model.explained_variance_, oracle(kept)[0][:2], rtol=1e-10)
    assert model.result_.dropped.tolist() == [2]
    assert np.all(model.components_[:, 2] == 0)
    assert model.n_features_used_ == 5
    assert np.isfinite(np.asarray(model.transform(X))).all()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [None, "std"])
def test_constant_columns_have_loading_exactly_zero(solver, scale):
    X = planted(1000, 5).astype("f4")
    X[:, 3] = 0.1
    model = PCA(2, svd_solver=solver, scale=scale).fit(da.from_array(X, chunks=(77, 5)))
    assert np.all(model.components_[:, 3] == 0.0)
    assert model.result_.constant.tolist() == [3]


@pytest.mark.slow
def test_a_million_rows_of_a_tenth_are_constant():
    X = np.random.default_rng(0).standard_normal((1_000_000, 4), dtype=np.float32)
    X[:, 1] = 0.1
    for solver in ("scatter", "tsqr"):
        model = PCA(2, svd_solver=solver).fit(da.from_array(X, chunks=(50_000, 4)))
        assert np.all(model.components_[:, 1] == 0.0)
        assert model.result_.constant.tolist() == [1]


def test_a_dominant_unscaled_feature_is_named():
    X = xr.DataArray(planted(40, 4), dims=("s", "f"), coords={"f": ["a", "b", "income", "d"]})
    X[:, 2] *= 1000
    with pytest.warns(DominantFeatureWarning, match="income holds 100% of the total variance"):
        PCA(2).fit(X)
    PCA(2, scale="std").fit(X)


def test_rank_is_reported_and_rounding_is_not_sold_as_components():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 10))
    with pytest.warns(AccuracyWarning, match="numerical rank 3"):
        model = PCA(5).fit(X)
    assert model.rank_ == 3
    with pytest.warns(AccuracyWarning, match="10 components were asked"):
        assert PCA(None, svd_solver="tsqr").fit(X).rank_ == 3


@pytest.mark.parametrize("solver", ["scatter", "gram"])
def test_a_rank_that_is_only_a_lower_bound_says_so(solver):
    X = planted(60, 54)
    part, whole = PCA(5, svd_solver=solver).fit(X), PCA(None, svd_solver=solver).fit(X)
    assert part.rank_ == 6
    assert not part.result_.rank_is_exact
    assert summary(part)["rank"] is None
    assert summary(part)["rank_at_least"] == 6
    assert whole.rank_ == summary(whole)["rank"] == 54
    low, _ = low_rank(60, 54, np.array([5.0, 4, 3]))
    with pytest.warns(AccuracyWarning):
        model = PCA(5, svd_solver=solver).fit(low)
    assert summary(model)["rank"] == 3


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("center", [True, False])
def test_components_beyond_the_rank_lie_in_the_features_used(solver, scale, center):
    if scale and not center:
        return
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    X = np.concatenate([X, X, np.ones((40, 2)) * center], axis=1)
    with pytest.warns(AccuracyWarning, match="numerical rank 3"):
        model = PCA(5, svd_solver=solver, scale=scale, center=center).fit(X)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-12)
    if center:
        assert np.all(model.components_[:, 6:] == 0)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_no_more_components_than_features_that_vary(solver):
    X = np.concatenate([planted(40, 3), np.ones((40, 5))], axis=1)
    with pytest.warns(AccuracyWarning, match="5 components were asked and 3 of 8 .* 3 were kept"):
        model = PCA(5, svd_solver=solver).fit(X)
    assert model.transform(X).shape == (40, 3)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
    with pytest.warns(AccuracyWarning, match="0 of 4 features vary: 1 were kept, which is 0"):
        flat = PCA(2, svd_solver=solver).fit(np.ones((9, 4)))
    assert np.all(flat.components_ == 0)
    assert flat.explained_variance_.tolist() == [0.0]


def low_rank(n: int, p: int, singular: np.ndarray, seed: int = 0):
    """(X, V): centred rows with exactly these singular values and right vectors (p, k)."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((n, len(singular)))
    u = np.linalg.qr(u - u.mean(axis=0))[0]
    v = np.linalg.qr(rng.standard_normal((p, len(singular))))[0]
    return (u * singular) @ v.T, v


@pytest.mark.parametrize("solver", ["gram", "scatter", "panels"])
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_weak_components_of_float32_are_kept(solver, tmp_path):
    """s / s1 = 1e-2 in float32: found within the certified angle, never replaced by filler."""
    shape = (400, 40_000) if solver == "panels" else (1500, 600)
    s = np.array([100, 30, 1.4, 1.3, 1.2, 1.1, 1.0]) * 50
    X, v = low_rank(*shape, s)
    X = X.astype("f4")
    if solver == "panels":
        store = zarr.create_array(
            str(tmp_path / "x.zarr"), shape=shape, chunks=(20, shape[1]), dtype="f4"
        )
        store[:] = X
        model = PCA(7, memory_limit="166MiB").fit(store)
        assert model.plan_.solver == "gram by panels"
    else:
        model = PCA(7, svd_solver=solver).fit(X)
    assert model.rank_ == 7
    inside = np.linalg.norm(model.components_ @ v, axis=1)
    np.testing.assert_allclose(inside, 1, atol=1e-4)
    cosine = np.abs(np.sum(model.components_.T * v, axis=0))
    assert np.all(np.arccos(np.minimum(cosine, 1)) <= model.certificate_.angle_bound + 1e-7)
    assert np.all(model.certificate_.angle_bound < 0.1)
    scores = model.transform(X)
    if model.result_.scores is not None:
        np.testing.assert_allclose(model.result_.scores, scores, atol=1e-4 * s[-1])


@pytest.mark.parametrize("dtype", ["i1", "f4", "f8"])
@pytest.mark.parametrize("solver", ["gram", "scatter"])
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_rounding_is_certified_as_such(solver, dtype):
    rng = np.random.default_rng(1)
    X = rng.integers(-3, 4, (300, 3)) @ rng.integers(-3, 4, (3, 200))
    X = X.astype(dtype) * np.array(1 if dtype == "i1" else 0.3, dtype)
    for wanted in (5, None):  # None asks for all that shape and centring allow: 199 of 200
        with pytest.warns(AccuracyWarning, match="numerical rank 3"):
            model = PCA(wanted, svd_solver=solver).fit(X)
        assert model.rank_ == 3
        assert np.all(model.certificate_.angle_bound[:3] < 1e-3)
        assert np.all(model.certificate_.angle_bound[3:] == np.pi / 2)
        v = model.components_[:5]
        np.testing.assert_allclose(v @ v.T, np.eye(5), atol=1e-12)
    full = planted(8, 30)  # centring takes one direction: that is no rounding
    assert PCA(None, svd_solver=solver).fit(full).rank_ == 7


@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
def test_large_means_and_small_singular_values():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 6)) * np.array([5, 4, 3, 2, 1.5, 1])
    variance = oracle(X)[0]
    far = PCA(6).fit(da.from_array(X + 1e6, chunks=(300, 6)))
    exact = oracle((X + 1e6) - 1e6)[0]
    np.testing.assert_allclose(far.explained_variance_, exact, rtol=1e-12)
    single = (X + 1e4).astype("f4")
    np.testing.assert_allclose(
        PCA(6).fit(da.from_array(single, chunks=(300, 6))).explained_variance_,
        oracle(single)[0],
        rtol=1e-5,
    )
    np.testing.assert_allclose(far.explained_variance_, variance, rtol=1e-9)
    u = np.linalg.qr(rng.standard_normal((3000, 5)) - 0)[0]
    u -= u.mean(axis=0)
    u = np.linalg.qr(u)[0]
    v = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    s = np.array([1.0, 1e-2, 1e-5, 1e-8, 1e-10])
    Y = da.from_array((u * s) @ v.T, chunks=(500, 5))
    fine = PCA(5, svd_solver="tsqr").fit(Y)
    np.testing.assert_allclose(fine.singular_values_, s, rtol=1e-4)
    with pytest.warns(AccuracyWarning):
        coarse = PCA(5, svd_solver="scatter").fit(Y)
    assert abs(coarse.singular_values_[-1] / s[-1] - 1) > 1e-2


def test_the_certificate_bounds_the_error():
    for seed in range(5):
        X = planted(800, 30, seed=seed).astype("f4")
        variance, vt, *_ = oracle(X)
        for solver in ("scatter", "gram"):
            model = PCA(5, svd_solver=solver).fit(da.from_array(X, chunks=(200, 7)))
            bound = model.certificate_
            assert np.all(np.abs(model.explained_variance_ - variance[:5]) <= bound.variance_bound)
            cosine = np.abs(np.sum(model.components_ * vt[:5], axis=1))
            assert np.all(np.arccos(np.minimum(cosine, 1)) <= bound.angle_bound + 1e-7)


def test_likelihood_covariance_and_noise_equal_scikit_learns():
    from sklearn.decomposition import PCA as Reference

    X = planted(200, 9)
    for k in (2, 5, 9):
        theirs, mine = Reference(k, svd_solver="full").fit(X), PCA(k).fit(X)
        np.testing.assert_allclose(
            mine.noise_variance_, theirs.noise_variance_, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(mine.get_covariance(), theirs.get_covariance(), atol=1e-10)
        np.testing.assert_allclose(
            mine.get_precision(), theirs.get_precision(), rtol=1e-7, atol=1e-9
        )
        np.testing.assert_allclose(mine.score_samples(X), theirs.score_samples(X), rtol=1e-9)
        assert mine.score(X) == pytest.approx(theirs.score(X), rel=1e-9)


def test_share_of_variance_for_every_k_on_training_and_new_rows():
    X = planted(400, 12)
    train, new = X[:300], X[300:]
    model = PCA(6).fit(train)
    np.testing.assert_allclose(model.r2_curve(train), model.r2_curve(), atol=1e-12)
    expected = [
        1 - np.sum((new - _reconstruct(model, new, k)) ** 2) / np.sum((new - model.mean_) ** 2)
        for k in range(7)
    ]
    np.testing.assert_allclose(
        model.r2_curve(da.from_array(new, chunks=(30, 5))), expected, atol=1e-12
    )
    error = model.reconstruction_error(train)
    dropped = model.result_.total_variance - model.explained_variance_.sum()
    assert error == pytest.approx(dropped * 299 / 300, rel=1e-10)


@pytest.fixture
def by_features(tmp_path, monkeypatch):
    """A function from an array to a store of which samples cannot be streamed in small blocks."""
    monkeypatch.setattr("streampca.models.results.row_maps.easier_axis", lambda matrix: 1)

    def stored(X):
        path = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.zarr")
        array = zarr.create_array(path, shape=X.shape, chunks=(len(X), 13), dtype=X.dtype)
        array[:] = X
        return streampca.open(array)

    return stored


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1"])
def test_measures_of_fit_while_features_stream(by_features, scale, dtype):
    X = (10 * planted(90, 60)).clip(-100, 100).astype(dtype)
    model = PCA(4, scale=scale, whiten=True).fit(X[:60])
    rows = X[60:].astype("f8")
    matrix = by_features(X[60:])
    z = (rows - model.mean_) / (1.0 if scale is None else model.scale_)
    v = model.components_
    scores, left = z @ v.T, z - z @ v.T @ v
    loose = {"f4": 1e-5, "i1": 1e-5, "f8": 1e-12}[dtype]
    expected = scores / np.sqrt(model.explained_variance_)
    np.testing.assert_allclose(model.transform(matrix), expected, atol=10 * loose)
    curve = [1 - np.sum((z - z @ v[:k].T @ v[:k]) ** 2) / np.sum(z**2) for k in range(5)]
    np.testing.assert_allclose(model.r2_curve(matrix), curve, atol=loose)
    assert model.reconstruction_error(matrix) == pytest.approx(np.sum(left**2) / 30, rel=1e-3)
    np.testing.assert_allclose(
        model.score_samples(matrix), model.score_samples(rows), rtol=100 * loose
    )
    assert matrix.reads().chunks == 4 * 5  # each of the four measures is one pass


def test_holes_while_features_stream(by_features):
    X = planted(40, 30)
    X[:, 7] = np.nan
    with pytest.warns(DroppedFeaturesWarning):
        model = PCA(3).fit(X)
    full = model.transform(X)
    np.testing.assert_allclose(model.transform(by_features(X)), full, atol=1e-12)
    known = X.copy()
    known[:, 7] = 5.0  # never observed in the fit: the model has nothing to say about it
    for one in (known, by_features(known)):
        assert model.reconstruction_error(one) == pytest.approx(model.reconstruction_error(X))
        np.testing.assert_allclose(model.score_samples(one), model.score_samples(X))
    X[3, 25] = np.nan
    with pytest.raises(NonFiniteError, match="feature 25; so far 1 missing and 39"):
        model.transform(by_features(X))


def test_a_row_inside_the_components_has_no_residual_while_features_stream(by_features):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 30))
    model = PCA(3).fit(X)
    assert model.reconstruction_error(by_features(X)) <= 1e-12
    assert model.r2_curve(by_features(X))[-1] == pytest.approx(1)
    with pytest.raises(InvalidInputError, match="no likelihood"):
        model.score_samples(X)
    X += 0.1 * rng.standard_normal(X.shape)
    model = PCA(3).fit(X)
    near = model.score_samples(by_features(X.astype("f4")))
    np.testing.assert_allclose(near, model.score_samples(X), rtol=1e-2)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_feature_without_observation_changes_no_likelihood(solver):
    X = planted(60, 8)
    more = np.insert(X, 3, np.nan, axis=1)
    model = PCA(3, svd_solver=solver).fit(X)
    with pytest.warns(DroppedFeaturesWarning):
        same = PCA(3, svd_solver=solver).fit(more)
    assert same.noise_variance_ == pytest.approx(model.noise_variance_, rel=1e-9)
    np.testing.assert_allclose(same.score_samples(more), model.score_samples(X), rtol=1e-9)
    left = [0, 1, 2, 4, 5, 6, 7, 8]
    np.testing.assert_allclose(
        same.get_covariance()[np.ix_(left, left)], model.get_covariance(), atol=1e-10
    )
    assert np.all(same.get_covariance()[3] == 0)
    np.testing.assert_allclose(
        same.get_precision()[np.ix_(left, left)], model.get_precision(), atol=1e-7
    )


def test_constant_features_count_in_the_likelihood_unless_scaled():
    from sklearn.decomposition import PCA as Reference

    X = planted(60, 8)
    X[:, 2] = 4.0
    for k in (2, 5):
        theirs = Reference(k, svd_solver="full").fit(X)
        np.testing.assert_allclose(PCA(k).fit(X).score_samples(X), theirs.score_samples(X))
    scaled = PCA(2, scale="std").fit(X)
    bare = PCA(2, scale="std").fit(np.delete(X, 2, axis=1))
    np.testing.assert_allclose(scaled.score(X), bare.score(np.delete(X, 2, axis=1)))


def test_a_precision_is_the_inverse_or_refused():
    rng = np.random.default_rng(0)
    X = planted(60, 8)
    X[:, 2] = 4.0
    scaled = PCA(3, scale="std").fit(X)
    used = np.delete(np.arange(8), 2)
    inside = np.ix_(used, used)
    np.testing.assert_allclose(
        scaled.get_precision()[inside] @ scaled.get_covariance()[inside], np.eye(7), atol=1e-9
    )
    assert np.all(scaled.get_precision()[2] == 0)
    full = PCA(scale="std").fit(X)
    np.testing.assert_allclose(
        full.get_precision()[inside], np.linalg.inv(np.cov(X[:, used].T)), rtol=1e-8
    )
    wide = rng.standard_normal((6, 50))
    assert np.isfinite(PCA(3).fit(wide).get_precision()).all()
    low, _ = low_rank(60, 8, np.array([5.0, 4, 3]))
    for model in (PCA().fit(wide), PCA(5).fit(wide), PCA(3).fit(low), PCA().fit(X)):
        with pytest.raises(InvalidInputError, match=r"no inverse.*n_components="):
            model.get_precision()


@pytest.mark.parametrize("scale", [None, "std"])
def test_unobserved_features_are_not_reconstructed(scale, tmp_path):
    X = planted(40, 6)
    X[:, 2] = np.nan
    with pytest.warns(DroppedFeaturesWarning):
        model = PCA(5, scale=scale).fit(X)
    scores = model.transform(X)
    np.testing.assert_allclose(model.inverse_transform(scores), X, atol=1e-9)
    lazy = model.inverse_transform(da.from_array(scores, chunks=(7, 5)))
    np.testing.assert_allclose(lazy.compute(), X, atol=1e-9)
    np.testing.assert_allclose(
        model.inverse_transform(scores, out=tmp_path / "x.zarr")[:], X, atol=1e-9
    )


def test_reconstructed_rows_have_the_labels_of_the_data():
    values = planted(24, 20).reshape(24, 4, 5)
    X = xr.DataArray(
        values,
        dims=("time", "lat", "lon"),
        coords={"time": np.arange(24), "lat": [1.0, 2, 3, 4], "lon": np.arange(5) * 10.0},
    )
    model = PCA(20).fit(X, dim="time")
    back = model.inverse_transform(model.transform(X))
    xr.testing.assert_allclose(back, X.rename("reconstruction"))
    assert back.dims == X.dims
    some = model.inverse_transform(model.transform(X).transpose("component", "time"))
    xr.testing.assert_allclose(some, back)


def _reconstruct(model, X, k):
    v = model.components_[:k]
    return (X - model.mean_) @ v.T @ v + model.mean_


def test_transform_stays_lazy_and_writes_block_by_block(tmp_path):
    X = planted(100, 8)
    model = PCA(3).fit(X)
    lazy = model.transform(da.from_array(X, chunks=((30, 45, 25), 8)))
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((30, 45, 25), (3,))
    np.testing.assert_allclose(lazy.compute(), model.transform(X), atol=1e-12)
    back = model.inverse_transform(lazy)
    assert isinstance(back, da.Array)
    np.testing.assert_allclose(
        back.compute(), model.inverse_transform(model.transform(X)), atol=1e-12
    )
    written = model.transform(X, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(written[:], model.transform(X), atol=1e-12)
    assert written.attrs["streampca_complete"] is True
    with pytest.raises(InvalidInputError, match="exists already"):
        model.transform(X, out=tmp_path / "scores.zarr")
    rows = model.inverse_transform(str(tmp_path / "scores.zarr"), out=tmp_path / "rows.zarr")
    np.testing.assert_allclose(rows[:], back.compute(), atol=1e-12)


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_a_lazy_transform_knows_the_missing_code(dtype):
    rng = np.random.default_rng(0)
    U = rng.integers(0, 90, (50, 6)).astype(dtype)
    U[rng.random(U.shape) < 0.1] = 255
    model = PCA(2, missing="mean", missing_value=255).fit(U)
    lazy = model.transform(da.from_array(U, chunks=10))
    assert lazy.compute().dtype == lazy.dtype == model.transform(U).dtype
    np.testing.assert_allclose(lazy.compute(), model.transform(U), rtol=1e-5, atol=1e-4)
    strict = PCA(2, missing_value=255).fit(np.minimum(U, 90))
    with pytest.raises(NonFiniteError):
        strict.transform(U)
    with pytest.raises(NonFiniteError):
        strict.transform(da.from_array(U, chunks=10)).compute()


@pytest.mark.parametrize("shape", [(60, 4, 3), (8, 6, 5)])
def test_arrays_of_many_dimensions_keep_the_dimension_of_the_fit(shape):
    X = planted(shape[0], shape[1] * shape[2]).reshape(shape)
    moved = np.moveaxis(X, 0, 1)
    expected = PCA(2).fit_transform(X.reshape(shape[0], -1))
    for array, dim in ((X, 0), (moved, 1)):
        for source in (array, da.from_array(array, chunks=5)):
            model = PCA(2)
            np.testing.assert_allclose(model.fit_transform(source, dim=dim), expected, atol=1e-9)
            np.testing.assert_allclose(model.transform(source), expected, atol=1e-9)
            assert model.reconstruction_error(source) > 0
    flat = X.reshape(shape[0], -1).T
    for source in (flat, da.from_array(flat, chunks=5)):
        model = PCA(2)
        np.testing.assert_allclose(model.fit_transform(source, dim=1), expected, atol=1e-9)
        np.testing.assert_allclose(model.transform(source, dim=1), expected, atol=1e-9)


def test_xarray_in_labelled_xarray_out():
    X = xr.DataArray(
        planted(24, 20).reshape(24, 4, 5),
        dims=("time", "lat", "lon"),
        coords={
            "time": np.arange("2020-01", "2022-01", dtype="M8[M]").astype("M8[ns]"),
            "lat": [1.0, 2, 3, 4],
            "lon": np.arange(5) * 10.0,
        },
    )
    model = PCA(3).fit(X, dim="time")
    scores = model.transform(X)
    assert scores.dims == ("time", "component")
    assert scores["time"].equals(X["time"])
    assert scores["component"].values.tolist() == [1, 2, 3]
    flat = X.values.reshape(24, 20)
    np.testing.assert_allclose(model.explained_variance_, oracle(flat)[0][:3], rtol=1e-10)
    assert model.result_.labels.features.name(7) == "lat=2.0, lon=20.0"


def test_a_saved_model_is_the_same_model(tmp_path):
    X = xr.DataArray(planted(30, 5), dims=("s", "f"), coords={"f": list("abcde")})
    model = PCA(3, scale="std").fit(X)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(X.values), model.transform(X.values))
    assert loaded.result_.labels.features.names() == list("abcde")
    assert loaded.get_params()["scale"] == "std"
    np.testing.assert_array_equal(loaded.certificate_.angle_bound, model.certificate_.angle_bound)
    with pytest.raises(SourceError, match="no streampca model"):
        streampca.load(tmp_path / "absent")


@pytest.mark.parametrize(
    "names",
    [
        np.array(list("abcde")),
        np.array(list("abcde"), dtype=object),
        np.array(list("abcde"), dtype=np.dtypes.StringDType()),
        np.arange(5),
        np.linspace(0, 1, 5),
        np.arange("2020-01", "2020-06", dtype="M8[M]").astype("M8[ns]"),
    ],
    ids=lambda names: str(names.dtype),
)
def test_features_of_the_fit_are_known_by_name(names, tmp_path):
    X = xr.DataArray(planted(30, 5), dims=("s", "f"), coords={"f": names})
    model = PCA(2).fit(X)
    model.save(tmp_path / "m")
    for one in (model, streampca.load(tmp_path / "m")):
        for swapped in (X[:, ::-1], X[:, [0, 1, 2, 4, 3]]):
            with pytest.raises(InvalidInputError, match=r"another order: f \d is"):
                one.transform(swapped)
        np.testing.assert_allclose(one.transform(X).values, model.transform(X.values))
        np.testing.assert_allclose(one.transform(X.rename(f="g")), model.transform(X.values))
    plain = PCA(2).fit(X.values)
    np.testing.assert_allclose(plain.transform(X[:, ::-1]), plain.transform(X.values[:, ::-1]))
    with pytest.raises(InvalidInputError, match="another order"):
        model.r2_curve(X[:, ::-1])


def test_a_loaded_model_knows_the_columns_of_the_data_frame(tmp_path):
    frame = pd.DataFrame(planted(30, 3), columns=list("abc"))
    model = PCA(2, scale="std").fit(frame)
    model.save(tmp_path / "m")
    for one in (model, streampca.load(tmp_path / "m")):
        assert one.feature_names_in_.tolist() == list("abc")
        assert one.feature_names_in_.dtype == object
        with pytest.raises(InvalidInputError, match="same order"):
            one.transform(frame[["c", "b", "a"]])
        np.testing.assert_allclose(one.transform(frame), model.transform(frame.values))
    assert not hasattr(PCA(2, scale="std").fit(frame.values), "feature_names_in_")
    assert not hasattr(PCA(2), "feature_names_in_")


def test_a_stacked_grid_keeps_its_order():
    values = planted(24, 20).reshape(24, 4, 5)
    bare = xr.DataArray(values, dims=("time", "lat", "lon"))
    model = PCA(2).fit(bare, dim="time")
    xr.testing.assert_allclose(
        model.transform(bare.transpose("time", "lon", "lat")), model.transform(bare)
    )
    named = bare.assign_coords(lat=[1.0, 2, 3, 4], lon=np.arange(5))
    model = PCA(2).fit(named, dim="time")
    with pytest.raises(InvalidInputError, match=r"lat 0 is 4\.0 and was 1\.0"):
        model.transform(named[:, ::-1])
    moved = named.assign_coords(lat=np.array([1, 2, 3, 4], "f4"))
    assert model.transform(moved).shape == (24, 2)


@pytest.mark.parametrize("shape", [(30, 5), (5, 30), (8, 8)])
def test_a_saved_model_knows_its_sample_dimension(shape, tmp_path):
    X = xr.DataArray(planted(*shape), dims=("cell", "gene")).transpose("gene", "cell")
    model = PCA(2).fit(X, dim="cell")
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    for one in (model, loaded):
        scores = one.transform(X)
        assert scores.dims == ("cell", "component")
        np.testing.assert_allclose(scores, model.transform(X.values.T), atol=1e-12)
    assert loaded.reconstruction_error(X) == pytest.approx(model.reconstruction_error(X.values.T))


def test_results_are_read_only():
    model = PCA(2).fit(planted(20, 4))
    with pytest.raises(ValueError, match="read-only"):
        model.components_[0, 0] = 1


@pytest.mark.soak
@pytest.mark.parametrize("scale", [pytest.param(None, marks=pytest.mark.soak), "std"])
def test_gram_by_panels_of_rows(tmp_path, scale):
    X = planted(400, 40_000).astype("f4")
    store = zarr.create_array(
        str(tmp_path / "t.zarr"), shape=X.shape, chunks=(20, 40_000), dtype="f4"
    )
    store[:] = X
    whole = PCA(4, scale=scale).fit(store)
    assert whole.plan_.solver == "gram"
    Z = X.astype("f8") - X.mean(axis=0, dtype="f8")
    if scale:
        Z /= Z.std(axis=0, ddof=1)
    variance = np.linalg.eigvalsh(Z @ Z.T)[::-1][:4] / 399
    panels = set()
    for limit in ("175MiB", "167MiB"):
        model = PCA(4, memory_limit=limit, scale=scale).fit(store)
        plan = model.plan_
        assert plan.solver == "gram by panels"
        starts = [one.edges[0] // 20 for one in plan.passes if one.name.startswith("panel")]
        count = len(starts)
        extra = 2 if scale else 1  # loadings, and moments where products need them
        below = sum(20 - start for start in starts)  # a panel, and all rows below it
        assert plan.reads == 20 * extra + below == sum(c.reads for c in model.cost_)
        assert below == pytest.approx(20 * (count + 1) / 2, abs=2)
        assert plan.nbytes == sum(c.nbytes for c in model.cost_)
        panels.add(count)
        np.testing.assert_allclose(model.explained_variance_, variance, rtol=1e-5)
        np.testing.assert_allclose(model.components_, whole.components_, atol=1e-5)
        check_invariants(model, Z, 1e-5)
    assert max(panels) > 1


@pytest.mark.parametrize(
    ("X", "error", "words"),
    [
        (np.zeros(5), InvalidInputError, "Reshape your data"),
        (np.zeros((2, 3, 4)), InvalidInputError, "dim="),
        (np.array([["a", "b"]]), InvalidTypeError, "astype"),
        (np.array([[object(), 1]]), InvalidTypeError, "astype"),
        (np.ones((4, 2), complex), InvalidTypeError, "Complex data not supported"),
        (np.zeros((0, 3)), InvalidInputError, "0 sample"),
        (np.zeros((3, 0)), InvalidInputError, "0 feature"),
        (np.ones((1, 3)), InvalidInputError, "1 sample"),
        ("nowhere.zarr", SourceError, "no such file"),
        (
            np.array([[1.0, np.inf], [2, 3], [4, 5]]),
            NonFiniteError,
            r"infinity in block 0.*by NaN, which missing='mean' allows",
        ),
        (
            np.array([[1.0, np.nan], [2, 3], [4, 5]]),
            NonFiniteError,
            r"NaN.*block 0.*feature 1.*1 missing and 2",
        ),
    ],
)
def test_bad_input_is_refused_in_words(X, error, words):
    with pytest.raises(error, match=words):
        PCA(1).fit(X)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_components": 9}, "between 0 and"),
        ({"n_components": 0, "center": False}, "between 1 and"),
        ({"n_components": -2}, "between 0 and"),
        ({"n_components": 1.5}, "between 0 and 1"),
        ({"n_components": "many"}, "expected an integer"),
        ({"svd_solver": "magic"}, "solver='magic'"),
        ({"scale": "hwe2"}, "scale="),
        ({"missing": "guess"}, "missing="),
        ({"ddof": -1}, "ddof"),
        ({"missing_value": "x"}, "missing_value='x'; expected a finite number or None"),
        ({"missing": "mean", "svd_solver": "tsqr"}, "scatter"),
        ({"memory_limit": "lots"}, "512MiB"),
        ({"scheduler": "nowhere"}, "scheduler="),
    ],
)
def test_bad_settings_are_refused_in_words(parameters, words):
    with pytest.raises((ValueError, TypeError), match=words):
        PCA(**parameters).fit(planted(20, 5))


def test_unfitted_and_mismatched():
    with pytest.raises(NotFittedError, match="not fitted"):
        PCA().transform(np.ones((2, 2)))
    model = PCA(2).fit(planted(20, 5))
    with pytest.raises(InvalidInputError, match="4 features, but PCA is expecting 5"):
        model.transform(np.ones((2, 4)))
    wide = PCA(2, svd_solver="gram", components=False).fit(planted(20, 5))
    with pytest.raises(InvalidInputError, match="components=True"):
        wide.components_  # noqa: B018


def test_unknown_dask_chunks_and_groups(tmp_path):
    x = da.from_array(planted(20, 3), chunks=(5, 3))
    with pytest.raises(InvalidInputError, match="compute_chunk_sizes"):
        PCA(1).plan(x[x[:, 0] > 0])
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w")
    group.create_array("X", shape=(4, 2), dtype="f8")
    group.create_array("Y", shape=(4, 3), dtype="f8")
    with pytest.raises(InvalidInputError, match=r"holds: X \(4, 2\), Y \(4, 3\).*variable='X'"):
        PCA(1).fit(str(tmp_path / "g.zarr"))


def test_refusal_comes_before_reading(tmp_path):
    store = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(1000, 800), chunks=(100, 800), dtype="f8"
    )
    store[:] = 1.0
    matrix = streampca.open(store)
    with pytest.raises(MemoryLimitError, match=r"memory_limit='\d+MiB'") as told:
        PCA(2, memory_limit="100MiB").fit(matrix)
    assert matrix.reads().chunks == 0
    smallest = pickle.loads(pickle.dumps(told.value)).smallest  # as a worker sends it
    assert f"memory_limit='{-(-smallest // 2**20)}MiB'" in str(told.value)
    assert PCA(2, memory_limit=smallest).plan(matrix).peak_nbytes <= smallest
    with pytest.raises(MemoryLimitError):
        PCA(2, memory_limit=smallest - 2**20).plan(matrix)


def test_from_covariance():
    model = PCA.from_covariance([[1, 0.9], [0.9, 1.05]])
    np.testing.assert_allclose(model.explained_variance_, [1.92535, 0.12465], atol=5e-6)
    assert model.n_samples_ == 0  # not known, and not made up
    assert "an unknown number of samples" in str(model.result_)
    assert np.isnan(model.singular_values_).all()
    one = PCA.from_covariance([[1, 0.9], [0.9, 1.05]], n_components=1)
    assert one.noise_variance_ == pytest.approx(model.explained_variance_[1])
    X = planted(70, 6)
    full = PCA(3).fit(X)
    same = PCA.from_covariance(
        streampca.covariance(X), mean=X.mean(axis=0), n_samples=70, n_components=3
    )
    np.testing.assert_allclose(same.components_, full.components_, atol=1e-10)
    np.testing.assert_allclose(same.singular_values_, full.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(same.transform(X), full.transform(X), atol=1e-9)
    for bad, words in (
        ([[1, 2]], "square"),
        ([[1, 2], [0, 1]], "symmetric"),
        ([[1, 2], [2, 1]], "negative eigenvalue"),
        ([[1, np.nan], [0, 1]], "NaN"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            PCA.from_covariance(bad)


def test_a_covariance_of_named_features_keeps_the_names():
    frame = pd.DataFrame(planted(50, 4), columns=list("abcd"))
    for S in (streampca.covariance(frame), frame.cov()):
        model = PCA.from_covariance(S, mean=frame.mean(), n_samples=50, n_components=2)
        assert model.feature_names_in_.tolist() == list("abcd")
        with pytest.raises(InvalidInputError, match="same order"):
            model.transform(frame[list("dcba")])
    with pytest.raises(InvalidInputError, match="ddof=-1; expected"):
        streampca.covariance(frame, ddof=-1)
    with pytest.raises(InvalidInputError, match="n_samples = 50"):
        streampca.covariance(frame, ddof=50)
    for function in (streampca.covariance, streampca.correlation):
        with pytest.raises(InvalidTypeError, match="missing_value='x'"):
            function(frame, missing_value="x")


def test_covariance_and_correlation_are_labelled():
    X = xr.DataArray(planted(50, 4), dims=("s", "f"), coords={"f": list("abcd")})
    covariance = streampca.covariance(X)
    np.testing.assert_allclose(covariance.values, np.cov(X.values.T), atol=1e-12)
    assert covariance["feature"].values.tolist() == list("abcd")
    np.testing.assert_allclose(
        streampca.covariance(X.values, ddof=0), np.cov(X.values.T, ddof=0), atol=1e-12
    )
    np.testing.assert_allclose(streampca.correlation(X.values), np.corrcoef(X.values.T), atol=1e-12)
    constant = X.values.copy()
    constant[:, 1] = 7
    matrix = streampca.correlation(constant)
    assert np.isnan(matrix[1]).all()
    assert matrix[0, 0] == 1


def test_no_property_reads_data(tmp_path):
    store = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(40, 300), chunks=(40, 100), dtype="f8"
    )
    store[:] = planted(40, 300)
    matrix = streampca.open(store)
    for model, passes in (
        (PCA(3), 2),
        (PCA(3, components=False), 1),
        (PCA(3, svd_solver="scatter"), 1),
    ):
        before = matrix.reads().chunks
        model.fit(matrix)
        fitted = matrix.reads().chunks
        assert (
            fitted - before == passes * 3 == model.plan_.reads == sum(c.reads for c in model.cost_)
        )
        assert sum(c.nbytes for c in model.cost_) == model.plan_.nbytes
        for name in dir(model):
            if (
                name.endswith("_")
                and not name.startswith("__")
                and (name != "components_" or model.components)
            ):
                getattr(model, name, None)  # without names of features there is no attribute
        assert matrix.reads().chunks == fitted


@pytest.mark.parametrize("solver", ["scatter", "gram"])
def test_values_whose_squares_no_float_holds_are_refused(solver: str) -> None:
    x = np.random.default_rng(0).normal(size=(50, 6))
    with pytest.raises(NonFiniteError, match="rescale the columns"):
        PCA(2, svd_solver=solver).fit(x * 1e100)
    small, large = (PCA(2, svd_solver=solver).fit(x * unit) for unit in (1.0, 1e60))
    np.testing.assert_allclose(large.explained_variance_ratio_, small.explained_variance_ratio_)


def test_sums_that_rounding_contradicts_are_no_error_of_the_user() -> None:
    """3e9 of the mean leave 70 to each other direction: float32 does not resolve their sum."""
    x = np.random.default_rng(0).standard_normal((60, 30), "f4") + 1e4
    with pytest.warns(AccuracyWarning, match="rank 1"):
        model = PCA(3, center=False, svd_solver="gram").fit(x)
    assert np.isnan(model.result_.tracy_widom().p_value).all()


def test_an_iterated_fit_says_that_it_cannot_test() -> None:
    model = PCA(3, svd_solver="randomized").fit(planted(60, 30))
    with pytest.raises(InvalidInputError, match=r"iterated fit .* solver=.scatter."):
        model.result_.tracy_widom()


@pytest.mark.filterwarnings("ignore::streampca.errors.NoGapWarning")
@pytest.mark.parametrize("k", ["tracy-widom", 3])
def test_tracy_widom_without_centring_counts_every_sample(k) -> None:
    """All 40 eigenvalues are equal: 39 could not have their sum."""
    model = streampca.PCA(k, center=False, progress=False).fit(np.eye(40))
    assert np.isnan(model.result_.tracy_widom().p_value).all()
