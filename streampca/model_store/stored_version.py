"""The files of one stored version, and the manifest with their digests.

Layout: ``versions/<id>/`` with one bundle for each part ("model", "state", "ledger"), and
``manifest.json`` with the digest of every file and the record of how the version was made. Small
files of all parts are in ``files.zip``.

On a disk, ``files.zip``, every large file and the manifest are flushed before they are renamed into
the version's folder, and the folder is flushed afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.model_store.history import Entry, now
from streampca.store.array_files import PACK, Packer, StoredRows, unpack
from streampca.store.backend import Backend, LocalBackend
from streampca.store.bundle import altered, read_files, write_files
from streampca.store.checked import INDEX, MOST_BYTES, check_manifest, sign_readable, unsign

FOLDER = "versions/"
MANIFEST = "manifest.json"

Arrays = Mapping[str, np.ndarray[Any, Any]]
Part = tuple[Arrays, Mapping[str, Any]]  # the arrays and the document of one bundle


@dataclass(frozen=True)
class StoredVersion:
    """One version. Every file is checked when it is read.  entry : its publication in the log."""

    backend: Backend
    entry: Entry

    @property
    def id(self) -> str:
        """Its id, the name of its directory."""
        return self.entry.version

    @property
    def number(self) -> int:
        """Its number, from 1 in the order of publication."""
        return self.entry.number

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Digest and size of every file, and the record. Raises SourceError if it is damaged."""
        text = self.backend.get(self._folder + MANIFEST, MOST_BYTES)
        if text is None or hashlib.sha256(text).hexdigest() != self.entry.manifest:
            raise altered(self._where, "manifest.json")
        whole = unsign(text, f"{self._where}/manifest.json")
        check_manifest(whole, f"{self._where}/manifest.json")
        return whole

    @property
    def record(self) -> dict[str, Any]:
        """How it was made: settings, source, lineage, cost, libraries."""
        return dict(self.manifest["record"])

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of its bundles."""
        return tuple(sorted({name.partition("/")[0] for name in self.manifest["files"]}))

    def read(self, part: str = "model") -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """(arrays, document) of one part. Raises SourceError if it is absent or altered."""
        with self._kept():
            sizes = self._sizes(part)
            get: Any = lambda name, most: self._checked(f"{part}/{name}")  # noqa: E731
            size = lambda name: sizes.get(name, 0)  # noqa: E731
            return read_files(get, size, get(INDEX, MOST_BYTES), f"{self._where}/{part}")

    def rows(self, part: str, name: str) -> StoredRows:
        """An array of one part, read on demand. Raises SourceError.

        While it is in use, ``gc`` leaves the version on a local disk.
        """
        get = lambda file: self._checked(f"{part}/{file}")  # noqa: E731
        with self._kept() as kept:
            found = StoredRows(get, self._sizes(part), name, f"{self._where}/{part}")
            weakref.finalize(found, kept.pop_all().close)
        return found

    def _sizes(self, part: str) -> dict[str, int]:
        """File of a part -> its bytes. Raises SourceError if there is no such part."""
        if part not in self.parts:
            raise SourceError(f"{self._where} has no {part}; it has {', '.join(self.parts)}")
        start = f"{part}/"
        return {
            file.removeprefix(start): one["nbytes"]
            for file, one in self.manifest["files"].items()
            if file.startswith(start)
        }

    def verify(self) -> None:
        """Read every byte. Raises SourceError for the first file that is absent or altered."""
        with self._kept():
            self._fetched(PACK, self.manifest["pack"])
            for name, file in self.manifest["files"].items():
                if not file.get("packed"):
                    self._fetched(name, file)

    def check_files(self) -> None:
        """Check that each file is there with its size, and the bytes of the small ones.

        Cost: a list of its files, and two of them. Raises SourceError for the first that is not.
        """
        self._fetched(PACK, self.manifest["pack"])
        there = {one.name: one.nbytes for one in self.backend.list(self._folder)}
        for name, file in self.manifest["files"].items():
            if not file.get("packed") and there.get(self._folder + name) != file["nbytes"]:
                raise altered(self._where, name)

    def _checked(self, name: str) -> bytes:
        file = self.manifest["files"].get(name)
        if file is None or not file.get("packed"):
            return self._fetched(name, file)
        if len(self._packed.get(name, b"")) != file["nbytes"]:
            raise altered(self._where, name)
        return bytes(self._packed[name])

    @cached_property
    def _packed(self) -> dict[str, memoryview]:
        return unpack(self._fetched(PACK, self.manifest["pack"]), f"{self._where}/{PACK}")

    def _fetched(self, name: str, file: Mapping[str, Any] | None) -> bytes:
        """The bytes of a file, with the size and digest of the manifest. Raises SourceError."""
        data = None if file is None else self.backend.get(self._folder + name, file["nbytes"])
        if file is None or data is None or len(data) != file["nbytes"]:
            raise altered(self._where, name)
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise altered(self._where, name)
        return data

    def _kept(self) -> contextlib.ExitStack:
        """A context in which gc leaves the version on a local disk."""
        stack = contextlib.ExitStack()
        if isinstance(self.backend, LocalBackend):
            lock = self.backend.reading(self._folder + MANIFEST)
            if lock is not None:
                stack.callback(lock.give_back)
        return stack

    @property
    def _folder(self) -> str:
        return f"{FOLDER}{self.id}/"

    @property
    def _where(self) -> str:
        return f"{self.backend.place}: version {self.number} ({FOLDER}{self.id})"


@dataclass(frozen=True)
class TextOptions:
    """The files of a version that is being written, without the manifest.

    files : name -> digest and size.  pack : digest and size of the archive.
    """

    version: str
    files: Mapping[str, Any]
    pack: Mapping[str, Any]


def write_parts(backend: Backend, version: str, parts: Mapping[str, Part]) -> TextOptions:
    """Write all files of a version except the manifest. Raises OSError."""
    folder = f"{FOLDER}{version}/"
    packer = Packer(lambda name, data: backend.put(folder + name, data))
    for part, (arrays, document) in parts.items():
        write_files(partial(_add, packer, part), arrays, document)
    pack = packer.finish()
    return TextOptions(version, packer.files, pack)


def write_manifest(
    backend: Backend, written: TextOptions, record: Mapping[str, Any], entry: Mapping[str, Any]
) -> str:
    """Write the manifest of a version, its last file. Returns its digest.

    entry : the coming log entry, from which the log can be restored if it is lost.
    """
    text = sign_readable(
        {
            "id": written.version,
            "created": now(),
            "files": written.files,
            "pack": written.pack,
            "record": dict(record),
            "log": dict(entry),
        },
        f"the record of version {written.version}",
    )
    backend.put(f"{FOLDER}{written.version}/{MANIFEST}", text)
    return hashlib.sha256(text).hexdigest()


def discard_version(backend: Backend, version: str) -> None:
    """Delete the files of a version that is in no log; gc removes what remains."""
    try:
        for one in list(backend.list(f"{FOLDER}{version}/")):
            backend.delete(one.name)
    except OSError:
        pass


def _add(packer: Packer, part: str, name: str, data: bytes) -> None:
    packer.add(f"{part}/{name}", data)


def new_id() -> str:
    """A new random id for a version."""
    return uuid.uuid4().hex[:16]
