"""Delimited text: parsed by Arrow, in ranges of whole lines. Types are taken once, on opening."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streampca.errors import (
    ChangingSourceError,
    InvalidInputError,
    SourceError,
    UncertainHeaderWarning,
    hide_secrets,
    warn_caller,
)
from streampca.matrix.columns import as_text
from streampca.matrix.names import whole_numbers
from streampca.paths import first_line
from streampca.sources.tables.arrow import opened
from streampca.sources.tables.coding import (
    coding_of,
    line_ends,
    masked,
    not_utf8,
    opened_text,
    read_exactly,
    unpacking,
)
from streampca.sources.tables.columns import REASON, Columns, Wanted, plain_values
from streampca.sources.tables.dialect import Text, heading
from streampca.sources.tables.files import TableFile
from streampca.sources.tables.numbers import (
    as_numbers,
    cells_of,
    may_hold_numbers,
    refuse_mixed,
    rows_of,
    unreadable,
)
from streampca.sources.tables.reader import FileReader, TableMatrix
from streampca.sources.tables.row_names import FIRST_ROWS, called_id

RANGE_NBYTES = 8 << 20  # of text that are parsed at a time
HEAD_NBYTES = 1 << 20  # of text that types are taken from
LEAST_LINES = 4  # of a wide table, whatever they take
DIGITS = re.compile(r"[0-9]+")
UNCLOSED_NBYTES = 64 << 20  # that a field in quotes may have


class TextReader(FileReader):
    """Ranges of lines of one file; a compressed one is read from its beginning."""

    def __init__(
        self, file: TableFile, text: Text, schema: Any, ranges: Ranges, columns: Columns
    ) -> None:
        self.file, self.text, self.schema, self.ranges = file, text, schema, ranges
        self.sequential = text.coding.sequential
        rows = ranges.rows
        whole = [int(rows.sum())] if rows.sum() else []
        super().__init__(hide_secrets(file.path), columns, whole if self.sequential else rows)

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        numbers = range(len(self.ranges.rows)) if self.sequential else [unit]
        if self.sequential or "file" not in held:
            held["file"] = opened_text(self.file, self.text.coding)
        with unpacking(self.file, self.text.coding):
            if self.sequential:
                read_exactly(held["file"], int(self.ranges.ends[0]))
            for number in numbers:
                table = self._parsed(
                    self._lines(held["file"], number), names, number, bool(held.get("literal"))
                )
                yield from table.combine_chunks().to_batches(max_chunksize=rows)

    def _lines(self, file: Any, number: int) -> bytes:
        start, stop = (int(self.ranges.ends[number + i]) for i in (0, 1))
        if not self.sequential and file.tell() != start:
            file.seek(start)
        return read_exactly(file, stop - start)

    def _parsed(self, data: bytes, names: Sequence[str], number: int, literal: bool) -> Any:
        types = {name: pa.string() if literal else self.kind_of(name) for name in names}
        line = int(self.ranges.lines[number])
        try:
            table = parsed(data, self.text, types, list(names), literal)
        except pa.ArrowInvalid as error:
            numeric = lambda name: types.get(name) == pa.float64()  # noqa: E731
            raise _why(self.where, data, self.text, numeric, line, error) from None
        if table.num_rows != self.ranges.rows[number]:
            raise ChangingSourceError(
                f"{self.where}, from line {line} on: {table.num_rows} rows were found where "
                f"{self.ranges.rows[number]} were; it was changed. Open it again"
            )
        return table

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
        numbers = whole_numbers(text)
        return as_text(text) if numbers is None else numbers

    def edges(self, dim: int) -> Any:
        return self.begins if dim == 0 else np.array([0, self.shape[1]])

    def stream_nbytes(self) -> int:
        cells = len(self.columns.columns) * int(self.ranges.rows.max(initial=0))
        copies = 3 + 2 * self.text.is_rewritten + 2 * (not self.text.written.plain)
        return copies * RANGE_NBYTES + 8 * cells * (1 + 2 * (not self.text.written.plain))

    def stamp(self) -> list[Any]:
        return [*super().stamp(), self.text]


def parsed(
    data: bytes,
    text: Text,
    types: dict[str, Any] | None,
    names: list[str] | None,
    literal: bool = False,
) -> Any:
    """A table of whole lines.  types : of columns, None to infer them.  names : to be read.
    literal : no text means missing."""
    written = text.written
    strings = types is not None and not literal
    if types is not None and not written.plain:  # text first, and numbers of it
        numbers = [name for name, kind in types.items() if kind == pa.float64()]
        types = types | dict.fromkeys(numbers, pa.string())
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text.lines(data)),
        read_options=pyarrow.csv.ReadOptions(column_names=text.names),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=text.mark, newlines_in_values=text.multiline
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=names,
            strings_can_be_null=(strings or not written.plain) and not literal,
            null_values=written.nulls,
            decimal_point=written.decimal,
        ),
    )
    if not written.plain:
        table = _numbered(table, text, None if types is None else numbers)
    return table if literal else _without_codes(table, written.codes)


def _without_codes(table: Any, codes: list[float]) -> Any:
    """The table with nothing where a number is one of these."""
    if not codes:
        return table
    for i, column in enumerate(table.columns):
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            numbers = column.cast(pa.float64(), safe=False)
            found = pc.is_in(numbers, value_set=pa.array(codes, pa.float64()))
            none = pa.scalar(None, column.type)
            table = table.set_column(i, table.schema.names[i], pc.if_else(found, none, column))
    return table


def _numbered(table: Any, text: Text, names: list[str] | None) -> Any:
    """The table with columns of text as numbers.  names : of them; None: of all that can be."""
    for i, name in enumerate(table.schema.names):
        if name in names if names is not None else may_hold_numbers(table.column(i)):
            try:
                column = as_numbers(table.column(i), text.written)
            except pa.ArrowInvalid:
                if names is not None:
                    raise
                continue
            table = table.set_column(i, name, column)
    return table


def _why(
    where: str, data: bytes, text: Text, numeric: Any, line: int, error: Exception
) -> Exception:
    """The error for lines that Arrow does not parse."""
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        at = line + line_ends(data[: wrong.start])
        return not_utf8(where, data, wrong.start, at, **text.written.stated)
    return unreadable(where, data, text, numeric, line, first_line(error).rstrip("."))


def open_text(file: TableFile, wanted: Wanted) -> TableMatrix:
    """One file of delimited text.

    Cost: reads it once, to count its lines; parses its beginning.
    """
    where, coding = hide_secrets(file.path), coding_of(file, wanted.written.encoding)
    with unpacking(file, coding), opened_text(file, coding) as handle:
        head = read_exactly(handle, HEAD_NBYTES)
        whole = len(head) < HEAD_NBYTES
        while not whole and line_ends(head) < LEAST_LINES and len(head) < UNCLOSED_NBYTES:
            more = read_exactly(handle, len(head))
            head, whole = head + more, len(more) < len(head)
    text = heading(head, whole, coding, wanted.written, where)
    with unpacking(file, coding):
        text, ranges = _ranges(file, text)
    if text.doubt:
        warn_caller(text.doubt, UncertainHeaderWarning)
    body = _body(head, text, whole, where)
    schema = _types(body, text, wanted, where, whole)
    if wanted.index is None and text.rowed:
        wanted = replace(wanted, index="")  # the row names of pandas and R
    make = lambda columns: TextReader(file, text, schema, ranges, columns)  # noqa: E731
    stem = where.removesuffix(".gz").rpartition(".")[0]
    note = (
        f"every pass parses {int(ranges.ends[-1]) / 2**20:.3g} MiB of text; where a fit makes "
        f"several, convert it once: streampca convert {where} -o {stem}.zarr"
    )
    return opened(make, schema, where, wanted, f"{text.note}; {note}" if text.note else note)


def _body(head: bytes, text: Text, whole: bool, where: str) -> bytes:
    """The whole rows at the beginning of the file."""
    body = head[text.skipped :]
    if not whole:
        body = body[: _last_end(masked(body, text.delimiter))]
    if not text.lines(body).strip():
        raise SourceError(f"{where} has no row")
    return body


def _types(body: bytes, text: Text, wanted: Wanted, where: str, whole: bool) -> Any:
    """The schema by the first lines: numbers are float64, whatever they look like there.

    Raises InvalidTypeError for columns of numbers in a form that options read.
    """
    try:
        table = parsed(body, text, None, None)
    except pa.ArrowInvalid as error:
        raise _why(where, body, text, lambda _: False, text.line, error) from None
    types = pa.types
    schema = pa.schema(
        [
            (name, pa.float64() if types.is_integer(kind) or types.is_null(kind) else kind)
            for name, kind in zip(table.schema.names, table.schema.types, strict=True)
        ]
    )
    if any(types.is_binary(kind) for kind in schema.types):
        raise _why(where, body, text, lambda _: False, text.line, ValueError("no text"))
    schema = _with_names_of_nothing(schema, table, body, text)
    index = "" if wanted.index is None and text.rowed else wanted.index
    names = [n for n in schema.names if n != index] if wanted.columns is None else wanted.columns
    known = set(schema.names)
    names = [name for name in names if name in known]
    if wanted.categorical is not None and wanted.columns is not None:
        return schema  # a text that is asked for by name is a category
    if not any(may_hold_numbers(table.column(name)) for name in names):
        return schema
    found = cells_of(rows_of(body, text, text.line), text)
    reasons = refuse_mixed(found, names, text, where, whole, wanted.columns is not None)
    for name, words in reasons.items():
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_metadata({REASON: words}))
    return schema


def _with_names_of_nothing(schema: Any, table: Any, body: bytes, text: Text) -> Any:
    """The schema in which a column that is called as names are holds text, where all its cells
    are words that mean a missing number: NA, nan, null may be names."""
    empty = [name for name in table.schema.names if pa.types.is_null(table.column(name).type)]
    for name in filter(called_id, empty):
        cells = parsed(body, text, {name: pa.string()}, [name], literal=True).column(0)
        if pc.any(pc.not_equal(pc.utf8_trim_whitespace(cells), "")).as_py():
            place = schema.get_field_index(name)
            schema = schema.set(place, pa.field(name, pa.string()))
    return schema


# Ranges of whole rows.


class Ranges:
    """ends : bytes at which ranges begin, and the end.  rows : of each.  lines : of the file, at
    which each begins, from 1."""

    def __init__(self, ends: list[int], rows: list[int], lines: list[int]) -> None:
        held = np.array(rows, np.int64)
        keep = np.flatnonzero(held)  # ranges of blank lines alone belong to their neighbours
        self.ends = np.array([ends[0], *(ends[i + 1] for i in keep)], np.int64)
        self.rows = held[keep]
        begins = [0, *(keep[:-1] + 1).tolist()] if len(keep) else []
        self.lines = np.array([lines[i] for i in begins], np.int64)


def _ranges(file: TableFile, text: Text) -> tuple[Text, Ranges]:
    """Where rows begin and end. The text, which knows now whether rows are longer than a line."""
    ends, rows, lines = [text.skipped], list[int](), list[int]()
    rest, line, multiline = b"", text.line, False
    with opened_text(file, text.coding) as handle:
        read_exactly(handle, text.skipped)
        last = False
        while not last:
            data = read_exactly(handle, RANGE_NBYTES)
            last = len(data) < RANGE_NBYTES
            data = rest + data
            shown = masked(data, text.delimiter)
            cut = len(data) if last else _last_end(shown)
            if not cut and len(data) > UNCLOSED_NBYTES:
                raise SourceError(
                    f"{hide_secrets(file.path)}, line {line} or after it: a row does not end "
                    f"within {UNCLOSED_NBYTES >> 20} MiB; is a quote not closed?"
                )
            taken, rest = data[:cut], data[cut:]
            multiline = multiline or shown is not data
            if not taken:
                continue
            ends.append(ends[-1] + len(taken))
            rows.append(_rows(shown[:cut], text))
            lines.append(line)
            line += line_ends(taken)
    return text._replace(multiline=multiline), Ranges(ends, rows, lines)


def _last_end(data: bytes) -> int:
    """Where the last whole row ends; 0 where there is none."""
    cut = data.rfind(b"\n") + 1
    if cut or b"\r" not in data:
        return cut
    return data.rfind(b"\r", 0, len(data) - 1) + 1  # a last one may be half of CR LF


def _rows(lines: bytes, text: Text) -> int:
    """Lines that are not blank, which Arrow skips."""
    if text.is_rewritten:
        lines = text.lines(lines)
    count = line_ends(lines) + (not lines.endswith((b"\n", b"\r")) and lines != b"")
    if lines.startswith((b"\n", b"\r")) or b"\n\n" in lines or b"\n\r" in lines or b"\r\r" in lines:
        return sum(1 for line in lines.splitlines() if line)
    return count
