"""CCA: published numbers, closed forms, rank, penalties, certificates, labels."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca import CCA
from streampca.errors import (
    AbsentNamesWarning,
    AccuracyWarning,
    InvalidInputError,
    MemoryLimitError,
    NonFiniteError,
)

RNG = np.random.default_rng(0)
H = RNG.standard_normal((200, 3))
X = H @ RNG.standard_normal((3, 6)) + RNG.standard_normal((200, 6))
Y = H @ RNG.standard_normal((3, 4)) + RNG.standard_normal((200, 4))
SOLVERS = ("scatter", "tsqr")


def quiet(k: int | None = 3, **parameters: Any) -> CCA:
    return CCA(k, progress=False, **parameters)


def correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    q, r = (np.linalg.qr(one - one.mean(axis=0))[0] for one in (x, y))
    return np.linalg.svd(q.T @ r)[1]


def rcc(x: np.ndarray, y: np.ndarray, l1: float, l2: float) -> np.ndarray:
    """The closed form of ``CCA::rcc`` in R."""

    def inverse_root(s: np.ndarray) -> np.ndarray:
        values, vectors = np.linalg.eigh(s)
        return (vectors / np.sqrt(values)) @ vectors.T

    joint, p = np.cov(np.hstack([x, y]).T), x.shape[1]
    a = inverse_root(joint[:p, :p] + l1 * np.eye(p))
    b = inverse_root(joint[p:, p:] + l2 * np.eye(y.shape[1]))
    return np.linalg.svd(a @ joint[:p, p:] @ b)[1]


def table(path: Path, first: int = 0) -> np.ndarray:
    with path.open() as file:
        return np.array([row[first:] for row in list(csv.reader(file))[1:]], dtype=float)


# -- published numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_mmreg(solver: str, shared_data: Path) -> None:
    both = table(shared_data / "cca" / "mmreg.csv")
    model = quiet(solver=solver).fit(both[:, :3], both[:, 3:])
    np.testing.assert_allclose(model.correlations_, [0.46409, 0.16751, 0.10399], atol=5e-6)
    test = model.test_
    np.testing.assert_allclose(test.wilks, [0.75436, 0.96143, 0.98919], atol=6e-6)
    np.testing.assert_allclose(test.f, [11.716, 2.9445, 2.1646], rtol=5e-5)
    np.testing.assert_allclose(test.df1, [15, 8, 3])
    np.testing.assert_allclose(test.df2, [1634.65, 1186, 594], atol=0.005)
    np.testing.assert_allclose(test.f_p_value[1:], [0.002905, 0.0911], rtol=5e-4)
    np.testing.assert_allclose(test.chi2, [167.58, 23.384, 6.464], rtol=5e-5)
    np.testing.assert_allclose(test.chi2_p_value[1:], [0.002905, 0.0911], rtol=5e-4)
    assert test.f_p_value[0] == pytest.approx(7.5e-28, rel=0.01)
    assert test.chi2_p_value[0] == pytest.approx(7.5e-28, rel=0.01)
    assert str(test).splitlines()[1].split()[:3] == ["1", "0.75436", "11.716"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_linnerud(solver: str, shared_data: Path) -> None:
    x = table(shared_data / "cca" / "linnerud_physiological.csv", 1)
    y = table(shared_data / "cca" / "linnerud_exercise.csv", 1)
    model = quiet(solver=solver).fit(x, y)
    np.testing.assert_allclose(model.correlations_, [0.79561, 0.20056, 0.07257], atol=5e-6)
    test = model.test_
    np.testing.assert_allclose(test.wilks, [0.35039053, 0.95472266, 0.99473355], atol=1e-8)
    np.testing.assert_allclose(test.f, [2.05, 0.18, 0.08], atol=0.005)
    np.testing.assert_allclose(test.df2, [34.223, 30, 16], atol=5e-4)
    np.testing.assert_allclose(test.f_p_value, [0.0635, 0.9491, 0.7748], atol=5e-5)
    np.testing.assert_allclose(test.chi2_p_value, [0.0617, 0.9491, 0.7748], atol=5e-5)
    whole = (test.pillai, test.hotelling_lawley, test.roy)
    np.testing.assert_allclose(whole, [0.67848151, 1.77194146, 1.72473874], atol=5e-9)


def test_life_cycle_savings(shared_data: Path) -> None:
    text = (shared_data / "r_datasets" / "LifeCycleSavings.R").read_text()
    columns = dict(re.findall(r"(\w+) = c\(([^)]*)\)", text))
    values = {
        name: [float(v) for v in re.findall(r"[-\d.]+", one)] for name, one in columns.items()
    }
    x = np.column_stack([values["pop15"], values["pop75"]])
    y = np.column_stack([values["sr"], values["dpi"], values["ddpi"]])
    model = quiet(2).fit(x, y)
    np.testing.assert_allclose(model.correlations_, [0.82480, 0.36528], atol=5e-6)
    np.testing.assert_allclose(model.test_.wilks, [0.27705, 0.86657], atol=1e-5)


def test_nutrimouse_is_that_of_rcc(shared_data: Path) -> None:
    gene = table(shared_data / "cca" / "nutrimouse_gene.csv", 1)
    lipid = table(shared_data / "cca" / "nutrimouse_lipid.csv", 1)
    expected = rcc(gene, lipid, 0.1, 0.2)[:3]
    for solver in ("auto", "samples", *SOLVERS):
        model = quiet(alpha=(0.1, 0.2), solver=solver).fit(gene, lipid)
        np.testing.assert_allclose(model.correlations_, expected, atol=1e-8)
        assert np.all(model.correlation_bound_ < 1e-9)
    with pytest.raises(InvalidInputError, match="X has 120 features and 40 rows"):
        quiet().fit(gene, lipid)
    with pytest.raises(AttributeError, match="a penalised CCA has no test"):
        _ = model.test_


# -- what it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_weights_and_loadings_agree(solver: str) -> None:
    model = quiet(solver=solver).fit(X, Y)
    a, b = model.transform(X, Y)
    np.testing.assert_allclose(model.correlations_, correlations(X, Y)[:3], atol=1e-13)
    np.testing.assert_allclose(a, (X - X.mean(axis=0)) @ model.x_weights_, atol=1e-12)
    joint = np.corrcoef(np.hstack([a, b]).T)
    expected = np.kron([[1, 0], [0, 1]], np.eye(3)) + np.kron(
        [[0, 1], [1, 0]], np.diag(model.correlations_)
    )
    np.testing.assert_allclose(joint, expected, atol=1e-12)
    np.testing.assert_allclose(np.var(np.hstack([a, b]), axis=0, ddof=1), 1.0, atol=1e-12)
    whole = np.corrcoef(np.hstack([X, a, b]).T)
    np.testing.assert_allclose(model.x_loadings_, whole[:6, 6:9], atol=1e-12)
    np.testing.assert_allclose(model.x_cross_loadings_, whole[:6, 9:], atol=1e-12)
    other = np.corrcoef(np.hstack([Y, b, a]).T)
    np.testing.assert_allclose(model.y_loadings_, other[:4, 4:7], atol=1e-12)
    np.testing.assert_allclose(model.y_cross_loadings_, other[:4, 7:], atol=1e-12)
    own = model.redundancy_
    np.testing.assert_allclose(own.x_by_x, np.mean(model.x_loadings_**2, axis=0))
    np.testing.assert_allclose(own.x_by_y, own.x_by_x * model.correlations_**2, rtol=1e-10)
    np.testing.assert_allclose(own.y_by_x, own.y_by_y * model.correlations_**2, rtol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_view_with_itself_correlates_fully(solver: str) -> None:
    model = quiet(6, solver=solver).fit(X, X.copy())
    np.testing.assert_allclose(model.correlations_, 1.0, atol=1e-12)
    turned = quiet(6, solver=solver).fit(X, X @ RNG.standard_normal((6, 6)))
    np.testing.assert_allclose(turned.correlations_, 1.0, atol=1e-10)


def test_a_mean_of_a_million_changes_nothing() -> None:
    plain, far = quiet().fit(X, Y), quiet().fit(X + 1e6, Y - 1e6)
    np.testing.assert_allclose(far.correlations_, plain.correlations_, atol=1e-9)
    np.testing.assert_allclose(far.x_weights_, plain.x_weights_, atol=1e-8)
    np.testing.assert_allclose(far.transform(X + 1e6), plain.transform(X), atol=1e-7)


@pytest.mark.parametrize("scale", [None, "std"])
def test_units_do_not_count_without_a_penalty(scale: str | None) -> None:
    units = 10.0 ** np.arange(-6.0, 6.0, 2.0)
    plain, other = quiet(scale=scale).fit(X, Y), quiet(scale=scale).fit(X * units, Y)
    np.testing.assert_allclose(other.correlations_, plain.correlations_, atol=1e-12)
    np.testing.assert_allclose(other.x_loadings_, plain.x_loadings_, atol=1e-9)
    assert np.all(other.correlation_bound_ < 1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_dependent_features_are_left_out_as_by_cancor(solver: str) -> None:
    x = np.column_stack([X[:, :3], X[:, 0] - 2 * X[:, 2], X[:, 3:], np.ones(200)])
    model = quiet(solver=solver).fit(x, Y)
    np.testing.assert_allclose(model.correlations_, correlations(X, Y)[:3], atol=1e-12)
    assert (model.result_.x_rank, model.result_.y_rank) == (6, 4)
    np.testing.assert_array_equal(model.x_weights_[[3, 7]], 0.0)
    kept, expected = model.x_weights_[[0, 1, 2, 4, 5, 6]], quiet().fit(X, Y).x_weights_
    signs = np.sign(np.sum(kept * expected, axis=0))
    np.testing.assert_allclose(kept * signs, expected, atol=1e-11)
    assert np.isnan(model.x_loadings_[7]).all()
    assert not np.isnan(model.x_loadings_[3]).any()
    assert not np.isnan(model.redundancy_.x_by_y).any()
    with pytest.warns(AccuracyWarning, match="3 pairs were requested; there are 1"):
        assert quiet(solver=solver).fit(X[:, :1] * [1.0, 2.0, 3.0], Y).correlations_.shape == (1,)


# -- certificates ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("near", [1e-1, 1e-2, 1e-3, 1e-4, 1e-6])
def test_a_bound_is_a_bound_and_auto_reads_again(near: float, dtype: Any) -> None:
    rng = np.random.default_rng(int(-np.log10(near)))
    x = rng.standard_normal((2000, 40))
    x[:, 20:] = x[:, :20] + near * rng.standard_normal((2000, 20))
    y = rng.standard_normal((2000, 20))
    y[:, :10] = x[:, :10] - x[:, 20:30] + near * y[:, :10]
    x, y = x.astype(dtype), y.astype(dtype)
    true = correlations(x.astype(np.float64), y.astype(np.float64))[:5]
    found = {solver: quiet(5, solver=solver).fit(x, y) for solver in (*SOLVERS, "auto")}
    for model in found.values():
        assert np.all(np.abs(model.correlations_ - true) <= model.correlation_bound_)
    assert np.all(found["auto"].correlation_bound_ <= 1e-5)
    certain = bool(np.all(found["scatter"].correlation_bound_ <= 1e-5))
    assert len(found["auto"].cost_) == (1 if certain else 2)
    assert found["auto"].plan_.n_passes == 2
    if not certain:
        with pytest.warns(AccuracyWarning, match="solver='tsqr'"):
            quiet(5, solver="scatter").fit(x, y)


# -- penalties and principal components ------------------------------------------------------------


def test_held_out_choice_in_the_same_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    h = rng.standard_normal((120, 2))
    x = h @ rng.standard_normal((2, 60)) + 3.0 * rng.standard_normal((120, 60))
    y = h @ rng.standard_normal((2, 40)) + 3.0 * rng.standard_normal((120, 40))
    for name, values in (("x", x), ("y", y)):
        zarr.create_array(str(tmp_path / name), data=values, chunks=(17, values.shape[1]))
    model = quiet(2, alpha="cv").fit(str(tmp_path / "x"), str(tmp_path / "y"))
    assert len(model.cost_) == 1
    assert model.cost_[0].reads == model.plan_.reads == 16
    l1, l2 = model.alpha_
    np.testing.assert_allclose(model.correlations_, rcc(x, y, l1, l2)[:2], atol=1e-10)
    trials = model.held_out_
    assert trials is not None
    best = trials[np.argmax(trials[:, 2])]
    np.testing.assert_array_equal(best[:2], [l1, l2])
    least = trials[np.argmin(trials[:, 0] + trials[:, 1])]
    assert best[2] > least[2] + 0.02  # a penalty helps here


def test_held_out_correlations_are_those_of_refitting() -> None:
    from streampca.kernels.columns import line_keys

    model = quiet(1, alpha="cv").fit(X, Y)
    fold = line_keys(np.arange(200), 0, 0) % np.uint32(5)
    assert model.held_out_ is not None
    for l1, l2, found in model.held_out_[[0, 7, 24]]:
        sums = np.zeros(3)
        for f in range(5):
            rest, held = fold != f, fold == f
            part = quiet(1, alpha=(l1, l2)).fit(X[rest], Y[rest])
            a = X[held] @ part.x_weights_[:, 0]
            b = Y[held] @ part.y_weights_[:, 0]
            a, b = a - a.mean(), b - b.mean()
            sums += [a @ b, a @ a, b @ b]
        assert found == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]), rel=1e-9)


def test_penalties_have_units_unless_columns_are_scaled() -> None:
    by_scale = [quiet(alpha=0.3, scale="std").fit(x, Y) for x in (X, 100.0 * X)]
    np.testing.assert_allclose(by_scale[0].correlations_, by_scale[1].correlations_, atol=1e-12)
    z = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)
    w = (Y - Y.mean(axis=0)) / Y.std(axis=0, ddof=1)
    np.testing.assert_allclose(by_scale[0].correlations_, rcc(z, w, 0.3, 0.3)[:3], atol=1e-12)
    plain = [quiet(alpha=0.3).fit(x, Y).correlations_[0] for x in (X, 0.01 * X)]
    assert plain[0] > plain[1] + 0.1


@pytest.mark.parametrize("layout", [(13, 90), (50, 7)])
def test_many_features_in_sample_space(layout: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((50, 90)) + 7.0, rng.standard_normal((50, 70))
    x[:, :5] += y[:, :5]
    zarr.create_array(str(tmp_path / "x"), data=x, chunks=layout)
    for parameters in ({"alpha": (0.5, 0.2)}, {"pca": (8, 5)}):
        models = [
            quiet(solver=solver, **parameters).fit(str(tmp_path / "x"), y)
            for solver in ("scatter", "samples", "tsqr")
        ]
        for model in models[1:]:
            for name in (
                "correlations_",
                "x_weights_",
                "y_weights_",
                "x_loadings_",
                "y_cross_loadings_",
            ):
                found, expected = getattr(model, name), getattr(models[0], name)
                np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=name)
        scores = models[1].result_.x_scores
        np.testing.assert_allclose(scores, models[0].transform(x), atol=1e-9)
    u = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[0][:, :8]
    v = np.linalg.svd(y - y.mean(axis=0), full_matrices=False)[0][:, :5]
    np.testing.assert_allclose(models[0].correlations_, np.linalg.svd(u.T @ v)[1][:3], atol=1e-10)
    assert np.isinf(models[0].correlation_bound_).all()
    assert "not determined" in str(models[0].result_)


# -- rows, labels, layouts -------------------------------------------------------------------------


def test_labelled_rows_are_paired_and_counted() -> None:
    names = [f"p{i}" for i in range(200)]
    x = xr.DataArray(X, dims=("person", "a"), coords={"person": names, "a": list("abcdef")})
    y = xr.DataArray(Y, dims=("person", "b"), coords={"person": names, "b": list("wxyz")})
    expected = quiet().fit(X, Y)
    turned = quiet().fit(x, y[RNG.permutation(200)])
    np.testing.assert_allclose(turned.correlations_, expected.correlations_, atol=1e-13)
    assert "another order" in str(turned.plan_)
    with pytest.warns(AbsentNamesWarning, match="150 rows are in both; 20 of X and 30 of Y"):
        part = quiet().fit(x[:170], y[20:])
    np.testing.assert_allclose(
        part.correlations_, quiet().fit(X[20:170], Y[20:170]).correlations_, atol=1e-13
    )
    assert (part.result_.left_out_x, part.result_.left_out_y) == (20, 30)
    assert "20 of X and 30 of Y had no partner" in part.result_.notes()[1]
    a, b = expected.fit(x, y).transform(x.chunk(person=60), y)
    assert a.dims == b.dims == ("person", "component")
    assert a.chunks is not None
    assert b.chunks is None
    np.testing.assert_allclose(a.compute(), expected.transform(X), atol=1e-12)
    with pytest.raises(InvalidInputError, match="features are not those of the fit"):
        expected.transform(x[:, ::-1])
    with pytest.raises(InvalidInputError, match="X has 4 features, but the X view of this CCA is"):
        expected.transform(Y)
    whole = expected.result_.to_xarray()
    np.testing.assert_array_equal(whole.weights_x.sel(a="c"), expected.x_weights_[2])
    np.testing.assert_array_equal(whole.cross_loadings_y.T, expected.y_cross_loadings_)
    assert whole.weights_x.attrs["long_name"] == "weights of the data"


def test_lazy_rows_and_written_scores(tmp_path: Path) -> None:
    model = quiet().fit(da.from_array(X, chunks=(50, 6)), Y)
    a, b = model.transform(da.from_array(X, chunks=(50, 6)), da.from_array(Y, chunks=(40, 4)))
    assert a.chunks[0] == (50,) * 4
    np.testing.assert_allclose(b.compute(), model.transform(X, Y)[1], atol=1e-13)
    paths = str(tmp_path / "a"), str(tmp_path / "b")
    written = model.transform(X, Y, out=paths)
    np.testing.assert_allclose(written[0][:], a.compute(), atol=1e-13)
    with pytest.raises(InvalidInputError, match="expected two paths"):
        model.transform(X, Y, out=str(tmp_path / "c"))
    assert list(model.get_feature_names_out()) == ["cca0", "cca1", "cca2"]


@pytest.mark.parametrize("rows", [1, 7, 200])
def test_chunks_do_not_change_the_correlations(rows: int, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X, chunks=(rows, 6))
    zarr.create_array(str(tmp_path / "y"), data=Y, chunks=(11, 4))
    model = quiet().fit(str(tmp_path / "x"), str(tmp_path / "y"))
    np.testing.assert_allclose(model.correlations_, correlations(X, Y)[:3], atol=1e-13)


def test_a_saved_model_keeps_its_pairs(tmp_path: Path) -> None:
    model = quiet(alpha=(0.1, 0.2)).fit(X, Y)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.x_weights_, model.x_weights_)
    np.testing.assert_array_equal(loaded.alpha_, [0.1, 0.2])
    again = loaded.fit(X, Y)
    np.testing.assert_array_equal(again.correlations_, model.correlations_)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": 5}, "n_components=5; expected None or a number from 1 to 4"),
        ({"k": 0.5}, "n_components=0.5; expected None or a number"),
        ({"alpha": -1.0}, "alpha=-1.0; expected None, 'cv', a number"),
        ({"alpha": (1, 2, 3)}, "expected None, 'cv', a number from 0, or two"),
        ({"alpha": "best"}, "alpha='best'"),
        ({"pca": (3, 9)}, r"pca=\(3, 9\): that of Y=9; expected a number from 1 to 4"),
        ({"pca": (3, 2), "alpha": 1.0}, "exclude each other"),
        ({"solver": "samples"}, "solver='samples' needs pca"),
        ({"alpha": "cv", "solver": "tsqr"}, "give numbers"),
        ({"scale": "max"}, "scale='max'; expected None or 'std'"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        quiet(**parameters).fit(X, Y)


def test_bad_input_is_refused() -> None:
    holes = X.copy()
    holes[3, 2] = np.nan
    with pytest.raises(NonFiniteError, match="missing"):
        quiet().fit(holes, Y)
    with pytest.raises(InvalidInputError, match=r"relates two views; expected fit\(X, Y\)"):
        quiet().fit(X)
    with pytest.raises(MemoryLimitError, match="too small for CCA"):
        quiet(memory_limit=1000).plan(X, Y)
    with pytest.warns(AccuracyWarning, match="2 correlations are 1 whatever"):
        model = quiet(2).fit(X[:9], Y[:9])
    np.testing.assert_allclose(model.correlations_, 1.0)
    with pytest.raises(InvalidInputError, match="2 rows are in both views"):
        quiet(1).fit(X[:2], Y[:2])
