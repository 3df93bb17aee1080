"""Annotations: columns in a source, by name, that describe the samples or features of a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Annotations(ABC):
    """The columns of a source. A pickled one is None on workers: names are resolved before a pass.

    axis : 0 for columns of the samples, 1 for those of the features.
    """

    @abstractmethod
    def column(self, axis: int, name: str) -> Any:
        """(length of the axis,) numbers or text; None where there is no such column."""

    @abstractmethod
    def names(self, axis: int) -> list[str]:
        """The columns that there are."""

    def __reduce__(self) -> Any:
        return type(None), ()
