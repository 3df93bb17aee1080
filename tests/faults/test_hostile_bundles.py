"""What an adversary found in saved models, stores, jobs and sources, one by one."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import socket
import stat
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed  # noqa: F401  (takes longer than what is measured here)
import google_crc32c
import numcodecs
import numpy as np
import pytest
import scipy.sparse
import zarr

import streampca
from streampca.cli import main
from streampca.errors import (
    ClusterError,
    ConfigError,
    DamagedSourceError,
    InvalidInputError,
    SourceError,
    hide_secrets,
    printable,
)
from streampca.models.contract.registry import all_kinds
from streampca.object_storage import any_credentials, open_objects
from streampca.operations.config import check_job
from streampca.operations.gates import Facts, against, refusal
from streampca.operations.sections import SECTIONS
from streampca.operations.work_folder import only_one
from streampca.operations.yaml_files import read_yaml
from streampca.store import LocalBackend, read_bundle, write_bundle
from streampca.store.array_files import unpack
from streampca.store.checked import MOST_DEPTH, sign, unsign

X = np.random.default_rng(0).standard_normal((20, 6))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streampca.PCA(2).fit(X).save(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    streampca.ModelStore(tmp_path / "store").publish(streampca.PCA(2).fit(X))
    return tmp_path / "store"


def signed_again(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change ``bundle.json`` as somebody does who can sign it."""
    whole = json.loads((path / "bundle.json").read_text())
    change(whole)
    whole.pop("sha256", None)
    (path / "bundle.json").write_bytes(sign(whole))


def with_file(path: Path, name: str, data: bytes) -> None:
    """A file of a bundle replaced, and vouched for."""
    (path / name).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    signed_again(path, lambda whole: whole["files"].update({name: digest}))


def chunk_of(values: bytes) -> bytes:
    body = bytes(numcodecs.Zstd().encode(values))
    return body + int(google_crc32c.value(body)).to_bytes(4, "little")


# -- names -------------------------------------------------------------------------------------

NAMES = [
    "arrays/mean/../../../secret",
    "/etc/passwd",
    "",
    "arrays/../x/zarr.json",
    "arrays\\mean\\zarr.json",
    "arrays/a\0b/zarr.json",
    "arrays/./c/0",
    "mean",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fits", [True, False])
def test_a_bundle_names_no_file_outside_of_it(model: Path, name: str, fits: bool) -> None:
    """Whether the digest fits is not told either."""
    (model.parent / "secret").write_bytes(b"secret")
    digest = hashlib.sha256(b"secret" if fits else b"other").hexdigest()
    signed_again(model, lambda whole: whole["files"].update({name: digest}))
    with pytest.raises(DamagedSourceError, match="names a file"):
        streampca.load(model)


# -- links and special files -------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "fifo": fifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "socket": bound_socket,
    "link": lambda path: path.symlink_to(path.parent.parent / "elsewhere"),
}


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["bundle.json", "arrays/mean/zarr.json", "arrays/mean/c/0"])
def test_no_special_file_of_a_model_is_read(model: Path, name: str, kind: str) -> None:
    """A link is not followed even to a copy of what it replaces."""
    file = model / name
    (file.parent.parent / "elsewhere").write_bytes(file.read_bytes())
    file.unlink()
    SPECIAL[kind](file)
    with within(5), pytest.raises(SourceError, match=r"special file|absent or altered"):
        streampca.load(model)


