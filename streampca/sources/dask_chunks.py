"""What becomes of the chunks that a Dask graph computes: checked, placed, kept within bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from dask.sizeof import sizeof

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix.exact import refuse_inexact
from streampca.sources.dask_sharing import MiB


@dataclass(frozen=True)
class Spot:
    """One chunk along one dimension: its number, where it goes, which part of it, its length."""

    block: int
    into: slice
    part: slice
    length: int


def covering(sizes: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """Numbers (first, after the last) of the chunks that hold [start, stop)."""
    ends = np.cumsum((0, *sizes))
    return int(np.searchsorted(ends, start, "right")) - 1, int(np.searchsorted(ends, stop, "left"))


@dataclass(frozen=True)
class Place:
    """Writes a chunk into the array that is being read, so that the graph can let go of it."""

    out: np.ndarray[Any, Any]
    into: tuple[slice, ...]
    part: tuple[slice, ...]
    shape: tuple[int, ...]

    def __call__(self, chunk: Any) -> None:
        check_chunk(chunk)
        values = np.asarray(np.ma.filled(chunk, np.nan) if np.ma.is_masked(chunk) else chunk)
        if values.shape != self.shape:
            raise InvalidInputError(
                f"a chunk of this Dask array computed to shape {values.shape} and was declared as "
                f"{self.shape}. State the real chunks: X.map_blocks(..., chunks=...)."
            )
        if not np.can_cast(values.dtype, self.out.dtype, "same_kind"):
            raise InvalidTypeError(
                f"a chunk of this Dask array computed to dtype {values.dtype}, declared as "
                f"{self.out.dtype}. State it: X.map_blocks(..., dtype={str(values.dtype)!r})."
            )
        if self.out.dtype.kind == "f":
            refuse_inexact(values, where="a chunk of this Dask array, which is declared as floats,")
        self.out[self.into] = values[self.part]


def check_chunk(chunk: Any) -> None:
    """Refuse chunks that are not plain arrays; masked ones of floats become NaN where masked."""
    if scipy.sparse.issparse(chunk) or hasattr(chunk, "todense"):
        raise InvalidTypeError(
            f"chunks of this Dask array are {type(chunk).__name__}; expected NumPy arrays. "
            "Use X.map_blocks(lambda block: block.todense()), or pass one scipy.sparse matrix."
        )
    if isinstance(chunk, np.ma.MaskedArray) and chunk.dtype.kind != "f":
        raise InvalidTypeError(
            f"chunks of this Dask array are masked arrays of {chunk.dtype}, which has no NaN for "
            "what is missing. Use dask.array.ma.filled(X.astype('float64'), numpy.nan); or say a "
            "code: dask.array.ma.filled(X, -9) and missing_value=-9."
        )


class Room:
    """Passes results on while all of them together fit."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> Any:
        self.take(int(sizeof(value)))
        return value

    def take(self, nbytes: int) -> None:
        """Take so much of it. Raises InvalidInputError where that is not left."""
        with self._lock:
            self.left -= nbytes
            if self.left < 0:
                raise InvalidInputError(
                    f"the operands that all strips of this Dask graph share are larger than "
                    f"{self.limit // MiB} MiB and cannot be kept. Write the array down first, "
                    "X.to_zarr('scratch.zarr'), and use streampca.open('scratch.zarr'); or, if it "
                    "fits into memory, X = X.persist()."
                )
