"""Kernel PCA without the kernel matrix: within its certificate, resumed, on a cluster."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca import KernelPCA
from streampca.errors import AccuracyWarning, InvalidInputError, NonFiniteError
from streampca.models.decompose import panels, routes
from streampca.models.kernel import scratch as kernel_scratch
from streampca.models.kernel import tiles as kernel_tiles
from tests.forks import forked

KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine")


def clusters(seed: int, n: int = 300, p: int = 5, groups: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = 4.0 * rng.standard_normal((groups, p))
    share = np.arange(1, groups + 1) / (groups * (groups + 1) / 2)
    return centres[rng.choice(groups, n, p=share)] + rng.standard_normal((n, p))


X = clusters(0)
NEW = clusters(0, 20)


def quiet(k: int = 4, **parameters: Any) -> KernelPCA:
    return KernelPCA(k, progress=False, **{"solver": "matrix-free", **parameters})


def stored(folder: Path, values: np.ndarray, rows: int = 64) -> str:
    zarr.create_array(str(folder / "x.zarr"), data=values, chunks=(rows, values.shape[1]))
    return str(folder / "x.zarr")


def angles(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Between unit columns."""
    inner = np.sum(found * expected, axis=0)
    return np.arctan2(np.linalg.norm(found - expected * inner, axis=0), np.abs(inner))


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_of_scikit_learn(kernel: str) -> None:
    from sklearn.decomposition import KernelPCA as Reference

    def laplace(a: np.ndarray, b: np.ndarray, **_: Any) -> float:
        return float(np.exp(-0.05 * np.abs(a - b).sum()))

    more = {"kernel": kernel, "gamma": 0.05 if kernel != "sigmoid" else 0.001, "degree": 2}
    reference = Reference(4, **(more | {"kernel": laplace} if kernel == "laplacian" else more))
    expected = reference.fit_transform(X)
    model = quiet(tol=1e-9, max_passes=30, **more)
    found = np.asarray(model.fit_transform(X))
    assert model.plan_.solver == "matrix-free"
    signs = np.sign((found * expected).sum(axis=0))
    for ours, theirs in ((found, expected), (model.transform(NEW), reference.transform(NEW))):
        np.testing.assert_allclose(ours * signs, theirs, atol=1e-8 * np.abs(theirs).max())
    np.testing.assert_allclose(model.eigenvalues_, reference.eigenvalues_, rtol=1e-8)


