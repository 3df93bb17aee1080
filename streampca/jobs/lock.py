"""One job at a time: a lock that the system gives back when its process dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from streampca.errors import BusyError


@contextlib.contextmanager
def only_one(place: str) -> Iterator[None]:
    """Hold ``<place>.lock``; raises BusyError at once where another process does.

    For a URL nothing is locked: there commits alone decide who was first. The file stays, empty.
    """
    if "://" in place:
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows: commits alone decide
        yield
        return
    path = os.path.abspath(place).rstrip("/") + ".lock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another job holds {path}; try again when it is done") from None
        yield
    finally:
        os.close(handle)
