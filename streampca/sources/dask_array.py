"""Any Dask array: a block is one strip of its graph, and nothing is read again for the next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import dask.array
import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import ChunkedMatrix, Labels
from streampca.matrix.kinds import CHUNKS, check_dtype, is_sparse, refuse_gpu
from streampca.sources.dask_chunks import floats_of_masked
from streampca.sources.dask_sparse import SparseDaskMatrix, SparseDaskReader
from streampca.sources.dask_strips import DaskMatrix, DaskReader
from streampca.sources.dimensions import check_rank

Dim = Hashable | Sequence[Hashable] | None


def from_dask(array: Any, dim: Dim = None) -> ChunkedMatrix:
    """A matrix over any Dask array.

    dim : the sample dimension number(s), slowest first; the others are stacked into features.
        Default: the first of two.

    Cost: of a few layers where they say what strips share: elementwise operations, reads, operands
    of all strips, ``map_overlap`` with boundary "none". Else the graph is materialised and analysed
    (about 0.2 ms per task). Nothing is computed before the first block.
    Raises InvalidInputError (unknown chunk sizes, strips that cannot be separated) or
    InvalidTypeError (dtype, chunks of another kind than declared).
    """
    if not isinstance(array, dask.array.Array):
        raise InvalidTypeError(f"expected a Dask array, got {type(array).__name__}")

    check_dtype(np.dtype(array.dtype))
    if dim is None:
        check_rank(array.shape)
        return dask_matrix(array, (0,))
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
    return dask_matrix(array, found)


def dask_matrix(array: Any, dims: Sequence[int], labels: Labels | None = None) -> ChunkedMatrix:
    """The matrix for what the chunks of a Dask array are: sparse, masked or plain.

    dims : numbers of the sample dimensions.
    """
    refuse_gpu(array._meta, CHUNKS)
    if is_sparse(array._meta):
        matrix: ChunkedMatrix = SparseDaskMatrix(SparseDaskReader(array), dims)
        matrix.labels = labels or matrix.labels
        return matrix
    return DaskMatrix(DaskReader(floats_of_masked(array)), dims, labels=labels)
