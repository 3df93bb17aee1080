"""Dagster: a refresh every night at two.   dagster dev -f dagster_job.py"""

import subprocess

import dagster

COMMAND = ["/srv/job/.venv/bin/streampca", "refresh", "/srv/job/nightly.yaml"]
LATER = {75}  # another job was first, or rows are being written: the next night will do
IN_VAIN = {65, 66, 70, 73, 78}  # no other try would change these; 69, 74 and 143 may pass
WAIT = 600  # seconds between tries
GRACE = 30  # seconds that a refresh has after SIGTERM, to keep what it has done


def run(command: list[str]) -> int:
    """The exit code of a command, which ends with this op if Dagster stops it."""
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


@dagster.op
def refresh(context: dagster.OpExecutionContext) -> None:
    """One refresh: success, failed for good, or to be tried again."""
    code = run(COMMAND)
    if code in LATER:
        context.log.warning(f"exit code {code}: the next night will do")
    elif code in IN_VAIN:
        raise dagster.Failure(f"exit code {code}: no other try would help", allow_retries=False)
    elif code:
        raise dagster.RetryRequested(max_retries=3, seconds_to_wait=WAIT)


@dagster.job
def nightly() -> None:
    """The components in /srv/job/models/nightly follow their source."""
    refresh()


definitions = dagster.Definitions(
    jobs=[nightly], schedules=[dagster.ScheduleDefinition(job=nightly, cron_schedule="0 2 * * *")]
)
