"""EM after the fit of the mean-filled matrix, as one planned fit: plans, going over, resuming."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from streampca import PPCA, FactorAnalysis
from streampca.errors import EmptySamplesWarning
from tests.models.latent.test_ppca_holes import holed
from tests.models.pca.test_exact_first import flat_tail, slowed


@pytest.mark.slow
def test_an_interrupted_choice_by_bic_resumes_in_the_same_em(tmp_path, monkeypatch):
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 2000)
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_LENGTH", 20)
    Y, _, _ = holed(60, 5, 1, seed=0, holes=0.1)
    source, folder = da.from_array(Y, chunks=(20, 5)), str(tmp_path / "checkpoint")
    whole = PPCA("bic", random_state=0).fit(source)
    names = [cost.name for cost in whole.cost_]
    assert names == ["scatter", *(f"em {i + 1}" for i in range(len(names) - 1))]  # each its own
    last = len(names) - 1
    assert len(whole.trace_) < last - 1, "there were others before the last EM"

    def stop(advance: Any) -> None:
        if advance.pass_name == f"em {last}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PPCA("bic", random_state=0, checkpoint=folder, progress=stop).fit(source)
    resumed = PPCA("bic", random_state=0, checkpoint=folder).fit(source)
    np.testing.assert_array_equal(resumed.trace_, whole.trace_)
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert [cost.blocks == 0 for cost in resumed.cost_] == [True] * last + [False]  # none twice
    assert not list((tmp_path / "checkpoint").glob("pass-*"))


@pytest.mark.parametrize("holes", [0.0])
def test_an_uncertified_pca_is_replaced_by_the_exact_one_before_em_begins(holes):
    """A flat tail, which an iteration cannot certify: EM begins at the exact components."""
    Y = flat_tail(400, 300, "float64")
    Y[np.random.default_rng(0).random(Y.shape) < holes] = np.nan
    slow = slowed(np.nan_to_num(Y), 20.0)  # rates by which the iteration comes first
    model = PPCA(8, rates=slow, random_state=0, tol=1e9).fit(Y)
    plan = model.plan_
    assert plan.solver == "krylov"
    before = [one for one in plan.passes if one.name != "em"]  # EM follows either answer once
    assert plan.n_passes == sum(one.times for one in before) + plan.then.n_passes
    assert plan.reads == sum(one.times * one.reads for one in before) + plan.then.reads
    exact = PPCA(8, solver=plan.then.solver, random_state=0, tol=1e9).fit(Y)
    names = [cost.name for cost in model.cost_]
    assert names[0] == "look"
    of_exact = [cost.name for cost in exact.cost_]
    assert names[-len(of_exact) :] == of_exact
    assert [name for name in names if name.startswith("em")] == [
        name for name in of_exact if name.startswith("em")
    ]
    np.testing.assert_array_equal(model.components_, exact.components_)
    assert model.log_likelihood_ == exact.log_likelihood_


def test_plans_take_the_weights_of_the_fit():
    """A sample of weight 0 may have the only holes: to look for them is a planned pass."""
    Y, _, _ = holed(60, 6, 2, seed=8)
    weights = np.r_[0.0, np.ones(59)]
    for make in (lambda: PPCA(2), lambda: FactorAnalysis(2, missing="em")):
        planned = make().plan(Y, sample_weight=weights)
        assert [one.name for one in planned.passes] == ["scatter", "holes", "em"]
        fitted = make().fit(Y, sample_weight=weights)
        assert planned.to_dict() == fitted.plan_.to_dict() == fitted.result_.plan


def test_empty_samples_of_a_field_are_left_out():
    _, X, _ = holed(60, 6, 2, seed=8, holes=0.0)
    field = xr.DataArray(X.copy(), dims=("time", "cell"))
    field[7] = np.nan
    with pytest.warns(EmptySamplesWarning, match="1 of 60 samples"):
        model = PPCA(2, missing="raise").fit(field)
    plain = PPCA(2, missing="raise").fit(np.delete(X, 7, axis=0))
    np.testing.assert_allclose(model.get_covariance(), plain.get_covariance(), rtol=1e-10)
    assert model.log_likelihood_ == pytest.approx(plain.log_likelihood_, rel=1e-12)
    assert len(model.result_.labels.samples) == 60
