"""Kernels of rows, and the rows that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.pca.panels import feature_products
from streampca.models.row_passes import RowMap

KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine", "precomputed")
SHIFTED = ("linear", "rbf")  # products may be of shifted rows


@dataclass(frozen=True)
class Kernel:
    """k(x, y) of rows.

    function : of two rows, where ``name`` is "function".
    sampled : seed of the rows whose distances give gamma, which is not known yet; or None.
    found : how gamma was found, in words; "" where it was given.
    """

    name: str
    gamma: float
    degree: float
    coef0: float
    function: Callable[..., float] | None = None
    sampled: int | None = None
    found: str = ""

    @property
    def whole_rows(self) -> bool:
        """Whether it does not follow from inner products."""
        return self.name in ("function", "laplacian")

    def of_rows(self, x: Array, y: Array) -> Array:
        """(len(x), len(y)) values, float64."""
        if self.function is not None:
            call = self.function
            return np.array([[float(call(a, b)) for b in y] for a in x])
        if self.name == "laplacian":
            distances = scipy.spatial.distance.cdist(x, y, "cityblock")
            return np.asarray(np.exp(-self.gamma * distances))
        return self.of_products(feature_products(x, y), squares(x), squares(y))

    def of_products(self, products: Array, left: Array, right: Array) -> Array:
        """The same from inner products (a, b) and the squared lengths of the rows."""
        if self.name == "rbf":
            distances = left[:, None] + right - 2.0 * products
            return np.asarray(np.exp(-self.gamma * np.maximum(distances, 0.0)))
        if self.name == "cosine":
            lengths = np.sqrt(np.multiply.outer(left, right))
            return np.asarray(products / np.where(lengths > 0, lengths, 1.0))
        if self.name == "linear":
            return products
        inner = self.gamma * products + self.coef0
        return np.asarray(np.tanh(inner) if self.name == "sigmoid" else inner**self.degree)


@dataclass(frozen=True)
class Rows(RowMap):
    """Shifted rows of a block, or their kernel with the rows of a panel."""

    shift: Array
    dtype: Any
    kernel: Kernel | None = None

    @property
    def width(self) -> int:
        return len(self.shift)

    def __call__(self, block: Block) -> Array:
        refuse_holes(block)
        rows = np.asarray(block.dense(), self.dtype) - self.shift.astype(self.dtype)
        return rows if self.kernel is None else self.kernel.of_rows(rows, block["panel"])

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        return lambda length: 3 * length * self.width * 8


def squares(rows: Array) -> Array:
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def refuse_holes(block: Block) -> None:
    if (holes := np.flatnonzero(block.stats.missing)).size:
        lost = int(block.stats.missing.sum())
        raise block.refuse_missing(holes, lost, block.shape[0] * len(holes) - lost)
