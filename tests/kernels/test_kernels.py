"""Kernels against NumPy, compiled routine and fallback alike."""

from __future__ import annotations

import math
import pickle
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from streampca import kernels
from streampca.passes.memory import peak_nbytes, resident_nbytes
from tests.each import each

SIZES = [0, 1, 2, 3, 17, 64]


@pytest.fixture(params=["direct", "fallback"])
def route(request: pytest.FixtureRequest) -> Iterator[str]:
    """Routines through ctypes, and scipy's public ones where there are none."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "fallback":
            patch.setattr(kernels.blas, "_routine", lambda *_: None)
        yield request.param


both_routes = pytest.mark.usefixtures("route")


def test_the_direct_routines_were_found() -> None:
    """Of the scipy that is tested; without them two lanes would gain nothing."""
    assert kernels.blas._routine("blas", "ssyrk", 10) is not None
    assert kernels.blas._routine("blas", "no_such_routine", 10) is None


# -- rank-k update ---------------------------------------------------------------------------


def start(m: int, dtype: str) -> np.ndarray:
    """Something to add to: a symmetric matrix whose upper triangle is not valid."""
    c = np.random.default_rng(m).normal(size=(m, m)).astype(dtype)
    c = c + c.T
    c[np.triu_indices(m, 1)] = np.nan
    return c


def lower(c: np.ndarray) -> np.ndarray:
    return np.where(np.tri(len(c), dtype=bool), c, 0)


@both_routes
@each("dtype", ["float32", "float64"])
@each("rows", [True, False])
@each("m", SIZES)
def test_rank_k_update(dtype: str, rows: bool, m: int) -> None:
    for k in SIZES:
        check_rank_k_update(dtype, rows, m, k)


@pytest.mark.parametrize("k", [599, 600, 700])  # about as many terms as rows
def test_rank_k_update_of_many_columns(k: int) -> None:
    check_rank_k_update("float32", True, 600, k)
    check_rank_k_update("float64", False, 600, k)


def check_rank_k_update(dtype: str, rows: bool, m: int, k: int) -> None:
    z = np.random.default_rng(k).normal(size=(k, m) if rows else (m, k)).astype(dtype)
    kept = z.copy()
    c = start(m, dtype)
    exact = lower(c.astype(np.float64) + (z.T @ z if rows else z @ z.T).astype(np.float64))
    kernels.rank_k_update(c, z, rows=rows)
    assert np.allclose(
        lower(c), exact, rtol=0, atol=(1e-5 if dtype == "float32" else 1e-13) * (k + 1)
    )
    assert np.array_equal(z, kept)
    assert np.isnan(c[np.triu_indices(m, 1)]).all(), "the upper triangle is not its business"


@both_routes
@each("dtype", ["float32", "float64"])
@each("rows", [True, False])
@each("length, across", [(1, 5), (5, 1), (1, 1), (7, 5), (0, 5), (5, 0)])
def test_rank_k_update_of_part_of_a_larger_buffer(
    dtype: str, rows: bool, length: int, across: int
) -> None:
    """Tiles are leading parts of one buffer: rows of it, or a reshaped run of its elements."""
    buffer = (
        np.random.default_rng(0).normal(size=(9, across) if rows else (across, 9)).astype(dtype)
    )
    z = buffer[:length] if rows else buffer.reshape(-1)[: across * length].reshape(across, length)
    exact = z.astype(np.float64)
    exact = exact.T @ exact if rows else exact @ exact.T
    c = np.zeros((across, across), dtype)
    kernels.rank_k_update(c, z, rows=rows)
    assert np.allclose(lower(c), lower(exact), atol=1e-5)


@both_routes
@each("rows", [True, False])
@each("length", [1, 2, 6])
def test_rank_k_update_of_rows_with_a_gap(rows: bool, length: int) -> None:
    """Rows that lie apart: the leading dimension is the stride, not the width."""
    wide = np.random.default_rng(1).normal(size=(length, 20))
    z = wide[:, :4]
    exact = z.T @ z if rows else z @ z.T
    c = np.zeros_like(exact)
    kernels.rank_k_update(c, z, rows=rows)
    assert np.allclose(lower(c), lower(exact))


@both_routes
def test_rank_k_update_adds_up() -> None:
    z = np.random.default_rng(2).normal(size=(30, 6))
    c = np.zeros((6, 6))
    for part in np.split(z, 5):
        kernels.rank_k_update(c, part, rows=True)
    assert np.allclose(kernels.symmetrize(c), z.T @ z)


def test_rank_k_update_releases_the_gil() -> None:
    """With a switch interval of minutes, another thread runs only where the GIL is let go."""
    z = np.ones((2000, 700), np.float32)
    c = np.zeros((700, 700), np.float32)
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        with gate:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(600.0)
    try:
        gate.release()
        for _ in range(50):  # one is enough, unless the machine is very busy
            kernels.rank_k_update(c, z, rows=True)
            if ran.is_set():
                break
        let_go = ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()
    assert let_go


# -- rank-one update -------------------------------------------------------------------------


@both_routes
@each("m", SIZES)
@each("alpha", [1.0, -0.25, 0.0])
def test_rank_one_update(m: int, alpha: float) -> None:
    x = np.random.default_rng(m).normal(size=m)
    c = start(m, "float64")
    exact = lower(c + alpha * np.outer(x, x))
    kernels.rank_one_update(c, x, alpha)
    assert np.allclose(lower(c), exact)
    assert np.isnan(c[np.triu_indices(m, 1)]).all()


@both_routes
@each(
    "shape_x",
    [lambda x: np.repeat(x, 2)[::2], lambda x: x.astype(np.float32), lambda x: x[::-1][::-1]],
)
def test_rank_one_update_takes_any_vector(shape_x: Callable[[np.ndarray], np.ndarray]) -> None:
    x = shape_x(np.arange(5.0))
    c = np.zeros((5, 5))
    kernels.rank_one_update(c, x, 2.0)
    assert np.allclose(lower(c), lower(2 * np.outer(x, x)))


# -- triangular factor -----------------------------------------------------------------------


@both_routes
@each("p", SIZES)
@each("m", [*SIZES, 200])
def test_triangular_factor(m: int, p: int) -> None:
    stack = np.asfortranarray(np.random.default_rng(m).normal(size=(m, p)))
    exact = stack.T @ stack
    r = kernels.triangular_factor(stack)
    assert r.shape == (p, p)
    assert r.dtype == np.float64
    assert not np.tril(r, -1).any()
    assert np.allclose(r.T @ r, exact)
    assert not np.shares_memory(r, stack)


@both_routes
def test_triangular_factor_of_no_rank() -> None:
    assert not kernels.triangular_factor(np.zeros((7, 3), order="F")).any()


# -- symmetrize ------------------------------------------------------------------------------


@each("m", [*SIZES, 511, 512, 513, 1100])
@each("dtype", ["float32", "float64"])
def test_symmetrize(m: int, dtype: str) -> None:
    c = np.random.default_rng(m).normal(size=(m, m)).astype(dtype)
    c[np.triu_indices(m, 1)] = np.nan  # what lies above is never looked at
    full = kernels.symmetrize(c)
    assert full.dtype == np.float64
    assert np.array_equal(full, full.T)
    assert np.array_equal(np.tril(full), lower(c))
    assert not np.shares_memory(full, c)


# -- pieces and probe ------------------------------------------------------------------------


@each("n", [0, 1, 7, 1000])
@each("row_nbytes", [0, 1, 64, 10**9])
@each("nbytes", [1, 64, 4096])
def test_row_pieces_cover_all_rows_once(n: int, row_nbytes: int, nbytes: int) -> None:
    pieces = kernels.row_pieces(n, row_nbytes, nbytes)
    assert [i for piece in pieces for i in range(piece.start, piece.stop)] == list(range(n))
    longest = max((piece.stop - piece.start for piece in pieces), default=0)
    assert longest <= max(1, nbytes // max(1, row_nbytes))


@each("shape", [(0, 3), (3, 0), (1, 1), (50, 7), (7, 9000), (70_000, 2)])
@each("nbytes", [1, 4096, 1 << 18])
def test_pieces_cover_all_cells_once(shape: tuple[int, int], nbytes: int) -> None:
    seen = np.zeros(shape, int)
    for rows, columns in kernels.pieces(*shape, 4, nbytes):
        assert seen[rows, columns].size * 4 <= max(nbytes, 4)
        seen[rows, columns] += 1
    assert np.all(seen == 1)


def test_any_part_of_the_probe_can_be_computed() -> None:
    h = kernels.probe(0, 5000)
    assert h.dtype == np.float64
    assert np.array_equal(np.concatenate([kernels.probe(0, 17), kernels.probe(17, 5000)]), h)
    assert kernels.probe(9, 9).shape == (0,)
    assert np.all((h >= 0) & (h < 2))
    assert abs(h.mean() - 1) < 0.05
    assert abs(h.var() - 1 / 3) < 0.02
    assert abs(np.corrcoef(h[1:], h[:-1])[0, 1]) < 0.05


def test_probe_is_splitmix64() -> None:
    """The published first outputs for seed 0; a stored model relies on them for ever."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert kernels.probe(0, 3).tolist() == [(x >> 11) * 2.0 / 2**53 for x in published]


