"""Shared by readers: counts of reads, buffers per thread, file digests, a limit of chunks."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from streampca.errors import ChangingSourceError, InvalidInputError
from streampca.matrix import ReadCount

# Counts of the reads of a source, in any number of threads.


class Tally:
    """The reads of a source, shared by its readers. An unpickled copy starts at zero.

    checksums : crc32c of every chunk that was read whole, by its key; None unless asked for.
    blank : what the rows of a chunk look like, where some are blank: see ``blank_rows.note_of``.
    """

    def __init__(self, checksums: bool = False) -> None:
        self.lock = threading.Lock()
        self.count = ReadCount()
        self.checksums: dict[str, int] | None = {} if checksums else None
        self.blank: dict[str, int] = {}

    def __reduce__(self) -> Any:
        return Tally, (self.checksums is not None,)

    def keep_checksums(self, found: Mapping[str, int]) -> None:
        """Add checksums. Raises ChangingSourceError where a chunk differs from an earlier read,
        because passes over different data give no result."""
        with self.lock:
            kept = self.checksums
            if kept is None:
                return
            for key, checksum in found.items():
                if kept.setdefault(key, checksum) != checksum:
                    raise ChangingSourceError(
                        f"chunk {key!r} was changed while it was read; start again"
                    )

    def keep_blank(self, found: Mapping[str, int]) -> None:
        """Add notes about rows."""
        with self.lock:
            for key, note in found.items():
                self.blank[key] = self.blank.get(key, 0) | note

    def add(self, count: ReadCount) -> None:
        """Add to the counts."""
        with self.lock:
            self.count = self.count + count

    def restart(self) -> None:
        """Reset the counts."""
        with self.lock:
            self.count = ReadCount()


# Buffers that a thread reuses for every read, because page faults are expensive.


class ThreadBuffers:
    """Named byte arrays of each thread, which are not pickled."""

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> Any:
        return ThreadBuffers, ()

    def take(self, name: str, size: int, spare: int = 0) -> np.ndarray[Any, Any]:
        """(size,) uint8, uninitialised; overwrites the previous buffer of this thread and name.

        spare : extra bytes of a new allocation, for a later request that is slightly larger.
        """
        held = getattr(self._local, name, None)
        if held is None or len(held) < size:
            held = np.empty(size + spare, np.uint8)
            setattr(self._local, name, held)
        return np.asarray(held[:size])

    def free(self) -> None:
        """Free those of this thread."""
        vars(self._local).clear()


# The content of local files as one digest, for sources without a ledger of chunks.


def files_checksum(paths: Iterable[str]) -> tuple[str, int]:
    """(SHA-256 over the names and the bytes of all files, number of these bytes).

    paths : files and directories, as ``ChunkedMatrix.paths`` gives them. Cost: reads all of them.
    """
    whole, nbytes = hashlib.sha256(), 0
    for path in sorted(paths):
        for name in _files(path):
            with open(os.path.join(path, name) if name else path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                nbytes += file.tell()
            whole.update(f"{os.path.basename(path)}\0{name}\0{digest}\n".encode())
    return whole.hexdigest(), nbytes


def _files(path: str) -> list[str]:
    """Names below a directory, in order; [""] for a file."""
    if not os.path.isdir(path):
        return [""]
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    ]
    return sorted(found)


# A limit of the number of chunks, since each is an entry in tables of this process.

MOST_CHUNKS = 1 << 26  # chunks of one array, half a gigabyte as edges


def check_grid(shape: Sequence[int], chunks: Sequence[int], where: str) -> None:
    """Raises InvalidInputError for an array of more than MOST_CHUNKS chunks."""
    if any(step < 1 for step in chunks):
        raise InvalidInputError(f"{where}: chunks {tuple(chunks)}; expected lengths from 1 on")
    number = math.prod(-(-n // step) for n, step in zip(shape, chunks, strict=True))
    if number > MOST_CHUNKS:
        raise InvalidInputError(
            f"{where} has {number} chunks of {tuple(chunks)}; expected at most {MOST_CHUNKS}. "
            "Write it again with larger chunks: streampca convert"
        )
