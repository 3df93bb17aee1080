"""Who hears of a run: its note, its metrics, and the receivers of its lineage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from streampca.errors import StreamPCAError, UnreportedRunWarning, hide_secrets, warn_caller
from streampca.model_store.history import now
from streampca.operations import metrics
from streampca.operations.config import Job
from streampca.operations.lineage import Lineage, name_of
from streampca.operations.runs import (
    DIED,
    ENDED,
    NEVER,
    RUNNING,
    SILENT,
    RunNote,
    last_run,
    note_kept_out,
    state_of,
)
from streampca.operations.sections import seconds_of
from streampca.operations.work_folder import only_one
from streampca.run_context import in_run
from streampca.store.places import settled

STATES = (NEVER, RUNNING, SILENT, DIED, ENDED)
LOOKS = 3  # at a note that another process is changing


def check_places(job: Job) -> None:
    """Raise OutputError if the metrics of a job cannot be written."""
    if job.metrics is not None:
        metrics.check_place(job.metrics)


@contextlib.contextmanager
def observed(job: Job, progress: Any) -> Iterator[RunNote]:
    """One run of a job, alone, with a note, metrics and lineage of how it goes and ends.

    progress : of the caller. What cannot be written or delivered is a warning, and fails no run.
    Raises BusyError if another process runs the job.
    """
    note = RunNote(job.store, progress)
    with in_run() as run:
        lineage = Lineage(job, run.id) if job.lineage else None
    if lineage is not None:
        lineage.begin()
    try:
        with only_one(job.store):
            if lineage is not None:
                before = last_run(job.store).get("run")
                if before is not None and state_of(before) == DIED:
                    lineage.end_dead(before.get("id"))
            problem = ""
            try:
                with note:
                    problem = _write(job, note.note)
                    yield note
            finally:
                if note.note:
                    _warn(job, _write(job, note.note) or problem)
    except BaseException as error:
        if not note.note:  # it never began
            note_kept_out(job.store, error)
            write_metrics(job, metrics.ended(error, now()))
        if lineage is not None:
            _warn(job, lineage.end(error))
        raise
    if lineage is not None and note.outcome is not None:
        _warn(job, lineage.end(note.outcome))


def _warn(job: Job, problem: str) -> None:
    if problem:
        warn_caller(f"{hide_secrets(job.store)}: {problem}", UnreportedRunWarning)


def write_metrics(job: Job, more: Mapping[str, metrics.Value]) -> None:
    """Write the metrics of a job from its note, and more, by a process that does not run it.

    Written again if a run began or ended meanwhile: the last to write has seen the last note.
    """
    problem = ""
    for _ in range(LOOKS):
        note = last_run(job.store)
        problem = _write(job, note, more)
        if last_run(job.store) == note:
            break
    _warn(job, problem)


def _write(job: Job, note: Mapping[str, Any], more: Mapping[str, metrics.Value] = {}) -> str:
    """Write the metrics of a job, if it asks for them. Returns why they cannot be, or ""."""
    if job.metrics is None:
        return ""
    state = state_of(note.get("run"))
    found: dict[str, Any] = {**note.get("metrics", {}), **more}
    found["run_state"] = {one: int(one == state) for one in STATES}
    if "run" in note:
        found["last_start_timestamp_seconds"] = metrics.seconds_of_time(note["run"]["begun"])
    for name, window in job.freshness.items():  # warn_after, error_after
        found[f"freshness_{name.removesuffix('_after')}_seconds"] = seconds_of(window)
    labels = {"name": name_of(job), "store": hide_secrets(settled(job.store))}
    other = metrics.other_store(job.metrics, labels["store"])
    try:
        metrics.write(job.metrics, metrics.exposition(found, labels))
    except (OSError, StreamPCAError) as error:
        return f"metrics {job.metrics}: {error}"
    what = f"it held those of the store {other}; name one file for each job"
    return f"metrics {job.metrics}: {what}" if other else ""
