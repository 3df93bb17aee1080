"""Cache-sized pieces of a block with the lines that are streamed as rows, and what is observed.

Blocks may have beside them "center" and "scale", of all columns of the matrix, and "row_center" and
"row_scale", of the rows of the block: then z_ij = ((x_ij - center_j) / scale_j - row_center_i /
scale_j) / row_scale_i. A scale of 0 gives 0, and so does a row_scale of infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.kernels import Array, reciprocal, row_pieces


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
    """The tiles of a block, standardised by what lies beside it."""
    center, scale = (_of_columns(block, name) for name in ("center", "scale"))
    about_rows = _AboutRows.of(block, scale)
    dtype, buffer = block.work_dtype, None
    for tile in block.tiles(dtype, center=center, scale=scale, thin=True):
        mask = tile.mask
        if about_rows is not None:
            about_rows.take_from(tile.values, mask, tile.start - block.start)
        w = None
        if mask is not None:
            if buffer is None or buffer.size < mask.size:  # the first tile is the largest
                buffer = block.borrow("observed", (max(mask.size, tile.values.size),), dtype)
            w = buffer[: mask.size].reshape(mask.shape)
            np.logical_not(mask, out=w, casting="unsafe")
        turned = (tile.values.T, None if w is None else w.T) if block.axis else (tile.values, w)
        yield ObservedTile(*turned, tile.start)


def observed_values(block: Any) -> Array:
    """(entries,) float64 z of a block in which only stored cells are observed."""
    seen = block.observed
    center, scale = (_of_columns(block, name) for name in ("center", "scale"))
    z = np.asarray(seen.standardized(center, scale))
    shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
    if shift is not None:
        taken = shift[seen.rows]
        z -= taken if scale is None else taken * reciprocal(scale)[seen.columns]
    if spread is not None:
        z /= spread[seen.rows]
    return z


def _of_columns(block: Any, name: str) -> Array | None:
    """The part of an operand over features that this block needs."""
    values = block.arrays.get(name)
    return None if values is None else values[block.columns]


@dataclass
class _AboutRows:
    """What is taken from every row of standardised tiles, in the working dtype.

    rest : of the shift, what rounding to that dtype took off it.
    """

    axis: int
    shift: Array | None
    rest: Array | None
    over: Array | None
    columns: Array | None  # reciprocals of the scales of the columns

    @classmethod
    def of(cls, block: Any, scale: Array | None) -> _AboutRows | None:
        shift, spread = (block.arrays.get(name) for name in ("row_center", "row_scale"))
        if shift is None and spread is None:
            return None
        dtype, rest = block.work_dtype, None
        if shift is not None:
            whole, shift = shift, shift.astype(dtype)
            rest = (whole - shift).astype(dtype)
            rest = rest if rest.any() else None
        over = None if spread is None else (1.0 / spread).astype(dtype)
        columns = None if scale is None else reciprocal(scale).astype(dtype)
        return cls(block.axis, shift, rest, over, columns)

    def take_from(self, values: Array, mask: Array | None, first: int) -> None:
        """Standardise a tile (rows, columns) in place; ``first`` line of the block."""
        rows, columns = values.shape
        above, left = (0, first) if self.axis else (first, 0)
        over_columns: Any = 1.0
        if self.columns is not None:
            over_columns = self.columns[left : left + columns]
        for part in row_pieces(rows, columns * values.itemsize):
            z, here = values[part], slice(part.start + above, part.stop + above)
            for shift in (self.shift, self.rest):
                if shift is not None:
                    z -= shift[here, None] * over_columns
            if self.over is not None:
                z *= self.over[here, None]
            if mask is not None and self.shift is not None:
                z[mask[part]] = 0.0
