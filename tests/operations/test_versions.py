"""Model stores: one list of laws over every kind of place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pytest
import zarr

from streampca.errors import BusyError, InvalidInputError, SourceError
from streampca.model_store import versions
from streampca.model_store.history import HEAD
from streampca.model_store.log import FOLD
from streampca.model_store.versions import VersionStore
from streampca.store import LocalBackend, ObjectBackend, open_backend
from streampca.store import backend as local
from streampca.store.checked import sign

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from backends import FaultyBackend, MemoryBackend


def part(i: float) -> dict[str, Any]:
    return {"model": ({"a": np.arange(4.0) + i, "name": np.array(["x", "é"])}, {"i": i})}


KINDS = ["local", "memory", "obstore memory", "obstore local"]


@pytest.fixture(params=[*KINDS, pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    backend: Any
    if request.param == "local":
        backend = LocalBackend(tmp_path / "deep" / "store")
    elif request.param == "memory":
        backend = MemoryBackend()
    elif request.param == "s3":
        backend = open_backend(request.getfixturevalue("s3"))
    else:
        local = request.param == "obstore local"
        made = obstore.store.LocalStore(str(tmp_path)) if local else obstore.store.MemoryStore()
        backend = ObjectBackend(made, request.param)
    return VersionStore(backend)


def value(store: VersionStore, which: int | None = None) -> float:
    arrays, document = store.find(which).read()
    np.testing.assert_array_equal(arrays["a"], np.arange(4.0) + document["i"])
    return document["i"]


# -- backends ----------------------------------------------------------------------------------


def test_the_five_verbs(store: VersionStore) -> None:
    backend = store.backend
    assert backend.get("a/b") is None
    assert list(backend.list("")) == []
    backend.put("a/b", b"1")
    backend.put("a/b", b"22")
    assert backend.get("a/b") == b"22"
    assert backend.put_if_absent("a/c", b"3") is True
    assert backend.put_if_absent("a/c", b"4") is False
    assert backend.get("a/c") == b"3"
    backend.put("ab/d", b"")
    assert sorted((o.name, o.nbytes) for o in backend.list("a/")) == [("a/b", 2), ("a/c", 1)]
    assert {o.name for o in backend.list("")} >= {"a/b", "a/c", "ab/d"}
    backend.delete("a/b")
    backend.delete("a/b")
    assert backend.get("a/b") is None
    assert [o.name for o in backend.list("a/")] == ["a/c"]


def test_of_many_that_put_if_absent_one_wins(store: VersionStore) -> None:
    for race in range(20):
        won: list[int] = []
        start = threading.Barrier(4)

        def put(i: int, race: int = race, won: list[int] = won, start: Any = start) -> None:
            start.wait()
            if store.backend.put_if_absent(f"race/{race}", b"%d" % i):
                won.append(i)

        threads = [threading.Thread(target=put, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert store.backend.get(f"race/{race}") == b"%d" % won[0]
        assert len(won) == 1


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a//b", "", ".x", "a/.x", "a\\b", "a\0"])
def test_a_name_cannot_leave_the_store(name: str, tmp_path: Path) -> None:
    for verb, more in (("get", ()), ("put", (b"",)), ("put_if_absent", (b"",)), ("delete", ())):
        with pytest.raises(InvalidInputError, match="cannot name a file"):
            getattr(LocalBackend(tmp_path / "s"), verb)(name, *more)
    assert list(tmp_path.iterdir()) == []


def test_a_local_commit_is_flushed_before_it_is_linked_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend(tmp_path)
    backend.put("_log/0", b"")
    steps: list[str] = []
    fsync, link, replace = os.fsync, os.link, os.replace
    flushed = lambda handle: os.readlink(f"/proc/self/fd/{handle}").rsplit("/", 1)[-1]  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda h: (steps.append(f"flush {flushed(h)}"), fsync(h))[1])
    monkeypatch.setattr(os, "link", lambda a, b: (steps.append("link"), link(a, b))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("rename"), replace(a, b))[1])
    backend.put_if_absent("_log/1", b"1")
    assert [s for s in steps if len(s) < 20] == ["link", "flush _log"]
    assert steps[0].startswith("flush ")
    assert len(steps) == 3
    steps.clear()
    backend.put("new/x", b"1")
    folder = tmp_path.name
    assert [s for s in steps if s in ("rename", "flush new", f"flush {folder}")] == [
        f"flush {folder}",
        "rename",
        "flush new",
    ]


def test_a_file_system_without_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(SourceError, match="hard links"):
        LocalBackend(tmp_path).put_if_absent("a", b"")
    assert [p.name for p in tmp_path.rglob("*")] == ["_staged"]


def test_schemes_are_allowed_by_name_and_credentials_are_hidden() -> None:
    for place in ("http://169.254.169.254/x", "ftp://a/b", "reference::x://y", "data://x"):
        with pytest.raises(InvalidInputError, match="cannot hold a model store"):
            open_backend(place)
    assert open_backend("memory:///x").place == "memory:///x"


# -- versions ----------------------------------------------------------------------------------


def test_publish_promote_rollback(store: VersionStore) -> None:
    assert not store.exists()
    with pytest.raises(SourceError, match="no model store"):
        store.find()
    for i in range(3):
        assert store.commit(part(i), {"why": i}).number == i + 1
        assert value(store) == i
    candidate = store.commit(part(9), {"why": 9}, promote=False, reason="to look at")
    assert (candidate.number, value(store), value(store, 4)) == (4, 2, 9)
    assert candidate.record == {"why": 9}
    assert store.promote(4).number == 4
    assert [store.rollback().number for _ in range(3)] == [3, 2, 1]
    with pytest.raises(SourceError, match="no earlier version"):
        store.rollback()
    assert value(store) == 0
    assert store.promote(2).id == store.find(2).id == store.find(store.find(2).id[:8]).id
    assert store.rollback(4).number == 4
    assert value(store) == 9
    assert [v.number for v in store.versions()] == [1, 2, 3, 4]
    assert [e.action for e in store.history().entries] == (
        ["publish"] * 4 + ["promote"] + ["rollback"] * 3 + ["promote", "rollback"]
    )
    assert store.verify() == {}
    for absent in (0, 5, "nothing", "a"):
        with pytest.raises(InvalidInputError, match="no version"):
            store.find(absent)


def test_candidates_alone_are_not_served(store: VersionStore) -> None:
    store.commit(part(1), {}, promote=False)
    with pytest.raises(SourceError, match="no promoted version yet; it has 1"):
        store.find()


def test_promoting_what_is_promoted_adds_nothing(store: VersionStore) -> None:
    store.commit(part(1), {})
    store.promote(1)
    store.rollback(1)
    assert store.history().n == 1


def test_the_same_work_is_published_once(store: VersionStore) -> None:
    store.commit(part(0), {})
    base = store.history()
    first = store.commit(part(1), {}, key="data 1", base=base)
    again = store.commit(part(1), {}, key="data 1", base=base)
    assert again.id == first.id
    assert len(store.versions()) == 2
    with pytest.raises(BusyError, match="another version was promoted"):
        store.commit(part(2), {}, key="data 2", base=base)
    assert store.commit(part(2), {}, key="data 2", base=base, promote=False).number == 3
    # the data went back to what they were: that is new work
    assert store.commit(part(1), {}, key="data 1", base=store.history()).number == 4
    assert store.gc(grace=0) == []


def test_gc_keeps_the_last_and_the_promoted(store: VersionStore) -> None:
    for i in range(6):
        store.commit(part(i), {}, promote=i != 5)
    store.rollback(1)
    would = store.gc(2, grace=0, dry_run=True)
    assert len(store.versions()) == 6
    assert store.gc(2, grace=0) == would
    assert [v.number for v in store.versions()] == [1, 5, 6]
    assert value(store) == 0
    with pytest.raises(InvalidInputError, match="removed by gc"):
        store.promote(3)
    assert store.gc(2, grace=0) == []
    assert store.commit(part(7), {}).number == 7
    assert {o.name.split("/")[1] for o in store.backend.list("versions/")} == {
        v.id for v in store.versions()
    }


def test_gc_leaves_young_orphans_and_takes_old_ones(store: VersionStore) -> None:
    store.commit(part(0), {})
    store.backend.put("versions/0123456789abcdef/model/x", b"of a writer that died")
    assert store.gc() == []
    (gone,) = store.gc(grace=0)
    assert (gone.name, gone.nbytes) == ("versions/0123456789abcdef/model/x", 21)


def test_who_was_condemned_by_gc_while_writing_is_told(
    store: VersionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is refused: it would be a version without files. On a disk gc sees the writer."""
    store.commit(part(0), {})
    local = isinstance(store.backend, LocalBackend)
    append = versions.append

    def gc_first(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(versions, "append", append)
        assert bool(VersionStore(store.backend).gc(grace=0)) != local
        return append(*arguments, **more)

    monkeypatch.setattr(versions, "append", gc_first)
    with contextlib.nullcontext() if local else pytest.raises(BusyError, match="gc removed"):
        store.commit(part(1), {})
    assert len(store.versions()) == 1 + local
    assert store.verify() == {}


def test_a_foreign_folder_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InvalidInputError, match="something else"):
        VersionStore(LocalBackend(tmp_path)).commit(part(0), {})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_reader_whose_version_went_reads_the_next(store: VersionStore) -> None:
    for i in range(2):
        store.commit(part(i), {})
    seen = []

    def read(version: Any) -> float:
        seen.append(version.number)
        if len(seen) == 1:
            for i in (2, 3):
                VersionStore(store.backend).commit(part(i), {})
            VersionStore(store.backend).gc(1, grace=0)
        return float(version.read()[1]["i"])

    assert store.read_current(read) == 3
    assert seen == [2, 4]


