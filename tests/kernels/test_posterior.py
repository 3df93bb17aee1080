"""Posteriors of a few factors, against least squares of the stacked system."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.kernels.least_squares import packed, pair_columns, posterior, unpacked_triangle


@pytest.mark.parametrize("weak", [1.0, 1e-3, 1e-6])
def test_the_distance_of_a_row_that_hardly_tells_its_factors_apart(weak: float) -> None:
    """|z - W m|^2 / noise + |m|^2 is the least that any m gives, at a noise of 1e-10."""
    rng, k, noise = np.random.default_rng(0), 4, 1e-10
    for _ in range(20):
        u, _ = np.linalg.qr(rng.standard_normal((5, k)))
        v, _ = np.linalg.qr(rng.standard_normal((k, k)))
        w = u * np.array([1.0, 0.7, 0.3, weak]) @ v.T
        z = w @ rng.standard_normal(k) + np.sqrt(noise) * rng.standard_normal(5)
        stacked, right = (
            np.vstack([w / np.sqrt(noise), np.eye(k)]),
            np.r_[z / noise**0.5, np.zeros(k)],
        )
        exact = np.linalg.lstsq(stacked, right, rcond=None)[0]
        information = unpacked_triangle(pair_columns(w).sum(axis=0)[None] / noise, k) + np.eye(k)
        (mean,), (covariance,), (logdet,) = posterior(information, (z @ w / noise)[None])
        least, found = (float(np.sum((stacked @ m - right) ** 2)) for m in (exact, mean))
        assert least <= found * (1 + 1e-9)
        assert found == pytest.approx(least, rel=1e-6)
        values = 2 * np.log(np.linalg.svd(stacked, compute_uv=False))
        assert logdet == pytest.approx(values.sum(), rel=1e-6)
        np.testing.assert_allclose(packed(covariance[None])[0], covariance[np.tril_indices(k)])
