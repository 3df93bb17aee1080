"""Factor analysis read by read: the maximum that the p x p solver finds, and how it knows."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from streampca import FactorAnalysis
from streampca.errors import AccuracyWarning, ConvergenceWarning, InvalidInputError, NonFiniteError
from streampca.solvers import FactorSurrogate, maximum_likelihood
from tests.models.latent.test_factor_analysis import measured
from tests.models.latent.test_ppca_holes import likelihood


def pair(X, k, tol=1e-6, **more):
    exact = FactorAnalysis(k, solver="scatter", **more).fit(X)
    return exact, FactorAnalysis(k, solver="streamed", tol=tol, **more).fit(X)


@pytest.mark.parametrize(
    ("n", "p", "k", "seed"), [(400, 60, 2, 0), (300, 150, 4, 1), (90, 200, 3, 2), (500, 9, 2, 3)]
)
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_streamed_factors_reach_the_maximum_of_the_scatter_solver(n, p, k, seed):
    X = measured(n, p, k, seed)
    exact, model = pair(X, k)
    assert model.converged_
    assert model.log_likelihood_ == pytest.approx(exact.log_likelihood_, abs=2e-6)
    np.testing.assert_allclose(model.uniquenesses_, exact.uniquenesses_, atol=1e-4)
    np.testing.assert_allclose(model.loadings_, exact.loadings_, atol=1e-3)
    np.testing.assert_allclose(model.get_covariance(), exact.get_covariance(), rtol=1e-3, atol=0.05)
    assert model.score_samples(X).sum() == pytest.approx(model.log_likelihood_, rel=1e-11)
    trace = model.trace_
    assert np.all(np.diff(trace) >= 0)
    assert trace[-1] == pytest.approx(model.log_likelihood_, rel=1e-13)
    names = [cost.name for cost in model.cost_]
    assert names == ["look", *(f"step {i + 1}" for i in range(model.n_iter_))]
    assert model.n_iter_ <= 7
    assert np.isnan(model.p_value_)


@pytest.mark.parametrize("seed", range(3))
def test_the_gain_of_streamed_factors_is_what_they_lack(seed):
    """The promise of the next optimum is what the p x p solver finds beyond."""
    X = measured(250, 120, 3, seed)
    exact, model = pair(X, 3, tol=2.0)
    left = exact.log_likelihood_ - model.log_likelihood_
    assert 0 < left < 2.0
    assert model.result_.gain == pytest.approx(left, rel=0.2)
    with pytest.warns(ConvergenceWarning, match="max_passes=3"):
        early = FactorAnalysis(3, solver="streamed", max_passes=3, tol=1e-9).fit(X)
    assert len(early.cost_) == 3
    assert not early.converged_


def left_to_gain(model, X):
    """Of the log-likelihood, up to the maximum that Newton steps reach from here."""
    S = np.corrcoef(X.T)
    sigma = model.loadings_ @ model.loadings_.T + np.diag(model.uniquenesses_)
    here = np.linalg.slogdet(sigma)[1] + np.trace(np.linalg.solve(sigma, S))
    best = maximum_likelihood(S, model.n_components, start=model.uniquenesses_)
    assert best.converged
    return 0.5 * len(X) * (here - best.discrepancy)


@pytest.mark.parametrize(("k", "seed"), [(2, 4), (3, 5)])
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_a_covariance_that_is_known_entirely_is_solved_exactly(k, seed):
    """As many directions as features: S is known, and EM on it would creep."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6)) + rng.normal(size=(200, 6))
    exact, model = pair(X, k, tol=1e-2)
    assert model.log_likelihood_ == pytest.approx(exact.log_likelihood_, rel=1e-12)
    np.testing.assert_allclose(model.uniquenesses_, exact.uniquenesses_, atol=1e-6)
    assert (model.n_iter_, model.result_.gain, model.converged_) == (1, 0.0, True)
    assert len(model.trace_) == 1


@pytest.mark.parametrize(
    ("n", "p", "strength", "k", "tol"),
    [(300, 120, 0.3, 6, 1e-4), (400, 200, 0.5, 8, 1e-2), (250, 90, 3.0, 5, 1e-2)],
)
@pytest.mark.filterwarnings("ignore::streampca.errors.HeywoodWarning")
def test_more_factors_than_the_data_hold_are_found_and_judged(n, p, strength, k, tol):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) @ (strength * rng.normal(size=(3, p)))
    X += rng.normal(size=(n, p)) * rng.uniform(0.2, 2.0, p)
    model = FactorAnalysis(k, solver="streamed", tol=tol).fit(X)
    assert model.converged_
    assert model.n_iter_ <= 30  # the basis forgets, and goes on
    assert model.log_likelihood_ == pytest.approx(model.score_samples(X).sum(), rel=1e-11)
    left = left_to_gain(model, X)
    assert left <= 2.0 * model.result_.gain + 1e-6
    assert model.result_.gain <= tol


@pytest.mark.parametrize("kind", ["dask", "sparse", "float32"])
def test_every_source_gives_the_same(kind):
    X = np.rint(measured(220, 40, 2, seed=6))
    exact = FactorAnalysis(2, solver="scatter").fit(X)
    source = {
        "dask": lambda: da.from_array(X, chunks=(50, 40)),
        "sparse": lambda: scipy.sparse.csr_array(X),
        "float32": lambda: X.astype(np.float32),
    }[kind]()
    model = FactorAnalysis(2, solver="streamed", tol=1e-4).fit(source)
    np.testing.assert_allclose(model.uniquenesses_, exact.uniquenesses_, atol=2e-4)
    assert model.log_likelihood_ == pytest.approx(exact.log_likelihood_, abs=5e-3)


