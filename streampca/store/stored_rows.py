"""Rows of a stored array, read as they are asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError
from streampca.store.array_files import check_growth, find_array
from streampca.store.plain_arrays import decode, is_plain

Array = np.ndarray[Any, Any]


class StoredRows:
    """An array of a stored version: ``shape``, ``dtype``, slices of rows, ``numpy.asarray``.

    Each chunk of at most 8 MiB is checked against its digest when it is read. Raises SourceError
    where one is absent or altered.
    """

    def __init__(
        self, get: Callable[[str], bytes], sizes: Mapping[str, int], name: str, where: str
    ) -> None:
        """get : bytes of a file of the array's bundle, checked.  sizes : of its files, by name.
        where : the bundle, for messages."""
        self._get, self._where = get, where
        self._plain = plain = find_array(lambda file, most: get(file), sizes, name)
        if not (plain.shape and is_plain(plain.dtype)):
            raise DamagedSourceError(f"{where}: {name} is no array of rows of numbers")
        for file in plain.files:
            check_growth(plain.chunk_nbytes, sizes[file], f"{where}: {file}")
        self.shape, self.dtype, self.ndim = plain.shape, plain.dtype, len(plain.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Rows by number, by a slice without steps, or both with further indices behind."""
        rows, *more = key if isinstance(key, tuple) else (key,)
        if not isinstance(rows, slice):
            number = operator.index(rows)
            number += self.shape[0] * (number < 0)
            if not 0 <= number < self.shape[0]:
                raise IndexError(f"row {rows} of {self.shape[0]}")
            return np.asarray(self._rows(number, number + 1)[(0, *more)])
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise InvalidInputError(f"rows in steps of {step}; expected a slice without steps")
        return np.asarray(self._rows(start, max(start, stop))[(slice(None), *more)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self._rows(0, self.shape[0])
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<StoredRows {self.shape} {self.dtype}>"

    def _rows(self, start: int, stop: int) -> Array:
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        step = self._plain.chunks[0]
        for i in range(start // step, -(-stop // step)) if values.size else ():
            first, last = max(start, i * step), min(stop, (i + 1) * step)
            chunk = self._chunk(i)[first - i * step : last - i * step]
            values[first - start : last - start] = chunk[(slice(None), *map(slice, self.shape[1:]))]
        return values

    def _chunk(self, i: int) -> Array:
        name = self._plain.files[i]
        data = self._get(name)
        try:
            return decode(data, self._plain.chunks, self.dtype)
        except (ValueError, RuntimeError) as error:
            raise DamagedSourceError(f"{self._where}: {name} is damaged: {error}") from error
