"""Texts, one after another: a folder of files, a column of JSON lines or CSV, or any iterable."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from streampca.errors import InvalidInputError, InvalidTypeError, SourceError, shorten
from streampca.paths import check_readable, refuse_special
from streampca.sources.several import STORES, holds_parquet
from streampca.sources.zarr.opening import is_repository

JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
TEXTS = (".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml", ".eml")


class Document(NamedTuple):
    """A text and its name, or None where documents are only numbered."""

    name: str | None
    text: str


def is_texts(source: Any) -> bool:
    """Whether a source without further options holds texts, rather than a matrix.

    A folder that is no store, a pattern or list of files of text, JSON lines, and whatever is
    iterated over and begins with a text.
    """
    if isinstance(source, (str, os.PathLike)):
        return _is_texts_at(os.fspath(source))
    if hasattr(source, "read") and hasattr(source, "readline"):
        return True
    if isinstance(source, (list, tuple)) or getattr(source, "ndim", 0) == 1:
        first = next(iter(source), None)
        if not isinstance(first, str):
            return False
        paths = isinstance(source, (list, tuple)) and all(map(_is_file, source))
        return _is_texts_at(first) if paths else True
    return isinstance(source, Iterator)


def _is_texts_at(path: str) -> bool:
    if os.path.isdir(path):
        stored = path.rstrip("/").endswith((".zarr", ".icechunk", ".parquet"))
        stored |= any(os.path.exists(os.path.join(path, one)) for one in STORES)
        return not (stored or is_repository(path) or holds_parquet(path))
    if glob.has_magic(path) and not os.path.exists(path):
        path = next(glob.iglob(path, recursive=True), "")
    return path.lower().endswith((*TEXTS, *JSON_LINES))


def _is_file(one: Any) -> bool:
    """Whether a string is the path of a file; texts may be longer than paths can be."""
    return isinstance(one, (str, os.PathLike)) and len(str(one)) < 4096 and os.path.isfile(one)


def documents(
    source: Any, *, column: str | None = None, names: Any = None, encoding: str = "utf-8"
) -> Iterator[Document]:
    """The documents of a source, each read when it is asked for.

    source : a folder (files in it and below it, but hidden ones; the name of a document is its
        path there, such as "sci.med/58046"), a pattern, a list of files, a file of JSON lines or
        CSV, or an iterable of texts: a list, a Series, an open file of a text a line.
    column : of JSON lines or CSV, the key or the title of the text.
    names : of the documents: of JSON lines or CSV the key or title, else a sequence.
    Raises InvalidInputError or SourceError (absent, empty, another encoding) with the remedy.
    """
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        refuse_special(path)
        if path.lower().endswith((*JSON_LINES, *TABLES)):
            return _of_table(path, column, names, encoding)
        return _of_files(*_files(path), column, names, encoding)
    if isinstance(source, (list, tuple)) and source and all(map(_is_file, source)):
        return _of_files([os.fspath(one) for one in source], "", column, names, encoding)
    if not isinstance(source, Iterable) or isinstance(source, (bytes, dict)):
        raise InvalidTypeError(
            f"texts are a {type(source).__name__}; expected a folder, a pattern, a file of JSON "
            "lines or CSV, or a list of texts"
        )
    _refuse_column(column, "texts in memory")
    return _in_memory(source, names)


# -- texts in memory -------------------------------------------------------------------------------


def _in_memory(texts: Iterable[Any], names: Any) -> Iterator[Document]:
    own = getattr(texts, "index", None)  # of a Series, unless it only counts
    if names is None and getattr(getattr(own, "dtype", None), "kind", "i") not in "iu":
        names = own
    if isinstance(names, str):
        raise InvalidInputError(
            f"names={names!r}; expected a name for each text: that of a column is for files of "
            "JSON lines or CSV"
        )
    for i, (text, name) in enumerate(_paired(texts, names)):
        if isinstance(text, bytes):
            text = _decoded(text, "utf-8", f"document {i}")
        if not isinstance(text, str):
            raise InvalidTypeError(
                f"document {i} is {text!r:.60}; expected text. Missing ones of a Series: "
                'texts.fillna("")'
            )
        yield Document(name, text)


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


# -- files, a document each ------------------------------------------------------------------------


def _files(path: str) -> tuple[list[str], str]:
    """The files that a folder or a pattern stands for, in order, and where their names begin."""
    if os.path.isdir(path):
        found = _below(path)
        root = os.path.join(path, "")
    elif glob.has_magic(path):
        found = [one for one in glob.glob(path, recursive=True) if os.path.isfile(one)]
        root = os.path.join(os.path.dirname(path[: _magic(path)]), "")
    elif "://" in path:
        raise InvalidInputError(f"{path}: texts are read from files of this machine, or iterated "
                                "over: LSA().fit(texts)")  # fmt: skip
    else:
        check_readable(path)
        what = "one file is one document" if os.path.isfile(path) else "no such file or folder"
        raise SourceError(
            f"{path}: {what}; expected a folder, a pattern such as 'docs/*.txt', or JSON lines or "
            "CSV. Of a file with a document a line: open(path)"
        )
    if not found:
        raise SourceError(
            f"{path}: no file of text is there; expected a folder of them, a pattern such as "
            "'docs/*.txt', or JSON lines or CSV"
        )
    return sorted(found), root


def _below(path: str) -> list[str]:
    """The files in a folder and below it, but hidden ones."""
    found = []
    for folder, inner, names in os.walk(path):
        inner[:] = [one for one in inner if not one.startswith(".")]
        found += [os.path.join(folder, one) for one in names if not one.startswith(".")]
    return found


def _magic(path: str) -> int:
    return next(i for i, one in enumerate(path) if one in "*?[")


def _of_files(
    paths: Sequence[str], root: str, column: str | None, names: Any, encoding: str
) -> Iterator[Document]:
    _refuse_column(column, "a folder of files")
    if names is not None and len(names) != len(paths):
        raise InvalidInputError(f"names are {len(names)}; there are {len(paths)} files")
    for i, path in enumerate(paths):
        refuse_special(path)
        try:
            with open(path, "rb") as file:
                held = file.read()
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
        own = os.fsencode(path.removeprefix(root)).decode(errors="replace").replace(os.sep, "/")
        yield Document(own if names is None else str(names[i]), _decoded(held, encoding, path))


def _decoded(held: bytes, encoding: str, where: str) -> str:
    try:
        return held.decode(encoding)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{where} is not {encoding}: byte {error.start} is 0x{held[error.start]:02x}. Say its "
            "encoding, such as encoding='latin-1', or take the file out if it is no text; a "
            "folder of images is for streampca.PCA().fit(folder)"
        ) from None
    except LookupError:
        raise _unknown(encoding) from None


def _unknown(encoding: str) -> InvalidInputError:
    return InvalidInputError(
        f"encoding={encoding!r}; expected one of Python's, such as 'utf-8' or 'latin-1'"
    )


# -- a column of JSON lines or CSV -----------------------------------------------------------------


def _of_table(path: str, column: str | None, names: Any, encoding: str) -> Iterator[Document]:
    if not (names is None or isinstance(names, str)):
        raise InvalidInputError(f"names={names!r:.60}; of {path} expected the name of a column")
    check_readable(path)
    if not os.path.isfile(path):
        raise SourceError(f"{path}: no such file")
    records = _json_lines if path.lower().endswith(JSON_LINES) else _table
    for number, record in records(path, encoding):
        if missing := [one for one in (column, names) if one not in (None, *record)]:
            raise InvalidInputError(
                f"{path}, line {number}: there is no {missing[0]!r}; it has {shorten(list(record))}"
            )
        if column is None:
            raise InvalidInputError(
                f"{path} has {shorten(list(record))}: which is the text? "
                f"streampca.open_texts({path!r}, column={next(iter(record), 'text')!r})"
            )
        text = record[column]
        if not isinstance(text, str):
            raise InvalidTypeError(
                f"{path}, line {number}: {column!r} is {text!r:.60}; expected text"
            )
        yield Document(None if names is None else str(record[names]), text)


def _lines(path: str, encoding: str) -> Any:
    """The lines of a table. A byte order mark is no part of the first title."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise _unknown(encoding) from None
    opened: Any = gzip.open if path.lower().endswith(".gz") else open
    return io.TextIOWrapper(opened(path, "rb"), encoding="utf-8-sig" if name == "utf-8" else name,
                            newline="")  # fmt: skip


