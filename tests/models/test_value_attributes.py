"""Units, long names and attributes of labelled results, and that they come back from files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import PCA, HardImpute, IncrementalPCA, TruncatedSVD
from streampca.models.results.value_attributes import plain_attribute, product
from streampca.store.labelled import write_dataset

SST = {
    "units": "K",
    "long_name": "sea surface temperature",
    "standard_name": "sea_surface_temperature",
    "valid_range": np.array([250.0, 320.0], np.float32),
}
ODD = {"flag": np.True_, "nothing": None, "nested": {"a": 1}, "words": ["a", "b"], "none": []}
RAIN = {"units": "mm day-1", "long_name": "rain"}


def field(seed: int = 0, attrs: Any = SST, name: str | None = "sst") -> xr.DataArray:
    values = np.random.default_rng(seed).normal(size=(9, 3, 4)) + 280.0
    coords = {"time": np.arange(9), "lat": ("lat", [50.0, 0.0, -30.0], {"units": "degrees_north"})}
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name=name, attrs=attrs)


def power_of(units: str, unit: str) -> int:
    """Of a unit in a unit: 2 of K in K2."""
    found = re.fullmatch(rf"\(?{re.escape(unit)}\)?(-?\d*)", units)
    return 0 if units == "1" else int((found and found[1]) or 1)


def views(model: Any, scores: Any) -> dict[str, xr.DataArray]:
    """All that the EOF views and ``to_xarray`` give of one variable."""
    eof = model.eof_
    made = {
        "correlation": eof.as_correlation(),
        "eigenvalues": eof.eigenvalues(),
        "fraction": eof.variance_fraction(),
        "north": eof.north_errors(),
        "north share": eof.north_errors(scaled=True),
        "scores": scores,
    }
    for scaling in (0, 1, 2):
        made[f"eofs {scaling}"] = eof.eofs(scaling)
        made[f"pcs {scaling}"] = eof.pcs(scaling)
        made[f"covariance {scaling}"] = eof.as_covariance(scaling)
    whole = model.result_.to_xarray()
    return made | {f"whole {name}": whole[name] for name in whole.data_vars}


@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("weights", [None, "coslat"])
@pytest.mark.parametrize("whiten", [False, True])
def test_units_are_those_of_the_numbers(scale: Any, weights: Any, whiten: bool) -> None:
    """A field in mK holds 1000 times the numbers: each result changes by its power of the unit."""
    settings = {"svd_solver": "gram", "scale": scale, "weights": weights, "whiten": whiten}
    kelvin = field()
    milli = (kelvin * 1000.0).assign_attrs(SST | {"units": "mK"})
    found = []
    for one in (kelvin, milli):
        model = PCA(3, **settings).fit(one, dim="time")
        found.append(views(model, model.transform(one)))
    for name, in_kelvin in found[0].items():
        units = in_kelvin.attrs["units"]
        power = power_of(units, "K")
        assert power_of(found[1][name].attrs["units"], "mK") == power
        np.testing.assert_allclose(
            found[1][name], in_kelvin * 1000.0**power, rtol=1e-6, atol=1e-9, err_msg=name
        )
    expected = {
        "eofs 0": "1",
        "eofs 1": "K-1",
        "eofs 2": "K",
        "pcs 0": "K",
        "pcs 1": "1",
        "pcs 2": "K2",
        "eigenvalues": "K2",
        "north": "K2",
        "fraction": "1",
        "correlation": "1",
        "covariance 1": "K",
        "whole mean": "K",
    }
    if scale is None:
        assert {name: found[0][name].attrs["units"] for name in expected} == expected
    comments = {name for name, one in found[0].items() if "comment" in one.attrs}
    assert ("eofs 0" in comments and "pcs 0" in comments) == (weights is not None)
    assert not comments & {"correlation", "covariance 1", "whole mean"}


def test_what_the_variable_said_of_itself_stays_in_one_place() -> None:
    model = PCA(2, svd_solver="gram").fit(field(attrs=SST | ODD), dim="time")
    eofs, pcs = model.eof_.eofs(2), model.eof_.pcs(1)
    long_name = "EOFs (multiplied by the root of the eigenvalue) of sea surface temperature"
    assert eofs.attrs["long_name"] == long_name
    for made in (eofs, pcs, model.transform(field()), model.project(field(), 1)):
        assert made.attrs["variable"] == "sst"
        assert made.attrs["variable_units"] == "K"
        assert made.attrs["variable_standard_name"] == "sea_surface_temperature"
        assert made.attrs["variable_valid_range"] == [250.0, 320.0]
        assert made.attrs["variable_flag"] == 1
        assert made.attrs["variable_words"] == "a, b"
        assert "standard_name" not in made.attrs
    assert model.project(field(), 1).attrs["units"] == "1"
    assert model.project(field().isel(time=0), 2).attrs["units"] == "K2"
    assert eofs.lat.attrs == {"units": "degrees_north"}
    nameless = PCA(2).fit(field(attrs={}, name=None), dim="time").eof_.eofs()
    assert nameless.attrs == {
        "long_name": "EOFs (as they are) of the data",
        "units": "1",
        "method": "PCA",
    }
    assert "units" not in PCA(2).fit(field(attrs={}), dim="time").eof_.eofs(1).attrs


def dataset(rain: Any = RAIN) -> xr.Dataset:
    return xr.Dataset({"sst": field(), "rain": field(1, rain, "rain").isel(lat=0, drop=True)})


def test_variables_keep_their_own() -> None:
    ds = dataset()
    model = PCA(2, svd_solver="gram").fit(ds, dim="time")
    made = model.eof_.dataset(scaling=1)
    assert made.eofs_sst.attrs["units"] == "K-1"
    assert made.eofs_rain.attrs["units"] == "(mm day-1)-1"
    assert made.eofs_rain.attrs["variable_long_name"] == "rain"
    assert made.eofs_rain.attrs["long_name"].endswith("of rain")
    assert made.pcs.attrs["variable"] == "sst, rain"
    for name in ("pcs", "eigenvalues"):  # K and mm together: of no unit
        assert "units" not in made[name].attrs
    assert "units" not in model.eof_.as_covariance(0).rain.attrs
    assert model.eof_.as_covariance(1).rain.attrs["units"] == "mm day-1"
    alike = PCA(2, svd_solver="gram").fit(dataset(RAIN | {"units": "K"}), dim="time")
    assert alike.eof_.pcs().attrs["units"] == "K"
    standard = PCA(2, svd_solver="gram", scale="std").fit(ds, dim="time")
    assert standard.eof_.pcs().attrs["units"] == "1"
    assert standard.eof_.as_covariance(1).rain.attrs["units"] == "mm day-1"
    whole = model.result_.to_xarray()
    assert whole.components_rain.attrs["variable_units"] == "mm day-1"
    assert whole.mean_rain.attrs == RAIN


def same_attributes(made: xr.DataArray, source: xr.DataArray) -> None:
    assert made.name == source.name
    assert made.attrs.keys() == source.attrs.keys()
    for name, value in source.attrs.items():
        np.testing.assert_array_equal(made.attrs[name], value)


def test_rows_keep_name_units_and_attributes(tmp_path: Path) -> None:
    one, ds = field(), dataset()
    half = np.arange(9) < 4
    models = [PCA(2, solver="gram"), TruncatedSVD(2), IncrementalPCA(2)]
    for number, model in enumerate(models):
        model.fit(one, dim="time").save(tmp_path / str(number))
        for each in (model, streampca.load(tmp_path / str(number))):
            scores = each.transform(one)
            same_attributes(each.reconstruct(1, scores), one)
            same_attributes(each.reconstruct(1, scores, mean=False, lazy=True), one)
            same_attributes(each.inverse_transform(scores), one)
    grown = IncrementalPCA(2).fit(one[half], dim="time")
    grown.save_state(tmp_path / "state")
    grown = IncrementalPCA.load_state(tmp_path / "state").partial_fit(one[~half])
    same_attributes(grown.reconstruct(1, grown.transform(one)), one)
    assert grown.eof_.eofs(2).attrs["units"] == "K"
    both = PCA(2, svd_solver="gram").fit(ds, dim="time")
    for made in (both.reconstruct([2]), both.reconstruct(1, lazy=True)):
        for name in ds.data_vars:
            same_attributes(made[name], ds[name])
    holed = one.where(np.random.default_rng(0).random(one.shape) < 0.9)
    same_attributes(HardImpute(1, tol=1e-2).fit(holed, dim="time").impute(holed), one)
    rows = streampca.matrix.select(streampca.open(one, dim="time"), samples=half)
    assert (rows.labels.name, rows.labels.attrs) == ("sst", SST)
    joined = streampca.concat_samples(rows, rows)
    assert (joined.labels.name, joined.labels.attrs) == ("sst", SST)


def test_values_that_were_preprocessed_are_not_in_the_unit_of_the_raw_ones() -> None:
    logs = streampca.preprocess.log1p(streampca.open(field(), dim="time"))
    model = PCA(2, svd_solver="gram").fit(logs)
    assert "units" not in model.eof_.eofs(2).attrs
    assert model.eof_.eofs(0).attrs["units"] == "1"
    made = model.reconstruct(1)
    assert made.attrs["long_name"] == SST["long_name"]
    assert not {"units", "standard_name"} & set(made.attrs)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_attributes_come_back_from_files(suffix: str, tmp_path: Path) -> None:
    ds = dataset(RAIN | ODD)
    model = PCA(2, svd_solver="gram").fit(ds, dim="time")
    made = model.eof_.dataset(scaling=2, pc_scaling=1)
    whole = model.result_.to_xarray().drop_vars(["mean_rain"])  # its attributes are the source's
    for number, one in enumerate((made, whole)):
        path = tmp_path / f"{number}{suffix}"
        write_dataset(one, path)
        opened = (
            xr.open_dataset(path) if suffix == ".nc" else xr.open_zarr(path, consolidated=False)
        )
        with opened as back:
            xr.testing.assert_allclose(back.load(), one)
            for name in one.data_vars:
                assert back[name].attrs.keys() == one[name].attrs.keys()
                for key, value in one[name].attrs.items():
                    np.testing.assert_array_equal(back[name].attrs[key], value)
    back = model.reconstruct(1)[["sst"]]
    back.to_netcdf(tmp_path / "back.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "back.nc") as again:
        same_attributes(again.sst, field())


def test_the_eofs_of_the_command_line_say_what_they_are(tmp_path: Path) -> None:
    from streampca.cli.commands import main

    field().to_netcdf(tmp_path / "sst.nc", engine="h5netcdf")
    command = [
        "fit",
        str(tmp_path / "sst.nc"),
        "-k",
        "2",
        "--weights",
        "coslat",
        "--quiet",
        "--eofs",
        str(tmp_path / "eofs.nc"),
        "--eof-scaling",
        "2",
        "1",
    ]
    assert main(command) == 0
    with xr.open_dataset(tmp_path / "eofs.nc") as made:
        assert made.eofs.attrs["units"] == made.eofs.attrs["variable_units"] == "K"
        assert made.eofs.attrs["comment"] == "of the variable times the weights of the fit"
        assert made.pcs.attrs["units"] == "1"
        assert made.eigenvalues.attrs["units"] == "K2"


def test_products_of_units() -> None:
    assert product(("K", 1), ("K", 1)) == "K2"
    assert product(("K", 1), ("K", -1)) == product(("1", 3)) == product((None, 0)) == "1"
    assert product(("m s-1", 2), ("K", -1)) == "(m s-1)2 K-1"
    assert product(("K", 1), (None, 1)) is None
    assert [plain_attribute(one) for one in (b"a", np.float32(2), {"a": 1}, None, [1, "b"])] == [
        "a",
        2.0,
        "{'a': 1}",
        "",
        "1, b",
    ]


def test_ersst(shared_data: Path, tmp_path: Path) -> None:
    """A real field, whose EOFs go to a file and come back with all that it says of itself."""
    with xr.open_dataset(shared_data / "climate" / "sst.mnmean.nc") as source:
        sst = source["sst"].isel(time=slice(24), lat=slice(None, None, 4)).load()
    model = PCA(3, weights="coslat", svd_solver="gram").fit(sst, dim="time")
    model.eof_.dataset(1, 2).to_netcdf(tmp_path / "eofs.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "eofs.nc") as made:
        assert made.eofs.attrs["units"] == "degC-1"
        assert made.pcs.attrs["units"] == "degC2"
        for name, value in sst.attrs.items():
            np.testing.assert_array_equal(made.eofs.attrs[f"variable_{name}"], value)
    same_attributes(model.reconstruct(2), sst)
