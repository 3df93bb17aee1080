"""Two objects over the same samples, each as a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.pair import ReorderedMatrix
from streampca.sources.frames import Array, row_numbers
from streampca.sources.opening import as_matrix, counted


def as_pair(
    X: Any, Y: Any, *, dim: Any = None, missing_value: float | None = None
) -> tuple[ChunkedMatrix, ChunkedMatrix]:
    """X and Y as :func:`as_matrix` opens them; rows of Y in the order of X's index, if both have
    an index of integers. Other labels are left to :func:`streampca.matrix.pair.paired`.

    Cost: reads no values. Raises InvalidInputError where the two indices hold different integers.
    """
    x, y = (as_matrix(counted(one), dim=dim, missing_value=missing_value) for one in (X, Y))
    order = _order(row_numbers(X), row_numbers(Y)) if dim in (None, 0) else None
    return x, y if order is None else ReorderedMatrix(y, order)


def _order(mine: Array | None, other: Array | None) -> Array | None:
    """The places in ``other`` of the integers of ``mine``; None where rows pair as they stand."""
    if mine is None or other is None or np.array_equal(mine, other) or _counts(mine, other):
        return None
    inwards, outwards = np.argsort(mine, kind="stable"), np.argsort(other, kind="stable")
    ranked = mine[inwards]
    if not np.array_equal(ranked, other[outwards]):
        differ = np.setxor1d(mine, other)
        what = f"such as {differ[0]}" if len(differ) else "some of them more often"
        raise InvalidInputError(
            f"the indices of X ({len(mine)} rows) and Y ({len(other)}) hold different integers, "
            f"{what}. Select the rows that both have, Y.loc[X.index]; or, if row i of X belongs to "
            "row i of Y whatever the indices say: X.reset_index(drop=True), "
            "Y.reset_index(drop=True)"
        )
    if (ranked[1:] == ranked[:-1]).any():
        raise InvalidInputError(
            "the indices of X and Y hold integers twice, in another order; expected each once. If "
            "row i of X belongs to row i of Y: X.reset_index(drop=True), Y.reset_index(drop=True)"
        )
    found = np.empty(len(mine), np.int64)
    found[inwards] = outwards
    return found


def _counts(*indices: Array) -> bool:
    """Whether all just count the rows from 0."""
    return all(np.array_equal(one, np.arange(len(one))) for one in indices)
