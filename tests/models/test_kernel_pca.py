"""Kernel PCA: scikit-learn's numbers, feature maps, layouts, what a saved model refers to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca import PCA, KernelPCA
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError, SourceError
from streampca.kernels import symmetrize
from streampca.models.decompose import panels
from streampca.models.kernel import matrix as kernel_matrix
from streampca.models.kernel import request as kernel_request
from streampca.models.kernel.functions import Kernel
from streampca.passes import Running, choose, execute
from streampca.sources import as_matrix
from tests.each import each
from tests.forks import forked
from tests.models.invariants import same

KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 7)) @ RNG.standard_normal((7, 7))
NEW = RNG.standard_normal((11, 7))
LAYOUTS = {"rows": (16, 7), "features": (60, 2), "both": (13, 3)}


def stored(folder: Path, values: np.ndarray, chunks: tuple[int, int], name: str = "x.zarr") -> str:
    zarr.create_array(str(folder / name), data=values, chunks=chunks)
    return str(folder / name)


def quiet(k: int | None = 4, **parameters: Any) -> KernelPCA:
    return KernelPCA(k, progress=False, **parameters)


def laplace(a: np.ndarray, b: np.ndarray, **_: Any) -> float:
    return float(np.exp(-0.05 * np.abs(a - b).sum()))  # scikit-learn's has no such name


def only(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_matrix, "WAYS", {route: kernel_matrix.WAYS[route]})


@pytest.mark.parametrize(
    ("kernel", "route"),  # absolute distances do not follow from products
    [
        (name, way)
        for name in KERNELS
        for way in ("features", "rows")
        if (name, way) != ("laplacian", "features")
    ],
)
@each("layout", LAYOUTS)
def test_numbers_of_scikit_learn(
    kernel: str, layout: str, route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.decomposition import KernelPCA as Reference

    only(route, monkeypatch)
    more = {"kernel": kernel, "gamma": 0.05, "degree": 2, "coef0": 0.5}
    asked = more | {"kernel": laplace} if kernel == "laplacian" else more
    reference = Reference(4, **asked)
    expected = reference.fit_transform(X)
    path = stored(tmp_path, X, LAYOUTS[layout])
    model = quiet(**more)
    same(model.fit_transform(path), expected)
    assert model.plan_.solver == route
    same(model.transform(NEW), reference.transform(NEW))
    same(model.transform(path), expected)
    np.testing.assert_allclose(model.eigenvalues_, reference.eigenvalues_, rtol=1e-10)
    same(model.eigenvectors_, reference.eigenvectors_)


def test_several_panels_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only("rows", monkeypatch)
    path = stored(tmp_path, X, (8, 7))
    expected = quiet(kernel="rbf").fit_transform(path)
    monkeypatch.setattr(panels, "PANELS", (4,))
    model = quiet(kernel="rbf")
    same(model.fit_transform(path), expected, 1e-12)
    names = [one.name for one in model.plan_.passes]
    assert names[:2] == ["panel 1", "below panel 1"]
    assert names[-1] == "panel 4"
    assert model.plan_.reads == sum(one.reads for one in model.cost_) == 20


def test_a_linear_kernel_gives_the_scores_of_a_pca() -> None:
    same(quiet().fit_transform(X + 1e3), PCA(4, progress=False).fit_transform(X + 1e3), 1e-10)


def test_a_quadratic_kernel_is_a_pca_of_its_feature_map() -> None:
    i, j = np.triu_indices(7, 1)
    explicit = np.hstack([X**2, np.sqrt(2) * X[:, i] * X[:, j], np.sqrt(2) * X])
    expected = PCA(4, progress=False).fit_transform(explicit)
    model = quiet(kernel="poly", degree=2, gamma=1.0, coef0=1.0)
    same(model.fit_transform(X), expected, 1e-10)


def test_rbf_is_right_at_means_of_a_million() -> None:
    model, far = quiet(kernel="rbf", gamma=0.1), quiet(kernel="rbf", gamma=0.1)
    expected = model.fit_transform(X)
    same(far.fit_transform(X + 1e6), expected, 1e-8)
    same(far.transform(NEW + 1e6), model.transform(NEW), 1e-8)


@pytest.mark.parametrize("route", ["features", "rows"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernel_matrix_is_symmetric_to_the_bit(
    kernel: str, route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "laplacian":
        route = "rows"  # absolute distances do not follow from products
    monkeypatch.setattr(panels, "PANELS", (3,))
    matrix, asked = as_matrix(stored(tmp_path, X, (10, 3))), Kernel(kernel, 0.1, 3.0, 1.0)
    candidates = kernel_matrix.WAYS[route](matrix, asked)
    sums = execute(choose(matrix, "kernel", candidates), Running(progress=False)).answer
    whole, shift = symmetrize(sums.lower), sums.shift
    np.testing.assert_array_equal(whole, whole.T)
    np.testing.assert_allclose(whole, asked.of_rows(X - shift, X - shift), atol=1e-12)


@pytest.mark.slow
def test_a_function_takes_whole_rows(tmp_path: Path) -> None:
    def laplace(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-0.1 * np.abs(a - b).sum()))

    from sklearn.decomposition import KernelPCA as Reference

    reference = Reference(4, kernel=laplace)
    expected = reference.fit_transform(X)
    model = quiet(kernel=laplace)
    same(model.fit_transform(stored(tmp_path, X, (16, 7))), expected)
    same(model.transform(NEW), reference.transform(NEW))
    model.save(tmp_path / "m")
    with pytest.raises(InvalidInputError, match="does not hold the function"):
        streampca.load(tmp_path / "m").transform(NEW)
    tall = da.from_array(np.ones((200_000, 400), np.float32), chunks=(200_000, 1))
    with pytest.raises(InvalidInputError, match=r"streampca convert X -o rows\.zarr"):
        quiet(kernel=laplace).plan(tall)


def test_a_precomputed_kernel() -> None:
    from sklearn.decomposition import KernelPCA as Reference

    k, new = X @ X.T, NEW @ X.T
    reference = Reference(4, kernel="precomputed")
    expected = reference.fit_transform(k)
    model = quiet(kernel="precomputed")
    same(model.fit_transform(k), expected)
    same(model.transform(new), reference.transform(new))
    with pytest.raises(InvalidInputError, match="of 60 x 7; expected a square matrix"):
        model.fit(X)


def test_all_components_that_there_are() -> None:
    from sklearn.decomposition import KernelPCA as Reference

    assert quiet(None).fit(X).n_components_ == 7
    expected = Reference(None, kernel="rbf").fit_transform(X)
    same(quiet(None, kernel="rbf", gamma=1 / 7).fit_transform(X)[:, :40], expected[:, :40], 1e-7)
    beyond = quiet(9).fit(X)
    np.testing.assert_array_equal(beyond.eigenvalues_[7:], 0)
    np.testing.assert_array_equal(beyond.transform(NEW)[:, 7:], 0)


def test_a_kernel_model_has_no_components_or_loadings() -> None:
    model = quiet(kernel="rbf").fit(X)
    for name in (
        "components_",
        "noise_variance_",
        "eof_",
        "score_samples",
        "explained_variance_",
        "mean_",
    ):
        assert not hasattr(model, name), name


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_a_saved_model_refers_to_its_rows(kernel: str, tmp_path: Path) -> None:
    path = stored(tmp_path, X, (16, 7))
    model = quiet(kernel=kernel).fit(streampca.open(path))
    expected = model.transform(NEW)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert loaded.result_.training_rows is None
    assert loaded.kernel == kernel
    np.testing.assert_array_equal(loaded.transform(NEW), expected)
    zarr.open_array(path)[3, 2] = 5.0
    for one in (loaded, model):
        with pytest.raises(SourceError, match="have changed since the fit; fit again"):
            one.transform(NEW)


def test_rows_in_memory_are_copied_with_the_model(tmp_path: Path) -> None:
    x = X.copy()
    model = quiet(kernel="rbf").fit(x)
    expected = model.transform(NEW)
    x[:] = 0
    np.testing.assert_array_equal(model.transform(NEW), expected)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(streampca.load(tmp_path / "m").transform(NEW), expected)


def test_keep_training_writes_a_copy_of_the_rows(tmp_path: Path) -> None:
    lazy = da.from_array(X, chunks=(16, 7)) * 1.0
    model = quiet(kernel="rbf").fit(lazy)
    with pytest.raises(InvalidInputError, match=r"keep_training='rows\.zarr'"):
        model.save(tmp_path / "refused")
    kept = quiet(kernel="rbf", keep_training=str(tmp_path / "rows.zarr")).fit(lazy)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "rows.zarr")), X)
    kept.save(tmp_path / "m")
    found = streampca.load(tmp_path / "m").transform(NEW)
    np.testing.assert_allclose(found, model.transform(NEW), atol=1e-12)


def test_labels_and_lazy_rows() -> None:
    frame = xr.DataArray(X, dims=("time", "site"), coords={"time": np.arange(60)})
    model = quiet(kernel="rbf").fit(frame)
    scores = model.transform(frame)
    assert scores.dims == ("time", "component")
    np.testing.assert_allclose(model.fit_transform(frame), scores, atol=1e-12)
    lazy = model.transform(frame.chunk(time=20))
    np.testing.assert_allclose(lazy.compute(), scores, atol=1e-12)


def test_plan_refusal_and_holes() -> None:
    plan = quiet(kernel="rbf").plan(X)
    assert plan.peak_nbytes > 60 * 60 * 8
    with pytest.raises(MemoryLimitError):
        quiet(memory_limit=1000).plan(X)
    holes = X.copy()
    holes[5, 3] = np.nan
    with pytest.raises(NonFiniteError, match="missing"):
        quiet().fit(holes)
    with pytest.raises(NonFiniteError, match="missing"):
        quiet().fit(X).transform(holes)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": 61}, "n_components=61; expected None or a number from 1 to 60"),
        ({"k": 0.5}, "n_components=0.5; expected None or a number"),
        ({"gamma": "mean"}, "gamma='mean'; expected a number, 'median' or None"),
        ({"gamma": "median"}, "gamma='median' for kernel='linear'; expected one of"),
        ({"gamma": -1.0, "kernel": "rbf"}, "gamma=-1.0 for kernel='rbf'; expected 0 or more"),
        ({"kernel": "laplace"}, "kernel='laplace'; expected a function or one of"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        quiet(**parameters).fit(X)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path, X, (16, 7))
    words = ["fit", path, "--model", "kernel-pca", "--kernel", "rbf", "-k", "3", "-q"]
    assert main([*words, "-o", str(tmp_path / "m")]) == 0
    expected = quiet(3, kernel="rbf").fit(path).transform(NEW)
    np.testing.assert_allclose(streampca.load(tmp_path / "m").transform(NEW), expected, atol=1e-12)
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "KernelPCA: 3 components of 60 samples x 7 features" in capsys.readouterr().out


def test_an_interrupted_fit_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only("rows", monkeypatch)
    monkeypatch.setattr(panels, "PANELS", (3,))
    path = stored(tmp_path, X, (5, 7))
    expected = quiet(kernel="rbf").fit(path).eigenvectors_

    def stop(advance: Any) -> None:
        if advance.pass_name == "below panel 1":
            raise KeyboardInterrupt

    place = str(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        KernelPCA(4, kernel="rbf", progress=stop, checkpoint=place).fit(path)
    model = quiet(kernel="rbf", checkpoint=place).fit(path)
    np.testing.assert_array_equal(model.eigenvectors_, expected)


@pytest.mark.parametrize("route", ["features", "rows"])
def test_gamma_from_the_median_distance(
    route: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(route, monkeypatch)
    apart = X[:, None] - X
    d = np.median(np.sqrt((apart**2).sum(axis=2))[np.triu_indices(60, 1)])
    model = quiet(kernel="rbf", gamma="median").fit(path := stored(tmp_path, X, (16, 3)))
    np.testing.assert_allclose(model.gamma_, 1 / (2 * d**2), rtol=1e-12)
    same(model.eigenvectors_, quiet(kernel="rbf", gamma=model.gamma_).fit(path).eigenvectors_)
    found = f"from the median of 1770 distances, {d:.6g}, between 60 of 60 rows (seed 0)"
    assert model.result_.gamma_found == found
    assert found in model.result_.table()
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert (loaded.gamma_, loaded.gamma) == (model.gamma_, "median")
    np.testing.assert_array_equal(loaded.transform(NEW), model.transform(NEW))


def test_the_median_of_absolute_distances_and_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.median(np.abs(X[:, None] - X).sum(axis=2)[np.triu_indices(60, 1)])
    model = quiet(kernel="laplacian", gamma="median").fit(X)
    np.testing.assert_allclose(model.gamma_, 1 / d, rtol=1e-12)
    monkeypatch.setattr(kernel_request, "SAMPLED", 20)
    model = quiet(kernel="laplacian", gamma="median", random_state=7)
    assert model.plan(X).passes[0].edges[-1] == 20
    first = model.fit(X).gamma_
    assert first == model.fit(X).gamma_ != 1 / d
    assert "between 20 of 60 rows (seed 7)" in model.result_.gamma_found
    drawn = quiet(kernel="rbf", gamma="median", random_state=np.random.default_rng(3)).fit(X)
    seed = drawn.result_.settings["random_state"]
    assert quiet(kernel="rbf", gamma="median", random_state=seed).fit(X).gamma_ == drawn.gamma_


def test_rows_that_mostly_repeat_have_no_median_distance() -> None:
    with pytest.raises(InvalidInputError, match=r"is 0: most of them.*Give a number, gamma="):
        quiet(kernel="rbf", gamma="median").fit(np.ones((30, 3)))


@pytest.mark.slow
def test_the_same_bits_on_any_number_of_threads() -> None:
    code = (
        "import sys, numpy as np, streampca, threadpoolctl\n"
        "x = np.random.default_rng(0).standard_normal((900, 60))\n"
        "with threadpoolctl.threadpool_limits(int(sys.argv[1]), user_api='blas'):\n"
        "    of_each = [one['num_threads'] for one in threadpoolctl.threadpool_info()]\n"
        "    assert {*of_each} == {int(sys.argv[1])}\n"
        "    model = streampca.KernelPCA(6, kernel='rbf', progress=False).fit(x)\n"
        "print(model.eigenvectors_.tobytes().hex(), model.eigenvalues_.tobytes().hex())\n"
    )
    found = {forked(code, threads) for threads in ("1", "2")}
    assert len(found) == 1
