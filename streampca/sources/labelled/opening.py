"""xarray objects and NetCDF files as matrices."""

from __future__ import annotations

import importlib.util
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray

from streampca.errors import (
    InvalidInputError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
    hide_secrets,
)
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, concat_features
from streampca.matrix.block import check_dtype
from streampca.matrix.kinds import as_scipy, is_sparse, refuse_gpu
from streampca.matrix.labels import encoded_dates
from streampca.matrix.names import index_values
from streampca.paths import first_line
from streampca.sources.cf import refuse_undecoded, related
from streampca.sources.dask.lazy import LazyReader
from streampca.sources.labelled.netcdf import (
    BackendReader,
    DatasetColumns,
    fields_in_groups,
    open_netcdf,
)
from streampca.sources.labelled.to_xarray import LEVELS
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.sparse.matrices import SparseMatrix
from streampca.sources.stacked import TIME, Dim, Reader, StackedMatrix, sample_dims


def from_xarray(
    obj: Any, variable: str | Sequence[str] | None = None, dim: Dim = None, *, lazily: bool = False
) -> ChunkedMatrix:
    """A matrix over a DataArray, or over one or several variables of a Dataset.

    variable : which data variable of a Dataset, or a list of them, side by side as features.
        Default: the only one, or, where ``dim`` is given, all of them.
    dim : the sample dimension(s), by name or number, slowest first; the others are stacked into
        features in the order of the array. Default: the first of two, or "time".
    lazily : Dask arrays stay lazy: see :func:`streampca.sources.opening.lazy_matrix`.

    Arrays in memory, lazily indexed files and Dask graphs are each read in their own way.
    Cost: metadata and coordinates.
    Raises InvalidInputError (which variable, which dimension) or InvalidTypeError (dtype).
    """
    source = str(obj.encoding.get("source", ""))
    if isinstance(obj, xarray.Dataset):
        several = _several_variables(obj, variable, dim)
        if several:
            parts = [_stack(obj[name], dim, source, lazily) for name in several]
            joined = concat_features(*parts, variables=several)
            joined.annotations = DatasetColumns(obj)
            return joined
        one = variable if isinstance(variable, str) or variable is None else variable[0]
        array = pick_variable(obj, one, list(obj.data_vars), "the Dataset", "X")
        matrix = _stack(array, dim, source, lazily)
        matrix.annotations = DatasetColumns(obj)
        return matrix
    if not isinstance(obj, xarray.DataArray):
        raise InvalidTypeError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}. "
            "Pass X.to_dataset() or one array of it."
        )
    if variable is not None and variable != obj.name:
        raise InvalidInputError(
            f"variable={variable!r} was asked for, and X is the DataArray {obj.name!r}. "
            "Leave variable out, or pass the Dataset that holds it."
        )
    return _stack(obj, dim, source, lazily)


def from_netcdf(
    path: str, variable: str | None = None, dim: Dim = None, group: str | None = None
) -> ChunkedMatrix:
    """A matrix over one variable of a NetCDF file, CF-decoded as it is read.

    variable : needed where more than one data variable has two or more dimensions; with its groups,
        ``PRODUCT/no2``, where it is in one and ``group`` does not say so.
    dim : as for :func:`from_xarray`.

    Cost: metadata and 1-D coordinates.
    Raises SourceError (absent, unreadable, no engine) and the errors of :func:`from_xarray`.
    """
    inner, _, name = (variable or "").strip("/").rpartition("/")
    group = "/".join(part for part in ((group or "").strip("/"), inner) if part)
    dataset = open_netcdf(path, group)
    wide = [n for n, v in dataset.data_vars.items() if v.ndim >= 2]
    shown = hide_secrets(path)
    where = f"{shown}, group {group!r}" if group else shown
    inside = [] if wide or group else fields_in_groups(path)
    array = pick_variable(dataset, name or None, wide, where, repr(shown), group, inside)
    matrix = _stack(array, dim, path, group=group)
    matrix.annotations = DatasetColumns(path, group, [str(name) for name in dataset.variables])
    return matrix


