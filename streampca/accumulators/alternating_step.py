"""One sweep of alternating least squares: solve every line, add to the equations of the others."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from streampca.accumulators.base import TILE_NBYTES, Accumulator, OpenSum
from streampca.accumulators.observed import observed_tiles, observed_values
from streampca.errors import InvalidInputError
from streampca.kernels import Array, add_product, side_by_side
from streampca.kernels.least_squares import (
    COLUMNS,
    LINES,
    packed_gram,
    packed_length,
    packed_products,
    resolution,
    solve_packed,
)


class AlternatingStep(Accumulator):
    """U = argmin |W (Z - U V')|^2 + ridge |U|^2 line by line, and the equations of V given U.

    Right sides are those of the residual, R = W (Z - U V'): the equations give the step from this V
    to the next one. That step is small near convergence, so it and |R|^2 keep their last digits.

    A line is a streamed row (a sample, or a feature where features are streamed). Z (L, m) is the
    standardised matrix with lines as rows, and W is 1 where it is observed. The operand "v"
    (m, sum of ranks) holds the factors of all candidates side by side. The operands "center" and
    "scale" (p,) standardise if present. ``block["u"]`` (length, sum of ranks) receives the factors
    of the block's lines, for a sink.

    ranks, ridges : of the candidates, which share one pass.
    biases : for every candidate the ridge of its line biases, or None for no biases. With biases
        z_ij = u_i'v_j + a_i + b_j, and factors are wider by two: (u_i, a_i, 1) for a line,
        (v_j, 1, b_j) across. Both ones are fixed, and the equations are those of (v_j, b_j).
        Samples are the lines; "row_scale" divides the 1 as with means.
    fitted : whether each candidate is fitted; others have factors and sums of 0. None: all are.
    means : the equations are those of V and a mean m_j, z_j = U v_j + m_j: a 1 follows the factors
        of every line, divided by the "row_scale" of the sample if there is one.

    absent : blocks hold observed cells only, for the projection of memory.

    Of a block in which only stored cells are observed, only these are used.
    Sums are float64; within a span they are in the working dtype.
    Cost: with t = r (r + 1) / 2 about 4 L m (t + r) flops and L r^3 / 3; of sparse blocks 4 t flops
    per entry.
    Source: Hastie, Mazumder, Lee and Zadeh 2015, "Matrix completion and low-rank SVD via fast
    alternating least squares", section 2, with each factor solved for exactly.
    """

    settings = ("streamed", "ranks", "ridges", "means", "biases", "fitted", "absent")
    fields = (
        "left",
        "right",
        "gram",
        "sums",
        "squares",
        "cells",
        "lines",
        "seen",
        "residual",
        "singular",
    )
    makes = ("u",)

    def __init__(
        self,
        *,
        streamed: int,
        ranks: tuple[int, ...],
        ridges: tuple[float, ...],
        means: bool = False,
        biases: tuple[float, ...] | None = None,
        fitted: tuple[bool, ...] | None = None,
        absent: bool = False,
    ) -> None:
        self.axis = self.streamed = streamed  # type: ignore[misc]
        self.ranks, self.ridges, self.means = tuple(ranks), tuple(ridges), means
        self.biases = None if biases is None else tuple(biases)
        self.fitted = None if fitted is None else tuple(fitted)
        self.absent = absent
        self.widths = tuple(r + 2 * (biases is not None) for r in self.ranks)
        self._left, self._right = OpenSum(), OpenSum()
        self.gram: Any = None  # (R, R) U'U of each candidate, 0 between them
        self.sums: Any = None  # (R,) U'1, and as in all below with means h for 1
        self.squares = 0.0  # sum of z^2 over the observed cells
        self.cells = 0
        self.lines = 0.0  # h'h
        self.seen = 0.0  # h'h over the lines with any observation; only used with biases
        self.residual: Any = None  # (candidates,) |W (Z - U V')|^2
        self.singular: Any = None  # (candidates,) lines of fewer independent observations than r

    def emptied(self) -> Self:
        fresh = self.blank()
        fresh._left, fresh._right = self._left.emptied(), self._right.emptied()
        return fresh

    @property
    def left(self) -> Array | None:
        """(sum of r (r + 1) / 2, m) U' diag(w_j) U of every j across; r + 1 for r with means."""
        result: Array | None = self._left.closed
        return result

    @left.setter
    def left(self, value: Array) -> None:
        self._left.closed = value

    @property
    def right(self) -> Array | None:
        """(sum of ranks, m) U'r_j."""
        result: Array | None = self._right.closed
        return result

    @right.setter
    def right(self, value: Array) -> None:
        self._right.closed = value

    def update(self, block: Any) -> None:
        self._check(block)
        v, total = block["v"], sum(self.widths)
        m = block.shape[1 - block.axis]
        if v.shape != (m, total):
            raise InvalidInputError(f"the operand v is {v.shape}; this block needs {(m, total)}")
        self._begin()
        fold = self._of_entries if block.absent else self._of_tiles
        block.arrays["u"] = fold(block, v)

    def _begin(self) -> None:
        if self.gram is None:
            total = sum(self.widths)
            self.gram, self.sums = np.zeros((total, total)), np.zeros(total)
            self.residual = np.zeros(len(self.ranks))
            self.singular = np.zeros(len(self.ranks), np.int64)

    def _of_tiles(self, block: Any, v: Array) -> Array:
        """Add the sums of a dense block; return its factors."""
        dtype, m = block.work_dtype, len(v)
        v = np.ascontiguousarray(v, dtype)
        left = self._left.open((self._packed, m), dtype)
        right = self._right.open((sum(self.across), m), dtype)
        products = [packed_products(v[:, part]) for part in self.parts]
        out, buffer = np.empty((block.length, v.shape[1]), dtype), None
        for tile in observed_tiles(block):
            x = np.zeros((v.shape[1], len(tile.z)))
            ones = self._ones(block, tile.start, len(tile.z))
            for c, part in enumerate(self.parts):
                if self._fits(c):
                    x[part] = self._solve_tile(c, v[:, part], products[c], tile, ones)
            u = x.astype(dtype)
            self._add_grams(u.astype(np.float64), ones)
            self.squares += tile.squares
            self.cells += tile.cells
            if buffer is None or buffer.size < tile.z.size:  # the first tile is the largest
                buffer = block.borrow("left", (tile.z.size,), dtype)
            self._add_right(right, u, v, tile, ones, buffer)
            self._add_left(left, u, tile.w, ones)
            out[tile.start - block.start :][: len(tile.z)] = u.T
        return out

    def _solve_tile(self, c: int, v: Array, products: Array, tile: Any, ones: Array) -> Array:
        """(width, lines) the factors of the lines of a tile for candidate c."""
        if tile.w is None:
            lines = len(tile.z)
            left = np.broadcast_to(packed_gram(v), (packed_length(v.shape[1]), lines))
        else:
            left = products @ tile.w.T
        right = v.T @ tile.z.T
        return self._solve(c, left, right, ones, resolution(v.dtype))

    def _solve(self, c: int, left: Array, right: Array, ones: Array, floor: float) -> Array:
        """(width, lines) the factors of some lines, from the equations of all of v."""
        if self.biases is None:
            x, singular = solve_packed(left, right, self.ridges[c], floor)
            self.singular[c] += len(singular)
            return x
        free = self.ranks[c] + 1
        fixed = left[packed_length(free) :][:free]
        ridge = np.append(np.full(free - 1, self.ridges[c]), self.biases[c])
        left = left[: packed_length(free)]
        x, singular = solve_packed(left, right[:free] - fixed * ones, ridge, floor)
        self.singular[c] += len(singular)
        if c == self._first:
            observing = left[-1] > 0
            self.seen += float(ones[observing] @ ones[observing])
        return np.vstack([x, ones])

    def _add_right(
        self, into: Array, u: Array, v: Array, tile: Any, ones: Array, buffer: Array
    ) -> None:
        """Add the products of factors (sum of ranks, lines) with their residuals in a tile."""
        z, by_line = tile.z, tile.z.flags.c_contiguous
        flat = buffer[: z.size].reshape(z.shape if by_line else z.shape[::-1])
        rest = flat if by_line else flat.T
        for c, (part, wide) in enumerate(zip(self.parts, side_by_side(self.across), strict=True)):
            if not self._fits(c):
                continue
            factors = (u[part].T, v[:, part].T) if by_line else (v[:, part], u[part])
            np.matmul(*factors, out=flat)
            np.subtract(z, rest, out=rest)
            if tile.w is not None:
                rest *= tile.w
            self.residual[c] += float(np.einsum("ij,ij->i", rest, rest).sum(dtype=np.float64))
            add_product(into[wide], self._with_one(u[part], ones), rest)

    def _add_left(self, left: Array, u: Array, w: Array | None, ones: Array) -> None:
        """Add the products of factors (sum of ranks, lines) to the equations across the lines."""
        first = 0
        for c, part in enumerate(self.parts):
            last = first + packed_length(self.across[c])
            if self._fits(c):
                products = packed_products(self._with_one(u[part], ones).T)
                if w is None:
                    left[first:last] += products.sum(axis=1)[:, None]
                else:
                    add_product(left[first:last], products, w)
            first = last

    def _of_entries(self, block: Any, v: Array) -> Array:
        """Add the sums of a block of observed entries; return its factors."""
        from streampca.kernels.completion import Turned

        observed = block.observed
        z = observed_values(block)
        m, lines = len(v), len(observed.indptr) - 1
        into = self._left.kept((self._packed, m))
        right_into = self._right.kept((sum(self.across), m))
        out, ones = np.zeros((lines, v.shape[1])), self._ones(block, block.start, lines)
        turned, first = Turned.of(z, observed.indices, observed.indptr, m), 0
        for c, (part, wide) in enumerate(zip(self.parts, side_by_side(self.across), strict=True)):
            last = first + packed_length(self.across[c])
            if self._fits(c):
                out[:, part], level, fixed = self._solve_entries(c, z, observed, v[:, part], ones)
                inside = slice(part.start, part.start + self.ranks[c])
                self.residual[c] += turned.add_equations(
                    out[:, inside],
                    v[:, inside],
                    into[first:last],
                    right_into[wide],
                    ones,
                    level,
                    fixed,
                )
            first = last
        self._add_grams(out.T, ones)
        self.squares += float(z @ z)
        self.cells += len(z)
        return out.astype(block.work_dtype)

    def _solve_entries(
        self, c: int, z: Array, observed: Any, v: Array, ones: Array
    ) -> tuple[Array, Array | None, Array | None]:
        """((lines, width) factors for candidate c, and with biases those of lines and across)."""
        from streampca.kernels.completion import Lines

        rank, biases = self.ranks[c], self.biases
        places = (z, observed.indices, observed.indptr)
        if biases is None:
            x, singular = Lines(*places, v).solved(np.full(rank, self.ridges[c]))
            self.singular[c] += singular
            return x, None, None
        fixed = v[:, -1]
        ridges = np.append(np.full(rank, self.ridges[c]), biases[c])
        x, singular = Lines(*places, v[:, :rank], True, fixed, ones).solved(ridges)
        self.singular[c] += singular
        if c == self._first:
            seen = np.diff(observed.indptr) > 0
            self.seen += float(ones[seen] @ ones[seen])
        return np.column_stack([x, ones]), x[:, -1], fixed

    def _add_grams(self, x: Array, ones: Array) -> None:
        for part in self.parts:
            self.gram[part, part] += x[part] @ x[part].T
        self.sums += x @ ones
        self.lines += float(ones @ ones)

    def _ones(self, block: Any, start: int, lines: int) -> Array:
        """(lines,) the factor that multiplies a column's mean in these lines."""
        with_means = self.means or self.biases is not None
        row_scale = block.arrays.get("row_scale") if with_means else None
        if row_scale is None:
            return np.ones(lines)
        return np.asarray(1.0 / row_scale[start - block.start :][:lines])

    def _with_one(self, u: Array, ones: Array) -> Array:
        """Factors (r, lines), with ones below them where means or biases are solved for too."""
        if self.biases is not None:
            return np.vstack([u[:-2], u[-1:]])
        return np.vstack([u, ones.astype(u.dtype)]) if self.means else u

    def _fits(self, c: int) -> bool:
        return self.fitted is None or self.fitted[c]

    @property
    def _first(self) -> int:
        """The first candidate that is fitted: it counts what all have in common."""
        return 0 if self.fitted is None else self.fitted.index(True)

    @property
    def parts(self) -> list[slice]:
        """The columns of each candidate's factors."""
        return side_by_side(self.widths)

    @property
    def across(self) -> tuple[int, ...]:
        """Unknowns of one equation across the lines, by candidate."""
        return tuple(r + (self.means or self.biases is not None) for r in self.ranks)

    @property
    def _packed(self) -> int:
        return sum(map(packed_length, self.across))

    def settle(self) -> None:
        self._left.settle()
        self._right.settle()

    def merge(self, other: Self) -> None:
        if other.gram is None:
            return
        self._begin()
        if self.left is not None and other.left is not None:
            self._check_width(self.left.T, other.left.shape[1])
        self.settle()
        self._left.merge(other._left)
        self._right.merge(other._right)
        self.gram += other.gram
        self.sums += other.sums
        self.lines += other.lines
        self.seen += other.seen
        self.squares += other.squares
        self.cells += other.cells
        self.residual += other.residual
        self.singular += other.singular

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        m, total = shape[1 - self.streamed], sum(self.widths)
        return (self._height() * m + total * total) * 8

    def partial_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        whole = self.projected_nbytes(shape, 8)
        return whole + self._height() * shape[1 - self.streamed] * itemsize * (not self.absent)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        m, tall = shape[1 - self.streamed], self._height()
        if self.absent:  # factors of all candidates, and in whole vectors of one
            wide = 2 * (max(self.widths) + COLUMNS)
            return 8 * (2 * (sum(self.widths) + wide) * block_length + 2 * wide * m)
        tile = min(block_length, max(LINES, TILE_NBYTES // max(4 * m, 1)))
        factors = 4 * sum(self.widths) * block_length
        return 8 * (tall * (m + tile) + factors) + 2 * max(TILE_NBYTES, 8 * m)

    def _height(self) -> int:
        return sum(packed_length(r) + r for r in self.across)

    # -- results ----------------------------------------------------------------------------

    def equations(self, c: int) -> tuple[Array, Array]:
        """(left, right) of the step of candidate c, as :func:`solve_packed` takes them."""
        first = sum(map(packed_length, self.across[:c]))
        inside = slice(first, first + packed_length(self.across[c]))
        left, right = self._left.total(inside), self._right.total(side_by_side(self.across)[c])
        if left is None or right is None:
            raise self._nothing_seen()
        return left, right
