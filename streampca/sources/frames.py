"""Data frames: columns of several dtypes as one array of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError, shorten
from streampca.matrix.exact import refuse_inexact

Array = np.ndarray[Any, Any]
SINGLE_NBYTES = {"i": 2, "u": 2, "f": 4, "b": 1}  # float32 holds these exactly


def is_frame(values: Any) -> bool:
    """Whether this is a data frame, of pandas or of a library like it."""
    return hasattr(values, "columns") and hasattr(values, "to_numpy")


def frame_values(frame: Any) -> Array:
    """(n, p) numbers of a data frame; NaN where a cell of a nullable column is missing.

    Columns of one NumPy dtype are taken as they are. Nullable columns (Int64, boolean, Float32,
    those of pyarrow) keep their dtype where nothing is missing; else they become float32 where it
    holds their values exactly, and float64 where not.
    Raises InvalidTypeError, which names the columns that are no numbers, or hold integers that
    float64 rounds.
    """
    if not hasattr(frame, "dtypes") or not hasattr(frame, "iloc"):
        return np.asarray(frame.to_numpy())  # polars: nulls come as NaN
    dtypes = set(frame.dtypes)
    if len(dtypes) == 1 and isinstance(one := dtypes.pop(), np.dtype) and one.kind in "biuf":
        return np.asarray(frame.to_numpy())
    _refuse_other_than_numbers(frame)
    return _numbers_of(frame)


def _numbers_of(frame: Any) -> Array:
    """The columns one by one, in the dtype that holds all of them."""
    dtypes = [_dtype_of(frame.iloc[:, j]) for j in range(frame.shape[1])]
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    out = np.empty(frame.shape, dtype)
    for j, (name, own) in enumerate(zip(frame.columns, dtypes, strict=True)):
        column = frame.iloc[:, j]
        if dtype.kind == "f":
            _refuse_rounding(column, str(name))
        na = {"na_value": np.nan} if own.kind == "f" else {}
        out[:, j] = column.to_numpy(dtype=own, **na)
    return out


def _dtype_of(column: Any) -> np.dtype[Any]:
    """The NumPy dtype of a column: a float where cells of a nullable one are missing."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        return np.dtype(np.float64) if dtype.kind == "O" else dtype
    own = np.dtype(getattr(dtype, "numpy_dtype", None) or getattr(dtype, "subtype", np.float64))
    if own.kind == "f" or not column.isna().any():
        return own
    return np.dtype(np.float32 if own.itemsize <= SINGLE_NBYTES[own.kind] else np.float64)


def _refuse_rounding(column: Any, name: str) -> None:
    """Raise where an integer of a column would be rounded on its way to a float."""
    if column.dtype.kind in "iu":
        known = column[column.notna()]
        own = column.dtype if isinstance(column.dtype, np.dtype) else column.dtype.numpy_dtype
        refuse_inexact(known.to_numpy(dtype=own), where=f"column {name!r}")
    elif column.dtype.kind == "O":
        refuse_rounded_objects(column.to_numpy(), f"column {name!r}")


def _refuse_other_than_numbers(frame: Any) -> None:
    """Raise for columns of text, categories, dates or objects that are no numbers."""
    bad = [
        f"{name!r} ({dtype})"
        for j, (name, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True))
        if not (_is_numeric(dtype) or (dtype.kind == "O" and _is_numbers(frame.iloc[:, j])))
    ]
    if bad:
        first = bad[0].rpartition(" (")[0]
        raise InvalidTypeError(
            f"columns {shorten(bad)} are not numeric; expected numbers. Leave them out, "
            f"X.drop(columns=[{first}]), or convert them, pandas.to_numeric(X[{first}])"
        )


def _is_numeric(dtype: Any) -> bool:
    """Whether a column of this dtype holds numbers."""
    own = dtype if isinstance(dtype, np.dtype) else getattr(dtype, "numpy_dtype", None)
    own = getattr(dtype, "subtype", None) if own is None else own
    return isinstance(own, np.dtype) and own.kind in "biuf"


def _is_numbers(column: Any) -> bool:
    """Whether all objects of a column are numbers."""
    try:
        column.to_numpy().astype(np.float64)
    except (TypeError, ValueError):
        return False
    return True


def refuse_rounded_objects(values: Array, where: str) -> None:
    """Raise where a Python integer of an object array is none in float64."""
    for value in values.ravel():
        if isinstance(value, int) and int(float(value)) != value:
            raise InvalidTypeError(
                f"{where} holds the integer {value}; expected integers up to 2**53 in size, since "
                "float64 rounds larger ones. Subtract a whole number from each column first"
            )
