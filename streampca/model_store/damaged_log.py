"""Reading a damaged log from what is left: intact entries, ``_head.json``, and the versions.

Every version's manifest repeats its log entry, so a lost entry can be restored from it. Every
entry, and ``_head.json``, says which version is promoted, and which have an alias.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streampca.errors import NewerFormatError, SourceError
from streampca.model_store.history import (
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
from streampca.model_store.stored_version import FOLDER as VERSIONS
from streampca.model_store.stored_version import MANIFEST
from streampca.store.backend import NAME, Backend
from streampca.store.checked import MOST_BYTES, check_manifest, unsign

MOST_LOST = 1 << 17  # entries; a number that implies more missing entries is rejected


def read_damaged(backend: Backend, rebuild: bool = False) -> History:
    """The whole log, read entry by entry, whatever is wrong with it.

    rebuild : if no entry of the log is left, include every version with an intact manifest.

    ``damage`` names each file that is absent or altered, unless it was mended. A version whose
    entry is lost is found by its manifest; the order for rolling back then comes from the entries
    that are left. Raises NewerFormatError, OSError.

    Cost: a request for every entry, and if some are lost, one for every version without an entry.
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
    (current, aliases), unsure = found.state(recovered.states)
    return History(
        tuple(entries),
        found.last,
        current,
        found.raw.get(found.last, ""),
        found.checkpoint,
        found.damage,
        unsure,
        tuple(sorted(recovered.unknown)),
        aliases,
    )


State = tuple[str | None, Mapping[str, str]]  # the promoted version, and the aliases


def _state(one: Entry | Head | Mapping[str, Any]) -> State:
    """From an entry, the head, or the log entry in a manifest on."""
    whole = one if isinstance(one, Mapping) else vars(one)
    return whole["current"], whole.get("aliases", {})


@dataclass
class _Found:
    """The files of the log.

    lines : the intact entries.  raw : digest of each entry's bytes, damaged or not.
    last : number of the last entry.  checkpoint : the last intact one.
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
        numbers = found.plausible(sorted(int(one[1]) for one in numbered if one))
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

    def plausible(self, numbers: list[int]) -> set[int]:
        """Those of the numbers that can be entries; sets ``last``.

        Each absent entry takes memory, so a number before which more than MOST_LOST entries would
        be absent is rejected: anyone may have written it.
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
        """Set the checkpoint: the last of these entries with a readable table.

        Later ones are damaged.
        """
        for n in reversed(numbers):
            try:
                line = Line.parse(read_entry(backend, n) or b"", n, self.place)
                checkpoint = line.checkpoint or Checkpoint(n)  # its table is gone by now
                checkpoint.read()
                self.checkpoint = checkpoint
                return
            except SourceError as error:
                self.damage[entry_name(n)] = str(error)
                self.lines.pop(n)

    def take(self, n: int, backend: Backend, there: bool) -> None:
        """Read entry number n; keep it if it is intact and follows the one before it."""
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
        expected = self.head.entry if self.head and self.head.n == n else ""
        if (before and line.previous != before.digest) or expected not in ("", line.digest):
            self.damage[name] = f"{self.place}: {name} does not follow the entry before it"
            return
        self.lines[n] = line
        if before and before.checkpoint:  # drop its table, which may be long
            self.lines[n - 1] = replace(before, checkpoint=Checkpoint(n - 1))

    def names(self) -> list[str]:
        """The file names of all entries that should exist."""
        return [entry_name(n) for n in range(1, self.last + 1)]

    def state(self, recovered: dict[int, State]) -> tuple[State, str]:
        """(the promoted version and the aliases, why they are uncertain or "").

        recovered : number of a lost entry -> the state from then on.
        """
        by_entry = {n: _state(line.entry) for n, line in self.lines.items()}
        if self.head:
            by_entry[self.head.n] = _state(self.head)
        by_entry |= {n: value for n, value in recovered.items() if n not in by_entry}
        nothing: State = (None, {})
        if not self.last or self.last in by_entry:
            return by_entry.get(self.last, nothing), ""
        known = max(by_entry, default=0)
        unsure = (
            f"{self.place}: entry {self.last} of the log is lost, and with it which version is "
            "promoted, and perhaps an alias. Say it: streampca models promote STORE VERSION; or "
            "let the last known ones stand: streampca models verify STORE --mend"
        )
        return by_entry.get(known, nothing), unsure


