"""Overlapping chunks told by their layers: as the whole graph tells it, and for very many."""

import cProfile
import functools
import gc
import pstats
import weakref

import dask.array as da
import numpy as np
import pytest

import streampca
from streampca.sources.dask.arrays import from_dask
from tests.sources.dask_reads import Source, planned, values_of


def smooth(block):
    return block + np.roll(block, 1, axis=0)


OVERLAP = functools.partial(da.map_overlap, smooth, boundary="none")
ROWS, BOTH = {0: 2, 1: 0}, {0: 2, 1: 1}

GRAPHS = {
    "rows": lambda x: OVERLAP(x, depth=ROWS),
    "rows and columns": lambda x: OVERLAP(x, depth=BOTH),
    "columns": lambda x: OVERLAP(x, depth={0: 0, 1: 1}),
    "rows before": lambda x: OVERLAP(x, depth={0: (2, 0), 1: 0}),
    "rows after": lambda x: OVERLAP(x, depth={0: (0, 2), 1: 0}),
    "of a sum": lambda x: OVERLAP(x * 2 + 1, depth=ROWS),
    "and what is below": lambda x: OVERLAP(x, depth=ROWS) - x,
    "twice": lambda x: OVERLAP(OVERLAP(x, depth=ROWS), depth=BOTH),
    "three times, and what is below": lambda x: (
        OVERLAP(OVERLAP(OVERLAP(x, depth=ROWS) * 2, depth=ROWS), depth=ROWS) + x
    ),
    "centred": lambda x: OVERLAP(x, depth=ROWS) - x.mean(0),
    "turned": lambda x: OVERLAP(x.T, depth={0: 1, 1: 2}).T,
    "chunks of several lengths": lambda x: OVERLAP(x, depth=ROWS)[5:],
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_layers_say_what_the_whole_graph_says(name, dim):
    array = GRAPHS[name](Source().array((12, 4)))
    told, whole = from_dask(array), from_dask(array)
    assert told.reader.layers is not None
    whole.reader.layers = None
    here, there = told.reader.sharing(dim), whole.reader.sharing(dim)
    np.testing.assert_array_equal(here.firsts, there.firsts)
    np.testing.assert_array_equal(here.lasts, there.lasts)
    assert here.cuts == there.cuts
    assert here.prepared_chunks == there.prepared_chunks
    assert here.window.reach == there.window.reach
    assert here.window.nbytes == there.window.nbytes
    assert dict(here.window.until) == dict(there.window.until)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["rows", "rows and columns", "rows before", "of a sum", "twice"])
def test_chunks_in_memory_are_cut_and_not_kept(name, dim):
    """Cutting data is the read, as it is where the whole graph is looked at."""
    array = GRAPHS[name](da.from_array(Source().values, chunks=(12, 4)))
    told, whole = from_dask(array), from_dask(array)
    whole.reader.layers = None
    here, there = told.reader.sharing(dim), whole.reader.sharing(dim)
    np.testing.assert_array_equal(here.firsts, there.firsts)
    np.testing.assert_array_equal(here.lasts, there.lasts)
    assert bool(here.window.until) == bool(there.window.until)
    announced = planned(told, dim)
    values_of(told, dim)
    assert told.reads().chunks == announced


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_values_and_reads(name, axis):
    expected = GRAPHS[name](Source().array((12, 4))).compute(scheduler="sync")
    source = Source()
    matrix = from_dask(GRAPHS[name](source.array((12, 4))))
    announced = planned(matrix, axis)
    np.testing.assert_allclose(values_of(matrix, axis), expected, rtol=1e-12, atol=1e-12)
    assert matrix.reads().chunks == announced


@pytest.mark.parametrize("name", ["rows", "rows and columns", "columns", "twice", "of a sum"])
def test_no_task_of_another_strip_is_made(name, monkeypatch):
    """The graph of an overlap is never made whole, neither for a plan nor for a strip."""
    overlap = "dask.layers.ArrayOverlapLayer"
    array = GRAPHS[name](Source((1200, 12)).array((12, 4)))

    def refused(layer):
        raise AssertionError("all tasks of an overlap were made")

    monkeypatch.setattr(f"{overlap}._dict", property(refused))
    matrix = from_dask(array)
    assert planned(matrix, 0) == 300
    part = matrix.part(0, 24, 48)
    assert part.read(0, 24, 36).shape == (12, 12)
    assert len(part.reader.graph.nodes) < 200


def standardised(x):
    return (x - x.mean(0)) / x.std(0)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x,
        lambda x: x[3:-5],
        standardised,
        lambda x: OVERLAP(x, depth={0: 1, 1: 0}),
        lambda x: da.map_overlap(smooth, x, depth={0: 1, 1: 0}, boundary="reflect"),
        lambda x: x.cumsum(0),
    ],
    ids=["plain", "slice", "standardised", "overlap", "reflected", "running sum"],
)
def test_the_plan_of_many_chunks_takes_time_in_proportion(build):
    """By the calls that it makes: 100,000 chunks are planned in seconds."""
    model = streampca.PCA(2, scheduler="threads", progress=False)
    calls = []
    for chunks in (2_000, 4_000):
        array = build(da.zeros((4 * chunks, 8), chunks=(4, 8)))
        with cProfile.Profile() as profile:
            plan = model.plan(array)
        assert chunks - 1 <= plan.reads <= 2.05 * chunks
        calls.append(pstats.Stats(profile).total_calls)
    assert calls[1] <= 2.1 * calls[0]


def test_a_block_that_was_read_is_freed_at_once() -> None:
    """Frames that Dask leaves in a cycle kept each one until the garbage collector came."""
    x = da.random.default_rng(0).random((60, 4), chunks=(10, 4)).rechunk((12, 4))
    matrix = streampca.open(da.map_overlap(np.abs, x, depth={0: 2, 1: 0}, boundary="reflect"))
    gc.disable()
    try:
        for start in range(0, 60, 12):
            block = matrix.read(0, start, start + 12)
            memory = weakref.ref(block.base)
            del block
            assert memory() is None
    finally:
        gc.enable()
