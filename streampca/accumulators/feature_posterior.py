"""What streamed features say of the factors of every sample, summed."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import Accumulator, refuse_holes
from streampca.errors import InvalidInputError
from streampca.kernels import Array


class FeaturePosterior(Accumulator):
    """sum over features of w z / noise, z^2 / noise, and sums over the observed ones of a table.

    For stores whose chunks hold all samples: a block of samples would be most of the matrix there.
    z = (x - center) / scale, holes 0. Arithmetic is float64.

    Operands by name: ``weighted`` (p, k) loadings over the noise, ``inverse_noise`` (p,),
    ``center`` (p,), ``scale`` (p,) or None, and ``table`` (p, t), what each observed feature adds
    to its row (made only where holes are allowed).
    missing, absent : as :class:`Reconstruction`.
    width, columns : k and t, for the projection of memory only.
    """

    axis = 1
    settings = ("scale", "missing", "absent", "width", "columns")
    fields = ("b", "squares", "tables")

    def __init__(
        self,
        *,
        scale: str | None = None,
        missing: str = "raise",
        absent: tuple[int, ...] = (),
        width: int = 64,
        columns: int = 0,
    ) -> None:
        self.scale, self.missing, self.absent = scale, missing, absent
        self.width, self.columns = width, columns
        self.b: Any = None  # (n, k) sum w z / noise
        self.squares: Any = None  # (n,) sum z^2 / noise
        self.tables: Any = None  # (n, t) sums of the table's rows, of what is observed

    def update(self, block: Any) -> None:
        self._check(block)
        n, part = block.shape[0], block.columns
        self._check_width(self.b, n)
        weighted, inverse = block["weighted"], block["inverse_noise"]
        if self.b is None:
            self.b, self.squares = np.zeros((n, weighted.shape[1])), np.zeros(n)
            self.tables = np.zeros((n, 0 if self.missing == "raise" else block["table"].shape[1]))
        scale = None if self.scale is None else block[self.scale][part]
        for tile in block.tiles(np.dtype(np.float64), center=block["center"][part], scale=scale):
            if self.missing == "raise":
                refuse_holes(block, tile, self.absent)
            here = slice(tile.start, tile.stop)
            self.b += tile.values @ weighted[here]
            self.squares += np.einsum("ij,ij,j->i", tile.values, tile.values, inverse[here])
            if self.missing != "raise":
                table = block["table"][here]
                every = tile.mask is None
                self.tables += table.sum(axis=0) if every else ~tile.mask @ table

    def merge(self, other: Self) -> None:
        if other.b is None:
            return
        self._check_width(self.b, len(other.b))
        for name in self.fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs.copy() if mine is None else mine + theirs)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return shape[0] * (self.width + 1 + self.columns) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return shape[0] * (self.width + self.columns) * 8 + block_length * (shape[0] + 1) * 8

    # -- results ----------------------------------------------------------------------------

    def sums(self) -> tuple[Array, Array, Array]:
        """((n, k) w z / noise, (n,) z^2 / noise, (n, t) of the table), fresh arrays."""
        if self.b is None:
            raise InvalidInputError("FeaturePosterior has seen no block")
        return np.array(self.b), np.array(self.squares), np.array(self.tables)
