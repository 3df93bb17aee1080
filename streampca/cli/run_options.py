"""Options of every command that say what others see of its run: JSON, the log, its progress."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from streampca.run_context import LOG_FORMATS, LOG_LEVELS, in_run

OUTPUTS = (
    "output",
    "out",
    "scores",
    "completed",
    "coordinates",
    "counts",
    "eofs",
    "checkpoint",
    "scratch",
)
PLACES = ("source", "model", "store", *OUTPUTS)  # of data, which are not logs


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers that run something: this one, or those of its inner commands."""
    inner = [one.choices for one in parser._actions if isinstance(one.choices, dict)]
    if not inner:
        yield parser
    for choices in inner:
        for one in choices.values():
            yield from leaves(one)


def run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; ``--json`` unless the command has it."""
    parser.set_defaults(command=parser.prog.partition(" ")[2])
    if "--json" not in parser._option_string_actions:
        parser.add_argument("--json", action="store_true", help="machine-readable output")
    group = parser.add_argument_group(
        "the run", "With --json errors are JSON on stdout, too: 'streampca --help' lists the kinds."
    )
    group.add_argument(
        "--log-format", choices=LOG_FORMATS, help="log on stderr, in text or in lines of JSON"
    )
    group.add_argument(
        "--log-file",
        metavar="FILE",
        help="log to the end of this file; when it is moved, as by logrotate, to a new one",
    )
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, help="log events from this level on (default info)"
    )
    group.add_argument(
        "--progress-file",
        metavar="JSON",
        help="note here every 30 s how far the run is, and how it ends: 'streampca status JSON'",
    )


def begin_logs(arguments: argparse.Namespace, logs: contextlib.ExitStack) -> None:
    """Name the run, and log it as the options ask, then as the job file does.

    Raises InvalidInputError, OutputError, and what ``prepare`` of the command raises.
    """
    with in_run() as run:
        run.command = arguments.command
        for name, path in (("job", "config"), ("store", "store")):
            if isinstance(value := getattr(arguments, path, None), str):
                setattr(run, name, value)
    for option in ("log_file", "progress_file"):
        _refuse_data(arguments, option)
    names = ("format", "file", "level")
    asked = {name: getattr(arguments, f"log_{name}") for name in names}
    asked = {name: value for name, value in asked.items() if value is not None}
    _log(asked, logs)
    if prepare := getattr(arguments, "prepare", None):  # reads a job file
        section = prepare(arguments)
        if section:
            logs.close()
            _log(section | asked, logs)


def _log(asked: dict[str, str], logs: contextlib.ExitStack) -> None:
    if asked:
        from streampca.operations.logs import logged  # NumPy, which --help does not need

        logs.enter_context(logged(**asked))


@contextlib.contextmanager
def noted(arguments: argparse.Namespace) -> Iterator[None]:
    """Note the run in its --progress-file, if it has one."""
    arguments.note = None
    if arguments.progress_file is None:
        yield
        return
    from streampca.operations.runs import RunNote

    with RunNote(file=arguments.progress_file) as arguments.note:
        yield


def _refuse_data(arguments: argparse.Namespace, option: str) -> None:
    """Raise InvalidInputError if a log or note would be written into data."""
    if (path := getattr(arguments, option)) is None:
        return
    from streampca.store.places import refuse_inside

    values: list[Any] = [getattr(arguments, name, None) for name in PLACES]
    if option == "progress_file":
        values.append(arguments.log_file)
    places = [one for value in values for one in (value if isinstance(value, list) else [value])]
    said = f"--{option.replace('_', '-')}"
    refuse_inside(path, [one for one in places if isinstance(one, str) and one], said)
