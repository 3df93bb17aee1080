"""Tables of variants, scanned once and read on demand, such as a .bim; and the .fam."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from streampca.errors import SourceError, shorten
from streampca.matrix.columns import PIECE, Column, Runs, Text, as_text, compact
from streampca.sources.genotypes.variants import NO_PARENT, UNNAMED
from streampca.sources.text_files import marked, read_text, refuse_other_text, utf8

# A table of millions of variants is not held in memory: only the offset of every 8192nd line and
# the runs of its chromosomes are. A table of up to HELD variants is held.

HELD = 65536  # variants
SHORTEST = 12  # bytes of a line
COLUMNS = 5
POSITION = 2  # among them
TEXT = np.dtype(np.dtypes.StringDType())
SHORT = np.dtype("U2")


@dataclass(frozen=True)
class Layout:
    """The lines of a table of variants.

    kind : of the file, for messages.  width : fields of a line.
    places : of chromosome, id, position, counted and other allele among them.
    """

    kind: str
    width: int
    places: tuple[int, int, int, int, int]


BIM = Layout(".bim", 6, (0, 1, 3, 4, 5))


@dataclass(frozen=True)
class VariantTable:
    """Chromosome, id, position, counted and other allele of every variant: arrays or columns.

    count : p.  unnamed : whether an id is ".".  n_ignored : negative positions.
    several : numbers of the variants of more than two alleles.
    """

    columns: list[Any]
    count: int
    unnamed: bool
    n_ignored: int
    several: np.ndarray[Any, Any]


def room_for_hashes(paths: Sequence[str]) -> np.ndarray[Any, Any]:
    """(upper bound of lines,) int64, uninitialised: memory is used only as it is written."""
    return np.empty(1 + sum(os.path.getsize(path) for path in paths) // SHORTEST, np.int64)


def read_bim(path: str, hashes: np.ndarray[Any, Any] | None = None) -> VariantTable:
    """Scan a .bim: one read of the file.

    hashes : takes those of the p ids, at its beginning, if they are wanted.
    Raises SourceError where a line has not 6 fields, a position is no number, or a variant has
    more than two alleles.
    """
    scan = Scan(path, BIM, marked(path), hashes)
    with open(path, "rb") as file:
        file.seek(marked(path))
        table = scan.all(file)
    if len(table.several):
        few = [str(np.asarray(table.columns[1][i : i + 1])[0]) for i in table.several[:4].tolist()]
        raise SourceError(
            f"{path}: {len(table.several)} variants have more than two alleles "
            f"({shorten(few, len(table.several))}); a .bed holds two. Split or drop them: "
            "plink2 --max-alleles 2 --make-bed"
        )
    return table


class Scan:
    """State of the scan of a table of variants.

    start : bytes before the first line.  packed : keep the columns compressed, where the file can
    not be read from its middle.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        start: int,
        hashes: np.ndarray[Any, Any] | None = None,
        packed: bool = False,
    ) -> None:
        self.path, self.stamp, self.layout, self.hashes = path, stamp_of(path), layout, hashes
        self.offsets, self.count = [start], 0
        self.packed: list[bytes] | None = [] if packed else None
        self.chromosomes: dict[bytes, int] = {}
        self.starts: list[np.ndarray[Any, Any]] = []
        self.codes: list[np.ndarray[Any, Any]] = []
        self.short = [True] * COLUMNS
        self.unnamed, self.n_ignored, self.several = False, 0, list[int]()

    def all(self, lines: Iterable[bytes]) -> VariantTable:
        """The table of all lines."""
        every = iter(lines)
        while some := list(islice(every, PIECE)):
            more = some
            while more and min(map(len, some)) < SHORTEST:
                some = _joined_to_blanks(some)
                more = list(islice(every, PIECE - len(some)))
                some += more
            if not some[0].isspace():
                self.add(some)
        return self.done()

    def add(self, lines: list[bytes]) -> None:
        """The next lines, PIECE of them or the last."""
        raw = b"".join(lines)
        tokens, width = raw.split(), self.layout.width
        if len(tokens) != width * len(lines):
            if self.packed is None:
                refuse_other_text(self.path)
            _refuse_line(self.path, self.count, lines, self.layout)
        columns = [tokens[place::width] for place in self.layout.places]
        self.n_ignored += int(np.count_nonzero(self._positions(columns[POSITION]) < 0))
        names = columns[1]
        if self.hashes is not None:
            new = np.fromiter(map(hash, names), np.int64, len(names))
            self.hashes[self.count : self.count + len(new)] = new
        self.unnamed = self.unnamed or UNNAMED.encode() in names
        self._add_chromosomes(columns[0])
        with utf8(self.path, self.packed is not None):
            for i, values in enumerate(columns):
                self.short[i] = self.short[i] and _at_most_two(values)
        if b"," in raw:
            pairs = enumerate(zip(columns[3], columns[4], strict=True), self.count)
            self.several += [j for j, (one, other) in pairs if b"," in one or b"," in other]
        self.count += len(lines)
        self.offsets.append(self.offsets[-1] + len(raw))
        if self.packed is not None:
            self.packed.append(zlib.compress(b" ".join(b"\n".join(one) for one in columns), 1))

    def _positions(self, tokens: list[bytes]) -> Text:
        try:
            return np.fromiter(map(int, tokens), np.int64, len(tokens))
        except (ValueError, OverflowError):
            column = self.layout.places[POSITION] + 1
            raise SourceError(
                f"{self.path}: a position (column {column}) is not a number"
            ) from None

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

    def done(self) -> VariantTable:
        """The table. Raises SourceError for one that is empty."""
        if not self.count:
            if self.packed is None:
                refuse_other_text(self.path)
            raise SourceError(f"{self.path} is empty")
        lines = VariantLines(
            self.path, self.stamp, self.layout, np.asarray(self.offsets), self.count, self.packed
        )
        with utf8(self.path, self.packed is not None):
            chromosomes = _decoded(list(self.chromosomes))
        codes = np.concatenate(self.codes)
        starts = np.concatenate(self.starts)
        new = np.append(True, np.diff(codes) != 0)
        columns: list[Any] = [Runs(compact(chromosomes)[codes[new]], starts[new], self.count)]
        for i in range(1, COLUMNS):
            kind = np.dtype(np.int64) if i == POSITION else SHORT if self.short[i] else TEXT
            packed = sum(map(len, self.packed or [])) if i == 1 else 0  # held once for all
            columns.append(VariantColumn(lines, i, kind, packed))
        if self.count <= HELD:
            columns = in_memory(columns, self.count)
        several = np.asarray(self.several, np.int64)
        return VariantTable(columns, self.count, self.unnamed, self.n_ignored, several)


