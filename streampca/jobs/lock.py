"""One job at a time: a lock that the system gives back when its process dies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from streampca.errors import BusyError
from streampca.regular_file import FILE, IN_THE_WAY, NO_LINK, check_regular, no_file


@contextlib.contextmanager
def only_one(place: str) -> Iterator[None]:
    """Hold ``<place>.lock``; raises BusyError at once where another process does.

    For a URL nothing is locked: there commits alone decide who was first. The file stays, empty,
    and only its user may open it. Raises SourceError where it is a link or no file.
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
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | FILE, 0o600)
    except OSError as error:
        if error.errno in IN_THE_WAY:
            raise no_file(path) from None
        raise
    try:
        check_regular(handle, path)
        with contextlib.suppress(PermissionError):  # of another user: whoever owns it
            os.fchmod(handle, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another job holds {path}; try again when it is done") from None
        yield
    finally:
        os.close(handle)
