"""``streampca status`` says what is true of a job, whatever happened to it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

import streampca
from streampca.cli import main
from streampca.errors import BusyError, ConfigError, SourceError
from streampca.operations import runs
from streampca.operations.config import check_job
from streampca.operations.status import status
from streampca.operations.work_folder import only_one
from tests.operations.test_refresh import Nightly, data

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
WINDOWS = {"warn_after": "26h", "error_after": "50h"}


def told(job: Nightly) -> Any:
    return status(check_job(job.entries, "job"), "job.yaml")


def aged(job: Nightly, hours: float, *names: str) -> None:
    """Notes of a run as if it had been so long ago."""
    path = Path(job.entries["store"] + runs.FOLDER) / runs.NAME
    note = json.loads(path.read_text())
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)
    for name in names:
        section, field = name.split(".")
        note[section][field] = then.isoformat()
    path.write_text(json.dumps(note))


def levels(found: Any) -> set[str]:
    return {level for level, _ in found.reasons}


def test_before_the_first_run_and_after_it(tmp_path: Path) -> None:
    job = Nightly(tmp_path)
    before = told(job)
    assert (before.level, before.run, before.served) == ("error", {"state": "never"}, None)
    assert before.source["waiting"] == 100
    job.run()
    after = told(job)
    assert (after.level, after.exit_code, after.reasons) == ("fresh", 0, [])
    assert after.served["version"] == 1
    assert after.served["samples"] == after.success["samples"] == after.source["samples"] == 100
    assert (after.run["state"], after.run["status"], after.run["pid"]) == (
        "ended",
        "published",
        os.getpid(),
    )
    assert (after.source["waiting"], after.failure, after.free_bytes > 0) == (0, None, True)


def test_rows_that_wait_and_rows_that_cannot_be_taken(tmp_path: Path) -> None:
    job = Nightly(tmp_path)
    job.run()
    streampca.append(job.place, data(30, 1))
    assert told(job).source["waiting"] == 30
    assert told(job).level == "fresh"
    job.run()
    job.array.resize((160, 8))  # rows that nobody has written
    found = told(job)
    assert (found.source["samples"], found.source["waiting"]) == (160, 0)
    assert found.source["behind"] == 30
    assert found.source["note"]


def test_ages_are_judged_by_the_windows_of_the_job(tmp_path: Path) -> None:
    job = Nightly(tmp_path, freshness=WINDOWS)
    job.run()
    for hours, level, code in ((1, "fresh", 0), (27, "warn", 1), (51, "error", 2)):
        aged(job, hours, "success.time", "run.ended")
        found = told(job)
        assert (found.level, found.exit_code) == (level, code)
    aged(job, -2, "success.time")
    assert "future" in told(job).reasons[0][1]


def test_a_failed_and_a_refused_run(tmp_path: Path) -> None:
    job = Nightly(tmp_path, gate={"max_angle": 0.01})
    job.run()
    away = tmp_path / "away"
    Path(job.place).rename(away)
    with pytest.raises(SourceError):
        job.run()
    found = told(job)
    assert (found.level, found.exit_code) == ("unknown", 3)
    assert (found.failure["exit"], found.failure["kind"]) == (66, "source")
    assert found.success["version"] == 1
    away.rename(job.place)
    found = told(job)
    assert (found.level, found.next) == ("warn", "streampca refresh job.yaml")
    job.array[...] = data(100, 5, turn=9.0)
    assert job.run().status == "refused"
    found = told(job)
    assert (found.level, found.failure["exit"], found.served["version"]) == ("warn", 65, 1)
    assert found.next == f"streampca models list {job.entries['store']}"


def test_a_damaged_version_is_an_error(tmp_path: Path) -> None:
    job = Nightly(tmp_path)
    job.run()
    (folder,) = (Path(job.entries["store"]) / "versions").iterdir()
    (folder / "files.zip").write_bytes(b"cut")
    for _ in range(2):
        found = told(job)
        assert (found.level, found.served) == ("error", None)
        assert found.next.startswith("streampca models verify")
        shutil.rmtree(folder, ignore_errors=True)


RUN = """
import sys, time, yaml
from streampca.operations import runs
with runs.RunNote(sys.argv[1]) as note:
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def running(tmp_path: Path) -> Any:
    """A job, and a process that is at it."""
    job = Nightly(tmp_path, freshness=WINDOWS)
    job.run()
    command = [sys.executable, "-c", RUN, job.entries["store"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield job, process
        process.kill()


def test_a_run_that_goes_on_falls_silent_and_dies(running: Any) -> None:
    job, process = running
    found = told(job)
    assert (found.level, found.run["state"], found.run["pid"]) == ("fresh", "running", process.pid)
    assert found.success["version"] == 1  # of the run before
    aged(job, 1, "run.beat")
    assert told(job).run["state"] == "silent"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found = told(job)
    assert (found.level, found.run["state"]) == ("warn", "died")
    assert found.next == "streampca refresh job.yaml"
    job.run()
    assert told(job).level == "fresh"


def test_a_run_on_another_host_is_judged_by_its_signs_of_life() -> None:
    run = {"host": "elsewhere", "pid": 1, "begun": runs.now(), "beat": runs.now()}
    assert runs.state_of(run) == "running"
    long_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    assert runs.state_of(run | {"beat": long_ago.isoformat()}) == "died"
    assert runs.state_of(None) == "never"


def test_signs_of_life_and_progress_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "BEAT", 0.01)
    place, seen = str(tmp_path / "models"), []
    with runs.RunNote(place, seen.append) as note:
        streampca.PCA(1, progress=note).fit(np.eye(6, 3))
        first = runs.last_run(place)["run"]["beat"]
        end = time.monotonic() + 20
        while runs.last_run(place)["run"]["beat"] == first and time.monotonic() < end:
            time.sleep(0.01)
        assert runs.last_run(place)["run"]["beat"] > first
        assert "pass 1/1" in runs.last_run(place)["run"]["progress"]
    assert seen[-1].blocks_done == seen[-1].n_blocks


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"run": 3}', '{"run": {}, "success": {"time": 1}}']
)
def test_a_malformed_note_is_none(tmp_path: Path, text: str) -> None:
    job = Nightly(tmp_path)
    job.run()
    (Path(job.entries["store"] + runs.FOLDER) / runs.NAME).write_text(text)
    assert told(job).run["state"] == "never"
    assert told(job).level == "fresh"
    job.run()
    assert told(job).run["status"] == "unchanged"


