"""Appending of rows to a Zarr array such that readers never see rows that are not yet written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from streampca.errors import ChangingSourceError, InvalidInputError
from streampca.object_storage import has_obstore, no_obstore, open_objects
from streampca.paths import OBJECTS, scheme_of
from streampca.sources.zarr.marks import COMMITTED, RowMark, Span
from streampca.sources.zarr.opening import pick_array
from streampca.sources.zarr.stores import dims_of, is_repository, rebuilt, snapshot_of

Place = str | os.PathLike[str] | zarr.Array[Any]


def append(
    store: Place,
    rows: Any,
    *,
    dim: int = 0,
    variable: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Append rows to a Zarr array (v2 or v3): first their chunks, then, in one write, the length.

    store : a path, a URL, or a ``zarr.Array``.  rows : an array of the store's dtype, with its
    shape but for ``dim``.  variable : which array of a group.  storage_options : of a URL.
    Returns the new number of rows.

    An interrupted append has no effect: readers see the earlier rows, and the next append replaces
    it. ``streampca refresh`` accepts the rows at once, whatever their values, because the attribute
    ``streampca_rows`` of the array certifies them. Only one writer at a time: a second one that
    extends the array meanwhile is detected at the end. After an array has been shortened by other
    means, call ``commit_rows`` with its new length. A ``zarr.Array`` passed as ``store`` shows its
    old length until it is reopened; for Icechunk it is one of a writable session.

    Cost: each chunk with a new row is written once, and the first is read before. The metadata,
    including consolidated metadata, are read twice and written once (v2: twice).

    Raises InvalidInputError for another shape or dtype, for a dimension that coordinates of the
    group share, and where ``streampca_rows_committed`` is behind the length;
    ChangingSourceError where the array was made longer by somebody else.

    Examples:
        >>> import numpy as np, zarr
        >>> x = zarr.create_array(zarr.storage.MemoryStore(), data=np.zeros((4, 3)), chunks=(2, 3))
        >>> streampca.append(x, np.ones((2, 3)))  # every night, before ``streampca refresh``
        6
    """
    array = _opened(store, variable, storage_options, dim)
    values = _checked(array, np.asarray(rows), dim)
    first = int(array.shape[dim])
    if not values.shape[dim]:
        return first
    mark = RowMark.of(array.attrs)
    if mark.decides and mark.end < first:
        raise InvalidInputError(
            f"{array.store_path}: {COMMITTED} says {mark.end} of {first} rows. Let its writer end; "
            f"or streampca.commit_rows(store, {first}) where all are written, or "
            f"array.resize(...) to {mark.end} rows"
        )
    end = first + values.shape[dim]
    shape = (*array.shape[:dim], end, *array.shape[dim + 1 :])
    index = (slice(None),) * dim + (slice(first, end),)
    longer = array.metadata.update_shape(shape)
    filled = _filled(array, values, dim, first)
    marked = longer.update_attributes({**array.attrs, **mark.extended(first, end, filled)})
    if snapshot_of(array.store):  # Icechunk takes no chunk behind the end; both are seen at once
        _save(array, marked)
        _ahead(array, marked)[index] = values
        return int(end)
    _ahead(array, longer)[index] = values
    if _opened(array).shape != array.shape:
        raise ChangingSourceError(f"{array.store_path} was made longer by another writer meanwhile")
    _save(array, marked)
    return int(end)


