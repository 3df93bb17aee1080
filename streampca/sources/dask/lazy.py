"""Dask arrays, alone or in xarray, whose results stay lazy, and maps of their rows."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.matrix import AxisLabels, ChunkedMatrix, ReadCount
from streampca.matrix.chunked_matrix import cut_lengths
from streampca.matrix.join import JoinedMatrix
from streampca.matrix.kinds import plain_rows
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally

# Lazy row-wise functions of a Dask array.

CHUNK_NBYTES = 128 << 20  # largest chunk of a result that is wider than its source


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
    """Values (n, k) in memory as a Dask array with the row chunks of X."""
    import dask.array

    return dask.array.from_array(values, chunks=(X.chunks[0], -1))


def in_chunks(values: Any, rows: int) -> Any:
    """A (n, k) array as a Dask array with at most ``rows`` rows in a block."""
    if is_dask_array(values):
        return values
    import dask.array

    return dask.array.from_array(np.asarray(values), chunks=(rows, -1))


def _applied(values: Any, *sides: Any, function: Callable[..., Any], to: Any) -> Any:
    """The function of one block, in the dtype declared for the result."""
    return np.asarray(function(plain_rows(values), *sides), dtype=to)


# Dask arrays, alone or in xarray, as lazy matrices, for lazy results.

ROWS_NBYTES = 128 << 20  # largest chunk that is merged from several


class LazyReader(Reader):
    """A Dask array whose graph is not analysed. ``read`` computes a part of it."""

    loads = ("dask",)

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, tuple(array.shape), np.dtype(array.dtype)
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        values = np.asarray(self.array[index].compute())
        self.tally.add(ReadCount(1, values.nbytes))
        return values

    def edges(self, dim: int) -> np.ndarray[Any, Any]:
        return np.cumsum((0, *self.array.chunks[dim]))

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self.array.name, self.shape)).encode()).hexdigest()


def is_dask_frame(X: Any) -> bool:
    """Whether X is a data frame or series of Dask."""
    return hasattr(X, "to_dask_array") and hasattr(X, "npartitions")


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask array or data frame, or an xarray object that holds Dask arrays.

    Imports no library.
    """
    if "dask" not in sys.modules:
        return False
    if is_dask_frame(X):
        return True
    kind = type(X).__module__
    if kind.startswith("xarray."):
        each = X.data_vars.values() if hasattr(X, "data_vars") else [X]
        return any(one.chunks is not None for one in each)
    return kind.startswith("dask.array")


def lazy_rows(matrix: ChunkedMatrix) -> Any:
    """The (n, p) Dask array of a lazy matrix, its columns in one chunk.

    Row chunks are those of the source. Where several column chunks are merged, they are split so
    that none exceeds ROWS_NBYTES.
    """
    import dask.array

    if isinstance(matrix, JoinedMatrix):
        rows = dask.array.concatenate([lazy_rows(part) for part in matrix.parts], axis=1)
        return rows.rechunk({1: -1})
    assert isinstance(matrix, StackedMatrix)
    assert isinstance(matrix.reader, LazyReader)
    order = [*matrix.dims[0], *matrix.dims[1]]
    array = matrix.reader.array.transpose(order) if order != sorted(order) else matrix.reader.array
    if any(len(sizes) > 1 for sizes in array.chunks[1:]):
        step = array.dtype.itemsize * math.prod(array.shape[1:])
        rows = cut_lengths(array.chunks[0], max(1, ROWS_NBYTES // max(1, step)))
        array = array.rechunk((rows, *array.shape[1:]))
    return array if array.shape == matrix.shape else array.reshape(matrix.shape)


def frame_rows(frame: Any) -> Any:
    """The numbers of a Dask data frame as a Dask array (n, p); n may be unknown."""
    from streampca.sources.dask.frame import frame_array

    return frame_array(frame)


def frame_of_rows(frame: Any, function: Any, columns: Any, dtype: Any) -> Any:
    """See :func:`streampca.sources.dask.frame.map_frame`."""
    from streampca.sources.dask.frame import map_frame

    return map_frame(frame, function, columns, dtype)


def lazily_held(values: Any, X: Any, samples: AxisLabels) -> Any:
    """(n, k) values in memory as a Dask array, with the row chunks of the lazy X."""
    import dask.array

    dims = samples.dims
    if is_dask_frame(X):
        X = frame_rows(X)
    if type(X).__module__.startswith("xarray."):
        sizes = X.chunksizes.get(dims[0], (X.sizes[dims[0]],))
    else:
        sizes = X.chunks[0] if len(dims) == 1 else (len(values),)
    inner = math.prod(samples.sizes[1:])
    if inner * sum(sizes) != len(values):
        sizes, inner = (len(values),), 1
    return dask.array.from_array(values, chunks=(tuple(inner * n for n in sizes), -1))
