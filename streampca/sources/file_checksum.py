"""The content of local files as one digest, for sources without a ledger of chunks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable


def files_checksum(paths: Iterable[str]) -> tuple[str, int]:
    """(SHA-256 over the names and the bytes of all files, how many bytes those are).

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