# -- formats -----------------------------------------------------------------------------------


NEWER = sign({"format_version": 3, "n": 2})


def test_newer_formats_are_refused(store: VersionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit(part(0), {})
    for name in (versions.MARKER, "_log/00000000000000000002.json", "_head.json"):
        before = store.backend.get(name)
        store.backend.put(name, NEWER)
        with pytest.raises(SourceError, match=r"has format 3; .* reads 1. Upgrade streampca"):
            store.find()
        store.backend.delete(name)
        if before is not None:
            store.backend.put(name, before)

    def write(backend: Any, written: Any, *_: Any) -> str:
        backend.put(f"versions/{written.version}/manifest.json", NEWER)
        return hashlib.sha256(NEWER).hexdigest()

    with monkeypatch.context() as patch:
        patch.setattr(versions, "write_manifest", write)
        store.commit({}, {})
    with pytest.raises(SourceError, match=r"manifest.json has format 3; .* reads 1. Upgrade"):
        store.find().read()


# -- damage (F15) ------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> VersionStore:
    made = VersionStore(LocalBackend(tmp_path / "store"))
    for i in range(2):
        made.commit(part(i), {"why": i})
    return made


def files_of(store: VersionStore) -> list[str]:
    return sorted(o.name for o in store.backend.list(""))


def served(store: VersionStore) -> Any:
    """All that a server reads: which version, and its arrays."""
    return store.find().read()


def damaged(store: VersionStore) -> bool:
    """Whether reading, or else verifying, tells that something is wrong."""
    try:
        served(store)
        return bool(store.verify())
    except SourceError:
        return True


@pytest.mark.parametrize(
    "places",
    [8, pytest.param(20, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.soak)],
)
def test_every_altered_byte_is_noticed(places: int, whole: VersionStore) -> None:
    """Every file; one bit flipped at so many places of each."""
    rng = np.random.default_rng(15)
    tried = 0
    for name in files_of(whole):
        text = whole.backend.get(name)
        assert text is not None
        step = max(1, len(text) // (5 * places if name.endswith(".zip") else places))
        for at in range(int(rng.integers(step)), len(text), step):
            flipped = bytearray(text)
            flipped[at] ^= 1 << int(rng.integers(8))
            Path(whole.backend.place, name).write_bytes(flipped)
            assert damaged(whole), f"{name} byte {at}"
            tried += 1
        Path(whole.backend.place, name).write_bytes(text)
    assert tried >= 12 * places
    assert not damaged(whole)


@pytest.mark.parametrize("how", ["delete", "empty", "half"])
def test_every_lost_file_is_noticed_and_rollback_works(how: str, whole: VersionStore) -> None:
    current = whole.find().id
    for name in files_of(whole):
        text = whole.backend.get(name)
        assert text is not None
        place = Path(whole.backend.place, name)
        place.unlink()
        if how != "delete":
            place.write_bytes(b"" if how == "empty" else text[: len(text) // 2])
        if name == "_head.json" and how == "delete":
            served(whole)  # it only says what is lost, and nothing is
        else:
            assert damaged(whole), name
        if current in name:
            assert value(whole, 1) == 0
            assert whole.rollback().number == 1
            assert served(whole)[1] == {"i": 0}
            place.write_bytes(text)
            whole.promote(2)
        else:
            place.write_bytes(text)
    assert whole.verify() == {}
    assert value(whole) == 1


def test_a_damaged_head_and_a_lost_last_entry_are_named_and_mended(whole: VersionStore) -> None:
    whole.backend.put("_head.json", b"{}")
    assert value(whole) == 1
    assert "--mend" in str(whole.verify()["_head.json"])
    whole.mend()
    assert whole.verify() == {}
    name = "_log/00000000000000000002.json"
    whole.backend.delete(name)
    assert value(whole) == 1  # its manifest says what the entry said
    assert "is absent, and the log reaches 2" in str(whole.verify()[name])
    assert list(whole.mend()) == [name]
    assert whole.verify() == {}
    assert value(whole) == 1
    assert whole.commit(part(2), {}).number == 3
    assert whole.rollback().number == 2


def test_entries_exchanged_or_of_another_store_are_noticed(
    whole: VersionStore, tmp_path: Path
) -> None:
    names = [f"_log/{n:020d}.json" for n in (1, 2)]
    first, second = (whole.backend.get(name) for name in names)
    assert first is not None
    assert second is not None
    whole.backend.put(names[0], second)
    whole.backend.put(names[1], first)
    assert set(whole.verify()) == set(names)
    assert [value(whole, n) for n in (None, 1, 2)] == [1, 0, 1]
    whole.backend.put(names[0], first)
    other = VersionStore(LocalBackend(tmp_path / "other"))
    for i in range(2):
        other.commit(part(i + 5), {})
    whole.backend.put(names[1], other.backend.get(names[1]) or b"")
    assert "does not follow" in str(whole.verify()[names[1]])
    assert value(whole) == 1


def test_nothing_but_json_and_zarr_is_written(whole: VersionStore) -> None:
    for name in files_of(whole):
        text = whole.backend.get(name) or b""
        if name.endswith(".zip"):
            packed = zipfile.ZipFile(io.BytesIO(text))
            assert {one.compress_type for one in packed.infolist()} == {zipfile.ZIP_STORED}
            assert all("/arrays/" in n or n == "model/bundle.json" for n in packed.namelist())
            array = zarr.open_array(
                zarr.storage.ZipStore(Path(whole.backend.place, name)),
                path="model/arrays/a",
                mode="r",
            )
            np.testing.assert_array_equal(np.asarray(array)[1:] - np.asarray(array)[:-1], 1)
        else:
            json.loads(text)


def test_a_publication_is_a_few_files_whatever_the_number_of_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small arrays share one file; what is large lies on its own and is never held whole."""
    store = VersionStore(LocalBackend(tmp_path / "store"))
    store.commit(part(0), {})
    arrays = {f"a{i}": np.full(i, i) for i in range(40)}
    arrays["large"] = np.random.default_rng(0).standard_normal((3000, 600))
    flushes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushes.append(handle), fsync(handle))[1])
    version = store.commit({"model": (arrays, {"i": 1}), "state": ({"s": arrays["a3"]}, {})}, {})
    monkeypatch.undo()
    sizes = {
        o.name.split("/", 2)[2]: o.nbytes for o in store.backend.list(f"versions/{version.id}/")
    }
    large = {name: size for name, size in sizes.items() if "/arrays/large/c/" in name}
    assert set(sizes) - set(large) == {"files.zip", "manifest.json"}
    assert len(large) == 2
    assert max(large.values()) <= 8 << 20
    assert len(flushes) <= 20
    read, document = store.find().read()
    assert document == {"i": 1}
    for name, values in arrays.items():
        np.testing.assert_array_equal(read[name], values)
    assert store.verify() == {}


def test_faults_pass_through(whole: VersionStore) -> None:
    broken = FaultyBackend(whole.backend, 0, OSError(28, "No space left on device"), verbs=("put",))
    with pytest.raises(OSError, match="No space"):
        VersionStore(broken).commit(part(3), {})
    assert value(whole) == 1


@pytest.mark.parametrize("where", ["store", "_log"])
def test_a_fault_after_the_commit_is_no_failure(
    where: str, whole: VersionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head cannot be written, or the folder of the log not be flushed: the entry is there."""
    flush, failed = local.fsync, [0]

    def full(path: Path) -> None:
        if path.name == where:
            failed[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(path)

    with monkeypatch.context() as patch:
        patch.setattr(local, "fsync", full)
        assert whole.commit(part(2), {}).number == 3
    assert failed[0] == 1
    assert value(whole) == 2
    assert [one.number for one in whole.versions()] == [1, 2, 3]
    assert whole.commit(part(3), {}).number == 4
    assert whole.verify() == {}


def test_a_head_that_stays_behind_is_followed(whole: VersionStore) -> None:
    """Across a checkpoint too."""
    full = FaultyBackend(whole.backend, 0, OSError(), for_ever=True, verbs=("put",))
    put = full.put
    full.put = lambda name, data: (put if name == HEAD else whole.backend.put)(name, data)  # type: ignore[method-assign]
    for i in range(2, FOLD + 4):
        VersionStore(full).commit(part(i), {})
    assert full.count == FOLD + 2
    assert value(whole) == FOLD + 3
    assert whole.history().damage == {}
    whole.commit(part(0), {})
    assert whole.verify() == {}
