"""The memory of a plan and what is measured: it refuses, it warns, it never changes a plan."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streampca
from streampca import PCA, IncrementalPCA, imported
from streampca.errors import MemoryLimitError, MemoryPlanWarning
from streampca.genetics.ld_pruning import prune_ld
from streampca.models.explore.highly_variable import highly_variable
from streampca.operations.convert import convert
from streampca.passes import MemoryUse, Plan
from streampca.passes import candidates as planning
from streampca.passes import memory as machine
from streampca.passes import plan as plans
from streampca.passes.memory import LIBRARY_NBYTES, code_nbytes
from streampca.passes.plan import check_room, warn_of_excess
from tests.passes.pass_matrices import ToyMatrix, Unread

MiB = 2**20


class Netcdf(Unread):
    """As if xarray read it."""

    loads = ("xarray", "h5py")


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[frozenset[str], int]:
    """What was weighed so far: nothing."""
    empty: dict[frozenset[str], int] = {}
    monkeypatch.setattr(imported, "_weights", empty)
    return empty


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, weights: Any) -> None:
    """A process that holds nothing beside the plan, on a machine with room."""
    monkeypatch.setattr(machine, "resident_nbytes", lambda: 0)
    monkeypatch.setattr(machine, "available_nbytes", lambda: None)
    monkeypatch.setattr(machine, "load", lambda process: None)


@pytest.fixture(autouse=True)
def _nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is installed that others load where it is."""
    monkeypatch.setattr(planning, "installed", lambda name: False)


