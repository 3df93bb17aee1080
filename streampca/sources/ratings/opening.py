"""Ratings: (user, item, rating[, time]) in text, Parquet or a frame, as a sparse matrix."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import (
    InvalidInputError,
    MissingDependencyError,
    SourceError,
    UncertainHeaderWarning,
    hide_secrets,
    nearest,
    shorten,
    warn_caller,
)
from streampca.matrix.columns import is_number, label_array
from streampca.paths import PARQUET, first_line
from streampca.sources.ratings.recognition import DELIMITERS
from streampca.sources.ratings.store import RULES, RatingsMatrix, Spill
from streampca.sources.tables.frames import column_names, is_frame
from streampca.sources.tables.header import ROWS, decide
from streampca.sources.tables.text_options import TextOptions, stated_delimiter

PIECE_ROWS = 1 << 20  # of a frame or a Parquet file that are taken at a time
PIECE_NBYTES, HEAD_NBYTES = 8 << 20, 1 << 16  # of text; of its head, that names are taken from
SEPARATOR = b"\x1f"  # stands for a delimiter of several characters


class Fields(NamedTuple):
    """The names of the columns. time : or None."""

    user: str
    item: str
    rating: str
    time: str | None

    @property
    def names(self) -> list[str]:
        return [one for one in self if one is not None]


def open_ratings(
    source: Any,
    *,
    user: str | int = 0,
    item: str | int = 1,
    rating: str | int = 2,
    time: str | int | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    duplicates: str = "last",
    storage_options: dict[str, Any] | None = None,
) -> RatingsMatrix:
    """Ratings as a sparse matrix of users x items, float32, with their ids as labels.

    source : text (any delimiter, ``.gz`` too), Parquet (a file, a folder), or a frame of pandas,
        polars or pyarrow: one line for each rating.
    user, item, rating, time : names of columns, or their numbers from 0.  Ids are text or whole
        numbers, and come in the order in which they first appear.  time : numbers, dates or text
        of dates, by which ``split`` can divide.
    header : whether the first line of text names the columns; None: it does where a column is
        named, where there is no number in the place of the rating, or where its numbers look like
        names (0, 1, 2 over ids; a warning says so where it may be a rating).
    delimiter : of text, such as "::"; None: "::", tab, ";", "|" or ",", whichever is there.
    decimal, encoding : of text, as of ``streampca.open``.
    duplicates : of several ratings of an item by one user count the "last" (the latest by
        ``time``, else the last line), the "first", their "mean"; or they are an "error".

    Cost: the source is read once, in pieces; the ratings go to a scratch folder (12 bytes each,
    20 with times; twice as many while they are sorted), which is removed with the matrix. Memory:
    about 0.25 GB and the ids.
    Raises InvalidInputError (columns, duplicates, ratings that are no finite numbers),
    SourceError, MissingDependencyError.

    Examples:
        >>> import pandas as pd
        >>> rows = [("ann", "dune", 5.0), ("bob", "dune", 3.0), ("bob", "emma", 4.0)]
        >>> streampca.open_ratings(pd.DataFrame(rows, columns=["user", "item", "rating"]))
        <RatingsMatrix: 3 ratings of 2 items by 2 users>
    """
    if duplicates not in RULES:
        raise InvalidInputError(f"duplicates={duplicates!r}; expected one of {RULES}")
    wanted = (user, item, rating, time)
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingDependencyError(
            "ratings are read by pyarrow: pip install 'streampca[tables]'"
        ) from None
    path = "" if is_frame(source) else os.fspath(_checked(source))
    where = hide_secrets(path) or f"the {type(source).__name__}"
    with _readable(where, pa):
        if not path:
            fields, pieces = _of_frame(source, wanted, where)
        elif path.lower().endswith(PARQUET) or os.path.isdir(path):
            fields, pieces = _of_parquet(path, wanted, where, storage_options)
        else:
            said = {"header": header, "decimal": decimal, "encoding": encoding}
            written = (TextOptions.of(said), delimiter)
            fields, pieces = _of_text(path, wanted, where, written, storage_options)
        users, items = Ids(), Ids()
        with Spill(fields.time is not None) as spill:
            for columns in pieces:
                _take(spill, users, items, columns, fields, where)
            names = (users.labels(), items.labels())
            return spill.matrix(names, (fields.user, fields.item), duplicates, path, where)


def _checked(source: Any) -> Any:
    if isinstance(source, (str, os.PathLike)):
        return source
    raise InvalidInputError(
        f"ratings of {type(source).__name__}; expected a path, or a data frame with a line for "
        "each rating. A matrix of users x items needs no open_ratings: fit takes it as it is"
    )


@contextmanager
def _readable(where: str, pa: Any) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{where}: {first_line(error).rstrip('.')}; expected lines of (user, item, rating) "
            "with the same number of fields. Say delimiter= and header= where they are not "
            "recognised"
        ) from None


def _take(
    spill: Spill, users: Ids, items: Ids, columns: Sequence[Any], fields: Fields, where: str
) -> None:
    """Add a piece: its columns are (user, item, rating[, time]) of Arrow."""
    for name, column in zip(fields.names, columns, strict=True):
        if column.null_count:
            row = spill.entries + int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise InvalidInputError(
                f"{where}: no {name!r} in rating {row + 1}; expected one in every line. Remove "
                "such lines"
            )
    values = np.asarray(_numbers(columns[2]), np.float64)
    if not np.isfinite(values).all():
        row = spill.entries + int(np.flatnonzero(~np.isfinite(values))[0])
        raise InvalidInputError(f"{where}: rating {row + 1} is not finite; remove such lines")
    times = None if fields.time is None else _seconds(columns[3], fields.time, where)
    spill.add(users.places(columns[0]), items.places(columns[1]), values, times)


def _numbers(column: Any) -> np.ndarray[Any, Any]:
    """(rows,) of an Arrow column without gaps. By DLPack: other ways load pandas, if installed."""
    if hasattr(column, "__dlpack__") and str(column.type) in ("double", "float", "int32", "int64"):
        return np.from_dlpack(column)
    return np.asarray(column)


def _seconds(column: Any, name: str, where: str) -> np.ndarray[Any, Any]:
    """Times as numbers; dates as seconds since 1970."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        for target in (pa.float64(), pa.timestamp("us")):
            try:
                return _seconds(column.cast(target), name, where)
            except pa.ArrowInvalid:
                continue
        raise InvalidInputError(
            f"{where}: {name!r} holds {column[0].as_py()!r}; expected a number or a date such as "
            "2024-01-31 or 2024-01-31 12:00:00"
        )
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
        return np.asarray(column, np.float64) * 1e-6
    return np.asarray(column, np.float64)