def test_probe_beyond_32_bits() -> None:
    assert np.array_equal(kernels.probe(2**40, 2**40 + 3)[1:], kernels.probe(2**40 + 1, 2**40 + 3))


def test_add_exactly_loses_nothing() -> None:
    total, rest = kernels.add_exactly(np.array([1e16, 1.0, 0.0]), np.array([1.0, 1e-20, -0.5]))
    assert total.tolist() == [1e16, 1.0, -0.5]
    assert rest.tolist() == [1.0, 1e-20, 0.0]


# -- column statistics -----------------------------------------------------------------------


DTYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint64",
    "bool",
    ">f4",
    ">i2",
]


def oracle(
    x: np.ndarray, mask: np.ndarray | None, weights: np.ndarray | None
) -> dict[str, np.ndarray]:
    n, p = x.shape
    hole = np.zeros((n, p), dtype=bool) if mask is None else mask
    w = (np.ones(n) if weights is None else weights)[:, None] * ~hole
    values = np.where(hole, 0, x).astype(np.longdouble)
    weight = w.sum(axis=0)
    mean = (w * values).sum(axis=0) / np.where(weight > 0, weight, 1)
    m2 = (w * (values - mean) ** 2).sum(axis=0)
    plain = x.astype(np.float64)
    return {
        "count": (~hole).sum(axis=0),
        "missing": hole.sum(axis=0),
        "weight": weight,
        "mean": mean,
        "m2": m2,
        "minimum": np.min(plain, axis=0, where=~hole, initial=np.inf),
        "maximum": np.max(plain, axis=0, where=~hole, initial=-np.inf),
    }


