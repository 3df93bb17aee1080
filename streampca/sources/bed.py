"""PLINK 1 .bed files: two bits a call, variant-major, read by position and never mapped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.matrix import Location, ReadCount
from streampca.regular_file import BINARY, read_at
from streampca.sources.file_location import FileLocation
from streampca.sources.stacked import Index, Reader, room_for
from streampca.sources.tally import Tally
from streampca.sources.thread_buffers import ThreadBuffers

MAGIC = b"\x6c\x1b"
PROBED = 256  # variants whose padding is looked at, in all files together


class BedReader(Reader):
    """Calls of variants x samples from one or more .bed files that follow one another."""

    loads = ("numba",)
    into_buffer = True
    dtype = np.dtype(np.int8)

    def __init__(self, paths: Sequence[str], variants: Sequence[int], n_samples: int) -> None:
        self.files = [os.path.abspath(path) for path in paths]
        self.offsets = np.cumsum([0, *variants])
        self.shape = (int(self.offsets[-1]), n_samples)
        self.stride = -(-n_samples // 4)
        for path, count in zip(self.files, variants, strict=True):
            _check_bed(path, count, self.stride)
            _check_padding(path, count, n_samples, max(16, PROBED // len(paths)))
        self.tally, self.buffers = Tally(), ThreadBuffers()

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        from streampca.kernels.calls import BED_TABLE, unpack_bed

        start, stop = index[0].start, index[0].stop
        m, n = stop - start, self.shape[1]
        calls = room_for((m, n), self.dtype, buffer)
        for path, first, last, at in self._runs(start, stop):
            packed = self._packed(path, first, last)
            unpack_bed(packed, BED_TABLE, calls[at : at + last - first])
        self.tally.add(ReadCount(1, m * n, m * self.stride))
        return calls[:, index[1]]

    def _runs(self, start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
        """(file, first and last variant within it, place in the result) of a range."""
        for path, (low, high) in zip(self.files, pairwise(self.offsets.tolist()), strict=True):
            first, last = max(start, low), min(stop, high)
            if first < last:
                yield path, first - low, last - low, first - start

    def _packed(self, path: str, first: int, last: int) -> np.ndarray[Any, Any]:
        """(variants, stride) packed bytes, in a buffer that this thread uses again."""
        size = (last - first) * self.stride
        packed: Any = self.buffers.take("packed", size)
        view = memoryview(packed)
        done, place = 0, len(MAGIC) + 1 + first * self.stride
        try:
            file = os.open(path, os.O_RDONLY | BINARY)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror or error}") from None
        try:
            while done < size and (got := read_at(file, view[done:], place + done)):
                done += got
        finally:
            os.close(file)
        if done < size:
            raise SourceError(f"{path} ends {size - done} bytes before variant {last - 1} does")
        return np.asarray(packed.reshape(last - first, self.stride))

    def edges(self, dim: int) -> np.ndarray[Any, Any] | None:
        return None if dim == 0 else np.array([0, self.shape[1]])

    def scratch_nbytes(self, index: Index) -> int:
        return int((index[0].stop - index[0].start) * self.stride)

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

    def paths(self) -> tuple[str, ...]:
        stems = [os.path.realpath(path)[:-4] for path in self.files]
        return tuple(f"{stem}.{suffix}" for stem in stems for suffix in ("bed", "bim", "fam"))


def _check_bed(path: str, variants: int, stride: int) -> None:
    """Refuse what is not a whole variant-major .bed of this size."""
    with open(path, "rb") as file:
        head = file.read(3)
    if head[:2] != MAGIC:
        raise SourceError(
            f"{path} does not begin with the two bytes of a PLINK 1 .bed (6c 1b); got "
            f"{head[:2].hex(' ') or 'nothing'}"
        )
    if head[2:] == b"\x00":
        raise SourceError(
            f"{path} is sample-major, a layout of 2008; rewrite it: "
            f"plink1.9 --bfile {path[:-4]} --make-bed --out NEW"
        )
    if head[2:] != b"\x01":
        raise SourceError(f"{path}: layout byte {head[2:].hex() or 'absent'}; expected 01")
    expected, found = 3 + variants * stride, os.path.getsize(path)
    if found != expected:
        kind = "truncated" if found < expected else "longer than its .bim and .fam say"
        raise SourceError(
            f"{path} is {kind}: {found} bytes, expected {expected} (3 + {variants} variants x "
            f"{stride} bytes)"
        )


def _check_padding(path: str, variants: int, n_samples: int, probed: int) -> None:
    """Refuse calls behind the last sample, which a .bed of up to 3 more samples than its .fam has.

    Such a .bed is as long as it should be. The reverse cannot be seen: the padding of 60 samples
    reads as calls of a 61st, all homozygous.
    """
    stride, used = -(-n_samples // 4), n_samples % 4
    if not used or not variants:
        return
    with open(path, "rb", buffering=0) as file:
        for j in np.unique(np.linspace(0, variants - 1, probed).astype(np.int64)).tolist():
            file.seek(len(MAGIC) + (j + 1) * stride)
            (last,) = file.read(1)
            if last >> 2 * used:
                raise SourceError(
                    f"{path} has calls behind the last of {n_samples} samples (variant {j}): it "
                    f"holds more samples than {path[:-4]}.fam names"
                )
