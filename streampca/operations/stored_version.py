"""The files of one stored version, and the manifest that has the digest of each.

Layout: ``versions/<id>/`` with one bundle in each part ("model", "state", "ledger") and
``manifest.json``, which has the digest of every file and the record of how the version came about.
Small files of all parts lie in ``files.zip`` there (format 1 had each on its own).

What is flushed, and when: on a disk ``files.zip``, every large file and the manifest are each
flushed before they are renamed into the version's folder, and that folder after.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.operations.history import Entry, now
from streampca.store.array_files import PACK, Packer, StoredRows, unpack
from streampca.store.backend import Backend
from streampca.store.bundle import altered, read_files, write_files
from streampca.store.checked import INDEX, MOST_BYTES, check_manifest, sign_readable, unsign

FORMATS = (1, 2)  # of manifests that are read; the last is written
FOLDER = "versions/"
MANIFEST = "manifest.json"

Arrays = Mapping[str, np.ndarray[Any, Any]]
Part = tuple[Arrays, Mapping[str, Any]]  # the arrays and the document of one bundle


@dataclass(frozen=True)
class StoredVersion:
    """One version: reading it checks every file that is read.

    entry : of its publication.
    """

    backend: Backend
    entry: Entry

    @property
    def id(self) -> str:
        """What its directory is called."""
        return self.entry.version

    @property
    def number(self) -> int:
        """1 for the first that was published, and so on."""
        return self.entry.number

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Digest and size of every file, and the record. Raises SourceError where damaged."""
        text = self.backend.get(self._folder + MANIFEST, MOST_BYTES)
        if text is None or hashlib.sha256(text).hexdigest() != self.entry.manifest:
            raise altered(self._where, "manifest.json")
        whole = unsign(text, f"{self._where}/manifest.json", *FORMATS)
        check_manifest(whole, f"{self._where}/manifest.json")
        return whole

    @property
    def record(self) -> dict[str, Any]:
        """How it came about: settings, source, lineage, cost, libraries."""
        return dict(self.manifest["record"])

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its bundles."""
        return tuple(sorted({name.partition("/")[0] for name in self.manifest["files"]}))

    def read(self, part: str = "model") -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """(arrays, document) of one part. Raises SourceError where it is absent or altered."""
        if part not in self.parts:
            raise SourceError(f"{self._where} has no {part}; it has {', '.join(self.parts)}")
        known = self.manifest["files"]
        get: Any = lambda name, most: self._checked(f"{part}/{name}")  # noqa: E731
        size = lambda name: known.get(f"{part}/{name}", {"nbytes": 0})["nbytes"]  # noqa: E731
        return read_files(get, size, get(INDEX, MOST_BYTES), f"{self._where}/{part}")

    def rows(self, part: str, name: str) -> StoredRows:
        """An array of one part, of which what is asked for is read. Raises SourceError."""
        if part not in self.parts:
            raise SourceError(f"{self._where} has no {part}; it has {', '.join(self.parts)}")
        known, folder = self.manifest["files"], f"{part}/"
        sizes = {
            file.removeprefix(folder): one["nbytes"]
            for file, one in known.items() if file.startswith(folder)
        }  # fmt: skip
        get = lambda file: self._checked(folder + file)  # noqa: E731
        return StoredRows(get, sizes, name, f"{self._where}/{part}")

    def verify(self) -> None:
        """Read every byte. Raises SourceError for the first file that is not what was written."""
        files = dict(self.manifest["files"])
        if told := self.manifest.get("pack"):
            self._fetched(PACK, told)
            files = {name: one for name, one in files.items() if not one.get("packed")}
        for name, one in files.items():
            self._fetched(name, one)

    def _checked(self, name: str) -> bytes:
        told = self.manifest["files"].get(name)
        if told is None or not told.get("packed"):
            return self._fetched(name, told)
        if len(self._packed.get(name, b"")) != told["nbytes"]:
            raise altered(self._where, name)
        return bytes(self._packed[name])

    @cached_property
    def _packed(self) -> dict[str, memoryview]:
        return unpack(self._fetched(PACK, self.manifest["pack"]), f"{self._where}/{PACK}")

    def _fetched(self, name: str, told: Mapping[str, Any] | None) -> bytes:
        """A file as long as the manifest says, and no longer."""
        if told is None:
            raise altered(self._where, name)
        data = self.backend.get(self._folder + name, told["nbytes"])
        if data is None or len(data) != told["nbytes"]:
            raise altered(self._where, name)
        if hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise altered(self._where, name)
        return data

    @property
    def _folder(self) -> str:
        return f"{FOLDER}{self.id}/"

    @property
    def _where(self) -> str:
        return f"{self.backend.place}: version {self.number} ({FOLDER}{self.id})"


@dataclass(frozen=True)
class Written:
    """The files of a version that is being written, all but the manifest.

    files : name -> digest and size.  pack : of the archive.
    """

    version: str
    files: Mapping[str, Any]
    pack: Mapping[str, Any]


def write_parts(backend: Backend, version: str, parts: Mapping[str, Part]) -> Written:
    """Write all files of a version but the manifest. Raises OSError."""
    folder = f"{FOLDER}{version}/"
    packer = Packer(lambda name, data: backend.put(folder + name, data))
    for part, (arrays, document) in parts.items():
        write_files(partial(_add, packer, part), arrays, document)
    pack = packer.finish()
    return Written(version, packer.files, pack)


def write_manifest(
    backend: Backend, written: Written, record: Mapping[str, Any], entry: Mapping[str, Any]
) -> str:
    """Write the manifest of a version, which is the last of its files; its digest.

    entry : what the log is about to say of it, so that the version can be found where that is lost.
    """
    text = sign_readable({
        "format_version": FORMATS[-1], "id": written.version, "created": now(),
        "files": written.files, "pack": written.pack, "record": dict(record), "log": dict(entry),
    }, f"the record of version {written.version}")  # fmt: skip
    backend.put(f"{FOLDER}{written.version}/{MANIFEST}", text)
    return hashlib.sha256(text).hexdigest()


def discard_version(backend: Backend, version: str) -> None:
    """Delete what was written of a version that is in no log; gc has what stays."""
    try:
        for one in list(backend.list(f"{FOLDER}{version}/")):
            backend.delete(one.name)
    except OSError:
        pass


def _add(packer: Packer, part: str, name: str, data: bytes) -> None:
    packer.add(f"{part}/{name}", data)


def new_id() -> str:
    """What a version may be called."""
    return uuid.uuid4().hex[:16]
