"""Bundles: whole or not at all, and never silently altered."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.storage
from zarr.core.buffer import default_buffer_prototype

import streampca.store.bundle as bundle_module
from streampca.errors import InvalidInputError, NewerFormatError, SourceError
from streampca.passes.memory import peak_nbytes
from streampca.store import array_files, is_bundle, read_bundle, write_bundle
from streampca.store.checked import sign
from tests.each import each

ARRAYS = {
    "float64": np.linspace(0, 1, 7),
    "float32": np.arange(6, dtype="f4").reshape(2, 3),
    "float16": np.ones(3, "f2"),
    "int8": np.arange(-3, 3, dtype="i1"),
    "int64": np.array([2**62, -1]),
    "uint64": np.array([2**64 - 1], "u8"),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "special": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
    "zeros": np.zeros((4, 4)),
    "scalar": np.array(3.5),
    "scalar int": np.array(3),
    "scalar bool": np.array(True),
    "empty": np.zeros(0),
    "no rows": np.zeros((0, 5), "f4"),
    "no columns": np.zeros((5, 0), "i2"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(20.0)[::3],
    "cube": np.arange(24.0).reshape(2, 3, 4),
    "days": np.array(["2020-01-01", "NaT"], "M8[ns]"),
}

STRINGS = {
    "fixed": np.array(["a", "bcd", ""]),
    "wide": np.array(["é☃", "\U0001f600 x"]),
    "of empty": np.array(["", ""]),
    "scalar text": np.array("hey"),
    "objects": np.array(["x", "longer than the rest"], dtype=object),
    "no text": np.array([], dtype="U3"),
    "no rows of text": np.zeros((0, 2), dtype="U3"),
    "grid": np.array([["a", "b"], ["c", "dd"]]),
}


@each("name", ARRAYS)
def test_arrays_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    array = ARRAYS[name]
    write_bundle(tmp_path / "b", {"x": array}, {})
    found = read_bundle(tmp_path / "b")[0]["x"]
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == np.ascontiguousarray(array).tobytes()
    assert found.flags.writeable


@pytest.mark.parametrize("name", STRINGS)
def test_strings_come_back(name: str, tmp_path: Path) -> None:
    array = STRINGS[name]
    write_bundle(tmp_path / "b", {"x": array}, {})
    found = read_bundle(tmp_path / "b")[0]["x"]
    assert found.dtype.kind == "U", "plain NumPy strings, whatever they were"
    assert found.shape == array.shape
    assert found.tolist() == array.tolist()


def test_big_endian_numbers_keep_their_values(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"x": np.arange(3, dtype=">f4")}, {})
    found = read_bundle(tmp_path / "b")[0]["x"]
    assert found.dtype == np.float32
    assert found.tolist() == [0, 1, 2]


@each("shape", [(), (0,), (5,), (7, 3), (0, 4), (5, 0), (7, 2, 2)])
@each("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8"])
def test_numbers_are_written_as_zarr_writes_them(
    dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, several chunks and a padded last one among them; and read as Zarr reads."""
    monkeypatch.setattr(array_files, "CHUNK_NBYTES", 40)
    array = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    files: list[dict[str, bytes]] = [{}, {}]
    for written in files:
        array_files.write_array(written.__setitem__, "x", array)
        monkeypatch.setattr(array_files, "is_plain", lambda dtype: False)
    assert files[0] == files[1]
    back = read_array(getter(files[0]), files[0], "x")
    buffers = {
        name: default_buffer_prototype().buffer.from_bytes(one) for name, one in files[0].items()
    }
    by_zarr = zarr.open_array(zarr.storage.MemoryStore(buffers), path="arrays/x", mode="r")
    for found in (back, np.asarray(by_zarr[...])):
        assert (found.dtype, found.shape, found.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )


def read_array(get: Any, files: Any, name: str) -> Any:
    return array_files.decode_array(get, array_files.find_array(get, files, name))


def getter(files: dict[str, bytes]) -> Any:
    """Files as a reader asks for them, none longer than it may be."""

    def get(name: str, most: int) -> bytes:
        assert len(files[name]) <= most
        return files[name]

    return get


