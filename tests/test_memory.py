"""Measured peak <= projected, and projected <= 1.5 x measured above the interpreter, in fresh
processes."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

from streampca.passes.machine import peak_nbytes

SCRIPT = """
import json, sys
import streampca
from streampca.passes.machine import peak_nbytes, resident_nbytes
path, limit, kind, rows = sys.argv[1], sys.argv[2] or None, sys.argv[3], json.loads(sys.argv[4])
if kind == "dask":
    import dask.array as da
    source = da.from_zarr(path).rechunk(tuple(rows))
else:
    source = streampca.open(path)
base = resident_nbytes()
model = streampca.PCA(5, memory_limit=limit, progress=False)
plan = model.plan(source)
model.fit(source)
print(json.dumps([base, peak_nbytes(), plan.peak_nbytes, plan.memory["process"]["interpreter"],
                  plan.solver, [c.reads for c in model.cost_]]))
"""

needs_proc = pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")


def store(path, shape, chunks, dtype):
    """A Zarr array of noise, written chunk by chunk."""
    array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype=dtype)
    rng = np.random.default_rng(0)
    for i in range(0, shape[0], chunks[0]):
        for j in range(0, shape[1], chunks[1]):
            part = array[i : i + chunks[0], j : j + chunks[1]].shape
            values = rng.standard_normal(part, dtype=np.float32) * 20
            array[i : i + chunks[0], j : j + chunks[1]] = values.astype(dtype)
    return str(path)


def measured(path, limit="", kind="zarr", rows=()):
    """[base, peak, projected, interpreter, solver, reads] of a fit in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, path, limit, kind, json.dumps(list(rows))],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1"])
@pytest.mark.parametrize("layout", ["aligned", "grid"])
@pytest.mark.parametrize("form", ["tall", "wide"])
def test_peak_is_as_projected(tmp_path, form, layout, dtype):
    tall = form == "tall"
    shape = (40_000, 700) if tall else (1400, 20_000)
    whole = (4096, 700) if tall else (1400, 2048)
    grid = (3000, 200) if tall else (300, 1500)
    path = store(tmp_path / "x.zarr", shape, whole if layout == "aligned" else grid, dtype)
    base, peak, projected, interpreter, _, reads = measured(path)
    assert peak <= projected
    assert projected - interpreter <= 1.5 * (peak - base), (projected - interpreter, peak - base)
    n_chunks = int(
        np.prod(
            [-(-s // c) for s, c in zip(shape, whole if layout == "aligned" else grid, strict=True)]
        )
    )
    assert reads == [n_chunks] * (1 if tall else 2)


@needs_proc
@pytest.mark.slow
def test_peak_does_not_grow_with_the_rows(tmp_path):
    small = store(tmp_path / "small.zarr", (30_000, 1000), (1024, 1000), "f4")
    large = store(tmp_path / "large.zarr", (300_000, 1000), (1024, 1000), "f4")
    few, many = measured(small), measured(large)
    assert many[1] < 1.1 * few[1]


@needs_proc
@pytest.mark.slow
def test_a_limit_holds(tmp_path):
    path = store(tmp_path / "x.zarr", (200_000, 400), (1000, 400), "f4")
    generous = measured(path)
    limit = f"{generous[2] // 2**20 - 20}MiB"
    base, peak, projected, *_ = measured(path, limit)
    assert peak <= projected <= int(limit[:-3]) * 2**20
    assert base < peak


@needs_proc
@pytest.mark.slow
def test_misaligned_dask_chunks_are_read_once_and_planned(tmp_path):
    path = store(tmp_path / "x.zarr", (60_000, 300), (1000, 300), "f4")
    base, peak, projected, interpreter, _, reads = measured(path, kind="dask", rows=(1500, 70))
    assert reads == [60]
    assert peak <= projected
    assert base < interpreter
