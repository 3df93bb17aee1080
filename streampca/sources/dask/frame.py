"""Data frames of Dask, and arrays and frames passed as futures."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import dask.threaded
import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph

from streampca.errors import InvalidInputError, InvalidTypeError, shorten
from streampca.kernels import give_back
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.kinds import CHUNKS, refuse_gpu
from streampca.sources.dask.arrays import from_dask
from streampca.sources.dask.graph import await_all, is_future
from streampca.sources.dask.strips import DaskMatrix, DaskReader
from streampca.sources.frames import (
    dtype_of,
    exact_float,
    frame_values,
    is_frame,
    not_numeric,
    numbers_of,
)
from streampca.sources.frames import refuse_other_than_numbers as refuse_text
from streampca.sources.stacked import Dim, Index

# --------------------------------------------------------------------------------------------------
# Data frames of Dask: partitions are strips, columns are features.
#
# A plan needs the number of rows of each partition. Parquet files and frames in memory know it. For
# anything else the rows are counted first, by computing one narrow column.

COUNTED = 64  # frames whose row counts are cached
COUNT_THREADS = 2  # each holds a partition
# of a partition's numbers, that computing it takes: 7.5 measured over Zarr, most of it what malloc
# keeps for each thread that decodes; 8 to 9.6 where files are read, by Arrow with memory of its own
COPIES, COPIES_OF_FILES = 8, 10
FILES = ("ReadParquet", "ReadCSV")
_counted: dict[str, tuple[int, ...]] = {}  # token of a frame -> rows of its partitions


def from_dask_frame(frame: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over a Dask data frame: samples are rows, features are its columns.

    Values are read as floats, float32 if that holds all values of the columns' dtypes; nulls are
    NaN. The index is not read: samples have no names.

    Cost: the rows of partitions. Parquet files without filters and frames from memory know them;
    of others the narrowest column is computed once, and the matrix says so (``note``).
    Raises InvalidTypeError (columns that are no numbers) or InvalidInputError (dim).
    """
    if dim not in (None, 0) or isinstance(dim, bool):
        raise InvalidInputError(
            f"dim={dim!r}; expected 0: the rows of a data frame are the samples. Of a frame whose "
            "columns are the samples use X.to_dask_array(lengths=True)"
        )
    array = frame_array(frame)
    note = ""
    if any(np.isnan(n) for n in array.shape):
        lengths, column = _count(frame)
        array = frame_array(frame, lengths)
        note = (
            f"the rows of {len(lengths)} partitions were counted first, by computing column "
            f"{column!r}; a Parquet data set knows them"
        )
    names = list(frame.columns)
    named = names if all(isinstance(name, str) for name in names) else None
    shape = (int(array.shape[0]), len(names))
    reader = FrameReader(array, _copies(frame))
    matrix = DaskMatrix(reader, (0,), labels=Labels.plain(shape, named))
    matrix.loads = ("dask", "dask.dataframe")
    matrix.note = note
    return matrix


class FrameReader(DaskReader):
    """Strips of partitions: each is a frame, and its numbers, before these are placed.

    copies : of the numbers of a strip that are in memory beside them while it is computed.
    """

    def __init__(self, array: Any, copies: int = COPIES) -> None:
        super().__init__(array)
        self.copies = copies

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        try:
            return super().read(index, buffer)
        finally:
            _give_back()

    def scratch_nbytes(self, index: Index) -> int:
        cells = math.prod(s.stop - s.start for s in index)
        return int(self.copies * cells * self.dtype.itemsize)


def _copies(frame: Any) -> int:
    """See :class:`FrameReader`."""
    reads = any(type(node).__name__.startswith(FILES) for node in frame.expr.walk())
    return COPIES_OF_FILES if reads else COPIES


