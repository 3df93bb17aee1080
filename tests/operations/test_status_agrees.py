"""Status, notes and metrics say the same of runs that were kept out, died, or share a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from streampca.cli import main
from streampca.errors import BusyError, SourceError, UnreportedRunWarning
from streampca.operations import runs
from streampca.operations.config import check_job
from streampca.operations.status import status, write_status
from streampca.operations.work_folder import holder_of, only_one
from tests.operations.test_refresh import Nightly
from tests.operations.test_status import WINDOWS, aged

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")


@pytest.fixture
def job(tmp_path: Path) -> Nightly:
    """A job that has run once."""
    one = Nightly(tmp_path, metrics=str(tmp_path / "job.prom"), freshness=WINDOWS)
    one.run()
    return one


def seen(job: Nightly) -> tuple[Any, str]:
    """(status, text of the metrics that it writes)."""
    checked = check_job(job.entries, "job")
    found = status(checked, "a job.yaml")
    write_status(checked, found)
    return found, Path(job.entries["metrics"]).read_text()


def test_a_run_that_another_process_keeps_out(job: Nightly) -> None:
    place = job.entries["store"]
    with only_one(place):
        for _ in range(2):
            with pytest.raises(BusyError):
                job.run()
        found, metrics = seen(job)
    assert (found.run["status"], found.success["run"]) == ("published", found.run["id"])
    assert (found.failure["exit"], found.failure["kind"]) == (75, "busy")
    assert found.failure["run"] not in (None, found.run["id"])
    assert 'kind="busy"} 1' in metrics
    if sys.platform == "linux":
        assert (found.level, found.holder, found.next) == ("warn", os.getpid(), "")
    found, metrics = seen(job)  # the lock is free again, and no run has ended since
    assert (found.level, found.holder, holder_of(place)) == ("fresh", None, None)
    assert 'kind="busy"} 1' in metrics
    job.run()
    found, metrics = seen(job)
    assert (found.level, found.failure["kind"]) == ("fresh", "busy")
    assert 'kind="unchanged"} 1' in metrics


def test_a_run_that_is_at_it_holds_the_lock_by_right(job: Nightly) -> None:
    with only_one(job.entries["store"]), runs.RunNote(job.entries["store"]):
        found, _ = seen(job)
        assert (found.level, found.holder, found.run["state"]) == ("fresh", None, "running")


def test_a_death_is_a_failure_that_is_remembered(job: Nightly) -> None:
    note = runs.RunNote(job.entries["store"])
    note.__enter__()._ended.set()
    path = Path(job.entries["store"] + runs.FOLDER) / runs.NAME
    noted = json.loads(path.read_text())
    noted["run"]["pid"] = 2**22 + 5  # more than there are
    path.write_text(json.dumps(noted))
    for _ in range(2):
        found, metrics = seen(job)
        assert (found.level, found.next) == ("warn", "streampca refresh 'a job.yaml'")
        assert (found.failure["kind"], found.failure["run"]) == ("died", found.run["id"])
        assert 'outcome="died"} 1' in metrics
    job.run()
    found, metrics = seen(job)
    assert (found.level, found.failure["kind"]) == ("fresh", "died")
    assert 'outcome="died"} 1' in metrics


def test_a_failure_names_its_run_and_what_is_late_has_a_next_action(job: Nightly) -> None:
    aged(job, 51, "success.time")
    assert seen(job)[0].next == "streampca refresh 'a job.yaml'"
    Path(job.place).rename(f"{job.place}.away")
    with pytest.raises(SourceError):
        job.run()
    found, metrics = seen(job)
    assert (found.failure["run"], found.failure["kind"]) == (found.run["id"], "source")
    assert found.next == ""  # a refresh fails until the source is back
    assert 'kind="source"} 1' in metrics


def test_jobs_are_seen_although_another_cannot_be_read(
    job: Nightly, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "a.yaml").write_text("store: [")
    (folder / "b.yaml").write_text("store: x\nsauce: 1\n")
    (folder / "c|d.yaml").write_text(yaml.safe_dump(job.entries))
    assert main(["status", "--all", str(folder), "--oneline"]) == 3
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(f"UNKNOWN - {folder}/a.yaml: a refresh would fail: ")
    assert "sauce" in second
    assert third.startswith(rf"FRESH - {folder}/c\x7cd.yaml: version 1")
    assert third.count("|") == 1
    assert main(["status", str(folder / "none.yaml"), "--oneline"]) == 3
    assert main(["status", str(folder / "b.yaml"), "--json"]) == 78


def test_two_jobs_with_one_file_of_metrics_are_told(job: Nightly, tmp_path: Path) -> None:
    (tmp_path / 'o"ther').mkdir()
    other = Nightly(tmp_path / 'o"ther', metrics=job.entries["metrics"])
    for one in (other, job):
        with pytest.warns(UnreportedRunWarning, match="one file for each job"):
            one.run()
    job.run()  # its own file


def test_a_job_in_another_folder_says_where_paths_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = Nightly(tmp_path).entries | {"store": "models"}
    entries["source"] = {**entries["source"], "path": "nowhere.zarr"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(entries))
    (tmp_path / "else").mkdir()
    for folder, notes in ((tmp_path, 0), (tmp_path / "else", 1)):
        monkeypatch.chdir(folder)
        assert main(["refresh", str(tmp_path / "job.yaml"), "--json"]) == 66
        found = json.loads(capsys.readouterr().out)["notes"]
        assert [str(folder) in one for one in found] == [True] * notes


def test_who_may_not_write_sees_the_rest(
    job: Nightly,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job.entries | {"metrics": str(tmp_path / "no" / "job.prom")}))
    assert main(["status", str(path), "--json", "--metrics"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert ["mkdir -p" in text for _, text in found["reasons"]] == [True, True]
    assert (found["served"]["version"], found["source"]["samples"]) == (1, 100)
    assert found["next"] == ""
    monkeypatch.setattr("streampca.operations.status._user", lambda: -1)  # a monitor's
    assert main(["status", str(path), "--oneline"]) == 0
