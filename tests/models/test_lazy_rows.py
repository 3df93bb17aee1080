"""Lazy in, lazy out: Dask, alone or in xarray, stays Dask, with its names and coordinates."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import streampca
from streampca import preprocess
from streampca.errors import InvalidInputError
from streampca.sources.dask import lazy as lazy_module

N, LAT, LON = 48, 4, 5
RNG = np.random.default_rng(11)
MODES = RNG.normal(size=(3, LAT, LON))
FIELD = np.einsum("tk,kij->tij", RNG.normal(size=(N, 3)) * [5, 3, 2], MODES)
FIELD += 2.0 * RNG.normal(size=FIELD.shape) + 20


def field(values: Any = FIELD) -> xr.DataArray:
    return xr.DataArray(
        values,
        dims=("time", "lat", "lon"),
        coords={
            "time": pd.date_range("2000-01-01", periods=N, freq="MS"),
            "lat": ("lat", np.linspace(-30, 30, LAT), {"units": "degrees_north"}),
            "lon": np.arange(LON) * 10.0,
        },
        name="sst",
        attrs={"units": "K"},
    )


CHUNKS: dict[str, dict[str, int]] = {
    "by time": {"time": 20},
    "tiles": {"lat": 2, "lon": 3},
    "both": {"time": 7, "lat": 3},
    "one": {},
}


class Counting:
    """An array that counts what is read of it."""

    def __init__(self, values: Any) -> None:
        self.values, self.reads = values, 0
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __getitem__(self, index: Any) -> Any:
        values = self.values[index]
        self.reads += values.size > 0
        return values


def lazy_field(chunks: tuple[int, ...] = (20, LAT, LON)) -> tuple[xr.DataArray, Counting]:
    counting = Counting(FIELD)
    array = da.from_array(counting, chunks=chunks, lock=False)
    return field().copy(data=array), counting


def same(found: Any, expected: Any, tol: float = 1e-10) -> None:
    """Both are the same labelled array or Dataset; the first one holds Dask arrays alone."""
    if isinstance(expected, xr.Dataset):
        assert set(found.data_vars) == set(expected.data_vars)
        for name in expected.data_vars:
            same(found[name], expected[name], tol)
        return
    assert isinstance(found.data, da.Array)
    xr.testing.assert_allclose(found, expected, rtol=tol, atol=tol)
    assert found.dims == expected.dims
    assert found.name == expected.name
    assert found.attrs == expected.attrs
    for name, coordinate in expected.coords.items():
        xr.testing.assert_identical(found.coords[name].variable, coordinate.variable)


MODELS = {
    "PCA": streampca.PCA(3),
    "scaled": streampca.PCA(3, scale="std", whiten=True, weights="coslat"),
    "without the year": streampca.PCA(3, remove="month"),
    "PPCA": streampca.PPCA(3),
    "FactorAnalysis": streampca.FactorAnalysis(2),
    "TruncatedSVD": streampca.TruncatedSVD(3),
    "HardImpute": streampca.HardImpute(3),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_stays_lazy(name: str) -> None:
    array, counting = lazy_field()
    model = MODELS[name]
    if name == "HardImpute":
        model.set_params(validation=None)
    model.fit(field())
    counting.reads = 0
    scores = model.transform(array)
    again = model.inverse_transform(scores)
    parts = model.reconstruct(2, scores)
    assert counting.reads == 0
    expected = model.transform(field())
    assert isinstance(expected.data, np.ndarray)
    same(scores, expected)
    same(again, model.inverse_transform(expected))
    same(parts, model.reconstruct(2, expected))
    for scaling in (0, 1, 2):
        same(model.project(array, scaling), model.project(field(), scaling))


@pytest.mark.parametrize("how", CHUNKS)
def test_any_chunks(how: str) -> None:
    model = streampca.PCA(3).fit(field())
    array = field().chunk(CHUNKS[how])
    scores = model.transform(array)
    same(scores, model.transform(field()))
    same(model.transform(array.transpose("lon", "time", "lat")), model.transform(field()))
    assert sum(scores.data.chunks[0]) == N
    for one in (array, array.to_dataset()):
        found = streampca.PCA(3).fit_transform(one)
        same(found, streampca.PCA(3).fit_transform(field()), 1e-7)


def test_samples_of_two_dimensions() -> None:
    dims = ["lat", "lon"]
    model = streampca.PCA(2, scale="std").fit(field(), dim=dims)
    for chunks in CHUNKS.values():
        array = field().chunk(chunks)
        scores = model.transform(array)
        expected = model.transform(field())
        assert expected.dims == ("lat", "lon", "component")
        same(scores, expected)
        same(model.inverse_transform(scores), model.inverse_transform(expected))
        found = streampca.PCA(2, scale="std").fit_transform(array, dim=dims)
        same(found, expected, 1e-7)


def test_several_variables() -> None:
    both = xr.Dataset({"sst": field(), "air": np.sqrt(abs(field()))})
    model = streampca.PCA(2).fit(both, dim="time")
    expected = model.transform(both)
    for array in (both.chunk({"time": 9, "lat": 2}), both.assign(sst=both.sst.chunk({"time": 9}))):
        scores = model.transform(array)
        same(scores, expected)
        same(model.inverse_transform(scores), model.inverse_transform(expected))
        same(model.transform(array[["air", "sst"]]), expected)


def test_a_field_without_samples() -> None:
    model = streampca.PCA(2).fit(field())
    one = field().isel(time=3)
    found = model.project(one.chunk({"lat": 2}), 1)
    assert isinstance(found.data, da.Array)
    xr.testing.assert_allclose(found, model.project(one, 1))


def test_new_rows_are_checked_without_being_computed() -> None:
    model = streampca.PCA(2).fit(field())
    array, counting = lazy_field()
    with pytest.raises(InvalidInputError, match="features"):
        model.transform(array.isel(lon=slice(3)))
    with pytest.raises(InvalidInputError, match="not those of the fit"):
        model.transform(array.assign_coords(lat=np.arange(LAT)))
    assert counting.reads == 0


def test_plain_dask_arrays_of_more_dimensions_and_with_a_design() -> None:
    values = da.from_array(FIELD, chunks=(13, 2, LON))
    model = streampca.PCA(2).fit(FIELD, dim=0)
    scores = model.transform(values)
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), model.transform(FIELD), atol=1e-10)
    turned = da.from_array(FIELD.reshape(N, -1).T, chunks=(6, 10))
    flat = streampca.PCA(2).fit(FIELD.reshape(N, -1))
    np.testing.assert_allclose(
        flat.transform(turned, dim=1).compute(), flat.transform(FIELD.reshape(N, -1)), atol=1e-10
    )
    batch = np.arange(N) % 3
    removing = streampca.PCA(2, remove=batch).fit(FIELD.reshape(N, -1))
    expected = removing.transform(FIELD.reshape(N, -1), remove=batch)
    found = removing.transform(turned.T, remove=batch)
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), expected, atol=1e-10)
    whole = removing.inverse_transform(found, remove=batch)
    assert isinstance(whole, da.Array)
    wanted = removing.inverse_transform(expected, remove=batch)
    np.testing.assert_allclose(whole.compute(), wanted, atol=1e-10)


def test_the_steps_of_a_fit_are_applied_lazily() -> None:
    counts = RNG.poisson(3.0, (N, 12))
    ready = preprocess.log1p(preprocess.normalize_total(counts))
    model = streampca.PCA(2).fit(ready)
    array = xr.DataArray(counts, dims=("cell", "gene")).chunk({"cell": 11, "gene": 5})
    found = model.transform(array)
    assert isinstance(found.data, da.Array)
    np.testing.assert_allclose(found, model.transform(counts), atol=1e-10)


def test_masked_and_coded_cells_are_missing() -> None:
    mask = RNG.random(FIELD.shape) < 0.1
    holes = np.where(mask, np.nan, FIELD)
    model = streampca.PCA(2, missing="mean").fit(field(holes))
    expected = model.transform(field(holes))
    masked = field().copy(data=da.from_array(np.ma.masked_array(FIELD, mask), chunks=(20, 2, 5)))
    same(model.transform(masked), expected)
    model.missing_value = -9
    same(model.transform(field(np.where(mask, -9, FIELD)).chunk({"time": 9})), expected)


def test_wide_rows_come_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_module, "CHUNK_NBYTES", 8 * LAT * LON * 6)
    model = streampca.PCA(2).fit(FIELD.reshape(N, -1))
    scores = da.from_array(model.transform(FIELD.reshape(N, -1)), chunks=(20, 2))
    rows = model.inverse_transform(scores)
    assert rows.chunks[0] == (6, 6, 6, 2, 6, 6, 6, 2, 6, 2)
    np.testing.assert_allclose(rows, model.inverse_transform(scores.compute()), atol=1e-10)


def test_merged_tiles_come_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from streampca.sources.dask import lazy

    monkeypatch.setattr(lazy, "ROWS_NBYTES", 8 * LAT * LON * 10)
    model = streampca.PCA(2).fit(field())
    scores = model.transform(field().chunk({"lat": 2}))
    assert max(scores.data.chunks[0]) == 10
    same(scores, model.transform(field()))


def test_float32_stays_and_nothing_runs_elsewhere() -> None:
    single = field(FIELD.astype("f4")).chunk({"time": 20})
    model = streampca.PCA(2).fit(single)
    with dask.config.set(scheduler="sync"):
        scores = model.transform(single)
        rows = model.inverse_transform(scores)
        assert scores.dtype == rows.dtype == np.float32
        assert scores.compute().dtype == rows.compute().dtype == np.float32
