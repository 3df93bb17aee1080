"""``auto`` ends with the answer wherever the answer is affordable."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from streampca import PCA, TruncatedSVD
from streampca.errors import AccuracyWarning
from streampca.models.decompose.routes import AFFORDABLE, GO_OVER, within


def flat_tail(n=400, p=300, dtype="float32"):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, p))
    x += 20 * rng.standard_normal((n, 2)) @ rng.standard_normal((2, p))
    return x.astype(dtype)


def slowed(x, seconds):
    """Rates by which the p x p scatter is predicted to take so long: symmetric updates are slow."""

    def predicted(update):
        return dict(PCA(3, rates={"update": update}).plan(x).considered)["scatter"]

    slope = (predicted(1e4) - predicted(1e9)) / (1e-4 - 1e-9)
    return {"update": slope / (seconds - predicted(1e9) + slope * 1e-9)}


def test_an_affordable_exact_solver_is_taken_and_one_beyond_is_not():
    x, most = flat_tail(), AFFORDABLE[0][0]
    just, beyond = (slowed(x, seconds) for seconds in (0.99 * most, 1.01 * most))
    plan = PCA(3, rates=just).plan(x)
    assert plan.solver == "scatter"
    assert plan.then is None
    plan = PCA(3, rates=beyond).plan(x)
    assert plan.solver == "krylov"
    assert plan.then.solver == "scatter"


@pytest.mark.parametrize(
    ("seconds", "quickest", "taken"),
    [
        (0.19, 0.001, True),  # whatever an iteration takes
        (0.21, 0.001, False),
        (9.99, 2.5, True),
        (9.99, 2.4, False),  # more than 4 times as long
        (10.01, 2.6, False),
        (100.0, 80.1, True),
        (100.0, 79.9, False),  # more than 1.25 times as long
    ],
)
def test_both_sides_of_what_is_affordable(seconds, quickest, taken):
    assert within(AFFORDABLE, seconds, quickest) == taken


def test_what_is_gone_over_to_is_affordable_too():
    x, most = flat_tail(), GO_OVER[0][0]
    for seconds, then in ((0.99 * most, True), (1.01 * most, False)):
        plan = PCA(3, rates=slowed(x, seconds)).plan(x)
        assert (plan.then is not None) == then


@pytest.mark.parametrize("words", [{"tol": 1e-4}, {"max_passes": 8}, {"iterated_power": 3}])
def test_limits_of_an_iteration_mean_iterate(words):
    plan = PCA(3, **words).plan(flat_tail())
    assert plan.solver == "krylov"
    assert (plan.then is None) == ("tol" not in words)
    if "iterated_power" not in words:
        assert TruncatedSVD(3, **words).plan(flat_tail()).solver == "krylov"


@pytest.mark.parametrize("n", [400, 200])
def test_an_iteration_goes_over_where_it_cannot_certify(n):
    """A flat tail: no direction of it can be certified in the passes that there are."""
    x = flat_tail(n, 300, "float64")
    exact = PCA(8, svd_solver="scatter" if n > 300 else "gram").fit(x)
    advances = []
    model = PCA(8, tol=1e-4, progress=advances.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x)
    plan = model.plan_
    assert (plan.solver, plan.then is not None) == ("krylov", True)
    assert plan.peak_nbytes >= plan.then.peak_nbytes
    assert f"then      {plan.then.solver}" in str(plan)
    assert plan.to_dict()["then"]["solver"] == plan.then.solver
    assert {cost.name for cost in model.cost_} >= {"look", plan.then.passes[0].name}
    assert len(model.cost_) <= plan.n_passes
    numbers = [one.pass_number for one in advances]
    assert numbers == sorted(numbers)
    np.testing.assert_allclose(model.explained_variance_, exact.explained_variance_, rtol=1e-6)
    assert np.all(model.certificate_.angle_bound[:2] < 1e-4)
    assert np.all(model.certificate_.variance_bound < 1e-5 * model.explained_variance_[0])


@pytest.mark.parametrize("n", [400, 200])
def test_an_iteration_does_not_go_over_where_rounding_alone_is_left(n):
    """The exact solver rounds as much: it could certify no more."""
    x = flat_tail(n, 300, "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PCA(8, tol=1e-4).fit(x)
    assert model.plan_.then is not None
    assert {cost.name.split()[0] for cost in model.cost_} <= {"look", "step", "loadings"}
    singular = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64), compute_uv=False)[:8]
    error = np.abs(model.explained_variance_ - singular**2 / (n - 1))
    assert np.all(error <= model.certificate_.variance_bound)
    assert np.all(model.certificate_.angle_bound[:2] < 1e-4)
    assert np.all(model.certificate_.variance_bound < 1e-5 * model.explained_variance_[0])


def test_reads_that_are_limited_are_not_exceeded():
    x = flat_tail()
    with pytest.warns(AccuracyWarning, match=r"not certified.*solver='scatter' is exact"):
        model = PCA(8, max_passes=3).fit(x)
    assert len(model.cost_) <= 3


def test_what_float32_cannot_resolve_is_no_warning():
    rng = np.random.default_rng(1)
    u = np.linalg.qr(rng.standard_normal((600, 4)) - 0.0)[0]
    u -= u.mean(axis=0)
    v = np.linalg.qr(rng.standard_normal((40, 4)))[0]
    x = (u * [100.0, 50.0, 50.0 * (1 + 1e-8), 1.0]) @ v.T
    x = x.astype("float32")
    for solver in ("randomized", "scatter", "gram"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bound = PCA(3, svd_solver=solver).fit(x).certificate_.angle_bound
        assert bound[0] < 1e-4
        assert np.all(bound[1:] > 10 * bound[0])


def test_tables_state_bounds_that_say_something():
    x = np.random.default_rng(0).standard_normal((400, 30)) @ np.diag([6.0, 5, 5, *[1.0] * 27])
    result = PCA(3).fit(x).result_
    loose = replace(
        result.certificate,
        variance_bound=np.array([1e-9, 4.7e4, 1e-9]),
        angle_bound=np.array([1e-9, np.pi / 2, 0.9]),
    )
    lines = replace(result, certificate=loose).table().splitlines()
    assert lines[1].split()[-2:] == ["1.0e-09", "1.0e-09"]
    assert lines[2].endswith("not determined not determined")
    assert lines[3].split()[-2:] == ["1.0e-09", "9.0e-01"]


@pytest.mark.parametrize("solver", ["scatter", "gram"])
def test_noise_that_is_determined_is_not_called_rounding(solver: str) -> None:
    """Variances of 1e-6 of the largest, known to a tenth: float32 resolves them."""
    rng = np.random.default_rng(0)
    u = np.linalg.qr(rng.standard_normal((6000, 10)))[0]
    v = np.linalg.qr(rng.standard_normal((300, 10)))[0]
    x = (600 * np.sqrt(6000) * u @ v.T + rng.standard_normal((6000, 300))).astype("f4")
    x = x if solver == "scatter" else np.ascontiguousarray(x.T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PCA(20, svd_solver=solver).fit(x)
    z = x.astype("f8") - x.mean(axis=0, dtype="f8")
    true = np.linalg.svd(z, compute_uv=False)[:20] ** 2 / (len(x) - 1)
    error, bound = abs(model.explained_variance_ - true), model.certificate_.variance_bound
    assert (error <= bound).all()
    assert bound[-1] < 0.2 * true[-1]
    assert model.result_.rank >= 20