@pytest.fixture(params=[False, True], ids=["alone", "with sparse"])
def with_sparse(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ``sparse`` is installed, which Dask loads where it is, and xarray Dask."""
    monkeypatch.setattr(planning, "installed", lambda name: request.param)
    return bool(request.param)


def source() -> Netcdf:
    return Netcdf((20_000, 800), "float32", (1000, 800))


# -- libraries ----------------------------------------------------------------------------------


def test_libraries_imported_together_are_weighed_together(weights: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(imported, "HEAVY", ("one_library", "another"))
    sizes = iter([10, 70])
    monkeypatch.setattr(imported, "resident_nbytes", lambda: next(sizes))
    with imported.weighing(), imported.weighing():  # the outer one looks
        monkeypatch.setitem(sys.modules, "one_library", np)
        monkeypatch.setitem(sys.modules, "another", np)
    assert weights == {frozenset({"one_library", "another"}): 60}
    assert imported.weight_of({"one_library": 5, "unseen": 7}) == 67
    assert imported.weight_of({"unseen": 7}) == 7


def test_imports_without_heavy_libraries_weigh_nothing(weights: Any, monkeypatch: Any) -> None:
    with imported.weighing():
        monkeypatch.setitem(sys.modules, "a_small_library", np)
    assert not weights


def test_a_failed_import_is_not_left_open(weights: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(imported, "HEAVY", ("one_library",))
    with pytest.raises(ImportError), imported.weighing():
        raise ImportError
    with imported.weighing():
        monkeypatch.setitem(sys.modules, "one_library", np)
    assert list(weights) == [frozenset({"one_library"})]


def test_a_plan_names_every_library() -> None:
    process = PCA(2).plan(source()).memory["process"]
    assert {name: process[name] for name in ("xarray", "pandas", "h5py")} == {
        name: LIBRARY_NBYTES[name] for name in ("xarray", "pandas", "h5py")
    }
    assert "numba" not in process
    assert "numba" in PCA(2).plan(Unread((100, 9000), "int8", (100, 500))).memory["process"]


def test_heavier_libraries_are_said_and_change_no_plan(weights: Any) -> None:
    plan = PCA(2).plan(source())
    before = plan.to_json()
    assert "weigh" not in str(plan)
    weights[frozenset({"xarray", "pandas"})] = 186 * MiB
    again = PCA(2).plan(source())
    assert again.to_json() == before
    assert "libraries weigh 100 MiB more than that in this process" in str(again)
    weights[frozenset({"xarray", "pandas"})] = 1 * MiB  # lighter ones are no gift to the phases
    assert "weigh" not in str(again)


@pytest.mark.parametrize("more", [1, 20, 100, 2000])
@pytest.mark.parametrize("limit", [300, 330, 400])
def test_a_refusal_for_heavy_libraries_names_a_limit_that_works(
    alone: Any, weights: Any, limit: int, more: int, with_sparse: bool
) -> None:
    limit += 64 if with_sparse else 0
    plan = PCA(2, memory_limit=limit * MiB).plan(source())
    check_room(plan)
    weights[frozenset({"xarray", "pandas"})] = (86 + more) * MiB
    if plan.peak_nbytes + more * MiB <= plan.memory_limit:
        check_room(plan)
        return
    with pytest.raises(MemoryLimitError, match=r"pandas, xarray, h5py.* with") as told:
        check_room(plan)
    enough = re.search(r"memory_limit='(\d+)MiB'", str(told.value))[1]
    accepted = PCA(2, memory_limit=f"{enough}MiB").plan(source())
    check_room(accepted)
    assert accepted.peak_nbytes + more * MiB <= int(enough) * MiB
    for smaller in range(limit, int(enough), max(1, (int(enough) - limit) // 12)):
        with pytest.raises(MemoryLimitError):
            check_room(PCA(2, memory_limit=smaller * MiB).plan(source()))


def test_without_a_limit_heavier_libraries_refuse_nothing(alone: Any, weights: Any) -> None:
    weights[frozenset({"xarray"})] = 2000 * MiB
    check_room(PCA(2).plan(source()))


# -- what a process holds -----------------------------------------------------------------------


def test_other_memory_counts_against_the_machine_and_not_the_limit(
    alone: Any, monkeypatch: Any
) -> None:
    plan = PCA(2, memory_limit="400MiB").plan(source())
    monkeypatch.setattr(machine, "resident_nbytes", lambda: 2048 * MiB)
    check_room(plan)
    monkeypatch.setattr(machine, "available_nbytes", lambda: 2100 * MiB)
    with pytest.raises(MemoryLimitError, match=r"in addition to the 1.8 GiB that this process"):
        check_room(plan)
    monkeypatch.setattr(machine, "available_nbytes", lambda: 2500 * MiB)
    check_room(plan)


def test_x_in_memory_is_part_of_a_plan_and_of_its_limit() -> None:
    x = np.ones((1000, 4000))
    plan = PCA(2).plan(x)
    assert plan.memory["process"]["X in memory"] == x.nbytes
    with pytest.raises(MemoryLimitError, match=r"30.5 MiB of it X, which is in memory"):
        PCA(2, memory_limit="1MiB").plan(x)


def test_a_model_with_a_limit_is_applied_to_rows_in_memory() -> None:
    x = np.random.default_rng(0).normal(size=(3000, 4000))
    model = PCA(2, memory_limit="300MiB", progress=False).fit(x[:50])
    model.memory_limit = "190MiB"  # less than the interpreter and the 92 MiB of the rows
    assert model.transform(x).shape == (3000, 2)


def test_an_x_larger_than_the_default_budget_does_not_shrink_the_schedule(monkeypatch: Any) -> None:
    small, large = (Unread((50_000, 500), "float32", (5000, 500)) for _ in range(2))
    large.given_nbytes = 2**40
    assert PCA(2).plan(large).passes == PCA(2).plan(small).passes
    assert PCA(2).plan(large).lanes == PCA(2).plan(small).lanes


@pytest.mark.parametrize("how", ["mapped", "part of a mapped one"])
def test_a_mapped_file_is_not_in_memory(tmp_path: Any, how: str) -> None:
    np.save(tmp_path / "x.npy", np.ones((500, 40)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    given = mapped if how == "mapped" else np.asarray(mapped)[:400]
    assert PCA(2).plan(given).memory["process"]["X in memory"] == 0


# -- what a fit took ----------------------------------------------------------------------------


def use(held: int, high: int, monkeypatch: Any, now: int, peak: int) -> MemoryUse:
    monkeypatch.setattr(machine, "resident_nbytes", lambda: held)
    monkeypatch.setattr(machine, "peak_nbytes", lambda: high)
    begun = MemoryUse.begun()
    monkeypatch.setattr(machine, "resident_nbytes", lambda: now)
    monkeypatch.setattr(machine, "peak_nbytes", lambda: peak)
    return begun


def test_the_peak_of_a_fit_is_not_that_of_what_came_before(monkeypatch: Any) -> None:
    assert use(100, 900, monkeypatch, now=300, peak=900).peak_nbytes() == 300  # hidden: sampled
    assert use(100, 900, monkeypatch, now=300, peak=950).peak_nbytes() == 950


def planned(limit: int | None = 400 * MiB) -> Plan:
    return replace(PCA(2, memory_limit="400MiB").plan(source()), memory_limit=limit)


def test_a_fit_warns_where_it_took_more_than_its_plan(monkeypatch: Any) -> None:
    plan = planned()
    code = code_nbytes(plan.memory["process"])
    much = code + plan.peak_nbytes
    for held in (code, code + 3000 * MiB):  # what the process holds beside is not the fit's
        at_end = held + plan.peak_nbytes - code
        warn_of_excess(plan, use(held, held, monkeypatch, at_end, at_end))
        more = at_end + plans.SLACK_NBYTES + MiB
        with pytest.warns(MemoryPlanWarning, match=r"PCA took .* had planned .*'400MiB'"):
            warn_of_excess(plan, use(held, held, monkeypatch, more, more))
    with warnings.catch_warnings():  # nobody asked for a limit
        warnings.simplefilter("error")
        warn_of_excess(planned(None), use(code, code, monkeypatch, 2 * much, 2 * much))


def test_a_fit_keeps_what_it_measured() -> None:
    matrix = ToyMatrix(np.random.default_rng(0).normal(size=(300, 8)))
    told = PCA(2, progress=False).fit(matrix).result_.provenance
    assert 0 < told["held_bytes"] <= told["peak_bytes"]
    assert told["peak_bytes"] <= machine.peak_nbytes() + 2**24
    batch = IncrementalPCA(2, progress=False).fit(matrix).result_.provenance
    assert batch["peak_bytes"] > 0


LIMIT: dict[str, Any] = {"memory_limit": "1GiB", "progress": False}
CALLS = np.random.default_rng(0).integers(0, 3, (40, 60)).astype(np.int8)
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {  # of numbers, and of a folder
    "PCA": lambda x, folder: PCA(2, **LIMIT).fit(x),
    "IncrementalPCA": lambda x, folder: IncrementalPCA(2, **LIMIT).partial_fit(x),
    "PPCA": lambda x, folder: streampca.PPCA(2, **LIMIT).fit(x),
    "FactorAnalysis": lambda x, folder: streampca.FactorAnalysis(2, **LIMIT).fit(x),
    "HardImpute": lambda x, folder: streampca.HardImpute(2, **LIMIT).fit(x),
    "SparsePCA": lambda x, folder: streampca.SparsePCA(2, **LIMIT).fit(x),
    "CCA": lambda x, folder: streampca.CCA(2, **LIMIT).fit(x[:, :4], x[:, 4:]),
    "KernelPCA": lambda x, folder: streampca.KernelPCA(2, kernel="rbf", **LIMIT).fit(x),
    "NystroemPCA": lambda x, folder: streampca.NystroemPCA(2, kernel="rbf", **LIMIT).fit(x),
    "PrincipalComponentRegression": lambda x, folder: streampca.PrincipalComponentRegression(
        2, **LIMIT
    ).fit(x[:, 1:], x[:, 0]),
    "GenotypePCA": lambda x, folder: streampca.GenotypePCA(2, **LIMIT).fit(CALLS),
    "rows": lambda x, folder: PCA(2, progress=False).fit(x).set_params(**LIMIT).transform(x),
    "rows written": lambda x, folder: (
        PCA(2, progress=False).fit(x).set_params(**LIMIT).transform(x, out=folder / "t.zarr")
    ),
    "covariance": lambda x, folder: streampca.covariance(x, **LIMIT),
    "cross_correlation": lambda x, folder: streampca.cross_correlation(x[:, :4], x[:, 4:], **LIMIT),
    "r2_baselines": lambda x, folder: streampca.r2_baselines(x, 2, **LIMIT),
    "intrinsic_dimension": lambda x, folder: streampca.intrinsic_dimension(x, **LIMIT),
    "column statistics": lambda x, folder: highly_variable(np.abs(x), n_top=2, **LIMIT),
    "pruning": lambda x, folder: prune_ld(CALLS, **LIMIT),
    "kinship": lambda x, folder: streampca.kinship(CALLS, **LIMIT),
    "convert": lambda x, folder: convert(x, folder / "c.zarr", **LIMIT),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_warns_of_excess_memory(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    x = np.random.default_rng(0).normal(size=(300, 8)) @ np.diag(np.arange(1.0, 9.0))
    operation = OPERATIONS[name]
    monkeypatch.setattr(MemoryUse, "peak_nbytes", lambda self: self.held + 4096 * MiB)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        operation(x, tmp_path)
    told = [str(one.message) for one in said if one.category is MemoryPlanWarning]
    assert told
    assert " took 4" in told[0]


def test_one_refusal_names_what_heavier_libraries_need(alone: Any, weights: Any) -> None:
    """A second refusal, at the door, used to correct the limit that the plan had named."""
    weights[frozenset({"xarray", "pandas"})] = 186 * MiB
    with pytest.raises(MemoryLimitError, match="smallest limit") as told:
        PCA(2, memory_limit="1MiB").plan(source())
    plan = PCA(2, memory_limit=told.value.smallest).plan(source())
    check_room(plan)
    assert plan.peak_nbytes + 100 * MiB <= told.value.smallest


def test_a_fit_imports_the_libraries_of_its_plan_first(
    weights: Any, monkeypatch: Any, with_sparse: bool
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(machine, "import_module", seen.append)
    machine.load(PCA(2).plan(source()).memory["process"])
    libraries = ["h5py", "pandas", *(["sparse"] if with_sparse else []), "xarray"]
    first = len(machine.SOLVING)
    assert seen[:first] == [*machine.SOLVING]
    assert sorted(seen[first:]) == libraries


# -- libraries that others load where they are installed ------------------------------------------


def test_what_dask_loads_where_it_is_installed_is_counted(with_sparse: bool) -> None:
    terms = PCA(2).plan(source()).memory["process"]
    assert terms.get("sparse", 0) == (64 * MiB if with_sparse else 0)
    assert machine.brought(terms) == terms.get("sparse", 0)


def test_numba_is_counted_once(monkeypatch: Any) -> None:
    class Compiled(Netcdf):
        loads = ("xarray", "numba")

    monkeypatch.setattr(planning, "installed", lambda name: True)
    terms = PCA(2).plan(Compiled((20_000, 800), "float32", (1000, 800))).memory["process"]
    assert terms["numba"] + terms["sparse"] == 64 * MiB


def test_what_is_installed_chooses_no_schedule(monkeypatch: Any) -> None:
    """With the same limit there is the same schedule, or a refusal that names a limit that does."""
    for limit in range(210, 480, 15):
        found = []
        for there in (False, True):
            monkeypatch.setattr(planning, "installed", lambda name, there=there: there)
            try:
                found.append(PCA(2, memory_limit=f"{limit}MiB").plan(source()))
            except MemoryLimitError as error:
                enough = error.smallest
                assert enough > limit * MiB
                assert PCA(2, memory_limit=enough).plan(source()).peak_nbytes <= enough
        for plan in found:
            assert plan.peak_nbytes <= limit * MiB
        if len(found) == 2:
            assert found[0].passes == found[1].passes
            assert found[0].lanes == found[1].lanes
            assert found[0].passed_over == found[1].passed_over
            assert found[0].peak_nbytes + 64 * MiB == found[1].peak_nbytes
    assert len(found) == 2
