"""Airflow 3: a refresh every night at two. Put this file into the folder of DAGs."""

import subprocess
from datetime import datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

COMMAND = ["/srv/job/.venv/bin/streampca", "refresh", "/srv/job/nightly.yaml"]
LATER = {75}  # another job was first, or rows are being written: the next night will do
IN_VAIN = {65, 66, 70, 73, 78}  # no other try would change these; 69, 74 and 143 may pass
WAIT = 600  # seconds between tries
GRACE = 30  # seconds that a refresh has after SIGTERM, to keep what it has done


def run(command: list[str]) -> int:
    """The exit code of a command, which ends with this task if Airflow stops it."""
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


@task(retries=3, retry_delay=timedelta(seconds=WAIT))
def refresh() -> None:
    """One refresh: success, skipped, failed for good, or to be tried again."""
    code = run(COMMAND)
    if code in LATER:
        raise AirflowSkipException(f"exit code {code}: the next night will do")
    if code in IN_VAIN:
        raise AirflowFailException(f"exit code {code}: no other try would change it")
    if code:
        raise AirflowException(f"exit code {code}")


@dag(
    dag_id="streampca_nightly",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
)
def nightly() -> None:
    """The components in /srv/job/models/nightly follow their source."""
    refresh()


nightly()
