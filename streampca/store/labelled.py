"""Labelled results for xarray to open: Zarr groups written by a pass, NetCDF, Datasets."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError
from streampca.store.bundle import put_file, put_folder
from streampca.store.matrix_group import write_labels
from streampca.store.places import (
    discard,
    exists_already,
    give_up,
    occupied,
    release,
    unfinished_name,
)
from streampca.store.sinks import Sink, ZarrSink, refuse_occupied

# --------------------------------------------------------------------------------------------------
# One labelled array in a new Zarr group, written block by block, for xarray to open.

Array = np.ndarray[Any, Any]


class LabelledSink(ZarrSink):
    """A sink whose array lies in a Zarr v3 group of its own, beside the labels of its axes.

    Written beside its place and renamed into it by ``finish``: under ``path`` it is whole or not
    at all (at a URL it says by ``streampca_complete`` whether it is). Nothing is replaced.
    ``xarray.open_zarr(path, consolidated=False)`` opens it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        shape: tuple[int, int],
        dims: tuple[str, str],
        labels: Mapping[str, Mapping[str, Array]],
        dtype: Any = np.float32,
        chunk: int | None = None,
        tables: Mapping[str, Mapping[str, Array]] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """labels : dimension -> {name: (size,) array}; the dimension's own name is its index.
        tables : likewise, further numbers that are no labels.  attributes : of the group.
        """
        self.target = os.fspath(path)
        remote = "://" in self.target
        refuse_occupied(self.target, False)
        self.group = self.target if remote else unfinished_name(self.target)
        if not remote:
            weakref.finalize(self, give_up, self.group, os.getpid())
        about = {"streampca_array": name, **(attributes or {})}
        try:
            group = zarr.create_group(self.group, zarr_format=3, attributes=about)
        except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError):
            raise exists_already(self.target) from None
        write_labels(group, labels)
        write_labels(group, tables or {})
        super().__init__(f"{self.group}/{name}", *shape, dtype=dtype, chunk=chunk, dims=dims)
        self.dims = dims
        beside = [one for dim, columns in labels.items() for one in columns if one != dim]
        self.array.attrs["coordinates"] = " ".join(beside)  # as CF has it, for xarray

    def columns(self, dtypes: Mapping[str, Any]) -> GroupColumnsSink:
        """A sink of further numbers along the first dimension, name -> dtype, in the same group.

        Its pass finishes it before this one.
        """
        return GroupColumnsSink(self.group, self.dims[0], self.length, self.chunk, dtypes)

    def paths(self) -> tuple[str, ...]:
        return () if "://" in self.target else (os.path.realpath(self.target),)

    def finish(self) -> None:
        """Say in the array's attributes that all of it was written, and put the group in place."""
        super().finish()
        if self.group != self.target:
            Path(self.group).rename(os.path.realpath(self.target))
            release(self.group)
            name = os.path.basename(self.path)
            self.group, self._array = self.target, None
            self.path = self.place = f"{self.target}/{name}"


class GroupColumnsSink(Sink):
    """Takes rows (m, width), and writes each column to an array of its own in a Zarr group."""

    def __init__(
        self, group: str, dim: str, length: int, chunk: int, dtypes: Mapping[str, Any]
    ) -> None:
        self.group, self.chunk, self.names = group, chunk, list(dtypes)
        self._lock, self._arrays = threading.Lock(), list[Any]()
        opened = zarr.open_group(group, mode="r+")
        for name, dtype in dtypes.items():
            self._arrays.append(
                opened.create_array(
                    name,
                    shape=(length,),
                    chunks=(chunk,),
                    dtype=dtype,
                    compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                    dimension_names=(dim,),
                    config={"write_empty_chunks": True},
                )
            )
        self._length = length

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": [], "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _opened(self) -> list[Any]:
        if not self._arrays:
            group: Any = zarr.open_group(self.group, mode="r+")
            whole = {"write_empty_chunks": True}
            self._arrays = [group[name].with_config(whole) for name in self.names]
        return self._arrays

    def write(self, start: int, values: Array) -> None:
        stop = start + len(values)
        alone = start % self.chunk == 0 and (stop % self.chunk == 0 or stop == self._length)
        with contextlib.nullcontext() if alone else self._lock:
            for array, column in zip(self._opened(), values.T, strict=True):
                array[start:stop] = column.astype(array.dtype)

    def concurrent(self, edges: Array) -> bool:
        return bool(np.all(np.asarray(edges)[:-1] % self.chunk == 0))

    def concurrent_threads(self, edges: Array) -> bool:
        return True

    def nbytes_in_memory(self) -> int:
        return 0


