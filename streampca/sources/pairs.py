"""Two objects over the same samples, each as a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.names import counts
from streampca.matrix.pair import ReorderedMatrix
from streampca.sources.frames import Array, row_numbers
from streampca.sources.opening import as_matrix, counted
from streampca.sources.row_keys import named_rows


def as_pair(
    X: Any, Y: Any, *, dim: Any = None, missing_value: float | None = None
) -> tuple[ChunkedMatrix, ChunkedMatrix]:
    """X and Y as :func:`as_matrix` opens them; rows of Y in the order of X's index, if both have
    an index of integers. Rows of tables have the names of :func:`named_rows`. Labels are left to
    :func:`streampca.matrix.pair.paired`.

    Cost: reads no values but columns of tables that may name rows, and the index of a Dask frame.
    Raises InvalidInputError where the two indices hold different integers, or a column of both
    does not tell which rows belong together.
    """
    x, y = (as_matrix(counted(one), dim=dim, missing_value=missing_value) for one in (X, Y))
    if dim in (None, 0):
        order = _order(row_numbers(X), row_numbers(Y))
        if order is not None:
            return x, ReorderedMatrix(y, order)
    return named_rows((x, y), ("X", "Y"))  # type: ignore[return-value]


# -- frames in memory -----------------------------------------------------------------------------


def _order(mine: Array | None, other: Array | None) -> Array | None:
    """The places in ``other`` of the integers of ``mine``; None where rows pair as they stand."""
    if mine is None or other is None or np.array_equal(mine, other):
        return None
    if counts(mine) and counts(other):
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