def test_a_folder_of_a_model_is_no_link(model: Path) -> None:
    (model / "arrays" / "mean").rename(model.parent / "mean")
    (model / "arrays" / "mean").symlink_to(model.parent / "mean")
    with pytest.raises(DamagedSourceError, match="is a link"):
        streampca.load(model)
    (model.parent / "latest").symlink_to(model)  # the model itself may be reached by one
    (model / "arrays" / "mean").unlink()
    (model.parent / "mean").rename(model / "arrays" / "mean")
    assert streampca.load(model.parent / "latest").n_components_ == 2


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["_head.json", "streampca-store.json", "_log", "files.zip"])
def test_no_special_file_of_a_store_is_read(store: Path, name: str, kind: str) -> None:
    """Not even a copy behind a link. Of the log, what is lost is made again from what is left."""
    found = next(store.rglob("files.zip")) if name == "files.zip" else store / name
    file = next(found.iterdir()) if found.is_dir() else found
    (file.parent.parent / "elsewhere").write_bytes(file.read_bytes())
    file.unlink()
    SPECIAL[kind](file)
    with within(5):
        if name == "files.zip":
            with pytest.raises(SourceError):
                streampca.load(store)
            assert main(["info", str(store)]) in (65, 66)
            return
        assert streampca.load(store).n_components_ == 2
        assert file.relative_to(store).as_posix() in streampca.ModelStore(store).verify()
    with within(5):
        assert main(["models", "verify", str(store)]) == 65


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "store" / "versions").symlink_to(tmp_path / "outside")
    for verb in ("put", "put_if_absent"):
        with pytest.raises(DamagedSourceError, match="is a link"):
            getattr(LocalBackend(tmp_path / "store"), verb)("versions/x", b"1")
    assert list((tmp_path / "outside").iterdir()) == []


# -- sizes -------------------------------------------------------------------------------------


@contextlib.contextmanager
def frugal(nbytes: float = 150e6) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("said", [True, False])
def test_a_chunk_that_swells_is_not_decoded(model: Path, said: bool) -> None:
    """32 kB that are 1.15 GB of zeros, whether the metadata say so or not."""
    n = 144_000_000
    bomb = chunk_of(bytes(8 * n))
    assert len(bomb) < 200_000
    if said:
        told = json.loads((model / "arrays/mean/zarr.json").read_text())
        told["shape"] = told["chunk_grid"]["configuration"]["chunk_shape"] = [n]
        with_file(model, "arrays/mean/zarr.json", json.dumps(told).encode())
    with_file(model, "arrays/mean/c/0", bomb)
    with frugal(), pytest.raises(DamagedSourceError, match=r"would take|decodes to 1152000000"):
        streampca.load(model)


def test_text_that_swells_is_not_decoded(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "b", {"names": np.array(["a"] * 1000)}, {})
    with_file(path, "arrays/names/c/0", chunk_of((1000).to_bytes(4, "little") + bytes(3 * 10**8)))
    with frugal(), pytest.raises(DamagedSourceError, match="300000004 bytes where at most"):
        read_bundle(path)
    with_file(path, "arrays/names/c/0", chunk_of((2**31).to_bytes(4, "little") + bytes(4000)))
    with frugal(), pytest.raises(DamagedSourceError, match="2147483648 strings instead of 1000"):
        read_bundle(path)
    one = b"".join(len(s).to_bytes(4, "little") + s for s in [b"x" * 10**6] + [b"a"] * 999)
    with_file(path, "arrays/names/c/0", chunk_of((1000).to_bytes(4, "little") + one))
    with frugal():  # a long one among short ones does not widen these
        (names,) = read_bundle(path)[0].values()
    assert [len(name) for name in names.tolist()] == [10**6, *[1] * 999]


def test_large_honest_arrays_are_read(tmp_path: Path) -> None:
    """The bound is on what nothing honest has: 64 MiB, and 200 times what is stored."""
    arrays = {"zeros": np.zeros(10**6), "x": np.random.default_rng(0).standard_normal(10**6)}
    found, _ = read_bundle(write_bundle(tmp_path / "b", arrays, {}))
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)


