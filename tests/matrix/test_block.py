"""Tiles, masks and statistics of one block against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import streampca.matrix.tiles as tiles_module
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.matrix import Block, Labels, Standardize, constant_columns, work_dtype
from tests.each import each

DTYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "bool",
]
INTEGERS = [d for d in DTYPES if np.dtype(d).kind in "iu"]


@pytest.fixture(params=["real tiles", "small tiles"], autouse=True)
def tiling(request: pytest.FixtureRequest) -> Iterator[str]:
    """As they are, and so small that a small block has many tiles of many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small tiles":
            pieces = tiles_module.pieces
            patch.setattr(tiles_module, "TILE_LENGTH", 4)
            patch.setattr(tiles_module, "TILE_NBYTES", 1)
            patch.setattr(tiles_module, "pieces", lambda *shape: pieces(*shape, 48))
        yield request.param


def values(dtype: str, n: int = 22, p: int = 7, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random((n, p)) < 0.4
    if kind == "f":
        return (rng.normal(size=(n, p)) * 3 + 2).astype(dtype)
    low = 0 if kind == "u" else -60
    return rng.integers(low, 100, size=(n, p)).astype(dtype)


def block(x: Any, axis: int = 0, **more: Any) -> Block:
    """The matrix as one block that begins somewhere along its axis."""
    return Block(x, axis, 100, 100 + x.shape[axis], 4, **more)


def gather(
    b: Block, dtype: Any = None, **transform: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values, mask, sums) of all tiles, put together."""
    dtype = np.dtype(dtype or b.work_dtype)
    n, p = b.shape
    z, mask = np.full((n, p), 55, dtype), np.zeros((n, p), dtype=bool)
    sums = np.zeros(p)
    at = b.start
    for tile in b.tiles(dtype, **transform):
        assert tile.start == at, "tiles follow each other"
        assert tile.values.dtype == dtype
        assert tile.values.flags.c_contiguous
        at = tile.stop
        rows, columns = slice(None), slice(None)
        if b.axis:
            columns = slice(tile.start - b.start, tile.stop - b.start)
        else:
            rows = slice(tile.start - b.start, tile.stop - b.start)
        z[rows, columns] = tile.values
        assert tile.sums.dtype == np.float64
        sums[columns] += tile.sums
        if tile.mask is not None:
            assert tile.mask.any(), "a mask of nothing is None"
            mask[rows, columns] = tile.mask
        if tile.root_weights is not None:
            assert np.allclose(tile.root_weights**2, b.weights[rows])
    assert at == b.stop
    return z, mask, sums


both_axes = pytest.mark.parametrize("axis", [0, 1])


HOLES = [
    (dtype, holes)
    for dtype, holes in product(DTYPES, [None, "nan", "code", "hidden", "column"])
    if (holes != "nan" or np.dtype(dtype).kind == "f") and (holes != "code" or dtype != "bool")
]


@both_axes
@each("dtype, holes", HOLES)
def test_tiles(axis: int, dtype: str, holes: Any) -> None:
    for to, centred, scaled in product([None, "float64"], *[[False, True]] * 2):
        weighted = (to is None) ^ centred ^ scaled  # so that any three of the four are crossed
        check_tiles(axis, dtype, holes, to, centred, scaled, weighted)


def check_tiles(
    axis: int, dtype: str, holes: Any, to: Any, centred: bool, scaled: bool, weighted: bool
) -> None:
    x = values(dtype)
    rng = np.random.default_rng(1)
    missing = rng.random(x.shape) < 0.2
    more: dict[str, Any] = {}
    if holes is None:
        missing[:] = False
    elif holes == "column":
        missing[:] = False
        missing[:, 2] = True
    if holes == "nan":
        x[missing] = np.nan
    elif holes == "code":
        missing = x == x[3, 3]
        more["missing_value"] = x[3, 3].item()
    elif holes is not None:
        more["hidden"] = missing
    if weighted:
        more["weights"] = rng.random(len(x)) * 2
        more["weights"][1] = 0.0
    center = rng.normal(size=7) * 5 if centred else None
    scale = np.array([1.0, 2.0, 0.0, 0.5, 3.0, 1e-3, 10.0]) if scaled else None
    kept = x.copy()
    z, mask, sums = gather(block(x, axis, **more), to, center=center, scale=scale)
    assert np.array_equal(x, kept, equal_nan=x.dtype.kind == "f"), "the raw values are left alone"
    exact = np.where(missing, 0, x).astype(np.float64)
    exact = exact - (0 if center is None else center)
    if scale is not None:
        exact = np.where(scale > 0, exact / np.where(scale > 0, scale, 1), 0)
    exact = np.where(missing, 0, exact)
    weights = more.get("weights", np.ones(len(x)))
    tol = 1e-12 if z.dtype == np.float64 else 1e-6
    size = 1 + np.abs(exact).max()
    assert np.allclose(z, exact * np.sqrt(weights)[:, None], rtol=0, atol=tol * size)
    assert np.allclose(sums, weights @ exact, rtol=0, atol=tol * size * 22)
    assert np.array_equal(mask, missing)


@both_axes
def test_a_float32_tile_is_centred_to_more_digits_than_the_center_has(axis: int) -> None:
    x = (np.random.default_rng(2).normal(size=(400, 3)) + 1e4).astype(np.float32)
    mean = x.astype(np.float64).mean(axis=0)
    z, _, sums = gather(block(x, axis), center=mean)
    assert z.dtype == np.float32
    assert np.allclose(z, x.astype(np.float64) - mean, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(sums)) < 1e-3  # of the center rounded alone it would be 0.2


@each("p", [1, 2, 9])
def test_sums_of_long_float32_columns(p: int, tiling: str) -> None:
    n = 200_000 if tiling == "real tiles" else 500  # each addition would round the same way
    sums = gather(block(np.full((n, p), 0.1, np.float32)))[2]
    assert np.allclose(sums, n * float(np.float32(0.1)), rtol=1e-6)


@both_axes
@each("shape", [(0, 7), (22, 0), (1, 1), (1, 7), (22, 1), (0, 0)])
@each("weighted", [False, True])
def test_tiles_of_degenerate_blocks(axis: int, shape: tuple[int, int], weighted: bool) -> None:
    x = values("float32", *shape)
    more = {"weights": np.full(shape[0], 4.0)} if weighted else {}
    b = block(x, axis, **more)
    z, mask, sums = gather(b, center=np.ones(shape[1]), scale=np.full(shape[1], 2.0))
    assert np.allclose(z, (x - 1) / 2 * (2 if weighted else 1))
    assert not mask.any()
    assert np.allclose(
        sums, ((x.astype(float) - 1) / 2).sum(axis=0) * (4 if weighted else 1), atol=1e-5
    )
    assert b.stats.count.tolist() == [shape[0]] * shape[1]
    assert np.array_equal(
        b.head_mean(), x.astype(float).mean(axis=0) if shape[0] else np.zeros(shape[1])
    )


@both_axes
@each("dtype", ["float32", "float64", "int8"])
@each("weighted", [False, True])
def test_tiles_of_sparse_blocks(axis: int, dtype: str, weighted: bool) -> None:
    x = values(dtype)
    x[np.random.default_rng(3).random(x.shape) < 0.7] = 0
    more = {"weights": np.arange(22.0)} if weighted else {}
    compress = scipy.sparse.csc_array if axis else scipy.sparse.csr_array
    dense, sparse = block(x, axis, **more), block(compress(x), axis, **more)
    center = np.arange(7.0)
    for a, b in zip(gather(dense, center=center), gather(sparse, center=center), strict=True):
        assert np.allclose(a, b, rtol=0, atol=1e-5)
    assert np.array_equal(sparse.dense(), x)
    assert np.allclose(sparse.stats.m2, dense.stats.m2)
    assert np.allclose(sparse.head_mean(), dense.head_mean())


@both_axes
def test_strided_views_are_read_like_copies(axis: int) -> None:
    base = values("float32", 44, 21)
    for x in (base[::2, ::3], base[::-2, :7], np.asfortranarray(base)[:22, 7:14]):
        views, copies = gather(block(x, axis)), gather(block(x.copy(), axis))
        assert all(np.array_equal(a, b) for a, b in zip(views, copies, strict=True))


@both_axes
@each("wrong", [np.inf, -np.inf])
@each("scale", [None, 0.0])
def test_infinity_is_refused_with_its_place(axis: int, wrong: float, scale: Any) -> None:
    x = values("float32")
    x[20, 5], x[3, 5], x[0, 0] = wrong, -wrong, np.nan
    b = block(x, axis, labels=Labels.plain((200, 200), [f"gene{i}" for i in range(200)]))
    name = "gene105" if axis else "gene5"
    where = r"block 4 \(features 100 to 106\)" if axis else r"block 4 \(samples 100 to 121\)"
    scales = None if scale is None else np.full(7, scale)
    for look in (
        lambda: list(b.tiles(b.work_dtype, scale=scales)),
        lambda: b.mask,
        lambda: b.stats,
    ):
        with pytest.raises(NonFiniteError, match=f"infinity in {where}.*{name}"):
            look()


@both_axes
def test_mask_and_stats(axis: int) -> None:
    x = values("float64")
    missing = np.random.default_rng(4).random(x.shape) < 0.3
    x[missing] = np.nan
    b = block(x, axis)
    assert np.array_equal(b.mask, missing)
    assert b.stats is b.stats, "computed once"
    assert np.allclose(b.stats.mean, np.nanmean(x, axis=0))
    assert np.array_equal(b.stats.missing, missing.sum(axis=0))
    assert block(values("float64"), axis).mask is None
    assert block(values("int8"), axis).mask is None


def test_stats_of_finite_values_whose_squares_overflow() -> None:
    x = np.array([[1e200, 1.0], [-1e200, 2.0]])
    stats = block(x).stats
    assert stats.count.tolist() == [2, 2]
    assert np.isinf(stats.m2[0])
    assert np.isclose(stats.m2[1], 0.5)


@both_axes
def test_codes_and_hidden_cells_join_nan(axis: int) -> None:
    x = values("float32")
    x[1, 1], x[2, 2] = np.nan, -9
    hidden = np.zeros(x.shape, dtype=bool)
    hidden[3, 3] = True
    b = block(x, axis, missing_value=-9, hidden=hidden)
    expected = [(1, 1), (2, 2), (3, 3)]
    assert [tuple(map(int, at)) for at in np.argwhere(b.mask)] == expected
    assert [tuple(map(int, at)) for at in np.argwhere(gather(b)[1])] == expected


def test_head_mean_looks_at_few_rows_and_leaves_holes_out() -> None:
    x = values("float64", 200, 3)
    x[:64, 1] = np.nan
    x[::2, 2] = np.nan
    mean = block(x).head_mean()
    assert np.allclose(mean, [x[:64, 0].mean(), 0.0, np.nanmean(x[:64, 2])])


@each("dtype", DTYPES)
def test_the_working_dtype_holds_every_value(dtype: str) -> None:
    work = work_dtype(np.dtype(dtype))
    assert work in (np.float32, np.float64)
    if dtype in INTEGERS and np.dtype(dtype).itemsize < 8:
        info = np.iinfo(dtype)
        for value in (info.min, info.max, info.max - 1):
            assert int(np.asarray(value, dtype).astype(work)) == value
    small = np.dtype(dtype).itemsize <= (4 if np.dtype(dtype).kind == "f" else 2)
    assert (work == np.float32) == small


def test_properties_of_a_block() -> None:
    b = block(values("float32"), 1, weights=np.arange(22.0), arrays={"scores": 3})
    assert b.shape == (22, 7)
    assert b.length == 7
    assert b.columns == slice(100, 107)
    assert b.total_weight == np.arange(22).sum()
    assert b["scores"] == 3
    assert b.eps == np.finfo(np.float32).eps
    assert "features 100 to 106" in b.describe()
    rows = block(values("int8"))
    assert rows.columns == slice(0, 7)
    assert rows.total_weight == 22.0
    assert rows.eps == np.finfo(np.float64).eps
    assert rows.name_columns(np.arange(7)) == "columns 0; 1; 2; 3 and 3 more"


# -- standardisation -------------------------------------------------------------------------


@both_axes
@each("ddof", [0, 1])
@each("scale", [None, "std"])
@each("centred", [True, False])
def test_standardize(axis: int, ddof: int, scale: Any, centred: bool) -> None:
    if scale and not centred:
        with pytest.raises(InvalidInputError, match="needs center=True"):
            Standardize(centred, scale, ddof)
        return
    x = values("float64")
    x[:, 3] = 0.1
    x[np.random.default_rng(5).random(x.shape) < 0.2] = np.nan
    x[:, 5] = np.nan
    b = block(x, axis)
    scaling = Standardize(centred, scale, ddof).resolve(b.stats, b.eps)
    center, divisor, constant = scaling.center, scaling.scale, scaling.constant
    assert constant.tolist() == [False, False, False, True, False, True, False]
    mean = np.nan_to_num([np.nanmean(c) if np.isfinite(c).any() else 0.0 for c in x.T])
    assert np.allclose(center, mean if centred else 0)
    if scale is None:
        assert divisor is None
        return
    exact = [
        0.0 if hole else np.nanstd(c, ddof=ddof) for c, hole in zip(x.T, constant, strict=True)
    ]
    assert np.allclose(divisor, exact)
    z, _, _ = gather(b, center=center, scale=divisor)
    assert not z[:, [3, 5]].any()
    assert np.isfinite(z).all()


def test_one_row_has_no_scale() -> None:
    b = block(values("float64", 1, 3), 1)
    scaling = Standardize(scale="std").resolve(b.stats, b.eps)
    divisor, constant = scaling.scale, scaling.constant
    assert divisor.tolist() == [0.0] * 3
    assert constant.all()


def test_unknown_scale_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'variance'"):
        Standardize(scale="variance")


def test_constant_columns_are_judged_by_the_resolution_of_the_data() -> None:
    x = np.full((50, 2), 0.1, np.float32)
    x[::2, 0] = np.nextafter(np.float32(0.1), np.float32(1))  # rounding of one value
    x[::2, 1] = 0.1001
    stats = block(x).stats
    assert constant_columns(stats, float(np.finfo(np.float32).eps)).tolist() == [True, False]
    assert constant_columns(stats, float(np.finfo(np.float64).eps)).tolist() == [False, False]
