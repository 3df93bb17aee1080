"""Stores of Zarr as objects, and references to chunks that lie in other files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import streampca
from streampca.errors import MissingDependencyError

VALUES = np.random.default_rng(0).normal(size=(12, 3, 4)).astype("<f4")


def references(folder: Path) -> dict[str, list[object] | str]:
    """Zarr 2 metadata of an array whose chunks lie in one raw file: what kerchunk finds in HDF5."""
    raw = folder / "sst.bin"
    raw.write_bytes(b"head" + VALUES.tobytes())
    shape = {"zarr_format": 2, "shape": [12, 3, 4], "chunks": [4, 3, 4], "dtype": "<f4"}
    rest = {"compressor": None, "filters": None, "fill_value": None, "order": "C"}
    found: dict[str, list[object] | str] = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "sst/.zarray": json.dumps(shape | rest),
        "sst/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["time", "lat", "lon"], "units": "K"}),
    }
    for i in range(3):
        found[f"sst/{i}.0.0"] = [f"file://{raw}", 4 + 192 * i, 192]
    return found


def agree(source: object) -> None:
    expected = streampca.PCA(2, progress=False).fit(VALUES.reshape(12, 12)).singular_values_
    matrix = streampca.open(source, variable="sst")
    assert matrix.labels.samples.dims == ("time",)
    model = streampca.PCA(2, progress=False).fit(matrix)
    np.testing.assert_allclose(model.singular_values_, expected, rtol=1e-6)


def test_a_store_of_references_is_a_source(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec.implementations.reference", reason="needs fsspec")
    system = fsspec.ReferenceFileSystem(
        fo=references(tmp_path),
        remote_protocol="file",
        remote_options={"asynchronous": True},
        asynchronous=True,
    )
    agree(zarr.storage.FsspecStore(system, read_only=True))


def test_a_store_is_opened_as_its_path_is(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=3)
    made = group.create_array(
        "sst", shape=VALUES.shape, chunks=(5, 3, 2), dtype="f4", dimension_names=("time", "y", "x")
    )
    made[:] = VALUES
    agree(zarr.storage.LocalStore(tmp_path / "x.zarr"))


def test_files_of_references_need_kerchunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sst.json"
    path.write_text(json.dumps({"version": 1, "refs": references(tmp_path)}))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install kerchunk"):
        streampca.open(str(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kerchunk's own
def test_files_of_references_are_opened(tmp_path: Path) -> None:
    pytest.importorskip("kerchunk", reason="kerchunk is not installed")
    path = tmp_path / "sst.json"
    path.write_text(json.dumps({"version": 1, "refs": references(tmp_path)}))
    agree(str(path))
