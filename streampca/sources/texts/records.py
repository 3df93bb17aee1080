"""Texts in a column of JSON, CSV or Parquet: their records, one after another."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from streampca.paths import PARQUET
from streampca.sources.tables.frames import column_names, is_frame
from streampca.sources.tables.text_options import stated_delimiter
from streampca.sources.text_files import codec_named

JSON = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
DELIMITERS = (",", "\t", ";", "|")
PIECE = 1 << 16  # characters that are read at a time
COPIES = 3  # of a record: its line, its parsed text, and what grows while it is parsed
PARSED_NBYTES = 8  # more of a character of CSV: its parser holds a field as UCS-4
LOOKED_AT = 50  # records, to find a column of texts
ROWS = 256  # of Parquet, at a time
BETWEEN = re.compile(r"[\s,]*")  # the records of an array
TEXT = "text"  # the column of records that are no more than a text
WORDS = 2  # of a value on average, from which a column holds texts


class Record(NamedTuple):
    """A record of a table, and where it stands, for messages."""

    values: dict[str, Any]
    where: str


class Records:
    """The records of a table, read one after another; each is held whole.

    delimiter : of CSV; None is the one that the header has most of (a tab for ``.tsv``).
    room : bytes that a record may take; None: any.  held : bytes of the largest so far.
    Raises SourceError, InvalidInputError, or MemoryLimitError for a record that has no room.
    """

    def __init__(self, path: str, encoding: str, delimiter: str | None, room: int | None) -> None:
        self.path, self.encoding, self.room, self.held = path, encoding, room, 0
        self.delimiter = delimiter
        self.kind = path.lower()
        if delimiter is not None and not self.kind.endswith(TABLES):
            raise InvalidInputError(f"delimiter={delimiter!r} is for CSV; {path} is none")
        if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
            raise InvalidInputError(f"delimiter={delimiter!r:.60}; expected one character")

    def __iter__(self) -> Iterator[Record]:
        if self.kind.endswith(PARQUET):
            return self._parquet()
        if not self.kind.endswith(JSON):
            return self._table()
        return self._json_array() if self._is_array() else self._json_lines()

    def _take(self, nbytes: int, where: str) -> None:
        """Count the bytes of a record. Raises MemoryLimitError."""
        self.held = max(self.held, nbytes)
        if self.room is not None and nbytes > self.room:
            raise MemoryLimitError(
                f"{where} has a record that takes over {nbytes >> 20} MiB while it is parsed, and "
                f"the memory limit leaves {self.room >> 20} MiB for one. Set a larger limit, or "
                "give the text as a file of its own, which is read in pieces"
            )

    def _lines(self, newline: str | None) -> Iterator[str]:
        """The lines of the file, whose errors name it."""
        number = 0
        with opened(self.path, self.encoding, newline) as file:
            while line := self._line(file, number := number + 1):
                yield line

    def _line(self, file: Any, number: int) -> str:
        first: str = file.readline(PIECE)
        if len(first) < PIECE or first[-1:] in ("\n", "\r"):
            return first
        parts, length, width = [first], len(first), _width(first)
        while part := file.readline(PIECE):
            parts.append(part)
            length, width = length + len(part), max(width, _width(part))
            parsed = PARSED_NBYTES * (not self.kind.endswith(JSON))
            self._take(length * (COPIES * width + parsed), f"{self.path}, line {number}")
            if part[-1:] in ("\n", "\r"):
                break
        return "".join(parts)

    def _json_lines(self) -> Iterator[Record]:
        for number, line in enumerate(self._lines(None), 1):
            where = f"{self.path}, line {number}"
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SourceError(f"{where}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise SourceError(f"{where}: {line[:60]!r}; expected an object")
            yield Record(record, where)

    def _is_array(self) -> bool:
        """Whether the file is a JSON array, and no object a line."""
        with opened(self.path, self.encoding, None) as file:
            while piece := file.read(PIECE):
                if piece.strip():
                    return bool(piece.lstrip()[0] == "[")
        return False

    def _json_array(self) -> Iterator[Record]:
        """The objects of an array; a text among them is an object of :data:`TEXT`."""
        decode, number, at, wanted = json.JSONDecoder().raw_decode, 0, 0, PIECE
        with opened(self.path, self.encoding, None) as file:
            held = file.read(PIECE).lstrip()[1:]
            while True:
                where = f"{self.path}, record {number} of its array"
                at = BETWEEN.match(held, at).end()  # type: ignore[union-attr]
                if held[at : at + 1] == "]":
                    return
                try:
                    record, at = decode(held, at)
                except ValueError as error:  # it is cut where what was read ends, or is no JSON
                    more = file.read(wanted)
                    if not more:
                        raise SourceError(f"{where}: not JSON ({error})") from None
                    held, at, wanted = held[at:] + more, 0, 2 * wanted
                    self._take(COPIES * len(held) * _width(held), where)
                    continue
                number, wanted = number + 1, PIECE
                record = {TEXT: record} if isinstance(record, str) else record
                if not isinstance(record, dict):
                    raise SourceError(f"{where}: {record!r:.60}; expected an object")
                yield Record(record, where)

    def _table(self) -> Iterator[Record]:
        lines = self._lines("")
        head = next(lines, "")
        if (stated := stated_delimiter(head)) is not None:
            head = next(lines, "")
        mark = self.delimiter or stated or self._mark(head)
        rows = csv.DictReader(_behind(head, lines), delimiter=mark)
        while True:
            try:
                with _long_fields(self.room):
                    record = next(rows, None)
            except csv.Error as error:
                raise SourceError(
                    f"{self.path}, line {rows.line_num}: {error}. A quote that is not closed takes "
                    "all lines that follow into its field"
                ) from None
            if record is None:
                return
            values = {k: v for k, v in record.items() if k is not None}
            yield Record(values, f"{self.path}, line {rows.line_num}")

    def _mark(self, head: str) -> str:
        if self.kind.removesuffix(".gz").endswith(".tsv"):
            return "\t"
        return max(DELIMITERS, key=head.count)

    def _parquet(self) -> Iterator[Record]:
        import pyarrow.parquet

        number = 0
        try:
            with pyarrow.parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(ROWS):
                    self._take(COPIES * batch.nbytes, f"{self.path}, from row {number}")
                    for values in batch.to_pylist():
                        yield Record(values, f"{self.path}, row {number}")
                        number += 1
        except (OSError, ValueError) as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"{self.path}: cannot be read ({error})") from None


@contextmanager
def opened(path: str, encoding: str, newline: str | None) -> Iterator[Any]:
    """A file of text, ``.gz`` too, in a context whose errors name it. A byte order mark is no part
    of it. Raises InvalidInputError, SourceError."""
    codec = codec_of(encoding)
    unpacked: Any = gzip.open if path.lower().endswith(".gz") else open
    try:
        with io.TextIOWrapper(unpacked(path, "rb"), encoding=codec, newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        raise undecodable(path, encoding, error.object, error.start, 0) from None
    except (EOFError, OSError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: cannot be read ({error})") from None


def codec_of(encoding: str) -> str:
    """The codec of an encoding, which takes a byte order mark. Raises InvalidInputError."""
    name = codec_named(encoding)
    return "utf-8-sig" if name == "utf-8" else name


def _behind(head: str, lines: Iterable[str]) -> Iterator[str]:
    yield head
    yield from lines


@contextmanager
def _long_fields(room: int | None) -> Iterator[None]:
    """A context in which fields of CSV may be as long as there is room; 131072 by default."""
    before = csv.field_size_limit(1 << 30 if room is None else max(PIECE, room // PARSED_NBYTES))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _width(text: str) -> int:
    """Bytes of a character of a long text in memory."""
    return 1 if text.isascii() else max(1, (sys.getsizeof(text) - 80) // len(text))


def undecodable(where: str, encoding: str, held: bytes, start: int, before: int) -> SourceError:
    """The error for bytes of another encoding, of which ``before`` came earlier."""
    marked = before + start == 0 and held[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    other = "utf-16" if marked else "latin-1"
    return SourceError(
        f"{where} is not {encoding}: byte {before + start} is 0x{held[start]:02x}. Say its "
        f"encoding, such as encoding={other!r}, or take the file out if it is no text; a "
        "folder of images is for streampca.PCA().fit(folder)"
    )


# -- which column holds texts ----------------------------------------------------------------------


def text_columns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns whose values are of two words or more, on average; the longest first."""
    mean = {}
    for name in records[0] if records else ():
        values = [record.get(name) for record in records]
        found = [len(value.split()) for value in values if isinstance(value, str) and value]
        mean[str(name)] = sum(found) / len(found) if found else 0.0
    return sorted((name for name in mean if mean[name] >= WORDS), key=lambda name: -mean[name])


def column_of_texts(source: Any) -> str | None:
    """The column of texts of a table (a path of CSV, TSV or Parquet, or a frame); None without."""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if not (path.lower().endswith((*TABLES, *PARQUET)) and os.path.isfile(path)):
            return None
        records = Records(path, "latin-1", None, None)
        first = [one.values for one in islice(records, LOOKED_AT)]
    elif is_frame(source):
        names = column_names(source)
        columns = [list(_head(source, name)) for name in names]
        first = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        return None
    return next(iter(text_columns(first)), None)


def _head(frame: Any, name: Any) -> Any:
    """The first values of a column; none of a frame that computes them."""
    if hasattr(frame, "compute"):
        return ()
    if hasattr(frame, "num_columns"):
        return frame[name].slice(0, LOOKED_AT).to_pylist()
    return frame[name].head(LOOKED_AT)
