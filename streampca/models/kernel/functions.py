"""Kernels: values of pairs of rows, by blocks and tiles, and the rows that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix
from streampca.models.decompose.panels import feature_products
from streampca.models.results.row_maps import RowMap

KERNELS = ("linear", "poly", "rbf", "laplacian", "sigmoid", "cosine", "precomputed")
SYMMETRIC = 1e-5  # of the length of K v: as much as K'v may differ
SHIFTED = ("linear", "rbf")  # products may be of shifted rows


@dataclass(frozen=True)
class Kernel:
    """k(x, y) of rows.

    function : of two rows, where ``name`` is "function".
    sampled : seed of the rows whose distances give gamma, which is not known yet; or None.
    gamma_note : how the data gave gamma, in words; "" where the user chose it.
    """

    name: str
    gamma: float
    degree: float
    coef0: float
    function: Callable[..., float] | None = None
    sampled: int | None = None
    gamma_note: str = ""

    def fields(self) -> dict[str, Any]:
        """Those of the result of a model with this kernel."""
        return {
            "kernel": self.name,
            "gamma": self.gamma,
            "gamma_found": self.gamma_note,
            "degree": self.degree,
            "coef0": self.coef0,
            "function": self.function,
        }

    @property
    def whole_rows(self) -> bool:
        """Whether it does not follow from inner products."""
        return self.name in ("function", "laplacian")

    @property
    def definite(self) -> bool:
        """Whether its matrix is positive semi-definite, whatever the rows."""
        if self.name == "poly":
            return self.degree == int(self.degree) and self.coef0 >= 0 and self.gamma >= 0
        return self.name in ("linear", "rbf", "laplacian", "cosine")

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
        with np.errstate(invalid="ignore", over="ignore"):  # the caller refuses them
            return np.asarray(np.tanh(inner) if self.name == "sigmoid" else inner**self.degree)

    # -- tiles, in the dtype of the rows -----------------------------------------------------------

    def prepared(self, rows: Array) -> Array:
        """Rows as ``tile`` takes them: of length 1 for the cosine."""
        if self.name != "cosine":
            return rows
        lengths = np.sqrt(squares(rows))
        return np.asarray(rows / np.where(lengths > 0, lengths, 1.0).astype(rows.dtype)[:, None])

    def tile(self, x: Array, y: Array, left: Array, right: Array) -> Array:
        """(len(x), len(y)) values of prepared rows.  left, right : their squared lengths."""
        single = x.dtype == np.float32
        if self.function is not None or (self.name == "laplacian" and not single):
            return self.of_rows(x, y).astype(x.dtype, copy=False)
        if self.name == "laplacian":
            from streampca.kernels.kernel_values import laplacian

            out = np.empty((len(x), len(y)), x.dtype)
            laplacian(x, np.ascontiguousarray(y.T), x.dtype.type(self.gamma), out)
            return out
        products = np.asarray(x @ y.T)
        if self.name == "rbf" and single:
            from streampca.kernels.kernel_values import gaussian

            gaussian(products, left, right, x.dtype.type(self.gamma))
        elif self.name == "rbf":
            products *= -2.0
            products += left[:, None]
            products += right
            np.maximum(products, 0.0, out=products)
            products *= -self.gamma
            np.exp(products, out=products)
        elif self.name in ("poly", "sigmoid"):
            products *= self.gamma
            products += self.coef0
            products = np.tanh(products) if self.name == "sigmoid" else products**self.degree
        return products

    def exact(self, x: Array, y: Array) -> Array:
        """(len(x), len(y)) values of prepared rows in float64, distances from differences."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if self.name == "rbf":
            apart = scipy.spatial.distance.cdist(x, y, "sqeuclidean")
            return np.asarray(np.exp(-self.gamma * apart))
        return self.of_rows(x, y)

    def diagonal(self, rows: Array) -> Array:
        """(len(rows),) k(x, x) of prepared rows."""
        if self.name in ("rbf", "laplacian"):
            return np.ones(len(rows))
        if self.function is not None:
            return np.array([float(self.function(row, row)) for row in rows])
        inner = squares(rows)
        return inner if self.name == "cosine" else self.of_products(inner, inner, inner)


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
    """(len(rows),) squared lengths, float64."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def refuse_holes(block: Block) -> None:
    if (holes := np.flatnonzero(block.stats.missing)).size:
        lost = int(block.stats.missing.sum())
        raise block.refuse_missing(holes, lost, block.shape[0] * len(holes) - lost)


def refuse_asymmetric(image: Array, transposed: Array) -> None:
    """Raise InvalidInputError where K v and K'v (n,) differ."""
    length = float(np.linalg.norm(image))
    apart = float(np.linalg.norm(image - transposed)) / max(length, 1e-300)
    if apart > SYMMETRIC:
        raise InvalidInputError(
            f"the precomputed kernel is not symmetric: K v and K'v differ by {apart:.1e} of "
            "their length. Expected the values of all pairs; (K + K') / 2 is symmetric"
        )


def remedy_of_rounding(dtype: np.dtype[Any]) -> str:
    """Why products of rows lose what tells the rows apart, and what helps."""
    repair = "take off X what all rows share, or rescale it"
    if dtype == np.float32:
        repair = "convert with X.astype('float64')"
    return f"Rows are long compared with their distances, or equal: {repair}"
