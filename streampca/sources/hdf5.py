"""Datasets of HDF5 files: which one is meant, decoded as its attributes say, read by slices."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import (
    DamagedSourceError,
    InvalidInputError,
    MissingDependencyError,
    SourceError,
)
from streampca.matrix import ChunkedMatrix, ReadCount
from streampca.matrix.chunked_matrix import regular_edges
from streampca.sources.cf import Decoding, descriptive
from streampca.sources.stacked import Dim, Index, Reader, Tally, check_grid, room_for, stack


def open_dataset(file: Any, path: str, variable: str | None, dim: Dim, group: str) -> ChunkedMatrix:
    """The named dataset, or the only one of numbers with two dimensions. Lists those that are.

    group : where to look.
    """
    if "_NCProperties" in file.attrs:
        from streampca.sources.labelled.opening import from_netcdf

        return from_netcdf(path, variable, dim, group)
    found: dict[str, Any] = {}
    file.visititems(lambda name, node: found.update({name: node}))
    if group and not is_group(found.get(group)):
        held = ", ".join(one for one, node in found.items() if is_group(node)) or "none"
        raise InvalidInputError(f"{path} has no group {group!r}; its groups: {held}")
    inside = f"{group}/" if group else ""
    arrays = {
        name: node
        for name, node in found.items()
        if name.startswith(inside)
        and hasattr(node, "shape")
        and node.dtype.kind in "biuf"
        and node.ndim
    }
    wide = [name for name, node in arrays.items() if node.ndim == 2]
    wide = wide or [name for name, node in arrays.items() if node.ndim > 2]
    only = wide[0] if variable is None and len(wide) == 1 else None
    name = only or inside + (variable or "").strip("/")
    if name not in arrays:
        held = ", ".join(f"{one} {node.shape}" for one, node in arrays.items()) or "none"
        problem = "has several" if variable is None else f"has no {variable!r} among its"
        problem = problem if arrays else "has no"
        raise (InvalidInputError if arrays else SourceError)(
            f"{path} {problem} datasets of numbers; it holds: {held}. Use streampca.open({path!r}, "
            f"variable={next(iter([*wide, *arrays]), 'name')!r})"
        )
    attributes = hdf5_attributes(arrays[name])
    decoding = Decoding.of(attributes, arrays[name].dtype)
    matrix = stack(HDF5Reader(arrays[name], decoding), dim)
    named = descriptive(attributes)
    kept = ("units", "standard_name", "long_name")
    described: dict[str, Any] = {one: named[one] for one in kept if one in named}
    matrix.labels = replace(matrix.labels, name=name.rpartition("/")[2], attrs=described)
    return matrix


def open_hdf5(path: str) -> Any:
    """The file, open for reading. Raises SourceError where it is not HDF5 or is truncated."""
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError(
            f"{path} is an HDF5 file and h5py is not installed: pip install 'streampca[h5ad]'"
        ) from None
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise SourceError(f"{path}: not a readable HDF5 file ({error})") from None


def refuse_external(file: Any, path: str) -> None:
    """Raises DamagedSourceError where part of an open file is in another file.

    Such parts are external links, external storage and virtual datasets.
    """
    import h5py

    waiting, seen = [file], set()
    while waiting:
        group = waiting.pop()
        if (place := h5py.h5o.get_info(group.id).addr) in seen:
            continue
        seen.add(place)
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise _external(path, f"{group.name}/{name}", link.filename)
            if isinstance(link, h5py.SoftLink):
                continue  # to an object that is visited anyway, or behind an external link
            node = group[name]
            if isinstance(node, h5py.Group):
                waiting.append(node)
            elif isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
                others = node.virtual_sources() if node.is_virtual else node.external
                raise _external(path, node.name, str(others[0][1 if node.is_virtual else 0]))


def _external(path: str, name: str, other: str) -> DamagedSourceError:
    return DamagedSourceError(
        f"{path}: {name} lies in another file, {other!r:.200}, which is not opened. If that is "
        "meant: streampca.open(..., external_links=True)"
    )


def hdf5_attributes(dataset: Any) -> dict[str, Any]:
    """The attributes as a NetCDF library gives them: one element as a number, bytes as text."""
    import h5py

    found = {}
    for name, value in dataset.attrs.items():
        if isinstance(value, h5py.Empty):
            continue
        if isinstance(value, np.ndarray) and value.shape == (1,):
            value = value[0]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        found[name] = value
    return found


class HDF5Reader(Reader):
    """One dataset. The file is open only during a read, so that results can be written into it.

    decoding : from stored numbers to values; None where they are the values.
    """

    into_buffer = True

    def __init__(self, dataset: Any, decoding: Decoding | None = None) -> None:
        self.decoding = decoding
        self.loads = ("h5py",) if decoding is None else ("h5py", "xarray")
        self.path = os.path.realpath(dataset.file.filename)
        self.name = dataset.name
        self.shape = tuple(int(n) for n in dataset.shape)
        self.stored = np.dtype(dataset.dtype).newbyteorder("=")
        self.dtype = self.stored if decoding is None else decoding.dtype
        self.chunks = None if dataset.chunks is None else tuple(int(c) for c in dataset.chunks)
        if self.chunks is not None:
            check_grid(self.shape, self.chunks, f"{self.path}: {self.name}")
        self.tally = Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(part.stop - part.start for part in index)
        values = room_for(shape, self.stored, None if self.decoding else buffer)
        with open_hdf5(self.path) as file:
            try:
                if values.size:
                    file[self.name].read_direct(values, index)
            except (OSError, KeyError) as error:
                raise SourceError(
                    f"{self.path}: {self.name} cannot be read ({error}); the file is cut off or "
                    "damaged"
                ) from None
        self.tally.add(ReadCount(self._crossed(index), values.nbytes))
        return values if self.decoding is None else self.decoding.decode(values)

    def _crossed(self, index: Index) -> int:
        if self.chunks is None:
            return 1
        pairs = zip(index, self.chunks, strict=True)
        return math.prod(-(-part.stop // step) - part.start // step for part, step in pairs)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        if self.chunks is None:
            return None
        return regular_edges(self.shape[dim], self.chunks[dim])

    def scratch_nbytes(self, index: Index) -> int:
        chunks = 0 if self.chunks is None else 2 * math.prod(self.chunks) * self.stored.itemsize
        if self.decoding is None:
            return chunks
        cells = math.prod(s.stop - s.start for s in index)
        return int(chunks + cells * self.stored.itemsize + self.decoding.scratch_nbytes)

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = (
            f"{self.path} {self.name} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
            f"{'' if self.decoding is None else self.decoding}"
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return (self.path,)


def is_group(node: Any) -> bool:
    """Whether a node of a Zarr or HDF5 file is a group."""
    return hasattr(node, "attrs") and hasattr(node, "keys")
