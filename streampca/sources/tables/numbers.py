"""Numbers that are written as text: which cells are none, and the options that read them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streampca.errors import InvalidTypeError, shorten
from streampca.sources.tables.columns import PARTLY
from streampca.sources.tables.dialect import Text
from streampca.sources.tables.text_options import SIGNS, WORDS, TextOptions, line_to_open

UNITS = "$\u20ac\u00a3\u00a5%"  # characters that people write beside numbers
QUOTES = "'`\u2018\u2019\u201c\u201d\""  # that are none in a CSV, around a number
# (decimal mark, mark of thousands) in the order in which they are tried
MARKS = (
    (".", None),
    (".", ","),
    (",", None),
    (",", "."),
    (".", " "),
    (",", " "),
    (".", "'"),
    (",", "'"),
    (",", "\u00a0"),
    (",", "\u202f"),
    (".", "\u00a0"),
    (".", "\u202f"),
    (".", "_"),
)
MOST_SHAPES = 2000  # of the cells of a column; one with more holds text
FEW = 8  # different cells that a line of repair lists
DIGITS = str.maketrans("123456789", "0" * 9)
WITHOUT_LETTERS = r"^[^\pL]*\d[^\pL]*$"
SPECIAL = frozenset(["inf", "infinity", "nan"])


# Cells and columns as numbers, by the options of a caller.


@cache
def _number(decimal: str, thousands: str | None) -> str:
    """The pattern of a number. Groups of two digits are those of India."""
    point = re.escape(decimal)
    exponent = r"(?:[eE][-+]?\d+)?"
    plain = rf"[-+]?(?:\d+(?:{point}\d*)?|{point}\d+){exponent}"
    if thousands is None:
        return plain
    mark = re.escape(thousands)
    return rf"{plain}|[-+]?\d{{1,3}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}(?:{point}\d*)?{exponent}"


def is_readable(cell: str, written: TextOptions) -> bool:
    """Whether a cell is a number, or means a missing one."""
    if cell in written.nulls_set or cell.strip() in written.nulls_set:
        return True
    for one in written.strip:
        cell = cell.replace(one, "")
    cell = cell.strip()
    found = re.fullmatch(_number(written.decimal, written.thousands), cell)
    return found is not None or cell.lstrip("+-").lower() in SPECIAL


def as_numbers(column: Any, written: TextOptions) -> Any:
    """A column of text as float64. Raises pyarrow.ArrowInvalid where a cell is no number."""
    if written.strip:
        column = pc.replace_substring_regex(column, f"[{re.escape(written.strip)}]", "")
    column = pc.utf8_trim_whitespace(column)
    if written.thousands is not None:
        pattern = f"^(?:{_number(written.decimal, written.thousands)}|.*[a-zA-Z].*)$"
        if pc.any(pc.invert(pc.match_substring_regex(column, pattern))).as_py():
            raise pa.ArrowInvalid("marks of thousands at other places")
        column = pc.replace_substring(column, written.thousands, "")
    if written.decimal != ".":
        column = pc.replace_substring(column, written.decimal, ".")
    return column.cast(pa.float64())


# Columns that hold numbers and other text.


@dataclass
class Cells:
    """The cells of a column, by their shape: with 0 for every digit.

    shapes : shape -> one cell of it.  line, first : of the first that is no number.
    """

    name: str
    shapes: dict[str, str] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)  # different cells that are no numbers
    count: int = 0
    numbers: int = 0
    wrong: int = 0
    line: int = 0
    first: str = ""

    def described(self, whole: bool) -> str:
        """What the column holds, for a message."""
        cells = f"{self.count} cells" if whole else f"the first {self.count} cells"
        return (
            f"{self.name!r} is text: {self.numbers} of {cells.removesuffix('cells')}{PARTLY}, and "
            f"line {self.line} holds {self.first!r:.60}"
        )

    def readable(self, written: TextOptions) -> bool:
        """Whether all cells are numbers, or mean a missing one."""
        return all(is_readable(cell, written) for cell in self.shapes.values())


def rows_of(data: bytes, text: Text, line: int) -> Iterator[tuple[int, list[str]]]:
    """(line of the file, cells) of each row.  line : of the first."""
    content = text.lines(data).decode("utf-8", "replace")
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=text.mark)
    begin = line
    for row in reader:
        if row:
            yield begin, row
        begin = line + reader.line_num


def cells_of(rows: Iterable[tuple[int, list[str]]], text: Text) -> list[Cells]:
    """The cells of every column."""
    found = [Cells(name) for name in text.names]
    known: list[dict[str, bool]] = [{} for _ in found]
    for line, row in rows:
        for one, seen, cell in zip(found, known, row, strict=False):
            shape = cell.translate(DIGITS)
            if (number := seen.get(shape)) is None:
                if len(seen) == MOST_SHAPES:
                    continue
                number = seen[shape] = is_readable(cell, text.written)
                one.shapes[shape] = cell
            missing = number and cell.strip() in text.written.nulls_set
            one.count += not missing
            one.numbers += number and not missing
            one.wrong += not number
            if not number:
                one.line, one.first = (line, cell) if not one.line else (one.line, one.first)
                if len(one.others) <= FEW:
                    one.others[cell.strip()] = None
    return found


def may_hold_numbers(column: Any) -> bool:
    """Whether a column of text has a cell with digits and no letters."""
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return bool(text and pc.any(pc.match_substring_regex(column, WITHOUT_LETTERS)).as_py())


# The options that read them.


def repairs(
    mixed: Sequence[Cells], others: Sequence[Cells], written: TextOptions
) -> list[TextOptions]:
    """The options that read all ``mixed`` columns, and the ``others`` still; one or two.

    Two, where a mark may be the decimal one or that of thousands. None, where nothing does.
    """
    words = [cell for one in mixed for cell in one.others if _is_word(cell)]
    held = [cell.strip() for one in mixed for cell in one.shapes.values()]
    signs = "".join(unit for unit in UNITS if any(unit in cell for cell in held))
    signs += "".join(one for one in QUOTES if any(one in (c[:1], c[-1:]) for c in held))
    signs += "=" * any(cell.startswith('="') for cell in held)  # a formula of Excel
    na_values = tuple(dict.fromkeys([*written.na_values, *words]))
    strip = "".join(dict.fromkeys(written.strip + signs))
    tried = {replace(written, na_values=na_values, strip=strip): None}
    for decimal, thousands in MARKS:
        one = replace(
            written, na_values=na_values, strip=strip, decimal=decimal, thousands=thousands
        )
        tried[one] = None
    found = [one for one in tried if all(cells.readable(one) for cells in [*mixed, *others])]
    as_before = found and (found[0].decimal, found[0].thousands) == (
        written.decimal,
        written.thousands,
    )
    if as_before or not found:
        return found[:1]
    pairs = [one for one in found if one.thousands is None or one.decimal == written.decimal]
    return (pairs or found)[:2]


def _is_word(cell: str) -> bool:
    return bool(cell) and (cell in SIGNS or cell.lower() in WORDS)


def _could_be_read(one: Cells, written: TextOptions) -> bool:
    return bool(one.numbers or any("0" in shape for shape in one.shapes)) and bool(
        repairs([one], [], written)
    )


def refuse_mixed(
    found: Sequence[Cells],
    wanted: Sequence[str],
    text: Text,
    path: str,
    whole: bool,
    explicit: bool,
) -> dict[str, str]:
    """Raise InvalidTypeError where wanted columns are numbers in a form that options read.

    found : the cells of all columns.  wanted : names of features.  explicit : whether the caller
    named them; then a column of which a part is numbers is refused, too.
    Returns what is to be said of the columns that are left out for other cells.
    """
    names = {one.name: one for one in found}
    mixed = [names[name] for name in wanted if name in names and names[name].others]
    chosen = set(wanted)
    plain = [one for one in found if one.name in chosen and not one.others]
    readable = [one for one in mixed if _could_be_read(one, text.written)]
    if readable:
        options = repairs(readable, plain, text.written) or repairs(readable[:1], [], text.written)
        raise InvalidTypeError(
            f"{path}: column {readable[0].described(whole)}. {lines_of(options, path)}"
            f"{_without(plain, path, text.written)}"
        )
    some = [one for one in mixed if one.numbers]
    if some and text.line > 1 and all(one.wrong == 1 and one.line == text.line for one in some):
        cells = shorten([one.first for one in some])
        raise InvalidTypeError(
            f"{path}: line {text.line} ({cells}) holds text where all lines after it hold numbers: "
            f"units, or more names? Read the file without it: sed {text.line}d {quote(path)} > "
            "without.csv"
        )
    if explicit and some:
        raise InvalidTypeError(
            f"{path}: column {some[0].described(whole)}{_if_missing(some[0], path, text.written)}"
        )
    return {
        one.name: one.described(whole).partition(" is ")[2] + _if_missing(one, path, text.written)
        for one in some
    }


def lines_of(options: Sequence[TextOptions], path: str) -> str:
    """The line, or the two, to type."""
    first = f"Read it: {line_to_open(path, **options[0].stated)}"
    if len(options) == 1:
        return first
    ways = [
        f"if {option.thousands!r} parts thousands: {line_to_open(path, **option.stated)}"
        if option.thousands is not None
        else f"if {option.decimal!r} is the decimal mark: {line_to_open(path, **option.stated)}"
        for option in options
    ]
    text = "; ".join(ways)
    return text[0].upper() + text[1:]


def _without(plain: Sequence[Cells], path: str, written: TextOptions) -> str:
    names = [one.name for one in plain if one.name]
    if len(names) > FEW:
        return "; or name the other columns, columns=[...]"
    if not names:
        return ""
    return f"; or without it: {line_to_open(path, columns=names, **written.stated)}"


def _if_missing(one: Cells, path: str, written: TextOptions) -> str:
    """The line that takes the other cells for missing, where they are few."""
    if len(one.others) > FEW or "" in one.others:
        return "; expected numbers"
    words = list(dict.fromkeys([*written.na_values, *one.others]))
    line = line_to_open(path, **{**written.stated, "na_values": words})
    stands = "stand" if len(one.others) > 1 else "stands"
    return f". If {shorten([*map(repr, one.others)])} {stands} for missing values: {line}"


def unreadable(
    where: str, data: bytes, text: Text, numeric: Callable[[str], bool], line: int, reason: str
) -> InvalidTypeError:
    """The error for lines that Arrow does not parse: the first that is wrong, and its repair.

    numeric : whether a column is one of numbers.  line : of the first line.  reason : by Arrow.
    """
    width = len(text.names)
    try:
        for at, row in rows_of(data, text, line):
            if len(row) != width:
                return _other_width(where, at, row, text)
            for name, cell in zip(text.names, row, strict=True):
                if numeric(name) and not is_readable(cell, text.written):
                    return _no_number(where, data, text, name, at, cell, line)
    except csv.Error as error:
        reason = str(error)
    return InvalidTypeError(
        f"{where}, line {line} or after it: {reason}; expected rows of {width} "
        "fields. Repair the file"
    )


def _other_width(where: str, line: int, row: Sequence[str], text: Text) -> InvalidTypeError:
    held = text.mark.join(row)
    if held.lstrip().startswith("#") and text.written.comment is None:
        repair = f"If it is a comment: {line_to_open(where, **text.written.stated, comment='#')}"
    else:
        repair = f"Repair or remove line {line}"
    return InvalidTypeError(
        f"{where}, line {line}: {held!r:.60} has {len(row)} fields; expected {len(text.names)}, as "
        f"in the first lines. {repair}"
    )


def _no_number(
    where: str, data: bytes, text: Text, name: str, line: int, cell: str, first: int
) -> InvalidTypeError:
    cells = {one.name: one for one in cells_of(rows_of(data, text, first), text)}
    options = repairs([cells[name]], [], text.written)
    repair = f". {lines_of(options, where)}" if options else ""
    repair = repair or _if_missing(cells[name], where, text.written)
    return InvalidTypeError(
        f"{where}, line {line}: column {name!r} holds {cell!r:.60}, and numbers in the first lines"
        f"{repair}"
    )
