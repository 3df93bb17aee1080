"""F28: bytes of the log, the head, the marker or manifests are altered; what is intact is found."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FaultyBackend, MemoryBackend

from streampca.errors import InvalidInputError, SourceError
from streampca.model_store import log
from streampca.model_store.versions import VersionStore
from streampca.store import LocalBackend
from streampca.store.checked import sign

MARKER = "streampca-store.json"


def part(i: int) -> dict[str, Any]:
    return {"model": ({"a": np.full(3, i)}, {"i": i})}


def a_long_log() -> tuple[MemoryBackend, dict[int, str], int]:
    """(a store with two checkpoints, ids by number of what is there, the served number)."""
    backend = MemoryBackend()
    store = VersionStore(backend)
    for i in range(1, 14):
        store.commit(part(i), {}, promote=i % 5 != 0, key=f"data {i}")
    store.rollback()
    store.promote(7)
    store.gc(6, grace=0)
    for i in range(14, 34):
        store.commit(part(i), {}, promote=i % 5 != 0, key=f"data {i}")
        if i % 8 == 0:
            store.rollback()
    assert store.history().checkpoint.n > log.FOLD
    assert store.verify() == {}
    return backend, {one.number: one.id for one in store.versions()}, store.find().number


def alter(backend: MemoryBackend, draw: random.Random) -> set[str]:
    """Change one to ten bytes, in one file or in several; the names."""
    names = sorted(n for n in backend.objects if n.endswith(".json"))
    last = [n for n in names if n.startswith("_log/")][-3:]
    likely = [*last, *last, "_head.json", MARKER]  # half of them where it matters most
    count = draw.randint(1, 10)
    one = draw.choice(names if draw.random() < 0.5 else likely)
    alone = draw.random() < 0.5
    touched = set()
    for _ in range(count):
        name = one if alone else draw.choice(names if draw.random() < 0.5 else likely)
        data = bytearray(backend.objects[name][0])
        data[draw.randrange(len(data))] ^= draw.randint(1, 255)
        backend.put(name, bytes(data))
        touched.add(name)
    return touched


@pytest.mark.parametrize("trials", [40, pytest.param(400, marks=pytest.mark.soak)])
def test_every_intact_version_stays_reachable(trials: int) -> None:
    original, ids, served = a_long_log()
    draw = random.Random(28)
    unsure = 0
    for trial in range(trials):
        backend = MemoryBackend()
        backend.objects = dict(original.objects)
        touched = {
            name
            for name in alter(backend, draw)
            if backend.objects[name][0] != original.objects[name][0]
        }
        hurt = {number for number, one in ids.items() if f"versions/{one}/manifest.json" in touched}
        where = f"trial {trial}: {sorted(touched)}"
        store = VersionStore(backend)
        lost = reachable(store, ids, hurt, served, where)
        unsure += lost
        wrong = store.verify()
        outer = {name for name in touched if not name.startswith("versions/")}
        assert outer <= set(wrong), where
        assert hurt <= {n for n in wrong if isinstance(n, int)} | lost_numbers(wrong, ids), where
        told = history_of(store)
        assert set(store.mend()) >= outer, where
        assert not {n for n in store.verify() if isinstance(n, str)} - folders(ids), where
        assert history_of(store) == told, where
        if served not in hurt:
            assert store.find().number == served or lost, where
        number = store.commit(part(99), {}).number
        assert set(range(number, 34)) <= hurt, where  # numbers of lost ones are free
        assert number <= 34, where
        assert store.find().number == number
        after = VersionStore(backend)
        assert after.history().damage == {}, where
        assert after.find().read()[1]["i"] == 99
        left = {n: one for n, one in ids.items() if n not in hurt}
        assert not reachable(after, left, set(), number, where)
    print(f"{unsure} of {trials} lost which version is served")
    assert unsure < trials / 4


def folders(ids: dict[int, str]) -> set[str]:
    return {f"versions/{one}" for one in ids.values()}


def lost_numbers(wrong: Any, ids: dict[int, str]) -> set[int]:
    """Versions that are named by their folder, for no entry is left that tells their number."""
    return {n for n, one in ids.items() if f"versions/{one}" in wrong}


def history_of(store: VersionStore) -> list[tuple[int, str]]:
    return [(one.number, one.id) for one in store.versions()]


def reachable(
    store: VersionStore, ids: dict[int, str], hurt: set[int], served: int, where: str
) -> bool:
    """All intact ones are found by number and read; whether it is not known which is served."""
    history = store.history()
    for number in set(ids) - hurt:
        version = store.find(number, history)
        assert version.read()[1]["i"] == number, where
    unsure = bool(history.unsure)
    if unsure:
        with pytest.raises(SourceError, match="streampca models promote"):
            store.find()
    elif served in hurt:
        with pytest.raises(SourceError, match=r"rollback|absent or altered"):
            store.find().verify()
    else:
        assert store.find().number == served, where
    return unsure


def test_a_lost_log_is_rebuilt_from_the_versions() -> None:
    backend, ids, served = a_long_log()
    for name in [n for n in backend.objects if n.startswith("_")]:
        backend.delete(name)
    store = VersionStore(backend)
    assert store.versions() == []
    store.mend()
    assert history_of(store) == sorted(ids.items())
    assert store.verify() == {}
    assert store.find().number == served
    assert store.commit(part(34), {}).number == 34
    assert store.rollback().number == served


def test_an_unfinished_publication_is_not_taken_for_a_lost_one() -> None:
    """A writer died before its entry; the entry of another is damaged."""
    backend = MemoryBackend()
    store = VersionStore(backend)
    store.commit(part(1), {})
    dying = FaultyBackend(backend, 0, OSError("died"), for_ever=True, verbs=("put_if_absent",))
    with pytest.raises(OSError, match="died"):
        VersionStore(dying).commit(part(50), {})
    store.commit(part(2), {})
    store.commit(part(3), {})
    backend.put("_log/00000000000000000003.json", b"{}")
    assert [one.number for one in store.versions()] == [1, 2, 3]
    assert store.find().read()[1]["i"] == 3
    store.mend()
    assert [one.read()[1]["i"] for one in store.versions()] == [1, 2, 3]


ORPHAN, REAL = "a" * 16, "b" * 16


def a_claimed_entry(backend: Any, orphan: str, real: str, promote: bool = True) -> Any:
    """A store whose entry 2 two manifests claim: that of a dead publisher, and the real one."""
    store = VersionStore(backend)
    store.commit(part(1), {})
    dying = FaultyBackend(backend, 0, OSError("died"), for_ever=True, verbs=("put_if_absent",))
    with pytest.raises(OSError, match="died"):
        VersionStore(dying).commit(part(50), {}, version=orphan)
    store.commit(part(2), {}, version=real, promote=promote)
    return store


@pytest.mark.parametrize("ids", [(ORPHAN, REAL), (REAL, ORPHAN)])
@pytest.mark.parametrize("witness", ["head", "candidate's head", "entry", "behind", "manifest"])
def test_of_two_that_claim_a_lost_entry_the_real_one_is_found(witness: str, ids: Any) -> None:
    backend = MemoryBackend()
    store = a_claimed_entry(backend, *ids, promote=witness not in ("candidate's head", "behind"))
    if witness in ("entry", "behind", "manifest"):
        store.commit(part(3), {}, promote=False)
        backend.put("_head.json", b"{}")
    lost = {2, 3} if witness == "manifest" else {2}
    for n in lost:
        backend.put(f"_log/{n:020d}.json", b"{}")
    count = 2 if "head" in witness else 3
    served = 1 if witness in ("candidate's head", "behind") else 2
    for _ in range(2):
        assert [one.read()[1]["i"] for one in store.versions()] == list(range(1, count + 1))
        assert store.find().read()[1]["i"] == served
        assert store.find(2).id == ids[1]
        store.mend()
    assert store.verify() == {}


@pytest.mark.parametrize("whole_log", [False, True])
def test_where_nothing_tells_which_one_is_real_none_is_served(whole_log: bool) -> None:
    backend = MemoryBackend()
    store = a_claimed_entry(backend, ORPHAN, REAL)
    backend.delete("_head.json")
    backend.put("_log/00000000000000000002.json", b"{}")
    if whole_log:
        backend.delete("_log/00000000000000000001.json")
    else:
        with pytest.raises(SourceError, match="which version is promoted"):
            store.find()
        history = store.history()
        assert [one.number for one in store.versions(history)] == [1]
        assert history.unknown == (ORPHAN, REAL)
        assert history.unsure
    store.mend()
    assert store.find().number == 1
    assert set(store.verify()) == {f"versions/{ORPHAN}", f"versions/{REAL}"}
    assert store.commit(part(3), {}).number == 2


def test_what_may_be_a_version_is_not_swept(tmp_path: Path) -> None:
    """Its publisher died, before its entry or after it: nothing tells."""
    backend = LocalBackend(tmp_path / "store")
    store = a_claimed_entry(backend, ORPHAN, REAL)
    for name in ("_head.json", "_log/00000000000000000002.json"):
        backend.put(name, b"{}")
    store.mend()
    backend.put(f"_staged/{REAL}.claim", b"")
    assert store.sweep() == [REAL]
    assert set(store.verify()) == {f"versions/{ORPHAN}", f"versions/{REAL}"}


def test_rollback_goes_to_the_last_one_before_the_version_that_was_given_up() -> None:
    backend = MemoryBackend()
    store = VersionStore(backend)
    ids = [store.commit(part(i), {}).id for i in (1, 2, 3)]
    for one in list(backend.list(f"versions/{ids[-1]}/")):
        backend.delete(one.name)
    backend.put("_log/00000000000000000001.json", b"{}")
    store.mend()
    for _ in range(2):
        with pytest.raises(SourceError, match=r"was lost, and given up.*streampca models rollback"):
            store.find()
        store.commit(part(4), {}, promote=False)
    assert store.rollback().number == 2
    assert store.rollback().number == 1
    with pytest.raises(SourceError, match="no earlier version"):
        store.rollback()


@pytest.mark.parametrize("altered", [2, 3])
def test_an_entry_signed_anew_breaks_the_chain(altered: int) -> None:
    """Its own digest is right; the next entry, or the head, has that of the one it replaced."""
    backend = MemoryBackend()
    store = VersionStore(backend)
    for i in range(3):
        store.commit(part(i), {})
    texts = [backend.get(log.entry_name(n)) or b"" for n in (1, 2, 3)]
    digests = [hashlib.sha256(text).hexdigest() for text in texts]
    assert [json.loads(text)["previous"] for text in texts] == ["", *digests[:2]]
    assert log.read_history(backend).damage == {}
    entry = {**json.loads(texts[altered - 1]), "reason": "altered"}
    backend.put(log.entry_name(altered), sign(entry))
    damage = log.read_history(backend).damage
    assert list(damage) == [log.entry_name(3)]
    assert "does not follow the entry before it" in damage[log.entry_name(3)]
    assert VersionStore(backend).find().number == 3


def test_nothing_is_removed_from_a_damaged_store() -> None:
    backend, _, _ = a_long_log()
    store = VersionStore(backend)
    last = store.history().n
    backend.put(f"_log/{last:020d}.json", b"{")
    with pytest.raises(SourceError, match="until it is mended"):
        store.gc(1, grace=0)
    store.mend()
    assert store.gc(1, grace=0)


def test_not_knowing_what_is_served_is_an_error_until_it_is_said() -> None:
    backend, ids, served = a_long_log()
    store = VersionStore(backend)
    last = store.rollback().number  # an entry that no manifest knows of
    assert last != served
    backend.put(f"_log/{store.history().n:020d}.json", b"{")
    assert store.find().number == last  # the head knows
    backend.put("_head.json", b"{")
    with pytest.raises(SourceError, match="which version is promoted"):
        store.find()
    with pytest.raises(SourceError, match="which version is promoted"):
        store.commit(part(40), {}, promote=False)
    with pytest.raises(InvalidInputError, match=r"no version 77.*damaged: _head.json; _log/"):
        store.find(77)
    assert len(store.versions()) == len(ids)
    assert store.promote(last).number == last
    assert store.find().number == last


def test_a_newer_format_is_not_taken_for_damage() -> None:
    from streampca.store.checked import sign

    backend, _, _ = a_long_log()
    store = VersionStore(backend)
    n = store.history().n
    backend.put(f"_log/{n + 1:020d}.json", sign({"format_version": 2, "n": n + 1}))
    for act in (store.find, store.versions, store.verify, store.mend):
        with pytest.raises(SourceError, match="has format 2; this streampca reads 1"):
            act()


# -- what opening costs ------------------------------------------------------------------------


def test_opening_takes_as_many_requests_whatever_the_length_of_the_log() -> None:
    backend = MemoryBackend()
    store = VersionStore(backend)
    taken = {}
    for i in range(1, 5 * log.FOLD):
        store.commit(part(i), {})
        counting = FaultyBackend(backend, -1, OSError())
        assert VersionStore(counting).find().number == i
        taken[i] = counting.count
    assert max(taken.values()) <= log.FOLD + 3
    assert min(list(taken.values())[log.FOLD :]) == 4  # marker, head, the checkpoint, none behind


def test_a_writer_condemned_before_the_last_checkpoint_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the checkpoint has forgotten what gc had removed."""
    from streampca.errors import BusyError
    from streampca.model_store import versions

    backend = MemoryBackend()
    store = VersionStore(backend)
    store.commit(part(0), {})
    write = versions.write_parts

    def slowly(*arguments: Any) -> Any:
        monkeypatch.setattr(versions, "write_parts", write)
        written = write(*arguments)
        assert VersionStore(backend).gc(grace=0)
        for i in range(2 * log.FOLD):
            VersionStore(backend).commit(part(i), {})
        return written

    monkeypatch.setattr(versions, "write_parts", slowly)
    with pytest.raises(BusyError, match="gc removed"):
        store.commit(part(1), {})
    assert store.verify() == {}
