"""The reads that multiply a matrix by vectors, along either axis, for loadings or scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.certification.bounds import EPS
from streampca.certification.conventions import ColumnSums, Convention
from streampca.certification.products import (
    FACTORS,
    OFFSET,
    ROOTS,
    SHIFT,
    TINY,
    VECTORS,
    FeatureProducts,
    FeatureRows,
    SampleProducts,
    sample_rows,
)
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.passes import PassCost, Running, one_pass, pass_spec
from streampca.store import MemorySink


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
        total = float(factors**2 @ squares)
        error = rounded_means(sums, columns, factors, total)
        return Images(one, factors[:, None] * product, total, error)

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
            total = float(factors**2 @ squares)
            totals.append((total, rounded_means(sums, columns, factors, total)))
        left = np.hstack(lefts)
        operands = {VECTORS: left, OFFSET: np.concatenate(offsets), SHIFT: shift}
        arrays = {"operands": operands, "side_inputs": {ROOTS: self.roots}}
        parts = np.split(self._rows(0, sample_rows, left, arrays), len(conventions), axis=1)
        return [
            Images(one, part, *total)
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


def rounded_means(sums: SampleProducts, columns: ColumnSums, factors: Array, total: float) -> float:
    """Bound of the norm by which S is off since missing cells hold means that are rounded."""
    sizes = EPS * columns.mean * factors
    return 2.0 * float(np.sqrt(total * (sums.lost @ sizes**2)))


def _scratch(scratch: Any, width: int, length: int) -> int:
    return int(scratch(length)) + 3 * length * width * 8 + 3 * (4 << 20)


def _ratio(a: Array, b: Array) -> Array:
    """(p,) a / b, 0 where both are 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)
