"""A damaged log, read from what is left: intact entries, ``_head.json``, and the versions.

Every version's manifest has what its log entry said, so an entry that is lost is made again from
it. Which version is promoted stands in every entry, and in ``_head.json``.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from streampca.errors import NewerFormatError, SourceError
from streampca.operations.history import (
    FOLDER,
    HEAD,
    NUMBERED,
    PUBLISH,
    REMOVE,
    Checkpoint,
    Entry,
    Head,
    History,
    Line,
    entry_name,
    read_entry,
)
from streampca.operations.stored_version import FOLDER as VERSIONS
from streampca.operations.stored_version import FORMATS, MANIFEST
from streampca.store.backend import NAME, Backend
from streampca.store.checked import MOST_BYTES, check_manifest, unsign

MOST_LOST = 1 << 17  # entries: a number farther on than that is not believed


def read_damaged(backend: Backend, rebuild: bool = False) -> History:
    """The whole log, every entry read, whatever is wrong with it.

    rebuild : take up every version with an intact manifest where no entry of the log is left.

    ``damage`` names each file that is absent or altered, but for what was mended. A version whose
    entry is lost is found by its manifest; the way that rolling back goes is then as the entries
    that are left tell it. Raises NewerFormatError, OSError.

    Cost: a request for every entry, and where some are lost one for every version without one.
    """
    found = _Found.read(backend)
    lost = [n for n in range(found.checkpoint.n + 1, found.last + 1) if n not in found.lines]
    nothing_left = rebuild and not found.lines
    recovered = _Manifests(backend, found, lost, nothing_left)
    if lost or nothing_left:
        recovered.read()
    if nothing_left:
        found.damage |= {name: f"{backend.place}: {name} is absent" for name in found.names()}
    entries = sorted(
        [*(line.entry for line in found.lines.values()), *recovered.entries], key=lambda one: one.n
    )
    current, unsure = found.promoted(recovered.promoted)
    return History(
        tuple(entries), found.last, current, found.raw.get(found.last, ""), found.checkpoint,
        found.damage, unsure, tuple(sorted(recovered.unknown)),
    )  # fmt: skip


@dataclass
class _Found:
    """The files of the log.

    lines : the intact entries.  raw : digest of the bytes of each, as they are.  last : number that
    the log reaches.  checkpoint : the last one that is intact.
    """

    place: str
    head: Head | None = None
    lines: dict[int, Line] = field(default_factory=dict)
    raw: dict[int, str] = field(default_factory=dict)
    last: int = 0
    damage: dict[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    @classmethod
    def read(cls, backend: Backend) -> _Found:
        found = cls(backend.place)
        try:
            found.head = Head.read(backend)
        except NewerFormatError:
            raise
        except SourceError as error:
            found.damage[HEAD] = str(error)
        numbered = (NUMBERED.fullmatch(one.name) for one in backend.list(FOLDER))
        numbers = found.believed(sorted(int(one[1]) for one in numbered if one))
        folded = []
        for n in range(1, found.last + 1):
            found.take(n, backend, n in numbers)
            if n in found.lines and found.lines[n].checkpoint:
                folded.append(n)
        found.find_checkpoint(backend, folded)
        for line in list(found.lines.values()):
            for name in line.mended:
                found.damage.pop(name, None)
        return found

    def believed(self, numbers: list[int]) -> set[int]:
        """Those of entries that may be there; how far the log reaches.

        Each absent entry before them takes memory, so a number that anybody may have written is
        not believed where more than MOST_LOST would be absent.
        """
        taken: set[int] = set()
        for n in numbers:
            if n - len(taken) > MOST_LOST:
                name = entry_name(n)
                self.damage[name] = f"{self.place}: {name} does not follow the entry before it"
                continue
            taken.add(n)
        self.last = max(taken, default=0)
        if self.head and self.head.n - len(taken) > MOST_LOST:
            self.damage[HEAD] = (
                f"{self.place}: {HEAD} says that the log reaches {self.head.n}, and it has "
                f"{len(taken)} entries. It can be made again from the log: streampca models verify "
                "--mend"
            )
            self.head = None
        self.last = max(self.last, self.head.n if self.head else 0)
        return taken

    def find_checkpoint(self, backend: Backend, numbers: list[int]) -> None:
        """The last of these entries whose table can be read; those behind it are damaged."""
        for n in reversed(numbers):
            try:
                line = Line.parse(read_entry(backend, n) or b"", n, self.place)
                checkpoint = line.checkpoint or Checkpoint(n)  # that has none any more
                checkpoint.read()
                self.checkpoint = checkpoint
                return
            except SourceError as error:
                self.damage[entry_name(n)] = str(error)
                self.lines.pop(n)

    def take(self, n: int, backend: Backend, there: bool) -> None:
        """Entry number n, if it is intact and follows the one before it."""
        name = entry_name(n)
        try:
            text = read_entry(backend, n) if there else None
            if text is None:
                self.damage[name] = (
                    f"{self.place}: {name} is absent, and the log reaches {self.last}"
                )
                return
            self.raw[n] = hashlib.sha256(text).hexdigest()
            line = Line.parse(text, n, self.place)
        except NewerFormatError:
            raise
        except SourceError as error:
            self.damage[name] = str(error)
            return
        before = self.lines.get(n - 1)
        told = self.head.entry if self.head and self.head.n == n else ""
        if (before and line.previous != before.digest) or told not in ("", line.digest):
            self.damage[name] = f"{self.place}: {name} does not follow the entry before it"
            return
        self.lines[n] = line
        if before and before.checkpoint:  # its table is not held: it may be long, and of many
            self.lines[n - 1] = replace(before, checkpoint=Checkpoint(n - 1))

    def names(self) -> list[str]:
        """Of all entries that there should be."""
        return [entry_name(n) for n in range(1, self.last + 1)]

    def promoted(self, recovered: dict[int, str | None]) -> tuple[str | None, str]:
        """(id of the promoted version, why that is not sure or "").

        recovered : by the number of a lost entry, what was promoted from there on.
        """
        by_entry = {n: line.entry.current for n, line in self.lines.items()}
        if self.head and self.head.entry:  # 0.1.0 did not write it
            by_entry[self.head.n] = self.head.current
        by_entry |= {n: one for n, one in recovered.items() if n not in by_entry}
        if not self.last or self.last in by_entry:
            return by_entry.get(self.last), ""
        known = max(by_entry, default=0)
        unsure = (
            f"{self.place}: entry {self.last} of the log is lost, and with it which version is "
            "promoted. Say it: streampca models promote STORE VERSION; or let the last known one "
            "be served: streampca models verify STORE --mend"
        )
        return by_entry.get(known), unsure


@dataclass
class _Manifests:
    """Versions whose log entry is lost, found by their manifests.

    promoted : by the number of the lost entry.  unknown : folders whose manifest is damaged too,
    or which claim one entry with others.
    """

    backend: Backend
    found: _Found
    lost: list[int]
    everything: bool
    entries: list[Entry] = field(default_factory=list)
    promoted: dict[int, str | None] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Fill the three."""
        folders: dict[str, set[str]] = {}
        for one in self.backend.list(VERSIONS):
            parts = one.name.split("/", 2)
            if len(parts) == 3 and NAME.fullmatch(parts[1]):
                folders.setdefault(parts[1], set()).add(parts[2])
        lines = tuple(line.entry for line in self.found.lines.values())
        known = History(lines, checkpoint=self.found.checkpoint)
        listed = {*known.published, *(one.version for one in lines if one.action == PUBLISH)}
        listed.update(name for one in lines for name in one.removed)
        told = []
        for version in sorted(set(folders) - listed):
            if MANIFEST in folders[version]:  # it is written last: without it nothing was published
                told += self._manifest(version)
        numbers = {one.number for one in known.published.values()}
        named = self._named(told)
        ordered = sorted(told, key=lambda one: (one["n"], one["created"]))
        for n, group in itertools.groupby(ordered, key=lambda one: one["n"]):
            claims = list(group)
            real = self._real(n, claims, named) if n and len(claims) > 1 else claims
            for whole in real:
                self._take(whole, numbers, known.count)
            if not real:
                self._leave(n, claims)

    def _manifest(self, version: str) -> list[dict[str, Any]]:
        """What an intact one says of its log entry, unless that is there and another's."""
        name = f"{VERSIONS}{version}/{MANIFEST}"
        where = f"{self.backend.place}/{name}"
        try:
            text = self.backend.get(name, MOST_BYTES) or b""
            whole = unsign(text, where, *FORMATS)
            check_manifest(whole, where)
            about = whole.get("log", {})
            n = about.get("n", 0)
            if n > self.found.last + MOST_LOST:
                raise SourceError(f"{where} is of entry {n} of the log")
            told = {
                "version": version, "n": n, "number": about.get("number", 0),
                "created": str(whole.get("created", "")), "reason": about.get("reason") or "",
                "key": about.get("key") or "", "current": about.get("current"),
                "manifest": hashlib.sha256(text).hexdigest(),
            }  # fmt: skip
        except NewerFormatError:
            raise
        except SourceError as error:
            self.found.damage[name] = f"{error}; no intact entry of the log tells of this version"
            self.unknown.add(version)
            return []
        return [told] if self.everything or not n or n in self.lost else []

    def _named(self, told: list[dict[str, Any]]) -> set[str | None]:
        """Versions that something intact says were promoted, and so were published."""
        named = {line.entry.current for line in self.found.lines.values()}
        named |= {one["current"] for one in told if one["current"] != one["version"]}
        if self.found.head:
            named.add(self.found.head.current)
        return named

    def _real(
        self, n: int, claims: list[dict[str, Any]], named: set[str | None]
    ) -> list[dict[str, Any]]:
        """Which of several manifests entry n was of, or none where nothing decides it.

        The others are of publishers that died before their entry.  named : see ``_named``.
        """
        real = [one for one in claims if one["version"] in named]
        if not real and (known := self._promoted_at(n)):
            real = [one for one in claims if one["current"] in known]
        return real if len(real) == 1 else []

    def _promoted_at(self, n: int) -> list[str | None]:
        """What the head, or the entry behind it, says was promoted at lost entry n; or []."""
        head, behind = self.found.head, self.found.lines.get(n + 1)
        if head and head.n == n and head.entry:
            return [head.current]
        if behind is None or behind.entry.action not in (PUBLISH, REMOVE):
            return []
        current = behind.entry.current
        return [] if current == behind.entry.version else [current]

    def _leave(self, n: int, claims: list[dict[str, Any]]) -> None:
        """Take none of these for entry n. What they agree on is what was promoted there."""
        self.unknown.update(one["version"] for one in claims)
        if len(agreed := {one["current"] for one in claims}) == 1:
            self.promoted.setdefault(n, *agreed)
        if self.everything:
            self.found.last = max(self.found.last, n)

    def _take(self, told: dict[str, Any], numbers: set[int], count: int) -> None:
        """Make the entry again. 0.1.0 did not say its number: it gets one that is free."""
        number = told["number"]
        if not number or number in numbers:
            number = next(n for n in range(1, count + len(numbers) + 2) if n not in numbers)
        numbers.add(number)
        if told["n"]:
            self.promoted.setdefault(told["n"], told["current"])
        entry = Entry(
            told["n"] or (self.lost[0] if self.lost else 1), PUBLISH, told["version"],
            told["current"], told["created"], told["reason"], number, told["manifest"], told["key"],
        )  # fmt: skip
        if not told["n"]:
            entry = replace(entry, current=self._before(entry.n))
        self.entries.append(entry)
        if self.everything:
            self.found.last = max(self.found.last, entry.n)

    def _before(self, n: int) -> str | None:
        """What was promoted before entry n, as far as it is known."""
        there = [line.entry for m, line in self.found.lines.items() if m < n]
        return max(there, key=lambda one: one.n).current if there else None
