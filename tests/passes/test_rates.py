"""Rates order candidates; they come from the settings and never from the clock."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr

from streampca import PCA
from streampca.cli import calibrate
from streampca.cli.commands import main
from streampca.errors import InvalidInputError
from streampca.passes import Candidate, PassSpec, Rates
from streampca.sources import as_matrix


@pytest.fixture
def matrix() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((600, 400), dtype=np.float32)


def test_seconds_are_bytes_cells_flops_and_the_solver(matrix: Any, tmp_path: Any) -> None:
    spec = PassSpec("a", 0, 0, 0, flops=1e9, work="skinny", times=5, likely=3)
    candidate = Candidate("s", "", (spec,), solve_flops=3e9)
    rates = Rates(read=1e6, cells=1e5, skinny=1e9, dense=1e9)
    once = matrix.size / 1e5 + 1.0  # what lies in memory is not read
    assert rates.seconds(as_matrix(matrix), candidate) == pytest.approx(
        2 * 3 * once + 3
    )  # one block
    double = as_matrix(matrix.astype(float))
    once = matrix.size / 1e5 + 1.0 / 0.5
    assert rates.seconds(double, candidate) == pytest.approx(2 * 3 * once + 3)
    stored = as_matrix(zarr.create_array(tmp_path / "x.zarr", data=matrix, chunks=matrix.shape))
    once = matrix.nbytes / 1e6 + matrix.size / 1e5 + 1.0
    assert rates.seconds(stored, candidate) == pytest.approx(2 * 3 * once + 3)


def test_the_choice_follows_the_rates_and_nothing_else(matrix: Any, tmp_path: Any) -> None:
    slow_solver = PCA(5, rates={"dense": 1e3}).plan(matrix)
    assert slow_solver.solver == "krylov"
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"skinny": 1e3}))
    slow_steps = PCA(5, rates=str(path)).plan(matrix)
    assert slow_steps.solver != "krylov"
    names = [name for name, _ in slow_steps.considered]
    assert set(names) >= {"scatter", "gram", "krylov"}
    assert "predicted" in str(slow_steps)
    assert PCA(None, rates={"dense": 1e3}).plan(matrix).solver != "krylov"  # all are asked


@pytest.mark.parametrize(
    "rates", [{"reed": 1.0}, {"read": 0}, {"read": "fast"}, {"read": True}, 7, "no such file"]
)
def test_invalid_rates_are_refused(rates: Any, matrix: Any) -> None:
    with pytest.raises(InvalidInputError, match="rates"):
        PCA(5, rates=rates).plan(matrix)


def test_calibrate_writes_what_plans_take(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(calibrate, "ROWS", 256)
    monkeypatch.setattr(calibrate, "COLUMNS", 64)
    monkeypatch.setattr(calibrate, "REPEATS", 1)
    path = str(tmp_path / "rates.json")
    assert main(["calibrate", "-o", path]) == 0
    assert path in capsys.readouterr().out
    found = Rates.of(path)
    assert found.to_dict().keys() == Rates().to_dict().keys()
    assert main(["calibrate", "--threads", "2"]) == 0
    said = capsys.readouterr()
    Rates.of(json.loads(said.out))
    assert said.err.startswith("2 threads, of 2 times the speed of one: read ")
    assert main(["calibrate", "--threads", "1"]) == 0
    assert not capsys.readouterr().err
