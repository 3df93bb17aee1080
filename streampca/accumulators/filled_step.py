"""One sweep of Hard- or Soft-Impute: the factors of every line, and products of the filled matrix.

The filled matrix Y = W Z + (1 - W) Xhat is formed line by line from the observed cells, the old
factors of the line and the old loadings. It is never stored.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import TILE_NBYTES, Accumulator, OpenSum
from streampca.accumulators.observed import ObservedTile, observed_tiles
from streampca.errors import InvalidInputError
from streampca.kernels import Array, add_product, rank_k_update, side_by_side


class FilledStep(Accumulator):
    """From the estimate Xhat_old = U_old V_old' to U_new = Y_old T, and to Y_new'Y_new or Y_new'S.

    Operands, (m, sum of ranks) with the candidates side by side: "old" V_old; "new" V_new with
    orthonormal columns; "turn" T, which is V_new, possibly with shrunk columns. The side input
    "u_old" is (L, sum of ranks). Without "turn", as in the first pass, U_new is U_old. Then
    Xhat_new = U_new V_new', and Y_new is the matrix filled with it.

    ranks : of the candidates.  whole : accumulate Y_new'Y_new (m, m) of each. Otherwise, with
        S = Y_new V_new, the products Y_new'S (m, r) and S'S (r, r): a step of subspace iteration.
    ``block["u"]`` (length, sum of ranks) is U_new of the block's lines, for a sink.

    Sums are float64; within a span they are in the working dtype.
    Cost: L m (m + 6 r) flops where whole, else 10 L m r.
    Source: Mazumder, Hastie and Tibshirani 2010, "Spectral regularization algorithms for learning
    large incomplete matrices", algorithm 1 and section 8 (hard thresholds).
    """

    settings = ("streamed", "ranks", "whole")
    fields = ("product", "inner", "gram", "cross", "old_gram", "squares", "cells", "residual")
    makes = ("u",)

    def __init__(self, *, streamed: int, ranks: tuple[int, ...], whole: bool) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.ranks, self.whole = tuple(ranks), whole
        self._product = OpenSum()
        self.inner: Any = None  # (R, R) S'S
        self.gram: Any = None  # (R, R) U_new'U_new
        self.cross: Any = None  # (R, R) U_old'U_new
        self.old_gram: Any = None  # (R, R) U_old'U_old
        self.squares = 0.0  # sum of z^2 over the observed cells
        self.cells = 0
        self.residual: Any = None  # (candidates,) |W (Z - Xhat_new)|^2

    def emptied(self) -> Self:
        fresh = self.blank()
        fresh._product = self._product.emptied()
        return fresh

    @property
    def product(self) -> Array | None:
        """(candidates m, m) lower triangles of Y'Y, or (sum of ranks, m) S'Y."""
        result: Array | None = self._product.closed
        return result

    @product.setter
    def product(self, value: Array) -> None:
        self._product.closed = value

    @property
    def parts(self) -> list[slice]:
        """The columns of each candidate's factors."""
        return side_by_side(self.ranks)

    def update(self, block: Any) -> None:
        self._check(block)
        total, m = sum(self.ranks), block.shape[1 - block.axis]
        dtype = block.work_dtype
        operands = [block.arrays.get(name) for name in ("old", "new", "turn")]
        for name, one in zip(("old", "new"), operands, strict=False):
            if one is None or one.shape != (m, total):
                raise InvalidInputError(f"operand {name!r}: expected (m, ranks) = {(m, total)}")
        old, new, turn = (None if a is None else np.asarray(a, dtype) for a in operands)
        self._begin()
        height = len(self.ranks) * m if self.whole else total
        product = self._product.open((height, m), dtype)
        u_old = np.asarray(block["u_old"], dtype)
        out = np.array(u_old)
        for tile in observed_tiles(block):
            lines = slice(tile.start - block.start, tile.start - block.start + len(tile.z))
            self.squares += tile.squares
            self.cells += tile.cells
            for c, part in enumerate(self.parts):
                before = u_old[lines, part]
                if turn is not None:
                    y = _filled(tile, before, old[:, part])  # type: ignore[index]
                    out[lines, part] = y @ turn[:, part]
                y = _filled(tile, out[lines, part], new[:, part])  # type: ignore[index]
                self.residual[c] += _squares_beside(tile, out[lines, part], new[:, part], y)  # type: ignore[index]
                self._add_product(product, c, part, y, new)  # type: ignore[arg-type]
            self._add_grams(u_old[lines], out[lines])
        block.arrays["u"] = out

    def _begin(self) -> None:
        if self.gram is None:
            total = sum(self.ranks)
            self.inner, self.gram = np.zeros((total, total)), np.zeros((total, total))
            self.cross, self.old_gram = np.zeros((total, total)), np.zeros((total, total))
            self.residual = np.zeros(len(self.ranks))

    def _add_product(self, product: Array, c: int, part: slice, y: Array, new: Array) -> None:
        if self.whole:
            m = y.shape[1]
            rank_k_update(product[c * m : (c + 1) * m], y, rows=True)
            return
        s = y @ new[:, part]
        add_product(product[part], np.ascontiguousarray(s.T), y)
        s = s.astype(np.float64)
        self.inner[part, part] += s.T @ s

    def _add_grams(self, before: Array, after: Array) -> None:
        before, after = before.astype(np.float64), after.astype(np.float64)
        self.old_gram += before.T @ before
        self.cross += before.T @ after
        self.gram += after.T @ after

    def settle(self) -> None:
        self._product.settle()

    def merge(self, other: Self) -> None:
        if other.gram is None:
            return
        self._begin()
        if self.product is not None and other.product is not None:
            self._check_width(self.product.T, other.product.shape[1])
        self.settle()
        self._product.merge(other._product)
        for name in ("inner", "gram", "cross", "old_gram", "residual"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.squares += other.squares
        self.cells += other.cells

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m, total = shape[1 - self.streamed], sum(self.ranks)
        height = len(self.ranks) * m if self.whole else total
        return (height * m + 4 * total * total) * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m = shape[1 - self.streamed]
        height = len(self.ranks) * m if self.whole else sum(self.ranks)
        return self.projected_nbytes(shape, 8) + height * m * itemsize

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        m, total = shape[1 - self.streamed], sum(self.ranks)
        tile = min(block_length, max(1, TILE_NBYTES // max(4 * m, 1)))
        return 8 * (tile * (3 * m + 5 * total) + 2 * total * (block_length + m))

    # -- results ----------------------------------------------------------------------------

    def lower(self, c: int) -> Array:
        """(m, m) Y'Y of candidate c, its lower triangle valid; a fresh array."""
        product = self._require()
        m = product.shape[1]
        return product[c * m : (c + 1) * m]

    def subspace(self, c: int) -> tuple[Array, Array]:
        """(Y'S (m, r), S'S (r, r)) of candidate c, fresh arrays."""
        part = self.parts[c]
        return self._require()[part].T, np.array(self.inner[part, part])

    def _require(self) -> Array:
        if (product := self._product.total()) is None:
            raise self._nothing_seen()
        return product


def _filled(tile: ObservedTile, u: Array, v: Array) -> Array:
    """(lines, m) the observed values, and u v' in the holes."""
    if tile.w is None:
        return np.ascontiguousarray(tile.z)
    y = u @ v.T
    y *= 1.0 - tile.w
    y += tile.z
    return np.ascontiguousarray(y)


def _squares_beside(tile: ObservedTile, u: Array, v: Array, y: Array) -> float:
    """|W (Z - u v')|^2: y and the estimate differ only where a cell is observed."""
    left = u @ v.T
    left -= y
    return float(np.einsum("ij,ij->i", left, left).sum(dtype=np.float64))
