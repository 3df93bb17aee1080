"""The tables of a PLINK 1 fileset: .bim (variants), scanned once and read on demand, and .fam."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from streampca.errors import SourceError, shorten
from streampca.matrix.columns import PIECE, Column, Runs, Text, as_text, compact
from streampca.sources.genotypes.variants import NO_PARENT, UNNAMED
from streampca.sources.text_files import marked, read_text

# A table of millions of variants is not held in memory: only the offset of every 8192nd line and
# the runs of its chromosomes are. A table of up to HELD variants is held.

HELD = 65536  # variants
SHORTEST = 12  # bytes of a line
POSITION = 2
PLACES = (0, 1, 3, 4, 5)  # of chromosome, id, position, A1 and A2 among the fields of a line
TEXT = np.dtype(np.dtypes.StringDType())
SHORT = np.dtype("U2")


@dataclass(frozen=True)
class Bim:
    """Chromosome, id, position, A1 and A2 of every variant of a file, as arrays or columns.

    count : p.  unnamed : whether an id is ".".  n_ignored : negative positions.
    """

    columns: list[Any]
    count: int
    unnamed: bool
    n_ignored: int


def room_for_hashes(paths: Sequence[str]) -> np.ndarray[Any, Any]:
    """(upper bound of lines,) int64, uninitialised: memory is used only as it is written."""
    return np.empty(1 + sum(os.path.getsize(path) for path in paths) // SHORTEST, np.int64)


def read_bim(path: str, hashes: np.ndarray[Any, Any] | None = None) -> Bim:
    """Scan a .bim: one read of the file.

    hashes : takes those of the p ids, at its beginning, if they are wanted.
    Raises SourceError where a line has not 6 fields, a position is no number, or a variant has
    more than two alleles.
    """
    scan = _Scan(path, hashes)
    for lines in _pieces_of(path):
        scan.add(lines)
    return scan.done()


def _pieces_of(path: str) -> Iterator[list[bytes]]:
    with open(path, "rb") as file:
        file.seek(marked(path))
        while lines := list(islice(file, PIECE)):
            yield lines


class _Scan:
    """State of the scan."""

    def __init__(self, path: str, hashes: np.ndarray[Any, Any] | None) -> None:
        self.path, self.stamp, self.hashes = path, stamp_of(path), hashes
        self.offsets, self.count = [marked(path)], 0
        self.chromosomes: dict[bytes, int] = {}
        self.starts: list[np.ndarray[Any, Any]] = []
        self.codes: list[np.ndarray[Any, Any]] = []
        self.short = [True] * len(PLACES)
        self.unnamed, self.n_ignored, self.several = False, 0, list[str]()
        self.n_several = 0

    def add(self, lines: list[bytes]) -> None:
        """The next lines, PIECE of them or the last."""
        raw = b"".join(lines)
        tokens = raw.split()
        if len(tokens) != 6 * len(lines):
            _refuse_line(self.path, self.count, lines)
        self.n_ignored += int(np.count_nonzero(_positions(self.path, tokens) < 0))
        names = tokens[1::6]
        if self.hashes is not None:
            new = np.fromiter(map(hash, names), np.int64, len(names))
            self.hashes[self.count : self.count + len(new)] = new
        self.unnamed = self.unnamed or UNNAMED.encode() in names
        self._add_chromosomes(tokens[0::6])
        for i, place in enumerate(PLACES):
            self.short[i] = self.short[i] and _at_most_two(tokens[place::6])
        if b"," in raw:
            self._note_several(tokens)
        self.count += len(lines)
        self.offsets.append(self.offsets[-1] + len(raw))

    def _add_chromosomes(self, names: list[bytes]) -> None:
        if names.count(names[0]) == len(names):
            starts, codes = np.zeros(1, np.int64), [self._code(names[0])]
        else:
            every = np.fromiter(map(self._code, names), np.int64, len(names))
            starts = np.append(0, np.flatnonzero(np.diff(every)) + 1)
            codes = every[starts].tolist()
        self.starts.append(starts + self.count)
        self.codes.append(np.asarray(codes))

    def _code(self, name: bytes) -> int:
        return self.chromosomes.setdefault(name, len(self.chromosomes))

    def _note_several(self, tokens: list[bytes]) -> None:
        for name, *alleles in zip(tokens[1::6], tokens[4::6], tokens[5::6], strict=True):
            if b"," in alleles[0] or b"," in alleles[1]:
                self.n_several += 1
                self.several += [name.decode()] if self.n_several <= 4 else []

    def done(self) -> Bim:
        """The table. Raises SourceError for one that is empty or has more than two alleles."""
        if not self.count:
            raise SourceError(f"{self.path} is empty")
        if self.n_several:
            raise SourceError(
                f"{self.path}: {self.n_several} variants have more than two alleles "
                f"({shorten(self.several, self.n_several)}); a .bed holds two. Split or drop them: "
                "plink2 --max-alleles 2 --make-bed"
            )
        lines = BimLines(self.path, self.stamp, np.asarray(self.offsets), self.count)
        chromosomes, codes = _decoded(list(self.chromosomes)), np.concatenate(self.codes)
        starts = np.concatenate(self.starts)
        new = np.append(True, np.diff(codes) != 0)
        columns: list[Any] = [Runs(compact(chromosomes)[codes[new]], starts[new], self.count)]
        for i in range(1, len(PLACES)):
            kind = np.dtype(np.int64) if i == POSITION else SHORT if self.short[i] else TEXT
            columns.append(BimColumn(lines, i, kind))
        if self.count <= HELD:
            columns = in_memory(columns, self.count)
        return Bim(columns, self.count, self.unnamed, self.n_ignored)


def in_memory(columns: list[Any], count: int) -> list[Any]:
    """All columns, piece by piece: each line is split once."""
    ends = [(i, min(i + PIECE, count)) for i in range(0, count, PIECE)]
    parts = [[column.read(*end) for column in columns] for end in ends]
    return [np.concatenate(one) for one in zip(*parts, strict=True)]


class BimLines:
    """The lines of a .bim, by pieces. The last requested piece is cached.

    offsets : bytes at which every PIECE-th line begins, and the end.
    """

    def __init__(
        self, path: str, stamp: tuple[int, int], offsets: np.ndarray[Any, Any], count: int
    ) -> None:
        self.path, self.stamp, self.offsets = os.path.abspath(path), stamp, offsets
        self.count = count
        self._forget()

    def _forget(self) -> None:
        self._lock, self._known = threading.Lock(), -1
        self._tokens, self._values = list[bytes](), dict[int, np.ndarray[Any, Any]]()

    def __getstate__(self) -> dict[str, Any]:
        return {"args": (self.path, self.stamp, self.offsets, self.count)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.stamp, self.offsets, self.count = state["args"]
        self._forget()

    def values(self, piece: int, column: int) -> np.ndarray[Any, Any]:
        """A column of one piece. Raises SourceError where the file is not what it was."""
        with self._lock:
            if self._known != piece:
                tokens = self._read(piece).split()
                self._tokens, self._values, self._known = tokens, {}, piece
            if column not in self._values:
                self._values[column] = self._array(column)
            return self._values[column]

    def _array(self, column: int) -> np.ndarray[Any, Any]:
        tokens = self._tokens[PLACES[column] :: 6]
        if column == POSITION:
            return np.fromiter(map(int, tokens), np.int64, len(tokens))
        return np.array(_decoded(tokens), dtype=TEXT)

    def _read(self, piece: int) -> bytes:
        start, stop = self.offsets[piece : piece + 2].tolist()
        try:
            changed = stamp_of(self.path) != self.stamp
            with open(self.path, "rb") as file:
                file.seek(start)
                raw = file.read(stop - start)
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror or error}") from None
        if changed or len(raw) != stop - start:
            raise SourceError(
                f"{self.path} has changed since it was opened, and the labels of its {self.count} "
                "variants are read when they are asked for; open it again"
            )
        return raw


class BimColumn(Column):
    """One column of a .bim, read again piece by piece."""

    def __init__(self, lines: BimLines, column: int, dtype: np.dtype[Any]) -> None:
        self.lines, self.column, self.dtype = lines, column, dtype

    def __len__(self) -> int:
        return self.lines.count

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        parts = [np.empty(0, self.dtype)]
        for piece in range(start // PIECE, -(-stop // PIECE) if stop > start else 0):
            first = piece * PIECE
            values = self.lines.values(piece, self.column)
            wanted = values[max(start - first, 0) : stop - first]
            parts.append(wanted.astype(self.dtype, copy=False))
        return np.concatenate(parts)


def stamp_of(path: str) -> tuple[int, int]:
    """(size, time of the last change in ns)."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _positions(path: str, tokens: list[bytes]) -> Text:
    try:
        return np.fromiter(map(int, tokens[3::6]), np.int64, len(tokens) // 6)
    except (ValueError, OverflowError):
        raise SourceError(f"{path}: a position (column 4) is not a number") from None


def _at_most_two(names: list[bytes]) -> bool:
    """Whether all names have one or two characters."""
    return max(map(len, names)) <= 2 or max(len(name) for name in _decoded(names)) <= 2


def _decoded(names: list[bytes]) -> list[str]:
    return b"\n".join(names).decode().split("\n")


def _refuse_line(path: str, before: int, lines: list[bytes]) -> None:
    for i, line in enumerate(lines):
        if len(line.split()) != 6:
            raise SourceError(
                f"{path}, line {before + i + 1}: {len(line.split())} fields, a .bim has 6"
            )


# The .fam of a PLINK 1 fileset: its samples.


def read_fam(path: str) -> tuple[Text, Text, dict[str, Text]]:
    """(family ids, individual ids, ids of father and mother where any are known)."""
    rows = [line.split() for line in read_text(path).splitlines() if line.strip()]
    for i, row in enumerate(rows):
        if len(row) < 6:
            raise SourceError(f"{path}, line {i + 1}: {len(row)} fields, a .fam has 6")
    if not rows:
        raise SourceError(f"{path} is empty")
    family, individual, father, mother = (as_text([row[i] for row in rows]) for i in range(4))
    known = np.any((father != NO_PARENT) | (mother != NO_PARENT))
    return family, individual, {"father": father, "mother": mother} if known else {}
