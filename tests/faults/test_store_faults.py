"""F2, F3, F12, F16, F24: whatever fails or dies at whatever step, a store is old or new, whole."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FaultyBackend, Killed, MemoryBackend
from expected_versions import ExpectedVersions, go_on
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from streampca.errors import BusyError
from streampca.model_store.versions import VersionStore
from streampca.store import LocalBackend, places


def part(i: int) -> dict[str, Any]:
    return {
        "model": ({"a": np.full(3, i), "b": np.full((2, 2), i)}, {"i": i}),
        "state": ({"s": np.full(5, i)}, {"i": i}),
    }


def whole(store: VersionStore) -> int:
    """The served version is one version (I1), and every other that is listed is whole too."""
    version = store.find()
    seen = set()
    for name in ("model", "state"):
        arrays, document = version.read(name)
        seen |= {document["i"], *(int(x) for array in arrays.values() for x in array.flat)}
    assert len(seen) == 1
    assert store.verify() == {}
    return seen.pop()


def a_store(backend: Any) -> VersionStore:
    """Versions 1 and 2, the second served, made of 10 and 20."""
    store = VersionStore(backend)
    for i in (10, 20):
        store.commit(part(i), {})
    return store


ACTIONS: dict[str, tuple[Callable[[VersionStore], Any], set[int]]] = {
    "publish": (lambda s: s.commit(part(30), {}, key="30"), {20, 30}),
    "promote": (lambda s: s.promote(1), {20, 10}),
    "rollback": (lambda s: s.rollback(), {20, 10}),
    "alias": (lambda s: s.alias("champion", 1), {20}),
    "gc": (lambda s: s.gc(1, grace=0), {20}),
}


@pytest.mark.parametrize("after", [False, True], ids=["before it acts", "after it acted"])
@pytest.mark.parametrize("kind", ["fails once", "fails for ever", "dies"])
@pytest.mark.parametrize("action", ACTIONS)
def test_every_step_may_fail_or_be_the_last(action: str, kind: str, after: bool) -> None:
    act, allowed = ACTIONS[action]
    for_ever = kind != "fails once"
    error: BaseException = Killed() if kind == "dies" else OSError(5, "Input/output error")
    at, steps = 0, 0
    while True:
        backend = MemoryBackend()
        a_store(backend).alias("challenger", 2)
        if action == "gc":
            VersionStore(backend).commit(part(20), {})  # now the first may go
        faulty = FaultyBackend(backend, at, error, after=after, for_ever=for_ever)
        acknowledged = False
        try:
            act(VersionStore(faulty))
            acknowledged = True
        except (OSError, Killed):
            pass
        if faulty.count <= at:
            break  # there is no such step any more
        store = VersionStore(backend)
        found = whole(store)
        assert found in allowed
        named = {name: one.number for name, one in store.aliases().items()}
        assert named.pop("challenger") == 2
        assert named in ({}, {"champion": 1} if action == "alias" else {})
        if acknowledged and action != "gc":
            changed = "champion" in named if action == "alias" else found != 20
            assert changed, f"step {at}: acknowledged and lost"
        store.gc(grace=0)
        referenced = {v.id for v in store.versions()}
        there = {o.name.split("/")[1] for o in backend.list("versions/")}
        assert there == referenced, "gc leaves nothing over"
        if action == "publish" and found == 20:  # again, and all is well
            act(store)
            assert whole(store) == 30
        at, steps = at + 1, steps + 1
    assert steps >= 5


SYSTEM_CALLS = ("fsync", "link", "replace", "mkdir", "unlink")


@pytest.mark.parametrize("after", [False, True], ids=["before it acts", "after it acted"])
@pytest.mark.parametrize("kind", ["fails", "dies"])
def test_every_system_call_of_a_publication_may_be_the_last(
    kind: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real directory: each flush, link, rename, and new folder."""
    at = 0
    while True:
        folder = tmp_path / str(at)
        a_store(LocalBackend(folder))
        error: BaseException = Killed() if kind == "dies" else OSError(28, "No space left")
        count = 0

        def due(
            at: int = at, error: BaseException = error, function: Any = None
        ) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                mine = count - 1
                if mine == at or (mine > at and kind == "dies"):
                    if after and mine == at:
                        function(*arguments, **more)
                    raise error
                return function(*arguments, **more)

            return call

        acknowledged = False
        with monkeypatch.context() as patch:
            for name in SYSTEM_CALLS:
                patch.setattr(os, name, due(function=getattr(os, name)))
            try:
                VersionStore(LocalBackend(folder)).commit(part(30), {}, key="30")
                acknowledged = True
            except (OSError, Killed):
                pass
        if count <= at:
            break
        for place in [*places._held] if kind == "dies" else ():  # as the system does
            places.release(place)
        store = VersionStore(LocalBackend(folder))
        found = whole(store)
        assert found == 30 if acknowledged else found in (20, 30)
        store.gc(grace=0)
        left = {o.name.split("/")[0] for o in store.backend.list("")}
        assert left <= {"versions", "_log", "_head.json", "streampca-store.json"}
        assert whole(store) == found
        at += 1
    assert at > 15


