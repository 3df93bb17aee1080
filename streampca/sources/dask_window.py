"""What neighbouring strips share: kept from the first strip that computes it to the last.

``x.map_overlap``, a running sum, or chunks that do not line up: strips read in order compute each
task once, and what later strips still need is kept meanwhile. It is a cache: a strip that does
not find what it needs computes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.sizeof import sizeof

Key = Any


@dataclass(frozen=True)
class Window:
    """The tasks to keep while strips are read in order.

    until : task -> the last strip that computes something from it.  nbytes : estimated, of all
    that is kept at once, at most.  reach : rows between the first and the last strip that use one
    read, at most; a span that is longer than this reads no chunk that two other spans read.
    """

    until: Mapping[Key, int] = field(default_factory=dict)
    nbytes: int = 0
    reach: int = 0

    def only(self, keys: Collection[Key]) -> Window:
        """The same for these tasks."""
        return Window({k: self.until[k] for k in keys if k in self.until}, self.nbytes, self.reach)


def find_window(
    first: Mapping[Key, int], until: Mapping[Key, int], n_strips: int, size: Callable[[Key], int]
) -> Window:
    """The window of strips that are read in order, without its reach.

    first : task -> the strip that computes it.  until : task -> the last strip that computes
    something from it.  size : estimated bytes of a task's result.
    """
    kept = {k: last for k, last in until.items() if last > first[k]}
    steps = np.zeros(n_strips + 1)
    for key, last in kept.items():
        nbytes = size(key)
        steps[first[key]] += nbytes
        steps[last + 1] -= nbytes
    return Window(kept, int(np.cumsum(steps).max(initial=0)))


class Results:
    """The results that a window keeps at present. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: dict[Key, Any] = {}
        self._nbytes: dict[Key, int] = {}
        self._lock = threading.Lock()

    def values(self) -> dict[Key, Any]:
        """All of them."""
        with self._lock:
            return dict(self._values)

    def keep(self, key: Key, value: Any) -> None:
        """Keep a result, unless that would be more than the limit."""
        nbytes = int(sizeof(value))
        with self._lock:
            if key not in self._values and sum(self._nbytes.values()) + nbytes <= self.limit:
                self._values[key], self._nbytes[key] = value, nbytes

    def forget(self, window: Window, strip: int) -> None:
        """Let go of what no strip from this one on needs."""
        with self._lock:
            for key in [k for k in self._values if window.until.get(k, -1) < strip]:
                del self._values[key], self._nbytes[key]


@dataclass(frozen=True)
class Keep:
    """A task that keeps the result of another one."""

    results: Results
    key: Key

    def __call__(self, value: Any) -> None:
        self.results.keep(self.key, value)
