"""NumPy arrays, masked ones too, lists and data frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.kinds import check_dtype, refuse_gpu
from streampca.sources.dimensions import Dim
from streampca.sources.frames import (
    column_names,
    frame_values,
    held_nbytes,
    is_frame,
    refuse_rounded_objects,
    row_names,
)
from streampca.sources.masked import MaskedReader, holds_masked, joined, unmasked
from streampca.sources.memory import ArrayReader
from streampca.sources.stacked import stack

Array = np.ndarray[Any, Any]
LOADS = {"pandas": ("pandas",), "pyarrow": ("pandas",), "polars": ("polars",)}  # by a frame's kind


def from_array(array: Any, dim: Dim = None, missing_value: float | None = None) -> ChunkedMatrix:
    """NumPy, a masked array, a list of lists, or a data frame.

    missing_value : a number that means missing, beside what a mask hides.
    Cost: nothing is read; of a data frame a copy, of masked integers a look for a free code.
    """
    refuse_gpu(array)
    names, samples, mask, given = None, None, None, 0
    loads: tuple[str, ...] = ()
    _refuse_query(array)
    if is_frame(array):
        columns = column_names(array)
        names = columns if all(isinstance(c, str) for c in columns) else None
        samples = row_names(array)
        values = frame_values(array)
        loads = LOADS.get(type(array).__module__.split(".")[0], ())
        if values.base is None:  # a copy beside the frame
            given = held_nbytes(array)
    else:
        values, mask = unmasked(joined(array) if holds_masked(array) else array)
    if values.dtype.kind == "O":
        values = _numbers(values, mask)
    check_dtype(values.dtype)
    matrix = stack(reader_of(values, mask, missing_value, loads), dim)
    matrix.given_nbytes += given
    matrix.missing_value = missing_value
    if isinstance(matrix.reader, MaskedReader) and matrix.reader.code is not None:
        matrix.missing_value = matrix.reader.code
    if names is not None or samples is not None:
        matrix.labels = Labels.plain(matrix.shape, names, samples)
    return matrix


def _refuse_query(source: Any) -> None:
    """Refuse what is no table yet: a lazy frame of polars, a data set of pyarrow on disk."""
    kind = type(source)
    line = {"LazyFrame": "X.collect()", "FileSystemDataset": "X.to_table()"}.get(kind.__name__)
    if line is not None and kind.__module__.split(".")[0] in ("polars", "pyarrow"):
        raise InvalidTypeError(
            f"X is a {kind.__module__.split('.')[0]}.{kind.__name__}, which has no values yet; "
            f"expected a table in memory. Use {line}; or, where it does not fit, "
            "dask.dataframe.read_parquet"
        )


def reader_of(
    values: Array,
    mask: Array | None = None,
    missing_value: float | None = None,
    loads: tuple[str, ...] = (),
) -> ArrayReader:
    """The reader of an array with a mask, or without.  loads : libraries of what holds it."""
    if mask is None:
        return ArrayReader(values, loads)
    return MaskedReader(values, mask, missing_value)


def _numbers(values: Array, mask: Array | None) -> Array:
    """An object array whose entries are all numbers, as float64 (as scikit-learn accepts)."""
    if mask is not None:
        values = np.where(mask, np.nan, values)
    try:
        made = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"dtype object cannot be used: {error}; argument must be a string or a number. "
            "Convert with X.astype('float64')."
        ) from None
    refuse_rounded_objects(values, "X")
    return made
