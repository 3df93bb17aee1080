"""The append-only log of a model store: what was published, promoted, rolled back, removed.

Entry n is ``_log/<n>.json``, created only if it is absent: of all writers at once one makes entry
n, and the others look again. Every entry carries its own digest and that of the one before it, so
that an altered, lost or exchanged entry is noticed. ``_head.json`` says how far the log reaches
at least; without it a lost last entry could not be seen. Clocks decide nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streampca.errors import SourceError
from streampca.store.backend import Backend
from streampca.store.checked import check_entry, check_number, check_served
from streampca.store.signed import MOST_BYTES, sign, unsign

FOLDER = "_log/"
HEAD = "_head.json"
FORMAT_VERSION = 1
MOST_HEAD = 64 << 10
ATTEMPTS = 1000  # entries of others between a look at the log and ours
NUMBERED = re.compile(FOLDER + r"(\d{20})\.json")
PUBLISH, PROMOTE, ROLLBACK, REMOVE = "publish", "promote", "rollback", "remove"


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    n : its number, from 1.  action : what was done.  version : the id that it was done to.
    current : the id of the promoted version from here on, or None.  removed : ids that ``gc``
    takes away.  number : of a published version, from 1.  manifest : digest of its manifest.
    key : what was computed from what, so that the same is not published twice.
    """

    n: int
    action: str
    version: str
    current: str | None
    time: str
    reason: str = ""
    number: int = 0
    manifest: str = ""
    key: str = ""
    removed: tuple[str, ...] = ()


class History:
    """The log as it was read, and what follows from it."""

    def __init__(self, entries: tuple[Entry, ...], digest: str) -> None:
        self.entries, self.digest = entries, digest

    @property
    def n(self) -> int:
        """Number of the last entry."""
        return len(self.entries)

    @property
    def current(self) -> str | None:
        """The id of the promoted version."""
        return self.entries[-1].current if self.entries else None

    @cached_property
    def published(self) -> dict[str, Entry]:
        """The entry of every version by its id, in the order of publication."""
        return {one.version: one for one in self.entries if one.action == PUBLISH}

    @cached_property
    def removed(self) -> frozenset[str]:
        """Ids that gc has taken away, published or not."""
        return frozenset(version for one in self.entries for version in one.removed)

    @cached_property
    def promoted(self) -> tuple[str, ...]:
        """Promoted ids up to the current one, the way that rolling back goes."""
        stack: list[str] = []
        for before, one in zip((None, *self.entries), self.entries, strict=False):
            if one.current is None or (before is not None and one.current == before.current):
                continue
            if one.action == ROLLBACK and one.current in stack:
                del stack[stack.index(one.current) + 1 :]
            else:
                stack = [version for version in stack if version != one.current]
                stack.append(one.current)
        return tuple(stack)


def read_history(backend: Backend, strict: bool = True) -> History:
    """All entries, each checked against its digest and the one before it.

    strict : refuse a log that is shorter than ``_head.json`` says, or a damaged ``_head.json``.
    Raises SourceError where an entry is absent, damaged or of a newer format.
    """
    found = (NUMBERED.fullmatch(one.name) for one in backend.list(FOLDER))
    numbers = sorted(int(one[1]) for one in found if one)
    last = max(_told(backend) if strict else 0, numbers[-1] if numbers else 0)
    digest, entries = "", []
    for n in range(1, last + 1):
        name = _name(n)
        text = backend.get(name, MOST_BYTES)
        if text is None:
            raise SourceError(
                f"{backend.place}: {name} is absent, and the log reaches {last}. Restore it from a "
                "backup"
            )
        whole = unsign(text, f"{backend.place}/{name}", FORMAT_VERSION)
        check_entry(whole, f"{backend.place}/{name}")
        if whole["n"] != n or whole["previous"] != digest:
            raise SourceError(
                f"{backend.place}: {name} does not follow the entry before it; restore the log "
                "from a backup"
            )
        digest = hashlib.sha256(text).hexdigest()
        entries.append(_entry(whole))
    check_served(entries, backend.place)
    return History(tuple(entries), digest)


def append(
    backend: Backend, make: Callable[[History], Mapping[str, Any] | None], strict: bool = True
) -> tuple[Entry | None, History]:
    """Commit what ``make`` returns for the log as it is: (the entry, the log before it).

    make is asked again whenever another writer was first. It may return None: nothing is to be
    done, and raise: it must not be done.
    """
    nonce = uuid.uuid4().hex
    for _ in range(ATTEMPTS):
        history = read_history(backend, strict)
        fields = make(history)
        if fields is None:
            return None, history
        n = history.n + 1
        whole = {
            "format_version": FORMAT_VERSION, "n": n, "previous": history.digest, "nonce": nonce,
            "time": now(), "current": history.current, "removed": [], **fields,
        }  # fmt: skip
        text = sign(whole)
        if backend.put_if_absent(_name(n), text) or backend.get(_name(n)) == text:
            _tell(backend, n)
            return _entry(whole), history
    raise SourceError(f"{backend.place}: the log grew {ATTEMPTS} times under our hands; try again")


def now() -> str:
    """UTC, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _entry(whole: Mapping[str, Any]) -> Entry:
    fields = {name: whole[name] for name in Entry.__dataclass_fields__ if name in whole}
    return Entry(**{**fields, "removed": tuple(fields["removed"])})


def _name(n: int) -> str:
    return f"{FOLDER}{n:020d}.json"


def _told(backend: Backend) -> int:
    """How far ``_head.json`` says that the log reaches at least."""
    try:
        text = backend.get(HEAD, MOST_HEAD)
        if text is None:
            return 0
        whole = unsign(text, f"{backend.place}/{HEAD}", FORMAT_VERSION)
        return check_number(whole.get("n"), f"{backend.place}/{HEAD}: n")
    except SourceError as error:
        raise SourceError(
            f"{error}. It can be made again from the log: streampca models verify --mend"
        ) from None


def _tell(backend: Backend, n: int) -> None:
    backend.put(HEAD, sign({"format_version": FORMAT_VERSION, "n": n}))


def mend_head(backend: Backend) -> int:
    """Write ``_head.json`` anew from the log, which must be whole; returns where it ends."""
    n = read_history(backend, strict=False).n
    _tell(backend, n)
    return n
