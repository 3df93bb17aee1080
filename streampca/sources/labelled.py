"""xarray objects and NetCDF files: named dimensions in."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray

from streampca.errors import InvalidInputError, InvalidTypeError, SourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, Location, ReadCount, concat_features
from streampca.matrix.kinds import as_scipy, is_sparse, refuse_gpu
from streampca.shown import hide_secrets
from streampca.sources.arrays import ArrayReader
from streampca.sources.columns import DatasetColumns
from streampca.sources.labelled_results import LEVELS
from streampca.sources.lazy import LazyReader
from streampca.sources.reading import Tally
from streampca.sources.sparse import SparseMatrix
from streampca.sources.stacked import (
    TIME,
    Dim,
    FileLocation,
    Index,
    Reader,
    StackedMatrix,
    sample_dims,
)
from streampca.sources.zarr.location import ZarrLocation, zarr_array_in

# --------------------------------------------------------------------------------------------------
# Arrays of files that xarray opened lazily, without Dask.


class BackendReader(Reader):
    """A lazily indexed array of a file that xarray opened without Dask.

    Reads are slices through xarray's own file manager, which locks what is not thread-safe and
    opens the file again by its path where the reader is unpickled. Nothing read is kept.
    Chunk boundaries come from the encoding; a dimension that was sliced after opening has lost
    them and has none.
    """

    loads: tuple[str, ...] = ("xarray",)

    def __init__(self, array: xarray.DataArray, source: str = "") -> None:
        self.variable = array.variable
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.steps = _chunk_steps(self.variable)
        self.source = source or str(self.variable.encoding.get("source", ""))
        self._is_file = os.path.isfile(self.source)
        if self._is_file:  # a NetCDF, which is read by one HDF5 library or another
            self.loads = ("xarray", "h5py")
        self.name = str(array.name)
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        part = self.variable.isel(dict(zip(self.variable.dims, index, strict=True)))
        values = np.asarray(part.values)
        crossed = 1
        for d, s in enumerate(index):
            if (edges := self.edges(d)) is not None:
                ends = np.searchsorted(edges, s.stop, "left")
                crossed *= max(0, int(ends - np.searchsorted(edges, s.start, "right")) + 1)
        self.tally.add(ReadCount(crossed, values.nbytes))
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        step = self.steps[dim]
        if step is None:
            return None
        size = self.shape[dim]
        if isinstance(step, int):
            return np.append(np.arange(0, size, max(step, 1), dtype=np.int64), size)
        return np.concatenate([[0], np.cumsum(step, dtype=np.int64)])

    def scratch_nbytes(self, index: Index) -> int:
        # the packed values and one decoded copy, before the result
        return int(2 * math.prod(s.stop - s.start for s in index) * self.dtype.itemsize)

    def paths(self) -> tuple[str, ...]:
        return (os.path.realpath(self.source),) if os.path.exists(self.source) else ()

    def locations(self) -> tuple[Location, ...]:
        if (array := zarr_array_in(self.variable._data)) is not None:
            return (ZarrLocation.of(array),)
        return (FileLocation(os.path.realpath(self.source)),) if self._is_file else ()

    def fingerprint(self) -> str:
        stored = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value")
        encoding = {k: repr(self.variable.encoding.get(k)) for k in stored}
        text = [hide_secrets(self.source), self.name, self.shape, self.dtype, self.steps, encoding]
        if os.path.isfile(self.source):
            stat = os.stat(self.source)
            text += [stat.st_size, stat.st_mtime_ns]
        return hashlib.sha256(repr(text).encode()).hexdigest()


def _chunk_steps(variable: xarray.Variable) -> tuple[int | tuple[int, ...] | None, ...]:
    """Stored chunk length(s) along each dimension; None where it is whole or not known."""
    encoding = variable.encoding
    preferred = dict(encoding.get("preferred_chunks") or {})
    order = list(preferred) or list(variable.dims)
    sizes = encoding.get("shards") or encoding.get("chunksizes") or encoding.get("chunks")
    if sizes and len(sizes) == len(order):
        preferred = dict(zip(order, sizes, strict=True))
    original = dict(zip(order, encoding.get("original_shape") or (), strict=False))
    steps: list[int | tuple[int, ...] | None] = []
    for d, size in zip(variable.dims, variable.shape, strict=True):
        step = preferred.get(d)
        if step is None or original.get(d, size) != size:
            steps.append(None)
        elif isinstance(step, (int, np.integer)):
            steps.append(int(step))
        else:
            steps.append(tuple(int(n) for n in step) if sum(step) == size else None)
    return tuple(steps)


# --------------------------------------------------------------------------------------------------
# xarray objects and NetCDF files: named dimensions in.


def from_xarray(
    obj: Any,
    variable: str | Sequence[str] | None = None,
    dim: Dim = None,
    *,
    lazily: bool = False,
) -> ChunkedMatrix:
    """A matrix over a DataArray, or over one or several variables of a Dataset.

    variable : which data variable of a Dataset, or a list of them, side by side as features.
        Default: the only one, or, where ``dim`` is given, all of them.
    dim : the sample dimension(s), by name or number, slowest first; the others are stacked into
        features in the order of the array. Default: the first of two, or "time".
    lazily : Dask arrays stay what they are: see :func:`streampca.sources.lazy.lazy_matrix`.

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
            joined.beside = DatasetColumns(obj)
            return joined
        one = variable if isinstance(variable, str) or variable is None else variable[0]
        array = pick_variable(obj, one, list(obj.data_vars), "the Dataset", "X")
        matrix = _stack(array, dim, source, lazily)
        matrix.beside = DatasetColumns(obj)
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