@pytest.mark.parametrize("how", ["flipped", "short", "absent"])
def test_a_damaged_chunk_of_numbers_is_refused(how: str) -> None:
    files: dict[str, bytes] = {}
    array_files.write_array(files.__setitem__, "x", np.arange(9.0))
    data = files.pop("arrays/x/c/0")
    short = array_files.encode(np.arange(8.0), (8,))
    if how != "absent":
        files["arrays/x/c/0"] = short if how == "short" else data[:-1] + bytes([data[-1] ^ 1])
    words = {"flipped": "crc32c", "short": "64 bytes instead of 72", "absent": "not among"}[how]
    with pytest.raises(SourceError, match=words):
        read_array(getter(files), files, "x")


def test_many_arrays_of_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "CHUNK_NBYTES", 300)
    arrays = {f"a.{i}": np.random.default_rng(i).normal(size=(50, 3)) for i in range(3)}
    write_bundle(tmp_path / "b", arrays, {})
    assert len(list((tmp_path / "b" / "arrays" / "a.0" / "c").iterdir())) > 4
    found, _ = read_bundle(tmp_path / "b")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def test_the_document_comes_back(tmp_path: Path) -> None:
    document = {
        "text": "é☃\n\"'",
        "number": 0.1 + 0.2,
        "none": None,
        "deep": {"list": [1, 2.5, True, {"x": []}]},
        "sha256": "0" * 64,
        "format_version": 99,
        "huge": 10**30,
        "zeros": ["0" * 64] * 2,
    }
    path = write_bundle(str(tmp_path / "b"), {}, document)
    assert path == tmp_path / "b"
    arrays, found = read_bundle(str(path))
    assert arrays == {}
    assert found == document


def test_what_cannot_be_written_as_json_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_bundle(tmp_path / "b", ARRAYS, {"x": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "/x"])
def test_names_that_are_paths_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="array name"):
        write_bundle(tmp_path / "b", {name: np.ones(2)}, {})
    assert list(tmp_path.iterdir()) == []


def test_odd_names_are_allowed(tmp_path: Path) -> None:
    arrays = {
        name: np.array(float(i))
        for i, name in enumerate(["gram.z_probe", "é", "a b", "bundle.json"])
    }
    write_bundle(tmp_path / "b", arrays, {})
    assert read_bundle(tmp_path / "b")[0] == arrays


def test_is_bundle(tmp_path: Path) -> None:
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "absent")
    assert is_bundle(write_bundle(tmp_path / "new" / "deep" / "b", {}, {}))


# -- damage ----------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    arrays = {
        "x": np.arange(300.0),
        "names": np.array(["a", "bc"]),
        "empty": np.zeros(0),
        "zero": np.zeros(9),
    }
    document = {"estimator": "PCA", "k": 3, "share": 0.95, "note": "spaces  and\nlines"}
    return write_bundle(tmp_path / "whole", arrays, document)


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_every_flipped_byte_is_noticed(whole: Path) -> None:
    rng = np.random.default_rng(0)
    for file in files_of(whole):
        content = file.read_bytes()
        offsets = {0, len(content) - 1, *map(int, rng.integers(0, len(content), 12))}
        if file.name == "bundle.json":  # every character of it, for it vouches for the rest
            offsets = set(range(0, len(content), 3))
        for offset in sorted(offsets):
            for change in (1 << int(rng.integers(8)), int(rng.integers(1, 256))):
                damaged = bytearray(content)
                damaged[offset] ^= change
                file.write_bytes(damaged)
                with pytest.raises(SourceError):
                    read_bundle(whole)
        file.write_bytes(content)
    read_bundle(whole)


