"""Dates of results are written with the units and the calendar of the file that they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import streampca

SINCE = "days since 1850-01-01"


def stored(calendar: str, path: Path) -> xr.DataArray:
    """A field with dates as a data centre writes them, in NetCDF and in Zarr."""
    time = xr.date_range("1990-01-16", periods=24, freq="MS", calendar=calendar)
    lat = xr.Variable("lat", np.arange(-40, 41, 20.0), {"bounds": "lat_bnds", "axis": "Y"})
    values = np.random.default_rng(0).normal(size=(24, 5, 6))
    field = xr.DataArray(
        values, {"time": time, "lat": lat, "lon": np.arange(6.0)}, ("time", "lat", "lon"), "tas"
    )
    field.time.encoding.update(units=SINCE, calendar=calendar)
    whole = field.to_dataset().assign(lat_bnds=(("lat", "bnds"), np.zeros((5, 2))))
    whole.to_netcdf(path / "x.nc", engine="h5netcdf")
    whole.to_zarr(path / "x.zarr", consolidated=False, zarr_format=2)
    return field


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_from_fit_to_file_and_back(calendar: str, tmp_path: Path) -> None:
    field = stored(calendar, tmp_path)
    with xr.open_dataset(tmp_path / "x.nc", engine="h5netcdf") as opened:
        for i, source in enumerate(
            [
                streampca.open(str(tmp_path / "x.nc"), variable="tas"),
                streampca.open(str(tmp_path / "x.zarr"), variable="tas"),
                opened.tas,
            ]
        ):
            model = streampca.PCA(2, solver="gram", remove="month", progress=False).fit(source)
            model.save(tmp_path / f"model{i}")
            for made in (
                model.reconstruct(2),
                model.eof_.dataset(),
                streampca.load(tmp_path / f"model{i}").result_.to_xarray(),
            ):
                made.to_netcdf(tmp_path / "out.nc", engine="h5netcdf")
                with xr.open_dataset(tmp_path / "out.nc", engine="h5netcdf") as back:
                    np.testing.assert_array_equal(back.time, field.time)
                    assert back.time.encoding["units"].startswith(SINCE)
                    assert back.time.encoding["calendar"] in (calendar, "365_day")
                    assert "bounds" not in back.lat.attrs
