"""Immutable versions of named bundles, and the log that says which of them is served.

Layout: ``streampca-store.json`` (format), ``_log/`` (see :mod:`streampca.store.log`) and
``versions/<id>/`` (see :mod:`streampca.store.stored_version`). A version exists from the moment
that its log entry does; files without one are of an unfinished publication.

The log entry is linked only when every file of the version is flushed. So after loss of power an
entry that is there names a manifest, and the manifest files, that are there; a ``kill -9`` loses
nothing that was written and can only end earlier.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from streampca.errors import BusyError, InvalidInputError, SourceError
from streampca.store.backend import Backend
from streampca.store.bundle import is_bundle
from streampca.store.garbage import GRACE, collect_garbage
from streampca.store.local import STAGED
from streampca.store.log import (
    MOST_HEAD,
    PROMOTE,
    PUBLISH,
    ROLLBACK,
    Entry,
    History,
    append,
    mend_head,
    now,
    read_history,
)
from streampca.store.signed import sign, unsign
from streampca.store.stored_version import Part, StoredVersion, discard_version, write_version

FORMAT_VERSION = 1
MARKER = "streampca-store.json"


class VersionStore:
    """Versions in one backend. Any number of processes may read and write at once."""

    kind: type[StoredVersion] = StoredVersion  # of what it gives out

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    # -- reading ------------------------------------------------------------------------------

    def history(self, strict: bool = True) -> History:
        """The log, checked. Raises SourceError where no store is, or it is damaged or newer."""
        text = self.backend.get(MARKER, MOST_HEAD)
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
            manifest = write_version(self.backend, version, parts, record)
        except BaseException:
            discard_version(self.backend, version)
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
            discard_version(self.backend, version)
            raise
        if entry is None:
            discard_version(self.backend, version)
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
        dry_run : only name them.
        """
        return collect_garbage(self.backend, keep, grace=grace, dry_run=dry_run)

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


def is_model(path: str | os.PathLike[str]) -> bool:
    """Whether a saved model, or a store of models, lies at this local path."""
    return is_bundle(path) or (Path(path) / MARKER).is_file()
