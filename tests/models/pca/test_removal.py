"""remove=: what is projected out of the samples, against least squares in NumPy, on every path."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca import PCA
from streampca.errors import DroppedFeaturesWarning, InvalidInputError
from tests.models.paths import PATHS, fit

IGNORED = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


def case(n=60, p=25, seed=0):
    """Factors, noise, means, and a strong cycle, trend and batch; (X, design)."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((n, 3)) @ rng.standard_normal((3, p))
    X = factors + 0.1 * rng.standard_normal((n, p)) + 5
    step = np.arange(n)
    design = np.column_stack([np.eye(4)[step % 4], step, 2.0 * step, step >= n // 2])
    X += 30 * design[:, :2] @ rng.standard_normal((2, p))
    X += 0.1 * design[:, 4:5] * rng.standard_normal(p) + 7 * design[:, 6:] * rng.standard_normal(p)
    return X, design


def oracle(X, design, sample_weight=None, weights=None, scale=None, ddof=1):
    """(variances, components, Z, fitted part beside the mean): lstsq on the observed cells."""
    X = np.asarray(X, dtype=np.float64)
    s = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, float)
    root = np.sqrt(s)[:, None]
    A = np.column_stack([np.ones(len(X)), design])
    Z = np.zeros_like(X)
    for j, column in enumerate(X.T):
        o = np.isfinite(column)
        solved = np.linalg.lstsq(A[o] * root[o], column[o] * root[o, 0], rcond=1e-12)[0]
        Z[o, j] = column[o] - A[o] @ solved
    residuals = Z.copy()
    if scale:
        cells = (np.isfinite(X) * s[:, None]).sum(axis=0)
        Z = Z / np.sqrt(np.sum(s[:, None] * Z**2, axis=0) / (cells - ddof))
    Z = Z if weights is None else Z * weights
    values, vectors = np.linalg.eigh((Z * s[:, None]).T @ Z / (s.sum() - ddof))
    return values[::-1], vectors[:, ::-1].T, Z, residuals


def same(model, expected, tolerance=1e-9):
    values, vectors, Z, _ = expected
    k = model.n_components_
    np.testing.assert_allclose(model.explained_variance_, values[:k], rtol=tolerance)
    np.testing.assert_allclose(model.result_.total_variance, values.sum(), rtol=tolerance)
    cosines = np.abs(np.sum(model.components_ * vectors[:k], axis=1))
    np.testing.assert_allclose(cosines, 1, atol=tolerance)
    if model.result_.scores is not None:
        size = np.sqrt(values[0])
        np.testing.assert_allclose(
            model.result_.scores, Z @ model.components_.T, atol=tolerance * 10 * size
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("weighted", [False, True])
@IGNORED
def test_every_path_equals_least_squares(path, scale, weighted, monkeypatch):
    X, design = case()
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.2, 2, 25) if weighted else None
    sample_weight = rng.uniform(0.3, 3, 60) if weighted else None
    data = da.from_array(X, chunks=(13, 25 if path == "panels" else 7))
    model = fit(
        path,
        data,
        monkeypatch,
        {"sample_weight": sample_weight},
        n_components=3,
        scale=scale,
        weights=weights,
        remove=design,
    )
    expected = oracle(X, design, sample_weight, weights, scale)
    same(model, expected)
    np.testing.assert_allclose(model.mean_, np.average(X, axis=0, weights=sample_weight))
    assert model.result_.design.rank == 5  # of 7: a level and a multiple say nothing new
    Z, v = expected[2], model.components_
    np.testing.assert_allclose(model.transform(X, remove=design), Z @ v.T, atol=1e-9)
    back = model.inverse_transform(Z @ v.T, remove=design)
    kept = (Z @ v.T) @ v * (1 if model.result_.divisors is None else model.result_.divisors)
    np.testing.assert_allclose(back, X - expected[3] + kept, atol=1e-8)
    left = np.mean(np.sum((Z - Z @ v.T @ v) ** 2, axis=1))
    np.testing.assert_allclose(model.reconstruction_error(X, remove=design), left, rtol=1e-7)


@given(
    data=st.data(),
    n=st.integers(9, 40),
    p=st.integers(3, 30),
    solver=st.sampled_from(["scatter", "tsqr", "gram"]),
    dtype=st.sampled_from(["f4", "f8", "i1", "i2"]),
    columns=st.integers(1, 4),
)
@IGNORED
def test_any_chunking_gives_the_same(data, n, p, solver, dtype, columns):
    rng = np.random.default_rng(n * p)
    X = rng.standard_normal((n, 2)) @ rng.standard_normal((2, p)) + rng.standard_normal((n, p))
    design = np.round(rng.standard_normal((n, columns)) * 3)
    X = np.round(5 * X + 4 * design @ rng.standard_normal((columns, p))).astype(dtype)
    chunks = (data.draw(st.integers(1, n)), data.draw(st.integers(1, p)))
    model = PCA(1, svd_solver=solver, remove=design).fit(da.from_array(X, chunks=chunks))
    values = oracle(X, design)[0]
    tolerance = 1e-10 if dtype == "f8" or solver == "tsqr" else 3e-5
    np.testing.assert_allclose(model.explained_variance_[0], values[0], rtol=tolerance)
    np.testing.assert_allclose(model.result_.total_variance, values.sum(), rtol=tolerance)


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("weighted", [False, True])
@IGNORED
def test_holes_hold_what_the_observed_samples_say(scale, weighted):
    X, design = case()
    rng = np.random.default_rng(2)
    X[rng.random(X.shape) < 0.15] = np.nan
    X[:, 6] = np.nan
    sample_weight = rng.uniform(0.3, 3, 60) if weighted else None
    settings_ = {"scale": scale, "remove": design, "missing": "mean"}
    with pytest.warns(DroppedFeaturesWarning, match="feature 6"):
        model = PCA(3, **settings_).fit(X, sample_weight=sample_weight)
    assert model.plan_.solver == "gram"
    known = np.delete(np.arange(25), 6)
    expected = oracle(X[:, known], design, sample_weight, None, scale)
    values, vectors, Z, _ = expected
    np.testing.assert_allclose(model.explained_variance_, values[:3], rtol=1e-9)
    cosines = np.abs(np.sum(model.components_[:, known] * vectors[:3], axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-9)
    np.testing.assert_allclose(
        model.transform(X, remove=design), Z @ model.components_[:, known].T, atol=1e-8
    )
    assert model.result_.missing_by_sample.sum() == np.isnan(X).sum()


def months(n=60, p=12, start="2001-03", seed=4):
    rng = np.random.default_rng(seed)
    time = pd.date_range(start, periods=n, freq="MS")
    values = rng.standard_normal((n, p)) + 9 * rng.standard_normal((12, p))[time.month - 1]
    values += np.arange(n)[:, None] * 0.05
    return xr.DataArray(
        values.reshape(n, 3, p // 3),
        dims=("time", "lat", "lon"),
        coords={"time": time, "lat": [10.0, 20, 30]},
    )


@pytest.mark.parametrize("solver", ["scatter", "tsqr", "gram"])
@IGNORED
def test_cycles_and_trends_by_name(solver):
    field = months()
    flat, time = field.values.reshape(60, 12), field.time.to_index()
    month = (time.month.values[:, None] == np.arange(1, 13)).astype(float)
    season = (time.month.values[:, None] % 12 // 3 == np.arange(4)).astype(float)
    days = (time - time[0]).days.values[:, None].astype(float)
    for word, by_hand, rank in (
        ("month", month, 11),
        ("season", season, 3),
        ("trend", days, 1),
        ("linear", days, 1),
        (["month", "trend"], np.hstack([month, days]), 12),
        (("trend", np.sin(days)), np.hstack([days, np.sin(days)]), 2),
    ):
        model = PCA(2, svd_solver=solver, remove=word).fit(field)
        same(model, oracle(flat, by_hand))
        assert model.result_.design.rank == rank
    model = PCA(2, svd_solver=solver, remove="month").fit(field)
    assert model.result_.design.names[:2] == ("Jan", "Feb")
    means = [flat[time.month == m].mean(axis=0) for m in range(1, 13)]
    coefficients = model.result_.removed_coefficients
    np.testing.assert_allclose(
        coefficients - coefficients.mean(axis=0), means - np.mean(means, axis=0), atol=1e-9
    )
    slope = PCA(2, svd_solver=solver, remove="trend").fit(field).result_.removed_coefficients[0]
    np.testing.assert_allclose(slope, np.polyfit(days[:, 0], flat, 1)[0], rtol=1e-9)


@IGNORED
def test_new_samples_by_their_dates_alone(tmp_path):
    field = months()
    model = PCA(2, remove=["month", "trend"], weights="coslat").fit(field.isel(time=slice(0, 48)))
    model.save(tmp_path / "model")
    loaded = streampca.load(tmp_path / "model")
    assert loaded.remove == ["month", "trend"]
    later = field.isel(time=slice(48, 60))
    result = model.result_
    time = later.time.to_index()
    month = (time.month.values[:, None] == np.arange(1, 13)).astype(float)
    columns = np.hstack([month, (time - pd.Timestamp(0)).days.values[:, None]])
    said = result.mean + (columns - result.design.mean) @ result.removed_coefficients
    Z = (later.values.reshape(12, 12) - said) * result.weights
    for one in (model, loaded):
        scores = one.transform(later)
        np.testing.assert_allclose(scores, Z @ model.components_.T, atol=1e-9)
        back = one.inverse_transform(scores)
        expected = said + Z @ model.components_.T @ model.components_ / result.weights
        np.testing.assert_allclose(back.values.reshape(12, 12), expected, atol=1e-9)
        np.testing.assert_array_equal(one.reconstruct(2, scores), back)
        anomalies = one.reconstruct(2, scores, mean=False).values.reshape(12, 12)
        np.testing.assert_allclose(anomalies, expected - said, atol=1e-9)
        kept = one.transform(
            later
            - said.reshape(12, 3, 4)
            + field.mean("time").values * 0
            + result.mean.reshape(3, 4),
            remove=False,
        )
        np.testing.assert_allclose(kept, Z @ model.components_.T, atol=1e-9)
    one = model.project(later.isel(time=5), scaling=1)
    np.testing.assert_allclose(one * np.sqrt(model.explained_variance_), scores[5], atol=1e-9)


def test_what_was_removed_is_added_again_with_the_mean_alone():
    X, design = case()
    model = PCA(2, remove=design).fit(X)
    result, scores = model.result_, model.transform(X, remove=design)
    modes = scores @ model.components_
    fitted = (design - result.design.mean) @ result.removed_coefficients
    for mean, remove, expected in (
        (True, design, modes + result.mean + fitted),
        (True, False, modes + result.mean),
        (False, design, modes),
        (False, False, modes),
    ):
        made = model.reconstruct(2, scores, mean=mean, remove=remove)
        np.testing.assert_allclose(made, expected, atol=1e-9)


@IGNORED
def test_scores_and_likelihood_are_those_of_the_residuals():
    X, design = case()
    residuals = oracle(X, design)[3]
    plain = PCA(2, svd_solver="scatter").fit(residuals)
    for solver in ("scatter", "gram"):
        model = PCA(2, svd_solver=solver, remove=design).fit(X)
        np.testing.assert_allclose(
            model.score_samples(X, remove=design), plain.score_samples(residuals), rtol=1e-8
        )
        np.testing.assert_allclose(
            model.r2_curve(X, remove=design), plain.r2_curve(residuals), atol=1e-10
        )
        np.testing.assert_allclose(model.get_covariance(), plain.get_covariance(), atol=1e-9)
        np.testing.assert_allclose(
            model.fit_transform(X), model.transform(X, remove=design), atol=1e-9
        )


@pytest.mark.parametrize("chunks", [(7, 40), (40, 5)])
@IGNORED
def test_transform_along_either_axis(chunks, tmp_path):
    X, design = case(40, 40)
    model = PCA(3, remove=design).fit(X)
    expected = oracle(X, design)[2] @ model.components_.T
    lazy = da.from_array(X, chunks=chunks)
    np.testing.assert_allclose(model.transform(lazy, remove=design), expected, atol=1e-9)
    stored = model.transform(lazy, remove=design, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(stored[:], expected, atol=1e-9)
    rows = model.inverse_transform(stored, remove=design, out=tmp_path / "rows.zarr")
    np.testing.assert_allclose(rows[:], model.inverse_transform(expected, remove=design), atol=1e-9)


@pytest.mark.parametrize("solver", ["scatter", "gram"])
@IGNORED
def test_single_precision_with_a_large_mean_and_cycle(solver):
    X, design = case(200, 30, seed=5)
    X = (X + 1e4).astype("f4")
    model = PCA(3, svd_solver=solver, remove=design).fit(X)
    values = oracle(X, design)[0]
    error = np.abs(model.explained_variance_ - values[:3])
    assert np.all(error <= 3e-5 * values[:3])
    assert np.all(error <= model.certificate_.variance_bound)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scale", [None, "std"])
@IGNORED
def test_features_that_the_design_explains_are_constant(path, scale, monkeypatch):
    X, design = case()
    X[:, 3], X[:, 8] = 4.0 + 2 * design[:, 0] - 0.3 * design[:, 4], 11.0
    model = fit(path, X, monkeypatch, n_components=3, scale=scale, remove=design)
    np.testing.assert_array_equal(model.result_.constant, [3, 8])
    assert np.all(model.components_[:, [3, 8]] == 0)
    assert model.n_features_used_ == 23


@pytest.mark.parametrize("solver", ["scatter", "tsqr", "gram"])
@IGNORED
def test_sparse(solver):
    rng = np.random.default_rng(3)
    X = scipy.sparse.random_array((80, 30), density=0.2, rng=rng, format="csr")
    design = rng.standard_normal((80, 2))
    model = PCA(3, svd_solver=solver, remove=design).fit(X)
    expected = oracle(X.toarray(), design)
    same(model, expected)
    scores = model.transform(X, remove=design)
    np.testing.assert_allclose(scores, expected[2] @ model.components_.T, atol=1e-9)


@IGNORED
def test_batches_frames_and_arrays_by_name():
    X, _ = case(30, 10)
    batch = np.array(["a", "b", "c"])[np.arange(30) % 3]
    age = np.random.default_rng(0).uniform(20, 80, 30)
    by_hand = np.column_stack([batch == "a", batch == "b", age]).astype(float)
    names = pd.Index([f"s{i}" for i in range(30)])
    frame = pd.DataFrame({"age": age, "batch": batch}, index=names)
    model = PCA(2, remove=frame).fit(X)
    same(model, oracle(X, by_hand))
    assert model.result_.design.names == ("age", "a", "b", "c")
    named = xr.DataArray(X, dims=("sample", "gene"), coords={"sample": names})
    shuffled = PCA(2, remove=frame.sample(frac=1, random_state=0)).fit(named)
    np.testing.assert_allclose(shuffled.components_, model.components_, atol=1e-12)
    alone = PCA(2, remove=frame["age"][::-1]).fit(named)
    same(alone, oracle(X, by_hand[:, 2:]))
    same(PCA(2, remove=[batch, age]).fit(X), oracle(X, by_hand))
    same(PCA(2, remove=list(batch)).fit(X), oracle(X, by_hand[:, :2]))
    same(PCA(2, remove=list(age)).fit(X), oracle(X, by_hand[:, 2:]))
    with pytest.raises(InvalidInputError, match="level 'd'"):
        model.transform(X[:2], remove=pd.DataFrame({"age": [1.0, 2], "batch": ["a", "d"]}))
    few = model.transform(X[:2], remove=frame.iloc[:2])
    np.testing.assert_allclose(few, model.transform(X, remove=frame)[:2], atol=1e-9)
    field = months(30, 12)
    array = xr.DataArray(
        np.column_stack([age, age**2]), dims=("time", "which"), coords={"time": field.time}
    )
    got = PCA(2, remove=array[::-1].T).fit(field)
    same(got, oracle(field.values.reshape(30, 12), array.values))


@IGNORED
def test_months_that_are_absent():
    field = months(60)
    some = field.sel(time=field.time.dt.month.isin([1, 2, 12]))
    model = PCA(2, remove="month").fit(some)
    assert model.result_.design.rank == 2
    with pytest.raises(InvalidInputError, match=r"time=?.*2001-03.*remove=False|2001-03"):
        model.transform(field)
    one = PCA(2, remove="month").fit(field.sel(time=field.time.dt.month == 6))
    assert one.result_.design is None  # the mean alone


class ThirtyDays:
    """The first of a month of 30 days, as cftime gives dates of other calendars."""

    calendar = "360_day"

    def __init__(self, number):
        self.number, self.month = number, number % 12 + 1

    def __lt__(self, other):
        return self.number < other.number

    def toordinal(self, fractional=False):
        return 30.0 * self.number if fractional else 30 * self.number


@IGNORED
def test_dates_of_other_calendars():
    field = months(48)
    dates = np.empty(48, dtype=object)
    dates[:] = [ThirtyDays(m + 2) for m in range(48)]
    other = field.assign_coords(time=dates)
    flat = field.values.reshape(48, 12)
    same(PCA(2, remove="month").fit(other), oracle(flat, np.eye(12)[(np.arange(48) + 2) % 12]))
    same(PCA(2, remove="trend").fit(other), oracle(flat, 30.0 * np.arange(48)[:, None]))


@IGNORED
def test_every_component_and_the_rank():
    X, design = case(12, 30)
    model = PCA(None, remove=design).fit(X)
    assert model.rank_ == 12 - 1 - 5
    np.testing.assert_allclose(model.explained_variance_[:6], oracle(X, design)[0][:6], rtol=1e-9)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(12), atol=1e-9)


@IGNORED
def test_a_trend_is_that_of_the_time():
    """Not of the first thing that has numbers: members of an ensemble, a month beside the text."""
    field = months()
    two = xr.concat([field, field + 1], dim=pd.Index([1, 2], name="member"))
    two = two.assign_coords(month=("time", two.time.dt.month.values))
    names = PCA(2, remove="trend").fit(two, dim=("member", "time")).result_.design.names
    assert names == ("trend of time",)
    years = two.assign_coords(time=np.arange(60) / 12 + 1990.0)
    names = PCA(2, remove="trend").fit(years, dim=("member", "time")).result_.design.names
    assert names == ("trend of time",)
    ambiguous = years.rename(time="year")
    with pytest.raises(InvalidInputError, match="'member' or 'year'"):
        PCA(2, remove="trend").fit(ambiguous, dim=("member", "year"))
    text = two.isel(member=0, drop=True).assign_coords(time=[f"t{i}" for i in range(60)])
    with pytest.raises(InvalidInputError, match="needs a coordinate"):
        PCA(2, remove="trend").fit(text, dim="time")


@pytest.mark.parametrize("word", ["month", "season", "trend"])
@pytest.mark.parametrize("cftime", [False, True])
def test_dates_that_are_missing(word, cftime):
    field = months()
    time = np.array(field.time.values, dtype=object if cftime else None)
    if cftime:
        time = np.array([pd.Timestamp(one) for one in field.time.values], dtype=object)
    time[7] = pd.NaT if cftime else np.datetime64("NaT", "ns")
    with pytest.raises(InvalidInputError, match="'time' is missing for 1 samples, the first at"):
        PCA(2, remove=word).fit(field.assign_coords(time=("time", time)))


def test_a_covariate_of_another_dimension():
    field = months()
    other = xr.DataArray(np.arange(60.0), dims="year")
    with pytest.raises(InvalidInputError, match=r"dimensions \('year',\); expected some of"):
        PCA(2, remove=other).fit(field)


@pytest.mark.parametrize(
    ("remove", "words"),
    [
        ("fortnight", "'hour', 'trend', an array"),
        ("month", r"needs a coordinate of the samples with dates.*xarray\.DataArray"),
        ("trend", "needs a coordinate"),
        (np.ones((4, 2)), r"expected \(9,\) or \(9, columns\)"),
        (np.full(9, np.nan), "NaN or infinity at sample 0"),
        ([], "names nothing"),
        (np.random.default_rng(0).standard_normal((9, 8)), "nothing would be left"),
    ],
)
def test_what_cannot_be_removed(remove, words):
    X = np.random.default_rng(0).standard_normal((9, 5))
    with pytest.raises(InvalidInputError, match=words):
        PCA(1, remove=remove).plan(X)
    with pytest.raises(InvalidInputError, match=words):
        PCA(1, remove=remove).fit(X)


def test_combinations_that_are_refused():
    X, design = case()
    with pytest.raises(InvalidInputError, match="needs center=True"):
        PCA(1, remove=design, center=False).fit(X)
    for solver in ("scatter", "full"):
        with pytest.raises(InvalidInputError, match=r"[Uu]se solver="):
            PCA(1, remove=design, missing="mean", svd_solver=solver).fit(X)
    model = PCA(1, remove=design).fit(X)
    with pytest.raises(InvalidInputError, match=r"1 arrays were removed.*remove=False"):
        model.transform(X)
    with pytest.raises(InvalidInputError, match="the fit had 7 columns"):
        model.transform(X, remove=design[:, :2])
    with pytest.raises(InvalidInputError, match="removed nothing"):
        PCA(1).fit(X).transform(X, remove=design)
    bent = design.copy()
    bent[5, 5] += 1  # no multiple of its neighbour any more
    with pytest.raises(InvalidInputError, match="does not follow from the samples of the fit"):
        model.transform(X, remove=bent)
    scores = model.transform(X, remove=design)
    with pytest.raises(InvalidInputError, match="1 arrays were removed"):
        model.reconstruct(1, scores, lazy=True)
    lazy = model.reconstruct(1, scores, lazy=True, remove=design)
    np.testing.assert_allclose(lazy.compute(), model.reconstruct(1, scores, remove=design))


def test_the_plan_counts_what_residuals_need():
    X, design = case(50, 4000)
    plan = PCA(2, remove=design).plan(X.astype("f4"))
    assert plan.solver == "gram"
    longest = plan.passes[0].to_dict()["block_length"]
    assert plan.memory["gram"]["residuals"] >= longest * 50 * 4
    assert plan.memory["gram"]["design"] >= 50 * 5 * 8 + 4000 * 6 * 8
    tall = PCA(2, remove=design).plan(X[:, :20])
    assert tall.solver == "scatter"
    assert tall.memory["scatter"]["folded accumulators"] >= 8 * 25**2


@pytest.mark.slow
@IGNORED
def test_a_cluster_gives_the_same_bits(two_workers, monkeypatch):
    X, design = case(80, 40)
    more = {"sample_weight": np.random.default_rng(0).uniform(0.5, 2, 80)}
    chosen = {"n_components": 3, "remove": design, "weights": np.arange(1.0, 41)}
    for path in PATHS:
        data = da.from_array(X, chunks=(9, 40 if path == "panels" else 7))
        here = fit(path, data, monkeypatch, more, scheduler="threads", **chosen)
        there = fit(path, data, monkeypatch, more, scheduler=two_workers, **chosen)
        np.testing.assert_array_equal(here.components_, there.components_)
        np.testing.assert_array_equal(
            here.transform(data, remove=design), there.transform(data, remove=design)
        )


@pytest.mark.parametrize("axis", ["samples", "features"])
@pytest.mark.parametrize("scale", [None, "std"])
@IGNORED
def test_the_iterative_solver_where_it_iterates(axis, scale, monkeypatch):
    n, p = 300, 400
    rng = np.random.default_rng(7)
    factors = rng.standard_normal((n, 60)) * 0.8 ** np.arange(60)
    X = 4 * factors @ rng.standard_normal((60, p)) + 0.3 * rng.standard_normal((n, p)) + 20
    month = np.eye(12)[np.arange(n) % 12]
    X += 60 * month @ rng.standard_normal((12, p))
    weights, sample_weight = rng.uniform(0.2, 2, p), rng.uniform(0.3, 3, n)
    holes = axis == "features"
    if holes:
        X[rng.random(X.shape) < 0.05] = np.nan
    data = da.from_array(X, chunks=(60, 70))
    model = fit(
        f"krylov {axis}",
        data,
        monkeypatch,
        {"sample_weight": sample_weight},
        n_components=4,
        scale=scale,
        weights=weights,
        remove=month,
        tol=1e-9,
        missing="mean" if holes else "raise",
    )
    assert len(model.cost_) >= 3  # a look, and more steps than one
    expected = oracle(X, month, sample_weight, weights, scale)
    values, vectors, Z, _ = expected
    error = np.abs(model.explained_variance_ - values[:4])
    assert np.all(error <= model.certificate_.variance_bound + 1e-13 * values[0])
    sines = np.linalg.norm(
        model.components_ - np.sum(model.components_ * vectors[:4], axis=1)[:, None] * vectors[:4],
        axis=1,
    )
    assert np.all(sines <= model.certificate_.angle_bound + 1e-12)
    assert np.all(model.certificate_.angle_bound <= 1e-9)
    np.testing.assert_allclose(
        model.transform(data, remove=month), Z @ model.components_.T, atol=1e-8
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@IGNORED
def test_certificates_bound_the_error_beside_any_design(path, dtype, monkeypatch):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(40, 200)), int(rng.integers(20, 200))
        X = rng.standard_normal((n, 8)) / np.arange(1, 9) @ rng.standard_normal((8, p))
        X += 0.05 * rng.standard_normal((n, p)) + 10.0 ** rng.uniform(0, 3)
        design = np.column_stack([np.eye(6)[np.arange(n) % 6], np.arange(n) / n])
        X += 10.0 ** rng.uniform(-1, 2.5) * design @ rng.standard_normal((7, p))
        data = da.from_array(X.astype(dtype), chunks=(17, p if path == "panels" else 13))
        tol = {"tol": 1e-4} if "krylov" in path else {}
        model = fit(path, data, monkeypatch, n_components=3, remove=design, **tol)
        A = np.column_stack([np.ones(n), design])
        x = X.astype(dtype).astype("f8")
        _, s, vt = np.linalg.svd(x - A @ np.linalg.lstsq(A, x, rcond=1e-10)[0])
        error = np.abs(model.explained_variance_ - s[:3] ** 2 / (n - 1))
        assert np.all(error <= model.certificate_.variance_bound)
        cosines = np.sum(model.components_ * vt[:3], axis=1)[:, None]
        sines = np.linalg.norm(model.components_ - cosines * vt[:3], axis=1)
        assert np.all(np.arcsin(np.minimum(sines, 1)) <= model.certificate_.angle_bound)
