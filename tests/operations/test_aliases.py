"""Aliases of versions, and the log that says who did what, when and why."""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli import main
from streampca.errors import InvalidInputError, SourceError
from streampca.model_store.history import HEAD, entry_name
from streampca.model_store.log import append
from streampca.model_store.versions import VersionStore
from streampca.store import LocalBackend
from streampca.store.checked import MOST_ALIASES, sign

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from backends import MemoryBackend

ME = f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"
MANY = {f"name{i}": "0" for i in range(MOST_ALIASES + 1)}
ODD = ("", "3", "v3", "V12", "abcdef", "DEADBEEF", "latest", "Served", "-x", "a b", "a/b", "../x")


def part(i: int) -> dict[str, Any]:
    return {"model": ({"a": np.full(3, i)}, {"i": i})}


def a_store(versions: int = 3) -> VersionStore:
    store = VersionStore(MemoryBackend())
    for i in range(versions):
        store.commit(part(i), {})
    return store


def named(store: VersionStore) -> dict[str, int]:
    return {name: one.number for name, one in store.aliases().items()}


def test_an_alias_moves_and_goes_and_promote_serves_what_it_names() -> None:
    store = a_store()
    assert store.alias("champion", 3).number == store.find("champion").number == 3
    assert store.alias("challenger", store.find(1).id[:7]).number == 1
    assert store.alias("champion", "challenger").number == 1
    assert named(store) == {"challenger": 1, "champion": 1}
    assert store.find().number == 3  # what is served is another matter
    assert store.promote("champion").number == store.find().number == 1
    n = store.history().n
    store.alias("champion", 1)  # nothing new
    assert store.history().n == n
    store.remove_alias("champion", "no more")
    assert named(store) == {"challenger": 1}
    with pytest.raises(InvalidInputError, match=r"no version 'champion'; expected .*challenger"):
        store.find("champion")
    with pytest.raises(InvalidInputError, match="has no alias champion; it has challenger"):
        store.remove_alias("champion")
    for i in range(40):  # across checkpoints
        store.commit(part(i), {})
    assert named(store) == {"challenger": 1}
    assert store.verify() == {}


@pytest.mark.parametrize("name", [*ODD, "é", "x" * 65, "a\n", "\x1b[31m", "1st", None, 3])
def test_names_that_no_version_can_have(name: Any) -> None:
    with pytest.raises(InvalidInputError, match="cannot be an alias"):
        a_store(1).alias(name, 1)


def test_an_alias_never_shadows_the_id_of_a_version() -> None:
    store = a_store()
    store.commit(part(3), {}, version="release_one")
    with pytest.raises(InvalidInputError, match="begins the id of a version"):
        store.alias("release", 1)
    store.alias("stable_release", 1)
    store.commit(part(4), {}, version="stable_release_2")  # comes later: ids come first
    assert store.find("stable_release").number == 5


def test_there_are_so_many_at_most() -> None:
    store = a_store(1)
    for i in range(MOST_ALIASES):
        store.alias(f"name{i}", 1)
    with pytest.raises(InvalidInputError, match=f"{MOST_ALIASES} aliases; remove one"):
        store.alias("more", 1)
    assert len(named(store)) == MOST_ALIASES
    assert store.verify() == {}


def test_of_many_that_name_at_once_each_is_there(tmp_path: Path) -> None:
    place = LocalBackend(tmp_path / "store")
    VersionStore(place).commit(part(0), {})
    threads = [
        threading.Thread(target=lambda i=i: VersionStore(place).alias(f"name{i}", 1))
        for i in range(6)
    ]
    [one.start() for one in threads]
    [one.join() for one in threads]
    assert named(VersionStore(place)) == {f"name{i}": 1 for i in range(6)}


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_torn_entries_lose_no_alias_in_silence(head: bool, published: bool) -> None:
    """The head has the aliases, and the manifest of a version; else it says that none is sure."""
    store = a_store(2)
    store.alias("champion", 1)
    store.alias("champion", 2)
    if published:
        store.commit(part(3), {}, promote=False)
    for name in [entry_name(4), *[entry_name(5)] * published, *[HEAD] * (not head)]:
        store.backend.put(name, b"torn")
    if head or published:
        assert named(store) == {"champion": 2}
    else:
        with pytest.raises(SourceError, match="entry 4 of the log is lost"):
            store.find("champion")
        with pytest.raises(SourceError, match="entry 4 of the log is lost"):
            store.alias("champion", 1)
        store.promote(2)
        store.alias("champion", 2)
    store.mend()
    assert store.verify() == {}
    assert named(store) == {"champion": 2}


