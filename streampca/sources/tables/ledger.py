"""The ledger of a table in several files: the state of every file when it was read."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c
import numpy as np

from streampca.errors import ChangingSourceError, hide_secrets
from streampca.matrix import ChunkedMatrix, select
from streampca.sources.ledger import (
    APPENDED,
    CHANGED,
    NOTHING,
    RELAID,
    REMOVED,
    Change,
    Ledger,
    Seen,
    version_number,
)
from streampca.sources.stacked import StackedMatrix

# A file is what may change: new files are new rows, behind those that are known, whatever their
# names; a known one with other bytes are changed rows. This module does not load Arrow.

Array = np.ndarray[Any, Any]
READ_NBYTES = 16 << 20


@dataclass(frozen=True)
class FileLedger(Ledger):
    """The files that a fit read, in the order of their rows.

    nbytes, version, crc32c : (files,).  ends : (files,) int64 rows up to the end of each.
    files : their paths.
    """

    ends: Array = field(default_factory=lambda: np.empty(0, np.int64))
    files: list[str] = field(default_factory=list)


class FileSource:
    """A table of Parquet files, as its ledger sees it: in place of a ``LedgerSource``."""

    inner = step = 1  # samples per row; spans of rows may begin anywhere
    dim = 0

    def __init__(self, matrix: StackedMatrix) -> None:
        self.matrix = matrix
        self.reader: Any = matrix.reader
        self._found: dict[tuple[str, int], int] = {}  # checksums, by path and writing

    @classmethod
    def of(cls, matrix: Any) -> FileSource | None:
        """The source of an opened matrix; None of other matrices than tables of several files."""
        reader = getattr(matrix, "reader", None)
        return cls(matrix) if hasattr(reader, "in_order") else None

    @property
    def files(self) -> list[str]:
        """The paths, in the order of their rows."""
        return [hide_secrets(file.path) for file in self.reader.files]

    def after(self, old: Ledger) -> FileSource:
        """The same files, those of an old ledger first and in its order."""
        known = {path: i for i, path in enumerate(getattr(old, "files", ()))}
        names = self.files
        order = sorted(range(len(names)), key=lambda i: known.get(names[i], len(known) + i))
        if order == list(range(len(names))):
            return self
        matrix, reader = copy.copy(self.matrix), self.reader.in_order(order)
        ends = np.concatenate([[0], self.ends()])
        rows = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in order])
        matrix.reader = reader
        matrix.labels = replace(matrix.labels, samples=matrix.labels.samples.pick(rows))
        matrix.annotations = type(matrix.annotations)(reader)
        return FileSource(matrix)

    def ends(self) -> Array:
        """(files,) rows up to the end of each."""
        lengths = np.bincount(
            self.reader.units[:, 0], np.diff(self.reader.begins), len(self.reader.files)
        )
        return np.cumsum(lengths.astype(np.int64))

    def layout(self) -> str:
        """A digest of the columns that are read."""
        columns = self.reader.columns
        text = [columns.features, str(columns.dtype), self.matrix.missing_value]
        return hashlib.sha256(repr(text).encode()).hexdigest()

    def look(self) -> Seen:
        """The size of every file now, and when it was written."""
        now = [file.again() for file in self.reader.files]
        version = [
            int(one.version) if one.version.isdigit() else version_number(one.version)
            for one in now
        ]
        size = np.array([one.size for one in now], np.int64)
        times = np.full(len(now), np.nan)
        return Seen(size, np.array(version, np.int64), times, 0.0)

    def make(self, rows: int, seen: Seen, old: Ledger | None = None) -> FileLedger:
        """The ledger of what has been read. Cost: reads the bytes of files that are new to it.

        Raises ChangingSourceError where a file was changed since ``seen``.
        """
        now = self.look()
        if len(moved := np.flatnonzero(now.version != seen.version)):
            name = self.files[int(moved[0])]
            raise ChangingSourceError(f"{name} was changed while it was read; start again")
        crc = [self._known(i, now, old) for i in range(len(self.files))]
        return FileLedger(
            rows,
            0,
            self.layout(),
            now.nbytes,
            now.version,
            np.array(crc, np.int64),
            ends=self.ends(),
            files=self.files,
        )

    def _known(self, i: int, now: Seen, old: Ledger | None) -> int:
        files = old.files if isinstance(old, FileLedger) else []
        same = old is not None and i < len(files) and files[i] == self.files[i]
        if same and old is not None and old.version[i] == now.version[i]:
            return int(old.crc32c[i])
        return self._checksum(i, int(now.version[i]))

    def _checksum(self, i: int, version: int) -> int:
        which = self.files[i], version
        if which not in self._found:
            crc = 0
            with self.reader.files[i].open() as file:
                while data := bytes(file.read(READ_NBYTES)):
                    crc = int(google_crc32c.extend(crc, data))
            self._found[which] = crc
        return self._found[which]

    def rows_from(self, first: int, rows: int) -> ChunkedMatrix:
        """The samples of rows ``first`` up to ``rows``."""
        return select(self.matrix, samples=np.arange(first, rows))

    def compare(self, old: Ledger, rows: int, seen: Seen, full: bool = False) -> Change:
        """What became of the files since ``old``, whose files come first.

        full : read every old file; else only those whose size or time differ, of which the bytes
            decide.
        """
        how, span = ("full" if full else "stat"), (old.rows, rows)
        known = old.files if isinstance(old, FileLedger) else []
        if not isinstance(old, FileLedger) or self.layout() != old.layout:
            return Change(RELAID, span, how)
        here = self.files
        if gone := [path for path in known if path not in here]:
            left = int(self.ends()[-1]) if here else 0
            return Change(REMOVED, (old.rows, min(left, old.rows - 1)), how, tuple(gone))
        count = len(known)
        other = (seen.version[:count] != old.version) | (seen.nbytes[:count] != old.nbytes)
        suspect = np.flatnonzero(other | full).tolist()
        read = int(seen.nbytes[suspect].sum())
        changed = [i for i in suspect if self._checksum(i, int(seen.version[i])) != old.crc32c[i]]
        if any(self.ends()[i] != old.ends[i] for i in changed):
            return Change(RELAID, span, how, tuple(here[i] for i in changed), read)
        if changed:
            begins = np.concatenate([[0], old.ends])
            where = tuple((int(begins[i]), int(old.ends[i])) for i in changed)
            same = [i for i in changed if seen.version[i] == old.version[i]]
            hidden = tuple(self._checksum(i, int(seen.version[i])) for i in same)
            names = tuple(here[i] for i in changed)
            return Change(CHANGED, span, how, names, read, hidden, where)
        kind = APPENDED if rows > old.rows else NOTHING
        return Change(kind, span, how, (), read, same_rows=True)
