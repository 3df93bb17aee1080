"""Tables by path, or in the hands of a caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampca.errors import InvalidInputError, hide_secrets
from streampca.matrix import ChunkedMatrix
from streampca.paths import TEXTS
from streampca.sources.stacked import Dim
from streampca.sources.tables.arrow import open_dataset, open_frame, open_ipc, open_query
from streampca.sources.tables.columns import Wanted
from streampca.sources.tables.files import TableFile, parquet_files, table_file
from streampca.sources.tables.parquet import open_parquet
from streampca.sources.tables.text import open_text
from streampca.sources.tables.text_options import TEXT_OPTIONS, TextOptions

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
    text : how a text is written, see :class:`TextOptions`.
    """
    if dim not in (None, 0) or isinstance(dim, bool):
        raise InvalidInputError(
            f"dim={dim!r}; expected 0: the rows of a table are the samples. Where its columns are: "
            "`streampca convert x.csv -o x.zarr`, and streampca.open('x.zarr', dim=1)"
        )
    if isinstance(columns, str):
        raise InvalidInputError(f"columns={columns!r}; expected a list: columns=[{columns!r}]")
    names = None if columns is None else tuple(columns)
    wanted = Wanted(names, index, categorical, TextOptions.of(text))
    stated = [name for name in TEXT_OPTIONS if text.get(name) is not None]
    if not isinstance(table, list):
        _refuse_of_text(stated, f"a {type(table).__name__}")
        return _in_hand(table, wanted)
    where = hide_secrets(table[0]) + (f" and {len(table) - 1} more" if len(table) > 1 else "")
    suffix = next((one for one in FORMATS if str(table[0]).lower().endswith(one)), None)
    if suffix is None or FORMATS[suffix] is not open_text:
        _refuse_of_text(stated, where)
    if suffix is not None:
        return FORMATS[suffix](table_file(table[0], options), wanted)
    files = [file for path in table for file in parquet_files(path, options)]
    return open_parquet(where, files, wanted)


def _refuse_of_text(stated: Sequence[str], what: str) -> None:
    if stated:
        raise InvalidInputError(
            f"{stated[0]}=: {what} is not text (CSV, TSV): its values have types; leave "
            f"{stated[0]}= out"
        )


def _in_hand(table: Any, wanted: Wanted) -> ChunkedMatrix:
    """A data set, a lazy frame, or a frame in memory."""
    kind = type(table).__name__
    if kind == "LazyFrame":
        return open_query(table, wanted)
    return open_dataset(table, wanted) if kind.endswith("Dataset") else open_frame(table, wanted)
