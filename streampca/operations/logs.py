"""Logs of a run as lines of JSON or of text, in a file or on stderr.

The package only logs, by loggers ``streampca.*`` of the standard library, and has no handler of its
own. The command line uses these (``--log-format``, ``--log-file``, ``--log-level``); a program that
configures logging itself may take the formats.

Levels: DEBUG a pass that begins, small fits; INFO the beginning and end of a run, a plan, every
finished pass, a line a minute within a pass, what a refresh has found and done, every entry of a
model store's log; WARNING what ``warnings`` says, a source that changed while it was read, a
refused version, rows that a job leaves behind; ERROR why a command has failed.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

from streampca.errors import OutputError, hide_secrets, printable_name
from streampca.matrix.labels import json_of
from streampca.paths import AT_ONCE, BINARY
from streampca.run_context import Run, current_run
from streampca.version import __version__

LOGGER = "streampca"
OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}  # not fields of a line


@contextlib.contextmanager
def logged(
    format: str | None = None, file: str | None = None, level: str | None = None
) -> Iterator[None]:
    """Log what the package does while the context lasts; within a run, what that run does.

    format : "text" (default) or "json".  file : to append to (default: stderr).
    level : the least, "info" by default.
    Raises OutputError if the file cannot be written.
    """
    handler = logging.StreamHandler(sys.stderr) if file is None else LogFile(file)
    run = current_run()
    handler.setFormatter((JsonLines if format == "json" else TextLines)(run))
    handler.addFilter(lambda _: run is None or current_run() in (None, run))  # not those of others
    logger = logging.getLogger(LOGGER)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel((level or "info").upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


class JsonLines(logging.Formatter):
    """Lines of JSON: time (UTC, ISO 8601), level, logger, run, host, pid, command, job, store,
    version (of the store: the served one, then the published one), streampca (the version of the
    package), message, and the fields of the event. What is not known is null.

    run : of records that are logged outside of one, such as those of other threads.
    """

    def __init__(self, run: Run | None = None) -> None:
        super().__init__()
        self.run = run

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return json_of(self.line(record))

    def line(self, record: logging.LogRecord) -> dict[str, Any]:
        """What a line says."""
        run = current_run() or self.run or Run(id="")
        fields = {name: value for name, value in vars(record).items() if name not in OWN}
        line = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "run": run.id or None,
            "host": run.host,
            "pid": record.process,
            "command": run.command or None,
            "job": run.job or None,
            "store": run.store or None,
            "version": fields.pop("version", run.version),
            "streampca": __version__,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return {n: _shown(value) for n, value in (line | fields | line).items()}


class TextLines(JsonLines):
    """Lines for people: time, level, logger, the beginning of the run's id, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and after it a traceback if there is one."""
        line = self.line(record)
        text = "{time} {level:<7} {logger} {run!s:.8} ".format(**line)
        text += printable_name("; ".join([line["message"], *line.get("notes", ())]))
        return "\n".join([text, line["traceback"]]) if "traceback" in line else text


def _shown(value: Any) -> Any:
    """A value without credentials; what JSON does not have as text."""
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _shown(one) for name, one in value.items()}
    known = value is None or isinstance(value, (bool, int, float)) or hasattr(value, "dtype")
    return value if known else hide_secrets(str(value))


class LogFile(logging.Handler):
    """A file that lines are appended to, each in one write.

    A file that was moved or removed, as logrotate does, is made anew; one that was cut
    (``copytruncate``) is continued. Logging never fails a run: what could not be written is lost,
    and the first failure is said on stderr.

    Raises OutputError if the file cannot be opened, or is none.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = os.path.abspath(path)
        try:
            self.file = self._opened()
        except OSError as error:
            raise OutputError(
                f"{path}: no log can be written there ({error.strerror}); name a file in a folder "
                "that exists and can be written to"
            ) from None
        kind = os.fstat(self.file).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
            os.close(self.file)
            raise OutputError(f"{path}: no file; without a name of a file, logs go to stderr")
        self.cut, self.failed = False, False

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            self._reopen()
            if self.cut:  # the last line has no end
                line = b"\n" + line
            self.cut = os.write(self.file, line) < len(line)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say once that lines are lost."""
        if not self.failed:
            self.failed = True
            why = sys.exc_info()[1]
            with contextlib.suppress(OSError, ValueError):
                print(f"streampca: lines of the log {self.path} are lost: {why}", file=sys.stderr)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self.file)
        super().close()

    def _opened(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | AT_ONCE | BINARY, 0o666)

    def _reopen(self) -> None:
        """Open the file that has the name now, if it is another one."""
        here = os.fstat(self.file)
        try:
            there = os.stat(self.path)
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        except FileNotFoundError:
            pass
        file = self._opened()
        os.close(self.file)
        self.file, self.cut = file, False
