"""Annotations of samples and features in the source of a matrix: columns by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError
from streampca.sources.files.array_files import open_hdf5
from streampca.sources.zarr.guard import whole
from streampca.sources.zarr.labels import decoded, dims_of


class AnnDataColumns:
    """The columns of obs and var of an ``.h5ad`` (by path), a group, or a dict of data frames."""

    def __init__(self, source: Any, variables: str = "var") -> None:
        self.source, self.frames = source, ("obs", variables)

    def __reduce__(self) -> Any:
        return _nothing, ()

    def column(self, axis: int, name: str) -> Any:
        """(length of the axis,) numbers or text, or None. Raises where a value is missing."""
        return self._found(axis, name)[0]

    def names(self, axis: int) -> list[str]:
        """The columns that there are."""
        return self._found(axis, "")[1]

    def _found(self, axis: int, name: str) -> tuple[Any, list[str]]:
        frame = self.frames[axis]
        if isinstance(self.source, str):
            with open_hdf5(self.source) as file:
                return annotation(file, frame, name)
        if not isinstance(self.source, dict):
            return annotation(self.source, frame, name)
        known = self.source[frame]
        if name not in known.columns:
            return None, [str(one) for one in known.columns]
        column = known[name]
        if np.asarray(column.isna()).any():
            raise InvalidInputError(
                f"{frame}[{name!r}] is missing at {frame} {int(np.argmax(column.isna()))}; "
                "expected a value for every one"
            )
        values = np.asarray(column)
        return values if values.dtype.kind in "biuf" else as_strings(values), []


class GroupColumns:
    """The arrays of a Zarr group, with the names of their dimensions if they have any."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __reduce__(self) -> Any:
        return _nothing, ()

    def column(self, axis: int, name: str) -> Any:
        """An array of the group, labelled where its dimensions have names; or None."""
        array = self.group.get(name)
        if not isinstance(array, zarr.Array):
            return None
        values, dims = decoded(array), dims_of(array)
        if not dims:
            return values
        import xarray

        beside = {dim: self.group.get(dim) for dim in dims}
        coords = {
            dim: decoded(one)
            for (dim, one), size in zip(beside.items(), values.shape, strict=True)
            if isinstance(one, zarr.Array) and one.shape == (size,)
        }
        return xarray.DataArray(values, coords=coords, dims=dims, name=name)

    def names(self, axis: int) -> list[str]:
        """The arrays that there are."""
        return sorted(self.group.array_keys())


class DatasetColumns:
    """The variables of an xarray Dataset, or of a group of a NetCDF file by its path."""

    def __init__(self, source: Any, group: str = "") -> None:
        self.source, self.group = source, group

    def __reduce__(self) -> Any:
        return _nothing, ()

    def column(self, axis: int, name: str) -> Any:
        """A variable as a DataArray in memory, or None."""
        if not isinstance(self.source, str):
            return self.source[name].load() if name in self.source.variables else None
        from streampca.sources.labelled.netcdf import open_netcdf

        with open_netcdf(self.source, self.group) as dataset:
            return dataset[name].load() if name in dataset.variables else None

    def names(self, axis: int) -> list[str]:
        """The variables that there are."""
        if not isinstance(self.source, str):
            return [str(one) for one in self.source.variables]
        from streampca.sources.labelled.netcdf import open_netcdf

        with open_netcdf(self.source, self.group) as dataset:
            return [str(one) for one in dataset.variables]


def _nothing() -> None:
    """The pickled form on workers: None, because names are resolved before a pass."""


def annotation(group: Any, dim: str, name: str) -> tuple[Any, list[str]]:
    """(column ``name`` of obs or var, or None; the names of all): numbers, or text."""
    frame = group.get(dim)
    if frame is None or not is_group(frame):
        fields = () if frame is None else frame.dtype.names or ()
        return (frame[...][name] if name in fields else None), list(fields)
    column = frame.get(name) if name else None
    if column is None:
        return None, [one for one in frame if not one.startswith("_")]
    if not is_group(column):
        values = whole(column)
        return values if values.dtype.kind in "biuf" else as_strings(values), []
    if "codes" in column:
        codes, names = whole(column["codes"]), as_strings(whole(column["categories"]))
        if codes.size and codes.min() < 0:
            raise InvalidInputError(
                f"{dim}[{name!r}] is missing at {dim} {int(np.argmin(codes))}; expected a value "
                "for every one"
            )
        return names[codes], []
    return _filled(column, f"{dim}[{name!r}]"), []


def _filled(column: Any, what: str) -> Any:
    """Values of a nullable column without holes."""
    if "values" not in column:
        raise InvalidInputError(f"{what} is of a kind that is not read; expected numbers or text")
    if whole(column["mask"]).any():
        raise InvalidInputError(f"{what} has missing values; expected a value for every one")
    values = whole(column["values"])
    return values if values.dtype.kind in "biuf" else as_strings(values)


def is_group(node: Any) -> bool:
    """Whether a node of a Zarr or HDF5 file is a group."""
    return hasattr(node, "attrs") and hasattr(node, "keys")


def unique_names(names: Any) -> Any:
    """Names of which a repeated one gets -1, -2, ..., as by anndata's ``var_names_make_unique``."""
    there, seen, repeats, found = set(names), set(), Counter[str](), []
    for name in names:
        one = name
        while one in seen or (one is not name and one in there):
            repeats[name] += 1
            one = f"{name}-{repeats[name]}"
        seen.add(one)
        found.append(one)
    return as_strings(np.array(found, object))


def as_strings(values: Any) -> Any:
    """Names as NumPy's strings of variable length."""
    values = np.asarray(values)
    if values.dtype.kind == "O":
        values = np.array([v.decode() if isinstance(v, bytes) else str(v) for v in values.ravel()])
    elif values.dtype.kind == "S":
        values = np.strings.decode(values, "utf-8")
    return values.astype(np.dtypes.StringDType())
