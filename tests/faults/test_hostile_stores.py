"""F19: stores made to harm. Each is refused, or read as what it says, and no code of it runs."""

from __future__ import annotations

import functools
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

import streampca
from streampca.cli import main
from streampca.errors import DamagedSourceError, MemoryLimitError, StreamPCAError
from streampca.sources.zarr import stores

N, P = 20, 6


@functools.cache  # a second, which processes that only collect this file do not spend
def bomb() -> bytes:
    """30 kB that decode to a gigabyte."""
    return bytes(numcodecs.Zstd().encode(np.zeros(10**9, np.uint8)))


class Boom:
    """Leaves a file where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


def make(place: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"shape": (N, P), "chunks": (N // 2, P), "dtype": "f8", **more}
    array = zarr.create_array(str(place), **given)
    array[...] = np.random.default_rng(0).standard_normal((N, P))
    return array


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


def pickled_chunk(place: Path, where: str) -> None:
    """v2: Python's own unpickling as a codec."""
    make(place, zarr_format=2, compressors=None)
    codec = {"id": "pickle", "protocol": 5}
    edit(
        place / ".zarray",
        lambda told: told.update(
            {"filters": [codec]} if where == "filter" else {"compressor": codec}
        ),
    )
    (place / "0.0").write_bytes(pickle.dumps(Boom(place.parent / "canary")))


def pickled_labels(place: Path) -> None:
    group = zarr.create_group(str(place), zarr_format=2)
    for name, dims in (("X", ["t", "x"]), ("t", ["t"])):
        made = group.create_array(
            name,
            shape=(N, P)[: len(dims)],
            dtype="f8",
            compressors=None,
            attributes={"_ARRAY_DIMENSIONS": dims},
        )
        made[...] = 1
    edit(place / "t/.zarray", lambda told: told.update(compressor={"id": "pickle"}))
    (place / "t/0").write_bytes(pickle.dumps(Boom(place.parent / "canary")))


def pickled_v3(place: Path) -> None:
    make(place)
    edit(place / "zarr.json", lambda told: told["codecs"].insert(0, {"name": "numcodecs.pickle"}))


def swollen_chunk(place: Path) -> None:
    make(place, compressors=[ZstdCodec()])
    (place / "c/0/0").write_bytes(bomb())


def swollen_shard(place: Path) -> None:
    make(place, chunks=(5, P), shards=(10, P), compressors=[ZstdCodec()])
    index = np.array([0, len(bomb()), 0, len(bomb())], "<u8").tobytes()
    index += int(google_crc32c.value(index)).to_bytes(4, "little")
    (place / "c/0/0").write_bytes(bomb() + index)


def swollen_filter(place: Path) -> None:
    """Codecs that Zarr decodes itself."""
    make(place, zarr_format=2, filters=[numcodecs.Delta("f8")], compressors=numcodecs.Zstd())
    (place / "0.0").write_bytes(bomb())


def swollen_labels(place: Path, kind: str) -> None:
    group = zarr.create_group(str(place))
    group.create_array("X", shape=(N, P), dtype="f8", dimension_names=["t", "x"])[...] = 1
    labels = group.create_array(
        "t",
        shape=(N,),
        dtype="f8" if kind == "numbers" else "str",
        dimension_names=["t"],
        compressors=[ZstdCodec()],
    )
    labels[...] = np.arange(N) if kind == "numbers" else np.array(["a"] * N)
    (place / "t/c/0").write_bytes(bomb())


def endless_chunk(place: Path, absent: bool) -> None:
    """One chunk of 8 TB."""
    make(place)
    grid = {"name": "regular", "configuration": {"chunk_shape": [10**6, 10**6]}}
    edit(place / "zarr.json", lambda told: told.update(shape=[10**6, 10**6], chunk_grid=grid))
    if absent:
        (place / "c/0/0").unlink()


def foreign_chunk(place: Path) -> None:
    """A link to a file of this machine that is no chunk."""
    make(place)
    (place / "c/0/0").unlink()
    (place / "c/0/0").symlink_to("/etc/passwd")


def endless_attributes(place: Path, zarr_format: int) -> None:
    """A million of them, 20 MB of text, which are 300 MB of Python objects."""
    make(place, zarr_format=zarr_format)
    text = "{" + ",".join(f'"a{i}":{i}' for i in range(10**6)) + "}"
    if zarr_format == 2:
        (place / ".zattrs").write_text(text)
        return
    told = (place / "zarr.json").read_text()
    (place / "zarr.json").write_text(told.replace('"attributes": {}', f'"attributes": {text}'))
    assert (place / "zarr.json").stat().st_size > 10**7


