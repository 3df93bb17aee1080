"""What may go of a model store: old versions, and files that no version needs."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.model_store.history import PUBLISH, REMOVE, Entry, History, now
from streampca.model_store.log import append
from streampca.model_store.stored_version import FOLDER as VERSIONS
from streampca.model_store.stored_version import MANIFEST
from streampca.store.backend import (
    CLAIM,
    STAGED,
    Backend,
    Listed,
    LocalBackend,
    claims,
    disclaim,
    remove_folder,
)
from streampca.store.places import discard

GRACE = 24 * 3600.0  # seconds for which files without a log entry are not touched


@dataclass(frozen=True)
class Retention:
    """Which versions stay.

    keep : how many of the last published ones stay, and of the last promoted ones.  is_whole :
    of a publication, whether every byte of its version is as it was written.  coming : the id of a
    version that is about to be published and promoted, or "".
    """

    keep: int
    is_whole: Callable[[Entry], bool]
    coming: str = ""

    def old(self, history: History) -> set[str]:
        """Ids of the versions that may go.

        The served version stays, those with an alias, and the one to which a rollback would go:
        the last promoted one before it that is whole.  Cost: reads that one, if any may go.
        """
        there = [name for name in history.published if name not in history.removed]
        promoted = [name for name in history.promoted if name in {*there}]
        kept = {*there[-self.keep :], *promoted[-self.keep :], *history.aliases.values()}
        old = {*there} - kept - {history.current}
        earlier = [name for name in promoted if name != history.current]
        while old.intersection(earlier):
            if self.is_whole(history.published[last := earlier.pop()]):
                old.discard(last)
                break
        return old

    def after(self, history: History) -> History:
        """The log once the coming version is published."""
        if not self.coming:
            return history
        n, number = history.n + 1, history.count + 1
        entry = Entry(n, PUBLISH, self.coming, self.coming, now(), number=number)
        return replace(history, entries=(*history.entries, entry), n=n, current=self.coming)


def collect_garbage(
    backend: Backend,
    retention: Retention,
    outside: Callable[[list[Entry]], list[str]],
    *,
    grace: float = GRACE,
    dry_run: bool = False,
    reason: str = "",
) -> list[Listed]:
    """Remove old versions and unfinished publications. Returns the removed files.

    grace, dry_run, reason : see :meth:`VersionStore.gc`.
    outside : returns local paths outside the store to be removed with these versions; called while
        the versions still exist.

    Removals are first recorded in the log: a process that is about to commit or promote such a
    version gets an error instead of a version without files. A version in a local store that is
    being read stays. Raises InvalidInputError, OSError.
    """
    if retention.keep < 1:
        raise InvalidInputError(f"keep={retention.keep}; expected 1 or more")
    local = backend if isinstance(backend, LocalBackend) else None
    objects = list(backend.list(""))
    ended = time.time() - grace
    alive = {*claims(local, alive=True)} if local else set()  # whatever a clock says
    young = {_owner(one.name) for one in objects if one.modified > ended} | alive
    there = {owner for one in objects if (owner := _owner(one.name))}
    gone: set[str] = set()

    def make(history: History) -> dict[str, Any] | None:
        if history.damage:
            raise SourceError(
                f"{backend.place} is damaged ({shorten(sorted(history.damage))}): nothing is "
                "removed from it until it is mended: streampca models verify --mend"
            )
        known = {*history.published, *history.removed, *history.table.unknown}
        old = retention.old(retention.after(history))
        gone.clear()
        gone.update((old - _being_read(local, old)) | (there - known - young))
        if not gone or dry_run:
            return None
        return {"action": REMOVE, "version": "", "removed": sorted(gone), "reason": reason}

    _, history = append(backend, make)
    dead = gone | (history.removed & there)
    removed = [history.published[one] for one in dead if one in history.published]
    places = [_about(place) for place in sorted(outside(removed))]
    files = [
        one
        for one in objects
        if one.name.startswith(f"{STAGED}/")
        and one.modified <= ended
        and one.name.removeprefix(f"{STAGED}/").removesuffix(CLAIM) not in alive
    ]
    files += [one for one in objects if _owner(one.name) in dead - _being_read(local, dead)]
    files.sort(key=lambda one: one.name)
    if not dry_run:
        for place in places:
            discard(place.name)
        for version, mine in itertools.groupby(files, key=lambda one: _owner(one.name)):
            with _alone(local, version) as free:
                for one in mine if free else ():
                    backend.delete(one.name)
    return files + places


def sizes_of_versions(files: Iterable[Listed]) -> dict[str, int]:
    """Id of each version that has some of these files -> their bytes."""
    sizes: dict[str, int] = {}
    for one in files:
        if owner := _owner(one.name):
            sizes[owner] = sizes.get(owner, 0) + one.nbytes
    return sizes


def sweep(local: LocalBackend, read: Callable[[], History]) -> list[str]:
    """Remove what killed publications left. Returns their ids; see :meth:`VersionStore.sweep`."""
    dead = claims(local, alive=False)
    history = read() if dead else History()
    if history.damage:
        return []
    for version in dead:
        if version not in {*history.published, *history.table.unknown}:
            remove_folder(local, f"{VERSIONS}{version}")
        disclaim(local, version)
    return dead


def _owner(name: str) -> str:
    """The id of the version to which a file belongs, or ""."""
    return name.split("/")[1] if name.startswith(VERSIONS) else ""


def _alone(local: LocalBackend | None, version: str) -> contextlib.AbstractContextManager[bool]:
    """A context that yields whether no process reads a version; none begins to within it."""
    if local is None or not version:
        return contextlib.nullcontext(True)
    return local.unread(f"{VERSIONS}{version}/{MANIFEST}")


def _being_read(local: LocalBackend | None, versions: set[str]) -> set[str]:
    """Those of the versions that some process reads."""
    found = set()
    for version in versions:
        with _alone(local, version) as free:
            if not free:
                found.add(version)
    return found


def _about(place: str) -> Listed:
    """Path, size and time of a file or folder outside the store."""
    nbytes, modified = 0, 0.0
    for folder, _, names in os.walk(place):
        for name in (".", *names):
            with contextlib.suppress(OSError):  # another process has removed it
                about = os.lstat(os.path.join(folder, name))
                nbytes += about.st_size * (name != ".")
                modified = max(modified, about.st_mtime)
    return Listed(place, nbytes, modified)