def test_line_ends_are_not_forgiven(whole: Path) -> None:
    index = whole / "bundle.json"
    index.write_bytes(index.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(SourceError, match="damaged"):
        read_bundle(whole)


def test_every_truncation_is_noticed(whole: Path) -> None:
    rng = np.random.default_rng(1)
    for file in files_of(whole):
        content = file.read_bytes()
        for length in {
            0,
            1,
            len(content) // 2,
            len(content) - 1,
            *map(int, rng.integers(0, len(content), 6)),
        }:
            file.write_bytes(content[:length])
            with pytest.raises(SourceError):
                read_bundle(whole)
        file.write_bytes(content + b" ")
        with pytest.raises(SourceError):
            read_bundle(whole)
        file.write_bytes(content)
    read_bundle(whole)


def test_every_deleted_file_is_noticed(whole: Path) -> None:
    for file in files_of(whole):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(SourceError, match=r"absent|no streampca"):
            read_bundle(whole)
        file.write_bytes(content)
    shutil.rmtree(whole / "arrays")
    with pytest.raises(SourceError, match="absent"):
        read_bundle(whole)


def test_a_file_that_became_a_directory_is_noticed(whole: Path) -> None:
    for file in files_of(whole):
        content = file.read_bytes()
        file.unlink()
        file.mkdir()
        with pytest.raises(SourceError):
            read_bundle(whole)
        file.rmdir()
        file.write_bytes(content)


def test_arrays_that_were_exchanged_are_noticed(whole: Path) -> None:
    a, b = whole / "arrays" / "x", whole / "arrays" / "zero"
    a.rename(whole / "aside")
    b.rename(a)
    (whole / "aside").rename(b)
    with pytest.raises(SourceError, match="altered"):
        read_bundle(whole)


def test_a_file_from_another_bundle_is_noticed(whole: Path, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", {"x": np.arange(300.0) + 1}, {"estimator": "PCA"})
    chunk = Path("arrays") / "x" / "c" / "0"
    shutil.copy(other / chunk, whole / chunk)
    with pytest.raises(SourceError, match="altered"):
        read_bundle(whole)


@pytest.mark.parametrize("version", [2, 0, None, "1", 1.5])
def test_another_format_version_is_refused(whole: Path, version: Any) -> None:
    index = whole / "bundle.json"
    document = json.loads(index.read_text())
    document["format_version"] = version
    index.write_text(json.dumps(document))
    with pytest.raises(SourceError, match="format"):
        read_bundle(whole)


def test_a_newer_format_says_what_to_do(whole: Path) -> None:
    (whole / "bundle.json").write_bytes(sign({"format_version": 2, "files": {}, "document": {}}))
    with pytest.raises(NewerFormatError, match=r"Upgrade streampca, or fit and save again"):
        read_bundle(whole)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "{}", '{"format_version": 1}', "\xff", "{"]
)
def test_an_index_that_is_not_one_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "bundle.json").write_text(text, encoding="latin-1")
    with pytest.raises(SourceError):
        read_bundle(tmp_path / "b")


