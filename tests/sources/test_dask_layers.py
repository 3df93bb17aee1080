"""Graphs whose layers say enough are planned, read and sent without being materialised whole."""

import pickle

import dask.array as da
import distributed
import numpy as np
import pytest
import zarr
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph

import streampca
from streampca.sources.dask import strips
from streampca.sources.dask.arrays import from_dask
from streampca.sources.dask.layers import Layers, outline_of_layers
from streampca.sources.dask.outline import UnclearError, outline_of
from tests.sources.dask_reads import Source, values_of
from tests.sources.test_dask_graph import GRAPHS

N = 10_000


@pytest.fixture
def never_whole(monkeypatch):
    def refused(array):
        raise AssertionError("the whole graph is materialised")

    monkeypatch.setattr(strips, "low_level", refused)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rows") / "x.zarr")
    store = zarr.create_array(path, shape=(N, 4), chunks=(N // 4, 4), dtype="f4")
    store[:] = np.random.default_rng(0).normal(size=(N, 4))
    return path


def test_a_plan_of_many_chunks_materialises_none(rows, never_whole):
    x = da.from_zarr(rows, chunks=(1, -1))
    for one in (x, x * 2 - 1, x.rechunk((1000, -1)), x.astype("f8")):
        plan = streampca.PCA(2, progress=False).plan(one)
        assert plan.passes[0].reads == N
        matrix = from_dask(one)
        np.testing.assert_allclose(
            matrix.read(0, 5, 9), one[5:9].compute(scheduler="sync"), rtol=1e-6
        )
        assert matrix.reads().chunks == 4


def test_what_travels_is_what_a_span_needs(rows, never_whole):
    x = da.from_zarr(rows, chunks=(1, -1))
    matrix = from_dask((x - x[:8].mean(0)) * 2)
    part = matrix.part(0, 400, 420)
    text = pickle.dumps(part)
    assert len(text) < 50_000
    again = pickle.loads(text)
    stored = zarr.open_array(rows)[:]
    expected = (stored[400:420] - stored[:8].mean(0)) * 2
    np.testing.assert_allclose(again.read(0, 400, 420), expected, rtol=1e-5)
    assert again.reads().chunks == 20
    assert again.reader.prepared().chunks == 0


def test_operands_alone_are_materialised(never_whole):
    source = Source((1200, 12))
    x = source.array((3, 12))
    matrix = from_dask((x - x.mean(0)) / x.std(0))
    values = source.values
    np.testing.assert_allclose(
        values_of(matrix, 0), (values - values.mean(0)) / values.std(0), rtol=1e-12, atol=1e-12
    )
    assert matrix.reads().chunks == 400
    assert matrix.reader.prepared().chunks == 400
    assert set(source.reads.values()) == {2}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_layers_say_what_the_whole_graph_says(name, dim):
    array = GRAPHS[name][0](Source().array((12, 5)))
    told, whole = from_dask(array), from_dask(array)
    whole.reader.layers = None
    here, there = told.reader.sharing(dim), whole.reader.sharing(dim)
    assert told.reader._graph is None
    assert here.cuts == there.cuts
    assert here.stages == there.stages
    assert here.prepared_chunks == there.prepared_chunks
    np.testing.assert_array_equal(here.firsts, there.firsts)
    np.testing.assert_array_equal(here.lasts, there.lasts)
    assert here.window.reach == there.window.reach
    assert dict(here.window.until) == dict(there.window.until)
    assert here.window.nbytes == there.window.nbytes


@pytest.mark.parametrize("name", GRAPHS)
def test_an_outline_has_the_links_of_the_graph(name):
    reader = from_dask(GRAPHS[name][0](Source().array((12, 5)))).reader
    told = outline_of_layers(reader.layers, reader.name)
    whole = outline_of(reader.graph)

    def links(outline):
        key = outline.keys.key
        return {(key(a), key(b)) for a, b in zip(*(x.tolist() for x in outline.links), strict=True)}

    assert links(whole) <= links(told)
    for place, key in enumerate(whole.keys.listed):
        assert told.keys.key(told.keys.place(key)) == key
        assert told.reads[told.keys.place(key)] == whole.reads[place]


def test_layers_do_not_speak_for_chunks_on_a_cluster():
    future = distributed.Future("elsewhere")
    key = ("x-1", 0, 0)
    there = [{key: future}, {key: DataNode(key, future)}, {key: Alias(key, "elsewhere")}]
    for nodes in there:
        graph = HighLevelGraph({"x-1": nodes}, {"x-1": set()})
        assert Layers.of(da.Array(graph, "x-1", ((2,), (3,)), dtype=float)) is None


def test_one_node_of_each_layer():
    x = Source().array((12, 5))
    y = (x + 1 - x.mean(0)) * 2
    specimens = Layers.of(y).specimens()
    assert {key[0] for key in specimens.nodes if isinstance(key, tuple)} >= {x.name, y.name}
    assert len(specimens.nodes) == len(y.dask.layers)


def test_chunks_of_plain_arrays_are_data():
    values = np.arange(120.0).reshape(40, 3)
    matrix = from_dask(da.from_array(values, chunks=(10, 3)) + 1)
    np.testing.assert_array_equal(values_of(matrix, 0), values + 1)
    assert matrix.reader._graph is None
    assert matrix.reads().chunks == 4


@pytest.mark.parametrize(("tasks", "data"), [(3, 0), (0, 3), (2, 1)])
def test_tasks_and_data_of_a_layer(tasks, data):
    nodes = {("x", i, 0): Task(("x", i, 0), np.ones, (2, 3)) for i in range(tasks)}
    every = range(tasks, tasks + data)
    nodes |= {("x", i, 0): DataNode(("x", i, 0), np.zeros((2, 3))) for i in every}
    graph = HighLevelGraph({"x": nodes}, {"x": set()})
    x = da.Array(graph, "x", ((2,) * 3, (3,)), dtype=float)
    sharing = from_dask(x).reader.sharing(0)
    assert len(sharing.firsts) == tasks  # data are not read
    with pytest.raises(KeyError):
        outline_of_layers(Layers.of(x), "x").keys.place(("x", 3, 0))


def test_a_layer_that_needs_what_is_nowhere_is_unclear():
    nodes = {("x", 0, 0): Task(("x", 0, 0), np.copy, TaskRef(("y", 0, 0)))}
    with pytest.raises(UnclearError):
        outline_of_layers(Layers({"x": nodes}), "x")
