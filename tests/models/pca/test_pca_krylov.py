"""The iterative solver: right, certified, honest about what it could not find, and in few reads."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import zarr
from sklearn.decomposition import PCA as SklearnPCA

import streampca.passes.blocks as plan_module
from streampca import PCA
from streampca.accumulators import LeadingDirections
from streampca.errors import AccuracyWarning, InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.matrix import Block
from streampca.models.decompose import routes
from tests.models.invariants import check_invariants

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
SEPARATE = 0.6 ** np.arange(40)  # singular values


def matrix(n: int, p: int, singular: Any, seed: int = 0, shift: float = 3.0) -> np.ndarray:
    """Centred columns with these singular values, then moved."""
    rng = np.random.default_rng(seed)
    k = len(singular)
    u = rng.standard_normal((n, k))
    u = np.linalg.qr(u - u.mean(axis=0))[0]
    v = np.linalg.qr(rng.standard_normal((p, k)))[0]
    return np.asarray((u * np.asarray(singular)) @ v.T + shift * rng.random(p))


def reference(x: np.ndarray, weights: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(variances, components, centred matrix) by a float64 SVD."""
    z = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, s, vt = np.linalg.svd(z, full_matrices=False)
    return s**2 / (len(x) - 1), vt, z


def angles(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """(k,) between rows, exact for small ones."""
    inside = np.sum(found * true, axis=1)
    return np.arctan2(np.linalg.norm(found - inside[:, None] * true, axis=1), np.abs(inside))


def fit(x: Any, k: int = 5, **more: Any) -> PCA:
    return PCA(k, svd_solver="randomized", **more).fit(x)


@pytest.fixture(params=["samples", "features"])
def streamed(request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Stores a matrix so that one axis alone can be streamed, in small blocks."""
    monkeypatch.setattr(plan_module, "BLOCK_NBYTES", 1 << 14)
    monkeypatch.setattr(plan_module, "BLOCK_LENGTH", 16)
    axis = ("samples", "features").index(request.param)

    def store(x: np.ndarray, name: str = "x.zarr") -> str:
        path = str(tmp_path / name)
        chunks = (len(x), 20) if axis else (20, x.shape[1])
        zarr.create_array(path, data=x, chunks=chunks)
        return path

    store.axis = axis  # type: ignore[attr-defined]
    return store


def test_equals_a_full_decomposition(streamed):
    x = matrix(300, 260, SEPARATE)
    model = fit(streamed(x), tol=1e-9)
    variance, vt, z = reference(x)
    assert model.plan_.named("look").axis == streamed.axis
    np.testing.assert_allclose(model.explained_variance_, variance[:5], rtol=1e-10)
    assert angles(model.components_, vt[:5]).max() < 1e-7
    np.testing.assert_allclose(model.result_.total_variance, variance.sum(), rtol=1e-12)
    check_invariants(model, z, 1e-7)
    if model.result_.scores is not None:
        np.testing.assert_allclose(model.result_.scores, z @ model.components_.T, atol=1e-7)


def test_signs_are_those_of_every_other_solver(streamed):
    x = matrix(200, 150, SEPARATE)
    exact, ours = PCA(5, svd_solver="scatter").fit(x), fit(streamed(x))
    np.testing.assert_allclose(np.sum(exact.components_ * ours.components_, axis=1), 1, atol=1e-6)


def test_each_pass_reads_each_chunk_once_and_few_passes_are_made(streamed):
    x = matrix(300, 260, SEPARATE).astype(np.float32)
    model = fit(streamed(x))
    chunks = x.shape[streamed.axis] // 20
    assert [cost.reads for cost in model.cost_] == [chunks] * len(model.cost_)
    assert len(model.cost_) <= 3
    assert model.plan_.reads == chunks * 8
    assert model.certificate_.passes == len(model.cost_)


def test_two_reads_certify_weighted_components_that_stand_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "BLOCK_NBYTES", 1)
    rng = np.random.default_rng(1)
    x = (
        matrix(300, 400, 0.7 ** np.arange(8), shift=300.0) * 30
        + rng.standard_normal((300, 400)) / 40
    )
    x[:150] += rng.standard_normal(400) / 9  # the means of spans differ
    weights = np.sqrt(rng.random(400))
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x, chunks=(20, 400))
    model = fit(path, 4, weights=weights)
    variance, vt, _ = reference(x * weights)
    assert [cost.name for cost in model.cost_] == ["look", "step 1"]
    np.testing.assert_allclose(model.explained_variance_, variance[:4], rtol=1e-6)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(4), atol=1e-12)
    found = angles(model.components_, vt[:4])
    assert np.all(found <= model.certificate_.angle_bound)
    assert found.max() < 1e-5


def test_the_dominant_direction_in_the_last_chunk_alone(streamed):
    x = matrix(300, 260, 10 * SEPARATE, shift=0.0)
    last = slice(-10, None)
    rng = np.random.default_rng(5)
    if streamed.axis:
        x[:, last] += 50 * np.outer(rng.standard_normal(300), rng.standard_normal(10))
    else:
        x[last] += 50 * np.outer(rng.standard_normal(10), rng.standard_normal(260))
    variance, vt, _ = reference(x)
    model = fit(streamed(x))
    np.testing.assert_allclose(model.explained_variance_, variance[:5], rtol=1e-6)
    assert np.all(angles(model.components_, vt[:5]) <= model.certificate_.angle_bound)


def test_a_start_that_knows_nothing_of_the_dominant_direction(streamed, monkeypatch):
    x = matrix(300, 260, SEPARATE)
    u, _, vt = scipy.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    dominant = u[:, 0] if streamed.axis else vt[0]
    directions = LeadingDirections.directions

    def without(self: LeadingDirections) -> tuple[np.ndarray, np.ndarray]:
        found, sizes = directions(self)
        return found - np.outer(dominant, dominant @ found), sizes

    monkeypatch.setattr(LeadingDirections, "directions", without)
    model = fit(streamed(x))
    variance, true, _ = reference(x)
    np.testing.assert_allclose(model.explained_variance_, variance[:5], rtol=1e-7)
    assert np.all(angles(model.components_, true[:5]) <= model.certificate_.angle_bound)


def test_equal_values_across_k_are_called_undetermined(streamed):
    singular = SEPARATE.copy()
    singular[3:7] = singular[3]
    x = matrix(300, 260, singular)
    model = fit(streamed(x))  # no arithmetic tells them apart: the certificate says so, no warning
    np.testing.assert_allclose(model.explained_variance_, reference(x)[0][:5], rtol=1e-8)
    assert np.all(model.certificate_.angle_bound[:3] < 1e-4)
    assert np.all(model.certificate_.angle_bound[3:] > 1)
    assert model.certificate_.variance_bound.max() < 1e-6 * model.explained_variance_[0]


def test_a_flat_tail_is_reported_component_by_component(streamed):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 300)) + matrix(400, 300, [900.0, 500.0, 300.0])
    with pytest.warns(AccuracyWarning, match=r"3 of 6 components are not certified .* component 4"):
        model = fit(streamed(x.astype(np.float32)), 6, max_passes=4)
    variance, vt, _ = reference(x.astype(np.float32))
    bound = model.certificate_.angle_bound
    assert np.all(bound[:3] <= 1e-4)
    assert np.all(bound[3:] > 0.1)
    assert np.all(angles(model.components_, vt[:6]) <= bound)
    error = np.abs(model.explained_variance_ - variance[:6])
    assert np.all(error <= model.certificate_.variance_bound)


def test_where_auto_cannot_certify_it_names_the_solver_that_can():
    x = scipy.sparse.random_array((2000, 4000), density=0.002, rng=np.random.default_rng(0))
    with pytest.warns(AccuracyWarning, match=r"solver='gram' is exact, in about 1\.\d+ s\."):
        model = PCA(3, scale="std", max_passes=3).fit(x.tocsr())
    assert model.plan_.solver == "krylov"


def test_auto_takes_an_exact_solver_that_is_affordable_though_an_iterative_one_is_faster():
    x = scipy.sparse.random_array((300, 2000), density=0.01, rng=np.random.default_rng(0))
    plan = PCA(3, scale="std").plan(x.tocsr())
    predicted = dict(plan.considered)
    assert predicted["krylov"] < predicted["gram"] / 2 < 0.25
    assert plan.solver == "gram"


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_no_certificate_of_50_fits_is_violated(dtype):
    decays = [
        lambda i: 0.5**i,
        lambda i: 1 / (1 + i),
        lambda i: 1 / np.sqrt(1 + i),
        lambda i: 0.05 + (i < 4) * (2.0 - i / 4),
        lambda i: np.where(i == 1, 1 - 5e-4, 1.0 / (1 + i)),
    ]
    violated = []
    for seed in range(50):
        rng = np.random.default_rng([seed, dtype == "f4"])
        n, p = (int(m) for m in rng.integers(60, 260, 2))
        singular = np.sort(decays[seed % 5](np.arange(min(n, p) - 1.0)))[::-1]
        x = matrix(n, p, 30 * singular, seed, shift=float(rng.choice([0, 10]))).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)
            model = fit(x, 4, max_passes=int(rng.integers(2, 6)), tol=1e-6, random_state=seed)
        variance, vt, _ = reference(x)
        worse = angles(model.components_, vt[:4]) > model.certificate_.angle_bound + 1e-8
        error = np.abs(model.explained_variance_ - variance[:4])
        worse |= error > model.certificate_.variance_bound + 1e-14 * variance[0]
        violated += [seed] * int(worse.any())
    assert violated == []


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("missing", [False, True])
def test_scaling_and_holes(streamed, scale, missing):
    x = matrix(240, 200, 5 * SEPARATE)
    if missing:
        rng = np.random.default_rng(1)
        x[rng.random(x.shape) < 0.05] = np.nan
        x[:, 3] = np.nan
    z = np.where(np.isnan(x), np.nan, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = z - np.nanmean(z, axis=0)
        if scale:
            z = z / np.nanstd(z, axis=0, ddof=1)
        model = fit(streamed(x), 3, scale=scale, missing="mean", tol=1e-7, max_passes=12)
    z = np.nan_to_num(z)
    _, s, vt = np.linalg.svd(z, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, s[:3] ** 2 / 239, rtol=1e-9)
    assert angles(model.components_, vt[:3]).max() < 1e-6
    if missing:
        assert not model.components_[:, 3].any()
        np.testing.assert_array_equal(model.result_.missing_by_sample, np.isnan(x).sum(axis=1))


def test_holes_are_refused_in_the_first_pass(streamed):
    x = matrix(240, 200, SEPARATE)
    x[100, 100] = np.nan
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        fit(streamed(x))


def test_weights_of_features_and_samples(streamed):
    x = matrix(150, 120, 5 * SEPARATE)
    rng = np.random.default_rng(2)
    weights, counts = rng.random(120), rng.integers(1, 4, 150)
    settings: dict[str, Any] = {"weights": weights, "n_components": 4}
    exact = PCA(svd_solver="scatter", **settings).fit(x, sample_weight=counts)
    ours = PCA(svd_solver="randomized", tol=1e-8, max_passes=12, **settings).fit(
        streamed(x), sample_weight=counts
    )
    np.testing.assert_allclose(ours.explained_variance_, exact.explained_variance_, rtol=1e-9)
    assert angles(ours.components_, exact.components_).max() < 1e-7


def test_a_small_limit_gives_a_small_basis_and_the_same_answer(streamed):
    x = matrix(600, 500, 1 / np.arange(1.0, 300))
    path = streamed(x)
    generous = fit(path, tol=1e-6, max_passes=20)
    sizes = generous.plan_.sizes
    with pytest.raises(MemoryLimitError) as refusal:
        fit(path, memory_limit="1MiB")
    least = str(refusal.value).split("memory_limit='")[1].split("'")[0]
    modest = fit(path, tol=1e-6, max_passes=20, memory_limit=least)
    assert modest.plan_.sizes["basis"] <= sizes["basis"]
    assert len(modest.cost_) >= len(generous.cost_)
    np.testing.assert_allclose(modest.explained_variance_, generous.explained_variance_, rtol=1e-9)
    assert modest.certificate_.angle_bound.max() <= 1e-6


def test_loadings_from_kept_products_and_from_another_pass_agree(streamed):
    x = matrix(*((400, 150) if streamed.axis else (150, 400)), SEPARATE)
    path = streamed(x)
    kept = fit(path)
    assert kept.plan_.sizes["images"] == streamed.axis  # streamed samples: components come first
    if streamed.axis == 0:
        return
    without = PCA(5, svd_solver="randomized", components=False).fit(path)
    assert without.result_.components is None
    np.testing.assert_array_equal(without.explained_variance_, kept.explained_variance_)
    np.testing.assert_array_equal(without.result_.scores, kept.result_.scores)


def test_restarts_go_on_converging(monkeypatch):
    import streampca.models.decompose.krylov_plan as krylov_plan

    monkeypatch.setattr(krylov_plan, "BASES", (2,))
    x = matrix(500, 450, 1 / np.arange(1.0, 400) ** 0.7)
    model = fit(x, tol=1e-7, max_passes=30)
    assert len(model.cost_) > 4
    assert angles(model.components_, reference(x)[1][:5]).max() < 1e-7


def test_what_it_cannot_do_is_refused_before_reading():
    x = matrix(60, 50, SEPARATE)
    for n_components in (0.9, "gap"):
        with pytest.raises(InvalidInputError, match="needs a number of components"):
            PCA(n_components, svd_solver="randomized").fit(x)
    with pytest.raises(InvalidInputError, match="tol"):
        PCA(3, svd_solver="randomized", tol=-1.0).fit(x)
    with pytest.raises(InvalidInputError, match="max_passes"):
        PCA(3, svd_solver="randomized", max_passes=1).fit(x)
    with pytest.raises(InvalidInputError, match="n_oversamples=-1"):
        PCA(3, svd_solver="randomized", n_oversamples=-1).fit(x)


def test_all_components_are_not_iterated_for():
    x = matrix(60, 20, SEPARATE[:20])
    model, exact = PCA(svd_solver="randomized").fit(x), PCA().fit(x)
    assert model.plan_.solver == exact.plan_.solver
    np.testing.assert_array_equal(model.components_, exact.components_)


def test_oversamples_are_vectors_of_a_step():
    x = matrix(400, 300, SEPARATE)
    widths = [
        PCA(3, svd_solver="randomized", n_oversamples=over).plan(x).sizes["width"]
        for over in (0, 10, 60)
    ]
    assert widths == [32, 32, 64]


@pytest.mark.parametrize("tol", [None, 0, 0.0])
def test_no_tolerance_is_the_usual_one(tol):
    x = matrix(400, 300, SEPARATE)
    plan = PCA(3, svd_solver="randomized", tol=tol).plan(x)
    assert plan.to_dict() == PCA(3, svd_solver="randomized").plan(x).to_dict()
    assert PCA(3, tol=tol).plan(x).solver == PCA(3).plan(x).solver


def test_arpack_keeps_its_accuracy_where_it_iterates(monkeypatch):
    monkeypatch.setattr(routes, "AFFORDABLE", ())
    monkeypatch.setattr(routes, "GO_OVER", ())
    x = matrix(400, 300, SEPARATE)
    theirs = SklearnPCA(4, svd_solver="arpack", tol=0.0).fit(x)
    ours = PCA(4, svd_solver="arpack", tol=0.0).fit(x)
    assert ours.plan_.solver == "krylov"
    assert ours.certificate_.angle_bound.max() <= 1e-9
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-11)
    np.testing.assert_allclose(
        np.abs(np.sum(ours.components_ * theirs.components_, axis=1)), 1.0, rtol=1e-12
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_of_any_length_give_the_same_answer(axis, monkeypatch, tmp_path):
    monkeypatch.setattr(plan_module, "BLOCK_NBYTES", 1)
    x = matrix(130, 110, SEPARATE)
    answers = []
    for length in (1, 7, 50):
        chunks = (length, 110) if axis == 0 else (130, length)
        path = str(tmp_path / f"{length}.zarr")
        zarr.create_array(path, data=x, chunks=chunks)
        model = fit(path, tol=1e-9)
        assert model.plan_.named("look").axis == axis
        answers.append(model.explained_variance_)
    for first, second in pairwise(answers):
        np.testing.assert_allclose(first, second, rtol=1e-11)


def test_an_interrupted_iteration_goes_on_where_it_was(streamed, tmp_path):
    x = matrix(300, 260, 1 / np.arange(1.0, 200))
    path, folder = streamed(x), str(tmp_path / "checkpoint")
    whole = fit(path, tol=1e-8)

    def stop(advance: Any) -> None:
        if advance.pass_name == "step 2" and advance.blocks_done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(path, tol=1e-8, checkpoint=folder, progress=stop)
    resumed = fit(path, tol=1e-8, checkpoint=folder)
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert resumed.cost_[0].reads == resumed.cost_[1].reads == 0
    assert 0 < resumed.cost_[2].reads <= whole.cost_[2].reads
    assert not list((tmp_path / "checkpoint").glob("pass-*"))


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("more", [{}, {"scale": "std"}, {"center": False}], ids=str)
def test_sparse_matrices_are_never_made_dense(form, more, monkeypatch):
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.2, (400, 300)) + (rng.random((400, 3)) < 0.3) @ rng.poisson(1, (3, 300))
    x = counts.astype(np.float32)
    sparse = getattr(scipy.sparse, f"{form}_array")(x)
    monkeypatch.setattr(Block, "dense", lambda block: pytest.fail("a sparse block was made dense"))
    monkeypatch.setattr(plan_module, "BLOCK_NBYTES", 1 << 14)
    model = fit(sparse, 3, tol=1e-7, max_passes=20, **more)
    z = x.astype(np.float64)
    z = z - z.mean(axis=0) if more.get("center", True) else z
    z = z / z.std(axis=0, ddof=1) if more.get("scale") else z
    _, s, vt = np.linalg.svd(z, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, s[:3] ** 2 / 399, rtol=1e-10)
    assert angles(model.components_, vt[:3]).max() < 1e-7


@pytest.mark.parametrize("solver", ["randomized", "sketch"])
@pytest.mark.parametrize("shape", [(10, 5), (50, 5), (5, 50)])
def test_nothing_varies(shape, solver):
    with pytest.warns(AccuracyWarning, match="features vary"):
        model = PCA(1, svd_solver=solver).fit(np.ones(shape))
    assert model.explained_variance_[0] == 0
    assert not model.components_.any()


@pytest.mark.parametrize("solver", ["randomized", "sketch"])
def test_squares_beyond_float32_are_refused(solver):
    x = 1e25 * matrix(60, 50, SEPARATE).astype(np.float32)
    with pytest.raises(NonFiniteError, match="float64"):
        PCA(2, svd_solver=solver).fit(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.parametrize("solver", ["randomized", "scatter", "gram"])
def test_the_float32_floor_bounds_the_error_of_few_samples_or_features(solver):
    violated = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, p = int(rng.choice([2, 3, 5, 9, 30, 130])), int(rng.choice([2, 5, 24, 135, 300]))
        x = rng.integers(0, 3, (n, p)).astype(np.float32)
        variance = reference(x)[0]
        k = min(3, n, p)
        model = PCA(k, svd_solver=solver, components=False, max_passes=20).fit(x)
        found = model.explained_variance_
        error = np.abs(found - variance[: len(found)])
        violated += [seed] * bool(np.any(error > model.certificate_.variance_bound))
    assert violated == []


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.parametrize("solver", ["randomized", "sketch"])
def test_more_components_than_the_rank_are_completed_and_than_varying_features_are_not_made(solver):
    x = matrix(40, 12, [5.0, 3.0])
    x[:, 9:] = 1.0
    model, exact = (PCA(12, svd_solver=s).fit(x) for s in (solver, "scatter"))
    assert model.components_.shape == exact.components_.shape == (9, 12)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(9), atol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, atol=1e-10)


@pytest.mark.slow
def test_a_start_block_that_fills_the_space_is_well_conditioned():
    """Vectors over the samples lose their mean, and may not be independent then."""
    for seed in range(150):
        x = np.random.default_rng(seed).standard_normal((5, 9)).astype("float32")
        model = PCA(1, svd_solver="randomized", random_state=seed).fit(x)
        z = x - x.mean(axis=0, dtype=np.float64)
        expected = np.linalg.svd(z)[1][0] ** 2 / 4
        assert abs(model.explained_variance_[0] - expected) < 1e-5 * expected
