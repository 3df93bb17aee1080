"""How a command that fails says so: on stderr, in the log, and with ``--json`` on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import Any

from streampca.cli.messages import as_options
from streampca.cli.terminal import RED, announce
from streampca.errors import (
    FAULT,
    OF_USAGE,
    USAGE,
    StreamPCAError,
    error_kind,
    exit_code,
    hide_secrets,
    printable_name,
)
from streampca.run_context import in_run

TRACEBACK = "STREAMPCA_TRACEBACK"  # environment variable: if set, bugs show a traceback
KINDS = """a command that fails exits with a code, and with --json prints a line of JSON on stdout:
  {"status": "failed", "exit": 66, "kind": "source", "message": ..., "notes": [...], "run": ...}
exit codes and kinds:
  2    usage: words that the command does not take
  65   invalid_input, invalid_type, non_finite, not_fitted, damaged_source, absent_chunk
  66   source: no such input; newer_format
  69   memory_limit, memory, cluster, missing_dependency
  70   fault: a bug of streampca
  73   output: it cannot be written; occupied: something is there
  74   system: reading or writing failed; no_answer
  75   busy: another process was first; changing_source. Try again later
  78   config: an unusable job file
  130  interrupted, and 143 terminated: the same command goes on with what was kept"""


class UsageExit(SystemExit):
    """Words of the command line that cannot be used: said on stderr already.

    command : as far as the words name one.
    """

    def __init__(self, message: str, command: str) -> None:
        super().__init__(USAGE)
        self.message, self.command = message, command


def failed(error: BaseException, parser: Any, as_json: bool) -> int:
    """Say why a command ends. Returns its exit code.

    parser : of the command line, or None.  as_json : on stdout too.
    """
    usage = isinstance(error, SystemExit) and error.code == USAGE
    code, kind = (USAGE, OF_USAGE) if usage else (exit_code(error), error_kind(error))
    message, notes = _message(error, parser), getattr(error, "__notes__", [])
    if not usage:
        fault = error if code == FAULT else None
        announce(message, logging.ERROR, look=RED, notes=notes, fault=fault, kind=kind, exit=code)
    if as_json:
        with contextlib.suppress(OSError), in_run() as run:
            said, *more = (printable_name(hide_secrets(one)) for one in (message, *notes))
            line = {"status": "failed", "exit": code, "kind": kind, "message": said}
            command = getattr(error, "command", run.command)
            line |= {"notes": more, "command": command, "run": run.id}
            print(json.dumps(line), flush=True)
    return code


def _message(error: BaseException, parser: Any) -> str:
    if isinstance(error, UsageExit):
        return error.message
    if isinstance(error, SystemExit):
        return "terminated" if error.code != USAGE else "the command line cannot be used"
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, StreamPCAError):
        return str(error) if parser is None else as_options(str(error), parser)
    if isinstance(error, MemoryError):
        return str(error) or "there is not enough memory; set --memory-limit"
    if isinstance(error, OSError):
        return str(error)
    return (
        f"{type(error).__name__}: {error}. This is a fault of streampca: please report it, "
        f"with what {TRACEBACK}=1 shows"
    )
