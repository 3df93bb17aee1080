"""Values that lie on a cluster: fetched by their future, or brought along by the task."""

from __future__ import annotations

from typing import Any

import numpy as np


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
