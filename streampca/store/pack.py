"""Small files of a version in one uncompressed ZIP archive: one flush on a disk, one request of an
object store, where each would have cost two. Zarr opens the arrays in it where they lie."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from typing import Any

from streampca.errors import DamagedSourceError
from streampca.store.array_files import Put

PACK = "files.zip"  # small files of all bundles of one version
MOST_OF_ONE = 1 << 20  # a larger file is put on its own: one chunk of an array, of at most 8 MiB
MOST = 8 << 20  # bytes of one archive; it is held in memory while it is written and read
MOST_READ = 64 << 20  # with the names of its files, which are in it twice
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member: the same files make the same archive
LOCAL = struct.Struct("<4s5H3I2H")  # the header before each member
MAGIC, STORED, PLAIN = b"PK\x03\x04", 0, 0x800  # the only flag: the name is UTF-8


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


def unpack(archive: bytes, where: str) -> dict[str, memoryview]:
    """The members of an archive by name, parts of it: nothing is inflated, and nothing copied.

    The headers before the members are followed, as ``Packer`` wrote them; the table at the end,
    whose entries may all point at one place, is not. Raises DamagedSourceError.
    """
    view, at, members = memoryview(archive), 0, dict[str, memoryview]()
    while bytes(view[at : at + 4]) == MAGIC:
        if at + LOCAL.size > len(view):
            raise _cut_off(where)
        _, _, flags, method, _, _, _, size, plain, named, extra = LOCAL.unpack_from(view, at)
        start = at + LOCAL.size
        at = start + named + extra + size
        if flags & ~PLAIN or method != STORED or size != plain or at > len(view):
            raise _cut_off(where)
        name = str(view[start : start + named], "utf-8" if flags else "cp437", "replace")
        if name in members:
            raise DamagedSourceError(f"{where} holds {name!r:.200} twice")
        members[name] = view[at - size : at]
    return members


def _cut_off(where: str) -> DamagedSourceError:
    return DamagedSourceError(f"{where} is damaged, or not written by streampca")