def _give_back() -> None:
    """Give the system what partitions took that are gone. Arrow keeps memory of its own."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    give_back()


def frame_array(frame: Any, lengths: Sequence[int] | None = None) -> Any:
    """The numbers of a Dask frame as a Dask array (n, p): nothing is computed.

    lengths : rows of the partitions; None: as files know them, else the array does not either.
    """
    dtype = _checked_dtype(frame)
    plain = frame.simplify()  # and not optimised: that would join partitions
    keys = [tuple(key) for key in plain.__dask_keys__()]
    if lengths is None:
        lengths = _known_lengths(frame, len(keys))
    expected = (None,) * len(keys) if lengths is None else tuple(lengths)
    names = tuple(frame.columns)
    name = f"streampca-frame-{dask.base.tokenize(plain, expected)}"
    layer: dict[Any, Any] = {
        (name, i, 0): (FramePart(names, dtype, i, expected[i]), key) for i, key in enumerate(keys)
    }
    rows = tuple(float("nan") if n is None else n for n in expected)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[plain])
    meta = np.empty((0, 0), dtype)
    return dask.array.Array(graph, name, (rows, (len(names),)), meta=meta)


def map_frame(
    frame: Any, function: Callable[[Any], Any], columns: Sequence[str], dtype: Any
) -> Any:
    """A Dask data frame of what a function makes of the numbers of each partition, (rows, k).

    The index and the divisions stay. Nothing is computed.
    """
    part = FrameRows(FramePart(tuple(frame.columns), _checked_dtype(frame), None, None), function,
                     tuple(columns), np.dtype(dtype))  # fmt: skip
    meta = part.framed(np.empty((0, len(columns)), dtype), frame._meta.index[:0])
    return frame.map_partitions(part, meta=meta)


@dataclass(frozen=True)
class FramePart:
    """The numbers of one partition, checked against what was said of it before.

    number : of the partition.  rows : that it has. None where that is not known.
    """

    names: tuple[Any, ...]
    dtype: np.dtype[Any]
    number: int | None
    rows: int | None

    def __call__(self, part: Any) -> np.ndarray[Any, Any]:
        where = "a partition" if self.number is None else f"partition {self.number}"
        where += " of this data frame"
        if tuple(part.columns) != self.names:
            raise InvalidInputError(
                f"{where} has the columns {list(part.columns)}; expected {list(self.names)}, as "
                "the frame says. Put them in that order: X.map_partitions(lambda part: "
                "part[list(X.columns)])"
            )
        if self.rows is not None and len(part) != self.rows:
            raise InvalidInputError(
                f"{where} has {len(part)} rows, and had {self.rows} when they were counted: its "
                "files have changed, or it is computed otherwise each time. Open it again, or keep "
                "it: X = X.persist()"
            )
        if all(_fits(dtype, self.dtype) for dtype in set(part.dtypes)):
            return np.asarray(part.to_numpy(dtype=self.dtype))
        refuse_text(part)
        refuse_wider(part, self.dtype, where)
        return numbers_of(part, self.dtype)


@dataclass(frozen=True)
class FrameRows:
    """What a function makes of the numbers of a partition, as a frame with the same index."""

    part: FramePart
    function: Callable[[Any], Any]
    columns: tuple[str, ...]
    dtype: np.dtype[Any]

    def __call__(self, part: Any) -> Any:
        return self.framed(self.function(self.part(part)), part.index)

    def framed(self, values: Any, index: Any) -> Any:
        """(rows, k) values as a data frame of pandas."""
        import pandas as pd

        values = np.asarray(values, self.dtype)
        return pd.DataFrame(values, index=index, columns=list(self.columns))


def _fits(dtype: Any, declared: np.dtype[Any]) -> bool:
    """Whether a float dtype surely holds every value of a column, which has no nulls."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return False
    large = dtype.kind in "iu" and dtype.itemsize > 4
    return not large and bool(np.can_cast(dtype, declared))


def refuse_wider(part: Any, declared: np.dtype[Any], where: str) -> None:
    """Raise where float64 values of a column are rounded by the float32 that the frame declares."""
    for j, name in enumerate(part.columns):
        if declared.itemsize >= 8 or (own := dtype_of(part.iloc[:, j])).itemsize <= 4:
            continue
        values = part.iloc[:, j].to_numpy(dtype=own)
        if not np.array_equal(values.astype(declared), values, equal_nan=own.kind == "f"):
            raise InvalidTypeError(
                f"column {name!r} is {own} in {where}, and the frame says otherwise; expected one "
                f"dtype. Use X.astype({{{name!r}: 'float64'}})"
            )


def _checked_dtype(frame: Any) -> np.dtype[Any]:
    """The float dtype of all columns. Raises InvalidTypeError where one is no number."""
    if getattr(frame, "ndim", 2) != 2:
        raise InvalidTypeError("X is a Dask series; expected a data frame. Use X.to_frame()")
    meta = frame._meta
    refuse_gpu(meta, CHUNKS)
    text = [
        f"{name!r} ({dtype})"
        for name, dtype in zip(meta.columns, meta.dtypes, strict=True)
        if getattr(dtype, "kind", "O") not in "biuf"
    ]
    if text:
        raise not_numeric(text, "X.drop(columns=[{}])", "X.astype({{{}: 'float64'}})")
    dtypes = [exact_float(dtype_of(meta.iloc[:, j])) for j in range(meta.shape[1])]
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float64)


def _known_lengths(frame: Any, n_partitions: int) -> tuple[int, ...] | None:
    """Rows of the partitions, where files or memory say them, or they were counted before."""
    found = _counted.get(dask.base.tokenize(frame))
    if found is None:
        try:
            from dask.dataframe.dask_expr._expr import Lengths, Literal
        except ImportError:  # another version of Dask keeps it elsewhere: then they are counted
            return None
        said = Lengths(frame.expr).optimize()
        found = tuple(map(int, said.operand("value"))) if isinstance(said, Literal) else None
    return found if found is not None and len(found) == n_partitions else None


