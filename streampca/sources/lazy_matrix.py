"""Dask arrays, alone or in xarray, as matrices that stay lazy: for results that stay lazy too."""

from __future__ import annotations

import hashlib
import math
import sys
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels, ChunkedMatrix, ReadCount
from streampca.matrix.chunked_matrix import cut_lengths
from streampca.matrix.join import JoinedMatrix
from streampca.sources.dimensions import Dim, sample_dims
from streampca.sources.stacked import Index, Reader, StackedMatrix
from streampca.sources.tally import Tally

ROWS_NBYTES = 128 << 20  # of a chunk that is made of several


class LazyReader(Reader):
    """A Dask array whose graph nobody looks at. ``read`` computes a part of it."""

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

    Nothing is loaded to find out.
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


def lazy_matrix(X: Any, dim: Dim = None) -> ChunkedMatrix:
    """The shape and labels of what is lazy. Its graph is not looked at, nothing is computed.

    dim : as for ``streampca.open``. Raises what that raises.
    """
    if not type(X).__module__.startswith("xarray."):
        if any(math.isnan(n) for n in X.shape):
            raise InvalidInputError(
                f"the chunk sizes of this Dask array are not known (shape {X.shape}). "
                "Use X = X.compute_chunk_sizes(), which reads it once."
            )
        return StackedMatrix(LazyReader(X), sample_dims(X.shape, dim))
    from streampca.sources.labelled import from_xarray

    return from_xarray(X, dim=dim, lazily=True)


def lazy_rows(matrix: ChunkedMatrix) -> Any:
    """The (n, p) Dask array of a lazy matrix, its columns in one chunk.

    Chunks of rows are those of the source; where they are made of several chunks of columns, they
    are cut so that one takes at most ROWS_NBYTES.
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
    from streampca.sources.dask_frame import frame_array

    return frame_array(frame)


def frame_of_rows(frame: Any, function: Any, columns: Any, dtype: Any) -> Any:
    """See :func:`streampca.sources.dask_frame.map_frame`."""
    from streampca.sources.dask_frame import map_frame

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
