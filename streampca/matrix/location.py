"""Where a matrix is read from, what its source keeps between blocks, and values on a cluster."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# --------------------------------------------------------------------------------------------------
# Where a matrix is read from, and whether another process finds the same there.

AT_ONCE = 8  # locations that are looked at together: object stores have latency


class Location(ABC):
    """One place that a matrix is read from: a directory, a file, a prefix of a bucket.

    name : for messages, without credentials.
    in_process : what holds it, where that is the memory of this process; "" where other processes
    can read it.
    """

    name: str
    in_process: str = ""

    @abstractmethod
    def sample(self) -> Sequence[str]:
        """Names of a few things that are stored there, its metadata among them."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> dict[str, str]:
        """What this process finds under each name now, as text."""


@dataclass(frozen=True)
class SpotCheck:
    """What the process that made it found at a location. It travels, and is repeated elsewhere.

    seen : name -> what was found.  token : which check this is.
    """

    location: Location
    seen: Mapping[str, str]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, location: Location) -> SpotCheck:
        """Look now. Cost: about ten small reads."""
        return cls(location, location.look(location.sample()))

    def difference(self) -> str:
        """The first thing that is not what it was, in words; "" where all is the same."""
        now = self.location.look(list(self.seen))
        for name, seen in self.seen.items():
            if now[name] != seen:
                return f"{name} is {now[name]}; the client sees {seen}"
        return ""


def spot_checks(locations: Sequence[Location]) -> dict[str, SpotCheck]:
    """One check per location, by its name."""
    each = {one.name: one for one in locations}
    if len(each) <= 1:
        return {name: SpotCheck.of(one) for name, one in each.items()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(each, pool.map(SpotCheck.of, each.values()), strict=True))


# --------------------------------------------------------------------------------------------------
# What a source keeps from one block to the next while a span is read.


class SpanCache:
    """Things by owner. Every span has a new one, so that what is read depends on the plan alone.

    Threads may share it. It pickles empty.
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, Any] = {}
        self._ended = False
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SpanCache, ()

    def of(self, owner: Hashable, make: Callable[[], Any]) -> Any:
        """What this owner keeps; made at first."""
        with self._lock:
            if self._ended:
                return make()
            if owner not in self._things:
                self._things[owner] = make()
            return self._things[owner]

    def end(self) -> None:
        """Let go of everything, and keep nothing more: a read may still be under way."""
        with self._lock:
            self._things.clear()
            self._ended = True


_current: ContextVar[SpanCache | None] = ContextVar("streampca_span_cache", default=None)


def current_cache() -> SpanCache | None:
    """The cache of the span that this thread reads a block of; None outside of a pass."""
    return _current.get()


@contextmanager
def reading_with(cache: SpanCache) -> Iterator[None]:
    """Reads of this thread find the cache."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


# --------------------------------------------------------------------------------------------------
# Values that lie on a cluster: fetched by their future, or brought along by the task.


class Held:
    """A value on a cluster, known by its future. Calling it fetches the value.

    A pass on that cluster does not call it: what a span needs becomes a dependency of its task,
    which then runs where most of it lies, and :class:`Brought` stands in its place.
    """

    def __init__(self, future: Any, in_task: bool = False) -> None:
        """in_task : the future belongs to the client of a worker, in whose task this is."""
        self.future, self.in_task = future, in_task

    def __call__(self) -> Any:
        return laid_out(self.future.result())

    def bind(self) -> None:
        """Find the client of the future, where it has none yet."""

    def moved(self, nbytes: int) -> int:
        """Bytes that crossed a wire for a call that gave so many."""
        return nbytes


class Brought(Held):
    """A value that came with the task.  away : it lay on other workers alone before."""

    def __init__(self, value: Any, away: bool) -> None:
        super().__init__(None, in_task=True)
        self._value, self._away = value, away

    def __call__(self) -> Any:
        return laid_out(self._value)

    def moved(self, nbytes: int) -> int:
        """It came once, however often it is used."""
        away, self._away = self._away, False
        return nbytes if away else 0


def laid_out(value: Any) -> Any:
    """The value as NumPy lays out new arrays: what travelled may begin at an odd address.

    NumPy sums unaligned arrays, and arrays with gaps, in another order: bits would depend on where
    a value came from.
    """
    if type(value) is not np.ndarray or (value.flags.aligned and value.flags.forc):
        return value
    return np.array(value, order="K" if value.flags.forc else "C")