@pytest.mark.parametrize("seed", range(30))
def test_no_bound_is_violated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, dtype = KERNELS[seed % 6], ("float64", "float32")[seed // 6 % 2]
    x = clusters(seed, int(rng.integers(60, 400)), int(rng.integers(2, 9)), 6).astype(dtype)
    width: Any = "median" if kernel in ("rbf", "laplacian") else 0.02 * rng.random()
    asked = {"kernel": kernel, "gamma": width, "degree": int(rng.integers(2, 4))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        model = quiet(3, max_passes=int(rng.integers(2, 8)), random_state=seed, **asked).fit(x)
    exact = KernelPCA(3, solver="exact", random_state=seed, progress=False, **asked)
    exact.fit(x.astype("float64"))
    result = model.result_
    own = exact.result_.angle_bound  # where even the exact one cannot tell directions apart
    assert np.all(angles(model.eigenvectors_, exact.eigenvectors_) <= result.angle_bound + own)
    error = np.abs(model.eigenvalues_ - exact.eigenvalues_)
    assert np.all(error <= result.eigenvalue_bound + exact.result_.eigenvalue_bound)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_panels_of_rows(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, X.astype(dtype), 16)
    whole = quiet(kernel="rbf", gamma="median").fit(path)
    monkeypatch.setattr(panels, "PANELS", (3,))
    model = quiet(kernel="rbf", gamma="median").fit(path)
    assert model.plan_.sizes["panels"] == 3
    bound = model.result_.angle_bound + whole.result_.angle_bound
    assert np.all(angles(model.eigenvectors_, whole.eigenvectors_) <= bound)
    assert "2 reads, and 3 for each of at most 12 steps" in model.plan_.reason


def test_a_small_searched_space_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tiles, "BASES", (2,))
    model = quiet(kernel="laplacian", gamma=0.05, tol=1e-8, max_passes=40).fit(X)
    assert sum(one.name.startswith("step") for one in model.cost_) > 2
    exact = KernelPCA(4, kernel="laplacian", gamma=0.05, solver="exact", progress=False).fit(X)
    assert np.all(angles(model.eigenvectors_, exact.eigenvectors_) <= model.result_.angle_bound)
    assert np.all(model.result_.angle_bound <= 1e-8)


def test_directions_of_a_cluster_are_not_determined() -> None:
    x = np.random.default_rng(0).standard_normal((2000, 200))
    with pytest.warns(AccuracyWarning, match="its direction is not determined"):
        model = quiet(10, kernel="rbf", gamma="median").fit(x)
    assert np.all(model.result_.angle_bound[4:] == np.pi / 2)
    assert sum(one.name.startswith("step") for one in model.cost_) < 8  # it does not go on in vain


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_precomputed_kernel_is_read_by_tiles(dtype: str, tmp_path: Path) -> None:
    whole = np.exp(-0.02 * ((X[:, None] - X) ** 2).sum(axis=2))
    exact = KernelPCA(4, kernel="precomputed", solver="exact", progress=False).fit(whole)
    model = quiet(kernel="precomputed").fit(stored(tmp_path, whole.astype(dtype)))
    assert model.plan_.solver == "stored"
    assert np.all(angles(model.eigenvectors_, exact.eigenvectors_) <= model.result_.angle_bound)
    new = np.exp(-0.02 * ((NEW[:, None] - X) ** 2).sum(axis=2))
    np.testing.assert_allclose(
        np.abs(model.transform(new)), np.abs(exact.transform(new)), atol=1e-3
    )
    whole[3, 5] = 7.0
    with pytest.raises(InvalidInputError, match=r"not symmetric: K v and K'v differ by"):
        quiet(kernel="precomputed").fit(whole)


def test_auto_iterates_where_the_kernel_matrix_does_not_fit(tmp_path: Path) -> None:
    import dask.array as da

    x = da.zeros((80_000, 30), chunks=(8192, 30), dtype="f4")
    plan = KernelPCA(10, kernel="rbf", memory_limit="1GiB").plan(x)
    assert plan.solver == "matrix-free"
    assert plan.peak_nbytes <= 1 << 30
    assert any("needs at least" in one for one in plan.rejected) or plan.considered
    assert KernelPCA(10, kernel="rbf").plan(X).solver in ("rows", "features")
    many = da.zeros((20_000, 30), chunks=(8192, 30), dtype="f4")
    plan = KernelPCA(10, kernel="rbf", memory_limit="16GiB").plan(many)
    assert plan.solver == "matrix-free"  # n^3 would take minutes
    assert plan.then is not None or "rows" in dict(plan.considered)


def test_auto_goes_over_to_the_exact_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "AFFORDABLE", ())
    model = quiet(solver="auto", kernel="rbf", gamma=0.05, max_passes=1).fit(X)
    assert (model.plan_.solver, model.plan_.then.solver) == ("matrix-free", "features")
    exact = KernelPCA(4, kernel="rbf", gamma=0.05, solver="exact", progress=False).fit(X)
    np.testing.assert_array_equal(model.eigenvectors_, exact.eigenvectors_)


def test_equal_few_and_incomplete_rows_by_iteration() -> None:
    np.testing.assert_array_equal(quiet(2, kernel="rbf").fit(np.ones((40, 3))).eigenvalues_, 0.0)
    few = quiet(2, kernel="rbf", gamma=0.05).fit(X[:5])
    exact = KernelPCA(2, kernel="rbf", gamma=0.05, solver="exact", progress=False).fit(X[:5])
    np.testing.assert_allclose(few.eigenvalues_, exact.eigenvalues_, rtol=1e-10)
    with pytest.raises(NonFiniteError, match="kernel values overflowed float32"):
        quiet(kernel="poly").fit((1e30 * X).astype("f4"))
    holes = X.copy()
    holes[3, 2] = np.nan
    with pytest.raises(NonFiniteError, match="missing"):
        quiet(kernel="rbf").fit(holes)


