"""Datasets of HDF5 files (``.h5ad``), read by slices."""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, MissingDependencyError, SourceError
from streampca.matrix import ReadCount
from streampca.sources.chunk_grid import check_grid
from streampca.sources.stacked import Index, Reader, room_for
from streampca.sources.tally import Tally


def open_hdf5(path: str) -> Any:
    """The file, open for reading. Raises SourceError where it is none or is cut off."""
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
    """Raises DamagedSourceError where part of an open file lies in another one.

    That is said by external links, by external storage, and by virtual datasets.
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
                continue  # to what is looked at anyway, or behind an external link
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


class HDF5Reader(Reader):
    """One dataset. The file is open during a read only, so that results can be written into it."""

    loads = ("h5py",)
    into_buffer = True

    def __init__(self, dataset: Any) -> None:
        self.path = os.path.realpath(dataset.file.filename)
        self.name = dataset.name
        self.shape = tuple(int(n) for n in dataset.shape)
        self.dtype = np.dtype(dataset.dtype).newbyteorder("=")
        self.chunks = None if dataset.chunks is None else tuple(int(c) for c in dataset.chunks)
        if self.chunks is not None:
            check_grid(self.shape, self.chunks, f"{self.path}: {self.name}")
        self.tally = Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        shape = tuple(part.stop - part.start for part in index)
        values = room_for(shape, self.dtype, buffer)
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
        return values

    def _crossed(self, index: Index) -> int:
        if self.chunks is None:
            return 1
        pairs = zip(index, self.chunks, strict=True)
        return math.prod(-(-part.stop // step) - part.start // step for part, step in pairs)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        if self.chunks is None:
            return None
        step, size = self.chunks[dim], self.shape[dim]
        return np.append(np.arange(0, size, step, dtype=np.int64), size)

    def scratch_nbytes(self, index: Index) -> int:
        return 0 if self.chunks is None else 2 * math.prod(self.chunks) * self.dtype.itemsize

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = (
            f"{self.path} {self.name} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def paths(self) -> tuple[str, ...]:
        return (self.path,)
