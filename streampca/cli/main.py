"""Entry point: the parser, exit codes, and how errors and warnings are said."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import streampca
from streampca.cli import calibrate, fit, genotypes, impute, models, pictures, refresh
from streampca.cli.config import Parser, apply_config
from streampca.cli.outputs import OutputError
from streampca.errors import (
    BusyError,
    ChangingSourceError,
    ClusterError,
    DamagedSourceError,
    MemoryLimitError,
    MissingDependencyError,
    NoAnswerError,
    SourceError,
    StreamPCAError,
)
from streampca.jobs.yaml_file import ConfigError

# sysexits.h: 65 unusable data or settings, 66 no such input, 69 not enough memory, no such package
# or no workers, 73 no such place to write to, 74 reading or writing failed, 75 another process was
# first: try again later, 78 a job file that cannot be used; and 79 a job that is behind, if asked
FAILED = 74
EXIT = (
    (OutputError, 73),
    (ConfigError, 78),
    (BusyError, 75),
    (ChangingSourceError, 75),
    (DamagedSourceError, 65),
    (MemoryLimitError, 69),
    (ClusterError, 69),
    (NoAnswerError, FAILED),
    (SourceError, 66),
    (MissingDependencyError, 69),
    (StreamPCAError, 65),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``streampca``. Returns the exit code."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if getattr(arguments, "config", None):
            apply_config(arguments.parser, arguments.config)
            arguments = parser.parse_args(argv)
        return int(arguments.run(arguments) or 0)
    except StreamPCAError as error:
        _say(error)
        return next(code for kind, code in EXIT if isinstance(error, kind))
    except KeyboardInterrupt:
        print("streampca: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        _say(error)
        return FAILED


def _say(error: BaseException) -> None:
    print(f"streampca: {error}", file=sys.stderr)
    for note in getattr(error, "__notes__", []):
        print(f"  {note}", file=sys.stderr)


def _show_warning(message: Any, category: Any, *_: Any) -> None:
    print(f"streampca: {category.__name__}: {message}", file=sys.stderr)


def build_parser() -> Parser:
    """All commands and their options."""
    parser = Parser(prog="streampca", description="PCA of matrices that do not fit in memory.")
    parser.add_argument("--version", action="version", version=f"streampca {streampca.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (fit, genotypes, impute, pictures, models, refresh, calibrate):
        module.add_commands(commands)
    return parser
