"""One labelled array in a new Zarr group, written block by block, for xarray to open."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.errors import SourceError
from streampca.store.matrix_group import write_labels
from streampca.store.places import exists_already, unfinished_name
from streampca.store.sinks import ZarrSink, refuse_occupied

Array = np.ndarray[Any, Any]
COLUMNS_NBYTES = 32 << 20


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
            weakref.finalize(self, shutil.rmtree, self.group, ignore_errors=True)
        about = {"streampca_array": name, **(attributes or {})}
        try:
            group = zarr.create_group(self.group, zarr_format=3, attributes=about)
        except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError):
            raise exists_already(self.target) from None
        write_labels(group, labels)
        write_labels(group, tables or {})
        super().__init__(f"{self.group}/{name}", *shape, dtype=dtype, chunk=chunk, dims=dims)
        beside = [one for dim, columns in labels.items() for one in columns if one != dim]
        self.array.attrs["coordinates"] = " ".join(beside)  # as CF has it, for xarray

    def paths(self) -> tuple[str, ...]:
        return () if "://" in self.target else (os.path.realpath(self.target),)

    def finish(self) -> None:
        """Say in the array's attributes that all of it was written, and put the group in place."""
        super().finish()
        if self.group != self.target:
            Path(self.group).rename(os.path.realpath(self.target))
            name = os.path.basename(self.path)
            self.group, self._array = self.target, None
            self.path = self.place = f"{self.target}/{name}"


def read_labelled(path: str | os.PathLike[str], name: str, beside: str) -> tuple[Array, Array]:
    """The array that a ``LabelledSink`` wrote, and one of those beside it.

    Raises SourceError where it is not there or not whole.
    """
    group, array = _open(path, name)
    return np.asarray(array[...]), np.asarray(group[beside][...])


def labelled_columns(path: str | os.PathLike[str], name: str) -> Iterator[Array]:
    """The columns of such an array, a few at once in memory (32 MB), at a read of all for each few.

    Chunk by chunk: Zarr would decode ten at once.
    """
    _, array = _open(path, name)
    length, width = array.shape
    few = max(1, COLUMNS_NBYTES // (length * array.dtype.itemsize))
    for first in range(0, width, few):
        columns = np.empty((min(few, width - first), length), array.dtype)
        for start in range(0, length, array.chunks[0]):
            part = array[start : start + array.chunks[0]]
            columns[:, start : start + len(part)] = part[:, first : first + len(columns)].T
        yield from columns


def _open(path: str | os.PathLike[str], name: str) -> tuple[Any, Any]:
    try:
        group = zarr.open_group(os.fspath(path), mode="r")
        array = group[name]
    except (OSError, KeyError, ValueError, zarr.errors.BaseZarrError):
        raise SourceError(f"{path}: streampca wrote no {name} there") from None
    if array.attrs.get("streampca_complete") is not True:
        raise SourceError(f"{path} is unfinished; write it again")
    return group, array
