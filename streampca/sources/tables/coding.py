"""The bytes of a text file: unpacked, in UTF-8, cut at the ends of rows."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from streampca.errors import DamagedSourceError, SourceError, hide_secrets
from streampca.sources.tables.files import TableFile
from streampca.sources.tables.text_options import BLANKS, line_to_open
from streampca.sources.text_files import MARKS, UTF8, encoding_of

PACKED: dict[bytes, tuple[str, Callable[..., Any]]] = {
    b"\x1f\x8b": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ": ("xz", lzma.LZMAFile),
}
OPENERS = dict(PACKED.values())
OTHERS = {b"PK\x03\x04": "unzip {path}", b"\x28\xb5\x2f\xfd": "zstd -d {path}"}
UNPACKING = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
PIECE_NBYTES = 1 << 16


class Coding(NamedTuple):
    """packed : "gzip", "bzip2", "xz" or "".  encoding : of the text within."""

    packed: str = ""
    encoding: str = UTF8

    @property
    def sequential(self) -> bool:
        """Whether the text can only be read from its beginning."""
        return bool(self.packed) or self.encoding != UTF8


def coding_of(file: TableFile, encoding: str | None = None) -> Coding:
    """How a file is stored, by its first bytes; its name does not count.

    Raises SourceError for an archive that is not read.
    """
    with file.open() as raw:
        head = bytes(raw.read(6))
    for magic, command in OTHERS.items():
        if head.startswith(magic):
            shown = hide_secrets(file.path)
            raise SourceError(
                f"{shown} is packed in a way that is not read; unpack it: "
                f"{command.format(path=shown)}"
            )
    packed = next((name for magic, (name, _) in PACKED.items() if head.startswith(magic)), "")
    if encoding is None or encoding == "utf-8-sig":
        with opened_text(file, Coding(packed)) as handle, unpacking(file, Coding(packed)):
            head = bytes(handle.read(4))
        encoding = next((name for mark, name in MARKS.items() if head.startswith(mark)), UTF8)
    return Coding(packed, encoding)


def opened_text(file: TableFile, coding: Coding) -> Any:
    """A file object of the text in UTF-8."""
    raw: Any = file.open()
    if coding.packed:
        raw = OPENERS[coding.packed](raw)
    if coding.encoding != UTF8:
        raw = io.BufferedReader(_Decoded(raw, coding.encoding))
    return raw


class _Decoded(io.RawIOBase):
    """Text in another encoding as UTF-8."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._file, self._rest = file, b""
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            data = bytes(self._file.read(PIECE_NBYTES))
            self._rest = self._decoder.decode(data, final=not data).encode()
            if not data:
                break
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def read_exactly(handle: Any, size: int) -> bytes:
    """So many bytes, or those that there are."""
    data = bytes(handle.read(size))
    while len(data) < size and (more := bytes(handle.read(size - len(data)))):
        data += more
    return data


@contextlib.contextmanager
def unpacking(file: TableFile, coding: Coding) -> Iterator[None]:
    """A context in which errors of unpacking and decoding name the file and the line."""
    where = hide_secrets(file.path)
    try:
        yield
    except UNPACKING as error:
        reason = str(error).strip().rstrip(".") or type(error).__name__
        raise DamagedSourceError(
            f"{where}: the compressed data end or are damaged after line "
            f"{_whole_lines(file, coding)} ({reason}). Fetch or write the file again"
        ) from None
    except UnicodeDecodeError as error:
        line = 1 + _whole_lines(file, coding)
        raise SourceError(
            f"{where}, line {line}: not text in {coding.encoding} ({error.reason}); leave "
            f"encoding= out, or say another one"
        ) from None


def _whole_lines(file: TableFile, coding: Coding) -> int:
    """How many lines can be read."""
    count = 0
    with opened_text(file, coding) as handle, contextlib.suppress(*UNPACKING, UnicodeDecodeError):
        while data := handle.read1(1 << 12):
            count += line_ends(data)
    return count


def not_utf8(
    path: str, data: bytes, at: int, line: int, opener: str = "open", **options: Any
) -> SourceError:
    """The error for text that is not in UTF-8, with the encoding that reads it.

    data, at : where the wrong byte stands.
    """
    options["encoding"] = encoding_of(data)
    return SourceError(
        f"{path}, line {line}: byte 0x{data[at]:02x} is not text in UTF-8. Say its encoding, such "
        f"as {line_to_open(path, opener, **options)}"
    )


# Rows end at line ends, but for those within quotes.


def line_ends(data: bytes) -> int:
    """How many lines end in it, by LF, CR or both."""
    count = data.count(b"\n")
    if b"\r" in data:
        count += data.count(b"\r") - data.count(b"\r\n")
    return count


def masked(data: bytes, delimiter: str) -> bytes:
    """The bytes, with others in place of quoted fields that hold line ends; most often itself.

    A quote within a field that does not begin with one is a character.
    """
    if b'"' not in data:
        return data
    parts = data.split(b'"')
    if len(parts) % 2 and not any(b"\n" in part or b"\r" in part for part in parts[1::2]):
        return data
    return _quoted(delimiter).sub(lambda found: b"x" * len(found[0]), data)


@functools.cache
def _quoted(delimiter: str) -> re.Pattern[bytes]:
    """A field in quotes; one that does not end there reaches to the end."""
    before = rb" \t" if delimiter == BLANKS else re.escape(delimiter.encode())
    return re.compile(rb"(?:^|(?<=[\r\n" + before + rb']))"(?:[^"]|"")*(?:"|\Z)')
