"""``streampca refresh`` and ``streampca config``: scheduled jobs."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from typing import Any, NoReturn

from streampca.cli.config import apply_config
from streampca.errors import InvalidInputError
from streampca.operations.config import check_job, read_job
from streampca.operations.outcome import Outcome
from streampca.operations.refresh import refresh
from streampca.operations.sections import ConfigError, read_yaml, schema
from streampca.operations.state import seconds_since

TERMINATED = 143  # 128 + SIGTERM
JOBS_ONLY = {"model", "gate", "store"}  # not options of fit


def add_commands(commands: Any) -> None:
    """Add the commands to the parser."""
    one = commands.add_parser("refresh", help="update a model store from its source, by a job file")
    one.set_defaults(run=run_refresh)
    one.add_argument("job", metavar="CONFIG", help="the job, a YAML file: see configs/")
    one.add_argument("--verify", choices=("stat", "full"), help="override the job's setting")
    one.add_argument("--dry-run", action="store_true", help="only print what would be done")
    one.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True,
        help="continue an interrupted refresh of the same data",
    )  # fmt: skip
    one.add_argument(
        "--fail-behind", metavar="SECONDS", type=float, nargs="?", const=0.0,
        help="exit with 79 if existing samples have not been used for so long (0)",
    )  # fmt: skip
    one.add_argument("-q", "--quiet", action="store_true", help="print nothing on stderr")

    config = commands.add_parser("config", help="check a job file, or print the schema of one")
    inner = config.add_subparsers(required=True, metavar="COMMAND")
    check = inner.add_parser("check", help="exit with 78 if a file cannot be used")
    check.set_defaults(run=run_check, parsers=commands.choices)
    check.add_argument("file", nargs="+", metavar="YAML")
    inner.add_parser("schema", help="the JSON Schema of job files").set_defaults(run=run_schema)


def run_refresh(arguments: argparse.Namespace) -> int:
    """``streampca refresh``: one line of JSON on stdout, text on stderr."""
    job = read_job(arguments.job)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        outcome = refresh(
            job, verify=arguments.verify, dry_run=arguments.dry_run, resume=arguments.resume
        )
    except SystemExit:
        kept = "" if "://" in job.store else "; the next refresh goes on from what was done"
        print(f"streampca: terminated{kept}", file=sys.stderr)
        raise
    most = arguments.fail_behind
    if most is not None and outcome.behind:
        outcome.overdue = seconds_since(outcome.behind_since) >= most
    print(outcome.to_json())
    if not arguments.quiet:
        print(as_text(outcome), file=sys.stderr)
    return outcome.exit_code


def _terminated(*_: Any) -> NoReturn:
    raise SystemExit(TERMINATED)


def as_text(outcome: Outcome) -> str:
    """The outcome of a refresh, for people."""
    served = f"version {outcome.served}"
    text = {
        "unchanged": f"nothing to do: {outcome.why}; {served} is served",
        "published": f"version {outcome.version} is served: {outcome.why}",
        "refused": f"version {outcome.version} is a candidate: {outcome.gate}; {served} is served "
        f"(streampca models promote {outcome.store} {outcome.version})",
        "planned": f"would do: {outcome.how}: {outcome.why}",
    }[outcome.status]
    if not outcome.behind:
        return f"streampca: {text}"
    return (
        f"streampca: {text}\nstreampca: behind: {outcome.behind} samples from "
        f"{outcome.samples} on are not taken, since {outcome.behind_since}: {outcome.note}"
    )


def run_check(arguments: argparse.Namespace) -> int:
    """``streampca config check``: check job files, and options files for ``fit --config``."""
    for path in arguments.file:
        entries, origin = read_yaml(path)
        if isinstance(entries.get("source"), dict) or entries.keys() & JOBS_ONLY:
            job = check_job(entries, origin)
            print(f"{path}: a refresh of {job.store} by {job.model['kind']}")
        else:
            command = _command_for(arguments.parsers, path)
            print(f"{path}: options of streampca {command}")
    return 0


def _command_for(parsers: dict[str, Any], path: str) -> str:
    """The command whose options a file holds. Raises the ConfigError of ``fit`` if none does."""
    names = [name for name, one in parsers.items() if "--config" in one._option_string_actions]
    for name in sorted(names, key="fit".__ne__):
        with contextlib.suppress(InvalidInputError):
            apply_config(parsers[name], path)
            return name
    try:
        apply_config(parsers["fit"], path)
    except InvalidInputError as error:
        raise ConfigError(str(error)) from None
    return "fit"


def run_schema(arguments: argparse.Namespace) -> int:
    """``streampca config schema``."""
    print(json.dumps(schema(), indent=1))
    return 0
