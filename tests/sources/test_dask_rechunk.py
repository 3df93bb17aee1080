"""Layers that only change chunks: the array below is read by its own chunks."""

import os
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph

import streampca
from streampca.errors import InvalidInputError
from streampca.sources.dask import sharing
from streampca.sources.dask.arrays import from_dask
from streampca.sources.dask.graph import layer_of
from streampca.sources.dask.layers import outline_of_layers
from streampca.sources.dask.lazy_layers import Rechunk
from streampca.sources.dask.rechunk import looked_through
from tests.each import each
from tests.sources.dask_reads import Source, planned, values_of


def standardised(y):
    return (y - y.mean(0)) / y.std(0)


# name: what is done to the array in other chunks
ABOVE = {
    "nothing": lambda y: y,
    "standardised": standardised,
    "kept dimensions": lambda y: y - y.mean(0, keepdims=True),
    "row centred": lambda y: y - y.mean(1)[:, None],
    "functions": lambda y: np.log1p(abs(y)).clip(0, 0.5).round(3),
    "dtype": lambda y: y.astype("f4") * np.float32(2),
    "where": lambda y: da.where(y > 0, y, 0),
    "log in a dtype": lambda y: da.log(abs(y), dtype="f8"),
    "transposed": lambda y: (y + 1).T,
    "again": lambda y: (y.rechunk((7, 7)) + 1).rechunk((-1, 2)),
    "with another": lambda y: y * y.rechunk((30, -1)) + y,
    "by columns": lambda y: y * da.arange(12, chunks=y.chunks[1]),
}
CHUNKS = {"rows": (20, -1), "columns": (-1, 3), "both": (20, 7), "automatic": "auto"}


