"""Text files of people: byte order marks, and the encoding of what is not UTF-8."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from streampca.errors import InvalidInputError, SourceError

UTF8 = "utf-8"
MARKS = {  # byte order marks, the longer ones first
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, or in UTF-16 or 32 with a byte order mark, which is no part.

    Raises SourceError (absent, another encoding) with the command that writes it in UTF-8.
    """
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise SourceError(f"{shown}: {error.strerror or error}") from None
    marked = next((name for mark, name in MARKS.items() if data.startswith(mark)), "")
    wrong = data.find(b"\0") if not marked else -1
    try:
        text = data.decode(marked or "utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = error.start if wrong < 0 else wrong
    if wrong < 0:
        return text
    line, encoding = 1 + data[:wrong].count(b"\n"), marked or encoding_of(data)
    encoding = encoding.replace("-le", "le").replace("-be", "be")  # as iconv calls it
    raise SourceError(
        f"{shown}, line {line}: byte 0x{data[wrong]:02x} is not text in {marked or UTF8}. Write it "
        f"again, such as: iconv -f {encoding} -t utf-8 {quote(shown)} > {quote(shown + '.utf8')}"
    )


def refuse_other_text(path: str | os.PathLike[str]) -> None:
    """Raise SourceError for a file that is no UTF-8, or whose lines end as nobody's do any more.

    For files that are read as bytes, once these are not what was expected.
    """
    read_text(path)
    shown = os.fspath(path)
    with open(path, "rb") as file:
        start = file.read(1 << 16)
    name = next((name for mark, name in MARKS.items() if start.startswith(mark)), "")
    change = f"iconv -f {name} -t utf-8 {quote(shown)}" if name else ""
    if not name and b"\r" in start and b"\n" not in start:
        name, change = "text with the line ends of old Macs", f"tr '\\r' '\\n' < {quote(shown)}"
    if name:
        raise SourceError(f"{shown} is {name}. Write it again: {change} > {quote(shown + '.utf8')}")


@contextmanager
def utf8(path: str | os.PathLike[str], compressed: bool = False) -> Iterator[None]:
    """Raises SourceError, as ``read_text``, where bytes of this file are no UTF-8."""
    try:
        yield
    except UnicodeDecodeError:
        if not compressed:
            read_text(path)
        raise SourceError(f"{os.fspath(path)} holds text that is not in {UTF8}") from None


def marked(path: str | os.PathLike[str]) -> int:
    """Bytes of the byte order mark of UTF-8 at the beginning of a file."""
    with open(path, "rb") as file:
        return 3 * (file.read(3) == codecs.BOM_UTF8)


def encoding_of(data: bytes) -> str:
    """A likely encoding of bytes that are not UTF-8: one that decodes them."""
    if zeros := data[:4096].count(b"\0"):
        return "utf-16-le" if data[1:4096:2].count(b"\0") > zeros / 2 else "utf-16-be"
    try:
        data.decode("cp1252")  # of Windows; it lacks five bytes
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252"


def codec_named(encoding: str) -> str:
    """Python's name of an encoding. Raises InvalidInputError."""
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise InvalidInputError(
            f"encoding={encoding!r}; expected one of Python's, such as 'utf-8' or 'cp1252'"
        ) from None
