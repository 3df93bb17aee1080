"""Side data of a matrix, from a file or by name: weights, covariates, batches, panels."""

from __future__ import annotations

import csv
import io
import os
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.matrix import AxisLabels
from streampca.matrix.columns import as_text, repeated
from streampca.sources.annotations import Annotations
from streampca.sources.sparse.anndata import AnnDataColumns, axis_names, is_anndata
from streampca.sources.text_files import read_text
from streampca.sources.zarr.labels import GroupColumns
from streampca.sources.zarr.opening import open_array

# Side data from a file or by name: weights, covariates, batches.

Array = np.ndarray[Any, Any]
TABLES = {".csv": ",", ".tsv": "\t"}
NETCDF = (".nc", ".nc4", ".cdf", ".h5netcdf")
FILES = (*TABLES, ".npy", *NETCDF)


def is_file_of_values(text: str) -> bool:
    """Whether this names a file that :func:`read_side_data` reads, and not a variable."""
    return _split(text)[0].lower().endswith(FILES)


def read_side_data(text: str, source: str, axis: AxisLabels, option: str) -> list[Any]:
    """The arrays that ``text`` names, for one axis of the matrix of ``source``.

    text : a ``.npy`` file; a ``.csv`` or ``.tsv`` table, one array for each column (a first column
        without a name, or with that of the dimension, holds the names of its rows; without it rows
        go in order); a NetCDF file (``area.nc``, or ``area.nc:name``); or a variable of the
        source, which in an AnnData is a column of obs or var.
    option : the option that names it, for messages.

    Arrays with named dimensions are DataArrays. Cost: memory of the values.
    Raises SourceError (absent, unreadable) and InvalidInputError (no such variable).
    """
    path, name = _split(text)
    if path.lower().endswith(NETCDF):
        return [_of_netcdf(path, name or None)]
    if not path.lower().endswith(FILES):
        return [_of_source(text, source, axis, option)]
    if not os.path.isfile(path):
        raise SourceError(f"{path}: no such file")
    if path.lower().endswith(".npy"):
        try:
            return [np.load(path, allow_pickle=False)]
        except (OSError, ValueError, EOFError) as error:
            raise SourceError(f"{path}: not a readable .npy file ({error})") from None
    return _of_table(path, axis)


def named_column(source: str, name: str, option: str) -> Any:
    """A column of obs of an AnnData on disk as text: a DataArray with the names of the
    observations, where these are different ones."""
    import xarray

    values = [*map(str, _of_source(name, source, AxisLabels.plain("obs", 0), option))]
    observations = axis_names(source)[0]
    unique = len(set(observations.tolist())) == len(observations) == len(values)
    coords = {"obs": observations.astype(object)} if unique else {}
    return xarray.DataArray(np.asarray(values, object), dims="obs", coords=coords)


def _split(text: str) -> tuple[str, str]:
    """(path, variable) of ``area.nc:name``."""
    path, colon, name = text.rpartition(":")
    return (path, name) if colon and path.lower().endswith(NETCDF) else (text, "")


def _of_netcdf(path: str, name: str | None) -> Any:
    from streampca.sources.labelled.netcdf import open_netcdf
    from streampca.sources.labelled.opening import pick_variable

    with open_netcdf(path) as dataset:
        return pick_variable(dataset, name, list(dataset.data_vars), path, repr(path)).load()


def _of_source(name: str, source: str, axis: AxisLabels, option: str) -> Any:
    """A variable of the source."""
    columns = _columns_of(source)
    number = int(axis.dims[0] == "var")
    known: list[str] = []
    if columns is not None:
        if (found := columns.column(number, name)) is not None:
            return found
        known = columns.names(number)
    has = f"which has {', '.join(known)}" if known else "which has none"
    raise InvalidInputError(
        f"{option} {name}: neither a file ({', '.join(FILES)}) nor a variable of {source}, {has}"
    )


def _columns_of(source: str) -> Annotations | None:
    """The annotations of the matrix at a path; None if it has none."""
    if source.lower().endswith(NETCDF):
        from streampca.sources.labelled.netcdf import DatasetColumns

        return DatasetColumns(source)
    if source.lower().endswith(".h5ad"):
        return AnnDataColumns(source)
    if not os.path.isdir(source) and "://" not in source:
        return None
    group = open_array(source)
    if not isinstance(group, zarr.Group):
        return None
    return AnnDataColumns(group) if is_anndata(group) else GroupColumns(group)


