"""Delimited text: parsed by Arrow, in ranges of whole lines. Types are taken once, on opening."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from streampca.errors import (
    ChangingSourceError,
    InvalidInputError,
    InvalidTypeError,
    SourceError,
    hide_secrets,
)
from streampca.matrix import Location
from streampca.matrix.columns import is_number
from streampca.sources.columns import as_strings
from streampca.sources.identifiers import FIRST_ROWS
from streampca.sources.tables.arrow import opened
from streampca.sources.tables.columns import Columns, Wanted
from streampca.sources.tables.files import TableFile, locations_of
from streampca.sources.tables.reader import TableMatrix, TableReader, plain_values

RANGE_NBYTES = 8 << 20  # of text that are parsed at a time
HEAD_NBYTES = 1 << 20  # of text that types are taken from
DELIMITERS = ",\t;|"
WHOLE = re.compile(r"-?[1-9][0-9]{0,17}|0")  # "001" is a name, and no number
DIGITS = re.compile(r"[0-9]+")
BLANK = re.compile(rb"(?:^|(?<=\n))\r?\n")


class Text(NamedTuple):
    """How a file is written.  skipped : bytes of its heading."""

    names: tuple[str, ...]
    delimiter: str
    skipped: int


class TextReader(TableReader):
    """Ranges of lines of one file; a compressed one is read from its beginning."""

    def __init__(
        self, file: TableFile, text: Text, schema: Any, ends: Any, lengths: Any, columns: Columns
    ) -> None:
        self.file, self.text, self.schema, self.ends = file, text, schema, ends
        self.packed = is_packed(file.path)
        self.ranges = lengths  # rows of each range of lines
        whole = [int(lengths.sum())] if lengths.sum() else []
        super().__init__(hide_secrets(file.path), columns, whole if self.packed else lengths)

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        numbers = range(len(self.ranges)) if self.packed else [unit]
        if self.packed or "file" not in held:
            held["file"] = opened_text(self.file)
        first = 0 if self.packed else int(self.begins[unit])
        for number in numbers:
            data = _lines(held["file"], int(self.ends[number]), int(self.ends[number + 1]))
            table = self._parsed(data, names, first, bool(held.get("literal")))
            if table.num_rows != self.ranges[number]:
                raise ChangingSourceError(
                    f"{self.where}: {table.num_rows} rows were found where {self.ranges[number]} "
                    "lines are; it was changed, or a quoted text holds line ends. Convert such a "
                    "file with pandas: read_csv(path).to_parquet(...)"
                )
            first += table.num_rows
            yield from table.combine_chunks().to_batches(max_chunksize=rows)

    def _parsed(self, data: bytes, names: Sequence[str], first: int, literal: bool) -> Any:
        types = {name: pa.string() if literal else self.kind_of(name) for name in names}
        try:
            return parsed(data, self.text, types, list(names), literal)
        except pa.ArrowInvalid as error:
            raise _unreadable(self.where, first, error) from None

    def column_names(self) -> list[str]:
        return list(self.schema.names)

    def worth_a_look(self, name: str) -> bool:
        return True  # all numbers are floats here

    def padded(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        batch = next(iter(self.batches(0, names, FIRST_ROWS, {"literal": True})))
        found = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            text = column.to_pylist()
            digits = all(map(DIGITS.fullmatch, text)) and len(set(text)) == len(text) > 1
            found += [name] if digits and any(one[0] == "0" < one[1:] for one in text) else []
        return found

    def row_names(self, name: str) -> Any:
        if pa.types.is_temporal(self.kind_of(name)):
            return plain_values(self.column(name), name, self.where)
        text = self.column(name, literal=True).to_pylist()
        if "" in text:
            raise InvalidInputError(
                f"{self.where}: column {name!r} is empty at row {text.index('')}; expected a name "
                "for every one"
            )
        return np.array(text, np.int64) if all(map(WHOLE.fullmatch, text)) else as_strings(text)

    def edges(self, dim: int) -> Any:
        return self.begins if dim == 0 else np.array([0, self.shape[1]])

    def stream_nbytes(self) -> int:
        return 3 * RANGE_NBYTES + 8 * len(self.columns.columns) * int(self.ranges.max(initial=0))

    def stamp(self) -> list[Any]:
        return [self.file.path, self.file.size, self.file.version, self.text]

    def paths(self) -> tuple[str, ...]:
        return () if self.file.remote else (self.file.path,)

    def locations(self) -> tuple[Location, ...]:
        return locations_of([self.file])


def _unreadable(where: str, first: int, error: Exception) -> InvalidTypeError:
    told = str(error).strip().partition("\n")[0].rstrip(".")
    if "Expected" in told and "columns" in told:
        return InvalidTypeError(
            f"{where}, after row {first}: {told}; expected the same number of fields in every "
            "line. Repair the file"
        )
    return InvalidTypeError(
        f"{where}, after row {first}: {told}; the first lines held numbers there. Leave the column "
        "out, columns=[...], or write what is missing as an empty field or NA"
    )


def parsed(
    data: bytes, text: Text, types: dict[str, Any] | None, names: list[str] | None,
    literal: bool = False,
) -> Any:  # fmt: skip
    """A table of whole lines.  types : of columns, None to infer them.  names : to be read.
    literal : no text means missing."""
    strings = types is not None and not literal
    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(column_names=text.names),
        parse_options=pyarrow.csv.ParseOptions(delimiter=text.delimiter),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, include_columns=names, strings_can_be_null=strings
        ),
    )


def is_packed(path: str) -> bool:
    return path.endswith(".gz")


def opened_text(file: TableFile) -> Any:
    """A file object of its decompressed bytes."""
    raw = file.open()
    return gzip.GzipFile(fileobj=raw) if is_packed(file.path) else raw


def _lines(file: Any, start: int, stop: int) -> bytes:
    """Bytes start to stop. Forward seeks in a compressed file decompress what lies between."""
    if file.tell() != start:
        file.seek(start)
    data = bytes(file.read(stop - start))
    while len(data) < stop - start and (more := bytes(file.read(stop - start - len(data)))):
        data += more
    return data


def open_text(file: TableFile, wanted: Wanted) -> TableMatrix:
    """One file of delimited text.

    Cost: reads it once, to count its lines; parses its beginning.
    """
    where = hide_secrets(file.path)
    with opened_text(file) as handle:
        head = bytes(handle.read(HEAD_NBYTES))
    text = _heading(head, where)
    schema = _types(head, text, len(head) < HEAD_NBYTES, where)
    if wanted.index is None and text.names[0] == "":
        wanted = Wanted(wanted.columns, "", wanted.categorical)  # the row names of pandas and R
    ends, lengths = _ranges(file, text.skipped)
    make = lambda columns: TextReader(file, text, schema, ends, lengths, columns)  # noqa: E731
    stem = where.removesuffix(".gz").rpartition(".")[0]
    note = (
        f"every pass parses {int(ends[-1]) / 2**20:.3g} MiB of text; where a fit makes several, "
        f"convert it once: streampca convert {where} -o {stem}.zarr"
    )
    return opened(make, schema, where, wanted, note)


def _heading(head: bytes, where: str) -> Text:
    """Names and delimiter by the first line; ``c0``, ... where that holds numbers."""
    line, ended, _ = head.partition(b"\n")
    try:
        first = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        raise SourceError(
            f"{where} is not text in UTF-8; write it again: iconv -t utf-8, or pandas"
        ) from None
    if not first.strip():
        raise SourceError(f"{where}: the first line is empty; expected the names of the columns")
    delimiter = max(DELIMITERS, key=first.count)
    fields = [one.strip() for one in next(csv.reader(io.StringIO(first), delimiter=delimiter))]
    if all(is_number(one) for one in fields):
        return Text(tuple(f"c{i}" for i in range(len(fields))), delimiter, 0)
    if len(set(fields)) < len(fields):
        twice = next(one for one in fields if fields.count(one) > 1)
        raise InvalidInputError(f"{where}: two columns are called {twice!r}; rename one")
    return Text(tuple(fields), delimiter, len(line) + len(ended))


def _types(head: bytes, text: Text, whole: bool, where: str) -> Any:
    """The schema by the first lines: numbers are float64, whatever they look like there."""
    body = head[text.skipped :]
    body = body if whole else body[: body.rfind(b"\n") + 1]
    if not body.strip():
        raise SourceError(f"{where} has no row")
    try:
        found = parsed(body, text, None, None).schema
    except pa.ArrowInvalid as error:
        raise _unreadable(where, 0, error) from None
    types = pa.types
    kinds = [
        pa.float64() if types.is_integer(kind) or types.is_null(kind) else kind
        for kind in found.types
    ]
    return pa.schema(list(zip(found.names, kinds, strict=True)))


def _ranges(file: TableFile, skipped: int) -> tuple[Any, Any]:
    """(bytes at which ranges of whole lines begin, and the end; rows of each)."""
    ends, lengths = [skipped], []
    rest = b""
    with opened_text(file) as handle:
        handle.read(skipped)
        while data := bytes(handle.read(RANGE_NBYTES)):
            cut = data.rfind(b"\n") + 1
            if not cut:
                rest += data
                continue
            lines, rest = rest + data[:cut], data[cut:]
            ends.append(ends[-1] + len(lines))
            lengths.append(_rows(lines))
    if rest:
        ends.append(ends[-1] + len(rest))
        lengths.append(_rows(rest + b"\n"))
    held = np.array(lengths, np.int64)
    keep = held > 0
    if not keep.all():  # ranges of blank lines alone belong to their neighbours
        ends = [ends[0], *(end for end, one in zip(ends[1:], keep, strict=True) if one)]
    return np.array(ends, np.int64), held[keep]


def _rows(lines: bytes) -> int:
    """Lines that are not blank, which Arrow skips."""
    count = lines.count(b"\n")
    if lines.startswith((b"\n", b"\r\n")) or b"\n\n" in lines or b"\n\r\n" in lines:
        count -= len(BLANK.findall(lines))
    return count
