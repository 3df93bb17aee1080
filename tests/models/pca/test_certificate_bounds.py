"""No bound of a certificate is violated: seeded fits of matrices on which sums round badly.

The default run makes a fit of each case, CI does so under every kernel of OpenBLAS that its
processor has, and ``-m soak`` makes 500 of each.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from streampca import PCA
from streampca.errors import AccuracyWarning, DominantFeatureWarning
from streampca.solvers import Spectrum, certify
from tests.openblas_kernels import kernels

SOLVERS = {"scatter": "scatter", "tsqr": "tsqr", "gram": "gram", "randomized": "randomized"}
SHAPES = ((1000, 6), (2000, 60), (300, 40), (60, 300))


def sorted_rows(rng, n, p):
    """Rows in the order of their sizes: neighbours are nearly equal."""
    x = rng.standard_normal((n, p)) * np.linspace(1, 3, p)
    return x[np.argsort(np.abs(x).sum(axis=1))]


def giant_row(rng, n, p):
    """One row that is a thousand times as large: all others are small beside it, and moved alike
    by the mean."""
    x = rng.standard_normal((n, p))
    x[rng.choice([-1, rng.integers(n)])] *= 10.0 ** rng.uniform(1, 6)
    return x


def one_cell(rng, n, p):
    """One large cell among equal ones."""
    x = np.zeros((n, p))
    x[rng.integers(n), rng.integers(p)] = rng.uniform(1, 9)
    return x


def zero_inflated(rng, n, p):
    """Counts, nine of ten 0, of columns of very different means; every other time sorted."""
    x = rng.poisson(rng.gamma(0.5, 2.0, p), (n, p)) * (rng.random((n, p)) < 0.1)
    return np.sort(x, axis=0) if rng.random() < 0.5 else x


def near_equal(rng, n, p):
    """Variances that nearly agree across k: their components turn easily."""
    k = min(p, n) // 2
    scale = np.ones(p)
    scale[:k] = 3.0 + 1e-4 * rng.standard_normal(k)
    return rng.standard_normal((n, p)) * scale


def offsets(rng, n, p):
    """Small deviations from large means."""
    return 10.0 ** rng.uniform(0, 4, p) + rng.standard_normal((n, p)) * np.linspace(1, 2, p)


def repeated(rng, n, p):
    """Columns that repeat each other, and rows of a few kinds."""
    kinds = rng.standard_normal((4, p))
    kinds[:, p // 2 :] = kinds[:, : p - p // 2]
    return kinds[rng.integers(0, 4, n)] + 0.01 * rng.standard_normal((n, p))


LAYOUTS = (sorted_rows, giant_row, one_cell, zero_inflated, near_equal, offsets, repeated)


def exact(x, k):
    """Variances (k,), components (k, p), all variances: of the stored values, to float64."""
    z = x.astype(np.longdouble)
    z = (z - z.mean(axis=0)).astype(np.float64)
    _, s, vt = np.linalg.svd(z, full_matrices=False)
    values = s**2 / (len(x) - 1)
    return values[:k], vt[:k], values


def violations(x, solver, k):
    """Words for each bound that does not hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", DominantFeatureWarning)
        model = PCA(k, svd_solver=solver, progress=False).fit(x)
    values, vectors, every = exact(x, k)
    k = len(model.explained_variance_)
    values, vectors, bound = values[:k], vectors[:k], model.certificate_
    known = 8 * np.finfo(float).eps * np.sqrt(min(x.shape)) * values[0]  # of the reference
    error = np.abs(model.explained_variance_ - values)
    found = [
        f"variance {i + 1}: {error[i]:.2e} > {bound.variance_bound[i]:.2e}"
        for i in np.flatnonzero(error > bound.variance_bound + known)
    ]
    inner = np.abs(np.sum(model.components_ * vectors, axis=1))
    rest = model.components_ - np.sum(model.components_ * vectors, axis=1)[:, None] * vectors
    angle = np.arctan2(np.linalg.norm(rest, axis=1), inner)
    others = np.abs(values[:, None] - every[None, :])
    others[np.arange(k), np.arange(k)] = np.inf
    least = np.maximum(others.min(axis=1, initial=np.inf), 1e-300)
    slack = 1e-15 * np.sqrt(x.shape[1]) + 4 * known / least
    for i in np.flatnonzero((bound.angle_bound < 1.5) & (angle > bound.angle_bound + slack)):
        found.append(f"angle {i + 1}: {angle[i]:.2e} > {bound.angle_bound[i]:.2e}")
    return found


