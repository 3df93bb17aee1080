"""Data frames of Dask: partitions are strips, columns are features.

A plan needs the number of rows of each partition. Parquet files, frames in memory and those made of
a Dask array know it. For anything else the rows are counted first, by computing one narrow column.
"""

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
from dask._task_spec import Task
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.kernels import give_back
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.kinds import CHUNKS, refuse_gpu
from streampca.matrix.names import index_names
from streampca.sources.annotations import Annotations
from streampca.sources.dask.arrays import DaskMatrix
from streampca.sources.dask.strips import DaskReader
from streampca.sources.stacked import Dim, Index
from streampca.sources.tables.frames import dtype_of, exact_float, not_numeric, numbers_of
from streampca.sources.tables.frames import refuse_other_than_numbers as refuse_text
from streampca.sources.tables.row_names import FIRST_ROWS, ask_about, called_id

COUNTED = 64  # frames whose row counts are cached
COUNT_THREADS = 2  # each holds a partition
# of a partition's numbers, that computing it takes: 3 measured over Zarr, whose chunks are
# decoded by the thread that reads; 8 to 9.6 where files are read, by Arrow with memory of its own
# 2 of an array that was made a frame: its chunk, and that in one piece
COPIES, COPIES_OF_FILES, COPIES_OF_ARRAYS = 4, 10, 2
FILES = ("ReadParquet", "ReadCSV")
_counted: dict[str, tuple[int, ...]] = {}  # token of a frame -> rows of its partitions


