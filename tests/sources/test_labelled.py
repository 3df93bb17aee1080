"""xarray and NetCDF: dimensions by name, labels in and out, each stored chunk read once."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca.errors import InvalidInputError, InvalidTypeError, SourceError
from streampca.matrix import AxisLabels
from streampca.sources.labelled.opening import BackendReader, from_netcdf, from_xarray
from streampca.sources.labelled.to_xarray import to_dataarray

VALUES = np.random.default_rng(3).normal(size=(12, 5, 6)).astype("f4")


def climate(values=VALUES):
    return xr.Dataset(
        {"sst": (("time", "lat", "lon"), values, {"units": "K"})},
        coords={
            "time": pd.date_range("2000-01-01", periods=12, freq="MS"),
            "lat": ("lat", np.linspace(-10, 10, 5), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(6) * 60.0, {"units": "degrees_east"}),
        },
    )


@pytest.fixture
def classic(tmp_path):
    """A NetCDF 3 file with packed integers, which the scipy engine reads."""
    path = tmp_path / "classic.nc"
    packed = {"dtype": "i2", "scale_factor": 0.001, "add_offset": 0.5, "_FillValue": -9999}
    values = VALUES.copy()
    values[:, 0, 0] = np.nan
    climate(values).to_netcdf(path, engine="scipy", encoding={"sst": packed})
    return str(path), values


@pytest.fixture
def chunked(tmp_path):
    """A Zarr store opened without Dask: a lazily indexed array with chunks."""
    path = tmp_path / "chunked.zarr"
    encoding = {"sst": {"chunks": (5, 3, 6)}}
    climate().to_zarr(path, encoding=encoding, consolidated=False)
    return xr.open_zarr(path, chunks=None, consolidated=False)


def values_of(matrix, axis):
    edges = matrix.chunk_edges(axis)
    if edges is None:
        return matrix.read(axis, 0, matrix.shape[axis])
    blocks = [matrix.read(axis, int(a), int(b)) for a, b in itertools.pairwise(edges)]
    return np.concatenate(blocks, axis=axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_three_dimensions_become_time_by_space(axis):
    matrix = from_xarray(climate())
    assert matrix.shape == (12, 30)
    np.testing.assert_array_equal(values_of(matrix, axis), VALUES.reshape(12, 30))
    assert matrix.labels.samples.dims == ("time",)
    assert matrix.labels.samples.coords["time"].dtype.kind == "M"
    assert matrix.labels.features.dims == ("lat", "lon")
    assert matrix.labels.features.attrs["lat"] == {"units": "degrees_north"}
    assert matrix.labels.features.name(7) == "lat=-5.0, lon=60.0"


@pytest.mark.parametrize("dim", [["lat", "lon"], [1, 2], ("lat", -1)])
def test_several_sample_dimensions_stack(dim):
    matrix = from_xarray(climate().sst, dim=dim)
    np.testing.assert_array_equal(values_of(matrix, 0), VALUES.reshape(12, 30).T)
    assert matrix.labels.samples.dims == ("lat", "lon")
    assert matrix.labels.features.dims == ("time",)


def test_the_first_of_two_dimensions_is_the_default():
    array = climate().sst.isel(time=0, drop=True)
    assert from_xarray(array).labels.samples.dims == ("lat",)
    assert from_xarray(array, dim="lon").labels.samples.dims == ("lon",)


def test_sample_dimensions_are_not_guessed():
    array = climate().sst.rename(time="month")
    with pytest.raises(
        InvalidInputError, match=r"\['month', 'lat', 'lon'\].*open\(X, dim='month'\)"
    ):
        from_xarray(array)
    with pytest.raises(InvalidInputError, match="dim='time' does not exist"):
        from_xarray(array, dim="time")
    with pytest.raises(InvalidInputError, match="at least one of"):
        from_xarray(array, dim=["month", "lat", "lon"])
    with pytest.raises(InvalidInputError, match="once"):
        from_xarray(array, dim=["lat", 1])
    with pytest.raises(InvalidInputError, match="reshape"):
        from_xarray(array[:, 0, 0])


def test_a_dataset_says_which_variables_it_has():
    two = climate().assign(air=climate().sst + 1)
    with pytest.raises(InvalidInputError, match=r"sst .*air .*variable='sst'"):
        from_xarray(two)
    with pytest.raises(InvalidInputError, match="no variable 'ice'"):
        from_xarray(two, "ice")
    np.testing.assert_array_equal(
        values_of(from_xarray(two, "air"), 0), VALUES.reshape(12, 30) + np.float32(1)
    )
    with pytest.raises(InvalidInputError, match="is the DataArray 'sst'"):
        from_xarray(climate().sst, "air")
    with pytest.raises(InvalidTypeError, match="expected an xarray"):
        from_xarray(climate().sst.variable)


def test_what_is_not_a_number_is_refused():
    with pytest.raises(InvalidTypeError, match="datetime64"):
        from_xarray(xr.DataArray(np.zeros((2, 2), "M8[ns]")))


@pytest.mark.parametrize("axis", [0, 1])
def test_dask_behind_xarray_keeps_its_labels(axis):
    matrix = from_xarray(climate().chunk({"time": 5, "lat": 3}))
    np.testing.assert_array_equal(values_of(matrix, axis), VALUES.reshape(12, 30))
    assert matrix.labels.features.dims == ("lat", "lon")
    anomalies = climate().chunk({"time": 5}).sst
    centred = from_xarray(anomalies - anomalies.mean("time"))
    expected = (VALUES - VALUES.mean(0)).reshape(12, 30)
    np.testing.assert_allclose(values_of(centred, axis), expected, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_packed_integers_of_a_file_are_decoded(classic, axis):
    path, values = classic
    matrix = from_netcdf(path)
    assert matrix.dtype.kind == "f"
    assert matrix.chunk_edges(0) is None
    np.testing.assert_allclose(values_of(matrix, axis), values.reshape(12, 30), atol=6e-4)
    assert matrix.labels.samples.coords["time"][1] == np.datetime64("2000-02-01")
    assert matrix.reads().nbytes == matrix.nbytes


def test_a_file_is_not_kept_in_memory_and_travels_by_its_path(classic):
    path, values = classic
    for matrix in (from_netcdf(path), from_xarray(xr.open_dataset(path))):
        first = matrix.read(0, 0, 12)
        assert not matrix.reader.variable._in_memory
        text = pickle.dumps(matrix)
        assert len(text) < values.nbytes + 4096
        copy = pickle.loads(text)
        assert copy.reads().chunks == 0
        np.testing.assert_array_equal(copy.read(0, 0, 12), first)
        assert copy.fingerprint() == matrix.fingerprint()


def test_the_fingerprint_follows_the_file(classic):
    path, values = classic
    before = from_netcdf(path).fingerprint()
    climate(values[:, :, :5].repeat(2, 2)[:, :, :6]).to_netcdf(path, engine="scipy")
    assert from_netcdf(path).fingerprint() != before


@pytest.mark.parametrize("axis", [0, 1])
def test_stored_chunks_are_read_once(chunked, axis):
    matrix = from_xarray(chunked)
    assert isinstance(matrix.reader, BackendReader)
    edges = matrix.chunk_edges(axis)
    np.testing.assert_array_equal(edges, [[0, 5, 10, 12], [0, 18, 30]][axis])
    pairs = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    assert sum(matrix.count_chunks(axis, a, b) for a, b in pairs) == 6
    np.testing.assert_array_equal(values_of(matrix, axis), VALUES.reshape(12, 30))
    assert matrix.reads().chunks == 6
    assert matrix.reads().nbytes == VALUES.nbytes
    assert not matrix.reader.variable._in_memory


def test_chunks_follow_their_dimension(chunked):
    turned = from_xarray(chunked.sst.transpose("lon", "time", "lat"), dim="time")
    np.testing.assert_array_equal(turned.chunk_edges(0), [0, 5, 10, 12])
    expected = VALUES.transpose(0, 2, 1).reshape(12, 30)
    np.testing.assert_array_equal(values_of(turned, 0), expected)


def test_threads_read_the_same_values(chunked):
    matrix = from_xarray(chunked)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda i: matrix.read(0, i % 12, i % 12 + 1)[0], range(48)))
    np.testing.assert_array_equal(rows[:12], VALUES.reshape(12, 30))
    assert matrix.reads().chunks == 48 * 2
    matrix.restart_counts()
    assert matrix.reads().chunks == 0


def test_a_slice_of_a_chunked_file_has_lost_its_boundaries():
    array = climate().sst.copy()
    array.encoding = {"chunksizes": (5, 3, 6), "original_shape": (20, 5, 6)}
    assert BackendReader(array).steps == (None, 3, 6)
    array.encoding = {"preferred_chunks": {"time": (4, 8), "lat": 5}}
    assert BackendReader(array).steps == ((4, 8), 5, None)
    np.testing.assert_array_equal(BackendReader(array).edges(0), [0, 4, 12])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        from_netcdf(str(tmp_path / "absent.nc"))
    text = tmp_path / "text.nc"
    text.write_text("not a NetCDF file at all")
    with pytest.raises(SourceError, match=r"pip install 'streampca\[netcdf\]'"):
        from_netcdf(str(text))
    broken = tmp_path / "broken.nc"
    broken.write_bytes(b"CDF\x01abc")
    with pytest.raises(SourceError, match="not a readable NetCDF file"):
        from_netcdf(str(broken))


def test_a_file_with_several_variables_asks_for_the_name(tmp_path):
    path = str(tmp_path / "several.nc")
    dataset = climate().assign(air=climate().sst + 1, weight=("lat", np.ones(5)))
    dataset.to_netcdf(path, engine="scipy")
    with pytest.raises(InvalidInputError, match=r"sst .*air .*several\.nc', variable='sst'"):
        from_netcdf(path)
    assert from_netcdf(path, "air").shape == (12, 30)
    bounds = climate().assign(lat_bnds=(("lat", "two"), np.zeros((5, 2))))
    bounds = bounds.assign(weight=("lat", np.ones(5)))
    bounds.lat.attrs["bounds"] = "lat_bnds"
    bounds.to_netcdf(path, engine="scipy")
    assert from_netcdf(path).shape == (12, 30)


def test_times_that_cannot_be_decoded_stay_numbers(tmp_path):
    path = str(tmp_path / "odd.nc")
    dataset = climate().assign_coords(
        time=("time", np.arange(12.0), {"units": "fortnights since May"})
    )
    dataset.to_netcdf(path, engine="scipy")
    matrix = streampca.sources.open(path)
    np.testing.assert_array_equal(matrix.labels.samples.coords["time"], np.arange(12.0))


def test_results_get_their_dimensions_back():
    matrix = from_xarray(climate())
    components = np.arange(60.0).reshape(2, 30)
    axes = [("component", np.array([1, 2])), matrix.labels.features]
    array = to_dataarray(components, axes, "eof", {"k": 2})
    assert array.dims == ("component", "lat", "lon")
    assert array.lat.attrs == {"units": "degrees_north"}
    assert (array.name, array.attrs) == ("eof", {"k": 2})
    np.testing.assert_array_equal(array.values, components.reshape(2, 5, 6))
    assert array.sel(component=2, lat=-5.0, lon=60.0) == components[1, 7]
    scores = to_dataarray(np.ones((12, 2)), [matrix.labels.samples, ("component", None)])
    assert scores.dims == ("time", "component")
    assert "component" not in scores.coords
    assert scores.time.dtype.kind == "M"
    plain = to_dataarray(np.ones(4), [AxisLabels.plain("feature", 4)])
    assert plain.dims == ("feature",)
    assert not plain.coords


def test_results_that_do_not_fit_their_labels():
    with pytest.raises(InvalidInputError, match="3 entries for an axis of 4"):
        to_dataarray(np.ones(4), [AxisLabels.plain("feature", 3)])
    with pytest.raises(InvalidInputError, match="not unique"):
        to_dataarray(np.ones((2, 2)), [("time", None), ("time", None)])


def test_real_sea_surface_temperatures(shared_data):
    matrix = streampca.sources.open(str(shared_data / "climate" / "sst.mnmean.nc"), variable="sst")
    assert matrix.shape == (128, 89 * 180)
    values = values_of(matrix, 0)
    assert np.isnan(values).mean() == pytest.approx(0.31, abs=0.01)
    assert matrix.labels.samples.coords["time"][0] == np.datetime64("2010-01-01")


def test_real_geopotential_heights(shared_data):
    path = shared_data / "climate" / "eofs_examples" / "hgt_djf.nc"
    with xr.open_dataset(path, decode_times=False) as dataset:
        expected = dataset.z.values
    matrix = streampca.sources.open(str(path))
    assert matrix.shape == (65, 29 * 49)
    np.testing.assert_array_equal(values_of(matrix, 0), expected.reshape(65, -1))


def test_the_plan_counts_the_library_that_reads_a_netcdf(tmp_path):
    """h5py stays in memory beside xarray: a command took 7 MiB more than planned."""
    path = str(tmp_path / "x.nc")
    xr.DataArray(np.ones((9, 4)), dims=("time", "x"), name="x").to_netcdf(path)
    memory = streampca.PCA(1).plan(path).memory
    assert sum(memory["process"][name] for name in ("xarray", "pandas", "h5py")) >= 60 << 20
