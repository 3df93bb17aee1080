"""Options from a YAML file, by their names on the command line, and its ``cluster:`` section."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NoReturn

from streampca.errors import InvalidInputError, SourceError
from streampca.operations.config import check_cluster
from streampca.operations.sections import ConfigError, Origin, nearest, read_yaml
from streampca.passes import started

# --------------------------------------------------------------------------------------------------
# The ``cluster:`` section of an options file: workers for the duration of a command.

Run = Callable[[argparse.Namespace], int]


def cluster_options(parser: Any) -> None:
    """Let a command accept the section. On the command line, --scheduler takes precedence."""
    parser.set_defaults(cluster=None)


def on_cluster(run: Run) -> Run:
    """The command, with the cluster of its options file, if any, as the scheduler."""

    def inside(arguments: argparse.Namespace) -> int:
        cluster = arguments.cluster if arguments.scheduler is None else None
        with started(cluster, arguments.scheduler) as arguments.scheduler:
            return run(arguments)

    return inside


# --------------------------------------------------------------------------------------------------
# Options from a YAML file: the names of the command line, which takes precedence.

REPEATED = ("variable", "remove")  # repeatable options with one value each time
NO_ENTRIES = ("run", "parser", "config", "kind")  # parsed arguments that are no options


class Parser(argparse.ArgumentParser):
    """A parser that can also raise InvalidInputError, for options from a file."""

    raises = False

    def error(self, message: str) -> NoReturn:
        if self.raises:
            raise InvalidInputError(message)
        super().error(message)


def apply_config(parser: Parser, path: str) -> None:
    """Make the entries of a file the defaults of a command; options on the command line win.

    Keys are the long option names without leading dashes (``memory-limit`` or ``memory_limit``),
    ``source`` (a path or a list), and the section ``cluster``. Paths are relative to the working
    directory, as on the command line. Raises SourceError, InvalidInputError.
    """
    known = {
        name: value for name, value in vars(parser.parse_args([])).items() if name not in NO_ENTRIES
    }
    typed = {}
    entries, origin = load_config(path)
    for key, value in entries.items():
        name = key.replace("-", "_")
        name = f"{name}_" if name not in known and f"{name}_" in known else name
        if name not in known:
            names = sorted(one.replace("_", "-") for one in known)
            raise InvalidInputError(
                f"{origin.at(key)}: no option {key!r}; expected one of {', '.join(names)}"
                f"{nearest(key.replace('_', '-'), names)}"
            )
        if name == "cluster":
            typed[name] = check_cluster(value, origin)
            continue
        try:
            typed[name] = _typed(parser, name, known[name], value)
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


def _typed(parser: Parser, name: str, default: Any, value: Any) -> Any:
    """The value as parsed from the command line; for options of ``--model`` as in a job file."""
    if type(default) is object:  # ``kinds.UNSET``: these options take None and lists
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidInputError(f"expected true or false, not {value!r}")
        return value
    values = value if isinstance(value, list) else [value]
    if not values or any(one is None or isinstance(one, (bool, dict, list)) for one in values):
        raise InvalidInputError(f"expected a value, not {value!r}; or leave the line out")
    if name == "source":
        return [str(one) for one in values]
    option = "--" + name.replace("_", "-")
    alone = not isinstance(value, list) or name in REPEATED
    argv = [f"{option}={one}" for one in values] if alone else [option, *map(str, values)]
    parser.raises = True
    try:
        parsed = vars(parser.parse_args(argv))
    finally:
        parser.raises = False
    if isinstance(value, list) and not isinstance(parsed[name], list):
        raise InvalidInputError(f"expected one value, not {value!r}")
    return parsed[name]
