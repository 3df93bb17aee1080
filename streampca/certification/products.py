"""Products of a matrix with a few vectors, in float64, for every convention in the same read.

None of these sums is shared with the fits. Calls are centred as they are decoded, about means that
are counted here; other values here. A missing cell holds the mean of its column, so it is 0 then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.certification.calls import call_sums
from streampca.certification.conventions import ColumnSums, Convention
from streampca.kernels import Array
from streampca.matrix import Block

VECTORS, ROOTS, FACTORS, SHIFT, OFFSET = "vectors", "roots", "factors", "shift", "offset"
FLOAT = np.dtype(np.float64)
TINY = float(np.finfo(np.float64).tiny)
NOTHING = 8 * float(np.finfo(np.float64).eps)  # of its deviation that a mean may be off


Cells = tuple[Array, Array]  # numbers of rows and columns


@dataclass(frozen=True)
class Prepared:
    """A tile of whole columns: x (n, columns) centred and times the roots of the weights, holes 0.

    part : of the block.  columns : their sums.
    """

    part: slice
    x: Array
    columns: ColumnSums


def whole_columns(block: Block, lost: Array | None = None) -> Iterator[Prepared]:
    """The tiles of a block of features.  lost : (n,) to which missing cells of rows are added."""
    roots, counted = block[ROOTS], None
    if block.compiled and not np.any(roots != 1.0):
        counted = call_sums(block.values, block.missing_value)
    sums, holes_of_rows = counted or (None, None)
    if lost is not None and holes_of_rows is not None:
        lost += holes_of_rows
    center = None if sums is None else sums.mean
    for tile in block.tiles(FLOAT, center=center, thin=True):
        part = slice(tile.start - block.start, tile.stop - block.start)
        if sums is not None:
            yield Prepared(part, tile.values, sums.of(part))
            continue
        if block.calls:  # without the statistics of the fits
            raw = block.expanded(block.values[:, part])
            mask = block.holes_in(raw, (slice(None), part))
        else:
            mask = tile.mask
        holes = cells_of(mask)
        if lost is not None:
            lost += np.bincount(holes[0], minlength=len(lost))
        yield Prepared(part, tile.values, center_columns(tile.values, holes, roots))


def cells_of(mask: Array | None) -> Cells:
    """Where a mask (rows, columns) is True."""
    if mask is None:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    if mask.flags.c_contiguous:
        rows, columns = np.divmod(np.flatnonzero(mask), mask.shape[1])
    else:
        columns, rows = np.divmod(np.flatnonzero(mask.ravel("F")), len(mask))
    return rows, columns


def center_columns(x: Array, holes: Cells, roots: Array) -> ColumnSums:
    """Centre the columns x (n, columns), multiply them by the roots (n,), and return their sums.

    x holds 0 in holes, before and after.
    """
    weights = roots**2
    weight = weights.sum() - np.bincount(holes[1], weights[holes[0]], x.shape[1])

    def shift() -> Array:
        found: Array = weights @ x / np.maximum(weight, TINY)
        return found

    mean = shift()
    _subtract(x, mean, holes)
    rest, spread = shift(), np.sqrt(_squares(x) / np.maximum(weight, TINY))
    if np.any(np.abs(rest) > NOTHING * spread):  # the rounding of a mean far from 0
        _subtract(x, rest, holes)
        mean += rest
    if np.any(roots != 1.0):
        x *= roots[:, None]
    return ColumnSums(weight, mean, _squares(x))


def _squares(x: Array) -> Array:
    """(columns,) sums of squares."""
    by_row = x.flags.c_contiguous
    return np.asarray(np.einsum("ij,ij->j", x, x) if by_row else np.vecdot(x.T, x.T))


def _subtract(x: Array, shift: Array, holes: Cells) -> None:
    x -= shift
    x[holes] = 0.0


class FeatureProducts(Accumulator):
    """Of streamed features, with Z = the samples' roots times prepared columns: Z Z'T for T (n, c)
    or, with ``gathers``, Z T for T (p, c); for all conventions, (n, conventions c).

    T is the operand, or side input, "vectors". A block holds whole columns, so that means and
    scales are known when it comes.  norms : squared norms of the rows of Z are wanted, too.
    """

    axis = 1
    settings = ("conventions", "gathers", "norms", "width")
    fields = ("images", "totals", "lost", "squares")

    def __init__(
        self,
        *,
        conventions: tuple[Convention, ...],
        gathers: bool = False,
        norms: bool = False,
        width: int = 64,
    ) -> None:
        self.conventions, self.gathers, self.norms = conventions, gathers, norms
        self.width = width
        self.images: Any = None  # (n, conventions width)
        self.totals: Any = None  # (conventions,) traces of Z'Z
        self.lost: Any = None  # (n,) missing cells
        self.squares: Any = None  # (n, conventions) squared norms of the rows of Z

    def update(self, block: Any) -> None:
        self._check(block)
        n, many = block.shape[0], len(self.conventions)
        if self.images is None:
            self.images, self.totals = np.zeros((n, many * self.width)), np.zeros(many)
            self.lost, self.squares = np.zeros(n, np.int64), np.zeros((n, many))
        roots, vectors = block[ROOTS], block[VECTORS]
        for tile in whole_columns(block, self.lost):
            x, columns = tile.x, tile.columns
            given = vectors[tile.part] if self.gathers else x.T @ vectors
            lefts = []
            for i, one in enumerate(self.conventions):
                factors = one.factors(columns) * block[FACTORS][tile.part]
                mean = np.zeros_like(columns.mean) if one.center else columns.mean
                if self.gathers:
                    left = factors[:, None] * given
                else:
                    left = given if one.center else given + np.outer(mean, roots @ vectors)
                    left = factors[:, None] ** 2 * left
                lefts.append(left)
                if not one.center:
                    self.images[:, self._of(i)] += np.outer(roots, mean @ left)
                self.totals[i] += factors**2 @ (columns.squares + (roots @ roots) * mean**2)
                if self.norms:
                    self.squares[:, i] += (x + np.outer(roots, mean)) ** 2 @ factors**2
            self.images += x @ np.hstack(lefts)

    merge = Accumulator.merge_sums

    def _of(self, i: int) -> slice:
        return slice(i * self.width, (i + 1) * self.width)

    def of_convention(self, i: int) -> Array:
        """(n, width) of one convention."""
        return np.ascontiguousarray(self.images[:, self._of(i)])

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return 3 * shape[0] * self.width * len(self.conventions) * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 3 * block_length * self.width * (1 + len(self.conventions)) * 8 + 3 * (4 << 20)


@dataclass(frozen=True)
class FeatureRows:
    """Of a block of features the rows of Z'Y (columns, conventions c); Y is "vectors"."""

    conventions: tuple[Convention, ...]

    def __call__(self, block: Block) -> Array:
        roots, vectors, rows = block[ROOTS], block[VECTORS], []
        step = vectors.shape[1] // len(self.conventions)
        for tile in whole_columns(block):
            out = tile.x.T @ vectors
            for i, one in enumerate(self.conventions):
                some = slice(i * step, (i + 1) * step)
                if not one.center:
                    out[:, some] += np.outer(tile.columns.mean, roots @ vectors[:, some])
                out[:, some] *= (one.factors(tile.columns) * block[FACTORS][tile.part])[:, None]
            rows.append(out)
        return np.concatenate(rows) if rows else np.empty((0, vectors.shape[1]))


