"""Buffers that a thread uses again for every read: fresh pages are dear on many machines."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np


class ThreadBuffers:
    """For each thread an array of bytes under every name. None of them is pickled."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return ThreadBuffers, ()

    def take(self, name: str, size: int, spare: int = 0) -> np.ndarray[Any, Any]:
        """(size,) uint8, holding anything. What this thread took under the name is overwritten.

        spare : bytes more, where a longer one must be made, for the next that is a little longer.
        """
        held = getattr(self._local, name, None)
        if held is None or len(held) < size:
            held = np.empty(size + spare, np.uint8)
            setattr(self._local, name, held)
        return np.asarray(held[:size])
