"""The log of a run, and its progress file: what others see of a job without a terminal."""

from __future__ import annotations

import datetime
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import streampca
from streampca.cli import main
from streampca.errors import OutputError
from streampca.operations import runs
from streampca.operations.logs import JsonLines, LogFile, logged
from streampca.operations.work_folder import only_one
from streampca.passes import execution
from streampca.run_context import current_run, in_run
from tests.operations.test_refresh import Nightly, data

pytestmark = pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
FIELDS = ["time", "level", "logger", "run", "host", "pid", "command", "job", "store", "version"]
FIELDS += ["streampca", "message"]


@pytest.fixture
def job(tmp_path: Path) -> Nightly:
    """A job whose file asks for a log."""
    one = Nightly(tmp_path)
    one.entries["logging"] = {"format": "json", "file": str(tmp_path / "job.log")}
    return one


def refreshed(job: Nightly, *words: str) -> int:
    path = job.folder / "job.yaml"
    path.write_text(yaml.safe_dump(job.entries))
    return main(["refresh", str(path), "--json", *words])


def lines_of(text: str) -> list[dict[str, Any]]:
    """The lines of a log, each of which has all fields."""
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        assert [*line][: len(FIELDS)] == FIELDS
        time = datetime.datetime.fromisoformat(line["time"])
        assert time.utcoffset() == datetime.timedelta(0)
        assert line["level"] in ("debug", "info", "warning", "error")
        assert line["logger"].startswith("streampca.")
        assert (line["host"], line["pid"]) == (socket.gethostname(), os.getpid())
        assert line["streampca"] == streampca.__version__
    return found