HOSTILE: dict[str, tuple[Callable[[Path], None], type[Exception]]] = {
    "pickle as a filter": (lambda p: pickled_chunk(p, "filter"), DamagedSourceError),
    "pickle as a compressor": (lambda p: pickled_chunk(p, "compressor"), DamagedSourceError),
    "pickle of labels": (pickled_labels, DamagedSourceError),
    "pickle in v3": (pickled_v3, DamagedSourceError),
    "1 GB in a chunk": (swollen_chunk, DamagedSourceError),
    "1 GB in a shard": (swollen_shard, DamagedSourceError),
    "1 GB behind a filter": (swollen_filter, DamagedSourceError),
    "1 GB of labels": (lambda p: swollen_labels(p, "numbers"), DamagedSourceError),
    "1 GB of names": (lambda p: swollen_labels(p, "names"), DamagedSourceError),
    "a chunk of 8 TB": (lambda p: endless_chunk(p, False), MemoryLimitError),
    "an absent chunk of 8 TB": (lambda p: endless_chunk(p, True), MemoryLimitError),
    "a million attributes": (lambda p: endless_attributes(p, 3), DamagedSourceError),
    "a million attributes, v2": (lambda p: endless_attributes(p, 2), DamagedSourceError),
    "a link for a chunk": (foreign_chunk, DamagedSourceError),
}


@pytest.mark.parametrize("missing", ["error", pytest.param("fill", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_before_it_is_decoded(
    name: str, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    act, kind = HOSTILE[name]
    place = tmp_path / "x"
    act(place)
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    variable = "X" if (place / "X").exists() else None
    tracemalloc.start()
    try:
        with pytest.raises(StreamPCAError) as caught:
            streampca.PCA(2).fit(
                streampca.open(str(place), variable=variable, missing_chunks=missing)
            )
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
    assert isinstance(caught.value, kind)
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before, "the canary sings"
    assert "root:" not in str(caught.value)
    if missing == "error" and variable is None:
        words = ["fit", str(place), "-k", "2", "-o", str(tmp_path / "model")]
        assert main(words) == (69 if kind is MemoryLimitError else 65)
        assert str(capsys.readouterr().err).startswith("streampca: ")


def test_metadata_are_refused_at_their_bound(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither parsed nor read to their end, wherever they lie; up to it they are taken."""
    make(tmp_path / "x")
    expected = streampca.PCA(2).fit(str(tmp_path / "x")).components_
    edit(
        tmp_path / "x/zarr.json",
        lambda told: told.update(attributes={f"a{i}": i for i in range(10**4)}),
    )
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for one in (tmp_path / "x").rglob("*"):
            if one.is_file():
                archive.write(one, one.relative_to(tmp_path / "x"))
    size = (tmp_path / "x/zarr.json").stat().st_size
    places = [str(tmp_path / "x"), str(tmp_path / "x.zip"), f"file://{tmp_path}/x"]
    for place in places:
        monkeypatch.setattr(stores, "MOST_METADATA_BYTES", size)
        found = streampca.PCA(2).fit(streampca.open(place))
        np.testing.assert_array_equal(found.components_, expected)
        monkeypatch.setattr(stores, "MOST_METADATA_BYTES", size - 1)
        with pytest.raises(DamagedSourceError, match=r"'zarr.json' in .* is not opened"):
            streampca.open(place)
    trusted = streampca.open(zarr.open_array(str(tmp_path / "x"), mode="r"))
    np.testing.assert_array_equal(streampca.PCA(2).fit(trusted).components_, expected)


def test_chunks_that_hold_what_they_should_are_read(tmp_path: Path) -> None:
    """The bound refuses nothing that is honest: names of 4 kB, constant chunks, filters."""
    values = np.ones((N, P))
    for more in (
        {"compressors": [ZstdCodec()], "chunks": (5, P), "shards": (10, P)},
        {"zarr_format": 2, "filters": [numcodecs.Delta("f8")], "compressors": numcodecs.Zstd()},
        {
            "zarr_format": 2,
            "filters": [numcodecs.AsType("f4", "f8")],
            "compressors": numcodecs.GZip(),
        },
    ):
        array = make(tmp_path / "x", overwrite=True, **more)
        array[...] = values
        np.testing.assert_array_equal(streampca.open(str(tmp_path / "x")).read(0, 0, N), values)
    group = zarr.create_group(str(tmp_path / "g"))
    group.create_array("X", shape=(N, P), dtype="f8", dimension_names=["t", "x"])[...] = values
    names = np.array(["x" * 4000] * N)
    group.create_array("t", shape=(N,), dtype="str", dimension_names=["t"])[...] = names
    assert (
        streampca.open(str(tmp_path / "g"), variable="X").labels.samples.coords["t"][3] == names[3]
    )
