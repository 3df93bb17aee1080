"""Options and jobs in YAML files: ``--config``, ``streampca refresh``, ``streampca config``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampca.cli.commands import Parser
from streampca.cli.terminal import announce, log_on_stderr, shown
from streampca.errors import (
    ConfigError,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
    hide_secrets,
    nearest,
    printable_name,
)
from streampca.matrix.labels import json_of
from streampca.operations.config import Job, check_cluster, check_job, read_job
from streampca.operations.outcome import Outcome, seconds_since
from streampca.operations.refresh import refresh
from streampca.operations.sections import schema
from streampca.operations.yaml_files import Origin, read_yaml
from streampca.passes import cluster_class, started
from streampca.passes.memory import size
from streampca.run_context import in_run

# Options from a YAML file, by their names on the command line, and its ``cluster:`` section.

# The ``cluster:`` section of an options file: workers for the duration of a command.

Run = Callable[[argparse.Namespace], int]


def cluster_options(parser: Any) -> None:
    """Let a command accept the section. On the command line, --scheduler takes precedence."""
    parser.add_argument(
        "--cluster",
        metavar="YAML",
        help="start workers for this command, on this machine, in the queue of a site or on "
        "Kubernetes: a file with a section cluster (configs/slurm.yaml), or with its entries alone",
    )


def on_cluster(run: Run) -> Run:
    """The command, with the cluster of its options, if any, as the scheduler.

    A plan asks the workers of a running scheduler (``address``), and starts no cluster.
    """

    def inside(arguments: argparse.Namespace) -> int:
        cluster = arguments.cluster = _cluster_of(arguments)
        plans = getattr(arguments, "plan", False)
        there = None if plans and "address" not in cluster else cluster
        with started(there, arguments.scheduler) as arguments.scheduler:
            return run(arguments)

    return inside


def _cluster_of(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """The checked section of --cluster or of --config; {} without any."""
    cluster = arguments.cluster or {}
    if not isinstance(cluster, str):
        return {} if arguments.scheduler is not None else cluster
    if arguments.scheduler is not None:
        raise InvalidInputError("--cluster and --scheduler both name a cluster; leave one out")
    return _cluster_in(*load_config(cluster))


def _cluster_in(entries: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """The checked section of a file that has it, or nothing but its entries."""
    if "cluster" in entries:
        return check_cluster(entries["cluster"], origin)
    lines = {f"cluster.{name}": line for name, line in origin.lines.items()}
    return check_cluster(entries, Origin(origin.path, lines))


# Options from a YAML file: the names of the command line, which takes precedence.


def apply_config(parser: Parser, path: str) -> None:
    """Make the entries of a file the defaults of a command; options on the command line win.

    Keys are the long option names without leading dashes (``memory-limit`` or ``memory_limit``),
    ``source`` (a path or a list), and the section ``cluster``. Paths are relative to the working
    directory, as on the command line. Raises SourceError, InvalidInputError.
    """
    known = _entries(parser)
    typed: dict[str, Any] = {}
    entries, origin = load_config(path)
    for key, value in entries.items():
        if key == "cluster":
            typed[key] = check_cluster(value, origin)
            continue
        if (action := known.get(key.replace("_", "-"))) is None:
            names = sorted({*known, "cluster"})
            raise InvalidInputError(
                f"{origin.at(key)}: no option {key!r}; expected one of {', '.join(names)}"
                f"{nearest(key.replace('_', '-'), names)}"
            )
        try:
            typed[action.dest] = _typed(parser, key.replace("-", "_"), action, value)
        except InvalidInputError as error:
            raise InvalidInputError(f"{origin.at(key)}: {error}") from None
    if "cluster" in typed and "scheduler" in typed:
        raise InvalidInputError(
            f"{origin.at('scheduler')}: the section cluster sets it too; leave one out"
        )
    parser.set_defaults(**typed)


def load_config(path: str) -> tuple[dict[str, Any], Origin]:
    """The entries of a YAML file, and their lines. Raises SourceError, InvalidInputError."""
    if not os.path.exists(path):
        raise SourceError(f"{path}: no such file")
    try:
        return read_yaml(path, "option")
    except ConfigError as error:  # which has the exit code of job files, 78
        raise InvalidInputError(str(error)) from None


def _entries(parser: Parser) -> dict[str, argparse.Action]:
    """The entries that a file can have: long options without dashes, parameters, and ``source``."""
    actions = [action for action in parser._actions if action.dest not in ("help", "config")]
    found = {action.dest.replace("_", "-"): action for action in actions}
    for action in actions:
        found |= {name[2:]: action for name in action.option_strings if name.startswith("--")}
    return found


def _typed(parser: Parser, name: str, action: argparse.Action, value: Any) -> Any:
    """The value as parsed from the command line; for options of ``--model`` as in a job file."""
    if type(action.default) is object:  # ``kinds.UNSET``: these options take None and lists
        return value
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise InvalidInputError(f"expected true or false, not {value!r}")
        if name == action.dest:
            return value
        return bool(action.const) if value else parser.get_default(action.dest)  # --no-...
    values = value if isinstance(value, list) else [value]
    if not values or any(one is None or isinstance(one, (bool, dict, list)) for one in values):
        raise InvalidInputError(f"expected a value, not {value!r}; or leave the line out")
    if not action.option_strings:
        return [str(one) for one in values]
    option = action.option_strings[-1]
    alone = not isinstance(value, list) or isinstance(action, argparse._AppendAction)
    argv = [f"{option}={one}" for one in values] if alone else [option, *map(str, values)]
    parser.raises = True
    try:
        parsed = getattr(parser.parse_args(argv), action.dest)
    finally:
        parser.raises = False
    if isinstance(value, list) and not isinstance(parsed, list):
        raise InvalidInputError(f"expected one value, not {value!r}")
    return parsed


# ``streampca refresh`` and ``streampca config``: scheduled jobs.

JOBS_ONLY = {"model", "gate", "store"}  # not options of fit
WHERE = "see configs/; its paths are relative to the working directory"


def add_options(parsers: dict[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``refresh`` and ``config``."""
    one = parsers["refresh"]
    one.set_defaults(run=run_refresh, prepare=read_arguments)
    one.add_argument("job", metavar="CONFIG", help=f"the job, a YAML file: {WHERE}")
    one.add_argument("--verify", choices=("stat", "full"), help="override the job's setting")
    one.add_argument("--dry-run", action="store_true", help="only print what would be done")
    one.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="continue an interrupted refresh of the same data",
    )
    one.add_argument(
        "--accept-source",
        action="store_true",
        help="the source may be another one than that of the served version",
    )
    one.add_argument(
        "--fail-behind",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=0.0,
        help="exit with 79 if existing samples have not been used for so long (0)",
    )
    one.add_argument("-q", "--quiet", action="store_true", help="print nothing on stderr")

    inner = parsers["config"].add_subparsers(required=True)
    check = inner.add_parser("check", help="exit with 78 if a file cannot be used")
    check.set_defaults(run=run_check, parsers=parsers)
    check.add_argument("file", nargs="+", metavar="YAML")
    inner.add_parser("schema", help="the JSON Schema of job files").set_defaults(run=run_schema)


