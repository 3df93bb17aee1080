"""What every completion does: judging by held-out cells, new rows, filling in, resuming."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
import xarray
import zarr

import streampca
import streampca.models.completion.fit as fit_module
from streampca import HardImpute, SoftImpute
from streampca.errors import AccuracyWarning, InvalidInputError, MemoryLimitError
from streampca.kernels.columns import chosen, line_keys
from streampca.kernels.least_squares import packed_products, solve_packed, unpacked
from streampca.matrix import Block
from streampca.models.completion.saved import SavedSweeps
from streampca.models.completion.sweeps import LineFactors, lengths_of_factors
from streampca.models.completion.withheld import Withhold
from tests.models.completions import centred, estimate_of, only_in_scratch, with_holes

run_module = sys.modules["streampca.passes.execute"]

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


# -- kernels ------------------------------------------------------------------------------------


def test_first_factors_share_the_singular_values_of_the_whole_matrix() -> None:
    lengths = lengths_of_factors(np.array([8.0, 2.0]), 3, 0.25)
    np.testing.assert_allclose(lengths**2, [32.0, 8.0, 0.032])
    np.testing.assert_array_equal(lengths_of_factors(np.zeros(2), 2, 0.25), 1.0)


@pytest.mark.parametrize("r", [1, 3, 8])
def test_many_small_least_squares_problems(r: int) -> None:
    from streampca.kernels.completion import cholesky_solve

    rng = np.random.default_rng(r)
    v, w = rng.standard_normal((40, r)), (rng.random((3000, 40)) < 0.4).astype(float)
    w[5], w[17], w[17, : r - 1] = 0.0, 0.0, 1.0  # nothing, and one observation too few
    z = w * rng.standard_normal(w.shape)
    left, right = packed_products(v) @ w.T, v.T @ z.T
    np.testing.assert_allclose(unpacked(left)[3], (v * w[3][:, None]).T @ v, rtol=1e-12)
    x, singular = solve_packed(left, right)
    np.testing.assert_array_equal(singular, np.flatnonzero(w.sum(axis=1) < r))
    assert {5, 17} <= set(singular.tolist())
    for i in (0, 5, 17, 2999):
        expected = np.linalg.pinv(v * w[i][:, None]) @ z[i]
        np.testing.assert_allclose(x[:, i], expected, atol=1e-9)
    compiled, same = solve_packed(left, right, factorise=cholesky_solve)
    np.testing.assert_allclose(compiled, x, atol=1e-9)
    np.testing.assert_array_equal(same, singular)
    ridged, none = solve_packed(left, right, 0.5)
    expected = np.linalg.solve((v * w[17][:, None]).T @ v + 0.5 * np.eye(r), v.T @ z[17])
    np.testing.assert_allclose(ridged[:, 17], expected, atol=1e-12)
    assert not len(none)


@pytest.mark.parametrize("r", [0, 4, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_entries_give_the_solutions_and_equations_of_tiles(r: int, bias: bool) -> None:
    from streampca.kernels.completion import Lines, Turned

    rng = np.random.default_rng(0)
    v, fixed, scale = rng.standard_normal((30, r)), rng.standard_normal(30), rng.random(25)
    w = (rng.random((25, 30)) < 0.3).astype(float)
    w[3] = 0.0
    z = w * rng.standard_normal(w.shape)
    stored = scipy.sparse.csr_matrix(z)
    entries, pad = (stored.data, stored.indices, stored.indptr), np.ones((1, 30))[:bias]
    across = np.vstack([v.T, pad])
    taken = w * (z - np.outer(scale, fixed))
    lines = Lines(*entries, v, bias, fixed, scale)
    left, right = lines.equations()
    np.testing.assert_allclose(left, packed_products(across.T) @ w.T, atol=1e-12)
    np.testing.assert_allclose(right, across @ taken.T, atol=1e-12)
    for ridge in (0.0, 0.7):  # of least norm, where a line has too few entries
        x, singular = lines.solved(np.full(r + bias, ridge))
        expected, bad = solve_packed(left, right, ridge)
        np.testing.assert_allclose(x, expected.T, atol=1e-9)
        assert singular == len(bad)
    level, (t, size) = x[:, -1] if bias else np.zeros(25), (len(left), r + bias)
    left, right = np.ones((t, 30)), np.ones((size, 30))
    turned = Turned.of(*entries, 30)
    squares = turned.add_equations(x[:, :r], v, left, right, scale, level, fixed)
    rest = taken - w * (x[:, :r] @ v.T + level[:, None])
    factors = np.hstack([x[:, :r], scale[:, None][:, :bias]])
    assert squares == pytest.approx((rest**2).sum())
    np.testing.assert_allclose(left - 1, packed_products(factors) @ w, atol=1e-12)
    np.testing.assert_allclose(right - 1, factors.T @ rest, atol=1e-12)


def test_a_single_entry_and_a_bias_leave_no_factors_but_rounding() -> None:
    from streampca.kernels.completion import Lines

    rng = np.random.default_rng(0)
    v, z = rng.standard_normal((50, 2)), rng.standard_normal(50)
    for r, ridges in ((1, [0.0, 0.0]), (2, [0.0, 0.0, 0.0]), (2, [0.0, 0.0, 1e-6])):
        lines = Lines(z, np.arange(50, dtype=np.int32), np.arange(51), v[:, :r], True)
        x, singular = lines.solved(np.array(ridges))
        assert singular == 50
        np.testing.assert_allclose(x, solve_packed(*lines.equations(), np.array(ridges))[0].T)


def test_sweeps_of_another_fit_are_not_taken_up(tmp_path: Any) -> None:
    SavedSweeps(tmp_path / "sweeps", "mine").write({"v": np.ones((2, 1))}, {"number": 1})
    assert SavedSweeps(tmp_path / "sweeps", "another").read() is None
    found = SavedSweeps(tmp_path / "sweeps", "mine").read()
    assert found is not None
    assert found[1]["number"] == 1


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_repeated_sweep_reads_the_factors_before_it(on_disk: bool, tmp_path: Any) -> None:
    folder = str(tmp_path) if on_disk else None
    factors = LineFactors(6, 2, "f8", np.array([0, 3, 6]), folder)
    for number in (1, 2, 3):
        before = np.array(factors.rows(slice(0, 2), 0, 6))
        sink = factors.sink(number)
        sink.write(0, np.full((3, 2), float(number)))
        np.testing.assert_array_equal(factors.rows(slice(0, 2), 0, 6), before)
        sink.write(3, np.full((3, 2), float(number)))
        sink.finish()
        factors.written(number)
        assert (factors.rows(slice(0, 2), 0, 6) == number).all()


@pytest.mark.parametrize("absent", [False, True])
def test_the_same_cells_are_held_out_along_either_axis(absent: bool) -> None:
    """In blocks, some cells of which are missing."""
    x = np.arange(1.0, 201.0).reshape(20, 10)
    x[3:6, 2:5] = np.nan
    found = []
    for axis in (0, 1):
        held = []
        for start, stop in ((0, 4), (4, x.shape[axis])):
            values: Any = x[:, start:stop] if axis else x[start:stop]
            if absent:
                kind = scipy.sparse.csc_matrix if axis else scipy.sparse.csr_matrix
                values = kind(np.nan_to_num(values))
            held += list(Withhold(0.3, 7)(Block(values, axis, start, stop, absent=absent)).values)
        found.append(sorted(held))
    assert 30 < len(found[0]) < 90
    np.testing.assert_array_equal(found[0], found[1])  # and no NaN among them


def test_held_out_cells_depend_on_their_place_alone() -> None:
    rows, columns = line_keys(np.arange(400), 3, 0), line_keys(np.arange(300), 3, 1)
    mask = chosen(rows[:, None], columns, 0.1)
    assert mask.mean() == pytest.approx(0.1, abs=0.005)
    np.testing.assert_array_equal(mask[100:], chosen(rows[100:, None], columns, 0.1))
    i, j = np.nonzero(mask)
    assert chosen(rows[i], columns[j], 0.1).all()
    other = chosen(line_keys(np.arange(400), 4, 0)[:, None], line_keys(np.arange(300), 4, 1), 0.1)
    assert 0.005 < (mask & other).mean() < 0.015
    assert abs(np.corrcoef(mask[:-1].ravel(), mask[1:].ravel())[0, 1]) < 0.02


# -- held-out cells -----------------------------------------------------------------------------


def held_cells(shape: tuple[int, int], share: float, seed: int = 0) -> np.ndarray:
    n, p = shape
    rows, columns = line_keys(np.arange(n), seed, 0), line_keys(np.arange(p), seed, 1)
    return chosen(rows[:, None], columns, share)


@pytest.mark.parametrize("solver", ["als", "exact", "impute"])
@pytest.mark.parametrize("shape", [(80, 25), (25, 80)])
def test_several_ranks_in_the_same_passes(solver: str, shape: tuple[int, int]) -> None:
    x, _ = with_holes(*shape, 3, share=0.2, noise=0.5)
    more: Any = {"solver": solver, "center": True, "alpha": 0.0, "tol": 0, "max_passes": 12}
    model = HardImpute([1, 2, 3, 5], validation=0.1, **more).fit(x)
    assert len(model.cost_) == 12
    assert [one["rank"] for one in model.validation_] == [0, 1, 2, 3, 5]
    held = held_cells(shape, 0.1) & ~np.isnan(x)
    given = np.where(held, np.nan, x)
    # other solvers begin with what the look finds for the largest rank
    close = 1e-6 if solver == "exact" else 0.02
    for one in model.validation_:
        alone = HardImpute(one["rank"], **more).fit(given)
        assert one["objective"] == pytest.approx(alone.trace_[-1].objective[0], rel=close)
        rows, columns = np.nonzero(held)
        error = alone.predict(rows, columns) - x[held]
        assert one["held_out"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=close)
    assert model.best_rank_ == 3 == len(model.components_)
    best = estimate_of(HardImpute(3, **more).fit(given))
    np.testing.assert_allclose(estimate_of(model), best, atol=1e-6 if solver == "exact" else 0.5)


def test_ways_to_name_held_out_cells() -> None:
    x, _ = with_holes(60, 20, 2)
    seen = ~np.isnan(x)
    stored = scipy.sparse.coo_matrix((x[seen], np.nonzero(seen)), x.shape)
    mask = held_cells(x.shape, 0.1)
    more: Any = {"center": True, "alpha": 0.0, "max_passes": 6}
    expected = HardImpute(2, validation=0.1, **more).fit(x).trace_[-1]
    for source in (x, stored.tocsr(), stored.tocsc()):
        for validation in (0.1, mask, np.nonzero(mask)):
            one = HardImpute(2, validation=validation, **more).fit(source).trace_[-1]
            assert one.held_out[0] == pytest.approx(expected.held_out[0], rel=1e-12)
            assert one.held_out[1] == pytest.approx(expected.held_out[1], rel=0.05)
    for wrong in (1.5, True, "some", mask[:3], ([1, 2], [3]), ([1], [99])):
        with pytest.raises(InvalidInputError, match="validation"):
            HardImpute(2, validation=wrong).fit(x)


def test_penalties_are_chosen_and_the_fit_stops_early() -> None:
    x, _ = with_holes(60, 30, 2, share=0.6, noise=1.0)
    model = SoftImpute(10, [0.0, 3.0, 100.0], validation=0.1, max_passes=40).fit(x)
    assert model.best_penalty_ == 3.0
    early = HardImpute(10, center="fitted", validation=0.1, early_stop=True, max_passes=40)
    with pytest.warns(AccuracyWarning, match="estimated beyond"):
        early.fit(x)
    assert len(early.trace_) < 40
    errors = [one.held_out[0] for one in early.trace_]
    assert int(np.argmin(errors)) == len(errors) - 3


# -- new rows, and holes filled -----------------------------------------------------------------


def test_rows_are_scored_by_what_they_observe() -> None:
    x, _ = with_holes(100, 20, 3, noise=0.05)
    model = HardImpute(3, tol=1e-10, max_passes=200).fit(x)
    np.testing.assert_allclose(model.transform(x), model.result_.scores, atol=1e-5)
    fresh = with_holes(30, 20, 3, noise=0.05)[0]
    z, seen, _ = centred(fresh)
    z = np.where(seen, fresh - model.mean_, 0.0)
    for i, found in enumerate(model.transform(fresh)):
        v = model.components_.T[seen[i]]
        np.testing.assert_allclose(found, np.linalg.lstsq(v, z[i, seen[i]])[0], atol=1e-8)
    ridged = HardImpute(3, alpha=2.0, tol=1e-10, max_passes=200).fit(x)
    np.testing.assert_allclose(ridged.transform(x), ridged.result_.scores, atol=1e-4)
    few = np.full((2, 20), np.nan)
    few[1, 4] = 1.0
    assert np.isfinite(model.transform(few)).all()
    np.testing.assert_array_equal(model.transform(few)[0], 0.0)


@pytest.mark.parametrize(("n", "p", "hole", "scale"), [(60, 25, 0.4, None), (25, 40, 0.3, "std")])
def test_the_default_centring_finds_an_exact_matrix(
    n: int, p: int, hole: float, scale: Any
) -> None:
    """Means of what is observed are not those of the matrix: the default has means of its own."""
    rng = np.random.default_rng(0)
    truth = 3.0 + rng.normal(size=(n, 2)) @ rng.normal(size=(2, p))
    x = np.where(rng.random((n, p)) < hole, np.nan, truth)
    model = HardImpute(2, scale=scale, tol=1e-9, bounds=None, progress=False).fit(x)
    np.testing.assert_allclose(model.impute(x), truth, atol=1e-3)
    about_observed = HardImpute(2, scale=scale, center=True, bounds=None, progress=False).fit(x)
    assert np.abs(about_observed.impute(x) - truth).max() > 0.1


def test_holes_are_filled_on_disk_as_in_memory(tmp_path: Any) -> None:
    x, whole = with_holes(150, 20, 2, noise=0.01)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(40, 7))
    model = HardImpute(2).fit(str(tmp_path / "x.zarr"))
    completed = model.impute(x)
    hole = np.isnan(x)
    np.testing.assert_array_equal(completed[~hole], x[~hole])
    np.testing.assert_allclose(completed[hole], whole[hole], atol=0.1)
    written = model.impute(str(tmp_path / "x.zarr"), out=str(tmp_path / "full.zarr"))
    np.testing.assert_allclose(written[...], completed, atol=1e-12)
    assert written.attrs["streampca_complete"]
    rows, columns = np.nonzero(hole)
    np.testing.assert_allclose(model.predict(rows, columns), completed[hole], atol=1e-4)
    seen = scipy.sparse.coo_matrix((x[~hole], np.nonzero(~hole)), x.shape).tocsr()
    np.testing.assert_allclose(HardImpute(2).fit(seen).impute(seen), completed, atol=1e-2)
    with pytest.raises(InvalidInputError, match="outside"):
        model.predict([150], [0])


def test_a_completed_matrix_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Any) -> None:
    x, _ = with_holes(40, 200, 2)
    model = HardImpute(2, max_passes=4, memory_limit="600MiB").fit(x)
    path = str(tmp_path / "long.zarr")
    zarr.create_array(path, shape=(1_000_000, 200), chunks=(2000, 200), dtype="f8")
    long = streampca.open(path, missing_chunks="fill")
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        model.impute(long)
    assert not long.reads().chunks


def test_results_carry_the_labels_of_the_data() -> None:
    x, _ = with_holes(30, 8, 2)
    array = xarray.DataArray(x, dims=("time", "gene"), coords={"time": np.arange(30) * 2.0})
    model = HardImpute(2).fit(array, dim="time")
    completed = model.impute(array)
    assert completed.dims == ("time", "gene")
    np.testing.assert_array_equal(completed["time"], array["time"])
    frame = pandas.DataFrame(x, columns=list("abcdefgh"))
    assert list(HardImpute(2).fit(frame).impute(frame).columns) == list("abcdefgh")


def test_saved_and_loaded(tmp_path: Any) -> None:
    x, _ = with_holes(40, 12, 2)
    for model in (HardImpute([1, 2], alpha=0.1, validation=0.1), SoftImpute(3, 1.0)):
        model.fit(x).save(tmp_path / type(model).__name__)
        again: Any = streampca.load(tmp_path / type(model).__name__)
        assert type(again) is type(model)
        np.testing.assert_array_equal(again.impute(x), model.impute(x))
        np.testing.assert_array_equal(again.predict([3], [4]), model.predict([3], [4]))
        assert repr(again.trace_) == repr(model.trace_)
        assert [one["objective"] for one in again.validation_] == [
            one["objective"] for one in model.validation_
        ]
        warm = HardImpute(2, init=again, max_passes=4, tol=0.3).fit(x)
        assert warm.n_iter_ <= 2


# -- interrupted, and too large for memory ------------------------------------------------------


class Interrupted(Exception):
    """Stands for a power failure."""


@pytest.mark.parametrize("solver", ["als", "impute"])
@pytest.mark.parametrize("scratch", [False, True])
def test_a_fit_interrupted_in_sweep_seven_resumes_there(
    solver: str, scratch: bool, tmp_path: Any, monkeypatch: Any
) -> None:
    x, _ = with_holes(300, 20, 3)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(60, 20))
    source, folder = str(tmp_path / "x.zarr"), str(tmp_path / "state")
    if scratch:
        only_in_scratch(monkeypatch)
    make = lambda: HardImpute(3, solver=solver, tol=0, max_passes=9, checkpoint=folder)  # noqa: E731
    whole = HardImpute(3, solver=solver, tol=0, max_passes=9).fit(source)
    calls: list[str] = []
    run, failing = run_module.run, True

    def watched(plan: Any, *args: Any, **more: Any) -> Any:
        calls.append(plan.name)
        if failing and plan.name == "sweep 7":
            raise Interrupted
        return run(plan, *args, **more)

    monkeypatch.setattr(run_module, "run", watched)
    with pytest.raises(Interrupted):
        make().fit(source)
    before, failing = len(calls), False
    model = make().fit(source)
    assert calls[before] == "sweep 7"
    assert model.trace_[-1].objective == whole.trace_[-1].objective
    assert len(model.trace_) == len(whole.trace_)
    rows, columns = np.arange(300), np.arange(300) % 20
    np.testing.assert_array_equal(model.predict(rows, columns), whole.predict(rows, columns))
    assert not [one for one in (tmp_path / "state").glob("*") if one.name == "sweeps"]


@pytest.mark.parametrize("solver", ["als", "impute"])
def test_a_fit_interrupted_after_its_last_sweep_has_its_scores(
    solver: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = with_holes(60, 12, 2)
    make = lambda: HardImpute(2, solver=solver, checkpoint=str(tmp_path), max_passes=5, tol=0.5)  # noqa: E731

    def interrupted(*args: Any) -> Any:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(fit_module.CompletionFit, "completed", interrupted)
        with pytest.raises(Interrupted):
            make().fit(x)
    whole, model = HardImpute(2, solver=solver, max_passes=5, tol=0.5).fit(x), make().fit(x)
    np.testing.assert_array_equal(model.result_.scores, whole.result_.scores)
    assert np.abs(whole.result_.scores).max() > 1.0


def test_lazy_sparse_rows_are_scored_by_what_they_store() -> None:
    import dask.array as da

    x, _ = with_holes(40, 12, 2, share=0.5)
    hole = np.isnan(x)
    cells = scipy.sparse.csr_matrix((x[~hole], np.nonzero(~hole)), shape=x.shape)
    blocks = [da.from_array(np.nan_to_num(x), chunks=(10, 12))]
    blocks += [blocks[0].map_blocks(scipy.sparse.csr_matrix, dtype=float, meta=cells[:0, :0])]
    model = HardImpute(2).fit(x)
    expected = model.transform(x)
    np.testing.assert_allclose(model.transform(cells), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.asarray(model.transform(blocks[1])), expected, rtol=1e-9)


def test_what_is_not_stored_is_missing_or_zero(tmp_path: Any) -> None:
    x, _ = with_holes(40, 12, 2, share=0.2)
    cells = scipy.sparse.csr_matrix(np.nan_to_num(x))
    for absent, dense in (("missing", x), ("zero", np.nan_to_num(x))):
        fitted, expected = (
            HardImpute(2, absent=absent, alpha=1.0, tol=1e-12, max_passes=99).fit(one)
            for one in (cells, dense)
        )
        np.testing.assert_allclose(estimate_of(fitted), estimate_of(expected), atol=1e-8)
        scores = expected.transform(dense)
        fitted.save(tmp_path / absent)
        for one in (fitted, streampca.load(tmp_path / absent)):
            np.testing.assert_allclose(one.transform(cells), scores, atol=1e-8)