def test_negative_eigenvalues_give_a_warning() -> None:
    asked = {"kernel": "sigmoid", "gamma": 0.02, "coef0": 1.0}
    for solver in ("exact", "matrix-free"):
        model = quiet(3, solver=solver, **asked).fit(X)
        centre = np.eye(len(X)) - 1.0 / len(X)
        values = np.linalg.eigvalsh(centre @ np.tanh(0.02 * X @ X.T + 1.0) @ centre)
        np.testing.assert_allclose(model.eigenvalues_, values[::-1][:3], rtol=1e-6)
        np.testing.assert_allclose(model.result_.lowest_eigenvalue, values[0], rtol=1e-3)
        assert "not semi-definite" in model.result_.table()
    with pytest.warns(AccuracyWarning, match="not positive semi-definite here: of 300 components"):
        KernelPCA(300, solver="exact", progress=False, **asked).fit(X)


def test_counts_that_an_iteration_cannot_give_are_refused() -> None:
    for odd, message in (
        ({"solver": "krylov"}, "solver='krylov'; expected one of"),
        ({"tol": 2.0}, "tol=2.0; expected radians"),
        ({"max_passes": 0}, "max_passes=0; expected a number from 1"),
        ({"n_components": 299}, "finds fewer than n - 1 = 299 components"),
        ({"n_components": None}, "n_components=None; expected a smaller number, or solver='exact'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            quiet(**{"k": odd.pop("n_components", 4), **odd}).fit(X)


def test_an_interrupted_iteration_resumes_to_the_same_bits(tmp_path: Path) -> None:
    path, seen = stored(tmp_path, X), []

    def stop(advance: Any) -> None:
        seen.append(advance.pass_name)
        if advance.pass_name.endswith("step 1 3"):
            raise KeyboardInterrupt

    asked = {"kernel": "rbf", "gamma": "median", "tol": 1e-8}
    expected = quiet(**asked).fit(path)
    place = str(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        KernelPCA(4, solver="matrix-free", progress=stop, checkpoint=place, **asked).fit(path)
    model = quiet(checkpoint=place, **asked).fit(path)
    np.testing.assert_array_equal(model.eigenvectors_, expected.eigenvectors_)
    resumed = {one.name: one.resumed_blocks for one in model.cost_}
    assert resumed["step 1 1"] > 0
    assert resumed["step 1 2"] > 0


KILLED = """
import os, sys, streampca
path, place = sys.argv[1:]
def stop(advance):
    if advance.pass_name == "step 1 3":
        os._exit(9)
asked = {"kernel": "rbf", "gamma": "median", "tol": 1e-8, "solver": "matrix-free"}
streampca.KernelPCA(4, progress=stop, checkpoint=place, **asked).fit(path)
"""


@pytest.mark.slow
def test_a_killed_iteration_resumes(tmp_path: Path) -> None:
    path, place = stored(tmp_path, X), str(tmp_path / "kept")
    done = subprocess.run([sys.executable, "-c", KILLED, path, place], check=False)
    assert done.returncode == 9
    asked = {"kernel": "rbf", "gamma": "median", "tol": 1e-8}
    model = quiet(checkpoint=place, **asked).fit(path)
    assert {one.name: one.resumed_blocks for one in model.cost_}["step 1 2"] > 0
    np.testing.assert_array_equal(model.eigenvectors_, quiet(**asked).fit(path).eigenvectors_)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = quiet(kernel="rbf").fit(stored(tmp_path, X))
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(NEW), model.transform(NEW))
    np.testing.assert_array_equal(loaded.result_.angle_bound, model.result_.angle_bound)


MEMORY = """
import sys, warnings, streampca
warnings.simplefilter("error", UserWarning)
from streampca.passes.memory import peak_nbytes
path, limit, kernel = sys.argv[1:]
asked = {"kernel": kernel, "solver": "matrix-free", "progress": False, "memory_limit": limit}
model = streampca.KernelPCA(4, gamma=None, **asked).fit(path)
print(model.plan_.sizes["panels"], peak_nbytes(), model.plan_.peak_nbytes)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("n", "p", "limit", "kernel"), [(5000, 40, "1GiB", "rbf"), (2000, 12_000, "270MiB", "cosine")]
)
def test_memory_stays_within_the_plan(
    n: int, p: int, limit: str, kernel: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((5, p), dtype=np.float32)
    x = centres[rng.integers(0, 5, n)] + 0.3 * rng.standard_normal((n, p), dtype=np.float32)
    path = stored(tmp_path, x, 200)
    pieces, peak, planned = map(int, forked(MEMORY, path, limit, kernel).split())
    assert (pieces > 1) == (kernel == "cosine")
    assert peak <= planned <= 2 * peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "dtype"),
    [
        ("matrix-free", "float64"),
        ("scratch", "float32"),
        pytest.param("matrix-free", "float32", marks=pytest.mark.soak),
        pytest.param("scratch", "float64", marks=pytest.mark.soak),
    ],
)
def test_the_same_bits_on_a_cluster_and_on_any_number_of_threads(
    solver: str, dtype: str, tmp_path: Path, two_workers: Any
) -> None:
    path = stored(tmp_path, clusters(1, 3000).astype(dtype))
    asked = {"kernel": "rbf", "gamma": "median", "solver": solver}
    if solver == "scratch":
        asked["scratch"] = str(tmp_path / "scratch")
    expected = quiet(scheduler="threads", threads=1, **asked).fit(path).eigenvectors_
    for more in ({"scheduler": two_workers}, {"scheduler": "threads", "threads": 3}):
        found = quiet(**asked, **more).fit(path).eigenvectors_
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_kernel_matrix_in_scratch(
    kernel: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = stored(tmp_path, X.astype(dtype), 40), tmp_path / "scratch"
    monkeypatch.setattr(kernel_scratch, "CHUNK_NBYTES", 50_000)
    asked = {"kernel": kernel, "gamma": 0.02, "tol": 1e-3}
    exact = KernelPCA(4, solver="exact", progress=False, **asked).fit(X)
    for pieces in (1, 3):
        monkeypatch.setattr(panels, "PANELS", (pieces,))
        model = quiet(solver="scratch", scratch=str(folder), **asked).fit(path)
        assert model.plan_.solver == "scratch"
        assert model.plan_.sizes["panels"] == pieces
        assert "is written once to scratch" in model.plan_.reason
        bound = model.result_.angle_bound
        assert np.all(angles(model.eigenvectors_, exact.eigenvectors_) <= bound)
        assert np.all(bound <= 1e-3)
        assert not list(folder.iterdir())


def test_scratch_that_is_complete_is_found_again(tmp_path: Path) -> None:
    path, folder = stored(tmp_path, X), tmp_path / "scratch"

    def stop(advance: Any) -> None:
        if advance.pass_name == "step 2":
            raise KeyboardInterrupt

    asked = {"kernel": "rbf", "gamma": 0.02, "solver": "scratch", "scratch": str(folder)}
    expected = quiet(**asked).fit(path)
    assert any(one.name.startswith("write") for one in expected.cost_)
    with pytest.raises(KeyboardInterrupt):
        KernelPCA(4, progress=stop, **asked).fit(path)
    model = quiet(**asked).fit(path)
    assert not any(one.name.startswith("write") for one in model.cost_)
    np.testing.assert_array_equal(model.eigenvectors_, expected.eigenvectors_)
    with pytest.raises(InvalidInputError, match="needs a folder: scratch="):
        quiet(solver="scratch").fit(path)


def test_auto_takes_scratch_for_wide_rows(tmp_path: Path) -> None:
    import dask.array as da

    wide = da.zeros((80_000, 10_000), chunks=(1024, 10_000), dtype="f4")
    asked = {"kernel": "rbf", "memory_limit": "2GiB"}
    assert KernelPCA(10, **asked).plan(wide).solver == "matrix-free"
    plan = KernelPCA(10, scratch=str(tmp_path), **asked).plan(wide)
    assert plan.solver == "scratch"
    assert "23.8 GiB" in plan.reason
