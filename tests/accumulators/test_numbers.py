"""How many digits are right, against NumPy in extended precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from streampca.accumulators import (
    OPEN_BLOCKS,
    Gram,
    LeadingDirections,
    MeanImputedScatter,
    Moments,
    RFactor,
    Scatter,
    TruncatedFactor,
)
from streampca.errors import InvalidInputError
from streampca.matrix import Block, Standardize, constant_columns
from tests.each import each

EPS32 = float(np.finfo(np.float32).eps)


def blocks(
    x: np.ndarray, step: int, axis: int = 0, weights: Any = None, **more: Any
) -> Iterator[Block]:
    length = x.shape[axis]
    for i, start in enumerate(range(0, length, step)):
        part = slice(start, min(start + step, length))
        w = weights if weights is None or axis else weights[part]
        yield Block(
            x[:, part] if axis else x[part], axis, part.start, part.stop, i, weights=w, **more
        )


def fold(accumulator: Any, x: np.ndarray, step: int, axis: int = 0, **more: Any) -> Any:
    for block in blocks(x, step, axis, **more):
        accumulator.update(block)
    return accumulator


def merged(make: Any, x: np.ndarray, step: int, span: int) -> Any:
    """Spans of several blocks, merged in order."""
    total = make()
    for start in range(0, len(x), step * span):
        total.merge(fold(make(), x[start : start + step * span], step))
    return total


def exact_covariance(x: np.ndarray, ddof: int = 1) -> np.ndarray:
    z = x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)
    z = z - z.mean(axis=0)
    return (z.T @ z / (len(z) - ddof)).astype(np.float64)


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """Largest relative error of the eigenvalues."""
    a, b = np.linalg.eigvalsh(found), np.linalg.eigvalsh(exact)
    return float(np.max(np.abs(a / b - 1)))


def normal(seed: int, n: int, p: int, mean: float, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mix = np.eye(p) + rng.normal(size=(p, p)) / (2 * p)
    return (rng.normal(size=(n, p)) @ mix + mean * (1 + np.arange(p) / p)).astype(dtype)


CENTRED = [Scatter, RFactor, MeanImputedScatter]


# -- large means -----------------------------------------------------------------------------


@each("make", CENTRED)
@each("step", [1, 37, 500, 2000])
def test_float64_with_means_of_a_million_keeps_twelve_digits(make: Any, step: int) -> None:
    x = normal(0, 2000, 6, 1e6)
    exact = exact_covariance(x)
    assert relative_error(fold(make(), x, step).covariance(), exact) <= 1e-12
    assert relative_error(merged(make, x, step, 4).covariance(), exact) <= 1e-12


def test_gram_and_moments_keep_twelve_digits_too() -> None:
    x = normal(1, 2000, 6, 1e6)
    exact = exact_covariance(x)
    for axis, step in ((0, 37), (1, 1), (1, 4)):
        variance = fold(Moments(), x, step, axis).variance()
        assert np.max(np.abs(variance / np.diagonal(exact) - 1)) <= 1e-12
    gram = fold(Gram(standardize=Standardize()), x[:300], 2, axis=1).gram() / 299
    top = np.linalg.eigvalsh(gram)[-6:]
    assert np.max(np.abs(top / np.linalg.eigvalsh(exact_covariance(x[:300])) - 1)) <= 1e-12


@each("p", [1, 2, 30])
@each("step", [500, 20_000])
def test_float32_with_means_of_ten_thousand_keeps_five_digits(p: int, step: int) -> None:
    x = normal(2, 20_000, p, 1e4, np.float32)
    exact = exact_covariance(x)
    assert relative_error(fold(Scatter(), x, step).covariance(), exact) <= 1e-5
    assert relative_error(merged(Scatter, x, step, 3).covariance(), exact) <= 1e-5
    variance = fold(Moments(), x, step).variance()
    assert np.max(np.abs(variance / np.diagonal(exact) - 1)) <= 1e-12  # always float64


def test_float32_gram_with_means_of_ten_thousand_keeps_five_digits() -> None:
    x = normal(3, 200, 600, 1e4, np.float32)
    gram = fold(Gram(standardize=Standardize()), x, 100, axis=1).gram()
    z = x.astype(np.float64) - x.astype(np.float64).mean(axis=0)
    exact = z @ z.T
    assert np.max(np.abs(gram - exact)) <= 1e-5 * np.max(exact)
    top = slice(-20, None)
    assert np.allclose(
        np.linalg.eigvalsh(gram)[top], np.linalg.eigvalsh(exact)[top], rtol=1e-5, atol=0
    )


@each("p", [1, 2, 30])
@each("drift", [1.0, 1e4, -1.37])
def test_a_mean_that_marches_away_inside_a_span(p: int, drift: float) -> None:
    step = 40_000 if p <= 2 else 2000  # a narrow block has the longest columns
    rng = np.random.default_rng(4)
    away = drift * np.repeat(np.arange(OPEN_BLOCKS - 1), step)[:, None]
    x = (rng.normal(size=(len(away), p)) + away).astype(np.float32)
    exact = exact_covariance(x)
    found = fold(Scatter(), x, step).covariance()
    assert np.max(np.abs(found - exact)) < 1e-5 * np.min(np.diagonal(exact))


def test_uncentred_float32_sums_of_long_columns() -> None:
    x = np.full((300_000, 3), 0.1, np.float32)  # each addition would round the same way
    scatter = fold(Scatter(center=False), x, 300_000)
    tenth = float(np.float32(0.1))
    assert np.allclose(scatter.state()["mean"], tenth, rtol=1e-6, atol=0)
    assert np.allclose(scatter.scatter(), 300_000 * tenth**2, rtol=1e-5, atol=0)


# -- constant columns ------------------------------------------------------------------------


@each("step", [777, 20_000, 100_000])
def test_a_column_of_a_tenth_has_no_variance_at_all(step: int) -> None:
    x = np.random.default_rng(5).normal(size=(100_000, 3)).astype(np.float32)
    x[:, 1] = 0.1
    for scatter in (fold(Scatter(), x, step), merged(Scatter, x, step, 5)):
        s = scatter.scatter()
        assert not s[1].any()
        assert not s[:, 1].any()
        assert scatter.state()["mean"][1] == np.float32(0.1)
    columns = fold(Moments(), x, step).columns()
    assert columns.m2[1] == 0.0
    assert constant_columns(columns, EPS32).tolist() == [False, True, False]


@each(
    "value, dtype",
    [
        (0.1, "f8"),
        (1e6 + 0.1, "f8"),
        (1e-300, "f8"),
        (0.0, "f4"),
        (1e30, "f4"),
        (-7, "i1"),
        (30_000, "i2"),
        (2**40 + 1, "i8"),
    ],
)
def test_constant_columns_of_every_size_are_found(value: float, dtype: str) -> None:
    x = np.full((5000, 2), value, dtype)
    x[::2, 1] += np.asarray(abs(value) * 0.01 + 1, x.dtype)
    for axis, step in ((0, 333), (1, 1)):
        columns = fold(Moments(), x, step, axis).columns()
        eps = EPS32 if dtype == "f4" else float(np.finfo(np.float64).eps)
        assert constant_columns(columns, eps).tolist() == [True, False]


def test_a_small_variance_is_not_a_constant() -> None:
    x = (1e6 + np.random.default_rng(6).normal(size=(1000, 1)) * 1e-6).astype(np.float64)
    assert not constant_columns(fold(Moments(), x, 100).columns(), np.finfo(float).eps).any()


def test_constant_columns_contribute_nothing_to_a_scaled_gram() -> None:
    x = normal(7, 50, 4, 3.0, np.float32)
    x[:, 2] = 0.1
    gram = fold(Gram(standardize=Standardize(scale="std")), x, 2, axis=1)
    without = fold(Gram(standardize=Standardize(scale="std")), x[:, [0, 1, 3]], 3, axis=1)
    assert gram.n_used == 3
    assert gram.n_features == 4
    assert np.allclose(gram.gram(), without.gram(), atol=1e-4)


# -- small singular values -------------------------------------------------------------------


@each("mean", [0.0, 10.0])
@each("step", [10, 100, 400])
def test_the_factor_resolves_what_the_scatter_cannot(mean: float, step: int) -> None:
    rng = np.random.default_rng(8)
    s = np.logspace(0, -10, 11)
    u = np.linalg.qr(np.column_stack([np.ones(400), rng.normal(size=(400, 11))]))[0][:, 1:]
    v = np.linalg.qr(rng.normal(size=(11, 11)))[0]
    x = (u * s) @ v.T + 0.0
    exact = s
    if mean:  # an offset rounds the data: ask only for what is left in them
        x = x * 1e4 + mean
        z = x.astype(np.longdouble) - x.astype(np.longdouble).mean(axis=0)
        exact = np.linalg.svd(z.astype(np.float64), compute_uv=False)
    for factor in (fold(RFactor(), x, step), merged(RFactor, x, step, 2)):
        found = np.linalg.svd(factor.r_factor(), compute_uv=False)
        assert np.max(np.abs(found / exact - 1)) <= 1e-4
    squared = np.linalg.eigvalsh(fold(Scatter(), x, step).scatter())[::-1]
    lost = np.sqrt(np.maximum(squared, 0.0)) / exact - 1
    assert np.max(np.abs(lost[:7])) <= 1e-2  # down to 1e-6 it can
    assert np.all(np.abs(lost[-1:]) > 1e-2)  # at 1e-10 it cannot


def test_an_offset_of_a_million_does_not_drown_the_small_singular_values() -> None:
    rng = np.random.default_rng(9)
    x = rng.normal(size=(600, 5)) * np.logspace(4, -2, 5)
    x = x @ np.linalg.qr(rng.normal(size=(5, 5)))[0] + 1e6
    z = x.astype(np.longdouble) - x.astype(np.longdouble).mean(axis=0)
    exact = np.linalg.svd(z.astype(np.float64), compute_uv=False)
    found = np.linalg.svd(fold(RFactor(), x, 50).r_factor(), compute_uv=False)
    assert np.max(np.abs(found / exact - 1)) <= 1e-6


def test_fewer_rows_than_columns() -> None:
    x = normal(10, 4, 9, 5.0)
    factor = merged(RFactor, x, 1, 2)
    found = np.linalg.svd(factor.r_factor(), compute_uv=False)
    exact = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    assert np.allclose(found[:3], exact[:3], rtol=1e-12)
    assert np.all(found[3:] < 1e-12 * found[0])


# -- forgetting ------------------------------------------------------------------------------


@each("mean", [0.0, 100.0])
@each("center", [True, False])
@each("weighted", [False, True])
def test_forget_is_the_inverse_of_merge(mean: float, center: bool, weighted: bool) -> None:
    x = normal(11, 900, 5, mean)
    weights = np.random.default_rng(0).random(900) + 0.1 if weighted else np.ones(900)
    kept = fold(Scatter(center=center), x[:400], 90, weights=weights[:400])
    gone = fold(Scatter(center=center), x[400:], 70, weights=weights[400:])
    both = kept.copied()
    both.merge(gone)
    before = gone.state()
    loss = both.forget(gone)
    assert all(np.array_equal(before[k], v) for k, v in gone.state().items())
    assert 0 < loss < 1e-8
    expected, found = kept.state(), both.state()
    assert np.allclose(both.scatter(), kept.scatter(), rtol=0, atol=1e-10 * np.max(kept.scatter()))
    assert np.allclose(found["mean"], expected["mean"], rtol=1e-12, atol=1e-12)
    assert found["count"] == 400
    assert np.isclose(found["weight"], expected["weight"], rtol=1e-12)
    assert both.missing.tolist() == [0] * 5


@each("mean", [0.0, 1.0, 1e3, 1e6])
@each("share", [0.5, 0.99, 0.9999])
@each("louder", [1.0, 1e4])
@each("away", [0.0, 50.0])
@each("dtype", ["float32", "float64"])
def test_the_certified_loss_bounds_the_true_loss(
    mean: float, share: float, louder: float, away: float, dtype: str
) -> None:
    """Most rows, of much larger variance or elsewhere, are removed again."""
    n = 20_000
    left = round(n * (1 - share))
    x = normal(12, n, 4, 0.0)
    x[left:] = x[left:] * louder + away
    x = (x + mean).astype(dtype)
    total = fold(Scatter(), x, 3000)
    loss = total.forget(fold(Scatter(), x[left:], 2500))
    exact = exact_covariance(x[:left], ddof=0) * left
    true_loss = np.max(np.abs(total.scatter() - exact)) / np.max(np.diagonal(exact))
    assert true_loss <= loss
    if louder == 1.0 and away == 0.0 and mean < 1e6:
        # a bound that is always huge would certify nothing
        assert loss < (1e-9 if dtype == "float64" else 1.0)


def test_the_loss_adds_up_over_many_forgets() -> None:
    x = normal(12, 5000, 3, 10.0)
    x[:4000] *= 1000
    parts = [fold(Scatter(), part, 100) for part in np.split(x, 10)]
    total = Scatter()
    for part in parts:
        total.merge(part)
    losses = [total.forget(part) for part in parts[:9]]
    exact = exact_covariance(x[4500:], ddof=0) * 500
    assert np.max(np.abs(total.scatter() - exact)) / np.max(np.diagonal(exact)) <= losses[-1]
    assert losses[-1] > 100 * losses[0]  # small beside what was there, large beside what is left
    assert losses[-1] < 1e-4


def test_forgetting_everything_leaves_an_empty_accumulator() -> None:
    x = normal(13, 50, 3, 2.0)
    scatter = fold(Scatter(), x, 20)
    assert scatter.forget(fold(Scatter(), x, 50)) == 0.0
    assert set(scatter.state()) == {"count", "weight", "slack", "forgotten", "drift"}
    assert scatter.slack == scatter.drift == 0.0
    assert scatter.count == 0
    again = fold(scatter, x, 10)
    assert np.allclose(again.covariance(), exact_covariance(x))


def test_forgetting_nothing_changes_nothing() -> None:
    x = normal(14, 50, 3, 2.0)
    scatter = fold(Scatter(), x, 20)
    before = scatter.scatter()
    assert scatter.forget(Scatter()) == 0.0
    empty = Scatter()
    empty.update(Block(x[:0], 0, 0, 0))
    assert scatter.forget(empty) == 0.0
    assert np.array_equal(scatter.scatter(), before)


@each("impossible", ["more rows", "never there", "wider", "heavier", "from nothing"])
def test_an_impossible_forget_is_refused_and_changes_nothing(impossible: str) -> None:
    x = normal(15, 60, 3, 0.0)
    scatter = fold(Scatter(), x[:40], 20)
    gone = fold(Scatter(), x[:30], 20)
    if impossible == "more rows":
        gone = fold(Scatter(), x, 20)
    elif impossible == "never there":
        gone = fold(Scatter(), x[:30] * 100, 20)
    elif impossible == "wider":
        gone = fold(Scatter(), normal(15, 20, 4, 0.0), 20)
    elif impossible == "heavier":
        gone = fold(Scatter(), x[:30], 20, weights=np.full(30, 2.0))
    else:
        scatter = Scatter()
    scatter.settle()
    before = scatter.state()
    with pytest.raises(InvalidInputError):
        scatter.forget(gone)
    after = scatter.state()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_missing_column_stays_missing_after_forgetting() -> None:
    x = normal(16, 60, 3, 0.0)
    x[:, 1] = np.nan
    scatter = fold(Scatter(), x, 20)
    scatter.forget(fold(Scatter(), x[:40], 20))
    assert scatter.missing.tolist() == [0, 20, 0]
    with pytest.raises(InvalidInputError, match="NaN"):
        scatter.update(Block(np.ones((30, 3)), 0, 60, 90, 3))


# -- integers --------------------------------------------------------------------------------


@each("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "?"])
def test_integers_do_not_overflow(dtype: str) -> None:
    rng = np.random.default_rng(17)
    if dtype == "?":
        x = rng.random((3000, 4)) < 0.3
    else:
        info = np.iinfo(dtype)
        largest = 2**53  # 64-bit integers beyond are refused
        ends = np.array([max(info.min, -largest), min(info.max, largest)], dtype)
        x = ends[rng.integers(0, 2, size=(3000, 4))]
    exact = exact_covariance(x)
    for make in CENTRED:
        found = fold(make(), x, 300).covariance()
        assert np.allclose(found, exact, rtol=0, atol=1e-5 * np.max(exact)), make
    columns = fold(Moments(), x, 300).columns()
    assert columns.minimum.tolist() == x.min(axis=0).astype(float).tolist()
    assert columns.maximum.tolist() == x.max(axis=0).astype(float).tolist()
    assert np.allclose(columns.m2 / 2999, np.diagonal(exact), rtol=1e-12)
    z = x[:200].astype(np.float64)
    uncentred = fold(Gram(standardize=Standardize(center=False)), x[:200], 2, axis=1).gram()
    assert np.allclose(uncentred, z @ z.T, rtol=0, atol=1e-6 * np.max(z @ z.T))


# -- mean imputation -------------------------------------------------------------------------


@each("share", [0.01, 0.3, 0.8])
@each("mean", [0.0, 1e4])
@each("weighted", [False, True])
@each("span", [1, 3])
def test_mean_imputation_equals_numpy(share: float, mean: float, weighted: bool, span: int) -> None:
    rng = np.random.default_rng(18)
    n, p = 700, 8
    x = normal(18, n, p, mean)
    x[rng.random((n, p)) < share] = np.nan
    x[:, 5] = np.nan  # never observed
    x[:350, 2] = np.nan  # first observed after half of the rows
    x[3] = np.nan
    weights = rng.random(n) * 3 if weighted else np.ones(n)
    total = MeanImputedScatter()
    for start in range(0, n, 60 * span):
        part = slice(start, start + 60 * span)
        total.merge(fold(MeanImputedScatter(), x[part], 60, weights=weights[part]))
    hole = np.isnan(x)
    seen = (weights[:, None] * ~hole).sum(axis=0)
    average = (weights @ np.where(hole, 0, x)) / np.where(seen > 0, seen, 1)
    y = np.where(hole, 0.0, x - average) * np.sqrt(weights)[:, None]
    exact = y.T @ y
    assert np.allclose(total.mean, average, rtol=1e-12, atol=1e-12)
    tol = 1e-12 if mean == 0 else 1e-11
    assert np.allclose(total.scatter(), exact, rtol=0, atol=tol * np.max(exact))
    assert np.allclose(
        total.covariance(), exact / (weights.sum() - 1), rtol=0, atol=tol * np.max(exact)
    )
    assert not total.scatter()[5].any()
    assert total.missing.tolist() == hole.sum(axis=0).tolist()


def test_mean_imputation_without_holes_is_the_scatter() -> None:
    x = normal(19, 500, 6, 1e3)
    found, exact = fold(MeanImputedScatter(), x, 60).scatter(), fold(Scatter(), x, 60).scatter()
    assert np.allclose(found, exact, rtol=0, atol=1e-12 * np.max(exact))


# -- the truncated factor --------------------------------------------------------------------


@each("rows", [1, 3, 8])
@each("span", [1, 4])
def test_a_truncated_factor_bounds_what_it_lost(rows: int, span: int) -> None:
    """B'B <= S <= B'B + lost I, and nothing of the total variance is lost."""
    x = normal(20, 600, 12, 5.0) * np.logspace(1, -2, 12)
    factor = merged(lambda: TruncatedFactor(rows=rows), x, 40, span)
    b = factor.factor()
    assert b.shape == (rows, 12)
    exact = exact_covariance(x) * 599
    rest = np.linalg.eigvalsh(exact - b.T @ b)
    rounding = 1e-12 * np.trace(exact)
    assert rest[0] >= -rounding
    assert rest[-1] <= factor.lost + rounding
    assert np.isclose(np.sum(b**2) + factor.lost_trace, np.trace(exact), rtol=1e-12)
    assert np.allclose(factor.m2, np.diagonal(exact), rtol=1e-12)
    assert factor.lost > 0


@each("step", [1, 37, 500])
def test_a_truncated_factor_with_means_of_a_million(step: int) -> None:
    x = normal(21, 1000, 6, 1e6)
    b = merged(lambda: TruncatedFactor(rows=8), x, step, 4).factor()
    assert relative_error(b.T @ b / 999, exact_covariance(x)) <= 1e-12


def test_means_of_spans_are_weighted_as_the_features_are():
    """The difference of the means of two spans is a row like any other (it was left unweighted)."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, 6)) + np.repeat(10.0 * rng.standard_normal((3, 6)), 20, axis=0)
    weights = np.array([1.0, 0.5, 0.1, 2.0, 0.01, 1.0])
    make = partial(LeadingDirections, streamed=0, standardize=Standardize(), width=6)
    spans = [
        fold(make(), x[i : i + 20], 10, arrays={"feature_weights": weights}) for i in (0, 20, 40)
    ]
    total = make().from_state(spans[0].state())
    for span in spans[1:]:
        total.merge(span)
    z = (x - x.mean(axis=0)) * weights
    np.testing.assert_allclose(total.rows().T @ total.rows(), z.T @ z, rtol=1e-9, atol=1e-9)
