"""Files that are read back: regular ones, of a bounded size, reached through no link.

A FIFO or a device in the place of a file would hang its reader or never end. A link would lead the
reader out of the folder that it was given.
"""

from __future__ import annotations

import errno
import os
import stat

from streampca.errors import DamagedSourceError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # of a FIFO, open does not wait
IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR)


def read_inside(folder: str | os.PathLike[str], name: str, most: int) -> bytes:
    """The bytes of the regular file ``folder/name``, at most ``most`` of them.

    The folder itself may be a link; nothing below it may. ``name`` has "/" between its parts and
    is not checked for "..": its caller does that.
    Raises FileNotFoundError, and DamagedSourceError for a link, a special file, or a longer file.
    """
    handle = _open_inside(folder, name)
    try:
        check_regular(handle, f"{os.fspath(folder)}/{name}")
        return _read(handle, f"{os.fspath(folder)}/{name}", most)
    finally:
        os.close(handle)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file that may be reached through links. Raises as ``read_inside``."""
    shown = os.fspath(path)
    handle = open_at_once(shown)
    try:
        check_regular(handle, shown)
        return _read(handle, shown, most)
    finally:
        os.close(handle)


def open_at_once(path: str, flags: int = 0) -> int:
    """A handle to read, at once where a FIFO lies there. An ``opener`` of Python's ``open``."""
    try:
        return os.open(path, flags | FILE)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device of no driver
            raise no_file(path) from None
        raise


def check_regular(handle: int, shown: str) -> int:
    """The size of an open regular file. Raises DamagedSourceError for anything else."""
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        raise no_file(shown)
    return about.st_size


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Raises DamagedSourceError where a FIFO, a device or a socket lies at this path."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # whoever opens it finds out
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise no_file(os.fspath(path))


def no_file(shown: str) -> DamagedSourceError:
    """The refusal of what lies in the place of a file."""
    return DamagedSourceError(
        f"{shown} is a link, a folder or a special file; expected a regular file. Restore it from "
        "a backup"
    )


def _open_inside(folder: str | os.PathLike[str], name: str) -> int:
    *parents, last = name.split("/")
    at = os.open(folder, FOLDER)
    try:
        for part in parents:
            inner = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, FILE | os.O_NOFOLLOW, dir_fd=at)
    except OSError as error:
        if error.errno in IN_THE_WAY:
            raise no_file(f"{os.fspath(folder)}/{name}") from None
        raise
    finally:
        os.close(at)


def _read(handle: int, shown: str, most: int) -> bytes:
    """The whole file. Its size is looked at first, and not believed."""
    size, done = os.fstat(handle).st_size, 0
    parts: list[bytes] = []
    while size <= most and done <= most:
        part = os.read(handle, min(most + 1 - done, max(size - done, 1 << 16)))
        if not part:
            return b"".join(parts)
        parts.append(part)
        done += len(part)
    raise DamagedSourceError(
        f"{shown} has {max(size, done)} bytes or more where at most {most} are expected; restore "
        "it from a backup"
    )
