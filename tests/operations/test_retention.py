"""What ``gc`` and ``keep:`` leave: what is served, named, read, or needed to go back."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streampca
from streampca.errors import InvalidInputError, SourceError
from streampca.model_store.versions import VersionStore
from tests.operations.test_refresh import Nightly, append

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from backends import MemoryBackend

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


def part(i: int) -> dict[str, Any]:
    return {"model": ({"a": np.full(3, i)}, {"i": i})}


# -- any history -------------------------------------------------------------------------------

NAMES = st.sampled_from(["champion", "challenger", "v1.0"])
WHICH = st.integers(0, 30)  # of those that are there
EVENTS = st.one_of(
    st.tuples(st.just("publish"), st.booleans()),
    st.tuples(st.just("promote"), WHICH),
    st.tuples(st.just("rollback"), st.none()),
    st.tuples(st.just("alias"), st.tuples(NAMES, WHICH)),
    st.tuples(st.just("remove_alias"), NAMES),
    st.tuples(st.just("damage"), WHICH),
    st.tuples(st.just("gc"), st.integers(1, 4)),
)


def one_of_them(store: VersionStore, which: int) -> Any:
    there = store.versions()
    return there[which % len(there)]


def happen(store: VersionStore, event: str, more: Any) -> None:
    """One event; what cannot be done is refused and changes nothing."""
    if event == "publish":
        store.commit(part(len(store.versions())), {}, promote=more)
    elif event == "damage":
        name = f"versions/{one_of_them(store, more).id}/files.zip"
        data = bytearray(store.backend.get(name) or b"")
        data[len(data) // 2] ^= 1  # its size stays
        store.backend.put(name, bytes(data))
    else:
        try:
            if event == "promote":
                store.promote(one_of_them(store, more).number)
            elif event == "alias":
                store.alias(more[0], one_of_them(store, more[1]).number)
            elif event == "remove_alias":
                store.remove_alias(more)
            else:
                store.rollback()
        except (SourceError, InvalidInputError):
            pass


def answers(store: VersionStore) -> dict[str, Any]:
    """Asked of a copy: what is served, what has a name, and where rollbacks would lead to."""
    backend = MemoryBackend()
    backend.objects = copy.copy(store.backend.objects)  # type: ignore[attr-defined]
    other = VersionStore(backend)
    found: dict[str, Any] = {name: one.number for name, one in other.aliases().items()}
    for name, ask in (("served", other.find), ("earlier", other.rollback)):
        try:
            found[name] = ask().number
        except SourceError as error:
            found[name] = type(error)
    return found


def check_gc(store: VersionStore, keep: int) -> None:
    before, numbers = answers(store), [one.number for one in store.versions()]
    size = {one.name: one.nbytes for one in store.backend.list("")}
    would = store.gc(keep, grace=0, dry_run=True)
    assert [one.number for one in store.versions()] == numbers
    assert all(one.nbytes == size[one.name] for one in would)
    gone = store.gc(keep, grace=0)
    assert gone == would
    left = {one.name: one.nbytes for one in store.backend.list("versions/")}
    assert {one.name for one in gone} == {n for n in size if n.startswith("versions/")} - {*left}
    assert answers(store) == before
    there = [one.number for one in store.versions()]
    assert there[-keep:] == numbers[-keep:]
    assert {name.split("/")[1] for name in left} == {one.id for one in store.versions()}
    assert store.gc(keep, grace=0) == []


def any_history(events: list[Any]) -> None:
    store = VersionStore(MemoryBackend())
    for i in range(3):
        store.commit(part(i), {})
    for event, more in [*events, ("gc", 1)]:
        if event == "gc":
            check_gc(store, more)
        else:
            happen(store, event, more)


@pytest.mark.parametrize("examples", [12, pytest.param(1000, marks=pytest.mark.soak)])
def test_what_is_protected_stays_and_a_dry_run_names_what_goes(examples: int) -> None:
    slow = [HealthCheck.too_slow]
    checked = settings(max_examples=examples, deadline=None, suppress_health_check=slow)
    checked(given(st.lists(EVENTS, min_size=8, max_size=40))(any_history))()


def test_the_last_good_version_stays_although_newer_ones_are_kept() -> None:
    store = VersionStore(MemoryBackend())
    for i in range(6):
        store.commit(part(i), {})
    for number in (3, 4, 5, 6):
        happen(store, "damage", number - 1)
    store.gc(3, grace=0)
    assert [one.number for one in store.versions()] == [2, 4, 5, 6]
    assert store.find(2).read()[1] == {"i": 1}
    assert store.rollback().number == 2


# -- readers, clocks, others ---------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> streampca.ModelStore:
    store = streampca.ModelStore(tmp_path / "models")
    X = np.random.default_rng(0).standard_normal((30, 4))
    for k in (1, 2, 3):
        model = streampca.PCA(k).fit(X)
        store.publish(model, scores=model.transform(X))
    return store


def numbers(store: VersionStore) -> list[int]:
    return [one.number for one in store.versions()]


def test_a_version_that_is_read_stays_until_its_reader_is_done(local: Any) -> None:
    scores = streampca.ModelStore(local.backend.place).find(1).scores()
    assert local.gc(1, grace=0, dry_run=True) == local.gc(1, grace=0) == []
    assert scores[7].shape == (1,)
    del scores
    would = local.gc(1, grace=0, dry_run=True)
    assert would == local.gc(1, grace=0) != []
    assert numbers(local) == [2, 3]


def test_a_reader_that_comes_while_gc_works_reads_to_its_end(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version was found before gc wrote that it goes; its files go with the next gc."""
    found, opened, outside = local.find(1), [], type(local)._outside

    def after_the_entry(store: Any, removed: Any) -> Any:
        if removed and not opened:
            opened.append(found.scores())
        return outside(store, removed)

    monkeypatch.setattr(type(local), "_outside", after_the_entry)
    assert local.gc(1, grace=0) == []
    rows = opened.pop()
    assert rows[3].shape == (1,)
    del rows
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="removed by gc"):
        local.find(1)
    assert len(local.gc(1, grace=0)) == 2
    assert local.verify() == {}


