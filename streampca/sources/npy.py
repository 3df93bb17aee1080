"""``.npy`` files, read by position."""

from __future__ import annotations

import hashlib
import math
import os
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.matrix import ReadCount
from streampca.paths import read_fully
from streampca.sources.memory.arrays import ArrayReader
from streampca.sources.stacked import Index, Reader, Tally, room_for

GROUP_NBYTES = 1 << 20  # of a file that are read at once where pieces are close together
GAP_NBYTES = 1 << 14  # largest gap between such pieces


class NpyReader(ArrayReader):
    """A ``.npy`` file, read by position and not mapped, so that resident memory stays constant."""

    into_buffer = True

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)  # looks at the header
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except (ValueError, EOFError) as error:
            raise SourceError(f"{path}: not a readable .npy file ({error})") from None
        self._lay(path, mapped.shape, mapped.dtype, int(mapped.offset))
        self._fortran = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def _lay(self, path: str, shape: tuple[int, ...], dtype: Any, start: int) -> None:
        """Describe an array in C order that begins at byte ``start`` of a file."""
        self.path = os.path.realpath(path)
        self.shape, self._stored, self._start = shape, np.dtype(dtype), start
        self.dtype, self._fortran = self._stored.newbyteorder("="), False
        self.offset, self.tally = None, Tally()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        values = room_for([s.stop - s.start for s in index], self.dtype, buffer)
        with open(self.path, "rb", buffering=0) as file:
            if self._laid_out_anew():
                self._read_turned(file.fileno(), values, index)
            else:
                _read_part(file.fileno(), values, self.shape, index, self._start, self.path)
        self.tally.add(ReadCount(1, values.nbytes))
        return values

    def _laid_out_anew(self) -> bool:
        return self._fortran or self._stored != self.dtype

    def _read_turned(self, handle: int, into: np.ndarray[Any, Any], index: Index) -> None:
        """Read values with another order of axes or bytes in the file, piece by piece."""
        axes = self._axes()
        shape, into = tuple(self.shape[d] for d in axes), into.transpose(axes)
        first, *others = (index[d] for d in axes)
        step = max(1, GROUP_NBYTES // self._row_nbytes(index))
        for start in range(first.start, first.stop, step):
            part = (slice(start, min(start + step, first.stop)), *others)
            piece = np.empty([s.stop - s.start for s in part], self._stored)
            _read_part(handle, piece, shape, part, self._start, self.path)
            into[start - first.start : part[0].stop - first.start] = piece

    def _axes(self) -> range:
        """The axes of the array in the order of the file."""
        n = len(self.shape)
        return range(n - 1, -1, -1) if self._fortran else range(n)

    def _row_nbytes(self, index: Index) -> int:
        """Bytes per position along the first axis of the file."""
        others = [index[d] for d in self._axes()][1:]
        return int(max(1, math.prod(s.stop - s.start for s in others) * self._stored.itemsize))

    def scratch_nbytes(self, index: Index) -> int:
        again = max(GROUP_NBYTES, self._row_nbytes(index)) if self._laid_out_anew() else 0
        return GROUP_NBYTES + again

    def part(self, dim: int, start: int, stop: int) -> Reader:
        return self

    def fingerprint(self) -> str:
        stat = os.stat(self.path)
        text = f"{self.path} {stat.st_size} {stat.st_mtime_ns} {self.shape} {self.dtype}"
        return hashlib.sha256(text.encode()).hexdigest()

    def content_stamp(self) -> str:
        return self.fingerprint()

    def paths(self) -> tuple[str, ...]:
        return (self.path,)


def _read_part(
    handle: int,
    into: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    part: tuple[slice, ...],
    start: int,
    path: str,
) -> None:
    """Read one hyperrectangle of an array of this shape, in C order from byte ``start`` on.

    Pieces that are close together in the file are read together with the gaps between them.
    """
    if not into.size:
        return
    cut = max((d for d in range(len(shape)) if into.shape[d] < shape[d]), default=0)
    strides = [math.prod(shape[d + 1 :]) * into.itemsize for d in range(len(shape))]
    run = into.shape[cut] * strides[cut]  # contiguous bytes
    begin = start + sum(s.start * stride for s, stride in zip(part, strides, strict=True))
    near = max(0, cut - 1)  # the dimension along which pieces are grouped
    pieces = into.view(np.uint8).reshape(*into.shape[:cut], run)
    if cut == 0:
        _read_fully(handle, pieces, begin, path)
        return
    step = strides[near]
    together = max(1, GROUP_NBYTES // step) if step - run <= GAP_NBYTES else 1
    for outer in np.ndindex(*into.shape[:near]):
        first = begin + sum(i * stride for i, stride in zip(outer, strides, strict=False))
        rows = pieces[outer]
        for i in range(0, len(rows), together):
            some, place = rows[i : i + together], first + i * step
            if len(some) == 1:
                _read_fully(handle, some, place, path)
                continue
            group = np.empty(len(some) * step, np.uint8)
            _read_fully(handle, group[: (len(some) - 1) * step + run], place, path)
            some[...] = group.reshape(len(some), step)[:, :run]


def _read_fully(handle: int, into: np.ndarray[Any, Any], offset: int, path: str) -> None:
    view: Any = memoryview(into.reshape(-1))  # type: ignore[arg-type]
    if (done := read_fully(handle, view, offset)) < len(view):
        raise SourceError(f"{path} is truncated: {len(view) - done} bytes are missing")


def new_npy(path: str, dtype: Any, length: int) -> Any:
    """A new, unbuffered file with the header of an array of one axis; its entries are to follow."""
    file = open(path, "wb", buffering=0)  # noqa: SIM115
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file
