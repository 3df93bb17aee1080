"""Which run this is. Logs, notes, metrics and lineage name it by the same id.

A run is one command of the command line, or one refresh that Python called.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

LOG_FORMATS, LOG_LEVELS = ("text", "json"), ("debug", "info", "warning", "error")


@dataclass
class Run:
    """One run.

    id : a UUID, as OpenLineage asks.  command : "fit", "models list"; "" for a call from Python.
    job : the path of the job file, or "".  store : the model store, without credentials, or "".
    version : of the store: the one that is served, then the one that was published; or None.
    """

    command: str = ""
    job: str = ""
    store: str = ""
    version: int | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


_current: ContextVar[Run | None] = ContextVar("streampca_run", default=None)


def current_run() -> Run | None:
    """The run of this thread or task; None outside of one."""
    return _current.get()


@contextlib.contextmanager
def in_run(job: str = "", store: str = "", command: str = "") -> Iterator[Run]:
    """The run that goes on, with what is known now added to it; or a new one, for the block."""
    run, token = _current.get(), None
    if run is None:
        run = Run()
        token = _current.set(run)
    run.command, run.job, run.store = command or run.command, job or run.job, store or run.store
    try:
        yield run
    finally:
        if token is not None:
            _current.reset(token)
