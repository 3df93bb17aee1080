"""Files of two bits a call, variant after variant: .bed of PLINK 1, .geno of EIGENSOFT."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.matrix import Location, ReadCount
from streampca.paths import BINARY, read_fully
from streampca.sources.local_files import FileLocation
from streampca.sources.stacked import Index, Reader, Tally, ThreadBuffers, room_for


class CallsReader(Reader):
    """Calls of variants x samples, int8, from files that are read by position and not mapped."""

    loads = ("numba",)
    into_buffer = True
    dtype = np.dtype(np.int8)

    def __init__(self, files: Sequence[str], n_variants: int, n_samples: int) -> None:
        self.files = [os.path.abspath(path) for path in files]
        self.shape = (n_variants, n_samples)
        self.tally, self.buffers = Tally(), ThreadBuffers()

    @abstractmethod
    def paths(self) -> tuple[str, ...]:
        """The files, and those of the labels."""

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def fingerprint(self) -> str:
        text: list[Any] = [self.shape]
        for path in self.files:
            stat = os.stat(path)
            text += [os.path.basename(path), stat.st_size, stat.st_mtime_ns]
        return hashlib.sha256(repr(text).encode()).hexdigest()

    def content_stamp(self) -> str:
        stats = [(os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in self.paths()]
        return hashlib.sha256(f"{self.fingerprint()} {stats}".encode()).hexdigest()

    def locations(self) -> tuple[Location, ...]:
        return tuple(map(FileLocation, self.files))  # labels are read by the client alone


class TwoBitReader(CallsReader):
    """Calls from one or more files, concatenated, after a header in each.

    variants : of each file.  header : its bytes.  stride : bytes of a variant.
    ``table`` names the calls of every byte, in ``streampca.kernels.calls``.
    """

    table: str

    def __init__(
        self,
        files: Sequence[str],
        variants: Sequence[int],
        n_samples: int,
        header: int,
        stride: int,
    ) -> None:
        self.offsets = np.cumsum([0, *variants])
        super().__init__(files, int(self.offsets[-1]), n_samples)
        self.header, self.stride = header, stride

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels import calls as kernels

        start, stop = index[0].start, index[0].stop
        m, n = stop - start, self.shape[1]
        calls = room_for((m, n), self.dtype, buffer)
        for path, first, last, at in self._runs(start, stop):
            packed = self._packed(path, first, last)
            kernels.unpack_bed(packed, getattr(kernels, self.table), calls[at : at + last - first])
        self.tally.add(ReadCount(1, m * n, m * self.stride))
        return calls[:, index[1]]

    def _runs(self, start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
        """(file, first and last variant within it, position in the result) of a range."""
        for path, (low, high) in zip(self.files, pairwise(self.offsets.tolist()), strict=True):
            first, last = max(start, low), min(stop, high)
            if first < last:
                yield path, first - low, last - low, first - start

    def _packed(self, path: str, first: int, last: int) -> np.ndarray[Any, Any]:
        """(variants, stride) packed bytes, in a buffer that this thread reuses."""
        size = (last - first) * self.stride
        packed: Any = self.buffers.take("packed", size)
        done = read_at(path, self.header + first * self.stride, packed)
        if done < size:
            raise SourceError(f"{path} ends {size - done} bytes before variant {last - 1} does")
        return np.asarray(packed.reshape(last - first, self.stride))

    def scratch_nbytes(self, index: Index) -> int:
        return int((index[0].stop - index[0].start) * self.stride)


def read_at(path: str, place: int, into: Any) -> int:
    """Fill an array of bytes from a position; the number of them that there are.

    Raises SourceError.
    """
    try:
        file = os.open(path, os.O_RDONLY | BINARY)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
    try:
        return read_fully(file, memoryview(into), place)
    finally:
        os.close(file)
