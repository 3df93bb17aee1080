"""Where the variants of a BGEN lie: by its bgenix index, or by one scan of their headers.

A table of millions of variants is not held in memory: 8 bytes a variant are, and the runs of its
chromosomes. Names, positions and alleles are read again on demand; of up to 65,536 variants they
are held.
Source: BGEN specification 1.2 (header, sample identifiers, variant identifying data); bgenix wiki,
"The bgenix index file format".
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import DamagedSourceError, SourceError, shorten
from streampca.matrix.columns import PIECE, Runs, Text, compact
from streampca.paths import BINARY, read_fully
from streampca.sources.genotypes.plink_tables import HELD, TEXT, VariantColumn, in_memory, stamp_of
from streampca.sources.genotypes.variants import UNNAMED

BGI = ".bgi"
HEAD_NBYTES = 512  # read of a variant at first: its names and alleles, mostly
COMPRESSIONS = ("none", "zlib", "zstd")
OLD = "plink2 --bgen {path} ref-first --sample {stem}.sample --export bgen-1.2 ref-first --out NEW"


@dataclass(frozen=True)
class Header:
    """What the header of a BGEN says.

    first : place of the first variant.  sample_ids : the identifiers within, or None.
    """

    n_variants: int
    n_samples: int
    compression: str
    first: int
    sample_ids: list[str] | None


def read_header(path: str) -> Header:
    """The header of a BGEN 1.2 or 1.3. Raises SourceError for another file, or layout 1."""
    with open(path, "rb") as file:
        head = file.read(20)
        if len(head) < 20 or head[16:] not in (b"bgen", bytes(4)):
            raise SourceError(
                f"{path} is no BGEN: bytes 17 to 20 are {head[16:].hex(' ') or 'absent'}, expected "
                "62 67 65 6e"
            )
        offset, length, n_variants, n_samples = struct.unpack("<4I", head[:16])
        size = os.fstat(file.fileno()).st_size
        file.seek(length)
        flags = file.read(4)
        if length < 20 or offset < length or offset + 4 > size or len(flags) < 4:
            raise DamagedSourceError(f"{path} is no BGEN, or its header is truncated")
        (bits,) = struct.unpack("<I", flags)
        layout, compression = bits >> 2 & 15, bits & 3
        if layout == 1:
            again = OLD.format(path=path, stem=path.removesuffix(".bgen"))
            raise SourceError(
                f"{path} has layout 1, of BGEN 1.1; expected BGEN 1.2 or 1.3. Write it again: "
                f"{again}"
            )
        if layout != 2 or compression >= len(COMPRESSIONS):
            raise SourceError(
                f"{path} has layout {layout} and compression {compression}; expected layout 2 and "
                "0 (none), 1 (zlib) or 2 (zstd)"
            )
        ids = _sample_ids(path, file.read(offset - length), n_samples) if bits >> 31 else None
    if not (n_variants and n_samples):
        raise SourceError(f"{path} is empty: {n_variants} variants of {n_samples} samples")
    return Header(n_variants, n_samples, COMPRESSIONS[compression], offset + 4, ids)


def _sample_ids(path: str, block: bytes, n_samples: int) -> list[str]:
    try:
        (count,) = struct.unpack_from("<I", block, 4)
        place, found = 8, list[str]()
        for _ in range(count):
            (length,) = struct.unpack_from("<H", block, place)
            name = block[place + 2 : place + 2 + length]
            place += 2 + length
            found.append(name.decode())
    except (struct.error, UnicodeDecodeError):
        place = len(block) + 1
    if place > len(block) or count != n_samples:
        raise DamagedSourceError(f"{path}: its block of sample identifiers is damaged")
    return found


# One variant: its identifying data, and its block of genotypes.


def identifying(raw: Any, place: int) -> tuple[list[bytes], int, int]:
    """([chromosome, name, alleles ...], position, place behind) of the data at a place of ``raw``.

    Raises struct.error where they do not end in ``raw``.
    """
    texts = list[bytes]()
    for _ in range(3):
        (length,) = struct.unpack_from("<H", raw, place)
        texts.append(bytes(raw[place + 2 : place + 2 + length]))
        place += 2 + length
    position, count = struct.unpack_from("<IH", raw, place)
    place += 6
    _, name, chromosome = texts
    found = [chromosome, name]
    for _ in range(count):
        (length,) = struct.unpack_from("<I", raw, place)
        found.append(bytes(raw[place + 4 : place + 4 + length]))
        place += 4 + length
    if place > len(raw):
        raise struct.error
    return found, position, place


def _variant_at(handle: int, place: int, size: int) -> tuple[list[bytes], int, int]:
    """As ``identifying`` at a place of a file, and the end of its genotypes in the third place."""
    length = HEAD_NBYTES
    while True:
        raw = bytearray(min(length, size - place))
        got = read_fully(handle, memoryview(raw), place)
        try:
            found, position, behind = identifying(raw, 0)
            (nbytes,) = struct.unpack_from("<I", raw, behind)
        except struct.error:
            if got < len(raw) or length >= size - place:
                raise
            length *= 16
            continue
        return found, position, place + behind + 4 + nbytes


# Where all of them lie.


@dataclass(frozen=True)
class Places:
    """(m + 1,) places of all variants and the end, their chromosomes, and which are multiallelic.

    several : (q,) numbers of those that have not two alleles.
    """

    starts: np.ndarray[Any, Any]
    chromosomes: Runs
    several: np.ndarray[Any, Any]
    unnamed: bool
    by_index: bool


def places_of(path: str, header: Header) -> Places:
    """By the index next to the file, PATH.bgi, or else by a scan.

    Cost: the index is read once. A scan reads 512 bytes of each variant and takes 3 us of it.
    Raises SourceError where the file is truncated or longer than its header says, and for an index
    of another file.
    """
    found = _indexed(path, header) if os.path.isfile(path + BGI) else _scanned(path, header)
    return found


def _scanned(path: str, header: Header) -> Places:
    size, place = os.path.getsize(path), header.first
    starts = np.empty(header.n_variants + 1, np.int64)
    runs, several, unnamed = _Chromosomes(), list[int](), False
    handle = os.open(path, os.O_RDONLY | BINARY)
    try:
        for j in range(header.n_variants):
            starts[j] = place
            try:
                texts, _, place = _variant_at(handle, place, size)
            except (struct.error, ValueError):
                place = size + 1
            if place > size:
                raise DamagedSourceError(
                    f"{path} is truncated: its header says {header.n_variants} variants, and it "
                    f"ends within variant {j + 1}"
                )
            runs.add(texts[0], j)
            if len(texts) != 4:
                several.append(j)
            unnamed = unnamed or texts[1] in (b"", b".")
    finally:
        os.close(handle)
    if place != size:
        raise DamagedSourceError(
            f"{path} is longer than its header says: {size - place} bytes lie behind the last of "
            f"{header.n_variants} variants"
        )
    starts[-1] = place
    return Places(
        starts, runs.done(header.n_variants), np.asarray(several, np.int64), unnamed, False
    )


class _Chromosomes:
    """Runs of chromosomes, as they come."""

    def __init__(self) -> None:
        self.names, self.starts, self.last = list[str](), list[int](), b"\0"

    def add(self, name: bytes, j: int) -> None:
        if name != self.last:
            self.names.append(name.decode(errors="replace"))
            self.starts.append(j)
            self.last = name

    def done(self, count: int) -> Runs:
        return Runs(compact(self.names), np.asarray(self.starts, np.int64), count)


def _indexed(path: str, header: Header) -> Places:
    """By the bgenix index, which has to be of this file."""
    index = path + BGI
    try:
        with closing(sqlite3.connect(f"{Path(index).resolve().as_uri()}?mode=ro", uri=True)) as db:
            _check_metadata(db, path, index)
            rows = db.execute(
                "SELECT file_start_position, size_in_bytes, number_of_alleles, "
                "rsid IN ('', '.'), chromosome FROM Variant"
            )
            numbers, names, known = list[np.ndarray[Any, Any]](), dict[str, int](), 0
            while part := rows.fetchmany(PIECE):
                *columns, chromosomes = zip(*part, strict=True)
                codes = [names.setdefault(str(name), len(names)) for name in chromosomes]
                numbers.append(np.array([*columns, codes], np.int64))
                known += len(part)
    except (sqlite3.Error, OverflowError, ValueError) as error:
        raise SourceError(f"{index} is no bgenix index: {error}. {_again(path)}") from None
    table = np.concatenate(numbers, axis=1) if numbers else np.empty((5, 0), np.int64)
    starts, sizes, alleles, unnamed, codes = table[:, np.argsort(table[0], kind="stable")]
    ends = np.append(header.first, starts + sizes)
    if known != header.n_variants or not np.array_equal(ends[:-1], starts):
        raise SourceError(
            f"{index} does not belong to {path}: it places {known} variants, expected "
            f"{header.n_variants}, the first at byte {header.first}, one after another. "
            f"{_again(path)}"
        )
    size = os.path.getsize(path)
    if ends[-1] != size:
        kind = "truncated" if size < ends[-1] else "longer than its index says"
        raise DamagedSourceError(f"{path} is {kind}: {size} bytes, and {index} says {ends[-1]}")
    new = np.flatnonzero(np.append(True, np.diff(codes) != 0))
    runs = Runs(compact(list(names))[codes[new]], new, known)
    return Places(ends, runs, np.flatnonzero(alleles != 2), bool(unnamed.any()), True)


def _again(path: str) -> str:
    return f"Remove it, or write it again: bgenix -g {path} -index -clobber"


def _check_metadata(db: Any, path: str, index: str) -> None:
    """Refuse an index that says it is of another file."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'Metadata'").fetchone():
        return
    row = db.execute("SELECT first_1000_bytes FROM Metadata").fetchone()
    known = b"" if row is None or row[0] is None else bytes(row[0])
    with open(path, "rb") as file:
        first = file.read(len(known))
    if not known.startswith(first):  # a file that is shorter is truncated, which is seen later
        raise SourceError(
            f"{index} is the index of another file: its first bytes are not those of {path}. "
            f"{_again(path)}"
        )