@each("chunks", CHUNKS)
@each("name", ABOVE)
def test_a_rechunk_is_looked_through(name, chunks):
    source = Source()
    x = ABOVE[name](source.array((12, 5)).rechunk(CHUNKS[chunks]))
    expected = x.compute(scheduler="sync")
    source.reads.clear()
    matrix = from_dask(x)
    axis = int(name == "transposed")
    stored = ((12,) * 10, (5, 5, 2))
    assert matrix.reader.chunks == (stored[::-1] if axis else stored)
    announced = planned(matrix, axis)
    np.testing.assert_allclose(values_of(matrix, axis), expected, rtol=1e-12, atol=1e-12)
    assert matrix.reads().chunks == announced
    np.testing.assert_allclose(values_of(matrix, 1 - axis), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunks", ["rows", "columns", "both"])
def test_a_rechunk_between_workers_is_never_run(chunks):
    source = Source()
    y = source.array((12, 5)).rechunk(CHUNKS[chunks], method="p2p")
    for x, expected in (
        (y, source.values),
        (y * 2 - 1, source.values * 2 - 1),
        (y.T, source.values.T),
    ):
        matrix = from_dask(x)
        assert sorted(map(len, matrix.reader.chunks)) == [3, 10]
        np.testing.assert_array_equal(values_of(matrix, 0), expected)


def test_a_rechunk_between_workers_in_the_middle_is_one_by_tasks():
    def built(method):
        with dask.config.set({"array.rechunk.method": method}):
            y = Source().array((12, 5)).rechunk((20, 7))
            return y.map_blocks(np.cumsum, axis=0) + y.map_blocks(np.sort, axis=1).rechunk((20, 7))

    expected = built("tasks").compute(scheduler="sync")
    matrix = from_dask(built("p2p"))
    assert matrix.reader.chunks[0] == (20,) * 6
    np.testing.assert_array_equal(values_of(matrix, 0), expected)


def demeaned(block):
    return block - block.mean()


def twice(square):
    return da.blockwise(np.add, "ij", square, "ij", square, "ji", dtype=float, align_arrays=False)


UNSEEN = {
    "a function of chunks": lambda y: y.map_blocks(demeaned),
    "told where it is": lambda y: y.map_blocks(lambda b, block_info=None: b, dtype=float),
    "an operand in those chunks": lambda y: y + da.ones((120, 12), chunks=(20, 7)),
    "and its transpose": lambda y: twice(y[:12].rechunk((4, 4))),
    "a sum of chunks": lambda y: y.cumsum(1),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_sees_the_chunks_keeps_them(name):
    x = UNSEEN[name](Source().array((12, 5)).rechunk((20, 7)))
    expected = x.compute(scheduler="sync")
    matrix = from_dask(x)
    assert matrix.reader.chunks == x.chunks
    np.testing.assert_allclose(values_of(matrix, 0), expected, rtol=1e-12, atol=1e-12)


def test_unknown_chunks_below_are_left_alone():
    x = Source().array((12, 12)).rechunk((20, 12))
    for layer in x.dask.layers.values():
        layer.collection_annotations = None
    assert looked_through(x) is x
    np.testing.assert_array_equal(values_of(from_dask(x), 0), Source().values)


def test_the_same_array_keeps_its_fingerprint():
    first, again = (Source().array().rechunk((20, 7)) + 1 for _ in range(2))
    first, again = from_dask(first), from_dask(again)
    assert first.reader.name.startswith("through-")
    assert from_dask(Source().array()).fingerprint() != first.fingerprint()
    x = da.ones((20, 4), chunks=3).rechunk(5) + 1
    assert from_dask(x).fingerprint() == from_dask(x).fingerprint()
    assert again.shape == first.shape


def test_a_plan_is_that_of_the_array_below(tmp_path):
    path = str(tmp_path / "x.zarr")
    da.random.RandomState(1).normal(size=(6000, 40), chunks=(500, 40)).to_zarr(path)
    x = da.from_zarr(path)
    plain = streampca.PCA(2, progress=False).plan(x)
    for chunks in ((700, -1), (-1, 7), (700, 7)):
        plan = streampca.PCA(2, progress=False).plan(x.rechunk(chunks))
        assert plan.peak_nbytes == plain.peak_nbytes
        assert plan.passes[0].reads == plain.passes[0].reads == 12
    fits = [streampca.PCA(2, progress=False).fit(y) for y in (path, x, x.rechunk((700, -1)))]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.components_, fits[0].components_)


def test_operands_of_transposed_chunks_are_planned_and_refused_where_they_hold_all(monkeypatch):
    """A mean over columns that are rechunked from rows holds the array while it is computed."""
    y = Source((1200, 12)).array((12, 12)).rechunk((-1, 3))
    matrix = from_dask(y - y.mean(0))
    assert matrix.read_scratch_nbytes(0, 12) >= matrix.nbytes
    assert from_dask(y - 1).read_scratch_nbytes(0, 12) < matrix.nbytes / 10
    by_rows = Source((1200, 12)).array((12, 12)).rechunk((60, -1))
    assert from_dask(by_rows - by_rows.mean(0)).read_scratch_nbytes(0, 12) < matrix.nbytes / 10
    monkeypatch.setattr(sharing, "WINDOW_NBYTES", matrix.nbytes // 2)
    with pytest.raises(InvalidInputError, match="held at once"):
        matrix.chunk_edges(0)


EXPRESSIONS = """
import dask.array as da, numpy as np
from streampca.sources.dask.arrays import from_dask
assert da.ARRAY_EXPR_ENABLED
x = da.from_array(np.arange(1200.0).reshape(120, 10), chunks=(12, 5))
for y in (x, x.rechunk((20, -1)), x - x.mean(0), x.rechunk((20, 7)) + 1):
    matrix = from_dask(y)
    np.testing.assert_allclose(matrix.read(0, 0, 120), y.compute(scheduler="sync"), rtol=1e-13)
assert len(from_dask(x.rechunk((20, -1))).chunk_edges(0)) == 11
"""


@pytest.mark.slow
def test_arrays_that_dask_keeps_as_expressions():
    """Dask's next kind of array has no layers: a rechunk at the top is looked through."""
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    subprocess.run([sys.executable, "-c", EXPRESSIONS], env=environment, check=True)


B = np.random.default_rng(3).normal(size=(40, 40))


def by_blocks(function, *operands, **named):
    return da.map_blocks(function, *operands, dtype=float, **named)


def rows_of(*sizes):
    return da.from_array(B, chunks=(5, 40)).rechunk(sizes)


@pytest.mark.parametrize(
    "made",
    [
        lambda: by_blocks(np.transpose, da.from_array(B, chunks=(20, 20)).rechunk((10, 10))),
        lambda: da.blockwise(np.add, "ij", rows_of(10, 10), "ji", 1.0, None, dtype=float),
        lambda: by_blocks(
            np.subtract,
            rows_of(10, 40),
            by_blocks(lambda v: v.mean(0, keepdims=True), rows_of(10, 40), chunks=(1, 40)),
        ),
        lambda: by_blocks(np.subtract, rows_of(10, 40), np.arange(400.0).reshape(10, 40)),
        lambda: by_blocks(np.add, rows_of(10, 40), da.from_array(B[:10], chunks=(10, 40))),
        lambda: by_blocks(np.clip, rows_of(10, 40), -0.5, a_max=np.arange(400.0).reshape(10, 40)),
        lambda: (rows_of(10, 40).T - 1.0) * 2.0,
        lambda: rows_of(10, 40) + B[0],
    ],
    ids=[
        "transposed blocks",
        "permuted",
        "a row per block",
        "a literal of a block",
        "one block",
        "named literal of a block",
        "really transposed",
        "really broadcast",
    ],
)
def test_what_depends_on_the_chunks_is_not_looked_through(made):
    x = made()
    np.testing.assert_array_equal(from_dask(x).read(0, 0, 40), x.compute())


OLD_AND_NEW = {
    "longer": (((3, 4, 5), (2, 2)), ((7, 5), (4,))),
    "shorter": (((12,), (4,)), ((5, 5, 2), (1, 3))),
    "by one row": (((3, 4, 5), (4,)), ((4, 4, 4), (4,))),
    "the same": (((3, 4, 5), (4,)), ((3, 4, 5), (4,))),
}


@pytest.mark.parametrize("name", OLD_AND_NEW)
def test_a_rechunk_told_by_arithmetic_has_the_values(name):
    old, new = OLD_AND_NEW[name]
    values = np.arange(48.0).reshape(12, 4)
    x = da.from_array(values, chunks=old)
    layer = Rechunk(x.name, x.chunks, new, x.dtype)
    assert set(layer) == {key for key in layer if layer[key].key == key}
    assert len(layer) == len(set(layer))
    graph = HighLevelGraph.from_collections(layer.own, layer, dependencies=[x])
    y = da.Array(graph, layer.own, new, dtype=x.dtype)
    np.testing.assert_array_equal(y.compute(scheduler="sync"), values)
    np.testing.assert_array_equal(y[5:9].compute(scheduler="sync"), values[5:9])


def test_a_rechunk_of_very_many_pieces_goes_by_chunks_between():
    assert Rechunk.fits(((1,) * 20, (20,)), ((20,), (20,)))
    assert not Rechunk.fits(((1,) * 20, (20,)), ((20,), (1,) * 20))
    assert not Rechunk.fits(((2, 0),), ((1, 1),))


def test_a_plan_lists_no_rechunk():
    x = Source().array((12, 12))
    reader = from_dask(x[1:] - x[:-1]).reader
    outline = outline_of_layers(reader.layers, reader.name)
    assert not [name for name in map(layer_of, outline.keys.listed) if "rechunk" in str(name)]
    assert any(isinstance(one, Rechunk) for one in reader.layers.layers.values())
