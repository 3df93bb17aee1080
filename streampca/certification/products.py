"""Products of a matrix with a few vectors, in float64, for every convention in the same read.

None of this is shared with the fits: raw values are centred here, and no sum is folded elsewhere.
A missing cell holds the mean of its column, so it is 0 after centring.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.certification.conventions import ColumnSums, Convention
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.passes import PassCost, Running, one_pass, pass_spec
from streampca.store import MemorySink

VECTORS, ROOTS, FACTORS, SHIFT, OFFSET = "vectors", "roots", "factors", "shift", "offset"
FLOAT = np.dtype(np.float64)
TINY = float(np.finfo(np.float64).tiny)


def whole_columns(x: Array, hole: Array | None, roots: Array) -> ColumnSums:
    """The sums of the columns x (n, columns), which are centred and multiplied by the roots.

    x holds 0 in holes, before and after.  roots : (n,) of the weights of the samples.
    """
    weights = roots**2
    weight = np.full(x.shape[1], weights.sum())
    if hole is not None:
        weight -= weights @ hole
    mean = np.zeros(x.shape[1])
    for _ in range(2):  # the second time takes out the rounding of the first
        further = weights @ x / np.maximum(weight, TINY)
        x -= further
        if hole is not None:
            x[hole] = 0.0
        mean += further
    if np.any(roots != 1.0):
        x *= roots[:, None]
    return ColumnSums(weight, mean, np.einsum("ij,ij->j", x, x))


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
        for tile in block.tiles(FLOAT, thin=True):
            x, hole = tile.values, tile.mask
            columns = whole_columns(x, hole, roots)
            part = slice(tile.start - block.start, tile.stop - block.start)
            given = vectors[part] if self.gathers else x.T @ vectors
            lefts = []
            for i, one in enumerate(self.conventions):
                factors = one.factors(columns) * block[FACTORS][part]
                mean = np.zeros_like(columns.mean) if one.center else columns.mean
                if self.gathers:
                    left = factors[:, None] * given
                else:
                    left = factors[:, None] ** 2 * (given + np.outer(mean, roots @ vectors))
                lefts.append(left)
                self.images[:, self._of(i)] += np.outer(roots, mean @ left)
                self.totals[i] += factors**2 @ (columns.squares + (roots @ roots) * mean**2)
                if self.norms:
                    self.squares[:, i] += (x + np.outer(roots, mean)) ** 2 @ factors**2
            self.images += x @ np.hstack(lefts)
            if hole is not None:
                self.lost += np.count_nonzero(hole, axis=1)

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
        for tile in block.tiles(FLOAT, thin=True):
            x = tile.values
            columns = whole_columns(x, tile.mask, roots)
            part = slice(tile.start - block.start, tile.stop - block.start)
            out = x.T @ vectors
            for i, one in enumerate(self.conventions):
                some = slice(i * step, (i + 1) * step)
                if not one.center:
                    out[:, some] += np.outer(columns.mean, roots @ vectors[:, some])
                out[:, some] *= (one.factors(columns) * block[FACTORS][part])[:, None]
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


def shifted_rows(block: Block) -> Any:
    """(rows of the block, roots (x - shift) with holes 0, holes or None) of each tile."""
    for tile in block.tiles(FLOAT, thin=True):
        part = slice(tile.start - block.start, tile.stop - block.start)
        x, hole = tile.values, tile.mask
        x -= block[SHIFT]
        if hole is not None:
            x[hole] = 0.0
        x *= block[ROOTS][part][:, None]
        yield part, x, hole


def sample_rows(block: Block) -> Array:
    """Of a block of samples the rows of X~ E - roots offset' (rows, c); E is "vectors"."""
    vectors, offset = block[VECTORS], block[OFFSET]
    rows = [x @ vectors - np.outer(block[ROOTS][i], offset) for i, x, _ in shifted_rows(block)]
    return np.concatenate(rows) if rows else np.empty((0, vectors.shape[1]))


@dataclass(frozen=True)
class Images:
    """S T for S = Z'Z (features) or Z Z' (samples), under one convention.

    images : (d, c).  total : trace of S.  error : of S itself, as a norm.
    """

    convention: Convention
    images: Array
    total: float
    error: float = 0.0


