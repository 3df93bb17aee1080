"""The kernel matrix of objects that are no rows of numbers: strings, graphs, anything."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Labels, ReadCount
from streampca.matrix.mapped import code_of
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally

ROUNDING = 1e-8  # relative difference of k(a, b) and k(b, a) that is rounding


def objects_in(X: Any) -> list[Any] | None:
    """The objects of a list, tuple or one-dimensional array of them; None where X holds numbers.

    Objects are strings, bytes, arrays or lists that are not all rows of as many numbers, and
    whatever else is no number.
    """
    if getattr(X, "ndim", None) == 1 and hasattr(X, "tolist"):
        X = X.tolist()  # a Series, an array of strings
    if not isinstance(X, (list, tuple)) or not X:
        return None
    widths = {_numbers_in(one) for one in X}
    return list(X) if None in widths or len(widths) > 1 else None


def _numbers_in(one: Any) -> int | None:
    """How many numbers a row holds, 0 for a number itself; None for anything else."""
    if isinstance(one, Number):
        return 0
    if isinstance(one, np.ndarray):
        return len(one) if one.ndim == 1 and one.dtype.kind in "biuf" else None
    plain = isinstance(one, (list, tuple)) and all(isinstance(x, Number) for x in one)
    return len(one) if plain else None


class ObjectReader(Reader):
    """k(a, b) of objects, computed as it is read.

    others : None where these are the objects themselves; then only the lower triangle is computed,
        and 0 is read above it.
    """

    computes = True
    dtype = np.dtype(np.float64)

    def __init__(
        self, function: Callable[..., Any], objects: list[Any], others: list[Any] | None
    ) -> None:
        self.function, self.objects = function, objects
        self.others, self.lower = (objects, True) if others is None else (others, False)
        self.shape: tuple[int, int] = (len(self.objects), len(self.others))
        self.tally = Tally()

    def read(self, index: Index) -> Array:
        rows, columns = index
        out = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
        for i in range(rows.start, rows.stop):
            stop = min(columns.stop, i + 1) if self.lower else columns.stop
            for j in range(columns.start, stop):
                out[i - rows.start, j - columns.start] = self._value(i, j)
        self._check(out, rows.start, columns.start)
        self.tally.add(ReadCount(1, out.nbytes))
        return out

    def _value(self, i: int, j: int) -> Any:
        return self.function(self.objects[i], self.others[j])

    def _check(self, values: Array, row: int, column: int) -> None:
        """Raises InvalidInputError for what is no kernel."""
        if not np.isfinite(values).all():
            i, j = np.argwhere(~np.isfinite(values))[0]
            raise InvalidInputError(
                f"the kernel of objects {i + row} and {j + column} is {values[i, j]}; expected a "
                "finite number"
            )
        i, j = row + len(values) - 1, column
        if self.lower and i > j:  # one pair of every block
            there, back = float(values[-1, 0]), float(self._value(j, i))
            if abs(there - back) > ROUNDING * max(abs(there), abs(back)):
                raise InvalidInputError(
                    f"the kernel of objects {i} and {j} is {there:g}, of {j} and {i} {back:g}; "
                    "expected a symmetric function"
                )

    def edges(self, dim: int) -> Array | None:
        return None

    def fingerprint(self) -> str:
        found = hashlib.sha256(code_of(self.function).encode())
        for group in (self.objects, self.others):
            for one in group:
                found.update(_identity(one))
        return found.hexdigest()


def _identity(one: Any) -> bytes:
    """What identifies an object, as far as it tells."""
    try:
        return pickle.dumps(one)
    except Exception:  # every class raises its own
        return repr(one).partition(" at 0x")[0].encode()


class ObjectKernel(StackedMatrix):
    """The kernel matrix of objects, (n, n), of which the lower triangle is valid; or that of other
    objects with them, (m, n)."""

    reader: ObjectReader

    def __init__(
        self,
        function: Callable[..., Any],
        objects: Sequence[Any],
        others: Sequence[Any] | None = None,
    ) -> None:
        listed = None if others is None else list(others)
        reader = ObjectReader(function, list(objects), listed)
        super().__init__(reader, labels=Labels.plain(reader.shape))

    def of_others(self, objects: Sequence[Any]) -> ObjectKernel:
        """The kernel of other objects with these."""
        return ObjectKernel(self.reader.function, objects, self.reader.objects)
