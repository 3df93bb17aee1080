"""Two views with side data: what is removed from both, weights of samples, holes, still views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import streampca
from streampca import CCA, MCA
from streampca.errors import AbsentNamesWarning, DroppedFeaturesWarning, InvalidInputError

RNG = np.random.default_rng(5)
N, P, Q = 90, 7, 5
H = RNG.standard_normal((N, 2))
X = H @ RNG.standard_normal((2, P)) + RNG.standard_normal((N, P)) + 3.0
Y = H @ RNG.standard_normal((2, Q)) + RNG.standard_normal((N, Q)) - 2.0
COVARIATES = np.column_stack([np.linspace(-1, 1, N), np.arange(N) % 3 == 0]).astype(float)
X_TOLD = X + COVARIATES @ RNG.standard_normal((2, P)) * 4.0
Y_TOLD = Y + COVARIATES @ RNG.standard_normal((2, Q)) * 4.0
NAMES = ("x_weights_", "y_weights_", "x_loadings_", "y_cross_loadings_")
PATTERNS = ("x_patterns_", "y_patterns_", "x_loadings_", "y_cross_loadings_")


def cca(**parameters: Any) -> CCA:
    return CCA(2, progress=False, **parameters)


def mca(**parameters: Any) -> MCA:
    return MCA(2, progress=False, **parameters)


def residuals(values: np.ndarray, columns: np.ndarray = COVARIATES) -> np.ndarray:
    design = np.column_stack([np.ones(len(values)), columns])
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


def alike(found: Any, expected: Any, names: tuple[str, ...], atol: float = 1e-9) -> None:
    np.testing.assert_allclose(found.result_.values, expected.result_.values, atol=atol)
    for name in names:
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, atol=atol, err_msg=name)


# -- what is removed -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("solver", ["scatter", "tsqr", "samples"])
def test_partial_canonical_correlations(solver: str, scale: str | None, dtype: Any) -> None:
    x, y = X_TOLD.astype(dtype), Y_TOLD.astype(dtype)
    more = {"alpha": (0.2, 0.1)} if solver == "samples" else {}
    found = cca(solver=solver, scale=scale, remove=COVARIATES, **more).fit(x, y)
    plain = cca(solver="tsqr", scale=scale, **more).fit(*map(residuals, map(np.float64, (x, y))))
    alike(found, plain, NAMES, 1e-9 if dtype == np.float64 or solver != "samples" else 1e-5)
    a, b = found.transform(x, y, remove=COVARIATES)
    np.testing.assert_allclose(a, plain.transform(residuals(x)), atol=1e-5)
    np.testing.assert_allclose(b, plain.transform(residuals(x), residuals(y))[1], atol=1e-5)


@pytest.mark.parametrize("chunks", [(20, P), (N, 3)])
@pytest.mark.parametrize("solver", ["scatter", "samples", "krylov"])
def test_covariance_of_residuals(solver: str, chunks: tuple[int, int], tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x"), data=X_TOLD, chunks=chunks)
    for scale in (None, "std"):
        found = mca(solver=solver, scale=scale, remove=COVARIATES).fit(str(tmp_path / "x"), Y_TOLD)
        plain = mca(solver="scatter", scale=scale).fit(residuals(X_TOLD), residuals(Y_TOLD))
        alike(found, plain, PATTERNS)
    found = mca(solver=solver, remove=COVARIATES).fit(str(tmp_path / "x"), Y_TOLD)
    lazy = found.transform(da.from_array(X_TOLD, chunks=(30, P)), remove=COVARIATES)
    np.testing.assert_allclose(lazy.compute(), residuals(X_TOLD) @ found.x_patterns_, atol=1e-9)


def test_tests_count_what_was_removed() -> None:
    """Partial canonical correlations: r columns take r degrees of freedom (SAS, PROC CANCORR)."""
    found = cca(remove=COVARIATES).fit(X_TOLD, Y_TOLD)
    values, n = found.result_.spectrum, N - 2
    chi2 = -(n - 1 - (P + Q + 1) / 2) * np.log(np.prod(1 - values**2))
    assert found.test_.chi2[0] == pytest.approx(chi2)
    assert found.test_.df2[-1] == n - 1.5 - (P + Q) / 2 - (P - Q + 1) / 2 + 1


def test_cycles_are_removed_by_name_and_come_back_saved(tmp_path: Path) -> None:
    time = pd.date_range("2001-01-31", periods=N, freq="ME")
    month = (time.month.to_numpy()[:, None] == np.arange(1, 13)).astype(float)
    x, y = (
        xr.DataArray(
            one + 5 * np.sin(month @ np.arange(12.0))[:, None],
            dims=("time", name),
            coords={"time": time},
        )
        for one, name in ((X, "a"), (Y, "b"))
    )
    model = mca(remove="month").fit(x, y[::-1])
    alike(model, mca().fit(residuals(X, month[:, 1:]), residuals(Y, month[:, 1:])), PATTERNS)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    for one in (model, loaded):
        scores = one.transform(x[7:31], y[7:31])
        whole = residuals(x.values, month[:, 1:]) @ model.x_patterns_
        np.testing.assert_allclose(scores[0], whole[7:31], atol=1e-9)
    assert loaded.result_.free_rows == N - 11
    kept, made = (one.result_.removal.coefficients for one in (loaded, model))
    np.testing.assert_array_equal(kept, made)
    in_one = mca(remove="month").fit_transform(x, y)
    np.testing.assert_allclose(in_one[0], whole, atol=1e-9)


def test_penalties_are_chosen_on_residuals() -> None:
    found = cca(alpha="cv", remove=COVARIATES).fit(X_TOLD, Y_TOLD)
    plain = cca(alpha="cv").fit(residuals(X_TOLD), residuals(Y_TOLD))
    np.testing.assert_allclose(found.held_out_, plain.held_out_, atol=1e-9)
    alike(found, plain, NAMES)


# -- weights of samples ----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["scatter", "tsqr"])
def test_whole_weights_repeat_rows(solver: str) -> None:
    times = RNG.integers(0, 4, N)
    found = cca(solver=solver).fit(X, Y, sample_weight=times)
    repeated = cca(solver=solver).fit(np.repeat(X, times, axis=0), np.repeat(Y, times, axis=0))
    alike(found, repeated, NAMES)
    np.testing.assert_allclose(found.test_.f, repeated.test_.f)
    both = cca(solver=solver, remove=COVARIATES).fit(X_TOLD, Y_TOLD, sample_weight=times)
    again = cca(solver=solver, remove=np.repeat(COVARIATES, times, axis=0)).fit(
        np.repeat(X_TOLD, times, axis=0), np.repeat(Y_TOLD, times, axis=0)
    )
    alike(both, again, NAMES)
    pairs = mca(solver="scatter").fit(X, Y, sample_weight=times)
    alike(pairs, mca().fit(np.repeat(X, times, axis=0), np.repeat(Y, times, axis=0)), PATTERNS)
    assert mca().plan(X, Y, sample_weight=times).solver == "scatter"


# -- holes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(20, P), (N, 3)])
@pytest.mark.parametrize("solver", ["scatter", "samples"])
def test_holes_hold_the_mean(solver: str, chunks: tuple[int, int], tmp_path: Path) -> None:
    holed = [np.where(RNG.random(one.shape) < 0.1, np.nan, one) for one in (X, Y)]
    filled = [np.where(np.isnan(one), np.nanmean(one, axis=0), one) for one in holed]
    zarr.create_array(str(tmp_path / "x"), data=holed[0], chunks=chunks)
    paths = str(tmp_path / "x"), holed[1]
    found = mca(solver=solver, missing="mean").fit(*paths)
    alike(found, mca(solver=solver).fit(*filled), PATTERNS)
    more = {"alpha": (0.2, 0.1)} if solver == "samples" else {}
    canonical = cca(solver=solver, missing="mean", **more).fit(*paths)
    expected = cca(solver=solver, **more).fit(*filled)
    alike(canonical, expected, NAMES)
    assert np.all(
        np.abs(canonical.correlations_ - expected.correlations_)
        <= canonical.correlation_bound_ + expected.correlation_bound_
    )
    np.testing.assert_allclose(
        canonical.transform(holed[0]), expected.transform(filled[0]), atol=1e-9
    )


def test_features_without_observation_are_left_out() -> None:
    beside = np.column_stack([X, np.full(N, np.nan)])
    for missing in ("raise", "mean"):
        with pytest.warns(DroppedFeaturesWarning, match="1 of 13 features have no observation"):
            found = cca(missing=missing).fit(beside, Y)
        np.testing.assert_allclose(found.correlations_, cca().fit(X, Y).correlations_, atol=1e-12)
        assert found.x_weights_[P].tolist() == [0.0, 0.0]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("still", "parameters"),
    [
        (np.ones((N, 3)), {"solver": "scatter"}),
        (np.full((N, 3), 0.1), {"solver": "tsqr"}),
        (np.zeros((N, 3)), {"alpha": 0.1, "solver": "samples"}),
        (np.zeros((N, 3)), {"alpha": "cv"}),
        (np.full((N, 2), 1e6 + 0.1), {"pca": (2, 2)}),
        (COVARIATES * 7.0, {"remove": COVARIATES}),
    ],
)
def test_a_view_that_does_not_vary_is_refused(still: np.ndarray, parameters: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"features of X varies over the rows"):
        cca(**parameters).fit(still, Y)
    with pytest.raises(InvalidInputError, match=r"features of Y varies over the rows"):
        cca(**parameters).fit(X, still)


@pytest.mark.parametrize("solver", ["scatter", "samples", "krylov"])
def test_nothing_covaries_with_a_still_view(solver: str) -> None:
    with pytest.raises(InvalidInputError, match="none of the 3 features of Y varies"):
        mca(solver=solver).fit(X, np.full((N, 3), 0.1))


@pytest.mark.parametrize(
    ("made", "sides", "message"),
    [
        (cca(missing="zero"), {}, "missing='zero'; expected 'raise' or 'mean'"),
        (cca(missing="mean", solver="tsqr"), {}, "does not take missing='mean'; leave it out, or"),
        (cca(missing="mean", alpha="cv"), {}, "summed without holes; give numbers"),
        (cca(missing="mean", remove=COVARIATES), {}, r"fill the holes first, such as X = X.fillna"),
        (mca(solver="samples"), {"sample_weight": np.ones(N)}, "does not take sample_weight="),
        (mca(solver="krylov", missing="mean"), {}, "solver='krylov' does not take missing='mean'"),
        (mca(remove=np.ones((N - 1, 1))), {}, "remove"),
        (mca(), {"sample_weight": np.ones(3)}, "sample_weight"),
    ],
)
def test_parameters_that_exclude_each_other_are_refused(
    made: Any, sides: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        made.fit(X, Y, **sides)
    plain = mca().fit(X, Y)
    with pytest.raises(InvalidInputError, match="this fit removed nothing"):
        plain.transform(X, remove=COVARIATES)


# -- data frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1000])
def test_frames_are_paired_by_the_integers_of_their_indices(first: int) -> None:
    """Rows of one that are shuffled are the same rows."""
    index = np.arange(first, first + N)
    x, y = pd.DataFrame(X, index=index), pd.DataFrame(Y, index=index)
    shuffled = y.sample(frac=1, random_state=0)
    assert not np.array_equal(shuffled.index, index)
    for model, names in ((cca, NAMES), (mca, PATTERNS)):
        alike(model().fit(x, shuffled), model().fit(X, Y), names)
        alike(model().fit(x.loc[shuffled.index], shuffled), model().fit(X, Y), names)
    table = streampca.cross_correlation(x, shuffled)
    np.testing.assert_allclose(table, streampca.cross_correlation(X, Y), atol=1e-12)
    found = streampca.PrincipalComponentRegression(2).fit(x, shuffled[0])
    expected = streampca.PrincipalComponentRegression(2).fit(X, Y[:, 0])
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-12)
    numbered = mca().fit(x.reset_index(drop=True), shuffled.reset_index(drop=True))
    alike(numbered, mca().fit(X, shuffled.to_numpy()), PATTERNS)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (np.arange(N), np.arange(N) + 1, r"different integers, such as 0.*reset_index\(drop=True"),
        (np.arange(N) // 2, np.arange(N)[::-1] // 2, "integers twice, in another order"),
        (np.arange(N), np.arange(5, N), r"X \(90 rows\) and Y \(85\) hold different integers"),
    ],
)
def test_frames_whose_indices_differ_are_refused(
    left: np.ndarray, right: np.ndarray, message: str
) -> None:
    x, y = pd.DataFrame(X, index=left), pd.DataFrame(Y[: len(right)], index=right)
    with pytest.raises(InvalidInputError, match=message):
        mca().fit(x, y)
    with pytest.raises(InvalidInputError, match=message):
        mca().plan(x, y)


@pytest.mark.parametrize("turned", ["x", "y"])
def test_text_that_counts_is_paired_with_an_index_that_counts(turned: str) -> None:
    """Rows named "0", "1", ... in another order are those of a plain index, or are refused."""
    x, y = pd.DataFrame(X), pd.DataFrame(Y)
    order = np.random.default_rng(0).permutation(N)
    text = [str(i) for i in order]
    x = x.iloc[order].set_axis(text) if turned == "x" else x
    y = y.iloc[order].set_axis(text) if turned == "y" else y
    for model, names in ((cca, NAMES), (mca, PATTERNS)):
        alike(model().fit(x, y), model().fit(X, Y), names)
    with pytest.raises(InvalidInputError, match="the numbers from 0 in another order"):
        mca().fit(x.to_numpy() if turned == "y" else x, y.to_numpy() if turned == "x" else y)


# -- scores of both --------------------------------------------------------------------------------


def as_kind(kind: str, values: np.ndarray, names: list[str], path: Path) -> Any:
    """(n, p) values with names of their rows, as one of several kinds."""
    if kind == "integers":
        return pd.DataFrame(values, index=[int(name[1:]) for name in names])
    frame = pd.DataFrame(values, index=names).add_prefix("v")
    if kind == "xarray":
        array = xr.DataArray(values, dims=("row", "v"), coords={"row": names})
        return array.chunk(row=40) if len(names) == N else array
    if kind == "csv":
        frame.to_csv(path / f"{len(names)}-{values.shape[1]}.csv")
        return str(path / f"{len(names)}-{values.shape[1]}.csv")
    return frame


@pytest.mark.parametrize("kind", ["frame", "integers", "xarray", "csv"])
def test_scores_of_both_come_in_one_order(kind: str, tmp_path: Path) -> None:
    """Rows are paired as in the fit, whatever holds them."""
    order = np.random.default_rng(1).permutation(N)
    x = as_kind(kind, X, [f"r{i}" for i in range(N)], tmp_path)
    y = as_kind(kind, Y[order], [f"r{i}" for i in order], tmp_path)
    plain = cca().fit(X, Y)
    expected = plain.transform(X, Y)
    model = cca().fit(x, y)
    for found in (model.transform(x, y), cca().fit_transform(x, y)):
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(own), other, atol=1e-9)
    paths = str(tmp_path / "a"), str(tmp_path / "b")
    np.testing.assert_allclose(model.transform(x, y, out=paths)[1][:], expected[1], atol=1e-9)
    if kind == "integers":
        return  # other integers are refused
    some = as_kind(kind, Y[order[:50]], [f"r{i}" for i in order[:50]], tmp_path)
    with pytest.warns(AbsentNamesWarning, match="50 rows are in both; 40 of X and 0 of Y"):
        found = model.transform(x, some)
    both = np.sort(order[:50])
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(own), other[both], atol=1e-9)


def test_scores_of_both_keep_their_labels_and_alone_their_order() -> None:
    names = [f"r{i}" for i in range(N)]
    x, y = (pd.DataFrame(one, index=names) for one in (X, Y[::-1]))
    y.index = names[::-1]
    model = mca().fit(x, y).set_output(transform="pandas")
    a, b = model.transform(x, y)
    assert list(a.index) == list(b.index) == names
    alone = model.view("y").transform(y)
    assert list(alone.index) == names[::-1]
    pd.testing.assert_frame_equal(alone.loc[names], b)
