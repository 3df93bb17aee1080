"""What a file says is what is read: xarray's numbers, to the last bit of xarray's dtype."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from packaging.version import Version

import streampca
from streampca.cli.commands import main
from streampca.errors import InvalidInputError, InvalidTypeError, SourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh
from streampca.sources.cf import Decoding

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(32)
N, P = 9, 5
SMALL = RNG.integers(-100, 100, (N, P))
f4, f8, i2, i4 = np.float32, np.float64, np.int16, np.int32

Cases = dict[str, tuple[Array, dict[str, Any]]]  # name -> stored values, and their attributes

STORED: Cases = {
    "float32": (SMALL.astype(f4), {}),
    "float32, fill": (SMALL.astype(f4), {"_FillValue": f4(SMALL[0, 0])}),
    "float32, fill 1e20": (np.where(SMALL < 0, f4(1e20), f4(1.5)), {"_FillValue": f4(1e20)}),
    "float64, fill NaN": (np.where(SMALL < 0, np.nan, 2.5), {"_FillValue": f8(np.nan)}),
    "float64, fill": (SMALL.astype(f8), {"_FillValue": f8(SMALL[1, 1])}),
    "float32, missing_value": (SMALL.astype(f4), {"missing_value": f4(SMALL[2, 1])}),
    "float32, two codes": (
        SMALL.astype(f4),
        {"_FillValue": f4(SMALL[0, 0]), "missing_value": f4(SMALL[3, 1])},
    ),
    "int16": (SMALL.astype(i2), {}),
    "int16, fill": (SMALL.astype(i2), {"_FillValue": i2(SMALL[0, 0])}),
    "int16, fill 0": (np.abs(SMALL // 50).astype(i2), {"_FillValue": i2(0)}),
    "int16, missing_value": (SMALL.astype(i2), {"missing_value": i2(SMALL[4, 4])}),
    "int16, two codes": (
        SMALL.astype(i2),
        {"_FillValue": i2(SMALL[0, 0]), "missing_value": i2(SMALL[3, 1])},
    ),
    "int32, fill": (SMALL.astype(i4) * 10_000_019, {"_FillValue": i4(SMALL[0, 0] * 10_000_019)}),
    "int8, fill": (SMALL.astype("i1"), {"_FillValue": np.int8(SMALL[0, 0])}),
    "packed": (
        SMALL.astype(i2),
        {"scale_factor": 0.01, "add_offset": 20.0, "_FillValue": i2(SMALL[0, 0])},
    ),
    "packed, float32": (
        SMALL.astype(i2),
        {"scale_factor": f4(0.01), "add_offset": f4(20), "_FillValue": i2(SMALL[0, 0])},
    ),
    "packed, large offset": (SMALL.astype(i2), {"scale_factor": 1e-3, "add_offset": 1e6}),
    "packed, scale": (SMALL.astype(i2), {"scale_factor": f4(0.1)}),
    "packed, offset": (SMALL.astype(i2), {"add_offset": f4(0.1), "missing_value": i2(SMALL[1, 2])}),
    "packed int8": (SMALL.astype("i1"), {"scale_factor": 0.5, "_FillValue": np.int8(SMALL[1, 0])}),
    "packed int32": (SMALL.astype(i4), {"scale_factor": f4(0.1), "add_offset": f4(5)}),
    "packed float32": (
        SMALL.astype(f4),
        {"scale_factor": 0.1, "add_offset": 3.0, "_FillValue": f4(SMALL[0, 1])},
    ),
    "packed float32, fill NaN": (
        np.where(SMALL < 0, f4(np.nan), f4(3)),
        {"scale_factor": 0.1, "_FillValue": f4(np.nan)},
    ),
    "unsigned": (SMALL.astype("i1"), {"_Unsigned": "true"}),
    "unsigned, packed": (
        SMALL.astype("i1"),
        {"_Unsigned": "true", "scale_factor": 0.1, "_FillValue": np.int8(SMALL[0, 0])},
    ),
    "unsigned int16": (SMALL.astype(i2), {"_Unsigned": "true", "_FillValue": i2(SMALL[5, 2])}),
    "booleans": ((SMALL > 0).astype("i1"), {"dtype": "bool"}),
}
NEWER: Cases = {  # than NetCDF 3
    "uint8, fill": (np.abs(SMALL).astype("u1"), {"_FillValue": np.uint8(abs(SMALL[0, 0]))}),
    "int64, fill": (SMALL.astype("i8") * 10**12, {"_FillValue": np.int64(SMALL[0, 0] * 10**12)}),
    "signed after all": (np.abs(SMALL).astype("u1") + 100, {"_Unsigned": "false"}),
    "packed uint16": (np.abs(SMALL).astype("u2"), {"scale_factor": 0.25, "add_offset": -3.0}),
}


def raw(values: Array, attributes: dict[str, Any]) -> xr.Dataset:
    return xr.Dataset({"t": (("time", "x"), values, attributes)})


def all_of(cases: Cases) -> xr.Dataset:
    return xr.Dataset({name: (("time", "x"), *case) for name, case in cases.items()})


def netcdf3(folder: Path, cases: Cases) -> tuple[str, Any]:
    path = str(folder / "x.nc")
    all_of(cases).to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")
    return path, xr.open_dataset(path, decode_timedelta=False)


def netcdf4(folder: Path, cases: Cases) -> tuple[str, Any]:
    path = str(folder / "x.nc")
    all_of(cases).to_netcdf(path, engine="h5netcdf")
    return path, xr.open_dataset(path, decode_timedelta=False)


def named_h5(folder: Path, cases: Cases) -> tuple[str, Any]:
    path, there = netcdf4(folder, cases)
    return shutil.copy(path, str(folder / "x.h5")), there


def hdf5(folder: Path, cases: Cases, order: str = "<") -> tuple[str, Any]:
    path = str(folder / "x.he5")
    with h5py.File(path, "w") as file:
        for name, (values, attributes) in cases.items():
            file[name] = values.astype(values.dtype.newbyteorder(order))
            for key, value in attributes.items():
                file[name].attrs[key] = value if isinstance(value, str) else np.atleast_1d(value)
    return path, xr.open_dataset(path, engine="h5netcdf", phony_dims="sort", decode_timedelta=False)


def hdf5_big_endian(folder: Path, cases: Cases) -> tuple[str, Any]:
    return hdf5(folder, cases, ">")


def zarr2(folder: Path, cases: Cases, order: str = "<") -> tuple[str, Any]:
    path = str(folder / "x.zarr")
    turned = {n: (v.astype(v.dtype.newbyteorder(order)), a) for n, (v, a) in cases.items()}
    chunks: Any = {name: {"chunks": (4, 3)} for name in cases}
    all_of(turned).to_zarr(path, zarr_format=2, encoding=chunks, consolidated=False)
    return path, xr.open_zarr(path, consolidated=False, chunks=None, decode_timedelta=False)


def zarr2_big_endian(folder: Path, cases: Cases) -> tuple[str, Any]:
    return zarr2(folder, cases, ">")


def zarr3(folder: Path, cases: Cases) -> tuple[str, Any]:
    path = str(folder / "x.zarr")
    chunks: Any = {name: {"chunks": (4, 3), "shards": (8, 6)} for name in cases}
    all_of(cases).to_zarr(path, zarr_format=3, encoding=chunks, consolidated=False)
    return path, xr.open_zarr(path, consolidated=False, chunks=None, decode_timedelta=False)


def lazily(folder: Path, cases: Cases) -> tuple[Any, Any]:
    there = netcdf4(folder, cases)[1]
    return there, there


def by_dask(folder: Path, cases: Cases) -> tuple[Any, Any]:
    there = zarr2(folder, cases)[1]
    return there.chunk(time=4), there


ZARR = [zarr2, zarr2_big_endian, zarr3]
WRITERS = [netcdf3, netcdf4, named_h5, hdf5, hdf5_big_endian, *ZARR, lazily, by_dask]
SLOW = [hdf5, zarr2_big_endian, lazily, by_dask]


@pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] if one in SLOW else [])
        for one in WRITERS
    ],
)
def test_values_are_those_of_xarray(write: Any, tmp_path: Path) -> None:
    cases = STORED if write is netcdf3 else {**STORED, **NEWER}
    if "big_endian" in write.__name__:  # xarray 2026.9 swaps the bytes of such a fill value
        cases = {name: case for name, case in cases.items() if name != "unsigned int16"}
    together = write in (
        *ZARR,
        by_dask,
        hdf5,
        hdf5_big_endian,
    )  # a NetCDF file is opened as a whole
    dim = 0 if write in (hdf5, hdf5_big_endian) else "time"
    for number, name in enumerate(cases):
        if not together or not number:
            folder = tmp_path / str(number)
            folder.mkdir()
            source, there = write(folder, cases if together else {name: cases[name]})
        expected = there[name].values
        if isinstance(source, str):
            matrix = streampca.open(source, variable=name, dim=dim)
        else:
            matrix = streampca.open(source[name], dim=dim)
        found = matrix.read(0, 0, N)
        assert found.dtype == matrix.dtype == expected.dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found, expected, err_msg=name)
        np.testing.assert_array_equal(matrix.read(1, 1, 4), expected[:, 1:4], err_msg=name)


FILL = {"_FillValue": f4(-9999)}
HOLES = np.where(SMALL < -60, f4(-9999), SMALL.astype(f4))
FOUND = np.where(SMALL < -60, np.nan, SMALL)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_declared_fill_value_is_missing_in_every_model(zarr_format: int, tmp_path: Path) -> None:
    """In an array by its own path too; absent chunks stay an error, and may be missing cells."""
    path = str(tmp_path / "x.zarr")
    chunks = {"t": {"chunks": (3, P)}}
    raw(HOLES, FILL).to_zarr(path, zarr_format=zarr_format, encoding=chunks, consolidated=False)
    for source in (path, f"{path}/t"):
        with pytest.raises(streampca.errors.NonFiniteError, match="missing='mean'"):
            streampca.PCA(1).fit(source)
        model = streampca.PCA(1, missing="mean").fit(source)
        np.testing.assert_allclose(model.mean_, np.nanmean(FOUND, axis=0), rtol=1e-6)
    next(Path(path, "t").rglob("2*0" if zarr_format == 2 else "c/2/0")).unlink()
    with pytest.raises(streampca.errors.AbsentChunkError):
        streampca.open(path).read(0, 0, N)
    found = streampca.open(path, missing_chunks="mask").read(0, 0, N)
    np.testing.assert_array_equal(found, np.where(np.arange(N)[:, None] < 6, FOUND, np.nan))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zeros_of_an_array_that_xarray_does_not_read_are_zeros(
    zarr_format: int, tmp_path: Path
) -> None:
    """Its fill value is Zarr's default; with names of dimensions, xarray has them missing in v2."""
    values = np.abs(SMALL // 50).astype(f4)
    for named in (False, True):
        path = str(tmp_path / f"{named}.zarr")
        dims: Any = {}
        if named and zarr_format == 2:
            dims = {"attributes": {"_ARRAY_DIMENSIONS": ["time", "x"]}}
        elif named:
            dims = {"dimension_names": ("time", "x")}
        zarr.create_group(path, zarr_format=zarr_format).create_array(
            "t", shape=(N, P), dtype="f4", fill_value=0, config={"write_empty_chunks": True}, **dims
        )[...] = values
        expected = values
        if named:
            expected = xr.open_zarr(path, consolidated=False)["t"].values
            assert np.isnan(expected).any() == (zarr_format == 2)
        np.testing.assert_array_equal(streampca.open(path).read(0, 0, N), expected)


def test_attributes_of_a_plain_array_count(tmp_path: Path) -> None:
    for number, (text, value) in enumerate(
        [(-9999, -9999), ("NaN", np.nan), ("AAAAAICHw8A=", -9999), (1e20, 1e20)]
    ):
        stored = np.where(SMALL < -60, f4(value), SMALL.astype(f4))
        array = zarr.create_array(
            str(tmp_path / f"{number}"), shape=(N, P), dtype="f4", attributes={"_FillValue": text}
        )
        array[...] = stored
        np.testing.assert_array_equal(streampca.open(array).read(0, 0, N), FOUND)
    array.attrs["_FillValue"] = "nothing"
    with pytest.raises(SourceError, match="_FillValue is 'nothing'; expected a number"):
        streampca.open(array)
    array.attrs.put({"scale_factor": "much"})
    with pytest.raises(SourceError, match="scale_factor='much'"):
        streampca.open(array)


@pytest.mark.parametrize("name", ["scale_factor", "add_offset"])
def test_a_list_of_one_number_is_that_number(name: str) -> None:
    """As xarray decodes it, whose dtype is then object."""
    held = SMALL.astype("i2")
    decoded = xr.decode_cf(xr.Dataset({"v": (("a", "b"), held, {name: [0.1]})}))["v"]
    found = Decoding.of({name: [0.1]}, held.dtype)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found.decode(held), decoded.astype("f8"))
    with pytest.raises(SourceError, match="cannot be decoded"):
        Decoding.of({name: [0.1, 0.2]}, held.dtype)


