"""The log of a model store as data: its entries, the versions they describe, and its files."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from streampca.errors import DamagedSourceError, NewerFormatError, SourceError
from streampca.run_context import current_run
from streampca.store.backend import Backend
from streampca.store.checked import (
    MOST_BYTES,
    ROW,
    check_entry,
    check_head,
    check_table,
    parse,
    unsign,
)

# The entries of the log, and the versions that they describe.

PUBLISH, PROMOTE, ROLLBACK, REMOVE, MEND = "publish", "promote", "rollback", "remove", "mend"
ALIAS, UNALIAS = "alias", "unalias"


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    n : its number, from 1.  action : what was done.  version : the id of the version concerned.
    current : the id of the promoted version from here on, or None.  removed : ids that ``gc``
    removes.  number : of the published version, from 1; in other entries that of the last one.
    manifest : digest of a version's manifest.
    key : identifies data and settings, so that the same result is not published twice.
    by : user@host.  run : id of the run that did it, or "".  alias : that was set or removed.
    aliases : name -> id of its version, of all from here on.
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
    by: str = ""
    run: str = ""
    alias: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, whole: Mapping[str, Any]) -> Entry:
        """The entry in a checked document."""
        fields = {name: whole[name] for name in cls.__dataclass_fields__ if name in whole}
        return cls(**{**fields, "removed": tuple(fields["removed"])})

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Entry:
        """The publication in a row of a table."""
        return cls(action=PUBLISH, current=None, **dict(zip(ROW, row, strict=True)))

    def row(self) -> list[Any]:
        """A publication as a row of a table."""
        return [getattr(self, name) for name in ROW]


@dataclass(frozen=True)
class Table:
    """The state of the store after some entry of the log.

    count : how many version numbers were used.  published : id -> entry, in the order of
    publication.  removed : ids that gc removed.  promoted : ids up to the current one, in the order
    for rolling back.  served : ids that were ever promoted.  unknown : ids of versions that nothing
    intact describes.
    """

    count: int = 0
    published: Mapping[str, Entry] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    promoted: tuple[str, ...] = ()
    served: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str, where: str = "a table of versions") -> Table:
        """The table of ``to_json``, checked. Raises SourceError.  where : for messages."""
        try:
            whole = parse(text.encode(), where)
        except UnicodeEncodeError as error:
            raise DamagedSourceError(f"{where} is damaged: {error}") from None
        check_table(whole, where)
        entries = [Entry.from_row(row) for row in whole["published"]]
        return cls(
            whole["count"],
            {entry.version: entry for entry in entries},
            frozenset(),
            tuple(whole["promoted"]),
            frozenset(whole["served"]),
            tuple(whole["unknown"]),
        )

    def to_json(self) -> str:
        """As JSON, without removed versions; their numbers stay used."""
        there = [value for name, value in self.published.items() if name not in self.removed]
        names = {one.version for one in there}
        return json.dumps(
            {
                "count": self.count,
                "published": [one.row() for one in there],
                "promoted": [name for name in self.promoted if name in names],
                "served": sorted(self.served & names),
                "unknown": list(self.unknown),
            },
            separators=(",", ":"),
        )

    def then(self, entries: Iterable[Entry], before: str | None) -> Table:
        """The table after further entries.  before : the promoted version before them."""
        published, removed = dict(self.published), set(self.removed)
        served, stack, count = set(self.served), list(self.promoted), self.count
        for entry in entries:
            if entry.action == PUBLISH:
                published[entry.version] = entry
            count = max(count, entry.number)
            removed.update(entry.removed)
            if entry.current is not None and entry.current != before:
                _promote(stack, entry)
                served.add(entry.current)
            before = entry.current
        return replace(
            self,
            count=count,
            published=published,
            removed=frozenset(removed),
            promoted=tuple(stack),
            served=frozenset(served),
        )


def _promote(stack: list[str], entry: Entry) -> None:
    assert entry.current is not None
    if entry.action == ROLLBACK and entry.current in stack:
        del stack[stack.index(entry.current) + 1 :]
        return
    stack[:] = [version for version in stack if version != entry.current]
    stack.append(entry.current)


@dataclass(frozen=True)
class Checkpoint:
    """An entry that holds the state of all entries before it.

    n : its number.  table : as JSON, parsed on demand.  current : the promoted version.
    serving : the row of that version's publication.  where : its file, for messages.
    """

    n: int = 0
    table: str = ""
    current: str | None = None
    serving: tuple[Any, ...] | None = None
    where: str = ""

    def read(self) -> Table:
        """The table, checked. Raises SourceError that says how to mend it."""
        if not self.n:
            return Table()
        try:
            return Table.from_json(self.table, f"{self.where}: its table")
        except SourceError as error:
            raise DamagedSourceError(
                f"{error}. It can be made again from the log: streampca models verify --mend"
            ) from None


@dataclass
class History:
    """The log as it was read.

    entries : those that were read: all after the checkpoint, and as many before it as requested.
    n : number of the last entry.  current : the id of the promoted version.  digest : of the last
    entry.  damage : file -> what is wrong with it.  unsure : why the promoted version is not known,
    or "".  unknown : see ``Table``.  aliases : name -> id of its version.
    """

    entries: tuple[Entry, ...] = ()
    n: int = 0
    current: str | None = None
    digest: str = ""
    checkpoint: Checkpoint = Checkpoint()
    damage: dict[str, str] = field(default_factory=dict)
    unsure: str = ""
    unknown: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def since(self, n: int) -> tuple[Entry, ...]:
        """The entries after number n."""
        return tuple(entry for entry in self.entries if entry.n > n)

    @cached_property
    def table(self) -> Table:
        """The state after all entries. Raises SourceError if the checkpoint is malformed."""
        table = self.checkpoint.read().then(self.since(self.checkpoint.n), self.checkpoint.current)
        if self.current is not None and self.current not in table.promoted[-1:]:
            known = Entry(self.n, PROMOTE, self.current, self.current, "")
            table = table.then([known], None)
        return replace(table, unknown=tuple(sorted({*table.unknown, *self.unknown})))

    @property
    def published(self) -> Mapping[str, Entry]:
        """The entry of every version by its id, in the order of publication."""
        return self.table.published

    @property
    def removed(self) -> frozenset[str]:
        """Ids that gc removed in the entries that were read, published or not."""
        return frozenset(name for entry in self.entries for name in entry.removed)

    @property
    def promoted(self) -> tuple[str, ...]:
        """Promoted ids up to the current one, in the order for rolling back."""
        return self.table.promoted

    @property
    def served(self) -> frozenset[str]:
        """Ids that were ever promoted."""
        return self.table.served

    @property
    def count(self) -> int:
        """How many version numbers were used."""
        return self.table.count

    def serving(self) -> Entry | None:
        """The publication of the promoted version. Parses the table only if it must."""
        for entry in self.entries:
            if entry.action == PUBLISH and entry.version == self.current:
                return entry
        row = self.checkpoint.serving
        if row is not None and row[0] == self.current:
            return Entry.from_row(row)
        return self.published.get(self.current or "")


# The files of a log: its entries, and ``_head.json``.

FOLDER = "_log/"
HEAD = "_head.json"
MOST_HEAD = 64 << 10  # bytes of ``_head.json``, and of the file that marks a store
NUMBERED = re.compile(FOLDER + r"(\d{20})\.json")


def entry_name(n: int) -> str:
    """The file of entry n."""
    return f"{FOLDER}{n:020d}.json"


@dataclass(frozen=True)
class Line:
    """An entry as it is stored.

    digest : of its bytes.  previous : digest of the entry before it, as its writer saw it.
    checkpoint : if it is one.  mended : damaged files that no longer matter.
    """

    entry: Entry
    digest: str
    previous: str
    checkpoint: Checkpoint | None
    mended: tuple[str, ...]

    @classmethod
    def parse(cls, text: bytes, n: int, place: str) -> Line:
        """Entry number n. Raises SourceError if it is damaged, NewerFormatError."""
        where = f"{place}/{entry_name(n)}"
        whole = unsign(text, where)
        check_entry(whole, where)
        if whole["n"] != n:
            raise SourceError(f"{where} is entry {whole['n']} of a log")
        entry, checkpoint = Entry.of(whole), None
        if (saved := whole.get("checkpoint")) is not None:
            row = saved.get("serving")
            checkpoint = Checkpoint(n, saved["table"], entry.current, row and tuple(row), where)
        return cls(
            entry,
            hashlib.sha256(text).hexdigest(),
            whole["previous"],
            checkpoint,
            tuple(whole.get("mended") or ()),
        )


@dataclass(frozen=True)
class Head:
    """The content of ``_head.json``.

    n, checkpoint : numbers of the last entry and the last checkpoint.  entry : digest of entry n.
    current : the promoted version, or None.  aliases : name -> id of its version.
    """

    n: int = 0
    checkpoint: int = 0
    entry: str = ""
    current: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, backend: Backend) -> Head | None:
        """The head, or None if there is none. Raises SourceError if it is damaged."""
        where = f"{backend.place}/{HEAD}"
        try:
            text = backend.get(HEAD, MOST_HEAD)
            if text is None:
                return None
            whole = unsign(text, where)
            check_head(whole, where)
            names = [name for name in cls.__dataclass_fields__ if name in whole]
            return cls(**{name: whole[name] for name in names})
        except NewerFormatError:
            raise
        except SourceError as error:
            raise SourceError(
                f"{error}. It can be made again from the log: streampca models verify --mend"
            ) from None


def read_entry(backend: Backend, n: int) -> bytes | None:
    """The bytes of entry n, or None. Raises SourceError if the file is too long for an entry."""
    return backend.get(entry_name(n), MOST_BYTES)


def now() -> str:
    """The time in UTC, for people; nothing depends on it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def who() -> str:
    """user@host of this process."""
    try:
        import pwd
    except ImportError:  # Windows
        user = os.environ.get("USERNAME", "unknown")
    else:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # a container without a name for its user
            user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def run_id() -> str:
    """The id of the run that goes on, as in logs; "" outside of one."""
    run = current_run()
    return "" if run is None else run.id


def is_number(which: str, count: int) -> bool:
    """Whether these are the digits of a number from 1 to ``count``."""
    plain = which.isascii() and which.isdecimal() and len(which) < 20 and which[0] != "0"
    return plain and int(which) <= count