def check(layout, solver, dtype, seeds):
    failed = []
    for seed in seeds:
        rng = np.random.default_rng([seed, LAYOUTS.index(layout)])
        n, p = SHAPES[seed % len(SHAPES)]
        tall = solver in ("scatter", "tsqr") and p > n
        if tall or (solver == "gram" and n > 1000):  # then its sums are the long ones
            n, p = p, n
        x = layout(rng, n, p).astype(dtype)
        k = int(rng.integers(1, min(n, p) // 2 + 1))
        failed += [f"seed {seed} {n} x {p}, k={k}: {one}" for one in violations(x, solver, k)]
    assert not failed, "\n".join(failed)


cases = pytest.mark.parametrize(
    ("solver", "layout", "dtype"),
    [
        pytest.param(solver, layout, dtype, id=f"{solver}-{layout.__name__}-{dtype}")
        for solver in SOLVERS
        for layout in LAYOUTS
        for dtype in ("float32", "float64")
        if (solver, dtype) != ("tsqr", "float32")
    ],
)


def test_the_kernel_is_the_one_that_was_asked():
    wanted = os.environ.get("OPENBLAS_CORETYPE")
    found = {one.get("architecture") for one in threadpool_info() if "openblas" in one["filepath"]}
    if wanted in kernels() and found:
        assert found == {wanted}


@cases
def test_no_bound_is_violated(solver, layout, dtype):
    check(layout, solver, dtype, range(1))


@pytest.mark.soak
@cases
def test_no_bound_is_violated_in_five_hundred_fits(solver, layout, dtype):
    check(layout, solver, dtype, range(500))


@pytest.mark.parametrize("solver", ["gram", "randomized"])
def test_rounding_of_the_entries_is_within_the_bound(solver):
    """Sums are short, and both kinds of weights are as far as can be from what float32 holds."""
    x = np.array([[-1.0, 1.0], [1.0, -1.0]], "float32")
    off = 1 + 0.95 * 2.0**-24
    model = PCA(1, svd_solver=solver, weights=np.full(2, off))
    model.fit(x, sample_weight=np.full(2, off**2))
    error = abs(model.explained_variance_[0] - 4 * off**4 / (2 * off**2 - 1))
    assert 1e-7 < error < model.certificate_.variance_bound[0] < 10 * error


def test_values_below_the_rounding_are_bounded_by_all_of_it():
    """A row of zeros has no rounding of its own, but its value may stand in for one that has."""
    values = np.array([1.0, 0.0])
    spectrum = Spectrum(values, np.eye(3)[:, :2], 0.0, 1.0, 0.0)
    bound = certify(np.zeros(2), spectrum, 0.0, 1.0, 1, 1, np.array([1e-7, 0.0])).variance_bound
    np.testing.assert_array_equal(bound, [1e-7, 1e-7])


def test_a_component_turns_with_an_uncertain_neighbour():
    """The error of an eigenvalue is at most the residual; of the angle, those beside it count."""
    spectrum = Spectrum(np.array([5.0, 4.0, 3.0, 2.0]), np.eye(5)[:, :4], 1.0, 15.0, 55.0)
    found = certify(np.array([0.0, 0.1, 0.0, 0.0]), spectrum, 0.0, 1.0, 1, 4)
    np.testing.assert_allclose(found.angle_bound, np.arcsin([0.2, 0.2, 0.2, 0.0]))


def test_means_put_into_holes_are_not_rounded():
    """Beside holes an error of the mean counts in full: 1e-7 of a mean of 1e9."""
    rng = np.random.default_rng(0)
    x = 1e9 + rng.standard_normal((200, 6))
    x[rng.random(x.shape) < 0.3] = np.nan
    z = x - 1e9  # exactly
    z = np.nan_to_num(z - np.nanmean(z, axis=0))
    model = PCA(2, svd_solver="scatter", missing="mean").fit(x)
    expected = np.linalg.svd(z)[1][:2] ** 2 / 199
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-13)
