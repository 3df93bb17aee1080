"""NetCDF files opened by xarray, and arrays that it opened lazily without Dask."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from typing import Any

import numpy as np
import xarray

from streampca.errors import SourceError, hide_secrets
from streampca.matrix import Location, ReadCount
from streampca.sources.reading import Tally
from streampca.sources.stacked import FileLocation, Index, Reader
from streampca.sources.zarr.location import ZarrLocation, zarr_array_in


def open_netcdf(path: str) -> xarray.Dataset:
    """The Dataset of a file, with times decoded where possible. Raises SourceError."""
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


class BackendReader(Reader):
    """A lazily indexed array of a file that xarray opened without Dask.

    Reads are slices through xarray's own file manager, which locks libraries that are not
    thread-safe and reopens the file by its path after unpickling. Nothing is cached. Chunk
    boundaries come from the encoding; a dimension that was sliced after opening has none.
    """

    loads: tuple[str, ...] = ("xarray",)

    def __init__(self, array: xarray.DataArray, source: str = "") -> None:
        self.variable = array.variable
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype).newbyteorder("=")
        self.steps = _chunk_steps(self.variable)
        self.source = source or str(self.variable.encoding.get("source", ""))
        self._is_file = os.path.isfile(self.source)
        if self._is_file:  # a NetCDF file, which may be read by either HDF5 library
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