def archive_of(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    import io

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return held.getvalue()


def test_an_archive_that_swells_is_not_inflated() -> None:
    assert bytes(unpack(archive_of(("a", b"1"), ("é", b"22")), "x")["é"]) == b"22"
    bomb = archive_of(("a", bytes(2 * 10**8)), method=zipfile.ZIP_DEFLATED)
    with frugal(), pytest.raises(DamagedSourceError, match="not written by streampca"):
        unpack(bomb, "x")
    whole = archive_of(("a", bytes(1000)))
    with pytest.raises(DamagedSourceError, match="twice"):
        unpack(whole[: whole.index(b"PK\x01\x02")] * 2, "x")


def test_a_part_of_a_version_is_not_inflated_either(store: Path) -> None:
    """``files.zip`` beside a bundle: what it says is 2 GB is never made."""
    folder = next(store.rglob("files.zip")).parent
    archive_file = folder / "files.zip"
    archive_file.write_bytes(
        archive_of(("model/bundle.json", bytes(10**8)), method=zipfile.ZIP_DEFLATED)
    )
    with frugal(), pytest.raises(SourceError, match="not written by streampca"):
        read_bundle(folder / "model")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b"[" + b"[]," * 2**20 + b"1]",
        b" " * (17 << 20),
        b"[1]",
        b'{"format_version": 1.0}',
        b'{"format_version": true}',
        b'{"format_version": [1]}',
        b'{"format_version": 1, "sha256": "\\ud800"}',
        b'{"format_version": 1, "sha256": 1e5}',
        b'{"format_version": 1' + b"0" * 5000 + b"}",
        b"\xff\xfe{\0}\0",
        b"",
        b'{"format_version": 1, "x": ' + b"[" * 99 + b"]" * 99 + b"}",
    ],
)
def test_json_is_bounded_before_it_is_parsed(text: bytes) -> None:
    with frugal(), pytest.raises(SourceError):
        unsign(text, "it")


def test_honest_json_is_read() -> None:
    deep: Any = 1
    for _ in range(MOST_DEPTH - 2):
        deep = [deep]
    document = {"format_version": 1, "deep": deep, "many": list(range(10**5)), "text": ",[{" * 99}
    assert unsign(sign(document), "it")["deep"] == deep


# -- malformed documents -----------------------------------------------------------------------


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["document"].pop(name)


