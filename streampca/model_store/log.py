"""The append-only log of a model store: what was published, promoted, removed, by whom and why."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from streampca.errors import InvalidInputError, NewerFormatError, SourceError, hide_secrets
from streampca.model_store.damaged_log import read_damaged
from streampca.model_store.history import (
    FOLDER,
    HEAD,
    MEND,
    Checkpoint,
    Entry,
    Head,
    History,
    Line,
    entry_name,
    now,
    read_entry,
    run_id,
    who,
)
from streampca.model_store.stored_version import FOLDER as VERSIONS
from streampca.store.backend import Backend
from streampca.store.checked import readable, sign

logger = logging.getLogger(__name__)

# Entry n is ``_log/<n>.json``, created only if it is absent: of several concurrent writers one
# creates entry n, and the others read the log again. Every entry carries its own digest and that of
# the entry before it, so an altered, lost or exchanged entry is noticed. Every ``FOLD``-th entry is
# a checkpoint, which also holds the table of all versions. ``_head.json`` gives a lower bound of
# the last entry, the last checkpoint, and the promoted version. Readers start there, so what they
# read does not grow with the log. Nothing depends on clocks.
#
# A damaged log is read by :mod:`streampca.model_store.damaged_log`, from what is left.

ATTEMPTS = 1000  # to append an entry while others append theirs
FOLD = 16  # entries between checkpoints, and the most requests for opening the log

Read = Callable[[], History]


def read_history(backend: Backend, since: int | None = None) -> History:
    """The log. Each entry is checked against its digest and the entry before it.

    since : read all entries after this number, even before the last checkpoint.

    Cost: 2 requests, and those for at most ``FOLD`` entries. If any of them is wrong, all entries
    are read, and ``damage`` names what is damaged. Raises NewerFormatError, OSError.
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
    """The entries from the checkpoint on, or None if they are not a complete log."""
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
    """The history of consecutive entries."""
    if not lines:
        return History()
    found = [line.checkpoint for line in lines if line.checkpoint]
    last = lines[-1]
    return History(
        tuple(line.entry for line in lines),
        last.entry.n,
        last.entry.current,
        last.digest,
        found[-1] if found else Checkpoint(),
        aliases=last.entry.aliases,
    )


def append(
    backend: Backend,
    make: Callable[[History], Mapping[str, Any] | None],
    since: int | None = None,
    read: Read | None = None,
) -> tuple[Entry | None, History]:
    """Commit the entry that ``make`` returns for the present log: (the entry, the log before it).

    make : called again whenever another writer was first. It returns None if there is nothing to
        do, and raises if nothing may be done.
    since : see ``read_history``.  read : a function to use instead of it.

    In a damaged log the entry becomes a checkpoint, from which the rest can be read.
    Raises OSError if the entry was not created, as far as can be seen. An entry that was created is
    committed, whatever fails afterwards: a caller that tried again would commit twice.
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
            "n": n,
            "previous": history.digest,
            "nonce": nonce,
            "time": now(),
            "current": history.current,
            "number": history.count,
            "removed": [],
            "reason": "",
            "manifest": "",
            "key": "",
            "by": who(),
            "run": run_id(),
            "alias": "",
            "aliases": history.aliases,
            **fields,
        }
        whole["reason"] = hide_secrets(whole["reason"])
        text = _signed(history, whole)
        if _put(backend, n, text):
            logger.info("entry %d: %s", n, whole["action"], extra={"entry": _told(whole)})
            line = Line.parse(text, n, backend.place)
            checkpoint = n if line.checkpoint else history.checkpoint.n
            entry = line.entry
            with contextlib.suppress(OSError):  # committed; readers follow the log past its head
                head = Head(n, checkpoint, line.digest, entry.current, entry.aliases)
                write_head(backend, head)
            return entry, history
    raise SourceError(f"{backend.place}: {ATTEMPTS} other entries came first; try again")


def _signed(history: History, whole: Mapping[str, Any]) -> bytes:
    """An entry in stored form; a checkpoint if one is due.

    If the table of versions is too long for readers, it is left out, and readers read more entries.
    Raises InvalidInputError if the entry itself is too long.
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


def _told(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Of an entry, what the log of a run says."""
    names = ("action", "version", "alias", "number", "current", "removed", "reason")
    return {name: value for name in names if (value := whole.get(name))}


def _put(backend: Backend, n: int, text: bytes) -> bool:
    """Create entry n; False if another writer did. Raises OSError if it was not created."""
    try:
        return backend.put_if_absent(entry_name(n), text) or _is_there(backend, n, text)
    except OSError:
        with contextlib.suppress(OSError):
            if _is_there(backend, n, text):
                return True
        raise


def _is_there(backend: Backend, n: int, text: bytes) -> bool:
    """Whether entry n is ours, although creating it seemed to fail."""
    try:
        return read_entry(backend, n) == text
    except SourceError:
        return False


def _folded(history: History, whole: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that make an entry a checkpoint.  whole : the entry."""
    entry = Entry.of(whole)
    table = history.table.then([entry], history.current)
    serving = table.published.get(entry.current or "")
    return {"table": table.to_json(), "serving": serving and serving.row()}


def write_head(backend: Backend, head: Head) -> None:
    """Write ``_head.json``."""
    backend.put(HEAD, sign(vars(head)))


def mend(backend: Backend) -> History:
    """Repair the log from what is left of it. Returns the log before, with its damage.

    Damaged entries stay where they are: a new entry has the table of all versions, and names the
    files that no longer matter. Known versions that have no file left are recorded as removed.
    """

    def make(history: History) -> dict[str, Any] | None:
        wrong = [name for name in history.damage if name.startswith(FOLDER)]
        found = history.n and not history.checkpoint.n and not history.digest
        if not (wrong or history.unknown or found):
            return None
        gone = [
            version
            for version in history.published
            if version not in history.removed
            and not any(True for _ in backend.list(f"{VERSIONS}{version}/"))
        ]
        current = None if history.current in gone else history.current
        return {
            "action": MEND,
            "version": "",
            "mended": sorted(wrong),
            "removed": gone,
            "current": current,
            "aliases": {name: one for name, one in history.aliases.items() if one not in gone},
            "reason": f"{len(history.damage)} files were damaged",
        }

    entry, before = append(backend, make, read=lambda: read_damaged(backend, rebuild=True))
    if entry is None:
        checkpoint = before.checkpoint.n
        write_head(
            backend, Head(before.n, checkpoint, before.digest, before.current, before.aliases)
        )
    return before


def head_number(backend: Backend) -> int:
    """A number that the log has reached; 0 if ``_head.json`` gives none."""
    try:
        return (Head.read(backend) or Head()).n
    except SourceError:
        return 0