def from_references(path: str, variable: str | None = None, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over references to chunks of other files, JSON as kerchunk and VirtualiZarr write.

    Cost: the references. Raises MissingDependencyError, SourceError, and what ``from_xarray`` does.
    """
    if importlib.util.find_spec("kerchunk") is None:
        raise MissingDependencyError(
            f"{path}: references are opened by kerchunk. Install it: pip install kerchunk"
        )
    try:
        dataset = xarray.open_dataset(path, engine="kerchunk", cache=False, decode_timedelta=False)
    except Exception as error:
        raise SourceError(
            f"{path}: not references as kerchunk writes them ({first_line(error)})"
        ) from error
    return from_xarray(dataset, variable, dim)


def _stack(
    array: xarray.DataArray, dim: Dim, source: str, lazily: bool = False, group: str = ""
) -> ChunkedMatrix:
    """The matrix of a DataArray over any kind of array."""
    samples = sample_dims(array.shape, dim, array.dims, repr(array.name or "X"))
    refuse_undecoded(array.attrs, array.dtype, array.name)
    check_dtype(array.dtype)
    features = [d for d in range(array.ndim) if d not in samples]
    labels = Labels(
        _axis_labels(array, samples),
        _axis_labels(array, features, loose=True),
        None if array.name is None else str(array.name),
        dict(array.attrs),
    )
    if lazily:
        return StackedMatrix(LazyReader(array.variable.chunk().data), samples, labels=labels)
    if array.chunks is not None:
        from streampca.sources.dask.arrays import dask_matrix

        return dask_matrix(array.data, samples, labels)
    reader: Reader
    held = array.variable._data  # .data would read a lazily indexed array whole
    refuse_gpu(held, f"{array.name!r} holds a")
    if is_sparse(held) and array.ndim == 2:
        stored = as_scipy(held, f"{array.name!r} holds a")
        return SparseMatrix(stored if samples == (0,) else stored.T, labels)
    if array.variable._in_memory or is_sparse(held):
        if not isinstance(array.data, np.ndarray):
            raise InvalidTypeError(
                f"{array.name!r} holds a {type(array.data).__name__}; expected a NumPy, Dask or "
                "file-backed array. Convert with X.copy(data=X.data.todense()) or X.as_numpy()."
            )
        reader = ArrayReader(array.data, ("xarray",))
    else:
        reader = BackendReader(array, source, group)
    return StackedMatrix(reader, samples, labels=labels)


def _several_variables(
    dataset: xarray.Dataset, variable: str | Sequence[str] | None, dim: Dim
) -> list[str]:
    """Names of the variables that become one matrix; empty where a single one is meant.

    Cell bounds do not count as data. Refuses variables without the sample dimensions.
    """
    if isinstance(variable, str) or (variable is None and dim is None):
        return []
    if variable is not None and not variable:
        raise InvalidInputError("variable=[] is empty; expected names such as ['sst', 'slp']")
    auxiliary = _described(dataset)
    names = [n for n in dataset.data_vars if n not in auxiliary] if variable is None else variable
    if absent := [n for n in names if n not in dataset.data_vars]:
        raise InvalidInputError(
            f"the Dataset has no variable {absent[0]!r}; data variables: {list(dataset.data_vars)}"
        )
    if len(names) < 2:
        return []
    wanted = [dim] if isinstance(dim, str) or not isinstance(dim, Sequence) else list(dim)
    wanted = [TIME] if dim is None else wanted
    for name in names:
        if lacking := [d for d in wanted if d not in dataset[name].dims]:
            known = [n for n in names if all(d in dataset[n].dims for d in wanted)]
            raise InvalidInputError(
                f"variable {name!r} has dimensions {list(dataset[name].dims)} and lacks the sample "
                f"dimension {lacking[0]!r}; use the others: X[{known}]"
            )
        if len(dataset[name].dims) == len(wanted):
            raise InvalidInputError(
                f"variable {name!r} has no dimension beside {wanted}; expected one for features: "
                f"X[{name!r}].expand_dims('index')"
            )
    return [str(name) for name in names]


def _coordinate_values(coordinate: xarray.DataArray) -> np.ndarray[Any, Any]:
    if isinstance(coordinate.dtype, np.dtype):
        return np.asarray(coordinate.values)
    return index_values(coordinate.to_index())  # periods and dates of a time zone


def _axis_labels(
    array: xarray.DataArray, numbers: Sequence[int], loose: bool = False
) -> AxisLabels:
    """Names, sizes and coordinates of these dimensions.  loose : with scalar coordinates."""
    names = [str(array.dims[d]) for d in numbers]
    coords, extra, grids, attrs = {}, {}, {}, {}
    for key, coordinate in array.coords.items():
        name, dims = str(key), tuple(str(d) for d in coordinate.dims)
        if not set(dims) <= set(names) or not (dims or loose):
            continue
        values = _coordinate_values(coordinate)
        attrs[name] = {**coordinate.attrs, **encoded_dates(coordinate.encoding)}
        if dims == (name,):
            coords[name] = values
            levels = list(array.indexes[key].names) if key in array.indexes else []
            if len(levels) > 1:
                attrs[name][LEVELS] = levels
        elif dims and len(names) == 1:
            extra[name] = values
        else:
            grids[name] = (dims, values)
    sizes = tuple(int(array.shape[d]) for d in numbers)
    described = {name: each for name, each in attrs.items() if each}
    return AxisLabels(tuple(names), sizes, coords, described, extra, grids)


def _described(dataset: xarray.Dataset) -> set[Any]:
    """Names of the variables that describe others, such as cell bounds."""
    known = dataset.variables.values()
    return set().union(*(related({**v.encoding, **v.attrs}) for v in known))


def pick_variable(
    dataset: xarray.Dataset,
    variable: str | None,
    candidates: Sequence[Hashable],
    where: str,
    argument: str,
    group: str = "",
    inside: Sequence[str] = (),
) -> xarray.DataArray:
    """The named variable, or the only candidate. Raises InvalidInputError, which lists them.

    Candidates that describe others, such as cell bounds, do not count.
    inside : names of variables in groups of the file, where there are no candidates.
    """
    if variable is not None and variable in dataset.variables:
        return dataset[variable]
    auxiliary = _described(dataset)
    candidates = [name for name in candidates if name not in auxiliary]
    if variable is None and len(candidates) == 1:
        return dataset[candidates[0]]
    shown = ", ".join(f"{n} {dict(v.sizes)}" for n, v in dataset.data_vars.items()) or "none"
    shown += f"; in groups: {', '.join(inside)}" if inside else ""
    example = next(iter([*candidates, *inside, *dataset.data_vars]), "name")
    example = f"{group}/{example}" if group else example
    problem = (
        f"has no variable {variable!r}" if variable is not None else "needs the variable named"
    )
    raise InvalidInputError(
        f"{where} {problem}; data variables: {shown}. "
        f"Use streampca.open({argument}, variable={example!r})."
    )