def from_dask_frame(frame: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over a Dask data frame: samples are rows, features are its columns.

    Values are read as floats, float32 if that holds all values of the columns' dtypes; nulls are
    NaN. The index is not read: samples have no names.

    Cost: the rows of partitions. Parquet files without filters, frames from memory and those made
    of a Dask array know them; of others the narrowest column is computed once, and the matrix says
    so (``note``).
    Raises InvalidTypeError (columns that are no numbers) or InvalidInputError (dim).
    """
    if dim not in (None, 0) or isinstance(dim, bool):
        raise InvalidInputError(
            f"dim={dim!r}; expected 0: the rows of a data frame are the samples. Of a frame whose "
            "columns are the samples use X.to_dask_array(lengths=True)"
        )
    array = frame_array(frame)
    _ask_about_names(frame)
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
    matrix.annotations = FrameIndex(frame)
    return matrix


def _ask_about_names(frame: Any) -> None:
    """Refuse integers that are called as names of rows are; computes these of one partition."""
    kinds = zip(frame.columns, frame.dtypes, strict=True)
    names = [name for name, dtype in kinds if called_id(name) and dtype.kind in "iu"]
    if names:
        first = frame[names].partitions[0].compute().iloc[:FIRST_ROWS]
        known = {name: np.asarray(first[name]) for name in names}
        ask_about(
            known, "the Dask frame X", "X.set_index({})", "X.drop(columns=[...]) leaves it out"
        )


class FrameIndex(Annotations):
    """The index of a Dask data frame, which is computed where names are needed."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def column(self, axis: int, name: str) -> None:
        """None: columns are features."""

    def names(self, axis: int) -> list[str]:
        """No columns."""
        return []

    def feature_names(self) -> list[str]:
        """No columns: looking at them would compute them."""
        return []

    def key_names(self) -> list[str]:
        """The index."""
        return ["(index)"]

    def row_names(self, name: str) -> Any:
        """(rows,) what it holds; text that names nothing where it counts."""
        names = index_names(self.frame.index.compute())
        return [""] * len(self.frame) if names is None else names


class FrameReader(DaskReader):
    """Strips of partitions: each is a frame, and its numbers, before these are placed.

    copies : of the numbers of a strip that are in memory besides them while it is computed.
    """

    def __init__(self, array: Any, copies: int = COPIES) -> None:
        super().__init__(array)
        self.copies = copies

    def read(self, index: Index, buffer: Any = None) -> np.ndarray[Any, Any]:
        try:
            return super().read(index, buffer)
        finally:
            give_back(self.scratch_nbytes(index))

    def scratch_nbytes(self, index: Index) -> int:
        cells = math.prod(s.stop - s.start for s in index)
        return int(self.copies * cells * self.dtype.itemsize)


def _copies(frame: Any) -> int:
    """``copies`` of a :class:`FrameReader`."""
    if _made_of_arrays(_numeric(frame)) is not None:
        return COPIES_OF_ARRAYS
    reads = any(type(node).__name__.startswith(FILES) for node in frame.expr.walk())
    return COPIES_OF_FILES if reads else COPIES


def frame_array(frame: Any, lengths: Sequence[int] | None = None) -> Any:
    """The numbers of a Dask frame as a Dask array (n, p): nothing is computed.

    lengths : rows of the partitions; None: as files know them, else the array does not either.
    """
    dtype = _checked_dtype(frame)
    plain = frame.simplify()  # and not optimised: that would join partitions
    below = _arrays_of(_numeric(plain))
    keys = [tuple(key) for key in (plain.__dask_keys__() if below is None else below[0])]
    if lengths is None:
        lengths = _known_lengths(frame, len(keys))
    expected = (None,) * len(keys) if lengths is None else tuple(lengths)
    names = tuple(frame.columns)
    name = f"streampca-frame-{dask.base.tokenize(plain, expected)}"
    layer: dict[Any, Any] = {
        (name, i, 0): (FramePart(names, dtype, i, expected[i]), key) for i, key in enumerate(keys)
    }
    rows = tuple(float("nan") if n is None else n for n in expected)
    if below is None:
        graph = HighLevelGraph.from_collections(name, layer, dependencies=[plain])
    else:
        graph = HighLevelGraph.from_collections(name, {**below[1], **layer})
    meta = np.empty((0, 0), dtype)
    return dask.array.Array(graph, name, (rows, (len(names),)), meta=meta)


def map_frame(
    frame: Any, function: Callable[[Any], Any], columns: Sequence[str], dtype: Any
) -> Any:
    """A Dask data frame of what a function makes of the numbers of each partition, (rows, k).

    The index and the divisions stay. Nothing is computed.
    """
    part = FrameRows(
        FramePart(tuple(frame.columns), _checked_dtype(frame), None, None),
        function,
        tuple(columns),
        np.dtype(dtype),
    )
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
        if isinstance(part, np.ndarray):  # see :func:`_array_of`
            part = self._framed(part) if part.dtype != self.dtype else part
        if not isinstance(part, np.ndarray) and tuple(part.columns) != self.names:
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
        if isinstance(part, np.ndarray):
            return part
        if all(_fits(dtype, self.dtype) for dtype in set(part.dtypes)):
            return np.asarray(part.to_numpy(dtype=self.dtype))
        refuse_text(part)
        refuse_wider(part, self.dtype, where)
        return numbers_of(part, self.dtype)

    def _framed(self, values: np.ndarray[Any, Any]) -> Any:
        import pandas as pd

        return pd.DataFrame(values, columns=list(self.names))


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
        said = Lengths(frame.expr).optimize(fuse=False)
        if isinstance(said, Literal):
            found = tuple(map(int, said.operand("value")))
        elif isinstance(said, Lengths):
            found = _lengths_of_array(said.frame)
    return found if found is not None and len(found) == n_partitions else None


def _lengths_of_array(expr: Any) -> tuple[int, ...] | None:
    """Rows of the partitions of ``dask.dataframe.from_dask_array``, of an array of known chunks.

    The task of each is given its first row and the one after its last; None of other expressions.
    """
    found = []
    for _, part in (_made_of_arrays(expr) or {}).values():
        rows = getattr(part.args[1], "value", None)
        if not (isinstance(rows, tuple) and len(rows) == 2):  # an index of its own
            return None
        found.append(int(rows[1]) - int(rows[0]))
    return tuple(found) or None


def _numeric(frame: Any) -> Any:
    """The expression of a frame of numbers, below what Dask does to columns of text."""
    expr = frame.expr
    while type(expr).__name__ == "ArrowStringConversion":
        expr = expr.frame
    return expr


def _made_of_arrays(expr: Any) -> dict[Any, tuple[Any, Any]] | None:
    """Key of a partition -> (its task, what in that makes it of an array).

    Of ``dask.dataframe.from_dask_array``; None of other expressions.
    """
    if type(expr).__name__ != "FromGraph":
        return None
    nodes, found = expr.operand("layer"), {}
    for key in expr.operand("keys"):
        task = nodes[key]
        task = nodes.get(getattr(task, "target", None), task)  # an alias
        part = task.args[0].get(key) if _function_name(task) == "_execute_subgraph" else task
        if _function_name(part) != "_partition_from_array" or len(part.args) != 2:
            return None
        found[key] = task, part
    return found


def _arrays_of(expr: Any) -> tuple[list[Any], dict[Any, Any]] | None:
    """(keys, nodes) of the arrays that the partitions are made of; None of other expressions.

    pandas would copy each into columns, and its numbers would be copied back into rows.
    """
    parts = _made_of_arrays(expr)
    if parts is None:
        return None
    nodes = dict(expr.operand("layer"))
    for key, (task, part) in parts.items():
        made = Task(key, _array_of, *part.args, make=part.func, **part.kwargs)
        nodes.pop(task.key, None)
        nodes[key] = (
            made
            if task is part
            else Task(key, task.func, {**task.args[0], key: made}, *task.args[1:], **task.kwargs)
        )
    return list(parts), nodes


def _array_of(data: Any, index: Any, *, make: Callable[..., Any], **named: Any) -> Any:
    """An array of numbers as it is; anything else as the partition that Dask makes of it."""
    plain = type(data) is np.ndarray and data.ndim == 2 and data.dtype.kind in "buif"
    return data if plain else make(data, index, **named)


def _function_name(task: Any) -> str:
    return str(getattr(getattr(task, "func", None), "__name__", ""))


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
    give_back()
    lengths = tuple(map(int, found))
    while len(_counted) >= COUNTED:
        _counted.pop(next(iter(_counted)))
    _counted[dask.base.tokenize(frame)] = lengths
    return lengths, column
