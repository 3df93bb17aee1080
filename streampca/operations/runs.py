"""What the last run of a job did: noted when it begins, every half minute, and when it ends.

The note lies in ``<store>.runs``: it is there before the store is, and outlives its versions. Other
commands note the same in their ``--progress-file``.
A run that dies notes no end: whoever reads the note finds that out from its process, or from the
age of its last sign of life.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from time import perf_counter
from types import TracebackType
from typing import Any

from streampca.errors import OutputError, StreamPCAError, error_kind, exit_code, hide_secrets
from streampca.matrix.labels import json_of
from streampca.model_store.history import now
from streampca.operations import metrics
from streampca.operations.outcome import REFUSED, Outcome, seconds_since
from streampca.passes import Advance, resolve
from streampca.paths import read_regular
from streampca.run_context import in_run
from streampca.store import STAGED, open_backend
from streampca.store.bundle import whole_file
from streampca.store.places import exists_already, occupied

FOLDER, NAME = ".runs", "last.json"
KEPT_OUT = "kept_out.json"  # of the last run that never began, as another one had the lock
BEAT = 30.0  # seconds between two signs of life
PATIENCE = 4 * BEAT  # seconds without one after which a run has ended, or does not answer
NEVER, RUNNING, SILENT, DIED, ENDED = "never", "running", "silent", "died", "ended"
FAILED = "failed"  # how a run ended that raised an error
DONE = "done"  # how one ended that was no refresh
MOST = 1 << 20  # bytes of a note


class RunNote:
    """A context in which a run is noted, and the callback of its progress.

    place : of the model store of a job; or file : of the note, with every other command.
    progress : of the caller, which is called as well.
    retries : times that the run began again.  outcome : None until it has one.
    Notes never fail a run: where they cannot be written, there are none. Only a ``file`` that
    cannot be written at the beginning raises OutputError.
    """

    def __init__(self, place: str = "", progress: Any = None, *, file: str = "") -> None:
        self.place, self.file, self.inner = place, file, resolve(progress)
        self.note: dict[str, Any] = {}
        self.outcome: Outcome | None = None
        self.retries, self._begun = 0, perf_counter()
        self._advance: Advance | None = None
        self._ended, self._writing = threading.Event(), threading.Lock()
        self._beats = threading.Thread(target=self._beat, daemon=True, name="streampca-beat")

    def __enter__(self) -> RunNote:
        with in_run() as run:
            named = {"id": run.id, "command": run.command, "host": run.host, "pid": run.pid}
        if not self.file:
            with contextlib.suppress(OSError):  # what a run left that was killed as it wrote
                shutil.rmtree(os.path.join(self.place.rstrip("/") + FOLDER, STAGED))
            self.note = last_run(self.place)
        elif occupied(self.file) and os.path.getsize(self.file) and not note_at(self.file):
            raise exists_already(self.file, "it does not hold the progress of a run")
        self.note["run"] = {**named, "begun": now(), "beat": now(), "progress": ""}
        try:
            self._put()
        except (OSError, StreamPCAError) as error:
            if self.file:
                raise OutputError(f"{self.file}: no note can be written there: {error}") from None
        self._beats.start()
        return self

    def __call__(self, advance: Advance) -> None:
        self._advance = advance
        if self.inner is not None:
            self.inner(advance)

    def __bool__(self) -> bool:
        """Whether progress is shown as well."""
        return self.inner is not None

    def __deepcopy__(self, memo: Any) -> RunNote:
        return self  # the copy of an estimator reports to the same run

    def showing(self, progress: Any) -> RunNote:
        """This callback, which calls another one too."""
        self.inner = resolve(progress)
        return self

    def done(self, outcome: Outcome) -> None:
        """Note how the run has ended."""
        self.outcome, outcome.retries = outcome, self.retries
        run = self.note["run"]
        run |= {"ended": now(), "status": outcome.status, "why": outcome.gate or outcome.why}
        if outcome.status == REFUSED:
            self._fail(outcome.exit_code, outcome.gate, REFUSED)
        else:
            self.note["success"] = {
                "time": run["ended"],
                "version": outcome.served,
                "samples": outcome.samples,
                "run": run["id"],
            }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._beats.ident is not None:
            self._beats.join()
        run = self.note["run"]
        if error is not None:
            stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
            why = "it was terminated" if stopped else hide_secrets(str(error)) or repr(error)
            run |= {"ended": now(), "status": FAILED, "why": why}
            self._fail(exit_code(error), why, error_kind(error))
        elif "ended" not in run:
            run |= {"ended": now(), "status": DONE}
            self.note["success"] = {"time": run["ended"], "run": run["id"]}
        if (end := self.outcome if error is None else error) is not None and not self.file:
            kept, seconds = self.note.get("metrics", {}), perf_counter() - self._begun
            self.note["metrics"] = metrics.after(kept, end, run["ended"], seconds, self.retries)
        if not self.file and self.note.get("failure", {}).get("run") != run["id"]:
            _add_later_failure(self.note, _read(self.place, KEPT_OUT))
        self._write()
        if not self.file:  # this run ended after all that it kept out
            with contextlib.suppress(OSError, StreamPCAError):
                open_backend(self.place.rstrip("/") + FOLDER).delete(KEPT_OUT)

    def _fail(self, code: int, why: str, kind: str) -> None:
        run = self.note["run"]
        self.note["failure"] = failure(run["ended"], why, code, kind, run["id"])

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            self.note["run"]["beat"] = now()
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError, StreamPCAError):
            self._put()

    def _put(self) -> None:
        with self._writing:
            if self._advance is not None:
                self.note["run"] |= {"progress": str(self._advance), "at": self._advance.fields()}
            data = json_of(self.note).encode()
            if not self.file:
                open_backend(self.place.rstrip("/") + FOLDER).put(NAME, data)
                return
            with whole_file(self.file) as file:
                file.write(data)


def last_run(place: str) -> dict[str, Any]:
    """What was noted: "run", "success", "failure" and "metrics", a dict each, if there were any.

    place : of the model store. A note that is malformed counts as none.
    That a run died, or never began, is a failure, too.
    """
    note, kept_out = _read(place, NAME), _read(place, KEPT_OUT)
    if state_of(run := note.get("run")) == DIED:
        assert run is not None
        time = run.get("beat") or run["begun"]
        died = failure(time, "the run died", None, DIED, run.get("id"))
        _add_later_failure(note, {"failure": died})
        note["metrics"] = metrics.after_death(note.get("metrics", {}), time)
    _add_later_failure(note, kept_out)
    if ended := kept_out.get("metrics"):
        kept, name = note.setdefault("metrics", {}), "last_end_timestamp_seconds"
        if kept.get(name, 0) <= ended.get(name, 0):
            kept |= ended
    return note


def note_kept_out(place: str, error: BaseException) -> None:
    """Note that a run never began. What the run that goes on has noted stays as it is."""
    time, why = now(), hide_secrets(str(error)) or repr(error)
    with in_run() as run:
        one = failure(time, why, exit_code(error), error_kind(error), run.id)
    note = {"failure": one, "metrics": metrics.ended(error, time)}
    with contextlib.suppress(OSError, StreamPCAError):
        open_backend(place.rstrip("/") + FOLDER).put(KEPT_OUT, json_of(note).encode())


def failure(time: str, why: str, code: int | None, kind: str, run: str | None) -> dict[str, Any]:
    """How a run failed, as it is noted.  code : its exit code; None if nobody knows."""
    return {"time": time, "why": why, "exit": code, "kind": kind, "run": run}


def _add_later_failure(note: dict[str, Any], other: dict[str, Any]) -> None:
    """Take the failure of another note, if it is not older."""
    mine, theirs = note.get("failure"), other.get("failure")
    if theirs and (not mine or seconds_since(theirs["time"]) <= seconds_since(mine["time"])):
        note["failure"] = theirs


def _read(place: str, name: str) -> dict[str, Any]:
    """A note of a job, {} if there is none."""
    try:
        return _checked(open_backend(place.rstrip("/") + FOLDER).get(name))
    except (OSError, StreamPCAError):
        return {}


def note_at(path: str) -> dict[str, Any]:
    """The note of a ``--progress-file``; {} for what is none. Raises SourceError, OSError."""
    return _checked(read_regular(path, MOST))


def _checked(text: bytes | None) -> dict[str, Any]:
    """The parts of a note that are well-formed."""
    kept = {}
    try:
        noted = json.loads(text or b"{}")
        for name, time in (("run", "begun"), ("success", "time"), ("failure", "time")):
            if isinstance(one := noted.get(name), dict):
                seconds_since(one[time])
                kept[name] = one
        if isinstance(noted.get("metrics"), dict):
            kept["metrics"] = metrics.well_formed(noted["metrics"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return kept


def state_of(run: dict[str, Any] | None) -> str:
    """Whether a noted run goes on: one of NEVER, RUNNING, SILENT, DIED, ENDED.

    On its own host the process decides. On another one only its signs of life are seen.
    """
    if run is None:
        return NEVER
    if "ended" in run:
        return ENDED
    here = run.get("host") == socket.gethostname()
    if here and not _is_alive(run.get("pid")):
        return DIED
    quiet = seconds_since(str(run.get("beat") or run["begun"])) > PATIENCE
    return RUNNING if not quiet else SILENT if here else DIED


def _is_alive(pid: Any) -> bool:
    """Whether a process goes on: one that has ended, and whose parent has not asked how, does not.

    Asking by ``os.kill(pid, 0)`` would interrupt the process on Windows.
    """
    import psutil

    if type(pid) is not int or pid <= 0:
        return False
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:  # the process of another user
        return True
    except (psutil.NoSuchProcess, OverflowError):
        return False
