"""Paths of outputs: whether they are occupied, and temporary names beside them.

An unfinished output of ``path`` lies beside it under a name that ends in ``.partial``; what it
replaces has, for a moment, a name that ends in ``.old``. The process that makes one locks it, and
the system releases the lock when the process dies. So the next process that writes to ``path``
recognizes abandoned ones and removes them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator

from streampca.errors import (
    BusyError,
    InvalidInputError,
    MissingDependencyError,
    OccupiedError,
    hide_secrets,
)
from streampca.paths import AT_ONCE, NO_LINK

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LEFT_OVER = r"\.[0-9a-f]{32}\.(partial|old|new)"
DAY = 24 * 3600.0
MINUTE = 60.0  # a new file that is not locked by then is abandoned
PATIENCE = 1.0  # seconds to wait for a lock: a process that only tests it holds it very briefly
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
NOT_TO_WRITE = (errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)


class Lock:
    """A lock that this process holds.  maker : process id; that of a forked child differs."""

    def __init__(self, handle: int) -> None:
        self.handle, self.maker = handle, os.getpid()

    def give_back(self) -> None:
        """Unlock and close. In a forked child of its maker, only close the child's handle."""
        with contextlib.suppress(OSError):
            if self.maker == os.getpid():
                fcntl.flock(self.handle, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(self.handle)


_held: dict[str, Lock] = {}  # place -> the lock on it


def unfinished_name(path: str, folder: bool = True) -> str:
    """Make a new, locked folder or file for an output that will be renamed to ``path``.

    It lies beside ``path``, on the same file system. Abandoned ones are removed.
    Raises BusyError if it cannot be locked although this file system has locks.
    """
    sweep(path)
    os.makedirs(os.path.dirname(os.path.realpath(path)), exist_ok=True)
    made = _beside(path, "new")  # renamed once it is locked; other processes ignore it until then
    if folder:
        os.mkdir(made)
    else:
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    place = made.removesuffix("new") + "partial"
    try:
        _rename_locked(made, place)
    except BaseException:
        _remove(made)
        raise
    return place


def set_aside(path: str) -> str:
    """Rename what is at ``path`` to a name beside it, and lock it. Returns the new name.

    Raises BusyError if another process holds a lock on it.
    """
    place = _beside(path, "old")
    _rename_locked(path, place)
    return place


def share(place: str, exclusive: bool = False) -> Lock:
    """Lock a file beside others that share it, or alone. Raises BlockingIOError, OSError."""
    handle = _open(place)
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return Lock(handle)


def _rename_locked(path: str, place: str) -> None:
    lock = _lock(path)
    try:
        os.rename(path, place)
    except BaseException:
        if lock is not None:
            lock.give_back()
        raise
    if lock is not None:
        _held[place] = lock


def release(place: str, lock: Lock | None = None) -> None:
    """Release the lock on a place.

    lock : what ``hold`` returned; nothing is done if the place has another lock now.
    """
    if lock is not None and _held.get(place) is not lock:
        return
    if (held := _held.pop(place, None)) is not None:
        held.give_back()


def discard(place: str) -> None:
    """Remove a temporary file or folder if it is still there, and release its lock."""
    _remove(place)
    release(place)


def give_up(place: str, maker: int) -> None:
    """Discard a place, unless this is a forked child of the process that made it."""
    if maker == os.getpid():
        discard(place)


def left_over(path: str) -> list[str]:
    """Temporary files and folders that killed processes left beside ``path``."""
    folder, name = os.path.split(os.path.realpath(path))
    pattern = re.compile(re.escape(f".{name}") + LEFT_OVER)
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:
        return []
    return sorted(place for place in found if _abandoned(place))


def sweep(path: str) -> list[str]:
    """Remove what killed processes left beside ``path``. Returns the names."""
    found = left_over(path)
    for place in found:
        _remove(place)
    return found


def in_use(place: str) -> bool:
    """Whether a process holds the lock on a place, or the place cannot be locked."""
    if place in _held:
        return True
    try:
        handle = _open(place)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may test it too
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def hold(place: str) -> Lock | None:
    """Lock an existing file or folder; None if this process has locked it, or there are no locks.

    Raises BusyError if another process has locked it, OSError if nothing is there.
    """
    if place in _held:
        return None
    lock = _lock(place)
    if lock is not None:
        _held[place] = lock
    return lock


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let failures to write name the output: the error of a full disk names no file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def settled(path: str) -> str:
    """The absolute path; a URL as it is."""
    return path if "://" in path else os.path.abspath(path)


def exists_already(path: str, remedy: str = "remove it or choose another output") -> OccupiedError:
    """The error for a path that is taken."""
    return OccupiedError(f"{path} exists already; {remedy}")


FILES = (".tsv", ".csv", ".txt", ".parquet", ".npy", ".npz", ".h5", ".h5ad", ".nc", ".xlsx")


def refuse_file_name(path: str) -> None:
    """Refuse the name of a file of another kind for a Zarr array. Raises InvalidInputError."""
    if path.lower().endswith(FILES):
        raise InvalidInputError(
            f"{path}: a Zarr array is written here; expected a name such as scores.zarr"
        )


def no_library(path: str, error: ImportError) -> MissingDependencyError:
    """The error for a URL that no installed library can write to."""
    return MissingDependencyError(
        f"{hide_secrets(path)} cannot be written ({error}): pip install s3fs, or name a path"
    )


def occupied(path: str) -> bool:
    """Whether something other than an empty directory is at this local path."""
    if "://" in path or not os.path.lexists(path):
        return False
    try:
        return not os.path.isdir(path) or bool(os.listdir(path))
    except FileNotFoundError:  # removed meanwhile
        return False


def refuse_inside(output: str, sources: list[str], what: str) -> None:
    """Raise InvalidInputError if an output would lie within a source, or a source within it."""
    for source in sources:
        if "://" in source or "://" in output:
            a, b = source.rstrip("/"), output.rstrip("/")
        else:
            a, b = os.path.realpath(source), os.path.realpath(output)
        if a == b:
            raise InvalidInputError(f"{what} {output} is the source; choose another output")
        if f"{b}/".startswith(f"{a}/") or f"{a}/".startswith(f"{b}/"):
            raise InvalidInputError(
                f"{what} {output} and the source {source} lie within one another; choose a place "
                "outside the source"
            )


def _beside(path: str, ending: str) -> str:
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}.{ending}")


