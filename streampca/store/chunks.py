"""Writing to Zarr arrays, one chunk at a time."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LAID_OUT = 3  # chunks held while one is written: as it lies in memory, encoded, and the one before
READ_FIRST = 6  # more where only a part is written: what is there is read and decoded; 5 measured


def put(array: Any, corner: tuple[int, ...], values: Array) -> None:
    """Write values into a Zarr array, their first cell at ``corner``.

    Each chunk is an assignment of its own: Zarr would encode all chunks of one at the same time.
    """
    cuts = zip(corner, values.shape, array.chunks, strict=True)
    boxes = [list(pairwise(chunk_cuts(at, at + n, chunk))) for at, n, chunk in cuts]
    for box in product(*boxes):
        there = tuple(slice(first, last) for first, last in box)
        here = tuple(slice(a - at, b - at) for (a, b), at in zip(box, corner, strict=True))
        array[there] = values[here]


def chunk_cuts(start: int, stop: int, chunk: int) -> list[int]:
    """``start``, the edges of chunks between, and ``stop``."""
    return [start, *range((start // chunk + 1) * chunk, stop, chunk), *([stop] * (stop > start))]


def writing_nbytes(chunk_nbytes: int, shared: bool = False) -> int:
    """Bytes that Zarr holds while :func:`put` writes.  shared : chunks that several calls fill."""
    return (LAID_OUT + shared * READ_FIRST) * chunk_nbytes