def kill_writers(folder: Path, server: Any, kills: int, seed: int) -> None:
    """``kill -9`` of a publishing process at random times; after each all that was said holds."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    last = 0
    for _ in range(kills):
        after = draw.random() * 0.1
        ((code, text),) = server(write=str(folder), last=last, kill=signal.SIGKILL, after=after)
        assert code == -signal.SIGKILL, text
        said = [int(line) for line in text.split()]
        store = VersionStore(LocalBackend(folder))
        found = whole(store)
        assert found in (said[-1], said[-1] + 1), "acknowledged and lost"
        last = found
    store = VersionStore(LocalBackend(folder))
    store.gc(2, grace=0)
    assert {o.name.split("/")[0] for o in store.backend.list("")} <= {
        "versions",
        "_log",
        "_head.json",
        "streampca-store.json",
    }
    assert 0 < len(store.versions()) <= 2
    assert last >= kills


def test_killed_writers_leave_the_store_whole(tmp_path: Path, server: Any) -> None:
    kill_writers(tmp_path / "store", server, 2, seed=1)


@pytest.mark.parametrize(
    "kills", [pytest.param(15, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.soak)]
)
def test_many_killed_writers(kills: int, tmp_path: Path, server: Any) -> None:
    kill_writers(tmp_path / "store", server, kills, seed=2)


def race(folder: Path, writers: int, rounds: int) -> None:
    """F12: of writers that publish the same data state at once, one does."""
    store = a_store(LocalBackend(folder))
    for round_ in range(rounds):
        base, start = store.history(), threading.Barrier(writers)
        before = len(store.versions())
        ids: list[str] = []
        refused: list[BaseException] = []

        def publish(
            round_: int = round_,
            base: Any = base,
            start: Any = start,
            ids: list[str] = ids,
            refused: list[Any] = refused,
        ) -> None:
            mine = VersionStore(LocalBackend(folder))
            start.wait()
            try:
                ids.append(mine.commit(part(round_), {}, key=f"data {round_}", base=base).id)
            except BusyError as error:
                refused.append(error)

        threads = [threading.Thread(target=publish) for _ in range(writers)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(set(ids)) == 1
        assert len(ids) + len(refused) == writers
        assert len(store.versions()) == before + 1
        assert store.find().id == ids[0]
    assert whole(store) == rounds - 1
    assert store.gc(1000, grace=0) == []


def test_of_eight_publishing_the_same_one_does(tmp_path: Path) -> None:
    race(tmp_path / "store", 8, 2)


@pytest.mark.parametrize(
    "rounds", [pytest.param(8, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.soak)]
)
def test_of_eight_publishing_the_same_one_does_every_time(tmp_path: Path, rounds: int) -> None:
    race(tmp_path / "store", 8, rounds)


def test_different_work_at_once_is_all_kept(tmp_path: Path) -> None:
    store = a_store(LocalBackend(tmp_path / "store"))
    threads = [
        threading.Thread(target=lambda i=i: store.commit(part(i), {}, key=str(i))) for i in range(6)
    ]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [v.number for v in store.versions()] == list(range(1, 9))
    assert {v.read()[1]["i"] for v in store.versions()} == {10, 20, *range(6)}
    assert store.verify() == {}


@pytest.mark.parametrize("promotes", [40, pytest.param(1000, marks=pytest.mark.soak)])
def test_readers_see_one_version_while_others_are_promoted(tmp_path: Path, promotes: int) -> None:
    store = a_store(LocalBackend(tmp_path / "store"))
    done, reads = threading.Event(), []
    failures: list[BaseException] = []

    def read() -> None:
        mine = VersionStore(LocalBackend(tmp_path / "store"))
        try:
            while not done.is_set():
                arrays, document = mine.read_current(lambda version: version.read())
                reads.append({document["i"], *arrays["a"].tolist(), *arrays["b"].flat})
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    [t.start() for t in readers]
    try:
        for i in range(promotes):
            store.promote(1 + i % 2)
    finally:
        done.set()
        [t.join() for t in readers]
    assert not failures
    assert len(reads) > 2
    assert all(len(seen) == 1 for seen in reads)


class StoreMachine(ExpectedVersions):
    """F24: publications, any of which may die at any step. Values are what they were made of."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend()

    @property
    def store(self) -> VersionStore:
        return VersionStore(self.backend)

    def check(self, version: Any, value: Any) -> None:
        assert version.read()[1]["i"] == value

    @rule(promote=st.booleans())
    def publish(self, promote: bool) -> None:
        number = self.store.commit(part(len(self.values)), {}, promote=promote).number
        self.published(len(self.values), promote)
        assert number == len(self.values)

    @rule(at=st.integers(0, 25), after=st.booleans())
    def die_while_publishing(self, at: int, after: bool) -> None:
        faulty = FaultyBackend(self.backend, at, Killed(), after=after, for_ever=True)
        acknowledged = False
        with contextlib.suppress(Killed):
            VersionStore(faulty).commit(part(len(self.values)), {})
            acknowledged = True
        if acknowledged or self.was_published():
            self.published(len(self.values))


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)


@pytest.mark.soak
def test_two_thousand_steps_in_any_order() -> None:
    go_on(StoreMachine, 60, 50)