class Ids:
    """The numbers of ids, in the order in which they first appear."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def places(self, column: Any) -> np.ndarray[Any, Any]:
        """(rows,) int32 of a column of Arrow."""
        coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        known = self.known
        found = [known.setdefault(one, len(known)) for one in coded.dictionary.to_pylist()]
        return np.take(np.asarray(found, np.int32), _numbers(coded.indices))

    def labels(self) -> np.ndarray[Any, Any]:
        """All ids: whole numbers where all are such, without leading zeros; else text."""
        ids = list(self.known)
        if ids and all(isinstance(one, int) or _is_whole(one) for one in ids):
            return np.array([int(one) for one in ids], np.int64)
        return label_array([str(one) for one in ids])


def _is_whole(one: Any) -> bool:
    written = isinstance(one, str) and one.isascii() and one.isdigit() and len(one) < 19
    return written and (one == "0" or one[0] != "0")


# Pieces of text, Parquet and frames: (user, item, rating[, time]) of Arrow.

Found = tuple[Fields, Iterator[list[Any]]]
Wanted = tuple[str | int, str | int, str | int, str | int | None]


def _of_text(
    path: str,
    wanted: Wanted,
    where: str,
    said: tuple[TextOptions, str | None],
    options: dict[str, Any] | None,
) -> Found:
    import pyarrow as pa
    import pyarrow.csv

    from streampca.sources.tables import coding
    from streampca.sources.tables.files import table_file

    file, written = table_file(path, options), said[0]
    how = coding.coding_of(file, written.encoding)
    with coding.unpacking(file, how), coding.opened_text(file, how) as handle:
        head = coding.read_exactly(handle, HEAD_NBYTES)
    names, skipped, mark = _first_line(head, wanted, where, said)
    fields = chosen(names, wanted, where)
    types = {name: pa.string() for name in fields.names} | {fields.rating: pa.float64()}

    def pieces() -> Iterator[list[Any]]:
        with coding.unpacking(file, how), coding.opened_text(file, how) as handle:
            coding.read_exactly(handle, skipped)
            several = len(mark) > 1
            source = io.BufferedReader(Replaced(handle, mark.encode())) if several else handle
            reader = pyarrow.csv.open_csv(
                source,
                pyarrow.csv.ReadOptions(column_names=names, block_size=PIECE_NBYTES),
                pyarrow.csv.ParseOptions(
                    delimiter=SEPARATOR.decode() if several else mark,
                    quote_char=False if several else '"',
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=types,
                    include_columns=fields.names,
                    strings_can_be_null=True,
                    null_values=["", "NA", "nan", "NaN", "NULL", "null"],
                    decimal_point=written.decimal,
                ),
            )
            for batch in reader:
                yield batch.columns

    return fields, pieces()


def _first_line(
    head: bytes, wanted: Wanted, where: str, said: tuple[TextOptions, str | None]
) -> tuple[list[str], int, str]:
    """(names of the columns, bytes before the first rating, delimiter)."""
    from streampca.sources.tables.dialect import decoded_lines

    written, delimiter = said
    lines = decoded_lines(head, len(head) < HEAD_NBYTES, written, where, "open_ratings")
    at = next((i for i, line in enumerate(lines) if line.strip("\ufeff \t\r\n")), -1)
    if at < 0:
        raise SourceError(f"{where}: the first line is empty; expected a rating, or names")
    stated = stated_delimiter(lines[at]) if len(lines) > at + 1 else None
    at += stated is not None
    mark = delimiter or stated or next((one for one in DELIMITERS if one in lines[at]), ",")
    first, *rows = (_split(line, mark) for line in lines[at : at + 1 + ROWS] if line.strip())
    header = written.header
    if header is None:
        place = wanted[2]
        rating = first[place] if isinstance(place, int) and place < len(first) else ""
        named = any(isinstance(one, str) for one in wanted)
        named = named or not is_number(rating.replace(written.decimal, "."))
        header = named or _of_numbers(first, rows, where, said)
    skipped = sum(len(line.encode()) for line in lines[: at + bool(header)])
    skipped += len("\ufeff".encode()) * (not skipped and lines[0].startswith("\ufeff"))
    return (first if header else [str(i) for i in range(len(first))]), skipped, mark


def _split(line: str, mark: str) -> list[str]:
    """The cells of a line."""
    line = line.strip("\ufeff\r\n")
    cells = line.split(mark) if len(mark) > 1 else next(csv.reader([line], delimiter=mark))
    return [cell.strip() for cell in cells]


def _of_numbers(
    first: list[str], rows: list[list[str]], where: str, said: tuple[TextOptions, str | None]
) -> bool:
    """Whether a line of numbers holds names. Warns where it is in doubt."""
    written, mark = said
    cells = [[one.replace(written.decimal, ".") for one in row] for row in (first, *rows)]
    found = decide(cells[0], cells[1:])
    if found.names and not found.sure:  # else the number in the place of the rating decides
        stated = {**written.stated, **({"delimiter": mark} if mark else {})}
        stated["header"] = not found.names
        warn_caller(
            found.doubt(where, 1, first, "rating", stated, "open_ratings"), UncertainHeaderWarning
        )
    return found.names


class Replaced(io.RawIOBase):
    """A file in which a delimiter of several bytes is one byte."""

    def __init__(self, file: Any, mark: bytes) -> None:
        self._file, self._mark, self._rest = file, mark, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # the delimiter never makes text longer, and what may be the begin of one waits
        data = b""
        while not data:
            new = bytes(self._file.read(len(buffer) - len(self._rest)))
            whole = (self._rest + new).replace(self._mark, SEPARATOR)
            end = len(whole) - (self._begun(whole) if new else 0)
            data, self._rest = whole[:end], whole[end:]
            if not new:
                break
        buffer[: len(data)] = data
        return len(data)

    def _begun(self, text: bytes) -> int:
        """How many bytes at the end may begin a delimiter."""
        some = range(len(self._mark) - 1, 0, -1)
        return next((n for n in some if text.endswith(self._mark[:n])), 0)


def _of_parquet(path: str, wanted: Wanted, where: str, options: dict[str, Any] | None) -> Found:
    import pyarrow.parquet

    from streampca.sources.tables.files import parquet_files

    files = parquet_files(path, options)
    names = pyarrow.parquet.ParquetFile(files[0].open()).schema_arrow.names
    fields = chosen(list(names), wanted, where)

    def pieces() -> Iterator[list[Any]]:
        for file in files:
            opened = pyarrow.parquet.ParquetFile(file.open())
            for batch in opened.iter_batches(PIECE_ROWS, columns=fields.names):
                yield [batch.column(name) for name in fields.names]

    return fields, pieces()


def _of_frame(frame: Any, wanted: Wanted, where: str) -> Found:
    import pyarrow as pa

    fields = chosen([str(name) for name in column_names(frame)], wanted, where)
    if hasattr(frame, "iloc"):
        table = pa.Table.from_pandas(frame[fields.names], preserve_index=False)
    else:
        chosen_columns = frame.select(fields.names)
        table = chosen_columns if isinstance(frame, pa.Table) else chosen_columns.to_arrow()

    def pieces() -> Iterator[list[Any]]:
        for batch in table.to_batches(PIECE_ROWS):
            yield [batch.column(name) for name in fields.names]

    return fields, pieces()


def chosen(names: list[str], wanted: Wanted, where: str) -> Fields:
    """The names of the wanted columns. Raises InvalidInputError where one is not there."""
    found: list[Any] = []
    for role, one in zip(Fields._fields, wanted, strict=True):
        if one is None:
            found.append(None)
        elif isinstance(one, str) and one in names:
            found.append(one)
        elif isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(names):
            found.append(names[one])
        else:
            meant = nearest(one, names) if isinstance(one, str) else ""
            raise InvalidInputError(
                f"{role}={one!r}: {where} has {len(names)} columns, {shorten(names)}{meant}; give "
                "a name, or a number from 0 where the file has no header, such as user=0, item=1, "
                "rating=2"
            )
    if len(set(found[:3])) < 3:
        raise InvalidInputError(f"user, item and rating are {found[:3]}; expected three columns")
    return Fields(*found)