def test_a_field_of_dates_is_refused_alike(tmp_path: Path) -> None:
    there = raw(SMALL.astype("i8"), {"units": "days since 2000-01-01"})
    there.to_netcdf(tmp_path / "x.nc")
    there.to_zarr(tmp_path / "x.zarr", consolidated=False)
    for path in ("x.nc", "x.zarr"):
        with pytest.raises(InvalidTypeError, match="Dates become days"):
            streampca.open(str(tmp_path / path))


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("f4", {"_FillValue": f4(SMALL[0, 0])}),
        ("f4", {"missing_value": f4(SMALL[0, 0])}),
        ("i2", {"scale_factor": 0.1}),
        ("i2", {"add_offset": 3.0}),
        ("i1", {"_Unsigned": "true"}),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_not_decoded_is_refused(
    dtype: str, attributes: dict[str, Any], chunked: bool
) -> None:
    """A DataArray opened with mask_and_scale=False, in fit and transform; the lines work."""
    X = raw(SMALL.astype(dtype), attributes)
    X = (X.chunk() if chunked else X)["t"]
    with pytest.raises(InvalidInputError, match=next(iter(attributes))) as caught:
        streampca.PCA(2).fit(X)
    lines = re.findall(r"(X = [^;]*?)(?:; |$)", str(caught.value))
    assert len(lines) == 2
    held = {"X": X, "xarray": xr}
    exec(lines[0], held)
    model = streampca.PCA(2, missing="mean").fit(held["X"])
    np.testing.assert_allclose(model.mean_, np.nanmean(xr.decode_cf(X.to_dataset()).t, axis=0))
    with pytest.raises(InvalidInputError, match="its numbers are as stored"):
        model.transform(X)
    with pytest.raises(InvalidInputError, match="its numbers are as stored"):
        streampca.open(X.to_dataset(), variable="t")
    held["X"] = X
    exec(lines[1], held)
    np.testing.assert_allclose(
        streampca.PCA(2).fit(held["X"]).mean_, SMALL.astype(dtype).mean(axis=0), rtol=1e-5
    )


