"""Data frames: columns of several dtypes as one array of numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError, shorten
from streampca.matrix.block import refuse_complex, refuse_inexact
from streampca.matrix.names import counts, index_names, index_tuples

Array = np.ndarray[Any, Any]
SINGLE_NBYTES = {"i": 2, "u": 2, "f": 4, "b": 1}  # float32 holds these exactly


def is_frame(values: Any) -> bool:
    """Whether this is a data frame or table: of pandas, polars, pyarrow or a library like them."""
    table = hasattr(values, "column_names") and hasattr(values, "num_columns")
    return table or (hasattr(values, "to_numpy") and hasattr(values, "columns"))


def column_names(frame: Any) -> list[Any]:
    """The names of its columns."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def row_names(frame: Any) -> Any:
    """Row names from the index of a pandas frame; None where it counts from 0."""
    index = getattr(frame, "index", None)
    return index_names(index) if hasattr(index, "dtype") else None


def without_index(frame: Any) -> tuple[Any, Any]:
    """(the frame without columns that hold an index, the names of its rows or None)."""
    if not hasattr(frame, "column_names") or not hasattr(frame, "schema"):
        return frame, row_names(frame)
    index = StoredIndex.of(frame.schema)
    if not index.columns and index.numbers is None:
        return frame, None
    names = index.names([np.asarray(frame[name]) for name in index.columns])
    return (frame.drop_columns(list(index.columns)) if index.columns else frame), names


@dataclass(frozen=True)
class StoredIndex:
    """The index of pandas in the metadata of an Arrow schema.

    columns : that hold it.  numbers : those of a range that counts otherwise than from 0.
    """

    columns: tuple[str, ...] = ()
    numbers: range | None = None

    @classmethod
    def of(cls, schema: Any) -> StoredIndex:
        """The index of a schema; without columns where pandas did not write it."""
        stored = (schema.metadata or {}).get(b"pandas")
        try:
            levels = json.loads(stored).get("index_columns", []) if stored else []
        except ValueError:
            levels = []
        columns = tuple(one for one in levels if isinstance(one, str) and one in schema.names)
        ranges = [one for one in levels if isinstance(one, dict) and one.get("kind") == "range"]
        numbers = None
        if ranges and not columns:
            numbers = range(*(int(ranges[0][end]) for end in ("start", "stop", "step")))
        counted = numbers is None or numbers == range(len(numbers))
        return cls(columns, None if counted else numbers)

    def names(self, columns: Sequence[Array]) -> Any:
        """The names of rows, by what its columns hold; None where they just count, or repeat."""
        if len(columns) > 1:
            return index_tuples(columns)
        values = columns[0] if columns else np.asarray(self.numbers or [])
        if values.dtype.kind in "iuf" and (counts(values) or len(np.unique(values)) < len(values)):
            return None
        return values


def feature_names(frame: Any) -> Any:
    """The names of its columns; None where they just count."""
    names = column_names(frame)
    if all(isinstance(name, str) for name in names):
        return names
    columns = getattr(frame, "columns", None)
    return index_names(columns) if hasattr(columns, "dtype") else None


def row_numbers(frame: Any) -> Array | None:
    """The index of a pandas frame or series where it is of integers, else None."""
    index: Any = getattr(frame, "index", None)
    if type(index).__module__.split(".")[0] != "pandas" or index.nlevels > 1:
        return None
    return np.asarray(index) if index.dtype.kind in "iu" and not index.hasnans else None


def held_nbytes(frame: Any) -> int:
    """Memory that a frame takes."""
    if hasattr(frame, "memory_usage"):
        return int(frame.memory_usage().sum())
    own = frame.estimated_size() if hasattr(frame, "estimated_size") else frame.nbytes
    return int(own)


def framed_like(frame: Any, rows: Array) -> Any:
    """Rows (n, p) as a frame of the same kind and names; an array where ``frame`` is no frame."""
    if not is_frame(frame):
        return rows
    if hasattr(frame, "column_names"):
        return type(frame).from_arrays(list(rows.T), names=column_names(frame))
    if hasattr(frame, "get_columns"):
        return type(frame)(rows, schema=column_names(frame))
    return type(frame)(rows, index=frame.index, columns=frame.columns)


def frame_values(frame: Any) -> Array:
    """(n, p) numbers of a data frame; NaN where a cell of a nullable column is missing.

    Columns of one NumPy dtype are not converted. Nullable columns (Int64, boolean, Float32, those
    of polars and pyarrow) keep their dtype where nothing is missing. Otherwise they become float32
    if it holds their values exactly, and float64 if not.
    Raises InvalidTypeError, which names the columns that are not numeric, or hold integers that
    float64 rounds.
    """
    if not hasattr(frame, "dtypes") or not hasattr(frame, "iloc"):
        return arrow_values(frame)
    dtypes = set(frame.dtypes)
    if len(dtypes) == 1 and isinstance(one := dtypes.pop(), np.dtype) and one.kind in "biufc":
        return np.asarray(frame.to_numpy())
    for dtype in frame.dtypes:
        if dtype.kind == "c":
            refuse_complex(dtype, "a column", "ComplexEOF(2).fit(X.to_numpy())")
    refuse_other_than_numbers(frame)
    return numbers_of(frame)


def numbers_of(frame: Any, dtype: np.dtype[Any] | None = None) -> Array:
    """The columns of a pandas frame as one array of this dtype, or of their common dtype."""
    dtypes = [dtype_of(frame.iloc[:, j]) for j in range(frame.shape[1])]
    if dtype is None:
        dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    out = np.empty(frame.shape, dtype)
    for j, (name, own) in enumerate(zip(frame.columns, dtypes, strict=True)):
        column = frame.iloc[:, j]
        if dtype.kind == "f":
            _refuse_rounding(column, str(name))
        na = {"na_value": np.nan} if own.kind == "f" else {}
        out[:, j] = column.to_numpy(dtype=own, **na)
    return out


