"""Strips of any Dask graph: the right values, and every source chunk read as often as planned."""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.sources.dask import sharing as dask_sharing
from streampca.sources.dask.arrays import from_dask
from tests.each import each
from tests.sources.dask_reads import Source, planned, values_of


def standardised(x):
    z = x - x.mean(0)
    return z / z.std(0)


def grouped(x):
    return da.concatenate([x[i : i + 24] - x[i : i + 24].mean(0) for i in range(0, 120, 24)])


# name: (graph, most reads of a chunk when samples and when features are streamed)
GRAPHS = {
    "plain": (lambda x: x, 1, 1),
    "centred": (lambda x: x - x.mean(0), 2, 1),
    "row centred": (lambda x: x - x.mean(1)[:, None], 1, 2),
    "both centred": (lambda x: x - x.mean(0) - x.mean(1)[:, None] + x.mean(), 2, 2),
    "standardised": (standardised, 2, 1),
    "weighted": (lambda x: x * da.arange(12, chunks=5), 1, 1),
    "centred by another": (lambda x: x - da.ones((50, 12), chunks=(7, 4)).sum(0), 1, 1),
    "misaligned": (lambda x: x.rechunk((20, 4)), 1, 1),
    "misaligned and centred": (lambda x: x.rechunk((20, 7)) - x.mean(0), 2, 1),
    "overlapping": (lambda x: da.map_overlap(np.abs, x, depth=1, boundary="reflect"), 1, 1),
    "running sum": (lambda x: x.cumsum(0), 1, 1),
    "twice": (lambda x: da.concatenate([x, 2 * x], axis=1), 1, 1),
    "groups": (grouped, 1, 1),
    "cut": (lambda x: x[7:90:2, 1:], 1, 1),
    "product": (lambda x: x @ da.ones((12, 4), chunks=3), 1, 2),
}


@each("axis", [0, 1])
@each("inline", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_read_as_planned(name, inline, axis):
    build, *most = GRAPHS[name]
    source = Source()
    graph = build(source.array(inline=inline))
    expected = graph.compute(scheduler="sync")
    source.reads.clear()
    matrix = from_dask(graph)
    announced = planned(matrix, axis)
    prepared = matrix.prepare_reads(axis).nbytes
    assert not source.reads
    np.testing.assert_allclose(values_of(matrix, axis), expected, rtol=1e-13, atol=1e-13)
    assert max(source.reads.values()) <= most[axis]
    assert matrix.reads().chunks == announced
    assert matrix.reads().nbytes == matrix.nbytes
    assert (matrix.reader.prepared().chunks > 0) == (prepared > 0)
    assert matrix.reader.prepared().nbytes == prepared


@given(st.data())
def test_rechunked_reads_each_source_chunk_once(data):
    rows, columns = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 9))
    stored = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    wanted = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
    axis = data.draw(st.integers(0, 1))
    source = Source((rows, columns))
    matrix = from_dask(source.array(stored).rechunk(wanted))
    n_chunks = -(-rows // stored[0]) * -(-columns // stored[1])
    assert planned(matrix, axis) == n_chunks
    np.testing.assert_array_equal(values_of(matrix, axis), source.values)
    assert set(source.reads.values()) == {1}
    assert len(source.reads) == matrix.reads().chunks == n_chunks


def test_strips_come_apart_although_they_share_chunks():
    matrix = from_dask(da.map_overlap(np.abs, Source().array((10, 12)), depth={0: 2, 1: 0}))
    np.testing.assert_array_equal(matrix.chunk_edges(0), np.arange(0, 121, 10))
    centred = from_dask(Source().array() - Source().array().mean(0))
    np.testing.assert_array_equal(centred.chunk_edges(0), np.arange(0, 121, 12))


def test_nested_reductions_are_computed_in_stages_when_holding_the_data_costs_too_much(monkeypatch):
    monkeypatch.setattr(dask_sharing, "PREPARED_NBYTES", 3000)
    source = Source()
    x = source.array()
    matrix = from_dask(standardised(x))
    sharing = matrix.reader.sharing(0)
    assert len(sharing.stages) == 2
    expected = (source.values - source.values.mean(0)) / source.values.std(0)
    np.testing.assert_allclose(values_of(matrix, 0), expected, rtol=1e-12)
    assert set(source.reads.values()) == {3}
    hidden = from_dask(x / ((x - x.mean(0)) ** 2).sum(0))
    assert len(hidden.reader.sharing(0).stages) == 2


def test_groups_too_large_to_hold_are_split(monkeypatch):
    monkeypatch.setattr(dask_sharing, "PREPARED_NBYTES", 2048)
    matrix = from_dask(grouped(Source().array()))
    assert len(matrix.chunk_edges(0)) == 11


def test_shared_operands_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(dask_sharing, "PREPARED_NBYTES", 64)
    matrix = from_dask(Source().array() - Source().array().mean(0))
    with pytest.raises(InvalidInputError, match=r"to_zarr.*persist"):
        matrix.read(0, 0, 12)


def test_strips_that_cannot_be_separated_are_refused(monkeypatch):
    monkeypatch.setattr(dask_sharing, "WINDOW_NBYTES", 6000)
    by_columns = Source().array().map_blocks(np.abs).rechunk((120, 5)).map_blocks(np.sort)
    matrix = from_dask(by_columns.rechunk((7, 12)).map_blocks(np.sort))
    with pytest.raises(InvalidInputError, match=r"do not line up.*to_zarr"):
        matrix.chunk_edges(0)
    running = from_dask(Source().array().cumsum(0))
    assert len(running.chunk_edges(0)) == 11
    assert len(running.chunk_edges(1)) == 4


def test_many_threads_prepare_once():
    source = Source()
    x = source.array()
    matrix = from_dask(x - x.mean(0))
    edges = matrix.chunk_edges(0)
    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(lambda i: matrix.read(0, edges[i], edges[i + 1]), range(10)))
    np.testing.assert_allclose(
        np.concatenate(blocks), source.values - source.values.mean(0), atol=1e-13
    )
    assert set(source.reads.values()) == {2}
    assert matrix.reads().chunks == matrix.reader.prepared().chunks == 30


