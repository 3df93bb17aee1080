"""Spot checks: what one process sees at a location, looked at again by another."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.storage

import streampca
from streampca.errors import MissingDependencyError
from streampca.matrix import SpotCheck, spot_checks
from streampca.sources.local_files import FileLocation
from streampca.sources.zarr import location
from streampca.sources.zarr.stores import absolute, held_in_process

X = np.arange(6000.0).reshape(600, 10)


def write(store: Any, x: np.ndarray = X, **more: Any) -> Any:
    return zarr.create_array(store, data=x, chunks=(50, 10), compressors=None, **more)


def check_of(source: Any, **more: Any) -> SpotCheck:
    """Of the only location of a source, as it arrives elsewhere."""
    (check,) = spot_checks(streampca.open(source, **more).locations()).values()
    return pickle.loads(pickle.dumps(check))


def test_a_store_in_a_bucket(s3: str) -> None:
    from streampca.object_storage import open_objects

    store = zarr.storage.ObjectStore(open_objects(f"{s3}/x.zarr"))
    array = write(store)
    check = check_of(f"{s3}/x.zarr")
    assert check.difference() == ""
    assert "AKIATEST" not in repr(check.seen) + check.location.name
    array[:] = X + 1  # of the same lengths
    assert "digest" in check.difference()
    store.store.delete("zarr.json")
    assert check.difference().startswith("zarr.json is absent; the client sees float64 (600, 10)")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_grows_is_the_same(tmp_path: Path, zarr_format: int) -> None:
    path = str(tmp_path / "x.zarr")
    array = write(path, X[:580], zarr_format=zarr_format)
    check = check_of(path)
    array.append(X)  # the last chunk is written again
    array.attrs["title"] = "longer"
    assert check.difference() == ""
    array.resize((100, 10))
    assert "(100, 10)" in check.difference()


def test_shards_and_tiny_arrays(tmp_path: Path) -> None:
    whole = zarr.create_array(
        str(tmp_path / "s.zarr"), data=X, chunks=(50, 10), shards=(200, 10), compressors=None
    )
    check = check_of(str(tmp_path / "s.zarr"))
    assert set(check.seen) == {"zarr.json", "c/0/0", "c/1/0", "c/2/0"}
    assert check.difference() == ""
    whole[0, 0] = 7
    assert check.difference()
    write(str(tmp_path / "t.zarr"), X[:3])
    assert set(check_of(str(tmp_path / "t.zarr")).seen) == {"zarr.json", "c/0/0"}


def test_a_web_server_is_asked_for_lengths_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not know of parts, and would send whole chunks."""
    write(str(tmp_path / "x.zarr"))
    monkeypatch.setattr(location, "protocols_of", lambda store: ("https",))
    check = check_of(f"file://{tmp_path}/x.zarr")
    assert check.seen["c/0/0"] == "4000 bytes"
    assert check.difference() == ""
    os.remove(tmp_path / "x.zarr" / "c" / "0" / "0")
    assert check.difference() == "c/0/0 is absent; the client sees 4000 bytes"


def test_a_location_check_reads_a_few_of_many_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where absent chunks are fill values, and the first that are there are looked for."""
    path = str(tmp_path / "x.zarr")
    array = zarr.create_array(path, shape=(10**7, 10), chunks=(10, 10), dtype="f8")
    array[:3000] = 1.0
    source = streampca.open(path, missing_chunks="fill")
    asked: list[str] = []
    listed, of_store = zarr.storage.LocalStore.list_prefix, type(array.metadata)

    async def keys(self: Any, prefix: str) -> AsyncIterator[str]:
        async for key in listed(self, prefix):
            asked.append(key)
            yield key

    def key_of(self: Any, place: tuple[int, ...], encode: Any = of_store.encode_chunk_key) -> str:
        asked.append(str(place))
        return str(encode(self, place))

    monkeypatch.setattr(zarr.storage.LocalStore, "list_prefix", keys)
    monkeypatch.setattr(of_store, "encode_chunk_key", key_of)
    (check,) = spot_checks(source.locations()).values()
    assert 12 <= len(asked) <= 20  # of a million places, and of 300 files
    assert len(check.seen) <= 1 + 6 + 6
    assert sum("bytes" in seen for seen in check.seen.values()) >= 6
    assert len(pickle.dumps(check)) < 4096


def test_files(tmp_path: Path) -> None:
    path = str(tmp_path / "x.bin")
    Path(path).write_bytes(bytes(10_000))
    check = SpotCheck.of(FileLocation(path))
    assert check.difference() == ""
    Path(path).write_bytes(bytes(9_999) + b"1")
    assert "digest" in check.difference()
    os.remove(path)
    assert check.difference().startswith(f"{path} is absent; the client sees 10000 bytes")


STORES = {
    "a zarr MemoryStore": lambda: zarr.storage.MemoryStore(),
    "memory://": lambda: zarr.storage.FsspecStore.from_url("memory://x/y.zarr"),
    "an obstore MemoryStore": lambda: zarr.storage.ObjectStore(
        pytest.importorskip("obstore").store.MemoryStore()
    ),
    "": lambda: zarr.storage.LocalStore("x.zarr"),
}


@pytest.mark.parametrize("words", STORES)
def test_what_only_this_process_can_read(words: str) -> None:
    store = STORES[words]()
    assert held_in_process(store) == words
    assert held_in_process(zarr.storage.LoggingStore(store)) == words


def test_paths_are_those_of_the_folder_where_they_were_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    write("x.zarr")
    given = streampca.open(zarr.open_array("x.zarr", mode="r"))
    with zarr.storage.ZipStore("x.zip", mode="w") as archive:
        write(archive)
    sources = [given, streampca.open("x.zarr"), streampca.open("x.zip")]
    opened = zarr.open_array(zarr.storage.ZipStore("x.zip", mode="r"), mode="r")
    sources.append(streampca.open(opened))
    monkeypatch.chdir(tmp_path / "two")
    write("x.zarr", X + 1)
    for source in sources:
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(0, 0, 600), X)
    local = zarr.storage.LocalStore("x.zarr")
    assert absolute(local).root == tmp_path / "two" / "x.zarr"
    assert str(local.root) == "x.zarr"  # that of the caller is left alone


@pytest.mark.parametrize("url", ["s3://bucket/x.zarr", "gs://bucket/x.zarr", "az://bucket/x.zarr"])
def test_object_storage_without_obstore_names_the_extra(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for asked in (lambda: streampca.open(url), lambda: streampca.append(url, [[1.0]])):
        with pytest.raises(MissingDependencyError, match=r"pip install 'streampca\[obstore\]'"):
            asked()
