"""Arrays in memory."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np

from streampca.matrix import ReadCount
from streampca.sources.stacked import Index, Reader
from streampca.sources.tally import Tally

SAMPLED_NBYTES = 1 << 16


class ArrayReader(Reader):
    """An array in memory.  loads : libraries of the object that holds it."""

    def __init__(self, array: np.ndarray[Any, Any], loads: tuple[str, ...] = ()) -> None:
        self.array, self.loads = array, loads
        self.given_nbytes, self.carried_nbytes = resident_part(array), array.nbytes
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self.offset: tuple[int, int] | None = None  # (dim, start) of a part
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        values = self.array[self._inside(index)]
        self.tally.add(ReadCount(1, values.nbytes))
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def _inside(self, index: Index) -> Index:
        """Where a hyperrectangle lies in the array of a part."""
        if self.offset is None:
            return index
        dim, start = self.offset
        moved = slice(index[dim].start - start, index[dim].stop - start)
        return (*index[:dim], moved, *index[dim + 1 :])

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> Reader:
        smaller = copy.copy(self)
        smaller.array = self.array[self._cut(dim, start, stop)]
        smaller.offset, smaller.tally = (dim, start), Tally()
        return smaller

    def _cut(self, dim: int, start: int, stop: int) -> Index:
        base = self.offset[1] if self.offset is not None else 0
        return tuple(
            slice(start - base, stop - base) if d == dim else slice(None)
            for d in range(self.array.ndim)
        )

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.shape} {self.dtype}".encode())
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.ravel("K")
        step = max(1, len(flat) * flat.itemsize // SAMPLED_NBYTES)
        digest.update(np.ascontiguousarray(flat[::step]).tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for row in self.array:
            digest.update(np.ascontiguousarray(row).view(np.uint8).data)
        return digest.hexdigest()


def resident_part(array: np.ndarray[Any, Any]) -> int:
    """Bytes of an array that are in memory: none of one that is mapped from a file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return 0
        base = base.base
    return array.nbytes
