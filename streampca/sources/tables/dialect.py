"""How a text is written: its delimiter, its comments, and the names of its columns."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from streampca.errors import InvalidTypeError, SourceError
from streampca.matrix.columns import is_number
from streampca.sources.tables.coding import Coding, line_ends, not_utf8
from streampca.sources.tables.header import ROWS, Decision, decide
from streampca.sources.tables.text_options import BLANKS, TextOptions, stated_delimiter

DELIMITERS = ",\t;|"
SNIFFED = 20  # rows that the delimiter is taken from
MOST_CELLS = 40_000  # that are looked at
HASH = "#"
COMMA_NUMBER = re.compile(r"\s*[+-]?\d+,\d+\s*")
Row = tuple[int, list[str]]  # (line at which it ends, cells)


class Text(NamedTuple):
    """How a file is written.

    names : of the columns.  delimiter : one character, or BLANKS.  skipped : bytes of its heading.
    line : number of the first line after it.  rowed : whether the first column, without a name,
    holds those of the rows.  multiline : whether quoted fields hold line ends.
    note, doubt : what was decided about the first line: in a few words, and as a warning; or "".
    """

    names: tuple[str, ...]
    delimiter: str
    skipped: int
    line: int
    rowed: bool
    written: TextOptions
    coding: Coding
    multiline: bool = False
    note: str = ""
    doubt: str = ""

    @property
    def is_rewritten(self) -> bool:
        """Whether lines are rewritten before they are parsed."""
        return self.delimiter == BLANKS or self.written.comment is not None

    @property
    def mark(self) -> str:
        """The delimiter after lines are rewritten."""
        return " " if self.delimiter == BLANKS else self.delimiter

    def lines(self, data: bytes) -> bytes:
        """Lines as they are parsed."""
        if not self.is_rewritten:
            return data
        return rewritten(data, self.delimiter, self.written.comment)


def rewritten(data: bytes, delimiter: str, comment: str | None) -> bytes:
    """Lines without comments, and with one blank where there are several. Line ends stay."""
    if comment is not None and (mark := comment.encode()) in data:
        data = _outside_quotes(data, rb" *" + re.escape(mark) + rb"[^\r\n]*", b"")
    if delimiter == BLANKS:
        data = _outside_quotes(data, rb"[ \t]+", b" ")
        data = _compiled(rb"(?:\A|(?<=[\r\n])) | (?=[\r\n]|\Z)").sub(b"", data)
    return data


def _outside_quotes(data: bytes, pattern: bytes, by: bytes) -> bytes:
    if b'"' not in data:
        return _compiled(pattern).sub(by, data)
    both = _compiled(rb'"(?:[^"]|"")*"|(?P<out>' + pattern + rb")")
    return both.sub(lambda found: found[0] if found["out"] is None else by, data)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


def heading(head: bytes, whole: bool, coding: Coding, written: TextOptions, path: str) -> Text:
    """How the text is written that begins so.  whole : whether that is all of it.

    Raises SourceError (nothing there, no UTF-8) and InvalidTypeError (lines that do not agree).
    """
    lines = decoded_lines(head, whole, written, path)
    stated = stated_delimiter(lines[0]) if lines else None
    above = int(stated is not None)
    start = above + _leading(lines[above:], written.comment or HASH)
    body = lines[start:]
    if not body:
        held = "the first line is empty, and there are no others"
        if start and any(map(str.strip, lines)):
            held = "it holds comments and empty lines"
        raise SourceError(f"{path} has no row: {held}; expected names of columns, and rows")
    delimiter = written.delimiter or stated or sniffed(body, written.comment)
    rows = records(body, delimiter, written.comment)
    if (names := _names_above(lines[above:start], delimiter, rows, written)) is not None:
        return _text(lines, start, names, rows, delimiter, coding, written, path)
    named = _is_named(body, rows, written)
    begin, first = (start + rows[0][0], rows[0][1]) if named.names else (start, None)
    rest = rows[1:] if named.names else rows
    text = _text(lines, begin, first, rest, delimiter, coding, written, path)
    note, doubt = _notes_of(rows[0][1], named, start + rows[0][0], path, written)
    return text._replace(note=note, doubt=doubt)


def decoded_lines(
    head: bytes, whole: bool, written: TextOptions, path: str, opener: str = "open"
) -> list[str]:
    """The whole lines at the beginning of a file. Raises SourceError where they are no UTF-8."""
    wrong = head.find(b"\0")
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut = not whole and error.end >= len(head) - 3  # within a character
        wrong = wrong if cut or 0 <= wrong < error.start else error.start
        text = head[: error.start].decode()
    if wrong >= 0:
        line = 1 + line_ends(head[:wrong])
        raise not_utf8(path, head, wrong, line, opener, **written.stated)
    lines = list(io.StringIO(text, newline=""))
    return lines if whole or len(lines) < 2 else lines[:-1]


def _leading(lines: Sequence[str], comment: str) -> int:
    """How many lines come before the first that is neither empty nor a comment."""
    shown = (line.lstrip("\ufeff").strip() for line in lines)
    found = (i for i, one in enumerate(shown) if one and not one.startswith(comment))
    return next(found, len(lines))


def records(lines: Sequence[str], delimiter: str, comment: str | None = None) -> list[Row]:
    """The first rows."""
    text = "".join(lines[: 4 * ROWS]).lstrip("\ufeff").encode()
    text = rewritten(text, delimiter, comment)
    mark = " " if delimiter == BLANKS else delimiter
    reader = csv.reader(io.StringIO(text.decode(), newline=""), delimiter=mark)
    found: list[Row] = []
    try:
        for row in reader:
            if row:
                found.append((reader.line_num, [cell.strip() for cell in row]))
            if len(found) > 5 and len(found) * len(row) > MOST_CELLS:
                break
    except csv.Error:  # a field longer than Python's csv takes; Arrow parses it
        pass
    return found


def sniffed(lines: Sequence[str], comment: str | None = None) -> str:
    """The delimiter: the one by which rows are of one length, and hold the most numbers."""
    first = lines[0]
    best, most = max(DELIMITERS, key=first.count), (False, 0.0, 0)
    for mark in (*DELIMITERS, BLANKS):
        if mark == BLANKS and most[0]:
            break  # blanks part columns only where nothing else does
        rows = [row for _, row in records(lines[:SNIFFED], mark, comment)]
        rows = rows[:-1] if len(rows) > 2 and len(lines) > SNIFFED else rows  # it may be cut
        widths = [len(row) for row in rows]
        if len(rows) == 0 or widths[-1] < 2:
            continue
        same = set(widths[1:] or widths) == {widths[-1]}
        same = same and widths[0] in (widths[-1], widths[-1] - 1)
        cells = [cell for row in rows[1:] or rows for cell in row]
        numbers = sum(is_number(cell) or bool(COMMA_NUMBER.fullmatch(cell)) for cell in cells)
        found = (same, numbers / len(cells), widths[0])
        if same and found > most:
            best, most = mark, found
    return best


# The names of the columns.


def _names_above(
    leading: Sequence[str], delimiter: str, rows: Sequence[Row], written: TextOptions
) -> list[str] | None:
    """The names in the last comment before the rows, as NumPy's savetxt writes them, or None."""
    comments = [one.strip("\ufeff\r\n") for one in leading if one.strip("\ufeff \t\r\n")]
    if not comments or written.comment is not None or written.header is False:
        return None
    last = comments[-1].removeprefix(f"{HASH} ").removeprefix(f"{HASH}\t")
    names = records([last], delimiter)
    same = bool(names) and len(names[0][1]) == len(rows[0][1])
    if not same or (len(rows[0][1]) == 1 and len(comments) > 1):
        return None
    return None if _decided(rows, written).names else names[0][1]