def read_labelled(path: str | os.PathLike[str], name: str, beside: str) -> tuple[Array, Array]:
    """The array that a ``LabelledSink`` wrote, and one of those beside it.

    Raises SourceError where it is not there or not whole.
    """
    group, array = _open(path, name)
    return np.asarray(array[...]), np.asarray(group[beside][...])


def labelled_rows(path: str | os.PathLike[str], name: str) -> Any:
    """Such an array, unread: slices of it are arrays. Raises as ``read_labelled``."""
    return _open(path, name)[1]


def labelled_vector(path: str | os.PathLike[str], name: str) -> Any:
    """An array of one dimension beside it, unread. Raises SourceError where it is not there."""
    try:
        group: Any = zarr.open_group(os.fspath(path), mode="r")
        return group[name]
    except (OSError, KeyError, ValueError, zarr.errors.BaseZarrError):
        raise SourceError(
            f"{path}: no {name} there; the fit that streamed its components to that place left the "
            "statistics of its features beside them. Put it back"
        ) from None


def _open(path: str | os.PathLike[str], name: str) -> tuple[Any, Any]:
    try:
        group = zarr.open_group(os.fspath(path), mode="r")
        array = group[name]
    except (OSError, KeyError, ValueError, zarr.errors.BaseZarrError):
        raise SourceError(f"{path}: streampca wrote no {name} there") from None
    if array.attrs.get("streampca_complete") is not True:
        raise SourceError(f"{path} is unfinished; write it again")
    return group, array


# --------------------------------------------------------------------------------------------------
# Labelled results (an ``xarray.Dataset``) into a NetCDF file or a Zarr group.

SUFFIXES = (".nc", ".zarr")
ZARR_GROUP = ("zarr.json", ".zgroup")  # of formats 3 and 2


def write_dataset(dataset: Any, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write a Dataset, whole or not at all: under another name first.

    path : ends in ``.nc`` or ``.zarr``. Raises InvalidInputError where something is there and may
    not be replaced (only a file is by a file, and only a Zarr group by a Zarr group),
    MissingDependencyError where nothing writes NetCDF.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InvalidInputError(f"{target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if os.path.lexists(target) and not overwrite:
        raise InvalidInputError(f"{target} exists already; add --overwrite to replace it")
    file = target.suffix == ".nc"
    may_go = _is_file if file else _is_group
    if occupied(str(target)) and not may_go(str(target)):
        raise exists_already(str(target))
    place = os.path.realpath(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(unfinished_name(str(target)))  # it is locked, and HDF5 locks its file itself
    may_go = may_go if overwrite else _nothing
    try:
        if file:
            made = folder / target.name
            dataset.to_netcdf(made, engine=_engine())
            put_file(str(made), place, may_go)
        else:
            dataset.to_zarr(folder, consolidated=False)
            put_folder(str(folder), str(target), may_go)
    finally:
        discard(str(folder))


def _is_file(path: str) -> bool:
    return os.path.isfile(path)


def _is_group(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_GROUP)


def _nothing(path: str) -> bool:
    return False


def _engine() -> Any:
    try:
        import h5netcdf  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "nothing here writes NetCDF; pip install 'streampca[netcdf]', or name a .zarr"
        ) from None
    return "h5netcdf"