def test_what_changes_nothing_is_no_packing() -> None:
    """As rioxarray leaves it: a scale of 1, an offset of 0, a fill value of NaN."""
    neutral = {"scale_factor": 1.0, "add_offset": 0.0, "_FillValue": np.nan}
    assert streampca.open(raw(SMALL.astype(f4), neutral)["t"]).shape == (N, P)
    assert Decoding.of({"_FillValue": f4(np.nan), "units": "K"}, np.dtype("f4")) is None


def test_large_blocks_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values, attributes = STORED["int16, two codes"]
    decoding = Decoding.of(attributes, values.dtype)
    assert decoding is not None
    whole = decoding.decode(values)
    monkeypatch.setattr("streampca.sources.cf.PIECE", 7)
    np.testing.assert_array_equal(decoding.decode(values), whole)
    np.testing.assert_array_equal(decoding.decode(values.T), whole.T)


# Groups, variables that describe others, and copies of metadata.


def in_a_group(folder: Path) -> dict[str, str]:
    """One file each of NetCDF, its HDF5 name, plain HDF5 and Zarr, with a field in PRODUCT/low."""
    coords = {"time": np.arange(N), "x": np.arange(P) * 1.5}
    tree = {
        "/": xr.Dataset(coords={"time": coords["time"]}),
        "/PRODUCT": xr.Dataset(coords={"x": coords["x"]}),
        "/PRODUCT/low": raw(HOLES, FILL),
    }
    found = {"nc": str(folder / "g.nc"), "zarr": str(folder / "g.zarr")}
    xr.DataTree.from_dict(tree).to_netcdf(found["nc"], engine="h5netcdf")
    xr.DataTree.from_dict(tree).to_zarr(found["zarr"], consolidated=False)
    found["h5"] = shutil.copy(found["nc"], str(folder / "g.h5"))
    found["hdf5"] = str(folder / "g.hdf5")
    with h5py.File(found["hdf5"], "w") as file:
        file["PRODUCT/low/t"] = HOLES
        file["PRODUCT/low/t"].attrs["_FillValue"] = f4(-9999)
        file["OTHER/t"] = HOLES
    return found


