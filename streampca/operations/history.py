"""What the log of a model store says, and the files that it consists of."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from streampca.errors import DamagedSourceError, NewerFormatError, SourceError
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

# --------------------------------------------------------------------------------------------------
# What the log of a model store says: its entries, and the versions that follow from them.

PUBLISH, PROMOTE, ROLLBACK, REMOVE, MEND = "publish", "promote", "rollback", "remove", "mend"


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    n : its number, from 1.  action : what was done.  version : the id that it was done to.
    current : the id of the promoted version from here on, or None.  removed : ids that ``gc``
    takes away.  number : of a published version, from 1; in other entries that of the
    last one.  manifest : digest of a version's manifest.
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

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Entry:
        """The publication that a row of a table stands for."""
        return cls(action=PUBLISH, current=None, **dict(zip(ROW, row, strict=True)))

    def row(self) -> list[Any]:
        """A publication as a row of a table."""
        return [getattr(self, name) for name in ROW]


@dataclass(frozen=True)
class Table:
    """All that the log says up to one of its entries.

    count : numbers given to versions so far.  published : id -> entry, in the order of
    publication.  removed : ids that gc has taken away.  promoted : ids up to the current one, the
    way that rolling back goes.  served : ids that were promoted at any time.  unknown : folders of
    versions that nothing intact describes.
    """

    count: int = 0
    published: Mapping[str, Entry] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    promoted: tuple[str, ...] = ()
    served: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str, where: str = "a table of versions") -> Table:
        """What ``to_json`` wrote, checked. Raises SourceError.  where : for messages."""
        try:
            whole = parse(text.encode(), where)
        except UnicodeEncodeError as error:
            raise DamagedSourceError(f"{where} is damaged: {error}") from None
        check_table(whole, where)
        entries = [Entry.from_row(row) for row in whole["published"]]
        return cls(
            whole["count"], {one.version: one for one in entries}, frozenset(),
            tuple(whole["promoted"]), frozenset(whole["served"]), tuple(whole["unknown"]),
        )  # fmt: skip

    def to_json(self) -> str:
        """The versions that are there. Those that were removed leave nothing but their number."""
        there = [one for name, one in self.published.items() if name not in self.removed]
        names = {one.version for one in there}
        return json.dumps({
            "count": self.count,
            "published": [one.row() for one in there],
            "promoted": [name for name in self.promoted if name in names],
            "served": sorted(self.served & names),
            "unknown": list(self.unknown),
        }, separators=(",", ":"))  # fmt: skip

    def then(self, entries: Iterable[Entry], before: str | None) -> Table:
        """The table after these entries too.  before : the promoted version before them."""
        published, removed = dict(self.published), set(self.removed)
        served, stack, count = set(self.served), list(self.promoted), self.count
        for one in entries:
            if one.action == PUBLISH:
                published[one.version] = one
            count = max(count, one.number)
            removed.update(one.removed)
            if one.current is not None and one.current != before:
                _promote(stack, one)
                served.add(one.current)
            before = one.current
        return replace(
            self, count=count, published=published, removed=frozenset(removed),
            promoted=tuple(stack), served=frozenset(served),
        )  # fmt: skip


def _promote(stack: list[str], entry: Entry) -> None:
    assert entry.current is not None
    if entry.action == ROLLBACK and entry.current in stack:
        del stack[stack.index(entry.current) + 1 :]
        return
    stack[:] = [version for version in stack if version != entry.current]
    stack.append(entry.current)


@dataclass(frozen=True)
class Checkpoint:
    """An entry that says all that those before it say.

    n : its number.  table : as JSON, read where it is needed.  current : the promoted version.
    serving : row of that version's publication.  where : its file, for messages.
    """

    n: int = 0
    table: str = ""
    current: str | None = None
    serving: tuple[Any, ...] | None = None
    where: str = ""

    def read(self) -> Table:
        """The table, checked. Raises SourceError, which says how it is mended."""
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
    """The log as it was read, and what follows from it.

    entries : those that were read: all behind the checkpoint, and as many before it as were
    asked for.  n : number of the last entry.  current : the id of the promoted version.  digest :
    of the last entry.  damage : what is wrong with which file.  unsure : why it is not known which
    version is promoted, or "".  unknown : see ``Table``.
    """

    entries: tuple[Entry, ...] = ()
    n: int = 0
    current: str | None = None
    digest: str = ""
    checkpoint: Checkpoint = Checkpoint()
    damage: dict[str, str] = field(default_factory=dict)
    unsure: str = ""
    unknown: tuple[str, ...] = ()

    def since(self, n: int) -> tuple[Entry, ...]:
        """The entries behind number n."""
        return tuple(one for one in self.entries if one.n > n)

    @cached_property
    def table(self) -> Table:
        """What all entries together say. Raises SourceError where the checkpoint is malformed."""
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
        """Ids that gc has taken away in the entries that were read, published or not."""
        return frozenset(name for one in self.entries for name in one.removed)

    @property
    def promoted(self) -> tuple[str, ...]:
        """Promoted ids up to the current one, the way that rolling back goes."""
        return self.table.promoted

    @property
    def served(self) -> frozenset[str]:
        """Ids that were promoted at any time."""
        return self.table.served

    @property
    def count(self) -> int:
        """Numbers given to versions so far."""
        return self.table.count

    def serving(self) -> Entry | None:
        """The publication of the promoted version. Parses no table where it need not."""
        for one in self.entries:
            if one.action == PUBLISH and one.version == self.current:
                return one
        row = self.checkpoint.serving
        if row is not None and row[0] == self.current:
            return Entry.from_row(row)
        return self.published.get(self.current or "")


# --------------------------------------------------------------------------------------------------
# The files of a log: its entries, and ``_head.json``.

FOLDER = "_log/"
HEAD = "_head.json"
FORMAT_VERSION = 1
MOST_HEAD = 64 << 10  # bytes of ``_head.json``, and of the file that says that a store is there
NUMBERED = re.compile(FOLDER + r"(\d{20})\.json")


def entry_name(n: int) -> str:
    """The file of entry n."""
    return f"{FOLDER}{n:020d}.json"


@dataclass(frozen=True)
class Line:
    """An entry as it is stored.

    digest : of its bytes.  previous : of the entry before it, as its writer saw that.
    checkpoint : where it is one.  mended : files whose damage it has made good.
    """

    entry: Entry
    digest: str
    previous: str
    checkpoint: Checkpoint | None
    mended: tuple[str, ...]

    @classmethod
    def parse(cls, text: bytes, n: int, place: str) -> Line:
        """Entry number n. Raises SourceError where it is damaged, NewerFormatError."""
        where = f"{place}/{entry_name(n)}"
        whole = unsign(text, where, FORMAT_VERSION)
        check_entry(whole, where)
        if whole["n"] != n:
            raise SourceError(f"{where} is entry {whole['n']} of a log")
        fields: dict[str, Any] = {
            name: whole[name] for name in Entry.__dataclass_fields__
            if whole.get(name) is not None or name == "current"
        }  # fmt: skip
        entry = Entry(**{**fields, "removed": tuple(fields["removed"])})
        checkpoint = None
        if (told := whole.get("checkpoint")) is not None:
            row = told.get("serving")
            checkpoint = Checkpoint(n, told["table"], entry.current, row and tuple(row), where)
        return cls(entry, hashlib.sha256(text).hexdigest(), whole["previous"], checkpoint,
                   tuple(whole.get("mended") or ()))  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What ``_head.json`` says: n, checkpoint : numbers of entries.  entry : digest of entry n.
    current : promoted there; None in what 0.1.0 wrote, and where none is."""

    n: int = 0
    checkpoint: int = 0
    entry: str = ""
    current: str | None = None

    @classmethod
    def read(cls, backend: Backend) -> Head | None:
        """None where there is none. Raises SourceError where it is damaged."""
        where = f"{backend.place}/{HEAD}"
        try:
            text = backend.get(HEAD, MOST_HEAD)
            if text is None:
                return None
            whole = unsign(text, where, FORMAT_VERSION)
            check_head(whole, where)
            return cls(whole["n"], whole.get("checkpoint", 0), whole.get("entry", ""),
                       whole.get("current"))  # fmt: skip
        except NewerFormatError:
            raise
        except SourceError as error:
            raise SourceError(
                f"{error}. It can be made again from the log: streampca models verify --mend"
            ) from None


def read_entry(backend: Backend, n: int) -> bytes | None:
    """The bytes of entry n. Raises SourceError where no file of that length can be one."""
    return backend.get(entry_name(n), MOST_BYTES)


def now() -> str:
    """UTC, for people: nothing is decided by it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
