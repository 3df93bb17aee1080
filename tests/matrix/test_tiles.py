"""Centring and sums of tiles of the usual size, by rows that are short, and long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampca.matrix import Block


def block_of(x: Any) -> Block:
    return Block(x, axis=0, start=0, stop=len(x))


@pytest.mark.parametrize(("n", "p"), [(1, 3), (300, 7), (2050, 1), (700, 63), (700, 64)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_any_length_are_centred_to_the_bit(n: int, p: int, order: Any) -> None:
    rng = np.random.default_rng(p)
    x = np.asarray(rng.standard_normal((n, p)) + 5, np.float32, order=order)
    shift = rng.standard_normal(p).astype(np.float32)
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        (tile, *more) = (one.values.copy() for one in block_of(x).tiles(dtype, center=shift))
        expected = np.subtract(x, shift.astype(dtype), dtype=dtype)
        np.testing.assert_array_equal(np.concatenate([tile, *more]), expected)


def test_sums_of_long_rows_keep_what_runs_of_eight_keep() -> None:
    x = (np.random.default_rng(0).standard_normal((3000, 100)) + 3).astype(np.float32)
    center = np.zeros(100, np.float32)
    sums = sum(one.sums for one in block_of(x).tiles(np.dtype(np.float32), center=center))
    sizes = np.abs(x).sum(axis=0, dtype=np.float64)
    assert np.all(np.abs(sums - x.sum(axis=0, dtype=np.float64)) <= 8 * 2.0**-24 * sizes)