@pytest.mark.parametrize("kind", ["nc", "h5", "hdf5", "zarr"])
def test_a_variable_of_a_group(kind: str, tmp_path: Path) -> None:
    path = in_a_group(tmp_path)[kind]
    for which in (
        {"variable": "PRODUCT/low/t"},
        {"group": "PRODUCT/low", "variable": "t"},
        {"group": "/PRODUCT/low/"},
        {"group": "PRODUCT", "variable": "low/t"},
    ):
        matrix = streampca.open(path, **which)
        np.testing.assert_array_equal(matrix.read(0, 0, N), FOUND)
        assert matrix.labels.name == "t"
    if kind in ("nc", "h5"):  # coordinates of the groups above
        np.testing.assert_array_equal(matrix.labels.features.coords["x"], np.arange(P) * 1.5)
        np.testing.assert_array_equal(matrix.labels.samples.coords["time"], np.arange(N))
        with pytest.raises(InvalidInputError, match=r"in groups: PRODUCT/low/t.*PRODUCT/low/t'"):
            streampca.open(path)
    assert main(["info", path, "--group", "PRODUCT/low"]) == 0
    with pytest.raises((InvalidInputError, SourceError), match="GROUND"):
        streampca.open(path, group="GROUND")
    with pytest.raises(InvalidInputError, match="leave group= out"):
        streampca.open(np.ones((3, 2)), group="PRODUCT")


