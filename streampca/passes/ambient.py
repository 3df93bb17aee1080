"""The client of ``distributed`` that is there without being named, and whether this is a task."""

from __future__ import annotations

import sys
from typing import Any


def ambient_client() -> Any | None:
    """The default client; None where there is none, or ``distributed`` is not loaded."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def in_task() -> bool:
    """Whether this thread runs a task of a worker."""
    if "distributed" not in sys.modules:
        return False
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True