def test_a_job_that_succeeds_and_has_nothing_to_do(
    job: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refreshed(job) == 0
    outcome = json.loads(capsys.readouterr().out)
    lines = lines_of((job.folder / "job.log").read_text())
    note = runs.last_run(job.entries["store"])["run"]
    assert {line["run"] for line in lines} == {outcome["run"]} == {note["id"]}
    named = {(line["command"], line["job"], line["store"]) for line in lines}
    assert named == {("refresh", str(job.folder / "job.yaml"), job.entries["store"])}
    assert (lines[0]["version"], lines[-1]["version"], lines[-1]["exit"]) == (None, 1, 0)
    (end,) = [line for line in lines if line.get("status") == "published"]
    assert (end["samples"], end["how"], end["level"]) == (100, "full", "info")
    assert any(line["message"].startswith("pass 1/1 ") for line in lines)
    (entry,) = [line["entry"] for line in lines if "entry" in line]
    assert (entry["action"], entry["number"]) == ("publish", 1)
    assert refreshed(job, "--log-level", "warning") == 0  # the command line goes before
    assert len(lines_of((job.folder / "job.log").read_text())) == len(lines)
    assert current_run() is None
    assert not any(isinstance(one, LogFile) for one in logging.getLogger("streampca").handlers)


def test_a_job_that_fails_waits_tries_again_and_lags_behind(
    job: Nightly, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(count: int = 1) -> Any:
        return lines_of((job.folder / "job.log").read_text())[-count]

    assert refreshed(job) == 0
    with only_one(job.entries["store"]):
        assert refreshed(job) == 75
    assert (last()["kind"], last()["exit"], last()["level"]) == ("busy", 75, "error")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["run"], said["kind"]) == (last()["run"], "busy")
    away = job.folder / "away"
    Path(job.place).rename(away)
    assert refreshed(job) == 66
    assert (last()["kind"], last()["version"]) == ("source", None)
    away.rename(job.place)
    job.array.resize((130, 8))
    assert refreshed(job) == 0
    assert (last(2)["level"], last(2)["behind"], last(2)["version"]) == ("warning", 30, 1)
    assert last(2)["behind_since"]
    job.array[100:] = data(30, 1)
    job.array[0, 0] = 3.0
    job.entries["gate"] = {"max_angle": 1e-9}
    assert refreshed(job) == 65
    assert (last(2)["level"], last(2)["status"], last()["exit"]) == ("warning", "refused", 65)
    monkeypatch.setattr("streampca.operations.refresh.ModelStore", lambda place: 1 / 0)
    assert refreshed(job) == 70
    assert "ZeroDivisionError" in last()["traceback"]
    assert last()["kind"] == "fault"


def test_a_changed_source_is_a_warning(job: Nightly) -> None:
    at = []

    def change(_: Any) -> None:
        if not at:
            at.append(0)
            job.array[0, 0] = 17.0

    log = job.folder / "x.log"
    with logged("json", str(log)):
        done = job.run(progress=change)
    warnings = [line for line in lines_of(log.read_text()) if line["level"] == "warning"]
    assert [line["message"][:15] for line in warnings] == ["tried once more"]
    assert warnings[0]["run"] == done.run
    job.check()


def test_on_stderr_there_is_nothing_but_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(50, 4)) * [1, 1, 1, 100]
    np.save(tmp_path / "x.npy", x)
    words = ["fit", str(tmp_path / "x.npy"), "-k", "1", "--log-format", "json"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(words) == 0
    lines = lines_of(capsys.readouterr().err)
    assert lines[0]["message"] == "fit begins"
    assert [line["kind"] for line in lines if line["level"] == "warning"] == [
        "DominantFeatureWarning"
    ]
    assert main([*words, "-o", str(tmp_path / "x.npy")]) == 65
    assert lines_of(capsys.readouterr().err)[-1]["kind"] == "invalid_input"
    words[-1] = "text"
    assert main([*words, "--log-level", "error", "--memory-limit", "1KiB"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert "error   streampca." in line
    options = tmp_path / "options.yaml"
    options.write_text(f"log-file: {tmp_path / 'x.log'}\nlog-format: json\n")
    assert main([*words[:4], "--config", str(options), "--log-level", "info"]) == 0
    assert {one["job"] for one in lines_of((tmp_path / "x.log").read_text())} == {str(options)}


def test_a_log_that_cannot_be_written_is_refused_before_the_work(
    job: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job.folder
    os.mkfifo(folder / "fifo")
    (folder / "closed").mkdir()
    for path, code in (
        (folder / "nowhere/x.log", 73),
        (folder / "closed", 73),
        (folder / "fifo", 73),
        (folder / "x.zarr/x.log", 78),
        (folder / "x.zarr/zarr.json", 78),
        ("s3://bucket/x.log", 78),
    ):
        job.entries["logging"]["file"] = str(path)
        assert refreshed(job) == code, path
        assert not Path(job.entries["store"]).exists()
    del job.entries["logging"]
    words = ["fit", job.place, "-o", str(folder / "model")]
    for option in ("--log-file", "--progress-file"):
        for path in (job.place, f"{job.place}/x", folder / "model"):
            assert main([*words, option, str(path)]) == 65
        assert main([*words, option, str(folder / "job.yaml" / "x")]) == 73
    assert main([*words, option, str(folder / "job.yaml")]) == 73  # it holds something else
    assert "job.yaml exists already; it does not" in capsys.readouterr().err
    assert not (folder / "model").exists()


def test_a_log_is_moved_cut_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "x.log"
    place.parent.mkdir()
    logger = logging.getLogger("streampca.test")
    with logged("text", str(place)):
        logger.info("one")
        place.rename(tmp_path / "x.log.1")
        logger.info("two")
        os.truncate(place, 0)  # copytruncate
        logger.info("three")
        place.unlink()
        logger.info("four")
        shutil.rmtree(place.parent)
        logger.info("lost")
    assert [line.split()[-1] for line in (tmp_path / "x.log.1").read_text().splitlines()] == ["one"]
    place.parent.mkdir()
    with logged("text", str(place)), in_run() as run:
        logger.info("five\x1b[2J\nsix")
    assert place.read_text().endswith(f" {run.id[:8]} five\\x1b[2J\\nsix\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_loses_lines_and_no_job(
    job: Nightly, capsys: pytest.CaptureFixture[str]
) -> None:
    job.entries["logging"]["file"] = "/dev/full"
    assert refreshed(job, "-q") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "published"
    assert said.err.count("are lost") == 1
    job.check()


def test_a_line_that_a_full_disk_has_cut_ends_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "x.log"
    write, room = os.write, [10, 0, 1000]
    with logged("json", str(place)):
        logger = logging.getLogger("streampca.test")
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda file, line: write(file, line[: room.pop(0)]))
            for number in range(3):
                logger.info("%d", number)
    *cut, last = place.read_text().splitlines()
    assert len(cut[0]) == 10
    assert json.loads(last)["message"] == "2"


def test_fields_without_secrets_that_json_has(tmp_path: Path) -> None:
    record = logging.makeLogRecord(
        {"name": "streampca.x", "msg": "read s3://a:b@c/d?e", "time": 1, "n": np.int64(3)}
    )
    vars(record).update(nan=float("nan"), path=tmp_path, urls=["s3://a:b@c/d"], more={"a": {1}})
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["urls"]) == ("read s3://c/d", ["s3://c/d"])
    assert (line["n"], line["nan"], line["path"]) == (3, None, str(tmp_path))
    assert (line["run"], line["pid"]) == (None, os.getpid())
    assert line["time"] != 1
    with pytest.raises(OutputError, match="folder"):
        LogFile(str(tmp_path / "no" / "x.log"))


def test_the_progress_of_a_pass_is_logged_and_nobody_hears_it_by_default(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "LOG_SECONDS", 0.0)
    caplog.set_level("INFO", "streampca")
    X = np.random.default_rng(0).normal(size=(4000, 300))
    streampca.PCA(2, progress=False).fit(X)
    lines = [one for one in caplog.records if hasattr(one, "seconds_left")]
    assert lines
    assert [vars(one)["block"] for one in lines] == [*range(1, len(lines) + 1)]
    last = vars(lines[-1])
    assert (last["pass"], last["block"], last["seconds_left"]) == (1, last["blocks"], 0)
    assert last["mb_per_s"] > 0
    assert [type(one) for one in logging.getLogger("streampca").handlers] == [logging.NullHandler]


def test_the_progress_file_of_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, place = tmp_path / "x.npy", str(tmp_path / "run.json")
    np.save(x, np.random.default_rng(0).normal(size=(300, 20)))
    words = ["fit", str(x), "-k", "2", "--json", "--progress-file", place]

    def told() -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["status", place, "--json"])
        return code, json.loads(capsys.readouterr().out)

    assert main(words) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    code, found = told()
    assert (code, found["level"], found["run"]["status"]) == (0, "fresh", "done")
    assert (found["run"]["id"], found["run"]["command"]) == (run, "fit")
    assert found["run"]["progress"].startswith("pass 1/1 ")
    assert main([*words, "-k", "500"]) == 65
    code, found = told()
    assert (code, found["failure"]["kind"]) == (2, "invalid_input")
    assert main(["status", place, "--oneline"]) == 2
    assert capsys.readouterr().out.startswith(f"ERROR - {place}: the last run failed")
    monkeypatch.setattr(runs, "BEAT", 0.01)
    with runs.RunNote(file=place) as note:
        note(execution.Advance("scatter", 1, 2, 3, 4, 10**6, 2.0))
        while "block 3/4" not in runs.note_at(place)["run"]["progress"]:
            pass
        code, found = told()
        assert (code, found["run"]["state"], found["run"]["at"]["block"]) == (0, "running", 3)
        assert main(["status", place]) == 0
        assert "running" in capsys.readouterr().out
    text = json.loads(Path(place).read_text())
    del text["run"]["ended"]
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    text["run"]["pid"] = child.pid
    Path(place).write_text(json.dumps(text))
    code, found = told()
    assert (code, found["run"]["state"]) == (2, "died")
