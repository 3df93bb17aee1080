"""Kernel PCA: scores of new rows, by reading the rows of the fit, and rows from scores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array, row_pieces
from streampca.matrix import Block, ChunkedMatrix
from streampca.matrix.block import score_dtype
from streampca.models.kernel.functions import Kernel, Rows, squares
from streampca.models.results.row_maps import RowMap
from streampca.passes import block_edges, easier_axis, single_threaded_blas
from streampca.passes.blocks import BLOCK_NBYTES


@dataclass(frozen=True)
class KernelScores(RowMap):
    """Scores of new rows: their kernel with the training rows, which are read block by block.

    training : None where the rows are kernels with the training rows already.
    vectors : (n, k) eigenvectors over the roots of their eigenvalues.  means : (n,) of the kernel.
    """

    kernel: Kernel
    training: ChunkedMatrix | None
    shift: Array
    vectors: Array
    means: Array

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def __call__(self, block: Block) -> Array:
        rows = Rows(self.shift, np.dtype(np.float64))(block)
        out, total = np.zeros((len(rows), self.width)), np.zeros((len(rows), 1))
        for first, values in self._values(rows):
            out += values @ self.vectors[first : first + values.shape[1]]
            total += values.sum(axis=1, keepdims=True)
        sums = self.vectors.sum(axis=0)
        centre = (self.means.mean() - total / len(self.means)) * sums
        return np.asarray(out + centre - self.means @ self.vectors)

    def _values(self, rows: Array) -> Iterator[tuple[int, Array]]:
        """(first training row, values (rows, training rows of a block))."""
        if self.training is None:
            yield 0, rows
            return
        axis = 0 if self.kernel.whole_rows else easier_axis(self.training)
        laid = self.training.streamed(axis, block_edges(self.training, axis))
        products, lengths = np.zeros((len(rows), len(self.means) * axis)), np.zeros(1)
        for block in map(laid.read_block, range(laid.n_blocks)):
            part = slice(block.start, block.stop) if axis == 1 else slice(None)
            known = Rows(self.shift[part], rows.dtype)(block)
            if axis == 0:
                yield block.start, self.kernel.of_rows(rows, known)
            else:
                products += rows[:, part] @ known.T
                lengths = lengths + squares(known)
        if axis == 1:
            yield 0, self.kernel.of_products(products, squares(rows), lengths)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        return lambda length: length * 8 * (2 * matrix.shape[1] + 4 * len(self.means) + self.width)


ITERATIONS = 200  # of the fixed point, at most
SETTLED = 1e-10  # of the width of the kernel: a row that moves less has settled
FACTORING = threading.Lock()


@dataclass(frozen=True)
class PreImages:
    """Rows of scores, by reading the training rows.

    training, scores : the rows of the fit, and (n, k) their scores.
    """

    kernel: Kernel
    training: ChunkedMatrix
    scores: Array

    def __call__(self, block: Block) -> Array:
        return self.apply(block.dense())

    def apply(self, scores: Array) -> Array:
        """(rows, p) of scores in memory; float32 stays float32."""
        if not np.isfinite(scores).all():
            raise NonFiniteError("scores hold NaN or infinity; a pre-image needs all of a row")
        made = self._rows(np.asarray(scores, np.float64))
        return made.astype(score_dtype(scores.dtype), copy=False)

    def _rows(self, scores: Array) -> Array:
        raise NotImplementedError

    def _blocks(self, axis: int) -> Iterator[tuple[slice, Array]]:
        """(their place, float64 values of all rows or all features) of the training rows."""
        laid = self.training.streamed(axis, block_edges(self.training, axis))
        for block in map(laid.read_block, range(laid.n_blocks)):
            width = block.shape[1]
            yield slice(block.start, block.stop), Rows(np.zeros(width), np.dtype(np.float64))(block)

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        n, p = self.training.shape
        return lambda length: 8 * length * (3 * p + 4 * n) + self._held_nbytes + 4 * BLOCK_NBYTES

    @property
    def _held_nbytes(self) -> int:
        return 0


@dataclass(frozen=True)
class RidgePreImages(PreImages):
    """Kernel ridge regression of the training rows on their scores, by the same kernel.

    Source: scikit-learn's KernelPCA; Bakir, Weston and Schoelkopf 2003, NeurIPS 16, section 3.
    """

    alpha: float
    factors: list[Any] = field(default_factory=list, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the factor, which is computed again where it is needed."""
        return {**self.__dict__, "factors": []}

    def _rows(self, scores: Array) -> Array:
        weights = scipy.linalg.cho_solve(self._factor(), self.kernel.of_rows(self.scores, scores))
        out = np.zeros((len(scores), self.training.shape[1]))
        axis = 0 if self.kernel.whole_rows else easier_axis(self.training)
        for part, values in self._blocks(axis):
            if axis == 0:
                out += weights[part].T @ values
            else:
                out[:, part] = weights.T @ values
        return out

    def _factor(self) -> Any:
        """The Cholesky factor of K + alpha, K of the scores."""
        with FACTORING, single_threaded_blas():
            if not self.factors:
                n = len(self.scores)
                k = np.empty((n, n))
                for rows in row_pieces(n, 8 * n, 1 << 24):
                    k[rows] = self.kernel.of_rows(self.scores[rows], self.scores)
                k.flat[:: n + 1] += self.alpha
                try:
                    self.factors.append(scipy.linalg.cho_factor(k, lower=True, overwrite_a=True))
                except np.linalg.LinAlgError:
                    raise InvalidInputError(
                        f"the kernel matrix of the scores and alpha={self.alpha:g} is not positive "
                        "definite: give a larger alpha"
                    ) from None
            return self.factors[0]

    @property
    def _held_nbytes(self) -> int:
        return 2 * 8 * len(self.scores) ** 2


