"""Data that do not vary, or hardly: every solver gives finite numbers, or says why not."""

from __future__ import annotations

import warnings
from typing import Any

import dask.array
import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca.errors import NonFiniteError, StreamPCAError
from streampca.solvers.krylov import orthonormalised
from tests.each import each

SOLVERS = ("auto", "scatter", "tsqr", "gram", "randomized", "sketch")
pytestmark = [
    pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning"),
    pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning"),
]


def still(kind: str, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Data without variance, or with that of rounding alone."""
    rng = np.random.default_rng(7)
    n, p = shape
    one = np.dtype(dtype).type
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "steps":  # 1000, and the next number
        above = np.nextafter(one(1000), one(2000))
        return np.where(rng.random(shape) < 0.3, above, one(1000))
    if kind == "large":
        return (6e4 + 30 * rng.standard_normal(shape)).astype(dtype)
    if kind == "subnormal":
        return np.where(rng.random(shape) < 0.5, np.finfo(one).smallest_subnormal, one(0))
    assert kind == "few ranks"  # the vectors of a step are dependent soon
    x = rng.standard_normal((n, 4)) @ rng.standard_normal((4, p))
    x[:, rng.random(p) < 0.5] = 0.0
    x[rng.random(n) < 0.4] = 0.0
    return (1000 + 0.1 * x).astype(dtype)


@each("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("kind", ["zeros", "steps", "large", "subnormal", "few ranks"])
@pytest.mark.parametrize("shape", [(45, 26), (8, 30)])
def test_every_solver_ends_with_numbers(shape: tuple[int, int], kind: str, dtype: str) -> None:
    x = still(kind, shape, dtype)
    for solver in SOLVERS:
        for k in (1, 2, 7):
            try:
                model = streampca.PCA(k, svd_solver=solver, whiten=k == 2).fit(x)
            except StreamPCAError:
                continue
            scores = model.transform(x)
            assert np.isfinite(scores).all()
            assert np.isfinite(model.inverse_transform(scores)).all()
            assert np.isfinite(model.components_).all()
            assert np.isfinite(model.explained_variance_).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_sparse_data_without_variance(dtype: str) -> None:
    x = scipy.sparse.csr_array(np.zeros((30, 8), dtype))
    model = streampca.PCA(2, svd_solver="randomized").fit(x)
    np.testing.assert_array_equal(model.explained_variance_, 0.0)
    np.testing.assert_array_equal(model.transform(x), 0.0)


def test_a_model_of_nothing_scores_zero() -> None:
    x = np.full((30, 4), 0.1, "f4")
    for model in (streampca.PPCA(1), streampca.PCA(1, whiten=True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x)
        np.testing.assert_array_equal(model.transform(x), 0.0)
        with pytest.raises(streampca.errors.InvalidInputError, match="no likelihood: 0 comp"):
            model.score_samples(x)


def test_random_directions_stay_where_data_vary() -> None:
    live = np.arange(50) < 5
    block = np.zeros((50, 4))
    block[0, :2] = 1.0  # the second depends on the first, two are zero
    made = orthonormalised(block, live)
    np.testing.assert_allclose(made.T @ made, np.eye(4), atol=1e-12)
    assert not made[~live].any()
    for width in (1, 3):  # nothing but zeros
        made = orthonormalised(np.zeros((50, width)), live)
        np.testing.assert_allclose(made.T @ made, np.eye(width), atol=1e-12)


def test_components_of_a_completion_beyond_its_rank_are_no_longer_than_one() -> None:
    x = np.full((32, 70), 100, "i2")
    x[np.random.default_rng(0).random(x.shape) < 0.02] = 99
    model: Any = streampca.HardImpute(16, max_passes=5).fit(x)
    assert np.linalg.norm(model.components_, axis=1).max() < 1.0 + 1e-9
    assert np.isfinite(model.transform(x)).all()


@pytest.mark.parametrize("solver", ["scatter", "gram", "randomized", "sketch"])
@each("size", [1e-21, 1e-22, 1e-23, 1e-30])
def test_squares_that_float32_loses_are_refused(size: float, solver: str) -> None:
    """(12 columns are squared in float64 where samples are streamed: their bounds hold.)"""
    rng = np.random.default_rng(0)
    x = (size * rng.standard_normal((300, 12)) * np.linspace(1, 3, 12)).astype("f4")
    if solver != "scatter":
        with pytest.raises(NonFiniteError, match=r"too small for float32.*X.astype"):
            streampca.PCA(2, svd_solver=solver).fit(x)
        return
    found = streampca.PCA(2, svd_solver=solver).fit(x)
    exact = streampca.PCA(2).fit(x.astype("f8")).explained_variance_
    error = np.abs(found.explained_variance_ - exact)
    assert np.all(error <= found.certificate_.variance_bound)


@each("wide", [False, True])
@pytest.mark.parametrize("solver", ["scatter", "tsqr", "gram", "randomized", "sketch"])
@each("dtype", ["float32", "float64"])
@each("power", [160, 120, 30, 18, -18, -30, -120, -160, -200, -300])
def test_values_of_any_size_are_right_or_refused(power, dtype, solver, wide) -> None:
    """Where squares leave the range of the arithmetic the answer is no number and no crash."""
    base = np.random.default_rng(0).standard_normal((200, 6)) * np.arange(1, 7)
    base = np.tile(base, (1, 8)) if wide else base
    with np.errstate(over="ignore", under="ignore"):
        x = (base * 10.0**power).astype(dtype)
    if not np.isfinite(x).all() or not x.any():
        return
    exact = streampca.PCA(2, svd_solver="tsqr").fit(x / 10.0**power).explained_variance_
    model = streampca.PCA(2, svd_solver=solver)
    if _refused(model, x):
        assert abs(power) > 15
        return
    found = model.explained_variance_ / 10.0**power / 10.0**power
    assert np.allclose(found, exact, rtol=1e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("solver", ["auto", "gram", "randomized"])
@pytest.mark.parametrize("layout", ["constant", "varying", "step", "sparse step"])
@each("size", [1e200, 1e-319])
def test_squares_are_lost_by_no_model_and_no_layout(size, layout, solver) -> None:
    """And the line of the message repairs it. (A step is between two blocks.)"""
    x = size * np.arange(1.0, 7.0) * np.ones((40, 1))
    if layout != "constant":
        x[:20] *= 0.0 if "step" in layout else np.arange(20.0)[:, None]
    data = dask.array.from_array(x, chunks=(20, 6)) if "step" in layout else x
    if layout == "sparse step":
        data = data.map_blocks(scipy.sparse.csr_matrix)
    svd = streampca.TruncatedSVD(2, solver=solver)
    assert _refused(svd, data)
    exact = np.linalg.norm(x / abs(x).max())
    assert np.isclose(svd.fit(x / abs(x).max()).singular_values_[0], exact)
    assert layout == "constant" or _refused(streampca.PCA(2, solver=solver), data)


def _refused(model: Any, x: Any) -> bool:
    """Whether a fit says that squares leave the range of the arithmetic."""
    try:
        model.fit(x)
    except NonFiniteError as error:
        return "rescale the columns" in str(error)
    return False


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize(("n", "p"), [(200, 8), (60, 300), (500, 60)])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5])
def test_columns_of_rounding_alone_are_constant_to_every_solver(n, p, share) -> None:
    """Pressures of 101325 Pa, some one unit in the last place up."""
    rng = np.random.default_rng(0)
    x = np.full((n, p), 101325, "f4")
    x[rng.random(x.shape) < share] = np.nextafter(np.float32(101325), np.float32(2e5))
    varying = x.copy()
    varying[:, 0] = rng.standard_normal(n).astype("f4")
    for data in (x, varying):
        found = [
            streampca.PCA(2, svd_solver=solver).fit(data)
            for solver in ("scatter", "tsqr", "gram", "randomized")
        ]
        wanted = float(data is varying) * varying[:, 0].astype("f8").var(ddof=1)
        for model in found:
            assert model.rank_ == (data is varying)
            assert model.scale_ is None
            np.testing.assert_allclose(model.explained_variance_, [wanted], rtol=1e-6)
            assert np.all(model.components_[:, 1:] == 0.0) or data is x


@pytest.mark.parametrize("solver", ["scatter", "gram", "randomized"])
@pytest.mark.parametrize("scale", [None, "std"])
def test_means_that_float64_rounds_leave_nothing_behind(solver, scale) -> None:
    """Deviations of a thousandth about 1.7e9: the mean is off by a ten-thousandth of them."""
    x = 1.7e9 + 1e-3 * np.random.default_rng(0).standard_normal((60, 300))
    x = x.T.copy() if solver == "scatter" else x
    z = (x.astype(np.longdouble) - x.astype(np.longdouble).mean(axis=0)).astype(float)
    z = z if scale is None else z / z.std(axis=0, ddof=1)
    exact = np.linalg.svd(z, compute_uv=False)[:3] ** 2 / (len(x) - 1)
    model = streampca.PCA(3, svd_solver=solver, scale=scale).fit(x)
    error = np.abs(model.explained_variance_ - exact)
    assert np.all(error <= model.certificate_.variance_bound)
    assert error.max() < 1e-11 * exact[0]