def read_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the job file, before anything is logged. Returns its section ``logging``."""
    arguments.job = job = read_job(arguments.job)
    with in_run(job.file, hide_secrets(job.store)):
        return job.logging


def run_refresh(arguments: argparse.Namespace) -> int:
    """``streampca refresh``: one line of JSON on stdout, text on stderr."""
    job: Job = arguments.job
    try:
        outcome = refresh(
            job,
            verify=arguments.verify,
            dry_run=arguments.dry_run,
            resume=arguments.resume,
            accept_source=arguments.accept_source,
            progress=arguments.note,
        )
    except SourceError as error:
        here = os.getcwd()
        if os.path.dirname(os.path.abspath(job.file)) != here:
            error.add_note(
                f"relative paths of the job are taken from the working directory, {here}"
            )
        raise
    except SystemExit as stop:
        if "://" not in job.store:
            stop.add_note("the next refresh goes on from what was done")
        raise
    most = arguments.fail_behind
    if most is not None and outcome.behind:
        outcome.overdue = seconds_since(outcome.behind_since) >= most
    print(outcome.to_json())
    if not arguments.quiet and not log_on_stderr():  # which has said it
        print(as_text(outcome), file=sys.stderr)
    return outcome.exit_code


def as_text(outcome: Outcome) -> str:
    """The outcome of a refresh, for people."""
    served = f"version {outcome.served}"
    known = outcome.how == "nothing" and outcome.version is not None  # made before, not yet served
    would = f"serve version {outcome.version}" if known else f"do: {outcome.how}"
    text = {
        "unchanged": f"nothing to do: {outcome.why}; {served} is served",
        "published": f"version {outcome.version} is served: {outcome.why}",
        "already": f"{served} is served: another refresh has published the same ({outcome.by})",
        "refused": f"version {outcome.version} is a candidate: {outcome.gate}; {served} is served "
        f"(streampca models promote {outcome.store} {outcome.version})",
        "planned": f"would {would}: {outcome.why}",
    }[outcome.status]
    lines = [text]
    if outcome.behind:
        lines.append(
            f"behind: {outcome.behind} samples from {outcome.samples} on are not taken, since "
            f"{outcome.behind_since}: {outcome.note}"
        )
    if outcome.removed_versions:
        numbers = ", ".join(map(str, outcome.removed_versions))
        done = "would remove" if outcome.status == "planned" else "removed"
        lines.append(f"keep: {done} {size(outcome.removed_bytes)} of versions {numbers}")
    return "\n".join(f"streampca: {printable_name(hide_secrets(line))}" for line in lines)


def run_check(arguments: argparse.Namespace) -> int:
    """``streampca config check``: check job files, and options files for ``fit --config``."""
    found = []
    for path in arguments.file:
        entries, origin = read_yaml(path)
        if isinstance(entries.get("source"), dict) or entries.keys() & JOBS_ONLY:
            job = check_job(entries, origin)
            _check_class(job.cluster, origin)
            what = f"a refresh of {shown(job.store)} by {job.model['kind']}"
        elif entries.keys() & {"class", "address"}:
            _check_class(_cluster_in(entries, origin), origin)
            what = "workers for --cluster"
        else:
            command = _command_for(arguments.parsers, path)
            if isinstance(entries.get("cluster"), dict):
                _check_class(entries["cluster"], origin)
            what = f"options of streampca {command}"
        found.append({"file": path, "is": what})
        if not arguments.json:
            print(f"{shown(path)}: {what}")
    if arguments.json:
        print(json_of(found, indent=1))
    return 0


def _check_class(cluster: Mapping[str, Any], origin: Origin) -> None:
    """Import the class of a cluster; it may be installed only where the job runs.

    Raises ConfigError for what is there and is no cluster class.
    """
    try:
        if cluster and "address" not in cluster:
            cluster_class(cluster.get("class", "LocalCluster"))
    except MissingDependencyError as error:
        if importlib.util.find_spec(str(cluster["class"]).partition(".")[0]) is not None:
            raise ConfigError(f"{origin.at('cluster.class')}: {error}") from None
        announce(f"{origin.path}: not checked: {error}", logging.WARNING)
    except InvalidInputError as error:
        raise ConfigError(f"{origin.at('cluster.class')}: {error}") from None


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
    print(json_of(schema(), indent=1))
    return 0