def _decided(rows: Sequence[Row], written: TextOptions, quoted: bool = False) -> Decision:
    first, *rest = ([_plain(cell, written) for cell in row] for _, row in rows[: ROWS + 1])
    longer = bool(rest) and {len(row) for row in rest} == {len(first) + 1}
    return decide(["", *first] if longer else first, rest, quoted)


def _plain(cell: str, written: TextOptions) -> str:
    """A cell with "." for the decimal mark, and nothing for a missing value."""
    if cell in written.na_values:
        return ""
    for one in (written.thousands or "") + written.strip:
        cell = cell.replace(one, "")
    return cell.replace(written.decimal, ".").strip() if written.decimal != "." else cell.strip()


def _is_named(body: Sequence[str], rows: Sequence[Row], written: TextOptions) -> Decision:
    """Whether the first row holds names."""
    if written.header is not None:
        return Decision(written.header, True)
    end, first = rows[0]
    inside = "".join(body[:end]).count('"') >= 2 * sum(map(bool, first)) > 0
    after = [(body[at - 1].count('"'), len(row)) for at, row in rows[1:6]]
    quoted = inside and bool(after) and all(count < 2 * width for count, width in after)
    return _decided(rows, written, quoted)


def _notes_of(
    first: Sequence[str], named: Decision, line: int, path: str, written: TextOptions
) -> tuple[str, str]:
    """The note and the doubt about the first line."""
    if not named.why and named.sure:
        return "", ""
    said = {**written.stated, "header": not named.names}
    doubt = "" if named.sure else named.doubt(path, line, first, "sample", said)
    return named.note(line, first, "sample"), doubt


def _text(
    lines: Sequence[str],
    begin: int,
    first: Sequence[str] | None,
    rows: Sequence[Row],
    delimiter: str,
    coding: Coding,
    written: TextOptions,
    path: str,
) -> Text:
    """The text whose rows begin at line ``begin``, from 0.  first : its names, if it has any."""
    skipped = sum(len(line.encode()) for line in lines[:begin])
    if begin == 0 and lines[0].startswith("\ufeff"):
        skipped = len("\ufeff".encode())
    widths = Counter(len(row) for _, row in rows)
    width = widths.most_common(1)[0][0] if widths else 0
    if first is None:
        names = [f"c{i}" for i in range(width)]
    else:
        names = list(first)
        if width == len(names) + 1 and len(widths) == 1:
            filled = any(row[-1] for _, row in rows)  # else rows end in a delimiter
            names = ["", *names] if filled else [*names, ""]  # R writes names of rows so
        if rows and width != len(names):
            raise InvalidTypeError(
                f"{path}: line {begin} has {len(names)} names of columns, and the rows after it "
                f"have {width} fields; expected as many. Repair line {begin}"
            )
    rowed = first is not None and names[0] == ""
    return Text(tuple(_apart(names)), delimiter, skipped, begin + 1, rowed, written, coding)


def _apart(names: Sequence[str]) -> list[str]:
    """Names that are there once: a second "a" is "a.1", and one without is "Unnamed: 3", as of
    pandas."""
    filled = [name or (f"Unnamed: {i}" if i else "") for i, name in enumerate(names)]
    taken, seen, found = set(filled), set[str](), list[str]()
    for name in filled:
        one, number = name, 0
        while one in seen or (number and one in taken):
            number += 1
            one = f"{name}.{number}"
        seen.add(one)
        found.append(one)
    return found