def _count(frame: Any) -> tuple[tuple[int, ...], Any]:
    """(rows of the partitions, the column that was computed to count them)."""
    sizes = [np.dtype(dtype_of(frame._meta.iloc[:, j])).itemsize for j in range(len(frame.columns))]
    column = frame.columns[int(np.argmin(sizes))]
    narrow = frame[[column]].simplify()
    parts = narrow.to_delayed(optimize_graph=False)
    how: dict[str, Any] = {"num_workers": COUNT_THREADS}
    if "distributed" not in sys.modules and dask.config.get("scheduler", None) is None:
        how["scheduler"] = dask.threaded.get  # by name, Dask loads distributed to look for clients
    with dask.config.set(how):
        found = dask.base.compute(*(delayed(len)(part) for part in parts))
    _give_back()
    lengths = tuple(map(int, found))
    while len(_counted) >= COUNTED:
        _counted.pop(next(iter(_counted)))
    _counted[dask.base.tokenize(frame)] = lengths
    return lengths, column


# --------------------------------------------------------------------------------------------------
# Futures of ``distributed`` given as X: an array, or a frame, that was scattered or computed.

PIECE_NBYTES = 16 * 1024 * 1024  # rows of one future that are read at once


@dataclass(frozen=True)
class Description:
    """The description of a value by its worker."""

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of the columns of a frame, of any type


def futures_given(source: Any) -> list[Any]:
    """The futures where X is one, or a list of some; else none."""
    if is_future(source):
        return [source]
    several = isinstance(source, (list, tuple)) and bool(source) and all(map(is_future, source))
    return list(source) if several else []


def from_futures(futures: list[Any], dim: Dim = None) -> ChunkedMatrix:
    """A matrix over arrays, or data frames, that lie on a cluster; several are joined by rows.

    Cost: one small task per future says what it is. The values stay where they are.
    Raises InvalidTypeError for futures of anything else, InvalidInputError where widths differ.
    """
    client = futures[0].client
    tasks = [client.submit(_tell, one, pure=False) for one in futures]
    await_all(client, tasks, "futures given as X")
    told: list[Description] = client.gather(tasks)
    for future, one in zip(futures, told, strict=True):
        if one.dtype is None:
            raise InvalidTypeError(
                f"{future!r} is a future of {one.kind}; expected one of a NumPy array or a data "
                "frame. For a Dask array, give the array itself: PCA().fit(client.persist(X))."
            )
    if len(widths := sorted({str(one.shape[1:]) for one in told})) > 1:
        raise InvalidInputError(
            f"futures of arrays that do not fit under one another: rows of {shorten(widths)}"
        )
    if len(names := {one.names for one in told if one.names}) > 1 or (
        names and not all(one.names for one in told)
    ):
        raise InvalidInputError(
            "futures of data frames whose columns differ, or of frames and arrays; give all "
            "of them the same columns in one order, such as frame[columns]"
        )
    if any(len(one.shape) == 0 for one in told):
        raise InvalidInputError("a future of one number; expected one of rows and columns")
    matrix = from_dask(_joined(futures, told), dim)
    if told[0].columns and all(one.columns == told[0].columns for one in told):
        matrix.labels = Labels.plain(matrix.shape, list(told[0].columns), None)
    return matrix


def _joined(futures: list[Any], told: list[Description]) -> dask.array.Array:
    """One Dask array, in pieces of rows."""
    rest = told[0].shape[1:]
    dtype = np.result_type(*(one.dtype for one in told if one.dtype is not None))
    row = max(1, int(np.prod(rest)) * dtype.itemsize)
    name = "futures-" + dask.base.tokenize([one.key for one in futures])
    step = max(1, PIECE_NBYTES // row)
    graph: dict[Any, Any] = {}
    lengths: list[int] = []
    for future, one in zip(futures, told, strict=True):
        for start in range(0, max(1, one.shape[0]), step):
            number, stop = len(lengths), min(start + step, one.shape[0])
            given = (f"{name}-given", number)  # one for each piece: strips share nothing
            graph[given] = future
            graph[(name, number, *(0 for _ in rest))] = (_rows, given, start, stop, dtype.str)
            lengths.append(stop - start)
    chunks = (tuple(lengths), *((n,) for n in rest))
    return dask.array.Array(graph, name, chunks, dtype=dtype)


def _tell(value: Any) -> Description:
    """On the worker that has it."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if is_frame(value):
        values = frame_values(value)
        columns = tuple(value.columns) if all(isinstance(c, str) for c in value.columns) else ()
        names = tuple(map(repr, value.columns))
        return Description(kind, values.shape, values.dtype, columns, names)
    if isinstance(value, np.ndarray):
        return Description(kind, value.shape, value.dtype)
    return Description(kind, (), None)


def _rows(value: Any, start: int, stop: int, dtype: str) -> Any:
    values = value[start:stop]
    return np.asarray(frame_values(values) if is_frame(values) else values, dtype)
