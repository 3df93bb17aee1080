"""Immutable versions of named bundles, and the log that says which of them is served.

Layout: ``streampca-store.json`` (format), ``_log/`` (see :mod:`streampca.model_store.log`) and
``versions/<id>/`` (see :mod:`streampca.model_store.stored_version`). A version exists once its log
entry exists, which is created only after all its files are flushed: after loss of power an existing
entry names existing files, and a ``kill -9`` loses nothing that was committed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Generic, TypeVar

from streampca.errors import (
    BusyError,
    DamagedSourceError,
    InvalidInputError,
    NewerFormatError,
    SourceError,
    hide_secrets,
    shorten,
)
from streampca.model_store.aliases import aliased, check_alias, with_alias, without_alias
from streampca.model_store.damaged_log import read_damaged
from streampca.model_store.garbage import GRACE, Retention, collect_garbage, sweep
from streampca.model_store.history import (
    HEAD,
    MOST_HEAD,
    PROMOTE,
    PUBLISH,
    ROLLBACK,
    Entry,
    History,
    is_number,
    now,
    run_id,
    who,
)
from streampca.model_store.log import append, head_number, mend, read_history
from streampca.model_store.stored_version import FOLDER as VERSIONS
from streampca.model_store.stored_version import (
    Part,
    StoredVersion,
    discard_version,
    new_id,
    write_manifest,
    write_parts,
)
from streampca.store.backend import STAGED, Backend, Listed, LocalBackend
from streampca.store.checked import sign, unsign

MARKER = "streampca-store.json"
Record = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
OneVersion = TypeVar("OneVersion", bound=StoredVersion)
Answer = TypeVar("Answer")


class VersionStore(Generic[OneVersion]):
    """Versions in one backend. Any number of processes may read and write at once."""

    def __init__(self, backend: Backend, kind: Any = StoredVersion) -> None:
        self.backend = backend
        self.kind: type[OneVersion] = kind  # of the versions that it returns

    def history(self) -> History:
        """The log. Of a damaged log, what is left; ``damage`` names the rest.

        Raises SourceError if there is no store, NewerFormatError.
        """
        wrong = self._check_marker()
        history = read_history(self.backend)
        return replace(history, damage={**history.damage, **wrong}) if wrong else history

    def exists(self) -> bool:
        """Whether there is a model store, damaged or not."""
        return any(_lies(self.backend, name) for name in (MARKER, HEAD))

    def find(self, which: int | str | None = None, history: History | None = None) -> OneVersion:
        """A version by its number, its id, the beginning of its id, or an alias; None: the promoted
        one.

        Raises InvalidInputError for an unknown or removed version, SourceError.
        """
        history = self.history() if history is None else history
        if which is None:
            return self.kind(self.backend, self._promoted(history))
        same = [
            entry
            for entry in history.published.values()
            if str(which) == str(entry.number)
            or (len(str(which)) >= 6 and entry.version.startswith(str(which)))
        ]
        gone = not same and is_number(str(which), history.count)
        if gone or (same and same[0].version in history.removed):
            raise InvalidInputError(f"version {which} was removed by gc{_unread(history)}")
        if not same and str(which) in history.aliases:
            return self._aliased(str(which), history)
        if len(same) != 1:
            aliases = f", or {', '.join(history.aliases)}" if history.aliases else ""
            raise InvalidInputError(
                f"{self.backend.place} has no version {which!r}; expected 1 to "
                f"{history.count}, or the beginning of an id{aliases}{_unread(history)}"
            )
        return self.kind(self.backend, same[0])

    def aliases(self, history: History | None = None) -> dict[str, OneVersion]:
        """The version of each alias, by name. Raises SourceError."""
        history = self.history() if history is None else history
        return {name: self._aliased(name, history) for name in sorted(history.aliases)}

    def entries(self, last: int | None = None) -> tuple[Entry, ...]:
        """Who did what, when and why: the entries of the log, or the last so many of them.

        Of a damaged log, those that are left. Cost: a request for each. Raises SourceError.
        """
        self._check_marker()
        since = 0 if last is None else max(0, self.history().n - last)
        return read_history(self.backend, since).since(since)

    def versions(self, history: History | None = None) -> list[OneVersion]:
        """All versions that were not removed, in the order of publication."""
        history = self.history() if history is None else history
        return [
            self.kind(self.backend, entry)
            for version, entry in history.published.items()
            if version not in history.removed
        ]

    def read_current(
        self, read: Callable[[OneVersion], Answer], which: int | str | None = None
    ) -> Answer:
        """``read(the promoted version)``, repeated if that fails and another was promoted.

        which : see ``find``; an alias may move meanwhile, too.
        """
        while True:
            version = self.find(which)
            try:
                return read(version)
            except SourceError:
                if self.find(which).id == version.id:
                    raise

    # -- writing ------------------------------------------------------------------------------

    def commit(
        self,
        parts: Mapping[str, Part],
        record: Record,
        *,
        promote: bool = True,
        key: str = "",
        base: History | None = None,
        reason: str = "",
        version: str | None = None,
        just_before: Callable[[], None] | None = None,
    ) -> OneVersion:
        """Write a version and commit it in one log entry, which also promotes it if ``promote``.

        record : the record, or a function that returns it for a version number; called again if
            another writer was first.
        key : identifies data and settings. If another writer has published the same key since
            ``base``, that version is returned and nothing is added.
        base : the log when the work began. If another version was promoted since, BusyError is
            raised: this one was made to follow another predecessor.
        version : the id, from ``new_id``, if the caller must know it.
        just_before : called when everything except the log entry is written.

        If the version cannot be committed, its files are removed again. Raises OSError.
        """
        self._found()
        version, reason = version or new_id(), hide_secrets(reason)
        with self.backend.claim(version) if isinstance(self.backend, LocalBackend) else _free():
            return self._commit(version, parts, record, promote, key, base, reason, just_before)

    def _commit(
        self,
        version: str,
        parts: Mapping[str, Part],
        record: Record,
        promote: bool,
        key: str,
        base: History | None,
        reason: str,
        just_before: Callable[[], None] | None,
    ) -> OneVersion:
        began = head_number(self.backend) if base is None else base.n
        try:
            written = write_parts(self.backend, version, parts)
        except BaseException:
            discard_version(self.backend, version)
            raise
        twin: list[Entry] = []
        manifest = dict[tuple[Any, ...], str]()

        def make(history: History) -> dict[str, Any] | None:
            if version in history.removed:
                raise BusyError("gc removed what was about to be published; publish it again")
            since = history.since(base.n) if base is not None else ()
            if key and (same := [one for one in since if one.key == key]):
                twin[:] = same[:1]
                return None
            if promote and base is not None and history.current != base.current:
                raise BusyError(
                    "another version was promoted meanwhile; nothing was published. Try again"
                )
            current = version if promote else history.current
            log = {
                "n": history.n + 1,
                "number": history.count + 1,
                "current": current,
                "key": key,
                "reason": reason,
                "by": who(),
                "run": run_id(),
                "aliases": history.aliases,
            }
            place = (log["n"], log["number"], current)
            if place not in manifest:  # the first time, and if another writer was first
                manifest.clear()
                ours = record(history.count + 1) if callable(record) else record
                manifest[place] = write_manifest(self.backend, written, ours, log)
            if just_before is not None:
                just_before()
            return {
                "action": PUBLISH,
                "version": version,
                "manifest": manifest[place],
                "key": key,
                "number": log["number"],
                "reason": reason,
                **({"current": version} if promote else {}),
            }

        try:
            entry, _ = append(self.backend, make, since=began)
        except (BusyError, InvalidInputError):  # the latter from the caller's functions
            discard_version(self.backend, version)
            raise
        if entry is None:
            discard_version(self.backend, version)
        return self.kind(self.backend, entry or twin[0])

    def promote(self, which: int | str, reason: str = "") -> OneVersion:
        """Serve a version from now on, after every byte of it was checked.

        Raises InvalidInputError, SourceError.
        """
        return self._turn_to(PROMOTE, lambda history: self.find(which, history), reason)

    def rollback(self, which: int | str | None = None, reason: str = "") -> OneVersion:
        """Serve an earlier version again: the one promoted before, or the named one.

        Without a name, damaged and removed versions are skipped. The current version may be
        damaged. Raises SourceError if there is no earlier version.
        """
        if which is None:
            return self._turn_to(ROLLBACK, self._before_current, reason)
        return self._turn_to(ROLLBACK, lambda history: self.find(which, history), reason)

    def _turn_to(
        self, action: str, choose: Callable[[History], OneVersion], reason: str
    ) -> OneVersion:
        chosen: list[OneVersion] = []

        def make(history: History) -> dict[str, Any] | None:
            chosen[:] = [choose(history)]
            if chosen[0].id == history.current and not history.unsure:
                return None
            chosen[0].verify()
            fields = {"action": action, "version": chosen[0].id, "current": chosen[0].id}
            return {**fields, "reason": reason}

        self._check_marker()
        append(self.backend, make)
        return chosen[0]

    def _before_current(self, history: History) -> OneVersion:
        for version in reversed([one for one in history.promoted if one != history.current]):
            entry = history.published.get(version)
            if entry and version not in history.removed and self.is_whole(entry):
                return self.kind(self.backend, entry)
        place = self.backend.place
        others = {*history.published} - history.removed - {history.current}
        hint = f"; another can be promoted: streampca models list {place}" if others else ""
        raise SourceError(f"{place} has no earlier version to go back to{hint}")

    def alias(self, name: str, which: int | str, reason: str = "") -> OneVersion:
        """Give a version an alias, which the version that had it loses.

        name : such as "champion": letters, digits and ``_.-``, no digit first. Names that could be
            those of a version (``v3``, ``latest``, the beginning of an id) are refused.
        which : see ``find``.

        ``gc`` removes no version that has an alias. Raises InvalidInputError, SourceError.
        """
        check_alias(name)
        chosen: list[OneVersion] = []

        def make(history: History) -> Mapping[str, Any] | None:
            chosen[:] = [self.find(which, history)]
            fields = with_alias(history, name, chosen[0].id, self.backend.place)
            return fields and {**fields, "reason": reason}

        self._check_marker()
        append(self.backend, make)
        return chosen[0]

    def remove_alias(self, name: str, reason: str = "") -> None:
        """Remove an alias; its version stays. Raises InvalidInputError, SourceError."""
        place = self.backend.place
        self._check_marker()
        append(self.backend, lambda log: {**without_alias(log, name, place), "reason": reason})

    # -- upkeep -------------------------------------------------------------------------------

    def verify(self) -> dict[int | str, str]:
        """Read every byte of the log and of all versions. Returns what is wrong, {} if nothing is.

        By the number of a version, or the name of a file of the log.
        """
        damage = self._check_marker()
        history = read_damaged(self.backend)
        wrong: dict[int | str, str] = dict((damage | history.damage).items())
        for unknown in history.table.unknown:
            if any(True for _ in self.backend.list(f"{VERSIONS}{unknown}/")):
                name = f"{VERSIONS}{unknown}"
                wrong[name] = f"{self.backend.place}: no intact file describes {name}"
        for name in history.aliases:
            try:
                self._aliased(name, history)
            except SourceError as error:
                wrong[f"alias {name}"] = str(error)
        for version in self.versions(history):
            try:
                version.verify()
            except SourceError as error:
                wrong[version.number] = str(error)
        return wrong

    def mend(self) -> dict[str, str]:
        """Repair the log from what is left of it and from the versions. Returns the damage by name.

        Versions are not changed. The promoted version stays the same if it is known; otherwise it
        is the last one that is known to have been promoted.
        """
        wrong = self._check_marker()
        before = mend(self.backend)
        if wrong:
            self.backend.put(MARKER, _marker())
        return {**wrong, **before.damage}

    def gc(
        self,
        keep: int = 10,
        *,
        grace: float = GRACE,
        dry_run: bool = False,
        reason: str = "",
        coming: bool = False,
    ) -> list[Listed]:
        """Remove old versions, their files outside the store, and unfinished publications.

        keep : how many of the last published versions stay, and of the last promoted ones. These
            stay as well: the promoted version, those with an alias, the one to which ``rollback``
            would go, and on a local disk any that a process reads.
        grace : seconds for which the files of an unfinished publication are not touched.
        dry_run : remove nothing.  coming : as if one more version had been published before.

        Returns the removed files, with their sizes. Cost: a list of all files, and the bytes of the
        version to which ``rollback`` would go, if others may go. Raises SourceError if the log is
        damaged.
        """
        retention = Retention(keep, cache(self.is_whole), new_id() if coming else "")
        return collect_garbage(
            self.backend, retention, self._outside, grace=grace, dry_run=dry_run, reason=reason
        )

    def check_place(self) -> None:
        """Refuse a place that holds something else, before any work. Raises InvalidInputError."""
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

    def sweep(self) -> list[str]:
        """Remove what killed publications left in a local store. Returns their ids.

        In an object store killed publications look like slow ones; there ``gc`` removes them after
        a day. Nothing is removed while the log is damaged.
        """
        if not isinstance(self.backend, LocalBackend) or not self.exists():
            return []
        return sweep(self.backend, self.history)

    def _outside(self, removed: list[Entry]) -> list[str]:
        """Local paths outside the store that belong to removed versions."""
        return []

    # -- inside -------------------------------------------------------------------------------

    def _promoted(self, history: History) -> Entry:
        """The publication of the promoted version. Raises SourceError if it is not known."""
        if history.unsure:
            raise SourceError(history.unsure)
        if history.current is None and {*history.promoted} - history.removed:
            raise SourceError(
                f"{self.backend.place}: the promoted version was lost, and removed from the "
                "log when that was mended. Go back: streampca models rollback"
            )
        if history.current is None:
            raise SourceError(
                f"{self.backend.place} has no promoted version yet; it has "
                f"{len(history.published)} candidates: streampca models list"
            )
        entry = history.serving()
        if entry is None and not (history.damage or history.unknown):
            raise DamagedSourceError(
                f"{self.backend.place}: entry {history.n} of the log serves {history.current}, "
                "which was never published. Go back: streampca models rollback"
            )
        if entry is None:
            raise SourceError(
                f"{self.backend.place}: the promoted version {VERSIONS}{history.current} cannot be "
                f"found{_unread(history)}. Go back: streampca models rollback"
            )
        return entry

    def _aliased(self, name: str, history: History) -> OneVersion:
        """The version with an alias. Raises SourceError if it is not known."""
        entry = aliased(history, name, f"{self.backend.place}{_unread(history)}")
        return self.kind(self.backend, entry)

    def is_whole(self, entry: Entry) -> bool:
        """Whether every byte of a published version is as it was written."""
        try:
            self.kind(self.backend, entry).verify()
        except SourceError:
            return False
        return True

    def _check_marker(self) -> dict[str, str]:
        """What is wrong with the file that marks a store, by its name; {} if nothing is."""
        where = f"{self.backend.place}/{MARKER}"
        try:
            text = self.backend.get(MARKER, MOST_HEAD)
            if text is not None:
                unsign(text, where)
                return {}
        except NewerFormatError:
            raise
        except SourceError as error:
            return {MARKER: f"{error}, or write it anew: streampca models verify --mend"}
        if not _lies(self.backend, HEAD):
            raise SourceError(f"{self.backend.place}: no model store there")
        return {MARKER: f"{where} is absent. Write it anew: streampca models verify --mend"}

    def _found(self) -> None:
        """Make a store if there is none."""
        if self.exists():
            return
        self.check_place()
        self.backend.put_if_absent(MARKER, _marker())


_free = contextlib.nullcontext


def _lies(backend: Backend, name: str) -> bool:
    """Whether something has that name, even a link or a file that is too long."""
    try:
        return backend.get(name, MOST_HEAD) is not None
    except SourceError:
        return True


def _marker() -> bytes:
    return sign({"kind": "model store", "created": now()})


def _unread(history: History) -> str:
    """The damaged files of a store, for messages that something is not there."""
    names = sorted({*history.damage, *(f"{VERSIONS}{one}" for one in history.unknown)})
    return f" (damaged: {shorten(names)})" if names else ""