# Names, positions and alleles, which are read when they are asked for.

CHROMOSOME, NAME, POSITION, FIRST, SECOND = range(5)


class BgenLines:
    """The identifying data of the kept variants of a BGEN, by pieces; the last piece is cached.

    starts : (p,) places.
    """

    def __init__(self, path: str, stamp: tuple[int, int], starts: np.ndarray[Any, Any]) -> None:
        self.path, self.stamp, self.starts = os.path.abspath(path), stamp, starts
        self.count = len(starts)
        self._forget()

    def _forget(self) -> None:
        self._lock, self._known, self._rows = threading.Lock(), -1, list[Any]()

    def __getstate__(self) -> dict[str, Any]:
        return {"args": (self.path, self.stamp, self.starts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.stamp, self.starts = state["args"]
        self.count = len(self.starts)
        self._forget()

    def values(self, piece: int, column: int) -> np.ndarray[Any, Any]:
        """A column of one piece. Raises SourceError where the file is not what it was."""
        with self._lock:
            if self._known != piece:
                self._rows, self._known = self._read(piece), piece
            rows = self._rows
        if column == POSITION:
            return np.fromiter((row[1] for row in rows), np.int64, len(rows))
        at = column if column < POSITION else column - 1
        return np.array(
            [row[0][at].decode(errors="replace") or UNNAMED for row in rows], dtype=TEXT
        )

    def _read(self, piece: int) -> list[Any]:
        size = os.path.getsize(self.path)
        if stamp_of(self.path) != self.stamp:
            raise SourceError(
                f"{self.path} has changed since it was opened, and the labels of its {self.count} "
                "variants are read when they are asked for; open it again"
            )
        handle = os.open(self.path, os.O_RDONLY | BINARY)
        try:
            places = self.starts[piece * PIECE : (piece + 1) * PIECE].tolist()
            return [_variant_at(handle, place, size) for place in places]
        except (struct.error, ValueError):
            raise DamagedSourceError(
                f"{self.path}: no variant lies at a place that {self.path}{BGI} says. "
                f"{_again(self.path)}"
            ) from None
        finally:
            os.close(handle)


def variant_columns(path: str, places: Places, kept: Any) -> list[Any]:
    """Chromosome, name, position, first and second allele of the kept variants.

    kept : (p,) increasing numbers, or slice(None).
    """
    lines = BgenLines(path, stamp_of(path), places.starts[:-1][kept])
    kinds: list[np.dtype[Any]] = [TEXT, TEXT, np.dtype(np.int64), TEXT, TEXT]
    columns: list[Any] = [VariantColumn(lines, i, kind) for i, kind in enumerate(kinds)]
    if isinstance(kept, slice):
        columns[0] = places.chromosomes
    else:
        columns[0] = Runs.of(np.asarray(places.chromosomes)[kept])
    if lines.count > HELD:
        return columns
    held = in_memory(columns, lines.count)
    return [_compacted(column) if column.dtype == TEXT else column for column in held]


def _compacted(names: Text) -> Text:
    return compact(names.tolist())


def several_shown(path: str, places: Places) -> str:
    """The first multiallelic variants, for a message."""
    some, count = places.several[:4], len(places.several)
    rows = BgenLines(path, stamp_of(path), places.starts[some])._read(0)
    texts = [[text.decode(errors="replace") for text in row[0]] for row in rows]
    shown = [
        f"{chromosome}:{row[1]} {','.join(alleles)}"
        for row, (chromosome, _, *alleles) in zip(rows, texts, strict=True)
    ]
    return shorten(shown, count)
