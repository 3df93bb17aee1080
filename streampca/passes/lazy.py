"""Row-wise functions of a Dask array, left lazy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.matrix.kinds import plain_rows


def is_dask_array(X: Any) -> bool:
    """Whether X is a Dask array, without loading Dask to find out."""
    return "dask" in sys.modules and type(X).__module__.startswith("dask.array")


def map_rows(X: Any, function: Callable[[Any], Any], width: int, dtype: Any) -> Any:
    """A Dask array of (rows, width) with the row chunks of X; function maps (rows, p) arrays."""
    whole = X.rechunk({1: -1})
    return whole.map_blocks(
        _applied,
        function=function,
        to=dtype,
        dtype=dtype,
        chunks=(X.chunks[0], (width,)),
        meta=np.empty((0, 0), dtype),
    )


def rows_like(X: Any, values: Any) -> Any:
    """Values (n, k) in memory as a Dask array with the row chunks of the Dask array X."""
    import dask.array

    return dask.array.from_array(values, chunks=(X.chunks[0], -1))


def lazy_rows(values: Any, rows: int) -> Any:
    """A (n, k) array as a Dask array of at most so many rows in a block."""
    if is_dask_array(values):
        return values
    import dask.array

    return dask.array.from_array(np.asarray(values), chunks=(rows, -1))


def beside(rows: Any, columns: Any) -> Any:
    """A lazy (n, k) Dask array with (n, c) columns in memory to its right."""
    import dask.array

    held = dask.array.from_array(np.asarray(columns), chunks=(rows.chunks[0], -1))
    return dask.array.concatenate([rows, held], axis=1)


def _applied(values: Any, function: Callable[[Any], Any], to: Any) -> Any:
    """What one block becomes, in the dtype that was announced for it."""
    return np.asarray(function(plain_rows(values)), dtype=to)