def from_netcdf(path: str, variable: str | None = None, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over one variable of a NetCDF file, CF-decoded as it is read.

    variable : needed where more than one data variable has two or more dimensions.
    dim : as for :func:`from_xarray`.

    Cost: metadata and 1-D coordinates.
    Raises SourceError (not there, unreadable, no engine) and what :func:`from_xarray` raises.
    """
    dataset = open_netcdf(path)
    bounds = _bounds(dataset)
    wide = [n for n, v in dataset.data_vars.items() if v.ndim >= 2 and n not in bounds]
    shown = hide_secrets(path)
    array = pick_variable(dataset, variable, wide, shown, repr(shown))
    matrix = _stack(array, dim, path)
    matrix.beside = DatasetColumns(path)
    return matrix


def _stack(array: xarray.DataArray, dim: Dim, source: str, lazily: bool = False) -> ChunkedMatrix:
    """The matrix of a DataArray, whatever holds its values."""
    samples = sample_dims(array.shape, dim, array.dims, repr(array.name))
    features = [d for d in range(array.ndim) if d not in samples]
    labels = Labels(
        _axis_labels(array, samples),
        _axis_labels(array, features, loose=True),
        None if array.name is None else str(array.name),
        dict(array.attrs),
    )
    if lazily:
        return StackedMatrix(LazyReader(array.chunk().data), samples, labels=labels)
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
        reader = BackendReader(array, source)
    return StackedMatrix(reader, samples, labels=labels)


def _several_variables(
    dataset: xarray.Dataset, variable: str | Sequence[str] | None, dim: Dim
) -> list[str]:
    """Names of the variables that become one matrix; none where one alone is meant.

    Cell bounds are no data. Refuses variables without the sample dimensions.
    """
    if isinstance(variable, str) or (variable is None and dim is None):
        return []
    if variable is not None and not variable:
        raise InvalidInputError("variable=[] names no variable; expected such as ['sst', 'slp']")
    bounds = _bounds(dataset)
    names = [n for n in dataset.data_vars if n not in bounds] if variable is None else variable
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


def _axis_labels(
    array: xarray.DataArray, numbers: Sequence[int], loose: bool = False
) -> AxisLabels:
    """Names, sizes and coordinates of these dimensions; ``loose``: also those of none."""
    names = [str(array.dims[d]) for d in numbers]
    coords, extra, grids, attrs = {}, {}, {}, {}
    for key, coordinate in array.coords.items():
        name, dims = str(key), tuple(str(d) for d in coordinate.dims)
        if not set(dims) <= set(names) or not (dims or loose):
            continue
        values = np.asarray(coordinate.values)
        attrs[name] = dict(coordinate.attrs)
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
    told = {name: each for name, each in attrs.items() if each}
    return AxisLabels(tuple(names), sizes, coords, told, extra, grids)


def _bounds(dataset: xarray.Dataset) -> set[Any]:
    """Names of the variables that hold cell bounds of others."""
    return {v.attrs.get("bounds", v.encoding.get("bounds")) for v in dataset.variables.values()}


def pick_variable(
    dataset: xarray.Dataset,
    variable: str | None,
    candidates: Sequence[Hashable],
    where: str,
    argument: str,
) -> xarray.DataArray:
    """The named variable, or the only candidate; says which there are."""
    if variable is not None and variable in dataset.variables:
        return dataset[variable]
    if variable is None and len(candidates) == 1:
        return dataset[candidates[0]]
    shown = ", ".join(f"{n} {dict(v.sizes)}" for n, v in dataset.data_vars.items()) or "none"
    example = next(iter([*candidates, *dataset.data_vars]), "name")
    asked = f"has no variable {variable!r}" if variable is not None else "needs the variable named"
    raise InvalidInputError(
        f"{where} {asked}; data variables: {shown}. "
        f"Use streampca.open({argument}, variable={example!r})."
    )


def open_netcdf(path: str) -> xarray.Dataset:
    """The Dataset of a file, with times decoded where they can be."""
    shown = hide_secrets(path)
    if "://" not in path and not os.path.isfile(path):
        raise SourceError(f"{path}: no such file")
    try:
        try:
            return _open_dataset(path, decode_times=True)
        except ValueError:  # a calendar or unit that cannot be decoded: times stay numbers
            return _open_dataset(path, decode_times=False)
    except Exception as error:
        engines = "IO backends" in str(error) or isinstance(error, ImportError)
        if engines:
            raise SourceError(
                f"{shown}: no installed engine reads this NetCDF file ({_first_line(error)}). "
                "Install one: pip install 'streampca[netcdf]'"
            ) from error
        raise SourceError(f"{shown}: not a readable NetCDF file ({_first_line(error)})") from error


def _open_dataset(path: str, decode_times: bool) -> xarray.Dataset:
    with warnings.catch_warnings():
        # oddities of the file that decoding copes with ("hours since 1-1-1")
        warnings.simplefilter("ignore", xarray.SerializationWarning)
        return xarray.open_dataset(
            path, cache=False, decode_times=decode_times, decode_timedelta=False
        )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
