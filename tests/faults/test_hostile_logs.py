"""Logs, manifests, scores and claims by somebody who can sign them: named, survived, bounded."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import MemoryBackend

import streampca
from streampca.cli import main
from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.model_store import log
from streampca.model_store.history import HEAD, PUBLISH, Entry, Table, entry_name
from streampca.model_store.versions import VersionStore
from streampca.operations.work_folder import MARKER, WorkFolder
from streampca.store import LocalBackend, ZarrSink, checked
from streampca.store.checked import sign
from streampca.store.sinks import mark_written, marked, version_of

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    10**30,
    1.5,
    "",
    "..",
    "a/b",
    "\ud800",
    [],
    [[]],
    [None],
    {},
    {"x": 1},
)
X = np.random.default_rng(0).standard_normal((20, 6))


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 30


def part(i: int) -> dict[str, Any]:
    return {"model": ({"a": np.full(3, i)}, {"i": i})}


def a_store(versions: int = log.FOLD) -> MemoryBackend:
    """Its last entry is a checkpoint."""
    backend = MemoryBackend()
    backend.objects.update(stored(versions))
    return backend


@functools.cache
def stored(versions: int) -> dict[str, tuple[bytes, float]]:
    backend = MemoryBackend()
    for i in range(1, versions + 1):
        VersionStore(backend).commit(part(i), {"scores": {}})
    return backend.objects


def signed_again(backend: MemoryBackend, name: str, change: Callable[[Any], Any]) -> str:
    """The new digest."""
    whole = json.loads(backend.objects[name][0])
    whole.pop("sha256")
    change(whole)
    backend.put(name, sign(whole))
    return hashlib.sha256(backend.objects[name][0]).hexdigest()


def alter_last(backend: MemoryBackend, change: Callable[[Any], Any]) -> str:
    """Its name; the head agrees."""
    name = entry_name(VersionStore(backend).history().n)
    digest = signed_again(backend, name, change)
    signed_again(backend, HEAD, lambda head: head.update(entry=digest))
    return name


def tables() -> dict[str, Callable[[dict[str, Any], Any], Any]]:
    """Where something odd is put into the table of a checkpoint."""

    def column(i: int) -> Callable[[dict[str, Any], Any], Any]:
        return lambda table, odd: table["published"][0].__setitem__(i, odd)

    return {
        "count": lambda table, odd: table.update(count=odd),
        "published": lambda table, odd: table.update(published=odd),
        "promoted": lambda table, odd: table.update(promoted=[odd]),
        "served": lambda table, odd: table.update(served=[odd]),
        "unknown": lambda table, odd: table.update(unknown=[odd]),
        "row": lambda table, odd: table["published"].append(odd),
        "version": column(0),
        "number": column(1),
        "n": column(2),
        "manifest": column(5),
    }


@pytest.mark.parametrize("where", tables())
def test_an_odd_table_is_named_and_made_again(where: str) -> None:
    for odd in ODD:
        if (where, odd) == ("published", []) or (where == "manifest" and isinstance(odd, str)):
            continue  # which could be
        backend = a_store()

        def change(entry: Any, odd: Any = odd) -> None:
            table = json.loads(entry["checkpoint"]["table"])
            tables()[where](table, odd)
            entry["checkpoint"]["table"] = json.dumps(table)

        name = alter_last(backend, change)
        store = VersionStore(backend)
        with pytest.raises(DamagedSourceError, match="--mend"):
            store.versions()
        assert name in store.verify(), odd
        store.mend()
        assert [one.number for one in store.versions()] == list(range(1, log.FOLD + 1))
        assert store.find().read()[1]["i"] == log.FOLD
        assert store.verify() == {}


@pytest.mark.parametrize(
    "field",
    [
        "n",
        "previous",
        "action",
        "version",
        "current",
        "time",
        "number",
        "manifest",
        "key",
        "removed",
        "mended",
        "checkpoint",
        "serving",
        "table",
    ],
)
def test_odd_entries_are_named_and_survived(field: str) -> None:
    """Or they are as they could be."""
    for odd in ODD:
        backend = a_store()

        def change(entry: Any, odd: Any = odd) -> None:
            (entry["checkpoint"] if field in ("serving", "table") else entry)[field] = odd

        alter_last(backend, change)
        store = VersionStore(backend)
        try:
            store.find()
            store.versions()
        except SourceError:
            pass
        store.verify()
        store.mend()
        assert {one.number for one in store.versions()} >= set(range(1, log.FOLD)), odd


@pytest.mark.parametrize("field", ["n", "checkpoint", "entry", "current"])
def test_an_odd_head_is_named_and_survived(field: str) -> None:
    for odd in (*ODD, 2**62):
        backend = a_store(3)
        signed_again(backend, HEAD, lambda head, odd=odd: head.update({field: odd}))
        store = VersionStore(backend)
        assert store.find().number == 3, odd
        store.mend()
        assert store.verify() == {}, odd
        assert store.commit(part(4), {}).number == 4


@pytest.mark.parametrize("field", ["n", "number", "current", "reason", "key", "log", "files"])
def test_odd_manifests_are_named_and_survived(field: str) -> None:
    """The entry of the log is gone: the manifest is all that tells of the version."""
    for odd in (*ODD, 2**62):
        backend = a_store(3)
        name = f"versions/{VersionStore(backend).find().id}/manifest.json"

        def change(whole: Any, odd: Any = odd) -> None:
            (whole if field in ("log", "files") else whole["log"])[field] = odd

        signed_again(backend, name, change)
        backend.delete(entry_name(3))
        store = VersionStore(backend)
        assert {one.number for one in store.versions()} >= {1, 2}, odd
        assert entry_name(3) in store.verify()
        store.mend()
        assert store.commit(part(4), {}).read()[1]["i"] == 4


def test_numbers_far_away_are_not_counted_to() -> None:
    backend = a_store(3)
    far = entry_name(10**19)
    backend.put(far, b"{}")
    signed_again(backend, HEAD, lambda head: head.update(n=2**62, checkpoint=2**62))
    store = VersionStore(backend)
    assert [one.number for one in store.versions()] == [1, 2, 3]
    assert set(store.verify()) == {far, HEAD}
    store.mend()
    assert store.verify() == {}
    assert store.commit(part(4), {}).number == 4
    alter_last(backend, lambda entry: entry.update(number=2**62))
    with pytest.raises(InvalidInputError, match="no version 'x'"):
        store.find("x")


def test_an_odd_folder_among_the_versions() -> None:
    backend = a_store(3)
    backend.delete(entry_name(3))
    backend.put("versions/ -x/manifest.json", b"{}")
    assert [one.number for one in VersionStore(backend).versions()] == [1, 2, 3]


# -- sizes -------------------------------------------------------------------------------------


def a_table(count: int) -> Table:
    ids = [f"{i:016x}" for i in range(1, count + 1)]
    rows = {
        one: Entry(
            i,
            PUBLISH,
            one,
            None,
            "2026-01-01T00:00:00+00:00",
            'nothing, [to] "say"',
            i,
            "0" * 64,
            "1" * 64,
        )
        for i, one in enumerate(ids, 1)
    }
    return Table(count, rows, frozenset(), tuple(ids), frozenset(ids))


@pytest.mark.soak
def test_ten_thousand_versions_are_read_and_added_to() -> None:
    """The table of a checkpoint has a bound; so many are well below it."""
    backend = a_store()
    served = VersionStore(backend).find()
    table = a_table(10_000)
    row = {served.id: served.entry}
    table = Table(20_000, {**table.published, **row}, promoted=table.promoted, served=table.served)
    alter_last(backend, lambda entry: entry["checkpoint"].update(table=table.to_json()))
    store = VersionStore(backend)
    assert len(store.versions()) == 10_001
    for i in range(log.FOLD):
        assert store.commit(part(i), {}).number == 20_001 + i
    assert len(store.versions()) == 10_001 + log.FOLD
    assert store.history().checkpoint.n == 2 * log.FOLD
    assert store.history().damage == {}


def test_a_table_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = a_store(3)
    monkeypatch.setattr(checked, "MOST_BYTES", 2000)
    store = VersionStore(backend)
    for i in range(4, 2 * log.FOLD):
        store.commit(part(i), {})
    assert store.history().checkpoint.n == 0
    assert len(store.versions()) == 2 * log.FOLD - 1
    assert store.verify() == {}
    with pytest.raises(InvalidInputError, match="shorter reason"):
        store.promote(1, "x" * 4000)
    assert store.find().number == 2 * log.FOLD - 1


@pytest.mark.parametrize("name", [entry_name(3), HEAD, "streampca-store.json"])
def test_a_file_that_is_too_long_is_not_read(name: str) -> None:
    backend = a_store(3)
    backend.put(name, bytes(checked.MOST_BYTES + 1))
    store = VersionStore(backend)
    assert store.find().number == 3
    assert name in store.verify()
    store.mend()
    assert store.find().number == 3
    assert store.commit(part(4), {}).number == 4


# -- scores, claims, the work folder -----------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    model = streampca.PCA(2).fit(X)
    streampca.ModelStore(tmp_path / "store").publish(model, scores=model.transform(X))
    return tmp_path / "store"


def test_scores_that_swell_are_not_decoded(tmp_path: Path) -> None:
    from streampca.store.array_files import METADATA, StoredRows, check_growth
    from streampca.store.plain_arrays import chunk_key, encode, metadata_of

    shape = (2**40, 2)
    files = {
        f"arrays/scores/{METADATA}": metadata_of(shape, shape, np.dtype(float)),
        f"arrays/scores/{chunk_key((0, 0))}": encode(np.zeros((2, 2)), (2, 2)),
    }
    sizes = {name: len(data) for name, data in files.items()}
    with pytest.raises(DamagedSourceError, match="are not decoded"):
        StoredRows(files.__getitem__, sizes, "scores", "here")
    files[f"arrays/scores/{METADATA}"] = metadata_of((4, 2), (4, 2), np.dtype(float))
    rows = StoredRows(files.__getitem__, sizes, "scores", "here")
    with pytest.raises(DamagedSourceError, match="here: arrays/scores/c/0/0 is damaged"):
        rows[0]
    check_growth(1, 1, "")
    files[f"arrays/scores/{METADATA}"] = b"[1]"
    with pytest.raises(DamagedSourceError, match=METADATA):
        StoredRows(files.__getitem__, sizes, "scores", "here")


def test_gc_takes_no_word_of_a_record_for_a_path(tmp_path: Path) -> None:
    """Only scores that say they are of the removed version go with it."""
    mine = tmp_path / "mine.zarr"
    ZarrSink(mine, 3, 2).finish()
    mark_written(str(mine), "x", {"number": 1, "id": "another"})
    os.mkdir(tmp_path / "fifo.zarr")
    os.mkfifo(tmp_path / "fifo.zarr" / "zarr.json")
    model = streampca.PCA(2).fit(X)
    store = streampca.ModelStore(tmp_path / "store")
    paths = (str(mine), str(tmp_path / "fifo.zarr"), "s3://b/x", "http://192.0.2.1/x", 1, "a\0b")
    told: list[Any] = [{"path": path} for path in paths] + [[], 1, "x", None]
    for one in told:
        store.publish(model, record={"scores": one})
    store.publish(model)
    store.publish(model)
    store.gc(1, grace=0)
    assert [one.number for one in store.versions()] == [len(told) + 1, len(told) + 2]
    assert mine.is_dir()
    assert version_of(str(mine)) == {"number": 1, "id": "another"}
    assert marked(str(tmp_path / "fifo.zarr")) is None


def test_odd_claims_are_left_alone(store: Path, tmp_path: Path) -> None:
    staged, outside = store / "_staged", tmp_path / "outside"
    staged.mkdir(exist_ok=True)
    for name in (" -x.claim", "..claim", ".claim"):
        (staged / name).write_bytes(b"")
    os.mkfifo(staged / "fifo.claim")
    (staged / "link.claim").symlink_to("/dev/zero")
    assert streampca.ModelStore(store).sweep() == ["fifo"]
    (outside / "victim").mkdir(parents=True)
    (staged / "victim.claim").write_bytes(b"")
    (store / "versions").rename(tmp_path / "versions")
    (store / "versions").symlink_to(outside)
    with pytest.raises(SourceError, match="is a link"):
        streampca.ModelStore(store).sweep()
    assert (outside / "victim").is_dir()


def test_a_manifest_of_no_record_is_no_traceback(store: Path, tmp_path: Path) -> None:
    (store / "_log" / "00000000000000000001.json").unlink()
    assert main(["models", "list", str(store)]) == 0
    target = tmp_path / "scores.zarr"
    assert main(["models", "export", str(store), "--scores", str(target)]) == 0
    assert main(["models", "verify", str(store), "--mend"]) == 0
    assert LocalBackend(store).get("_head.json")


def test_a_work_folder_is_its_users_and_its_mark_no_special_file(tmp_path: Path) -> None:
    work = WorkFolder(str(tmp_path / "store"))
    made = Path(str(work.make()))
    assert made.stat().st_mode & 0o777 == 0o700
    (made / MARKER).unlink()
    os.mkfifo(made / MARKER)
    with pytest.raises(InvalidInputError, match="was not made by streampca"):
        work.check()
    work.clear()
    assert made.is_dir()
