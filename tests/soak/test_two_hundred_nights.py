"""A day in the life of a job, two hundred times: whatever a night brings, the morning is true.

Every evening somebody writes, or dies at it. Every night a job refreshes on one of two hosts, and
is killed, meets a full disk, a wrong clock, a lock that somebody holds, or the other host. Every
morning ``status`` must say what is true, an operator repairs what it names and runs the job again,
and what is served must equal NumPy on the rows that are completely written. In the day versions are
rolled back, promoted, named, collected and damaged.

``python -m pytest tests/soak -m soak -n 0``; ``SOAK_SEED`` and ``SOAK_NIGHTS`` choose others, and
``python tests/soak/test_two_hundred_nights.py SEED NIGHTS`` prints what it did.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import yaml
import zarr

import streampca

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from nights_job import Processes, answered, brief
from nights_record import Expected
from test_soak_of_nights import Nights, Wrong

SEED = int(os.environ.get("SOAK_SEED", "1"))
NIGHTS = int(os.environ.get("SOAK_NIGHTS", "200"))
LIFE = 50  # nights of one source
MOST_ROWS = 480
LAYOUTS = ("plain-v3", "group-v3", "sharded", "group-v2", "blosc-v2")
HOSTS = ("night-1", "night-2")
DAY, MORNING = 86400.0, 8 * 3600.0
WINDOWS = {"warn_after": "26h", "error_after": "50h"}
WRITERS = {
    "grow": 5,
    "append": 6,
    "append_and_die": 3,
    "grow_and_die": 3,
    "to_region": 1,
    "fill_gaps": 4,
    "rewrite": 2,
    "resize_alone": 1,
    "commit_rows": 2,
    "shrink_and_grow": 0.5,
    "lose_chunk": 0.7,
    "cut_chunk": 0.7,
    "nobody": 3,
}
JOBS = {
    "refresh": 10,
    "killed": 4,
    "died": 2,
    "disk_full": 3,
    "busy": 1,
    "wrong_clock": 2,
    "both_hosts": 2,
    "full_check": 1,
    "no_job": 1.5,
}
DEEDS = {
    "nothing": 10,
    "roll_back": 2,
    "promote_one": 1.5,
    "name_one": 3,
    "collect": 2,
    "damage_version": 1.5,
    "damage_log": 1.5,
}


class Life(Nights):
    """One job.  night : its number.  names : of versions.  success : when a run last succeeded."""

    def __init__(self, folder: Path, seed: int, processes: Processes) -> None:
        self.night, self.hour, self.jump = 0, 0.0, 0.0
        super().__init__(folder, LAYOUTS[seed % len(LAYOUTS)], (seed,), processes)
        self.names: dict[str, int] = {}
        self.success: datetime.datetime | None = None
        self.ended = "never"  # how the last run did, in the words of status
        self.log_damaged = self.kept_open = False

    def write_job(self) -> None:
        self.settle = 0.0
        super().write_job()
        path = self.folder / "job.yaml"
        entries = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(entries | {"freshness": WINDOWS, "keep": 4}))

    # ---- time and processes --------------------------------------------------------------------
    @property
    def ahead(self) -> float:
        return self.night * DAY + self.hour + self.jump

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(time.time() + self.ahead, datetime.UTC)

    def run(self, *options: str, **request: Any) -> list[tuple[int, str]]:
        self.write_job()
        host = str(self.rng.choice(HOSTS))
        job = str(self.folder / "job.yaml")
        known = {"job": job, "options": list(options), "clock": self.ahead, "host": host}
        return self.processes(**{**known, **request})

    def command(self, *words: str) -> tuple[int, str]:
        ((code, text),) = self.run(command=list(words))
        return code, text

    def models(self, name: str, *words: str) -> dict[str, Any]:
        code, text = self.command("models", name, str(self.store), *words, "--json")
        self.say(f"models {name} {' '.join(words)}: {code} {text.strip()[-200:]}")
        if code:
            raise self.wrong(f"models {name} {words} ended with {code}: {text}")
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        return found

    # ---- evening -------------------------------------------------------------------------------
    def nobody(self) -> None:
        self.say("nobody writes")

    def evening(self) -> None:
        name = self.draw(WRITERS)
        if name == "nobody":
            return self.nobody()
        if self.source.record.rows > MOST_ROWS:
            name = "shrink"
        elif not self.source.record.rows:
            name = "anew"
        self.counts["evening " + name] += 1
        try:
            said = getattr(self.source, name)()
        except Exception as error:
            raise self.wrong(f"the writer {name}: {error!r}") from error
        self.source.record.quiet = True
        self.say(f"{name}: {said}")

    def draw(self, table: dict[str, float]) -> str:
        weights = np.array([*table.values()])
        return str(self.rng.choice([*table], p=weights / weights.sum()))

    # ---- night ---------------------------------------------------------------------------------
    def judge(self, expected: Expected, before: int, code: int, text: str) -> None:
        super().judge(expected, before, code, text)
        said = answered(text)
        if code in (0, 79):
            self.ended, self.success = str(said["status"]), self.now()
            self.last = said
        elif said.get("status") == "refused":
            self.ended = "refused"
        elif "another job holds" not in text:
            self.ended = "failed"

    def full_check(self) -> None:
        self.refresh("--verify", "full")

    def no_job(self) -> None:
        self.say("the job does not run")

    def killed(self) -> None:
        how = int(self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        self.interrupted({-9, -15, 143}, kill=how, after=float(self.rng.random() * 0.4))

    def died(self) -> None:
        self.interrupted({-9}, die_at=int(self.rng.integers(60)))

    def disk_full(self) -> None:
        how = {"full_at": int(self.rng.integers(40))}
        if self.rng.random() < 0.3:
            how = {"file_limit": int(self.rng.integers(8_000, 30_000))}
        self.interrupted({73, 74}, **how)

    def interrupted(self, codes: set[int], **request: Any) -> None:
        """A refresh that may end so, or as ever."""
        expected, before = self.expected(), self.served
        noted = self.noted_run()
        ((code, text),) = self.run(**request)
        self.say(f"{request}: {code} {brief(text)}")
        self.counts[f"interrupted {code}"] += 1
        if code not in codes:
            self.judge(expected, before, code, text)
            if "ended" not in self.noted_run():  # its disk had no room for that
                self.ended = "failed or died"
            return
        if "Traceback" in text:
            raise self.wrong(f"exit {code}: {text}")
        self.look(expected, before)
        if self.known and self.served not in self.known:
            raise self.wrong("no version is served")
        if self.noted_run().get("id") != noted.get("id"):
            self.ended = "failed or died"

    def noted_run(self) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return json.loads(Path(f"{self.store}.runs", "last.json").read_text())["run"]
        return {}

    def busy(self) -> None:
        """Another process holds the lock; the file alone, which others left, says nothing."""
        lock = Path(f"{self.store}.lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            assert filelock.lock_descriptor(handle, blocking=False)
            ((code, text),) = self.run()
        finally:
            os.close(handle)
        self.say(f"busy: {code} {brief(text)}")
        if code != 75 or "another job holds" not in text:
            raise self.wrong(f"exit {code} while another holds the lock: {text}")

    def wrong_clock(self) -> None:
        self.jump = float(self.rng.choice([-7200, 7200, -5 * DAY, 300 * DAY]))
        try:
            self.refresh()
        finally:
            self.jump = 0.0

    def both_hosts(self) -> None:
        expected, before = self.expected(), self.served
        answers = self.run(processes=2)
        for code, text in answers:
            self.say(f"race: {code} {brief(text)}")
        if sum('"status": "published"' in text for _, text in answers) > 1:
            raise self.wrong("two processes published the same data")
        for code, text in sorted(answers, key=lambda one: one[0] == 75, reverse=True):
            if code != 75:
                self.judge(expected, before, code, text)

    # ---- morning -------------------------------------------------------------------------------
    def morning(self) -> None:
        """What status says is true; after the repair that it names, so is what is served."""
        found = self.asked()
        self.check_status(found)
        if found["served"] is None and self.known:
            self.repair()
        if self.log_damaged:
            self.command("models", "verify", str(self.store), "--mend")
            self.log_damaged = False
        planned = self.asked()["source"]
        expected, before = self.expected(), self.served
        ((code, text),) = self.run()
        self.say(f"morning: {code} {brief(text)}")
        self.judge(expected, before, code, text)
        self.check_plan(planned, code, answered(text))
        if self.known:
            self.check_store()
        self.check_status(self.asked())

    def asked(self) -> dict[str, Any]:
        code, text = self.command("status", str(self.folder / "job.yaml"), "--json")
        if "{" not in text or "Traceback" in text:
            raise self.wrong(f"status ended with {code}: {text}")
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        if found["exit"] != code:
            raise self.wrong(f"status ended with {code} and says {found['exit']}")
        self.said = text.strip()
        return found

    def check_status(self, found: dict[str, Any]) -> None:
        expected, rows = self.expected(), self.source.record.rows
        problems = [*self.about_store(found), *self.about_run(found)]
        source, broken = found["source"], bool(expected.must_fail or expected.may_fail)
        if "error" not in source:
            taken = source["samples"] - source["behind"]
            if source["samples"] != rows:
                problems.append(f"{source['samples']} rows, there are {rows}")
            if not (broken or expected.least <= taken <= expected.most):
                problems.append(f"{taken} rows count, expected {expected}")
            if source["behind"] and not source["note"]:
                problems.append("rows are behind without a note")
        elif not broken and found["served"] is not None:
            problems.append(f"the source cannot be told, expected {expected}")
        problems += self.about_levels(found, broken)
        if problems:
            raise self.wrong(f"status: {problems}: {self.said}")

    def about_store(self, found: dict[str, Any]) -> list[str]:
        served = found["served"]
        if not self.known:
            return [] if served is None else ["a version is served, and none was published"]
        if served is None:
            return [] if self.hurt else ["no version is served"]
        problems = ["the served version is damaged, and nothing is said"] if self.hurt else []
        if served["version"] != self.served:
            problems.append(f"version {served['version']} is served, {self.served} should be")
        if served["samples"] != len(self.known[self.served]):
            problems.append(f"of {served['samples']} samples")
        return problems

    def about_run(self, found: dict[str, Any]) -> list[str]:
        run = found["run"]
        state = {"ended": run.get("status")}.get(run["state"], run["state"])
        states = {"failed or died": {"failed", "died"}}.get(self.ended, {self.ended})
        return [] if state in states else [f"the run {state}, expected {states}"]

    def about_levels(self, found: dict[str, Any], broken: bool) -> list[str]:
        """The levels of the reasons, as far as they follow from what happened."""
        levels = {level for level, _ in found["reasons"]}
        age = None if self.success is None else (self.now() - self.success).total_seconds()
        problems = []
        late = (
            None if age is None else "error" if age > 50 * 3600 else "warn" if age > 93600 else ""
        )
        if late and late not in levels:
            problems.append(f"the last success is {age / 3600:.1f} h old, and nothing is said")
        if (found["served"] is None or not self.known) and "error" not in levels:
            problems.append("nothing is served, and nothing is said")
        if (run := self.ended) in ("failed", "died", "failed or died", "refused"):
            if not levels & {"warn"}:
                problems.append(f"the last run {run}, and nothing is said")
        elif not (broken or late or self.hurt or self.log_damaged) and self.known:
            behind = [text for _, text in found["reasons"] if "samples are not taken" in text]
            future = [text for _, text in found["reasons"] if "in the future" in text]
            if len(found["reasons"]) != len(behind) + len(future) or (future and age >= 0):
                problems.append("an alarm for nothing")
        return problems

    def check_plan(self, planned: dict[str, Any], code: int, said: dict[str, Any]) -> None:
        """What status said the next run would find is what it found."""
        if code not in (0, 79) or "error" in planned:
            return
        taken = planned["samples"] - planned["behind"]
        if (taken, planned["behind"]) != (said["samples"], said["behind"]):
            raise self.wrong(f"status said {planned}, the run {said}")
        if planned["change"] != said["change"]:
            raise self.wrong(f"status said {planned}, the run {said}")

    def check_store(self) -> None:
        """The log is whole, names are as they were given, and somebody did all of it."""
        store = streampca.ModelStore(str(self.store))
        bad = {str(one) for one in store.verify()} - {str(n) for n in self.bad}
        if bad:
            raise self.wrong(f"the store is damaged: {store.verify()}")
        names = {name: one.number for name, one in store.aliases().items()}
        if names != self.names:
            raise self.wrong(f"aliases {names}, expected {self.names}")
        for name, number in names.items():
            if number not in self.bad:
                model = streampca.load(self.store, version=name)
                if problem := self.compare(model, self.known[number]):
                    raise self.wrong(f"{name}, version {number}: {problem}")
        if not all(one.by.partition("@")[2] in HOSTS for one in store.entries()):
            raise self.wrong("an entry of the log has no author")

    # ---- day -----------------------------------------------------------------------------------
    hurt = False  # the served version: files are gone, or bytes were altered

    @property
    def bad(self) -> set[int]:
        """Damaged versions that are there."""
        return self._bad & {one.number for one in streampca.ModelStore(str(self.store)).versions()}

    _bad: set[int]

    def nothing(self) -> None:
        pass

    def roll_back(self) -> None:
        """The operator takes back what was published."""
        code, text = self.command("models", "rollback", str(self.store), "--json")
        self.say(f"rollback: {code} {text.strip()[-200:]}")
        if code == 66 and "no earlier version" in text:
            return
        if code:
            raise self.wrong(f"rollback ended with {code}: {text}")
        self.now_serves(json.loads(text[text.index("{") :])["promoted"])

    def now_serves(self, number: int) -> None:
        self.served, self.rolled_back, self.hurt = number, True, False
        if number in self._bad:
            raise self.wrong(f"version {number} is served now, and it is damaged")

    def promote_one(self) -> None:
        there = [one.number for one in streampca.ModelStore(str(self.store)).versions()]
        whole = [number for number in there if number not in self._bad | self.strange]
        if whole:
            number = int(self.rng.choice(whole))
            self.now_serves(self.models("promote", str(number), "--reason", "tried")["promoted"])

    def name_one(self) -> None:
        name = str(self.rng.choice(["champion", "challenger"]))
        if name in self.names and self.rng.random() < 0.3:
            self.models("alias", name, "--remove")
            del self.names[name]
            return
        there = [one.number for one in streampca.ModelStore(str(self.store)).versions()]
        number = int(self.rng.choice(there))
        self.models("alias", name, str(number), "--reason", "compared")
        self.names[name] = number

    def collect(self) -> None:
        """By hand, while somebody reads the oldest version; what goes was said before."""
        store = streampca.ModelStore(str(self.store))
        words = ["--keep", str(self.rng.integers(1, 4)), "--grace", "0"]
        earlier = {one.number for one in store.versions()}
        would = self.models("gc", *words, "--dry-run")
        gone = self.models("gc", *words)
        if would["removed"] != gone["removed"] or would["bytes"] != gone["bytes"]:
            raise self.wrong(f"gc said {would} and did {gone}")
        left = {one.number for one in store.versions()}
        lost = {self.served, *self.names.values()} - left
        if lost or earlier - left != {one["version"] for one in gone["versions"]} - {None}:
            raise self.wrong(f"gc removed {gone}; versions {lost} should be there")

    def damage_version(self) -> None:
        """The served version, or another one: bytes are altered, or a file is cut or lost."""
        there = streampca.ModelStore(str(self.store)).versions()
        good = [one for one in there if one.number not in self._bad]
        if len(good) < 3:
            return
        version = good[int(self.rng.integers(len(good)))]
        if self.rng.random() < 0.5:
            version = next(one for one in there if one.number == self.served)
        folder = self.store / "versions" / version.id
        file = folder / str(self.rng.choice(["files.zip", "manifest.json"]))
        data, how = file.read_bytes(), str(self.rng.choice(["bytes", "cut", "lost"]))
        if how == "lost":
            file.unlink()
        elif how == "cut":
            file.write_bytes(data[: len(data) // 2])
        else:
            at = len(data) // 2
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        self.say(f"damage: {how} of {file.name} of version {version.number}")
        self._bad = self._bad | {version.number}
        self.hurt = version.number == self.served

    def damage_log(self) -> None:
        names = sorted((self.store / "_log").iterdir())
        file = self.store / "_head.json" if self.rng.random() < 0.4 else names[-1]
        if len(names) < 2:
            return
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2])
        self.say(f"torn: {file.name}")
        self.log_damaged = True

    def repair(self) -> None:
        """The served version cannot be read: as status says, verify, and go back."""
        code, text = self.command("models", "verify", str(self.store), "--json")
        if code != 65 or not (self.hurt and json.loads(text[text.index("{") :])["damaged"]):
            raise self.wrong(f"verify ended with {code}: {text}; expected {self.hurt}")
        self.roll_back()
        if self.hurt:  # there is no earlier one
            there = [one.number for one in streampca.ModelStore(str(self.store)).versions()]
            self.now_serves(max({*there} - self._bad - self.strange))
            self.models("promote", str(self.served), "--reason", "the served one is damaged")

    # ---- all of it -------------------------------------------------------------------------------
    def live(self, nights: int) -> None:
        self._bad = set()
        for self.night in range(nights):
            self.hour = 0.0
            self.say(f"-- night {self.night}")
            self.evening()
            job = self.draw(JOBS) if self.night else "refresh"
            self.counts["night " + job] += 1
            if self.hurt:
                job = "no_job"  # the operator comes first
            getattr(self, job)()
            self.hour = MORNING
            self.morning()
            if self.known:
                deed = self.draw(DEEDS)
                self.counts["day " + deed] += 1
                getattr(self, deed)()
            self.counts["mornings"] += 1


def lived(seed: int, nights: int, loud: bool = False) -> Any:
    """What was counted, and what went wrong. After ``LIFE`` nights, or that, all begins anew."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    left, part = nights, 0
    with Processes() as processes:
        while left > 0 and len(wrong) < 10:
            with tempfile.TemporaryDirectory() as folder, zarr.config.set({"async.concurrency": 1}):
                life = Life(Path(folder), 1000 * seed + part, processes)
                try:
                    life.live(min(left, LIFE))
                except Wrong as error:
                    wrong.append(f"seed {seed}, part {part}: {error}")
                    if loud:
                        print(wrong[-1], flush=True)
            counts += life.counts
            left, part = nights - counts["mornings"] - len(wrong), part + 1
            if loud:
                print(f"{counts['mornings']} mornings, {len(wrong)} wrong", flush=True)
    return counts, wrong


@pytest.mark.filterwarnings("ignore")  # of writers, who are others
@pytest.mark.parametrize(
    "nights",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(NIGHTS, marks=pytest.mark.soak)],
)
def test_every_morning_is_true(nights: int, capsys: pytest.CaptureFixture[str]) -> None:
    counts, wrong = lived(SEED, nights)
    with capsys.disabled():
        print("seed", SEED, dict(counts))
    assert wrong == []
    assert counts["mornings"] >= nights


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    began = time.time()
    counted, problems = lived(int(sys.argv[1]), int(sys.argv[2]), True)
    print(dict(counted), len(problems), "wrong", f"{time.time() - began:.0f} s")