def test_weights_holes_and_constant_features():
    X = measured(150, 30, 2, seed=7)
    weights = np.random.default_rng(0).integers(0, 4, 150)
    weighted = FactorAnalysis(2, solver="streamed", tol=1e-6).fit(X, sample_weight=weights)
    exact = FactorAnalysis(2, solver="scatter").fit(np.repeat(X, weights, axis=0))
    assert weighted.log_likelihood_ == pytest.approx(exact.log_likelihood_, abs=1e-5)
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    X = np.insert(X, 3, 2.0, axis=1)
    exact, model = pair(X, 2, missing="mean")
    np.testing.assert_allclose(model.uniquenesses_, exact.uniquenesses_, atol=1e-4)
    np.testing.assert_allclose(model.noise_variance_, exact.noise_variance_, rtol=1e-3)
    assert model.uniquenesses_[3] == 0.0
    with pytest.raises(NonFiniteError, match="NaN"):
        FactorAnalysis(2, solver="streamed").fit(X)


def test_auto_goes_by_memory_and_time():
    small, large = np.zeros((300, 50)), np.zeros((10, 6000))
    plan = FactorAnalysis(2).plan(small)
    assert (plan.solver, plan.n_passes) == ("scatter", 1)
    plan = FactorAnalysis(2, max_passes=9).plan(large)
    assert (plan.solver, plan.n_passes) == ("streamed", 9)
    assert FactorAnalysis(2, solver="scatter").plan(large).peak_nbytes > 6000**2 * 8
    assert plan.peak_nbytes < 6000**2 * 8
    with pytest.raises(InvalidInputError, match="max_passes=2; expected a number from 3"):
        FactorAnalysis(2, max_passes=2).plan(small)
    with pytest.warns(AccuracyWarning):  # nothing varies
        model = FactorAnalysis(2, solver="streamed").fit(np.zeros((10, 5)))
    assert np.all(model.loadings_ == 0)


def test_the_surrogate_agrees_on_its_basis_and_on_the_diagonal():
    S = np.corrcoef(measured(200, 40, 3, seed=9).T)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 7)))[0]
    surrogate = FactorSurrogate(40, 0.005)
    surrogate.add(basis[:, :5], S @ basis[:, :5])
    surrogate.add(basis[:, 5:], S @ basis[:, 5:])
    made = surrogate.times(np.eye(40))
    np.testing.assert_allclose(made @ basis, S @ basis, atol=1e-12)
    np.testing.assert_allclose(made, made.T, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(made), 1.0, atol=1e-3)
    assert np.linalg.eigvalsh(made)[0] > -1e-12
    loadings, unique = surrogate.start(3)
    point = surrogate.point(loadings, unique, exact=False)
    sigma = loadings @ loadings.T + np.diag(unique)
    inverse = np.linalg.inv(sigma)
    assert point.log_determinant == pytest.approx(np.linalg.slogdet(sigma)[1])
    full = np.trace(inverse @ made) + np.sum((1 - np.diagonal(made)) / unique)
    assert point.trace == pytest.approx(full, rel=1e-3)
    slope = unique * np.diagonal(inverse - inverse @ made @ inverse)
    np.testing.assert_allclose(point.gradient, slope, atol=5e-3)


# -- holes -------------------------------------------------------------------------------------


def with_holes(X, share=0.2):
    Y = X.copy()
    Y[np.random.default_rng(1).random(X.shape) < share] = np.nan
    return Y


@pytest.mark.parametrize("solver", ["scatter", "streamed"])
@pytest.mark.parametrize(("n", "p", "k"), [(200, 8, 2), (150, 30, 3)])
def test_em_leaves_holes_out_of_the_likelihood(n, p, k, solver):
    Y = with_holes(measured(n, p, k))
    model = FactorAnalysis(k, missing="em", solver=solver, tol=1e-5, max_passes=400).fit(Y)
    trace = model.trace_
    assert np.all(np.diff(trace) >= -1e-12 * abs(trace[-1]))
    assert model.log_likelihood_ == pytest.approx(trace[-1], rel=1e-13)
    direct = likelihood(Y, model.mean_, model.get_covariance())
    assert model.log_likelihood_ == pytest.approx(direct, rel=1e-11)
    assert model.score_samples(Y).sum() == pytest.approx(direct, rel=1e-11)
    np.testing.assert_allclose(model.result_.communalities, 1 - model.uniquenesses_, atol=1e-9)
    rng = np.random.default_rng(2)
    inner, deviation = model.result_.factor_model, model.scale_
    for size in (3e-3, 3e-2):
        for _ in range(5):
            w = inner.loadings + size * rng.normal(size=(p, k))
            noise = inner.noise * np.exp(size * rng.normal(size=p))
            sigma = (w @ w.T + np.diag(noise)) * np.outer(deviation, deviation)
            assert likelihood(Y, model.mean_, sigma) < direct + 1e-3
    before = [cost.name for cost in model.cost_ if not cost.name.startswith("em")]
    assert len(model.cost_) == len(before) + len(trace)
    assert model.plan_.n_passes == (1 if solver == "scatter" else 400) + 400


def test_em_without_holes_is_the_closed_solution():
    X = measured(150, 9, 2, seed=4)
    plain, model = FactorAnalysis(2).fit(X), FactorAnalysis(2, missing="em").fit(X)
    np.testing.assert_allclose(model.uniquenesses_, plain.uniquenesses_, rtol=1e-7)
    assert model.p_value_ == pytest.approx(plain.p_value_)
    assert [cost.name for cost in model.cost_] == ["scatter"]
    X[0, 0] = np.nan
    model = FactorAnalysis(2, missing="em", tol=1e-6).fit(X)
    np.testing.assert_allclose(model.uniquenesses_, plain.uniquenesses_, atol=0.02)
    assert np.isnan(model.p_value_)