def put(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["document"].update(entries)


MALFORMED: dict[str, Callable[[dict[str, Any]], None]] = {
    "no labels": drop("labels"),
    "labels of nothing": put(labels={}),
    "labels that are a list": put(labels=[1]),
    "an unknown field": put(surprise=1),
    "text for a number": put(n_samples="many"),
    "a list for settings": put(settings=[1, 2]),
    "a certificate of nothing": put(certificate={"residual": []}),
    "text in the plan": put(plan={"passes": ["x"], "solver": 5}),
    "seconds that are text": put(provenance={"seconds": "long"}),
    "null for a number": put(total_variance=None),
    "a design of nothing": put(design=[{}]),
    "no document": lambda whole: whole.pop("document"),
    "files that are a list": lambda whole: whole.update(files=["x"]),
    "digests that are numbers": lambda whole: whole.update(files={"arrays/mean/zarr.json": 5}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_model_ends_in_the_exit_table(
    model: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    signed_again(model, MALFORMED[name])
    with pytest.raises(SourceError, match=r"damaged|names a file|digest"):
        streampca.load(model)
    assert main(["info", str(model)]) in (65, 66)
    assert capsys.readouterr().err.startswith("streampca: ")


@pytest.mark.parametrize("name", ["components", "mean", "explained_variance", "constant"])
def test_arrays_that_do_not_belong_together(model: Path, name: str) -> None:
    arrays, document = read_bundle(model)
    arrays[name] = np.ones((3, 3, 3))
    shutil.rmtree(model)
    write_bundle(model, arrays, document)
    with pytest.raises(DamagedSourceError, match="damaged"):
        streampca.load(model)


def test_a_signed_file_in_the_wrong_place(
    store: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no entry of the log, and is named; the version is found by its manifest."""
    entry = next((store / "_log").iterdir())
    for other in (store / "_head.json", model / "bundle.json"):
        shutil.copy(other, entry)
        assert main(["models", "list", str(store)]) == 0
        assert entry.name in capsys.readouterr().err
        assert main(["models", "verify", str(store)]) == 65
    shutil.copy(store / "_head.json", model / "bundle.json")
    assert main(["info", str(model)]) == 65


def test_what_a_log_serves_was_published(store: Path) -> None:
    entry = next((store / "_log").iterdir())
    whole = json.loads(entry.read_text())
    whole.pop("sha256")
    text = sign({**whole, "version": "0" * 16})
    entry.write_bytes(text)
    streampca.load(store)  # _head.json and the manifest say otherwise
    head = json.loads((store / "_head.json").read_text())
    head["entry"] = hashlib.sha256(text).hexdigest()
    head.pop("sha256")
    (store / "_head.json").write_bytes(sign(head))
    with pytest.raises(DamagedSourceError, match="never published"):
        streampca.load(store)
    assert main(["models", "show", str(store)]) == 65


def test_a_loaded_model_computes_and_writes_nowhere_by_itself(model: Path) -> None:
    """Its file must not say on whose cluster, or over which folder."""
    hostile = {"scheduler": "tcp://192.0.2.1:1", "checkpoint": "/somewhere", "progress": True}
    signed_again(model, lambda whole: whole["document"]["settings"].update(hostile))
    loaded = streampca.load(model)
    assert (loaded.scheduler, loaded.checkpoint, loaded.progress) == (None, None, None)


def test_what_should_not_be_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(streampca, "load", fail)
    assert main(["info", str(model)]) == 70
    assert "a fault of streampca" in capsys.readouterr().err
    monkeypatch.setenv("STREAMPCA_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["info", str(model)])


# -- schedulers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "tcp://",
        "tcp://:8786",
        "tcp://host",
        "tcp://host:x",
        "tcp://127.0.0.1:99999",
        "ftp://h:1",
        "tcp://me:hush@host:8786",
        "tcp://me:hu/sh@host:8786",
        "tcp://hush@host:8786",
        "://hush@x",
    ],
)
def test_a_bad_address_is_refused_at_once_and_shows_no_password(address: str) -> None:
    with within(2), pytest.raises(InvalidInputError) as caught:
        streampca.PCA(2, scheduler=address).fit(X)
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(streampca.PCA(2, scheduler=address))


def test_an_address_where_nobody_listens_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took 22 s: the client's time-out, and as long again when the client was thrown away."""
    monkeypatch.setattr("streampca.passes.cluster.clients.CONNECT_SECONDS", 100)
    monkeypatch.setattr("streampca.passes.cluster.clients.PATIENCE", 0.1)
    with within(60), pytest.raises(ClusterError, match="no Dask scheduler answers"):
        streampca.PCA(2, scheduler="tcp://127.0.0.1:1").fit(X)


def test_what_listens_there_may_be_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask waits without end for the rest of an answer that begins with a great length."""
    monkeypatch.setattr("streampca.passes.cluster.clients.CONNECT_SECONDS", 0.5)
    monkeypatch.setattr("streampca.passes.cluster.clients.PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    one, _ = server.accept()
                    with one:
                        one.sendall(b"HTTP/1.0 400 Bad request\r\n" * 4)
                        time.sleep(0.2)

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with within(60), pytest.raises(ClusterError, match="no Dask scheduler answers"):
            streampca.PCA(2, scheduler=address).fit(X)


# -- what is printed ---------------------------------------------------------------------------


def test_names_cannot_do_anything_to_a_terminal(tmp_path: Path, capsys: Any) -> None:
    name = "a\x1b[2J\x07\u202e\ud800\r"
    shown = printable(name)
    assert shown == "a\\x1b[2J\\x07\\u202e\\ud800\\r"
    assert str(SourceError(name)) == shown
    assert printable("two\nlines\tand é☃") == "two\nlines\tand é☃"
    streampca.ModelStore(tmp_path / "s").publish(streampca.PCA(2).fit(X), reason=name)
    assert main(["models", "list", str(tmp_path / "s")]) == 0
    assert shown in capsys.readouterr().out
    assert main(["info", str(tmp_path / "absent\x1b]0;x\x07")]) == 66
    assert "\\x1b]0;x\\x07" in capsys.readouterr().err


def test_passwords_are_not_shown() -> None:
    for secret in ("s3://me:hush@b/k", "tcp://me:hu/sh@h:1", "https://h/p?sig=hush"):
        assert "sh" not in hide_secrets(f"at '{secret}', twice {secret}").replace("https", "")


# -- jobs --------------------------------------------------------------------------------------


def test_a_lock_is_its_users_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "store.lock").touch(0o666)
    (tmp_path / "store.lock").chmod(0o666)
    with only_one(str(tmp_path / "store")):
        assert stat.S_IMODE((tmp_path / "store.lock").stat().st_mode) == 0o600
    (tmp_path / "other.lock").symlink_to(tmp_path / "store.lock")
    os.mkfifo(tmp_path / "third.lock")
    for name in ("other", "third"):
        with pytest.raises(DamagedSourceError), only_one(str(tmp_path / name)):
            pass


def test_checkpoints_are_their_users(tmp_path: Path) -> None:
    streampca.PCA(2, checkpoint=str(tmp_path / "work")).fit(X)
    from streampca.passes.checkpoint import Checkpoint

    Checkpoint(tmp_path / "mine" / "pass-x", "key", 0.0, {}).save(1, {})
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700


@pytest.mark.parametrize("value", [float("nan"), None, "0.1", True, [0.1]])
def test_no_number_passes_no_gate(value: Any) -> None:
    assert refusal({"max_angle": 0.3}, Facts({"max_angle": value})).startswith("max angle is")
    assert refusal({"max_error_ratio": 2.0}, Facts({"error_ratio": value})) != ""
    assert refusal({"max_angle": 0.3}, Facts({"max_angle": 0.1})) == ""


def test_a_result_of_nan_is_not_compared_and_does_not_pass() -> None:
    from dataclasses import replace

    old = streampca.PCA(2).fit(X).result_
    for name in ("components", "explained_variance", "mean"):
        values = np.array(getattr(old, name))
        values.flat[0] = np.nan
        _, drift = against(old, replace(old, **{name: values}), None, "order")
        assert "holds NaN" in refusal({"max_angle": 0.3}, Facts(drift))


ODD: list[Any] = [[], {}, [1], {"a": 1}, None, True, -1, 10**30, "x", "", 1.5, float("inf"), b"x"]


@pytest.mark.parametrize("kind", all_kinds())
def test_no_value_of_a_job_file_is_a_traceback(kind: str) -> None:
    """Every entry of every section, and every parameter, with values of every type."""
    whole = {"source": {"path": "a.zarr"}, "store": "m", "model": {"kind": kind}}
    spots = [("model", name) for name in all_kinds()[kind].parameters]
    if kind == "PCA":
        spots += [(section, name) for section, table in SECTIONS.items() for name in table]
    for section, name in spots:
        for value in ODD:
            entries = copy.deepcopy(whole)
            holder: Any = entries.setdefault(section, {}) if section else entries
            holder[name] = value
            with contextlib.suppress(ConfigError):
                check_job(entries, "x.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "a: 2020-99-99",
        "a: " + "9" * 60_000,
        "a: !!int ''",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: !!float x",
        "a: !!binary \xe9",
        "[" * 65_000,
        "{a: " * 15_000,
        "- " * 32_000,
        "? " * 32_000,
        "a: &x *x",
        "\x00",
        "a: \x07",
        "!!python/object/apply:os.getcwd []",
        "a: !!set [1]",
    ],
)
def test_no_yaml_is_a_traceback(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text, encoding="latin-1")
    with within(20), pytest.raises(ConfigError):
        check_job(*read_yaml(tmp_path / "x.yaml"))


# -- sources -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
@pytest.mark.parametrize("codec", ["auto", None])
def test_a_chunk_that_is_no_file(tmp_path: Path, kind: str, codec: Any) -> None:
    place = tmp_path / "x.zarr"
    zarr.create_array(str(place), data=X, chunks=(10, 6), compressors=codec)
    (place / "c/0/0").unlink()
    SPECIAL[kind](place / "c/0/0")
    words = "outside the store" if kind == "device" else "special file"  # a link to one
    with within(5), pytest.raises(DamagedSourceError, match=words):
        streampca.PCA(2).fit(str(place))
    with within(5), pytest.raises(DamagedSourceError, match="special file"):
        streampca.PCA(2).fit(streampca.open(str(place), external_links=True))
    (place / "zarr.json").unlink()
    SPECIAL[kind](place / "zarr.json")
    with within(5), pytest.raises(SourceError):
        streampca.open(str(place))


@pytest.mark.parametrize("end", [".npy", ".npz", ".h5ad", ".nc", ".mtx", ".zarr", ".zip", ".yaml"])
def test_a_source_that_is_no_file(tmp_path: Path, end: str) -> None:
    os.mkfifo(tmp_path / f"x{end}")
    words = ["config", "check"] if end == ".yaml" else ["info"]
    with within(5):
        assert main([*words, str(tmp_path / f"x{end}")]) == (78 if end == ".yaml" else 65)


def test_an_npz_that_swells_is_not_inflated(tmp_path: Path) -> None:
    matrix = scipy.sparse.random(200, 50, 0.3, "csr", random_state=np.random.default_rng(0))
    scipy.sparse.save_npz(tmp_path / "x.npz", matrix)
    assert streampca.open(str(tmp_path / "x.npz")).shape == (200, 50)
    n = 20_000_000
    np.savez_compressed(
        tmp_path / "bomb.npz",
        format=b"csr",
        shape=np.array([1, n]),
        indptr=np.array([0, n]),
        data=np.zeros(n, "f4"),
        indices=np.zeros(n, "i4"),
    )
    with frugal(), pytest.raises(DamagedSourceError, match="more than 100 times"):
        streampca.open(str(tmp_path / "bomb.npz"))


def test_an_h5ad_reads_no_other_file_unless_it_is_asked_to(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = X

    def made(name: str, add: Callable[[Any], None]) -> str:
        with h5py.File(tmp_path / name, "w") as file:
            add(file)
            for axis, size in (("obs", 20), ("var", 6)):
                file.create_group(axis)["_index"] = np.array(
                    [f"{axis}{i}" for i in range(size)], "S"
                )
        return str(tmp_path / name)

    def external(file: Any) -> None:
        file["X"] = h5py.ExternalLink("other.h5", "/secret")

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout(X.shape, "f8")
        layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), "secret", X.shape)
        file.create_virtual_dataset("X", layout)

    def raw(file: Any) -> None:
        file.create_dataset("X", X.shape, "f8", external=[("/etc/passwd", 0, X.nbytes)])

    for name, add in (("a.h5ad", external), ("b.h5ad", virtual), ("c.h5ad", raw)):
        with pytest.raises(DamagedSourceError, match="lies in another file"):
            streampca.open(made(name, add))
    there = streampca.open(str(tmp_path / "a.h5ad"), external_links=True)
    np.testing.assert_array_equal(there.read(0, 0, 20), X)
    plain = made("d.h5ad", lambda file: file.create_dataset("X", data=X))
    np.testing.assert_array_equal(streampca.open(plain).read(0, 0, 20), X)


def test_a_billion_chunks_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "x.zarr"
    zarr.create_array(str(place), data=X, chunks=(10, 6))
    told = json.loads((place / "zarr.json").read_text())
    told["shape"], told["chunk_grid"]["configuration"]["chunk_shape"] = [10**9, 6], [1, 6]
    (place / "zarr.json").write_text(json.dumps(told))
    with frugal(), pytest.raises(InvalidInputError, match="1000000000 chunks"):
        streampca.open(str(place))
    assert main(["info", str(place)]) == 65


def test_http_without_its_library(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import fsspec

    def refuse(*_: Any, **more: Any) -> None:
        raise ImportError('HTTPFileSystem requires "requests" and "aiohttp" to be installed')

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    assert main(["info", "http://127.0.0.1:9/x.zarr"]) == 69
    assert "pip install fsspec aiohttp" in capsys.readouterr().err


def test_metadata_services_are_asked_only_where_the_user_chose_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("s3://b/x", "gs://b/x", "az://b/x", "abfs://b/x"):
        assert not any_credentials(url, {"region": "x", "client_options": {}})
        assert any_credentials(url, {"credential_provider": print})
    assert open_objects("s3://b/x", {"region": "x"}).config["skip_signature"] == "true"
    keys = {"access_key_id": "a", "secret_access_key": "b", "region": "x"}
    assert "skip_signature" not in open_objects("s3://b/x", keys).config
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    assert any_credentials("s3://b/x", {})
