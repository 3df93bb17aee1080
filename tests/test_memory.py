"""Measured peak <= projected, and projected <= 1.5 x measured: :mod:`tests.peaks` says of what."""

from __future__ import annotations

import math
import os
import tempfile
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca
from tests.peaks import above_rest, check, measured, needs_proc, runs_until

PROGRAM = """
def opened(path):
    if ask["kind"] == "dask":
        import dask.array as da
        return da.from_zarr(path).rechunk(tuple(ask["rows"]))
    return streampca.open(path)

def act(path, k, model, out):
    if ask["action"] == "fit":
        fitted = streampca.PCA(
            k, memory_limit=ask["limit"], progress=False, svd_solver=ask["solver"]
        ).fit(opened(path))
        return [c.reads for c in fitted.cost_]
    if ask["action"] == "incremental":
        fitted = streampca.IncrementalPCA(k, progress=False, state=ask["state"])
        fitted.partial_fit(opened(path)).partial_fit(opened(path))
        fitted.result_
        return []
    fitted = model
    if ask["action"] == "inverse_transform":
        fitted.inverse_transform(opened(path), out=out)
    elif ask["action"] == "transform_out":
        fitted.transform(opened(path), out=out)
    else:
        getattr(fitted, ask["action"])(opened(path))
    return []

def loaded(path):
    model = None if path is None else streampca.load(path)
    if model is not None:
        model.progress = False
    return model

act(ask["tiny"], 2, loaded(ask["tiny_model"]), ask["tiny_out"])
model = loaded(ask["model"])  # its components are in the base, and in the plan's kept arrays
held = 0 if model is None else model.components_.nbytes
before = resident_nbytes()
if ask["numba"]:  # what small integers load when features are streamed
    streampca.PCA(2, svd_solver="gram").fit(np.arange(300, dtype="i1").reshape(10, 30) % 7)
plans.clear()
base = resident_nbytes()
reads = act(ask["path"], ask["k"], model, ask["out"])
report(base, held=held, numba=base - before, reads=reads)
"""


def store(path, shape, chunks, dtype):
    """A Zarr array of noise, written chunk by chunk: each holds that of the first, shifted."""
    array = zarr.create_array(str(path), shape=shape, chunks=chunks, dtype=dtype)
    noise = np.random.default_rng(0).standard_normal(math.prod(chunks), dtype=np.float32)
    noise = (noise * 20).astype(dtype)
    for number, (i, j) in enumerate(product(*map(range, (0, 0), shape, chunks))):
        rows, columns = min(chunks[0], shape[0] - i), min(chunks[1], shape[1] - j)
        values = np.roll(noise, 977 * number)[: rows * columns].reshape(rows, columns)
        array[i : i + rows, j : j + columns] = values
    return str(path)


def run(path, action="fit", limit=None, kind="zarr", rows=(), k=5, model=None, **more):
    """What a fit, or an action of a model, took and planned."""
    folder = tempfile.mkdtemp(dir=Path(path).parent)
    whole = zarr.open_array(path)
    tall = whole.shape[0] >= whole.shape[1]
    shape = (96, 64) if tall else (64, 96)
    if action == "inverse_transform":
        shape = (96, 2)
    tiny = store(f"{folder}/tiny", shape, shape, whole.dtype)
    tiny_model = None
    if action not in ("fit", "incremental"):
        fitted_on = store(f"{folder}/fit", (96, 64) if tall else (64, 96), (96, 64), "f4")
        streampca.PCA(2).fit(fitted_on).save(f"{folder}/tiny-model")
        tiny_model = f"{folder}/tiny-model"
    ask = {
        "path": path,
        "tiny": tiny,
        "action": action,
        "limit": limit,
        "kind": kind,
        "rows": list(rows) or [32, 32],
        "k": k,
        "model": model,
        "tiny_model": tiny_model,
        "out": f"{folder}/out",
        "tiny_out": f"{folder}/tiny-out",
        "state": "scatter",
        "solver": "auto",
        "numba": bool(whole.dtype == np.int8),
    }
    return measured(PROGRAM, **ask | more)


def is_tight(found):
    """Whether the plan's terms are not far above what was measured."""
    used, planned = above_rest(found)
    return planned <= 1.5 * used