@each("dtype", DTYPES)
@each("n, p", [(0, 3), (1, 1), (1, 4), (5, 0), (65, 3), (300, 2), (40, 2000)])
def test_column_stats(dtype: str, n: int, p: int) -> None:
    for masked in (False, True, "all"):
        for weighted in (False, True):
            check_column_stats(dtype, n, p, masked, weighted)


def check_column_stats(dtype: str, n: int, p: int, masked: bool | str, weighted: bool) -> None:
    rng = np.random.default_rng(n + p)
    x = (rng.integers(0, 100, size=(n, p)) if dtype != "bool" else rng.random((n, p)) < 0.5).astype(
        dtype
    )
    mask = rng.random((n, p)) < (0.3 if masked is True else 2.0) if masked else None
    if mask is not None and x.dtype.kind == "f":
        x[mask] = np.nan
    weights = rng.random(n) * 3 if weighted else None
    if weights is not None:
        weights[:1] = 0.0
    found = kernels.column_stats(x, mask, weights)
    with np.errstate(invalid="ignore"):
        expected = oracle(np.nan_to_num(x) if x.dtype.kind == "f" else x, mask, weights)
    for name, value in expected.items():
        got = np.asarray(getattr(found, name))
        assert got.shape == (p,), name
        assert got.dtype == (np.int64 if name in ("count", "missing") else np.float64), name
        assert np.allclose(got, value.astype(np.float64), rtol=1e-12, atol=1e-9), name


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
@pytest.mark.parametrize(("n", "p"), [(1, 3), (65, 7), (5000, 20), (300, 4000)])
def test_means_alone_are_those_of_the_statistics_to_the_bit(dtype: str, n: int, p: int) -> None:
    x = (20 * np.random.default_rng(n).standard_normal((n, p)) + 50).astype(dtype)
    for part in (x, x[::2, 1:]):
        stats = kernels.column_stats(part, None, None)
        np.testing.assert_array_equal(kernels.columns.column_means(part), stats.mean)