def _of_table(path: str, axis: AxisLabels) -> list[Any]:
    """One array for each column of a table: numbers where all of its cells are, else text."""
    lines = io.StringIO(read_text(path), newline="")
    try:
        rows = [row for row in csv.reader(lines, delimiter=TABLES[path[-4:].lower()]) if row]
    except csv.Error as error:
        raise SourceError(f"{path}: not a readable table ({error})") from None
    if not rows:
        raise SourceError(f"{path} is empty; expected a row for every {' x '.join(axis.dims)}")
    ragged = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if ragged is not None:
        raise SourceError(
            f"{path}: row {ragged + 1} has {len(rows[ragged])} cells, the first {len(rows[0])}"
        )
    headed = len(rows) == len(axis) + 1 or any(_number(cell) is None for cell in rows[0])
    head = rows.pop(0) if headed else [f"x{j}" for j in range(len(rows[0]))]
    columns = [_column([row[j] for row in rows]) for j in range(len(head))]
    one = len(axis.dims) == 1
    keyed = headed and one and len(head) > 1 and head[0].strip() in ("", axis.dims[0])
    if not one:  # of stacked dimensions: in order
        return columns
    import xarray

    coords = {}
    if keyed:
        head, key, columns = head[1:], [row[0] for row in rows], columns[1:]
        coords = {axis.dims[0]: _names(key, axis, path)}
    return [
        xarray.DataArray(values, coords=coords, dims=axis.dims, name=name.strip())
        for name, values in zip(head, columns, strict=True)
    ]


def _names(cells: list[str], axis: AxisLabels, path: str) -> Array:
    """Names of the rows, as the coordinate of the axis has them."""
    known = axis.coords.get(axis.dims[0])
    if known is None:
        raise InvalidInputError(
            f"{path} names its rows, and the matrix has no names along {axis.dims[0]!r}; name "
            "them, index=..., or leave that column out, and the rows go in order"
        )
    try:
        return np.asarray(cells).astype(known.dtype)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{path}: {cells[0]!r} is not a name along {axis.dims[0]!r}; expected names such "
            f"as {known[0]}"
        ) from None


def _column(cells: list[str]) -> Array:
    """Numbers (NaN for an empty cell), or text."""
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        return np.asarray([cell.strip() for cell in cells])
    return np.asarray(numbers, dtype=np.float64)


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        return None


# Panel files: a table of samples and their groups (population, batch), to colour a plot.

UNKNOWN = ""  # the label of a sample that the panel does not name; pictures draw it in grey


def read_panel(
    path: str | os.PathLike[str], samples: AxisLabels, column: str | None = None
) -> list[str]:
    """One label per sample (UNKNOWN for none), from a table with a header line, split at spaces, or
    a .ind of EIGENSOFT.

    The table may list samples in any order, and others; a sample is found by its id (IID) in any
    of the first two columns, by FID and IID where families share ids.
    column : which column holds the label; default: the first after the ids (named population,
        pop, super_pop or group if there is such a one).
    Raises SourceError for an unreadable table, InvalidInputError where no sample is found.
    """
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    if os.fspath(path).lower().endswith(".ind"):  # of EIGENSOFT, which has no header
        rows.insert(0, ["IID", "sex", "population"])
    if len(rows) < 2 or len(rows[0]) < 2:
        raise SourceError(f"{path}: expected a header and at least two columns")
    head = [name.lstrip("#") for name in rows[0]]
    at = _label_column(head, column, str(path))
    names = samples.extra.get("individual")
    wanted = samples.names() if names is None else [str(name) for name in names]
    shared = {*repeated(as_text(wanted))} if names is not None else set()
    if shared:
        wanted = samples.names()  # FID:IID
    keyed = at > 1 and head[0].upper() == "FID"
    known: dict[str, str] = {}
    for row in rows[1:]:
        if len(row) > at:
            ids = [":".join(row[:2])] if shared and keyed else row[: min(2, at)]
            if whose := shared.intersection(ids):
                raise InvalidInputError(
                    f"{path}: {whose.pop()} is the id of several samples of the data; expected "
                    "columns FID and IID before the label"
                )
            for cell in ids:
                known.setdefault(cell, row[at])
    labels = [known.get(name, UNKNOWN) for name in wanted]
    if not any(labels) and names is not None:  # convertf names individuals FID:IID
        families = samples.extra["family"]
        both = (f"{family}:{name}" for family, name in zip(families, names, strict=True))
        labels = [known.get(name, UNKNOWN) for name in both]
    if not any(labels):
        raise InvalidInputError(
            f"{path} names none of the samples ({shorten(wanted[:3], len(wanted))})"
        )
    return labels


def _label_column(head: list[str], column: str | None, path: str) -> int:
    if column is not None:
        if column in head:
            return head.index(column)
        raise InvalidInputError(f"{path} has no column {column!r}; it has {', '.join(head)}")
    for name in ("population", "pop", "super_pop", "group"):
        if name in head[1:]:
            return head.index(name)
    return 2 if len(head) > 2 and head[1].lower() in ("iid", "sample") else 1
