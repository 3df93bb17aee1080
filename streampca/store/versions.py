"""Immutable versions of named bundles, and the log that says which of them is served.

Layout: ``streampca-store.json`` (format), ``_log/`` (see :mod:`streampca.store.log`) and
``versions/<id>/`` with one bundle in each part ("model", "state", "ledger") and ``manifest.json``,
which has the digest of every file and the record of how the version came about. Small files of all
parts lie in ``files.zip`` there (format 1 had each on its own). A version exists from the moment
that its log entry does; files without one are of an unfinished publication.

What is flushed, and when: on a disk ``files.zip``, every large file and the manifest are each
flushed before they are renamed into the version's folder, and that folder after; the log entry is
linked only then. So after loss of power an entry that is there names a manifest, and the manifest
files, that are there; a ``kill -9`` loses nothing that was written and can only end earlier.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import BusyError, InvalidInputError, SourceError
from streampca.store.backend import Backend
from streampca.store.bundle import INDEX, PACK, altered, is_bundle, read_files, write_files
from streampca.store.local import STAGED
from streampca.store.log import (
    PROMOTE,
    PUBLISH,
    REMOVE,
    ROLLBACK,
    Entry,
    History,
    append,
    mend_head,
    now,
    read_history,
)
from streampca.store.pack import Packer, unpack
from streampca.store.signed import sign, unsign

FORMAT_VERSION = 1  # of the store
MANIFESTS = (1, 2)  # formats of manifests that are read; the last is written
MARKER = "streampca-store.json"
FOLDER = "versions/"
GRACE = 24 * 3600.0  # seconds that files without a log entry are left to whoever writes them

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
        text = self.backend.get(f"{self._folder}manifest.json")
        if text is None or hashlib.sha256(text).hexdigest() != self.entry.manifest:
            raise altered(self._where, "manifest.json")
        return unsign(text, f"{self._where}/manifest.json", *MANIFESTS)

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
        get = lambda name: self._checked(f"{part}/{name}")  # noqa: E731
        return read_files(get, get(INDEX), f"{self._where}/{part}")

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
        if name not in self._packed:
            raise altered(self._where, name)
        return self._packed[name]

    @cached_property
    def _packed(self) -> dict[str, bytes]:
        return unpack(self._fetched(PACK, self.manifest["pack"]))

    def _fetched(self, name: str, told: Mapping[str, Any] | None) -> bytes:
        data = self.backend.get(self._folder + name)
        if told is None or data is None or hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise altered(self._where, name)
        return data

    @property
    def _folder(self) -> str:
        return f"{FOLDER}{self.id}/"

    @property
    def _where(self) -> str:
        return f"{self.backend.place}: version {self.number} ({FOLDER}{self.id})"


class VersionStore:
    """Versions in one backend. Any number of processes may read and write at once."""

    kind: type[StoredVersion] = StoredVersion  # of what it gives out

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    # -- reading ------------------------------------------------------------------------------

    def history(self, strict: bool = True) -> History:
        """The log, checked. Raises SourceError where no store is, or it is damaged or newer."""
        text = self.backend.get(MARKER)
        if text is None:
            raise SourceError(f"{self.backend.place}: no model store there")
        unsign(text, f"{self.backend.place}/{MARKER}", FORMAT_VERSION)
        return read_history(self.backend, strict)

    def exists(self) -> bool:
        """Whether a model store lies there, damaged or not."""
        return self.backend.get(MARKER) is not None

    def find(self, which: int | str | None = None, history: History | None = None) -> StoredVersion:
        """A version by its number, by its id or the beginning of it; None: the promoted one."""
        history = self.history() if history is None else history
        if which is None:
            if history.current is None:
                raise SourceError(
                    f"{self.backend.place} has no promoted version yet; it has "
                    f"{len(history.published)} candidates: streampca models list"
                )
            return self.kind(self.backend, history.published[history.current])
        same = [
            entry for entry in history.published.values()
            if str(which) == str(entry.number) or (len(str(which)) >= 6
            and entry.version.startswith(str(which)))
        ]  # fmt: skip
        if len(same) != 1:
            raise InvalidInputError(
                f"{self.backend.place} has no version {which!r}; expected 1 to "
                f"{len(history.published)}, or the beginning of an id"
            )
        if same[0].version in history.removed:
            raise InvalidInputError(f"version {same[0].number} was removed by gc")
        return self.kind(self.backend, same[0])

    def versions(self, history: History | None = None) -> list[StoredVersion]:
        """All that were not removed, in the order of publication."""
        history = self.history() if history is None else history
        return [
            self.kind(self.backend, entry)
            for version, entry in history.published.items()
            if version not in history.removed
        ]

    def read_current(self, read: Callable[[StoredVersion], Any]) -> Any:
        """``read(the promoted version)``; again, if another was promoted and it went meanwhile."""
        while True:
            version = self.find()
            try:
                return read(version)
            except SourceError:
                if self.history().current == version.id:
                    raise

    # -- writing ------------------------------------------------------------------------------

    def commit(
        self, parts: Mapping[str, Part], record: Mapping[str, Any], *, promote: bool = True,
        key: str = "", base: History | None = None, reason: str = "",
    ) -> StoredVersion:  # fmt: skip
        """Write a version and commit it, in one log entry that promotes it too, or does not.

        key : what was computed from what. If since ``base`` another writer has published the same
            key, that version is returned and nothing is added.
        base : the log as it was when the work began. Where another version has been promoted
            since, BusyError is raised: what was to be promoted was made for another predecessor.

        What was written is removed again where it cannot be committed. Raises OSError.
        """
        self._found()
        version = uuid.uuid4().hex[:16]
        try:
            manifest = self._write(version, parts, record)
        except BaseException:
            self._discard(version)
            raise
        twin: list[Entry] = []

        def make(history: History) -> dict[str, Any] | None:
            if version in history.removed:
                raise BusyError("gc removed what was about to be published; publish it again")
            since = history.entries[base.n :] if base is not None else ()
            if key and (same := [one for one in since if one.key == key]):
                twin[:] = same[:1]
                return None
            if promote and base is not None and history.current != base.current:
                raise BusyError(
                    "another version was promoted meanwhile; nothing was published. Try again"
                )
            return {
                "action": PUBLISH, "version": version, "manifest": manifest, "key": key,
                "number": len(history.published) + 1, "reason": reason,
                **({"current": version} if promote else {}),
            }  # fmt: skip

        try:
            entry, _ = append(self.backend, make)
        except BusyError:
            self._discard(version)
            raise
        if entry is None:
            self._discard(version)
        return self.kind(self.backend, entry or twin[0])

    def promote(self, which: int | str, reason: str = "") -> StoredVersion:
        """Serve this version from now on. Every byte of it is checked before."""
        return self._turn_to(PROMOTE, lambda history: self.find(which, history), reason)

    def rollback(self, which: int | str | None = None, reason: str = "") -> StoredVersion:
        """Serve an earlier version again: the one promoted before, or the named one.

        Without a name, versions that are damaged or removed are passed over. The damage of the
        current one is no obstacle. Raises SourceError where there is none left.
        """
        if which is None:
            return self._turn_to(ROLLBACK, self._before_current, reason)
        return self._turn_to(ROLLBACK, lambda history: self.find(which, history), reason)

    def _turn_to(
        self, action: str, choose: Callable[[History], StoredVersion], reason: str
    ) -> StoredVersion:
        chosen: list[StoredVersion] = []

        def make(history: History) -> dict[str, Any] | None:
            chosen[:] = [choose(history)]
            if chosen[0].id == history.current:
                return None
            chosen[0].verify()
            fields = {"action": action, "version": chosen[0].id, "current": chosen[0].id}
            return {**fields, "reason": reason}

        self.history(strict=False)
        append(self.backend, make, strict=False)
        return chosen[0]

    def _before_current(self, history: History) -> StoredVersion:
        for version in reversed(history.promoted[:-1]):
            found = self.kind(self.backend, history.published[version])
            if version in history.removed:
                continue
            try:
                found.verify()
            except SourceError:
                continue
            return found
        raise SourceError(f"{self.backend.place} has no earlier version to go back to")

    # -- upkeep -------------------------------------------------------------------------------

    def verify(self) -> dict[int, str]:
        """What is wrong with which version, every byte read; {} where all is well.

        Raises SourceError where the log itself is damaged.
        """
        wrong = {}
        for version in self.versions():
            try:
                version.verify()
            except SourceError as error:
                wrong[version.number] = str(error)
        return wrong

    def mend(self) -> int:
        """Write ``_head.json`` anew from a whole log; returns the number of its last entry."""
        self.history(strict=False)
        return mend_head(self.backend)

    def gc(self, keep: int = 10, *, grace: float = GRACE, dry_run: bool = False) -> list[str]:
        """Remove old versions and what unfinished publications left; the names removed.

        keep : versions that stay: the last so many published ones, the last so many promoted
            ones; the promoted version always stays.
        grace : seconds for which files of an unfinished publication are left alone.

        What goes is first said in the log, so that whoever is about to commit or promote it gets
        an error instead of a version without files.
        """
        if keep < 1:
            raise InvalidInputError(f"keep={keep}; expected 1 or more")
        objects = list(self.backend.list(""))
        ended = time.time() - grace
        young = {_owner(one.name) for one in objects if one.modified > ended}
        there = {owner for one in objects if (owner := _owner(one.name))}
        gone: set[str] = set()

        def make(history: History) -> dict[str, Any] | None:
            kept = set(list(history.published)[-keep:]) | set(history.promoted[-keep:])
            kept.add(history.current or "")
            old = set(history.published) - kept - history.removed
            orphans = there - set(history.published) - history.removed - young
            gone.clear()
            gone.update(old | orphans)
            if not gone or dry_run:
                return None
            return {"action": REMOVE, "version": "", "removed": sorted(gone)}

        _, history = append(self.backend, make)
        dead = gone | (history.removed & there)
        names = [
            one.name for one in objects
            if _owner(one.name) in dead
            or (one.name.startswith(f"{STAGED}/") and one.modified <= ended)
        ]  # fmt: skip
        for name in sorted(names) if not dry_run else ():
            self.backend.delete(name)
        return sorted(names)

    def check_place(self) -> None:
        """Refuse a place where something else is, before anything is computed for it."""
        if self.exists():
            return
        place = self.backend.place
        names = (one.name for one in self.backend.list(""))
        if any(not name.startswith(f"{STAGED}/") for name in names) and not self.exists():
            raise InvalidInputError(
                f"{place} holds something else; choose an empty place for the store"
            )
        if os.path.isfile(place):
            raise InvalidInputError(f"{place} is a file; choose an empty place for the store")

    # -- inside -------------------------------------------------------------------------------

    def _found(self) -> None:
        """See that a store is there; make one where nothing is."""
        if self.exists():
            return
        self.check_place()
        marker = {"format_version": FORMAT_VERSION, "kind": "model store", "created": now()}
        self.backend.put_if_absent(MARKER, sign(marker))

    def _write(self, version: str, parts: Mapping[str, Part], record: Mapping[str, Any]) -> str:
        """Write all files of a version; the digest of its manifest."""
        folder = f"{FOLDER}{version}/"
        packer = Packer(lambda name, data: self.backend.put(folder + name, data))
        for part, (arrays, document) in parts.items():
            write_files(partial(_add, packer, part), arrays, document)
        text = sign({
            "format_version": MANIFESTS[-1], "id": version, "created": now(), "files": packer.files,
            "pack": packer.finish(), "record": dict(record),
        })  # fmt: skip
        self.backend.put(f"{folder}manifest.json", text)
        return hashlib.sha256(text).hexdigest()

    def _discard(self, version: str) -> None:
        """Delete what was written of a version that is in no log; gc has what stays."""
        try:
            for one in list(self.backend.list(f"{FOLDER}{version}/")):
                self.backend.delete(one.name)
        except OSError:
            pass


def is_model(path: str | os.PathLike[str]) -> bool:
    """Whether a saved model, or a store of models, lies at this local path."""
    return is_bundle(path) or (Path(path) / MARKER).is_file()


def _add(packer: Packer, part: str, name: str, data: bytes) -> None:
    packer.add(f"{part}/{name}", data)


def _owner(name: str) -> str:
    """The id of the version that a file belongs to, or ""."""
    return name.split("/")[1] if name.startswith(FOLDER) else ""
