"""Columns of samples or features by name, as in ``remove="batch"``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix

WORDS = ("month", "season", "trend", "linear")
Find = Callable[[str], Any]  # a column by its name; raises InvalidInputError where there is none


@dataclass(frozen=True)
class Named:
    """A column with the name by which it was requested."""

    name: str
    values: Any
    ndim = 1


def named_column(matrix: ChunkedMatrix, axis: int, argument: str, expected: str, name: str) -> Any:
    """The column of a matrix of that name.  argument, expected : for the message."""
    if (found := matrix.column(axis, name)) is not None:
        return found
    known = matrix.column_names(axis)
    what = ("samples", "features")[axis]
    has = f"which are {', '.join(known)}" if known else "which have none here"
    raise InvalidInputError(
        f"{argument}={name!r}; expected {expected}, or the name of a column of the {what}, {has}"
    )


def removable(matrix: ChunkedMatrix) -> Find:
    """Finds columns of the samples of a matrix for ``remove``."""
    expected = "'month', 'season', 'trend', an array of (n_samples, columns), a list of such"
    return partial(named_column, matrix, 0, "remove", expected)


def with_columns(remove: Any, find: Find, n: int) -> Any:
    """``remove`` with names of columns replaced by what they hold.

    A list of ``n`` texts that are no names holds the level of each of n samples.
    """
    if isinstance(remove, str):
        return remove if remove in WORDS else _named(find, remove)
    if not isinstance(remove, (list, tuple)) or not any(isinstance(one, str) for one in remove):
        return remove
    texts = all(isinstance(one, str) for one in remove)
    try:
        return [
            _named(find, one) if isinstance(one, str) and one not in WORDS else one
            for one in remove
        ]
    except InvalidInputError:
        if texts and len(remove) == n and not set(remove) <= set(WORDS):
            return np.asarray(remove)
        raise


def _named(find: Find, name: str) -> Named:
    values = find(name)
    if np.asarray(values).dtype.kind == "M":
        raise InvalidInputError(
            f"remove={name!r} holds dates; expected numbers or levels. Of dates remove 'month', "
            "'season' or 'trend'"
        )
    return Named(name, values)