@dataclass
class _Manifests:
    """Versions whose log entry is lost, found by their manifests.

    states : number of a lost entry -> the state from then on.
    unknown : versions whose manifest is damaged too, or of which several claim the same entry.
    """

    backend: Backend
    found: _Found
    lost: list[int]
    everything: bool
    entries: list[Entry] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Fill ``entries``, ``states`` and ``unknown``."""
        folders: dict[str, set[str]] = {}
        for one in self.backend.list(VERSIONS):
            parts = one.name.split("/", 2)
            if len(parts) == 3 and NAME.fullmatch(parts[1]):
                folders.setdefault(parts[1], set()).add(parts[2])
        lines = tuple(line.entry for line in self.found.lines.values())
        known = History(lines, checkpoint=self.found.checkpoint)
        listed = {*known.published, *(line.version for line in lines if line.action == PUBLISH)}
        listed.update(name for line in lines for name in line.removed)
        found = []
        for version in sorted(set(folders) - listed):
            if MANIFEST in folders[version]:  # written last: without it nothing was published
                found += self._manifest(version)
        numbers = {one.number for one in known.published.values()}
        named = self._named(found)
        ordered = sorted(found, key=lambda one: (one["n"], one["created"]))
        for n, group in itertools.groupby(ordered, key=lambda one: one["n"]):
            claims = list(group)
            real = self._real(n, claims, named) if len(claims) > 1 else claims
            for whole in real:
                self._take(whole, numbers, known.count)
            if not real:
                self._leave(n, claims)

    def _manifest(self, version: str) -> list[dict[str, Any]]:
        """[the log entry in a manifest]; [] if it is damaged, or the entry is not lost."""
        name = f"{VERSIONS}{version}/{MANIFEST}"
        where = f"{self.backend.place}/{name}"
        try:
            text = self.backend.get(name, MOST_BYTES) or b""
            whole = unsign(text, where)
            check_manifest(whole, where)
            claim = {"version": version, "created": whole["created"], **whole["log"]}
            n = claim["n"]
            if n > self.found.last + MOST_LOST:
                raise SourceError(f"{where} is of entry {n} of the log")
            claim["manifest"] = hashlib.sha256(text).hexdigest()
        except NewerFormatError:
            raise
        except SourceError as error:
            self.found.damage[name] = f"{error}; no intact log entry describes this version"
            self.unknown.add(version)
            return []
        return [claim] if self.everything or n in self.lost else []

    def _named(self, claims: list[dict[str, Any]]) -> set[str | None]:
        """Versions that intact files say were promoted, and therefore published."""
        named = {line.entry.current for line in self.found.lines.values()}
        named |= {claim["current"] for claim in claims if claim["current"] != claim["version"]}
        if self.found.head:
            named.add(self.found.head.current)
        return named

    def _real(
        self, n: int, claims: list[dict[str, Any]], named: set[str | None]
    ) -> list[dict[str, Any]]:
        """[the claim on entry n that was committed], or [] if that cannot be decided.

        The other claims are of publishers that died before their entry.  named : see ``_named``.
        """
        real = [claim for claim in claims if claim["version"] in named]
        if not real and (known := self._promoted_at(n)):
            real = [claim for claim in claims if claim["current"] in known]
        return real if len(real) == 1 else []

    def _promoted_at(self, n: int) -> list[str | None]:
        """[the version promoted at lost entry n, by the head or the next entry], or []."""
        head, following = self.found.head, self.found.lines.get(n + 1)
        if head and head.n == n:
            return [head.current]
        if following is None or following.entry.action not in (PUBLISH, REMOVE):
            return []
        current = following.entry.current
        return [] if current == following.entry.version else [current]

    def _leave(self, n: int, claims: list[dict[str, Any]]) -> None:
        """Accept no claim on entry n. If all agree on the promoted version, keep that."""
        self.unknown.update(claim["version"] for claim in claims)
        if len({claim["current"] for claim in claims}) == 1:
            self.states.setdefault(n, _state(claims[0]))
        if self.everything:
            self.found.last = max(self.found.last, n)

    def _take(self, claim: dict[str, Any], numbers: set[int], count: int) -> None:
        """Restore an entry. A number that another version has is replaced by a free one."""
        number, n = claim["number"], claim["n"]
        if number in numbers:
            number = next(i for i in range(1, count + len(numbers) + 2) if i not in numbers)
        numbers.add(number)
        self.states.setdefault(n, _state(claim))
        entry = Entry(
            n,
            PUBLISH,
            claim["version"],
            claim["current"],
            claim["created"],
            claim["reason"],
            number,
            claim["manifest"],
            claim["key"],
            by=claim.get("by", ""),
            run=claim.get("run", ""),
            aliases=claim.get("aliases", {}),
        )
        self.entries.append(entry)
        if self.everything:
            self.found.last = max(self.found.last, n)