def test_a_part_pickles_small_and_reads_only_its_own():
    source = Source((1200, 12))
    x = source.array()
    matrix = from_dask(x - x.mean(0))
    assert len(matrix.chunk_edges(0)) == 101
    text = pickle.dumps(matrix.part(0, 24, 48))
    assert len(text) < 5000
    assert set(source.reads.values()) == {1}
    part = pickle.loads(text)
    expected = (source.values - source.values.mean(0))[24:48]
    np.testing.assert_allclose(part.read(0, 24, 48), expected, atol=1e-13)
    np.testing.assert_allclose(part.read(0, 30, 41), expected[6:17], atol=1e-13)
    assert part.reads().chunks == 6 + 6
    assert part.reader.prepared().chunks == 0
    part.restart_counts()
    assert part.reads().chunks == 0


def test_the_buffer_of_a_block_is_used():
    source = Source()
    matrix = from_dask(source.array())
    buffer = np.empty(12 * 12 * 8, np.uint8)
    values = matrix.read(0, 12, 24, buffer)
    assert np.shares_memory(values, buffer)
    np.testing.assert_array_equal(values, source.values[12:24])


def test_any_slice_can_be_read():
    source = Source()
    x = source.array()
    matrix = from_dask((x - x.mean(0)).rechunk((50, 5)))
    expected = source.values - source.values.mean(0)
    np.testing.assert_allclose(matrix.read(0, 33, 77), expected[33:77], atol=1e-13)
    np.testing.assert_allclose(matrix.read(1, 3, 8), expected[:, 3:8], atol=1e-13)
    assert matrix.read(0, 5, 5).shape == (0, 12)


def test_several_dimensions_are_stacked():
    source = Source((6, 10, 4))
    matrix = from_dask(source.array((3, 5, 2)), dim=[1, 0])
    expected = source.values.transpose(1, 0, 2).reshape(60, 4)
    for axis in (0, 1):
        np.testing.assert_array_equal(values_of(matrix, axis), expected)
        assert matrix.reads().chunks == 8 * (axis + 1)
    with pytest.raises(InvalidInputError, match="dim=0"):
        from_dask(source.array((3, 5, 2)))
    with pytest.raises(InvalidInputError, match="leave at least one"):
        from_dask(source.array((3, 5, 2)), dim=[0, 1, 2])
    with pytest.raises(InvalidInputError, match=r"dimensions \[0, 1, 2\]"):
        from_dask(source.array((3, 5, 2)), dim="time")


def test_data_in_the_graph_are_not_reads():
    values = np.arange(120.0).reshape(40, 3)
    matrix = from_dask(da.from_array(values, chunks=(10, 3)))
    np.testing.assert_array_equal(values_of(matrix, 0), values)
    assert matrix.reads().chunks == planned(matrix, 0) == 0


