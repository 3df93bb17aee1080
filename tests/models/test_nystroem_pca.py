"""Nystroem's kernel PCA: exact with all rows, closed forms with some, an error that covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr

import streampca
from streampca import KernelPCA, NystroemPCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.models.kernel.functions import Kernel
from streampca.models.kernel.landmarks import METHODS, candidate_rows
from tests.models.invariants import same

RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 5)) @ RNG.standard_normal((5, 5))
NEW = RNG.standard_normal((11, 5))
KERNELS = ("linear", "poly", "rbf", "laplacian", "cosine")
SHAPE = {"gamma": 0.1, "degree": 2, "coef0": 0.5}
methods = pytest.mark.parametrize("method", METHODS)


def quiet(k: int = 3, **parameters: Any) -> NystroemPCA:
    return NystroemPCA(k, **{"gamma": 0.1, "progress": False, **parameters})


@methods
@pytest.mark.parametrize("kernel", KERNELS)
def test_with_all_rows_it_is_kernel_pca(kernel: str, method: str, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(16, 5))
    exact = KernelPCA(4, kernel=kernel, progress=False, **SHAPE).fit(X)
    model = quiet(4, kernel=kernel, landmarks=method, n_landmarks=120, **SHAPE)
    model.fit(str(tmp_path / "x.zarr"))
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-10)
    same(model.transform(NEW), exact.transform(NEW))
    same(model.transform(str(tmp_path / "x.zarr")), exact.transform(X))
    assert model.result_.excess < 1e-9 * exact.eigenvalues_[0] * 120
    assert np.isnan(model.error_)
    assert "not determined" in str(model.result_)


def kernel_of(model: NystroemPCA, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return Kernel(model.kernel, model.gamma_, model.degree, model.coef0).of_rows(x, y)


@methods
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_closed_form(kernel: str, method: str) -> None:
    model = quiet(kernel=kernel, landmarks=method, n_landmarks=20, **SHAPE).fit(X)
    places = model.landmark_indices_
    assert len(set(places.tolist())) == 20
    shift = X[places].mean(axis=0) * (kernel in ("linear", "rbf"))
    x, landmarks = X - shift, X[places] - shift
    cross, own = kernel_of(model, x, landmarks), kernel_of(model, landmarks, landmarks)
    approximate = cross @ np.linalg.pinv(own, rcond=1e-13, hermitian=True) @ cross.T
    centring = np.eye(120) - 1 / 120
    values, vectors = np.linalg.eigh(centring @ approximate @ centring)
    np.testing.assert_allclose(model.eigenvalues_, values[:-4:-1], rtol=1e-8)
    same(model.transform(X), vectors[:, :-4:-1] * np.sqrt(values[:-4:-1]), 1e-7)
    left = np.diagonal(kernel_of(model, x, x) - approximate)
    assert model.result_.excess == pytest.approx(left.sum(), rel=1e-6, abs=1e-8)
    assert model.explained_variance_ratio_[0] <= values[-1] / np.trace(
        centring @ kernel_of(model, x, x) @ centring
    ) * (1 + 1e-9)


@methods
def test_exact_eigenvalues_lie_within_the_excess(method: str) -> None:
    exact = KernelPCA(3, kernel="rbf", gamma=0.1, progress=False).fit(X).eigenvalues_
    for m in (10, 30, 90):
        model = quiet(landmarks=method, n_landmarks=m).fit(X)
        assert (model.eigenvalues_ <= exact * (1 + 1e-12)).all()
        assert (exact <= model.eigenvalues_ + model.result_.excess).all()


def test_the_error_is_of_rows_that_nothing_depends_on() -> None:
    model = quiet(landmarks="kmeans++", n_landmarks=10).fit(X)
    held_out = np.setdiff1d(np.arange(120), candidate_rows(120, 10, "kmeans++", 0))
    landmarks = X[model.landmark_indices_]
    cross, own = kernel_of(model, X, landmarks), kernel_of(model, landmarks, landmarks)
    left = 1.0 - np.einsum("ij,ij->i", cross @ np.linalg.inv(own), cross)
    assert model.result_.n_held_out == len(held_out) == 80
    assert model.error_ == pytest.approx(left[held_out].mean(), rel=1e-8)
    expected = left[held_out].std(ddof=1) / np.sqrt(80)
    assert model.error_se_ == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=getattr(pytest.mark, "soak" if m != "leverage" else "slow"))
        for m in METHODS
    ],
)
def test_the_error_covers_that_of_unseen_rows(method: str) -> None:
    """The 95 % interval covers the mean over 20,000 fresh rows in at least 88 of 100 draws, fewer
    than which has a probability below .003."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        centres, shares = 2.0 * rng.standard_normal((6, 3)), rng.dirichlet(np.ones(6))
        rows = centres[rng.choice(6, 20_500, p=shares)] + 0.5 * rng.standard_normal((20_500, 3))
        model = NystroemPCA(
            2, n_landmarks=30, landmarks=method, gamma=0.3, random_state=seed, progress=False
        ).fit(rows[:500])
        landmarks = rows[model.landmark_indices_]
        cross, own = kernel_of(model, rows[500:], landmarks), kernel_of(model, landmarks, landmarks)
        left = 1.0 - np.einsum("ij,ij->i", cross @ np.linalg.pinv(own, 1e-12), cross)
        error = np.hypot(model.error_se_, left.std() / np.sqrt(20_000))
        covered += abs(model.error_ - left.mean()) <= 1.96 * error
    assert covered >= 88


