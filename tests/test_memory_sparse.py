"""Measured peak <= projected for sparse sources, in fresh processes (see ``test_memory``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr

from streampca.passes.machine import peak_nbytes

SCRIPT = """
import json, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
import streampca
from streampca.models import linear, pca_plan
from streampca.passes.machine import peak_nbytes, resident_nbytes

ask = json.loads(sys.argv[1])
plans = []

def recorded(make):
    def make_plan(*args, **more):
        plans.append(make(*args, **more))
        return plans[-1]
    return make_plan

linear.make_plan, pca_plan.make_plan = recorded(linear.make_plan), recorded(pca_plan.make_plan)

def made(path, k):
    settings = {"svd_solver": ask["solver"], "max_passes": 4, "memory_limit": ask["limit"]}
    model = streampca.PCA(k, progress=False, **settings)
    if ask["action"] == "transform":  # of a model that read nothing of the source
        p = streampca.open(path).shape[1]
        model.set_params(svd_solver="gram").fit(np.random.default_rng(0).normal(size=(3 * k, p)))
    return model

def act(path, model):
    source = streampca.open(path)
    if ask["action"] == "derived":
        source = streampca.preprocess.log1p(source)
    if ask["action"] == "transform":
        model.transform(source)
    else:
        model.fit(source)

act(ask["tiny"], made(ask["tiny"], 2))
model = made(ask["path"], ask["k"])
plans.clear()
base = resident_nbytes()
act(ask["path"], model)
largest = max(plans, key=lambda plan: plan.peak_nbytes)
print(json.dumps({
    "base": base, "peak": peak_nbytes(), "projected": largest.peak_nbytes,
    "rest": sum(largest.memory["process"].get(name, 0) for name in ("interpreter", "libraries")),
    "memory": {phase: dict(terms) for phase, terms in largest.memory.items()},
}))
"""

needs_proc = pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")


def store(path: Path, n: int, p: int, format_: str, last: float = 1.0) -> str:
    """Counts, 3 % of them not zero; the last tenth of the lines is ``last`` times as dense."""
    rng = np.random.default_rng(0)
    lines, across = (n, p) if format_ == "csr" else (p, n)
    pieces = []
    for start in range(0, lines, 1000):
        dense = 0.03 * (last if start >= 0.9 * lines else 1.0)
        count = min(1000, lines - start)
        piece = scipy.sparse.random_array((count, across), density=dense, rng=rng, dtype="f4")
        pieces.append(piece.tocsr())
    whole = scipy.sparse.vstack(pieces, format="csr")
    whole.sort_indices()
    if path.suffix == ".h5ad":
        with h5py.File(path, "w") as file:
            write(file, whole, (n, p), format_)
    else:
        write(zarr.create_group(str(path)), whole, (n, p), format_)
    return str(path)


def write(root: Any, lines: Any, shape: tuple[int, int], format_: str) -> None:
    root.attrs.update({"encoding-type": f"{format_}_matrix", "encoding-version": "0.1.0"})
    root.attrs["shape"] = list(shape)
    for name in ("data", "indices", "indptr"):
        array = getattr(lines, name)
        chunks = (min(len(array), 100_000),)
        if isinstance(root, zarr.Group):
            made = root.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)
            made[...] = array
        else:
            root.create_dataset(name, data=array, chunks=chunks, compression="gzip")


def measured(path: str, tiny: str, **ask: Any) -> dict[str, Any]:
    """What a fresh process measured and planned."""
    asked = {"path": path, "tiny": tiny, "k": 10, "action": "fit", "solver": "randomized",
             "limit": None, **ask}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    """The plan's terms bound what was measured above the process at rest."""
    used = found["peak"] - found["base"]
    planned = found["projected"] - found["rest"]
    words = f"used {used >> 20} MiB, planned {planned >> 20} MiB, {found['memory']}"
    print(words)
    assert used <= planned, words
    assert found["base"] <= found["rest"], f"{found['base'] >> 20} MiB at rest"


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".zarr", ".h5ad"])
@pytest.mark.parametrize("format_", ["csr", "csc"])
@pytest.mark.parametrize("action", ["fit", "transform", "derived"])
def test_an_iterative_fit_stays_under_its_plan(
    tmp_path: Path, suffix: str, format_: str, action: str
) -> None:
    path = store(tmp_path / f"x{suffix}", 60_000, 5000, format_)
    tiny = store(tmp_path / f"t{suffix}", 300, 200, format_)
    check(measured(path, tiny, action=action))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("solver", "format_"), [("scatter", "csr"), ("gram", "csc")])
def test_expanded_tiles_stay_under_their_plan(tmp_path: Path, solver: str, format_: str) -> None:
    shape = (60_000, 1500) if format_ == "csr" else (1500, 60_000)
    path = store(tmp_path / "x.zarr", *shape, format_)
    check(measured(path, store(tmp_path / "t.zarr", 300, 200, format_), solver=solver))


@needs_proc
@pytest.mark.slow
def test_a_dense_end_is_planned(tmp_path: Path) -> None:
    path = store(tmp_path / "x.zarr", 60_000, 4000, "csr", last=15.0)
    check(measured(path, store(tmp_path / "t.zarr", 300, 200, "csr")))


@needs_proc
@pytest.mark.slow
def test_peak_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """With blocks of 4 MiB, so that both have more of them than are read ahead."""
    tiny = store(tmp_path / "t.zarr", 300, 200, "csr")
    paths = [store(tmp_path / f"{n}.zarr", n, 2000, "csr") for n in (40_000, 400_000)]
    few, many = (measured(path, tiny, limit="380MiB") for path in paths)
    assert many["memory"]["step"]["blocks"] <= 20 << 20
    assert many["peak"] < 1.1 * few["peak"]
