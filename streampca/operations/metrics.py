"""The metrics of a job, in the text format that Prometheus's node_exporter reads from files.

A run keeps them in its note (``runs.py``), so that a failed run leaves what is still true, and
counters go on. The file has no times of samples: an alert compares the times in it with the clock
of Prometheus, so that it also sees a job that does not run, or never ends.

Source: Prometheus, "Exposition formats" (the text format) and "Metric and label naming".
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streampca.errors import OutputError, StreamPCAError, error_kind, exit_code
from streampca.operations.outcome import ALREADY, PUBLISHED, REFUSED, UNCHANGED, Outcome
from streampca.paths import read_regular
from streampca.store.bundle import whole_file

PREFIX = "streampca_job_"
MOST = 1 << 20  # bytes of a file
MODE = 0o644  # node_exporter is another user
Value = float | dict[str, float]  # of a metric with a label: label -> value


@dataclass(frozen=True)
class Metric:
    """A metric.  label : the name of its own label, if it has one."""

    name: str
    meaning: str
    label: str = ""

    @property
    def kind(self) -> str:
        """Its type: "counter" or "gauge"."""
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS = (
    Metric("run_state", "1 for what is true of the last run: did it end, does it go on.", "state"),
    Metric("last_start_timestamp_seconds", "When the last run began."),
    Metric("last_end_timestamp_seconds", "When a run last ended, in whatever way."),
    Metric("last_success_timestamp_seconds", "When a run last took all rows it could vouch for."),
    Metric("last_failure_timestamp_seconds", "When a run last failed, or was refused by the gate."),
    Metric("last_exit_code", "Exit code of the run that ended last."),
    Metric("last_end_info", "How it ended: its outcome, or the kind of its error.", "kind"),
    Metric("last_run_duration_seconds", "How long it took."),
    Metric("runs_total", "Runs that ended, by outcome; failed: with an error, or died.", "outcome"),
    Metric("retries_total", "Times that a run began again, because its source was being written."),
    Metric("read_bytes_total", "Bytes of the source that were read, also to find changes."),
    Metric("served_version", "Number of the version that readers get."),
    Metric("served_rows", "Samples of the source when that version was last found up to date."),
    Metric("new_rows", "Samples that the last run with an outcome was the first to see."),
    Metric("behind_rows", "Samples that are there and cannot be taken yet."),
    Metric("behind_since_timestamp_seconds", "When a run first saw them."),
    Metric("gate_refused", "1 if the gate refused the version of the last run, else 0."),
    Metric("drift_angle_radians", "Largest angle between the spans of the last two versions."),
    Metric("drift_error_ratio", "Error of the new rows under the old model over that of its own."),
    Metric("drift_variance_ratio", "Total variance of the last version over the one before."),
    Metric("last_fit_passes", "Passes of the last fit, or update, over its rows."),
    Metric("last_fit_read_bytes", "Bytes that it read."),
    Metric("last_fit_peak_memory_bytes", "Memory that it took at most."),
    Metric("last_fit_planned_memory_bytes", "Memory that its plan said."),
    Metric("freshness_warn_seconds", "Age of the last success after which the job warns."),
    Metric("freshness_error_seconds", "Age of the last success that the job does not allow."),
    Metric("status", "0 fresh, 1 warn, 2 error, 3 unknown, when streampca status last asked."),
    Metric("waiting_rows", "Samples for the next run, when streampca status last asked."),
)


def after(
    kept: Mapping[str, Value],
    end: Outcome | BaseException,
    time: str,
    seconds: float,
    retries: int = 0,
) -> dict[str, Value]:
    """The metrics of a job after a run ended.

    kept : before it.  end : its outcome or its error; after an error, what earlier runs found
    stays.  time, seconds : when it ended, and how long it took.
    """
    outcome = end if isinstance(end, Outcome) else None
    status = "failed" if outcome is None else outcome.status
    new = {**kept, **ended(end, time), "last_run_duration_seconds": round(seconds, 3)}
    runs = new.get("runs_total")
    new["runs_total"] = counted = dict(runs) if isinstance(runs, dict) else {}
    counted[status] = counted.get(status, 0) + 1
    _count(new, "retries_total", retries)
    success = status in (PUBLISHED, ALREADY, UNCHANGED)
    new[f"last_{'success' if success else 'failure'}_timestamp_seconds"] = seconds_of_time(time)
    if outcome is not None:
        _count(new, "read_bytes_total", outcome.bytes + outcome.verified_bytes)
        _add_outcome(new, outcome)
    return new


def ended(end: Outcome | BaseException, time: str) -> dict[str, Value]:
    """How and when a run ended, also one that another run kept from beginning."""
    kind = error_kind(end) if isinstance(end, BaseException) else end.status
    return {
        "last_end_timestamp_seconds": seconds_of_time(time),
        "last_exit_code": exit_code(end) if isinstance(end, BaseException) else end.exit_code,
        "last_end_info": {kind: 1},
    }


def after_death(kept: Mapping[str, Value], time: str) -> dict[str, Value]:
    """The metrics of a job whose run died, with a last sign of life at a time."""
    runs = kept.get("runs_total")
    counted = dict(runs) if isinstance(runs, dict) else {}
    counted["died"] = counted.get("died", 0) + 1
    at = {"last_failure_timestamp_seconds": seconds_of_time(time)}
    return {**kept, **at, "runs_total": counted}


def _count(metrics: dict[str, Value], name: str, more: float) -> None:
    before = metrics.get(name, 0)
    metrics[name] = (0 if isinstance(before, dict) else before) + more


def _add_outcome(new: dict[str, Value], outcome: Outcome) -> None:
    """What a run found; what only a fit knows stays that of the last fit."""
    drift, served = outcome.drift or {}, outcome.status != REFUSED
    numbers: dict[str, Any] = {
        "served_version": outcome.served,
        "served_rows": outcome.samples if served else None,
        "new_rows": outcome.new_samples,
        "behind_rows": outcome.behind,
        "gate_refused": int(outcome.status == REFUSED),
        "drift_angle_radians": drift.get("max_angle"),
        "drift_error_ratio": drift.get("error_ratio"),
        "drift_variance_ratio": drift.get("total_ratio"),
    }
    if outcome.passes:
        numbers |= {
            "last_fit_passes": outcome.passes,
            "last_fit_read_bytes": outcome.bytes,
            "last_fit_peak_memory_bytes": outcome.peak_bytes,
            "last_fit_planned_memory_bytes": outcome.planned_bytes,
        }
        for name in [n for n in new if n.startswith("last_fit_")]:
            del new[name]
    new |= {name: value for name, value in numbers.items() if is_number(value)}
    new.pop("behind_since_timestamp_seconds", None)
    if outcome.behind_since:
        new["behind_since_timestamp_seconds"] = seconds_of_time(outcome.behind_since)


def well_formed(kept: Mapping[str, Any]) -> dict[str, Value]:
    """What of stored metrics is a number, or numbers by label."""
    found: dict[str, Value] = {}
    for name, value in kept.items():
        if all(map(is_number, value.values() if isinstance(value, dict) else [value])):
            found[name] = value
    return found


def is_number(value: Any) -> bool:
    """Whether this is an int or a float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def seconds_of_time(time: str) -> float:
    """Seconds since 1970 of an ISO 8601 time."""
    return datetime.datetime.fromisoformat(time).timestamp()


