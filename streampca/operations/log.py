"""The append-only log of a model store, and the removal of what no version needs any more."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from streampca.errors import InvalidInputError, NewerFormatError, SourceError, shorten
from streampca.operations.damaged_log import read_damaged
from streampca.operations.history import (
    FOLDER,
    FORMAT_VERSION,
    HEAD,
    MEND,
    REMOVE,
    Checkpoint,
    Entry,
    Head,
    History,
    Line,
    entry_name,
    now,
    read_entry,
)
from streampca.operations.stored_version import FOLDER as VERSIONS
from streampca.store.backend import STAGED, Backend
from streampca.store.checked import readable, sign
from streampca.store.places import discard

# --------------------------------------------------------------------------------------------------
# The append-only log of a model store: what was published, promoted, rolled back, removed.
#
# Entry n is ``_log/<n>.json``, created only if it is absent: of all writers at once one makes
# entry
# n, and the others look again. Every entry carries its own digest and that of the one before it,
# so
# that an altered, lost or exchanged entry is noticed. Every ``FOLD`` entries one is a checkpoint:
# it
# also holds the table of all versions. ``_head.json`` says how far the log reaches at least,
# where
# the last checkpoint is, and which version is promoted: a reader begins there, and what it reads
# does
# not grow with the log. Clocks decide nothing.
#
# Whatever is damaged is read by :mod:`streampca.operations.damaged_log`, from what is left.

ATTEMPTS = 1000  # entries of others between a look at the log and ours
FOLD = 16  # entries from one checkpoint to the next: as many requests opening takes at most

Read = Callable[[], History]


def read_history(backend: Backend, since: int | None = None) -> History:
    """The log, each entry that is read checked against its digest and the one before it.

    since : all entries behind this number are read, also those before the last checkpoint.

    Cost: 2 requests and those of at most ``FOLD`` entries. Where anything is wrong with them, all
    entries are read, and what is damaged is named in ``damage``. Raises NewerFormatError, OSError.
    """
    try:
        head = Head.read(backend)
        lines = None if head is None else _follow(backend, head, since)
    except NewerFormatError:
        raise
    except SourceError:
        lines = None
    return read_damaged(backend) if lines is None else history_of(lines)


def _follow(backend: Backend, head: Head, since: int | None) -> list[Line] | None:
    """The entries from the checkpoint on, or None where they are not a whole log."""
    start = max(head.checkpoint, 1)
    if since is not None:
        start = max(1, min(start, since + 1))
    lines: list[Line] = []
    while (text := read_entry(backend, start + len(lines))) is not None:
        line = Line.parse(text, start + len(lines), backend.place)
        if lines and line.previous != lines[-1].digest:
            return None
        if line.entry.n == head.n and head.entry not in ("", line.digest):
            return None
        lines.append(line)
    last = lines[-1].entry.n if lines else 0
    whole = start == 1 or any(line.checkpoint for line in lines)
    return lines if whole and last >= head.n else None


def history_of(lines: list[Line]) -> History:
    """The history that lines without a gap make."""
    if not lines:
        return History()
    found = [line.checkpoint for line in lines if line.checkpoint]
    last = lines[-1]
    return History(
        tuple(line.entry for line in lines), last.entry.n, last.entry.current, last.digest,
        found[-1] if found else Checkpoint(),
    )  # fmt: skip


def append(
    backend: Backend, make: Callable[[History], Mapping[str, Any] | None],
    since: int | None = None, read: Read | None = None,
) -> tuple[Entry | None, History]:  # fmt: skip
    """Commit what ``make`` returns for the log as it is: (the entry, the log before it).

    make is asked again whenever another writer was first. It may return None: nothing is to be
    done, and raise: it must not be done. Of a damaged log the entry becomes a checkpoint: what is
    left is then found by it.  since : see ``read_history``, or ``read`` in place of that.

    Raises OSError where the entry is not there, as far as can be seen. One that is there is
    committed, whatever failed after it: a caller that tried again would commit twice.
    """
    nonce = uuid.uuid4().hex
    for _ in range(ATTEMPTS):
        history = read() if read else read_history(backend, since)
        fields = make(history)
        if fields is None:
            return None, history
        if history.unsure and "current" not in fields:
            raise SourceError(history.unsure)
        n = history.n + 1
        whole = {
            "format_version": FORMAT_VERSION, "n": n, "previous": history.digest, "nonce": nonce,
            "time": now(), "current": history.current, "number": history.count, "removed": [],
            **fields,
        }  # fmt: skip
        text = _signed(history, whole)
        if _put(backend, n, text):
            line = Line.parse(text, n, backend.place)
            checkpoint = n if line.checkpoint else history.checkpoint.n
            with contextlib.suppress(OSError):  # committed; readers follow the log past its head
                tell(backend, Head(n, checkpoint, line.digest, line.entry.current))
            return line.entry, history
    raise SourceError(f"{backend.place}: the log grew {ATTEMPTS} times under our hands; try again")


def _signed(history: History, whole: Mapping[str, Any]) -> bytes:
    """An entry as it is stored: a checkpoint where it is time for one.

    A table of so many versions that no reader would take it is left out: then more entries are
    read. Raises InvalidInputError where the entry by itself is too long.
    """
    if history.damage or whole["n"] - history.checkpoint.n >= FOLD:
        text = sign({**whole, "checkpoint": _folded(history, whole)})
        if readable(text):
            return text
        if history.damage:
            raise SourceError(
                "the log is damaged, and the table of its versions is too long to be mended; "
                "restore the log from a backup"
            )
    text = sign(whole)
    if not readable(text):
        raise InvalidInputError(f"an entry of {len(text)} bytes for the log; give a shorter reason")
    return text


def _put(backend: Backend, n: int, text: bytes) -> bool:
    """Make this entry n; whether it is ours. Raises OSError where it is not there."""
    try:
        return backend.put_if_absent(entry_name(n), text) or _is_there(backend, n, text)
    except OSError:
        with contextlib.suppress(OSError):
            if _is_there(backend, n, text):
                return True
        raise


def _is_there(backend: Backend, n: int, text: bytes) -> bool:
    """Whether entry n is ours, though putting it there seemed to fail."""
    try:
        return read_entry(backend, n) == text
    except SourceError:
        return False


def _folded(history: History, whole: Mapping[str, Any]) -> dict[str, Any]:
    """What makes an entry a checkpoint.  whole : the entry."""
    fields = {name: whole[name] for name in Entry.__dataclass_fields__ if name in whole}
    entry = Entry(**{**fields, "removed": tuple(fields["removed"])})
    table = history.table.then([entry], history.current)
    serving = table.published.get(entry.current or "")
    return {"table": table.to_json(), "serving": serving and serving.row()}


def tell(backend: Backend, head: Head) -> None:
    """Write ``_head.json``."""
    backend.put(HEAD, sign({"format_version": FORMAT_VERSION, **vars(head)}))


def mend(backend: Backend) -> History:
    """Make what is damaged good, from what is left; the log before it, with what was wrong.

    Damaged entries stay where they are: a new one has the table of all versions, and says which
    files need no longer be whole. Versions that were known and have no file left are given up.
    """

    def make(history: History) -> dict[str, Any] | None:
        wrong = [name for name in history.damage if name.startswith(FOLDER)]
        found = history.n and not history.checkpoint.n and not history.digest
        if not (wrong or history.unknown or found):
            return None
        gone = [
            version for version in history.published
            if version not in history.removed
            and not any(True for _ in backend.list(f"{VERSIONS}{version}/"))
        ]  # fmt: skip
        current = None if history.current in gone else history.current
        return {
            "action": MEND, "version": "", "mended": sorted(wrong), "removed": gone,
            "current": current, "reason": f"{len(history.damage)} files were damaged",
        }  # fmt: skip

    entry, before = append(backend, make, read=lambda: read_damaged(backend, rebuild=True))
    if entry is None:
        last = Head(before.n, before.checkpoint.n, before.digest, before.current)
        tell(backend, last)
    return before


def head_number(backend: Backend) -> int:
    """A number that the log has reached; 0 where ``_head.json`` does not say."""
    try:
        return (Head.read(backend) or Head()).n
    except SourceError:
        return 0


# --------------------------------------------------------------------------------------------------
# What no version of a model store needs any more: found, condemned in the log, deleted.

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
    return name.split("/")[1] if name.startswith(VERSIONS) else ""
