"""Any chain of Dask and xarray operations is read as Dask computes it, to the last bit."""

import itertools
import warnings
from random import Random

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streampca
from streampca.sources.dask.arrays import dask_matrix, from_dask
from tests.sources.dask_chains import drawn_chain
from tests.sources.dask_reads import Source, values_of

DRAWN = st.randoms(use_true_random=False)
WITHOUT = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chains")


def check_chain(rnd: Random, folder, length: int) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"), dask.config.set(scheduler="sync"):
        warnings.simplefilter("ignore")
        array, done = drawn_chain(rnd, folder, length)
        expected = array.compute()
        dims = sorted(rnd.sample(range(array.ndim), rnd.randint(1, array.ndim - 1)))
        check_reads(rnd, array, expected, dims, done)


def check_reads(rnd, array, expected, dims, done):
    """Whole, any range of it, and what travels to a worker; along both axes."""
    rest = [dim for dim in range(array.ndim) if dim not in dims]
    matrix = dask_matrix(array, dims)
    values = expected.transpose(*dims, *rest).reshape(matrix.shape)
    for axis in (0, 1):
        edges = matrix.chunk_edges(axis)
        blocks = [matrix.read(axis, int(a), int(b)) for a, b in itertools.pairwise(edges)]
        first = rnd.randrange(matrix.shape[axis])
        last = rnd.randint(first + 1, matrix.shape[axis])
        part = values[first:last] if axis == 0 else values[:, first:last]
        found = [
            (np.concatenate(blocks, axis), values),
            (matrix.read(axis, first, last), part),
            (matrix.part(axis, first, last).read(axis, first, last), part),
        ]
        for got, wanted in found:
            assert got.dtype == wanted.dtype, done
            np.testing.assert_array_equal(got, wanted, err_msg=str(done))
    assert not matrix.reader.misread, (matrix.reader.misread, done)


@given(DRAWN)
@settings(max_examples=12, **WITHOUT)
def test_a_chain_is_read_as_dask_computes_it(folder, rnd):
    check_chain(rnd, folder, length=8)


@pytest.mark.soak
@given(DRAWN)
@settings(max_examples=10, **WITHOUT)
def test_a_long_chain_is_read_as_dask_computes_it(folder, rnd):
    check_chain(rnd, folder, length=20)


# Fields whose times are put into groups, in chunks of time.


def field(chunk):
    times = pd.date_range("2001-01-31", periods=36, freq="ME")
    values = np.random.default_rng(2).normal(size=(36, 2, 3))
    return xr.DataArray(values, dims=("time", "y", "x"), coords={"time": times}).chunk(time=chunk)


def of_groups(cycle):
    return lambda x: x.groupby(cycle) - x.groupby(cycle).mean()


REORDERED = {
    "month": of_groups("time.month"),
    "season": of_groups("time.season"),
    "dayofyear": of_groups("time.dayofyear"),
    "standardised": lambda x: of_groups("time.month")(x) / (1 + x.std("time")),
    "of an anomaly": lambda x: of_groups("time.season")(of_groups("time.month")(x)),
    "mapped": lambda x: x.groupby("time.month").map(lambda one: one - one.mean("time")),
    "selected": lambda x: of_groups("time.month")(x).sel(time=x.time.dt.month.isin([1, 2, 12])),
    "sorted": lambda x: x.isel(time=np.random.default_rng(0).permutation(36)).sortby("time"),
}


@pytest.mark.parametrize("chunk", [12, 7, 1])
@pytest.mark.parametrize("name", REORDERED)
def test_a_field_in_groups_of_time(name, chunk):
    x = REORDERED[name](field(chunk))
    values = x.transpose("time", ...).values.reshape(x.sizes["time"], 6)
    matrix = streampca.open(x, dim="time")
    np.testing.assert_array_equal(values_of(matrix, 0), values)
    np.testing.assert_array_equal(values_of(matrix, 1), values)
    assert matrix.reader._graph is None  # its layers say it


def test_models_of_a_monthly_anomaly():
    x = REORDERED["month"](field(7))
    values = x.values.reshape(36, 6)
    pca = streampca.PCA(2, progress=False)
    assert pca.plan(x, dim="time").passes
    pca.fit(x, dim="time")
    expected = np.linalg.eigvalsh(np.cov(values.T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-10)
    matrix = streampca.covariance(x, dim="time", progress=False)
    np.testing.assert_allclose(np.asarray(matrix).reshape(6, 6), np.cov(values.T), atol=1e-12)
    mca = streampca.MCA(1, progress=False).fit(x, x * 2, dim="time")
    cross = np.linalg.svd(np.cov(values.T) * 2, compute_uv=False)[:1]
    np.testing.assert_allclose(mca.singular_values_, cross, rtol=1e-10)


def test_an_array_that_is_indexed_again_and_again():
    x = Source().array((7, 5))
    order = np.random.default_rng(0).permutation(120)
    y = x[order][order][np.argsort(order)][:, [3, 1, 2, 1]][order]
    np.testing.assert_array_equal(values_of(from_dask(y), 0), y.compute(scheduler="sync"))


# What is not understood is computed the plain way.


def refused(*args, **kwargs):
    raise ValueError("not understood")


@pytest.mark.parametrize(
    "name", ["looked_through", "Layers.of", "Layers.part", "outline_of_layers", "find_sharing"]
)
def test_layers_that_are_not_understood_cost_only_time(name, monkeypatch):
    monkeypatch.setattr(f"streampca.sources.dask.strips.{name}", refused)
    x = Source().array((12, 5))
    y = (x.rechunk((20, 12)) - x.mean(0)).map_overlap(np.tanh, {0: 1}, boundary="none")
    y = y[np.random.default_rng(1).permutation(120)] + da.arange(12)
    matrix = from_dask(y)
    expected = y.compute(scheduler="sync")
    for axis in (0, 1):
        np.testing.assert_array_equal(values_of(matrix, axis), expected)
    np.testing.assert_array_equal(matrix.part(0, 30, 60).read(0, 30, 60), expected[30:60])
    assert "not understood" in matrix.reader.misread[0]


def test_a_graph_with_a_cycle_is_refused():
    name = "round"
    nodes = {(name, 0, 0): (np.negative, (name, 1, 0)), (name, 1, 0): (np.negative, (name, 0, 0))}
    x = da.Array(nodes, name, ((2, 2), (3,)), dtype=float)
    with pytest.raises(streampca.errors.InvalidInputError, match="needs itself"):
        from_dask(x).read(0, 0, 2)