def test_probe_vectors_are_the_same_by_either_library() -> None:
    few = kernels.columns.FEW_PROBED
    whole = kernels.probe_vectors(few + 1)
    np.testing.assert_array_equal(kernels.probe_vectors(few), whole[:few])
    assert abs(whole.mean()) < 0.05
    assert abs(whole.std() - 1.0) < 0.05


def test_column_stats_of_part_of_an_array() -> None:
    """Blocks may be strided views of an array in memory."""
    base = np.random.default_rng(3).normal(size=(80, 30)) + 1e6
    for x in (base[::2], base[:, ::3], base[::-1], np.asfortranarray(base), base.T):
        found = kernels.column_stats(x, None, None)
        assert np.allclose(found.mean, x.mean(axis=0), rtol=1e-14)
        assert np.allclose(found.m2, x.astype(np.longdouble).var(axis=0) * len(x), rtol=1e-12)


def test_the_mean_is_kept_to_more_than_its_own_digits() -> None:
    x = np.random.default_rng(4).normal(size=(1000, 2)) + 1e6
    found = kernels.column_stats(x, None, None)
    for column in range(2):
        rest = math.fsum(x[:, column] - 1e6) / 1000
        assert abs((found.mean[column] - 1e6) + found.mean_low[column] - rest) < 1e-15


def test_provisional_mean_uses_what_was_observed() -> None:
    x = np.arange(12.0).reshape(4, 3)
    mask = np.zeros((4, 3), dtype=bool)
    mask[:3, 1] = mask[:, 2] = True
    assert kernels.provisional_mean(x, mask).tolist() == [4.5, 10.0, 0.0]
    assert kernels.provisional_mean(x, None).tolist() == [4.5, 5.5, 6.5]
    assert kernels.provisional_mean(x[:0], None).tolist() == [0.0, 0.0, 0.0]


@each("shape", [(3, 4), (0, 5), (700, 800), (513, 1025)])
@each("dtype", ["f4", "f8"])
def test_zeros_are_arrays_like_any_other(shape, dtype):
    array = kernels.zeros(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    assert not array.any()
    array += 1
    assert array.sum() == array.size
    copied = pickle.loads(pickle.dumps(array))
    np.testing.assert_array_equal(copied, array)


@pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")
def test_large_zeros_go_back_to_the_system_at_once():
    array = kernels.zeros((4000, 4000))
    array += 1
    held = resident_nbytes()
    del array
    assert held - resident_nbytes() > 100 << 20


@each("dtype", ["f2", "f4", "f8", ">f4", "g"])
@each("order", ["C", "F", "part"])
def test_masked_cells_are_set_and_no_others(dtype, order):
    rng = np.random.default_rng(0)
    x = np.array(rng.standard_normal((20, 30)), dtype, order="F" if order == "F" else "C")
    x[3, 4:9] = np.nan, np.inf, -np.inf, -0.0, np.finfo(np.dtype(dtype)).tiny
    hole = rng.random(x.shape) < 0.3
    if order == "part":
        x, hole = x[::2, 3:17], hole[1::2, 2:16]
    for fill, value in ((kernels.set_zero, 0.0), (kernels.set_nan, np.nan)):
        found = x.copy(order="K")
        fill(found, hole)
        np.testing.assert_array_equal(found, np.where(hole, np.array(value, dtype), x))
        assert not np.signbit(found[hole]).any() or np.isnan(value)


def test_two_objects_compute_a_property_at_once():
    """With a lock for the class, as in Python 3.11, the second waits for the first for ever."""
    barrier = threading.Barrier(2)

    class Kept:
        calls = 0

        @kernels.computed_once
        def value(self) -> int:
            """Its own."""
            self.calls += 1
            return barrier.wait(5) * 0 + 7

    objects, found = [Kept(), Kept()], []
    threads = [threading.Thread(target=lambda x=x: found.append(x.value)) for x in objects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7, 7]
    assert [x.value for x in objects] == [7, 7]
    assert [x.calls for x in objects] == [1, 1]
    assert Kept.value.__doc__ == "Its own."