def test_a_file_opened_once_is_an_operand():
    opened = Counter()

    def open_file(path):
        opened[path] += 1
        return np.arange(60.0).reshape(20, 3)

    handle = dask.delayed(open_file)("path")
    parts = [dask.delayed(lambda f, i: f[i : i + 5])(handle, i) for i in range(0, 20, 5)]
    x = da.concatenate([da.from_delayed(p, (5, 3), float) for p in parts])
    matrix = from_dask(x)
    np.testing.assert_array_equal(matrix.chunk_edges(0), [0, 5, 10, 15, 20])
    np.testing.assert_array_equal(values_of(matrix, 0), np.arange(60.0).reshape(20, 3))
    assert opened == {"path": 1}
    assert matrix.reads().chunks == 4


def test_empty_and_single_arrays():
    for shape in [(1, 1), (1, 5), (5, 1)]:
        source = Source(shape)
        np.testing.assert_array_equal(values_of(from_dask(source.array(shape)), 0), source.values)
    empty = from_dask(da.zeros((0, 3), chunks=(1, 3)))
    np.testing.assert_array_equal(empty.chunk_edges(0), [0])
    holed = da.concatenate([da.ones((4, 2)), da.ones((4, 2))[:0], 2 * da.ones((3, 2))])
    matrix = from_dask(holed)
    np.testing.assert_array_equal(matrix.chunk_edges(0), [0, 4, 7])
    assert values_of(matrix, 0).sum() == 20


@pytest.mark.parametrize("dtype", ["bool", "i1", "u2", ">f4", ">i4", "f8"])
def test_dtypes(dtype):
    values = (np.arange(24).reshape(8, 3) % 2).astype(dtype)
    matrix = from_dask(da.from_array(values, chunks=(3, 2)) + np.zeros((), dtype))
    assert matrix.dtype.isnative
    got = values_of(matrix, 0)
    assert got.dtype == matrix.dtype
    np.testing.assert_array_equal(got, values)


def lie(x, declared):
    return x.map_blocks(
        lambda block: block[:1], dtype=declared, chunks=x.chunks, meta=np.empty((0, 0))
    )


def test_chunks_that_are_not_what_they_were_declared():
    x = Source().array((12, 12))
    with pytest.raises(InvalidInputError, match="declared as"):
        from_dask(lie(x, float)).read(0, 0, 12)
    wrong = x.map_blocks(np.sqrt, dtype="i4", meta=np.empty((0, 0), "i4"))
    with np.errstate(invalid="ignore"), pytest.raises(InvalidTypeError, match="float64"):
        from_dask(wrong).read(0, 0, 12)


def test_what_cannot_be_read_is_refused_with_the_repairing_line():
    x = Source().array()
    with pytest.raises(InvalidInputError, match="compute_chunk_sizes"):
        from_dask(x[x[:, 0] > 0])
    with pytest.raises(InvalidTypeError, match="astype"):
        from_dask(x.astype(object))
    late = from_dask(x.map_blocks(scipy.sparse.csr_array, meta=np.empty((0, 0)), dtype=float))
    with pytest.raises(InvalidTypeError, match="csr_array"):
        late.read(0, 0, 12)
    with pytest.raises(InvalidTypeError, match="expected a Dask array"):
        from_dask(dask.delayed(1))


def test_an_error_in_the_graph_is_not_swallowed():
    def broken(block):
        raise RuntimeError("disk is on fire")

    x = Source().array().map_blocks(broken, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(RuntimeError, match="on fire"):
        from_dask(x).read(0, 0, 12)


def test_fingerprint_follows_the_graph():
    x = da.from_array(np.arange(12.0).reshape(4, 3), chunks=2)
    assert from_dask(x).fingerprint() == from_dask(x).fingerprint()
    assert from_dask(x).fingerprint() != from_dask(x + 1).fingerprint()


def test_open_takes_a_dask_array():
    source = Source()
    matrix = streampca.sources.open(source.array() - 1.0)
    np.testing.assert_array_equal(values_of(matrix, 0), source.values - 1.0)


def read_part(matrix):
    matrix.restart_counts()
    return matrix.read(0, 12, 36), matrix.reads(), matrix.reader.prepared()


@pytest.mark.slow
def test_persisted_on_a_cluster():
    local = "127.0.0.1:0"
    values = Source().values
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            dashboard_address=local,
            worker_dashboard_address=local,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        x = da.from_array(values, chunks=(12, 6)).persist()
        matrix = from_dask(x - x.mean(0))
        expected = values - values.mean(0)
        np.testing.assert_allclose(values_of(matrix, 0), expected, atol=1e-13)
        assert matrix.reads().chunks == matrix.reader.prepared().chunks == 20
        part, reads, prepared = client.submit(read_part, matrix.part(0, 12, 36)).result()
        np.testing.assert_allclose(part, expected[12:36], atol=1e-13)
        assert (reads.chunks, prepared.chunks) == (4, 0)
