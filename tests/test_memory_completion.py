"""Measured peak <= projected for completions (see ``test_memory``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zarr

from tests.peaks import Found, above_rest, measured, needs_proc

PROGRAM = """
import scipy.sparse
warnings.simplefilter("ignore")

def act(path, rank, limit):
    source = scipy.sparse.load_npz(path) if path.endswith("npz") else path
    model = streampca.HardImpute(rank, solver=ask["solver"], max_passes=6, tol=0, progress=False,
                                 **ask["more"], memory_limit=limit, alpha=ask["alpha"])
    before = resident_nbytes()
    model.fit(source)
    if ask["out"]:
        model.impute(source, out=path + ask["out"])
    return model, before

act(ask["tiny"], 2, None)
model, base = act(ask["path"], ask["rank"], ask["limit"])
costs = model.cost_
report(base, model.plan_, passes=len(costs), reads=[c.reads for c in costs],
       scratch=model.plan_.sizes["scratch"])
"""

pytestmark = [pytest.mark.slow, needs_proc]


def dense(path: Path, n: int, p: int, chunk: int = 2000) -> str:
    """float32, rank 5 and noise, 30 % NaN."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal((5, p), dtype="f4")
    store = zarr.create_array(str(path), shape=(n, p), chunks=(chunk, p), dtype="f4")
    for start in range(0, n, chunk):
        x = rng.standard_normal((min(chunk, n - start), 5), dtype="f4") @ v
        x += rng.standard_normal(x.shape, dtype="f4")
        x[rng.random(x.shape, dtype="f4") < 0.3] = np.nan
        store[start : start + chunk] = x
    return str(path)


def ratings(path: Path, n: int, p: int, cells: int) -> str:
    """Random cells of random values."""
    rng = np.random.default_rng(0)
    places = (rng.integers(0, n, cells), (p * rng.random(cells) ** 2).astype(int))
    found = scipy.sparse.coo_matrix((rng.random(cells, dtype="f4"), places), (n, p))
    scipy.sparse.save_npz(path, found.tocsr(), compressed=False)
    return str(path)


def run(path: str, tiny: str, **ask: Any) -> Found:
    """What a completion took and planned; checked against each other."""
    asked = {"solver": "als", "rank": 10, "limit": None, "out": "", "more": {}, "alpha": 0.0}
    found = measured(PROGRAM, path=path, tiny=tiny, **asked | ask)
    used, planned = above_rest(found)
    assert used <= planned, f"used {used >> 20} MiB, planned {planned >> 20} MiB, {found['memory']}"
    return found


@pytest.mark.parametrize(
    "solver", [*(pytest.param(one, marks=pytest.mark.soak) for one in ("als", "impute")), "exact"]
)
def test_a_dense_completion_stays_under_its_plan(tmp_path: Path, solver: str) -> None:
    path, tiny = dense(tmp_path / "x.zarr", 24_000, 600), dense(tmp_path / "t.zarr", 300, 20)
    found = run(path, tiny, solver=solver, limit="300MiB", out="-full")
    assert found["peak"] <= 300 << 20
    assert found["passes"] == 6
    assert set(found["reads"]) == {12}  # every chunk once in every pass


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, marks=pytest.mark.soak), {"center": "both", "scale": "both"}],
    ids=["columns", "both"],
)
def test_ratings_are_never_made_dense(tmp_path: Path, more: dict[str, Any]) -> None:
    path = ratings(tmp_path / "x.npz", 60_000, 20_000, 2_000_000)  # 4.8 GB as float32
    tiny = ratings(tmp_path / "t.npz", 300, 20, 2000)
    found = run(path, tiny, rank=8, alpha=1.0, more=more)
    assert found["peak"] < 700 << 20
    assert found["passes"] == 6


@pytest.mark.soak
def test_candidates_and_biases_stay_under_their_plan(tmp_path: Path) -> None:
    tiny = ratings(tmp_path / "t.npz", 300, 20, 2000)
    for path in (
        ratings(tmp_path / "x.npz", 60_000, 5_000, 1_000_000),
        dense(tmp_path / "x.zarr", 24_000, 400),
    ):
        found = run(path, tiny, rank=[2, 4, 8], alpha="auto", more={"validation": 0.05})
        assert found["passes"] == 6


@pytest.mark.soak
def test_factors_that_do_not_fit_go_to_a_scratch_store(tmp_path: Path) -> None:
    path, tiny = dense(tmp_path / "x.zarr", 300_000, 24, 10_000), dense(tmp_path / "t.zarr", 300, 9)
    found = run(path, tiny, solver="impute", limit="200MiB", rank=20)
    assert found["scratch"] == 1
    assert found["peak"] <= 200 << 20
