"""Completions on worker processes: the same bits as threads, and going on after an interruption."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import zarr
from pass_matrices import same_bits

from streampca import HardImpute
from tests.models.completions import with_holes

run_module = sys.modules["streampca.passes.execute"]

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")


@pytest.fixture
def store(tmp_path: Any, monkeypatch: Any) -> str:
    """A matrix with holes in a dozen blocks."""
    monkeypatch.setattr("streampca.passes.blocks.BLOCK_NBYTES", 64 * 1024)
    x, _ = with_holes(6000, 24, 3)
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=x.astype(np.float32), chunks=(500, 24))
    return path


def bits(model: HardImpute) -> dict[str, Any]:
    result = model.result_
    found = {name: getattr(result, name) for name in ("components", "scores", "mean")}
    found |= {"objective": [one.objective for one in model.trace_], "row_mean": result.row_mean}
    return {name: value for name, value in found.items() if value is not None}


FITS = {
    "als": {"solver": "als", "validation": 0.05, "alpha": 0.1},
    "both": {"center": "both", "scale": "both"},
}


@pytest.mark.parametrize("more", FITS.values(), ids=FITS.keys())
def test_the_same_bits_on_two_processes(
    two_processes: Any, store: str, more: dict[str, Any]
) -> None:
    make = lambda where: HardImpute(3, tol=0, max_passes=6, scheduler=where, **more)  # noqa: E731
    here = make("threads").fit(store)
    assert here.plan_.passes[0].n_blocks >= 5
    assert same_bits(bits(here), bits(make(two_processes).fit(store)))


class Interrupted(Exception):
    """Stands for a power failure."""


def test_interrupted_in_sweep_seven_on_a_cluster(
    two_processes: Any, store: str, tmp_path: Any, monkeypatch: Any
) -> None:
    make = lambda where, **more: HardImpute(  # noqa: E731
        3, solver="impute", tol=0, max_passes=9, scheduler=where, **more
    )
    whole = make("threads").fit(store)
    calls: list[str] = []
    run, failing = run_module.run, True

    def watched(plan: Any, *args: Any, **more: Any) -> Any:
        calls.append(plan.name)
        if failing and plan.name == "sweep 7":
            raise Interrupted
        return run(plan, *args, **more)

    monkeypatch.setattr(run_module, "run", watched)
    with pytest.raises(Interrupted):
        make(two_processes, checkpoint=str(tmp_path / "state")).fit(store)
    before, failing = len(calls), False
    model = make(two_processes, checkpoint=str(tmp_path / "state")).fit(store)
    assert calls[before] == "sweep 7"
    assert same_bits(bits(model), bits(whole))