@dataclass(frozen=True)
class FixedPoints(PreImages):
    """Rows x at which phi(x) is nearest to a point of the feature space, for the rbf kernel.

    With that point sum_i c_i phi(x_i), each step is x <- sum_i c_i k(x, x_i) x_i over
    sum_i c_i k(x, x_i), from the training row with the nearest scores. The iteration ends before a
    step that would not come nearer.
    vectors : (n, k) eigenvectors over the roots of their eigenvalues.  shift : (p,) near the rows.
    Source: Mika, Schoelkopf, Smola, Mueller, Scholz and Raetsch 1999, NeurIPS 11, eq. 10, with the
    mean of the feature space.
    """

    vectors: Array
    shift: Array

    def _rows(self, scores: Array) -> Array:
        coefficients = self.vectors @ scores.T
        coefficients += (1.0 - coefficients.sum(axis=0)) / len(coefficients)
        rows = self._nearest(scores)
        best = np.full(len(rows), -np.inf)
        last, live = rows.copy(), np.arange(len(rows))
        for _ in range(ITERATIONS):
            sums, weight = self._sums(rows[live], coefficients[:, live])
            better = weight > best[live]
            rows[live[~better]] = last[live[~better]]
            live, sums, weight = live[better], sums[better], weight[better]
            best[live] = weight
            last[live] = rows[live]
            positive = weight > 0.0
            live = live[positive]
            rows[live] = sums[positive] / weight[positive, None]
            moved = np.sum((rows[live] - last[live]) ** 2, axis=1) * self.kernel.gamma
            live = live[moved > SETTLED**2]
            if not live.size:
                break
        return rows + self.shift

    def _sums(self, rows: Array, coefficients: Array) -> tuple[Array, Array]:
        """(q, p) sum_i c_i k(x, x_i) x_i, and (q,) sum_i c_i k(x, x_i)."""
        sums, weight = np.zeros(rows.shape), np.zeros(len(rows))
        for part, values in self._blocks(0):
            near = values - self.shift
            products = self.kernel.of_rows(rows, near) * coefficients[part].T
            sums += products @ near
            weight += products.sum(axis=1)
        return sums, weight

    def _nearest(self, scores: Array) -> Array:
        """(q, p) the shifted training rows with the nearest scores."""
        apart = np.einsum("ij,ij->i", self.scores, self.scores) - 2.0 * scores @ self.scores.T
        places, out = apart.argmin(axis=1), np.empty((len(scores), self.training.shape[1]))
        for part, values in self._blocks(0):
            here = np.flatnonzero((places >= part.start) & (places < part.stop))
            out[here] = values[places[here] - part.start] - self.shift
        return out
