"""Columns that a fit wrote beside its streamed components, read when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import Column
from streampca.store import labelled_vector

HELD = 65536  # places that are kept in memory
AT_ONCE = 65536  # entries


class StoredColumn(Column):
    """An array of one dimension in the Zarr group of a fit.

    dtype : of what is read, where it is not the stored one. Raises SourceError where it is gone.
    """

    def __init__(self, path: str, name: str, dtype: Any = None) -> None:
        self.path, self.name = path, name
        self._array: Any = labelled_vector(path, name)
        self.length = int(self._array.shape[0])
        self.dtype = np.dtype(self._array.dtype if dtype is None else dtype)
        chunk = max(1, int(self._array.chunks[0]))
        self.piece = chunk * max(1, AT_ONCE // chunk)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int) -> Array:
        if self._array is None:
            self._array = labelled_vector(self.path, self.name)
        return np.asarray(self._array[start:stop]).astype(self.dtype, copy=False)


class Places(Column):
    """The numbers of the entries of a column that hold one code, found when they are asked for."""

    dtype = np.dtype(np.int64)

    def __init__(self, codes: Column, code: int, count: int) -> None:
        self.codes, self.code, self.count = codes, code, count
        self.piece = max(count, 1)  # all are found at once

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int) -> Array:
        found, first, seen = [np.empty(0, np.int64)], 0, 0
        for piece in self.codes.pieces():
            here = np.flatnonzero(piece == self.code) + first
            found.append(here[max(start - seen, 0) : max(stop - seen, 0)])
            first, seen = first + len(piece), seen + len(here)
            if seen >= stop:
                break
        return np.concatenate(found)


def places_of(codes: Column, wanted: Sequence[int]) -> list[Any]:
    """Where each wanted code stands: arrays, or columns where there are many. One read of all."""
    counts = dict.fromkeys(wanted, 0)
    for piece in codes.pieces():
        for code in wanted:
            counts[code] += int(np.count_nonzero(piece == code))
    columns = [Places(codes, code, count) for code, count in counts.items()]
    return [np.asarray(one) if len(one) <= HELD else one for one in columns]
