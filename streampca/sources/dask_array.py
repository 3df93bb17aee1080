"""Any Dask array: a block is one strip of its graph, and nothing is read again for the next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import dask.array
import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import ChunkedMatrix
from streampca.sources.dask_sparse import SparseDaskMatrix, SparseDaskReader, is_sparse_chunk
from streampca.sources.dask_strips import DaskMatrix, DaskReader
from streampca.sources.dimensions import check_rank

Dim = Hashable | Sequence[Hashable] | None


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: of a few layers where they say that strips are independent; else the graph is
    materialised and analysed (about 0.2 ms per task). Nothing is computed before the first block.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, data frames, chunks of another kind than declared).
    """
    if hasattr(array, "to_dask_array"):
        raise InvalidTypeError(
            f"{type(array).__module__}.{type(array).__name__} is a Dask data frame; expected a "
            "Dask array. Use X = X.to_dask_array(lengths=True)."
        )
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")

    def made(dims: Sequence[int]) -> ChunkedMatrix:
        if is_sparse_chunk(array._meta):
            return SparseDaskMatrix(SparseDaskReader(array), dims)
        return DaskMatrix(DaskReader(array), dims)

    if dim is None:
        check_rank(array.shape)
        return made((0,))
    wanted = list(dim) if isinstance(dim, Sequence) and not isinstance(dim, str) else [dim]
    found = [
        int(d) % array.ndim
        for d in wanted
        if isinstance(d, (int, np.integer)) and -array.ndim <= d < array.ndim
    ]
    if not found or len(set(found)) != len(wanted) or len(found) == array.ndim:
        raise InvalidInputError(
            f"dim={dim!r}; expected sample dimension numbers of a Dask array of shape "
            f"{array.shape}, each once and not all, such as dim=0"
        )
    return made(found)