# every pair of form, layout, dtype and k: no term of a plan depends on three of them.
# Those that CI runs have every form, layout, dtype and k.
PEAKS = [
    ("tall", "aligned", "f4", 5),
    ("tall", "grid", "i1", 60),
    ("wide", "aligned", "f8", 5),
    *(
        pytest.param(*case, marks=pytest.mark.soak)
        for case in (
            ("tall", "grid", "f8", 5),
            ("wide", "aligned", "f4", 60),
            ("wide", "grid", "i1", 5),
            ("tall", "aligned", "f8", 60),
            ("tall", "aligned", "i1", 5),
            ("tall", "grid", "f4", 60),
            ("wide", "aligned", "i1", 60),
            ("wide", "grid", "f4", 5),
            ("wide", "grid", "f8", 60),
        )
    ),
]


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("form", "layout", "dtype", "k"), PEAKS)
def test_peak_is_as_projected(tmp_path, form, layout, dtype, k):
    tall = form == "tall"
    shape = (40_000, 700) if tall else (1400, 20_000)
    whole = (4096, 700) if tall else (1400, 2048)
    grid = (3000, 200) if tall else (300, 1500)
    chunks = whole if layout == "aligned" else grid
    path = store(tmp_path / "x.zarr", shape, chunks, dtype)
    solver = "scatter" if tall else "gram"
    runs = runs_until(is_tight, lambda: run(path, k=k, solver=solver))
    for found in runs:
        check(found)
    assert is_tight(found), [above_rest(found) for found in runs]
    n_chunks = int(np.prod([-(-s // c) for s, c in zip(shape, chunks, strict=True)]))
    assert found["reads"] == [n_chunks] * (1 if tall else 2)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", pytest.param("i1", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((2500, 12_000), (250, 12_000)), ((10_000, 6000), (10_000, 500)), ((5000, 5500), (900, 800))],
)
def test_an_iterative_fit_stays_under_its_plan(tmp_path, shape, chunks, dtype):
    path = store(tmp_path / "x.zarr", shape, chunks, dtype)
    check(run(path, solver="randomized", k=10))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A directory with models of 60 components of 700 and of 20,000 features."""
    folder = tmp_path_factory.mktemp("models")
    for p in (700, 20_000):
        rng = np.random.default_rng(0)
        streampca.PCA(60).fit(rng.standard_normal((300, p), dtype=np.float32)).save(folder / str(p))
    return folder


@pytest.fixture(scope="module")
def rows_for(tmp_path_factory):
    """(form, dtype) -> the path of rows to use a model on, written when first asked for."""
    folder = tmp_path_factory.mktemp("rows")

    @cache
    def written(form, dtype):
        tall = form == "tall"
        shape, chunks = ((60_000, 700), (4096, 700)) if tall else ((3000, 20_000), (3000, 512))
        return store(folder / f"{form}-{dtype}.zarr", shape, chunks, dtype)

    return written


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "dtype", "action"),
    [  # every pair; CI runs every form, dtype and action
        ("tall", "f4", "transform"),
        ("wide", "i1", "r2_curve"),
        ("tall", "i1", "transform_out"),
        *(
            pytest.param(*one, marks=pytest.mark.soak)
            for one in (
                ("tall", "f4", "r2_curve"),
                ("wide", "i1", "transform"),
                ("tall", "i1", "score_samples"),
                ("wide", "f4", "transform_out"),
                ("wide", "f4", "score_samples"),
            )
        ),
    ],
)
def test_use_of_a_model_stays_under_its_plan(rows_for, models, form, dtype, action):
    model = str(models / ("700" if form == "tall" else "20000"))
    check(run(rows_for(form, dtype), action, model=model))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("p", [700, 20_000])
def test_reconstruction_stays_under_its_plan(tmp_path, models, p):
    rows = 40_000 if p == 700 else 2000
    path = store(tmp_path / "scores.zarr", (rows, 60), (1000, 60), "f4")
    check(run(path, "inverse_transform", model=str(models / str(p))))


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [pytest.param(one, marks=pytest.mark.soak) for one in ("scatter", "truncated")] + ["tsqr"],
)
def test_appending_stays_under_its_plan(tmp_path, state):
    rows = 6_000 if state == "truncated" else 16_000  # that one takes a QR of every block
    path = store(tmp_path / "x.zarr", (rows, 900), (2048, 900), "f4")
    check(run(path, "incremental", state=state, k=60))


@needs_proc
@pytest.mark.slow
def test_peak_does_not_grow_with_the_rows(tmp_path):
    # with fewer rows than these, not every buffer that the plan allows is ever in use
    small = store(tmp_path / "small.zarr", (59 * 1024, 500), (1024, 500), "f4")
    large = zarr.create_array(
        str(tmp_path / "large.zarr"), shape=(590 * 1024, 500), chunks=(1024, 500), dtype="f4"
    )
    for i in range(590):  # the chunks of the small one, again and again, as links
        (tmp_path / f"large.zarr/c/{i}").mkdir(parents=True)
        os.link(tmp_path / f"small.zarr/c/{i % 59}/0", tmp_path / f"large.zarr/c/{i}/0")
    many = run(str(tmp_path / "large.zarr"))
    assert many["reads"] == [large.nchunks] == [590]
    few = runs_until(lambda few: many["peak"] < 1.1 * few["peak"], lambda: run(small))
    assert many["peak"] < 1.1 * max(found["peak"] for found in few)


@needs_proc
@pytest.mark.slow
def test_a_limit_holds(tmp_path):
    path = store(tmp_path / "x.zarr", (100_000, 400), (1000, 400), "f4")
    generous = run(path)
    limit = f"{generous['projected'] // 2**20 - 20}MiB"
    found = run(path, limit=limit)
    check(found)
    assert found["peak"] <= found["projected"] <= int(limit[:-3]) * 2**20


@needs_proc
@pytest.mark.slow
def test_misaligned_dask_chunks_are_read_once_and_planned(tmp_path):
    path = store(tmp_path / "x.zarr", (60_000, 300), (1000, 300), "f4")
    found = run(path, kind="dask", rows=(1500, 70))
    assert found["reads"] == [60]
    check(found)
