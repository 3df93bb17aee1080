"""The lock of a job, and ``<store>.work``, where an interrupted refresh leaves its state."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from streampca.errors import BusyError, InvalidInputError, SourceError
from streampca.paths import FILE, IN_THE_WAY, NO_LINK, check_regular, no_file, read_inside
from streampca.store.checked import MOST_BYTES, sign, unsign
from streampca.store.places import discard, occupied, release, set_aside, unfinished_name, writing

# One job at a time: a lock that the system releases when its process dies.


@contextlib.contextmanager
def only_one(place: str) -> Iterator[None]:
    """Hold ``<place>.lock``; raise BusyError at once if another process holds it.

    For a URL, and on file systems without locks, nothing is locked: then only commits decide who
    was first. The file stays, empty, and only its user may open it. Raises SourceError if it is a
    link or no regular file.
    """
    if "://" in place:
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
        if hasattr(os, "fchmod"):  # not on Windows
            with contextlib.suppress(PermissionError):  # the file of another user
                os.fchmod(handle, 0o600)
        if not _locked(handle):
            raise BusyError(f"another job holds {path}; try again when it is done")
        yield
    finally:
        os.close(handle)


def holder_of(place: str) -> int | None:
    """The process that holds ``<place>.lock``; None if there is none, or only Linux would know.

    The lock is not touched: a refresh that begins now would find it taken.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):  # Windows has no os.major
        here = os.stat(os.path.abspath(place).rstrip("/") + ".lock")
        device = f"{os.major(here.st_dev):02x}:{os.minor(here.st_dev):02x}:{here.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[1:2] == ["FLOCK"] and words[5:6] == [device]:
                    return int(words[4])
    return None


def check_store(place: str) -> None:
    """Check that files can be made next to a local store, and in it: a refresh needs both.

    The files made for this have no name. Raises OSError, as a refresh does.
    """
    if "://" in place:
        return
    path = os.path.abspath(place).rstrip("/")
    folder = os.path.dirname(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    for one in (folder, path):
        if one == folder or os.path.isdir(one):
            with writing(one), tempfile.TemporaryFile(dir=one):
                pass


def _locked(handle: int) -> bool:
    """Lock a file if the system can; False if another process has locked it."""
    try:
        taken: bool = filelock.lock_descriptor(handle, blocking=False)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return True
    return taken


# ``<store>.work``, where an interrupted refresh leaves its state: made, marked and removed.

MARKER = "streampca-work.json"
KIND = "work of a refresh"
LEAST_LOOKS, MOST_LOOKS = 2, 100  # at a folder that other refreshes make and remove


class WorkFolder:
    """The folder of one job.  path : None if the store is no local path."""

    def __init__(self, store: str) -> None:
        self.path = None if "://" in store else f"{store.rstrip('/')}.work"

    def check(self) -> None:
        """Raise InvalidInputError if something that is not ours has the folder's name."""
        if self.path is not None and occupied(self.path) and not _is_ours(Path(self.path)):
            raise InvalidInputError(
                f"{self.path} was not made by streampca; refresh keeps its checkpoints in a folder "
                "of this name, and removes it. Rename it, or name another store"
            )

    def make(self) -> str | None:
        """Make and mark the folder if it does not exist. Returns its path."""
        self.check()
        if self.path is None or os.path.isfile(os.path.join(self.path, MARKER)):
            return self.path
        text = sign({"kind": KIND})
        if os.path.isdir(self.path):
            try:
                with contextlib.suppress(PermissionError):  # the folder of another user
                    os.chmod(self.path, 0o700)
                with open(os.path.join(self.path, MARKER), "xb") as file:
                    file.write(text)
            except FileExistsError:  # another refresh has made it meanwhile
                pass
            except FileNotFoundError:  # and removed it
                return self.make()
            return self.path
        place = unfinished_name(self.path)  # marked before it gets its name
        os.chmod(place, 0o700)  # sums reveal the data
        (Path(place) / MARKER).write_bytes(text)
        try:
            os.rename(place, self.path)
            release(place)
        except OSError as error:
            discard(place)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES):
                raise
            self.check()  # another refresh was first, and may have removed its folder since
        return self.path

    def clear(self) -> None:
        """Remove the folder if it is ours, in one step: another refresh may be looking at it."""
        if self.path is not None and os.path.isdir(self.path) and _is_ours(Path(self.path)):
            with contextlib.suppress(OSError, BusyError):  # another refresh was first
                discard(set_aside(self.path))


def _is_ours(path: Path) -> bool:
    """Whether streampca made the folder, or nothing is there: a refresh may have removed it."""
    for look in range(MOST_LOOKS):
        before = _state(path)
        if before is None:
            return True
        if path.is_symlink() or not path.is_dir():
            return not os.path.lexists(path)
        try:
            marker = unsign(read_inside(path, MARKER, MOST_BYTES), str(path / MARKER))
            return bool(marker.get("kind") == KIND)
        except FileNotFoundError:
            if _is_empty(path):
                return True
        except SourceError:
            pass  # perhaps not written to its end
        except OSError:
            return False
        if look >= LEAST_LOOKS and _state(path) == before:  # else another one has its name now
            return False
    return False


def _state(path: Path) -> tuple[int, int] | None:
    """(number, time of change) of what is there; None for nothing."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:  # removed meanwhile
        return True
