"""Files as locations: their length, and a digest of a few of their bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from streampca.matrix import Location
from streampca.regular_file import BINARY

HEAD_NBYTES = 4096  # that are looked at, at the beginning, in the middle and at the end


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
