"""Scores of new rows in a kernel PCA, by reading the rows of the fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.kernel_functions import Kernel, Rows, squares
from streampca.models.row_passes import RowMap
from streampca.passes import block_edges, easier_axis


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