def test_a_note_that_cannot_be_written_fails_no_run(tmp_path: Path) -> None:
    job = Nightly(tmp_path)
    Path(job.entries["store"] + runs.FOLDER).write_text("in the way")
    assert job.run().status == "published"
    assert told(job).level == "fresh"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Nightly(tmp_path, freshness=WINDOWS)
    folder = tmp_path / "jobs"
    folder.mkdir()
    path = folder / "nightly.yaml"
    path.write_text(yaml.safe_dump(job.entries))
    (folder / "fit.yaml").write_text("n_components: 3\n")  # options of fit, no job
    assert main(["status", str(path)]) == 2
    assert main(["refresh", str(path), "-q"]) == 0
    capsys.readouterr()
    assert main(["status", "--all", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["level"], found["exit"], found["served"]["samples"]) == ("fresh", 0, 100)
    assert main(["status", str(path), "--oneline"]) == 0
    assert capsys.readouterr().out.startswith(f"FRESH - {path}: version 1")
    aged(job, 30, "success.time")
    assert main(["status", str(path)]) == 1
    assert "the last success was 30 h ago, and 26h are allowed" in capsys.readouterr().out
    assert main(["status"]) == 65


@pytest.mark.parametrize("value", ["soon", "-1h", 0, "1w", ""])
def test_windows_are_times(tmp_path: Path, value: Any) -> None:
    entries = Nightly(tmp_path).entries | {"freshness": {"warn_after": value}}
    with pytest.raises(ConfigError, match=r"freshness\.warn_after"):
        check_job(entries, "job")


def test_a_warning_comes_before_an_error(tmp_path: Path) -> None:
    entries = Nightly(tmp_path).entries
    with pytest.raises(ConfigError, match="more than error_after"):
        check_job(entries | {"freshness": {"warn_after": "3d", "error_after": "2d"}}, "job")


class Told:
    """A job to which things happen, and what status must say of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.job, self.rng = Nightly(folder, freshness=WINDOWS), np.random.default_rng(seed)
        self.place, self.store = Path(self.job.place), Path(self.job.entries["store"])
        self.written = self.there = 100  # rows that are written to their end, and rows
        self.versions: list[int] = []  # samples of each version
        self.stack: list[int] = []  # promoted versions
        self.age, self.state = 0.0, "never"  # hours since the last success; of the last run
        self.away: dict[Path, bytes | None] = {}  # files of the source that are gone or cut
        self.lost: dict[Path, bytes] = {}  # files of the served version
        self.log: dict[Path, bytes] = {}  # torn files of the log

    # -- the writer

    def append(self) -> None:
        if not self.away:
            self.finish()
            streampca.append(self.job.place, data(7, self.there))
            self.written = self.there = self.there + 7

    def partial_append(self) -> None:
        """The writer dies after four rows of ten."""
        if not self.away:
            self.finish()
            array = zarr.open_array(self.job.place)
            array.resize((self.there + 10, 8))
            array[self.there : self.there + 4] = data(4, self.there)
            self.written, self.there = self.there + 4, self.there + 10

    def finish(self) -> None:
        """The writer comes back."""
        if not self.away and self.written < self.there:
            rows = slice(self.written, self.there)
            zarr.open_array(self.job.place)[rows] = data(rows.stop - rows.start, rows.start)
            self.written = self.there

    def hide(self) -> None:
        away = self.place.with_name("away")
        if self.place.is_dir() and not self.away:
            self.place.rename(away)
            self.away = {away: None}
        elif away in self.away:
            away.rename(self.place)
            self.away = {}

    def corrupt_source(self) -> None:
        """A chunk of old rows is cut; or it comes back from the backup."""
        if not self.away and self.versions:
            chunk = self.place / "c" / "0" / "1"
            self.away = {chunk: chunk.read_bytes()}
            chunk.write_bytes(self.away[chunk][:100])
        elif (content := next(iter(self.away.values()), None)) is not None:
            next(iter(self.away)).write_bytes(content)
            self.away = {}

    # -- the job

    def run(self) -> None:
        if self.away or self.lost:
            with pytest.raises(SourceError):
                self.job.run()
            self.state = "failed"
            return
        found = self.job.run()
        self.state, self.age = "ended", 0.0
        if found.status == "published":
            self.versions.append(self.written)
            self.stack.append(len(self.versions))
            self.log = {}  # the entry is a checkpoint: what was torn does not matter any more

    def die(self) -> None:
        """As a run that is killed: it notes no end."""
        runs.RunNote(self.job.entries["store"]).__enter__()._ended.set()
        self.note("run", pid=2**22 + 5)  # more than there are
        self.state = "died"

    def fill_disk(self) -> None:
        """The disk is full from some flush on, and the process ends."""
        if self.away or self.lost:
            return
        left, flush, before = iter(range(int(self.rng.integers(12)))), os.fsync, self.noted()
        count = len(self.job.store.versions()) if self.job.store.exists() else 0

        def full(handle: int) -> None:
            if next(left, None) is None:
                raise OSError(28, "No space left on device")
            flush(handle)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with contextlib.suppress(OSError):
                self.job.run()
        after = self.noted()
        if after.get("run", {}).get("id") != before.get("run", {}).get("id"):
            ended = "ended" in after["run"]
            failed = after["run"].get("status") == "failed"
            self.state = ("failed" if failed else "ended") if ended else "died"
            if not ended:
                self.note("run", pid=2**22 + 5)
        if after.get("success") != before.get("success"):
            self.age = 0.0
        if self.job.store.exists() and len(self.job.store.versions()) > count:
            self.versions.append(self.written)
            self.stack.append(len(self.versions))
            self.log = {}

    def lock(self) -> None:
        """The file of a lock was left by another host; or a process holds the lock."""
        with only_one(self.job.entries["store"]):
            if self.rng.random() < 0.5:
                with pytest.raises(BusyError):
                    self.job.run()

    # -- the operator, and time

    def rollback(self) -> None:
        if len(self.stack) > 1:
            self.job.store.rollback()
            self.stack.pop()
            self.lost, self.log = self.restored(self.lost), {}

    def promote(self) -> None:
        if self.versions and not self.lost:
            number = int(self.rng.integers(1, len(self.versions) + 1))
            if number != self.stack[-1]:
                self.log = {}
            self.job.store.promote(number)
            self.stack = [*(one for one in self.stack if one != number), number]

    def corrupt_version(self) -> None:
        """A file of the served version is lost or cut; or it comes back from the backup."""
        if self.lost or not self.stack:
            self.lost = self.restored(self.lost)
            return
        folder = self.store / "versions" / self.job.store.latest().id
        file = folder / str(self.rng.choice(["manifest.json", "files.zip"]))
        self.lost = {file: file.read_bytes()}
        file.write_bytes(self.lost[file][:50]) if self.rng.random() < 0.5 else file.unlink()

    def tear_log(self) -> None:
        if self.versions and not self.log:
            file = self.store / "_head.json"
            self.log = {file: file.read_bytes()}
            file.write_bytes(b"{")

    def restored(self, files: dict[Path, bytes]) -> dict[Path, bytes]:
        for file, content in files.items():
            file.write_bytes(content)
        return {}

    def wait(self, *hours: int) -> None:
        if "success" in self.noted():
            self.age += (past := float(self.rng.choice(hours or (3, 20, 40))))
            then = datetime.datetime.fromisoformat(self.noted()["success"]["time"])
            self.note("success", time=(then - datetime.timedelta(hours=past)).isoformat())

    def clock_jump(self) -> None:
        self.wait(-90, 90)

    def noted(self) -> Any:
        path = Path(self.job.entries["store"] + runs.FOLDER) / runs.NAME
        return json.loads(path.read_text()) if path.exists() else {}

    def note(self, section: str, **fields: Any) -> None:
        noted = self.noted()
        noted[section] |= fields
        (Path(self.job.entries["store"] + runs.FOLDER) / runs.NAME).write_text(json.dumps(noted))

    # -- the truth

    def check(self) -> None:
        found = told(self.job)
        assert found.run["state"] == {"failed": "ended"}.get(self.state, self.state)
        served = self.stack[-1] if self.stack else None
        assert (found.served or {}).get("version") == (None if self.lost else served)
        age = self.age + 1e-3  # this took its time
        expected = {"error"} if served is None or self.lost or age > 50 else set()
        late = 26 < age <= 50 or age < 0
        expected |= {"warn"} if self.state in ("failed", "died") or late or self.log else set()
        cut = self.away and self.place.is_dir()  # its length says that it changed, and no more
        expected |= {"unknown"} if (self.away and not cut) or self.lost else set()
        assert levels(found) == expected, found
        if self.away or self.lost:
            assert not cut or self.lost or found.source["change"] == "changed"
            return
        assert found.source["samples"] == self.there
        assert found.source["behind"] == self.there - self.written
        # a version that was rolled back holds these rows already
        new = self.versions and self.written not in self.versions[self.stack[-1] - 1 :]
        rows = self.written - (self.versions[served - 1] if served else 0)
        assert found.source["waiting"] == (rows if new or not self.versions else 0)


def history(folder: Path, seed: int, events: int) -> None:
    one = Told(folder, seed)
    writer = (one.append, one.append, one.partial_append, one.finish, one.hide, one.corrupt_source)
    job = (one.run, one.run, one.run, one.run, one.die, one.fill_disk, one.lock)
    rest = (one.rollback, one.promote, one.corrupt_version, one.tear_log, one.wait, one.clock_jump)
    happenings, done = (*writer, *job, *rest), []
    for _ in range(events):
        event = happenings[one.rng.integers(len(happenings))]
        done.append(event.__name__)
        event()
        try:
            one.check()
        except (AssertionError, SourceError) as error:
            raise AssertionError(f"seed {seed}: {done}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_status_is_true_in_a_random_history(tmp_path: Path, seed: int) -> None:
    history(tmp_path, seed, 12)


@pytest.mark.soak
def test_status_is_true_in_a_thousand_random_histories(tmp_path: Path) -> None:
    for seed in range(1000):
        (folder := tmp_path / str(seed)).mkdir()
        history(folder, seed, 12)
        shutil.rmtree(folder)