# The file.


def exposition(metrics: Mapping[str, Value], labels: Mapping[str, str]) -> str:
    """The text of a file.  labels : of every sample. Unknown metrics are left out."""
    return "\n".join([*_lines(metrics, labels), ""])


def _lines(metrics: Mapping[str, Value], labels: Mapping[str, str]) -> Iterable[str]:
    for one in METRICS:
        if (value := metrics.get(one.name)) is None or isinstance(value, dict) != bool(one.label):
            continue
        name = PREFIX + one.name
        yield f"# HELP {name} {one.meaning}"
        yield f"# TYPE {name} {one.kind}"
        for label, number in (value if isinstance(value, dict) else {"": value}).items():
            own = {one.label: label} if one.label else {}
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**labels, **own}.items())
            yield f"{name}{{{pairs}}} {_number(number)}"


def _escaped(text: str) -> str:
    """A value of a label; a character that cannot be encoded becomes "?"."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def check_place(path: str) -> None:
    """Raise OutputError for a path at which no file can be written."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise OutputError(f"metrics {path}: no such folder: mkdir -p {folder}")
    if os.path.isdir(path):
        raise OutputError(f"metrics {path} is a folder; name a file in it")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"metrics {path}: {folder} may not be written to; name another place")


def other_store(path: str, store: str) -> str:
    """The store whose metrics a file holds, as in its label, if it is not this one; or ""."""
    with contextlib.suppress(OSError, StreamPCAError):
        text = read_regular(path, MOST).decode("utf-8", "replace")
        found = re.search(r'[{,]store="((?:[^"\\]|\\.)*)"', text)
        return found[1] if found and found[1] != _escaped(store) else ""
    return ""


def write(path: str, text: str) -> None:
    """Replace the file in one step; anyone may read it. Raises OSError and StreamPCAError."""
    with whole_file(path) as file:
        file.write(text.encode())
        if hasattr(os, "fchmod"):  # not on Windows
            os.fchmod(file.fileno(), MODE)
