"""Where a matrix is read from, and whether another process finds the same there."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

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
