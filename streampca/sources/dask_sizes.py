"""How large the results of a Dask graph's tasks are, as far as its layers say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.sources.dask_graph import Key, layer_of

Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sizes:
    """Estimated bytes of a task's result: those of its chunk, or of the array's largest one.

    chunks : name of an array -> its chunks, and the bytes of an item.
    """

    chunks: Mapping[Key, tuple[Chunks, int]]
    other: int

    @classmethod
    def of(cls, array: Any) -> Sizes:
        """Of all tasks that a Dask array's graph holds."""
        layers = getattr(array.__dask_graph__(), "layers", {})
        known = {name: said for name in layers if (said := annotated(layers[name])) is not None}
        largest = math.prod(max(sizes, default=0) for sizes in array.chunks)
        return cls(
            {name: (chunks, dtype.itemsize) for name, (chunks, dtype) in known.items()},
            largest * array.dtype.itemsize,
        )

    def __call__(self, key: Key) -> int:
        chunks, itemsize = self.chunks.get(layer_of(key), (None, 0))
        if chunks is None or not isinstance(key, tuple) or len(key) != 1 + len(chunks):
            return self.other
        result: int = itemsize * math.prod(
            sizes[number] for sizes, number in zip(chunks, key[1:], strict=True)
        )
        return result


def annotated(layer: Any) -> tuple[Chunks, np.dtype[Any]] | None:
    """(chunks, dtype) of the array that a layer makes, where Dask left them there."""
    said = getattr(layer, "collection_annotations", None) or {}
    chunks, dtype = said.get("chunks"), said.get("dtype")
    if chunks is None or dtype is None or any(n != n for sizes in chunks for n in sizes):
        return None
    return chunks, np.dtype(dtype)


def array_operands(layer: Any) -> dict[str, tuple[str, ...]]:
    """Name of an array -> its indices, of all that a blockwise layer is given."""
    return {str(arg): index for arg, index in layer.indices if index is not None}
