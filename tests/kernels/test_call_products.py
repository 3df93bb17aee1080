"""Products of small integer calls, panel by panel, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.kernels.call_products import add_image, two_products, whole_vectors
from tests.each import each

LAYOUTS = {"by sample": np.ascontiguousarray, "by feature": np.asfortranarray}
SHAPES = [(1, 1), (7, 3), (50, 97), (500, 100), (49, 1100)]  # on both sides of a panel's edges


@pytest.mark.parametrize("layout", LAYOUTS)
@each("shape", SHAPES)
@each("dtype, missing", [("int8", -1.0), ("uint8", 255.0), ("int8", None)])
@each("width", [1, 16, 35])
def test_products_are_those_of_numpy(layout, shape, dtype, missing, width):
    rng = np.random.default_rng(4)
    n, m = shape
    x = rng.integers(0, 3, shape).astype(dtype)
    hole = rng.random(shape) < 0.1 if missing is not None else np.zeros(shape, bool)
    x[hole] = 0 if missing is None else missing
    center, factor = rng.random(m), rng.random(m) + 0.5
    q = rng.standard_normal((n, width)).astype(np.float32)
    z = np.where(hole, 0.0, (x - center) * factor)
    outer = np.zeros((n, whole_vectors(width)), np.float32)
    outer[:, :width] = 1.0
    calls = (LAYOUTS[layout](x), missing, center, factor)
    inner = two_products(*calls, q, outer)
    size = np.linalg.norm(z) * np.linalg.norm(q)
    np.testing.assert_allclose(inner[:, :width], z.T @ q, atol=1e-6 * size)
    np.testing.assert_allclose(
        outer[:, :width], 1.0 + z @ (z.T @ q), atol=1e-6 * (1 + np.linalg.norm(z) * size)
    )
    assert not inner[:, width:].any()
    assert not outer[:, width:].any()
    h, image = rng.random(m), np.ones(n)
    add_image(*calls, h, image)
    np.testing.assert_allclose(image, 1.0 + z @ h, atol=1e-12 * (1 + np.linalg.norm(z) * m))


def test_a_slice_of_features_is_taken_as_it_lies():
    rng = np.random.default_rng(5)
    x = rng.integers(-1, 3, (60, 40)).astype(np.int8)[:, 3:38:2]
    center, factor = rng.random((2, 2 * x.shape[1]))[:, ::2]
    q = rng.standard_normal((60, 16)).astype(np.float32)
    outer = np.zeros((60, 16), np.float32)
    inner = two_products(x, -1.0, center, factor, q, outer)
    z = np.where(x == -1, 0.0, (x - center) * factor)
    np.testing.assert_allclose(inner, z.T @ q, atol=1e-4)
    np.testing.assert_allclose(outer, z @ (z.T @ q), atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sums_are_not_made_one_by_one(layout):
    rng = np.random.default_rng(6)
    x = rng.integers(0, 3, (20_000, 16)).astype(np.int8)
    factor, q = rng.random(16), rng.random((20_000, 1)).astype(np.float32)
    outer = np.zeros((20_000, 16), np.float32)
    inner = two_products(LAYOUTS[layout](x), None, np.zeros(16), factor, q, outer)[:, 0]
    terms = (x * factor).astype(np.float32) * q
    true = terms.sum(axis=0, dtype=np.float64)
    one_by_one = np.cumsum(terms, axis=0, dtype=np.float32)[-1]
    assert np.linalg.norm(inner - true) < 0.2 * np.linalg.norm(one_by_one - true)
