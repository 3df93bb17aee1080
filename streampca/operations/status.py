"""What a job serves and whether anyone should look, asked of the world when it is asked.

Nothing here depends on the job having ended, or run at all: a job that never ended is seen by its
last sign of life, and one that does not run any more by the age of its last success.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streampca.errors import StreamPCAError, hide_secrets
from streampca.matrix.labels import json_of
from streampca.model_store.model_store import ModelStore
from streampca.operations import runs
from streampca.operations.config import Job
from streampca.operations.observers import check_places, write_metrics
from streampca.operations.outcome import REFUSED, UNCHANGED, seconds_since
from streampca.operations.refresh import foreseen
from streampca.operations.sections import seconds_of
from streampca.operations.work_folder import check_store, holder_of

FRESH, WARN, ERROR, UNKNOWN = "fresh", "warn", "error", "unknown"
EXIT = {FRESH: 0, WARN: 1, ERROR: 2, UNKNOWN: 3}  # as plugins of Nagios
TO_NOTE = 0.5  # seconds between taking the lock of a job and the note of the run, at most
WORST = (ERROR, UNKNOWN, WARN, FRESH)
STRETCHES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))


@dataclass
class Status:
    """What is true of a job now.

    level : "fresh", "warn", "error" or "unknown", the worst of ``reasons``: pairs (level, text).
    served : number, id, published, age (seconds) and samples of the served version; or None.
    source : samples there, of which ``waiting`` are for the next run and ``behind`` cannot be
        vouched for; or ``error``.
    run : what was noted of the last run, and its ``state``: "never", "running", "silent" (its
        process is there and gives no sign of life), "died" or "ended".
    success, failure : the last ones; None if none was noted.
    holder : the process that holds the lock of the job and has noted no run, where Linux knows it.
    next : what to do, a line that can be typed; "" for nothing.
    free_bytes : left on the disk of the store; None for an object store.
    """

    job: str
    store: str
    served: dict[str, Any] | None = None
    source: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    success: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    reasons: list[tuple[str, str]] = field(default_factory=list)
    holder: int | None = None
    next: str = ""
    free_bytes: int | None = None

    @property
    def level(self) -> str:
        """The worst level of the reasons."""
        found = {level for level, _ in self.reasons} | {FRESH}
        return next(level for level in WORST if level in found)

    @property
    def exit_code(self) -> int:
        """0 fresh, 1 warn, 2 error, 3 unknown."""
        return EXIT[self.level]

    def to_json(self) -> str:
        """One line of JSON."""
        return json_of({"level": self.level, **vars(self), "exit": self.exit_code})

    def add(self, level: str, text: str) -> None:
        """Add a reason."""
        self.reasons.append((level, hide_secrets(text)))


def status(job: Job, path: str = "") -> Status:
    """The status of a job.  path : of its file, for messages.

    Cost: the log and the small files of one version of the store, and what a dry run of a refresh
    reads of the source: its chunks are listed, those whose length or time differ are read, and of
    new rows the last row of chunks.
    """
    found = _noted(Status(path, job.store), runs.last_run(job.store))
    found.holder = _stranger(job.store, found.run)
    if found.holder is not None:
        time.sleep(TO_NOTE)  # perhaps a run that begins or ends just now
        found = _noted(found, runs.last_run(job.store))
        found.holder = _stranger(job.store, found.run)
    _look_at_store(job, found)
    _look_at_run(found, WARN)
    _look_at_source(job, found)
    _look_at_places(job, found)
    _look_at_ages(job, found)
    found.next = found.next or _next(found)
    if "://" not in job.store:
        found.free_bytes = shutil.disk_usage(_there(job.store)).free
    return found


def write_status(job: Job, found: Status) -> None:
    """Write the metrics of a job with what is true now, whether it runs or not.

    Raises OutputError if they cannot be written there.
    """
    check_places(job)
    now_true = {
        "status": found.exit_code,
        "served_version": found.served and found.served["version"],
        "waiting_rows": found.source.get("waiting"),
        "behind_rows": found.source.get("behind"),
    }
    known = {name: value for name, value in now_true.items() if value is not None}
    write_metrics(job, known)


def status_of_run(note: Mapping[str, Any], path: str) -> Status:
    """The status of a command by its note, which lies at ``path``: what failed is an error."""
    found = _noted(Status(path, ""), note)
    _look_at_run(found, ERROR)
    return found


def _noted(found: Status, note: Mapping[str, Any]) -> Status:
    """A status with what a run has noted."""
    found.success, found.failure = note.get("success"), note.get("failure")
    found.run = {"state": runs.state_of(note.get("run")), **note.get("run", {})}
    return found


def _look_at_store(job: Job, found: Status) -> None:
    """Which version is served, and whether its files are there."""
    try:
        store = ModelStore(job.store)
        if not store.exists():
            found.add(ERROR, "no version was ever published")
            return
        history = store.history()
        if history.damage or history.unsure:
            found.next = f"streampca models verify {shlex.quote(job.store)} --mend"
            found.add(WARN, f"the log is damaged: {found.next}")
        version = store.find(history=history)
        version.check_files()
        found.served = {
            "version": version.number,
            "id": version.id,
            "published": version.entry.time,
            "age": seconds_since(version.entry.time),
            "samples": version.record.get("samples"),
        }
    except (StreamPCAError, OSError) as error:
        found.add(ERROR, f"the served version cannot be read: {error}")
        found.next = f"streampca models verify {shlex.quote(job.store)}"


def _look_at_run(found: Status, level: str) -> None:
    """How the last run ended, or whether it goes on.  level : of a failure."""
    run, state = found.run, found.run["state"]
    place = f"process {run.get('pid')} on {run.get('host')}, begun {run.get('begun')}"
    if state == runs.DIED:
        found.add(level, f"the last run died: {place}")
    elif state == runs.SILENT:
        found.add(WARN, f"the run gives no sign of life since {run.get('beat')}: {place}")
    elif state == runs.ENDED and run.get("status") == runs.FAILED:
        found.add(level, f"the last run failed: {run.get('why')}")
    elif state == runs.ENDED and run.get("status") == REFUSED:
        found.add(WARN, f"the gate refused the last version: {run.get('why')}")
    if found.holder is not None:
        found.add(
            WARN,
            f"process {found.holder} holds {found.store}.lock and has noted no run; until it ends, "
            "a refresh ends with 75",
        )


def _next(found: Status) -> str:
    """What helps: a refresh, unless one goes on or would fail; or a look at what was refused."""
    run, state = found.run, found.run["state"]
    if state == runs.ENDED and run.get("status") == REFUSED:
        return f"streampca models list {shlex.quote(found.store)}"
    goes_on = state in (runs.RUNNING, runs.SILENT) or found.holder is not None
    would_fail = UNKNOWN in {level for level, _ in found.reasons}
    if goes_on or would_fail or not (found.job and found.reasons):
        return ""
    return f"streampca refresh {shlex.quote(found.job)}"


def _stranger(place: str, run: Mapping[str, Any]) -> int | None:
    """The process that holds the lock of a job, if it is not that of the noted run."""
    holder = None if "://" in place else holder_of(place)
    goes_on = run["state"] in (runs.RUNNING, runs.SILENT)
    return None if goes_on and run.get("pid") == holder else holder


def _look_at_source(job: Job, found: Status) -> None:
    """What the next run would find."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            there = foreseen(replace(job, keep=None))
    except (StreamPCAError, OSError) as error:
        found.source = {"error": hide_secrets(str(error))}
        found.add(UNKNOWN, f"a refresh would fail: {error}")
        return
    waiting = 0 if there.status == UNCHANGED else there.new_samples
    found.source = {
        "samples": there.samples + there.behind,
        "change": there.change,
        "waiting": waiting,
        "behind": there.behind,
        "behind_since": there.behind_since,
        "note": there.note,
    }


