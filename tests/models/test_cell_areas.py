"""Areas of the cells of a regional model as weights: their roots multiply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from streampca import PCA, open
from streampca.errors import InvalidInputError


def regional() -> xr.Dataset:
    """A field on a rotated grid, with two-dimensional latitudes and areas."""
    rng = np.random.default_rng(0)
    lat = 50 + rng.uniform(-5, 5, (4, 6))
    area = rng.uniform(1e8, 9e8, (4, 6))
    tas = rng.normal(size=(30, 4, 6))
    return xr.Dataset(
        {
            "tas": (("time", "rlat", "rlon"), tas, {"cell_measures": "area: cells"}),
            "cells": (("rlat", "rlon"), area, {"standard_name": "cell_area", "units": "m2"}),
        },
        {"time": np.arange(30), "lat": (("rlat", "rlon"), lat, {"units": "degrees_north"})},
    )


@pytest.mark.parametrize("stored", [False, True])
def test_cells_count_by_their_area(stored: bool, tmp_path: Path) -> None:
    data = regional()
    if stored:
        data.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    source = open(str(tmp_path / "x.nc") if stored else data, variable="tas")
    rows = data.tas.values.reshape(30, 24)
    for weights, told in (
        ("area", np.sqrt(data.cells.values)),
        ("coslat", np.sqrt(np.cos(np.deg2rad(data.lat.values)))),
        (np.sqrt(data.cells), np.sqrt(data.cells.values)),
    ):
        model = PCA(3, weights=weights, solver="gram", progress=False).fit(source)
        expected = np.linalg.svd((rows - rows.mean(axis=0)) * told.ravel(), compute_uv=False)
        np.testing.assert_allclose(model.singular_values_, expected[:3], rtol=1e-9)
    with pytest.raises(InvalidInputError, match=r"holds areas.*weights='area'"):
        PCA(3, weights="cells").fit(source)


def test_areas_that_are_coordinates_of_the_field() -> None:
    data = regional()
    area = data.cells.rename("areacella").where(data.rlon > 0)  # none on land
    rows = data.tas.values.reshape(30, 24)
    expected = np.linalg.svd((rows - rows.mean(axis=0)) * np.sqrt(area.fillna(0)).values.ravel())[1]
    for field in (data.tas, data.tas.chunk(rlat=3), data.tas.transpose("rlon", ...)):
        named = field.assign_coords(areacella=area)
        model = PCA(3, weights="area", progress=False).fit(named, dim="time")
        np.testing.assert_allclose(model.singular_values_, expected[:3], rtol=1e-9)


def test_areas_that_are_not_there() -> None:
    with pytest.raises(InvalidInputError, match=r"weights=np\.sqrt\(areacella\)"):
        PCA(3, weights="area").fit(regional().tas)
