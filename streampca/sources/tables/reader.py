"""A table as a matrix: units that are read from their beginning, in batches of rows."""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streampca.errors import (
    ChangingSourceError,
    DamagedSourceError,
    IncompleteSourceWarning,
    StreamPCAError,
    hide_secrets,
    shorten,
    warn_caller,
)
from streampca.matrix import AxisLabels, Labels, Location, ReadCount
from streampca.matrix.chunked_matrix import current_cache
from streampca.paths import first_line
from streampca.sources.annotations import Annotations
from streampca.sources.stacked import Index, Reader, StackedMatrix, Tally, crossed, room_for
from streampca.sources.tables.columns import (
    ONEHOT,
    PARTLY,
    Batch,
    Choice,
    Column,
    Columns,
    may_name,
    plain,
    plain_values,
)
from streampca.sources.tables.files import TableFile, locations_of
from streampca.sources.tables.frames import StoredIndex
from streampca.sources.tables.row_names import FIRST_ROWS, ask_about, called_id, suspects

Array = np.ndarray[Any, Any]
PIECE_NBYTES = 4 << 20  # of the smallest blocks of a long unit
PIECE_ROWS = 128
BATCHES = 3  # the last one, and the next one while it is decoded

# A unit (a row group, a record batch, a range of text) is read from its beginning. Where it is
# longer than a block, its blocks share it: the rest of it is kept as a stream while a span is read.