def commit_rows(
    store: Place,
    rows: int,
    *,
    dim: int = 0,
    variable: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Declare that the first ``rows`` rows of a Zarr array are written, whatever their values.

    For other writers, after an append (``Dataset.to_zarr(append_dim=...)``), and for rows that hold
    only the fill value, which a refresh cannot recognise as written. Other parameters are those of
    ``append``. Later rows are judged by their values. A ``zarr.Array`` opened earlier does not see
    this mark, and drops it when it is resized: reopen it.
    Cost: one write of the metadata.

    Raises InvalidInputError where the array has fewer rows.

    Examples:
        >>> import numpy as np, zarr
        >>> x = zarr.create_array(zarr.storage.MemoryStore(), data=np.zeros((4, 3)), chunks=(2, 3))
        >>> streampca.commit_rows(x, 4)  # rows of zeros are data, too
    """
    array = _opened(store, variable, storage_options)
    _check_dim(array, dim)
    if not 0 <= rows <= array.shape[dim]:
        raise InvalidInputError(f"rows={rows}; expected 0 to {array.shape[dim]}")
    marks = RowMark.of(array.attrs).committed(int(rows))
    _save(array, array.metadata.update_attributes({**array.attrs, **marks}))


def _opened(
    store: Place,
    variable: str | None = None,
    options: Mapping[str, Any] | None = None,
    dim: int | None = None,
) -> zarr.Array[Any]:
    """The array as its metadata are now, to be written to.

    dim : along which it is to grow, alone in its group.
    """
    if isinstance(store, zarr.Array):
        kind = store.metadata.zarr_format
        return zarr.open_array(store.store, path=store.path, mode="r+", zarr_format=kind)
    place = os.fspath(store)
    found = zarr.open(_writable(place, dict(options or {})), mode="r+", use_consolidated=False)
    array = pick_array(found, variable, place)
    if isinstance(found, zarr.Group) and dim is not None:
        _check_neighbours(found, array, dim)
    assert isinstance(array, zarr.Array)
    return array


def _writable(place: str, options: dict[str, Any]) -> Any:
    scheme = scheme_of(place)
    if not scheme and options:
        raise InvalidInputError(f"storage_options are for URLs, and {place} is a path")
    if place.endswith(".zip"):
        raise InvalidInputError(f"{place}: nothing is appended to an archive; unpack it")
    if not scheme and is_repository(place):
        raise InvalidInputError(
            f"{place} is an Icechunk repository: pass zarr.open_array(session.store) of a writable "
            "session, then session.commit(...)"
        )
    if not scheme:
        return zarr.storage.LocalStore(place)
    if scheme in OBJECTS and has_obstore():
        return zarr.storage.ObjectStore(open_objects(place, options))
    try:
        return zarr.storage.FsspecStore.from_url(place, storage_options=options)
    except ImportError:
        raise no_obstore() from None


def _checked(
    array: zarr.Array[Any], values: np.ndarray[Any, Any], dim: int
) -> np.ndarray[Any, Any]:
    """The rows as an array. Raises InvalidInputError where they do not fit the store."""
    _check_dim(array, dim)
    dtype = np.dtype(array.dtype)
    if values.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise InvalidInputError(
            f"rows are {values.dtype} and {array.store_path} is {dtype}: rows.astype({dtype.str!r})"
        )
    expected = (*array.shape[:dim], "rows", *array.shape[dim + 1 :])
    same = values.ndim == array.ndim and all(
        d == dim or n == m for d, (n, m) in enumerate(zip(values.shape, array.shape, strict=False))
    )
    if not same:
        shown = ", ".join(map(str, expected))
        raise InvalidInputError(f"rows have shape {values.shape}; expected ({shown})")
    return values


def _filled(
    array: zarr.Array[Any], values: np.ndarray[Any, Any], dim: int, first: int
) -> Span | None:
    """The first and the last of the new rows with the fill value in them, as a span, or None."""
    fill: Any = array.fill_value or 0
    rows = np.moveaxis(values, dim, 0).reshape(values.shape[dim], -1)
    holds = np.isnan(rows) if fill != fill else rows == fill
    found = np.flatnonzero(holds.any(axis=1))
    return (first + int(found[0]), first + int(found[-1]) + 1) if len(found) else None


def _check_dim(array: zarr.Array[Any], dim: int) -> None:
    if not 0 <= dim < array.ndim:
        raise InvalidInputError(f"dim={dim}; expected 0 to {array.ndim - 1}")


def _check_neighbours(group: zarr.Group, array: zarr.Array[Any], dim: int) -> None:
    """Refuse a dimension shared with other arrays of the group, which would have to grow too."""
    names = dims_of(array)
    if not names or names[dim] is None:
        return
    for path, other in group.members(max_depth=None):
        if not isinstance(other, zarr.Array) or other.path == array.path:
            continue
        if names[dim] in dims_of(other):
            raise InvalidInputError(
                f"{path} has the dimension {names[dim]!r} too, and would be too short. Append to "
                f"both: dataset.to_zarr(store, append_dim={names[dim]!r}), then "
                f"streampca.commit_rows(store, rows, variable={array.path!r})"
            )


def _ahead(array: zarr.Array[Any], metadata: Any) -> zarr.Array[Any]:
    """The array with unsaved metadata, so that its chunks can be written first."""
    one: zarr.Array[Any] = rebuilt(array, metadata=metadata)
    return one.with_config({"write_empty_chunks": True})


def _save(array: zarr.Array[Any], metadata: Any) -> None:
    """Write the metadata; of Zarr v2 the attributes first; and again where they are consolidated.

    Between the two of v2 the attributes vouch for rows that are written and not there yet.
    """
    files = metadata.to_buffer_dict(default_buffer_prototype())
    for name in sorted(files, key=".zattrs".__ne__):
        sync((array.store_path / name).set(files[name]))
    parents = array.path.split("/")[:-1] if array.path else None
    while parents is not None:
        _consolidate_again(array, "/".join(parents))
        parents = parents[:-1] if parents else None


def _consolidate_again(array: zarr.Array[Any], path: str) -> None:
    """Where a group keeps copies of the metadata of what it holds."""
    kind = array.metadata.zarr_format
    try:
        group = zarr.open_group(array.store, path=path, mode="r", zarr_format=kind)
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        return
    if group.metadata.consolidated_metadata is not None:
        zarr.consolidate_metadata(array.store, path=path, zarr_format=kind)
