"""Putting what was made beside a path into its place, over nothing but an output of ours.

What lies at the path may have changed since it was looked at: a user may have put something else
there. So it is looked at once more when it is out of the way, and put back where it is not ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from streampca.store.bundle import exchange, swap
from streampca.store.places import NO_LINKS, exists_already, occupied

ATTEMPTS = 10  # others may take away, and put, what lies there at the same time


def put_folder(staged: str, path: str, ours: Callable[[str], bool]) -> None:
    """Rename a folder to ``path``; where an output of ours lies there, exchange the two.

    The old output is then at ``staged``, for the caller to discard. Raises InvalidInputError
    where something lies at ``path`` that is not ours; it stays there. Raises OSError.
    """
    target = os.path.realpath(path)
    for left in reversed(range(ATTEMPTS)):
        with contextlib.suppress(OSError):
            os.rename(staged, target)  # there is nothing, or an empty folder
            return
        try:
            _exchange_ours(staged, target, path, ours)
            return
        except FileNotFoundError:
            if not left:
                raise


def _exchange_ours(staged: str, target: str, path: str, ours: Callable[[str], bool]) -> None:
    if occupied(target) and not ours(target):
        raise exists_already(path)
    exchange(Path(staged), Path(target))
    if occupied(staged) and not ours(staged):
        exchange(Path(staged), Path(target))
        raise exists_already(path)


def put_file(staged: str, target: str, may_go: Callable[[str], bool]) -> None:
    """Rename a file to ``target``; a file that lies there is replaced in one step, if it may go.

    target : no link: what a link led to when the output was looked at, before it was made.
    Raises InvalidInputError where something else lies there; it stays. Raises OSError.
    """
    for _ in range(ATTEMPTS):
        if _put_new_file(staged, target):
            return
        if os.path.lexists(target) and not _is_one(target, may_go):
            raise exists_already(target)
        if swap(Path(staged), Path(target)):
            if _is_one(staged, may_go):
                return
            swap(Path(staged), Path(target))
            raise exists_already(target)
        if os.path.lexists(target):  # this system cannot exchange: nothing may come in between
            os.replace(staged, target)
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)


def _is_one(path: str, may_go: Callable[[str], bool]) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and may_go(path)


def _put_new_file(staged: str, target: str) -> bool:
    """Put it where nothing lies, in one step: renaming would replace what does."""
    try:
        os.link(staged, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(target):
            return False
        os.rename(staged, target)
        return True
    os.unlink(staged)
    return True
