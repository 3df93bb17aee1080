"""What no version of a model store needs any more: found, condemned in the log, deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.store.backend import Backend
from streampca.store.history import REMOVE, Entry, History
from streampca.store.local import STAGED
from streampca.store.log import append
from streampca.store.places import discard
from streampca.store.stored_version import FOLDER

Outside = Callable[[list[Entry]], list[str]]
GRACE = 24 * 3600.0  # seconds that files without a log entry are left to whoever writes them


def collect_garbage(
    backend: Backend, keep: int, *, grace: float = GRACE, dry_run: bool = False,
    outside: Outside | None = None,
) -> list[str]:  # fmt: skip
    """Remove old versions and what unfinished publications left; the names removed.

    keep, grace, dry_run : see :meth:`streampca.store.VersionStore.gc`.
    outside : local paths beside the store that go with these versions; asked while the versions
        are there.

    What goes is first said in the log, so that whoever is about to commit or promote it gets
    an error instead of a version without files. Raises InvalidInputError, OSError.
    """
    if keep < 1:
        raise InvalidInputError(f"keep={keep}; expected 1 or more")
    objects = list(backend.list(""))
    ended = time.time() - grace
    young = {_owner(one.name) for one in objects if one.modified > ended}
    there = {owner for one in objects if (owner := _owner(one.name))}
    gone: set[str] = set()

    def make(history: History) -> dict[str, Any] | None:
        if history.damage:
            raise SourceError(
                f"{backend.place} is damaged ({shorten(sorted(history.damage))}): nothing is "
                "removed from it before it is mended: streampca models verify --mend"
            )
        kept = set(list(history.published)[-keep:]) | set(history.promoted[-keep:])
        kept.add(history.current or "")
        old = set(history.published) - kept - history.removed
        orphans = (
            there - set(history.published) - history.removed - young - set(history.table.unknown)
        )
        gone.clear()
        gone.update(old | orphans)
        if not gone or dry_run:
            return None
        return {"action": REMOVE, "version": "", "removed": sorted(gone)}

    _, history = append(backend, make)
    dead = gone | (history.removed & there)
    names = [
        one.name for one in objects
        if _owner(one.name) in dead
        or (one.name.startswith(f"{STAGED}/") and one.modified <= ended)
    ]  # fmt: skip
    left = [history.published[one] for one in dead if one in history.published]
    places = [] if outside is None else outside(left)
    if not dry_run:
        for place in places:
            discard(place)
        for name in sorted(names):
            backend.delete(name)
    return sorted(names) + sorted(places)


def _owner(name: str) -> str:
    """The id of the version that a file belongs to, or ""."""
    return name.split("/")[1] if name.startswith(FOLDER) else ""