def test_an_alias_of_nothing_is_found_and_can_be_given_anew() -> None:
    """Its version was lost with all its files."""
    store = a_store()
    version = store.alias("champion", 2)
    for one in list(store.backend.list(f"versions/{version.id}/")):
        store.backend.delete(one.name)
    store.backend.put(entry_name(1), b"torn")
    store.mend()
    assert named(store) == {}
    history = store.history()
    odd = {**history.aliases, "odd": "0123456789abcdef"}
    append(store.backend, lambda _: {"action": "alias", "version": "", "aliases": odd})
    assert list(store.verify()) == ["alias odd"]
    with pytest.raises(SourceError, match="Give it to another: streampca models alias STORE odd"):
        store.find("odd")
    store.alias("odd", 3)
    assert store.verify() == {}


@pytest.mark.parametrize("odd", [[], None, {"x": 1}, {"a b": "0"}, {"x": "../y"}, {"": "0"}, MANY])
@pytest.mark.parametrize("name", [HEAD, entry_name(3), "manifest"])
def test_odd_aliases_are_damage_and_hide_no_version(name: str, odd: Any) -> None:
    """By somebody who can sign them."""
    store = a_store()
    name = f"versions/{store.find(3).id}/manifest.json" if name == "manifest" else name
    whole = json.loads(store.backend.get(name) or b"")
    whole.pop("sha256")
    whole.get("log", whole)["aliases"] = odd
    store.backend.put(name, sign(whole))
    assert {name, 3} & {*store.verify()}
    assert named(store) == {}
    assert [one.number for one in store.versions()] == [1, 2, 3]
    if name in (HEAD, entry_name(3)):
        store.mend()
        assert store.verify() == {}


# -- load, and the command line ------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> str:
    store = streampca.ModelStore(tmp_path / "models")
    X = np.random.default_rng(5).standard_normal((40, 6))
    for k in (2, 3, 4):
        store.publish(streampca.PCA(k).fit(X), reason=f"with {k}")
    return str(tmp_path / "models")


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["models", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_load_takes_a_number_an_id_or_an_alias(place: str, tmp_path: Path) -> None:
    store = streampca.ModelStore(place)
    store.alias("challenger", 1)
    for which in (1, "1", store.find(1).id, store.find(1).id[:6], "challenger"):
        assert streampca.load(place, version=which).n_components == 2
    assert streampca.load(place).n_components == store.load().n_components == 4
    with pytest.raises(InvalidInputError, match="no version 'champion'"):
        streampca.load(place, version="champion")
    saved = store.load().save(tmp_path / "saved")
    with pytest.raises(InvalidInputError, match="is no model store, so it has no version 1"):
        streampca.load(saved, version=1)


def test_the_commands(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "alias", place) == []
    assert told(capsys, "alias", place, "champion", "1", "--reason", "best")["version"] == 1
    assert [row["alias"] for row in told(capsys, "alias", place)] == ["champion"]
    assert told(capsys, "show", place, "champion")["version"] == 1
    assert told(capsys, "promote", place, "champion", "--reason", "it won")["promoted"] == 1
    assert told(capsys, "gc", place, "--keep", "1", "--grace", "0", "--reason", "full")["bytes"] > 0
    rows = told(capsys, "list", place)
    assert [(row["version"], row["by"], row["reason"], row["aliases"]) for row in rows] == [
        (1, ME, "with 2", ["champion"]),
        (3, ME, "with 4", []),
    ]
    assert told(capsys, "alias", place, "champion", "--remove") == {"removed": "champion"}
    lines = told(capsys, "log", place)
    assert [(one["action"], one["version"], one["alias"], one["reason"]) for one in lines] == [
        *(("publish", k - 1, "", f"with {k}") for k in (2, 3, 4)),
        ("alias", 1, "champion", "best"),
        ("promote", 1, "", "it won"),
        ("remove", None, "", "full"),
        ("unalias", 1, "champion", ""),
    ]
    assert {one["by"] for one in lines} == {ME}
    assert len({one["run"] for one in lines[3:]} - {""}) == 4  # each command is a run
    assert [one["n"] for one in told(capsys, "log", place, "--last", "2")] == [6, 7]
    for command in (["log", place], ["list", place], ["alias", place]):
        assert main(["models", *command]) == 0
    printed = capsys.readouterr().out
    assert "champion of version 1 " in printed
    assert f"{ME:20} remove   version 2 " in printed
    for wrong in (["champion"], ["champion", "1", "--remove"], ["7up", "1"], ["champion", "2"]):
        assert main(["models", "alias", place, *wrong]) == 65
    assert main(["models", "log", place, "--last", "0"]) == 65


def test_a_torn_line_hides_no_other(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = streampca.ModelStore(place)
    store.alias("champion", 1)
    store.alias("challenger", 2)
    for torn in (5, 2):
        path = Path(place, entry_name(torn))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert main(["models", "log", place, "--json"]) == 0
        out, err = capsys.readouterr()
        assert "is damaged" in err
        numbers = [one["n"] for one in json.loads(out)]
        assert numbers == [n for n in range(1, 6) if n != torn or n == 2]  # a manifest has 2
        assert named(store) == {"champion": 1, "challenger": 2}
        path.write_bytes(whole)
    assert streampca.load(place, version="champion").n_components == 2
