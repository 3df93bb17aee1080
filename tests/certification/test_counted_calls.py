"""Sums of calls, by adding bytes, are those of the cells."""

import numpy as np
import pytest

from streampca.certification import calls


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("shape", "most", "dtype", "missing"),
    [
        ((7, 5), 2, "i1", -1),
        ((3192, 1030), 2, "i1", -1),
        ((900, 3), 5, "i1", 9),
        ((515, 77), 1, "u1", 255),
        ((300, 40), 2, "i1", None),
        ((30, 4), 2, "i1", 0.5),
        ((1, 1), 2, "i1", -1),
        ((100_000, 3), 5, "i1", -1),
    ],
)
def test_sums_of_calls(order, shape, most, dtype, missing):
    rng = np.random.default_rng(0)
    x = rng.integers(0, most + 1, shape).astype(dtype)
    code = missing in (-1, 9, 255)
    hole = rng.random(shape) < 0.1 * code
    hole[:, 2:3] = code  # nothing is known of a whole column
    if code:
        x[hole] = missing
    found = calls.call_sums(np.array(x, order=order), missing)
    assert found is not None
    columns, lost = found
    z = np.ma.masked_array(x.astype(float), hole)
    mean = z.mean(axis=0).filled(0.0)
    assert np.array_equal(lost, hole.sum(axis=1))
    assert np.array_equal(columns.weight, (~hole).sum(axis=0))
    np.testing.assert_allclose(columns.mean, mean, rtol=1e-15)
    np.testing.assert_allclose(
        columns.squares, ((z - mean) ** 2).sum(axis=0).filled(0.0), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("value", [6, 127, -2])
def test_other_counts_are_left_to_floats(value):
    x = np.ones((20, 3), "i1")
    x[3, 1] = value
    assert calls.call_sums(x, -1) is None
