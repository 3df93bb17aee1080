"""The file of metrics: what Prometheus reads after every end of a run, and in between."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import streampca
from streampca.cli import main
from streampca.errors import (
    BusyError,
    ConfigError,
    OutputError,
    SourceError,
    UnreportedRunWarning,
    exit_code,
)
from streampca.operations import runs
from streampca.operations.config import check_job
from streampca.operations.metrics import METRICS, PREFIX, exposition, seconds_of_time
from streampca.operations.work_folder import only_one
from tests.operations.test_refresh import Nightly, data
from tests.operations.test_status import aged

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
ALERTS = Path(__file__).parents[2] / "configs" / "schedulers" / "alerts.yaml"


def families(text: str) -> list[Any]:
    """What the parser of Prometheus's own client makes of a file."""
    parser = pytest.importorskip("prometheus_client.parser")
    return list(parser.text_string_to_metric_families(text))


class Watched(Nightly):
    """A job with metrics, in a folder of their own."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        (folder / "prom").mkdir()
        self.file = folder / "prom" / "nightly.prom"
        super().__init__(folder, metrics=str(self.file), **changes)

    def read(self) -> dict[str, Any]:
        """Name -> value; of a metric with a label, its values by label."""
        found: dict[str, Any] = {}
        for family in families(self.file.read_text()):
            for sample in family.samples:
                assert sample.labels["store"] == self.entries["store"]
                assert sample.timestamp is None
                labels = {k: v for k, v in sample.labels.items() if k not in ("name", "store")}
                name = sample.name.removeprefix(PREFIX)
                if labels:
                    found.setdefault(name, {})["".join(labels.values())] = sample.value
                else:
                    found[name] = sample.value
        return found


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def state(found: dict[str, Any]) -> list[str]:
    return [name for name, value in found["run_state"].items() if value]


def test_the_file_after_a_success(tmp_path: Path) -> None:
    watched = Watched(tmp_path, freshness={"warn_after": "26h", "error_after": "2d"})
    before = os.umask(0o077)
    try:
        first = watched.run()
    finally:
        os.umask(before)
    assert watched.file.stat().st_mode & 0o777 == 0o644
    assert os.listdir(watched.file.parent) == ["nightly.prom"]  # node_exporter reads every .prom
    streampca.append(watched.place, data(30, 1))
    done, found = watched.run(), watched.read()
    assert done.planned_bytes > 0
    assert done.peak_bytes > 0
    note = runs.last_run(watched.entries["store"])
    seconds = seconds_of_time(note["success"]["time"])
    assert found == {
        "run_state": {"never": 0, "running": 0, "silent": 0, "died": 0, "ended": 1},
        "last_start_timestamp_seconds": pytest.approx(seconds, abs=60),
        "last_end_timestamp_seconds": seconds,
        "last_success_timestamp_seconds": seconds,
        "last_exit_code": 0,
        "last_end_info": {"published": 1},
        "last_run_duration_seconds": pytest.approx(done.seconds, rel=0.5),
        "runs_total": {"published": 2},
        "retries_total": 0,
        "read_bytes_total": first.bytes + done.bytes + done.verified_bytes,
        "served_version": 2,
        "served_rows": 130,
        "new_rows": 30,
        "behind_rows": 0,
        "gate_refused": 0,
        "drift_angle_radians": done.drift["max_angle"],
        "drift_error_ratio": done.drift["error_ratio"],
        "drift_variance_ratio": done.drift["total_ratio"],
        "last_fit_passes": 1,
        "last_fit_read_bytes": done.bytes,
        "last_fit_peak_memory_bytes": done.peak_bytes,
        "last_fit_planned_memory_bytes": done.planned_bytes,
        "freshness_warn_seconds": 26 * 3600,
        "freshness_error_seconds": 48 * 3600,
    }


def test_what_a_later_run_leaves_true(watched: Watched) -> None:
    watched.entries["gate"] = {"max_angle": 0.01}
    watched.run()
    first = watched.read()
    assert watched.run().status == "unchanged"
    found = watched.read()
    assert found["last_end_info"] == {"unchanged": 1}
    assert (found["last_fit_read_bytes"], found["new_rows"]) == (first["last_fit_read_bytes"], 0)
    watched.array[...] = data(100, 5, turn=9.0)
    done = watched.run()
    found = watched.read()
    assert (done.status, found["gate_refused"], found["last_exit_code"]) == ("refused", 1, 65)
    assert (found["served_version"], found["served_rows"]) == (1, 100)
    assert found["drift_angle_radians"] == done.drift["max_angle"]
    success = found["last_success_timestamp_seconds"]
    shutil.rmtree(watched.place)
    with pytest.raises(SourceError):
        watched.run()
    found = watched.read()
    assert (found["last_exit_code"], found["last_end_info"]) == (66, {"source": 1})
    assert (found["last_success_timestamp_seconds"], found["served_version"]) == (success, 1)
    assert found["runs_total"] == {"published": 1, "unchanged": 1, "refused": 1, "failed": 1}


def test_rows_behind_are_counted_and_forgotten(watched: Watched) -> None:
    watched.run()
    watched.array.resize((160, 8))  # rows that nobody has written
    watched.run()
    found = watched.read()
    assert found["behind_rows"] == 60
    assert found["behind_since_timestamp_seconds"] <= found["last_end_timestamp_seconds"]
    watched.array[100:] = data(60, 3)
    watched.run()
    assert watched.read()["behind_rows"] == 0
    assert "behind_since_timestamp_seconds" not in watched.read()


@pytest.mark.parametrize("stop", [SystemExit(143), KeyboardInterrupt()])
def test_a_run_goes_on_and_is_stopped(watched: Watched, stop: BaseException) -> None:
    watched.run()
    watched.array[:50] = data(50, 3)
    seen: list[Any] = []

    def progress(_: Any) -> None:
        seen.append(watched.read())
        raise stop

    with pytest.raises(type(stop)):
        watched.run(progress=progress)
    assert state(seen[0]) == ["running"]
    assert seen[0]["last_exit_code"] == 0  # of the run before
    found = watched.read()
    assert (state(found), found["last_exit_code"]) == (["ended"], exit_code(stop))
    assert found["last_success_timestamp_seconds"] == seen[0]["last_success_timestamp_seconds"]


def test_a_run_that_another_one_keeps_from_beginning(watched: Watched) -> None:
    watched.run()
    before = watched.read()
    with only_one(watched.entries["store"]), pytest.raises(BusyError):
        watched.run()
    found = watched.read()
    assert (found["last_exit_code"], found["last_end_info"]) == (75, {"busy": 1})
    other = ("last_exit_code", "last_end_info", "last_end_timestamp_seconds")
    assert {k: v for k, v in found.items() if k not in other} == {
        k: v for k, v in before.items() if k not in other
    }


def test_status_writes_the_file_of_a_job_that_never_ends_or_never_ran(tmp_path: Path) -> None:
    watched, path = Watched(tmp_path), tmp_path / 'nightly "1"\\.yaml'
    path.write_text(yaml.safe_dump(watched.entries))
    assert main(["status", str(path), "--metrics"]) == 2
    found = watched.read()
    assert (state(found), found["status"], found["waiting_rows"]) == (["never"], 2, 100)
    assert 'name="nightly \\"1\\"\\\\"' in watched.file.read_text()
    watched.run()
    assert "status" not in watched.read()
    note = runs.RunNote(watched.entries["store"])
    note.__enter__()._ended.set()  # as a run that is killed: it notes no end
    for there, level in (("running", 0), ("silent", 1), ("died", 1)):
        if there == "silent":
            aged(watched, 1, "run.beat")
        if there == "died":
            note.note["run"]["pid"] = 2**22 + 5  # more than there are
            note._write()
        assert main(["status", str(path), "--metrics"]) == level
        assert (state(watched.read()), watched.read()["status"]) == ([there], level)
    watched.entries.pop("metrics")
    path.write_text(yaml.safe_dump(watched.entries))
    assert main(["status", str(path), "--metrics"]) == 65


def test_labels_may_hold_anything() -> None:
    labels = {"name": 'a"b\\n\nc\\', "store": "/srv/ü\udcff{},="}
    (family,) = families(exposition({"last_exit_code": 0}, labels))
    assert family.samples[0].labels == labels | {"store": "/srv/ü?{},="}


def test_a_file_that_cannot_be_written(watched: Watched) -> None:
    def in_the_way(_: Any) -> None:
        shutil.rmtree(watched.file.parent, ignore_errors=True)
        if not watched.file.parent.exists():
            watched.file.parent.write_text("")

    with pytest.warns(UnreportedRunWarning, match=r"metrics .*nightly\.prom"):
        assert watched.run(progress=in_the_way).status == "published"
    for dry_run in (False, True):  # the next one is told before anything is read
        with pytest.raises(OutputError, match="mkdir -p"):
            watched.run(dry_run=dry_run)
    assert exit_code(OutputError()) == 73
    watched.file.parent.unlink()
    watched.file.mkdir(parents=True)
    with pytest.raises(OutputError, match="is a folder"):
        watched.run()


@pytest.mark.parametrize("value", ["job.txt", "s3://bucket/x.prom", "x.zarr/x.prom", 3])
def test_metrics_are_a_file_that_node_exporter_reads(tmp_path: Path, value: Any) -> None:
    job = Nightly(tmp_path)
    value = str(tmp_path / value) if str(value).startswith("x.zarr") else value
    with pytest.raises(ConfigError, match="metrics"):
        check_job(job.entries | {"metrics": value}, "job")


def test_names_say_their_units() -> None:
    units = "seconds|bytes|radians|ratio|info|total|version|rows|state|code|passes|status|refused"
    for one in METRICS:
        assert re.fullmatch(rf"[a-z_]+_({units})|status", one.name)
        assert one.meaning.endswith(".")
    assert len({one.name for one in METRICS}) == len(METRICS)


def test_alerts_are_about_metrics_that_are_there() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    names = {one.name: one.label for one in METRICS}
    for rule in group["rules"]:
        assert rule.keys() >= {"alert", "expr", "labels", "annotations"}
        used = re.findall(rf"{PREFIX}(\w+)(?:\{{(\w+))?", rule["expr"])
        assert used
        assert {name for name, _ in used} <= names.keys()
        assert all(label in ("", "name", names[name]) for name, label in used)


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_file_and_the_alerts(watched: Watched) -> None:
    watched.run()
    assert PROMTOOL is not None
    for command, text in (
        (["check", "metrics"], watched.file.read_text()),
        (["check", "rules", str(ALERTS)], ""),
        (["test", "rules", str(Path(__file__).with_name("alerts_test.yaml"))], ""),
    ):
        done = subprocess.run([PROMTOOL, *command], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
