"""Products of a kernel matrix that is never stored: against NumPy, in any blocks and panels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from streampca.accumulators import KernelStep, kernel_step
from streampca.matrix import Block, Labels
from streampca.models.kernel.functions import Kernel, squares

N, P = 37, 5
RNG = np.random.default_rng(0)
X, V = RNG.standard_normal((N, P)) + 1.0, RNG.standard_normal((N, 3))
SHIFT = np.full(P, 0.5)
KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine")


def kernel(name: str) -> Kernel:
    return Kernel(name, 0.2, 3.0, 1.0)


def made(one: Kernel, panels: list[int], edges: list[int], dtype: str) -> list[KernelStep]:
    """A step for each panel; a partial sum for each block, merged in order."""
    x = one.prepared((X - SHIFT).astype(dtype))
    found = []
    for first, last in pairwise(panels):
        beside = {
            "panel": x[first:last],
            "lengths": squares(x),
            "shift": SHIFT,
            "vectors": V.astype(dtype),
        }
        total = KernelStep(kernel=one, first=first, width=3, n=N, w=last - first, measure=True)
        for i, (start, stop) in enumerate(pairwise([first, *[e for e in edges if e > first]])):
            part = total.blank()
            rows = X[start:stop].astype(dtype)
            labels = Labels.plain(X.shape)
            part.update(Block(rows, 0, start, stop, i, labels, arrays=dict(beside)))
            total.merge(part.from_state(part.state()))
        found.append(total)
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_products_of_every_kernel(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_step, "TILE", 4)
    monkeypatch.setattr(kernel_step, "ROWS", 7)
    values = kernel(name).exact(*[kernel(name).prepared(X - SHIFT)] * 2)
    size = np.abs(values) @ np.abs(V)
    close = 1e-13 if dtype == "float64" else 1e-5
    for panels in ([0, N], [0, 11, 24, N]):
        for edges in ([N], [5, 13, 20, 30, N]):
            steps = made(kernel(name), panels, edges, dtype)
            found: Any = sum(one.product for one in steps)
            assert np.max(np.abs(found - values @ V) / size) < close
            total = sum(one.squares for one in steps)
            np.testing.assert_allclose(total, np.sum(values**2), rtol=10 * close)


def test_an_untouched_step_changes_nothing() -> None:
    (step,) = made(kernel("rbf"), [0, N], [N], "float64")
    before = step.product.copy()
    step.merge(step.blank())
    np.testing.assert_array_equal(step.product, before)


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_exponentials_of_all_sizes_in_float32(name: str) -> None:
    x = np.array([[0.0], [1e-6], [0.3], [1.0], [4.0], [9.0], [40.0], [1e4]], np.float32)
    one = Kernel(name, 1.0, 3.0, 1.0)
    lengths = squares(x).astype(np.float32)
    found = one.tile(x[:1], x, lengths[:1], lengths)
    expected = one.exact(x[:1], x)
    np.testing.assert_allclose(found[0, :7], expected[0, :7], rtol=1e-6, atol=2e-38)
    assert found[0, 7] < 1e-37
