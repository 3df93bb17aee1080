"""Tables by path, or in the hands of a caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampca.errors import InvalidInputError, SourceError, hide_secrets
from streampca.matrix import ChunkedMatrix
from streampca.paths import PARQUET, TEXTS
from streampca.sources.stacked import Dim
from streampca.sources.tables.arrow import open_dataset, open_frame, open_ipc, open_query
from streampca.sources.tables.columns import Wanted
from streampca.sources.tables.files import TableFile, files_in
from streampca.sources.tables.parquet import open_parquet
from streampca.sources.tables.text import open_text
from streampca.sources.tables.written import TEXT_OPTIONS, Written
from streampca.urls import check_readable

FORMATS: dict[str, Callable[[TableFile, Wanted], ChunkedMatrix]] = {
    **dict.fromkeys((".arrow", ".feather", ".ipc"), open_ipc),
    **dict.fromkeys(TEXTS, open_text),
}


def open_table(
    table: Any,
    columns: Sequence[str] | None = None,
    index: str | None = None,
    categorical: str | None = None,
    dim: Dim = None,
    options: Mapping[str, Any] | None = None,
    **text: Any,
) -> ChunkedMatrix:
    """The rows of a table as samples.

    table : paths of files (several, or a folder, for Parquet alone), a Dataset of pyarrow, a
        LazyFrame of polars, or a table in memory.
    columns, index, categorical : see :class:`Wanted`.  dim : None or 0.  options : for URLs.
    text : how a text is written, see :class:`Written`.
    """
    if dim not in (None, 0) or isinstance(dim, bool):
        raise InvalidInputError(
            f"dim={dim!r}; expected 0: the rows of a table are the samples. Where its columns are: "
            "`streampca convert x.csv -o x.zarr`, and streampca.open('x.zarr', dim=1)"
        )
    if isinstance(columns, str):
        raise InvalidInputError(f"columns={columns!r}; expected a list: columns=[{columns!r}]")
    names = None if columns is None else tuple(columns)
    wanted = Wanted(names, index, categorical, Written.of(text))
    given = [name for name in TEXT_OPTIONS if text.get(name) is not None]
    if not isinstance(table, list):
        _refuse_of_text(given, f"a {type(table).__name__}")
        return _in_hand(table, wanted)
    where = hide_secrets(table[0]) + (f" and {len(table) - 1} more" if len(table) > 1 else "")
    suffix = next((one for one in FORMATS if str(table[0]).lower().endswith(one)), None)
    if suffix is None or FORMATS[suffix] is not open_text:
        _refuse_of_text(given, where)
    if suffix is not None:
        return FORMATS[suffix](_file(table[0], options), wanted)
    return open_parquet(where, [file for path in table for file in _files(path, options)], wanted)


def _refuse_of_text(given: Sequence[str], what: str) -> None:
    if given:
        raise InvalidInputError(
            f"{given[0]}=: {what} is no text (CSV, TSV), and its values have types; leave "
            f"{given[0]}= out"
        )


def _in_hand(table: Any, wanted: Wanted) -> ChunkedMatrix:
    """A data set, a lazy frame, or a frame in memory."""
    kind = type(table).__name__
    if kind == "LazyFrame":
        return open_query(table, wanted)
    return open_dataset(table, wanted) if kind.endswith("Dataset") else open_frame(table, wanted)


def _file(path: str, options: Mapping[str, Any] | None) -> TableFile:
    check_readable(path)
    if "://" not in path and not os.path.isfile(path):
        what = "is a folder; expected a file" if os.path.isdir(path) else "no such file"
        raise SourceError(f"{path}: {what}")
    return TableFile.at(path, options)


def _files(path: str, options: Mapping[str, Any] | None) -> list[TableFile]:
    """The Parquet files at a path, which may be a folder."""
    if "://" not in path and os.path.isdir(path):
        return files_in(path, PARQUET, options)
    if "://" in path and path.endswith("/"):
        return files_in(path, PARQUET, options)
    return [_file(path, options)]
