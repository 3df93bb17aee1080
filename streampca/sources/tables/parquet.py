"""Parquet: files, folders of them and partitioned data sets, by their row groups."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streampca.errors import ChangingSourceError, InvalidInputError, hide_secrets
from streampca.matrix import Location
from streampca.sources.tables.columns import Choice, Columns, Wanted, agree, categories_of, choose
from streampca.sources.tables.files import AT_ONCE, TableFile, locations_of
from streampca.sources.tables.frames import StoredIndex
from streampca.sources.tables.reader import (
    TableMatrix,
    TableReader,
    table_matrix,
    understood,
    with_categories,
)
from streampca.sources.tables.row_names import called_id

Array = np.ndarray[Any, Any]
BUFFER_NBYTES = 64 << 10  # of a column chunk that are read at a time
PAGE_NBYTES = 1 << 20  # most writers' limit of a page, and of a dictionary
BATCH_ROWS = 1 << 15  # that are decoded at a time; 5,000 take twice the time
BATCH_NBYTES = 32 << 20  # at most
LEVEL_NBYTES = 5  # of a value in a batch, where it may be null
# times what is held: Arrow's allocator keeps some of what was given back; 1.22 measured
KEPT = 1.25
# How a page with a dictionary begins: its kind, and its size in groups of 7 bits. A byte 0x15
# stands before each, and both are doubled.
# Source: parquet-format, parquet.thrift, PageHeader: type, uncompressed_page_size.
DICTIONARY_PAGE = re.compile(rb"\x15\x04\x15([\x80-\xff]{0,4}[\x00-\x7f])")
HEADER_NBYTES = 8
LOOKED_AT = 16  # row groups whose columns are looked at for the plan


@dataclass(frozen=True)
class Footer:
    """What the metadata of one file say.

    schema : of Arrow, with the partition keys.  rows : of the row groups.  nbytes : what decoding
    any of them holds for a column, on average.
    """

    schema: Any
    rows: Array
    nbytes: int
    index: StoredIndex


class ParquetReader(TableReader):
    """The row groups of one or several files, as one table.

    They are decoded in the thread that reads, as many as there are: a pool of Arrow's beside them
    would ignore ``threads=``, and costs more than it gains in small batches.
    """

    def __init__(
        self, where: str, files: Sequence[TableFile], footers: Sequence[Footer], columns: Columns
    ) -> None:
        self.files = tuple(files)
        counts = [footer.rows for footer in footers]
        own = np.concatenate(counts)
        number = np.concatenate([np.full(len(one), i) for i, one in enumerate(counts)])
        group = np.concatenate([np.arange(len(one)) for one in counts])
        held = own > 0
        self.units = np.stack([number[held], group[held]], axis=1)
        self.schema = footers[0].schema
        self.keys = _keys(self.files, self.schema)
        self.column_nbytes = max(footer.nbytes for footer in footers)
        super().__init__(where, columns, own[held])

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        number, group = (int(i) for i in self.units[unit])
        if held.get("number") != number:
            held.update(number=number, file=_open(self.files[number]))
        stored = [name for name in names if name not in self.keys]
        file = held["file"]
        expected = int(self.begins[unit + 1] - self.begins[unit])
        there = file.metadata.num_row_groups > group and file.metadata.row_group(group).num_rows
        if there != expected:
            raise ChangingSourceError(
                f"{hide_secrets(self.files[number].path)} was replaced since it was opened; open "
                "it again"
            )
        some = stored or file.schema_arrow.names[:1]  # of partition keys alone
        found = file.iter_batches(rows, row_groups=[group], columns=some, use_threads=False)
        yield from map(lambda batch: self._with_keys(batch, number, names), found)

    def _with_keys(self, batch: Any, number: int, names: Sequence[str]) -> Any:
        for name in names:
            if name in self.keys:
                kind = self.schema.field(name).type
                value = pa.scalar(self.files[number].keys[name]).cast(kind)
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        return batch

    def in_order(self, order: Sequence[int]) -> ParquetReader:
        """The same files in another order, each with its rows."""
        other = copy.copy(self)
        number = np.argsort(order)[self.units[:, 0]]
        sort = np.lexsort((self.units[:, 1], number))
        other.files = tuple(self.files[i] for i in order)
        other.units = np.stack([number[sort], self.units[sort, 1]], axis=1)
        other.begins = np.concatenate([[0], np.cumsum(np.diff(self.begins)[sort])])
        return other

    def worth_a_look(self, name: str) -> bool:
        remote = self.files[0].remote  # a request each
        return called_id(name) if remote else super().worth_a_look(name)

    def piece_rows(self) -> int:
        """A batch: smaller blocks are folded and gone before the next batch is decoded."""
        return self.batch_rows(1)

    def batch_rows(self, piece: int) -> int:
        """With few, the dictionaries of many columns leave the cache between two batches. Any
        number but a power of 2 makes Arrow copy the values of each column into less room."""
        most = BATCH_NBYTES // max(1, self.shape[1] * self.dtype.itemsize)
        return min(BATCH_ROWS, 1 << max(0, most.bit_length() - 1))

    def decoding_nbytes(self, rows: int) -> int:
        batches = rows * self.shape[1] * (2 * self.dtype.itemsize + LEVEL_NBYTES)
        pages = self.column_nbytes * len(self.columns.columns) + 2 * PAGE_NBYTES
        return int(KEPT * (pages + batches))

    def stamp(self) -> list[Any]:
        return [(file.path, file.size, file.version) for file in self.files]

    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if not file.remote)

    def locations(self) -> tuple[Location, ...]:
        return locations_of(self.files)


def _open(file: TableFile) -> Any:
    """A file, read in small pieces; of object storage a row group at once."""
    with understood(file.path):
        buffered = 0 if file.remote else BUFFER_NBYTES
        return pq.ParquetFile(file.open(), pre_buffer=file.remote, buffer_size=buffered)


def _footer(file: TableFile) -> Footer:
    opened = _open(file)
    about, schema = opened.metadata, _with_categories(opened.schema_arrow)
    rows = np.array([about.row_group(i).num_rows for i in range(about.num_row_groups)], np.int64)
    index = StoredIndex.of(schema)
    for name, value in file.keys.items():
        if name not in schema.names:
            schema = schema.append(pa.field(name, _key_type(value)))
    return Footer(schema.remove_metadata(), rows, _column_nbytes(about, file), index)


def _column_nbytes(about: Any, file: TableFile) -> int:
    """What decoding a row group holds for a column, the mean over the columns.

    Room for the largest page that was decompressed, the dictionary, and what is read ahead. (A
    page as it is stored is held for one column at a time.)
    """
    groups = range(0, about.num_row_groups, max(1, about.num_row_groups // LOOKED_AT))
    most = 0
    with nullcontext() if file.remote else file.open() as stored:
        for i in groups:
            group = about.row_group(i)
            total = 0
            for j in range(group.num_columns):
                column = group.column(j)
                total += min(column.total_uncompressed_size, PAGE_NBYTES)
                total += _dictionary_nbytes(column, stored)
                total += column.total_compressed_size if file.remote else BUFFER_NBYTES
            most = max(most, total // max(1, group.num_columns))
    return most


def _with_categories(schema: Any) -> Any:
    """The schema, with the categories of pandas as such: Parquet holds plain numbers of them."""
    try:
        listed = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("columns", [])
    except ValueError:
        return schema
    names = {one.get("field_name") for one in listed if one.get("pandas_type") == "categorical"}
    for i, field in enumerate(schema):
        if field.name in names and not pa.types.is_dictionary(field.type):
            schema = schema.set(i, field.with_type(pa.dictionary(pa.int32(), field.type)))
    return schema


def _dictionary_nbytes(column: Any, stored: Any) -> int:
    """Bytes of the values in the dictionary of a column, as the header of its page says.

    stored : the file; None where a look at it costs a request. Then, and where the header is
        damaged, the most that it may be.
    """
    if not column.has_dictionary_page:
        return 0
    whole = int(column.total_uncompressed_size)
    if stored is not None:
        stored.seek(column.dictionary_page_offset)
        if header := DICTIONARY_PAGE.match(stored.read(HEADER_NBYTES)):
            doubled: int = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(header[1]))
            return min(doubled // 2, whole)
    return min(whole, PAGE_NBYTES)


def _key_type(value: str | None) -> Any:
    try:
        int(value or "")
    except ValueError:
        return pa.string()
    return pa.int64()


def _keys(files: Sequence[TableFile], schema: Any) -> Mapping[str, Any]:
    """The partition keys that are columns of the table."""
    return {name: None for name in files[0].keys if name in schema.names}


def open_parquet(where: str, files: Sequence[TableFile], wanted: Wanted) -> TableMatrix:
    """The rows of all files, in order.

    Cost: the metadata of each file; the column of the index, and those with categories.
    Raises InvalidTypeError where columns are not numeric, or differ between files.
    """
    if len(files) == 1 or not files[0].remote:  # threads would each take memory of their own
        footers = [_footer(file) for file in files]
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            footers = list(pool.map(_footer, files))
    footers = _same_keys(files, footers)
    first = footers[0]
    choices: dict[Any, Choice] = {}
    for file, footer in zip(files, footers, strict=True):
        if footer.schema not in choices:
            at = where if len(files) == 1 else hide_secrets(file.path)
            choices[footer.schema] = choose(
                footer.schema, wanted, at, list(file.keys), footer.index.columns
            )
    shown = {footer.schema: hide_secrets(file.path) for file, footer in zip(files, footers)}
    dtype = agree((shown[schema], choice) for schema, choice in choices.items())
    choice = choices[first.schema]
    plain = Columns((), dtype)
    reader = ParquetReader(where, files, footers, plain)
    find = lambda name: categories_of(reader.column(name).chunks, name, where)  # noqa: E731
    columns = with_categories(choice, dtype, find)
    reader = ParquetReader(where, files, footers, columns)
    note = f"{len(files)} Parquet files, their rows in order" if len(files) > 1 else ""
    return table_matrix(reader, choice, note, None if wanted.index else first.index)


def _same_keys(files: Sequence[TableFile], footers: Sequence[Footer]) -> list[Footer]:
    """The footers with partition keys of one type: numbers where all are."""
    if len({tuple(file.keys) for file in files}) > 1:
        one, other = files[0], next(f for f in files if tuple(f.keys) != tuple(files[0].keys))
        raise InvalidInputError(
            f"{hide_secrets(one.path)} and {hide_secrets(other.path)} are partitioned by other "
            f"keys, {list(one.keys)} and {list(other.keys)}; expected the same folders"
        )
    found = list(footers)
    for name in files[0].keys:
        kinds = {footer.schema.field(name).type for footer in found}
        if len(kinds) > 1:
            text = pa.field(name, pa.string())
            found = [
                replace(f, schema=f.schema.set(f.schema.get_field_index(name), text)) for f in found
            ]
    return found