def _json_lines(path: str, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with _lines(path, encoding) as lines:
        for number, line in enumerate(_checked(lines, path, encoding), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SourceError(f"{path}, line {number}: not JSON ({error})") from None
            if not isinstance(record, dict):
                raise SourceError(f"{path}, line {number}: {line[:60]!r}; expected an object")
            yield number, record


def _table(path: str, encoding: str) -> Iterator[tuple[int, dict[str, Any]]]:
    tab = path.lower().removesuffix(".gz").endswith(".tsv")
    with _lines(path, encoding) as lines:
        rows = csv.DictReader(_checked(lines, path, encoding), delimiter="\t" if tab else ",")
        try:
            for record in rows:
                yield rows.line_num, {k: v for k, v in record.items() if k is not None}
        except csv.Error as error:
            raise SourceError(
                f"{path}, line {rows.line_num}: {error}; JSON lines have no such limits"
            ) from None


def _checked(lines: Iterable[str], path: str, encoding: str) -> Iterator[str]:
    """The lines; errors of reading name the file."""
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not {encoding} ({error.reason}); say its encoding=") from None
    except (EOFError, OSError) as error:
        raise SourceError(f"{path}: cannot be read ({error})") from None


def _refuse_column(column: str | None, what: str) -> None:
    if column is not None:
        raise InvalidInputError(
            f"column={column!r}: {what} have no columns; leave it out, or give JSON lines or CSV"
        )