def test_an_absent_bundle_is_a_source_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent" / "deeper"):
        with pytest.raises(SourceError, match="no streampca model"):
            read_bundle(path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(SourceError):
        read_bundle(file)


# -- replacing -------------------------------------------------------------------------------


def left_over(folder: Path, *expected: str) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(expected)


@pytest.fixture(params=["one step", "two steps"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the system call that exchanges two directories, and where there is none."""
    if request.param == "two steps":
        monkeypatch.setattr(bundle_module.ctypes, "CDLL", lambda name: object())
    return str(request.param)


def test_a_bundle_is_replaced_whole(how: str, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"x": np.ones(3), "old": np.ones(1)}, {"version": 1})
    write_bundle(tmp_path / "b", {"x": np.zeros(2)}, {"version": 2})
    arrays, document = read_bundle(tmp_path / "b")
    assert document == {"version": 2}
    assert list(arrays) == ["x"]
    assert arrays["x"].tolist() == [0, 0]
    left_over(tmp_path, "b")


def test_a_failure_before_the_exchange_leaves_the_old_one(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "b", {"x": np.ones(3)}, {"version": 1})

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    for step in ("_write_array", "_sha256", "_fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(bundle_module, step, full)
            with pytest.raises(OSError, match="No space"):
                write_bundle(tmp_path / "b", {"x": np.zeros(2)}, {"version": 2})
        assert read_bundle(tmp_path / "b")[1] == {"version": 1}
        left_over(tmp_path, "b")


def test_a_failing_rename_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "b", {}, {"version": 1})
    monkeypatch.setattr(bundle_module.ctypes, "CDLL", lambda name: object())
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise PermissionError("not here")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(PermissionError):
        write_bundle(tmp_path / "b", {}, {"version": 2})
    assert read_bundle(tmp_path / "b")[1] == {"version": 1}
    left_over(tmp_path, "b")


def test_an_interrupt_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle_module, "_fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "b", {"x": np.ones(3)}, {})
    left_over(tmp_path)


def test_a_damaged_bundle_can_be_replaced(whole: Path) -> None:
    (whole / "bundle.json").write_text("{")
    write_bundle(whole, {}, {"again": True})
    assert read_bundle(whole)[1] == {"again": True}


def test_readers_see_the_old_or_the_new_one_never_a_mixture(tmp_path: Path) -> None:
    """While one thread replaces the bundle over and over."""
    path = tmp_path / "b"

    def write(i: int) -> None:
        write_bundle(path, {"x": np.full(50, i), "y": np.full(3, i)}, {"i": i})

    write(0)
    done = threading.Event()
    failures: list[BaseException] = []

    def replace() -> None:
        try:
            for i in range(1, 16):
                write(i)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=replace)
    writer.start()
    last = 0
    try:
        while not done.is_set():
            arrays, document = read_bundle(path)
            seen = {document["i"], *arrays["x"].tolist(), *arrays["y"].tolist()}
            assert len(seen) == 1
            assert document["i"] >= last
            last = document["i"]
    finally:
        writer.join()
    assert not failures
    assert read_bundle(path)[1] == {"i": 15}


@pytest.mark.parametrize("kind", ["directory", "empty directory", "file", "zarr", "bundle inside"])
def test_what_is_not_a_bundle_is_never_overwritten(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    if kind == "file":
        target.write_text("thesis")
    else:
        target.mkdir()
    if kind == "directory":
        (target / "thesis.tex").write_text("thesis")
    if kind == "zarr":
        (target / "zarr.json").write_text("{}")
    if kind == "bundle inside":
        write_bundle(target / "b", {}, {})
    before = files_of(tmp_path)
    with pytest.raises(InvalidInputError, match="not a streampca bundle"):
        write_bundle(target, {"x": np.ones(2)}, {})
    assert files_of(tmp_path) == before
    left_over(tmp_path, "mine")


# -- no pickle -------------------------------------------------------------------------------


class Trap:
    """Unpickling it would run code."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)

    def __str__(self) -> str:
        return "trap"


def test_nothing_is_pickled(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    read_bundle(whole)
    traps = np.empty(2, dtype=object)
    traps[:] = [Trap(), Trap()]
    write_bundle(tmp_path / "b", {"x": traps}, {})
    assert read_bundle(tmp_path / "b")[0]["x"].tolist() == ["trap", "trap"]
    codecs = [
        json.loads(f.read_text())["codecs"] for f in files_of(tmp_path) if f.name == "zarr.json"
    ]
    names = {codec["name"] for each in codecs for codec in each}
    assert names <= {"bytes", "vlen-utf8", "zstd", "crc32c"}


@pytest.mark.slow
@pytest.mark.skipif(not peak_nbytes(), reason="/proc is not there to measure with")
def test_writing_holds_a_few_chunks_not_the_array(tmp_path: Path) -> None:
    """In a fresh process: what came before would hide the peak."""
    code = f"""
import numpy as np
from streampca.passes.memory import peak_nbytes, resident_nbytes
from streampca.store import write_bundle

write_bundle({str(tmp_path / "small")!r}, {{"a": np.ones(10)}}, {{}})
components = np.random.default_rng(0).standard_normal((10, 500_000))
before = resident_nbytes()
write_bundle({str(tmp_path / "model")!r}, {{"components": components}}, {{}})
print((peak_nbytes() - before) / components.nbytes)
"""
    root = str(Path(bundle_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert float(done.stdout) < 0.9  # 2.4 when all chunks were encoded at once


def test_what_shrinks_very_much_is_read_back(tmp_path: Path, monkeypatch: Any) -> None:
    """Columns of one text, sums that are mostly zeros: no reader takes them for a bomb."""
    monkeypatch.setattr("streampca.store.array_files.FREE", 1 << 20)
    sums = np.zeros((200_000, 4))
    sums[:10] = 1.5
    made = {"sums": sums, "contig": np.full(150_000, "NC_000001.11"), "few": np.arange(7)}
    write_bundle(tmp_path / "b", made, {})
    arrays, _ = read_bundle(tmp_path / "b")
    for name, values in made.items():
        np.testing.assert_array_equal(arrays[name], values)
    stored = zarr.open_array(str(tmp_path / "b" / "arrays" / "sums"), mode="r")
    np.testing.assert_array_equal(stored[:], sums)


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="leave arrays and long texts out of the record"):
        write_bundle(tmp_path / "b", {"x": np.arange(3)}, {"note": "," * (1 << 20)})
    assert not (tmp_path / "b").exists()
