"""Factors of the lines between sweeps: in memory, or in two scratch stores that take turns."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.store import MemorySink, Sink, ZarrSink
from streampca.store.sinks import chunk_for, open_written


class LineFactors:
    """(length, width) numbers that one sweep reads and the next one writes.

    A sweep never writes where it reads: a request that is retried finds what it began with.
    folder : of the scratch stores, or None: in memory.
    """

    def __init__(
        self, length: int, width: int, dtype: Any, edges: Array, folder: str | None = None
    ) -> None:
        self.length, self.width, self.dtype, self.folder = length, width, np.dtype(dtype), folder
        self.chunk = chunk_for(edges)
        self.values: Any = np.broadcast_to(np.zeros(1, self.dtype), (length, width))
        self.number = 0  # of the sweep that wrote the values
        self._held: dict[int, MemorySink] = {}
        self._sink: Any = None

    def sink(self, number: int, both: bool = True) -> Sink:
        """Where sweep ``number`` writes. ``both`` False: the old ones are not read meanwhile."""
        turn = number % 2 if both else 0
        if self.folder is None:
            if turn not in self._held:
                self._held[turn] = MemorySink(self.length, self.width, self.dtype)
            self._sink = self._held[turn]
        else:
            self._sink = ZarrSink(
                self.path(turn), self.length, self.width, self.dtype, self.chunk, overwrite=True
            )
        result: Sink = self._sink
        return result

    def written(self, number: int) -> None:
        """The sweep is done: its factors are the current ones."""
        self.values = self._sink.values if self.folder is None else self._sink.array
        self.number = number

    def begin_with(self, values: Array) -> None:
        """A first estimate."""
        self.values = np.ascontiguousarray(values, self.dtype)

    def open(self, number: int) -> None:
        """Take what sweep ``number`` of an interrupted fit has left in its scratch store."""
        self.values, self.number = open_written(self.path(number % 2)), number

    def path(self, turn: int) -> str:
        """Of one of the two stores."""
        return os.path.join(str(self.folder), f"factors-{turn}.zarr")

    def rows(self, part: slice, start: int, stop: int) -> Array:
        """(stop - start, columns) float64 some columns of some lines."""
        return np.asarray(self.values[start:stop], np.float64)[:, part]


def scratch_folder(owner: object, wanted: str | None) -> str:
    """A folder for scratch stores; one of our own making goes when its owner does."""
    if wanted is not None:
        os.makedirs(wanted, exist_ok=True)
        return wanted
    made = tempfile.mkdtemp(prefix="streampca-")
    weakref.finalize(owner, shutil.rmtree, made, ignore_errors=True)
    return made
