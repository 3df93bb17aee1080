"""Labelled results that xarray opens: Zarr groups written by a pass, and Datasets in files."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.errors import InvalidInputError, MissingDependencyError, SourceError
from streampca.store.bundle import put_file, put_folder
from streampca.store.chunks import put
from streampca.store.matrix_group import write_labels
from streampca.store.places import (
    discard,
    exists_already,
    give_up,
    occupied,
    release,
    unfinished_name,
    writing,
)
from streampca.store.sinks import WHOLE, ZARR_ERRORS, ChunkedSink, ZarrSink, refuse_occupied

# One labelled array in a new Zarr group, written block by block, for xarray to open.

Array = np.ndarray[Any, Any]


class LabelledSink(ZarrSink):
    """A sink whose array lies in a Zarr v3 group of its own, with the labels of its axes.

    The group is written beside its place and renamed by ``finish``, so ``path`` never holds an
    unfinished one (at a URL, the attribute ``streampca_complete`` says so). Nothing is replaced.
    ``xarray.open_zarr(path, consolidated=False)`` opens it.

    Raises InvalidInputError if something is at ``path``.
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
        across: int | None = None,
    ) -> None:
        """labels : dimension -> {name: (size,) array}; the dimension's own name is its index.
        tables : in the same form, numbers that are no labels.  attributes : of the group.
        across : columns of a chunk, or None for all.
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
        super().__init__(
            f"{self.group}/{name}", *shape, dtype=dtype, chunk=chunk, dims=dims, across=across
        )
        self.dims = dims
        names = [column for dim, columns in labels.items() for column in columns if column != dim]
        self.array.attrs["coordinates"] = " ".join(names)  # as in CF, for xarray

    def columns(self, dtypes: Mapping[str, Any]) -> GroupColumnsSink:
        """A sink for more numbers along the first dimension, name -> dtype, in the same group.

        It must be finished before this one.
        """
        return GroupColumnsSink(self.group, self.dims[0], self.length, self.chunk, dtypes)

    def paths(self) -> tuple[str, ...]:
        return () if "://" in self.target else (os.path.realpath(self.target),)

    def finish(self) -> None:
        """Mark the array as complete, and put the group in its place."""
        super().finish()
        if self.group != self.target:
            Path(self.group).rename(os.path.realpath(self.target))
            release(self.group)
            name = os.path.basename(self.path)
            self.group, self._array = self.target, None
            self.path = self.place = f"{self.target}/{name}"


class GroupColumnsSink(ChunkedSink):
    """Takes rows (m, width), and writes each column to an array of its own in a Zarr group."""

    def __init__(
        self, group: str, dim: str, length: int, chunk: int, dtypes: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.group, self.chunk, self.length, self.names = group, chunk, length, list(dtypes)
        opened = zarr.open_group(group, mode="r+")
        self._arrays: list[Any] = [
            opened.create_array(
                name,
                shape=(length,),
                chunks=(chunk,),
                dtype=dtype,
                compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                dimension_names=(dim,),
                config=WHOLE,
            )
            for name, dtype in dtypes.items()
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_arrays": []}

    def _put(self, start: int, stop: int, values: Array) -> None:
        if not self._arrays:
            group: Any = zarr.open_group(self.group, mode="r+")
            self._arrays = [group[name].with_config(WHOLE) for name in self.names]
        for array, column in zip(self._arrays, values.T, strict=True):
            put(array, (start,), column.astype(array.dtype))


def read_labelled(path: str | os.PathLike[str], name: str, other: str) -> tuple[Array, Array]:
    """The array (n, width) that a ``LabelledSink`` wrote, and another array of its group.

    Raises SourceError if it is absent or unfinished.
    """
    group, array = _open(path, name)
    return np.asarray(array[...]), np.asarray(group[other][...])


def labelled_rows(path: str | os.PathLike[str], name: str) -> Any:
    """The array that a ``LabelledSink`` wrote, unread: slices of it are arrays.

    Raises SourceError if it is absent or unfinished.
    """
    return _open(path, name)[1]


def labelled_vector(path: str | os.PathLike[str], name: str) -> Any:
    """A one-dimensional array of such a group, unread. Raises SourceError if it is absent."""
    try:
        group: Any = zarr.open_group(os.fspath(path), mode="r")
        return group[name]
    except ZARR_ERRORS:
        raise SourceError(
            f"{path}: no {name} there; the fit that wrote its components there also wrote the "
            "statistics of its features. Put it back"
        ) from None


def _open(path: str | os.PathLike[str], name: str) -> tuple[Any, Any]:
    try:
        group = zarr.open_group(os.fspath(path), mode="r")
        array = group[name]
    except ZARR_ERRORS:
        raise SourceError(f"{path}: streampca wrote no {name} there") from None
    if array.attrs.get("streampca_complete") is not True:
        raise SourceError(f"{path} is unfinished; write it again")
    return group, array


# Writing an ``xarray.Dataset`` to a NetCDF file or a Zarr group.

SUFFIXES = (".nc", ".zarr")
ZARR_GROUP = ("zarr.json", ".zgroup")  # of formats 3 and 2


def write_dataset(dataset: Any, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write a Dataset under another name, and rename it: ``path`` never holds an unfinished one.

    path : ends in ``.nc`` or ``.zarr``.
    Raises InvalidInputError if something is there that may not be replaced (a file replaces only a
    file, a Zarr group only a Zarr group), MissingDependencyError if NetCDF cannot be written.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InvalidInputError(f"{target}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if os.path.lexists(target) and not overwrite:
        raise exists_already(str(target), "add --overwrite to replace it")
    file = target.suffix == ".nc"
    may_go = os.path.isfile if file else _is_group
    if occupied(str(target)) and not may_go(str(target)):
        raise exists_already(str(target))
    place = os.path.realpath(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(unfinished_name(str(target)))  # a locked folder: HDF5 locks its file itself
    may_go = may_go if overwrite else lambda path: False
    try:
        if file:
            made = folder / target.name
            with writing(target):
                _write_netcdf(dataset, made)
            put_file(str(made), place, may_go)
        else:
            with writing(target):
                dataset.to_zarr(folder, consolidated=False)
            put_folder(str(folder), str(target), may_go)
    finally:
        discard(str(folder))


def _write_netcdf(dataset: Any, path: Path) -> None:
    """HDF5 says in the text of a RuntimeError why it could not write. Raises OSError."""
    try:
        dataset.to_netcdf(path, engine=_engine())
    except RuntimeError as error:
        if (found := re.search(r"errno = (\d+)", str(error))) is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from None


def _is_group(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_GROUP)


def _engine() -> Any:
    try:
        import h5netcdf  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "no library here writes NetCDF; pip install 'streampca[netcdf]', or name a .zarr"
        ) from None
    return "h5netcdf"
