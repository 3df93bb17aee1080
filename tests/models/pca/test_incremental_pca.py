"""IncrementalPCA: append = batch, merge, forget, state at rest."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca import PCA, IncrementalPCA
from streampca.errors import (
    DominantFeatureWarning,
    DroppedFeaturesWarning,
    InvalidInputError,
    MemoryLimitError,
    NonFiniteError,
    NotFittedError,
    SourceError,
)
from streampca.models.pca import incremental_state
from streampca.models.pca.incremental_state import StateRequest, choose_append
from streampca.store import read_bundle, write_bundle
from tests.models.invariants import check_invariants


@pytest.fixture
def X():
    rng = np.random.default_rng(5)
    return rng.standard_normal((2100, 12)) @ rng.standard_normal((12, 12)) + 50


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("state", ["scatter", "tsqr"])
def test_append_equals_batch(X, batch, state):
    rows = X[: {1: 150, 7: 700, 1000: 2100}[batch]]
    model = IncrementalPCA(5, state=state)
    for i in range(0, len(rows), batch):
        model.partial_fit(rows[i : i + batch])
    full = PCA(5, svd_solver=state).fit(rows)
    np.testing.assert_allclose(model.explained_variance_, full.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.components_, full.components_, atol=1e-12)
    np.testing.assert_allclose(model.mean_, full.mean_, rtol=1e-13)
    assert model.n_samples_seen_ == len(rows)
    check_invariants(model, rows)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["scatter", "tsqr"])
def test_sixteen_states_merge_in_any_order(X, state):
    full = PCA(5, svd_solver=state).fit(X)
    parts = np.array_split(X, 16)
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = rng.permutation(16)
        models = [IncrementalPCA(5, state=state).partial_fit(parts[i]) for i in order]
        total = models[0]
        for other in models[1:]:
            before = other._accumulator.state()
            total.merge(other)
            for name, value in other._accumulator.state().items():
                np.testing.assert_array_equal(value, before[name])
        np.testing.assert_allclose(total.explained_variance_, full.explained_variance_, rtol=1e-12)
        np.testing.assert_allclose(total.components_, full.components_, atol=1e-12)


def test_forget_is_the_inverse_of_append(X):
    model = IncrementalPCA(5).fit(X)
    loss = model.forget(IncrementalPCA(5).partial_fit(X[:700]))
    left = PCA(5).fit(X[700:])
    assert loss < 1e-10
    np.testing.assert_allclose(model.explained_variance_, left.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(model.mean_, left.mean_, rtol=1e-12)
    assert model.n_samples_seen_ == 1400


def test_forget_certifies_its_loss(X):
    loud = 1e7 * X[:300]
    model = IncrementalPCA(3).fit(np.concatenate([loud, X]))
    loss = model.forget(IncrementalPCA(3).partial_fit(loud))
    true = PCA(3).fit(X)
    error = np.abs(model.explained_variance_ - true.explained_variance_).max()
    assert 1e-10 < error / true.explained_variance_[0] <= loss


def test_a_certificate_counts_what_forgetting_left(tmp_path):
    rng = np.random.default_rng(0)
    quiet, loud = rng.standard_normal((50, 6)), 1e7 * rng.standard_normal((50, 6))
    for scale in (None, "std"):
        model = IncrementalPCA(3, scale=scale).fit(quiet).partial_fit(loud)
        model.forget(IncrementalPCA(3).fit(loud))
        model.save_state(tmp_path / str(scale))
        true = PCA(3, scale=scale).fit(quiet)
        error = np.abs(model.explained_variance_ - true.explained_variance_)
        assert error.max() > 1e-6
        for one in (model, IncrementalPCA.load_state(tmp_path / str(scale))):
            assert np.all(error <= one.certificate_.variance_bound)
            assert np.all(one.certificate_.angle_bound == np.pi / 2)
    calm = IncrementalPCA(3).fit(quiet)
    floor = calm.certificate_.floor
    calm.partial_fit(quiet + 1).forget(IncrementalPCA(3).fit(quiet + 1))
    assert floor < calm.certificate_.floor < 1e-11


def test_a_warning_is_given_once():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)) * [10, 1, 1, 1]
    model = IncrementalPCA(2)
    with pytest.warns(DominantFeatureWarning):
        model.fit(X[:20])
    for part in (X[20:40], X[40:]):
        assert model.partial_fit(part).n_components_ == 2  # warnings are errors here
    with pytest.warns(DominantFeatureWarning):
        model.fit(X)


def test_forget_refuses_what_was_never_there(X):
    model = IncrementalPCA(3).fit(X[:50])
    with pytest.raises(InvalidInputError, match="cannot forget 60 of 50"):
        model.forget(IncrementalPCA(3).partial_fit(X[:60]))
    with pytest.raises(InvalidInputError, match="never taken in"):
        model.forget(IncrementalPCA(3).partial_fit(100 * X[100:140]))
    assert model.n_samples_seen_ == 50
    np.testing.assert_allclose(
        model.explained_variance_, PCA(3).fit(X[:50]).explained_variance_, rtol=1e-12
    )
    with pytest.raises(InvalidInputError, match="state='scatter'"):
        IncrementalPCA(3, state="tsqr").fit(X).forget(IncrementalPCA(3).partial_fit(X[:9]))


def test_truncated_state_is_bounded(X):
    model = IncrementalPCA(3, state="truncated", max_rows=6)
    for part in np.array_split(X, 9):
        model.partial_fit(part)
    exact = np.linalg.eigvalsh(np.cov(X.T))[::-1][:3]
    found = model.explained_variance_
    assert np.all(found <= exact * (1 + 1e-12))
    assert np.all(exact <= found + model.state_bound_)
    assert model.state_bound_ > 0
    assert model.result_.total_variance == pytest.approx(np.trace(np.cov(X.T)), rel=1e-12)
    wide = IncrementalPCA(3, state="truncated", max_rows=40).fit(X)
    assert wide.state_bound_ == 0
    np.testing.assert_allclose(wide.explained_variance_, exact, rtol=1e-12)


def test_a_state_that_is_too_large_is_refused_with_its_size():
    with pytest.raises(MemoryLimitError, match=r"200000 features needs 298 GiB.*truncated"):
        IncrementalPCA(2).partial_fit(np.ones((2, 200_000), dtype="f4"))


def test_saved_state_goes_on_bit_for_bit(X, tmp_path):
    for state in ("scatter", "tsqr", "truncated"):
        model = IncrementalPCA(4, state=state, max_rows=8).partial_fit(X[:900])
        model.save_state(tmp_path / state)
        restored = IncrementalPCA.load_state(tmp_path / state)
        np.testing.assert_array_equal(restored.components_, model.components_)
        model.partial_fit(X[900:])
        restored.partial_fit(X[900:])
        np.testing.assert_array_equal(restored.components_, model.components_)
        assert restored.get_params()["n_components"] == 4
    with pytest.raises(SourceError):
        IncrementalPCA.load_state(tmp_path / "nothing")


def test_a_failed_batch_changes_nothing(X):
    model = IncrementalPCA(4).partial_fit(X[:500])
    before = model.components_.copy()
    bad = X[500:600].copy()
    bad[50, 3] = np.nan
    with pytest.raises(NonFiniteError):
        model.partial_fit(bad)
    assert model.n_samples_seen_ == 500
    np.testing.assert_array_equal(model.components_, before)
    with pytest.raises(InvalidInputError, match="11 features"):
        model.partial_fit(X[:, :11])


def test_other_features_are_refused(X, tmp_path):
    frame = pd.DataFrame(X[:60, :4], columns=list("abcd"))
    model = IncrementalPCA(2).partial_fit(frame)
    with pytest.raises(InvalidInputError, match="same order"):
        model.partial_fit(frame[["d", "c", "b", "a"]])
    model.save_state(tmp_path / "s")
    restored = IncrementalPCA.load_state(tmp_path / "s")
    assert restored.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(InvalidInputError, match="same order"):
        restored.transform(frame[["d", "c", "b", "a"]])
    labelled = xr.DataArray(X[:60, :4], dims=("time", "site"), coords={"site": list("abcd")})
    for one in (model, IncrementalPCA.load_state(tmp_path / "s")):
        with pytest.raises(InvalidInputError, match=r"site 0 is d and was a \(4 of 4"):
            one.partial_fit(labelled[:, ::-1])
        assert one.n_samples_seen_ == 60
        one.partial_fit(labelled)
        assert one.n_samples_seen_ == 120
    with pytest.raises(InvalidInputError, match="another order"):
        model.merge(IncrementalPCA(2).fit(labelled[:, ::-1]))


def test_a_saved_state_knows_its_grid(X, tmp_path):
    grid = xr.DataArray(X.reshape(-1, 3, 4), dims=("time", "lat", "lon"))
    for name, one in (("bare", grid), ("named", grid.assign_coords(lat=[1.0, 2, 3]))):
        model = IncrementalPCA(2).fit(one, dim="time")
        model.save_state(tmp_path / name)
        restored = IncrementalPCA.load_state(tmp_path / name)
        xr.testing.assert_identical(restored.transform(one), model.transform(one))
        turned = IncrementalPCA.load_state(tmp_path / name)
        turned.partial_fit(one.transpose("lon", "time", "lat"))
        model.partial_fit(one)
        np.testing.assert_allclose(turned.explained_variance_, model.explained_variance_)
        rows = restored.inverse_transform(restored.transform(one))
        assert rows.dims == one.dims
    with pytest.raises(InvalidInputError, match=r"lat 0 is 3\.0 and was 1\.0"):
        restored.partial_fit(one[:, ::-1])


@pytest.mark.parametrize("state", ["scatter", "tsqr", "truncated"])
def test_a_batch_that_cannot_be_merged_changes_nothing(X, state):
    model = IncrementalPCA(4, state=state).partial_fit(X[:50])
    before = model.components_.copy()
    bad = X[50:80].copy()
    bad[:, 3] = np.nan  # on its own such a column would be dropped
    with pytest.raises(NonFiniteError, match="column 3"):
        model.partial_fit(bad)
    with pytest.warns(DroppedFeaturesWarning):
        other = IncrementalPCA(2, state=state).fit(bad)
    with pytest.raises(NonFiniteError, match="column 3"):
        model.merge(other)
    assert model.n_samples_seen_ == 50
    np.testing.assert_array_equal(model.components_, before)
    model.partial_fit(X[50:80])
    np.testing.assert_allclose(
        model.explained_variance_, PCA(4).fit(X[:80]).explained_variance_, rtol=1e-12
    )


def test_holes_may_hold_the_mean(X):
    Y = X.copy()
    Y[np.random.default_rng(0).random(Y.shape) < 0.1] = np.nan
    model = IncrementalPCA(4, missing="mean")
    for part in np.array_split(Y, 7):
        model.partial_fit(part)
    np.testing.assert_allclose(
        model.explained_variance_, PCA(4, missing="mean").fit(Y).explained_variance_, rtol=1e-12
    )


def test_what_a_truncated_state_cut_off_cannot_be_scaled(X):
    with pytest.raises(InvalidInputError, match="not known column by column"):
        IncrementalPCA(3, state="truncated", max_rows=6, scale="std").partial_fit(X)
    later = IncrementalPCA(3, state="truncated", max_rows=6).fit(X)
    later.set_params(scale="std")
    with pytest.raises(InvalidInputError, match="not known column by column"):
        later.partial_fit(X)


@pytest.mark.parametrize("coarse", ["f4", "i1", "i2"])
def test_certificates_count_the_coarsest_batch(X, coarse, tmp_path):
    """float32 rows, and integers that are summed in float32, decide over later float64 ones.

    (Up to 32 columns are summed in float64 whatever they are.)
    """
    X = np.hstack([X, np.random.default_rng(6).standard_normal((len(X), 30))])
    first = np.clip(np.round(X[:900] - 50), -100, 100).astype(coarse)
    second = X[900:] - 50
    full = np.concatenate([first.astype("f8"), second])
    alone = IncrementalPCA(5).fit(first)
    appended = IncrementalPCA(5).fit(second).partial_fit(first)
    merged = IncrementalPCA(5).fit(second).merge(alone)
    merged.save_state(tmp_path / "s")
    variance = np.linalg.eigvalsh(np.cov(full.T))[::-1][:5]
    floors = []
    for model in (appended, merged, IncrementalPCA.load_state(tmp_path / "s")):
        bound = model.certificate_
        assert bound.floor > 1e-8 * variance[0]
        assert np.all(np.abs(model.explained_variance_ - variance) <= bound.variance_bound)
        floors.append(bound.floor)
    assert floors[1] == floors[2] == pytest.approx(floors[0])
    assert IncrementalPCA(5).fit(full).certificate_.floor < 1e-14 * variance[0]


def test_a_constant_of_float32_stays_constant_among_float64(X):
    first, second = X[:500].astype("f4"), X[500:].copy()
    first[:, 3], second[:, 3] = 0.1, 0.1
    merged = IncrementalPCA(2, scale="std").fit(second)
    merged.merge(IncrementalPCA(2, scale="std").fit(first))
    assert merged.result_.constant.tolist() == [3]
    assert np.all(merged.components_[:, 3] == 0)


def test_forgetting_all_rows_leaves_an_unfitted_model(X):
    model = IncrementalPCA(3).fit(X[:100])
    assert model.forget(IncrementalPCA(3).fit(X[:100])) == 0.0
    other = IncrementalPCA(3).fit(X[:50])
    for use in (
        lambda: model.components_,
        lambda: model.n_samples_seen_,
        lambda: model.transform(X),
        lambda: model.save_state("nowhere"),
        lambda: model.merge(other),
        lambda: other.merge(model),
        lambda: model.forget(other),
    ):
        with pytest.raises(NotFittedError, match="not fitted"):
            use()
    model.partial_fit(X[:60, :5])
    assert model.n_samples_seen_ == 60
    np.testing.assert_allclose(
        model.explained_variance_, PCA(3).fit(X[:60, :5]).explained_variance_, rtol=1e-12
    )


def test_later_batches_have_the_sample_dimension_of_the_first(tmp_path):
    rng = np.random.default_rng(0)
    X = xr.DataArray(rng.standard_normal((8, 8)), dims=("gene", "cell"))
    model = IncrementalPCA(2).partial_fit(X, dim="cell")
    model.save_state(tmp_path / "s")
    both = np.concatenate([X.values.T, X.values.T])
    for one in (model, IncrementalPCA.load_state(tmp_path / "s")):
        one.partial_fit(X)
        np.testing.assert_allclose(one.mean_, both.mean(axis=0), atol=1e-14)
        assert one.transform(X).dims == ("cell", "component")


def test_the_plan_of_an_append_counts_the_state_that_is_held(X):
    model = IncrementalPCA(2, memory_limit="1GiB")
    request = StateRequest.of(model)
    blank = request.blank()
    wide = streampca.open(np.ones((20, 3000), "f4"))
    first = choose_append(wide, request, blank, held=False).plan
    later = choose_append(wide, request, blank, held=True).plan
    state = blank.projected_nbytes(wide.shape, 8)
    assert later.memory["append"]["kept arrays"] == state > first.memory["append"]["kept arrays"]
    solving = [sum(plan.memory["solver"].values()) for plan in (first, later)]
    assert solving[0] >= state  # whose unused triangle is the room for work
    assert solving[1] >= 2 * state  # the old state, and the new one that joins it


def test_a_plan_serves_further_batches_of_its_kind_alone(monkeypatch):
    rng, made = np.random.default_rng(0), []
    chosen = incremental_state._chosen
    monkeypatch.setattr(incremental_state, "_known", {})
    monkeypatch.setattr(incremental_state, "_chosen", lambda *a: made.append(a) or chosen(*a))

    def plan(x, held=True, weights=None, **parameters):
        request = StateRequest.of(IncrementalPCA(**{"n_components": 1, **parameters}))
        x = streampca.open(x)
        before = len(made)
        found = choose_append(x, request, request.blank(), held=held, weights=weights).plan
        assert found == chosen(x, request, request.blank(), held, weights).plan
        return len(made) - before

    x = rng.standard_normal((50, 6))
    assert (plan(x), plan(x[::-1]), plan(np.asfortranarray(x))) == (1, 0, 0)
    others = [
        {"x": x[:49]},
        {"x": x[:, :5]},
        {"x": x.astype("f4")},
        {"x": np.ma.masked_array(x, x > 2)},
        {"x": da.from_array(x)},
        {"x": pd.DataFrame(x)},
        {"x": x, "held": False},
        {"x": x, "weights": np.ones(50)},
        {"x": x, "n_components": 1.0},
        {"x": x, "n_components": 2},
        {"x": x, "memory_limit": "1GiB"},
        {"x": x, "state": "tsqr"},
        {"x": x, "batch_size": 7},
        {"x": x, "missing": "mean"},
        {"x": x, "center": False},
    ]
    assert [plan(**other) for other in others] == [1] * len(others)
    assert plan(x) == 0
    with dask.config.set({"streampca.memory-limit": "1MiB"}), pytest.raises(MemoryLimitError):
        plan(x)


def test_mismatched_models_do_not_merge(X):
    with pytest.raises(InvalidInputError, match="cannot merge"):
        IncrementalPCA(2).fit(X).merge(IncrementalPCA(2, state="tsqr").fit(X))
    with pytest.raises(InvalidInputError, match="features cannot join"):
        IncrementalPCA(2).fit(X).merge(IncrementalPCA(2).fit(X[:, :5]))


def test_a_ddof_that_is_no_count_is_refused(X):
    with pytest.raises(InvalidInputError, match="ddof=-1; expected"):
        IncrementalPCA(2, ddof=-1).partial_fit(X)


@pytest.mark.parametrize(
    ("solver", "state"),
    [
        ("auto", "scatter"),
        ("covariance_eigh", "scatter"),
        ("full", "tsqr"),
        ("tsqr", "tsqr"),
        ("randomized", "truncated"),
    ],
)
def test_svd_solver_is_the_state_by_another_name(X, solver, state, tmp_path):
    named = IncrementalPCA(3, solver=solver, max_rows=8).fit(X)
    chosen = IncrementalPCA(3, state=state, max_rows=8).fit(X)
    np.testing.assert_array_equal(named.components_, chosen.components_)
    np.testing.assert_array_equal(named.explained_variance_, chosen.explained_variance_)
    assert (named.state_bound_ > 0) == (state == "truncated")
    again = IncrementalPCA.load_state(named.save_state(tmp_path / "state")).partial_fit(X)
    np.testing.assert_array_equal(again.components_, chosen.partial_fit(X).components_)
    assert named.merge(chosen).n_samples_seen_ == 3 * len(X)


def test_state_and_svd_solver_must_agree(X):
    IncrementalPCA(3, state="tsqr", solver="full").fit(X)
    with pytest.raises(InvalidInputError, match="say different things"):
        IncrementalPCA(3, state="scatter", solver="full").fit(X)
    with pytest.raises(InvalidInputError, match="solver='gram'; expected 'auto' or one of"):
        IncrementalPCA(3, solver="gram").fit(X)


@pytest.mark.parametrize("rows", [1, 100, 333])
def test_batch_size_is_the_most_rows_of_a_block(X, rows):
    model, whole = IncrementalPCA(4, batch_size=rows), IncrementalPCA(4).fit(X)
    request = StateRequest.of(model)
    plan = choose_append(streampca.open(X), request, request.blank(), held=False).plan
    assert max(np.diff(plan.named("append").edges)) == rows
    model.fit(X)
    np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(model.components_, whole.components_, atol=1e-12)
    check_invariants(model, X)


def test_batch_size_leaves_stored_chunks_whole(X):
    stored = streampca.open(da.from_array(X, chunks=(250, 12)))
    model = IncrementalPCA(2, batch_size=600)
    for rows, blocks in ((600, 4), (500, 5), (250, 9), (10, 9)):
        request = StateRequest.of(model, batch_size=rows)
        plan = choose_append(stored, request, request.blank(), held=False).plan
        assert plan.named("append").n_blocks == blocks


@pytest.mark.parametrize("rows", [0, -3, 2.5, True, "10"])
def test_a_batch_size_that_is_no_number_of_rows_is_refused(X, rows):
    expected = "a number or None" if isinstance(rows, str) else "None or a number from 1"
    with pytest.raises(InvalidInputError, match=f"batch_size=.*expected {expected}"):
        IncrementalPCA(2, batch_size=rows).fit(X)


@pytest.mark.parametrize("name", ["probed", "mean_error", "mean_low"])
def test_a_saved_state_without_one_of_its_sums_is_refused(name, X, tmp_path):
    arrays, document = read_bundle(IncrementalPCA(2).fit(X).save_state(tmp_path / "whole"))
    del arrays[f"state-{name}"]
    write_bundle(tmp_path / "part", arrays, document)
    with pytest.raises(InvalidInputError, match=name):
        IncrementalPCA.load_state(tmp_path / "part")
