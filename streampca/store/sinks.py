"""Where a pass writes what it computes block by block: scores, loadings, completed matrices.

Writing the same region twice gives the same result, so a retried task does no harm. A method
whose output is also its input (row factors of alternating least squares) writes to another
sink than the one it reads.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import InvalidInputError

CHUNK_NBYTES = 8 * 1024 * 1024


class Sink(Protocol):
    """Output aligned with the streamed axis."""

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        """Put values at [start, start + len(values))."""

    def concurrent(self, edges: np.ndarray[Any, Any]) -> bool:
        """Whether workers may write blocks with these edges at the same time, from anywhere."""

    def nbytes_in_memory(self) -> int:
        """Bytes that the sink itself holds in this process."""


class MemorySink:
    """An array in memory: ``sink.values`` (length, width)."""

    def __init__(self, length: int, width: int, dtype: Any = np.float64) -> None:
        self.values = np.zeros((length, width), dtype)

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        self.values[start : start + len(values)] = values

    def concurrent(self, edges: np.ndarray[Any, Any]) -> bool:
        return False

    def nbytes_in_memory(self) -> int:
        return self.values.nbytes


class ZarrSink:
    """A new 2-D Zarr v3 array of (length, width), zstd and crc32c, chunked along its first axis.

    Where the chunks coincide with the blocks, workers write them directly; else the process
    that folds the pass writes, in order. ``finish`` marks the array as whole.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        length: int,
        width: int,
        dtype: Any = np.float64,
        chunk: int | None = None,
        dims: tuple[str, str] = ("sample", "component"),
        overwrite: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        dtype = np.dtype(dtype)
        rows = chunk or max(1, CHUNK_NBYTES // max(1, width * dtype.itemsize))
        self.chunk = max(1, min(rows, length))
        if _occupied(self.path) and not (overwrite and _is_sink(self.path)):
            raise _exists(self.path)
        try:
            array = zarr.create_array(
                self.path,
                shape=(length, width),
                chunks=(self.chunk, max(1, width)),
                dtype=dtype,
                compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
                zarr_format=3,
                dimension_names=dims,
                overwrite=overwrite,
                attributes={"streampca_complete": False},
            )
        except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError, FileExistsError):
            raise _exists(self.path) from None
        self.length = length
        self._array: Any = array

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    @property
    def array(self) -> Any:
        """The Zarr array, opened where this process needs it."""
        if self._array is None:
            self._array = zarr.open_array(self.path, mode="r+")
        return self._array

    def write(self, start: int, values: np.ndarray[Any, Any]) -> None:
        self.array[start : start + len(values)] = values

    def concurrent(self, edges: np.ndarray[Any, Any]) -> bool:
        return bool(np.all(np.asarray(edges)[:-1] % self.chunk == 0))

    def nbytes_in_memory(self) -> int:
        return 0

    def finish(self) -> None:
        """Say in the array's attributes that all of it was written."""
        self.array.attrs["streampca_complete"] = True


def _exists(path: str) -> InvalidInputError:
    return InvalidInputError(f"{path} exists already; remove it or choose another output")


def _occupied(path: str) -> bool:
    """Whether something other than an empty directory lies at this local path."""
    if "://" in path or not os.path.lexists(path):
        return False
    return not os.path.isdir(path) or bool(os.listdir(path))


def _is_sink(path: str) -> bool:
    """Whether it was made here: nothing else may be overwritten, least of all a source."""
    try:
        return "streampca_complete" in zarr.open_array(path, mode="r").attrs
    except (OSError, ValueError, zarr.errors.BaseZarrError):
        return False
