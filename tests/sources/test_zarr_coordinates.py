"""A Zarr store that xarray wrote gives the same labels by its path as through xarray."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca import PCA
from streampca.errors import InvalidInputError
from streampca.sources.cf import decode_coordinate
from streampca.sources.labelled.opening import from_xarray
from tests.models.test_eof_views import coordinates


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("units", ["days since 1800-01-01", "hours since 1900-1-1 00:00:0.0"])
def test_a_path_gives_what_xarray_gives(tmp_path, zarr_format, units):
    da = coordinates().drop_vars("step")
    da["zone"] = ("lat", [1, 1, 2, 2])
    encoding = {
        "time": {"units": units},
        "lat": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -999},
    }
    path = str(tmp_path / "field.zarr")
    da.to_dataset().to_zarr(path, encoding=encoding, zarr_format=zarr_format, consolidated=False)
    model = PCA(2, svd_solver="gram", weights="coslat").fit(
        streampca.open(path, variable="sst", dim="time")
    )
    other = PCA(2, svd_solver="gram", weights="coslat").fit(da, dim="time")
    xr.testing.assert_identical(model.result_.to_xarray(), other.result_.to_xarray())
    xr.testing.assert_identical(model.eof_.as_covariance(), other.eof_.as_covariance())
    back = model.inverse_transform(model.eof_.pcs())
    assert back.name == "sst"
    assert back.attrs == {"units": "K"}
    xr.testing.assert_identical(back.time.variable, da.time.variable)
    through = from_xarray(xr.open_zarr(path, consolidated=False, chunks=None), "sst", "time")
    for one, two in zip(
        (model.result_.labels.samples, model.result_.labels.features),
        (through.labels.samples, through.labels.features),
        strict=True,
    ):
        assert (set(one.coords), set(one.grids) | set(one.extra)) == (
            set(two.coords),
            set(two.grids) | set(two.extra),
        )


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_field_of_a_group_is_found_among_its_coordinates(tmp_path, zarr_format):
    """As in a NetCDF file: coordinates, bounds and series are not taken for it; samples by time."""
    dataset = coordinates().drop_vars(["step", "zone"]).to_dataset()
    dataset["lat_bounds"] = (("lat", "side"), np.zeros((4, 2)))
    dataset.lat.attrs["bounds"] = "lat_bounds"
    dataset["co2"] = ("time", np.arange(7.0))
    path = str(tmp_path / "field.zarr")
    dataset.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    dataset.to_netcdf(tmp_path / "field.nc")
    model = PCA(2).fit(path)
    same = PCA(2).fit(str(tmp_path / "field.nc"))
    xr.testing.assert_allclose(model.result_.to_xarray(), same.result_.to_xarray())
    dataset["slp"] = dataset.sst * 2
    dataset.to_zarr(path, zarr_format=zarr_format, consolidated=False, mode="w")
    with pytest.raises(InvalidInputError, match=r"variable='slp'"):
        PCA(2).fit(path)


@pytest.mark.filterwarnings("ignore")  # of calendars with oddities, by cftime and xarray
@given(
    numbers=st.lists(st.integers(-90_000, 900_000), max_size=5),
    unit=st.sampled_from(["days", "hours", "minutes", "seconds", "Days", "hour", "milliseconds"]),
    origin=st.sampled_from(
        [
            "1800-01-01",
            "1900-1-1 00:00:0.0",
            "2000-02-29T12:30:15Z",
            "0001-01-01",
            "1582-10-10",
            "1999-12-31 22:15 +01:30",
            "2000-01-01 06:00:00.5",
            "2199-01-01",
        ]
    ),
    calendar=st.sampled_from(
        [
            None,
            "standard",
            "gregorian",
            "proleptic_gregorian",
            "noleap",
            "365_day",
            "all_leap",
            "366_day",
            "360_day",
            "julian",
        ]
    ),
    step=st.sampled_from([1, 0.5, 1 / 3]),
    fill=st.booleans(),
)
def test_times_are_those_of_xarray(numbers, unit, origin, calendar, step, fill):
    values = np.asarray(numbers, np.int64) * step
    attributes = {"units": f"{unit} since {origin}"}
    attributes |= {} if calendar is None else {"calendar": calendar}
    attributes |= {"_FillValue": values[0]} if fill and len(values) else {}
    try:
        stored = xr.Dataset({"time": ("x", values, attributes)})
        expected = xr.decode_cf(stored, decode_timedelta=False).time.values
    except (ValueError, OverflowError):  # at the ends of what 64 bits hold
        return
    found = decode_coordinate(values, attributes)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "months since 2000-01-01"},
        {"units": "days since the flood"},
        {"units": "days since 2000-01-01", "calendar": "of the moon"},
        {"units": "days since 2000-02-30"},
        {"units": "days"},
    ],
)
def test_what_are_no_dates_stays_numbers(attributes):
    values = np.arange(3.0)
    np.testing.assert_array_equal(decode_coordinate(values, attributes), values)
