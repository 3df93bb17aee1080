"""Arrow: IPC and Feather files, data sets and tables of pyarrow, lazy frames of polars."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streampca.errors import SourceError, hide_secrets
from streampca.matrix import Location
from streampca.sources.tables.columns import Columns, Wanted, categories_of, choose, refuse_repeated
from streampca.sources.tables.files import TableFile
from streampca.sources.tables.frames import StoredIndex, held_nbytes
from streampca.sources.tables.reader import (
    FileReader,
    TableMatrix,
    TableReader,
    table_matrix,
    understood,
    with_categories,
)
from streampca.sources.tables.row_names import called_id

SCAN_NBYTES = 128 << 20  # that a query of another library is taken to hold while it runs


def opened(make: Any, schema: Any, where: str, wanted: Wanted, note: str = "") -> TableMatrix:
    """The matrix of a reader.  make : the reader of some columns."""
    index = StoredIndex.of(schema)
    choice = choose(schema, wanted, where, own_index=index.columns)
    bare = make(Columns((), choice.dtype))
    find = lambda name: categories_of(bare.column(name).chunks, name, where)  # noqa: E731
    reader = make(with_categories(choice, choice.dtype, find))
    return table_matrix(reader, choice, note, None if wanted.index is not None else index)


# IPC files (Feather version 2): record batches, read by number.


class IpcReader(FileReader):
    """The record batches of one file, each of which is read at once."""

    def __init__(self, file: TableFile, schema: Any, lengths: Any, columns: Columns) -> None:
        self.file, self.schema = file, schema
        self.held = np.flatnonzero(lengths)
        super().__init__(hide_secrets(file.path), columns, lengths[self.held])

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        if "file" not in held:
            fields = [self.schema.get_field_index(name) for name in names]
            held["file"] = _open(self.file, fields)
        batch = held["file"].get_batch(int(self.held[unit]))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def stream_nbytes(self) -> int:
        longest = int(np.diff(self.begins).max(initial=0))
        return 2 * longest * 8 * len(self.columns.columns)


def _open(file: TableFile, fields: Sequence[int] | None = None) -> Any:
    shown = hide_secrets(file.path)
    source = file.open()
    options = pa.ipc.IpcReadOptions(included_fields=None if fields is None else sorted(fields))
    try:
        return pa.ipc.open_file(source, options=options)
    except pa.ArrowInvalid:
        raise SourceError(
            f"{shown} is not an Arrow IPC file (Feather version 2); it is damaged, a stream, or of "
            "version 1. Write it again: pyarrow.feather.write_feather(table, path)"
        ) from None


def open_ipc(file: TableFile, wanted: Wanted) -> TableMatrix:
    """One IPC file. Cost: its metadata, and one column to count the rows of its batches."""
    with understood(file.path):
        schema = _open(file).schema
        narrow = _open(file, [0] if len(schema) else None)
        counts = [narrow.get_batch(i).num_rows for i in range(narrow.num_record_batches)]
    lengths = np.array(counts, np.int64)
    make = lambda columns: IpcReader(file, schema, lengths, columns)  # noqa: E731
    return opened(make, schema, hide_secrets(file.path), wanted)


# Tables in memory, data sets and queries.


class MemoryReader(TableReader):
    """A table of pyarrow in memory."""

    def __init__(self, table: Any, columns: Columns) -> None:
        self.parts = table.to_batches()
        self.parts = [part for part in self.parts if part.num_rows]
        self.schema = table.schema
        super().__init__("the table", columns, [part.num_rows for part in self.parts])
        self.given_nbytes = self.carried_nbytes = int(table.nbytes)

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        part = self.parts[unit].select(list(names))
        for start in range(0, part.num_rows, rows):
            yield part.slice(start, rows)

    def stamp(self) -> list[Any]:
        ends = [part.slice(part.num_rows - 1).to_pylist() for part in self.parts]
        return [len(self.parts), [part.slice(0, 1).to_pylist() for part in self.parts], ends]


class DatasetReader(TableReader):
    """A data set of pyarrow: its fragments, or all of it where it is filtered."""

    def __init__(self, dataset: Any, lengths: Any, whole: bool, columns: Columns) -> None:
        self.dataset, self.whole = dataset, whole
        self.held = np.flatnonzero(lengths)
        super().__init__("the data set", columns, lengths[self.held])

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        how = {
            "columns": list(names),
            "batch_size": rows,
            "batch_readahead": 1,
            "fragment_readahead": 0,
            "cache_metadata": False,
        }
        if self.whole:
            return iter(self.dataset.to_batches(**how))
        if "fragments" not in held:
            held["fragments"] = list(self.dataset.get_fragments())
        fragment = held["fragments"][int(self.held[unit])]
        return iter(fragment.to_batches(schema=self.dataset.schema, **how))

    @property
    def schema(self) -> Any:
        return self.dataset.schema

    def stream_nbytes(self) -> int:
        return SCAN_NBYTES

    def stamp(self) -> list[Any]:
        files = self.paths()
        return [files, [TableFile.at(path).version for path in files], self.shape]

    def locations(self) -> tuple[Location, ...]:
        return (HeldQuery(),) if self.whole else super().locations()

    def paths(self) -> tuple[str, ...]:
        found: list[str] = [] if self.whole else list(getattr(self.dataset, "files", ()))
        return tuple(os.path.realpath(path) for path in found if os.path.exists(path))


class HeldQuery(Location):
    """A data set that cannot be sent to other processes."""

    name, in_process = "the data set", "a filtered data set"

    def sample(self) -> Sequence[str]:
        return ()

    def look(self, names: Sequence[str]) -> dict[str, str]:
        return {}


def open_dataset(dataset: Any, wanted: Wanted) -> TableMatrix:
    """A data set of pyarrow. Cost: counts the rows; of one that is filtered, by a scan."""
    with understood("the data set"):
        try:
            fragments = list(dataset.get_fragments())
        except (ValueError, NotImplementedError):  # of a filtered one
            fragments = []
        whole = not fragments
        counts = [dataset.count_rows()] if whole else [one.count_rows() for one in fragments]
    lengths = np.array(counts, np.int64)
    make = lambda columns: DatasetReader(dataset, lengths, whole, columns)  # noqa: E731
    note = "a filtered data set: every pass scans it" if whole else ""
    return opened(make, dataset.schema, "the data set", wanted, note)


class QueryReader(TableReader):
    """A lazy frame of polars, computed in batches by its streaming engine."""

    loads = ("polars", "pyarrow")

    def __init__(self, frame: Any, schema: Any, length: int, columns: Columns) -> None:
        self.frame, self.schema = frame, schema
        super().__init__("the lazy frame", columns, [length] if length else [])

    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        chosen = self.frame.select(list(names))
        if hasattr(chosen, "collect_batches"):
            found = chosen.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming")
        else:
            starts = range(0, self.shape[0], rows)
            found = (chosen.slice(i, rows).collect(engine="streaming") for i in starts)
        for frame in found:
            yield from frame.to_arrow().to_batches()

    def stream_nbytes(self) -> int:
        return SCAN_NBYTES

    def worth_a_look(self, name: str) -> bool:
        return called_id(name)  # the query may have to run for it

    def stamp(self) -> list[Any]:
        return [self.frame.explain(optimized=False)]


def open_query(frame: Any, wanted: Wanted) -> TableMatrix:
    """A lazy frame of polars. Cost: the number of its rows, by its streaming engine."""
    import polars

    schema = frame.limit(0).collect().to_arrow().schema
    length = int(frame.select(polars.len()).collect(engine="streaming").item())
    make = lambda columns: QueryReader(frame, schema, length, columns)  # noqa: E731
    note = "a lazy frame: every pass computes it from its beginning"
    return opened(make, schema, "the lazy frame", wanted, note)


def open_frame(frame: Any, wanted: Wanted) -> TableMatrix:
    """A frame or table in memory, of which columns are named."""
    if hasattr(frame, "to_arrow"):
        table = frame.to_arrow()
    elif hasattr(frame, "iloc"):
        refuse_repeated(list(frame.columns), "the table", "X.loc[:, ~X.columns.duplicated()]")
        table = pa.Table.from_pandas(frame, preserve_index=None)
    else:
        table = frame if hasattr(frame, "to_batches") else pa.Table.from_batches([frame])
    matrix = opened(lambda columns: MemoryReader(table, columns), table.schema, "the table", wanted)
    if table is not frame:
        matrix.given_nbytes += held_nbytes(frame)
    return matrix
