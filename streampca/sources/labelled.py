"""xarray objects and NetCDF files: named dimensions in, labelled results out."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import threading
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray

from streampca.errors import InvalidInputError, InvalidTypeError, SourceError
from streampca.matrix import AxisLabels, ChunkedMatrix, Labels, ReadCount
from streampca.sources.memory import ArrayReader
from streampca.sources.stacked import Index, Reader, StackedMatrix, check_rank
from streampca.sources.zarr_store import hide_secrets

Dim = Hashable | Sequence[Hashable] | None

TIME = "time"


def from_xarray(obj: Any, variable: str | None = None, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over a DataArray, or over one variable of a Dataset.

    variable : which data variable of a Dataset; needed unless there is exactly one.
    dim : the sample dimension(s), by name or number, slowest first; the others are stacked into
        features in the order of the array. Default: the first of two, or "time".

    Arrays in memory, lazily indexed files and Dask graphs are each read in their own way.
    Cost: metadata and 1-D coordinates.
    Raises InvalidInputError (which variable, which dimension) or InvalidTypeError (dtype).
    """
    source = str(obj.encoding.get("source", ""))
    if isinstance(obj, xarray.Dataset):
        obj = _pick_variable(obj, variable, list(obj.data_vars), "the Dataset", "X")
    elif not isinstance(obj, xarray.DataArray):
        raise InvalidTypeError(
            f"expected an xarray DataArray or Dataset, got {type(obj).__name__}. "
            "Pass X.to_dataset() or one array of it."
        )
    elif variable is not None and variable != obj.name:
        raise InvalidInputError(
            f"variable={variable!r} was asked for, and X is the DataArray {obj.name!r}. "
            "Leave variable out, or pass the Dataset that holds it."
        )
    return _stack(obj, dim, source)