def test_landmarks_that_the_data_choose_lose_less() -> None:
    rng = np.random.default_rng(1)
    rows = np.vstack([0.1 * rng.standard_normal((950, 2)), 5 + rng.standard_normal((50, 2))])
    lost = {
        method: np.mean(
            [
                quiet(n_landmarks=20, landmarks=method, gamma=1.0, random_state=seed)
                .fit(rows)
                .result_.excess
                for seed in range(10)
            ]
        )
        for method in METHODS
    }
    assert max(lost["kmeans++"], lost["leverage"]) < 0.8 * lost["uniform"]


def test_more_landmarks_leave_less() -> None:
    errors = [quiet(n_landmarks=m).fit(X).error_ for m in (5, 20, 60)]
    assert errors == sorted(errors, reverse=True)


def test_repeated_rows_are_no_landmarks_twice() -> None:
    rows = np.repeat(X[:6], 20, axis=0)
    for method in METHODS:
        model = quiet(5, n_landmarks=30, landmarks=method).fit(rows)
        exact = KernelPCA(5, kernel="rbf", gamma=0.1, progress=False).fit(rows)
        if method == "uniform":  # all six of them are drawn by this seed
            same(model.transform(NEW), exact.transform(NEW), 1e-6)
        np.testing.assert_array_equal(np.isfinite(model.transform(NEW)), True)


@pytest.mark.parametrize("source", ["zarr", "features", "dask", "sparse", "float32"])
def test_sources_of_rows_give_the_same_model(source: str, tmp_path: Path) -> None:
    expected = quiet(n_landmarks=30).fit(X).transform(NEW)
    chunks = (120, 2) if source == "features" else (16, 5)
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=chunks)
    made = {
        "dask": da.from_array(X, chunks=(20, 2)),
        "sparse": scipy.sparse.csr_array(X),
        "float32": X.astype(np.float32),
    }.get(source, str(tmp_path / "x.zarr"))
    found = quiet(n_landmarks=30).fit(made).transform(NEW)
    same(found, expected, 1e-5 if source == "float32" else 1e-10)


def test_a_function_and_the_median_width() -> None:
    def laplace(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-0.1 * np.abs(a - b).sum()))

    found = quiet(kernel=laplace, n_landmarks=15).fit(X).transform(NEW)
    same(found, quiet(kernel="laplacian", n_landmarks=15).fit(X).transform(NEW), 1e-10)
    width = KernelPCA(2, kernel="rbf", gamma="median", progress=False).fit(X).gamma_
    model = quiet(gamma="median", n_landmarks=15).fit(X)
    assert model.gamma_ == width
    assert "from the median of" in str(model.result_)


def test_rbf_is_right_at_means_of_a_million() -> None:
    same(
        quiet(n_landmarks=30).fit(X + 1e6).transform(NEW + 1e6),
        quiet(n_landmarks=30).fit(X).transform(NEW),
        1e-7,
    )


def test_labels_and_lazy_rows() -> None:
    frame = xr.DataArray(X, dims=("time", "site"), coords={"time": np.arange(120)})
    model = quiet(n_landmarks=30).fit(frame)
    scores = model.transform(frame)
    assert scores.dims == ("time", "component")
    lazy = model.transform(frame.chunk(time=20))
    np.testing.assert_allclose(lazy.compute(), scores, atol=1e-12)


