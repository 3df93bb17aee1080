"""Zarr arrays in Dask graphs: decoded by the thread that computes a strip, as Zarr would."""

from __future__ import annotations

import pickle
import weakref
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from dask._task_spec import DataNode, Task

import streampca
from streampca.sources.dask.chunks import StoredArray, StoredArrays
from streampca.sources.dask.execution import Once
from tests.each import each

VALUES = np.random.default_rng(15).normal(size=(50, 6))


def stored(path: Path, **more: Any) -> zarr.Array:
    settings: dict[str, Any] = {"chunks": (20, 4), "dtype": "f8", "fill_value": -1.0, **more}
    array = zarr.create_array(path, shape=VALUES.shape, **settings)
    array[:40] = VALUES[:40]  # the last chunks are absent
    return array


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("chunks", [(20, 4), (30, 6), (7, 5)])
def test_zarr_decodes_nothing(
    tmp_path: Path, chunks: Any, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stored(tmp_path / "x.zarr")[:]
    x = da.from_zarr(str(tmp_path / "x.zarr"), chunks=chunks, inline_array=inline) * 2
    matrix = streampca.open(x)

    def refuse(array: Any, index: Any) -> Any:
        raise AssertionError(f"Zarr was asked for {index}")

    monkeypatch.setattr(zarr.Array, "__getitem__", refuse)
    np.testing.assert_array_equal(matrix.read(0, 0, 50), expected * 2)


@each("dtype", ["f4", "i2", ">f8", "bool"])
@each(
    "index", [np.s_[:, :], np.s_[3:41, 2:5], np.s_[::2, :], np.s_[4, :], np.s_[5:5, :], np.s_[30:]]
)
def test_values_are_those_of_zarr(tmp_path: Path, dtype: str, index: Any) -> None:
    array = stored(tmp_path / "x.zarr", dtype=dtype, fill_value=1)
    found = StoredArray.of(array)
    assert found is not None
    assert (found.shape, found.dtype, found.ndim) == (array.shape, array.dtype, 2)
    np.testing.assert_array_equal(found[index], array[index])


def test_what_only_zarr_can_read_is_left_to_it(tmp_path: Path) -> None:
    assert StoredArray.of(stored(tmp_path / "s.zarr", shards=(40, 4))) is None
    held = zarr.create_array({}, shape=(4, 2), chunks=(2, 2), dtype="f8")
    assert StoredArray.of(held) is None
    nodes = {"x": DataNode("x", held), "y": Task("y", len, DataNode(None, held))}
    arrays = StoredArrays()
    arrays.put_into(nodes)
    assert nodes["x"].value is held
    assert pickle.loads(pickle.dumps(arrays))._known == {}


def test_a_value_is_let_go_when_it_is_taken() -> None:
    value = np.ones(3)
    alive = weakref.ref(value)
    once = Once(value)
    del value
    assert once().sum() == 3
    assert alive() is None