def dtype_of(column: Any) -> np.dtype[Any]:
    """The NumPy dtype of a column: a float where a nullable column has missing cells."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        return np.dtype(np.float64) if dtype.kind == "O" else dtype
    own = np.dtype(getattr(dtype, "numpy_dtype", None) or getattr(dtype, "subtype", np.float64))
    if own.kind == "f" or not column.isna().any():
        return own
    return exact_float(own)


def _refuse_rounding(column: Any, name: str) -> None:
    """Raise where an integer of a column would be rounded by the conversion to float."""
    if column.dtype.kind in "iu":
        known = column[column.notna()]
        own = column.dtype if isinstance(column.dtype, np.dtype) else column.dtype.numpy_dtype
        refuse_inexact(known.to_numpy(dtype=own), where=f"column {name!r}")
    elif column.dtype.kind == "O":
        refuse_rounded_objects(column.to_numpy(), f"column {name!r}")


def refuse_other_than_numbers(frame: Any) -> None:
    """Raise for columns of text, categories, dates or objects other than numbers."""
    bad = [
        f"{name!r} ({dtype})"
        for j, (name, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True))
        if not (_is_numeric(dtype) or (dtype.kind == "O" and _is_numbers(frame.iloc[:, j])))
    ]
    if bad:
        raise not_numeric(
            bad,
            "X.drop(columns=[{0}]), make one the names of the rows, X.set_index({0})",
            "pandas.to_numeric(X[{}])",
        )


def not_numeric(bad: list[str], drop: str, convert: str) -> InvalidTypeError:
    """The error for columns that are not numeric.

    bad : ``'name' (dtype)`` of each.  drop, convert : format strings for the first name.
    """
    first = bad[0].rpartition(" (")[0]
    return InvalidTypeError(
        f"columns {shorten(bad)} are not numeric; expected numbers. Leave them out, "
        f"{drop.format(first)}, or convert them, {convert.format(first)}"
    )


def _is_numeric(dtype: Any) -> bool:
    """Whether a column of this dtype holds numbers."""
    own = dtype if isinstance(dtype, np.dtype) else getattr(dtype, "numpy_dtype", None)
    own = getattr(dtype, "subtype", None) if own is None else own
    return isinstance(own, np.dtype) and own.kind in "biuf"


def _is_numbers(column: Any) -> bool:
    """Whether all objects of a column are numbers: "001" is text, and a category is a name."""
    if column.dtype != object:
        return False
    try:
        column.to_numpy().astype(np.float64)
    except (TypeError, ValueError):
        return False
    return not any(isinstance(one, (str, bytes)) for one in column)


def refuse_rounded_objects(values: Array, where: str) -> None:
    """Raise where float64 cannot hold a Python integer of an object array."""
    for value in values.ravel():
        if isinstance(value, int) and int(float(value)) != value:
            raise InvalidTypeError(
                f"{where} holds the integer {value}; expected integers up to 2**53 in size, since "
                "float64 rounds larger ones. Subtract a whole number from each column first"
            )


def arrow_values(frame: Any) -> Array:
    """(n, p) numbers of a polars frame or a pyarrow table; NaN where a cell is null.

    Raises InvalidTypeError as :func:`frame_values` does.
    """
    names = column_names(frame)
    columns = frame.columns if hasattr(frame, "column_names") else frame.get_columns()
    kinds = [np.asarray(column[:0]).dtype for column in columns]
    bad = [
        f"{name!r} ({getattr(column, 'dtype', None) or column.type})"
        for name, column, kind in zip(names, columns, kinds, strict=True)
        if kind.kind not in "buif"
    ]
    if bad:
        cast = "X.with_columns(polars.col({}).cast(float))"
        if hasattr(frame, "column_names"):
            raise not_numeric(bad, "X.drop_columns([{}])", "X.to_pandas() and pandas.to_numeric")
        raise not_numeric(bad, "X.drop({})", cast)
    dtypes = [_with_nulls(kind, column) for kind, column in zip(kinds, columns, strict=True)]
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.float64)
    out = np.empty((len(columns[0]) if columns else 0, len(columns)), dtype)
    for j, (name, column) in enumerate(zip(names, columns, strict=True)):
        known = column.drop_nulls() if hasattr(column, "drop_nulls") else column.drop_null()
        values = np.asarray(known)
        if dtype.kind == "f":
            refuse_inexact(values, where=f"column {name!r}")
        if not _null_count(column):
            out[:, j] = values
            continue
        null = np.asarray(column.is_null(), dtype=bool)
        out[null, j], out[~null, j] = np.nan, values
    return out


def _with_nulls(dtype: np.dtype[Any], column: Any) -> np.dtype[Any]:
    """The dtype of a column: a float where it has nulls."""
    if dtype.kind == "f" or not _null_count(column):
        return dtype
    return exact_float(dtype)


def _null_count(column: Any) -> int:
    count = column.null_count
    return int(count() if callable(count) else count)


def exact_float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 where it holds every number of a dtype, else float64."""
    return np.dtype(np.float32 if dtype.itemsize <= SINGLE_NBYTES[dtype.kind] else np.float64)


def framed(values: Array, names: Array, like: Any, library: str) -> Any:
    """Rows as a data frame with the index of ``like``, where it has one.

    library : "pandas" or "polars".
    """
    if library == "polars":
        import polars

        return polars.DataFrame(values, schema=list(names))
    import pandas as pd

    index = like.index if isinstance(like, (pd.DataFrame, pd.Series)) else None
    return pd.DataFrame(values, index=index, columns=names)
