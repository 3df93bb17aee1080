"""Texts, one after another: a folder of files, a column of JSON or CSV, or any iterable."""

from __future__ import annotations

import codecs
import glob
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from streampca.errors import InvalidInputError, InvalidTypeError, SourceError, shorten
from streampca.paths import PARQUET, check_readable, refuse_special
from streampca.sources.local_files import visible_files
from streampca.sources.opening import STORES, holds_parquet
from streampca.sources.texts.records import (
    JSON,
    LOOKED_AT,
    PIECE,
    TABLES,
    Records,
    codec_of,
    opened,
    text_columns,
    undecodable,
)
from streampca.sources.zarr.stores import is_repository

TEXTS = (".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".eml")


class Document(NamedTuple):
    """A text, and its name, or None where documents are only numbered.

    parts : the text in pieces, read once, when they are asked for; none for an empty text, None
        for one that is missing.
    where : it stands, for messages.
    """

    name: str | None
    parts: Iterable[str] | None
    where: str


def is_texts(source: Any) -> bool:
    """Whether a source without further options holds texts, rather than a matrix.

    A folder that is no store, a pattern or list of files of text, JSON, and whatever is
    iterated over and begins with a text, or with missing ones before it.
    """
    if isinstance(source, (str, os.PathLike)):
        return _is_texts_at(os.fspath(source))
    if hasattr(source, "read") and hasattr(source, "readline"):
        return True
    if isinstance(source, (list, tuple)) or getattr(source, "ndim", 0) == 1:
        first = next((one for one in islice(source, LOOKED_AT) if not _is_null(one)), None)
        if not isinstance(first, str):
            return False
        paths = isinstance(source, (list, tuple)) and all(map(_is_file, source))
        return _is_texts_at(first) if paths else True
    return isinstance(source, Iterator)


def _is_texts_at(path: str) -> bool:
    if os.path.isdir(path):
        stored = path.rstrip("/").endswith((".zarr", ".icechunk", ".parquet"))
        stored |= any(os.path.exists(os.path.join(path, store)) for store in STORES)
        return not (stored or is_repository(path) or holds_parquet(path))
    if glob.has_magic(path) and not os.path.exists(path):
        path = next(glob.iglob(path, recursive=True), "")
    return path.lower().endswith((*TEXTS, *JSON))


def _is_file(one: Any) -> bool:
    """Whether a string is the path of a file; texts may be longer than paths can be."""
    return isinstance(one, (str, os.PathLike)) and len(str(one)) < 4096 and os.path.isfile(one)


def _is_null(text: Any) -> bool:
    """Whether a text is missing: None, NaN, or the like of pandas."""
    nan = isinstance(text, float) and math.isnan(text)
    return text is None or nan or type(text).__name__ in ("NAType", "NaTType")


@dataclass
class Texts:
    """The documents of a source, each read when it is asked for, in pieces.

    source : a folder (files in it and below it, but hidden ones; the name of a document is its
        path there, such as "sci.med/58046"), a pattern, a list of files, a file of JSON (an array,
        or an object a line), CSV or Parquet, or an iterable of texts: a list, a Series, an open
        file of a text a line.
    column : of JSON, CSV or Parquet, the key or the title of the text.
    names : of the documents: of such a file the key or title, else a sequence.
    delimiter : of CSV.  lines : whether each line of a file is a document.
    room : bytes that a record of a table may take, None: any.  held : of the largest that came.

    Iterating raises InvalidInputError or SourceError (absent, empty, another encoding) with the
    remedy.
    """

    source: Any
    column: str | None = None
    names: Any = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    lines: bool = False
    room: int | None = None
    held: int = 0

    def __iter__(self) -> Iterator[Document]:
        source = self.source
        if isinstance(source, (str, os.PathLike)):
            path = os.fspath(source)
            refuse_special(path)
            if path.lower().endswith((*JSON, *TABLES, *PARQUET)) and not self.lines:
                return self._of_table(path)
            self._refuse_options("files of text")
            if self.lines:
                return self._of_lines(path)
            return _of_files(*_files(path), self.names, self.encoding)
        self._refuse_options("texts in memory or a list of files")
        if self.lines:
            raise InvalidInputError("lines=True is for the path of a file, a document a line")
        if isinstance(source, (list, tuple)) and source and all(map(_is_file, source)):
            return _of_files([os.fspath(one) for one in source], "", self.names, self.encoding)
        if not isinstance(source, Iterable) or isinstance(source, (bytes, dict)):
            raise InvalidTypeError(
                f"texts are a {type(source).__name__}; expected a folder, a pattern, a file of "
                "JSON, CSV or Parquet, or a list of texts"
            )
        return _in_memory(source, self.names)

    def _refuse_options(self, what: str) -> None:
        for name in ("column", "delimiter"):
            if (value := getattr(self, name)) is not None:
                raise InvalidInputError(
                    f"{name}={value!r}: {what} have no columns; leave it out, or give JSON lines "
                    "or CSV"
                )

    def _of_lines(self, path: str) -> Iterator[Document]:
        """The lines of a file; their ends are no part of them."""
        _require_file(path)
        with opened(path, self.encoding, None) as file:
            for line, name in _paired(_lines_of(file), self.names):
                yield Document(name, _without_end(line.parts), f"{path}, {line.where}")

    def _of_table(self, path: str) -> Iterator[Document]:
        """A column of a table."""
        if not (self.names is None or isinstance(self.names, str)):
            raise InvalidInputError(
                f"names={self.names!r:.60}; of {path} expected the name of a column"
            )
        _require_file(path)
        records = Records(path, self.encoding, self.delimiter, self.room)
        wanted = {one for one in (self.column, self.names) if one is not None}
        known = False  # whether a record had them: JSON lines leave out what is null
        for values, where in records:
            self.held = records.held
            if self.column is None:
                raise InvalidInputError(self._ask_for_column(path))
            absent = sorted(wanted - set(values))
            if absent and (not known or self.names in absent):
                raise InvalidInputError(
                    f"{where}: there is no {absent[0]!r}; it has {shorten(list(values))}"
                )
            known = True
            name = None if self.names is None else str(values[self.names])
            yield _document(name, values.get(self.column), f"{where}: {self.column!r}")

    def _ask_for_column(self, path: str) -> str:
        records = Records(path, self.encoding, self.delimiter, self.room)
        first = [one.values for one in islice(records, LOOKED_AT)]
        column = next(iter(text_columns(first)), None) or next(iter(first[0]), "text")
        return (
            f"{path} has {shorten(list(first[0]))}: which is the text? "
            f"streampca.open_texts({path!r}, column={column!r})"
        )


def _document(name: str | None, text: Any, where: str) -> Document:
    """A text in memory as a document. Raises InvalidTypeError."""
    if type(text) is str and len(text) <= PIECE:
        return Document(name, (text,) if text else (), where)
    if _is_null(text):
        return Document(name, None, where)
    if isinstance(text, bytes):
        text = _decoded(text, "utf-8", where)
    if not isinstance(text, str):
        raise InvalidTypeError(f"{where} is {text!r:.60}; expected text")
    return Document(name, (text[i : i + PIECE] for i in range(0, len(text), PIECE)), where)


# -- texts in memory, and lines of files -----------------------------------------------------------


def _in_memory(texts: Iterable[Any], names: Any) -> Iterator[Document]:
    own = getattr(texts, "index", None)  # of a Series, unless it only counts
    if names is None and getattr(getattr(own, "dtype", None), "kind", "i") not in "iu":
        names = own
    if isinstance(names, str):
        raise InvalidInputError(
            f"names={names!r}; expected a name for each text: that of a column is for files of "
            "JSON lines or CSV"
        )
    if hasattr(texts, "read") and hasattr(texts, "readline"):
        for line, name in _paired(_lines_of(texts), names):
            yield line._replace(name=name)
        return
    for i, (text, name) in enumerate(_paired(texts, names)):
        yield _document(name, text, f"document {i}")


def _paired(texts: Iterable[Any], names: Any) -> Iterator[tuple[Any, str | None]]:
    """Each text with its name. Raises InvalidInputError where there are more of one than of the
    other."""
    if names is None:
        yield from ((text, None) for text in texts)
        return
    try:
        yield from ((text, str(name)) for text, name in zip(texts, names, strict=True))
    except ValueError as error:
        raise InvalidInputError(f"texts and names differ in number ({error})") from None


def _lines_of(file: Any) -> Iterator[Document]:
    """The lines of an open file of text or bytes, each with its end."""
    number = 0
    while first := file.readline(PIECE):
        parts = _line(file, first)
        yield Document(None, parts, f"line {(number := number + 1)}")
        for _ in parts:  # what was not asked for
            pass


def _line(file: Any, part: Any) -> Iterator[str]:
    """A line in pieces, of which the first has been read."""
    packed = isinstance(part, bytes)
    decoder = codecs.getincrementaldecoder("utf-8")() if packed else None
    end = b"\n" if packed else "\n"
    while part:
        yield decoder.decode(part) if decoder is not None else part
        part = b"" if part.endswith(end) else file.readline(PIECE)


def _without_end(parts: Iterable[str] | None) -> Iterator[str]:
    """The pieces of a line without its end."""
    for part in parts or ():
        if text := part.removesuffix("\n"):
            yield text


# -- files, a document each ------------------------------------------------------------------------


def _require_file(path: str) -> None:
    check_readable(path)
    if not os.path.isfile(path):
        raise SourceError(f"{path}: no such file")


def _files(path: str) -> tuple[list[str], str]:
    """The files that a folder or a pattern stands for, in order, and where their names begin."""
    if os.path.isdir(path):
        found = list(visible_files(path))
        root = os.path.join(path, "")
    elif glob.has_magic(path):
        found = [one for one in glob.glob(path, recursive=True) if os.path.isfile(one)]
        root = os.path.join(os.path.dirname(path[: _magic(path)]), "")
    elif "://" in path:
        raise InvalidInputError(
            f"{path}: texts are read from files of this machine, or iterated over: LSA().fit(texts)"
        )
    else:
        check_readable(path)
        expected = "expected a folder, a pattern such as 'docs/*.txt', or JSON or CSV"
        if os.path.isfile(path):
            raise SourceError(
                f"{path}: one file is one document; {expected}. With a document a line: lines=True"
            )
        raise SourceError(f"{path}: no such file or folder; {expected}")
    if not found:
        raise SourceError(
            f"{path}: no file of text is there; expected a folder of them, a pattern such as "
            "'docs/*.txt', or JSON or CSV"
        )
    return sorted(found), root


def _magic(path: str) -> int:
    return next(i for i, one in enumerate(path) if one in "*?[")


def _of_files(paths: Sequence[str], root: str, names: Any, encoding: str) -> Iterator[Document]:
    if names is not None and len(names) != len(paths):
        raise InvalidInputError(f"names are {len(names)}; there are {len(paths)} files")
    for i, path in enumerate(paths):
        refuse_special(path)
        own = os.fsencode(path.removeprefix(root)).decode(errors="replace").replace(os.sep, "/")
        yield Document(own if names is None else str(names[i]), _file(path, encoding), path)


def _file(path: str, encoding: str) -> Iterator[str]:
    """A file in pieces. Raises SourceError."""
    decoder = codecs.getincrementaldecoder(codec_of(encoding))()
    done, held = 0, b"begun"
    try:
        with open(path, "rb") as file:
            while held:
                held = file.read(PIECE)
                if text := decoder.decode(held, final=not held):
                    yield text
                done += len(held)
    except UnicodeDecodeError as error:
        at = done - (len(error.object) - len(held))  # it begins with what was left
        raise undecodable(path, encoding, error.object, error.start, at) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None


def _decoded(held: bytes, encoding: str, where: str) -> str:
    try:
        return held.decode(encoding)
    except UnicodeDecodeError as error:
        raise undecodable(where, encoding, held, error.start, 0) from None
