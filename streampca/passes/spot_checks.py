"""What a worker reads is what the client saw: checked before its first span."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable

from streampca.errors import ClusterError, LocalSourceWarning
from streampca.matrix import ChunkedMatrix, SpotCheck

REMEMBERED = 10_000

_passed: dict[str, None] = {}  # tokens of checks that passed in this process, oldest first
_lock = threading.Lock()


def workers_can_read(matrix: ChunkedMatrix) -> bool:
    """Whether they can: not what lies in the memory of this process alone. Then a warning says so.

    Its threads read that.
    """
    for one in matrix.locations():
        if one.in_process:
            warnings.warn(
                f"{one.name} is {one.in_process}, which only this process can read: it is read "
                "here, not on the workers. Write it to a path that the workers share, or use "
                "scheduler='threads'.", LocalSourceWarning, stacklevel=4,
            )  # fmt: skip
            return False
    return True


def confirm(checks: Iterable[SpotCheck], worker: str) -> None:
    """Raise ClusterError where this process finds something else. Each check is made once.

    worker : the address of this one.
    """
    for check in checks:
        if check.token in _passed:
            continue
        if difference := check.difference():
            raise ClusterError(
                f"worker {worker} sees another store at {check.location.name}, or none: "
                f"{difference}. The same files must lie at this path on every worker (a shared "
                "file system, or object storage); or use scheduler='threads'."
            )
        with _lock:
            _passed[check.token] = None
            while len(_passed) > REMEMBERED:
                del _passed[next(iter(_passed))]
