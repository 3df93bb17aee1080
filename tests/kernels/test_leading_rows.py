"""Gram matrix and turn of stacked rows, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.kernels.call_products import stacked_gram, turn_stacked, whole_vectors


@pytest.mark.parametrize(("width", "b"), [(1, 1), (5, 16), (16, 3), (28, 60), (40, 80)])
@pytest.mark.parametrize("m", [1, 96, 250])
def test_gram_and_turn_are_those_of_numpy(width, b, m):
    rng = np.random.default_rng(7)
    factor = np.zeros((m, whole_vectors(width)), np.float32)
    factor[:, :width] = rng.standard_normal((m, width))
    rows = rng.standard_normal((m, b + 5)).astype(np.float32)
    part = slice(2, 2 + b)
    stack = np.hstack([factor, rows[:, part]]).T.astype(np.float64)
    gram = stacked_gram(factor, rows, part)
    np.testing.assert_allclose(np.tril(gram), np.tril(stack @ stack.T), atol=1e-5 * m)
    turn = rng.standard_normal((width, len(stack))).astype(np.float32)
    turn_stacked(factor, rows, part, turn)
    np.testing.assert_allclose(factor[:, :width].T, turn @ stack, atol=1e-4)
    assert not factor[:, width:].any()