@dataclass
class Reader:
    """Reads a matrix, and keeps count of it.

    roots : (n,) square roots of the weights of the samples.  factors : (p,) of the features.
    lost : (n,) missing cells of the samples, where features were streamed.  holes : of all.
    """

    matrix: ChunkedMatrix
    roots: Array
    factors: Array
    running: Running
    costs: list[PassCost] = field(default_factory=list)
    holes: int = 0
    lost: Any = None

    def images(
        self, vectors: Array, of: int, axis: int, conventions: tuple[Convention, ...]
    ) -> list[Images]:
        """S T for each convention.

        vectors : (n, c) for ``of`` 0, (p, c) for 1.  axis : streamed.
        Cost: one read where the streamed axis is the other one, and nothing is missing or scaled
        where samples are streamed; else two, or three.
        """
        if axis == 1:
            across = self._across_features if of else self._along_features
            return across(vectors, conventions)
        return (self._along_samples if of else self._across_samples)(vectors, conventions)

    # -- features are streamed ------------------------------------------------------------------

    def _along_features(
        self, vectors: Array, conventions: tuple[Convention, ...], gathers: bool = False
    ) -> list[Images]:
        """Z Z'T; with ``gathers`` Z T."""
        sums = FeatureProducts(conventions=conventions, gathers=gathers, width=vectors.shape[1])
        place = "side_inputs" if gathers else "operands"
        arrays: dict[str, Any] = {
            "operands": {ROOTS: self.roots},
            "side_inputs": {FACTORS: self.factors},
        }
        arrays[place][VECTORS] = vectors
        done = self._sums(1, sums, vectors, arrays)
        self.lost, self.holes = done.lost, int(done.lost.sum())
        return [
            Images(one, done.of_convention(i), float(done.totals[i]))
            for i, one in enumerate(conventions)
        ]

    def pairwise(self, vectors: Array, one: Convention) -> Images:
        """S T for the mean product of two samples over the columns that both have.

        The share that both have is taken for the product of the shares that each has, as if cells
        were missing independently. On the diagonal it is exact.
        """
        part = 1.0 / (1.0 - self.lost / self.matrix.shape[1])
        sums = FeatureProducts(conventions=(one,), norms=True, width=vectors.shape[1])
        operands = {ROOTS: self.roots, VECTORS: part[:, None] * vectors}
        arrays = {"operands": operands, "side_inputs": {FACTORS: self.factors}}
        done = self._sums(1, sums, vectors, arrays)
        diagonal = done.squares[:, 0]
        images = part[:, None] * done.images
        images -= (diagonal * (part**2 - part))[:, None] * vectors
        return Images(one, images, float(diagonal @ part))

    def _across_features(self, vectors: Array, conventions: tuple[Convention, ...]) -> list[Images]:
        """Z'Z T: Z T, then the rows of Z' times that."""
        first = self._along_features(vectors, conventions, gathers=True)
        left = np.hstack([one.images for one in first])
        arrays = {
            "operands": {ROOTS: self.roots, VECTORS: left},
            "side_inputs": {FACTORS: self.factors},
        }
        rows = self._rows(1, FeatureRows(conventions), left, arrays)
        parts = np.split(rows, len(conventions), axis=1)
        return [replace(one, images=part) for one, part in zip(first, parts, strict=True)]

    # -- samples are streamed -------------------------------------------------------------------

    def _along_samples(self, vectors: Array, conventions: tuple[Convention, ...]) -> list[Images]:
        """Z'Z T. Where T is the identity, all conventions follow from one read."""
        identity = vectors.shape[0] == vectors.shape[1]
        sums = shift = None
        if identity or all(one.scale is None for one in conventions):
            sums, shift = self._moments(self.factors[:, None] * vectors)
        if sums is not None:
            columns = columns_of(sums, shift)
            return [
                self._finished(sums, sums.product, vectors, one, columns, shift, identity)
                for one in conventions
            ]
        columns = self._columns()  # they are scaled, or a cell is missing: the means come first
        scaled = [(one.factors(columns) * self.factors)[:, None] * vectors for one in conventions]
        sums, shift = self._moments(np.hstack(scaled), columns.mean)
        products = np.split(sums.product, len(conventions), axis=1)
        return [
            self._finished(sums, product, vectors, one, columns, shift)
            for one, product in zip(conventions, products, strict=True)
        ]

    def _columns(self) -> ColumnSums:
        """Of all columns, from a read of their own."""
        shift = self._first_rows()
        return columns_of(self._shifted_sums(np.empty((len(self.factors), 0)), shift, False), shift)

    def _finished(
        self,
        sums: SampleProducts,
        product: Array,
        vectors: Array,
        one: Convention,
        columns: ColumnSums,
        shift: Array,
        identity: bool = False,
    ) -> Images:
        """Z'Z T from the product X~'X~ F T and the sums of the columns, F the factors.

        identity : T is, and F are the factors of the features alone.
        """
        factors = one.factors(columns) * self.factors
        left = factors[:, None] * vectors
        if identity:
            product = product * _ratio(factors, self.factors)
        inner = sums.sums @ left
        if one.center:
            product = product - np.outer(sums.sums, inner) / sums.weight
            squares = columns.squares
        else:
            product = product + np.outer(shift, inner + sums.weight * (shift @ left))
            product += np.outer(sums.sums, shift @ left)
            squares = columns.squares + sums.weight * columns.mean**2
        return Images(one, factors[:, None] * product, float(factors**2 @ squares))

    def _across_samples(self, vectors: Array, conventions: tuple[Convention, ...]) -> list[Images]:
        """Z Z'T: X~'T, then the rows of Z times what that makes of it."""
        sums, shift = self._moments(vectors, gathers=True)
        if sums is None:
            columns = self._columns()
            sums, shift = self._moments(vectors, columns.mean, gathers=True)
        else:
            columns = columns_of(sums, shift)
        lefts, offsets, totals = [], [], []
        for one in conventions:
            factors = one.factors(columns) * self.factors
            off = sums.sums / sums.weight if one.center else -shift  # not a difference of means
            left = factors[:, None] ** 2 * (sums.product - np.outer(off, sums.along))
            lefts.append(left)
            offsets.append(off @ left)
            squares = columns.squares + (0.0 if one.center else sums.weight * columns.mean**2)
            totals.append(float(factors**2 @ squares))
        left = np.hstack(lefts)
        operands = {VECTORS: left, OFFSET: np.concatenate(offsets), SHIFT: shift}
        arrays = {"operands": operands, "side_inputs": {ROOTS: self.roots}}
        parts = np.split(self._rows(0, sample_rows, left, arrays), len(conventions), axis=1)
        return [
            Images(one, part, total)
            for one, part, total in zip(conventions, parts, totals, strict=True)
        ]

    def _moments(self, vectors: Array, mean: Array | None = None, gathers: bool = False) -> Any:
        """(sums about a shift, the shift) of streamed samples; None for sums that are not those of
        the filled matrix, since a cell is missing and ``mean`` was not known."""
        shift = self._first_rows() if mean is None else mean
        done = self._shifted_sums(vectors, shift, gathers)
        return (None if done.holes and mean is None else done), shift

    def _shifted_sums(self, vectors: Array, shift: Array, gathers: bool) -> SampleProducts:
        sums = SampleProducts(gathers=gathers, width=vectors.shape[1])
        arrays: dict[str, Any] = {"operands": {SHIFT: shift}, "side_inputs": {ROOTS: self.roots}}
        arrays["side_inputs" if gathers else "operands"][VECTORS] = vectors
        done: SampleProducts = self._sums(0, sums, vectors, arrays)
        self.holes = done.holes
        return done

    def _first_rows(self) -> Array:
        """(p,) means of the first rows, near those of all: sums about them keep their digits."""
        block = self.matrix.streamed(0, np.array([0, min(64, self.matrix.shape[0])])).read_block(0)
        return block.stats.mean

    # -- one read ---------------------------------------------------------------------------------

    def _sums(self, axis: int, sums: Any, vectors: Array, arrays: dict[str, Any]) -> Any:
        kept = 2 * vectors.nbytes + self.roots.nbytes + self.factors.nbytes
        flops = 4.0 * np.prod(self.matrix.shape, dtype=float) * max(sums.width, 1)
        spec = pass_spec(
            "products",
            self.matrix,
            axis,
            {"sums": sums},
            True,
            flops=flops,
            kept_nbytes=kept,
            work="skinny",
            thin=True,
        )
        return self._made(spec, arrays)["sums"]

    def _rows(self, axis: int, rows: Any, vectors: Array, arrays: dict[str, Any]) -> Array:
        length, width = self.matrix.shape[axis], vectors.shape[1]
        sink = MemorySink(length, width)
        spec = pass_spec(
            "rows of products",
            self.matrix,
            axis,
            {},
            True,
            kept_nbytes=3 * vectors.nbytes + sink.nbytes_in_memory(),
            work="skinny",
            thin=True,
        )
        spec = replace(spec, scratch=partial(_scratch, spec.scratch, width), key=object())
        self._made(spec, {**arrays, "maps": {"rows": rows}, "sinks": {"rows": sink}})
        return sink.values

    def _made(self, spec: Any, arrays: dict[str, Any]) -> Any:
        done = one_pass(self.matrix, spec, self.running, **arrays)
        self.costs.extend(done.costs)
        return done.answer


def columns_of(sums: SampleProducts, shift: Array) -> ColumnSums:
    """Of all columns, from sums about a shift; holes do not count."""
    weight = sums.weight - sums.lost
    safe = np.maximum(weight, TINY)
    squares = np.maximum(sums.squares - sums.sums**2 / safe, 0.0)
    return ColumnSums(weight, shift + sums.sums / safe, squares)


def _scratch(scratch: Any, width: int, length: int) -> int:
    return int(scratch(length)) + 3 * length * width * 8 + 3 * (4 << 20)


def _ratio(a: Array, b: Array) -> Array:
    """(p,) a / b, 0 where both are 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
