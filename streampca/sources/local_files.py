"""Files of this machine: whether they changed, what workers see of them, and scratch folders."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from streampca.matrix import Location
from streampca.paths import BINARY


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


# Locations: files compared by their length and a digest of a few of their bytes.

NUMBER = re.compile(r"\d+")
HEAD_NBYTES = 4096  # bytes to hash at the beginning, in the middle and at the end


class FileLocation(Location):
    """One local file."""

    def __init__(self, path: str) -> None:
        self.name = path

    def sample(self) -> Sequence[str]:
        return (self.name,)

    def look(self, names: Sequence[str]) -> dict[str, str]:
        return {name: _seen(name) for name in names}


def _seen(path: str) -> str:
    """The length of a file and a digest of parts of it."""
    try:
        handle = os.open(path, os.O_RDONLY | BINARY)
    except OSError as error:
        return "absent" if isinstance(error, FileNotFoundError) else f"unreadable ({error})"
    try:
        size = os.fstat(handle).st_size
        digest = hashlib.sha256()
        for start in (0, size // 2, max(0, size - HEAD_NBYTES)):
            os.lseek(handle, start, os.SEEK_SET)
            digest.update(os.read(handle, HEAD_NBYTES))
    except OSError as error:
        return f"unreadable ({error})"
    finally:
        os.close(handle)
    return f"{size} bytes, digest {digest.hexdigest()[:12]}"


class ScratchFolder:
    """A folder that is removed with the last matrix that reads it, but not by unpickled copies."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="streampca-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __reduce__(self) -> Any:
        return str, (self.path,)


def append_to(file: Any, values: Any) -> None:
    """Append an array of one axis to an unbuffered file. Raises OSError, which names the file.

    ``ndarray.tofile`` names neither the file nor the reason; a buffer would fail again on closing.
    """
    rest = values.view(np.uint8).data
    try:
        while len(rest):
            rest = rest[file.write(rest) :]
    except OSError as error:
        error.filename = error.filename or file.name
        raise


def number_order(path: str) -> str:
    """A key that sorts 2 before 10: digits behind how many they are, and before all letters.

    One short text for each of very many files, not a list.
    """
    return NUMBER.sub(_by_length, path)


def _by_length(number: re.Match[str]) -> str:
    digits = str(int(number.group()))
    return f"\0{chr(len(digits))}{digits}"


def visible_files(folder: str) -> Iterator[str]:
    """The paths of the files in a folder and below it, without hidden files and folders."""
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(place, name) for name in names if not name.startswith("."))
