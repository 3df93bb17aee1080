"""Paths that an output is to take: whether something lies there, and where to write meanwhile.

What is on its way to ``path`` lies beside it, under a name that ends in ``.partial``; what it
replaces, for a moment, under one that ends in ``.old``. Whoever makes one locks it, and the system
gives the lock back when its process dies: so the next one that writes to ``path`` knows which of
them nobody will finish, and removes these.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
import uuid

from streampca.errors import InvalidInputError

LEFT_OVER = r"\.[0-9a-f]{32}\.(partial|old|new)"
DAY = 24 * 3600.0
MINUTE = 60.0  # after which what is not locked will not be locked any more
_held: dict[str, int] = {}  # place -> handle of the lock on it


def unfinished_name(path: str, folder: bool = True) -> str:
    """A new folder, or file, for what will take the place of ``path``, locked.

    Renaming needs the same file system: it lies beside. What others left there is removed.
    """
    sweep(path)
    os.makedirs(os.path.dirname(os.path.realpath(path)), exist_ok=True)
    made = _beside(path, "new")  # nobody takes it for left over before it is locked
    if folder:
        os.mkdir(made)
    else:
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    place = made.removesuffix("new") + "partial"
    handle = _lock(made)
    os.rename(made, place)
    if handle is not None:
        _held[place] = handle
    return place


def set_aside(path: str) -> str:
    """Move what lies at ``path`` to a name beside it, which is returned, locked."""
    handle, place = _lock(path), _beside(path, "old")
    try:
        os.rename(path, place)
    except BaseException:
        if handle is not None:
            os.close(handle)
        raise
    if handle is not None:
        _held[place] = handle
    return place


def release(place: str) -> None:
    """It is done, and has its own name: give the lock on it back."""
    handle = _held.pop(place, None)
    if handle is not None:
        with contextlib.suppress(OSError):
            os.close(handle)


def discard(place: str) -> None:
    """Remove one of these, if it is there still, and give its lock back."""
    _remove(place)
    release(place)


def left_over(path: str) -> list[str]:
    """What killed processes left of their attempts to write to ``path``."""
    folder, name = os.path.split(os.path.realpath(path))
    pattern = re.compile(re.escape(f".{name}") + LEFT_OVER)
    try:
        with os.scandir(folder) as entries:
            found = [one.path for one in entries if pattern.fullmatch(one.name)]
    except OSError:
        return []
    return sorted(place for place in found if _abandoned(place))


def sweep(path: str) -> list[str]:
    """Remove it; the names."""
    found = left_over(path)
    for place in found:
        _remove(place)
    return found


def in_use(place: str) -> bool:
    """Whether a process holds the lock on it."""
    if place in _held:
        return True
    handle = _lock(place)
    if handle is None:
        return True  # or there is no such lock on this system
    os.close(handle)
    return False


def hold(place: str) -> bool:
    """Lock a file or folder that is there, unless it is locked; whether it was done."""
    handle = _lock(place)
    if handle is not None:
        _held[place] = handle
    return handle is not None


def settled(path: str) -> str:
    """A path that is the same in every folder; a URL as it is."""
    return path if "://" in path else os.path.abspath(path)


def exists_already(path: str) -> InvalidInputError:
    """The refusal of a path where something lies."""
    return InvalidInputError(f"{path} exists already; remove it or choose another output")


def occupied(path: str) -> bool:
    """Whether something other than an empty directory lies at this local path."""
    if "://" in path or not os.path.lexists(path):
        return False
    try:
        return not os.path.isdir(path) or bool(os.listdir(path))
    except FileNotFoundError:  # taken away meanwhile
        return False


def refuse_inside(output: str, sources: list[str], what: str) -> None:
    """Raise InvalidInputError where an output would lie within a source, or a source within it."""
    for source in sources:
        if "://" in source or "://" in output:
            a, b = source.rstrip("/"), output.rstrip("/")
        else:
            a, b = os.path.realpath(source), os.path.realpath(output)
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
    if not _can_lock():
        return age > DAY
    return not in_use(place) and (age > MINUTE or not place.endswith(".new"))


def _can_lock() -> bool:
    try:
        import fcntl  # noqa: F401
    except ImportError:  # Windows
        return False
    return True


def _lock(place: str) -> int | None:
    """A handle that holds the lock; None where another has it, or this system has none."""
    if not _can_lock():
        return None
    import fcntl

    handle = None
    try:
        handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if handle is not None:
            os.close(handle)
        return None
    return handle