def _remove(place: str) -> None:
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        os.unlink(place)


def _abandoned(place: str) -> bool:
    try:
        about = os.lstat(place)
    except OSError:
        return False
    if not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode)):
        return False
    age = time.time() - about.st_mtime
    if fcntl is None:
        return age > DAY
    if place.endswith(".new") and age <= MINUTE:  # about to be locked: do not interfere
        return False
    return not in_use(place)


def _lock(place: str) -> Lock | None:
    """The lock on a place; None for a link, and if this system or file system has no locks.

    Raises BusyError if another process keeps the lock, and OSError.
    """
    if fcntl is None or os.path.islink(place):
        return None
    handle = _open(place)
    try:
        ended = time.monotonic() + PATIENCE
        while (done := _try_lock(handle)) is None:
            if time.monotonic() > ended:
                raise BusyError(f"another process is using {place}; try again when it is done")
            time.sleep(0.01)
    except BaseException:
        os.close(handle)
        raise
    if done:
        return Lock(handle)
    os.close(handle)
    return None


def _try_lock(handle: int) -> bool | None:
    """Whether the handle was locked; None if another process has the lock, False without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return False
    return True


def _open(place: str) -> int:
    """A handle of a file or folder; writable if possible, as locks on NFS need. Raises OSError."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), place)
    try:
        return os.open(place, os.O_RDWR | NO_LINK | AT_ONCE)
    except OSError as error:
        if error.errno not in NOT_TO_WRITE:
            raise
    return os.open(place, os.O_RDONLY | NO_LINK | AT_ONCE)
