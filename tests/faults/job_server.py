"""Starts refreshes, and writers of stores, in processes forked from one that imported everything.

Reads one line of JSON for each request: ``{"job": path, "options": [of refresh], "command": [words
of another command], "processes": n, "file_limit": bytes, "locked": true, "kill": signal, "after":
seconds, "die_at": number of a system call, "full_at": number of a flush from which on the disk is
full, "clock": seconds ahead, "host": name of another host, "limit": seconds, after which it counts
as hanging and answers 124}``, or ``{"write": store, "last": i, ...}`` for a writer that publishes
i + 1, i + 2, ... and says so; answers with the exit codes and the output.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from tests.forks import IMPORTED

# what a refresh imports too: half a second, in each fork that would do it itself
REFRESHING = ("streampca.cli.config", "streampca.operations.refresh", "streampca.version")


def child(request: dict[str, Any], out: str) -> int:
    from streampca.cli import main
    from streampca.operations import refresh

    if "file_limit" in request:
        limit = request["file_limit"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if request.get("clock"):
        set_clock(request["clock"])
    if "host" in request:
        socket.gethostname = lambda: request["host"]
    if "die_at" in request:
        die_at(request["die_at"])
    if "full_at" in request:
        fill_disk(request["full_at"])
    if not request.get("locked", True):
        refresh.only_one = lambda place: contextlib.nullcontext()  # type: ignore[assignment]
    handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
    code = 70
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
    try:
        if "write" in request:
            write(request["write"], request["last"])
        job = request.get("job", "")
        code = main(request.get("command") or ["refresh", job, *request.get("options", ["-q"])])
    except SystemExit as stop:
        code = int(stop.code or 0)
    except KeyboardInterrupt:
        code = 130  # beside main, which says so itself
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
        os._exit(code)


def set_clock(ahead: float) -> None:
    """The clock of this process is so many seconds ahead."""
    real, plain = time.time, datetime.datetime
    time.time = lambda: max(0.0, real() + ahead)

    class Shifted(plain):  # type: ignore[misc,valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return plain.fromtimestamp(time.time(), tz)

    datetime.datetime = Shifted  # type: ignore[misc]


def fill_disk(number: int) -> None:
    """The disk is full from that flush on."""
    count = iter(range(number))

    def flush(handle: int) -> None:
        if next(count, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = flush  # type: ignore[assignment]


def die_at(number: int) -> None:
    """``kill -9`` of this process before the call of that number, from 0, that changes a name."""
    count = iter(range(number + 1))

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(count, number) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    for name in ("link", "replace", "rename", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))


def write(folder: str, i: int) -> None:
    """Publish versions of ever larger numbers until killed."""
    import numpy as np

    from streampca.model_store.versions import VersionStore
    from streampca.store import LocalBackend

    store = VersionStore(LocalBackend(folder))
    while True:
        i += 1
        model = {"a": np.full(3, i), "b": np.full((2, 2), i)}
        store.commit({"model": (model, {"i": i}), "state": ({"s": np.full(5, i)}, {"i": i})}, {})
        print(i, flush=True)
        if i % 5 == 0:
            store.gc(2, grace=3600)


def ended(pid: int, limit: float | None) -> int:
    """The exit code of a process that has ended, or that took too long and is killed."""
    until = time.monotonic() + limit if limit else float("inf")
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG if limit else 0)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 124


def serve() -> None:
    import streampca

    for module in (*IMPORTED, *REFRESHING, *sys.argv[1:]):
        importlib.import_module(module)
    for name in streampca.__all__:
        getattr(streampca, name)
    gc.freeze()
    if sys.argv[1:]:  # many nights: what is killed finds what was written, flushed or not
        os.fsync = lambda handle: os.fstat(handle) and None  # type: ignore[assignment]

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a child that has not begun dies of it
    folder = tempfile.mkdtemp()
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for i in range(request.get("processes", 1)):
            out = os.path.join(folder, str(i))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(out)
            pid = os.fork()
            if pid == 0:
                child(request, out)
            children.append((pid, out))
        if "write" in request:  # it has begun
            while not (os.path.exists(children[0][1]) and os.path.getsize(children[0][1])):
                time.sleep(0.01)
        if "kill" in request:
            time.sleep(request["after"])
            for pid, _ in children:
                os.kill(pid, request["kill"])
        answers = []
        for pid, out in children:
            code = ended(pid, request.get("limit"))
            text = ""
            with contextlib.suppress(OSError), open(out) as file:
                text = file.read()
            answers.append([code, text])
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    serve()
