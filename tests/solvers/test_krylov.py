"""The searched space of the iteration, and its certificate, on matrices with a known spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from streampca.solvers import Certificate, KrylovSpace, Ritz, certify_ritz, start_block

K = 5


def _with_gap(values, i, relative):
    values = values.copy()
    values[i] = values[i - 1] * (1 - relative)
    return np.sort(values)[::-1]


def _equal(values, first, last):
    values = values.copy()
    values[first:last] = values[first]
    return np.sort(values)[::-1]


def _bulk(m, rng):
    noise = rng.standard_normal((m, 3 * m))
    values = np.sort(np.linalg.eigvalsh(noise @ noise.T / (3 * m)))[::-1]
    values[:3] += [20.0, 10.0, 4.0]
    return values


SPECTRA = {
    "fast": lambda m, rng: 100 * 0.5 ** np.arange(m),
    "1/i": lambda m, rng: 1 / np.arange(1.0, m + 1),
    "1/i^2": lambda m, rng: 1 / np.arange(1.0, m + 1) ** 2,
    "flat": lambda m, rng: 1 + 0.1 * np.sort(rng.random(m))[::-1],
    "four and a flat tail": lambda m, rng: np.append(
        [60.0, 30.0, 15.0, 8.0], np.sort(1 + rng.random(m - 4))[::-1]
    ),
    "gap of 1e-3 at the top": lambda m, rng: _with_gap(1 / np.arange(1.0, m + 1), 1, 1e-3),
    "gap of 1e-3 across k": lambda m, rng: _with_gap(1 / np.arange(1.0, m + 1), K, 1e-3),
    "equal values across k": lambda m, rng: _equal(1 / np.arange(1.0, m + 1), 2, 8),
    "more equal values than vectors": lambda m, rng: _equal(1 / np.arange(1.0, m + 1), 2, 40),
    "three above noise": _bulk,
}


@dataclass
class Step:
    """What an iteration claims after a step, and the truth."""

    ritz: Ritz
    certificate: Certificate
    angle: np.ndarray  # (k,) true angles
    error: np.ndarray  # (k,) true errors of the values
    simple: np.ndarray  # (k,) whether the true value differs from all others


def iterate(
    values: np.ndarray, width: int, steps: int, rng: np.random.Generator, multiply: bool = False
) -> Iterator[Step]:
    """Block Krylov from the leading directions of a perturbed matrix, or from random columns.

    multiply : judge the products of the vectors that are good already, not the vectors.
    """
    m = len(values)
    true = np.linalg.qr(rng.standard_normal((m, m)))[0]
    matrix = (true * values) @ true.T
    known = np.zeros((m, 0))
    if rng.random() < 0.7:  # what a first look gives
        sample = true @ (np.sqrt(values)[:, None] * rng.standard_normal((m, m // 2)))
        known = np.linalg.svd(sample, full_matrices=False)[0][:, : width - 4]
    space = KrylovSpace(m, steps * width, np.float64)
    block = start_block(known, width, np.ones(m, bool), rng)
    for step in range(steps):
        space.add(block, matrix @ block)
        ritz = space.ritz()
        floor = 1e-15 * values[0]
        which = (floor < ritz.residual[:K]) & (ritz.residual[:K] < 0.1 * ritz.values[:K])
        which &= multiply
        found = space.multiplied(ritz, K, which)
        np.testing.assert_allclose(found.T @ found, np.eye(K), atol=1e-10)
        certificate = certify_ritz(
            ritz.values, ritz.residual, K, values.sum(), floor, 1.0, step, 0.0, which
        )
        inside = np.abs(np.sum(found * true[:, :K], axis=0))
        outside = np.linalg.norm(found - true[:, :K] * np.sum(found * true[:, :K], axis=0), axis=0)
        others = np.abs(values[:K, None] - values) + np.diag(np.full(m, np.inf))[:K]
        yield Step(
            ritz,
            certificate,
            np.arctan2(outside, inside),
            np.abs(ritz.values[:K] - values[:K]),
            others.min(axis=1) > 1e-12 * values[0],
        )
        if space.size + width > m:
            return
        block = space.next_block(ritz, width, rng)


@pytest.mark.parametrize(
    "seeds", [range(5), pytest.param(range(5, 25), marks=pytest.mark.soak)], ids=["few", "all"]
)
@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("multiply", [False, True])
def test_every_certificate_bounds_the_error_and_is_not_far_above(kind, seeds, multiply):
    ratios = []
    for seed in seeds:  # of ten kinds: 250 cases
        rng = np.random.default_rng([seed, list(SPECTRA).index(kind)])
        m, width = int(rng.integers(60, 130)), int(rng.choice([12, 20, 28]))
        steps = int(rng.integers(1, 6))
        for step in iterate(SPECTRA[kind](m, rng), width, steps, rng, multiply):
            bound = step.certificate.angle_bound
            claimed = bound < np.pi / 2
            assert np.all(step.angle[claimed & step.simple] <= bound[claimed & step.simple] + 1e-7)
            assert not np.any(claimed & ~step.simple), "a direction among equal values is claimed"
            slack = 1e-13 * step.ritz.values[0]
            assert np.all(step.error <= step.certificate.variance_bound + slack)
            seen = claimed & (step.angle > 1e-7)
            ratios += list(bound[seen] / step.angle[seen])
    if len(ratios) > 20:
        assert np.quantile(ratios, 0.95) < 100


def test_a_flat_tail_is_never_certified_from_a_few_steps():
    rng = np.random.default_rng(0)
    for step in iterate(SPECTRA["three above noise"](200, rng), 20, 3, rng):
        wrong = step.angle > 0.1
        assert np.all(step.certificate.angle_bound[wrong] > 0.1)


def test_products_of_the_vectors_are_nearer_than_the_vectors():
    values = 100 * 0.3 ** np.arange(200.0)
    vectors, products = (
        next(iterate(values, 12, 1, np.random.default_rng(0), multiply))
        for multiply in (False, True)
    )
    assert np.all(vectors.angle[:3] > 1e-4)
    assert np.all(products.angle[:3] < 0.01 * vectors.angle[:3])
    bound, before = (one.certificate.angle_bound[:3] for one in (products, vectors))
    assert np.all(bound < 0.03 * before)


@pytest.mark.parametrize("unit", [1e-280, 1e-170, 1e170, 1e280])
def test_a_certificate_does_not_depend_on_the_unit(unit):
    values = SPECTRA["1/i"](100, None)
    before, after = (
        list(iterate(v, 20, 2, np.random.default_rng(3))) for v in (values, unit * values)
    )
    for plain, scaled in zip(before, after, strict=True):
        bound = plain.certificate.angle_bound
        np.testing.assert_allclose(scaled.certificate.angle_bound, bound, rtol=1e-6)
        np.testing.assert_allclose(scaled.ritz.residual / unit, plain.ritz.residual, rtol=1e-6)
        bound = plain.certificate.variance_bound
        np.testing.assert_allclose(scaled.certificate.variance_bound / unit, bound, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ritz_pairs_after_a_restart_are_those_before(dtype):
    rng = np.random.default_rng(1)
    values = SPECTRA["1/i"](150, rng)
    true = np.linalg.qr(rng.standard_normal((150, 150)))[0]
    matrix = (true * values) @ true.T
    space = KrylovSpace(150, 40, dtype)
    block = start_block(np.zeros((150, 0)), 20, np.ones(150, bool), rng).astype(dtype)
    for _ in range(2):
        space.add(block, matrix @ block)
        ritz = space.ritz()
        block = space.next_block(ritz, 20, rng)
    space.restart(ritz, 20)
    again = space.ritz()
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(again.values[:K], ritz.values[:K], rtol=20 * eps)
    np.testing.assert_allclose(again.residual[:K], ritz.residual[:K], atol=20 * eps, rtol=1e-3)
    before = block.astype(float)
    np.testing.assert_allclose(space.vectors(again, 20).T @ before, 0, atol=50 * eps)
    space.add(block, matrix @ block)  # and the iteration goes on
    assert space.ritz().residual[0] < ritz.residual[0] + 50 * eps


def test_a_start_block_is_orthonormal_and_has_random_columns():
    rng = np.random.default_rng(2)
    known = np.linalg.qr(rng.standard_normal((30, 4)))[0]
    live = np.arange(30) > 2
    known[~live] = 0.0
    block = start_block(known, 7, live, rng)
    np.testing.assert_allclose(block.T @ block, np.eye(7), atol=1e-12)
    np.testing.assert_allclose(block @ (block.T @ known), known, atol=1e-12)
    assert not block[~live].any()


def test_dependent_directions_are_replaced():
    rng = np.random.default_rng(3)
    known = np.repeat(rng.standard_normal((30, 2)), 3, axis=1)
    block = start_block(known, 6, np.ones(30, bool), rng)
    np.testing.assert_allclose(block.T @ block, np.eye(6), atol=1e-10)


def test_when_everything_is_searched_the_answer_is_exact():
    rng = np.random.default_rng(4)
    values = SPECTRA["flat"](60, rng)
    *_, last = iterate(values, 20, 3, rng)
    np.testing.assert_allclose(last.ritz.values, values, rtol=1e-12)
    assert np.all(last.certificate.angle_bound < 1e-6)
    assert last.certificate.beyond < 1e-12
