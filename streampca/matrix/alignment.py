"""Arrays that belong to an axis of a matrix: by the names of its entries, or by their number.

One rule for every argument. Where both sides have names, entries go by name in any order, and names
that are absent are refused. Otherwise they go by their number, and their count is checked. An index
that counts from 0 names nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix.labels import AxisLabels, Labels
from streampca.matrix.names import (
    GENERIC,
    OF_FRAMES,
    absent_names,
    counts,
    difference,
    index_names,
    match,
    places,
    reordered_numbers,
    whole_numbers,
)


def along(values: Any, axis: AxisLabels, name: str, *, partly: bool = False) -> Array:
    """One value for every entry of an axis, (len(axis),).

    values : a sequence of that length, an array with the shape of the stacked dimensions, a
        DataArray over some of them (aligned by its coordinates, repeated along the others), a
        Series or a frame of one column (by its index), a polars or Arrow table of names and
        values, or a dict from names to values. Of the features of several variables it may hold
        an array or a number for each, by its name.
    name : of the argument, for messages.
    partly : entries that ``values`` does not name get None, NaN or NaT, unless it names none.
    Raises InvalidInputError for other names, repeated ones, or another number of entries.
    """
    if axis.parts and (by_dims(values) or hasattr(values, "keys")) and not _is_series(values):
        each = values if hasattr(values, "keys") else dict.fromkeys(axis.parts, values)
        if absent := [part for part in axis.parts if part not in each]:
            raise InvalidInputError(f"{name} has nothing for the variable {absent[0]!r}")
        return np.concatenate([_of_part(each[part], one, name) for part, one in axis.parts.items()])
    if by_dims(values) and not _is_flat(values, axis):
        return _broadcast(values, axis, name)
    refuse_masked(values, name)
    if _is_series(values) and getattr(values.index, "nlevels", 1) > 1 and len(axis.dims) > 1:
        return along(values.to_xarray(), axis, name, partly=partly)  # of a stacked grid
    names, array = named_values(values, name)
    known = None if names is None else axis_names(axis)
    if names is None or known is None or counts(names):
        _refuse_reordered(names, known, name)
        return _by_number(array, axis, name)
    found = places(known, names, name)
    gaps = found < 0
    if gaps.any() and not (partly and not gaps.all()):
        raise absent_names(known[gaps], name, *OF_FRAMES)
    return _with_gaps(array[found], gaps) if gaps.any() else np.asarray(array[found])


def axis_names(axis: AxisLabels) -> Array | None:
    """The names of the entries, or None where they have none."""
    if axis.parts or len(axis.dims) > 1:
        return np.asarray(axis.names()) if axis.named else None
    return np.asarray(axis.coords[axis.dims[0]]) if axis.dims[0] in axis.coords else None


def shared_places(wanted: AxisLabels, axis: AxisLabels, what: str) -> Array | None:
    """(len(wanted),) places in an axis of the entries of another one, by name.

    None where they are the same, or a side has no names: then entries go by number. Names that
    count from 0 are none.  what : whose entries are wanted, for the message.
    Raises InvalidInputError for names that the axis lacks, or has twice.
    """
    mine, others = _names_of_one(wanted), _names_of_one(axis)
    if mine is None or others is None or not difference(wanted, axis, ""):
        return None
    found = places(mine, others, "X")
    if (absent := np.flatnonzero(found < 0)).size:
        raise InvalidInputError(
            f"{len(absent)} of {len(wanted)} {what} are not in X, by their names: "
            f"{shorten([wanted.name(int(i)) for i in absent[:4]], len(absent))}"
        )
    if len(np.unique(found)) < len(found):
        raise InvalidInputError(f"{what} repeat a name; expected each once, or none")
    return found


def _names_of_one(axis: AxisLabels) -> Array | None:
    """Names along a single dimension, unless they are the numbers from 0, as text too: those of
    AnnData without any."""
    if axis.parts or len(axis.dims) > 1 or (names := axis_names(axis)) is None:
        return None
    whole = whole_numbers(names)
    return None if whole is not None and counts(whole) else names


def rows_of(fitted: AxisLabels, scores: Any, n: int) -> AxisLabels:
    """The labels of n rows of scores: their own, or those of the fit where these are as many."""
    if _is_series(scores):
        return AxisLabels.plain("sample", n, index_names(scores.index))
    if by_dims(scores):
        rows = [str(dim) for dim in scores.dims[:-1]]
        coords = {dim: np.asarray(scores[dim].values) for dim in rows if dim in scores.coords}
        return AxisLabels(tuple(rows), tuple(scores.shape[:-1]), coords)
    return fitted if len(fitted) == n else AxisLabels.plain("sample", n)


def rows_along(table: Any, axis: AxisLabels, name: str) -> Array:
    """(len(axis), k) rows of a table, each column of which is as in :func:`along`."""
    labelled = hasattr(table, "iloc") or by_dims(table)
    if not labelled or table.ndim != 2 or len(axis.dims) > 1:
        return np.asarray(table)
    columns = [
        table.iloc[:, j] if hasattr(table, "iloc") else table[:, j] for j in range(table.shape[1])
    ]
    return np.stack([along(column, axis, name) for column in columns], axis=1)


def table_along(values: Any, labels: Labels, name: str) -> Array:
    """(n, p) values for every cell of a matrix: a frame or a DataArray goes by the names of both
    axes, anything else by place."""
    axes = labels.samples, labels.features
    if hasattr(values, "iloc") and getattr(values, "ndim", 0) == 2:
        for axis, index in zip(axes, (values.index, values.columns), strict=True):
            known, names = axis_names(axis), index_names(index)
            if known is not None and names is not None:
                found = match(known, names, name, OF_FRAMES)
                values = values.iloc[found] if axis is axes[0] else values.iloc[:, found]
    elif by_dims(values):
        dims = [dim for axis in axes for dim in axis.dims]
        if set(map(str, values.dims)) == set(dims):
            coords = {d: c for axis in axes for d, c in axis.coords.items()}
            for dim in values.dims:
                if dim in values.coords and dim in coords:
                    where = f"{name} along {dim!r}"
                    values = values.isel({dim: match(coords[dim], values.coords[dim], where)})
            values = values.transpose(*dims)
            values = values.values.reshape(len(axes[0]), len(axes[1]))
    return np.asarray(values)


def by_dims(values: Any) -> bool:
    """Whether values are one array with named dimensions (an xarray.DataArray)."""
    kind = type(values)  # asking the array itself for its values would compute them
    named = all(hasattr(kind, name) for name in ("dims", "coords", "values"))
    return named and not hasattr(kind, "keys")


def refuse_masked(values: Any, name: str) -> None:
    """Refuse a masked array with masked entries: every value is needed."""
    if np.ma.is_masked(values):
        raise InvalidInputError(
            f"{name} is a masked array with {int(np.ma.count_masked(values))} masked entries; "
            f"expected a value everywhere: {name}.filled(...)"
        )


def names_of(values: Any) -> Array | None:
    """The names that values carry; None where they have none, or just count."""
    table = hasattr(values, "columns") or hasattr(values, "column_names")
    flat = len(values.dims) == 1 if by_dims(values) else _is_series(values) or table
    if not flat and not isinstance(values, Mapping):
        return None
    if _is_series(values):
        names = index_names(values.index, counted=True)
    else:
        names, _ = named_values(values, "values")
    return None if names is None or counts(names) else names


def named_values(values: Any, what: str) -> tuple[Array | None, Array]:
    """(names of the entries, or None; their values).  what : the argument, for messages."""
    if hasattr(values, "compute") and hasattr(values, "index"):
        values = values.compute()  # a series of Dask
    if _is_series(values):
        if getattr(values, "ndim", 1) == 2:
            values = _only_column(values, what)
        return index_names(values.index, counted=True), np.asarray(values)
    if isinstance(values, Mapping):
        return np.asarray(list(values)), np.asarray(list(values.values()))
    if by_dims(values):
        (dim,) = values.dims
        names = np.asarray(values.coords[dim].values) if dim in values.coords else None
        return names, np.asarray(values.values)
    if hasattr(values, "columns") or hasattr(values, "column_names"):
        return _of_table(values, what)
    return None, np.asarray(values)


# -- inside ---------------------------------------------------------------------------------------


def _is_series(values: Any) -> bool:
    """Whether this has the index of a pandas Series or frame."""
    return hasattr(values, "to_numpy") and hasattr(getattr(values, "index", None), "dtype")


def _is_flat(values: Any, axis: AxisLabels) -> bool:
    """Whether a DataArray goes by its names, or by number, whatever its only dimension is called:
    beside an axis that the data did not name, or with a dimension that nobody named."""
    if len(values.dims) != 1 or len(axis.dims) != 1 or axis.parts or values.dims[0] in axis.dims:
        return False
    (dim,) = values.dims
    if dim in values.coords:
        return axis.dims[0] in GENERIC
    return str(dim).startswith("dim_")


def _only_column(frame: Any, what: str) -> Any:
    if frame.shape[1] != 1:
        raise InvalidInputError(
            f"{what} is a frame of {frame.shape[1]} columns; expected one, such as frame['w']"
        )
    return frame.iloc[:, 0]


def _of_table(table: Any, what: str) -> tuple[Array | None, Array]:
    """(names, values) of a polars or Arrow table of one column, or of names and values."""
    arrow = hasattr(table, "column_names")
    titles = list(table.column_names if arrow else table.columns)
    columns = [np.asarray(table[title]) for title in titles]
    text = [i for i, column in enumerate(columns) if column.dtype.kind in "OUT"]
    if len(columns) == 1:
        return None, columns[0]
    if len(columns) != 2 or len(text) != 1:
        raise InvalidInputError(
            f"{what} is a table with the columns {titles}; expected one of values, and at most one "
            "more with the names"
        )
    return np.asarray([str(one) for one in columns[text[0]]]), columns[1 - text[0]]


def _refuse_reordered(names: Array | None, known: Array | None, name: str) -> None:
    """Refuse numbers from 0 in another order beside entries that just count, or the reverse: they
    may mean either."""
    if names is None:
        return
    one, counted = (names, True) if known is None else (known, counts(names))
    if counted and reordered_numbers(one) and len(names) == len(one):
        where = f"the index of {name}" if known is None else "the index of X"
        text = np.asarray(one).dtype.kind not in "iu"
        kind = f".astype({'str' if known is None else 'int'})" if text else ""
        raise InvalidInputError(
            f"{where} holds the numbers from 0 in another order, and the other side counts from 0: "
            f"expected one order. By index: {name}.loc[X.index{kind}]; by position: "
            f"{name}.to_numpy()"
        )


def _by_number(array: Array, axis: AxisLabels, name: str) -> Array:
    if array.shape not in ((len(axis),), axis.sizes):
        raise InvalidInputError(
            f"{name} has shape {array.shape}; expected one for each of {len(axis)} "
            f"({' x '.join(axis.dims)})"
        )
    return array.reshape(-1)


def _with_gaps(array: Array, absent: Array) -> Array:
    """Values with what stands for none where they are absent."""
    kind = array.dtype.kind
    filled = array.astype(array.dtype if kind in "fM" else object)
    filled[absent] = np.nan if kind == "f" else np.datetime64("NaT") if kind == "M" else None
    return filled


def _of_part(values: Any, axis: AxisLabels, name: str) -> Array:
    """The values of one variable; a single number applies to all of its features."""
    return np.full(len(axis), values) if np.ndim(values) == 0 else along(values, axis, name)


def _broadcast(values: Any, axis: AxisLabels, name: str) -> Array:
    """A DataArray over some of the dimensions of an axis."""
    dims = tuple(str(d) for d in values.dims)
    if not dims or not set(dims) <= set(axis.dims):
        raise InvalidInputError(
            f"{name} has dimensions {dims}; expected some of {axis.dims}. Rename them, or pass "
            f"{name}.values"
        )
    array = np.asarray(values.values)
    for d, dim in enumerate(dims):
        known = values.coords[dim].values if dim in values.coords else None
        size = axis.sizes[axis.dims.index(dim)]
        array = np.take(array, _matched(axis.coords.get(dim), known, size, dim, name, array, d), d)
    return axis.spread(array, dims)


def _matched(
    wanted: Array | None, known: Array | None, size: int, dim: str, name: str, array: Array, d: int
) -> Array:
    """Positions along ``dim`` of the entries that match the data, by coordinate."""
    if wanted is None or known is None:
        if array.shape[d] != size:
            raise InvalidInputError(f"{name} has {array.shape[d]} along {dim!r}; expected {size}")
        return np.arange(size)
    return match(np.asarray(wanted), np.asarray(known), f"{name} along {dim!r}")
