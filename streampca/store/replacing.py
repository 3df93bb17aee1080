"""Putting what was made beside a path into its place, over nothing but an output of ours.

What lies at the path may have changed since it was looked at: a user may have put something else
there. So it is looked at once more when it is out of the way, and put back where it is not ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from streampca.store.bundle import exchange
from streampca.store.places import exists_already, occupied

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