@pytest.mark.parametrize("kind", ["nc", "zarr2", "zarr3", "dataset"])
def test_variables_that_describe_others_are_not_the_field(kind: str, tmp_path: Path) -> None:
    """Bounds, climatological bounds, cell measures, flags, the map: never taken, never advised."""
    there = raw(SMALL.astype(f4), {"cell_measures": "area: area", "ancillary_variables": "flags"})
    there["t"].attrs["grid_mapping"] = "crs"
    there = there.assign_coords(
        time=("time", np.arange(N), {"climatology": "a_span"}),
        x=("x", np.arange(P), {"bounds": "a_bound"}),
    )
    there["a_span"] = (("time", "side"), np.zeros((N, 2)))
    there["a_bound"] = (("x", "side"), np.zeros((P, 2)))
    there["area"] = (("x", "side"), np.zeros((P, 2)))
    there["flags"] = (("time", "x"), np.zeros((N, P)))
    there["crs"] = 0

    def stored(dataset: Any) -> Any:
        path = str(tmp_path / kind)
        if kind == "nc":
            dataset.to_netcdf(f"{path}.nc")
        elif kind != "dataset":
            how = {"zarr_format": int(kind[-1]), "mode": "w", "consolidated": False}
            dataset.to_zarr(path, **how)
        return {"nc": f"{path}.nc", "dataset": dataset}.get(kind, path)

    assert streampca.open(stored(there)).labels.name == "t"
    there["u"] = there["t"] * 2
    with pytest.raises(InvalidInputError, match=r"variable='[tu]'\)"):
        streampca.open(stored(there))


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_stale_consolidated_metadata_raise_a_warning(zarr_format: int, tmp_path: Path) -> None:
    """The array is read as it is, with the labels of all its rows, and the line repairs it."""
    path = str(tmp_path / "x.zarr")
    there = raw(SMALL.astype(f4), {}).assign_coords(time=np.arange(N), x=np.arange(P))
    there.to_zarr(path, zarr_format=zarr_format, consolidated=True)
    assert streampca.open(path).shape == (N, P)
    job = check_job(
        {
            "source": {"path": path},
            "model": {"n_components": 2},
            "store": str(tmp_path / "models"),
            "settle": 0,
        },
        "job",
    )
    refresh(job)
    group = zarr.open_group(path, use_consolidated=False)
    group["t"].append(SMALL.astype(f4))
    group["time"].append(np.arange(N, 2 * N))
    with pytest.warns(streampca.errors.StaleMetadataWarning, match=r"\(18, 5\)") as caught:
        matrix = streampca.open(path)
    assert matrix.shape == (2 * N, P)
    np.testing.assert_array_equal(matrix.labels.samples.coords["time"], np.arange(2 * N))
    np.testing.assert_array_equal(matrix.read(0, N, 2 * N), SMALL)
    with pytest.warns(streampca.errors.StaleMetadataWarning):
        assert refresh(job).status == "published"
    assert streampca.ModelStore(tmp_path / "models").latest().result().n_samples == 2 * N
    line = re.search(r"zarr\.consolidate_metadata\([^)]*\)", str(caught[0].message))
    assert line is not None
    exec(line.group(), {"zarr": zarr})
    assert streampca.open(path).shape == (2 * N, P)


