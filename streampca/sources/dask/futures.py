"""Futures of ``distributed`` given as X: an array, or a frame, that was scattered or computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import dask.threaded
import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, shorten
from streampca.matrix import ChunkedMatrix, Labels
from streampca.sources.dask.arrays import from_dask
from streampca.sources.dask.graph import await_all, is_future
from streampca.sources.frames import (
    frame_values,
    is_frame,
)
from streampca.sources.stacked import Dim

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