class SampleProducts(Accumulator):
    """Of streamed samples, with X~ = roots (x - shift), holes 0: X~'X~ T for T (p, c) or, with
    ``gathers``, X~'T for T (n, c); and the sums of the columns.

    T is the operand, or side input, "vectors"; "shift" (p,) is near the means.
    """

    settings = ("gathers", "width")
    fields = ("product", "sums", "squares", "lost", "weight", "along", "holes")

    def __init__(self, *, gathers: bool, width: int = 64) -> None:
        self.gathers, self.width = gathers, width
        self.product: Any = None  # (p, width)
        self.sums: Any = None  # (p,) sum of w (x - shift)
        self.squares: Any = None  # (p,) sum of w (x - shift)^2
        self.lost: Any = None  # (p,) weights of the samples that miss it
        self.along: Any = None  # (width,) sum of roots times T
        self.weight = 0.0
        self.holes = 0

    def update(self, block: Any) -> None:
        self._check(block)
        if self.product is None:
            p = block.shape[1]
            self.product, self.along = np.zeros((p, self.width)), np.zeros(self.width)
            self.sums, self.squares, self.lost = np.zeros(p), np.zeros(p), np.zeros(p)
        vectors = block[VECTORS]
        for part, x, hole in shifted_rows(block):
            roots = block[ROOTS][part]
            left = vectors[part] if self.gathers else x @ vectors
            self.product += x.T @ left
            self.sums += roots @ x
            self.squares += np.einsum("ij,ij->j", x, x)
            self.weight += float(roots @ roots)
            if self.gathers:
                self.along += roots @ left
            if hole is not None:
                self.lost += roots**2 @ hole
                self.holes += int(np.count_nonzero(hole))

    merge = Accumulator.merge_sums

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        return (2 * shape[1] + 1) * self.width * 8 + 3 * shape[1] * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return 2 * block_length * self.width * 8 + 2 * (4 << 20)


def shifted_rows(block: Block) -> Iterator[tuple[slice, Array, Array | None]]:
    """(rows of the block, roots (x - shift) with holes 0, holes or None) of each tile."""
    weighted = np.any(block[ROOTS] != 1.0)
    for tile in block.tiles(FLOAT, thin=True):
        part = slice(tile.start - block.start, tile.stop - block.start)
        x, hole = tile.values, tile.mask
        x -= block[SHIFT]
        if hole is not None:
            x[hole] = 0.0
        if weighted:
            x *= block[ROOTS][part][:, None]
        yield part, x, hole


def sample_rows(block: Block) -> Array:
    """Of a block of samples the rows of X~ E - roots offset' (rows, c); E is "vectors"."""
    vectors, offset = block[VECTORS], block[OFFSET]
    rows = [x @ vectors - np.outer(block[ROOTS][i], offset) for i, x, _ in shifted_rows(block)]
    return np.concatenate(rows) if rows else np.empty((0, vectors.shape[1]))