# What Zarr 3.2 can write, in metadata by hand.

RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [[4, 5], [P]]},
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SCALED = {"name": "scale_offset", "configuration": {"offset": 5.0, "scale": 2.0}}
CAST = {"name": "cast_value", "configuration": {"data_type": "int16"}}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"chunk_grid": RECTILINEAR}, "rectilinear"),
        ({"codecs": [SCALED, BYTES]}, "scale_offset"),
        ({"codecs": [CAST, BYTES]}, "cast_value"),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_what_newer_stores_hold_is_read_right_or_refused_by_name(
    change: dict[str, Any], name: str, grouped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    values = (SMALL * 2.0).astype("f8")
    if grouped:
        zarr.create_group(str(path))
    array = zarr.create_array(
        str(path / "t" if grouped else path),
        shape=(N, P),
        chunks=(N, P),
        dtype="f8",
        compressors=None,
    )
    array[...] = values
    document = path / ("t/zarr.json" if grouped else "zarr.json")
    document.write_text(json.dumps({**json.loads(document.read_text()), **change}))
    stored = {"scale_offset": (values - 5) * 2, "cast_value": values.astype("i2")}.get(name, values)
    (document.parent / "c" / "0" / "0").write_bytes(stored.tobytes())
    told = values if Version(zarr.__version__) >= Version("3.2") and name != "rectilinear" else name
    if isinstance(told, str):
        with pytest.raises((InvalidInputError, SourceError), match=told):
            streampca.open(str(path))
    else:
        np.testing.assert_array_equal(streampca.open(str(path)).read(0, 0, N), values)
