"""What ``configs/schedulers`` holds is what cron, systemd and Kubernetes take, and what we take."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

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

FOLDER = Path(__file__).parents[1] / "configs" / "schedulers"
CODES = {*(code for _, code, _ in EXIT), *OUTCOMES.values(), FAILED, FAULT, TERMINATED}
TABLE = dict(re.findall(r"^#   (\d+) +(\S+)", (FOLDER.parent / "nightly.yaml").read_text(), re.M))
IN_VAIN = {int(code) for code, again in TABLE.items() if again == "no"}


UNITS = ("nightly.service", "nightly.timer", "nightly-failed.service")


def check_command(words: list[str]) -> None:
    """The parser of our own takes it."""
    assert words[0].rpartition("/")[2] == "streampca"
    arguments = build_parser().parse_args(words[1:])
    assert arguments.job.endswith("nightly.yaml")


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
    assert service["Service"]["SuccessExitStatus"] == "75"
    failed = service["Unit"]["OnFailure"]
    assert shlex.split(unit(failed)["Service"]["ExecStart"])[0] == "/usr/bin/logger"
    assert service["Service"]["Environment"] == "NUMBA_CACHE_DIR=%C/nightly"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 02:00:00"
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
    lines = [line for line in (FOLDER / "crontab").read_text().splitlines() if line[:1].isdigit()]
    days = set()
    for line in lines:
        *when, command = line.split(None, 5)
        assert [bool(re.fullmatch(r"[\d*,/-]+", one)) for one in when] == [True] * 5
        first, last = (when[4].split("-") * 2)[:2]
        days |= set(range(int(first), int(last) + 1))
        assert "%" not in command  # cron would end the line there
        change, _, rest = command.partition(" && ")
        assert change == "cd /srv/job"
        check_command(shlex.split(rest.partition(" >>")[0]))
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
