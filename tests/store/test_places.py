"""What killed processes leave beside an output, and who removes it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import streampca
from streampca.errors import BusyError, InvalidInputError
from streampca.genetics.tables import write_lines
from streampca.store import LabelledSink, ZarrSink, places, read_bundle, write_bundle
from streampca.store.backend import LocalBackend
from streampca.store.places import (
    discard,
    hold,
    in_use,
    left_over,
    refuse_inside,
    release,
    set_aside,
    sweep,
    unfinished_name,
)

DYING = """
import os, signal, sys
from pathlib import Path
import numpy as np
from streampca.store import LabelledSink, ZarrSink, bundle, write_bundle
from streampca.store.places import set_aside
from streampca.genetics.tables import write_lines

os.chdir(sys.argv[1])
first = ZarrSink("array", 9, 2)
first.write(0, np.ones((5, 2)))
again = ZarrSink("replaced", 9, 2, overwrite=True)
group = LabelledSink("group", "x", (3, 2), ("a", "b"), {})
old = set_aside("moved")

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def lines():
    yield "one"
    bundle.exchange = die
    write_bundle("bundle", {"x": np.ones(3)}, {})

write_lines("table", lines())
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A folder in which a process died while it wrote to six places."""
    write_bundle(tmp_path / "bundle", {"x": np.zeros(1)}, {"whole": True})
    ZarrSink(tmp_path / "replaced", 2, 1).finish()
    write_lines(tmp_path / "moved", ["whole\n"])
    root = str(Path(streampca.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return tmp_path


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_the_next_that_writes_there_removes_what_the_killed_one_left(killed: Path) -> None:
    whole = {"array", "replaced", "bundle"}
    hidden = {one for one in names(killed) if one.startswith(".")}
    assert {one.split(".")[1] for one in hidden} == {
        "table",
        "bundle",
        "replaced",
        "group",
        "moved",
    }
    assert whole < names(killed)
    assert read_bundle(killed / "bundle")[1] == {"whole": True}
    for name in ("array", "replaced"):  # the first was there, and not whole: it is no obstacle
        sink = ZarrSink(killed / name, 4, 1, overwrite=name == "replaced")
        sink.write(0, np.full((4, 1), 3.0))
        sink.finish()
        assert np.asarray(sink.array[...]).sum() == 12
    write_bundle(killed / "bundle", {}, {"again": True})
    LabelledSink(killed / "group", "x", (3, 2), ("a", "b"), {}).finish()
    for name in ("table", "moved"):
        write_lines(killed / name, ["x\n"])
    assert names(killed) == whole | {"group", "table", "moved"}


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    place = unfinished_name(path)
    file = unfinished_name(path, folder=False)
    assert (left_over(path), sweep(path)) == ([], [])
    assert (Path(place).is_dir(), Path(file).is_file()) == (True, True)
    release(file)
    assert sweep(path) == [file]
    release(place)
    again = unfinished_name(path)
    assert names(tmp_path) == {Path(again).name}
    discard(again)
    assert names(tmp_path) == set()


def test_what_is_set_aside_is_left_alone_until_its_process_dies(tmp_path: Path) -> None:
    write_lines(tmp_path / "out", ["x\n"])
    old = set_aside(str(tmp_path / "out"))
    assert sweep(str(tmp_path / "out")) == []
    release(old)
    assert sweep(str(tmp_path / "out")) == [old]


def test_nothing_else_is_taken_for_left_over(tmp_path: Path) -> None:
    """Names that are nearly ours, ours of another output, links and pipes."""
    whole = "0" * 32
    near = (
        f".out.{'0' * 31}.partial",
        f".out.{whole}.parts",
        f".other.{whole}.partial",
        f"out.{whole}.partial",
        ".out.notes.partial",
        f".out.{whole}.new",
    )
    for name in near:
        (tmp_path / name).mkdir()
    target = tmp_path / "target"
    target.write_text("thesis")
    (tmp_path / f".out.{'1' * 32}.partial").symlink_to(target)
    os.mkfifo(tmp_path / f".out.{'2' * 32}.partial")
    before = names(tmp_path)
    assert sweep(str(tmp_path / "out")) == []
    discard(unfinished_name(str(tmp_path / "out")))
    assert names(tmp_path) == before
    assert target.read_text() == "thesis"
    os.utime(tmp_path / f".out.{whole}.new", (0, 0))  # nobody will lock it any more
    assert len(sweep(str(tmp_path / "out"))) == 1


class Other:
    """The lock of another process on a file or folder."""

    def __init__(self, path: Path | str, kind: int = fcntl.LOCK_EX) -> None:
        self.handle = os.open(path, os.O_RDONLY)
        fcntl.flock(self.handle, kind | fcntl.LOCK_NB)

    def end(self) -> None:
        os.close(self.handle)


def test_what_is_about_to_be_locked_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / f".out.{'0' * 32}.new"
    new.mkdir()
    looked: list[str] = []
    monkeypatch.setattr(places, "in_use", lambda place: bool(looked.append(place)))
    assert left_over(str(tmp_path / "out")) == []
    assert looked == []
    os.utime(new, (0, 0))
    assert left_over(str(tmp_path / "out")) == [str(new)] == looked


@pytest.mark.parametrize("action", ["unfinished", "set aside", "hold", "claim"])
def test_a_lock_is_waited_for_and_never_gone_without(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look at the same moment. One that stays is said."""
    out = tmp_path / "out"
    out.mkdir()
    backend = LocalBackend(tmp_path / "store")
    calls: list[int] = []

    def act() -> str:
        if action == "unfinished":
            return unfinished_name(str(out))
        if action == "set aside":
            return set_aside(str(out))
        if action == "hold":
            hold(str(out))
            return str(out)
        with backend.claim("a"):
            return ""

    real = places._try_lock
    for busy in (3, 10**6):
        calls.clear()
        monkeypatch.setattr(
            places, "_try_lock", lambda h, n=busy: calls.append(h) if len(calls) < n else real(h)
        )
        monkeypatch.setattr(places, "PATIENCE", 10.0 if busy == 3 else 0.03)
        if busy == 3:
            place = act()
            assert len(calls) == 3
            if place:
                with pytest.raises(BlockingIOError):
                    Other(place)
                release(place)
                out.mkdir(exist_ok=True)
            continue
        before = names(tmp_path)
        with pytest.raises(BusyError, match="another process is using"):
            act()
        assert names(tmp_path) <= before
        assert not list((tmp_path / "store").rglob("*.new"))