def from_netcdf(path: str, variable: str | None = None, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over one variable of a NetCDF file, CF-decoded as it is read.

    variable : needed where more than one data variable has two or more dimensions.
    dim : as for :func:`from_xarray`.

    Cost: metadata and 1-D coordinates.
    Raises SourceError (not there, unreadable, no engine) and what :func:`from_xarray` raises.
    """
    dataset = _open_netcdf(path)
    bounds = {v.attrs.get("bounds", v.encoding.get("bounds")) for v in dataset.variables.values()}
    wide = [n for n, v in dataset.data_vars.items() if v.ndim >= 2 and n not in bounds]
    shown = hide_secrets(path)
    array = _pick_variable(dataset, variable, wide, shown, repr(shown))
    return _stack(array, dim, path)


def to_dataarray(
    values: np.ndarray[Any, Any],
    axes: Sequence[AxisLabels | tuple[str, Any]],
    name: str | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xarray.DataArray:
    """A result with its labels back: stacked dimensions are unstacked again.

    values : one dimension per entry of ``axes``.
    axes : AxisLabels give their dimensions, coordinates and attributes; a pair (name, coord)
        gives one dimension, with the coordinate where that is not None.
    """
    dims: list[str] = []
    sizes: list[int] = []
    coords: dict[str, Any] = {}
    for axis, length in zip(axes, np.shape(values), strict=True):
        if not isinstance(axis, AxisLabels):
            axis = AxisLabels.plain(axis[0], length, axis[1])
        if len(axis) != length:
            raise InvalidInputError(
                f"labels of {' x '.join(map(str, axis.sizes))} entries for an axis of {length}"
            )
        dims += axis.dims
        sizes += axis.sizes
        for d, coordinate in axis.coords.items():
            coords[d] = (d, np.asarray(coordinate), dict(axis.attrs.get(d, {})))
        for column, entries in axis.extra.items():
            coords[column] = (axis.dims[0], np.asarray(entries))
    if len(set(dims)) != len(dims):
        raise InvalidInputError(
            f"dimension names {dims} are not unique; rename one: X.rename({dims[0]}='...')"
        )
    return xarray.DataArray(
        np.reshape(values, sizes), coords=coords, dims=dims, name=name, attrs=dict(attrs or {})
    )


class BackendReader(Reader):
    """A lazily indexed array of a file that xarray opened without Dask.

    Reads are slices through xarray's own file manager, which locks what is not thread-safe and
    opens the file again by its path where the reader is unpickled. Nothing read is kept.
    Chunk boundaries come from the encoding; a dimension that was sliced after opening has lost
    them and has none.
    """

    loads = ("xarray",)

    def __init__(self, array: xarray.DataArray, source: str = "") -> None:
        self.variable = array.variable
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.steps = _chunk_steps(self.variable)
        self.source = source or str(self.variable.encoding.get("source", ""))
        self.name = str(array.name)
        self._count = ReadCount()
        self._counting = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_count": ReadCount()}
        del state["_counting"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counting = threading.Lock()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        part = self.variable.isel(dict(zip(self.variable.dims, index, strict=True)))
        values = np.asarray(part.values)
        crossed = 1
        for d, s in enumerate(index):
            if (edges := self.edges(d)) is not None:
                ends = np.searchsorted(edges, s.stop, "left")
                crossed *= max(0, int(ends - np.searchsorted(edges, s.start, "right")) + 1)
        with self._counting:
            self._count.chunks += crossed
            self._count.nbytes += values.nbytes
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
        return 2 * math.prod(s.stop - s.start for s in index) * self.dtype.itemsize

    def paths(self) -> tuple[str, ...]:
        return (os.path.realpath(self.source),) if os.path.exists(self.source) else ()

    def fingerprint(self) -> str:
        stored = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value")
        encoding = {k: repr(self.variable.encoding.get(k)) for k in stored}
        text = [hide_secrets(self.source), self.name, self.shape, self.dtype, self.steps, encoding]
        if os.path.isfile(self.source):
            stat = os.stat(self.source)
            text += [stat.st_size, stat.st_mtime_ns]
        return hashlib.sha256(repr(text).encode()).hexdigest()

    def reads(self) -> ReadCount:
        with self._counting:
            return copy.copy(self._count)

    def restart_counts(self) -> None:
        self._count = ReadCount()


def _stack(array: xarray.DataArray, dim: Dim, source: str) -> ChunkedMatrix:
    """The matrix of a DataArray, whatever holds its values."""
    samples = _sample_dims(array, dim)
    features = [d for d in range(array.ndim) if d not in samples]
    labels = Labels(_axis_labels(array, samples), _axis_labels(array, features))
    if array.chunks is not None:
        from streampca.sources.dask_array import DaskMatrix, DaskReader

        return DaskMatrix(DaskReader(array.data), samples, labels=labels)
    reader: Reader
    if array.variable._in_memory:  # .data would read a lazily indexed array whole
        if not isinstance(array.data, np.ndarray):
            raise InvalidTypeError(
                f"{array.name!r} holds a {type(array.data).__name__}; expected a NumPy, Dask or "
                "file-backed array. Convert with X.copy(data=X.data.todense()) or X.as_numpy()."
            )
        reader = ArrayReader(array.data)
    else:
        reader = BackendReader(array, source)
    return StackedMatrix(reader, samples, labels=labels)


def _sample_dims(array: xarray.DataArray, dim: Dim) -> tuple[int, ...]:
    """Numbers of the sample dimensions. Nothing is guessed but the first of two, and "time"."""
    names = list(array.dims)
    if dim is None:
        if array.ndim == 2:
            return (0,)
        if TIME in names and array.ndim > 2:
            return (names.index(TIME),)
        if array.ndim < 2:
            check_rank(array.shape)
        example = next((n for n in names if isinstance(n, str)), 0)
        raise InvalidInputError(
            f"{array.name!r} has dimensions {names} and the call does not say which are samples. "
            f"Use streampca.open(X, dim={example!r}); the others are stacked into features."
        )
    wanted = [dim] if isinstance(dim, str) or not isinstance(dim, Sequence) else list(dim)
    found = []
    for one in wanted:
        if one in names:
            found.append(names.index(one))
        elif isinstance(one, (int, np.integer)) and -array.ndim <= one < array.ndim:
            found.append(int(one) % array.ndim)
        else:
            raise InvalidInputError(f"dim={one!r} is not there; the array has dimensions {names}")
    if not found or len(set(found)) != len(found) or len(found) == array.ndim:
        raise InvalidInputError(
            f"dim={dim!r} must name each sample dimension once and leave at least one of {names} "
            "for the features"
        )
    return tuple(found)


def _axis_labels(array: xarray.DataArray, numbers: Sequence[int]) -> AxisLabels:
    """Names, sizes and 1-D coordinates of these dimensions."""
    names = [array.dims[d] for d in numbers]
    known = {n: array.coords[n] for n in names if n in array.coords}
    known = {n: c for n, c in known.items() if c.dims == (n,)}
    extra = {}
    if len(names) == 1:
        extra = {
            str(n): np.asarray(c.values)
            for n, c in array.coords.items()
            if c.dims == (names[0],) and n != names[0]
        }
    return AxisLabels(
        tuple(str(n) for n in names),
        tuple(int(array.shape[d]) for d in numbers),
        {str(n): np.asarray(c.values) for n, c in known.items()},
        {str(n): dict(c.attrs) for n, c in known.items() if c.attrs},
        extra,
    )


def _pick_variable(
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


def _open_netcdf(path: str) -> xarray.Dataset:
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


def to_dataset(
    tables: Mapping[str, tuple[np.ndarray[Any, Any], Sequence[AxisLabels]]],
    attrs: Mapping[str, Any],
) -> xarray.Dataset:
    """Several labelled arrays (values and the labels of their axes, by name) as one Dataset."""
    arrays = {name: to_dataarray(values, axes, name) for name, (values, axes) in tables.items()}
    return xarray.Dataset(arrays, attrs=dict(attrs))
