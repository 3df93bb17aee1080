"""NumPy arrays, lists and data frames."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.matrix import ChunkedMatrix, Labels, ReadCount
from streampca.sources.dimensions import Dim
from streampca.sources.stacked import Index, Reader, check_dtype, stack
from streampca.sources.tally import Tally

SAMPLED_NBYTES = 1 << 16


class ArrayReader(Reader):
    """An array in memory.  loads : libraries of the object that holds it."""

    def __init__(self, array: np.ndarray[Any, Any], loads: tuple[str, ...] = ()) -> None:
        self.array, self.loads = array, loads
        self.given_nbytes = resident_part(array)
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self.offset: tuple[int, int] | None = None  # (dim, start) of a part
        self.tally = Tally()

    def read(self, index: Index) -> np.ndarray[Any, Any]:
        if self.offset is not None:
            dim, start = self.offset
            moved = slice(index[dim].start - start, index[dim].stop - start)
            index = (*index[:dim], moved, *index[dim + 1 :])
        values = self.array[index]
        self.tally.add(ReadCount(1, values.nbytes))
        return values if values.dtype == self.dtype else values.astype(self.dtype)

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None

    def part(self, dim: int, start: int, stop: int) -> Reader:
        smaller = copy.copy(self)
        base = self.offset[1] if self.offset is not None else 0
        cut = tuple(
            slice(start - base, stop - base) if d == dim else slice(None)
            for d in range(self.array.ndim)
        )
        smaller.array, smaller.offset, smaller.tally = self.array[cut], (dim, start), Tally()
        return smaller

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.shape} {self.dtype}".encode())
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.ravel("K")
        step = max(1, len(flat) * flat.itemsize // SAMPLED_NBYTES)
        digest.update(np.ascontiguousarray(flat[::step]).tobytes())
        return digest.hexdigest()

    def content_stamp(self) -> str:
        digest = hashlib.sha256(self.fingerprint().encode())
        for row in self.array:
            digest.update(np.ascontiguousarray(row).view(np.uint8).data)
        return digest.hexdigest()


def resident_part(array: np.ndarray[Any, Any]) -> int:
    """Bytes of an array that are in memory: none of one that is mapped from a file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return 0
        base = base.base
    return array.nbytes


def from_array(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """NumPy, a list of lists, or a data frame."""
    names, samples, given = None, None, 0
    loads: tuple[str, ...] = ()
    if hasattr(array, "columns") and hasattr(array, "to_numpy"):
        columns = list(array.columns)
        names = columns if all(isinstance(c, str) for c in columns) else None
        index = getattr(array, "index", None)
        samples = [str(i) for i in index] if index is not None and index.dtype == object else None
        values = array.to_numpy()
        loads = ("pandas",) if type(array).__module__.startswith("pandas") else loads
        if values.base is None and hasattr(array, "memory_usage"):  # a copy beside the frame
            given = int(array.memory_usage().sum())
    else:
        values = np.asarray(array)
    if values.dtype.kind == "O":
        values = _numbers(values)
    check_dtype(values.dtype)
    matrix = stack(ArrayReader(values, loads), dim)
    matrix.given_nbytes += given
    if names is not None or samples is not None:
        matrix.labels = Labels.plain(matrix.shape, names, samples)
    return matrix


def _numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An object array whose entries are all numbers, as float64 (as scikit-learn accepts)."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(
            f"dtype object cannot be used: {error}; argument must be a string or a number. "
            "Convert with X.astype('float64')."
        ) from None