def in_memory(columns: list[Any], count: int) -> list[Any]:
    """All columns, piece by piece: each line is split once."""
    ends = [(i, min(i + PIECE, count)) for i in range(0, count, PIECE)]
    parts = [[column.read(*end) for column in columns] for end in ends]
    return [np.concatenate(one) for one in zip(*parts, strict=True)]


class VariantLines:
    """The lines of a table of variants, by pieces. The last requested piece is cached.

    offsets : bytes at which every PIECE-th line begins, and the end.
    packed : the columns of each piece, compressed; None: they are read from the file.
    """

    def __init__(
        self,
        path: str,
        stamp: tuple[int, int],
        layout: Layout,
        offsets: np.ndarray[Any, Any],
        count: int,
        packed: list[bytes] | None = None,
    ) -> None:
        self.path, self.stamp, self.layout = os.path.abspath(path), stamp, layout
        self.offsets, self.count, self.packed = offsets, count, packed
        self._forget()

    def _forget(self) -> None:
        self._lock, self._known = threading.Lock(), -1
        self._tokens, self._values = list[list[bytes]](), dict[int, np.ndarray[Any, Any]]()

    def __getstate__(self) -> dict[str, Any]:
        args = (self.path, self.stamp, self.layout, self.offsets, self.count, self.packed)
        return {"args": args}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.stamp, self.layout, self.offsets, self.count, self.packed = state["args"]
        self._forget()

    def values(self, piece: int, column: int) -> np.ndarray[Any, Any]:
        """A column of one piece. Raises SourceError where the file is not what it was."""
        with self._lock:
            if self._known != piece:
                self._tokens, self._values, self._known = self._columns(piece), {}, piece
            if column not in self._values:
                self._values[column] = self._array(column)
            return self._values[column]

    def _array(self, column: int) -> np.ndarray[Any, Any]:
        tokens = self._tokens[column]
        if column == POSITION:
            return np.fromiter(map(int, tokens), np.int64, len(tokens))
        with utf8(self.path, self.packed is not None):
            return np.array(_decoded(tokens), dtype=TEXT)

    def _columns(self, piece: int) -> list[list[bytes]]:
        if self.packed is not None:
            return [one.split(b"\n") for one in zlib.decompress(self.packed[piece]).split(b" ")]
        tokens = self._read(piece).split()
        return [tokens[place :: self.layout.width] for place in self.layout.places]

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


class Lines(Protocol):
    """A table whose columns are read by pieces."""

    count: int

    def values(self, piece: int, column: int) -> np.ndarray[Any, Any]:
        """A column of one piece."""
        ...


class VariantColumn(Column):
    """One column of a table of variants, read again piece by piece."""

    def __init__(self, lines: Lines, column: int, dtype: np.dtype[Any], nbytes: int = 0) -> None:
        self.lines, self.column, self.dtype, self.nbytes = lines, column, dtype, nbytes

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


def _joined_to_blanks(lines: list[bytes]) -> list[bytes]:
    """The lines, blank ones joined to the next or the last."""
    found, before = list[bytes](), b""
    for line in lines:
        before += line
        if not line.isspace():
            found.append(before)
            before = b""
    if found:
        found[-1] += before
    return found or [before]


def _at_most_two(names: list[bytes]) -> bool:
    """Whether all names have one or two characters."""
    return max(map(len, names)) <= 2 or max(len(name) for name in _decoded(names)) <= 2


def _decoded(names: list[bytes]) -> list[str]:
    return b"\n".join(names).decode().split("\n")


def _refuse_line(path: str, before: int, lines: list[bytes], layout: Layout) -> None:
    for i, line in enumerate(lines):
        if len(line.split()) != layout.width:
            raise SourceError(
                f"{path}, line {before + i + 1}: {len(line.split())} fields, a {layout.kind} has "
                f"{layout.width}"
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
