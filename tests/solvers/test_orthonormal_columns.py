"""Columns that carry the rounding of long sums, made orthonormal in place."""

from __future__ import annotations

import tracemalloc

import numpy as np

from streampca.solvers import complete_columns, orthonormal_columns, signs_of_components


def test_columns_keep_their_directions_and_are_completed() -> None:
    rng = np.random.default_rng(0)
    true, _ = np.linalg.qr(rng.standard_normal((300, 6)))
    dead = np.array([3, 200])
    true[dead] = 0.0
    v = np.asfortranarray(true + 1e-7 * rng.standard_normal(true.shape))
    v[:, 4:] = np.nan  # of mere rounding: what is there does not matter
    orthonormal_columns(v, 4, dead)
    np.testing.assert_allclose(v.T @ v, np.eye(6), atol=1e-14)
    np.testing.assert_allclose(v[:, :1], true[:, :1] / np.linalg.norm(true[:, 0]), atol=1e-6)
    assert np.all(np.sum(v[:, :4] * true[:, :4], axis=0) > 0.9)
    assert not v[dead].any()


def test_completed_columns_have_the_signs_of_components() -> None:
    v = np.asfortranarray(np.random.default_rng(2).standard_normal((40, 9)))
    given = v[:, :2].copy()
    complete_columns(v, 2, np.zeros(0, np.int64))
    np.testing.assert_array_equal(signs_of_components(v[:, 2:]), 1.0)
    assert np.sum(v[:, :1] * given[:, :1]) > 0.0  # the others keep theirs


def test_no_copy_of_the_columns_is_made() -> None:
    v = np.asfortranarray(np.random.default_rng(1).standard_normal((50_000, 12)))
    tracemalloc.start()
    orthonormal_columns(v, 12, np.zeros(0, np.int64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.2 * v.nbytes
