"""Samples of several dimensions, such as the members of an ensemble: blocks end within a member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import streampca
from streampca import PCA
from streampca.sources import stacked
from streampca.sources.dask import arrays

SHAPE, CHUNKS = (3, 4, 5, 6, 7), (1, 1, 2, 6, 4)  # model, member, time, lat, lon
DIMS = ("model", "member", "time", "lat", "lon")
SAMPLES = DIMS[:3]


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> xr.DataArray:
    """Every step counts as large."""
    for module in (stacked, arrays):
        monkeypatch.setattr(module, "STEP_NBYTES", 0)
    values = np.random.default_rng(0).normal(size=SHAPE)
    return xr.DataArray(values, dims=DIMS, name="tas")


def sources(field: xr.DataArray, path: Path) -> dict[str, Any]:
    dataset = field.to_dataset()
    dataset.chunk(dict(zip(DIMS, CHUNKS, strict=True))).to_zarr(path / "x.zarr", consolidated=False)
    encoding: Any = {"tas": {"chunksizes": CHUNKS}}
    dataset.to_netcdf(path / "x.nc", engine="h5netcdf", encoding=encoding)
    lazy = field.chunk(dict(zip(DIMS, CHUNKS, strict=True)))
    anomalies = lazy - lazy.mean("time") + field.mean("time")
    turned = lazy.transpose("lat", "time", "lon", "model", "member")
    return {
        "NumPy": streampca.open(field, dim=SAMPLES),
        "Dask": streampca.open(lazy, dim=SAMPLES),
        "Dask, shared": streampca.open(anomalies, dim=SAMPLES),
        "Dask, turned": streampca.open(turned, dim=SAMPLES),
        "Zarr": streampca.open(str(path / "x.zarr"), variable="tas", dim=SAMPLES),
        "NetCDF": streampca.open(str(path / "x.nc"), variable="tas", dim=SAMPLES),
    }


def test_blocks_within_a_member_hold_its_rows_and_read_each_chunk_once(
    field: xr.DataArray, tmp_path: Path
) -> None:
    rows = field.values.reshape(60, 42)
    per_member = {"NumPy": [1, 1, 1, 1, 1]}  # an array in memory has no chunks
    for name, matrix in sources(field, tmp_path).items():
        edges = matrix.chunk_edges(0)
        assert edges is not None
        np.testing.assert_array_equal(np.diff(edges), per_member.get(name, [2, 2, 1]) * 12, name)
        read = np.concatenate(
            [matrix.read(0, *edges[i : i + 2].tolist()) for i in range(len(edges) - 1)]
        )
        np.testing.assert_allclose(read, rows, atol=1e-14, err_msg=name)
        np.testing.assert_allclose(matrix.read(0, 3, 19), rows[3:19], atol=1e-14, err_msg=name)
        counts = [matrix.count_chunks(0, *edges[i : i + 2].tolist()) for i in range(len(edges) - 1)]
        assert name in ("NumPy", "Dask, shared") or sum(counts) == 12 * 3 * 2


def test_fits_and_maps_are_those_of_the_whole(field: xr.DataArray, tmp_path: Path) -> None:
    expected = np.linalg.svd((rows := field.values.reshape(60, 42)) - rows.mean(axis=0))
    for name, matrix in sources(field, tmp_path).items():
        model = PCA(3, solver="gram", progress=False).fit(matrix)
        np.testing.assert_allclose(model.singular_values_, expected[1][:3], err_msg=name)
        assert model.eof_.pcs().dims == (*SAMPLES, "component")
        assert set(model.eof_.eofs().dims) == {"component", "lat", "lon"}


def test_features_of_several_levels_are_cut_within_a_level(
    field: xr.DataArray, tmp_path: Path
) -> None:
    """The same for the other axis: (level, lat, lon)."""
    for name, matrix in sources(field, tmp_path).items():
        edges = matrix.chunk_edges(1)
        read = np.concatenate(
            [matrix.read(1, *edges[i : i + 2].tolist()) for i in range(len(edges) - 1)], axis=1
        )
        np.testing.assert_allclose(read, matrix.read(0, 0, 60), err_msg=name)


def test_an_ensemble_as_cmip_has_it_is_planned_in_two_gibibytes() -> None:
    """50 members x 1,980 months x 360 x 720, without data."""
    time = xr.date_range("1850-01-16", periods=1980, freq="MS", calendar="noleap", use_cftime=True)
    cells = da.zeros((50, 1980, 360, 720), chunks=(1, 60, 360, 720), dtype="f4")
    coords = {"time": time, "lat": np.linspace(-89.75, 89.75, 360)}
    tas = xr.DataArray(cells, coords, ("member", "time", "lat", "lon"), "tas")
    pca = PCA(10, weights="coslat", memory_limit="2GiB")
    plan = pca.plan(tas, dim=("member", "time"))
    assert plan.passes[0].edges.max() == 99_000
    assert len(plan.passes[0].edges) == 1651