class TableReader(Reader):
    """Reads the chosen columns of a table.

    lengths : (units,) rows of each unit, none of them 0.
    """

    loads: tuple[str, ...] = ("pyarrow",)
    into_buffer = True
    schema: Any  # of Arrow

    def __init__(self, where: str, columns: Columns, lengths: Any) -> None:
        self.where, self.columns = where, columns
        self.begins = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
        self.shape = (int(self.begins[-1]), columns.width)
        self.dtype = columns.dtype
        self.tally = Tally()

    @abstractmethod
    def batches(
        self, unit: int, names: Sequence[str], rows: int, held: dict[str, Any]
    ) -> Iterator[Any]:
        """Record batches of these columns, of about ``rows`` rows each, from its first row on.

        held : of the stream, for what is opened once.
        """

    @abstractmethod
    def stamp(self) -> list[Any]:
        """What tells the stored values from others, without reading them."""

    def column(self, name: str, literal: bool = False) -> Any:
        """All values of any column of the table, as an Arrow array.

        literal : of text, as it is written, whatever else means missing there.
        """
        held: dict[str, Any] = {"literal": literal}
        pieces = [
            batch.column(batch.schema.get_field_index(name))
            for unit in range(len(self.begins) - 1)
            for batch in self.batches(unit, [name], 1 << 16, held)
        ]
        return pa.chunked_array(pieces)

    def column_names(self) -> list[str]:
        """All columns of the table."""
        return list(self.schema.names)

    def row_names(self, name: str) -> Array:
        """(rows,) what a column holds, as names: text, dates or numbers. "NA" is a name."""
        return plain_values(self.column(name, literal=True), name, self.where)

    def worth_a_look(self, name: str) -> bool:
        """Whether a column of numbers may be those of the rows, and its first rows are cheap."""
        return called_id(name) or bool(pa.types.is_integer(self.kind_of(name)))

    def padded(self, names: Sequence[str]) -> list[str]:
        """Those of these columns whose first rows are different numbers with zeros in front."""
        return []

    def key_names(self) -> list[str]:
        """The columns that are no features, and may name the rows: those of text, dates and whole
        numbers."""
        return [
            name
            for name in self.column_names()
            if name not in self.columns.names and may_name(self.kind_of(name), name)
        ]

    def kind_of(self, name: str) -> Any:
        """The Arrow type of a column."""
        return self.schema.field(name).type

    def piece_rows(self) -> int:
        """Rows of the smallest blocks of a long unit."""
        stride = max(1, self.shape[1] * (4 if self.dtype == np.float32 else 8))
        return max(1, min(PIECE_ROWS, 4 * PIECE_NBYTES // stride), PIECE_NBYTES // stride)

    def batch_rows(self, piece: int) -> int:
        """Rows that are decoded at a time.  piece : rows of one of a unit."""
        return piece

    def step_of(self, unit: int) -> int:
        """Rows of the pieces of a unit, which are even."""
        length = int(self.begins[unit + 1] - self.begins[unit])
        return -(-length // -(-length // self.piece_rows()))

    def read(self, index: Index, buffer: Any = None) -> Array:
        """Values whose columns lie one after another."""
        rows, features = index
        shape = (features.stop - features.start, rows.stop - rows.start)
        out = room_for(shape, self.dtype, buffer).T
        cache, whole = current_cache(), features == slice(0, self.shape[1])
        if cache is None or not whole:
            _Stream(self, features).fill(rows.start, out)
        else:
            stream = cache.of(("table", id(self)), lambda: _Stream(self, features))
            with stream.lock:
                stream.fill(rows.start, out)
        self.tally.add(ReadCount(0, out.nbytes))
        return out

    def edges(self, dim: int) -> Array | None:
        return self.begins if dim == 0 else None

    def scratch_nbytes(self, index: Index) -> int:
        features = index[1]
        longest = int(np.diff(self.begins).max(initial=0))
        length = min(longest, self.batch_rows(self.piece_rows()))
        share = (features.stop - features.start) / max(1, self.shape[1])
        return int(share * self.decoding_nbytes(length))

    def decoding_nbytes(self, rows: int) -> int:
        """What decoding all columns holds, with batches of so many rows."""
        return self.stream_nbytes() + BATCHES * self.dtype.itemsize * rows * self.shape[1]

    def stream_nbytes(self) -> int:
        """What decoding holds in addition to the batches."""
        return 0

    def fingerprint(self) -> str:
        text = [self.where, self.shape, str(self.dtype), self.columns.features, self.stamp()]
        return hashlib.sha256(repr(text).encode()).hexdigest()


class FileReader(TableReader):
    """Reads the chosen columns of a table in one file."""

    file: TableFile

    def stamp(self) -> list[Any]:
        return [self.file.path, self.file.size, self.file.version]

    def paths(self) -> tuple[str, ...]:
        return () if self.file.remote else (self.file.path,)

    def locations(self) -> tuple[Location, ...]:
        return locations_of([self.file])


class _Stream:
    """The rows of a table in order, from any row on."""

    def __init__(self, reader: TableReader, features: slice) -> None:
        self.reader, self.lock = reader, threading.Lock()
        self.part = reader.columns.part(features)
        self.names = [column.name for column, _, _ in self.part]
        self.held: dict[str, Any] = {}
        self.unit, self.position = -1, -1
        self.batches: Iterator[Any] = iter(())
        self.batch: Batch | None = None  # its rows from ``used`` on begin at ``position``
        self.used = 0

    def fill(self, start: int, out: Array) -> None:
        """Put rows from ``start`` on into ``out``, as many as it has."""
        begins, stop, done = self.reader.begins, start + len(out), start
        unit = int(np.searchsorted(begins, start, "right")) - 1
        if start < stop and (unit != self.unit or start < self.position):
            self._begin(unit)
        while done < stop:
            if self.position == begins[self.unit + 1]:
                self._begin(self.unit + 1)
            if self.batch is None or self.used == self.batch.rows:
                self.batch, self.used = None, 0  # not alive beside the next one
                self.batch = self._next()
            left = self.batch.rows - self.used
            skipped = min(left, max(0, done - self.position))
            taken = min(left - skipped, stop - done)
            first = self.used + skipped
            if taken:
                place = slice(done - start, done - start + taken)
                self.batch.put(slice(first, first + taken), out[place])
            done += taken
            self.used, self.position = first + taken, self.position + skipped + taken

    def _begin(self, unit: int) -> None:
        step = self.reader.step_of(unit)
        self.batch, self.unit, self.position = None, unit, int(self.reader.begins[unit])
        rows = self.reader.batch_rows(step)
        self.batches = self.reader.batches(unit, self.names, rows, self.held)
        self.reader.tally.add(ReadCount(1, 0))

    def _next(self) -> Batch:
        """The batch that begins at ``position``."""
        with understood(self.reader.where):
            batch = next(self.batches, None)
        end = self.reader.begins[self.unit + 1]
        if batch is None or self.position + batch.num_rows > end:
            raise ChangingSourceError(
                f"{self.reader.where} has other rows than when it was opened; open it again"
            )
        return Batch(batch, self.part, self.reader.dtype, self.reader.where)


class understood:
    """A context in which errors of Arrow become ours."""

    def __init__(self, where: str) -> None:
        self.where = hide_secrets(where)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, StreamPCAError) or not isinstance(
            error, (pa.ArrowException, OSError, EOFError)
        ):
            return
        if isinstance(error, (FileNotFoundError, PermissionError)):
            return
        raise DamagedSourceError(
            f"{self.where}: not readable ({first_line(error)}); it is cut off, damaged or of "
            "another format"
        ) from None


class TableMatrix(StackedMatrix):
    """A table as samples x features. A unit that is longer than a block is read by several."""

    reader: TableReader

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Array:
        part = slice(start, stop), slice(0, self.shape[1])
        return self.reader.read(part if axis == 0 else (slice(0, self.shape[0]), part[0]), buffer)

    def chunk_edges(self, axis: int) -> Array | None:
        if axis == 1:
            return None
        most, begins = self.reader.piece_rows(), self.reader.begins
        counts = -(-np.diff(begins) // most)
        if counts.max(initial=1) <= 1:
            return begins
        steps = -(-np.diff(begins) // counts)
        cut = [np.arange(a, b, step) for a, b, step in zip(begins[:-1], begins[1:], steps)]
        return np.concatenate([*cut, begins[-1:]])

    def entry_points(self, axis: int) -> Array | None:
        return self.reader.begins if axis == 0 else None

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        begins = self.reader.begins
        if axis == 1:
            return len(begins) - 1
        return crossed(begins, start, stop)

    def count_span(self, axis: int, edges: Array) -> int:
        if axis == 1:
            return super().count_span(axis, edges)
        return self.count_chunks(0, int(edges[0]), int(edges[-1]))

    def count_shared(self, axis: int, stop: int, start: int) -> int:
        if axis == 1:
            return len(self.reader.begins) - 1
        unit = np.searchsorted(self.reader.begins, [stop - 1, start], "right")
        return int(stop > 0 and start < self.shape[0] and unit[0] == unit[1])


class TableColumns(Annotations):
    """The columns of a table, as annotations of its samples."""

    def __init__(self, reader: TableReader) -> None:
        self.reader = reader

    def column(self, axis: int, name: str) -> Any:
        """(samples,) numbers, dates or text; None where there is no such column. Reads it whole."""
        if axis or name not in self.reader.column_names():
            return None
        return plain_values(self.reader.column(name), name, self.reader.where)

    def names(self, axis: int) -> list[str]:
        return [] if axis else self.reader.column_names()

    def feature_names(self) -> list[str]:
        """Those of numbers that are features."""
        return [column.name for column in self.reader.columns.columns if column.categories is None]

    def key_names(self) -> list[str]:
        """Those that are no features, and may name the rows."""
        return self.reader.key_names()

    def row_names(self, name: str) -> Array:
        """(rows,) what one of them holds, as names."""
        return self.reader.row_names(name)


def table_matrix(
    reader: TableReader, choice: Choice, note: str = "", stored: StoredIndex | None = None
) -> TableMatrix:
    """The matrix of a reader.

    choice : its columns; that of the index is read whole. Warns of those that are left out, and of
    features that may name the rows.  stored : the index that the file itself declares, unless the
    caller named one.
    """
    if choice.by_default:
        first = _first_rows(reader, choice)
        how = reader.where, "index={}", "columns=[...] names features"
        ask_about(first, *how, padded=reader.padded([*first]), total=len(choice.order))
    if choice.left_out:
        what = f"columns {shorten(list(choice.left_out))} are not numeric, and left out"
        onehot = f", or make a feature of each category, categorical={ONEHOT!r}"
        text = any(PARTLY not in one for one in choice.left_out)
        warn_caller(
            f"{reader.where}: {what}. Name the features, columns=[...], the names of the samples, "
            f"index=...{onehot * text}",
            IncompleteSourceWarning,
        )
        note = f"{note}; {what}" if note else what
    matrix = TableMatrix(reader)
    names: Any = None
    if stored is not None and (stored.columns or len(stored.numbers or ()) == matrix.shape[0]):
        names = stored.names([reader.row_names(name) for name in stored.columns])
        reader.tally.restart()
    elif choice.index is not None:
        names = reader.row_names(choice.index)
        reader.tally.restart()
    matrix.labels = Labels(
        AxisLabels.plain("sample", matrix.shape[0], names),
        AxisLabels.plain("feature", matrix.shape[1], reader.columns.features),
    )
    matrix.annotations, matrix.note = TableColumns(reader), note
    return matrix


def _first_rows(reader: TableReader, choice: Choice) -> dict[str, Array]:
    """The first rows of the columns that may be numbers of the rows."""
    numbers = [name for name in choice.order if name in choice.numeric]
    names = suspects(filter(reader.worth_a_look, numbers))
    if not names or len(reader.begins) < 2:
        return {}
    with understood(reader.where):
        batch = next(iter(reader.batches(0, names, FIRST_ROWS, {})), None)
    if batch is None:
        return {}
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    known = {n: one.drop_null() for n, one in columns.items() if called_id(n) or not one.null_count}
    return {name: plain(one) for name, one in known.items() if not pa.types.is_decimal(one.type)}


def with_categories(choice: Choice, dtype: Any, find: Callable[[str], Any]) -> Columns:
    """The columns of a choice.  find : the categories of a column."""
    columns = [
        Column(name, find(name) if name in choice.categorical else None) for name in choice.order
    ]
    return Columns(tuple(columns), np.dtype(dtype))
