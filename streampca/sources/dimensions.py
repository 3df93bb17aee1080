"""Which dimensions of an array are the samples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError

TIME = "time"  # the dimension of the samples where none is named
Dim = Hashable | Sequence[Hashable] | None  # the sample dimension(s), by name or number


def sample_dims(
    shape: Sequence[int], dim: Dim, names: Sequence[Hashable] | None = None, what: str = "X"
) -> tuple[int, ...]:
    """The numbers of the sample dimensions of an array.

    dim : by name or number; None: the first of two, or "time" of more.  names : of all dimensions.
    Raises InvalidInputError where they are not there, or nothing says which.
    """
    if dim is not None:
        return _number_dims(len(shape), dim, names)
    if len(shape) > 2 and names is not None:
        if TIME in names:
            return (list(names).index(TIME),)
        example = next((n for n in names if isinstance(n, str)), 0)
        raise InvalidInputError(
            f"{what} has dimensions {list(names)} and the call does not say which are samples. "
            f"Use streampca.open(X, dim={example!r}); the others are stacked into features."
        )
    check_rank(shape, what)
    return (0,)


def _number_dims(ndim: int, dim: Dim, names: Sequence[Hashable] | None) -> tuple[int, ...]:
    """The numbers of the sample dimensions, from names or numbers.

    Raises InvalidInputError where one is not there, or none is left for the features.
    """
    wanted = [dim] if isinstance(dim, str) or not isinstance(dim, Sequence) else list(dim)
    known: list[Any] = list(range(ndim)) if names is None else list(names)
    found = []
    for one in wanted:
        if names is not None and one in names:
            found.append(known.index(one))
        elif (
            isinstance(one, (int, np.integer))
            and not isinstance(one, bool)
            and (-ndim <= one < ndim)
        ):
            found.append(int(one) % ndim)
        else:
            raise InvalidInputError(f"dim={one!r} is not there; the array has dimensions {known}")
    if not found or len(set(found)) != len(found) or len(found) == ndim:
        raise InvalidInputError(
            f"dim={dim!r} must name each sample dimension once and leave at least one of {known} "
            "for the features"
        )
    return tuple(found)


def check_rank(shape: Sequence[int], what: str = "X") -> None:
    """Refuse an array that is not 2-D where nothing says how to stack it."""
    if len(shape) == 2:
        return
    if len(shape) == 1:
        raise InvalidInputError(
            f"Expected 2D array, got 1D array instead: {what} has shape {tuple(shape)}. "
            "Reshape your data: X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one sample."
        )
    raise InvalidInputError(
        f"Expected a 2-D {what} of samples x features, got shape {tuple(shape)}. Name the sample "
        "dimension, streampca.open(X, dim=0), and the rest is stacked into features."
    )
