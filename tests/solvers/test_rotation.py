"""Varimax and promax against an independent iteration, R's printed solutions, and laws."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from streampca.errors import InvalidInputError
from streampca.solvers import promax, rotate_loadings, varimax


def by_singular_vectors(loadings, normalize=True, steps=5000):
    """Varimax as R iterates it (all planes at once, by an SVD), run to the end."""
    scale = np.sqrt((loadings**2).sum(axis=1, keepdims=True)) if normalize else 1.0
    x = loadings / scale
    turn = np.eye(x.shape[1])
    for _ in range(steps):
        z = x @ turn
        u, _, v = np.linalg.svd(x.T @ (z**3 - z * (z**2).mean(axis=0)))
        before, turn = turn, u @ v
        if np.abs(turn - before).max() < 1e-15:
            break
    return loadings @ turn, turn


def criterion(loadings, normalize):
    x = loadings / np.sqrt((loadings**2).sum(axis=1, keepdims=True)) if normalize else loadings
    return float(np.sum((x**2).var(axis=0)))


def simple_structure(p, k, seed, noise=0.05):
    """Loadings on one factor each, turned at random: the optimum is well defined."""
    rng = np.random.default_rng(seed)
    loadings = np.zeros((p, k))
    loadings[np.arange(p), np.arange(p) % k] = rng.uniform(0.4, 1.0, p)
    loadings += noise * rng.normal(size=(p, k))
    return loadings @ np.linalg.qr(rng.normal(size=(k, k)))[0]


def matched(a, b):
    """Columns of b in the order and with the signs of a."""
    overlap = a.T @ b / np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
    order = np.abs(overlap).argmax(axis=1)
    assert sorted(order) == list(range(a.shape[1]))
    return b[:, order] * np.sign(overlap[np.arange(len(order)), order])


@given(
    p=st.integers(12, 80), k=st.integers(2, 6), seed=st.integers(0, 999), normalize=st.booleans()
)
def test_varimax_is_the_optimum_of_an_independent_iteration(p, k, seed, normalize):
    loadings = simple_structure(p, k, seed)
    found = varimax(loadings, normalize=normalize)
    theirs, _ = by_singular_vectors(loadings, normalize)
    assert found.converged
    np.testing.assert_allclose(matched(found.loadings, theirs), found.loadings, atol=1e-6)
    np.testing.assert_allclose(found.matrix.T @ found.matrix, np.eye(k), atol=1e-13)
    np.testing.assert_allclose(loadings @ found.matrix, found.loadings, atol=1e-13)
    np.testing.assert_allclose(found.correlations, np.eye(k), atol=1e-12)
    assert criterion(found.loadings, normalize) >= criterion(loadings, normalize) - 1e-12
    again = varimax(loadings, normalize=normalize)
    np.testing.assert_array_equal(again.loadings, found.loadings)
    padded = varimax(np.vstack([loadings, np.zeros((3, k))]), normalize=normalize)
    np.testing.assert_allclose(padded.matrix, found.matrix, atol=1e-8)
    assert not padded.loadings[-3:].any()


@given(seed=st.integers(0, 999), power=st.sampled_from([2.0, 3.0, 4.0]))
def test_promax_is_least_squares_to_the_powers(seed, power):
    rng = np.random.default_rng(seed)
    loadings = simple_structure(60, 3, seed, 0.2) + 0.3 * rng.random((60, 1))
    simple, _ = by_singular_vectors(loadings)
    turn = np.linalg.lstsq(simple, np.sign(simple) * np.abs(simple) ** power, rcond=None)[0]
    turn *= np.sqrt(np.diag(np.linalg.inv(turn.T @ turn)))
    found = rotate_loadings(loadings, "promax", power=power)
    expected = matched(found.loadings, simple @ turn)
    np.testing.assert_allclose(expected, found.loadings, atol=1e-5)
    phi = found.correlations
    np.testing.assert_allclose(np.diag(phi), 1.0, atol=1e-12)
    np.testing.assert_allclose(
        found.loadings @ phi @ found.loadings.T, loadings @ loadings.T, atol=1e-10
    )
    straight = promax(varimax(loadings), 1.0)
    np.testing.assert_allclose(straight.correlations, np.eye(3), atol=1e-10)


@pytest.mark.parametrize("method", ["varimax", "quartimax"])
def test_the_best_of_several_optima_is_kept(method):
    def value(turned):
        x = turned / np.sqrt((turned**2).sum(axis=1, keepdims=True))
        second = np.sum(np.sum(x**2, axis=0) ** 2) / len(x)
        return np.sum(x**4) - (second if method == "varimax" else 0.0)

    better = []
    for seed in (3, 4, 5):
        loadings = np.random.default_rng(seed).normal(size=(40, 8))
        plain = rotate_loadings(loadings, method, restarts=0)
        found = rotate_loadings(loadings, method)
        assert (plain.starts, plain.optima, found.starts) == (1, 1, 9)
        np.testing.assert_allclose(found.matrix.T @ found.matrix, np.eye(8), atol=1e-12)
        if np.array_equal(found.matrix, plain.matrix):  # the same optimum, to the last bit
            continue
        assert found.optima > 1
        better.append(seed)
        assert value(found.loadings) > value(plain.loadings) * (1 + 1e-6)
        if method == "varimax":  # no independent iteration finds a better one
            rng = np.random.default_rng(0)
            turns = [np.linalg.qr(rng.normal(size=(8, 8)))[0] for _ in range(10)]
            others = [by_singular_vectors(loadings @ turn, steps=300)[0] for turn in turns]
            assert value(found.loadings) >= 0.9999 * max(map(value, others))
    assert better == [3]


def test_loadings_with_simple_structure_keep_their_rotation_and_many_rows_are_sampled():
    loadings = simple_structure(5000, 4, 3)
    found = rotate_loadings(loadings)
    assert found.starts == 9
    assert found.reached >= 5
    np.testing.assert_array_equal(found.matrix, varimax(loadings).matrix)
    assert rotate_loadings(loadings[:, :2]).starts == 1  # a plane has one optimum


def test_what_cannot_be_rotated():
    loadings = simple_structure(20, 3, 0)
    with pytest.raises(InvalidInputError, match="expected one of varimax, promax, quartimax"):
        rotate_loadings(loadings, "oblimin")
    with pytest.raises(InvalidInputError, match=r"power=0\.5; expected 1 or more"):
        rotate_loadings(loadings, "promax", power=0.5)
    with pytest.raises(InvalidInputError, match="all loadings are zero"):
        varimax(np.zeros((4, 2)))
    with pytest.raises(InvalidInputError, match="expected finite"):
        varimax(np.full((4, 2), np.nan))
    stopped = varimax(loadings, max_sweeps=1)
    assert not stopped.converged
    assert stopped.angle > 1e-9


def test_one_column_and_a_flat_criterion_stay():
    one = varimax(np.arange(1.0, 5.0)[:, None])
    assert one.converged
    np.testing.assert_array_equal(one.matrix, [[1.0]])
    flat = varimax(np.eye(2)[[0, 1, 0, 1]] + 0.0, normalize=False)
    np.testing.assert_allclose(np.abs(flat.matrix).max(axis=0), 1.0)


# -- R ---------------------------------------------------------------------------------------


def swiss_factors(shared_data):
    """Two maximum-likelihood factors of R's ``swiss``, by another optimiser than R's."""
    lines = (shared_data / "r_datasets" / "swiss.tab").read_text().splitlines()[1:]
    X = np.array([re.split(r"\t", line)[1:] for line in lines], dtype=float)
    correlation = np.corrcoef(X.T)

    def tail(unique):
        values = np.linalg.eigvalsh(correlation / np.sqrt(np.outer(unique, unique)))[:-2]
        return float(np.sum(values - np.log(values) - 1.0))

    start = (1 - 0.5 * 2 / 6) / np.diag(np.linalg.inv(correlation))
    unique = minimize(tail, start, bounds=[(0.005, 1.0)] * 6, tol=1e-14).x
    values, vectors = np.linalg.eigh(correlation / np.sqrt(np.outer(unique, unique)))
    loadings = vectors[:, -2:] * np.sqrt(values[-2:] - 1.0)
    return loadings * np.sqrt(unique)[:, None]


def printed(shared_data, call):
    """(6, 2) loadings that R printed below a call; what it left blank (< 0.1) is NaN."""
    text = (shared_data / "r_datasets" / "R_reference_outputs.txt").read_text()
    lines = text.split(f"> {call}")[1].splitlines()[5:11]
    cells = [[line[17:24].strip(), line[24:32].strip()] for line in lines]
    return np.array([[float(c) if c else np.nan for c in row] for row in cells])


@pytest.mark.parametrize("name", ["varimax", "promax"])
def test_printed_solutions_of_r(shared_data, name):
    call = {"varimax": "varimax(loadings(fa), normalize = FALSE)", "promax": "promax(loadings(fa))"}
    theirs = printed(shared_data, call[name])
    loadings = swiss_factors(shared_data)
    ours = rotate_loadings(loadings, name, normalize=name == "promax").loadings
    blank = np.isnan(theirs)
    ours = matched(np.where(blank, 0.0, theirs), ours)
    np.testing.assert_allclose(ours[~blank], theirs[~blank], atol=6e-4)  # 3 digits are printed
    assert np.all(np.abs(ours[blank]) < 0.1)
    if name == "varimax":
        ours = varimax(varimax(loadings).loadings, normalize=False).matrix
        # R stops where its criterion changes by less than 1e-5
        assert abs(abs(ours[0, 1]) - 0.007227595) < 5e-4
