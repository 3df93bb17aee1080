"""NetCDF files opened by xarray, and arrays that it opened lazily without Dask."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray

from streampca.errors import SourceError, hide_secrets
from streampca.matrix import Location, ReadCount
from streampca.matrix.chunked_matrix import regular_edges
from streampca.paths import first_line
from streampca.sources.annotations import Annotations
from streampca.sources.cf import FILLS, PACKED
from streampca.sources.local_files import FileLocation
from streampca.sources.stacked import Index, Reader, Tally, crossed
from streampca.sources.zarr.location import ZarrLocation
from streampca.sources.zarr.stores import zarr_array_in


def open_netcdf(path: str, group: str = "") -> xarray.Dataset:
    """The Dataset of a file, or of a group of it, with times decoded where possible.

    A dimension without a coordinate has that of the nearest group above. Raises SourceError.
    """
    shown = hide_secrets(path)
    if "://" not in path and not os.path.isfile(path):
        raise SourceError(f"{path}: no such file")
    try:
        try:
            return _with_inherited(path, group, decode_times=True)
        except ValueError:  # a calendar or unit that cannot be decoded: times stay numbers
            return _with_inherited(path, group, decode_times=False)
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        engines = "IO backends" in str(error) or isinstance(error, ImportError)
        if engines:
            raise SourceError(
                f"{shown}: no installed engine reads this NetCDF file ({reason}). "
                "Install one: pip install 'streampca[netcdf]'"
            ) from error
        raise SourceError(f"{shown}: not a readable NetCDF file ({reason})") from error


def _with_inherited(path: str, group: str, decode_times: bool) -> xarray.Dataset:
    dataset = _open_dataset(path, group, decode_times)
    while group:
        group = group.rpartition("/")[0]
        lacking = [dim for dim in dataset.dims if dim not in dataset.variables]
        if not lacking:
            break
        with _open_dataset(path, group, decode_times) as above:
            found = {
                dim: above[dim].load()
                for dim in lacking
                if dim in above.variables and above[dim].sizes == {dim: dataset.sizes[dim]}
            }
        dataset = dataset.assign_coords(found)
    return dataset


def _open_dataset(path: str, group: str, decode_times: bool) -> xarray.Dataset:
    with warnings.catch_warnings():
        # oddities of the file that decoding copes with ("hours since 1-1-1")
        warnings.simplefilter("ignore", xarray.SerializationWarning)
        warnings.filterwarnings("ignore", ".*phony_dims")  # HDF5 whose dimensions have no names
        return xarray.open_dataset(
            path,
            group=group or None,
            cache=False,
            decode_times=decode_times,
            decode_timedelta=False,
        )


def fields_in_groups(path: str) -> list[str]:
    """Names such as ``PRODUCT/t`` of the variables with two or more dimensions in groups."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            groups = xarray.open_groups(path, decode_timedelta=False, decode_times=False)
    except Exception:  # NetCDF 3 has none, and not every engine looks
        return []
    return [
        f"{place}/{name}".lstrip("/")
        for place, dataset in groups.items()
        for name, variable in dataset.data_vars.items()
        if place.strip("/") and variable.ndim >= 2
    ]


class BackendReader(Reader):
    """A lazily indexed array of a file that xarray opened without Dask.

    Reads are slices through xarray's own file manager, which locks libraries that are not
    thread-safe and reopens the file by its path after unpickling. Nothing is cached. Chunk
    boundaries come from the encoding; a dimension that was sliced after opening has none.
    """

    loads: tuple[str, ...] = ("xarray",)

    def __init__(self, array: xarray.DataArray, source: str = "", group: str = "") -> None:
        self.variable = array.variable
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.steps = _chunk_steps(self.variable)
        _refuse_whole_scale(array)
        self.source = source or str(self.variable.encoding.get("source", ""))
        self._is_file = os.path.isfile(self.source)
        if self._is_file:  # a NetCDF file, which may be read by either HDF5 library
            self.loads = ("xarray", "h5py")
        self.name = f"{group}/{array.name}" if group else str(array.name)
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        part = self.variable.isel(dict(zip(self.variable.dims, index, strict=True)))
        values = np.asarray(part.values)
        chunks = 1
        for d, s in enumerate(index):
            if (edges := self.edges(d)) is not None:
                chunks *= crossed(edges, s.start, s.stop)
        self.tally.add(ReadCount(chunks, values.nbytes))
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        step = self.steps[dim]
        if step is None:
            return None
        if isinstance(step, int):
            return regular_edges(self.shape[dim], max(step, 1))
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
        encoding = {k: repr(self.variable.encoding.get(k)) for k in ("dtype", *PACKED)}
        text = [hide_secrets(self.source), self.name, self.shape, self.dtype, self.steps, encoding]
        if os.path.isfile(self.source):
            stat = os.stat(self.source)
            text += [stat.st_size, stat.st_mtime_ns]
        return hashlib.sha256(repr(text).encode()).hexdigest()


def _refuse_whole_scale(array: xarray.DataArray) -> None:
    """Refuse a fill value beside a scale or an offset of whole numbers, at which xarray fails."""
    encoding = array.encoding
    scales = {key: encoding[key] for key in ("scale_factor", "add_offset") if key in encoding}
    whole = {key: value for key, value in scales.items() if np.asarray(value).dtype.kind in "iu"}
    if array.dtype.kind not in "iu" or not whole or not any(key in encoding for key in FILLS):
        return
    key, one = next(iter(whole.items()))
    raise SourceError(
        f"{array.name!r} has a fill value, and {key}={one} is a whole number: xarray does not "
        "decode that. Open it as stored, X = xarray.open_dataset(..., mask_and_scale=False); make "
        f"it a float, X[{array.name!r}].attrs[{key!r}] = {float(one)}; and decode, "
        f"X = xarray.decode_cf(X)[{array.name!r}]"
    )


def _chunk_steps(variable: xarray.Variable) -> tuple[int | tuple[int, ...] | None, ...]:
    """Stored chunk length(s) along each dimension; None for one chunk or if not known."""
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


class DatasetColumns(Annotations):
    """The variables of an xarray Dataset, or of a group of a NetCDF file by its path.

    known : names of the variables of the file, where it was opened before.
    """

    def __init__(self, source: Any, group: str = "", known: Sequence[str] | None = None) -> None:
        self.source, self.group, self.known = source, group, known

    def column(self, axis: int, name: str) -> Any:
        """A variable as a DataArray in memory, or None."""
        if name not in self.names(axis):
            return None
        if not isinstance(self.source, str):
            return self.source[name].load()
        with open_netcdf(self.source, self.group) as dataset:
            return dataset[name].load()

    def names(self, axis: int) -> list[str]:
        if self.known is not None:
            return [*self.known]
        if not isinstance(self.source, str):
            return [str(variable) for variable in self.source.variables]
        with open_netcdf(self.source, self.group) as dataset:
            return [str(variable) for variable in dataset.variables]
