"""Locations of sources, and values on a cluster."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Locations from which a matrix is read, and checks that another process finds the same there.

AT_ONCE = 8  # locations that are checked concurrently: object stores have latency


class Location(ABC):
    """One place that a matrix is read from: a directory, a file, a prefix of a bucket.

    name : for messages, without credentials.
    in_process : kind of object in the memory of this process; "" where other processes can read it.
    """

    name: str
    in_process: str = ""

    @property
    def remote(self) -> bool:
        """Whether each read is a request over a network."""
        return "://" in self.name and not self.name.startswith(("file://", "memory://"))

    @abstractmethod
    def sample(self) -> Sequence[str]:
        """Names of a few stored objects, including the metadata."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> dict[str, str]:
        """The current state of each object as this process sees it, as text."""


@dataclass(frozen=True)
class SpotCheck:
    """The state of a location as one process saw it, to be compared by another process.

    seen : name -> state.  token : identifies the check.
    """

    location: Location
    seen: Mapping[str, str]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(cls, location: Location) -> SpotCheck:
        """Record the current state. Cost: about ten small reads."""
        return cls(location, location.look(location.sample()))

    def difference(self) -> str:
        """A message about the first difference; "" if there is none."""
        now = self.location.look(list(self.seen))
        for name, seen in self.seen.items():
            if now[name] != seen:
                return f"{name} is {now[name]}; the client sees {seen}"
        return ""


def spot_checks(locations: Sequence[Location]) -> dict[str, SpotCheck]:
    """One check per location, by its name."""
    each = {location.name: location for location in locations}
    if len(each) <= 1:
        return {name: SpotCheck.of(value) for name, value in each.items()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(each, pool.map(SpotCheck.of, each.values()), strict=True))


# Values on a cluster: fetched through their future, or passed in with the task.


class Held:
    """A value on a cluster, represented by its future. Calling it fetches the value.

    A pass on that cluster does not call it. The values that a span needs become dependencies of its
    task, which then runs where most of them are, and :class:`Brought` takes the place of this.
    """

    def __init__(self, future: Any, in_task: bool = False) -> None:
        """in_task : the future belongs to the client of the worker that runs this task."""
        self.future, self.in_task = future, in_task

    def __call__(self) -> Any:
        return laid_out(self.future.result())

    def bind(self) -> None:
        """Bind the future to a client if it has none yet."""

    def moved(self, nbytes: int) -> int:
        """Bytes transferred over the network by a call that returned ``nbytes``."""
        return nbytes


class Brought(Held):
    """A value that was passed in with the task.  away : it was only on other workers before."""

    def __init__(self, value: Any, away: bool) -> None:
        super().__init__(None, in_task=True)
        self._value, self._away = value, away

    def __call__(self) -> Any:
        return laid_out(self._value)

    def moved(self, nbytes: int) -> int:
        """The value is transferred once, however often it is used."""
        away, self._away = self._away, False
        return nbytes if away else 0


def laid_out(value: Any) -> Any:
    """The value with the layout of new NumPy arrays; after a transfer it may be unaligned.

    NumPy sums unaligned arrays, and arrays with gaps, in another order. Without the copy, bits
    would depend on the origin of a value.
    """
    if type(value) is not np.ndarray or (value.flags.aligned and value.flags.forc):
        return value
    return np.array(value, order="K" if value.flags.forc else "C")
