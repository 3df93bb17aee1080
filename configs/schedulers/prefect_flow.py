"""Prefect 3: a refresh every night at two.   python prefect_flow.py"""

import subprocess
from typing import Any

from prefect import flow, task
from prefect.states import Completed

COMMAND = ["/srv/job/.venv/bin/streampca", "refresh", "/srv/job/nightly.yaml"]
LATER = {75}  # another job was first, or rows are being written: the next night will do
IN_VAIN = {65, 66, 70, 73, 78}  # no other try would change these; 69, 74 and 143 may pass
WAIT = 600  # seconds between tries
GRACE = 30  # seconds that a refresh has after SIGTERM, to keep what it has done


def run(command: list[str]) -> int:
    """The exit code of a command, which ends with this task if Prefect stops it."""
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def may_pass(task: Any, task_run: Any, state: Any) -> bool:
    """Whether another try may change how a refresh ended."""
    error = state.result(raise_on_failure=False)
    return getattr(error, "returncode", 0) not in IN_VAIN


@task(retries=3, retry_delay_seconds=WAIT, retry_condition_fn=may_pass)
def refresh() -> Any:
    """One refresh: success, later, failed for good, or to be tried again."""
    code = run(COMMAND)
    if code in LATER:
        return Completed(name="Later", message=f"exit code {code}: the next night will do")
    if code:
        raise subprocess.CalledProcessError(code, COMMAND)
    return None


@flow(name="streampca-nightly")
def nightly() -> None:
    """The components in /srv/job/models/nightly follow their source."""
    refresh()


if __name__ == "__main__":
    nightly.serve(name="nightly", cron="0 2 * * *")
