"""Row-wise functions of a Dask array, left lazy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.matrix.chunked_matrix import cut_lengths
from streampca.matrix.kinds import plain_rows

CHUNK_NBYTES = 128 << 20  # of a chunk that is wider than what it is made of


def is_dask_array(X: Any) -> bool:
    """Whether X is a Dask array, without loading Dask to find out."""
    return "dask" in sys.modules and type(X).__module__.startswith("dask.array")


def map_rows(X: Any, function: Callable[..., Any], width: int, dtype: Any, side: Any = None) -> Any:
    """A Dask array of (rows, width) with the row chunks of X; function maps (rows, p) arrays.

    side : (n, r) in memory, or None: the function gets its rows too. Chunks that would take more
    than CHUNK_NBYTES are made of fewer rows each.
    """
    whole = X.rechunk({1: -1})
    most = max(1, CHUNK_NBYTES // max(1, np.dtype(dtype).itemsize * width))
    if width > X.shape[1] and max(whole.chunks[0], default=0) > most:
        whole = whole.rechunk({0: cut_lengths(whole.chunks[0], most)})
    sides = []
    if side is not None:
        import dask.array

        sides = [dask.array.from_array(np.asarray(side), chunks=(whole.chunks[0], -1))]
    return whole.map_blocks(
        _applied,
        *sides,
        function=function,
        to=dtype,
        dtype=dtype,
        chunks=(whole.chunks[0], (width,)),
        meta=np.empty((0, 0), dtype),
    )


def rows_like(X: Any, values: Any) -> Any:
    """Values (n, k) in memory as a Dask array with the row chunks of the Dask array X."""
    import dask.array

    return dask.array.from_array(values, chunks=(X.chunks[0], -1))


def in_chunks(values: Any, rows: int) -> Any:
    """A (n, k) array as a Dask array of at most so many rows in a block."""
    if is_dask_array(values):
        return values
    import dask.array

    return dask.array.from_array(np.asarray(values), chunks=(rows, -1))


def _applied(values: Any, *sides: Any, function: Callable[..., Any], to: Any) -> Any:
    """What one block becomes, in the dtype that was announced for it."""
    return np.asarray(function(plain_rows(values), *sides), dtype=to)