def test_a_seed_gives_the_landmarks(tmp_path: Path) -> None:
    first, again, other = (quiet(n_landmarks=30, random_state=seed).fit(X) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first.landmark_indices_, again.landmark_indices_)
    np.testing.assert_array_equal(first.transform(NEW), again.transform(NEW))
    assert set(first.landmark_indices_) != set(other.landmark_indices_)
    first.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(NEW), first.transform(NEW))
    assert (loaded.error_, loaded.random_state) == (first.error_, 4)


def test_plan_says_what_is_read(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(10, 5))
    model = quiet(n_landmarks=4).fit(str(tmp_path / "x.zarr"))
    chunks = len({place // 10 for place in model.landmark_indices_})
    assert model.plan_.reads == sum(one.reads for one in model.cost_) == 12 + chunks
    assert "4 landmarks of 120 rows, uniform" in str(model.plan_)
    wide = zarr.create_array(str(tmp_path / "w"), shape=(10**6, 30), dtype="f4", chunks=(10**4, 30))
    assert NystroemPCA(2).plan(wide).peak_nbytes < 400 << 20
    assert "500 landmarks" in NystroemPCA(2).plan(wide).reason
    with pytest.raises(MemoryLimitError):
        quiet(n_landmarks=5000, memory_limit="200MiB").plan(wide)


def test_what_cannot_be_used_is_refused() -> None:
    holed = X.copy()
    holed[3, 4] = np.nan
    for seed in range(4):  # a landmark or another row
        with pytest.raises(NonFiniteError, match=r"missing cell|contains NaN"):
            quiet(n_landmarks=60, random_state=seed).fit(holed)
    for parameters, message in (
        ({"n_landmarks": 2}, "n_landmarks=2; expected None or a number from 3 to 120"),
        ({"n_landmarks": 121}, "to 120, from the components to the rows"),
        ({"n_landmarks": 4.5}, "n_landmarks=4.5"),
        ({"landmarks": "best"}, "landmarks='best'; expected one of"),
        ({"kernel": "precomputed"}, "KernelPCA takes it"),
        ({"kernel": "gauss"}, "kernel='gauss'"),
        ({"n_components": 0}, "n_components=0"),
        ({"n_components": None}, "expected a number"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            NystroemPCA(**{"n_components": 3, "progress": False, **parameters}).fit(X)
    with pytest.raises(InvalidInputError, match="needs a positive semidefinite kernel"):
        quiet(kernel="sigmoid", gamma=0.5, coef0=-1.0, n_landmarks=30).fit(X)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", X)
    words = ["fit", str(tmp_path / "x.npy"), "--model", "nystroem-pca", "-k", "3", "--gamma", "0.1"]
    more = ["--n-landmarks", "30", "--landmarks", "leverage", "-q", "-o", str(tmp_path / "m")]
    assert main([*words, *more]) == 0
    expected = quiet(n_landmarks=30, landmarks="leverage").fit(X).transform(NEW)
    np.testing.assert_allclose(streampca.load(tmp_path / "m").transform(NEW), expected, atol=1e-12)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "error on unseen rows" in capsys.readouterr().out


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e4])
def test_linear_landmarks_span_what_their_rows_span(offset: float, tmp_path: Path) -> None:
    """By NumPy: the rows projected on the span of the landmarks, which has m dimensions."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        p, m = int(rng.integers(3, 30)), int(rng.integers(4, 20))
        rows = rng.standard_normal((60, p)) + offset * rng.standard_normal(p)
        model = quiet(3, kernel="linear", n_landmarks=m, random_state=seed).fit(rows)
        basis = np.linalg.svd(rows[model.landmark_indices_], full_matrices=False)[2]
        inside = rows @ basis.T @ basis
        expected = np.linalg.svd(inside - inside.mean(axis=0), compute_uv=False)[:3] ** 2
        same(model.eigenvalues_, expected, 1e-7)
        others = np.delete(rows - inside, model.landmark_indices_, axis=0)
        error = np.mean(np.sum(others**2, axis=1))
        assert model.error_ == pytest.approx(error, rel=1e-6, abs=1e-6 * np.mean(rows**2))
    poly = quiet(3, kernel="poly", degree=1, gamma=1.0, coef0=0.0, n_landmarks=m, random_state=seed)
    if offset < 1e4:
        same(model.transform(rows), poly.fit(rows).transform(rows), 1e-8)
    model.save(tmp_path / "m")
    same(streampca.load(tmp_path / "m").transform(rows), model.transform(rows), 1e-12)
