"""Compiled kernels for small integers against NumPy, in both layouts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.kernels import column_stats
from streampca.kernels.calls import (
    BED_TABLE,
    call_stats,
    row_missing,
    standardize_calls,
    unpack_bed,
)
from streampca.matrix import Block


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, float | None]:
    """(n, m) int8 or uint8 in either layout, and the missing code."""
    n, m = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["i1", "u1"]))
    low, high = draw(st.sampled_from([(0, 3), (-1, 3), (-128, 128)]))
    low, high = (max(low, 0), high + 127) if kind == "u1" else (low, high)
    x = np.random.default_rng(draw(st.integers(0, 99))).integers(low, high, (n, m)).astype(kind)
    missing = draw(st.sampled_from([None, -1.0, 0.0, 0.5, 255.0]))
    return np.asfortranarray(x) if draw(st.booleans()) else x, missing


@given(blocks())
def test_statistics(case: tuple) -> None:
    x, missing = case
    mask = None if missing is None else x == missing
    got, wanted = call_stats(x, missing), column_stats(x, mask, None)
    for name in ("count", "missing", "weight", "minimum", "maximum"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name), name)
    np.testing.assert_allclose(got.mean, wanted.mean, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(got.m2, wanted.m2, rtol=1e-10, atol=1e-9)
    lost = np.zeros(len(x), int) if mask is None else mask.sum(axis=1)
    np.testing.assert_array_equal(row_missing(x, missing), lost)


def test_sums_of_many_rows_do_not_overflow() -> None:
    x = np.full((140_000, 2), 255, dtype=np.uint8)
    x[0, 0] = 254
    for layout in (x, np.asfortranarray(x)):
        stats = call_stats(layout, None)
        assert stats.mean[1] == 255.0
        assert stats.m2[1] == 0.0
        assert stats.m2[0] == pytest.approx(1 - 1 / 140_000, rel=1e-9)


@given(blocks(), st.data())
def test_standardised_parts(case: tuple, data: st.DataObject) -> None:
    x, missing = case
    m = x.shape[1]
    start = data.draw(st.integers(0, m - 1))
    part = slice(start, data.draw(st.integers(start + 1, m)))
    center, factor = np.linspace(-1, 2, m)[part], np.linspace(0, 3, m)[part]
    order = "C" if x.flags.c_contiguous else "F"
    out = np.full((len(x), part.stop - start), np.nan, np.float32, order)
    standardize_calls(x, part, missing, center, factor, out)
    wanted = ((x[:, part].astype(float) - center) * factor).astype(np.float32)
    if missing is not None:
        wanted[x[:, part] == missing] = 0
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9])
def test_two_bits_of_a_bed(n: int) -> None:
    rng = np.random.default_rng(n)
    codes = rng.integers(0, 4, (7, -(-n // 4), 4))
    packed = (codes << np.array([0, 2, 4, 6])).sum(axis=2).astype(np.uint8)
    out = np.empty((7, n), np.int8)
    unpack_bed(packed, BED_TABLE, out)
    copies = np.array([2, -1, 1, 0])
    np.testing.assert_array_equal(out, copies[codes.reshape(7, -1)[:, :n]])


@pytest.mark.parametrize("layout", ["C", "F"])
def test_tiles_of_a_block_equal_the_numpy_path(layout: str) -> None:
    """The compiled tiles against those of the same values as int16, which takes NumPy's way."""
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 3, (2200, 1100)).astype(np.int8)
    compiled = Block(np.asarray(x, order=layout), 1, 0, 1100, missing_value=-1)
    plain = Block(x.astype(np.int16), 1, 0, 1100, missing_value=-1)
    assert compiled.compiled
    assert not plain.compiled
    center, scale = compiled.stats.mean - 0.1, np.sqrt(compiled.stats.m2 / 2199)
    scale[3] = 0.0
    tiles = list(
        zip(
            *(
                [
                    (t.values.copy(), t.sums, t.mask, t.start, t.stop)
                    for t in block.tiles(np.dtype(np.float32), center, scale)
                ]
                for block in (compiled, plain)
            ),
            strict=True,
        )
    )
    assert len(tiles) > 1
    for one, other in tiles:
        np.testing.assert_allclose(one[0], other[0], atol=3e-7)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-3)
        np.testing.assert_array_equal(one[2], other[2])
        assert one[3:] == other[3:]
