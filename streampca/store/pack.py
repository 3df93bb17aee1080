"""Small files of a version in one uncompressed ZIP archive: one flush on a disk, one request of an
object store, where each would have cost two. Zarr opens the arrays in it where they lie."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Any

from streampca.store.array_files import Put
from streampca.store.bundle import PACK

MOST_OF_ONE = 1 << 20  # a larger file is put on its own: one chunk of an array, of at most 8 MiB
MOST = 8 << 20  # bytes of one archive; it is held in memory while it is written and read
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: the same files make the same archive


class Packer:
    """Takes the files of a version one by one; ``finish`` puts the archive.

    files : name -> digest and size; "packed" of those in the archive.
    """

    def __init__(self, put: Put) -> None:
        self._put = put
        self._buffer = io.BytesIO()
        self._zip = zipfile.ZipFile(self._buffer, "w", zipfile.ZIP_STORED)
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, data: bytes) -> None:
        """Pack a file, or put it on its own."""
        told = {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}
        if len(data) <= MOST_OF_ONE and self._buffer.tell() + len(data) <= MOST:
            self._zip.writestr(zipfile.ZipInfo(name, EPOCH), data)
            told["packed"] = True
        else:
            self._put(name, data)
        self.files[name] = told

    def finish(self) -> dict[str, Any]:
        """Put the archive; its digest and size."""
        self._zip.close()
        data = self._buffer.getvalue()
        self._put(PACK, data)
        return {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}


def unpack(archive: bytes) -> dict[str, bytes]:
    """The members of an archive that was checked. Nothing is inflated."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        stored = [one for one in members.infolist() if one.compress_type == zipfile.ZIP_STORED]
        return {one.filename: members.read(one) for one in stored}
