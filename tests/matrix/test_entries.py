"""Products and statistics of sparse blocks against the same block made dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import streampca.kernels.sparse as kernels
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.matrix import Block

DTYPES = ["float32", "float64", "int8", "bool"]  # every kernel is compiled for each


def sparse(n: int, p: int, density: float, dtype: str, holes: float, seed: int) -> np.ndarray:
    """A dense array with many zeros, and NaN where holes are asked for."""
    rng = np.random.default_rng(seed)
    x = rng.poisson(3.0, size=(n, p)) + 1.0
    if np.dtype(dtype).kind == "f":
        x = x * rng.normal(size=(n, p))
    x = (x * (rng.random((n, p)) < density)).astype(dtype)
    if holes and np.dtype(dtype).kind == "f":
        x[(rng.random((n, p)) < holes) & (x != 0)] = np.nan
    return x


def block(x: np.ndarray, axis: int, **more: Any) -> Block:
    values = (scipy.sparse.csc_array if axis else scipy.sparse.csr_array)(x)
    return Block(values, axis, 0, x.shape[axis], **more)


def standardised(x: np.ndarray, center: np.ndarray, scale: np.ndarray, code: Any) -> np.ndarray:
    """(x - center) / scale in float64, missing cells and columns of scale 0 holding 0."""
    x = x.astype(np.float64)
    hole = np.isnan(x) if code is None else np.isnan(x) | (x == code)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(scale > 0, (x - center) / scale, 0.0)
    return np.where(hole, 0.0, z)


@given(
    st.integers(0, 40),
    st.integers(1, 30),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([None, 2.0]),
    st.booleans(),
    st.sampled_from([0, 1]),
    st.sampled_from(["real", "small"]),
    st.integers(0, 2**32 - 1),
)
def test_every_product_is_that_of_the_dense_block(
    n: int,
    p: int,
    density: float,
    dtype: str,
    holes: float,
    code: float | None,
    weighted: bool,
    axis: int,
    tiling: str,
    seed: int,
) -> None:
    x = sparse(n, p, density, dtype, holes, seed)
    rng = np.random.default_rng(seed)
    weights = rng.random(n) * 3 if weighted else None
    w = np.ones(n) if weights is None else weights
    center, scale = rng.normal(size=p), rng.random(p) + 0.5
    scale[rng.random(p) < 0.2] = 0.0
    z = standardised(x, center, scale, code)
    q, y = rng.normal(size=(p, 5)), rng.normal(size=(n, 5))
    one = block(x, axis, missing_value=code, weights=weights)
    with pytest.MonkeyPatch.context() as patch:
        if tiling == "small":  # several tiles and groups even here
            for name, value in (("GROUP", 3), ("TILE_NBYTES", 300), ("ENTRIES", 0)):
                patch.setattr(kernels, name, value)
        close = {"rtol": 1e-11, "atol": 1e-10}
        np.testing.assert_allclose(one.entries.product(q, center, scale), z @ q, **close)
        np.testing.assert_allclose(one.entries.cross(y, center, scale), z.T @ y, **close)
        norms = one.entries.row_norms(center, scale)
        np.testing.assert_allclose(norms, np.sum(z**2, axis=1), **close)
        safe = np.where(scale > 0, scale, 1.0)
        if axis:
            root = np.sqrt(w)[:, None]
            into, sums = np.zeros((n, 5)), np.zeros(5)
            got = one.entries.two_products(root * y, into, sums, center, scale)
            np.testing.assert_allclose(got, z.T @ (root * y), **close)
            zz = root * (into - sums)
            np.testing.assert_allclose(zz, root * z @ (z.T @ (root * y)), **close)
            return
        into, sums = np.zeros((p, 5)), np.zeros(5)
        zero = scale == 0
        got = one.entries.two_products(
            np.where(zero[:, None], 0, q / safe[:, None]), into, sums, center
        )
        np.testing.assert_allclose(got, z @ q, **close)
        finished = (into - np.multiply.outer(center, sums)) / safe[:, None]
        finished[zero] = 0.0
        np.testing.assert_allclose(finished, z.T @ (w[:, None] * (z @ q)), **close)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_integers_of_every_width_are_taken_for_what_they_are(dtype: str) -> None:
    kind = np.iinfo(dtype)
    large = min(kind.max, 2**40)
    x = np.array([[kind.max if kind.bits < 64 else large, 0, 1], [0, max(kind.min, -large), 0]])
    one, q = block(x.astype(dtype), 0), np.arange(12.0).reshape(3, 4) + 1
    np.testing.assert_array_equal(one.entries.product(q), x.astype(float) @ q)
    np.testing.assert_array_equal(one.stats.minimum, x.min(axis=0))
    np.testing.assert_array_equal(one.stats.maximum, x.max(axis=0))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("lines", [5, 3000])
def test_single_precision_products_keep_single_precision(axis: int, lines: int) -> None:
    """float32 columns give float32 products, whose sums over many lines float64 takes."""
    x = sparse(*((60, lines) if axis else (lines, 60)), 0.3, "float32", 0.0, 3)
    rng = np.random.default_rng(0)
    m = x.shape[1 - axis]
    q = rng.normal(size=(m, 7)).astype(np.float32)
    center, scale = rng.normal(size=x.shape[1]), rng.random(x.shape[1]) + 0.5
    into, sums = np.zeros((m, 7)), np.zeros(7)
    one = block(x, axis).entries
    given = (center, scale) if axis else (center,)
    y = one.two_products(q, into, sums, *given)
    z = (x.astype(float) - center) / scale if axis else x - center
    exact = z.T @ q.astype(float) if axis else z @ q.astype(float)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exact, rtol=0, atol=3e-6 * abs(exact).max())
    product = into - (sums if axis else np.multiply.outer(center, sums))
    exact = z @ exact if axis else z.T @ exact
    np.testing.assert_allclose(product, exact, rtol=0, atol=3e-6 * abs(exact).max())


def test_nothing_is_compiled_twice_for_a_literal() -> None:
    """A kernel that is handed a constant would be compiled for that constant too."""
    x = sparse(30, 20, 0.3, "float64", 0.0, 3)
    one = block(x, 0).entries
    np.testing.assert_allclose(one.cross(np.ones((30, 2))), x.T @ np.ones((30, 2)))
    found = [name for name in dir(kernels) if hasattr(getattr(kernels, name), "signatures")]
    assert "_scatter" in found
    for name in found:
        assert "Literal" not in str(getattr(kernels, name).signatures), name


@given(
    st.integers(0, 40),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 0.0, 2.0]),
    st.booleans(),
    st.sampled_from([0, 1]),
    st.integers(0, 2**32 - 1),
)
def test_statistics_count_what_is_not_stored(
    n: int,
    p: int,
    density: float,
    dtype: str,
    holes: float,
    code: float | None,
    weighted: bool,
    axis: int,
    seed: int,
) -> None:
    x = sparse(n, p, density, dtype, holes, seed)
    weights = np.random.default_rng(seed).random(n) + 0.1 if weighted else None
    one = block(x, axis, missing_value=code, weights=weights)
    stats = one.stats
    v = x.astype(np.float64)
    seen = ~np.isnan(v) if code is None else ~np.isnan(v) & (v != code)
    w = np.where(seen, 1.0 if weights is None else weights[:, None], 0.0)
    v = np.where(seen, v, 0.0)
    np.testing.assert_array_equal(stats.count, seen.sum(axis=0))
    np.testing.assert_array_equal(stats.missing, (~seen).sum(axis=0))
    np.testing.assert_allclose(stats.weight, w.sum(axis=0), rtol=1e-12, atol=1e-13)
    mean = (w * v).sum(axis=0) / np.where(w.sum(axis=0) > 0, w.sum(axis=0), 1.0)
    np.testing.assert_allclose(stats.mean + stats.mean_low, mean, rtol=1e-12, atol=1e-13)
    m2 = np.sum(w * (v - mean) ** 2, axis=0)
    np.testing.assert_allclose(stats.m2, m2, rtol=1e-11, atol=1e-12)
    some = seen.any(axis=0)
    low = np.where(seen, v, np.inf).min(axis=0, initial=np.inf)
    high = np.where(seen, v, -np.inf).max(axis=0, initial=-np.inf)
    np.testing.assert_array_equal(stats.minimum[some], low[some])
    np.testing.assert_array_equal(stats.maximum[some], high[some])
    np.testing.assert_array_equal(one.row_missing, (~seen).sum(axis=1))


def test_a_large_mean_keeps_its_variance() -> None:
    """Dense columns of a sparse block: a sum of squares would keep no digit of this variance."""
    x = np.random.default_rng(0).normal(1e6, 1e-3, size=(500, 3))
    got, exact = block(x, 0).stats, x.astype(np.longdouble)
    m2 = np.sum((exact - exact.mean(axis=0)) ** 2, axis=0)
    np.testing.assert_allclose(got.m2, m2.astype(float), rtol=1e-7)
    np.testing.assert_allclose(got.m2, ((x - x.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-7)


def test_indices_out_of_order_or_twice_are_put_right_in_a_copy() -> None:
    values = scipy.sparse.csr_array(
        (np.array([1.0, 2.0, 4.0, 8.0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3)
    )
    before = values.indices.copy()
    one = Block(values, 0, 0, 2)
    dense = np.array([[2.0, 0.0, 5.0], [0.0, 8.0, 0.0]])
    np.testing.assert_array_equal(one.entries.product(np.eye(3)), dense)
    np.testing.assert_array_equal(one.stats.mean, dense.mean(axis=0))
    np.testing.assert_array_equal(values.indices, before)


@pytest.mark.parametrize(
    ("field", "entry", "wrong", "words"),
    [
        ("indices", 1, 7, "an index is 7, expected 0 to 2"),
        ("indices", 0, -1, "an index is -1"),
        ("indptr", 1, 9, "indptr is not increasing"),
        ("indptr", 2, 9, "indptr ends at 9, and there are 3 indices"),
    ],
)
def test_damaged_index_arrays_are_refused(field: str, entry: int, wrong: int, words: str) -> None:
    values = scipy.sparse.csr_array(np.array([[1.0, 0, 2], [0, 3, 0]]))
    getattr(values, field)[entry] = wrong
    with pytest.raises(InvalidInputError, match=words):
        Block(values, 0, 0, 2).entries.product(np.eye(3))


def test_infinity_is_refused_by_statistics_and_products() -> None:
    x = np.zeros((4, 3))
    x[1, 2] = np.inf
    with pytest.raises(NonFiniteError, match="columns"):
        _ = block(x, 0).stats
    with pytest.raises(NonFiniteError, match="infinity"):
        block(x, 0).entries.product(np.eye(3))


def test_hidden_cells_and_missing_zeros_are_not_for_entries() -> None:
    x = np.eye(3)
    assert block(x, 0).sparse
    assert not Block(x, 0, 0, 3).sparse
    assert not block(x, 0, missing_value=0.0).sparse
    assert not block(x, 0, hidden=np.zeros((3, 3), bool)).sparse
