"""What ``configs/schedulers`` holds is what cron, systemd, Kubernetes, Airflow, Dagster and Prefect
take, and what we take."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from streampca.cli.commands import build_parser
from streampca.errors import (
    EXIT,
    FAILED,
    FAULT,
    TERMINATED,
    BusyError,
    ConfigError,
    DamagedSourceError,
    SourceError,
    exit_code,
)
from streampca.operations.outcome import EXIT as OUTCOMES
from streampca.operations.outcome import REFUSED
from streampca.operations.status import EXIT as STATUS

FOLDER = Path(__file__).parents[1] / "configs" / "schedulers"
CODES = {*(code for _, code, _ in EXIT), *OUTCOMES.values(), FAILED, FAULT, TERMINATED}
TABLE = dict(re.findall(r"^#   (\d+) +(\S+)", (FOLDER.parent / "nightly.yaml").read_text(), re.M))
IN_VAIN = {int(code) for code, again in TABLE.items() if again == "no"}


UNITS = (
    "nightly.service",
    "nightly.timer",
    "nightly-failed.service",
    "nightly-status.service",
    "nightly-status.timer",
)


def check_command(words: list[str]) -> None:
    """The parser of our own takes it."""
    assert words[0].rpartition("/")[2] == "streampca"
    arguments = build_parser().parse_args(words[1:])
    assert str(arguments.job).strip("[]'").endswith("nightly.yaml")


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(FOLDER / name)
    return parser


def test_systemd_units_run_the_job(tmp_path: Path) -> None:
    service, timer = unit("nightly.service"), unit("nightly.timer")
    check_command(shlex.split(service["Service"]["ExecStart"]))
    assert service["Service"]["Type"] == "oneshot"
    assert {int(code) for code in service["Service"]["RestartPreventExitStatus"].split()} == IN_VAIN
    assert service["Service"]["SuccessExitStatus"] == "75 143"
    failed = service["Unit"]["OnFailure"]
    assert shlex.split(unit(failed)["Service"]["ExecStart"])[0] == "/usr/bin/logger"
    assert service["Service"]["Environment"] == "NUMBA_CACHE_DIR=%C/nightly"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 02:00:00"
    status = unit("nightly-status.service")["Service"]
    check_command(shlex.split(status["ExecStart"]))
    assert {int(one) for one in status["SuccessExitStatus"].split()} == set(STATUS.values()) - {0}
    if shutil.which("systemd-analyze") is None:
        return
    for name in UNITS:  # with a program that is there
        text = (FOLDER / name).read_text().replace("/srv/job/.venv/bin/streampca", "/bin/true")
        text = text.replace("/usr/bin/logger", "/bin/true")
        (tmp_path / name).write_text(text)
    said = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
    )
    complaints = [line for line in said.stderr.splitlines() if "nightly" in line]
    assert complaints == []


def test_the_crontab() -> None:
    text = (FOLDER / "crontab").read_text()
    days = set()
    for line in re.findall(r"^[\d*].*", text, re.M):
        *when, command = line.split(None, 5)
        assert [bool(re.fullmatch(r"[\d*,/-]+", one)) for one in when] == [True] * 5
        first, last = (when[4].split("-") * 2)[:2]
        days |= set(range(int(first), int(last) + 1)) if first != "*" else set()
        assert "%" not in command  # cron would end the line there
        change, _, rest = command.partition(" && ")
        assert change == "cd /srv/job"
        check_command(shlex.split(rest.partition(" >")[0]))
        for code, said in ((0, ""), (75, ""), (66, "nightly: exit code 66")):
            mail = rest.partition(".log ")[2]
            done = subprocess.run(["sh", "-c", f"(exit {code}) {mail}"], capture_output=True)
            assert done.stdout.decode().strip() == (said if mail else "")
    assert days == set(range(7))


def test_the_cron_job() -> None:
    job = yaml.safe_load((FOLDER / "cronjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    spec: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    check_command(container["command"])
    rule = spec["podFailurePolicy"]["rules"][0]
    assert set(rule["onExitCodes"]["values"]) == IN_VAIN
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert pod["restartPolicy"] == "Never"  # or a podFailurePolicy is not allowed
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert {one["name"] for one in pod["volumes"]} == set(mounts)
    assert container["command"][2].startswith(mounts["job"])


def test_the_cron_job_is_admitted_to_a_restricted_namespace() -> None:
    """Source: Kubernetes, Pod Security Standards, the policy "Restricted"."""
    job = yaml.safe_load((FOLDER / "cronjob.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    asked = container["securityContext"]
    assert asked["allowPrivilegeEscalation"] is False
    assert asked["capabilities"] == {"drop": ["ALL"]}
    assert asked["readOnlyRootFilesystem"] is True
    allowed = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "projected"}
    kinds = {one["name"]: ({*one} - {"name"}) for one in pod["volumes"]}
    assert all(kind <= allowed for kind in kinds.values())
    written = {
        one["mountPath"] for one in container["volumeMounts"] if kinds[one["name"]] == {"emptyDir"}
    }
    places = {one["name"]: one["value"] for one in container["env"]}
    assert {places[name] for name in ("NUMBA_CACHE_DIR", "TMPDIR", "HOME")} <= written


def test_schedulers_know_our_exit_codes() -> None:
    comments = (FOLDER.parent / "nightly.yaml").read_text()
    table = {int(code) for code in re.findall(r"^#   (\d+) ", comments, re.M)}
    assert table == CODES | {0, 130}
    assert IN_VAIN < CODES
    assert exit_code(BusyError()) == 75
    assert exit_code(ConfigError()) == 78
    assert exit_code(DamagedSourceError()) == 65 == OUTCOMES[REFUSED]
    assert exit_code(SourceError()) == 66


# Airflow, Dagster, Prefect: the same table of codes, and what they make of each.

PYTHON = {"airflow": "airflow_dag.py", "dagster": "dagster_job.py", "prefect": "prefect_flow.py"}
# one refresh as each of them runs it; prints how it ended
DRIVERS = {
    "airflow": """