@pytest.mark.parametrize("ahead", [1e9, -1e9])
def test_no_clock_makes_gc_take_what_is_being_published(
    ahead: float, local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    model = local.find(2).load()
    gone: list[Any] = []
    version = local.publish(model, just_before=lambda: gone.extend(local.gc(1)))
    assert {one.name.split("/")[1] for one in gone} == {local.history().entries[0].version}
    assert local.latest().id == version.id
    assert local.verify() == {}


class Interrupted(MemoryBackend):
    """Something happens just before the next entry of the log is created."""

    happens: Callable[[], Any] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().put_if_absent(name, data)


@pytest.mark.parametrize("name", [None, "champion"])
def test_who_names_a_version_before_gc_keeps_it_and_who_comes_later_is_refused(
    name: str | None,
) -> None:
    backend = Interrupted()
    store = VersionStore(backend)
    for i in range(4):
        store.commit(part(i), {})

    def take(number: int) -> None:
        other = VersionStore(backend)
        other.promote(number) if name is None else other.alias(name, number)

    backend.happens = lambda: take(1)  # gc has decided that 1 and 2 go
    store.gc(1, grace=0)
    assert numbers(store) == ([1, 4] if name is None else [1, 3, 4])
    assert store.find(name).read()[1] == {"i": 0}
    for i in range(2):
        store.commit(part(i), {})
    backend.happens = lambda: VersionStore(backend).gc(1, grace=0)
    with pytest.raises(InvalidInputError, match="removed by gc"):
        take(4)
    assert store.verify() == {}
    assert store.find(name).read()[1] == ({"i": 1} if name is None else {"i": 0})


# -- keep: -------------------------------------------------------------------------------------


def test_a_dry_run_of_a_refresh_says_what_keep_would_remove(tmp_path: Path) -> None:
    job = Nightly(tmp_path, keep=2)
    job.run()
    job.store.alias("champion", 1)
    for _ in range(2):
        append(job)
        job.run()
    assert numbers(job.store) == [1, 2, 3]
    append(job)
    would = job.run(dry_run=True)
    done = job.run()
    assert (would.status, done.status) == ("planned", "published")
    assert would.removed_versions == done.removed_versions == [2]
    assert (would.removed, would.removed_bytes) == (done.removed, done.removed_bytes)
    assert job.store.entries(1)[0].reason == "keep: 2"
