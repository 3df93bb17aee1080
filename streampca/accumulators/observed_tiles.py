"""Cache-sized pieces of a block with the lines that are streamed as rows, and what is observed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array


@dataclass
class ObservedTile:
    """Some lines of a block. Valid until the next one.

    z : (lines, m) standardised values in the working dtype, 0 in the holes.
    w : the same shape and dtype, 1 where a cell is observed, else 0; None without holes.
    start : number of the first line, on the streamed axis.
    """

    z: Array
    w: Array | None
    start: int

    @property
    def squares(self) -> float:
        """Sum of z^2."""
        per_line = np.einsum("ij,ij->i", self.z, self.z)
        return float(per_line.sum(dtype=np.float64))

    @property
    def cells(self) -> int:
        """How many are observed."""
        if self.w is None:
            return self.z.size
        return int(np.add.reduce(self.w, axis=1).sum(dtype=np.float64))


def observed_tiles(block: Any) -> Iterator[ObservedTile]:
    """The tiles of a block, standardised by the operands "center" and "scale" where given."""
    given = (block.arrays.get(name) for name in ("center", "scale"))
    center, scale = (None if one is None else one[block.columns] for one in given)
    dtype, buffer = block.work_dtype, None
    for tile in block.tiles(dtype, center=center, scale=scale, thin=True):
        mask = tile.mask
        w = None
        if mask is not None:
            if buffer is None or buffer.size < mask.size:  # the first tile is the largest
                buffer = block.borrow("observed", (max(mask.size, tile.values.size),), dtype)
            w = buffer[: mask.size].reshape(mask.shape)
            np.logical_not(mask, out=w, casting="unsafe")
        turned = (tile.values.T, None if w is None else w.T) if block.axis else (tile.values, w)
        yield ObservedTile(*turned, tile.start)
