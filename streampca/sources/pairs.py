"""Two objects over the same samples, each as a matrix."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.matrix.names import counts, whole_numbers
from streampca.matrix.pair import Pair, ReorderedMatrix, paired
from streampca.matrix.select import SelectedMatrix
from streampca.sources.dask.lazy import is_dask_frame
from streampca.sources.opening import as_matrix, counted
from streampca.sources.tables.frames import Array, is_frame, row_names, row_numbers
from streampca.sources.tables.row_names import known_features, named_rows


def as_pair(
    X: Any, Y: Any, *, dim: Any = None, missing_value: float | None = None
) -> tuple[ChunkedMatrix, ChunkedMatrix]:
    """X and Y as :func:`as_matrix` opens them; rows of Y in the order of X's index, if both have
    an index of integers, or one has the same integers as text. Rows of tables have the names of
    :func:`named_rows`. Labels are left to :func:`streampca.matrix.pair.paired`.

    Cost: reads no values but columns of tables that may name rows, and the index of a Dask frame.
    Raises InvalidInputError where the two indices hold different integers, or a column of both
    does not tell which rows belong together.
    """
    x, y = (as_matrix(counted(one), dim=dim, missing_value=missing_value) for one in (X, Y))
    if dim in (None, 0):
        return _by_numbers(X, Y, x, y)
    return named_rows((x, y), ("X", "Y"))  # type: ignore[return-value]


def same_rows(
    X: Any, Y: Any, dims: Sequence[Any], missing_value: float | None
) -> tuple[Any, Any, Pair | None]:
    """(X, Y, how they were paired) with the rows that both have, in the order of X.

    They come back as they are where neither has names of rows, or these do not differ; else pandas
    and xarray as such, anything else as a matrix. A Dask frame is not looked at, to stay lazy.
    dims : the sample dimensions of each.  Raises as :func:`as_pair` and :func:`paired`.
    """
    if not (_may_name_rows(X) and _may_name_rows(Y)):
        return X, Y, None
    with known_features():
        x, y = opened = [
            as_matrix(one, dim=dim, missing_value=missing_value)
            for one, dim in zip((X, Y), dims, strict=True)
        ]
        pair = paired(*_by_numbers(X, Y, x, y))
    found = [
        _some_rows(one, before, after)
        for one, before, after in zip((X, Y), opened, (pair.x, pair.y), strict=True)
    ]
    return found[0], found[1], pair


def _may_name_rows(one: Any) -> bool:
    stored = isinstance(one, (str, os.PathLike, ChunkedMatrix))
    held = is_frame(one) and not is_dask_frame(one)
    return stored or held or type(one).__module__.startswith("xarray.")


def _some_rows(one: Any, before: ChunkedMatrix, after: ChunkedMatrix) -> Any:
    """The rows of ``after`` of what was opened as ``before``."""
    if after is before:
        return one
    order, at = np.arange(after.shape[0]), after
    while at is not before:
        if not isinstance(at, (ReorderedMatrix, SelectedMatrix)):
            return after
        own = at.order if isinstance(at, ReorderedMatrix) else at.chosen[0]
        order, at = order if own is None else own[order], at.base
    dims = before.labels.samples.dims
    if hasattr(one, "iloc"):
        return one.iloc[order]
    return one.isel({dims[0]: order}) if hasattr(one, "isel") and len(dims) == 1 else after


def _by_numbers(
    X: Any, Y: Any, x: ChunkedMatrix, y: ChunkedMatrix
) -> tuple[ChunkedMatrix, ChunkedMatrix]:
    """The matrices of X and Y by the integers of their indices, or named by a column that tells."""
    order = _order(_numbers(X, Y), _numbers(Y, X))
    if order is None:
        return named_rows((x, y), ("X", "Y"))  # type: ignore[return-value]
    y = ReorderedMatrix(y, order)
    y.labels = y.labels.with_axes(x.labels.samples, y.labels.features)
    return x, y


# -- frames in memory -----------------------------------------------------------------------------


def _numbers(one: Any, other: Any) -> Array | None:
    """The integers of the index of a frame: those that it holds, or has as text where the other
    frame holds the same."""
    numbers, others = row_numbers(one), row_numbers(other)
    if numbers is not None or others is None:
        return numbers
    text = whole_numbers(row_names(one))
    same = text is not None and np.array_equal(np.sort(text), np.sort(others))
    return text if same else None


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
