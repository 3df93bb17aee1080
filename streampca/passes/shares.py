"""How a pass over computed chunks is shared out: by work, which bytes do not tell.

A chunk that a graph computes may take seconds and weigh nothing; one that lies on a worker should
be folded there. Blocks and spans are then made of few chunks. How few is a function of the source
alone, as all of a plan is: workers come and go, and bits stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import OPEN_BLOCKS
from streampca.matrix import ChunkedMatrix

GiB = 1024**3
MERGED_NBYTES = GiB  # of accumulators that may be merged for the sake of shorter spans
LEAST_SHARES, MOST_SHARES = 32, 256


def shares(across: int) -> int:
    """Into how many blocks chunks are shared out that bytes alone would put together.

    across : length of a streamed row. Each share costs one merge of accumulators, which have up to
    ``across ** 2`` numbers: 256 up to 724 columns, 32 from 2048.
    """
    return int(np.clip(MERGED_NBYTES // (8 * across**2), LEAST_SHARES, MOST_SHARES))


def chunks_per_block(matrix: ChunkedMatrix, axis: int, chunks: int) -> int | None:
    """The most chunks in one block; None where bytes alone decide."""
    if not matrix.computes:
        return None
    return max(1, -(-chunks // shares(matrix.shape[1 - axis])))


def span_length(n_blocks: int) -> int:
    """Blocks per span: long enough that merging is cheap, short enough that lanes end together."""
    return 1 if n_blocks < 8 else min(OPEN_BLOCKS, max(2, n_blocks // 16))


def blocks_per_span(matrix: ChunkedMatrix, axis: int, edges: np.ndarray[Any, Any]) -> int:
    """Blocks that one task folds of this matrix: so many that no chunk is read by three spans,
    and few by two.

    A single span where two of them would read most chunks twice.
    """
    n_blocks = len(edges) - 1
    length = _blocks_by_work(matrix, axis, n_blocks)
    if not (reach := matrix.reach(axis)):
        return length
    for rows in (4 * reach, reach):
        beyond = np.searchsorted(edges, edges[:-1] + rows, side="right")
        needed = int((beyond - np.arange(n_blocks)).max(initial=1, where=beyond <= n_blocks))
        if edges[0] + rows < edges[-1] and needed <= n_blocks // 2:
            return max(length, needed)
    return n_blocks


def _blocks_by_work(matrix: ChunkedMatrix, axis: int, n_blocks: int) -> int:
    """:func:`span_length`, or less where chunks are computed.

    Of values on a cluster one, unless what is merged of it weighs more: two seldom lie on one
    worker.
    """
    usual = span_length(n_blocks)
    if not matrix.computes:
        return usual
    across = matrix.shape[1 - axis]
    if matrix.futures() and 8 * across**2 * n_blocks <= matrix.nbytes:
        return 1
    return max(1, min(usual, n_blocks // shares(across)))