def _look_at_places(job: Job, found: Status) -> None:
    """Whether the job can write. Only the user whose store it is can tell."""
    with contextlib.suppress(OSError):
        if "://" not in job.store and os.stat(job.store).st_uid != _user():
            return
    try:
        check_places(job)
        check_store(job.store)
    except (StreamPCAError, OSError) as error:
        found.add(UNKNOWN, f"a refresh would fail: {error}")


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0  # as st_uid on Windows


def _look_at_ages(job: Job, found: Status) -> None:
    """Whether what is served, or what waits, is older than the job allows."""
    windows = [(ERROR, job.freshness.get("error_after")), (WARN, job.freshness.get("warn_after"))]
    last = (found.success or {}).get("time") or (found.served or {}).get("published", "")
    for since, what in ((last, "the last success was"), (found.source.get("behind_since"), "")):
        age = seconds_since(since or "")
        if age < 0:
            found.add(WARN, f"{since} lies in the future: a clock is wrong")
        for level, window in windows:
            if since and window is not None and age > seconds_of(window):
                ago = f"{stretch(age)} ago, and {window} are allowed"
                behind = f"{found.source.get('behind')} samples are not taken, the first seen {ago}"
                found.add(level, f"{what} {ago}" if what else f"{behind}: {found.source['note']}")
                break


def stretch(seconds: float) -> str:
    """A time in words: "5 min", "26 h", "3 d"."""
    for size, unit in STRETCHES:
        if seconds >= 2 * size:
            return f"{seconds / (size or 1):.0f} {unit}"
    return f"{seconds:.0f} s"


def _there(place: str) -> str:
    """The nearest folder of a path that exists."""
    folder = os.path.abspath(place)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder
