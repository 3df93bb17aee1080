"""Strips that share chunks: each chunk is read once in order, and what is kept is bounded."""

import functools
import itertools
import pickle
from collections import Counter

import dask.array as da
import numpy as np
import pytest

import streampca
from streampca.matrix import SpanCache, reading_with, select
from streampca.passes import blocks
from streampca.sources.dask import sharing
from streampca.sources.dask.arrays import from_dask
from tests.each import each
from tests.sources.dask_reads import Source, planned, values_of


def spread(block):
    """Each row plus its neighbours, three at a time."""
    padded = np.pad(block, ((1, 1), (0, 0)))
    return padded[:-2] + padded[1:-1] + padded[2:]


def moving(x):
    return da.lib.stride_tricks.sliding_window_view(x, 5, axis=0).mean(-1)


OVERLAP = functools.partial(da.map_overlap, spread, depth={0: 2, 1: 0})

GRAPHS = {
    "overlap": lambda x: OVERLAP(x, boundary="none"),
    "reflected": lambda x: OVERLAP(x, boundary="reflect"),
    "overlap twice": lambda x: OVERLAP(OVERLAP(x, boundary="none"), boundary="none"),
    "moving mean": moving,
    "rechunked below": lambda x: x.rechunk((20, 4)).map_blocks(np.sort, axis=0),
    "rechunked and overlapped": lambda x: OVERLAP(x.rechunk((20, -1)), boundary="none"),
    "between workers": lambda x: x.rechunk((20, 4), method="p2p").map_blocks(np.sort, axis=0),
    "beside itself": lambda x: da.concatenate([x[3:], x[:-3]], axis=1),
    "running sum": lambda x: x.cumsum(0),
    "differences": lambda x: da.diff(x, axis=0),
}


def by_tasks(build):
    """What ``build`` gives with every rechunk made by tasks, for a reference."""

    def built(x):
        rechunk = da.Array.rechunk
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(
                da.Array, "rechunk", lambda x, *args, method=None, **more: rechunk(x, *args, **more)
            )
            return build(x)

    return built


@each("axis", [0, 1])
@each("name", GRAPHS)
def test_each_chunk_is_read_once_in_order(name, axis):
    expected = by_tasks(GRAPHS[name])(Source().array((12, 12))).compute(scheduler="sync")
    source = Source()
    matrix = from_dask(GRAPHS[name](source.array((12, 12))))
    assert len(matrix.chunk_edges(0)) > 6
    announced = planned(matrix, axis)
    assert not source.reads
    np.testing.assert_allclose(values_of(matrix, axis), expected, rtol=1e-12, atol=1e-12)
    assert set(source.reads.values()) == {1}
    assert matrix.reads().chunks == announced
    assert len(source.reads) == 10


@pytest.mark.parametrize("name", GRAPHS)
def test_the_order_of_reading_leaves_no_trace(name):
    """The same bits from a strip that finds what its neighbour left, and from one that does not."""
    matrix = from_dask(GRAPHS[name](Source().array((12, 12))))
    in_order = values_of(matrix, 0)
    edges = matrix.chunk_edges(0)
    for start, stop in reversed(list(itertools.pairwise(edges))):
        with reading_with(SpanCache()):
            alone = matrix.read(0, int(start), int(stop))
        np.testing.assert_array_equal(alone, in_order[start:stop])


@pytest.mark.parametrize("name", GRAPHS)
def test_kept_results_are_planned_and_freed(name, monkeypatch):
    most = []
    forget = sharing.Results.forget

    def watched(results, window, strip):
        most.append(sum(results._nbytes.values()))
        forget(results, window, strip)

    monkeypatch.setattr(sharing.Results, "forget", watched)
    matrix = from_dask(GRAPHS[name](Source((1200, 12)).array((12, 12))))
    cache = SpanCache()
    with reading_with(cache):
        values_of(matrix, 0)
    (results,) = cache._things.values()
    assert 0 < max(most) <= matrix.reader.window(0).nbytes < matrix.nbytes / 10
    assert not results.values()
    assert matrix.read_scratch_nbytes(0, 12) >= matrix.reader.window(0).nbytes


@pytest.mark.parametrize("boundary", ["none", "reflect", "periodic"])
def test_an_overlap_keeps_two_chunks_and_the_rows_that_the_next_one_takes(boundary):
    matrix = from_dask(OVERLAP(Source((1200, 12)).array((12, 12)), boundary=boundary))
    chunk, rows = 12 * 12 * 8, 2 * 12 * 8
    cache = SpanCache()
    with reading_with(cache):
        for i in range(40):
            matrix.read(0, 12 * i, 12 * (i + 1))
    (results,) = cache._things.values()
    kept = list(results.values().values())
    assert {one.nbytes for one in kept} == {chunk, rows}
    assert sum(one.nbytes for one in kept) <= matrix.reader.window(0).nbytes
    assert all(one.base is None or one.base.nbytes == one.nbytes for one in kept)
    wrapped = chunk if boundary == "periodic" else 0  # the first strip reads the last chunk
    assert matrix.reader.window(0).nbytes <= 2 * chunk + 5 * rows + wrapped


def test_what_does_not_fit_is_computed_again():
    source = Source()
    matrix = from_dask(OVERLAP(source.array((12, 12)), boundary="none"))
    expected = values_of(matrix, 0)
    source.reads.clear()
    cache = SpanCache()
    cache.of((matrix.reader._cache, 0), lambda: sharing.Results(limit=0))
    with reading_with(cache):
        np.testing.assert_array_equal(values_of(matrix, 0), expected)
    assert set(source.reads.values()) == {2, 3}


def test_a_part_takes_its_window_along():
    source = Source()
    whole = from_dask(OVERLAP(source.array((12, 12)), boundary="none"))
    expected = values_of(whole, 0)
    part = pickle.loads(pickle.dumps(whole.part(0, 36, 84)))
    part.restart_counts()
    blocks = [part.read(0, start, start + 12) for start in range(36, 84, 12)]
    np.testing.assert_array_equal(np.concatenate(blocks), expected[36:84])
    assert part.reads().chunks == whole.count_span(0, np.arange(36, 85, 12)) == 6


@each(
    "rows",
    [np.arange(120), np.arange(0, 120, 2), np.arange(0, 120, 18), np.r_[0:13, 30:40, 90:120]],
)
@each("name", GRAPHS)
def test_selected_rows_read_what_is_counted(name, rows):
    """What several of the runs need that a selection is read in is read once."""
    source = Source()
    matrix = from_dask(GRAPHS[name](source.array((12, 12))))
    chosen = select(matrix, rows[rows < matrix.shape[0]])
    announced = planned(chosen, 0)
    with reading_with(SpanCache()):
        values_of(chosen, 0)
    assert chosen.reads().chunks == announced
    assert set(source.reads.values()) == {1}


def small_blocks(monkeypatch, nbytes):
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", nbytes)
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 1)


def test_chunks_at_the_borders_of_spans_are_read_twice_and_planned(monkeypatch):
    small_blocks(monkeypatch, 24 * 12 * 8)
    source = Source((1200, 12))
    x = OVERLAP(source.array((12, 12)), boundary="none")
    plan = streampca.PCA(2, progress=False).plan(x)
    spans = len(plan.passes[0].spans)
    assert plan.lanes == 2
    assert plan.passes[0].reads == 100 + 2 * (spans - 1)
    source.reads.clear()
    model = streampca.PCA(2, progress=False).fit(x)
    assert model.cost_[0].reads == plan.passes[0].reads == sum(source.reads.values())
    assert Counter(source.reads.values()) == {1: 100 - 2 * (spans - 1), 2: 2 * (spans - 1)}
    dense = np.concatenate([spread_whole(source.values)])
    variances = np.linalg.eigvalsh(np.cov(dense.T))[::-1][:2]
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-12)


def spread_whole(values):
    """What overlapping chunks of 12 rows by 2 gives: at the borders of chunks nothing is cut."""
    return spread(values)


def test_spans_are_longer_than_what_one_chunk_reaches(monkeypatch):
    """With one strip to a span, a chunk that three strips need would be read three times."""
    small_blocks(monkeypatch, 12 * 12 * 8)
    source = Source((72, 12))
    x = OVERLAP(source.array((12, 12)), boundary="none")
    plan = streampca.PCA(2, progress=False).plan(x)
    assert [len(span) for span in plan.passes[0].spans] == [2, 2, 2]
    streampca.PCA(2, progress=False).fit(x)
    assert max(source.reads.values()) == 2


def test_a_running_sum_is_one_span(monkeypatch):
    small_blocks(monkeypatch, 12 * 12 * 8)
    source = Source((1200, 12))
    x = source.array((12, 12)).cumsum(0)
    plan = streampca.PCA(2, progress=False).plan(x)
    assert len(plan.passes[0].spans) == 1
    model = streampca.PCA(2, progress=False).fit(x)
    assert set(source.reads.values()) == {1}
    assert model.cost_[0].reads == plan.passes[0].reads == 101  # and the zeros it begins with
    variances = np.linalg.eigvalsh(np.cov(source.values.cumsum(0).T))[::-1][:2]
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-12)


def test_an_error_leaves_nothing_behind(monkeypatch):
    small_blocks(monkeypatch, 12 * 12 * 8)
    caches = []
    made = SpanCache.__init__

    def watched(cache):
        made(cache)
        caches.append(cache)

    monkeypatch.setattr(SpanCache, "__init__", watched)
    source = Source((1200, 12))

    def broken(block):
        if np.array_equal(block[2:4], source.values[48:50]):
            raise RuntimeError("disk is on fire")
        return block

    x = da.map_overlap(
        broken, source.array((12, 12)), depth={0: 2, 1: 0}, boundary="none", meta=np.empty((0, 0))
    )
    with pytest.raises(RuntimeError, match="on fire"):
        streampca.PCA(2, progress=False).fit(x)
    assert caches
    assert not any(cache._things for cache in caches)