def test_who_looks_is_not_taken_for_who_writes(tmp_path: Path) -> None:
    write_lines(tmp_path / "out", ["x\n"])
    look = Other(tmp_path / "out", fcntl.LOCK_SH)
    assert not in_use(str(tmp_path / "out"))
    ends = []

    def end() -> None:
        ends.append(look)
        look.end()

    timer = threading.Timer(0.05, end)
    timer.start()
    old = set_aside(str(tmp_path / "out"))
    assert ends  # it was waited for
    timer.join()
    assert sweep(str(tmp_path / "out")) == []
    discard(old)


def test_where_there_are_no_locks_it_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    place = unfinished_name(str(tmp_path / "out"))
    assert (hold(place), in_use(place), sweep(str(tmp_path / "out"))) == (None, True, [])
    discard(place)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("output", "source", "refused"),
    [
        ("x.zarr/models", "x.zarr", True),
        ("x.zarr", "x.zarr", True),
        ("x.zarr/../x.zarr/m", "x.zarr", True),
        ("data", "data/x.zarr", True),
        ("x.zarr-models", "x.zarr", False),
        ("models", "x.zarr", False),
        ("link/models", "x.zarr", True),
        ("s3://b/x.zarr/models", "s3://b/x.zarr", True),
        ("s3://b/models", "s3://b/x.zarr", False),
        ("models", "s3://b/x.zarr", False),
    ],
)
def test_outputs_within_a_source_are_refused(
    output: str, source: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x.zarr")
    if not refused:
        refuse_inside(output, [source], "store")
        return
    words = "is the source" if output == source else "within one another"
    with pytest.raises(InvalidInputError, match=words):
        refuse_inside(output, ["elsewhere", source], "store")