dag = nightly()
try:
    dag.get_task("refresh").python_callable()
    print("done")
except Exception as error:
    print(type(error).__name__)
""",
    "dagster": """
print("done" if nightly.execute_in_process(raise_on_error=False).success else "failed")
""",
    "prefect": """
print("done" if nightly(return_state=True).is_completed() else "failed")
""",
}
ENDS = {
    "airflow": ("done", "AirflowSkipException", "AirflowFailException", "AirflowException"),
    "dagster": ("done", "done", "failed", "failed"),
    "prefect": ("done", "done", "failed", "failed"),
}


@pytest.mark.parametrize("name", PYTHON.values())
def test_recipes_in_python_know_our_exit_codes(name: str, tmp_path: Path) -> None:
    tree = ast.parse((FOLDER / name).read_text())
    known = {
        one.targets[0].id: ast.literal_eval(one.value)  # type: ignore[attr-defined]
        for one in tree.body
        if isinstance(one, ast.Assign) and one.targets[0].id.isupper()  # type: ignore[attr-defined]
    }
    check_command(known["COMMAND"])
    assert (known["IN_VAIN"], known["LATER"]) == (IN_VAIN, {75})
    (run,) = (one for one in tree.body if getattr(one, "name", "") == "run")
    made: dict[str, Any] = {"subprocess": subprocess, **known}
    exec(compile(ast.Module([run], []), name, "exec"), made)
    assert made["run"](["sh", "-c", "exit 66"]) == 66
    done = tmp_path / "done"
    script = f"trap 'touch {done}; exit 143' TERM; while true; do sleep 0.02; done"

    class Stopped(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stopped):  # the scheduler stops its task, and the refresh hears of it
            made["run"](["sh", "-c", script])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done.exists()


@pytest.mark.soak
@pytest.mark.parametrize("library", PYTHON)
def test_recipes_run_where_their_library_is(library: str, tmp_path: Path) -> None:
    """The library may be in another environment: AIRFLOW_PYTHON=/there/bin/python, and so on."""
    python = os.environ.get(f"{library.upper()}_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {library}"], capture_output=True).returncode:
        pytest.skip(f"{library} is not installed: set {library.upper()}_PYTHON")
    text = (FOLDER / PYTHON[library]).read_text()
    calls, command = tmp_path / "calls", tmp_path / "streampca"
    text = text.replace("/srv/job/.venv/bin/streampca", str(command))
    text = text.replace("WAIT = 600", "WAIT = 0")
    (tmp_path / "recipe.py").write_text(text)
    (tmp_path / "driver.py").write_text(f"from recipe import *\n{DRIVERS[library]}")
    for code, expected in zip((0, 75, 65, 74), ENDS[library], strict=True):
        command.write_text(f"#!/bin/sh\necho . >> {calls}\nexit {code}\n")
        command.chmod(0o755)
        calls.write_text("")
        env = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": "", "AIRFLOW_HOME": str(tmp_path)}
        env["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"  # it locks the database of a new server
        env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "120"
        done = subprocess.run(
            [python, "driver.py"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1:] == [expected], done.stderr[-2000:]
        again = 3 if code == 74 and library != "airflow" else 0  # its scheduler calls again
        assert len(calls.read_text().split()) == 1 + again


@pytest.mark.soak
def test_the_cron_job_is_one_for_the_client_of_kubernetes() -> None:
    """It knows every entry, and each has the type that it expects."""
    client = pytest.importorskip("kubernetes.client")
    job = yaml.safe_load((FOLDER / "cronjob.yaml").read_text())
    api = client.ApiClient()
    read = api._ApiClient__deserialize(job, "V1CronJob")
    assert api.sanitize_for_serialization(read) == job
