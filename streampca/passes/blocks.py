"""How a pass is cut: blocks of whole chunks, and spans of blocks, the units of work."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from streampca.accumulators import OPEN_BLOCKS
from streampca.matrix import ChunkedMatrix, regular_edges, work_dtype
from streampca.passes.memory import MiB

BLOCK_NBYTES = 16 * MiB  # of a block in the working dtype, if chunks allow it
BLOCK_LENGTH = 512  # shorter blocks cost more in merging than they save


def block_edges(
    matrix: ChunkedMatrix,
    axis: int,
    share: float = 1.0,
    rows: tuple[int, int] | None = None,
    stored: bool = False,
    most: int | None = None,
) -> np.ndarray[Any, Any]:
    """Block boundaries along an axis, (blocks + 1,): whole chunks, about BLOCK_NBYTES each.

    Blocks of computed chunks may be smaller, see :func:`shares`.
    share : of BLOCK_NBYTES; 0 gives the smallest blocks that read each chunk once.
    rows : (first, last) of the axis, or None for all.
    stored : for a sparse matrix, count the stored entries instead of the cells.
    most : streamed rows of a block, unless a chunk is longer.
    """
    length = matrix.shape[axis]
    stride = max(1.0, matrix.shape[1 - axis] * work_dtype(matrix.dtype).itemsize)
    if stored:
        stride = max(1.0, matrix.row_nbytes(axis))
    least = int(min(BLOCK_LENGTH if share else 64, 4 * BLOCK_NBYTES // stride))
    wanted = max(1, least, int(BLOCK_NBYTES * share // stride))
    wanted = wanted if most is None else min(wanted, most)
    edges = matrix.chunk_edges(axis)
    start, stop = rows or (0, length)
    if edges is None:
        return start + regular_edges(stop - start, wanted)
    edges = np.asarray(edges, dtype=np.int64)
    inside = edges[np.searchsorted(edges, start, "right") : np.searchsorted(edges, stop, "left")]
    known = [start, *inside.tolist(), stop]
    most_chunks = chunks_per_block(matrix, axis, len(known) - 1) or len(known)
    grouped = [start]
    while grouped[-1] < stop:
        nearest = bisect_right(known, grouped[-1] + wanted) - 1
        after = bisect_right(known, grouped[-1])
        grouped.append(known[max(min(nearest, after + most_chunks - 1), after)])
    return np.array(grouped, dtype=np.int64)


def easier_axis(matrix: ChunkedMatrix, preferred: int = 0) -> int:
    """The axis to stream if either would do: the preferred one, unless its blocks are huge.

    Huge is more than 4 million cells, and more than 4 times the blocks of the other axis.
    """
    longest = (int(np.diff(block_edges(matrix, axis)).max(initial=0)) for axis in (0, 1))
    cells = [length * matrix.shape[1 - axis] for axis, length in enumerate(longest)]
    other = 1 - preferred
    return other if cells[preferred] > 4 * max(cells[other], 1 << 22) else preferred


# How the blocks of a pass are cut from chunks, and grouped into spans.

MERGED_NBYTES = 1024 * MiB  # of accumulators that may be merged in exchange for shorter spans
LEAST_SHARES, MOST_SHARES = 32, 256
LEAST_SPANS = 16
FEW_BLOCKS = 32


def shares(across: int) -> int:
    """The least number of blocks for a source with computed chunks, even if all fit into fewer.

    across : length of a streamed row. Each block costs one merge of accumulators with up to
    ``across ** 2`` numbers: 256 blocks up to 724 columns, 32 from 2048 on.
    """
    return int(np.clip(MERGED_NBYTES // max(1, 8 * across**2), LEAST_SHARES, MOST_SHARES))


def chunks_per_block(matrix: ChunkedMatrix, axis: int, chunks: int) -> int | None:
    """The most chunks in one block; None if only bytes count."""
    if not matrix.computes:
        return None
    return max(1, -(-chunks // shares(matrix.shape[1 - axis])))


def span_length(n_blocks: int, across: int) -> int:
    """Blocks per span: long enough for cheap merging, short enough for lanes to end together.

    across : length of a streamed row. Each span costs one merge of accumulators with up to
    ``across ** 2`` numbers: 256 spans keep many lanes busy up to 724 columns, 16 are left from 2897
    on, where further threads help the lanes with their blocks. With spans of one block each lane
    would wait for its neighbour after every block, a tenth of the time at 500 columns. With fewer
    than FEW_BLOCKS blocks, lanes that get unequal numbers of longer spans would lose more.
    """
    if n_blocks < 8:
        return 1
    spans = int(np.clip(MERGED_NBYTES // max(1, 8 * across**2), LEAST_SPANS, MOST_SHARES))
    least = 2 if n_blocks >= FEW_BLOCKS or spans == LEAST_SPANS else 1
    return min(OPEN_BLOCKS, max(least, n_blocks // spans))


def blocks_per_span(matrix: ChunkedMatrix, axis: int, edges: np.ndarray[Any, Any]) -> int:
    """Blocks that one task folds: enough that no chunk is read by three spans, and few by two.

    All blocks, if two spans would read most chunks twice.
    """
    n_blocks = len(edges) - 1
    length = _blocks_by_work(matrix, axis, n_blocks)
    if (entries := matrix.entry_points(axis)) is not None:
        return between_entries(edges, entries, length)
    if not (reach := matrix.reach(axis)):
        return length
    for rows in (4 * reach, reach):
        beyond = np.searchsorted(edges, edges[:-1] + rows, side="right")
        needed = int((beyond - np.arange(n_blocks)).max(initial=1, where=beyond <= n_blocks))
        if edges[0] + rows < edges[-1] and needed <= n_blocks // 2:
            return max(length, needed)
    return n_blocks


LENGTHS = 64  # of spans that are tried
READ_AGAIN = 0.05  # share of the rows that may be read again where spans begin


def between_entries(edges: np.ndarray[Any, Any], entries: np.ndarray[Any, Any], least: int) -> int:
    """The fewest blocks, at least so many, whose spans begin at entry points, or near to them.

    All blocks, where each span would read many rows that the one before it reads.
    """
    n_blocks = len(edges) - 1
    places = np.searchsorted(edges, entries)
    for length in sorted({int(i) for i in places if least <= i < n_blocks})[:LENGTHS]:
        begins = edges[:-1:length]
        before = entries[np.searchsorted(entries, begins, "right") - 1]
        if int((begins - before).sum()) <= READ_AGAIN * (edges[-1] - edges[0]):
            return length
    return max(1, n_blocks)


def _blocks_by_work(matrix: ChunkedMatrix, axis: int, n_blocks: int) -> int:
    """:func:`span_length`, or less if chunks are computed.

    One for chunks on a cluster, which are seldom on the same worker, unless the merged
    accumulators would be larger than X.
    """
    across = matrix.shape[1 - axis]
    usual = span_length(n_blocks, across)
    if not matrix.computes:
        return usual
    if matrix.futures() and 8 * across**2 * n_blocks <= matrix.nbytes:
        return 1
    return max(1, min(usual, n_blocks // shares(across)))
