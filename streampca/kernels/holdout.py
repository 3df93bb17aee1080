"""Cells that are held out: chosen by a hash of their place, so that no mask is ever stored."""

from __future__ import annotations

import numpy as np

from streampca.kernels.blas import Array
from streampca.kernels.splitmix import GOLDEN, mixed


def line_keys(numbers: Array, seed: int, axis: int) -> Array:
    """(lines,) uint32 keys of rows (axis 0) or columns (axis 1) by their number: splitmix64."""
    with np.errstate(over="ignore"):
        x = np.asarray(numbers, np.uint64) * np.uint64(2) + np.uint64(axis)
        x = x + GOLDEN * np.uint64((2 * seed + 1) % (1 << 63))
    return (mixed(x) >> np.uint64(32)).astype(np.uint32)


def chosen(row_keys: Array, column_keys: Array, share: float) -> Array:
    """Whether each cell is held out: ``share`` of all cells, the same whatever is read with them.

    row_keys, column_keys : broadcast against each other: (rows, 1) and (columns,) give a tile,
        (entries,) and (entries,) single cells.
    Cost: five operations on 32 bits per cell.
    Source: the finalizer of Appleby's MurmurHash3 over the sum of the keys.
    """
    with np.errstate(over="ignore"):
        h = row_keys + column_keys
        h = h ^ (h >> np.uint32(16))
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return np.asarray(h < np.uint32(min(share * 2.0**32, 2.0**32 - 1)))
